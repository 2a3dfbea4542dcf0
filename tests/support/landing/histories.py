"""Random histories of a source, with the expected result at every cut, by a direct reading of the rules.

A `World` is many small independent histories (distinguished by the key column `h`) that share the positions
of one log: commits that become visible late, partial updates, key changes, truncates, chunks read at random
moments with proven low watermarks, keyed dumps. `known` resolves everything that has landed, in plain Python.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from connector.position import CHUNK_SEQ, Position
from tests.support.landing.landed import Chunk, Event

Row = dict[str, Any]
Key = tuple[int, str]

NAMES = ("k 0", "k'1", "k\\2", "ké3")
VALUES = ("a", "b", "c")
COLUMNS = {"h": "int", "k": "string", "a": "bigint", "b": "string", "c": "double"}
KEY = ("h", "k")


@dataclass
class Commit:
    lsn: int
    events: list[Event]
    keys: set[str]
    state: dict[str, Row]


@dataclass
class History:
    """One group of keys in the source's table. `hidden`: commits that are not yet visible."""

    h: int
    r: random.Random
    truncates: bool
    state: dict[str, Row] = field(default_factory=dict)
    log: list[Commit] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)
    first: dict[str, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in NAMES:
            if self.r.random() < 0.3:
                self.state[name] = self._row(name, 0)
        self.first = _copy(self.state)

    def _row(self, name: str, lsn: int) -> Row:
        r = self.r
        raw = r.random() < 0.2
        return {
            "h": self.h, "k": name, "a": r.randrange(1 << 40),
            "b": None if r.random() < 0.1 else f"b{lsn}.{r.random()}",
            "c": None if raw else r.random(), "raw": {"c": f"raw{r.random()}"} if raw else {},
        }  # fmt: skip

    def commit(self, lsn: int) -> None:
        """Commit one transaction. Keys written by a hidden commit are still locked, as in a database."""
        r = self.r
        locked = {key for c in self.log if c.lsn in self.hidden for key in c.keys}
        free = [name for name in NAMES if name not in locked]
        events: list[Event] = []
        touched: set[str] = set()
        if self.truncates and not locked and r.random() < 0.08:
            self.state = {}
            events.append(Event("truncate", lsn, 0, {}))
            touched = set(NAMES)
        for _ in range(r.randint(1, 3) if free else 0):
            name = r.choice(free)
            touched.add(name)
            self._change(name, lsn, free, touched, events)
        if not events:
            return
        self.log.append(Commit(lsn, events, touched, _copy(self.state)))
        if r.random() < 0.4:
            self.hidden.append(lsn)

    def _change(self, name: str, lsn: int, free: list[str], touched: set[str], events: list[Event]) -> None:
        r, seq = self.r, 2 * len(events)
        key = {"h": self.h, "k": name}
        old, row = self.state.get(name), self._row(name, lsn)
        dice = r.random()
        moved = r.choice(free)
        if old is None:
            self.state[name] = row
            events.append(_event("insert", lsn, seq, row))
        elif dice < 0.25:
            del self.state[name]
            events.append(Event("delete", lsn, seq, key))
        elif dice < 0.55:
            kept = tuple(r.sample(VALUES, r.randint(1, 2)))
            new = _merged(old, row, kept)
            self.state[name] = new
            events.append(_event("update", lsn, seq, new, kept))
        elif dice < 0.7 and moved not in self.state:
            new = {**_merged(old, row, ("b",)), "k": moved}
            del self.state[name]
            self.state[moved] = new
            touched.add(moved)
            events.append(Event("delete", lsn, seq, key))
            events.append(_event("insert", lsn, seq + 1, new, ("b",)))
        else:
            self.state[name] = row
            events.append(_event("update", lsn, seq, row))

    def settle(self) -> None:
        if self.hidden and self.r.random() < 0.5:
            self.hidden.remove(self.r.choice(self.hidden))

    def snapshot(self) -> dict[str, Row]:
        seen = _copy(self.first)
        for commit in self.log:
            if commit.lsn not in self.hidden:
                for name in commit.keys:
                    seen.pop(name, None)
                    if name in commit.state:
                        seen[name] = dict(commit.state[name])
        return seen

    def low(self, reader: int) -> int:
        return min([reader, *(lsn - 1 for lsn in self.hidden)])

    def at(self, position: int) -> dict[str, Row]:
        states = [c.state for c in self.log if c.lsn <= position]
        return states[-1] if states else self.first


def _copy(state: dict[str, Row]) -> dict[str, Row]:
    return {name: dict(row) for name, row in state.items()}


def _merged(old: Row, new: Row, kept: Iterable[str]) -> Row:
    row = {**new, **{name: old[name] for name in kept}}
    raw = {name: text for name, text in new["raw"].items() if name not in kept}
    return {**row, "raw": raw | {name: text for name, text in old["raw"].items() if name in kept}}


def _event(op: str, lsn: int, seq: int, row: Row, unchanged: tuple[str, ...] = ()) -> Event:
    values = {name: row[name] for name in COLUMNS if name not in unchanged}
    raw = {name: text for name, text in row["raw"].items() if name not in unchanged}
    return Event(op, lsn, seq, values, unchanged, raw or None)


@dataclass(frozen=True)
class Batch:
    """What one manifest commits."""

    position: int
    log: list[Event]
    chunks: list[Chunk]

    def events(self) -> list[Event]:
        return [*self.log, *(event for chunk in self.chunks for event in chunk.events())]


@dataclass
class World:
    """Many histories in one log, an agent that reads it, and dumps at random moments.

    A truncate affects the whole table, so use only one history with `truncates`.
    """

    r: random.Random
    size: int
    truncates: bool = False
    lsn: int = 0
    position: int = 0
    dump: int = 0
    pending: list[Chunk] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    histories: list[History] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.histories = [
            History(h, random.Random(self.r.random()), self.truncates) for h in range(self.size)
        ]

    def step(self) -> None:
        """Run a transaction in about half of the histories, and sometimes dump a random share of the keys."""
        self.lsn += 1
        for history in self.histories:
            if history.r.random() < 0.5:
                history.commit(self.lsn)
            history.settle()
        if self.r.random() < 0.5:
            share = self.r.choice((0.1, 0.5))
            keyed = self.r.random() < 0.3
            self.chunk(
                [
                    (history.h, name)
                    for history in self.histories
                    for name in NAMES
                    if history.r.random() < share
                ],
                keyed,
            )

    def chunk(self, keys: Iterable[Key], keyed: bool) -> None:
        """Read keys in one snapshot per history; rows with the same low watermark form one chunk."""
        wanted: dict[int, list[str]] = {}
        for h, name in keys:
            wanted.setdefault(h, []).append(name)
        self.dump += 1
        by_low: dict[int, tuple[list[Row], list[Row]]] = {}
        for h, names in wanted.items():
            seen = self.histories[h].snapshot()
            rows, absent = by_low.setdefault(self.histories[h].low(self.position), ([], []))
            rows += [seen[name] for name in names if name in seen]
            absent += [{"h": h, "k": name} for name in names if name not in seen] if keyed else []
        for low, (rows, absent) in by_low.items():
            if rows or absent:
                self.pending.append(Chunk(low, self.lsn, rows, absent, self.dump))

    def commit(self, position: int) -> Batch:
        """Commit a manifest at a position, with the log up to it and some of the chunks that are ready."""
        log = [
            event
            for history in self.histories
            for commit in history.log
            if self.position < commit.lsn <= position
            for event in commit.events
        ]
        ready = [c for c in self.pending if c.high <= position and self.r.random() < 0.7]
        self.pending = [c for c in self.pending if c not in ready]
        self.position = position
        batch = Batch(position, log, ready)
        self.batches.append(batch)
        return batch

    def known(self) -> dict[Key, Known]:
        """Return what a reader of everything committed knows of each key."""
        events: dict[Key, list[Event]] = {}
        truncates = []
        for event in (event for batch in self.batches for event in batch.events()):
            if event.op == "truncate":
                truncates.append(event.position)
            else:
                events.setdefault((event.values["h"], event.values["k"]), []).append(event)
        last = max(truncates, default=Position(0, 0, 0))
        folds = {key: fold(e for e in found if e.position > last) for key, found in events.items()}
        return {key: row for key, row in folds.items() if row is not None}

    def gone(self) -> dict[Key, Gone]:
        """Return what a reader of everything committed knows of each key that is deleted."""
        events: dict[Key, list[Event]] = {}
        truncates = []
        for event in (event for batch in self.batches for event in batch.events()):
            if event.op == "truncate":
                truncates.append(event)
            else:
                events.setdefault((event.values["h"], event.values["k"]), []).append(event)
        folds = {key: fold_deleted([*found, *truncates]) for key, found in events.items()}
        return {key: gone for key, gone in folds.items() if gone is not None}

    def seen(self) -> set[Key]:
        """Return the keys for which a reader of everything committed knows at least whether they exist."""
        whole = ("insert", "delete", "dump")
        events = [event for batch in self.batches for event in batch.events()]
        if any(event.op == "truncate" for event in events):
            return {(history.h, name) for history in self.histories for name in NAMES}
        return {(e.values["h"], e.values["k"]) for e in events if e.op in whole}

    def truth(self) -> dict[Key, Known]:
        """Return the source's rows at the position of the last manifest."""
        return {(x.h, name): whole(row) for x in self.histories for name, row in x.at(self.position).items()}


@dataclass(frozen=True)
class Known:
    """What is known of a row: the value and raw text of each column that an event has carried."""

    columns: dict[str, tuple[Any, str | None]]

    @property
    def missing(self) -> set[str]:
        return set(VALUES) - set(self.columns)

    def agrees(self, truth: Known) -> bool:
        """Return whether all known columns match the truth."""
        return self.columns.items() <= truth.columns.items()


@dataclass(frozen=True)
class Gone:
    """What is known of a deleted row: the position of its delete, and its last version."""

    position: Position
    last: Known


def whole(row: Row) -> Known:
    return Known({name: (row[name], row["raw"].get(name)) for name in VALUES})


def carried(event: Event) -> dict[str, tuple[Any, str | None]]:
    """Return the columns that an event carries, with their raw texts."""
    names = (name for name in VALUES if name not in event.unchanged and event.op != "delete")
    return {name: (event.values[name], (event.raw or {}).get(name)) for name in names}


def is_boundary(event: Event) -> bool:
    """Return whether an event makes all earlier ones irrelevant."""
    return event.op in ("insert", "dump", "delete") or not event.unchanged


def fold(events: Iterable[Event]) -> Known | None:
    """Apply the events of one key in position order; return None if its row is deleted or unknown."""
    columns: dict[str, tuple[Any, str | None]] = {}
    alive = False
    for event in sorted(events, key=lambda e: e.position):
        columns = {**({} if is_boundary(event) else columns), **carried(event)}
        alive = event.op != "delete"
    return Known(columns) if alive else None


def fold_deleted(events: Iterable[Event]) -> Gone | None:
    """Apply the events of one key, truncates among them, in position order; return None unless it is deleted.

    A delete carries no column and is no boundary. A truncate finds a row unless the log deleted it before.
    """
    columns: dict[str, tuple[Any, str | None]] = {}
    gone, found = None, False
    for event in sorted(events, key=lambda e: e.position):
        if event.op == "truncate":
            gone, found = event.position if found else gone, False
        elif event.op == "delete":
            gone, found = event.position, event.seq >= CHUNK_SEQ
        else:
            columns = {**({} if is_boundary(event) else columns), **carried(event)}
            gone, found = None, True
    return None if gone is None else Gone(gone, Known(columns))
