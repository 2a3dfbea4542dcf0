"""Failover to a replica by GTID, as the agent lives through it: without a gap where nothing is missing."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connector.agent import run
from connector.capture import catalog_watcher
from connector.capture.lander import LandedSegment
from connector.capture.loop import Capture
from connector.errors import LogMiscomputedError, PreconditionError, SourceMismatchError
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import DumpRequest, submit
from connector.mysql import source
from connector.mysql.connection import connect
from connector.mysql.state_table import StateTable
from connector.schema import TableName
from connector.source import LogReader
from connector.store.local import LocalStore
from tests.integration.mysql.log.test_log_identity import copy_disk, put_back, restart_with
from tests.support.agent.mysql_agents import (
    Load,
    agent,
    assert_equal,
    config_of,
    fill,
    short_waits,
    wait_caught_up,
)
from tests.support.background import Background
from tests.support.landing.cuts import manifests_in, read_events
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import reader_of, source_of
from tests.support.source.replication import Replicated, replicated
from tests.support.waiting import wait_until

__all__ = ["short_waits"]

NAME = "failover"
EASIER_ON_MYSQL = pytest.mark.soak_on_mysql
"""The easier of two cases: the harder one is enough there, where two servers to start cost most."""


@pytest.fixture(params=["mariadb", "mysql"])
def servers(request: pytest.FixtureRequest, servers_folder: Path, tmp_path: Path) -> Iterator[Replicated]:
    """Two servers of the test's own, since one of them comes to an end."""
    with replicated(request.param, servers_folder / tmp_path.name, NAME) as pair:
        yield pair


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "APPLY_SECONDS", 1.0)


def newest_of(store: LocalStore) -> Manifest:
    newest = newest_manifest(store)
    assert newest is not None
    return newest


def wait_for_epoch(store: LocalStore, epoch: int) -> None:
    wait_until(lambda: newest_of(store).epoch == epoch, f"epoch {epoch} has begun", seconds=60)


def assert_failed_over(store: LocalStore, *, epoch: int = 2, asked: bool = False) -> None:
    """No gap, no repair, and the notice; the set of GTIDs grew all the time. `asked`: for dumps, too."""
    newest = newest_of(store)
    assert (newest.epoch, newest.gaps) == (epoch, [])
    assert newest.exact
    manifests = manifests_in(store)
    reasons = {dump.reason for manifest in manifests for dump in manifest.dumps}
    assert reasons == ({"initial", "request"} if asked else {"initial"})
    notices = [notice for manifest in manifests for notice in manifest.notices if notice.kind == "failover"]
    assert len(notices) == epoch - 1
    assert all(manifest.gtids for manifest in manifests)


def land(database: MysqlDatabase, folder: Path) -> LocalStore:
    """Run an agent until the log so far has landed, with all dumps; it has ended on return."""
    with agent(database, folder) as store:
        wait_caught_up(database, store)
    return store


def repaired_gap(database: MysqlDatabase, folder: Path) -> str:
    """Run an agent that finds a gap, and check that its dumps repair the table; return the gap's reason."""
    with agent(database, folder) as store:
        wait_for_epoch(store, 2)
        wait_caught_up(database, store)
    assert_equal(database, store, "t")
    (gap,) = newest_of(store).gaps
    return gap.reason


def purge_log(database: MysqlDatabase) -> None:
    """Purge all log files but a new one; a file that is in use is waited for."""
    database.execute("FLUSH LOCAL BINARY LOGS")

    def purged() -> bool:
        files = [row[0] for row in database.execute("SHOW BINARY LOGS")]
        database.execute(f"PURGE BINARY LOGS TO '{files[-1]}'")
        return len(database.execute("SHOW BINARY LOGS")) == 1

    wait_until(purged, "its log is purged")


class OtherDomain(Background):
    """A second writer; in MariaDB in a domain of its own, which replicas may commit in any order."""

    def __init__(self, database: MysqlDatabase) -> None:
        super().__init__()
        self._database = database

    def work(self) -> None:
        with self._database.connect() as connection, connection.cursor() as cursor:
            if not self._database.is_mysql:
                cursor.execute("SET SESSION gtid_domain_id = 7")
            while not self.stopping.wait(0.004):
                cursor.execute("UPDATE side SET n = n + 1 WHERE id <= 3")
                cursor.execute("REPLACE INTO side VALUES (floor(10 + rand() * 30), floor(rand() * 1000))")


def fill_both(servers: Replicated) -> None:
    """Create the tables at both: a replica may apply a domain's writes before another domain's tables."""
    fill(servers.primary)
    servers.primary.execute(
        "CREATE TABLE side (id int PRIMARY KEY, n int)", "INSERT INTO side VALUES (1, 0), (2, 0)"
    )
    servers.wait_applied()


@pytest.mark.parametrize("chunks_take", [pytest.param(0.0, marks=EASIER_ON_MYSQL), 0.1])
def test_the_agent_goes_on_at_the_replica_under_load(
    servers: Replicated, tmp_path: Path, chunks_take: float
) -> None:
    """With slow chunks the first dumps are still running when the server changes.

    Nothing of the tables is lost, as nobody else writes once the replica has all. The agent does, on and on,
    for its chunks and for each log file: of that the replica never gets what comes last.
    """
    fill_both(servers)
    primary, replica = servers.primary, servers.replica
    with LossyProxy(primary.server.port) as proxy:
        url = primary.url.replace(f":{primary.server.port}/", f":{proxy.port}/")
        with agent(primary, tmp_path, url=url, delay_seconds=chunks_take) as store:
            with Load(primary, 3), OtherDomain(primary):
                wait_until(lambda: len(manifests_in(store)) > 5, "it captures", seconds=60)
            servers.wait_applied()
            servers.fail_over()
            with Load(replica, 4), OtherDomain(replica):
                proxy.lead_to(replica.server.port)
                wait_for_epoch(store, 2)
                size = len(manifests_in(store)) + 5
                wait_until(lambda: len(manifests_in(store)) > size, "it captures there", seconds=60)
            wait_caught_up(replica, store)
    assert_failed_over(store)
    for table in ("t", "small", "side"):
        assert_equal(replica, store, table)


def test_an_agent_that_was_stopped_goes_on_at_the_replica_and_back(
    servers: Replicated, tmp_path: Path
) -> None:
    fill_both(servers)
    primary, replica = servers.primary, servers.replica
    land(primary, tmp_path)
    with Load(primary, 5), OtherDomain(primary):
        servers.wait_applied()
        with agent(primary, tmp_path) as store:
            size = len(manifests_in(store)) + 3
            wait_until(lambda: len(manifests_in(store)) > size, "it captures some", seconds=60)
    servers.wait_applied()
    with agent(replica, tmp_path) as store:
        wait_for_epoch(store, 2)
        wait_caught_up(replica, store)
        assert_equal(replica, store, "t")
    with Load(primary, 6), OtherDomain(primary):
        servers.wait_applied()
    servers.wait_applied()
    with agent(primary, tmp_path) as store:
        wait_for_epoch(store, 3)
        wait_caught_up(primary, store)
    assert_failed_over(store, epoch=3)
    for table in ("t", "small", "side"):
        assert_equal(primary, store, table)


def have_agent_write(database: MysqlDatabase, store: LocalStore) -> None:
    """Have the agent write its own table, for a new log file and in a dump; on return that has landed."""
    noted = "SELECT sum(log_file) FROM deltatide.watermark"
    before = database.execute(noted)
    database.execute("FLUSH LOCAL BINARY LOGS")
    wait_until(lambda: database.execute(noted) != before, "the agent has written down the log file")
    request = submit(store, DumpRequest(tables=[f"{database.name}.small"]))

    def dumped() -> bool:
        return any(dump.id.startswith(request) and not dump.active for dump in newest_of(store).dumps)

    wait_until(dumped, "the dump that was asked for is complete", seconds=60)
    wait_caught_up(database, store)


def executed(database: MysqlDatabase) -> str:
    name = "gtid_executed" if database.is_mysql else "gtid_binlog_state"
    return str(database.execute(f"SELECT @@global.{name}")[0][0])


def write_as_much(replica: MysqlDatabase) -> None:
    """Promote a replica and write, in MariaDB under numbers that its primary has given too."""
    replica.execute("RESET REPLICA ALL" if replica.is_mysql else "RESET SLAVE ALL")
    replica.execute(*(f"UPDATE t SET n = {n} WHERE id < 50 + {n}" for n in range(12)))


@pytest.mark.parametrize("restarted", [pytest.param(False, marks=EASIER_ON_MYSQL), True])
def test_own_writes_that_the_replica_never_got_are_no_gap(
    servers: Replicated, tmp_path: Path, restarted: bool
) -> None:
    """Not at the failover, and not at a restart after it."""
    fill_both(servers)
    primary, replica = servers.primary, servers.replica
    with LossyProxy(primary.server.port) as proxy:
        url = primary.url.replace(f":{primary.server.port}/", f":{proxy.port}/")
        with contextlib.ExitStack() as running:
            store = running.enter_context(agent(primary, tmp_path, url=url))
            wait_caught_up(primary, store)
            primary.execute("UPDATE t SET v = 'kept' WHERE id > 900")
            have_agent_write(primary, store)
            servers.wait_applied()
            servers.promote()
            there = executed(replica)
            have_agent_write(primary, store)
            have_agent_write(primary, store)
            assert newest_of(store).gtids_needed is not None
            assert executed(replica) == there
            if restarted:
                running.close()
            primary.server.stop(crash=True)
            write_as_much(replica)
            proxy.lead_to(replica.server.port)
            if restarted:
                running.enter_context(agent(primary, tmp_path, url=url))
            wait_for_epoch(store, 2)
            wait_caught_up(replica, store)
            assert_equal(replica, store, "t")
            have_agent_write(replica, store)
    with agent(replica, tmp_path) as store:
        replica.execute("DELETE FROM t WHERE id < 30")
        have_agent_write(replica, store)
    assert_failed_over(store, asked=True)
    for table in ("t", "small", "side"):
        assert_equal(replica, store, table)


@pytest.mark.parametrize("foreign_last", [False, pytest.param(True, marks=EASIER_ON_MYSQL)])
def test_a_foreign_write_among_own_ones_that_the_replica_never_got_is_a_gap(
    servers: Replicated, tmp_path: Path, foreign_last: bool
) -> None:
    fill_both(servers)
    primary, replica = servers.primary, servers.replica
    with agent(primary, tmp_path) as store:
        wait_caught_up(primary, store)
        servers.wait_applied()
        servers.promote()
        have_agent_write(primary, store)
        primary.execute("DELETE FROM t WHERE id = 7")
        wait_caught_up(primary, store)
        if not foreign_last:
            have_agent_write(primary, store)
            assert newest_of(store).gtids_needed is not None
    primary.server.stop(crash=True)
    write_as_much(replica)
    assert "never executed" in repaired_gap(replica, tmp_path)


def test_a_reset_server_that_gives_the_same_gtids_again_is_a_gap(servers: Replicated, tmp_path: Path) -> None:
    fill_both(servers)
    primary = servers.primary
    store = land(primary, tmp_path)
    servers.wait_applied()
    servers.stop()
    landed = newest_of(store).gtids or ""
    second = "SELECT UNIX_TIMESTAMP()"
    before = primary.execute(second)
    wait_until(lambda: primary.execute(second) > before, "another second begins")
    primary.execute("RESET MASTER")
    for n in range(int(re.split("[-:]", landed)[-1]) + 5):
        primary.execute(f"UPDATE t SET n = {n} WHERE id <= {n}")
    assert "reset" in repaired_gap(primary, tmp_path)


@pytest.mark.parametrize("reset", [False, True], ids=["purged", "reset"])
def test_a_purged_file_of_the_same_server_is_a_gap_though_its_gtids_are_those_that_landed(
    servers: Replicated, tmp_path: Path, reset: bool
) -> None:
    """The purge may follow a reset, after which other transactions got these very ids."""
    fill_both(servers)
    primary = servers.primary
    store = land(primary, tmp_path)
    servers.wait_applied()
    servers.stop()
    landed = newest_of(store).gtids or ""
    number = newest_of(store).position >> 32
    if reset:
        primary.execute("RESET MASTER")
        for n in range(int(re.split("[-:]", landed)[-1])):
            primary.execute(f"UPDATE t SET n = -{n} WHERE id = {n}")
    while reset and len(primary.execute("SHOW BINARY LOGS")) < number:
        primary.execute("FLUSH LOCAL BINARY LOGS")
    purge_log(primary)
    primary.execute("DELETE FROM t WHERE id < 100")
    assert "gone" in repaired_gap(primary, tmp_path)


def test_a_tail_that_the_replica_never_got_is_a_gap_and_repaired(servers: Replicated, tmp_path: Path) -> None:
    fill_both(servers)
    primary, replica = servers.primary, servers.replica
    with agent(primary, tmp_path) as store:
        wait_caught_up(primary, store)  # so that the agent's tables are there too
        servers.wait_applied()
        servers.promote()
        primary.execute("UPDATE t SET v = 'lost' WHERE id < 100", "DELETE FROM t WHERE id > 900")
        wait_caught_up(primary, store)
    replica.execute("UPDATE t SET v = 'kept' WHERE id < 50", "INSERT INTO t VALUES (2000, 1, 'new')")
    assert "never executed" in repaired_gap(replica, tmp_path)


def test_a_replica_that_has_purged_what_follows_is_a_gap(servers: Replicated, tmp_path: Path) -> None:
    fill_both(servers)
    primary, replica = servers.primary, servers.replica
    land(primary, tmp_path)
    servers.wait_applied()
    servers.promote()
    replica.execute("UPDATE t SET n = 5 WHERE id < 50")
    purge_log(replica)
    assert "purged" in repaired_gap(replica, tmp_path)


def test_a_replica_that_is_still_applying_is_waited_for(
    servers: Replicated,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(source, "APPLY_SECONDS", 60.0)
    fill_both(servers)
    primary, replica = servers.primary, servers.replica
    with agent(primary, tmp_path) as store:
        wait_caught_up(primary, store)
        servers.wait_applied()
        servers.stop()
        primary.execute("UPDATE t SET v = 'late' WHERE id < 100")
        wait_caught_up(primary, store)
    number = newest_of(store).number
    with agent(replica, tmp_path) as store:
        wait_until(lambda: "has not executed" in caplog.text, "it has begun to wait")
        assert newest_of(store).number == number, "nothing lands by a log that is not proved yet"
        servers.start()
        wait_for_epoch(store, 2)
        wait_caught_up(replica, store)
    assert_failed_over(store)
    assert_equal(replica, store, "t")


def test_rows_that_only_the_replicas_log_has_are_read_as_the_table_was(
    servers_folder: Path, tmp_path: Path
) -> None:
    """MariaDB's log does not show which column ends versions, nor does the catalog any more.

    Nor did the table have one at the begin of the replica's log file, all of which has landed.
    """
    keys = {"t": ["k"]}
    with replicated("mariadb", servers_folder / tmp_path.name, NAME) as servers:
        primary, replica = servers.primary, servers.replica
        primary.execute(
            "CREATE TABLE t (id int PRIMARY KEY, k int NOT NULL UNIQUE, v int)",
            "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)",
            "ALTER TABLE t ADD b timestamp(6) GENERATED ALWAYS AS ROW START,"
            " ADD e timestamp(6) GENERATED ALWAYS AS ROW END,"
            " ADD PERIOD FOR SYSTEM_TIME (b, e), ADD SYSTEM VERSIONING",
        )
        name = TableName(primary.name, "t")
        with agent(primary, tmp_path, keys=keys) as store:
            wait_caught_up(primary, store)
            wait_until(lambda: newest_of(store).tables[name].traits is not None, "its traits are recorded")
        primary.execute("UPDATE t SET v = 5 WHERE id = 1", "DELETE FROM t WHERE id = 2")
        servers.wait_applied()
        end = replica.end_of_log()
        primary.execute(
            "SET system_versioning_alter_history = KEEP",
            "ALTER TABLE t DROP SYSTEM VERSIONING, DROP COLUMN b, DROP COLUMN e",
        )
        servers.wait_applied()
        servers.fail_over()
        with agent(replica, tmp_path, keys=keys) as store:
            wait_for_epoch(store, 2)
            wait_until(lambda: newest_of(store).position > end, "the log is read", seconds=60)
    found = [f for m in manifests_in(store) if m.epoch == 2 for f in m.files if f.kind == "log"]
    before = [e for f in found for e in read_events(store, f) if e.position.lsn < end]
    assert [(e.op, e.key) for e in before] == [("update", (1,)), ("delete", (2,))]


def test_check_accepts_a_replica_and_says_that_it_is_not_written_to(servers: Replicated) -> None:
    fill_both(servers)
    servers.wait_applied()
    reading = source_of(servers.replica)
    found = {finding.name: finding for finding in reading.check()}
    reading.close()
    assert {name for name, finding in found.items() if finding.state != "ok"} == {"own table", "durability"}
    assert found["own table"].state == "warning"
    assert "a replica" in found["own table"].detail


def test_a_replica_is_known_without_a_right_to_write(servers: Replicated, tmp_path: Path) -> None:
    """MySQL's GTIDs prove it; MariaDB's prove nothing, and another server is refused."""
    fill_both(servers)
    primary, replica = servers.primary, servers.replica
    there = reader_of(primary)
    urls = [there, there.replace(f":{primary.server.port}/", f":{replica.server.port}/")]
    with agent(primary, tmp_path, url=urls[0]) as store, Load(primary, 8):
        wait_until(lambda: len(manifests_in(store)) > 5, "it captures", seconds=60)
    servers.wait_applied()
    servers.promote()
    replica.execute("UPDATE t SET v = 'there' WHERE id < 100")
    if not primary.is_mysql:
        with pytest.raises(SourceMismatchError), agent(replica, tmp_path, url=urls[1]) as store:
            pass
        return
    with agent(replica, tmp_path, url=urls[1]) as store:
        wait_for_epoch(store, 2)
        wait_caught_up(replica, store)
    assert_failed_over(store)
    assert_equal(replica, store, "t")


def test_the_replica_of_a_primary_that_was_restored_from_a_copy_is_a_gap(
    servers: Replicated, tmp_path: Path
) -> None:
    """It has all the GTIDs that landed, of other transactions."""
    primary, replica, copy = servers.primary, servers.replica, tmp_path / "copy"
    fill(primary)
    land(primary, tmp_path)
    servers.wait_applied()
    servers.stop()
    copy_disk(primary.server, primary.server.data_dir, copy)
    with agent(primary, tmp_path) as store:
        for n in range(10):
            primary.execute(f"UPDATE t SET n = -1 WHERE id = {n + 1}")
        wait_caught_up(primary, store)
    put_back(primary.server, copy)
    time.sleep(1.1)  # MariaDB logs whole seconds, and comes back within one
    for n in range(60):
        primary.execute(f"UPDATE t SET n = -2 WHERE id = {n + 31}")
    servers.start()
    servers.wait_applied()
    servers.stop()
    assert "restored" in repaired_gap(replica, tmp_path)


@pytest.mark.parametrize("started", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_replica_that_wrote_no_log_for_a_while_is_a_gap(
    servers: Replicated, tmp_path: Path, started: bool
) -> None:
    """It takes over without its log; an agent is started meanwhile, or only once it logs again."""
    primary, replica = servers.primary, servers.replica
    fill(primary)
    servers.wait_applied()
    kept = dict(replica.server.settings)
    restart_with(replica, log_bin=None, skip_log_bin="", log_slave_updates=None)
    servers.start()
    with agent(primary, tmp_path) as store:
        wait_caught_up(primary, store)
        primary.execute("UPDATE t SET v = 'last' WHERE id = 1")
        wait_caught_up(primary, store)
    servers.wait_applied()
    servers.fail_over()
    if started:
        with pytest.raises(PreconditionError, match="does not write its binary log"):
            run(config_of(replica, tmp_path))
    replica.execute("UPDATE t SET v = 'unlogged' WHERE id < 100", "DELETE FROM t WHERE id > 900")
    replica.server.settings = kept
    replica.server.restart()
    reason = repaired_gap(replica, tmp_path)
    assert reason.startswith("the server ") == started  # else by comparing the logs


@pytest.mark.parametrize("servers", ["mariadb"], indirect=True)
def test_a_replica_that_runs_triggers_of_its_own_ends_the_agent_and_is_a_gap(
    servers: Replicated, tmp_path: Path
) -> None:
    """Its log has virtual columns as they were before these ran, for every statement."""
    primary, replica = servers.primary, servers.replica
    primary.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int, n int AS (a + 1))", "INSERT INTO t (id) VALUES (1)"
    )
    servers.wait_applied()
    replica.execute("CREATE TRIGGER tr BEFORE UPDATE ON t FOR EACH ROW SET new.b = new.b + 10")
    setting = "SET GLOBAL slave_run_triggers_for_rbr = "

    def capture() -> None:
        with agent(replica, tmp_path) as store:
            wait_caught_up(replica, store)
            replica.execute(setting + "YES")
            primary.execute("UPDATE t SET a = 1, b = 1")
            wait_until(lambda: newest_of(store).pending_gap is not None, "the gap is recorded")

    with pytest.raises(LogMiscomputedError, match="YES on a replica"):
        capture()
    replica.execute(setting + "NO")
    assert "triggers of its own" in repaired_gap(replica, tmp_path)


@contextlib.contextmanager
def polls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Let the agent ask often whether the server may be written; yields: wait for three more answers."""
    answers = []
    ask = StateTable.is_writable

    def counted(self: StateTable, *arguments: Any) -> bool:
        answers.append(ask(self, *arguments))
        return answers[-1]

    def wait() -> None:
        size = len(answers) + 3
        wait_until(lambda: len(answers) >= size, "the end of the log is polled three times", seconds=8)

    with monkeypatch.context() as patched:
        patched.setattr(StateTable, "is_writable", counted)
        yield wait


@pytest.mark.parametrize("how", ["its threads are stopped", "by a named connection"])
def test_a_replica_is_not_written(
    servers: Replicated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """MariaDB's replication ends at a transaction of the replica's own, if it is strict."""
    primary, replica = servers.primary, servers.replica
    fill(primary)
    land(primary, tmp_path / "primary")  # so that the agent's tables are there too
    servers.wait_applied()
    if how == "by a named connection":
        if primary.is_mysql:
            pytest.skip("MySQL shows its channels by any name")
        servers.promote()
        replica.execute(
            "CHANGE MASTER 'named' TO master_host = '127.0.0.1', master_use_gtid = slave_pos,"
            f" master_port = {primary.server.port}, master_user = 'deltatide',"
            f" master_password = '{primary.server.password}'",
            "START SLAVE 'named'",
        )
    before = executed(replica)
    with polls(monkeypatch) as wait, agent(replica, tmp_path / "replica") as store:
        wait_caught_up(replica, store)
        if how == "its threads are stopped":
            servers.stop()
        wait()
        assert executed(replica) == before
        primary.execute("UPDATE t SET v = 'later' WHERE id < 50")
        if how == "its threads are stopped":
            servers.start()
        servers.wait_applied()
        wait_caught_up(replica, store)
        assert_equal(replica, store, "t")


@pytest.mark.parametrize("servers", ["mariadb"], indirect=True)
def test_an_agent_that_may_not_ask_whether_it_reads_a_replica_writes_nothing(
    servers: Replicated, tmp_path: Path
) -> None:
    """It does not start, and if the right is taken away later, it takes the server for a replica."""
    primary = servers.primary
    fill(primary)
    primary.execute(
        "CREATE USER least@'%' IDENTIFIED BY 'secret'",
        "GRANT BINLOG MONITOR, REPLICATION SLAVE ON *.* TO least@'%'",
        f"GRANT SELECT ON {NAME}.* TO least@'%'",
        "GRANT CREATE, SELECT, INSERT, UPDATE ON deltatide.* TO least@'%'",
    )
    url = primary.server.url(user="least", password="secret", database=NAME)
    before, config = executed(primary), config_of(primary, tmp_path, url=url)
    state_table = StateTable(config.source.name)
    with pytest.raises(PreconditionError, match="GRANT BINLOG MONITOR, REPLICA MONITOR"):
        run(config)
    with contextlib.closing(connect(url, "test")) as connection:
        assert not state_table.create(connection)
        assert executed(primary) == before
        land(primary, tmp_path / "by another")  # so that the agent's tables are there
        assert not state_table.is_writable(connection)
        primary.execute("GRANT REPLICA MONITOR ON *.* TO least@'%'")
    with contextlib.closing(connect(url, "test")) as connection:
        assert state_table.is_writable(connection)


def empty_partition_and_die(
    database: MysqlDatabase, folder: Path, term: int, patched: pytest.MonkeyPatch
) -> str:
    """Run an agent until the statement has landed, and no further; return what was executed up to there."""
    before: list[int] = []
    commit = Capture._commit

    def dying(capture: Capture, landed: LandedSegment, reader: LogReader) -> bool:
        done = commit(capture, landed, reader)
        if before and landed.position > before[0]:
            raise KeyboardInterrupt
        return done

    patched.setattr(Capture, "_commit", dying)
    patched.setattr(catalog_watcher, "CHECK_SECONDS", 1000.0)
    with contextlib.suppress(KeyboardInterrupt), agent(database, folder) as store:
        wait_until(lambda: newest_of(store).term > term, "it has begun")
        wait_caught_up(database, store)
        before.append(database.end_of_log())
        [(executed,)] = database.execute("ALTER TABLE p TRUNCATE PARTITION a", _EXECUTED[database.kind])
        wait_until(lambda: newest_of(store).position > before[0], "the statement has landed")
    return str(executed)


def test_a_change_without_row_events_is_repaired_though_the_replica_never_got_its_record(
    servers: Replicated, tmp_path: Path
) -> None:
    """The agent dies along with the primary, before it looks at the catalog again."""
    primary, replica = servers.primary, servers.replica
    primary.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)"
        " (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN MAXVALUE)",
        "INSERT INTO p SELECT seq, seq FROM seq_1_to_30",
    )
    term = newest_of(land(primary, tmp_path)).term
    servers.wait_applied()
    servers.stop()
    with pytest.MonkeyPatch.context() as patched:
        executed = empty_partition_and_die(primary, tmp_path, term, patched)
    replica.execute(_APPLY_UPTO[primary.kind].format(executed))
    wait_until(lambda: len(replica.execute("SELECT * FROM p")) == 21, "the replica has the statement")
    servers.fail_over()
    with agent(primary, tmp_path, url=replica.url) as store:
        wait_for_epoch(store, 2)
        replica.execute("INSERT INTO p VALUES (100, 1)")
        wait_caught_up(replica, store)
    assert newest_of(store).gaps == []
    assert_equal(replica, store, "p")


_EXECUTED = {"mysql": "SELECT @@global.gtid_executed", "mariadb": "SELECT @@last_gtid"}
_APPLY_UPTO = {
    "mysql": "START REPLICA UNTIL SQL_AFTER_GTIDS = '{}'",
    "mariadb": "START SLAVE UNTIL master_gtid_pos = '{}'",
}
