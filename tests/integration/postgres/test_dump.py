"""Chunks of a real PostgreSQL: what a snapshot provably sees, keys of every type, the values of the log."""

from __future__ import annotations

import contextlib
import threading

import psycopg2.errors
import psycopg2.extensions
import pytest

from connector.errors import NotYetError, RequestError, TableError, TransientError
from connector.landing.manifest import InvisibleCommit
from connector.postgres import dump
from connector.postgres.driver.rowcopy import BUFFER_BYTES
from connector.postgres.dump import PostgresTables
from connector.postgres.key_sql import key_columns
from connector.postgres.log.bulk import BacklogReader
from connector.schema import TableName
from connector.source import KeyRange, ResumePoint
from tests.support.servers.postgres import Database, postgres_versions
from tests.support.source import dump_scenarios
from tests.support.source.dump_scenarios import batch_sizes, every_row_once, rows_of_keys
from tests.support.source.postgres_source import both_ways, source_of
from tests.support.source.reading import Row, chunk_rows, events, following, opened, ops, read_rows, read_to
from tests.support.waiting import wait_until

T = TableName("public", "t")


@both_ways
def test_a_commit_that_is_read_and_not_visible_lowers_the_chunk_below_it(unanswered: Database) -> None:
    database = unanswered
    wait_until(
        lambda: database.execute("SHOW synchronous_standby_names")[0][0] == "nobody", "the setting holds"
    )
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'old')")
    source = source_of(database)
    with following(source) as log:
        hanging = threading.Thread(
            target=lambda: database.execute("SET synchronous_commit = on; UPDATE t SET v = 'new'")
        )
        hanging.start()
        try:
            (update,) = events(read_rows(log, 1))  # the log has it ...
            database.execute("INSERT INTO t VALUES (2, 'later')")
            later = events(read_rows(log, 1))
            tables = source.open_tables()
            with tables.open_chunk(T, KeyRange()) as chunk:
                low = chunk.low
                rows = [tuple(c.to_pylist()) for some in chunk.rows() for c in some.columns]
            assert rows == [(1, 2), ("old", "later")]  # ... and the chunk does not see it
            assert low == update["_cdc"]["lsn"] - 1
            assert low < later[0]["_cdc"]["lsn"]
            xid = int(update["_cdc"]["txid"])
            assert log.not_yet_visible(log.position) == [InvisibleCommit(xid=xid, lsn=update["_cdc"]["lsn"])]
        finally:
            database.execute("ALTER SYSTEM RESET synchronous_standby_names")
            database.execute("SELECT pg_reload_conf()")
            hanging.join(30)
        assert not hanging.is_alive()
        assert log.not_yet_visible(log.position) == []
        with tables.open_chunk(T, KeyRange()) as chunk:
            assert chunk.low == log.position - 1
        assert chunk_rows(tables, "public.t")[0] == {"id": 1, "v": "new"}
        tables.close()


def test_a_chunk_waits_for_a_transaction_of_before_the_history(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump, "SNAPSHOT_SECONDS", 0.2)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(database)
    source.prepare()
    history = source.begin_log(fresh=False)
    writer = database.connect(autocommit=False)
    with writer.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (1) RETURNING pg_current_xact_id()::text")
        (xid,) = cursor.fetchone() or ("",)
    log = source.open_log(1, ResumePoint(history.position, (InvisibleCommit(xid=int(xid) + 1, lsn=0),)))
    tables = source.open_tables()
    with pytest.raises(TransientError, match="waiting for transactions"):
        chunk_rows(tables, "public.t")
    writer.commit()
    assert chunk_rows(tables, "public.t") == [{"id": 1}]
    for used in (tables, log, source):
        used.close()


def test_a_table_that_is_gone_or_locked_keeps_no_other_from_being_read(database: Database) -> None:
    locked = TableName("public", "l")
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE l (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1)")
    source = source_of(database)
    holder = database.connect(autocommit=False)
    release = threading.Timer(10, holder.close)
    with following(source):
        tables = source.open_tables()
        with pytest.raises(NotYetError, match="does not exist"):
            chunk_rows(tables, "public.gone")
        assert chunk_rows(tables, "public.t") == [{"id": 1}]
        holder.cursor().execute("LOCK TABLE l")
        release.start()
        with pytest.raises(NotYetError, match="another session holds a lock"):
            chunk_rows(tables, "public.l")
        with pytest.raises(NotYetError, match="another session holds a lock"):
            tables.next_boundary(locked, ["id"], None, 1, None)
        assert tables.next_boundary(T, ["id"], None, 1, None) == ("1",)
        assert release.is_alive(), "nobody waited for the lock"
        release.cancel()
        holder.close()
        assert chunk_rows(tables, "public.l") == []
        tables.close()


_NEW_KEY = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY"


@pytest.mark.parametrize("in_bulk", [False, True], ids=["streamed", "in_bulk"])
def test_a_type_whose_commit_is_not_visible_yet_is_waited_for(
    unanswered: Database, in_bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for unknown, the column would land as another type from the log than from dumps.

    What is before that commit lands meanwhile, over the same connection.
    """
    monkeypatch.setattr("connector.postgres.log.reader.CAUGHT_UP_BYTES", 1)
    database = unanswered
    wait_until(
        lambda: database.execute("SHOW synchronous_standby_names")[0][0] == "nobody", "the setting holds"
    )
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    migration = (
        "SET synchronous_commit = on; BEGIN; CREATE DOMAIN cents AS bigint; ALTER TABLE t ADD c cents;"
        "INSERT INTO t VALUES (2, 10); COMMIT"
    )
    hanging = threading.Thread(target=lambda: database.execute(migration))
    source = source_of(database, bulk_bytes=1 if in_bulk else 1 << 30)
    source.prepare()
    history = source.begin_log(fresh=False)
    database.execute("INSERT INTO t VALUES (1)")
    hanging.start()
    wait_until(lambda: _hang_in_commit(database) == 1, "a commit hangs")
    with opened(source, history) as log:
        assert isinstance(log._log_source, BacklogReader) == in_bulk
        assert ops(events(read_rows(log, 1)), "id") == [("insert", 1)]
        wait_until(lambda: log.read(0.05, 64 << 20) or log._buffer.waiting, "the migration waits")
        log.read(0.05, 64 << 20)
        assert log.buffered_rows == 0
        database.execute("ALTER SYSTEM RESET synchronous_standby_names")
        database.execute("SELECT pg_reload_conf()")
        (batch,) = read_rows(log, 1).decode()
        assert [column.type for column in batch.schema.columns] == ["int", "bigint"]
        database.execute("INSERT INTO t VALUES (3, 30)")
        assert ops(events(read_rows(log, 1)), "id", "c") == [("insert", 3, 30)]
    hanging.join(30)


@pytest.mark.parametrize(
    ("migration", "key"),
    [
        pytest.param(f"{_NEW_KEY} (id, v); INSERT INTO t VALUES (1, 'b')", ("id", "v"), id="longer"),
        pytest.param(f"{_NEW_KEY} (v, w); INSERT INTO t VALUES (1, 'b')", ("v", "w"), id="another"),
        pytest.param("ALTER TABLE f RENAME TO g; INSERT INTO g VALUES (1)", ("id",), id="renamed_table"),
    ],
)
def test_a_key_whose_commit_is_not_visible_yet_is_waited_for(
    unanswered: Database, migration: str, key: tuple[str, ...]
) -> None:
    """By the key from before, its rows would land over others, or the table be quarantined."""
    database = unanswered
    wait_until(
        lambda: database.execute("SHOW synchronous_standby_names")[0][0] == "nobody", "the setting holds"
    )
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL, w int NOT NULL DEFAULT 7);"
        "INSERT INTO t VALUES (1, 'a');"
        "CREATE TABLE f (id int PRIMARY KEY); ALTER TABLE f REPLICA IDENTITY FULL"
    )
    statements = f"SET synchronous_commit = on; BEGIN; {migration}; COMMIT"
    hanging = threading.Thread(target=lambda: database.execute(statements))
    with following(source_of(database)) as log:
        hanging.start()
        wait_until(lambda: _hang_in_commit(database) == 1, "a commit hangs")
        wait_until(lambda: log.read(0.05, 64 << 20) or log._buffer.waiting, "the migration waits", seconds=10)
        database.execute("ALTER SYSTEM RESET synchronous_standby_names")
        database.execute("SELECT pg_reload_conf()")
        (batch,) = read_rows(log, 1).decode()
        assert batch.schema.key == key
    hanging.join(30)


def test_a_type_that_is_renamed_leaves_the_layout_as_it_was(database: Database) -> None:
    """The log goes on under the layout it has; another one from dumps would ask for dumps without end."""
    database.execute("CREATE TYPE mood AS ENUM ('a'); CREATE TABLE t (id int PRIMARY KEY, m mood)")
    source = source_of(database)
    with following(source) as log:
        database.execute("INSERT INTO t VALUES (1, 'a')")
        (batch,) = read_rows(log, 1).decode()
        database.execute("ALTER TYPE mood RENAME TO feeling")
        tables = source.open_tables()
        with tables.open_chunk(T, KeyRange()) as chunk:
            assert chunk.schema == batch.schema
    database.execute("DROP TABLE t; DROP TYPE feeling; CREATE TYPE mood AS ENUM ('b')")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, m mood)")
    oid = database.execute("SELECT 'mood'::regtype::oid::bigint")[0][0]
    source._types[oid, -1] = "double precision", "double"  # of a server whose disk was restored since
    with following(source):
        with tables.open_chunk(T, KeyRange()) as chunk:
            assert [column.type for column in chunk.schema.columns] == ["int", "string"]
        tables.close()


def test_a_type_that_is_renamed_leaves_the_layout_as_it_was_while_the_log_is_unbroken(
    database: Database,
) -> None:
    """Chunks from before the reopening still wait, under the layout they have."""
    database.execute("CREATE TYPE mood AS ENUM ('a'); CREATE TABLE t (id int PRIMARY KEY, m mood)")
    source = source_of(database)
    source.prepare()
    history, layouts = source.begin_log(fresh=False), []
    for key, statement in enumerate(("SELECT 1", "ALTER TYPE mood RENAME TO feeling")):
        database.execute(statement)
        assert source.check_resumable(history) is None
        with contextlib.closing(source.open_log(1, history)) as log:
            database.execute("INSERT INTO t VALUES (%s, 'a')", (key,))
            (batch,) = read_rows(log, key + 1).decode()
            layouts.append(batch.schema)
    source.close()
    assert log.unbroken
    assert layouts[0] == layouts[1]


@both_ways
def test_what_may_pass_by_itself_quarantines_no_table(database: Database) -> None:
    """A query canceled by someone, a table in the instant in which another takes its place."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 100000) i")
    source = source_of(database)
    with following(source):
        tables = source.open_tables()

        def read_canceled() -> None:
            with tables.open_chunk(T, KeyRange()) as chunk:
                for _ in chunk.rows():
                    database.execute(
                        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE"
                        " 'COPY (SELECT %%' AND datname = current_database() AND pid <> pg_backend_pid()"
                    )

        with pytest.raises(TransientError, match="canceling"):
            read_canceled()
        database.execute("ALTER TABLE t RENAME TO elsewhere")
        with pytest.raises(NotYetError, match="does not exist"), tables.open_chunk(T, KeyRange()):
            pass
        tables.close()


def test_a_commit_that_hangs_while_the_slot_is_made_is_waited_for(
    unanswered: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its commit record is before the slot's position, and no snapshot lists its xid: it is after xmax.

    The server reads a first set of running transactions, waits for its end, and for that of the second; what
    begins after the second and commits before the slot is ready is in neither, and not in the log either.
    """
    monkeypatch.setattr(dump, "SNAPSHOT_SECONDS", 0.2)
    database, source = unanswered, source_of(unanswered)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.prepare()
    first, second = (database.connect(autocommit=False) for _ in range(2))
    with contextlib.closing(first), contextlib.closing(second):
        _begin_writing(first)
        begun: list[ResumePoint] = []
        making = threading.Thread(target=lambda: begun.append(source.begin_log(fresh=False)))
        making.start()
        wait_until(lambda: _waits_for(database, first), "the slot's maker waits for the first")
        assert f"creating slot {database.name} waits for running transactions" in caplog.text
        _begin_writing(second)
        first.rollback()
        wait_until(lambda: _waits_for(database, second), "the slot's maker waits for the second")
        hanging = threading.Thread(
            target=lambda: database.execute("SET synchronous_commit = on; INSERT INTO t VALUES (7)")
        )
        hanging.start()
        wait_until(lambda: _hang_in_commit(database) == 1, "a commit hangs")
        second.rollback()
        making.join(30)
    with opened(source, begun[0]) as log:
        tables = source.open_tables()
        with pytest.raises(TransientError, match="waiting for transactions"):
            chunk_rows(tables, "public.t")
        database.execute("ALTER SYSTEM RESET synchronous_standby_names")
        database.execute("SELECT pg_reload_conf()")
        hanging.join(30)
        assert chunk_rows(tables, "public.t") == [{"id": 7}]
        read_to(log, database.end_of_log() - 64)
        assert log.buffered_rows == 0  # the log did not have it
        tables.close()


def test_a_stop_while_the_slot_waits_for_a_transaction_leaves_no_slot(database: Database) -> None:
    source, stopping = source_of(database), threading.Event()
    running = database.connect(autocommit=False)

    def stop_once_it_waits() -> None:
        wait_until(lambda: _waits_for(database, running), "the slot's maker waits")
        stopping.set()

    with contextlib.closing(running), contextlib.closing(source):
        _begin_writing(running)
        threading.Thread(target=stop_once_it_waits).start()
        with pytest.raises(TransientError, match="creating slot"):
            source.begin_log(fresh=False, stopping=stopping.is_set)
        slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
        wait_until(lambda: database.execute(slots, (database.name,)) == [(0,)], "it is gone")


def _begin_writing(session: psycopg2.extensions.connection) -> None:
    with session.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()")


def _waits_for(database: Database, session: psycopg2.extensions.connection) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    return bool(database.execute(query, (session.info.backend_pid,))[0][0])


def _hang_in_commit(database: Database) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    return int(database.execute(query)[0][0])


@both_ways
def test_an_idle_server_reaches_the_high_watermark(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source = source_of(database)
    with following(source) as log:
        tables = source.open_tables()
        for _ in range(5):
            database.execute("SELECT pg_switch_wal()")  # the next record begins after a page header
            with tables.open_chunk(T, KeyRange()) as chunk:
                assert chunk.low < chunk.high <= database.end_of_log()
                read_to(log, chunk.high)
        tables.close()


def test_columns_change_between_two_chunks(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'x')")
    source = source_of(database)
    with following(source):
        tables = source.open_tables()
        assert chunk_rows(tables, "public.t") == [{"id": 1, "a": "x"}]
        database.execute("ALTER TABLE t ADD b int DEFAULT 7; ALTER TABLE t DROP a")
        assert chunk_rows(tables, "public.t") == [{"id": 1, "b": 7}]
        database.execute("DROP TABLE t")
        with pytest.raises(NotYetError, match=r"public\.t"):
            chunk_rows(tables, "public.t")
        tables.close()


def test_a_chunk_knows_the_table_that_had_the_name_when_its_rows_were_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renaming a schema waits for no lock, so another table may have the name for that moment alone."""
    for schema in ("s", "s2"):
        database.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t (id int PRIMARY KEY)")
    both = database.execute("SELECT 's.t'::regclass::oid::bigint, 's2.t'::regclass::oid::bigint")[0]
    swap = "ALTER SCHEMA s RENAME TO away; ALTER SCHEMA s2 RENAME TO s; ALTER SCHEMA away RENAME TO s2"
    source, table = source_of(database, tables=["s.t"]), TableName("s", "t")
    with following(source):
        tables = source.open_tables()
        with tables.open_chunk(table, KeyRange()) as chunk:
            start = chunk._copy.start

            def start_swapped(query: str) -> None:
                database.execute(swap)
                start(query)

            monkeypatch.setattr(chunk._copy, "start", start_swapped)
            assert not list(chunk.rows())
            database.execute(swap)
            assert {(each.id, each.table) for each in chunk.read_from()} == {(oid, table) for oid in both}
        tables.close()


def test_a_table_whose_schema_is_renamed_while_its_chunk_is_opened_is_not_unfit(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renaming a schema waits for no lock, so the snapshot may know the table under another name."""
    database.execute("CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY)")
    source, run = source_of(database, tables=["s.t"]), PostgresTables._run

    def renamed_once_locked(tables: PostgresTables, statement: str) -> None:
        run(tables, statement)
        if statement.startswith("LOCK"):
            database.execute("ALTER SCHEMA s RENAME TO away")

    monkeypatch.setattr(PostgresTables, "_run", renamed_once_locked)
    with following(source):
        tables = source.open_tables()
        with pytest.raises(NotYetError), tables.open_chunk(TableName("s", "t"), KeyRange()):
            pass
        tables.close()


@both_ways
def test_a_rewriting_alter_never_makes_a_chunk_empty(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int); INSERT INTO t SELECT i, i FROM generate_series(1, 9) i"
    )
    source = source_of(database)
    with following(source):
        tables = source.open_tables()
        altering = database.connect(autocommit=False)
        with altering.cursor() as cursor:
            cursor.execute("ALTER TABLE t ALTER a TYPE bigint")
        found: list[Row] = []
        reading = threading.Thread(target=lambda: found.extend(chunk_rows(tables, "public.t")))
        reading.start()
        blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessShareLock'"
        wait_until(lambda: database.execute(blocked)[0][0], "the chunk waits for the ALTER")
        altering.commit()
        reading.join(30)
        assert len(found) == 9
        tables.close()


KEYS = {
    "bigint": ("id bigint", "i * 10 - 300", "id"),
    "uuid": ("id uuid", "md5(i::text)::uuid", "id"),
    "text": ("id text", "chr(64 + i % 50) || i || E'\\\\ ''\"'", "id"),
    "text_c": ('id text COLLATE "C"', "chr(200 + i) || i", "id"),
    "varchar": ("id varchar(9)", "'k' || i", "id"),
    "char": ("id char(7)", "'c' || i", "id"),
    "timestamp": ("id timestamp", "timestamp '2001-02-03 04:05:06.789' + i * interval '1.1 hour'", "id"),
    "timestamptz": (
        "id timestamptz",
        "timestamptz '1901-02-03 04:05:06.789+01' + i * interval '1 year'",
        "id",
    ),
    "numeric": ("id numeric", "i * 1.10 - 30", "id"),
    "double": ("id float8", "(i - 30) / 3.0::float8", "id"),
    "bytea": ("id bytea", "decode(md5(i::text), 'hex')", "id"),
    "date": ("id date", "date '2020-01-01' + i", "id"),
    "boolean_and_int": ("a boolean, id int", "i % 2 = 0, i", "a, id"),
    "composite": ("b text, a bigint, id uuid", "'x' || i % 3, i % 4, md5(i::text)::uuid", "b, a, id"),
    "domain": ("id positive", "i", "id"),
    "enum_and_int": ("a mood, id int", "(ARRAY['sad', 'ok', 'happy'])[1 + i % 3]::mood, i", "a, id"),
    "domain_of_enum": ("a temper, id int", "(ARRAY['sad', 'ok', 'happy'])[1 + i % 3]::mood, i", "a, id"),
    "quoted": ('"a ""B" int', "i", '"a ""B"'),
}


@pytest.mark.parametrize("name", KEYS)
def test_chunks_by_any_key_hold_every_row_once(name: str, database: Database) -> None:
    columns, values, key = KEYS[name]
    database.execute(
        "CREATE DOMAIN positive AS bigint CHECK (VALUE > 0); CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');"
        " CREATE DOMAIN temper AS mood"
    )
    database.execute(f"CREATE TABLE t ({columns}, n int, PRIMARY KEY ({key}))")
    database.execute(f"INSERT INTO t SELECT {values}, i FROM generate_series(1, 60) i")
    source = source_of(database)
    with following(source):
        tables = source.open_tables()
        (schema,) = source.tables().schemas
        every_row_once(tables, T, schema.key)
        seventh = tables.next_boundary(T, schema.key, None, 7, None)
        assert seventh is not None
        assert [row[-1] for row in keyed(tables, [list(seventh)])] == [False]
        tables.close()


@pytest.mark.parametrize("postgres", [17], indirect=True)  # with extensions
@pytest.mark.parametrize("key", ["email", "tenant, email"])
def test_a_session_reads_in_the_order_of_an_extension_that_is_newer_or_moved(
    key: str, database: Database
) -> None:
    """Keys of two cases are far apart as text, and neighbors as citext."""
    database.execute("CREATE TABLE first (id int PRIMARY KEY); CREATE SCHEMA one; CREATE SCHEMA two")
    source = source_of(database)
    with following(source), contextlib.closing(source.open_tables()) as tables:
        assert chunk_rows(tables, "public.first") == []
        database.execute(f"""
            CREATE EXTENSION citext SCHEMA one; CREATE DOMAIN mail AS one.citext;
            CREATE TABLE t (tenant int, email mail, n int, PRIMARY KEY ({key}));
            INSERT INTO t SELECT i % 2, (ARRAY['a', 'B', 'c', 'D'])[1 + i % 4] || i, i
            FROM generate_series(1, 60) i""")
        columns = tuple(key.split(", "))
        every_row_once(tables, T, columns)
        database.execute("ALTER EXTENSION citext SET SCHEMA two")
        every_row_once(tables, T, columns)
        values = {"tenant": "1", "email": "b1"}
        with tables.open_keys(T, [[values[c] for c in columns]]) as chunk:
            assert [some.absent.to_pylist() for some in chunk.rows() if some.absent] == [[False, True]]


@both_ways
@pytest.mark.parametrize("postgres", [14], indirect=True)  # later ones write such a byte as an octal number
@pytest.mark.parametrize("key", ['"char"', "text"])
def test_a_key_that_is_no_utf_8_is_refused_with_its_table(key: str, database: Database) -> None:
    """Whatever else is raised ends the agent: one such row kept all tables from being captured."""
    database.execute(f"""
        CREATE TABLE t (k {key} PRIMARY KEY);
        INSERT INTO t SELECT (i - 256)::"char" FROM generate_series(200, 210) i""")
    source = source_of(database)
    with following(source), contextlib.closing(source.open_tables()) as tables:
        with pytest.raises(TableError, match="UTF-8"):
            tables.next_boundary(T, ["k"], None, 5, None)
        with pytest.raises(TableError):
            chunk_rows(tables, "public.t")


@pytest.mark.parametrize("postgres", [15], indirect=True)  # with ICU
def test_chunks_hold_every_row_once_if_a_column_finds_two_keys_of_its_index_equal(database: Database) -> None:
    """Whatever equals the end of a chunk belongs to that chunk: ranges need an order, not a unique key."""
    database.execute("""
        CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        CREATE TABLE t (k text COLLATE ci NOT NULL, n int); CREATE UNIQUE INDEX i ON t (k COLLATE "C");
        ALTER TABLE t REPLICA IDENTITY USING INDEX i;
        INSERT INTO t SELECT CASE WHEN i % 2 = 0 THEN 'a' ELSE 'A' END || i / 2, i
        FROM generate_series(1, 60) i""")
    source = source_of(database)
    with following(source), contextlib.closing(source.open_tables()) as tables:
        found = [row["n"] for rows, _ in dump_scenarios.chunks(tables, T, ["k"], 7) for row in rows]
    assert sorted(found) == list(range(1, 61))


ORDERED_BY_A_COLLATION = {
    "text": ("text COLLATE c", "{}"),
    "array": ("text[] COLLATE c", "ARRAY[{}]"),
    "composite": ("pair", "(1, {})::pair"),
    "range": ("span", "span({}, NULL)"),
}
TYPES_WITH_A_COLLATION = {
    "composite": "CREATE TYPE pair AS (a int, b text COLLATE c);",
    "range": "CREATE TYPE span AS RANGE (subtype = text, collation = c);",
}


@pytest.mark.parametrize("postgres", [15, 17], indirect=True)  # with ICU
@pytest.mark.parametrize(
    ("name", "key"), [("text", "n, k"), *((name, "k") for name in ORDERED_BY_A_COLLATION)]
)
def test_rows_are_found_though_an_index_was_built_by_another_version_of_a_collation(
    name: str, key: str, database: Database
) -> None:
    """As after an upgrade of the system: here, Danish suddenly counts for English, and has aa after z."""
    type_, value = ORDERED_BY_A_COLLATION[name]
    database.execute(f"""
        ALTER DATABASE "{database.name}" SET enable_seqscan = off;
        CREATE COLLATION c (provider = icu, locale = 'en'); {TYPES_WITH_A_COLLATION.get(name, "")}
        CREATE TABLE t (n int, k {type_}, PRIMARY KEY ({key}));
        INSERT INTO t SELECT i % 2, {value.format("v")}
        FROM generate_series(1, 3000) i, concat((ARRAY['aa', 'b', 'z'])[1 + i % 3], i) v""")
    database.execute("ANALYZE t")
    third = value.format("'c'")
    beyond = f"SET enable_bitmapscan = off; SELECT count(*) FROM t WHERE n = 0 AND k > {third}"
    by_index, off = beyond, "SET enable_indexscan = off; SET enable_indexonlyscan = off"
    by_all = f"SET enable_seqscan = on; {off}; {beyond}"
    source, columns = source_of(database), key.split(", ")
    with following(source), contextlib.closing(source.open_tables()) as tables:
        end = tables.next_boundary(T, columns, None, 300, None)
        assert end is not None
        keys = [list(map(str, row)) for row in database.execute(f"SELECT {', '.join(columns)}::text FROM t")]
        locale = "colllocale" if database.server.version.startswith("17") else "colliculocale"
        upgraded = f"UPDATE pg_collation SET collversion = '1', {locale} = 'da' WHERE collname = 'c'"
        database.execute(f"SET allow_system_table_mods = on; {upgraded}")
        assert database.execute(by_index) < database.execute(by_all) == [(1000,)]
        read = [len(rows) for rows, _ in dump_scenarios.chunks(tables, T, columns, 300)]
        assert sum(read) == 3000
        assert [row[-1] for row in rows_of_keys(tables, T, keys)] == [False] * 3000
        parts = KeyRange(None, end), KeyRange(end, None)  # of a dump begun before
        assert sum(len(chunk_rows(tables, "public.t", part)) for part in parts) == 3000
        if name == "text":
            with tables.open_chunk(T, KeyRange(), f"n = 0 AND k > {third}") as chunk:
                assert sum(rows.count for rows in chunk.rows()) == 1000
        assert len(read) == 1
        (finding,) = (f for f in source.check() if f.name == "collations")
        assert finding.fix is not None
        for statement in filter(None, finding.fix.split(";")):
            database.execute(statement)
        assert tables.next_boundary(T, columns, None, 300, None) is not None
        assert all(f.name != "collations" for f in source.check())


@pytest.mark.parametrize("postgres", postgres_versions(), indirect=True)
def test_the_order_of_a_chunk_is_another_after_its_key_was_altered(database: Database) -> None:
    database.execute("""
        CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN temper AS mood;
        CREATE TABLE t (a temper, name text COLLATE "C", n int DEFAULT 1, PRIMARY KEY (a, name));
        CREATE TABLE moods (a mood[] PRIMARY KEY);
        CREATE TYPE pair AS (a int, b text); CREATE TABLE pairs (p pair[] PRIMARY KEY);
        CREATE TYPE other AS (a int)""")

    def order(tables: PostgresTables, key_range: KeyRange, table: TableName = T) -> str | None:
        with tables.open_chunk(table, key_range) as chunk:
            return chunk.order

    moods, several = TableName("public", "moods"), KeyRange(None, ("{sad}",))

    source = source_of(database)
    with following(source), contextlib.closing(source.open_tables()) as tables:
        assert order(tables, KeyRange()) is None
        ends = KeyRange(None, ("sad", "b")), KeyRange(("sad", "b"), None)
        before = order(tables, ends[0])
        database.execute("INSERT INTO t VALUES ('ok', 'x'); ANALYZE t; ALTER TABLE t ADD m int")
        database.execute("ALTER TABLE t ALTER n TYPE bigint")
        database.execute("GRANT SELECT (a, name) ON t TO public; ALTER TABLE t ALTER name SET STATISTICS 9")
        assert {order(tables, each) for each in ends} == {before}
        seen, before = [before], order(tables, several, moods)
        assert order(tables, several, moods) == before
        for change in (
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'low'; ALTER TYPE mood RENAME VALUE 'ok' TO 'sad'",
            'ALTER TABLE t ALTER name TYPE text COLLATE "POSIX"',
            "ALTER TABLE t ALTER name TYPE varchar(9) USING reverse(name)",
        ):
            database.execute(change)
            seen.append(order(tables, ends[1]))
        assert len({*seen}) == 4
        assert order(tables, several, moods) != before
        pairs, before = TableName("public", "pairs"), order(tables, several, moods)
        pair = order(tables, KeyRange(None, ('{"(1,b)"}',)), pairs)
        database.execute("ALTER TYPE other ADD ATTRIBUTE b text")
        assert order(tables, KeyRange(None, ('{"(1,b)"}',)), pairs) == pair
        database.execute("ALTER TYPE pair DROP ATTRIBUTE a")
        with pytest.raises(TableError, match="has lost an attribute"):
            order(tables, KeyRange(None, ('{"(1,b)"}',)), pairs)
        assert order(tables, several, moods) == before
        database.execute("ALTER TABLE t ALTER a TYPE text, ALTER name TYPE jsonb USING to_jsonb(name)")
        versions = [
            column.order.split(" ")[1:] for column in key_columns(database.connect(), T, ["a", "name"])
        ]
        own = "SELECT datcollate IN ('C', 'POSIX') OR datcollate LIKE 'C.%' FROM pg_database"
        (plain,) = database.execute(f"{own} WHERE datname = current_database()")[0]
        assert [bool(version) for version in versions] == [not plain, not plain]


def test_a_type_has_one_name_whatever_extensions_there_are(database: Database) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE t (id int PRIMARY KEY, m mood)")

    def name() -> str:
        with contextlib.closing(source_of(database)) as source:
            return source.tables().schemas[0].columns[1].source_type

    assert name() == "public.mood"
    database.execute("""
        CREATE TYPE other AS ENUM ('ok'); CREATE OPERATOR CLASS others DEFAULT FOR TYPE other USING btree
            AS FUNCTION 1 (other, other) enum_cmp(anyenum, anyenum)""")
    assert name() == "public.mood"


@both_ways
def test_a_predicate_limits_boundaries_and_rows(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 100)")
    source = source_of(database)
    with following(source):
        tables = source.open_tables()
        with pytest.raises(RequestError, match="division by zero"):
            chunk_rows(tables, "public.t", where="1 / (id - id) = 1")
        unknown = 'column "nope" does not exist'
        dump_scenarios.predicate(tables, T, unknown=unknown, syntax="syntax error")
        tables.close()


def keyed(tables: PostgresTables, keys: list[list[str]]) -> list[tuple[object, ...]]:
    return sorted(rows_of_keys(tables, T, keys), key=str)


@both_ways
def test_keys_without_a_row_come_back_as_absent_in_the_sources_text(database: Database) -> None:
    database.execute("CREATE TABLE t (a numeric(8,2), b char(4), c varchar(3), v int, PRIMARY KEY (a, b, c))")
    database.execute("INSERT INTO t VALUES (1.5, 'x', 'abc', 7)")
    source = source_of(database)
    with following(source):
        tables = source.open_tables()
        found = keyed(tables, [["1.5", "x", "abc"], ["2.5", "y", "ab"], ["1.5", "x", "abcd"]])
        with pytest.raises(RequestError, match="is not a key"):
            keyed(tables, [["1"]])
        with pytest.raises(RequestError, match="invalid input syntax"):
            keyed(tables, [["one", "x", "abc"]])
        tables.close()
    assert [(str(a), b, c, v, absent) for a, b, c, v, absent in found] == [
        ("1.50", "x   ", "abc", 7, False),
        ("1.50", "x   ", "abcd", None, True),
        ("2.50", "y   ", "ab", None, True),
    ]


@both_ways
def test_a_key_that_only_equals_a_rows_is_absent_beside_that_row(database: Database) -> None:
    """A lake's row of this text is a ghost, which nothing else but a full dump would delete."""
    database.execute(
        "CREATE TABLE t (a int, k numeric, v int, PRIMARY KEY (a, k)); INSERT INTO t VALUES (1, 1.0, 7)"
    )
    source = source_of(database)
    with following(source), contextlib.closing(source.open_tables()) as tables:
        assert keyed(tables, [["1", "1.0"]]) == [(1, "1.0", 7, False)]
        assert keyed(tables, [["1", "1.00"]]) == [(1, "1.0", 7, False), (1, "1.00", None, True)]


def test_a_composite_value_with_null_fields_is_a_value(database: Database) -> None:
    """SQL says that ROW(NULL) IS NULL, and that ROW(1, NULL) is neither IS NULL nor IS NOT NULL.

    A cast that the type's owner made would be a function that runs with the agent's rights.
    """
    database.execute(
        "CREATE TYPE pair AS (a int, b int); CREATE TABLE t (k pair PRIMARY KEY, c pair);"
        "CREATE FUNCTION planted(pair) RETURNS text LANGUAGE sql AS 'SELECT (1 / 0)::text';"
        "CREATE CAST (pair AS text) WITH FUNCTION planted(pair);"
        "INSERT INTO t VALUES ('(,)', '(1,)'), ('(1,)', NULL), ('(2,2)', '(,)')"
    )
    source = source_of(database)
    with following(source), contextlib.closing(source.open_tables()) as tables:
        assert keyed(tables, [["(,)"], ["(1,)"], ["(3,)"]]) == [
            ("(,)", "(1,)", False),
            ("(1,)", None, False),
            ("(3,)", None, True),
        ]
        changed = chunk_rows(tables, "public.t", where=source.any_not_null(["c"]))
        assert sorted(row["k"] for row in changed) == ["(,)", "(2,2)"]


def test_a_chunk_ends_at_the_output_of_the_keys_type_whatever_its_owner_casts_it_to(
    database: Database,
) -> None:
    """Such a cast would run with the agent's rights, and its text is no value: the table was quarantined."""
    database.execute("""
        CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
        CREATE FUNCTION described(mood) RETURNS text LANGUAGE sql AS $$ SELECT concat('mood: ', $1) $$;
        CREATE CAST (mood AS text) WITH FUNCTION described(mood);
        CREATE TABLE t (a mood, id int, n int, PRIMARY KEY (a, id));
        INSERT INTO t SELECT (enum_range(NULL::mood))[1 + i % 3], i, i FROM generate_series(1, 60) i""")
    source = source_of(database)
    with following(source), contextlib.closing(source.open_tables()) as tables:
        assert tables.next_boundary(T, ["a", "id"], None, 21, None) == ("ok", "1")
        every_row_once(tables, T, ("a", "id"))


@pytest.mark.parametrize("postgres", [15], indirect=True)  # with ICU
def test_an_array_that_only_equals_that_of_a_row_is_absent_beside_that_row(database: Database) -> None:
    database.execute("""
        CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        CREATE TABLE t (k text[] COLLATE ci PRIMARY KEY); INSERT INTO t VALUES ('{a,b}')""")
    source = source_of(database)
    with following(source), contextlib.closing(source.open_tables()) as tables:
        assert keyed(tables, [["{a,b}"]]) == [(["a", "b"], False)]
        assert keyed(tables, [["{A,b}"]]) == [(["A", "b"], True), (["a", "b"], False)]


@both_ways
def test_an_abandoned_chunk_does_not_harm_the_next(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 50000) i"
    )
    source = source_of(database)
    with following(source):
        tables = source.open_tables()
        with tables.open_chunk(T, KeyRange()) as chunk:
            next(iter(chunk.rows()))
        assert len(chunk_rows(tables, "public.t", KeyRange(None, ("10",)))) == 10
        tables.close()


@both_ways
def test_rows_are_read_within_bounded_batches(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT i, repeat('x', 90) FROM generate_series(1, 45000) i"
    )
    source = source_of(database)
    with following(source):
        tables = source.open_tables()
        sizes = batch_sizes(tables, T)
        assert sum(sizes) == 45000
        assert max(sizes) * len("10000\t\n" + "x" * 90) <= BUFFER_BYTES * 9 // 8  # and a batch
        tables.close()


TYPES = {
    "smallint": ["0", "-32768", "32767"],
    "int": ["0", "-2147483648", "2147483647"],
    "bigint": ["0", "-9223372036854775808", "9223372036854775807"],
    "numeric": ["0", "1.10", "NaN", "-12345678901234567890123456789012345678901234567890.5", "1e-20"],
    "numeric(10,3)": ["0", "-1.5", "9999999.999", "NaN"],
    "numeric(38,10)": ["0", "-1234567890123456789012345678.0123456789"],
    "real": ["0", "1.1", "-3.4028235e38", "NaN", "Infinity", "-Infinity", "1e-45"],
    "double precision": ["0", "0.1", "-1.7976931348623157e308", "NaN", "Infinity", "5e-324", "-0"],
    "boolean": ["t", "f"],
    "text": ["", "x", "tab\tnew\nline\\back\\N", "\\N", "ä€😀", '"quoted"', "{a,b}"],
    "varchar(20)": ["", "x", "ä\\"],
    "char(5)": ["", "ab", "ä"],
    "bytea": ["\\x", "\\x00ff5c0a09", "\\xdeadbeef"],
    "date": ["2026-11-21", "0001-01-01", "9999-12-31", "infinity", "0044-03-15 BC", "10000-01-01"],
    "time": ["00:00", "23:59:59.999999", "24:00"],
    "timestamp": ["2026-11-21 10:00:00.123456", "infinity", "-infinity", "0001-01-01 BC", "20000-01-01"],
    "timestamptz": ["2026-11-21 10:00:00.123456+03", "infinity", "1883-11-18 12:03:58-05", "0001-06-01 BC"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "json": ['{"a":  [1, "x\\n"]}', "null"],
    "jsonb": ['{"a":  [1, "x\\n"]}', "1.50"],
    "mood": ["sad", "ha ppy"],
    "positive": ["1", "99"],
    "int[]": ["{}", "{1,NULL,-3}", "{{1,2},{3,4}}", "[0:1]={1,2}"],
    "bigint[]": ["{}", "{9223372036854775807,NULL}"],
    "text[]": ["{}", '{a,NULL,"NULL","","a b","q\\"\\\\","{x}"}'],
    "interval": ["1 year 2 mons 3 days 04:05:06.7", "-1 day"],
    "inet": ["10.0.0.1", "10.0.0.0/8"],
    "int4range": ["[1,5)", "empty"],
    "point": ["(1.5,2)"],
    "money": ["1.50"],
}


@both_ways
def test_a_row_is_the_same_from_the_dump_and_from_the_log_for_each_type(database: Database) -> None:
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ha ppy'); CREATE DOMAIN positive AS int CHECK (VALUE > 0)"
    )
    names = [f"c{number}" for number in range(len(TYPES))]
    columns = ", ".join(f"{name} {type_}" for name, type_ in zip(names, TYPES, strict=True))
    database.execute(f"CREATE TABLE t (id serial PRIMARY KEY, {columns})")
    source = source_of(database)
    with following(source) as log:
        rows = 1
        database.execute("INSERT INTO t DEFAULT VALUES")
        for name, values in zip(names, TYPES.values(), strict=True):
            for value in values:
                database.execute(f"INSERT INTO t ({name}) VALUES (%s)", (value,))
                rows += 1
        segment = read_rows(log, rows)
        logged = {row["id"]: row for row in events(segment)}
        (batch_schema,) = {batch.schema for batch in segment.decode()}  # type: ignore[union-attr]
        tables = source.open_tables()
        with tables.open_chunk(T, KeyRange()) as chunk:
            assert chunk.schema == batch_schema
            dumped = [
                dict(zip(["_raw", *(c.name for c in chunk.schema.columns)], values, strict=True))
                for some in chunk.rows()
                for values in zip(
                    some.raw.to_pylist() if some.raw is not None else [None] * len(some.columns[0]),
                    *(column.to_pylist() for column in some.columns),
                    strict=True,
                )
            ]
        tables.close()
    assert len(dumped) == rows
    for row in dumped:
        other = logged[row["id"]]
        differing = [c for c in ("id", *names) if repr(row[c]) != repr(other[c])]
        assert not differing, [(c, row[c], other[c]) for c in differing]
        assert row["_raw"] == other["_cdc"]["raw"]


@both_ways
def test_a_row_deleted_while_its_chunk_is_open_is_after_its_low_watermark(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source = source_of(database)
    with following(source) as log:
        tables = source.open_tables()
        with tables.open_chunk(T, KeyRange()) as chunk:
            database.execute("DELETE FROM t")
            assert sum(len(some.columns[0]) for some in chunk.rows()) == 1
        (deleted,) = events(read_rows(log, 1))
        assert ops([deleted], "id") == [("delete", 1)]
        assert deleted["_cdc"]["lsn"] > chunk.low
        with tables.open_chunk(T, KeyRange()) as later:
            assert later.low >= deleted["_cdc"]["lsn"]
            assert list(later.rows()) == []
        tables.close()


def test_rows_of_tables_that_inherit_are_neither_dumped_nor_published_with_their_parent(
    database: Database,
) -> None:
    database.execute(
        "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent);"
        "INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2)"
    )
    source, name = source_of(database, ["public.parent"]), TableName("public", "parent")
    with following(source):
        database.execute("UPDATE child SET id = 3")  # fails for a table that is published without an identity
        tables = source.open_tables()
        assert [row["id"] for row in chunk_rows(tables, "public.parent")] == [1]
        assert [row["id"] for row in chunk_rows(tables, "public.parent", where="id > 0")] == [1]
        with tables.open_chunk(name, KeyRange()) as chunk:
            database.execute("CREATE INDEX ON parent ((id + 1))")
            assert sum(len(some.columns[0]) for some in chunk.rows()) == 1
            ((parent,),) = database.execute("SELECT 'parent'::regclass::oid::bigint")
            assert [each.id for each in chunk.read_from()] == [parent], "neither children nor new indexes"
        assert tables.next_boundary(name, ["id"], None, 2, None) is None
        with tables.open_keys(name, [["1"], ["3"]]) as chunk:
            assert sorted(r for some in chunk.rows() for r in some.absent.to_pylist()) == [False, True]
        tables.close()


def test_a_partition_whose_detaching_was_cut_off_is_not_read(database: Database) -> None:
    """The server locks it, so it looked as if another table had the name, and was dumped over and over."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE a PARTITION OF t FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE b PARTITION OF t FOR VALUES FROM (10) TO (20); INSERT INTO t VALUES (1), (11)"
    )
    reader, detaching = database.connect(autocommit=False), database.connect()
    with contextlib.closing(reader), contextlib.closing(detaching), reader.cursor() as cursor:
        cursor.execute("SELECT FROM t")
        with detaching.cursor() as detach:
            detach.execute("SET lock_timeout = '0.2s'")
            with pytest.raises(psycopg2.errors.LockNotAvailable):
                detach.execute("ALTER TABLE t DETACH PARTITION b CONCURRENTLY")
    source = source_of(database)
    with following(source):
        tables = source.open_tables()
        with tables.open_chunk(TableName("public", "t"), KeyRange()) as chunk:
            assert sum(len(some.columns[0]) for some in chunk.rows()) == 1
            ids = database.execute(
                "SELECT oid::bigint FROM pg_class WHERE relname IN ('t', 'a') ORDER BY oid"
            )
            assert sorted((each.id,) for each in chunk.read_from()) == ids
        with tables.open_chunk(TableName("public", "b"), KeyRange()) as chunk:  # captured by itself
            assert sum(len(some.columns[0]) for some in chunk.rows()) == 1
            (itself,) = chunk.read_from()
            assert [(itself.id,)] == database.execute("SELECT 'b'::regclass::oid::bigint")
            assert itself.columns == ("id",)
        tables.close()


def test_a_dump_of_a_partition_reads_that_alone_whatever_the_server_excludes(database: Database) -> None:
    """It seemed to read another table of the name, and so was dumped once more."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE b PARTITION OF t DEFAULT; INSERT INTO t VALUES (11)"
    )
    database.execute(f"ALTER DATABASE {database.name} SET constraint_exclusion = on")
    source = source_of(database)
    with following(source):
        tables = source.open_tables()
        with tables.open_chunk(TableName("public", "b"), KeyRange(("5",), ("15",))) as chunk:
            assert sum(len(some.columns[0]) for some in chunk.rows()) == 1
            (itself,) = chunk.read_from()
            assert [(itself.id,)] == database.execute("SELECT 'b'::regclass::oid::bigint")
        tables.close()
