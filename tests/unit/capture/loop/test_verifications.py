"""Dumps that verify: they land files that nobody merges, and change nothing else that the agent records."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from connector.capture.dumps.queue import DumpQueue
from connector.errors import TableError
from connector.landing.manifest import DumpState, LandedFile, Manifest
from connector.landing.requests import DumpRequest, submit
from connector.schema import TableName
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, ask
from tests.support.agent.killed_agents import verified_through_kills
from tests.support.landing.cuts import Table, assert_every_cut_exact, manifests_in, read_events

pytestmark = pytest.mark.usefixtures("short_waits")

ITEMS = TableName.parse("public.items")


def files_of(store: MemoryStore, dump: DumpState) -> list[LandedFile]:
    return [
        f for m in manifests_in(store) for f in m.files if f.dump == dump.id and m.number >= dump.started_in
    ]


def states(manifest: Manifest) -> dict[TableName, Any]:
    return {name: state.model_dump(exclude={"gaps"}) for name, state in manifest.tables.items()}


def test_rows_to_verify_land_beside_what_is_merged(database: MemoryDatabase, store: MemoryStore) -> None:
    with Agent(database, store) as agent:
        before = agent.wait_dumped()
        whole = ask(agent, store, tables=["public.items"], verify=True).dumps[-1]
        keys = ask(agent, store, tables=["public.items"], keys=[["4"], ["5"]], verify=True).dumps[-1]
        where = ask(agent, store, tables=["public.items"], where="a = 'a9'", verify=True).dumps[-1]
        after = agent.wait_dumped()
    assert [(d.kind, d.rows) for d in (whole, keys, where)] == [
        ("verify", 20),
        ("verify_rows", 2),
        ("verify_rows", 1),
    ]
    assert whole.rows_estimate == 20
    files = [file for dump in (whole, keys, where) for file in files_of(store, dump)]
    assert {file.kind for file in files} == {"verify"}
    assert sum(e.op == "delete" for file in files_of(store, keys) for e in read_events(store, file)) == 1
    assert not [file for m in manifests_in(store) for file in m.files_of(ITEMS) if file.kind == "verify"]
    assert states(after) == states(before)
    assert_every_cut_exact(store, database)


def test_a_verification_takes_over_no_layout_and_quarantines_nothing(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        before = agent.wait_dumped()
        database.alter("public.items", add={"c": ("string", "default")})
        done = ask(agent, store, tables=["public.items"], verify=True)
        assert done.dumps[-1].state == "complete"
        assert all("c" in e.columns for f in files_of(store, done.dumps[-1]) for e in read_events(store, f))
        agent.source.fail("next_boundary", error=TableError(ITEMS, "it can't be read"))
        failed = ask(agent, store, tables=["public.items"], verify=True).dumps[-1]
        database.alter("public.items", key=["a"])
        changed = ask(agent, store, tables=["public.items"], verify=True)
    assert (failed.state, "it can't be read" in (failed.error or "")) == ("failed", True)
    assert (changed.dumps[-1].state, "key changed" in (changed.dumps[-1].error or "")) == ("failed", True)
    assert states(changed) == states(before)
    assert not [d for d in changed.dumps if d.reason != "request" and d.started_in > before.number]
    assert not [notice for m in manifests_in(store) for notice in m.notices]


def test_a_quarantined_table_is_not_verified(database: MemoryDatabase, store: MemoryStore) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        database.alter("public.items", key=["a"])
        submit(store, DumpRequest(tables=["public.items"]))
        agent.wait(lambda m: m.tables[ITEMS].state == "quarantined", "it is quarantined")
        request = submit(store, DumpRequest(tables=["public.items"], verify=True))
        path = f"rejected/{request}.reason.txt"
        agent.wait(lambda m: store.read(path) is not None, "it is rejected")
    assert b"quarantined" in (store.read(path) or b"")


@pytest.mark.parametrize("seed", range(6))
def test_rows_verified_while_agents_are_killed_resolve_to_the_source_with_the_log_since(seed: int) -> None:
    database, store, dump = verified_through_kills(seed)
    newest = manifests_in(store)[-1]
    assert dump.state == "complete"
    found, truth = resolved(store, dump), database.state_at(newest.position)["public.items"]
    assert found.keys() == truth.keys()
    # An update of the key may have left columns out.
    assert all(row.items() <= truth[key].items() for key, row in found.items())


def resolved(store: MemoryStore, dump: DumpState) -> dict[Any, Any]:
    """The rows read and the log from their lowest low watermark on, resolved as a merge does."""
    table = Table(events=defaultdict(list))
    logged = [f for m in manifests_in(store) for f in m.files_of(dump.table) if f.kind == "log"]
    for event in (e for f in [*files_of(store, dump), *logged] for e in read_events(store, f)):
        if event.position.lsn < (dump.low or 0):
            continue
        if event.key is None:
            table.truncates.append(event.position)
        else:
            table.events[event.key].append(event)
    rows = {key: table.row(key)[0] for key in table.events}
    return {key: row for key, row in rows.items() if row is not None}


def test_a_verification_counts_within_one_epoch() -> None:
    for kind, what in (
        ("verify", {}),
        ("verify_rows", {"where": "a = 1"}),
        ("verify_rows", {"keys": [["1"]]}),
    ):
        for gap in (True, False):
            dumps = DumpQueue([], epoch=1)
            state = dumps.add(ITEMS, manifest=1, kind=kind, **what)  # type: ignore[arg-type]
            state.count_chunk(7, 5)
            if gap:
                dumps.restart_in_epoch(2)
                assert state.state == "cancelled"
            else:
                dumps.continue_in_epoch(2, manifest=9)
                dumps.log_opened()
                assert (state.active, state.epoch, state.low, state.started_in) == (True, 2, None, 9)
                assert dumps.next_task(0) is not None


def test_a_verification_is_no_dump_that_a_table_needs(database: MemoryDatabase) -> None:
    dumps = DumpQueue([], epoch=1)
    dumps.require(ITEMS, 5, None)
    state = dumps.add(ITEMS, manifest=1, kind="verify")
    assert state.floor is None
    state.planned_all = True
    state.count_chunk(7, 5)
    dumps.take_committable(9, 2)
    assert state.state == "complete"
    assert ITEMS in dumps.needs.by_table
