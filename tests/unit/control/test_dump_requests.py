"""The list of dumps: those of the newest manifest, and those of requests that no agent has taken yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connector.capture.dumps.controls import MOST_REJECTED
from connector.cli import dumps as dumps_command
from connector.control.dump_requests import list_dumps
from connector.control.source_view import SourceView
from connector.landing.manifest import KEPT_CHARACTERS
from connector.landing.manifest_store import newest_manifest
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
    odd = listed.pop()
    assert (odd["id"], odd["state"], odd["table"], odd["why"].partition(":")[0]) == (
        "odd", "rejected", None, "invalid JSON"
    )  # fmt: skip
    assert odd.keys() == listed[0].keys()
    assert [(d["id"], d["table"], d["kind"], d["state"], d["rows_estimate"]) for d in listed] == [
        ("weekly", "public.items", "keys", "queued", 2),
        ("whole.0", "public.items", "full", "queued", None),
        ("whole.1", "public.parts", "full", "queued", None),
    ]
    assert {d["why"] for d in listed} == {"no agent has taken it yet"}
    with Agent(database, store) as agent:
        agent.wait(lambda m: any(d.request == "whole" for d in m.dumps), "they are taken")
        again = [d["id"] for d in list_dumps(View(store)).as_json()]
        assert sorted(again[2:]) == ["odd", "weekly", "whole.0", "whole.1"]


def test_requests_that_were_rejected_last_are_listed_with_the_reason_by_later_agents_too() -> None:
    database, store = shop(rows=3), MemoryStore()
    with Agent(database, store) as agent:
        agent.wait_dumped()
        submit(store, DumpRequest(id="0", tables=[TableName("public", "nothing")]))
        submit(store, ControlRequest(id="1", kind="pause", dump="unknown"))
        agent.wait(lambda m: m.dump_control and len(m.dump_control.rejected) == 2, "both are rejected")
    with Agent(database, store) as agent:
        shown = {d["id"]: (d["state"], d["why"]) for d in list_dumps(View(store)).as_json()[2:]}
        assert shown == {
            "0": ("rejected", "public.nothing is not captured"),
            "1": ("rejected", "no dump unknown; no dump is unfinished"),
        }
        for number in range(2, MOST_REJECTED + 2):
            store.put(f"requests/{number}.json", b"{} {" + bytes([65 + number]) * 2000)
        agent.wait(
            lambda m: m.dump_control and max(map(int, m.dump_control.rejected)) == MOST_REJECTED + 1,
            "all are",
        )
    control = newest_manifest(store).dump_control  # type: ignore[union-attr]
    assert control is not None
    assert sorted(map(int, control.rejected)) == list(range(2, MOST_REJECTED + 2))
    assert max(len(each.text) for each in control.rejected.values()) <= KEPT_CHARACTERS


def test_a_rejected_request_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    store = MemoryStore()
    with Agent(shop(rows=3), store) as agent:
        agent.wait_dumped()
        store.put("requests/[bold].json", b"no request")
        agent.wait(lambda m: m.dump_control and m.dump_control.rejected, "it is rejected")
    monkeypatch.setattr(dumps_command, "load", lambda _file: config_of())
    monkeypatch.setattr(SourceView, "store", store)
    dumps_command.dumps(Path("shop.toml"))
    assert "rejected request requests/[bold].json, 2" in capsys.readouterr().out
