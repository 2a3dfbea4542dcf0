"""How connections copy and stream in a test; `tests.support.source.postgres_source.both_ways` tries each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connector.postgres.driver import choice


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the driver in use: "libpq", or "psycopg2" as if libpq were out of reach."""
    chosen: str = getattr(request, "param", "libpq")
    if chosen == "psycopg2":
        monkeypatch.setattr(choice, "reach_libpq", _unreachable)
    choice.driver.cache_clear()
    yield chosen
    choice.driver.cache_clear()


def _unreachable() -> None:
    raise OSError("hidden by the test")
