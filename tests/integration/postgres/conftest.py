"""How connections copy and stream in a test; `tests.support.postgres_source.both_ways` takes each in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connector.postgres.driver import choice


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The way: "libpq", or "psycopg2" as where libpq can't be reached."""
    chosen: str = getattr(request, "param", "libpq")
    if chosen == "psycopg2":
        monkeypatch.setattr(choice, "reach_libpq", _unreachable)
    choice.driver.cache_clear()
    yield chosen
    choice.driver.cache_clear()


def _unreachable() -> None:
    raise OSError("hidden by the test")
