"""Capture of a real MariaDB from end to end: dumps and log, kills and DDL, compared with the table."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from connector.landing.manifest import DumpState
from connector.landing.manifest_store import newest_manifest
from connector.mysql.log import reader
from connector.mysql.log.reader import MysqlLogReader
from connector.mysql.server import end_of_log
from connector.position import unpack_binlog_position
from connector.schema import TableName
from connector.store.local import LocalStore
from tests.support.agent.captured import landed_tables
from tests.support.agent.mysql_agents import (
    Load,
    agent,
    assert_equal,
    fill,
    is_equal,
    short_waits,
    wait_caught_up,
)
from tests.support.landing.cuts import manifests_in
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import reader_of
from tests.support.waiting import wait_until

__all__ = ["short_waits"]


@pytest.mark.every_release
def test_dumps_and_log_beside_a_writer_equal_the_tables_after_every_restart(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    fill(mariadb)
    for seed in range(3):
        with Load(mariadb, seed), agent(mariadb, tmp_path, delay_seconds=0.01) as store:
            wait_caught_up(mariadb, store)
        with agent(mariadb, tmp_path) as store:
            wait_caught_up(mariadb, store)
        for name in ("t", "small"):
            assert_equal(mariadb, store, name)
    newest = newest_manifest(store)
    assert newest is not None
    kind = "mysql" if mariadb.is_mysql else "mariadb"
    assert (newest.epoch, newest.gaps, newest.source.kind) == (1, [], kind)


def test_a_user_who_may_only_read_captures_the_same(mariadb: MysqlDatabase, tmp_path: Path) -> None:
    fill(mariadb)
    url = reader_of(mariadb)
    for seed in range(2):
        with Load(mariadb, seed), agent(mariadb, tmp_path, url=url, delay_seconds=0.01) as store:
            wait_caught_up(mariadb, store)
        with agent(mariadb, tmp_path, url=url) as store:
            wait_caught_up(mariadb, store)
        for name in ("t", "small"):
            assert_equal(mariadb, store, name)
    with agent(mariadb, tmp_path) as store:  # the same database, also when it may write
        mariadb.execute("DELETE FROM t WHERE id < 50")
        wait_caught_up(mariadb, store)
    assert_equal(mariadb, store, "t")
    newest = newest_manifest(store)
    assert newest is not None
    assert (newest.epoch, newest.gaps, bool(newest.gtids)) == (1, [], True)


def test_a_primary_that_is_made_read_only_goes_on_being_captured(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    """The first step of a switchover, while a dump runs; the log goes on in the next file."""
    fill(mariadb)
    url = reader_of(mariadb)
    user = url.partition("://")[2].partition(":")[0]
    mariadb.execute(f"GRANT CREATE, SELECT, INSERT, UPDATE ON deltatide.* TO {user}")
    try:
        with agent(mariadb, tmp_path, url=url, delay_seconds=0.2) as store:
            wait_until(lambda: any(d.chunks > 1 for d in dumps_in(store)), "a dump has begun")
            mariadb.execute(
                "SET GLOBAL read_only = 1", "FLUSH BINARY LOGS", "UPDATE t SET v = 'x' WHERE id < 9"
            )
            wait_caught_up(mariadb, store)
            assert_equal(mariadb, store, "t")
            mariadb.execute("SET GLOBAL read_only = 0", "UPDATE t SET v = 'y' WHERE id < 9")
            wait_caught_up(mariadb, store)
            assert_equal(mariadb, store, "t")
    finally:
        mariadb.execute("SET GLOBAL read_only = 0")


def test_a_global_read_lock_ends_no_reading(
    mariadb: MysqlDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A backup holds it for long; then the log goes on in the next file, which is recorded afterwards."""
    ends: list[None] = []

    def counted(*arguments: Any) -> tuple[str, int]:
        ends.append(None)
        return end_of_log(*arguments)

    def recorded() -> bool:
        number = unpack_binlog_position(mariadb.end_of_log())[0]
        found = mariadb.execute(f"SELECT log_file FROM deltatide.watermark WHERE source = '{source}'")
        return found == [(number,)]  # others' may be from before a RESET MASTER

    monkeypatch.setattr(reader, "end_of_log", counted)
    fill(mariadb)
    with agent(mariadb, tmp_path) as store, mariadb.connect() as backup, backup.cursor() as cursor:
        source = Path(store.url).name
        wait_caught_up(mariadb, store)
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        cursor.execute("FLUSH BINARY LOGS")
        size = len(ends) + 3
        wait_until(lambda: len(ends) >= size, "the end of the log is polled three times", seconds=8)
        wait_caught_up(mariadb, store)
        cursor.execute("UNLOCK TABLES")
        wait_until(recorded, "the file is recorded")
        mariadb.execute("UPDATE t SET v = 'later' WHERE id < 9")
        wait_caught_up(mariadb, store)
    assert_equal(mariadb, store, "t")
    assert "opening the log again" not in caplog.text


def dumps_in(store: LocalStore) -> list[DumpState]:
    newest = newest_manifest(store)
    return newest.dumps if newest else []


@pytest.mark.soak_on_mysql
def test_lost_connections_under_load_change_nothing(mariadb: MysqlDatabase, tmp_path: Path) -> None:
    fill(mariadb)
    with LossyProxy(mariadb.server.port) as proxy:
        url = mariadb.url.replace(f":{mariadb.server.port}/", f":{proxy.port}/")
        with agent(mariadb, tmp_path, url=url, delay_seconds=0.02) as store:
            with Load(mariadb, 7):
                for number in range(8):
                    size = len(manifests_in(store)) + 3
                    wait_until(lambda size=size: len(manifests_in(store)) >= size, f"it goes on, {number}")
                    proxy.cut(0.7)
            wait_caught_up(mariadb, store)
    assert proxy.cuts > 5
    for name in ("t", "small"):
        assert_equal(mariadb, store, name)
    newest = newest_manifest(store)
    assert newest is not None
    assert newest.epoch == 1


@pytest.mark.every_release
def test_layouts_and_tables_change_under_load(mariadb: MysqlDatabase, tmp_path: Path) -> None:
    fill(mariadb)
    with agent(mariadb, tmp_path, delay_seconds=0.01) as store:
        with Load(mariadb, 11):
            wait_until(lambda: newest_manifest(store), "a manifest is there")
            mariadb.execute("ALTER TABLE t ADD extra int NOT NULL DEFAULT 5, ALGORITHM = INSTANT")
            mariadb.execute("ALTER TABLE t ADD first varchar(9) DEFAULT 'é' FIRST, ALGORITHM = COPY")
            mariadb.execute("ALTER TABLE t DROP extra, RENAME COLUMN first TO renamed")
            mariadb.execute("ALTER TABLE t MODIFY renamed varchar(9) AFTER v")
        wait_caught_up(mariadb, store)
        names = manifests_in(store)[-1].tables[TableName(mariadb.name, "t")].column_names
        assert names is not None
        assert names.logged == [["first", "renamed"]]
        mariadb.execute("CREATE TABLE ghost LIKE t", "INSERT INTO ghost SELECT * FROM t WHERE id % 2")
        mariadb.execute("ALTER TABLE ghost ADD swapped int DEFAULT 9")
        ghost = TableName(mariadb.name, "ghost")  # a table that goes before its first dump stays undumped
        wait_until(
            lambda: ghost in (tables := manifests_in(store)[-1].tables) and tables[ghost].dumped,
            "the ghost is dumped",
        )
        dumps = len(manifests_in(store)[-1].dumps)
        mariadb.execute("RENAME TABLE t TO gone, ghost TO t", "DROP TABLE gone")
        wait_until(
            lambda: len((newest_manifest(store) or manifests_in(store)[-1]).dumps) > dumps,
            "dumping it again",
        )
        wait_caught_up(mariadb, store)
    assert_equal(mariadb, store, "t")
    assert_equal(mariadb, store, "small")


def test_a_purged_log_is_a_gap_and_repaired(mariadb: MysqlDatabase, tmp_path: Path) -> None:
    fill(mariadb)
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
    mariadb.execute("DELETE FROM t WHERE id < 300", "FLUSH BINARY LOGS", "UPDATE t SET n = 1", "RESET MASTER")
    with agent(mariadb, tmp_path) as store:
        wait_until(lambda: newest_manifest(store).epoch == 2, "a new epoch begins")  # type: ignore[union-attr]
        mariadb.execute("UPDATE t SET n = 2 WHERE id = 400")
        wait_caught_up(mariadb, store)
    newest = newest_manifest(store)
    assert newest is not None
    assert len(newest.gaps) == 1
    assert_equal(mariadb, store, "t")


def with_old_values(mariadb: MysqlDatabase) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int, a int, b int)",
        "INSERT INTO t SELECT seq, seq, seq + 1000, seq + 2000 FROM seq_1_to_250",
    )


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(["ALTER TABLE t DROP a", "ALTER TABLE t ADD a int"], id="without rows between"),
        pytest.param(
            ["ALTER TABLE t DROP a", "UPDATE t SET v = 0 WHERE id % 7 = 0", "ALTER TABLE t ADD a int"],
            id="with rows between",
        ),
        pytest.param(
            ["UPDATE t SET v = 0 WHERE id = 9", "ALTER TABLE t DROP a", "INSERT INTO t VALUES (900, 1, 2)",
             "ALTER TABLE t ADD a int AFTER v", "INSERT INTO t VALUES (901, 1, NULL, 2)"],
            id="with rows before, between and after",
        ),
        pytest.param(["ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a"], id="swapped names"),
        pytest.param(
            ["ALTER TABLE t RENAME COLUMN a TO old", "UPDATE t SET v = 1 WHERE id = 3",
             "ALTER TABLE t ADD a int", "UPDATE t SET v = 2 WHERE id = 3"],
            id="renamed away",
        ),
        pytest.param(
            ["ALTER TABLE t MODIFY a int AFTER b", "INSERT INTO t VALUES (900, 1, 2, 3)",
             "ALTER TABLE t MODIFY b int AFTER id", "INSERT INTO t VALUES (901, 1, 2, 3)"],
            id="reordered",
        ),
    ],
)  # fmt: skip
# What an agent keeps for its next start is the same for both servers.
@pytest.mark.parametrize("restart", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_old_values_never_show_in_a_column_of_the_same_name(
    mariadb: MysqlDatabase, tmp_path: Path, statements: list[str], restart: bool
) -> None:
    with_old_values(mariadb)
    if restart:  # between any two statements
        for statement in ["SELECT 1", *statements]:
            mariadb.execute(statement)
            with agent(mariadb, tmp_path) as store:
                wait_caught_up(mariadb, store)
    else:
        with agent(mariadb, tmp_path) as store:
            wait_caught_up(mariadb, store)
            mariadb.execute(*statements)
            wait_caught_up(mariadb, store)
    with agent(mariadb, tmp_path) as store:
        wait_until(lambda: is_equal(mariadb, store, "t"), "no old value shows", seconds=30)
    assert_equal(mariadb, store, "t")


def test_members_of_enums_and_sets_beyond_the_basic_plane_are_the_logs(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    """The catalog shows a question mark for them, in a key of many chunks, or beside a parenthesis."""
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, e enum('\U0001f600', '?', '\U0001f601') CHARACTER SET utf8mb4,"
        " s set('a)', '\U0001f602', '\U0001f603') CHARACTER SET utf8mb4)",
        "INSERT INTO t SELECT seq, 1 + seq % 3, seq % 8 FROM seq_1_to_250",
        "CREATE TABLE k (e enum('\U0001f600', '\U0001f601') CHARACTER SET utf8mb4, id int,"
        " PRIMARY KEY (e, id))",
        "INSERT INTO k SELECT 1 + (seq > 20), seq FROM seq_1_to_250",
    )
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        for number in range(500, 503):
            mariadb.execute(f"INSERT INTO t VALUES ({number}, 3, 6)", f"INSERT INTO k VALUES (2, {number})")
            wait_caught_up(mariadb, store)
    newest = newest_manifest(store)
    assert newest is not None
    assert {state.state for state in newest.tables.values()} == {"captured"}
    assert {dump.reason for dump in newest.dumps} == {"initial"}
    assert_equal(mariadb, store, "t")
    assert set(landed_tables(store)[TableName(mariadb.name, "k")].events) == set(
        mariadb.execute("SELECT e, id FROM k")
    )


def test_a_column_that_comes_goes_and_comes_again_before_a_row_is_logged_has_its_last_default(
    mariadb: MysqlDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read when the catalog has the last one already."""
    go_on, read = threading.Event(), MysqlLogReader.read

    def read_later(self: MysqlLogReader, seconds: float, upto_bytes: int) -> None:
        assert go_on.wait(30)
        read(self, seconds, upto_bytes)

    monkeypatch.setattr(MysqlLogReader, "read", read_later)
    go_on.set()
    with_old_values(mariadb)
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        mariadb.execute("UPDATE t SET v = 0 WHERE id = 9")
        wait_caught_up(mariadb, store)
        mariadb.execute("ALTER TABLE t ADD c int DEFAULT 5")
        wait_until(lambda: is_equal(mariadb, store, "t"), "the first default has landed", seconds=30)
        go_on.clear()
        mariadb.execute("ALTER TABLE t DROP c", "ALTER TABLE t ADD c int DEFAULT 7")
        go_on.set()
        wait_until(lambda: is_equal(mariadb, store, "t"), "no old value shows", seconds=30)


@pytest.mark.parametrize("restart", [False, True])
def test_tables_swapped_as_gh_ost_does_keep_their_rows_apart(
    mariadb: MysqlDatabase, tmp_path: Path, restart: bool
) -> None:
    with_old_values(mariadb)
    mariadb.execute(
        "CREATE TABLE _t_gho (id int PRIMARY KEY, v int, b int, a int)",
        "INSERT INTO _t_gho SELECT id, v, b, NULL FROM t WHERE id % 3",
    )
    with agent(mariadb, tmp_path, delay_seconds=0.01) as store:
        if restart:
            wait_caught_up(mariadb, store)
        else:
            wait_until(lambda: newest_manifest(store), "a manifest is there")
    with agent(mariadb, tmp_path, delay_seconds=0.01) as store:
        mariadb.execute(
            "UPDATE t SET v = -1 WHERE id = 5", "RENAME TABLE t TO _t_del, _t_gho TO t",
            "UPDATE t SET v = -2 WHERE id = 7", "INSERT INTO _t_del VALUES (3000, 0, 0, 0)",
            "DROP TABLE _t_del",
        )  # fmt: skip
        wait_until(lambda: is_equal(mariadb, store, "t"), "the tables are told apart", seconds=30)
