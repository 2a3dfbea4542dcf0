"""Dumps under control while they run: paused, resumed, cancelled, slowed down, over crashes and restarts."""

from __future__ import annotations

from typing import Any

import pytest

from connector.capture import request_intake
from connector.capture.dumps.queue import DumpQueue
from connector.capture.dumps.schedule import DumpSchedule
from connector.capture.request_intake import RequestIntake
from connector.capture.tables import Tables
from connector.errors import OperatorError, RequestError
from connector.landing.manifest import Manifest, TableState
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import ControlRequest, DumpRequest, discard, pending_ids, submit
from connector.schema import TableName
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, Killed, dump_of, insert
from tests.support.landing.cuts import assert_every_cut_exact
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")

T = TableName.parse("public.items")
SLOW = {"chunk_rows": 1, "delay_seconds": 0.05, "workers": 1}


def control(store: MemoryStore, kind: Any, dump: str | None = None, **what: Any) -> str:
    return submit(store, ControlRequest(kind=kind, dump=dump, **what))


def gone(store: MemoryStore) -> None:
    wait_until(lambda: not pending_ids(store), "the requests are removed")


def begun(agent: Agent, store: MemoryStore, **request: Any) -> str:
    """Ask for a dump and wait for its first chunk."""
    id_ = submit(store, DumpRequest(tables=["public.items"], **request))
    agent.wait(lambda m: (d := dump_of(m, id_)) and d.chunks, "a chunk is committed")
    return id_


def chunks_of(manifest: Manifest | None, dump: str) -> int:
    assert manifest is not None
    return int(dump_of(manifest, dump).chunks)


def test_a_paused_dump_stands_still_over_a_restart_and_resumes_where_it_was(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store, **SLOW) as agent:
        agent.wait_dumped()
        dump = begun(agent, store)
        control(store, "pause", dump)
        agent.wait(lambda m: dump_of(m, dump).paused, "it is paused")
        gone(store)
    before = chunks_of(newest_manifest(store), dump)
    assert before < 20
    with Agent(database, store, chunk_rows=1) as agent:
        other = submit(store, DumpRequest(tables=["public.parts"]))
        manifest = agent.wait(lambda m: (d := dump_of(m, other)) and not d.active, "the other one ends")
        assert (dump_of(manifest, dump).paused, chunks_of(manifest, dump)) == (True, before)
        control(store, "resume", dump)
        manifest = agent.wait(lambda m: not dump_of(m, dump).active, "it ends")
    done = dump_of(manifest, dump)
    assert (done.state, done.rows, done.chunks, done.paused) == ("complete", 20, 21, False)
    assert_every_cut_exact(store, database)


def test_all_dumps_are_paused_with_those_queued_later_until_all_are_resumed(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store, **SLOW) as agent:
        agent.wait_dumped()
        dump = begun(agent, store)
        control(store, "pause", all=True)
        agent.wait(lambda m: dump_of(m, dump).paused, "it is paused")
    with Agent(database, store, **SLOW) as agent:
        later = submit(store, DumpRequest(tables=["public.parts"]))
        agent.wait(lambda m: (d := dump_of(m, later)) and d.paused, "the later one is, too")
        control(store, "resume", all=True)
        newest = agent.wait_dumped()
    assert [dump_of(newest, id_).state for id_ in (dump, later)] == ["complete", "complete"]
    assert newest.dump_control is not None
    assert not newest.dump_control.pause_new


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_pause_that_a_crash_left_is_not_obeyed_again_after_a_resume(
    database: MemoryDatabase, store: MemoryStore, moment: str
) -> None:
    """The agent dies when a manifest has recorded the pause, before or after its object is removed."""
    with Agent(database, store, **SLOW) as agent:
        agent.wait_dumped()
        dump = begun(agent, store)
    pause = submit(store, ControlRequest(kind="pause", dump=dump))
    agent = Agent(database, store, **SLOW)
    agent.store.die_at(lambda call, _: moment if call == "delete" else None)
    agent.start()
    assert isinstance(agent.join(), Killed)
    assert dump_of(newest_manifest(store), dump).paused
    assert (pause in pending_ids(store)) == (moment == "before")
    submit(store, ControlRequest(id="0", kind="resume", dump=dump))  # it is served first
    with Agent(database, store, **SLOW) as agent:
        newest = agent.wait_dumped()
        gone(store)
        agent.wait(lambda m: m.dump_control and not m.dump_control.taken, "no request is named any more")
    assert dump_of(newest, dump).state == "complete"


def test_a_pause_that_no_manifest_records_is_obeyed_by_the_next_agent(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store, **SLOW) as agent:
        agent.wait_dumped()
        dump = begun(agent, store)
    control(store, "pause", dump)
    agent = Agent(database, store, **SLOW)
    agent.store.die_at(lambda call, _: "before" if call == "create" and is_paused(agent) else None)
    agent.start()
    assert isinstance(agent.join(), Killed)
    assert not dump_of(newest_manifest(store), dump).paused
    with Agent(database, store, **SLOW) as agent:
        agent.wait(lambda m: dump_of(m, dump).paused, "it is paused")
        control(store, "cancel", dump)
        agent.wait(lambda m: dump_of(m, dump).state == "cancelled", "it is cancelled, though paused")


def is_paused(agent: Agent) -> bool:
    dumps = getattr(agent.capture, "_dumps", None)
    return dumps is not None and any(dump.paused for dump in dumps.states)


def test_a_cancelled_dump_ends_and_the_table_that_needed_it_is_whole_after_another(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store, **SLOW) as agent:
        manifest = agent.wait(lambda m: any(d.chunks for d in m.dumps), "the first dump has begun")
        initial = next(d for d in manifest.dumps if d.chunks)
        control(store, "cancel", initial.id)
        manifest = agent.wait(lambda m: not dump_of(m, initial.id).active, "it has ended")
        ended = dump_of(manifest, initial.id)
        assert (ended.state, "cancelled by request" in ended.error) == ("cancelled", True)
        agent.wait(lambda m: not any(d.active for d in m.dumps), "the other one ends")
        insert(database, 901)
        manifest = agent.wait_caught_up()
        assert not manifest.exact
        again = submit(store, DumpRequest(tables=[initial.table]))
        manifest = agent.wait_dumped()
    assert dump_of(manifest, again).floor is not None
    assert_every_cut_exact(store, database)


def test_settings_are_effective_from_the_next_chunk_and_kept_over_a_restart(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store, chunk_rows=1, delay_seconds=3600, workers=1) as agent:
        agent.wait(lambda m: sum(d.chunks for d in m.dumps) == 1, "one chunk is read")
        control(store, "set", settings={"delay_seconds": 0, "chunk_rows": 7, "workers": 3})
        agent.wait_dumped()
        assert len(agent.capture._workers._threads) == 3
    with Agent(database, store, chunk_rows=1, delay_seconds=3600, workers=1) as agent:
        dump = submit(store, DumpRequest(tables=["public.items"]))
        manifest = agent.wait(lambda m: (d := dump_of(m, dump)) and not d.active, "it is dumped")
        assert chunks_of(manifest, dump) == 3
        control(store, "set", defaults=True, settings={"chunk_rows": 4})
        manifest = agent.wait(lambda m: m.dump_control.settings.workers is None, "the rest is as configured")
    assert manifest.dump_control is not None
    assert manifest.dump_control.settings.model_dump(exclude_none=True) == {"chunk_rows": 4}


def test_a_control_of_an_unknown_or_ended_dump_is_rejected_and_names_those_there_are(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store, **SLOW) as agent:
        ended = agent.wait_dumped().dumps[0].id
        dump = begun(agent, store)
        for wrong, reason in (("nope", "no dump nope;"), (ended, f"dump {ended} has ended (complete);")):
            control(store, "pause", wrong)
            manifest = agent.wait(lambda m, r=reason: any(r in n.text for n in m.notices), "it is rejected")
            text = next(n.text for n in manifest.notices if reason in n.text)
            assert f"unfinished dumps: {dump} (public.items)" in text
        control(store, "cancel", all=True)


def test_controls_do_not_wait_behind_dumps_that_wait(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connector.capture.dumps.queue.MOST_ACTIVE", 1)
    monkeypatch.setattr("connector.landing.requests.MOST_AT_ONCE", 2)
    with Agent(database, store, **SLOW) as agent:
        agent.wait_dumped()
        ids = [submit(store, DumpRequest(id=f"a{n}", tables=["public.items"])) for n in range(6)]
        agent.wait(lambda m: dump_of(m, "a0"), "the first one is queued")
        control(store, "pause", "a0", id="z")
        agent.wait(lambda m: dump_of(m, "a0").paused, "it is paused")
        assert len(pending_ids(store) & set(ids)) == 5
        control(store, "resume", "a0", id="z")
        manifest = agent.wait(lambda m: dump_of(m, "a5") and not dump_of(m, "a5").active, "all are done")
    assert [dump_of(manifest, id_).state for id_ in ids] == ["complete"] * 6


@pytest.mark.parametrize("full", [False, True])
def test_a_cancel_reaches_a_dump_that_is_still_a_request(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """Its id was chosen, and sorts after those of controls; or its request waits as much is queued."""
    with Agent(database, store) as agent:
        agent.wait_dumped()
    if full:
        monkeypatch.setattr("connector.capture.dumps.queue.MOST_ACTIVE", 1)
        submit(store, DumpRequest(id="0", tables=["public.parts"]))
        submit(store, ControlRequest(id="1", kind="pause", dump="0"))
    submit(store, DumpRequest(id="nightly", tables=["public.items"]))
    submit(store, ControlRequest(id="2", kind="cancel", dump="nightly"))
    with Agent(database, store) as agent:
        if full:
            agent.wait(lambda m: (d := dump_of(m, "0")) and d.paused, "the queue is full")
            assert {"2", "nightly"} <= pending_ids(store)
            submit(store, ControlRequest(id="3", kind="resume", dump="0"))
        manifest = agent.wait(lambda m: (d := dump_of(m, "nightly")) and not d.active, "it ends")
        gone(store)
    assert dump_of(manifest, "nightly").state == "cancelled"


def polled(store: MemoryStore, dumps: DumpQueue, *requests: DumpRequest | ControlRequest) -> RequestIntake:
    """Serve requests that one poll has found."""
    tables = Tables({T: TableState(schema_id="x", key=["id"], dumped=True)}, {})
    nothing: Any = None
    intake = RequestIntake(store, nothing, dumps, tables, {})
    for request in requests:
        submit(store, request)
    intake._poll()
    intake.serve(2, 1)
    return intake


def asked(text: str) -> DumpRequest | ControlRequest:
    """A request by its id, what it asks for, and of which dump; of all without that."""
    id_, kind, *dump = text.split()
    if kind == "dump":
        return DumpRequest(id=id_, tables=[T])
    which: dict[str, Any] = {"dump": dump[0]} if dump else {"all": True}
    return ControlRequest(id=id_, kind=kind, **which)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        (["1 cancel", "2 dump", "3 pause 2"], ("waiting", True)),
        (["1 cancel", "2 pause nightly", "nightly dump"], ("waiting", True)),
        (["1 pause", "2 dump", "3 resume 2"], ("waiting", False)),
        (["1 pause nightly", "2 resume", "nightly dump"], ("waiting", False)),
        (["1 pause nightly", "2 cancel", "nightly dump"], ("cancelled", False)),
    ],
)
def test_of_requests_that_are_seen_together_the_last_word_counts(
    store: MemoryStore, requests: list[str], expected: tuple[str, bool]
) -> None:
    """An id that was chosen does not tell when the dump was asked for, but before what names it."""
    dumps = DumpQueue([], epoch=1)
    polled(store, dumps, *map(asked, requests))
    (state,) = dumps.states
    assert (state.state, state.paused) == expected


def test_a_control_that_waits_for_its_dump_does_not_undo_a_later_one_of_all(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if the agent dies before its object is removed."""
    monkeypatch.setattr("connector.capture.dumps.queue.MOST_ACTIVE", 1)
    dumps = DumpQueue([], epoch=1)
    first = dumps.add(T, manifest=1, request="0")
    asked = DumpRequest(id="1", tables=[T])
    pause, resume = (
        ControlRequest(id="2", kind="pause", dump="1"),
        ControlRequest(id="3", kind="resume", all=True),
    )
    intake = polled(store, dumps, asked, pause, resume)
    dumps.end(first, "cancelled")
    again = polled(store, dumps)
    assert [(d.id, d.paused) for d in dumps.states if d.active] == [("1", False)]
    for each in (intake, again):
        each.committed()
        each._remove_done()
    assert pending_ids(store) == set()


def test_controls_that_can_not_be_removed_do_not_grow_the_manifest_without_bound(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connector.capture.request_intake.MOST_TAKEN", 3, raising=False)
    with Agent(database, store) as agent:
        agent.capture._load_config = lambda: agent.config
        agent.wait_dumped()
        monkeypatch.setattr(request_intake, "discard", refuse)
        for n in range(6):
            control_ = {"kind": "resume", "all": True} if n % 2 else {"kind": "reload"}
            submit(store, ControlRequest.model_validate({"id": f"{n}", **control_}))
        agent.wait(lambda m: m.dump_control and len(m.dump_control.taken) == 3, "some are taken")
        dump = submit(store, DumpRequest(id="later", tables=["public.items"]))
        manifest = agent.wait(lambda m: (d := dump_of(m, dump)) and not d.active, "dumps are carried out")
        assert len(manifest.dump_control.taken) == 3
        monkeypatch.setattr(request_intake, "discard", discard)
        gone(store)
        agent.wait(lambda m: not m.dump_control.taken, "none is named any more")


def refuse(*_: Any) -> None:
    raise OperatorError("not allowed")


def test_a_control_is_no_longer_named_once_its_content_is_gone(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """Another request has its name by then."""
    control_, dumps = ControlRequest(id="a", kind="resume", all=True), DumpQueue([], epoch=1)
    submit(store, control_)
    intake = RequestIntake(store, None, dumps, Tables({}, {}), {})  # type: ignore[arg-type]
    intake._poll()
    intake.serve(2, 1)
    intake.committed()
    submit(store, DumpRequest(id="a", tables=["public.parts"]))
    intake._poll()
    assert dumps.schedule.control.taken == []
    assert pending_ids(store) == {"a"}


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"kind": "pause"}, "name a dump, or all"),
        ({"kind": "cancel", "dump": "a", "all": True}, "name a dump, or all"),
        ({"kind": "set"}, "name a setting, or defaults"),
        ({"kind": "resume", "dump": "a", "settings": {"workers": 1}}, "resume takes no settings"),
        ({"kind": "set", "settings": {"workers": 0}}, "settings.workers: input should be greater than"),
        ({"kind": "set", "settings": {"speed": 1}}, "settings.speed: extra inputs are not permitted"),
        (
            {"kind": "stop"},
            "kind: input should be 'dump', 'pause', 'resume', 'cancel', 'set', 'reload' or 'handover'",
        ),
    ],
)
def test_a_malformed_control_is_rejected_with_the_reason(request_: dict[str, Any], problem: str) -> None:
    import json

    from connector.landing.requests import Malformed, read_pending

    store = MemoryStore()
    store.put("requests/r.json", json.dumps(request_).encode())
    (found,) = read_pending(store)
    assert isinstance(found, Malformed)
    assert problem in found.problem


def test_an_error_about_dumps_stays_short() -> None:
    from connector.capture.dumps.controls import unknown_dump
    from connector.capture.dumps.queue import DumpQueue
    from connector.schema import TableName

    dumps = DumpQueue([], epoch=1)
    assert str(unknown_dump("x", dumps.states)) == "no dump x; no dump is unfinished"
    for _ in range(30):
        dumps.add(TableName("public", "t"), manifest=1)
    error = unknown_dump("x", dumps.states)
    assert isinstance(error, RequestError)
    assert str(error).endswith("and 20 more")


def test_a_request_about_the_agent_is_obeyed_once_even_if_it_can_not_be_removed(store: MemoryStore) -> None:
    obeyed: list[str] = []
    nothing: Any = None
    dumps, request = DumpQueue([], epoch=1), ControlRequest(kind="handover", id="h")
    on_agent = {"handover": lambda: obeyed.append("handover")}
    for _ in range(3):  # agents, one after the other
        intake = RequestIntake(store, nothing, dumps, Tables({}, {}), on_agent)
        intake._fetched = {request.id: request}
        intake.serve(7, 0)
        dumps = DumpQueue([], epoch=1, schedule=DumpSchedule(control=dumps.recorded()["dump_control"]))
    assert obeyed == ["handover"]
