"""How connections copy and stream in a test; `tests.support.source.postgres_source.both_ways` tries each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connector.postgres.driver import choice
from connector.postgres.driver.libpq import CopyStream
from tests.support.servers.postgres import Database, PostgresServer


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield how connections are read: by "socket", by "libpq" as if encrypted, or by "psycopg2" alone."""
    chosen: str = getattr(request, "param", "socket")
    if chosen == "psycopg2":
        monkeypatch.setattr(choice, "reach_libpq", _unreachable)
    if chosen == "libpq":
        monkeypatch.setattr(CopyStream, "encrypted", True)
    choice.driver.cache_clear()
    yield chosen
    choice.driver.cache_clear()


def _unreachable() -> None:
    raise OSError("hidden by the test")


@pytest.fixture
def unanswered(postgres: PostgresServer, database: Database) -> Iterator[Database]:
    """A server whose commits wait for a standby that does not exist, unless the session waives it."""
    name = database.name
    database.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    database.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    database.execute("SELECT pg_reload_conf()")
    yield database
    database.execute("ALTER SYSTEM RESET synchronous_standby_names")
    database.execute("SELECT pg_reload_conf()")
