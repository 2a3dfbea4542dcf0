"""Servers that come back from a copy of their disk, or without the end of what they wrote."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest

from connector.agent import run
from connector.capture.gaps import resume_point_of
from connector.demo.servers.mariadb import MariadbServer
from connector.errors import LogOffError, PreconditionError
from connector.landing.manifest_store import newest_manifest
from connector.mysql.log.stream import replica_id
from connector.position import unpack_binlog_position
from connector.source import ResumePoint
from connector.store.local import LocalStore
from tests.support.agent.mysql_agents import (
    agent,
    assert_equal,
    config_of,
    fill,
    is_equal,
    short_waits,
    wait_caught_up,
)
from tests.support.landing.cuts import manifests_in
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import source_of
from tests.support.source.replication import own_server
from tests.support.waiting import wait_until

__all__ = ["short_waits"]


@pytest.fixture(params=["mariadb", "mysql"])
def restored(request: pytest.FixtureRequest, servers_folder: Path, tmp_path: Path) -> Iterator[MysqlDatabase]:
    """A server of the test's own, since it is to lose what it wrote."""
    with own_server(request.param, servers_folder / tmp_path.name, 1) as server:
        database = MysqlDatabase(server, "restored")
        MysqlDatabase(server, "").execute("CREATE DATABASE restored CHARACTER SET utf8mb4")
        yield database


def copy_disk(server: MariadbServer, source: Path, target: Path) -> None:
    """Stop the server, copy its disk, and start it again."""
    server.stop()
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    server.restart()


def put_back(server: MariadbServer, copy: Path) -> None:
    server.stop()
    subprocess.run(["rm", "-rf", str(server.data_dir)], check=True)
    subprocess.run(["cp", "-a", str(copy), str(server.data_dir)], check=True)
    server.restart()


def write_as_many(database: MysqlDatabase, gtids: str) -> None:
    """Return the rest of some GTIDs to other transactions, and begin a log file right behind them."""
    executed = "gtid_executed" if database.is_mysql else "gtid_binlog_pos"
    for n in range(1000):
        if database.execute(f"SELECT @@global.{executed}")[0][0] == gtids:
            break
        database.execute(f"UPDATE t SET n = {5000 + n} WHERE id = 7")
    else:
        pytest.fail(f"the server never was at {gtids}")
    database.execute("FLUSH LOCAL BINARY LOGS")


def assert_no_failover(database: MysqlDatabase, resume_point: ResumePoint) -> None:
    """Its file is shorter now; or not there yet; or purged: others may have its GTIDs."""
    source = source_of(database)
    last = database.execute("SHOW BINARY LOGS")[-1][0]
    assert (
        unpack_binlog_position(database.end_of_log())[0]
        == unpack_binlog_position(resume_point.position)[0] + 1
    )
    found = source.check_resumable(resume_point)
    assert isinstance(found, str)
    assert "reset" in found
    later = replace(resume_point, position=resume_point.position + (5 << 32), last_commit=None)
    assert isinstance(source.check_resumable(later), str)
    database.execute(f"PURGE BINARY LOGS TO '{last}'")
    assert isinstance(source.check_resumable(resume_point), str)
    source.close()


def test_a_server_restored_from_a_copy_that_wrote_past_the_position_is_a_gap(
    restored: MysqlDatabase, tmp_path: Path
) -> None:
    """Its log file has the number that was read, and continues at the position: in a transaction or idle."""
    server, copy = restored.server, tmp_path / "copy"
    fill(restored)
    with agent(restored, tmp_path) as store:
        wait_caught_up(restored, store)
    copy_disk(server, server.data_dir, copy)
    with agent(restored, tmp_path) as store:
        wait_caught_up(restored, store)
        idle = newest_manifest(store)
        restored.execute("UPDATE t SET v = 'lost' WHERE id < 100", "DELETE FROM t WHERE id > 900")
        wait_caught_up(restored, store)
    landed = newest_manifest(store)
    assert idle is not None
    assert landed is not None
    assert landed.gaps == []
    put_back(server, copy)
    write_as_many(restored, landed.gtids or "")
    assert_no_failover(restored, resume_point_of(landed))
    put_back(server, copy)
    for n in range(20):
        restored.execute(f"UPDATE t SET v = 'kept {n}' WHERE id > 400")
    assert unpack_binlog_position(restored.end_of_log())[0] == unpack_binlog_position(landed.position)[0]
    assert restored.end_of_log() > landed.position > idle.position
    source = source_of(restored)
    for resume_point in (resume_point_of(idle), resume_point_of(landed)):
        assert "restored" in str(source.check_resumable(resume_point))
        assert (
            source.check_resumable(replace(resume_point, last_commit=None)) is None
        )  # nothing else shows it
    source.close()
    with agent(restored, tmp_path) as store:
        wait_until(lambda: manifests_in(store)[-1].epoch == 2, "the gap is found", seconds=60)
        wait_caught_up(restored, store)
        assert_equal(restored, store, "t")
    (gap,) = manifests_in(store)[-1].gaps
    assert "restored" in gap.reason
    with agent(restored, tmp_path) as store:  # and it goes on there
        restored.execute("UPDATE t SET n = 5")
        wait_caught_up(restored, store)
        assert_equal(restored, store, "t")
    assert len(manifests_in(store)[-1].gaps) == 1
    landed = newest_manifest(store)
    assert landed is not None
    restored.execute(f"RESET {'BINARY LOGS AND GTIDS' if restored.is_mysql else 'MASTER'} TO 1000")
    write_as_many(restored, landed.gtids or "")  # by the process that still runs
    source = source_of(restored)
    assert isinstance(source.check_resumable(resume_point_of(landed)), str)
    source.close()


def put_back_tables(server: MariadbServer, copy: Path) -> None:
    """Put back all but the log, as if it were in another folder."""
    server.stop()
    kept = copy.with_name("kept")
    kept.mkdir()
    for log in server.data_dir.glob("binlog.*"):
        shutil.move(log, kept)
    for old in copy.glob("binlog.*"):
        old.unlink()
    for log in kept.iterdir():
        shutil.move(log, copy)
    put_back(server, copy)


@pytest.mark.parametrize("running", [True, False])
def test_a_server_whose_tables_alone_were_restored_is_a_gap(
    restored: MysqlDatabase, tmp_path: Path, running: bool
) -> None:
    """Its log is the one that was read, and goes on."""
    copy = tmp_path / "copy"
    fill(restored)
    with agent(restored, tmp_path) as store:
        wait_caught_up(restored, store)
    copy_disk(restored.server, restored.server.data_dir, copy)
    with agent(restored, tmp_path) as store:
        wait_caught_up(restored, store)
        restored.execute("UPDATE t SET v = 'lost' WHERE id < 100", "DELETE FROM t WHERE id > 900")
        names = "'Innodb_lsn_current', 'Innodb_redo_log_current_lsn'"
        ((_, lsn),) = restored.execute(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})")
        wait_until(lambda: has_landed_after(restored, store, int(lsn)), "something later has landed")
        if running:
            put_back_tables(restored.server, copy)
            assert_gap_is_found(restored, store)
    if not running:
        put_back_tables(restored.server, copy)
        with agent(restored, tmp_path) as store:
            assert_gap_is_found(restored, store)
    (gap,) = manifests_in(store)[-1].gaps
    assert "restored from a copy" in gap.reason


def has_landed_after(database: MysqlDatabase, store: LocalStore, lsn: int) -> bool:
    """Write a bit more; return whether InnoDB's log was on disk up to there when the last of it landed."""
    database.execute("REPLACE INTO small VALUES (1000)", "DELETE FROM small WHERE id = 1000")
    wait_caught_up(database, store)
    last = manifests_in(store)[-1].last_commit
    return last is not None and (last.engine_lsn or 0) >= lsn


def assert_gap_is_found(database: MysqlDatabase, store: LocalStore) -> None:
    database.execute("INSERT INTO t VALUES (2000, 1, 'after')")
    wait_until(lambda: manifests_in(store)[-1].epoch == 2, "the gap is found", seconds=60)
    wait_caught_up(database, store)
    assert_equal(database, store, "t")


UNLOGGED = ("UPDATE t SET v = 'unlogged' WHERE id < 100", "DELETE FROM t WHERE id > 900")


def run_until_the_log_is_off(database: MysqlDatabase, folder: Path, turn_off: Callable[[], None]) -> None:
    """Capture, and change rows once the server writes no log, of which the agent ends."""
    fill(database)
    with contextlib.suppress(LogOffError), agent(database, folder) as store:
        wait_caught_up(database, store)
        turn_off()
        database.execute(*UNLOGGED)
        wait_until(lambda: manifests_in(store)[-1].pending_gap, "the agent sees it", seconds=60)


def assert_gap_is_repaired(database: MysqlDatabase, folder: Path) -> None:
    with agent(database, folder) as store:
        assert_gap_is_found(database, store)
    assert len(manifests_in(store)[-1].gaps) == 1


@pytest.mark.parametrize(
    "left_out",
    [
        "all",
        *(pytest.param(part, marks=pytest.mark.soak) for part in ("the database", "what a replica applies")),
    ],
)
def test_a_server_that_ran_without_its_log_for_a_while_is_a_gap(
    restored: MysqlDatabase, tmp_path: Path, left_out: str
) -> None:
    settings = dict(restored.server.settings)

    def turn_off() -> None:
        if left_out == "all":
            del restored.server.settings["log-bin"]
            restored.server.settings["skip-log-bin"] = ""
        elif left_out == "the database":
            restored.server.settings["binlog-ignore-db"] = restored.name
        else:
            name = "log-replica-updates" if restored.is_mysql else "log-slave-updates"
            restored.server.settings[name] = "OFF"
        restored.server.restart()
        if left_out == "what a replica applies":  # it becomes one while the log is read
            restored.execute(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1'"
                if restored.is_mysql
                else "CHANGE MASTER TO master_host = '127.0.0.1'"
            )

    run_until_the_log_is_off(restored, tmp_path, turn_off)
    if left_out != "all":
        restored.execute("RESET REPLICA ALL" if restored.is_mysql else "RESET SLAVE ALL")
    restored.server.settings.clear()
    restored.server.settings.update(settings)
    restored.server.restart()
    assert_gap_is_repaired(restored, tmp_path)


def restart_with(database: MysqlDatabase, **settings: str | None) -> None:
    """Restart with some settings changed, or removed (None)."""
    merged = database.server.settings | {name.replace("_", "-"): value for name, value in settings.items()}
    database.server.settings = {name: value for name, value in merged.items() if value is not None}
    database.server.restart()


@pytest.mark.parametrize(
    "maintenance", ["nothing else", pytest.param("another failure", marks=pytest.mark.soak)]
)
def test_a_log_that_was_off_is_a_gap_if_an_agent_was_only_started_meanwhile(
    restored: MysqlDatabase, tmp_path: Path, maintenance: str
) -> None:
    """MySQL without GTIDs can't be captured while it is read-only; nor MariaDB with the agent's server_id."""
    if restored.is_mysql:
        restart_with(restored, gtid_mode="OFF", enforce_gtid_consistency="OFF")
    fill(restored)
    with agent(restored, tmp_path) as store:
        wait_caught_up(restored, store)
    kept = dict(restored.server.settings)
    other: dict[str, str | None] = {}
    if maintenance == "another failure":
        config = config_of(restored, tmp_path)
        other = (
            {"read_only": "ON"} if restored.is_mysql else {"server_id": str(replica_id(config.source.name))}
        )
    restart_with(restored, log_bin=None, skip_log_bin="", **other)
    with pytest.raises(PreconditionError, match="does not write its binary log") as raised:
        run(config_of(restored, tmp_path))
    assert ("own table" in str(raised.value) or "server_id" in str(raised.value)) == bool(other)
    restored.execute("SET GLOBAL read_only = 0", *UNLOGGED)
    restored.server.settings = kept
    restored.server.restart()
    assert_gap_is_repaired(restored, tmp_path)


@pytest.mark.parametrize("seen", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_server_that_could_not_write_its_log_and_went_on_is_a_gap(
    restored: MysqlDatabase, tmp_path: Path, seen: bool
) -> None:
    if restored.is_mysql:
        restored.execute("SET GLOBAL binlog_error_action = IGNORE_ERROR")
    folder = restored.server.data_dir

    def turn_off() -> None:
        folder.chmod(0o555)
        with contextlib.suppress(pymysql.Error):
            restored.execute("FLUSH BINARY LOGS")
        folder.chmod(0o755)

    if seen:
        run_until_the_log_is_off(restored, tmp_path, turn_off)
        restored.server.restart()
        assert_gap_is_repaired(restored, tmp_path)
        return
    fill(restored)
    with agent(restored, tmp_path) as store:
        wait_caught_up(restored, store)
    turn_off()
    restored.execute(*UNLOGGED)
    restored.server.restart()
    with agent(restored, tmp_path) as store:
        wait_until(lambda: is_equal(restored, store, "t"), "the table is read again", seconds=60)


@pytest.mark.parametrize("restored", ["mariadb"], indirect=True)  # MySQL cuts off the rest by itself
@pytest.mark.parametrize("within", ["a transaction", "an event"])
def test_a_log_file_that_a_crash_cut_off_is_followed_by_the_next(
    restored: MysqlDatabase, tmp_path: Path, within: str
) -> None:
    """Within a transaction it is passed over; within an event, nobody can read on, which is a gap."""
    fill(restored)
    with agent(restored, tmp_path) as store:
        wait_caught_up(restored, store)
    restored.execute("UPDATE t SET v = 'kept' WHERE id < 100", "DELETE FROM t WHERE id > 500")
    name = restored.execute("SHOW MASTER STATUS")[0][0]
    commit = restored.execute(f"SHOW BINLOG EVENTS IN '{name}'")[-1][1]
    restored.server.stop(crash=True)
    os.truncate(restored.server.data_dir / name, commit - (0 if within == "a transaction" else 500))
    restored.server.restart()
    restored.execute("INSERT INTO t VALUES (2000, 1, 'after')")
    with agent(restored, tmp_path) as store:
        wait_caught_up(restored, store)
        wait_until(lambda: is_equal(restored, store, "t"), "the table is equal", seconds=60)
    assert len(manifests_in(store)[-1].gaps) == (0 if within == "a transaction" else 1)


@pytest.mark.parametrize(
    "restored", ["mariadb", pytest.param("mysql", marks=pytest.mark.soak)], indirect=True
)
def test_a_value_that_is_damaged_in_the_log_never_lands(restored: MysqlDatabase, tmp_path: Path) -> None:
    """The server sends what its disk returns; the checksum is for whoever reads it, and shows a gap.

    The log goes on in the same file, whose begin is scanned for what was executed.
    """
    fill(restored)
    with agent(restored, tmp_path) as store:
        wait_caught_up(restored, store)
    restored.execute("UPDATE t SET v = 'intact' WHERE id = 3", "INSERT INTO t VALUES (2000, 1, 'after')")
    path = restored.server.data_dir / restored.execute("SHOW MASTER STATUS")[0][0]
    with path.open("r+b") as file:
        file.seek(file.read().rindex(b"intact"))
        file.write(b"infact")
    with agent(restored, tmp_path) as store:
        wait_caught_up(restored, store)
        wait_until(lambda: is_equal(restored, store, "t"), "the table is equal", seconds=60)
    (gap,) = manifests_in(store)[-1].gaps
    assert "checksum" in gap.reason
