"""Requests, from the landing zone to dumps of the running capture, and their removal."""

from __future__ import annotations

from typing import Any

import pytest

from connector.manifest import Manifest
from connector.memory_database import MemoryDatabase
from connector.requests import DumpRequest, pending, submit
from connector.store import newest_manifest
from connector.store_memory import MemoryStore
from tests.agents import Agent, Killed, ask, dump_of, insert, shop
from tests.cuts import manifests_in, read_events
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def database() -> MemoryDatabase:
    return shop(rows=20)


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


def test_where_the_source_refuses_rows_that_the_merge_asked_for_the_whole_table_is_dumped(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """Else a cut would be called exact in which they lack columns."""
    with Agent(database, store) as agent:
        agent.wait_dumped()
        ask(agent, store, tables=["public.items"], where="nonsense(", reason="missing")
        done = agent.wait(lambda m: [d.state for d in m.dumps][-2:] == ["failed", "complete"], "it is dumped")
    assert [(d.kind, d.reason) for d in done.dumps[-2:]] == [("where", "missing"), ("full", "missing")]
    failed = [m for m in manifests_in(store) if any(d.state == "failed" for d in m.dumps)]
    assert not any(m.exact for m in failed if m.number < done.number)
    assert done.exact
