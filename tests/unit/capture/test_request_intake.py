"""Requests, from the landing zone to dumps of the running capture, and their removal."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from connector.capture.dumps import queue as dump_queue
from connector.errors import PreconditionError, TransientError
from connector.landing import requests
from connector.landing.format import manifest_path
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import DumpRequest, read_pending, submit
from connector.schema import TableName
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, Killed, ask, counted, dump_of, insert
from tests.support.landing.cuts import manifests_in, read_events
from tests.support.waiting import wait_until

NOW = datetime.now(timezone.utc)

pytestmark = pytest.mark.usefixtures("short_waits")


def test_requested_dumps_land_and_the_request_goes_only_after_its_manifest(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        keys = ask(agent, store, tables=["public.items"], keys=[["4"], ["5"], ["6"]])
        where = ask(agent, store, tables=["public.items"], where="a = 'a9'")
        wait_until(lambda: not read_pending(store), "the requests are removed")
    files = [f for m in manifests_in(store) for f in m.files if f.dump == keys.dumps[-1].id]
    events = [e for f in files for e in read_events(store, f)]
    assert sorted((e.key, e.op) for e in events) == [((4,), "dump"), ((5,), "delete"), ((6,), "dump")]
    assert (where.dumps[-1].kind, where.dumps[-1].rows) == ("where", 1)
    deleted = next(n for n, call in enumerate(store.calls) if call[0] == "delete")
    queued = next(m for m in manifests_in(store) if any(d.reason == "request" for d in m.dumps))
    created = next(n for n, c in enumerate(store.calls) if c == ("create", _path(queued)))
    assert created < deleted


def _path(manifest: Manifest) -> str:
    from connector.landing.format import manifest_path

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
    assert [str(d.table) for d in newest.dumps if d.id.startswith(request.id)] == [
        "public.items",
        "public.parts",
    ]


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
    assert read_pending(store)
    with Agent(database, store) as agent:
        wait_until(lambda: not read_pending(store), "the request is removed")
        newest = agent.wait_dumped()
    assert len([d for d in newest.dumps if d.request == request.id]) == 1


def test_a_request_that_is_sent_twice_runs_once_and_other_content_is_another(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        for _ in range(2):
            submit(store, DumpRequest(id="nightly", tables=["public.items"]))
            wait_until(lambda: not read_pending(store), "the request is removed")
            newest = agent.wait_dumped()
        assert dumps_for(newest, "nightly") == 1
        submit(store, DumpRequest(id="nightly", tables=["public.items"], requested_at=NOW))
        agent.wait(lambda m: dumps_for(m, "nightly") == 2, "another is taken up")
        agent.wait_dumped()
    submit(store, DumpRequest(id="nightly", tables=["public.items"]))
    submit(store, DumpRequest(id="other", tables=["public.parts"]))
    with Agent(database, store) as agent:
        agent.wait(lambda m: dumps_for(m, "other") == 1, "the other one is taken up after a restart")
        newest = agent.wait_dumped()
    assert dumps_for(newest, "nightly") == 2
    ids = [d.id for d in newest.dumps]
    assert len(ids) == len(set(ids))


def dumps_for(manifest: Manifest, request_id: str) -> int:
    return sum(d.request == request_id for d in manifest.dumps)


def test_a_request_whose_name_begins_another_is_taken_up(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        for name in ("a", "a.1", "a.1.0"):
            submit(store, DumpRequest(id=name, tables=None if name == "a" else ["public.items"]))
            agent.wait(lambda m, n=name: dumps_for(m, n) == (2 if n == "a" else 1), f"{name} is taken up")
        newest = agent.wait_dumped()
    assert len({d.id for d in newest.dumps}) == len(newest.dumps) == 6


def test_a_condition_that_ends_the_connection_again_and_again_fails_its_dump_alone(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        agent.source.fail("next_boundary", times=5, error=TransientError("the server was killed"))
        done = ask(agent, store, tables=["public.items"], where="a = 'a9'")
        assert done.dumps[-1].state == "failed"
        assert "the server was killed, 5 times" in (done.dumps[-1].error or "")
        agent.source.fail("next_boundary", times=4, error=TransientError("the server was killed"))
        done = ask(agent, store, tables=["public.items"], where="a = 'a9'")
    assert done.dumps[-1].state == "complete"


def test_a_rejection_is_short_and_a_table_named_twice_is_dumped_once(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        store.put("requests/long.json", b'{"tables": ["' + b"x" * 100_000 + b'"]}')
        agent.wait(
            lambda m: any("long" in n.text and len(n.text) < 1100 for n in m.notices), "it is rejected"
        )
        request = submit(store, DumpRequest(tables=["public.items"] * 50))
        agent.wait(lambda m: dumps_for(m, request) == 1, "it is taken up")


def test_a_flood_of_requests_waits_in_the_landing_zone_and_all_are_carried_out(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MOST_AT_ONCE", 5)
    monkeypatch.setattr(dump_queue, "MOST_ACTIVE", 3)
    monkeypatch.setattr(dump_queue, "MOST_KEYS", 4)
    with Agent(database, store) as agent:
        agent.wait_dumped()
        agent.source.fail("open_chunk", times=60)  # so that they pile up
        for number in range(12):
            keys = [[str(k)] for k in range(3 if number % 2 else 1)]
            submit(store, DumpRequest(id=f"r{number:02}", tables=["public.items"], keys=keys))
        assert len(read_pending(store)) <= 5
        wait_until(lambda: not list(store.list("requests/")), "all requests are removed")
        newest = agent.wait_dumped()
    assert [d.request for d in newest.dumps if d.request] == [f"r{n:02}" for n in range(12)]
    assert all(d.state == "complete" for d in newest.dumps)
    active = [[d for d in m.dumps if d.active and d.request] for m in manifests_in(store)]
    assert max(map(len, active)) <= 3
    assert max(sum(len(d.keys or ()) for d in dumps) for dumps in active) < 4 + 3


def test_all_requests_that_an_earlier_run_took_up_are_removed_however_many(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(database, store)
    agent.start()
    agent.wait_dumped()
    agent.store.die_at(lambda call, arguments: "before" if call == "delete" else None)
    for number in range(9):
        submit(store, DumpRequest(id=f"r{number}", tables=["public.items"]))
    agent.join()
    taken = {d.request for d in newest_manifest(store).dumps if d.request}
    assert taken
    monkeypatch.setattr(requests, "MOST_AT_ONCE", 2)
    with Agent(database, store) as agent:
        wait_until(lambda: not list(store.list("requests/")), "the requests are removed")
        newest = agent.wait_dumped()
    assert sorted(d.request for d in newest.dumps if d.request) == [f"r{n}" for n in range(9)]


def test_a_finished_dump_keeps_no_keys_and_no_long_predicate(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        keys = [[str(n)] for n in range(2000)]
        asked = ask(agent, store, tables=["public.items"], keys=keys)
        where = ask(agent, store, tables=["public.items"], where=" or ".join(["a is not null"] * 300))
    for done in (asked.dumps[-1], where.dumps[-1]):
        assert (done.state, done.keys, done.open) == ("complete", None, [])
        assert len(done.model_dump_json()) < 1500
    assert (asked.dumps[-1].kind, asked.dumps[-1].rows) == ("keys", 2000)


@pytest.mark.parametrize("call", ["read", "delete", "list", "put"])
def test_a_request_that_the_store_refuses_ends_neither_the_agent_nor_other_requests(
    call: str, database: MemoryDatabase, store: MemoryStore
) -> None:
    denied = PreconditionError("AccessDenied: Access Denied")
    with Agent(database, store) as agent:
        agent.wait_dumped()
        prefix = {"list": "requests/", "put": "rejected/"}.get(call, "requests/odd")
        store.fail(call, prefix, times=7, error=denied)
        store.put("requests/odd.json", b"{nonsense")
        agent.wait(lambda m: any("odd" in n.text for n in m.notices), "it is rejected")
        done = ask(agent, store, tables=["public.items"])
        assert done.dumps[-1].state == "complete"
        wait_until(lambda: not read_pending(store), "it is removed when the store lets it")
    assert agent.error is None


def test_a_release_that_fails_half_way_leaves_no_table_without_the_floor_of_its_dump(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """The schema of the second table can't be written; meanwhile a manifest is committed."""
    with Agent(database, store) as agent:
        agent.wait_dumped()
        tables = ["public.items", "public.parts"]
        for name in tables:
            agent.source.undecodable[name] = "odd value"
        insert(database, 1001)
        with database.transaction() as transaction:
            transaction.insert("public.parts", area="z9", number=999, note="n", c=None)
        agent.wait(lambda m: {t.state for t in m.tables.values()} == {"quarantined"}, "both are quarantined")
        agent.source.undecodable.clear()
        store.fail("put", "schema/public.parts/", times=2)
        passed = iter((True, False))
        barrier = agent.source.take_xid_barrier

        def take_xid_barrier() -> int | None:
            if not next(passed, True):
                raise TransientError("the source does not answer")
            return barrier()

        agent.source.take_xid_barrier = take_xid_barrier  # type: ignore[method-assign]
        request = submit(store, DumpRequest(tables=tables))
        agent.wait(lambda m: dumps_for(m, request) == 2, "both are released")
        newest = agent.wait_dumped()
    assert all(d.floor for d in newest.dumps if d.request == request)


def test_a_release_that_can_not_be_checked_keeps_no_log_from_landing(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """As where the role has no connection left for the check: the log would be reopened again and again."""
    with Agent(database, store) as agent:
        agent.wait_dumped()
        agent.source.undecodable["public.parts"] = "odd value"
        with database.transaction() as transaction:
            transaction.insert("public.parts", area="z9", number=999, note="n", c=None)
        agent.wait(lambda m: any(t.state == "quarantined" for t in m.tables.values()), "it is quarantined")
        agent.source.undecodable.clear()
        agent.source.fail("check", times=10**6)
        checked = counted(agent, "check")
        request = submit(store, DumpRequest(tables=["public.parts"]))
        wait_until(lambda: len(checked) > 3, "its release is tried")
        insert(database, 1001)
        agent.wait_caught_up()
        assert agent.capture.progress.reconnects == 0
        agent.source._faults.clear()
        agent.wait(lambda m: dumps_for(m, request) == 1, "it is released")
        agent.wait_dumped()


@pytest.mark.parametrize(
    ("request_", "reported"),
    [
        ({"tables": ["public.nothing"]}, "public.nothing is not captured"),
        ({"tables": ["public.parts"], "keys": [["z1"]]}, "is not a value of the key (area, number)"),
    ],
)
def test_a_request_that_cannot_be_carried_out_is_rejected_with_a_notice(
    request_: Any, reported: str, database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        submit(store, DumpRequest(**request_))
        manifest = agent.wait(lambda m: any(n.kind == "dump" for n in m.notices), "it is rejected")
        wait_until(lambda: not read_pending(store), "the request is removed")
    assert reported in manifest.notices[0].text
    assert len(manifest.dumps) == 2


def test_a_malformed_request_is_moved_aside_with_a_notice(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        store.put("requests/odd.json", b"{nonsense")
        agent.wait(lambda m: any("odd" in n.text for n in m.notices), "it is rejected")
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
    assert manifest.tables[TableName.parse("public.items")].state == "captured"


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


def test_rows_that_the_merge_asked_for_are_read_only_when_their_commit_is_visible(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """The log shows it before any snapshot does: read at once, the row would be answered as not found."""
    with Agent(database, store) as agent:
        agent.wait_dumped()
        hidden = insert(database, 1001, visible=False)
        agent.wait(lambda m: m.position >= hidden, "the commit has landed")
        request = DumpRequest(tables=["public.items"], keys=[["1001"]], reason="missing")
        submit(store, request)
        agent.wait(lambda m: dump_of(m, request.id), "the request is taken up")
        insert(database, 1003)
        agent.wait_caught_up()
        assert dump_of(newest_manifest(store), request.id).active
        database.make_visible()
        done = agent.wait(lambda m: not dump_of(m, request.id).active, "the row is dumped")
    files = [f for m in manifests_in(store) for f in m.files if f.dump == request.id]
    assert [e.op for f in files for e in read_events(store, f)] == ["dump"]
    assert done.exact


def test_twenty_thousand_keys_are_in_no_manifest(database: MemoryDatabase, store: MemoryStore) -> None:
    with Agent(database, store) as agent:
        before = agent.wait_dumped().number
        agent.pause_seconds, agent.patience_seconds = 0.5, 60.0  # each look reads the keys
        asked = ask(agent, store, tables=["public.items"], keys=[[str(n)] for n in range(20_000)])
    done = asked.dumps[-1]
    assert (done.chunks, done.rows, done.rows_estimate) == (20, 20_000, 20_000)
    sizes = [len(store.read(manifest_path(n)) or b"") for n in range(before + 1, asked.number)]
    assert sizes
    assert max(sizes) < 60_000  # the keys alone take twice that
