"""Servers that crash, come back from a copy of their disk, or are promoted, and what becomes of their log."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow.parquet as pq
import pytest

from connector.capture import catalog_watcher, retry
from connector.capture.loop import Capture
from connector.config import Config
from connector.demo.servers.postgres import PostgresServer
from connector.errors import GapError, TransientError
from connector.landing.manifest import DumpState, InvisibleCommit, Manifest
from connector.landing.manifest_store import ManifestWriter
from connector.landing.requests import DumpRequest, submit
from connector.postgres.log.reader import PostgresLogReader
from connector.postgres.source import PostgresSource
from connector.schema import TableName
from connector.source import KeyRange
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agent_thread import AgentThread
from tests.support.agent.captured import landed_tables
from tests.support.landing.cuts import manifests_in
from tests.support.waiting import wait_until

SETTINGS = {"autovacuum": "off", "restore_command": "false"}
FLUSHED_LATE = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "wal_buffers": "16MB"}
"""Nothing but a checkpoint or a commit that waits flushes the log."""


@pytest.fixture
def server(servers_folder: Path, request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server of the test's own; indirect parametrization may add settings."""
    folder = servers_folder / request.node.name[:30]
    with PostgresServer.start(folder, settings=SETTINGS | getattr(request, "param", {})) as server:
        yield server
    shutil.rmtree(folder)


def execute(server: PostgresServer, *statements: str) -> Any:
    connection = psycopg2.connect(server.url())
    connection.autocommit = True
    with contextlib.closing(connection), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None


class Agent(AgentThread):
    """A capture of the server's table."""

    def __init__(
        self, server: PostgresServer, store: MemoryStore, on_gap: str = "repair", url: str | None = None
    ) -> None:
        config = Config.model_validate(
            {
                "source": {
                    "name": "it",
                    "kind": "postgres",
                    "url": url or server.url(),
                    "tables": ["public.t"],
                    "slot": "it",
                    "publication": "it",
                    "on_gap": on_gap,
                },
                "landing": {"url": "/nowhere", "flush_seconds": 0.05, "heartbeat_seconds": 0.2},
            }
        )
        self.store = store
        source = PostgresSource(config.source, config.tables)
        super().__init__(Capture(source, store, config), store, source.close)

    def wait_landed(self, key: int) -> Manifest:
        return self.wait(lambda _: key in landed(self.store, "log"), f"row {key} has landed")

    def wait_exact(self) -> Manifest:
        return self.wait(lambda m: m.exact and not any(d.active for d in m.dumps), "all is dumped")


def landed(store: MemoryStore, kind: str, epoch: int = 0) -> list[int]:
    """The ids of the rows that manifests name, from an epoch on."""
    files = [f for m in manifests_in(store) if m.epoch >= epoch for f in m.files if f.kind == kind]
    return [row["id"] for f in files for row in pq.read_table(io.BytesIO(store.read(f.path))).to_pylist()]


def copy(data: Path, to: Path) -> None:
    """Copy a stopped server's disk, with its owners."""
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cp", "-a", str(data), str(to)], check=True)


def end_of_log(server: PostgresServer) -> int:
    return int(execute(server, "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn"))


def test_a_disk_that_was_restored_is_a_gap_though_its_log_has_grown_past_ours(server: PostgresServer) -> None:
    store, backup = MemoryStore(), server.folder / "backup"
    execute(server, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with Agent(server, store) as agent:
        agent.wait_exact()
        execute(server, "INSERT INTO t VALUES (2)")
        agent.wait_landed(2)
    server.stop()
    copy(server.data_dir, backup)
    server.restart()
    with Agent(server, store) as agent:  # an ordinary restart is none
        execute(server, "INSERT INTO t VALUES (3)")
        before = agent.wait_landed(3)
        assert (before.epoch, before.gaps, before.source.server) == (1, [], "1")
    before = manifests_in(store)[-1]  # an agent that ends commits how far it has read
    server.stop()
    copy(backup, server.data_dir)
    server.restart()
    execute(server, "INSERT INTO t VALUES (4)")
    while end_of_log(server) <= before.position:
        execute(server, "CREATE TABLE other (id int)", "DROP TABLE other")
    with pytest.raises(GapError, match="restored or replaced"), Agent(server, store, on_gap="stop") as agent:
        agent.join()
    with Agent(server, store) as agent:
        after = agent.wait(lambda m: m.epoch == 2 and m.exact, "all is dumped again")
    assert [gap.after for gap in after.gaps] == [before.position]
    assert "ends with" in after.gaps[0].reason
    assert sorted(landed(store, "chunk", epoch=2)) == [1, 2, 4]


def test_a_promoted_server_goes_on_only_where_its_log_was_read_to(server: PostgresServer) -> None:
    store, backup = MemoryStore(), server.folder / "backup"
    execute(server, "CREATE TABLE t (id int PRIMARY KEY)")
    with Agent(server, store) as agent:
        agent.wait_exact()
        execute(server, "INSERT INTO t VALUES (1)")
        agent.wait_landed(1)
    server.stop()
    copy(server.data_dir, backup)
    promote(server)
    with Agent(server, store) as agent:
        execute(server, "INSERT INTO t VALUES (2)")
        agent.wait_landed(2)
        later = agent.wait(lambda m: m.source.server == "2", "the timeline is known")
    assert (later.epoch, later.gaps) == (1, [])
    assert any("continues" in n.text for m in manifests_in(store) for n in m.notices if n.kind == "failover")
    server.stop()
    copy(backup, server.data_dir)
    promote(server)
    promote(server)  # timeline 3, which left timeline 1 and not 2
    execute(server, "INSERT INTO t VALUES (3)", "SELECT pg_switch_wal()", "CREATE TABLE other (id int)")
    with Agent(server, store) as agent:
        after = agent.wait(lambda m: m.epoch == 2 and m.exact, "all is dumped again")
    assert "timeline" in after.gaps[0].reason
    assert sorted(landed(store, "chunk", epoch=2)) == [1, 3]


@pytest.mark.parametrize("promoted", [True, False])
@pytest.mark.parametrize(("xid_barrier", "floor"), [(1_000_000, None), (None, 1 << 40)])
def test_dumps_do_not_wait_for_ids_and_positions_that_the_server_may_never_reach(
    server: PostgresServer, xid_barrier: int | None, floor: int | None, promoted: bool
) -> None:
    """They were given out, or the log written up to the floor, and a crash or a failover took that back."""
    store, lost = MemoryStore(), 1_000_000
    execute(server, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with Agent(server, store) as agent:
        agent.wait_exact()
    newest = manifests_in(store)[-1]
    waiting = DumpState(
        id="w", number=9, table=newest.dumps[0].table, kind="full", reason="repair", epoch=1,
        requested_at=newest.committed_at, started_in=newest.number + 1, xid_barrier=xid_barrier, floor=floor,
    )  # fmt: skip
    update = {
        "number": newest.number + 1,
        "write_id": "w",
        "files": [],
        "dumps": [waiting],
        "last_dump_number": 9,
        "not_yet_visible": [InvisibleCommit(xid=lost, lsn=0)],
    }
    ManifestWriter(store).commit(newest.model_copy(update=update))
    if promoted:
        promote(server)
    with Agent(server, store) as agent:
        after = agent.wait(lambda m: m.exact, "the dump has ended")
    assert (after.epoch, after.source.server) == (1, "2" if promoted else "1")
    assert all(commit.xid < lost for commit in after.not_yet_visible)


def test_a_standby_without_the_slot_is_waited_for_and_no_gap(server: PostgresServer) -> None:
    store, slot = MemoryStore(), server.data_dir / "pg_replslot" / "it"
    execute(server, "CREATE TABLE t (id int PRIMARY KEY)")
    with Agent(server, store) as agent:
        agent.wait_exact()
    server.stop()
    shutil.move(slot, server.folder / "slot")
    (server.data_dir / "standby.signal").touch()
    server.restart()
    with Agent(server, store, on_gap="stop") as agent:
        agent.wait(lambda _: agent.capture.progress.reconnects > 0, "it is tried again")
        server.stop()
        (server.data_dir / "standby.signal").unlink()
        shutil.move(server.folder / "slot", slot)
        server.restart()
        execute(server, "INSERT INTO t VALUES (1)")
        after = agent.wait_landed(1)
    assert (after.epoch, after.gaps) == (1, [])


def test_a_standby_that_the_address_led_to_meanwhile_is_left_when_the_primary_is_back(
    server: PostgresServer, servers_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the session that opens the log, and by the one that checks the catalog."""
    monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(retry, "RECONNECT_SECONDS", (0.1,))
    store, folder = MemoryStore(), servers_folder / "standby"
    execute(server, "CREATE TABLE t (id int PRIMARY KEY)")
    with PostgresServer.start(folder, settings=SETTINGS) as standby:
        server.stop()
        standby.stop()
        copy(server.data_dir, standby.data_dir)
        (standby.data_dir / "standby.signal").touch()
        standby.password = server.password
        standby.restart()
        server.restart()
        both = server.url().replace(f":{server.port}/", f":{server.port},127.0.0.1:{standby.port}/")
        with Agent(server, store, url=both) as agent:
            agent.wait_exact()
            server.stop()
            wait_until(lambda: agent.capture.progress.reconnects >= 5, "it has met the standby")
            server.restart()
            execute(server, "INSERT INTO t VALUES (1)")
            agent.wait_landed(1)
            execute(server, "ALTER TABLE t ADD c int DEFAULT 5")
            agent.wait(lambda m: any(d.reason == "repair" for d in m.dumps), "a catalog check has seen that")
            agent.wait_exact()
    shutil.rmtree(folder)


def test_nothing_is_read_from_a_standby_nor_from_a_server_of_another_timeline_than_the_logs(
    server: PostgresServer,
) -> None:
    """An address may lead to several servers."""
    execute(server, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    names = {"name": "it", "kind": "postgres", "url": server.url(), "slot": "it", "publication": "it"}
    source = PostgresSource(Config.model_validate(
        {"source": {**names, "tables": ["public.*"]}, "landing": {"url": "/nowhere"}}
    ).source, {})  # fmt: skip
    source.prepare()
    history = source.begin_log(fresh=False)
    log = source.open_log(1, history)
    table = TableName("public", "t")
    tables = source.open_tables()
    with tables.open_chunk(table, KeyRange()) as chunk:
        assert [some.columns[0].to_pylist() for some in chunk.rows()] == [[1]]
    source._timeline = "2"  # a failover while this session survived on the former primary
    with pytest.raises(TransientError, match="timeline"), tables.open_chunk(table, KeyRange()):
        pass
    for read in (
        source.check_catalog,
        source.take_xid_barrier,
        lambda: source.position_past_barrier(1),
        source.check,
    ):
        with pytest.raises(TransientError, match="timeline"):
            read()
    former = source._session._connection
    log.close()
    source.prepare()
    with pytest.raises(TransientError, match="timeline"):
        source.check_catalog()  # nothing has proved that this server's log is the one that was read
    assert source.check_resumable(replace(history, server=None)) is None
    assert source.check_catalog().tables
    assert source._session._connection is not former, "it may have survived on the former primary"
    source.close()
    server.stop()
    (server.data_dir / "standby.signal").touch()
    server.restart()
    for read in source.open_tables, source.check_catalog, source.take_xid_barrier, source.prepare:
        with pytest.raises(TransientError, match="standby"):
            read()


@pytest.mark.parametrize("way", ["psycopg2"], indirect=True)
def test_a_slot_that_gets_lost_while_a_copy_of_it_is_read_is_a_gap(
    server: PostgresServer, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy's log goes on, but the slot can't be moved any more."""
    store = MemoryStore()
    execute(server, "CREATE TABLE t (id int PRIMARY KEY)")
    execute(server, "ALTER SYSTEM SET max_slot_wal_keep_size = '20MB'", "SELECT pg_reload_conf()")
    with Agent(server, store) as agent:
        agent.wait_exact()
        with monkeypatch.context() as patched:
            patched.setattr(
                PostgresLogReader, "_advance_if_due", lambda _: None
            )  # as if it had just taken long
            wait_until(lambda: is_lost_but_not_its_copy(server), "the slot is lost")
        execute(server, "INSERT INTO t VALUES (1)")
        after = agent.wait(lambda m: m.epoch == 2 and m.exact, "all is dumped again")
    assert ["lost" in gap.reason for gap in after.gaps] == [True]


def is_lost_but_not_its_copy(server: PostgresServer) -> bool:
    """Write a segment of log, wait for the slot's copy to pass it, and return whether the slot is lost."""
    end = execute(server, "SELECT pg_switch_wal()")
    copied = f"SELECT count(*) FROM pg_replication_slots WHERE temporary AND restart_lsn > '{end}'"
    wait_until(lambda: execute(server, "CHECKPOINT", copied), "the copy goes on")
    return bool(execute(server, "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE NOT temporary"))


def promote(server: PostgresServer) -> None:
    """Let the server recover as from an archive, which ends in a timeline of its own."""
    server.stop()
    signal = server.data_dir / "recovery.signal"
    signal.touch()
    server.restart()
    wait_until(lambda: not execute(server, "SELECT pg_is_in_recovery()"), "the server is promoted")
    execute(server, "CHECKPOINT")


def wait_begun(server: PostgresServer) -> None:
    """Wait until the agent's slot is there, and all log up to it flushed."""
    created = "SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn IS NOT NULL"
    wait_until(lambda: execute(server, "CHECKPOINT", created), "the slot's beginning is flushed")


@pytest.mark.parametrize("server", [FLUSHED_LATE], indirect=True)
def test_a_crash_after_asynchronous_commits_leaves_nothing_in_the_lake_that_it_took_back(
    server: PostgresServer,
) -> None:
    store = MemoryStore()
    execute(server, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with Agent(server, store) as agent:
        wait_begun(server)
        agent.wait_exact()
        execute(server, "SET synchronous_commit = off", "INSERT INTO t VALUES (2)")
        submit(store, DumpRequest(tables=["public.t"]))
        wait_until(
            lambda: bool(agent.capture._dumps.committable(1 << 63)), "a chunk waits for the log to be flushed"
        )
        server.stop("immediate")
        server.restart()
        execute(server, *(f"INSERT INTO t VALUES ({key})" for key in range(3, 30)))
        agent.wait_landed(29)
        after = agent.wait_exact()
    assert after.gaps == []
    assert execute(server, "SELECT count(*) FROM t WHERE id = 2") == 0, "the crash took nothing back"
    assert 2 not in landed(store, "chunk") + landed(store, "log")


@pytest.mark.parametrize("default", ["7", "7 + random() * 0"])
@pytest.mark.parametrize("server", [FLUSHED_LATE], indirect=True)
def test_a_column_that_a_crash_took_back_and_that_came_again_with_a_default_is_dumped(
    server: PostgresServer, default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check had seen the first one, which was null everywhere, before it was durable.

    Each transaction is the first one to have its xid that is durable. A volatile default rewrites the table.
    """
    monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(retry, "RECONNECT_SECONDS", (3.0,))
    store = MemoryStore()
    execute(server, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with Agent(server, store) as agent:
        wait_begun(server)
        agent.wait_exact()
        for number in range(2, 7):
            execute(server, "SET synchronous_commit = off", f"ALTER TABLE t ADD c{number} int")
            wait_until(partial(is_seen, agent, number), "a check has seen it")
            server.stop("immediate")
            server.restart()
            with contextlib.suppress(psycopg2.errors.DuplicateColumn):  # it was flushed: the machine is slow
                execute(server, f"ALTER TABLE t ADD c{number} int DEFAULT {default}")
                break
        agent.wait(lambda m: any(d.reason == "repair" for d in m.dumps), "it is dumped again")
        agent.wait_exact()


def is_seen(agent: Agent, number: int) -> bool:
    """Whether a check has seen the integer column of this number."""
    seen = agent.capture._tables.fingerprints().get(TableName("public", "t")) or ""
    return f"={number}.23" in seen


@pytest.mark.parametrize("server", [FLUSHED_LATE], indirect=True)
def test_a_change_that_a_crash_took_back_and_that_came_again_is_repaired_from_where_it_is_now(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check had seen the first one and queued a dump, whose floor the log passes before the second one."""
    monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(retry, "RECONNECT_SECONDS", (12.0,))
    store, alter = MemoryStore(), "ALTER TYPE pair ADD ATTRIBUTE z int"
    execute(server, "CREATE TYPE pair AS (x int, y int)", "CREATE TABLE t (id int PRIMARY KEY, v pair)")
    with Agent(server, store) as agent:
        wait_begun(server)
        agent.wait_exact()
        execute(server, "SET synchronous_commit = off", alter)
        agent.wait(lambda m: any(d.active and d.floor for d in m.dumps), "a check has seen it")
        server.stop("immediate")
        server.restart()
        many = "DO 'BEGIN FOR i IN 3..20000 LOOP INSERT INTO t VALUES (i, ROW(i, i)); COMMIT; END LOOP; END'"
        execute(server, "SET synchronous_commit = off", many, "INSERT INTO t VALUES (2, '(2,2)')", alter)
        assert execute(server, "SELECT v::text FROM t WHERE id = 2") == "(2,2,)"
        agent.wait_landed(2)
        after = agent.wait_exact()
        assert after.gaps == []
        row, _ = landed_tables(store)[TableName("public", "t")].row((2,))
    assert row is not None
    assert row["v"] == "(2,2,)"
