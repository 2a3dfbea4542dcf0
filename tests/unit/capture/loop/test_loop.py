"""The capture loop over a database in memory: what lands, when it is committed, and what ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from connector.capture.dumps.queue import DumpQueue
from connector.capture.manifest_history import ManifestHistory
from connector.errors import (
    BugError,
    FencedError,
    GapError,
    LogOffError,
    PreconditionError,
    SourceMismatchError,
    TransientError,
)
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import DumpRequest, submit
from connector.postgres.visibility import Visibility
from connector.source import ResumePoint
from connector.store.local import LocalStore
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_log import MemoryLogReader
from connector.testing.memory_source import MemorySource
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import (
    Agent,
    Killed,
    Writer,
    ask,
    counted,
    insert,
    landed_ids,
    read_upto,
    shop,
)
from tests.support.landing.cuts import assert_every_cut_exact, assert_no_event_lost, manifests_in
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")


def test_first_dumps_beside_a_writer_give_exact_cuts(tmp_path: Any) -> None:
    database, store = shop(rows=100), LocalStore(tmp_path / "shop")
    with Writer(database), Agent(database, store, workers=3, delay_seconds=0.005) as agent:
        agent.wait_dumped()
    assert_every_cut_exact(store, database)
    assert_no_event_lost(store, database)


def test_a_restart_goes_on_where_the_newest_manifest_ends(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
    before = newest_manifest(store)
    insert(database, 1001)
    with Agent(database, store) as agent:
        agent.wait_caught_up()
    after = newest_manifest(store)
    assert after.epoch == before.epoch
    assert len(after.dumps) == len(before.dumps)
    assert landed_ids(store) == [1001]


def test_a_stop_lands_commits_and_confirms_what_was_read(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store, flush_seconds=60) as agent:
        agent.wait(lambda m: m.number >= 1, "it runs")
        position = insert(database, 1001)
        wait_until(lambda: read_upto(agent) >= position, "it is read")
    assert landed_ids(store) == [1001]
    assert database.slots[agent.config.source.slot].confirmed >= position


def test_a_commit_that_is_not_visible_yet_is_not_lost_by_a_chunk(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        update(database, visible=False)
        agent.wait_caught_up()
        ask(agent, store, tables=["public.items"])
    assert_every_cut_exact(store, database)


def test_a_commit_that_is_not_visible_yet_is_remembered_over_a_restart(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    dump_over_a_restart(database, store)
    assert_every_cut_exact(store, database)


def test_invisible_commits_left_out_of_the_manifest_are_found(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryLogReader, "not_yet_visible", lambda _self, _position: [])
    dump_over_a_restart(database, store)
    with pytest.raises(AssertionError, match="in the source it is"):
        assert_every_cut_exact(store, database)


def test_a_low_watermark_that_is_not_lowered_is_found(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Visibility, "low_watermark", lambda _self, position, _snapshot: position - 1)
    dump_over_a_restart(database, store)
    with pytest.raises(AssertionError, match="in the source it is"):
        assert_every_cut_exact(store, database)


def update(database: MemoryDatabase, visible: bool = True) -> None:
    with database.transaction(visible=visible) as transaction:
        transaction.update("public.items", (4,), a="changed")
        transaction.delete("public.items", (6,))


def dump_over_a_restart(database: MemoryDatabase, store: MemoryStore) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        update(database, visible=False)
        agent.wait_caught_up()
    with Agent(database, store) as agent:
        ask(agent, store, tables=["public.items"])


def test_a_position_confirmed_before_its_manifest_is_found(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_commit = ManifestHistory.commit
    agent = Agent(database, store)

    def commit(self: ManifestHistory, **changes: Any) -> Manifest:
        if reader := readers[-1:]:
            reader[0].confirm(changes.get("position", self.newest.position))
        return true_commit(self, **changes)

    readers: list[Any] = []
    true_open = agent.source.open_log
    agent.source.open_log = lambda *a: readers.append(true_open(*a)) or readers[-1]
    monkeypatch.setattr(ManifestHistory, "commit", commit)
    agent.start()
    wait_until(lambda: bool(readers), "the log is read: of what was written before, there is only a dump")
    insert(database, 1001)
    agent.wait_caught_up()
    agent.capture.stop()
    with pytest.raises(AssertionError):
        agent.join()


def test_a_large_transaction_lands_in_parts_that_one_manifest_commits(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store, change_bytes=50_000) as agent:
        agent.wait_dumped()
        position = insert(database, *range(1001, 1201))
        agent.wait(lambda m: m.position >= position, "it is committed")
    files = [[f for f in m.files if f.kind == "log"] for m in manifests_in(store)]
    assert sum(map(bool, files)) == 1, "one manifest holds all of it"
    assert max(map(len, files)) > 5, "and it came in parts"
    assert_no_event_lost(store, database)
    assert_every_cut_exact(store, database)


def test_a_large_transaction_that_ends_with_nothing_more_is_committed_soon(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store, change_bytes=1 << 20, heartbeat_seconds=3600) as agent:
        agent.wait_dumped()
        position = insert(database, *range(1001, 1011))
        agent.wait(lambda m: m.position >= position, "it is committed", seconds=3)
    assert_no_event_lost(store, database)


def test_a_crash_in_the_middle_of_a_large_transaction_leaves_nothing_visible(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
    agent = Agent(database, store, change_bytes=50_000)
    parts: list[str] = []

    def doom(call: str, arguments: tuple[Any, ...]) -> str | None:
        if call == "put_file":
            parts.append(arguments[0])
        return "after" if len(parts) == 4 else None

    agent.store.die_at(doom)
    position = insert(database, *range(1001, 1201))
    agent.start()
    agent.join()
    assert isinstance(agent.error, Killed)
    assert landed_ids(store) == []
    assert newest_manifest(store).position < position
    with Agent(database, store) as agent:
        agent.wait_caught_up()
    named = {f.path for m in manifests_in(store) for f in m.files}
    assert named.isdisjoint(parts)
    assert_no_event_lost(store, database)


@pytest.mark.parametrize("moment", "open_log read take not_yet_visible confirm".split())
def test_a_lost_log_connection_is_opened_again_and_nothing_is_lost_or_double(
    moment: str, database: MemoryDatabase, store: MemoryStore
) -> None:
    agent = Agent(database, store)
    agent.source.fail(moment, times=2)  # before it starts, or the log may be open already
    with agent:
        insert(database, 1001)
        agent.wait_caught_up()
        agent.source.fail(moment, after=3)
        insert(database, 1003)
        agent.wait_caught_up()
        agent.wait_dumped()
    assert agent.capture.progress.reconnects >= 1
    assert_no_event_lost(store, database)
    assert_every_cut_exact(store, database)


@pytest.mark.parametrize("moment", "open_tables next_boundary open_chunk rows".split())
def test_a_lost_dump_connection_reads_the_chunk_again(
    moment: str, database: MemoryDatabase, store: MemoryStore
) -> None:
    agent = Agent(database, store)
    agent.source.fail(moment, after=1, times=3)
    with agent:
        agent.wait_dumped()
    assert landed_ids(store, "chunk") == [2 * n for n in range(20)]
    assert_every_cut_exact(store, database)


@pytest.mark.parametrize(
    ("operation", "prefix", "when"),
    [
        ("create", "manifest/", "before"),
        ("create", "manifest/", "after"),
        ("put_file", "data/", "before"),
        ("put_file", "data/", "after"),
        ("put", "schema/", "before"),
    ],
)
def test_a_store_that_fails_for_a_while_loses_nothing(
    operation: str, prefix: str, when: Any, database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        for id_ in (1001, 1003, 1005):
            store.fail(operation, prefix, when=when, times=3)
            insert(database, id_)
            agent.wait_caught_up()
        agent.wait_dumped()
    assert_no_event_lost(store, database)
    assert_every_cut_exact(store, database)


def test_a_stop_while_the_store_is_out_of_reach_ends_within_seconds(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    agent = Agent(database, store)
    agent.start()
    agent.wait_dumped()
    for operation in ("create", "put_file", "read", "list"):
        store.fail(operation, times=1_000_000)
    insert(database, 1001)
    wait_until(
        lambda: store.calls.count(("create", "manifest/")) or agent.capture.progress.reconnects, "it fails"
    )
    began = time.monotonic()
    agent.capture.stop()
    agent.join(seconds=4)
    assert time.monotonic() - began < 4
    assert agent.error is None


def test_a_stop_ends_the_wait_for_a_log_to_begin(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot waits for all transactions that run when it is created, which may take hours."""
    begun = threading.Event()

    def wait_for_transactions(*_: Any, fresh: bool, stopping: Callable[[], bool]) -> ResumePoint:
        begun.set()
        wait_until(stopping, "the agent is stopping", seconds=5)
        raise TransientError("creating slot shop: canceled")

    monkeypatch.setattr(MemorySource, "begin_log", wait_for_transactions)
    with Agent(database, store):
        assert begun.wait(5)
    assert newest_manifest(store) is None


def test_a_commit_is_in_a_manifest_within_flush_seconds_and_a_half(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    waits = []
    with Agent(database, store, flush_seconds=0.3, heartbeat_seconds=3600) as agent:
        agent.wait_dumped()
        for id_ in range(1001, 1006):
            position, began = insert(database, id_), time.monotonic()
            wait_until(lambda p=position: newest_manifest(store).position >= p, "committed", pause=0.002)
            waits.append(time.monotonic() - began)
    assert sorted(waits)[-2] < 0.3 + 0.4, waits


def test_an_idle_agent_neither_commits_nor_spins(database: MemoryDatabase, store: MemoryStore) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        agent.wait_caught_up()
        reads, number = counted(agent, "read"), newest_manifest(store).number
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 1, "a second has passed")
        assert len(reads) <= 50  # flush_seconds of 0.05 is the longest wait here; two reads for each
        assert newest_manifest(store).number == number


def test_log_of_other_tables_moves_the_position_and_is_confirmed(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        database.idle(100_000)
        end = database.end
        agent.wait_caught_up()
        wait_until(lambda: database.slots[agent.config.source.slot].confirmed >= end, "it is confirmed")


# What ends an agent.


@pytest.mark.parametrize("call", ["put_file data", "create manifest", "list requests"])
def test_a_bug_anywhere_ends_the_run_with_its_error(
    call: str, database: MemoryDatabase, store: MemoryStore
) -> None:
    operation, prefix = call.split()
    agent = Agent(database, store)
    agent.start()
    agent.wait_dumped()
    store.fail(operation, prefix, error=BugError("as asked"))
    insert(database, 1001)
    agent.join()
    assert isinstance(agent.error, BugError)


def test_a_bug_in_a_dump_worker_ends_the_run_with_its_error(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    agent = Agent(database, store)
    agent.source.fail("rows", error=BugError("as asked"))
    agent.start()
    agent.join()
    assert isinstance(agent.error, BugError)


def test_a_lost_lease_ends_the_run_without_another_commit(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    agent = Agent(database, store, flush_seconds=60)
    agent.start()
    agent.wait_dumped()
    position = insert(database, 1001)
    wait_until(lambda: read_upto(agent) >= position, "it is read")
    agent.capture.fail(FencedError("lost"))
    agent.join()
    assert isinstance(agent.error, FencedError)
    assert landed_ids(store) == []


def test_two_agents_never_fork_the_history(database: MemoryDatabase, store: MemoryStore) -> None:
    for round_ in range(4):
        pair = [Agent(database, store, workers=1) for _ in range(2)]
        with Writer(database, round_):
            for agent in pair:
                agent.start()
            wait_until(lambda two=pair: any(agent.ended for agent in two), "one has ended")
        for agent in pair:
            agent.capture.stop()
            agent.join()
        errors = [agent.error for agent in pair if agent.error is not None]
        assert [type(error) for error in errors] in ([FencedError], [FencedError, FencedError])
    with Agent(database, store) as agent:
        agent.wait_caught_up()
        database.make_visible()
        agent.wait_dumped()
    assert assert_every_cut_exact(store, database)[-1].epoch == 1, (
        "neither took the other's progress for a gap"
    )
    assert_no_event_lost(store, database)


def test_a_landing_zone_of_another_database_is_refused(store: MemoryStore) -> None:
    with Agent(shop(), store) as agent:
        agent.wait_dumped()
    before = dict(store.objects)
    other = shop()
    other.name = "another"
    agent = Agent(other, store)
    agent.start()
    agent.join()
    assert isinstance(agent.error, SourceMismatchError)
    assert store.objects == before


def test_a_configuration_that_names_no_table_is_refused(store: MemoryStore) -> None:
    agent = Agent(MemoryDatabase(), store)
    agent.start()
    agent.join()
    assert isinstance(agent.error, PreconditionError)
    assert not store.objects


def test_a_gap_ends_the_run_where_it_is_configured_to(database: MemoryDatabase, store: MemoryStore) -> None:
    agent = Agent(database, store, on_gap="stop")
    agent.start()
    agent.wait_dumped()
    number = newest_manifest(store).number
    database.slots.clear()
    agent.join()
    assert isinstance(agent.error, GapError)
    assert newest_manifest(store).number == number


@pytest.mark.parametrize("moment", ["read", "ensure_logging", "check_resumable"])
@pytest.mark.parametrize("on_gap", ["repair", "stop"])
def test_a_server_seen_without_its_log_is_a_gap_whatever_its_log_looks_like_later(
    database: MemoryDatabase, store: MemoryStore, moment: str, on_gap: str
) -> None:
    agent = Agent(database, store)
    agent.start()
    agent.wait_dumped()
    agent.source.fail(moment, error=LogOffError("it"))
    agent.source.disconnect()
    agent.join()
    assert isinstance(agent.error, LogOffError)
    agent = Agent(database, store, on_gap=on_gap)
    if on_gap == "stop":
        agent.start()
        agent.join()
        assert isinstance(agent.error, GapError)
        assert newest_manifest(store).pending_gap
        return
    with agent:
        newest = agent.wait(lambda m: m.epoch == 2 and m.exact, "the gap is repaired")
    assert [gap.reason for gap in newest.gaps] == ["the server ran for a while without writing its log"]
    assert newest.pending_gap is None


def test_a_server_without_its_log_is_seen_before_anything_else_ends_the_start(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
    agent = Agent(database, store)
    agent.source.fail("ensure_logging", error=LogOffError())
    agent.source.fail("tables", error=PreconditionError("nothing can be seen"))
    agent.start()
    agent.join()
    assert isinstance(agent.error, LogOffError)
    newest = newest_manifest(store)
    assert newest is not None
    assert newest.pending_gap


def test_chunks_are_not_handed_out_before_the_log_of_a_new_epoch_is_open(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        update(database, visible=False)  # in the old log, and not visible: only its xid will be known
        agent.wait_caught_up()
        opened = counted(agent, "open_chunk")
        agent.source.fail("open_log", times=20)
        database.slots.clear()
        agent.wait(lambda m: m.epoch == 2, "the gap is found")
        assert not opened
        database.make_visible()
        agent.wait_dumped()
    assert_every_cut_exact(store, database)


def test_a_commit_that_hangs_while_the_history_begins_is_waited_for_although_no_snapshot_lists_it(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    update(database, visible=False)
    xid = database.log[-1].xid
    assert xid >= database.snapshot_now().xmax
    with Agent(database, store) as agent:
        agent.wait(lambda m: m.number >= 1, "the history has begun")
        insert(database, 1001)
        agent.wait_caught_up()
        database.make_visible(xid)
        agent.wait_dumped()
    assert_every_cut_exact(store, database)


def crash_behind_a_chunk(database: MemoryDatabase, store: MemoryStore) -> None:
    """A chunk shows a commit that is not flushed; the server crashes, and gives its position out again."""
    with Agent(database, store, chunk_rows=1000) as agent:
        agent.wait_dumped()
        agent.wait_caught_up()
        database.asynchronous = True
        insert(database, 1001)
        submit(store, DumpRequest(tables=["public.items"]))
        wait_until(
            lambda: bool(agent.capture._dumps.committable(1 << 63)), "a chunk waits for the log to be flushed"
        )
        database.crash()
        database.asynchronous = False
        for key in range(2001, 2005):
            insert(database, key)
        agent.wait_caught_up()
        agent.wait_dumped()


def test_a_chunk_that_shows_what_a_crash_took_back_is_read_again(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    crash_behind_a_chunk(database, store)
    assert_every_cut_exact(store, database)


@pytest.mark.parametrize("planned", [True, False])
def test_a_chunk_is_kept_when_the_log_is_reopened_without_a_crash(
    database: MemoryDatabase, store: MemoryStore, planned: bool
) -> None:
    """For a new table, or since a connection was lost; what its snapshot showed is flushed only then."""
    with Agent(database, store, chunk_rows=1000) as agent:
        agent.wait_dumped()
        agent.wait_caught_up()
        opened = counted(agent, "open_log")
        database.asynchronous = True
        insert(database, 1001)
        submit(store, DumpRequest(tables=["public.items"]))
        waiting = wait_until(lambda: list(agent.capture._dumps._finished), "a chunk waits for the flush")
        if planned:
            database.create_table("public.later", ["id"], {"id": "bigint"})
        else:
            agent.source.fail("read")
        wait_until(lambda: opened, "the log is opened again")
        database.asynchronous = False
        database.flush()
        agent.wait_caught_up()
        agent.wait_dumped()
    files = [file.path for manifest in manifests_in(store) for file in manifest.files]
    assert [chunk.file.path in files for chunk in waiting if chunk.file] == [True]
    assert_every_cut_exact(store, database)


def test_a_chunk_kept_over_a_crash_is_found(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DumpQueue, "requeue_uncommitted", lambda dumps, *_: dumps.await_log())
    crash_behind_a_chunk(database, store)
    with pytest.raises(AssertionError):
        assert_every_cut_exact(store, database)
