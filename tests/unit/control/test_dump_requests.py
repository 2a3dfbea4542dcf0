"""The list of dumps: those of the newest manifest, and those of requests that no agent has taken yet."""

from __future__ import annotations

from connector.control.dump_requests import list_dumps
from connector.control.source_view import SourceView
from connector.landing.requests import ControlRequest, DumpRequest, submit
from connector.schema import TableName
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, config_of, shop

ITEMS, PARTS = TableName("public", "items"), TableName("public", "parts")


class View(SourceView):
    """Sees a landing zone in memory."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(config_of())
        self.store = store


def test_a_request_that_no_agent_has_taken_is_queued_and_then_runs_once() -> None:
    database, store = shop(rows=3), MemoryStore()
    with Agent(database, store) as agent:
        agent.wait_dumped()
    submit(store, DumpRequest(id="weekly", tables=[ITEMS], keys=[["1"], ["2"]]))
    submit(store, DumpRequest(id="whole"))
    submit(store, ControlRequest(id="x", kind="pause", dump="weekly"))
    store.put("requests/odd.json", b"no request")
    listed = list_dumps(View(store)).as_json()[2:]
    assert [(d["id"], d["table"], d["kind"], d["state"], d["rows_estimate"]) for d in listed] == [
        ("weekly", "public.items", "keys", "queued", 2),
        ("whole.0", "public.items", "full", "queued", None),
        ("whole.1", "public.parts", "full", "queued", None),
    ]
    assert {d["why"] for d in listed} == {"no agent has taken it yet"}
    with Agent(database, store) as agent:
        agent.wait(lambda m: any(d.request == "whole" for d in m.dumps), "they are taken")
        again = [d["id"] for d in list_dumps(View(store)).as_json()]
        assert sorted(again[2:]) == ["weekly", "whole.0", "whole.1"]
