"""``deltatide status --watch``: in place on a terminal, in lines elsewhere; outages are shown."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from rich.console import Console

from connector.cli import watch as watching
from connector.control.source_view import SourceView
from connector.errors import TransientError
from connector.landing.consumers import Consumer, record_path
from connector.landing.lease import AgentFigures, Lease
from connector.landing.manifest import DumpState, Manifest, SourceIdentity, TableState
from connector.landing.manifest_store import ManifestWriter
from connector.schema import TableName
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import config_of

NOW = datetime.now(timezone.utc)


class View(SourceView):
    """Sees a landing zone in memory."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(config_of())
        self.store = store


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Watches: before each look the next step is done, and with the last one Ctrl-C comes.

    Returns what a terminal would show.
    """

    def watch_steps(store: MemoryStore, *steps: Callable[[], object], **options: Any) -> str:
        left = list(steps)

        def step(view: SourceView) -> watching.Sight:
            left.pop(0)()
            if not left:
                os.kill(os.getpid(), signal.SIGINT)
            return real(view)

        real = watching._look
        monkeypatch.setattr(watching, "_look", step)
        console = Console(file=io.StringIO(), width=80, height=24, color_system=None, **options)
        before = signal.getsignal(signal.SIGINT)
        watching.watch(View(store), 0.01, as_json=not options, console=console)
        assert signal.getsignal(signal.SIGINT) is before
        assert not left
        return console.file.getvalue()  # type: ignore[attr-defined]

    return watch_steps


def land(store: MemoryStore, tables: int = 3, quarantined: int = 0) -> None:
    names = [TableName("public", f"t{n:04}") for n in range(tables)]
    states = {name: TableState(schema_id="1", dumped=True) for name in names}
    for name in names[tables - quarantined :]:
        states[name] = TableState(state="quarantined", reason="its key is gone\x1b[2J", hint="add one")
    dumps = [
        DumpState(
            id=str(n), number=n, table=name, kind="full", epoch=1, requested_at=NOW, started_in=1,
            state="running" if n == 0 else "waiting", rows=50, rows_estimate=200, rows_per_second=10.0,
        )
        for n, name in enumerate(names[:2])
    ]  # fmt: skip
    identity = SourceIdentity(name="shop", kind="postgres", system_id="1", database="d", version="16.10")
    manifest = Manifest(
        number=1, term=1, write_id="w", source=identity, epoch=1, position=4096,
        committed_at=NOW, tables=states, dumps=dumps,
    )  # fmt: skip
    ManifestWriter(store).commit(manifest)
    figures = AgentFigures(lag_seconds=3700.0, lag_bytes=5_000_000, at=NOW.timestamp())
    Lease.acquire(store, 15, holder="x").renew(figures)


def test_without_a_terminal_each_look_is_a_line_and_an_outage_is_one_too(
    look: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    look(
        store,
        lambda: None,
        lambda: land(store, quarantined=1),
        lambda: store.fail("folders", error=TransientError("the store is gone")),
        lambda: None,
        force_terminal=False,
    )
    nothing, first, outage, last = capsys.readouterr().out.splitlines()
    assert "has no manifest yet (start the agent first: deltatide run)" in nothing
    assert "shop (postgres 16.10); process " in first
    assert "1 h 1 min behind, 5,000,000 bytes of log not landed; manifest 1" in first
    assert first.endswith("dumps: 1 running, 1 queued; needs you: 1 quarantined table")
    assert outage.endswith("the store is gone")
    assert last[20:] == first[20:]


@pytest.mark.parametrize(("more", "needs"), [(0, "1 table"), (980, "981 tables")])
def test_a_table_that_a_lake_cannot_merge_needs_somebody(
    look: Callable[..., str], capsys: pytest.CaptureFixture[str], more: int, needs: str
) -> None:
    store = MemoryStore()
    land(store)
    lake = Consumer(id="1", lake="/lake", manifest=1, at=NOW, failing={"public.t0001": "its type changed"})
    lake.failing_unnamed = more
    store.put(record_path("1", "0"), lake.model_dump_json().encode())
    look(store, lambda: None, force_terminal=False)
    assert capsys.readouterr().out.strip().endswith(f"needs you: {needs} that can't be merged")


def test_with_json_each_look_is_an_object(
    look: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    look(store, lambda: None, lambda: land(store))
    nothing, found = map(json.loads, capsys.readouterr().out.splitlines())
    assert "has no manifest yet" in nothing["error"]
    assert (found["manifest"], len(found["tables"])) == (1, 3)


def test_a_terminal_shows_what_needs_attention_first_and_never_more_than_fits(
    look: Callable[..., str],
) -> None:
    store = MemoryStore()
    land_many = lambda: land(store, tables=1000, quarantined=2)  # noqa: E731
    shown = look(store, lambda: None, land_many, force_terminal=True)
    assert "has no manifest yet" in shown
    frame = shown[shown.rindex("shop (postgres 16.10)") :].split("\x1b[?25h")[0].splitlines()
    assert len(frame) <= 24
    assert max(map(len, frame)) <= 80
    text = "\n".join(frame)
    assert "2 quarantined tables" in text
    assert "25%" in text
    states = [word for line in frame for word in line.split() if word in ("captured", "quarantined")]
    assert states[:4] == ["quarantined", "quarantined", "quarantined", "captured"]  # counted, then listed
    assert "more" in text
    assert "\x1b[2J" not in shown
