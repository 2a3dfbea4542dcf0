"""A slot that standbys keep, while one that the server waits for (`synchronized_standby_slots`) is down."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from connector.postgres.source import PostgresSource
from connector.source import ResumePoint
from tests.support.servers.postgres import Database
from tests.support.source.postgres_source import both_ways, confirmed, source_of
from tests.support.source.reading import events, opened, ops, read_rows
from tests.support.waiting import wait_until


@contextlib.contextmanager
def standby_down(database: Database, named: str = "absent") -> Iterator[None]:
    """Have the server wait for a standby that never comes, during the block; at most for 20 seconds.

    `named`: its name in the setting.
    """
    database.execute("SELECT pg_create_physical_replication_slot('absent', true)")
    set_slots(database, f"ALTER SYSTEM SET synchronized_standby_slots = '{named}'", named)
    limit = threading.Timer(20, lambda: set_slots(database, RESET, ""))
    limit.start()
    try:
        yield
    finally:
        limit.cancel()
        limit.join()
        set_slots(database, RESET, "")
        database.execute("SELECT pg_drop_replication_slot('absent')")


def source_with_kept_slot(database: Database, **options: Any) -> PostgresSource:
    """A source of one table t, whose slot standbys keep."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(database, **options)
    source.prepare()
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', failover => true)"
    database.execute(create, (database.name,))
    return source


CATCH_UP = "SELECT pg_replication_slot_advance('absent', pg_current_wal_flush_lsn())"

RESET = "ALTER SYSTEM RESET synchronized_standby_slots"


def set_slots(database: Database, statement: str, expected: str) -> None:
    database.execute(statement)
    database.execute("SELECT pg_reload_conf()")
    wait_until(
        lambda: database.execute("SHOW synchronized_standby_slots") == [(expected,)], "the setting holds"
    )


@both_ways
@pytest.mark.parametrize("postgres", [17], indirect=True)
def test_log_that_a_standby_lacks_is_landed_and_proved_from_a_copy_of_the_slot(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever moves the slot, or reads what it resends, waits for the standby: there the agent hung."""
    monkeypatch.setattr("connector.postgres.log.reader.CAUGHT_UP_BYTES", 1)
    source = source_with_kept_slot(database, bulk_bytes=1)
    history = source.begin_log(fresh=False)
    with standby_down(database):
        database.execute("INSERT INTO t SELECT generate_series(1, 100)")
        began = time.monotonic()
        with opened(source, history) as log:
            segment = read_rows(log, 100)
            landed = segment.end
            assert ops(events(segment)) == [("insert",)] * 100
            log.confirm(landed.position)
        source = source_of(database)
        resume = ResumePoint(landed.position, last_commit=landed.last_commit)
        assert source.check_resumable(resume) is None
        assert confirmed(database) == history.position
        source.open_log(1, resume).close()  # a stream then confirms the slot, which waits for nobody
        assert time.monotonic() - began < 15
    with opened(source, resume) as log:
        log.confirm(landed.position)

        def moved() -> bool:
            log.read(0.05, 1 << 20)
            return confirmed(database) >= landed.position

        wait_until(moved, "the slot is moved once the standby has the log")


@pytest.mark.parametrize("postgres", [17], indirect=True)
def test_a_stream_that_waits_for_a_standby_says_for_which(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server sends nothing, as after a failover to a server whose setting was copied, too."""
    monkeypatch.setattr("connector.postgres.log.reader.POLL_SECONDS", 0.1)
    source = source_with_kept_slot(database)
    with opened(source, source.begin_log(fresh=False)) as log:
        log.read(0.5, 1 << 20)
        assert not caplog.messages
        with standby_down(database):
            database.execute("INSERT INTO t VALUES (1)")

            def said() -> bool:
                log.read(0.1, 1 << 20)
                return any("synchronized_standby_slots are, and" in m for m in caplog.messages)

            wait_until(said, "it says so", seconds=10)
            for n in range(2, 4):  # the standby moves, but not to the end
                database.execute(CATCH_UP)
                database.execute("INSERT INTO t VALUES (%s)", (n,))
                database.execute("SELECT pg_current_xact_id()")  # flushes the log
                for _ in range(5):
                    log.read(0.1, 1 << 20)
        assert len(caplog.messages) == 1
        assert "absent at 0/" in caplog.text
        assert ops(events(read_rows(log, 3))) == [("insert",)] * 3


@pytest.mark.parametrize("way", ["psycopg2"], indirect=True)
@pytest.mark.parametrize("postgres", [17], indirect=True)
def test_a_standby_is_found_by_the_name_that_the_server_reads(database: Database) -> None:
    """In lower case: the slot never moved, so the server kept all of its log."""
    source = source_with_kept_slot(database)
    with standby_down(database, "Absent"), opened(source, source.begin_log(fresh=False)) as log:
        database.execute("INSERT INTO t VALUES (1)")
        landed = read_rows(log, 1).end.position
        database.execute(CATCH_UP)

        def moved() -> bool:
            log.confirm(landed)  # which moves it at intervals only
            return confirmed(database) >= landed

        wait_until(moved, "the slot is moved", seconds=10)


@pytest.mark.parametrize("postgres", [17], indirect=True)
def test_a_standby_that_follows_is_no_news(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a moment behind whenever it is looked at, while the position stays before a long transaction."""
    monkeypatch.setattr("connector.postgres.log.reader.POLL_SECONDS", 0.0)
    source = source_with_kept_slot(database)
    with standby_down(database), opened(source, source.begin_log(fresh=False)) as log:
        database.execute(CATCH_UP)
        with contextlib.closing(database.connect(autocommit=False)) as writer, writer.cursor() as cursor:
            behind = 0
            for n in range(5):
                cursor.execute("INSERT INTO t VALUES (%s)", (n,))
                database.execute("SELECT pg_current_xact_id()")  # flushes the log
                log.read(0.1, 1 << 20)
                behind = max(behind, log.behind_bytes)
                database.execute(CATCH_UP)
            assert behind
        assert not caplog.messages
