"""The status page's script against a real agent, in Node.js over a minimal document: not a browser's test."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from connector.capture import request_intake
from connector.landing.event_batch import QuarantineNotice
from connector.schema import TableName
from connector.testing.memory_store import MemoryStore
from tests.support.agents import shop
from tests.support.status_page import page_of
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).parents[2] / "support" / "page_in_node.mjs"


class Page:
    """The page's script in a process of its own."""

    def __init__(self, url: str) -> None:
        node = shutil.which("node")
        if node is None:
            pytest.skip("no Node.js to run the page's script")
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [node, str(SCRIPT), url], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def click(self, *what: str) -> None:
        self._say("click", *what)

    def text(self, element: str) -> str:
        self._say("text", element)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return str(json.loads(line))

    def wait_text(self, element: str, text: str) -> None:
        wait_until(lambda: text in self.text(element), f"{element} says {text!r}")

    def _say(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()


def test_the_page_shows_the_agent_and_its_buttons_do_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_intake, "POLL_SECONDS", 0.02)
    database, store = shop(rows=40), MemoryStore()
    with page_of(database, store) as (client, agent):
        agent.wait_dumped()
        page = Page(str(client.base_url).rstrip("/"))
        page.wait_text("state", "active")
        page.wait_text("lag", " s")
        page.wait_text("tables", "public.items")
        assert "done" in page.text("dumps")
        page.click("pause-all")
        agent.wait(lambda m: m.dump_control and m.dump_control.pause_new, "new dumps begin paused")
        assert "Requested: pause all dumps" in page.text("message")
        client.post("/api/dump", json={"id": "<b>odd</b>", "tables": ["public.items"]})
        page.wait_text("dumps", "public.items: paused")
        page.click("resume", "<b>odd</b>")
        agent.wait(lambda m: any((d.id, d.state) == ("<b>odd</b>", "complete") for d in m.dumps), "it ends")
        client.post("/api/dump", json={"id": "next", "tables": ["public.items"]})
        page.wait_text("dumps", "public.items: pausednext;")
        page.click("cancel", "next")
        agent.wait(
            lambda m: any((d.id, d.state) == ("next", "cancelled") for d in m.dumps), "it is cancelled"
        )
        notice = QuarantineNotice(TableName("public", "parts"), database.end, "its key is gone", "add a key")
        agent.capture._tables.quarantine(notice)
        page.wait_text("problems", "public.parts is quarantined: its key is gone. To go on: add a key")
        page.wait_text("manifests", "cancel dump next")
        assert page.process.stdin is not None
        page.process.stdin.close()
        assert page.process.wait(10) == 0, page.process.communicate()[1]
