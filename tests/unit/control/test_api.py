"""The HTTP API over a running agent: what it shows, what it asks for, and how it refuses."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from connector import agent as agents
from connector.capture import request_intake
from connector.config import ControlConfig
from connector.control.api import MOST_WAITING, PAGE
from connector.control.dump_requests import list_dumps
from connector.control.server import serving
from connector.control.status import status
from connector.errors import ConfigurationError, TransientError
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import pending_ids
from connector.store.observed import ObservedStore
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, config_of, insert, shop
from tests.support.agent.status_page import client_of, live_agent, page_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_requests")


@pytest.fixture
def quick_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_intake, "POLL_SECONDS", 0.02)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def page(store: MemoryStore) -> Iterator[tuple[httpx.Client, Agent]]:
    with page_of(shop(rows=40), store) as found:
        yield found


def post(client: httpx.Client, verb: str, **body: Any) -> httpx.Response:
    return client.post(f"/api/{verb}", json=body)


def test_reads_say_what_the_commands_say(page: tuple[httpx.Client, Agent], store: MemoryStore) -> None:
    client, agent = page
    manifest = agent.wait_dumped()
    insert(agent.source.database, 1000)
    manifest = agent.wait_caught_up()
    live = live_agent(store, agent)
    got = client.get("/api/status").json()
    said = status(live).as_json()
    for changing in ("figures", "manifest", "committed_at", "position", "agent"):
        assert got.pop(changing)
        assert said.pop(changing)
    assert got == said
    assert client.get("/api/dumps").json() == list_dumps(live).as_json()
    assert {d["state"] for d in client.get("/api/dumps").json()} == {"done"}
    assert client.get("/api/settings").json()["workers"] == 2
    dump = agent.capture.config.dump.model_copy(update={"workers": 3})
    agent.capture.config = agent.capture.config.model_copy(update={"dump": dump})  # as a reload does
    assert client.get("/api/settings").json()["workers"] == 3
    assert client.get("/api/gaps").json() == []
    assert client.get("/api/tables").json()["public.items"]["state"] == "captured"
    manifests = client.get("/api/manifests", params={"limit": 100}).json()
    numbers = [m["number"] for m in manifests]
    assert numbers == list(range(numbers[0], 0, -1))
    assert numbers[0] >= manifest.number
    assert sum(m["rows"].get("public.items", 0) for m in manifests) == 41
    assert [manifests[-1]["exact"], manifests[0]["exact"]] == [False, True]
    assert {m["exact"] for m in manifests} == {False, True}, "of those read from the store, too"
    shown = client.get("/api/overview").json()
    assert shown["status"].keys() == status(live).as_json().keys()
    assert shown["dumps"] == list_dumps(live).as_json()
    assert shown["settings"] == client.get("/api/settings").json()
    assert (shown["gaps"], set(shown["rates"]) <= {"public.items"}) == ([], True)
    assert shown["manifests"][0]["number"] >= manifest.number
    assert shown["notices"] == client.get("/api/notices").json()
    whole = client.get("/api/agent").json()
    assert (whole["state"], whole["store_errors"]) == ("active", {})
    assert (whole["store_failing_seconds"], whole["log_lost_seconds"]) == (0, 0)
    assert whole["figures"]["lag_seconds"] is not None
    assert isinstance(client.get("/api/history").json(), list)


def test_a_dump_is_paused_set_resumed_and_cancelled_over_http(
    page: tuple[httpx.Client, Agent], store: MemoryStore
) -> None:
    client, agent = page
    agent.wait_dumped()

    def state_of(dump: str) -> dict[str, Any]:
        return next((d for d in client.get("/api/dumps").json() if d["id"] == dump), {"state": None})

    assert post(client, "pause", all=True).status_code == 202
    agent.wait(lambda m: m.dump_control and m.dump_control.pause_new, "new dumps begin paused")
    answers = [post(client, "dump", id="mine", tables=["public.items"]) for _ in range(2)]
    assert [(a.status_code, a.json()) for a in answers] == [(202, {"id": "mine"})] * 2
    wait_until(lambda: state_of("mine")["state"] == "paused", "the dump is queued, and paused")
    assert post(client, "set", dump="mine", settings={"chunk_rows": 3}).status_code == 202
    wait_until(lambda: (state_of("mine")["settings"] or {}).get("chunk_rows") == 3, "it is set")
    assert post(client, "resume", all=True).status_code == 202
    wait_until(lambda: state_of("mine")["state"] == "done", "the dump ends")
    manifest = newest_manifest(store)
    assert manifest is not None
    mine = [d for d in manifest.dumps if d.request == "mine"]
    assert [(d.state, d.chunks) for d in mine] == [("complete", 14)]
    assert post(client, "pause", all=True).status_code == 202
    agent.wait(lambda m: m.dump_control and m.dump_control.pause_new, "new dumps begin paused")
    post(client, "dump", id="other", tables=["public.items"], where="true")
    wait_until(lambda: state_of("other")["state"] == "paused", "the dump is queued, and paused")
    assert post(client, "cancel", dump="other").status_code == 202
    wait_until(lambda: state_of("other")["state"] == "cancelled", "it is cancelled")


@pytest.mark.parametrize(
    ("verb", "body", "status_code", "error"),
    [
        ("dump", {}, 400, "name tables, or all"),
        ("dump", {"tables": ["public.item"]}, 400, "public.item is not a captured table"),
        ("dump", {"tables": ["public.items"], "where": "a", "keys": [["1"]]}, 400, "can't be combined"),
        ("dump", {"tables": ["public.items"], "Table": "x"}, 422, "Table: extra inputs"),
        ("pause", {}, 400, "name a dump, or all"),
        ("pause", {"dump": "gone"}, 400, "no dump gone; no dump is unfinished"),
        ("set", {}, 400, "name a setting, or defaults"),
        ("set", {"settings": {"workers": 0}}, 422, "settings.workers: "),
        ("reload", {"dump": "x"}, 422, "dump: extra inputs"),
    ],
)
def test_what_the_commands_refuse_is_refused_with_a_reason(
    verb: str, body: dict[str, Any], status_code: int, error: str, page: tuple[httpx.Client, Agent],
    store: MemoryStore,
) -> None:  # fmt: skip
    client, agent = page
    agent.wait_dumped()
    answer = post(client, verb, **body)
    assert (answer.status_code, list(answer.json())) == (status_code, ["error", "hint"])
    assert error in answer.json()["error"]
    assert not pending_ids(store)


def test_any_other_request_is_answered_in_json_and_nothing_names_another_host(
    page: tuple[httpx.Client, Agent],
) -> None:
    client, _ = page
    refused = [
        client.get("/nowhere"),
        client.delete("/api/dumps", headers={"content-type": "x"}),
        client.put("/api/dumps", json={}),
        client.get("/api/manifests?limit=x"),
        client.post("/api/dump", content=b"{", headers={"content-type": "application/json"}),
    ]
    for answer in refused:
        assert 400 <= answer.status_code < 500
        assert set(answer.json()) == {"error", "hint"}
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/api/dump", "/api/status", "/healthz", "/metrics"} <= set(paths)
    for path in PAGE:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        text = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|[\"'(]//|@import", text)
        assert "innerHTML" not in answer.text


def test_health_says_starting_standby_active_and_stuck(store: MemoryStore) -> None:
    live = live_agent(store)
    capture = SimpleNamespace(progress=SimpleNamespace(turned_at=time.monotonic()), newest=None)

    def health(client: httpx.Client) -> list[tuple[int, str]]:
        answers = [client.get("/healthz"), client.get("/readyz")]
        return [(a.status_code, a.json()["state"]) for a in answers]

    with client_of(live) as client:
        assert health(client) == [(200, "starting"), (503, "starting")]
        live.stand_by()
        assert health(client) == [(200, "standby"), (503, "standby")]
        live.activate(capture, SimpleNamespace(state=None))  # type: ignore[arg-type]
        assert health(client) == [(200, "active"), (200, "active")]
        capture.progress.turned_at -= 301
        assert health(client) == [(503, "stuck"), (503, "stuck")]
        store.fail("read", error=TransientError())
        with pytest.raises(TransientError):  # as the loop meets it, which then tries again
            live._observed.read("x")
        assert health(client) == [(200, "active"), (200, "active")]
        assert live.store_failing_seconds > 0
        live._observed.read("x")
        assert live.store_failing_seconds == 0
        store.fail("read", error=TransientError())
        with pytest.raises(TransientError):  # as the lease's keeper meets it
            ObservedStore(store, counted_by=live._observed).read("x")
        assert live.store_failing_seconds > 0
        assert live.store_errors == {"read": 2}


def test_what_is_asked_of_a_standby_is_done_by_the_active_agent(store: MemoryStore) -> None:
    standby = live_agent(store)
    standby.stand_by()
    with Agent(shop(rows=20), store) as agent, client_of(standby) as client:
        agent.wait_dumped()
        assert client.get("/api/status").json()["tables"]["public.items"]["dumped"]
        assert post(client, "dump", id="mine", tables=["public.items"]).status_code == 202
        agent.wait(lambda m: any((d.id, d.state) == ("mine", "complete") for d in m.dumps), "it is done")
        assert client.get("/api/agent").json()["state"] == "standby"


def test_each_verb_leaves_the_request_that_its_command_leaves(store: MemoryStore) -> None:
    landed = Agent(shop(rows=3), store)
    with landed:
        landed.wait_dumped()
    asked: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "dump": ({"tables": ["public.items"], "keys": [["1"], ["2"]]}, {"keys": [["1"], ["2"]]}),
        "pause": ({"all": True}, {"all": True}),
        "resume": ({"all": True}, {"all": True}),
        "set": ({"settings": {"workers": 3}}, {"settings": {"workers": 3}}),
        "reload": ({}, {}),
        "handover": ({}, {}),
    }
    with client_of(live_agent(store)) as client:
        schema = client.get("/openapi.json").json()
        pytest.importorskip("openapi_spec_validator").validate(schema)
        assert {path for path, does in schema["paths"].items() if "post" in does} == {
            "/api/cancel", *(f"/api/{verb}" for verb in asked),
        }  # fmt: skip
        for verb, (body, expected) in asked.items():
            answer = post(client, verb, **body)
            assert answer.status_code == 202, answer.text
            left = json.loads(store.objects[f"requests/{answer.json()['id']}.json"])
            assert {"kind": "dump", **left}.items() >= {"kind": verb, **expected}.items()


def test_an_agent_with_nothing_landed_or_no_store_says_so(store: MemoryStore) -> None:
    with client_of(live_agent(store)) as client:
        assert client.get("/api/agent").json()["state"] == "starting"
        answer = client.get("/api/status")
        assert (answer.status_code, answer.json()["hint"]) == (409, "start the agent first: deltatide run")
        store.fail("folders", error=TransientError("the store is gone", hint="look"))
        answer = client.get("/api/dumps")
        assert (answer.status_code, answer.json()) == (503, {"error": "the store is gone", "hint": "look"})
        store.fail("folders", error=ValueError("secret"))
        answer = client.get("/api/dumps")
        assert (answer.status_code, "secret" in answer.text) == (500, False)


def test_the_active_agent_answers_from_memory_when_the_store_is_gone(
    page: tuple[httpx.Client, Agent], store: MemoryStore
) -> None:
    client, agent = page
    agent.wait_dumped()
    for operation in ("read", "list", "folders"):
        store.fail(operation, times=1000)
    for path in (
        "/api/agent",
        "/api/status",
        "/api/dumps",
        "/api/gaps",
        "/api/history",
        "/metrics",
        "/healthz",
    ):
        assert client.get(path).status_code == 200, path
    store._faults.clear()


def test_health_and_metrics_answer_while_the_store_hangs(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, waiting = threading.Event(), threading.Semaphore(0)

    def hang(_prefix: str) -> list[str]:
        waiting.release()
        answers.wait(30)
        raise TransientError("the store is gone")

    monkeypatch.setattr(store, "folders", hang)
    with client_of(live_agent(store)) as client, ThreadPoolExecutor(60) as pool:
        asked = [
            pool.submit(httpx.get, f"{client.base_url}/api/status", timeout=60, trust_env=False)
            for _ in range(60)
        ]
        try:
            assert all(waiting.acquire(timeout=20) for _ in range(MOST_WAITING))
            for path in ("/metrics", "/healthz", "/readyz", "/api/agent", "/api/history", "/"):
                assert client.get(path, timeout=10).status_code in (200, 503), path
            refused = client.get("/api/dumps", timeout=10)
            assert (refused.status_code, list(refused.json())) == (503, ["error", "hint"])
            assert "too many requests wait" in refused.json()["error"]
        finally:
            answers.set()
        assert {answer.result(30).status_code for answer in asked} == {503}
        assert client.get("/api/dumps").json()["error"] == "the store is gone"  # none is counted any more


def test_a_port_in_use_is_a_warning_unless_it_was_configured(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=r"control\.listen: .*in use") as caught:
            with serving(live_agent(store, listen=address)):
                pass
        assert "listen = false" in str(caught.value.hint)
        live = live_agent(store)
        control = ControlConfig.model_construct(_fields_set=set(), listen=address)
        live.config = live.config.model_copy(update={"control": control})
        with serving(live) as url:
            assert url is None
    assert "no status page" in caplog.text


def test_a_server_that_fails_is_logged_and_the_agent_goes_on(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import uvicorn

    def fail(_self: object, sockets: object) -> None:
        raise OSError("no file descriptors")

    monkeypatch.setattr(uvicorn.Server, "run", fail)
    with serving(live_agent(store)):
        wait_until(lambda: "the status page failed: no file descriptors" in caplog.text, "it is logged")


def test_the_agents_process_serves_from_its_start_to_its_end(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.support.agent.agents import CheckedSource

    config = config_of(listen="127.0.0.1:0")
    source = CheckedSource(shop(rows=3), config.source, store)
    monkeypatch.setattr(agents, "open_stores", lambda *_: (store, store))
    monkeypatch.setattr(agents, "open_source", lambda _config: source)
    seen: list[str] = []

    def look(_self: object) -> None:
        url = next(r.args[0] for r in caplog.records if r.msg == "status page: %s")  # type: ignore[index]
        seen.append(url)
        seen.append(httpx.get(f"{url}/readyz", trust_env=False).json()["state"])

    monkeypatch.setattr(agents.Capture, "run", look)
    with caplog.at_level(logging.INFO):
        agents.run(config)
    url, state = seen
    assert state == "active"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/readyz", trust_env=False)
