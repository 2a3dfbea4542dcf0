"""The log of a real PostgreSQL: every operation, exact resumption, nothing confirmed but what we say."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import replace

import pytest

from connector.errors import FencedError, TransientError
from connector.position import format_lsn
from connector.postgres import log_identity, slot
from connector.postgres.connection import one_row
from connector.postgres.log import reader
from connector.postgres.log.bulk import BacklogReader
from connector.postgres.log.reader import PostgresLogReader
from connector.postgres.log.stream import StreamReader
from connector.postgres.primary_session import process_of
from connector.postgres.source import PostgresSource
from connector.schema import TableName
from connector.source import ResumePoint, Segment
from tests.support.servers.postgres import Database, postgres_versions
from tests.support.source import log_scenarios
from tests.support.source.log_scenarios import Logged
from tests.support.source.postgres_source import Pooled, all_ways, both_ways, confirmed, source_of
from tests.support.source.reading import events, following, opened, ops, quarantines, read_rows, read_to
from tests.support.waiting import wait_until


def logged(database: Database) -> Logged:
    return Logged(
        source_of(database),
        lambda *statements: database.execute("; ".join(statements)),
        lambda log, rows: events(read_rows(log, rows)),
    )


@pytest.mark.parametrize("postgres", postgres_versions(), indirect=True)
@all_ways
def test_every_operation_comes_in_order_on_every_version(database: Database) -> None:
    found = log_scenarios.every_operation(logged(database))
    assert [row["_cdc"]["seq"] for row in found] == [0, 2, 4, 6, 7, 8, 0]


def test_a_savepoint_that_was_rolled_back_leaves_nothing(database: Database) -> None:
    log_scenarios.savepoint_rolled_back(logged(database))


def test_keys_swapped_in_one_transaction_keep_their_rows(database: Database) -> None:
    log_scenarios.keys_swapped(logged(database))


@both_ways
def test_a_publication_with_any_name_is_streamed(database: Database) -> None:
    """The commands of a replication connection know no escapes. The agent ended with a syntax error."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with following(source_of(database, publication="it's \\ 100 %s,\n")) as log:
        database.execute("INSERT INTO t VALUES (1)")
        assert [row["id"] for row in events(read_rows(log, 1))] == [1]


def test_unchanged_toast_is_marked(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v text)")
    database.execute(
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL; INSERT INTO t VALUES (1, 1, repeat('x', 9000))"
    )
    with following(source_of(database)) as log:
        database.execute("UPDATE t SET n = 2")
        (row,) = events(read_rows(log, 1))
    assert (row["n"], row["v"], row["_cdc"]["unchanged"]) == (2, None, ["v"])


def test_partitions_come_under_their_root(database: Database) -> None:
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)"
    )
    source = source_of(database)
    assert [str(schema.table) for schema in source.tables().schemas] == ["public.p"]
    with following(source) as log:
        database.execute("INSERT INTO p VALUES (1, 'a'); UPDATE p SET id = 11")
        found = events(read_rows(log, 3))
    assert {row["_table"] for row in found} == {"public.p"}
    assert ops(found, "id") == [("insert", 1), ("delete", 1), ("insert", 11)]


@both_ways
def test_reading_again_gives_the_same_events_and_none_twice(database: Database) -> None:
    log_scenarios.read_again(logged(database))


@all_ways
def test_a_huge_transaction_can_be_taken_in_parts(database: Database) -> None:
    rows = 5000  # ten times as much as a socket may hand over at once
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")

    def all_read(parts: list[Segment]) -> bool:
        return sum(part.rows for part in parts) == rows and parts[-1].position > parts[0].position

    with following(source_of(database)) as log:
        database.execute(f"INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, {rows}) i")
        parts = log_scenarios.read_in_parts(log, all_read)
    found = [row for part in parts for row in events(part)]
    assert [row["id"] for row in found] == list(range(1, rows + 1))
    assert [row["_cdc"]["seq"] for row in found] == list(range(0, 2 * rows, 2))
    assert len({row["_cdc"]["lsn"] for row in found}) == 1


def reported(database: Database, log: PostgresLogReader, position: int) -> None:
    """Read on until a status message has told the server that we received the position."""
    query = (
        "SELECT write_lsn - '0/0'::pg_lsn FROM pg_stat_replication r"
        " JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.database = current_database()"
    )

    def written() -> bool:
        log.read(0.1, 1 << 20)
        return int(database.execute(query)[0][0]) >= position

    wait_until(written, f"the server is told of {position}")


def wait_until_confirmed(database: Database, log: PostgresLogReader, position: int) -> None:
    """Read on until the slot is at the position."""

    def moved() -> bool:
        log.read(0.01, 1 << 20)
        return confirmed(database) == position

    wait_until(moved, f"the slot is at {position}")


@all_ways
def test_the_slot_never_passes_what_was_confirmed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connector.postgres.log.stream.STATUS_SECONDS", 0.05)
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE busy (id serial PRIMARY KEY)")
    source = source_of(database, ["public.t"])
    with following(source) as log:
        start = confirmed(database)
        database.execute("INSERT INTO busy SELECT FROM generate_series(1, 1000)")
        read_to(log, database.end_of_log() - 8)  # idle for us, and yet it moves by itself
        reported(database, log, log.position)
        assert confirmed(database) == start
        database.execute("INSERT INTO t VALUES (1)")
        segment = read_rows(log, 1)
        log.confirm(segment.position)
        wait_until_confirmed(database, log, segment.position)
        database.execute("INSERT INTO busy SELECT FROM generate_series(1, 1000)")
        read_to(log, database.end_of_log() - 8)
        idle = log.position
        assert idle > segment.position
        reported(database, log, idle)
        assert confirmed(database) == segment.position
        log.confirm(idle)
        wait_until_confirmed(database, log, idle)
    assert confirmed(database) == idle


@pytest.mark.parametrize("way", ["psycopg2"], indirect=True)
def test_no_answer_of_psycopg2_itself_moves_the_slot(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that all log is flushed which the server has read, if that had nothing for us."""
    monkeypatch.setattr("connector.postgres.log.stream.STATUS_SECONDS", 60)
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE busy (id serial PRIMARY KEY)")
    database.execute(f"ALTER DATABASE \"{database.name}\" SET wal_sender_timeout = '1s'")
    with following(source_of(database, ["public.t"])) as log:
        start = confirmed(database)
        database.execute("INSERT INTO busy SELECT FROM generate_series(1, 1000)")
        claimed = (
            "SELECT confirmed_flush_lsn > %s::text::pg_lsn FROM pg_replication_slots WHERE temporary"
            " AND database = current_database()"
        )
        wait_until(
            lambda: log.read(0.05, 1 << 20) or database.execute(claimed, (format_lsn(start),))[0][0],
            "psycopg2 reports as flushed what nobody confirmed",
        )
        assert confirmed(database) == start


@all_ways
def test_a_large_row_and_small_ones_around_it_come_whole(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with following(source_of(database)) as log:
        database.execute(
            "INSERT INTO t SELECT n, repeat('ä', CASE n WHEN 5 THEN 9000000 ELSE 3 END)"
            " FROM generate_series(1, 9) n"
        )
        found = events(read_rows(log, 9))
    assert [(row["id"], len(row["v"])) for row in found] == [
        (n, 9_000_000 if n == 5 else 3) for n in range(1, 10)
    ]


@all_ways
def test_a_server_that_asks_for_an_answer_gets_one_while_nobody_reads(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connector.postgres.log.stream.STATUS_SECONDS", 0.2)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute(f"ALTER DATABASE \"{database.name}\" SET wal_sender_timeout = '1s'")
    with following(source_of(database)) as log:
        answered = (
            "SELECT reply_time - backend_start > '2.5s' FROM pg_stat_replication r"
            " JOIN pg_replication_slots s"
            " ON s.active_pid = r.pid WHERE s.database = current_database()"
        )
        wait_until(lambda: database.execute(answered)[0][0], "the server's patience is over twice")
        database.execute("INSERT INTO t VALUES (1)")
        assert ops(events(read_rows(log, 1)), "id") == [("insert", 1)]


@pytest.mark.parametrize("end", ["terminate", "cancel"])
@all_ways
def test_a_walsender_that_somebody_ends_is_transient_and_resumed_exactly(
    database: Database, end: str
) -> None:
    walsender = (
        f"SELECT pg_{end}_backend(active_pid) FROM pg_replication_slots"
        " WHERE database = current_database() AND active"
    )
    log_scenarios.sender_ended(logged(database), lambda: database.execute(walsender))


@all_ways
def test_the_backlog_in_bulk_equals_the_stream(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.postgres.log.bulk.BATCH_CHANGES", 700)
    monkeypatch.setattr("connector.postgres.log.reader.CAUGHT_UP_BYTES", 1)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)")
    streaming = source_of(database)
    streaming.prepare()
    history = streaming.begin_log(fresh=False)
    for start in range(0, 3000, 300):
        database.execute(
            f"INSERT INTO t SELECT i, i::text FROM generate_series({start}, {start + 299}) i;"
            f"UPDATE t SET v = 'new' WHERE id % 7 = 0; INSERT INTO u VALUES ({start})"
        )
    database.execute("ALTER TABLE t ADD w int DEFAULT 5; DELETE FROM t WHERE id < 100; TRUNCATE u")
    end = database.execute("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")[0][0]
    with opened(streaming, history) as log:
        read_to(log, int(end))
        streamed = events(log.take())
    with opened(source_of(database, bulk_bytes=1), history) as log:
        assert isinstance(log._log_source, BacklogReader)
        read_to(log, int(end))
        in_bulk = events(log.take())
        assert confirmed(database) == history.position
        log.confirm(log.position)
        database.execute("INSERT INTO u VALUES (-1)")
        assert ops(events(read_rows(log, 1)), "id") == [("insert", -1)]
        wait_until(
            lambda: log.read(0.01, 1 << 20) or isinstance(log._log_source, StreamReader), "it streams again"
        )
        database.execute("INSERT INTO u VALUES (-2)")
        assert ops(events(read_rows(log, 1)), "id") == [("insert", -2)]
    assert in_bulk == streamed
    assert len(streamed) > 3000


def behind(database: Database, monkeypatch: pytest.MonkeyPatch) -> tuple[PostgresSource, ResumePoint]:
    """Begin a history, and write more than is streamed: return the source and where its log begins."""
    monkeypatch.setattr("connector.postgres.log.reader.CAUGHT_UP_BYTES", 1 << 12)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source = source_of(database, bulk_bytes=1 << 14)
    source.prepare()
    history = source.begin_log(fresh=False)
    fill(database, 0)
    return source, history


def fill(database: Database, first: int) -> None:
    """Insert ten thousand rows with ids from `first` on, a thousand in each transaction."""
    for start in range(first, first + 10_000, 1000):
        rows = f"SELECT i, repeat('x', 100) FROM generate_series({start}, {start + 999}) i"
        database.execute(f"INSERT INTO t {rows}")


@both_ways
def test_the_stream_after_the_bulk_confirms_no_more_than_was_confirmed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read in bulk may still be on its way into the landing zone."""
    source, history = behind(database, monkeypatch)
    with opened(source, history) as log:
        assert isinstance(log._log_source, BacklogReader)

        def streams() -> bool:
            log.read(0.05, 64 << 20)
            log.take()
            return isinstance(log._log_source, StreamReader)

        wait_until(streams, "it streams")
        database.execute("INSERT INTO t VALUES (-1)")
        read_rows(log, 1)
        assert confirmed(database) <= history.position
        read = log.position
        log.confirm(read)
        wait_until_confirmed(database, log, read)


@both_ways
def test_bulk_that_follows_on_bulk_begins_where_that_had_read_to(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the threshold is written while the end of the first backlog is being landed."""
    source, history = behind(database, monkeypatch)
    with opened(source, history) as log:
        former = log._log_source
        assert isinstance(former, BacklogReader)
        wait_until(lambda: log.read(0.05, 64 << 20) or former.done, "the backlog is read")
        read = [log.take()]
        fill(database, 10_000)
        log.read(0.2, 64 << 20)
        assert isinstance(log._log_source, BacklogReader)
        assert log._log_source is not former
        end = database.end_of_log()
        while log.position < end:
            log.read(0.05, 1 << 18)
            read.append(log.take())
    positions = [segment.position for segment in read]
    assert positions == sorted(positions)
    ids = [event["id"] for segment in read for event in events(segment)]
    assert ids == list(range(20_000))


PASSED = {
    "advanced": "SELECT pg_replication_slot_advance('{0}', pg_current_wal_lsn())",
    "re-created": "SELECT pg_drop_replication_slot('{0}');"
    " SELECT pg_create_logical_replication_slot('{0}', 'pgoutput')",
}
"""What frees the server's disk of log that a slot keeps, which nobody seems to use while a copy is read."""


@both_ways
@pytest.mark.parametrize("how", PASSED)
def test_a_slot_that_others_move_while_a_copy_is_read_is_a_gap(
    how: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would go on from where the slot is, without an error."""
    source, history = behind(database, monkeypatch)
    with opened(source, history) as log:
        assert isinstance(log._log_source, BacklogReader)
        wait_until(lambda: log.read(0.05, 64 << 20) or log._log_source.done, "the backlog is read")
        log.take()
        database.execute("INSERT INTO t VALUES (-1)")
        database.execute(PASSED[how].format(database.name))
        with pytest.raises(TransientError, match=r"was moved past .*, or re-created"):
            log.read(0.05, 64 << 20)
    gap = source.check_resumable(history)
    assert isinstance(gap, str)
    assert "it was consumed or re-created" in gap


@both_ways
@pytest.mark.parametrize("bulk_bytes", [1, 1 << 30], ids=["in bulk", "streamed"])
def test_a_slot_that_others_move_before_it_is_opened_is_a_gap(bulk_bytes: int, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(database, bulk_bytes=bulk_bytes)
    source.prepare()
    history = source.begin_log(fresh=False)
    database.execute("INSERT INTO t SELECT generate_series(1, 1000)")
    assert source.check_resumable(history) is None
    database.execute(PASSED["advanced"].format(database.name))
    with pytest.raises(TransientError, match="was moved past"), opened(source, history):
        pass
    assert isinstance(source.check_resumable(history), str)
    source.close()


@all_ways
def test_log_that_the_server_has_no_room_to_read_in_bulk_is_streamed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server writes what exceeds its memory to a temporary file, before it sends the first row."""
    source, history = behind(database, monkeypatch)
    database.execute("INSERT INTO t SELECT i, repeat('x', 4000000) FROM generate_series(-20, -1) i")
    database.execute(f'ALTER DATABASE "{database.name}" SET temp_file_limit = 0')
    with opened(source, history) as log:
        assert isinstance(log._log_source, BacklogReader)
        read = []
        while sum(segment.rows for segment in read) < 10_020:
            log.read(0.05, 256 << 20)
            read.append(log.take())
        assert isinstance(log._log_source, StreamReader)
    ids = [event["id"] for segment in read for event in events(segment)]
    assert ids == [*range(10_000), *range(-20, 0)]


def test_a_log_is_proven_in_steps_where_the_server_has_no_room_for_it_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the slot may be minutes of log behind the manifest."""
    monkeypatch.setattr("connector.postgres.log_identity.STEP_BYTES", 1 << 17)
    _, history = behind(database, monkeypatch)
    with opened(source_of(database), history) as log:
        read_to(log, database.end_of_log())
        landed = log.take().end
    assert landed.last_commit is not None
    unlike = landed.last_commit.model_copy(update={"txid": "7"})
    database.execute(f'ALTER DATABASE "{database.name}" SET work_mem = "1MB"')
    database.execute(f'ALTER DATABASE "{database.name}" SET temp_file_limit = 0')
    with contextlib.closing(source_of(database)) as again:
        assert again.check_resumable(landed) is None
        why = again.check_resumable(replace(landed, last_commit=unlike))
        assert "restored or replaced" in str(why)
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert database.execute(slots) == [(database.name,)]


def test_a_column_added_and_dropped_between_changes_changes_the_layout(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    source = source_of(database)
    with following(source) as log:
        database.execute(
            "INSERT INTO t VALUES (1, 'a'); ALTER TABLE t ADD b int; INSERT INTO t VALUES (2, 'a', 3)"
        )
        database.execute("ALTER TABLE t DROP a; INSERT INTO t VALUES (4, 5)")
        batches = list(read_rows(log, 3).decode())
        now = source.tables().schemas[0]
    assert [[c.name for c in batch.schema.columns] for batch in batches] == [
        ["id", "a"],
        ["id", "a", "b"],
        ["id", "b"],
    ]
    assert batches[-1].schema == now


def test_a_table_whose_key_is_not_logged_is_quarantined_and_the_others_go_on(database: Database) -> None:
    names = ["t", '"a.b"', '"s.""q"."t.x"']
    database.execute('CREATE SCHEMA "s.""q"; CREATE TABLE u (id int PRIMARY KEY)')
    for name in names:
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)")
    source = source_of(database, ["*.*"])
    captured = {schema.table for schema in source.tables().schemas}
    with following(source) as log:
        for name in names:
            database.execute(f"ALTER TABLE {name} REPLICA IDENTITY NOTHING; INSERT INTO {name} VALUES (1)")
        database.execute("INSERT INTO u VALUES (2)")
        segment = read_rows(log, 1)
    found = quarantines(segment)
    assert {each.table for each in found} == captured - {TableName("public", "u")}
    assert all(each.reason == f"replica identity of {each.table} does not fit" for each in found)
    assert all("REPLICA IDENTITY" in each.hint for each in found)
    assert segment.rows == 1


def test_a_slot_that_is_gone_consumed_or_of_another_history_is_a_gap(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(database)
    source.prepare()
    history = source.begin_log(fresh=False)
    assert source.check_resumable(history) is None
    assert source.begin_log(fresh=False).position == history.position  # adopted
    assert "past" in (source.check_resumable(ResumePoint(history.position - 8)) or "")
    assert "restored or failed over" in (
        source.check_resumable(ResumePoint(history.position + (1 << 40))) or ""
    )
    assert source.begin_log(fresh=True).position > history.position
    assert "past" in (source.check_resumable(history) or "")
    database.execute("SELECT pg_drop_replication_slot(%s)", (database.name,))
    assert source.check_resumable(history) == f"slot {database.name} is gone"
    source.close()


@both_ways
def test_a_slot_in_use_is_refused_with_the_process_that_holds_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "RELEASE_SECONDS", 0.3)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with following(source_of(database)) as log:
        second = source_of(database)
        with pytest.raises(FencedError, match="in use by server process") as refused:
            second.open_log(1, ResumePoint(log.position))
        second.close()
    assert "pg_terminate_backend" in (refused.value.hint or "")


@both_ways
def test_a_connection_of_ours_that_only_the_server_takes_for_alive_does_not_keep_the_slot(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the network fails on our side, the server may not notice for a minute, or ever."""
    monkeypatch.setattr(slot, "RELEASE_SECONDS", 5)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(database)
    with following(source) as lost:
        history = ResumePoint(lost.position)
        assert source.check_resumable(history) is None
        source.open_log(1, history).close()


@both_ways
def test_a_slot_whose_name_begins_like_ours_is_not_ours(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names have room for 63 bytes, which a copy's name has to share with more."""
    monkeypatch.setattr(slot, "RELEASE_SECONDS", 0.3)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    long = Database(database.server, database.name.ljust(62, "_") + "1")
    longer = Database(database.server, database.name.ljust(62, "_") + "2")
    with contextlib.ExitStack() as stack:
        for named in long, longer:
            source = source_of(named, url=database.url)
            log = stack.enter_context(following(source))
            database.execute("INSERT INTO t VALUES (%s)", (int(named.name[-1]),))
            assert ops(events(read_rows(log, 1)), "id") == [("insert", int(named.name[-1]))]
            names = database.execute("SELECT slot_name::text FROM pg_replication_slots WHERE temporary")
            assert all(len(name) <= 63 for (name,) in names)


def is_unbroken(source: PostgresSource, history: ResumePoint) -> bool:
    """Open the log again, as after a lost connection."""
    assert source.check_resumable(history) is None
    with contextlib.closing(source.open_log(1, history)) as log:
        return log.unbroken


@pytest.mark.parametrize("postgres", [17], indirect=True)
def test_a_slot_that_standbys_keep_is_kept_by_them_after_a_gap(database: Database) -> None:
    """Without that, the next failover is a gap, though the last one was none."""
    kept = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', failover => {})"
    for failover in (True, False):
        source = source_of(database)
        source.prepare()
        database.execute(create.format(failover), (database.name,))
        before = source.begin_log(fresh=False).position
        assert source.begin_log(fresh=True).position > before
        source.close()
        assert database.execute(kept, (database.name,)) == [(failover,)]
        database.execute("SELECT pg_drop_replication_slot(%s)", (database.name,))


@pytest.mark.parametrize("postgres", [17], indirect=True)
def test_a_slot_that_standbys_keep_is_kept_though_the_first_attempt_to_create_it_anew_ends(
    database: Database,
) -> None:
    """It waits for the transactions of others, and the former slot is gone by then."""
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', failover => true)"
    source = source_of(database)
    source.prepare()
    database.execute(create, (database.name,))
    with contextlib.closing(source):
        with contextlib.closing(database.connect(autocommit=False)) as running:
            with running.cursor() as cursor:
                cursor.execute("SELECT pg_current_xact_id()")
            with pytest.raises(TransientError, match="creating slot"):
                source.begin_log(fresh=True, stopping=lambda: True)
            slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
            wait_until(lambda: database.execute(slots, (database.name,)) == [(0,)], "it is gone")
        source.begin_log(fresh=True)
    kept = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    assert database.execute(kept, (database.name,)) == [(True,)]
    database.execute("SELECT pg_drop_replication_slot(%s)", (database.name,))


def test_a_slot_is_made_anew_only_over_the_session_whose_server_was_identified(database: Database) -> None:
    """Reopened, it may lead to another database, whose slot would be dropped."""
    source = source_of(database)
    source.prepare()
    before = source.begin_log(fresh=False).position
    source.identity()
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'deltatide it'"
    )
    with pytest.raises(TransientError, match="since its server was identified"):
        source.begin_log(fresh=True)
    assert confirmed(database) == before
    source.identity()
    assert source.begin_log(fresh=True).position > before
    source.close()


def test_a_log_is_unbroken_while_the_session_that_proved_it_lives(database: Database) -> None:
    source, found = source_of(database), []
    source.prepare()
    history = source.begin_log(fresh=False)
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'deltatide it'"
    for statement in "SELECT 1", "SELECT 1", end, "SELECT 1":
        database.execute(statement)  # a crash ends all sessions
        found.append(is_unbroken(source, history))
    source.close()
    assert found == [False, True, False, True]


def test_a_process_is_recognized_by_what_dies_with_it_even_by_a_role_that_acts_as_another(
    database: Database,
) -> None:
    """From such a role it is hidden when a process began, and its id may be given again after a crash."""
    with contextlib.closing(database.connect()) as one, contextlib.closing(database.connect()) as other:
        for connection in one, other:
            connection.cursor().execute("SET ROLE pg_signal_backend")
        begin = "SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid())"
        assert one_row(one, begin) == (None,)
        process = process_of(one)
        assert process is not None
        assert process_of(one) == process
        assert process_of(other) not in (None, process)
        one.cursor().execute("SELECT set_config('deltatide.process', '', false)")  # as in a new process
        again = process_of(one)
        assert again is not None
        assert (again[0], again == process) == (process[0], False)


def test_a_log_is_broken_once_another_process_answers_on_the_session_that_proved_it(
    database: Database,
) -> None:
    """A pooler's client outlives a crash of the server."""
    source, found = source_of(database), []
    source.prepare()
    pooled = Pooled(source._session._connection)
    source._session._connection = pooled  # type: ignore[assignment]
    history = source.begin_log(fresh=False)
    for change in False, False, True, False:
        if change:
            pooled.connection.close()
            pooled.connection = database.connect()
        found.append(is_unbroken(source, history))
    source.close()
    assert found == [False, True, False, True]


def test_a_log_is_reopened_once_another_process_answers_beside_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have crashed between what was read in bulk and the stream, or a snapshot and the log."""
    monkeypatch.setattr(reader, "POLL_SECONDS", 0.0)
    with following(source_of(database)) as log:
        log.read(0.01, 1)
        with contextlib.closing(log._side):
            log._side = database.connect()
        with pytest.raises(TransientError, match="another server process"):
            log.read(0.01, 1)


@both_ways
def test_a_lingering_walsender_is_waited_for(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with following(source_of(database)) as log:
        second = source_of(database)
        threading.Timer(0.5, log.close).start()
        with opened(second, ResumePoint(log.position, ())) as other:
            database.execute("INSERT INTO t VALUES (1)")
            assert ops(events(read_rows(other, 1)), "id") == [("insert", 1)]


def test_a_confirmation_that_the_server_takes_note_of_late_is_no_gap(database: Database) -> None:
    """A walsender that was busy as the agent ended moves the slot while the next one waits for it."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with following(source_of(database)) as log:
        database.execute("INSERT INTO t VALUES (1)")
        landed = read_rows(log, 1).end
        reading = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
        ((walsender,),) = database.execute(reading, (database.name,))
        os.kill(walsender, signal.SIGSTOP)
        log.confirm(landed.position)
    threading.Timer(0.5, os.kill, (walsender, signal.SIGCONT)).start()
    with contextlib.closing(source_of(database)) as again:
        assert confirmed(database) < landed.position
        assert again.check_resumable(landed) is None
        assert confirmed(database) == landed.position


def test_a_slot_that_moves_while_its_log_is_compared_is_no_gap(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement of a lost session may still be running at the server."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with following(source_of(database)) as log:
        database.execute("INSERT INTO t VALUES (1)")
        landed = read_rows(log, 1).end

    def moved(_: object, name: str, position: int) -> bool:
        moving = "SELECT pg_replication_slot_advance(%s, %s)"
        database.execute(moving, (name, format_lsn(position)))
        return False

    monkeypatch.setattr(log_identity, "awaits_standbys", moved)
    with contextlib.closing(source_of(database)) as again:
        with pytest.raises(TransientError, match="was moved while"):
            again.check_resumable(landed)
        assert again.check_resumable(landed) is None


def test_a_table_added_to_the_publication_shows_who_may_have_written_unseen(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE later (id int PRIMARY KEY)")
    first = source_of(database, ["public.t"])
    assert first.prepare().added == ()
    first.close()
    writer = database.connect(autocommit=False)
    with writer.cursor() as cursor:
        cursor.execute("INSERT INTO later VALUES (1) RETURNING pg_current_xact_id()::text")
        (xid,) = cursor.fetchone() or ("",)
    second = source_of(database)
    prepared = second.prepare()
    assert prepared.added == (TableName("public", "later"),)
    (barrier,) = prepared.not_yet_visible
    assert (barrier.xid, barrier.lsn) > (int(xid), 0)
    (again,) = second.prepare().not_yet_visible
    assert (again.xid, again.lsn) > (int(xid), 0)
    second.close()
    writer.close()
