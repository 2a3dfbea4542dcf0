"""What changes rows of MySQL and MariaDB and is in no log: seen in the catalog, or by how a log file ends."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest

from connector import failpoint
from connector.capture import catalog_watcher
from connector.errors import NotYetError
from connector.landing.manifest import DumpState
from connector.landing.manifest_store import newest_manifest
from connector.mysql import catalog, connection
from connector.mysql.catalog_fingerprint import Fingerprint
from connector.mysql.connection import parse_url
from connector.mysql.definitions.triggers import Triggers
from connector.mysql.log.reader import MysqlLogReader
from connector.mysql.source import MysqlSource
from connector.schema import TableName
from connector.source import CatalogSnapshot, ResumePoint
from connector.store.local import LocalStore
from tests.support.agent.agents import Killed
from tests.support.agent.captured import landed_tables
from tests.support.agent.mysql_agents import (
    agent,
    assert_equal,
    config_of,
    is_equal,
    short_waits,
    wait_caught_up,
)
from tests.support.landing.cuts import manifests_in
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import read_all, reader_of, source_of, unanswered
from tests.support.source.reading import events, following, opened, ops, read_rows, read_to, unlogged_in
from tests.support.source.replication import replicated
from tests.support.waiting import wait_until

__all__ = ["short_waits"]

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "CREATE TABLE `p-é.#P#` (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)"
    " (PARTITION a VALUES LESS THAN (10), PARTITION `b#` VALUES LESS THAN (99))",
    "INSERT INTO t SELECT seq, 'x' FROM seq_1_to_30",
    "INSERT INTO `p-é.#P#` SELECT seq, 'x' FROM seq_1_to_30",
)

DURABLE = ("sync_binlog", "innodb_flush_log_at_trx_commit")
"""What must be 1 for a commit to survive a crash."""


def repairs(store: LocalStore) -> list[DumpState]:
    newest = newest_manifest(store)
    return [dump for dump in newest.dumps if dump.reason == "repair"] if newest else []


def wait_ids_remembered(mariadb: MysqlDatabase, store: LocalStore, *names: str) -> None:
    """Wait until the ids of tables that the newest manifest remembers are those of now."""
    now = source_of(mariadb)

    def remembered() -> bool:
        mariadb.execute("UPDATE t SET v = concat(v, 'x') WHERE id = 7")  # something to write a manifest for
        seen, newest = now.check_catalog().tables, newest_manifest(store)
        tables = [TableName(mariadb.name, name) for name in names]
        assert newest is not None
        known = {t: newest.tables[t].fingerprint for t in tables}
        return all(
            k is not None and Fingerprint.parse(k).ids == Fingerprint.parse(seen[t]).ids != ""
            for t, k in known.items()
        )

    try:
        wait_until(remembered, "the ids of now are remembered")
    finally:
        now.close()


@pytest.mark.every_release
def test_a_table_that_is_emptied_without_a_trace_is_dumped_again_and_no_other_is(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    """As a crash leaves it in MariaDB: InnoDB has emptied the table, the log has no TRUNCATE."""
    mariadb.execute(*TABLES)
    names = ("t", "p-é.#P#")
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        for number in range(3):
            mariadb.execute("TRUNCATE t", f"INSERT INTO t VALUES (7, 'kept'), ({10 + number}, 'new')")
            wait_ids_remembered(mariadb, store, *names)
        mariadb.execute("ALTER TABLE t FORCE", "OPTIMIZE TABLE `p-é.#P#`")
        wait_ids_remembered(mariadb, store, *names)
        wait_caught_up(mariadb, store)
        assert repairs(store) == []
        mariadb.changed_unseen("TRUNCATE t; ALTER TABLE `p-é.#P#` TRUNCATE PARTITION `b#`")
        mariadb.execute("INSERT INTO t VALUES (500, 'after')")
        wait_until(lambda: all(is_equal(mariadb, store, n) for n in names), "both are equal", seconds=20)
        assert sorted(str(dump.table.name) for dump in repairs(store)) == sorted(names)
    mariadb.changed_unseen("DELETE FROM t; TRUNCATE t")  # while no agent runs
    mariadb.execute("CREATE VIEW w AS SELECT * FROM t")  # explains nothing
    with agent(mariadb, tmp_path) as store:
        wait_until(lambda: is_equal(mariadb, store, "t"), "it is equal", seconds=20)


@pytest.mark.every_release
def test_a_crash_after_which_log_and_tables_may_differ_has_all_tables_dumped_again_a_stop_none(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    mariadb.execute(*TABLES)
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        mariadb.server.restart()
        mariadb.execute("INSERT INTO t VALUES (400, 'after a stop')")
        wait_caught_up(mariadb, store)
        assert repairs(store) == []
        mariadb.server.restart(crash=True)
        mariadb.execute("INSERT INTO t VALUES (401, 'after a crash')")
        wait_until(lambda: len(repairs(store)) == 2, "both tables are dumped again")
        wait_caught_up(mariadb, store)
        assert_equal(mariadb, store, "t")


@pytest.mark.only_mariadb
@pytest.mark.every_release
def test_a_transaction_beside_aria_that_a_crash_lost_though_it_is_in_the_log_has_its_table_dumped_again(
    mariadb: MysqlDatabase,
) -> None:
    """MariaDB logs it before InnoDB commits it, which here waits for a replica."""
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)",
        "CREATE TABLE other (id int) ENGINE = Aria", "INSERT INTO other VALUES (1)",
    )  # fmt: skip
    source = source_of(mariadb, [f"{mariadb.name}.t", f"{mariadb.name}.u"])
    statement = "INSERT INTO t SELECT id FROM other"
    hanging = threading.Thread(target=lambda: suppressed(mariadb, statement))
    with durable(mariadb) as make_durable:
        source.prepare()
        resume_point = source.begin_log(fresh=True)
        with opened(source, resume_point) as log:
            mariadb.execute("INSERT INTO u VALUES (1)")
            mariadb.execute("SET GLOBAL rpl_semi_sync_master_timeout = 1000000")
            mariadb.execute("SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC")
            mariadb.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")
            hanging.start()
            found = events(read_rows(log, 2))
            mariadb.server.restart(crash=True)
            hanging.join(30)
        assert [row["_table"] for row in found] == [f"{mariadb.name}.u", f"{mariadb.name}.t"]
        assert mariadb.execute("SELECT * FROM t") == []
        make_durable()
        with opened(source, resume_point) as log:
            read_to(log, mariadb.end_of_log())
            assert unlogged_in(log.take()) == {"t"}


@contextlib.contextmanager
def durable(mariadb: MysqlDatabase) -> Iterator[Callable[[], None]]:
    """Have commits survive a crash within the block; return what makes them so again after one."""
    before = [mariadb.execute(f"SELECT @@global.{name}")[0][0] for name in DURABLE]

    def make_durable() -> None:
        mariadb.execute(*(f"SET GLOBAL {name} = 1" for name in DURABLE))

    make_durable()
    try:
        yield make_durable
    finally:
        mariadb.execute(*(f"SET GLOBAL {name} = {was}" for name, was in zip(DURABLE, before, strict=True)))


def suppressed(mariadb: MysqlDatabase, statement: str) -> None:
    """Run a statement whose server ends meanwhile."""
    with contextlib.suppress(pymysql.Error):
        mariadb.execute(statement)


@pytest.mark.parametrize("name", DURABLE)
def test_a_server_that_was_not_durable_for_a_time_may_lose_rows_in_a_crash(
    mariadb: MysqlDatabase, name: str
) -> None:
    """Such a setting, for a bulk load, is gone after a crash."""
    source = source_of(mariadb)
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with contextlib.closing(source), durable(mariadb):
        source.prepare()
        resume_point = source.begin_log(fresh=True)
        source.check_catalog()
        with opened(source, resume_point) as log:
            assert log._buffer._survives_crashes
        mariadb.execute(f"SET GLOBAL {name} = 0")
        source.check_catalog()
        mariadb.execute(f"SET GLOBAL {name} = 1")
        source.check_catalog()
        with opened(source, resume_point) as log:
            assert not log._buffer._survives_crashes


@pytest.mark.only_mariadb
def test_without_the_right_to_see_table_ids_no_server_counts_as_surviving_a_crash(
    mariadb: MysqlDatabase,
) -> None:
    """A TRUNCATE may be done and not logged, and its table's other id is not seen."""
    user = f"`{mariadb.name[-30:]}`"
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        f"CREATE USER {user} IDENTIFIED BY 'secret'",
        f"GRANT ALL PRIVILEGES ON *.* TO {user}",
    )
    source = source_of(mariadb, url=mariadb.server.url(user=user.strip("`"), password="secret"))
    found = []
    try:
        with durable(mariadb):
            source.prepare()
            resume_point = source.begin_log(fresh=True)
            for statement in ("REVOKE PROCESS ON *.* FROM", "GRANT PROCESS ON *.* TO"):
                mariadb.execute(f"{statement} {user}")
                with opened(source, resume_point) as log:
                    found.append(log._buffer._survives_crashes)
    finally:
        source.close()
        mariadb.execute(f"DROP USER {user}")
    assert found == [False, True]


@pytest.mark.only_mariadb
def test_a_table_that_others_keep_locked_hides_no_other_and_is_not_taken_for_a_broken_one(
    request: pytest.FixtureRequest, mariadb: MysqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB's catalog shows what it can't open without engine and columns."""
    monkeypatch.setattr(connection, "_SESSION", (*connection._SESSION, "lock_wait_timeout = 0"))
    monkeypatch.setattr(connection, "LOCK_SECONDS", 0)
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)", "SET GLOBAL max_error_count = 0")
    request.addfinalizer(lambda: mariadb.execute("SET GLOBAL max_error_count = 64"))
    source, session = source_of(mariadb), connection.connect(mariadb.url, "test")
    slow, holder = TableName(mariadb.name, "slow"), mariadb.connect()
    holder.cursor().execute(f"SELECT GET_LOCK('{slow}', 0)")
    making = f"CREATE TABLE slow (id int PRIMARY KEY) AS SELECT 1 AS id, GET_LOCK('{slow}', 60) AS s"
    thread, before = threading.Thread(target=mariadb.execute, args=(making,)), source.check_catalog()
    thread.start()
    there = "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"
    wait_until(lambda: mariadb.execute(there), "the table is locked")
    seen = source.check_catalog()
    assert (seen.busy, source.tables({slow})) == ({slow}, ([], [], {slow}))
    source._listed.add(slow)  # as when the log was opened meanwhile
    assert source.check_catalog().busy == {slow}
    assert [found.state for found in source.check() if found.name == f"table {slow}"] == ["warning"]
    with pytest.raises(NotYetError, match=f"{slow} is locked"):
        catalog.noted_columns(session, slow)
    assert thread.is_alive()
    assert seen.tables.keys() == before.tables.keys()
    assert (seen.existing - before.existing, seen.unfit) == ({slow}, {})
    holder.close()
    thread.join()
    assert source.check_catalog().tables.keys() - before.tables.keys() == {slow}
    connection.close(session)
    source.close()


@pytest.mark.only_mariadb
def test_the_log_waits_at_a_table_that_others_keep_locked_and_what_is_before_it_lands(
    mariadb: MysqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_SESSION", (*connection._SESSION, "lock_wait_timeout = 0"))
    tables = [f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("t", "slow")]
    mariadb.execute(*tables)
    source, slow = source_of(mariadb), TableName(mariadb.name, "slow")
    source.prepare()
    begin = source.begin_log(fresh=True)
    mariadb.execute(*(f"INSERT INTO {name} VALUES ({n})" for n, name in enumerate(("t", "slow", "t"))))
    holder = mariadb.connect()
    holder.cursor().execute(f"SELECT GET_LOCK('{slow}', 0)")
    making = (
        f"CREATE OR REPLACE TABLE slow (id int PRIMARY KEY) AS SELECT 9 AS id, GET_LOCK('{slow}', 60) AS s"
    )
    thread = threading.Thread(target=mariadb.execute, args=(making,))
    thread.start()
    there = "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"
    wait_until(lambda: mariadb.execute(there), "the table is locked")
    with opened(source, begin) as log:
        wait_until(lambda: log.read(0.05, 1 << 20) or log._buffer.locked, "the log waits")
        assert log._buffer.locked == f"{slow} is locked by another session"
        assert ops(events(log.take()), "id") == [("insert", 0)]
        holder.close()
        assert [row["id"] for row in events(read_rows(log, 2))[:2]] == [1, 2]
    thread.join()


@pytest.mark.parametrize(
    ("alter", "key"),
    [
        ("ALTER TABLE t ADD FOREIGN KEY (x) REFERENCES p (id)", "PRIMARY KEY"),
        ("ALTER TABLE t ADD CHECK (x < 5)", "PRIMARY KEY"),
        ("CREATE INDEX i ON t (x) ALGORITHM = COPY", "PRIMARY KEY"),
        ("ALTER TABLE t RENAME COLUMN v TO w, ALGORITHM = COPY", "PRIMARY KEY, v text"),
        ("ALTER TABLE t ADD PRIMARY KEY (n)", "NOT NULL UNIQUE"),
        pytest.param("OPTIMIZE TABLE t", "PRIMARY KEY, v text, FULLTEXT (v)", marks=pytest.mark.only_mysql),
    ],
    ids=["foreign_key", "check", "index", "renamed_column", "primary_key", "optimize"],
)
def test_values_that_a_copy_of_the_table_changed_are_read_again(
    mariadb: MysqlDatabase, tmp_path: Path, alter: str, key: str
) -> None:
    """It computes stored columns anew, in the session that alters, and turns the nulls of a new key to 0."""
    mariadb.execute(
        "CREATE TABLE p (id int PRIMARY KEY)", "INSERT INTO p VALUES (1)",
        f"CREATE TABLE t (id int {key}, n int, x int, at timestamp NOT NULL, day date AS (date(at)) STORED)",
        "INSERT INTO t (id, x, at) VALUES (1, 1, '2026-01-04 20:00:00')",
    )  # fmt: skip
    values = "SELECT id, n, x, at, day FROM t"
    with agent(mariadb, tmp_path, keys={"t": ["id"]}) as store:
        wait_caught_up(mariadb, store)
        before = mariadb.rows(values)
        assert landed(mariadb, store, values) == before
        mariadb.execute("SET time_zone = '+05:00'", alter)
        after = mariadb.rows(values)
        assert after != before
        wait_until(lambda: landed(mariadb, store, values) == after, "it is equal", seconds=20)


def landed(mariadb: MysqlDatabase, store: LocalStore, select: str) -> list[tuple[object, ...]]:
    """Return what landed of the columns that a query selects from table t."""
    table = landed_tables(store)[TableName(mariadb.name, "t")]
    found = [row for key in table.events if (row := table.row(key)[0]) is not None]
    columns = select.removeprefix("SELECT ").removesuffix(" FROM t").split(", ")
    return [tuple(row[column] for column in columns) for row in found]


@pytest.mark.parametrize(
    ("generated", "reads_again"),
    [
        ("g int AS (id + 1) VIRTUAL", False),
        ("g int AS (id + 1) STORED", True),
        pytest.param(
            "s timestamp(6) AS ROW START, e timestamp(6) AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)",
            False,
            marks=pytest.mark.only_mariadb,
        ),
    ],
    ids=["virtual", "stored", "versions"],
)
def test_a_statement_that_may_copy_a_table_has_it_read_again_only_if_it_computes_stored_columns(
    mariadb: MysqlDatabase, generated: str, reads_again: bool
) -> None:
    versioned = " WITH SYSTEM VERSIONING" if "PERIOD" in generated else ""
    mariadb.execute(f"CREATE TABLE t (id int PRIMARY KEY, n int, {generated}){versioned}")
    with following(source_of(mariadb)) as log:
        for statement, copies in (
            ("CREATE INDEX i ON t (n) ALGORITHM = INPLACE", False),
            ("CREATE INDEX j ON t (n)", True),
        ):
            mariadb.execute(statement)
            read_to(log, mariadb.end_of_log())
            segment = log.take()
            assert events(segment) == []
            assert unlogged_in(segment) == ({"t"} if reads_again and copies else set())


@pytest.fixture
def winter_time(mariadb: MysqlDatabase) -> Iterator[str]:
    """Name a time zone of the server in which clocks are turned back at 2026-10-25 01:00 UTC."""
    name = f"{mariadb.name[:20]}/Winter"
    mariadb.execute(
        "INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')", "SET @id = last_insert_id()",
        f"INSERT INTO mysql.time_zone_name VALUES ('{name}', @id)",
        "INSERT INTO mysql.time_zone_transition_type VALUES (@id, 0, 7200, 1, 'S'), (@id, 1, 3600, 0, 'W')",
        "INSERT INTO mysql.time_zone_transition VALUES (@id, 0, 0), (@id, 1792890000, 1)",
    )  # fmt: skip
    yield name
    tables = ("time_zone", "time_zone_transition_type", "time_zone_transition", "time_zone_name")
    mariadb.execute(
        f"SELECT Time_zone_id INTO @id FROM mysql.time_zone_name WHERE Name = '{name}'",
        *(f"DELETE FROM mysql.{table} WHERE Time_zone_id = @id" for table in tables),
    )


def test_times_that_a_copy_of_the_table_changed_are_read_again(
    mariadb: MysqlDatabase, winter_time: str
) -> None:
    """Dates that a lenient sql_mode does not allow, and in MySQL one of two instants of the same time."""
    zero, half_past_two = "'2026-00-15'", "FROM_UNIXTIME(1792888200), FROM_UNIXTIME(1792891800)"
    rows = {"dates": f"{zero}, {zero}", "times": half_past_two}
    source = source_of(mariadb)
    mariadb.execute("CREATE TABLE dates (id int PRIMARY KEY, a date, b datetime)")
    mariadb.execute("CREATE TABLE times (id int PRIMARY KEY, a timestamp NULL, b timestamp NULL)")
    lenient, strict = "NO_ZERO_IN_DATE", "STRICT_TRANS_TABLES"
    with following(source) as log:
        for table, mode, zone, algorithm, changes in (
            ("dates", strict, winter_time, "INPLACE", False),
            ("dates", lenient, "+01:00", "INPLACE", False),
            ("dates", lenient, "+01:00", "COPY", True),
            ("times", strict, winter_time, "INPLACE", False),
            ("times", strict, "+01:00", "COPY", False),
            ("times", strict, winter_time, "COPY", mariadb.is_mysql),
        ):
            mariadb.execute(f"REPLACE INTO {table} VALUES (1, {rows[table]})")
            values = f"SELECT a + 0, b + 0 FROM {table}"
            stored = mariadb.rows(values)
            alter = f"ALTER TABLE {table} FORCE, ALGORITHM = {algorithm}"
            mariadb.execute(f"SET sql_mode = '{mode}', time_zone = '{zone}'", alter)
            read_to(log, mariadb.end_of_log())
            told = unlogged_in(log.take())
            assert (mariadb.rows(values) != stored, told) == (changes, {table} if changes else set())
    source.close()


@pytest.mark.every_release
@pytest.mark.only_mysql
def test_times_that_a_copy_in_no_log_changed_are_read_again_with_no_more_rights_than_others_need(
    mariadb: MysqlDatabase, winter_time: str, tmp_path: Path
) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a timestamp, b timestamp, v text, FULLTEXT (v))",
        "INSERT INTO t VALUES (7, FROM_UNIXTIME(1792888200), FROM_UNIXTIME(1792891800), '')",
    )
    values = "SELECT id, a, b FROM t"
    with agent(mariadb, tmp_path, url=reader_of(mariadb)) as store:
        wait_caught_up(mariadb, store)
        wait_until(
            lambda: mariadb.execute(
                "SELECT 1 FROM information_schema.tables"
                " WHERE table_schema = database() AND table_name = 't' AND create_time < NOW()"
            ),
            "a second has passed since it was defined",
        )
        before = mariadb.rows(values)
        assert (landed(mariadb, store, values), repairs(store)) == (before, [])
        mariadb.execute(f"SET time_zone = '{winter_time}'", "OPTIMIZE NO_WRITE_TO_BINLOG TABLE t")
        after = mariadb.rows(values)
        assert after != before
        wait_until(lambda: landed(mariadb, store, values) == after, "it is equal", seconds=20)
        assert [dump.table.name for dump in repairs(store)] == ["t"]


@pytest.mark.only_mysql
def test_a_statement_in_the_log_whose_commit_waits_for_a_replica_explains_what_shows_only_then(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source, table = source_of(mariadb), TableName(mariadb.name, "t")
    altering = threading.Thread(target=mariadb.execute, args=("ALTER TABLE t FORCE",))
    waiting = "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for semi-sync%'"
    with following(source) as log:
        read_up(mariadb, log)
        first = checked(source, table, str(Fingerprint()))
        with unanswered(mariadb):
            altering.start()
            wait_until(lambda: mariadb.execute(waiting), "it is in the log")
            read_up(mariadb, log)
            meanwhile = checked(source, table, first)
        altering.join()
        read_up(mariadb, log)
        after = checked(source, table, meanwhile)
        assert Fingerprint.parse(after).ids != Fingerprint.parse(first).ids
        assert source.unlogged(first, after) is None
        mariadb.changed_unseen("ALTER TABLE t FORCE")
        undecided = checked(source, table, after)
        assert source.unlogged(after, checked(source, table, undecided))


@pytest.mark.every_release
def test_a_table_that_optimize_has_rebuilt_but_not_logged_yet_is_not_dumped_again(
    mariadb: MysqlDatabase,
) -> None:
    """It recreates and unlocks one table after the other, here waits for the second, and then logs all."""
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    source, table, holder = source_of(mariadb), TableName(mariadb.name, "t"), mariadb.session()
    optimizing = threading.Thread(target=mariadb.execute, args=("OPTIMIZE TABLE t, u",))
    with following(source) as log, holder.cursor() as cursor:
        read_up(mariadb, log)
        first = checked(source, table, str(Fingerprint()))
        cursor.execute("SELECT * FROM u")
        optimizing.start()
        waiting = "SELECT 1 FROM information_schema.processlist WHERE state LIKE '%table metadata lock%'"
        wait_until(lambda: mariadb.execute(waiting), "it waits for the second table")
        read_up(mariadb, log)
        meanwhile = checked(source, table, first)
        assert meanwhile == first
        holder.close()
        optimizing.join()
        read_up(mariadb, log)
        after = checked(source, table, meanwhile)
        assert Fingerprint.parse(after).ids != Fingerprint.parse(first).ids
        assert source.unlogged(first, after) is None
        mariadb.changed_unseen("ALTER TABLE t FORCE")
        undecided = checked(source, table, after)
        mariadb.execute("ALTER TABLE t FORCE")  # explains nothing that it follows
        read_up(mariadb, log)
        assert source.unlogged(after, checked(source, table, undecided))


@pytest.mark.every_release
def test_an_agent_that_starts_before_a_change_in_no_log_was_decided_about_sees_it(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source, again, table = source_of(mariadb), source_of(mariadb), TableName(mariadb.name, "t")
    with following(source) as log:
        read_up(mariadb, log)
        known = checked(source, table, str(Fingerprint()))
        mariadb.changed_unseen("ALTER TABLE t FORCE")
        read_up(mariadb, log)
        assert checked(source, table, known) == known
    with following(again) as log:
        read_up(mariadb, log)
        assert checked(again, table, known) == known
        assert again.unlogged(known, checked(again, table, known))


@pytest.mark.only_mysql
def test_a_statement_from_before_the_log_was_opened_explains_what_shows_only_then(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table, url = TableName(mariadb.name, "t"), reader_of(mariadb)  # who has nothing to write now
    source, again = source_of(mariadb, url=url), source_of(mariadb, url=url)
    altering = threading.Thread(target=mariadb.execute, args=("ALTER TABLE t FORCE",))
    waiting = "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for semi-sync%'"
    first = checked(source, table, str(Fingerprint()))
    source.close()
    with unanswered(mariadb):
        altering.start()
        wait_until(lambda: mariadb.execute(waiting), "it is in the log")
        new = checked(again, table, str(Fingerprint()))
        with following(again):
            found = [checked(again, table, known) for known in (str(Fingerprint()), first)]
    altering.join()
    assert [new, *found] == [str(Fingerprint()), str(Fingerprint()), first]


@pytest.mark.only_mariadb
def test_a_crash_within_a_truncate_that_follows_a_logged_one_has_the_table_dumped_again(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    source, tables = source_of(mariadb), [TableName(mariadb.name, name) for name in ("t", "u")]
    with durable(mariadb) as make_durable:
        source.prepare()
        resume_point = source.begin_log(fresh=True)
        with opened(source, resume_point) as log:
            read_up(mariadb, log)
            first = source.check_catalog(dict.fromkeys(tables, str(Fingerprint()))).tables
            mariadb.execute("TRUNCATE t")
            read_up(mariadb, log)
        mariadb.changed_unseen("TRUNCATE t")  # as a crash leaves it
        mariadb.server.restart(crash=True)
        make_durable()
        with opened(source, resume_point) as log:
            read_up(mariadb, log)
            found = source.check_catalog(first).tables
            assert [bool(source.unlogged(first[table], found[table])) for table in tables] == [True, False]


@pytest.mark.only_mariadb
def test_a_crash_within_a_truncate_is_seen_though_another_agent_starts_after_it_and_a_statement_follows(
    mariadb: MysqlDatabase,
) -> None:
    durable = "SET GLOBAL sync_binlog = {}, GLOBAL innodb_flush_log_at_trx_commit = {}"
    was = mariadb.execute("SELECT @@global.sync_binlog, @@global.innodb_flush_log_at_trx_commit")[0]
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)", durable.format(1, 1)
    )
    source, tables = source_of(mariadb), [TableName(mariadb.name, name) for name in ("t", "u")]
    source.prepare()
    resume_point = source.begin_log(fresh=True)
    with opened(source, resume_point) as log:
        read_up(mariadb, log)
        first = source.check_catalog(dict.fromkeys(tables, str(Fingerprint()))).tables
    mariadb.changed_unseen("TRUNCATE t")  # as a crash leaves it
    mariadb.server.restart(crash=True)
    mariadb.execute(durable.format(1, 1))
    with opened(source, resume_point) as log:
        read_up(mariadb, log)
        after_the_crash = ResumePoint(log.position, ())
    another = source_of(mariadb)
    another.prepare()
    with opened(another, after_the_crash) as log:
        mariadb.execute(durable.format(*was), "ALTER TABLE t FORCE")
        read_up(mariadb, log)
        found = another.check_catalog(first).tables
        assert [bool(another.unlogged(first[table], found[table])) for table in tables] == [True, False]


@pytest.mark.parametrize("looked", [False, True])
def test_what_a_logged_statement_rebuilds_while_no_agent_runs_is_dumped_again_if_mariadb_may_have_crashed(
    mariadb: MysqlDatabase, looked: bool
) -> None:
    """It may have, within a TRUNCATE, where a log file ended since the former agent's last look."""
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source, table = source_of(mariadb), TableName(mariadb.name, "t")
    source.prepare()
    with opened(source, source.begin_log(fresh=True)) as log:
        read_up(mariadb, log)
        first = checked(source, table, str(Fingerprint()))
        mariadb.execute("FLUSH BINARY LOGS")
        read_up(mariadb, log)
        if looked:
            before, first = first, checked(source, table, first)
            assert (first == before) == mariadb.is_mysql
            mariadb.execute("INSERT INTO t VALUES (1)")
            read_up(mariadb, log)
            assert checked(source, table, first) == first
        left = ResumePoint(log.position, ())
    another = source_of(mariadb)
    another.prepare()
    with opened(another, left) as log:
        mariadb.execute("ALTER TABLE t FORCE")
        read_up(mariadb, log)
        found = checked(another, table, first)
        assert found != first
        assert bool(another.unlogged(first, found)) == (not looked and not mariadb.is_mysql)


def read_up(mariadb: MysqlDatabase, log: MysqlLogReader) -> None:
    """Read the log until it has no more, not even what the reader itself has written."""

    def is_all() -> bool:
        read_all(mariadb, log)
        return log.position == mariadb.end_of_log()

    wait_until(is_all, "all is read")


def checked(source: MysqlSource, table: TableName, known: str) -> str:
    """Return a table's fingerprint after a check of the catalog."""
    return source.check_catalog({table: known}).tables[table]


@pytest.mark.only_mariadb
def test_a_table_to_which_the_server_adds_partitions_for_former_versions_is_not_dumped_again_for_that(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    """It logs no statement. A table with versions that is emptied without a trace still is dumped again."""
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text) WITH SYSTEM VERSIONING"
        " PARTITION BY SYSTEM_TIME LIMIT 30 AUTO PARTITIONS 2",
        "INSERT INTO t SELECT seq, 'x' FROM seq_1_to_30",
    )
    partitions = (
        "SELECT count(*) FROM information_schema.partitions"
        f" WHERE table_schema = '{mariadb.name}' AND table_name = 't'"
    )
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        for number in range(2, 5):
            wait_ids_remembered(mariadb, store, "t")
            mariadb.execute(f"UPDATE t SET v = '{number}'", f"UPDATE t SET v = '{number}, too'")
            assert mariadb.execute(partitions)[0][0] > number
        wait_ids_remembered(mariadb, store, "t")
        wait_caught_up(mariadb, store)
        assert repairs(store) == []
        mariadb.changed_unseen("ALTER TABLE t FORCE")
        wait_until(lambda: len(repairs(store)) == 1, "it is dumped again", seconds=20)
        wait_until(lambda: is_equal(mariadb, store, "t"), "it is equal", seconds=20)


@pytest.mark.only_mariadb
@pytest.mark.every_release
def test_rows_that_a_load_without_checks_logged_and_did_not_keep_are_dumped_again(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    """InnoDB finds the duplicates only once the rows are logged, and rolls back the transaction so far."""
    source = tmp_path / "rows.txt"
    source.write_text("1\n2\n2\n")
    source.chmod(0o644)
    loads = {
        "ignored": "INSERT IGNORE INTO ignored VALUES (1), (2), (2)",
        "selected": "INSERT INTO selected SELECT id FROM source",
        "loaded": f"LOAD DATA LOCAL INFILE '{source}' INTO TABLE loaded",
        "inserted": "INSERT INTO `inserted` VALUES (1),(2),(3)",
        "triggered": "INSERT INTO triggering VALUES (1)",
        "unnamed": "SET binlog_annotate_row_events = OFF; INSERT IGNORE INTO unnamed VALUES (1), (2), (2)",
        "parted": "INSERT IGNORE INTO parted VALUES (50), (50)",
    }
    mariadb.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in [*loads, "triggering", "beside"]),
        "CREATE TABLE source (id int) ENGINE = Aria", "INSERT INTO source VALUES (1), (2), (2)",
        "CREATE TRIGGER tr AFTER INSERT ON triggering FOR EACH ROW"
        " INSERT IGNORE INTO triggered VALUES (1), (1)",
        "ALTER TABLE parted PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES"
        " LESS THAN (99))",
        "INSERT INTO parted VALUES (1)",
    )  # fmt: skip
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        for load in loads.values():
            load_without_checks(mariadb, *load.split("; "))
        load_without_checks(mariadb, "BEGIN", "INSERT INTO beside VALUES (1)", loads["ignored"], "COMMIT")
        assert [mariadb.execute(f"SELECT count(*) FROM {name}") for name in ("selected", "beside")] == [
            [(0,)], [(0,)]
        ]  # fmt: skip
        names = [*loads, "triggering", "beside"]
        wait_until(lambda: all(is_equal(mariadb, store, n) for n in names), "all are equal", seconds=20)
        wait_caught_up(mariadb, store)
        assert {str(dump.table.name) for dump in repairs(store)} == {*names} - {"inserted"}


@pytest.mark.only_mariadb
@pytest.mark.every_release
def test_virtual_columns_that_were_logged_before_a_trigger_changed_the_row_are_dumped_again(
    mariadb: MysqlDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB computes them before the trigger runs, if it updates several tables or a part of a period.

    By triggers that no look at the catalog sees.
    """
    monkeypatch.setattr(Triggers, "of", lambda *_: None)
    changes = {
        "joined": "UPDATE beside STRAIGHT_JOIN joined USING (id) SET joined.a = 7",
        "selected": "UPDATE selected SET a = 7 WHERE id IN (SELECT id FROM beside)",
        "parted": "DELETE FROM parted FOR PORTION OF p FROM '2026-02-01' TO '2026-03-01'",
        "viewed": "UPDATE v SET a = 7",
        "Alike": "INSERT INTO alike (a, b) VALUES (3, 3)",
        "listed": "UPDATE listed SET a = 7 WHERE id IN (VALUES (1), (2), (5))",
        "hinted": "UPDATE hinted SET a = 7 WHERE id IN (/*!50000SELECT id FROM beside*/)",
        "unnamed": "BEGIN; UPDATE unnamed SET a = 5; SET binlog_annotate_row_events = OFF;"
        " UPDATE beside STRAIGHT_JOIN unnamed USING (id) SET unnamed.a = 7; COMMIT",
        "defaults": "INSERT INTO defaults () VALUES ()",
        "within": "INSERT INTO around VALUES (1)",
        "single": "UPDATE single SET a = 7",
        "untriggered": "UPDATE beside STRAIGHT_JOIN untriggered USING (id) SET untriggered.a = 7",
        "stored": "UPDATE beside STRAIGHT_JOIN stored USING (id) SET stored.a = 7",
    }
    period = ", s date DEFAULT '2026-01-01', e date DEFAULT '2027-01-01', PERIOD FOR p (s, e)"
    mariadb.execute(
        "CREATE TABLE beside (id int PRIMARY KEY)", "INSERT INTO beside VALUES (1)",
        *(
            f"CREATE TABLE {t} (id int AUTO_INCREMENT PRIMARY KEY, a int, b int DEFAULT 1, n int AS (a + b)"
            f" {'STORED' if t == 'stored' else 'VIRTUAL'}{period if t == 'parted' else ''})" for t in changes
        ),
        *(
            f"CREATE TRIGGER {t}_{event} BEFORE {event} ON {t} FOR EACH ROW SET new.b = new.b + 10"
            for t in changes if t != "untriggered" for event in ("INSERT", "UPDATE")
        ),
        *(f"INSERT INTO {t} (a, b) VALUES (1, 1), (2, 2)" for t in changes),
        "CREATE VIEW v AS SELECT * FROM viewed",
        "CREATE TABLE alike (id int AUTO_INCREMENT PRIMARY KEY, a int, b int)",
        "CREATE TRIGGER tr AFTER INSERT ON alike FOR EACH ROW"
        " UPDATE beside STRAIGHT_JOIN Alike USING (id) SET Alike.a = 7",
        "ALTER TABLE defaults ALTER a SET DEFAULT 1",
        "CREATE TABLE around (id int PRIMARY KEY)",
        "CREATE TRIGGER ta BEFORE INSERT ON around FOR EACH ROW BEGIN UPDATE within SET a = 5;"
        " UPDATE beside STRAIGHT_JOIN within USING (id) SET within.a = 7; END",
    )  # fmt: skip
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        for change in changes.values():
            mariadb.execute(*change.split("; "))
        wait_until(lambda: all(is_equal(mariadb, store, t) for t in changes), "all are equal", seconds=20)
        wait_caught_up(mariadb, store)
        plain = {"single", "untriggered", "stored"}
        assert {dump.table.name for dump in repairs(store)} == {*changes} - plain


def load_without_checks(mariadb: MysqlDatabase, *statements: str) -> None:
    """As a file of mysqldump does."""
    connected = pymysql.connect(
        **parse_url(mariadb.url), autocommit=True, local_infile=True,
        init_command="SET unique_checks = 0, foreign_key_checks = 0",
    )  # fmt: skip
    with connected, connected.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_what_foreign_keys_do_at_a_replica_quarantines_their_tables_once_its_primary_does_not_log_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MySQL before 9.6 does not, nor a later release if so configured. Nor does its replica then.

    The agent is ended right after the manifest with the first such change, before any look at the catalog.
    """
    monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", 3600)
    cascades = "FOREIGN KEY (p) REFERENCES parent (id) ON DELETE"
    with replicated("mysql", tmp_path, "cascades") as pair:
        pair.primary.execute(
            "CREATE TABLE parent (id int PRIMARY KEY)",
            f"CREATE TABLE gone (id int PRIMARY KEY, p int, {cascades} CASCADE)",
            f"CREATE TABLE kept (id int PRIMARY KEY, p int, {cascades} RESTRICT)",
            "INSERT INTO parent VALUES (1), (2), (3)", "INSERT INTO gone VALUES (1, 1), (2, 2), (3, 3)",
        )  # fmt: skip
        pair.wait_applied()

        def quarantined() -> dict[str, str | None]:
            newest = newest_manifest(store)
            assert newest is not None
            return {t.name: its.reason for t, its in newest.tables.items() if its.state == "quarantined"}

        def end_once_deleted(moment: str) -> None:
            newest = newest_manifest(store)
            if moment == "manifest-committed" and newest is not None and newest.position >= deleted_from:
                raise Killed(moment)

        def capture_until_deleted() -> None:
            nonlocal deleted_from
            with agent(pair.replica, folder):
                wait_caught_up(pair.replica, store)
                pair.primary.execute("DELETE FROM parent WHERE id = 1")
                pair.wait_applied()
                wait_caught_up(pair.replica, store)
                assert is_equal(pair.replica, store, "gone")
                pair.primary.server.settings["innodb-native-foreign-keys"] = "ON"
                pair.primary.restart()
                pair.primary.execute("SET foreign_key_checks = 0", "DELETE FROM parent WHERE id = 3")
                pair.wait_applied()
                wait_caught_up(pair.replica, store)
                assert quarantined() == {}
                deleted_from = pair.replica.end_of_log() + 1
                pair.primary.execute("DELETE FROM parent WHERE id = 2")
                pair.wait_applied()
                wait_until(lambda: has_landed(store, deleted_from), "the change has landed", seconds=20)

        folder, deleted_from = tmp_path / "landing", sys.maxsize
        store = LocalStore(folder / config_of(pair.replica, folder).source.name)
        monkeypatch.setattr(failpoint, "reach", end_once_deleted)
        with pytest.raises(Killed):
            capture_until_deleted()
        monkeypatch.setattr(failpoint, "reach", lambda _: None)
        assert list(quarantined()) == ["gone"]
        assert "CASCADE" in (quarantined()["gone"] or "")
        with agent(pair.replica, folder):
            wait_caught_up(pair.replica, store)
            assert list(quarantined()) == ["gone"]
            assert is_equal(pair.replica, store, "parent")


def has_landed(store: LocalStore, position: int) -> bool:
    newest = newest_manifest(store)
    return newest is not None and newest.position >= position


def test_a_table_that_is_locked_as_its_statement_lands_is_not_called_exact(
    mariadb: MysqlDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that copies it may keep it locked for hours, and no check sees it meanwhile."""
    mariadb.execute(*TABLES)
    table, check, locked = TableName(mariadb.name, "p-é.#P#"), MysqlSource.check_catalog, threading.Event()

    def omitting(source: MysqlSource, known: Mapping[TableName, str] | None = None) -> CatalogSnapshot:
        seen = check(source, known)
        left = {name: print_ for name, print_ in seen.tables.items() if name != table}
        return replace(seen, tables=left, busy=seen.busy | {table}) if locked.is_set() else seen

    monkeypatch.setattr(MysqlSource, "check_catalog", omitting)
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        locked.set()
        mariadb.execute("ALTER TABLE `p-é.#P#` TRUNCATE PARTITION `b#`")
        end = mariadb.end_of_log()
        landed = lambda: [each for each in manifests_in(store) if each.position >= end]  # noqa: E731
        wait_until(lambda: bool(landed()), "the statement landed")
        assert not landed()[0].tables[table].dumped
        locked.clear()
        wait_until(lambda: is_equal(mariadb, store, "p-é.#P#"), "it was dumped again", seconds=20)
