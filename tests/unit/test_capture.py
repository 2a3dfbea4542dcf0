"""The capture loop over a database in memory: what lands, when it is committed, and what ends it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from connector.errors import BugError, FencedError, GapError, PreconditionError, SourceMismatchError
from connector.ledger import Ledger
from connector.manifest import Manifest
from connector.memory_database import MemoryDatabase
from connector.postgres.visibility import Visibility
from connector.requests import DumpRequest, pending, submit
from connector.source_memory import MemoryLogReader
from connector.store import LocalStore, newest_manifest
from connector.store_memory import MemoryStore
from tests.agents import Agent, Killed, Writer, shop
from tests.cuts import assert_every_cut_exact, assert_no_event_lost, manifests_in, read_events
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def database() -> MemoryDatabase:
    return shop(rows=20)


def insert(database: MemoryDatabase, *ids: int, visible: bool = True) -> int:
    """Insert items in one transaction; gives the position behind it."""
    with database.transaction(visible=visible) as transaction:
        for id_ in ids:
            transaction.insert("public.items", id=id_, a=f"a{id_}", b=f"b{id_}")
    return database.log[-1].position


def read_upto(agent: Agent) -> int:
    """How far the agent has read."""
    return agent.source.visibility.position if agent.source.visibility else 0


def landed_ids(store: Any, kind: str = "log") -> list[int]:
    files = [f for m in manifests_in(store) for f in m.files if f.kind == kind and f.table == "public.items"]
    return sorted(e.columns["id"] for f in files for e in read_events(store, f))


def dump_of(manifest: Manifest, request_id: str) -> Any:
    return next((d for d in manifest.dumps if d.id == request_id), None)


def ask(agent: Agent, store: Any, **request: Any) -> Manifest:
    """Ask for a dump and wait for its end."""
    request_id = submit(store, DumpRequest(**request))
    return agent.wait(
        lambda m: (d := dump_of(m, request_id)) is not None and not d.active,
        f"the dump of {request} has ended",
    )


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


def test_unsettled_commits_left_out_of_the_manifest_are_found(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryLogReader, "unsettled", lambda _self, _position: [])
    dump_over_a_restart(database, store)
    with pytest.raises(AssertionError, match="in the source it is"):
        assert_every_cut_exact(store, database)


def test_a_low_watermark_that_is_not_lowered_is_found(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Visibility, "low", lambda _self, position, _snapshot: position - 1)
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
    true_commit = Ledger.commit
    agent = Agent(database, store)

    def commit(self: Ledger, **changes: Any) -> Manifest:
        if reader := readers[-1:]:
            reader[0].confirm(changes.get("position", self.newest.position))
        return true_commit(self, **changes)

    readers: list[Any] = []
    true_open = agent.source.open_log
    agent.source.open_log = lambda *a: readers.append(true_open(*a)) or readers[-1]
    monkeypatch.setattr(Ledger, "commit", commit)
    agent.start()
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


@pytest.mark.parametrize("moment", "open_log read take unsettled confirm".split())
def test_a_lost_log_connection_is_opened_again_and_nothing_is_lost_or_double(
    moment: str, database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.source.fail(moment, times=2)
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
        assert len(reads) <= 50  # flush_seconds of 0.05 is the longest wait here; two looks for each
        assert newest_manifest(store).number == number


def counted(agent: Agent, moment: str) -> list[str]:
    seen: list[str] = []
    reach = agent.source.reach

    def counting(at: str) -> None:
        if at == moment:
            seen.append(at)
        reach(at)

    agent.source.reach = counting
    return seen


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


@pytest.mark.parametrize("place", ["put_file data", "create manifest", "list requests"])
def test_a_bug_anywhere_ends_the_run_with_its_error(
    place: str, database: MemoryDatabase, store: MemoryStore
) -> None:
    operation, prefix = place.split()
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
    agent = Agent(database, store, flush_seconds=0.5)
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
            wait_until(lambda: any(agent.ended for agent in pair), "one has ended")
        for agent in pair:
            agent.capture.stop()
            agent.join()
        errors = [agent.error for agent in pair if agent.error is not None]
        assert [type(error) for error in errors] in ([FencedError], [FencedError, FencedError])
    with Agent(database, store) as agent:
        agent.wait_caught_up()
        database.settle()
        agent.wait_dumped()
    manifests = assert_every_cut_exact(store, database)
    assert manifests[-1].epoch > 1 or assert_no_event_lost(store, database) is None


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
        database.settle()
        agent.wait_dumped()
    assert_every_cut_exact(store, database)


# Requests.


def test_requested_dumps_land_and_the_request_goes_only_after_its_manifest(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        keys = ask(agent, store, tables=["public.items"], keys=[["4"], ["5"], ["6"]])
        where = ask(agent, store, tables=["public.items"], where="a = 'a9'")
        wait_until(lambda: not pending(store), "the requests are removed")
    files = [f for m in manifests_in(store) for f in m.files if f.dump == keys.dumps[-1].id]
    events = [e for f in files for e in read_events(store, f)]
    assert sorted((e.key, e.op) for e in events) == [((4,), "dump"), ((5,), "delete"), ((6,), "dump")]
    assert (where.dumps[-1].kind, where.dumps[-1].rows) == ("where", 1)
    deleted = next(n for n, call in enumerate(store.calls) if call[0] == "delete")
    queued = next(m for m in manifests_in(store) if any(d.reason == "request" for d in m.dumps))
    created = next(n for n, c in enumerate(store.calls) if c == ("create", _path(queued)))
    assert created < deleted


def _path(manifest: Manifest) -> str:
    from connector.landing import manifest_path

    return manifest_path(manifest.number)


def test_a_request_for_all_tables_becomes_a_dump_of_each(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    request = DumpRequest()
    with Agent(database, store) as agent:
        agent.wait_dumped()
        submit(store, request)
        agent.wait(lambda m: dump_of(m, f"{request.id}.1"), "it is queued")
        newest = agent.wait_dumped()
    assert [d.table for d in newest.dumps if d.id.startswith(request.id)] == ["public.items", "public.parts"]


def test_a_request_that_was_taken_up_before_a_crash_is_not_taken_up_again(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    request = DumpRequest(tables=["public.items"])
    agent = Agent(database, store)
    agent.start()
    agent.wait_dumped()
    agent.store.die_at(lambda call, arguments: "before" if call == "delete" else None)
    submit(store, request)
    agent.join()
    assert isinstance(agent.error, Killed)
    assert dump_of(newest_manifest(store), request.id)
    assert pending(store)
    with Agent(database, store) as agent:
        wait_until(lambda: not pending(store), "the request is removed")
        newest = agent.wait_dumped()
    assert len([d for d in newest.dumps if d.id == request.id]) == 1


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ({"tables": ["public.nothing"]}, "public.nothing is not captured"),
        ({"tables": ["public.parts"], "keys": [["z1"]]}, "is not a value of the key (area, number)"),
    ],
)
def test_a_request_that_cannot_be_carried_out_is_refused_with_a_notice(
    request_: Any, told: str, database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        submit(store, DumpRequest(**request_))
        manifest = agent.wait(lambda m: any(n.kind == "dump" for n in m.notices), "it is refused")
        wait_until(lambda: not pending(store), "the request is removed")
    assert told in manifest.notices[0].text
    assert len(manifest.dumps) == 2


def test_a_malformed_request_is_moved_aside_with_a_notice(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        store.put("requests/odd.json", b"{nonsense")
        agent.wait(lambda m: any("odd" in n.text for n in m.notices), "it is refused")
        wait_until(lambda: "rejected/odd.json" in store.objects, "it is moved aside")


def test_a_predicate_that_the_source_refuses_fails_its_dump_alone(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        manifest = ask(agent, store, tables=["public.items"], where="nonsense(")
        insert(database, 1001)
        agent.wait_caught_up()
    assert manifest.dumps[-1].state == "failed"
    assert "nonsense" in manifest.dumps[-1].error
    assert manifest.tables["public.items"].state == "captured"


# Layouts.


@contextmanager
def dumped(database: MemoryDatabase, store: MemoryStore) -> Iterator[Agent]:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        yield agent


def touch(database: MemoryDatabase) -> None:
    """Update a row of each table, whereby the log tells of the layout."""
    with database.transaction() as transaction:
        schema = database.schema("public.items")
        key = sorted(database.rows(schema.table))[0]
        transaction.update("public.items", key)


def test_an_added_column_is_dumped_where_it_holds_something(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        database.alter("public.items", add={"c": ("string", "default")})
        touch(database)
        agent.wait(lambda m: any(d.kind == "where" for d in m.dumps), "the column is asked for")
        manifest = agent.wait_dumped()
    assert manifest.dumps[-1].where == "c is not null"
    assert manifest.dumps[-1].rows == 20
    assert manifest.tables["public.items"].schema_id == database.schema("public.items").id
    notices = [n.text for m in manifests_in(store) for n in m.notices]
    assert notices == ["columns added: c"]
    assert_every_cut_exact(store, database)


def test_a_renamed_column_is_one_dropped_and_one_added(database: MemoryDatabase, store: MemoryStore) -> None:
    with dumped(database, store) as agent:
        database.alter("public.items", rename={"b": "d"})
        touch(database)
        agent.wait(lambda m: any(d.where == "d is not null" for d in m.dumps), "the column is asked for")
        agent.wait_dumped()
    notices = [n.text for m in manifests_in(store) for n in m.notices]
    assert notices == ["columns added: d", "columns dropped: b"]
    assert_every_cut_exact(store, database)


def test_a_dropped_column_needs_no_dump(database: MemoryDatabase, store: MemoryStore) -> None:
    with dumped(database, store) as agent:
        database.alter("public.items", drop=["b"])
        touch(database)
        manifest = agent.wait(lambda m: any("dropped: b" in n.text for n in m.notices), "it is told")
    assert len(manifest.dumps) == 2
    assert_every_cut_exact(store, database)


def test_a_changed_type_leads_to_a_full_dump(database: MemoryDatabase, store: MemoryStore) -> None:
    with dumped(database, store) as agent:
        database.alter("public.parts", retype={"number": "bigint"})
        with database.transaction() as transaction:
            transaction.insert("public.parts", area="z9", number=999, note="n", c=None)
        agent.wait(lambda m: any(d.reason == "repair" for d in m.dumps), "a dump is queued")
        manifest = agent.wait_dumped()
    assert [(d.kind, d.table) for d in manifest.dumps[2:]] == [("full", "public.parts")]
    assert_every_cut_exact(store, database)


def test_a_layout_that_a_chunk_sees_first_is_taken_over(database: MemoryDatabase, store: MemoryStore) -> None:
    with dumped(database, store) as agent:
        database.alter("public.items", add={"c": ("string", "default")})
        ask(agent, store, tables=["public.items"])
        manifest = agent.wait_dumped()
        assert manifest.tables["public.items"].schema_id == database.schema("public.items").id
        touch(database)
        agent.wait_caught_up()
    assert_every_cut_exact(store, database)
    assert [n.text for m in manifests_in(store) for n in m.notices] == ["columns added: c"]


def test_layouts_that_change_while_the_agent_is_down_are_taken_over(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store):
        pass
    touch(database)
    database.alter("public.items", add={"c": ("string", "default")})
    touch(database)
    database.alter("public.items", drop=["a"])
    touch(database)
    with Agent(database, store) as agent:
        agent.wait_caught_up()
        agent.wait_dumped()
    assert_every_cut_exact(store, database)
    assert_no_event_lost(store, database)


# Tables set aside.


def change_key(database: MemoryDatabase) -> None:
    database.alter("public.items", key=["a"])


def is_aside(manifest: Manifest) -> bool:
    return manifest.tables["public.items"].state == "set_aside"


def test_a_changed_key_sets_the_table_aside_and_a_full_dump_takes_it_up(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        change_key(database)
        with database.transaction() as transaction:
            transaction.insert("public.items", id=7, a="a7777", b="b")
            transaction.insert("public.parts", area="z9", number=999, note="n", c=None)
        manifest = agent.wait(is_aside, "it is set aside")
        assert "key changed from ['id'] to ['a']" in manifest.tables["public.items"].reason
        assert not manifest.exact
        with database.transaction() as transaction:
            transaction.insert("public.parts", area="z9", number=1000, note="n", c=None)
        agent.wait_caught_up()
        ask(agent, store, tables=["public.items"])
        manifest = agent.wait_dumped()
    assert manifest.tables["public.items"].key == ["a"]
    assert not is_aside(manifest)
    kinds = [n.kind for m in manifests_in(store) for n in m.notices]
    assert kinds == ["set_aside", "released"]


def test_a_key_that_a_chunk_finds_changed_sets_the_table_aside(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        change_key(database)
        submit(store, DumpRequest(tables=["public.items"]))
        manifest = agent.wait(is_aside, "it is set aside")
        assert manifest.dumps[-1].state == "failed"
        assert manifest.tables["public.items"].hint
        ask(agent, store, tables=["public.items"])
        agent.wait_dumped()


def test_a_table_that_cannot_be_decoded_is_set_aside_while_the_others_go_on(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        agent.source.undecodable["public.items"] = "odd value"
        insert(database, 1001)
        agent.wait(is_aside, "it is set aside")
        agent.source.undecodable.clear()
        insert(database, 1003)
        with database.transaction() as transaction:
            transaction.insert("public.parts", area="z9", number=999, note="n", c=None)
        agent.wait_caught_up()
        assert landed_ids(store) == []
        refused = submit(store, DumpRequest(tables=["public.items"], keys=[["1"]]))
        agent.wait(lambda m: any(refused in n.text for n in m.notices), "a dump of keys is refused")
        ask(agent, store, tables=["public.items"])
        insert(database, 1005)
        agent.wait_caught_up()
        agent.wait_dumped()
    assert landed_ids(store) == [1005]
    assert_every_cut_exact(store, database)


def test_a_released_table_waits_for_commits_that_did_not_land_and_are_not_visible(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        agent.source.undecodable["public.items"] = "odd value"
        insert(database, 1001)
        agent.wait(is_aside, "it is set aside")
        agent.source.undecodable.clear()
        insert(database, 1003, visible=False)  # never lands, and no chunk sees it yet
        agent.wait_caught_up()
        request = submit(store, DumpRequest(tables=["public.items"]))
        agent.wait(lambda m: dump_of(m, request), "it is queued")
        read = counted(agent, "open_chunk")
        wait_until(lambda: len(read) > 5, "its first chunk was tried")
        assert not dump_of(newest_manifest(store), request).chunks
        database.settle()
        agent.wait_dumped()
    assert_every_cut_exact(store, database)
    assert 1003 in landed_ids(store, "chunk")


def test_a_table_that_is_set_aside_stays_so_over_a_restart_and_a_gap(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        agent.source.undecodable["public.items"] = "odd value"
        insert(database, 1001)
        agent.wait(is_aside, "it is set aside")
    database.slots.clear()
    with Agent(database, store) as agent:
        manifest = agent.wait(
            lambda m: m.epoch == 2 and not any(d.active for d in m.dumps), "the others are repaired"
        )
    assert is_aside(manifest)
    assert [d.table for d in manifest.dumps if d.reason == "repair"] == ["public.parts"]
    assert_every_cut_exact(store, database)


def test_a_table_that_is_named_later_is_dumped_and_one_no_longer_named_is_left(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store, exclude=["public.parts"]) as agent:
        agent.wait_dumped()
    with Writer(database), Agent(database, store) as agent:
        agent.wait_dumped()
    database.settle()
    with Agent(database, store, exclude=["public.items"]) as agent:
        manifest = agent.wait_caught_up()
    assert list(manifest.tables) == ["public.parts"]
    with Agent(database, store) as agent:
        agent.wait_dumped()
    assert_every_cut_exact(store, database)
