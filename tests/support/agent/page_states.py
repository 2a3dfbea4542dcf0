"""The states of an agent that its status page must show well, drawn by hand: no capture runs."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest import mock

from connector.capture.tables import HINT, key_changed
from connector.config import DumpConfig
from connector.control.last_hour import History, Point
from connector.control.server import serving
from connector.errors import TransientError
from connector.landing.consumers import Consumer, record_path
from connector.landing.lease import AgentFigures, Lease
from connector.landing.manifest import (
    DumpState,
    Gap,
    LandedFile,
    Manifest,
    Notice,
    SourceIdentity,
    TableState,
)
from connector.landing.manifest_store import ManifestWriter
from connector.landing.verified import Piece, Verified, verified_path
from connector.position import Position
from connector.schema import TableName
from connector.testing.memory_store import MemoryStore
from tests.support.agent.status_page import live_agent

SHOP = ("customers", "orders", "order_items", "documents", "carts")
RATES = {"public.order_items": 412.0, "public.orders": 96.4, "public.customers": 41.0, "public.carts": 12.3}
MANIFESTS = 12
IDENTITY = SourceIdentity(name="shop", kind="postgres", system_id="1", database="shop", version="16.10")


def ago(seconds: float) -> datetime:
    return datetime.now(timezone.utc) - timedelta(seconds=seconds)


def tables_of(*names: str, **state: Any) -> dict[TableName, TableState]:
    fields: dict[str, Any] = {"schema_id": "1", "dumped": True, **state}
    return {TableName("public", name): TableState(**fields) for name in names}


def dump_of(number: int, table: str, **fields: Any) -> DumpState:
    """Return a dump of all rows that is finished, unless `fields` says otherwise."""
    times = {"started_at": ago(900), "finished_at": ago(600)}
    state = "complete"
    rows = {"rows": 480_000, "chunks": 10, "rows_estimate": 480_000}
    more = {"id": f"dump-{number}", "number": number, "reason": "initial", "epoch": 1, "started_in": 1}
    fixed = {"table": TableName("public", table), "kind": "full", "requested_at": ago(1000), "state": state}
    return DumpState.model_validate({**fixed, **more, **times, **rows, **fields})


def under_way(**fields: Any) -> dict[str, Any]:
    return {"state": "running", "finished_at": None, "rows_per_second": 21_500.0, **fields}


@dataclass
class Picture:
    """One state: what is landed and what the agent knows of itself.

    `lag`: its seconds as of so many seconds before now. `figures`, `agent`: what differs from the usual.
    """

    tables: dict[TableName, TableState] = field(default_factory=lambda: tables_of(*SHOP))
    dumps: list[DumpState] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=lambda: dict(RATES))
    lag: Callable[[float], float | None] = lambda before: 0.6 + 0.4 * math.sin(before / 50)
    lag_bytes: int = 18_400
    differing: int = 0
    standby: bool = False
    store_gone: bool = False
    held_back: str | None = None


def nothing_yet() -> Picture:
    return Picture(tables={}, rates={}, lag=lambda _before: None)


def first_dump() -> Picture:
    queued = under_way(state="waiting", rows=0, chunks=0, started_at=None, rows_per_second=None)
    dumps = [
        dump_of(1, "customers", rows=50_000, chunks=2, rows_estimate=50_000),
        dump_of(2, "orders", **under_way(rows=412_000, chunks=17, rows_estimate=600_000)),
        dump_of(3, "order_items", **under_way(rows=175_000, chunks=7, rows_estimate=2_400_000)),
        dump_of(4, "documents", **queued),
        dump_of(5, "carts", **queued),
    ]
    begun = 300
    tables = tables_of("customers") | tables_of(*SHOP[1:], dumped=False)
    course = lambda before: None if before > begun else 0.8  # noqa: E731
    return Picture(tables=tables, dumps=dumps, lag=course)


def steady() -> Picture:
    dumps = [dump_of(n, name) for n, name in enumerate(SHOP, 1)]
    dumps.append(
        dump_of(
            6, "orders", id="nightly-orders", reason="request", kind="where", where="status = 'open'",
            **under_way(paused=True, rows=12_000, chunks=1),
        )
    )  # fmt: skip
    text = "added discount (numeric(5,2))"
    notices = [Notice(table=TableName("public", "orders"), kind="schema", text=text, at=ago(1500))]
    return Picture(dumps=dumps, notices=notices)


def lagging() -> Picture:
    return Picture(lag=lambda before: max(1.0, 3720 - 1.1 * before), lag_bytes=6 << 30, differing=3)


def gap() -> Picture:
    reason = "the slot deltatide_shop was dropped and created again by somebody else"
    dumps = [
        dump_of(n, name, reason="repair", **under_way(rows=40_000 * n)) for n, name in enumerate(SHOP[:3], 6)
    ]
    found = Gap(epoch=2, after=8_400_000, before=9_100_000, reason=reason, found_at=ago(240))
    notices = [Notice(kind="gap", text=reason, at=ago(240))]
    return Picture(tables=tables_of(*SHOP, dumped=False), dumps=dumps, gaps=[found], notices=notices)


def quarantined() -> Picture:
    """Reasons and hints as the agent gives them."""
    bad: dict[TableName, TableState] = {}
    for name, reason, fix in (
        ("carts", "it has no primary key", "add a primary key"),
        ("orders", key_changed(TableName("public", "orders"), ["id"], ["number"]).reason, HINT),
        (
            "documents",
            "is an unlogged table, which is never in the log",
            'ALTER TABLE "public"."documents" SET LOGGED; or add it to source.exclude',
        ),
    ):
        hint = f"{fix}; then: deltatide dump public.{name}"
        bad |= tables_of(name, state="quarantined", reason=reason, hint=hint, dumped=name != "carts")
    return Picture(tables=tables_of(*SHOP) | bad)


def thousand() -> Picture:
    names = [f"part_{n:04}_of_a_table_with_a_rather_long_name" for n in range(1000)]
    running = under_way(rows=4000, chunks=1)
    queued = under_way(state="waiting", rows=0, chunks=0, started_at=None, rows_per_second=None)
    dumps = [dump_of(n, name, **(running if n < 4 else queued)) for n, name in enumerate(names[700:])]
    rates = {f"public.{name}": float(n % 37) for n, name in enumerate(names)}
    tables = tables_of(*names[:700]) | tables_of(*names[700:], dumped=False)
    held_back = "active_sessions is 212, limits.active_sessions is 150"
    return Picture(tables=tables, dumps=dumps, rates=rates, held_back=held_back)


def standby() -> Picture:
    return Picture(standby=True, rates={}, lag=lambda _before: None)


def store_gone() -> Picture:
    return Picture(store_gone=True, lag=lambda before: max(0.5, 190 - before), lag_bytes=41 << 20)


PICTURES: dict[str, Callable[[], Picture]] = {
    name.__name__: name
    for name in (
        nothing_yet, first_dump, steady, lagging, gap, quarantined, thousand, standby, store_gone
    )
}  # fmt: skip


def _manifests(picture: Picture) -> Iterator[Manifest]:
    for number in range(1, MANIFESTS + 1):
        newest, age = number == MANIFESTS, (MANIFESTS - number) * 10 + 3
        yield Manifest(
            number=number,
            term=3,
            write_id=str(number),
            source=IDENTITY,
            epoch=len(picture.gaps) + 1,
            position=0x2_1A40_0000 + number * 80_000,
            committed_at=ago(age),
            source_committed_at=ago(age + 1),
            files=[_file(number, name, 7 + 13 * n) for n, name in enumerate(list(picture.tables)[:5])],
            gaps=picture.gaps,
            notices=picture.notices if newest else [],
            tables=picture.tables,
            dumps=picture.dumps if newest else [],
        )


def _file(number: int, table: TableName, rows: int) -> LandedFile:
    first, last = Position(1, number, 0), Position(1, number, 9)
    path = f"log/{number}-{table}"
    return LandedFile(
        path=path, table=table, schema_id="1", kind="log", rows=rows, bytes=4000, first=first, last=last
    )


class _Progress(SimpleNamespace):
    """What the HTTP side reads of a capture's progress."""

    def figures(self, _newest: Manifest | None) -> AgentFigures:
        return AgentFigures(**self.known, at=time.time())


def _verified(picture: Picture) -> Verified:
    """Return a record of all tables, of which `differing` keys differ in the first."""
    record = Verified(lake="s3a://lake/tables", number=1, began_at=ago(1800)).naming(sorted(picture.tables))
    for hours, name in enumerate(record.tables):
        found = 0 if hours else picture.differing
        record = record.tried(name, Piece(rows=480_000), ago(3600 * 6 * hours + 1700), found, "run")
    return record


def _points(picture: Picture) -> list[dict[str, Any]]:
    points = []
    for before in range(3590, -1, -10):
        lag = picture.lag(before)
        rate = None if lag is None else sum(picture.rates.values()) * (1 + 0.3 * math.sin(before / 170))
        points.append(Point(time.time() - before, lag, picture.lag_bytes, rate))
    return [vars(point) for point in points]


@contextmanager
def drawn(name: str, **control: Any) -> Iterator[str]:
    """Serve the page of an agent in one of the states; yield its address."""
    picture, store = PICTURES[name](), MemoryStore("s3://lake/landing/shop")
    newest: Manifest | None = None
    for newest in _manifests(picture) if picture.tables else ():
        ManifestWriter(store).commit(newest)
    if picture.tables:
        failing = {"public.prices": "the source changed column price from int to date"}
        lake = Consumer(
            id="1",
            lake="s3a://lake/tables",
            manifest=MANIFESTS - 2,
            at=ago(40),
            failing=failing if name == "quarantined" else {},
        )
        store.put(record_path("1", "0"), lake.model_dump_json().encode())
        store.put(verified_path("1", 1), _verified(picture).model_dump_json().encode())
    known = {
        "lag_seconds": picture.lag(0),
        "lag_bytes": picture.lag_bytes,
        "dumps_held_back": picture.held_back,
    }
    live = live_agent(store, **control)
    lease = Lease.acquire(store, 15, holder="drawn")
    lease._state = lease.state.model_copy(
        update={"host": "db-agent-1", "pid": 4711, "term": 3, "since": ago(3 * 86_400)}
    )
    lease.renew(AgentFigures(**known | {"lag_seconds": 0.7}, at=time.time()))
    if picture.standby:
        live.stand_by()
    elif newest is not None:
        progress = _Progress(
            known=known, turned_at=time.monotonic(), lost_seconds=0.0, rows=Counter(), load={},
            dumps_held_back=picture.held_back,
        )  # fmt: skip
        config = SimpleNamespace(dump=DumpConfig())
        live.activate(SimpleNamespace(newest=newest, progress=progress, config=config), lease)  # type: ignore[arg-type]
    if picture.store_gone:
        for operation in ("read", "list", "folders", "replace"):
            store.fail(operation, times=10**9, error=TransientError("s3://lake: no answer in 5 s"))
        live._observed.failing_since = time.monotonic() - 185
    with (
        mock.patch.object(History, "points", side_effect=lambda: _points(picture)),
        mock.patch.object(History, "rows_per_second", return_value=picture.rates),
        serving(live) as url,
    ):
        yield str(url)
