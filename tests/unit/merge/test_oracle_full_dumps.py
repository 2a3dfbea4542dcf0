"""Full dumps over random histories of which the log lacks something, against the source at every cut.

Rows vanish and change without an event, and a dump with a floor repairs that; chunks are committed late, log
lands again, and a merge starts from any earlier frontier. `merge.plan` is the real one. Each mutant takes one
of its rules out, and must be found out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from merge.plan import Manifests, plan_table
from tests.support.landing.histories import Key, Row
from tests.support.landing.landed import Chunk, Event, Landed
from tests.unit.merge.test_oracle import SCHEMA, Target, apply_rules, read

NAMES = ("k0", "k1", "k2", "k3")
HALVES = (NAMES[:2], NAMES[2:])


@dataclass
class Dump:
    """A full dump in two chunks; it sees all that happened up to `floor`."""

    number: int
    started_in: int
    floor: int
    lows: list[int] = field(default_factory=list)
    finished_in: int | None = None


@dataclass
class Source:
    """A table of whole rows, its log, and an agent that lands log and dumps."""

    r: random.Random
    landed: Landed = field(default_factory=Landed)
    lsn: int = 0
    state: dict[str, int] = field(default_factory=dict)
    states: dict[int, dict[str, int]] = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)
    chunks: list[tuple[Chunk, Dump | None]] = field(default_factory=list)
    dumps: list[Dump] = field(default_factory=list)
    unlogged: list[int] = field(default_factory=list)
    numbers: int = 0

    def __post_init__(self) -> None:
        self.landed.table(SCHEMA)
        self.begin(floor=0)
        self.landed.commit(0)

    def row(self, name: str, a: int | None) -> Row:
        return {"h": 1, "k": name, "a": a, "b": None, "c": None}

    def change(self) -> None:
        self.lsn += 1
        name, op = self.r.choice(NAMES), "update"
        if name in self.state and self.r.random() < 0.4:
            del self.state[name]
            self.log.append(Event("delete", self.lsn, 0, {"h": 1, "k": name}))
        else:
            op = op if name in self.state else "insert"
            self.state[name] = self.lsn
            self.log.append(Event(op, self.lsn, 0, self.row(name, self.lsn)))
        self.states[self.lsn] = dict(self.state)

    def change_unlogged(self) -> None:
        self.lsn += 1
        for name in list(self.state):
            if self.r.random() < 0.5:
                del self.state[name]
        self.states[self.lsn] = dict(self.state)
        self.unlogged.append(self.lsn)
        self.begin(floor=self.lsn)

    def begin(self, floor: int) -> None:
        """Queue a full dump; one that has not begun sees this change, too."""
        if self.dumps and not self.dumps[-1].lows:
            self.dumps[-1].floor = floor
            return
        self.numbers += 1
        self.dumps.append(Dump(self.numbers, self.landed.number + 1, floor))

    def read_chunk(self) -> None:
        """Read the next chunk of the dump that is under way, or some keys."""
        full = next((d for d in self.dumps if len(d.lows) < 2), None)
        dump = None if self.r.random() < 0.2 else full
        if dump is None:
            self.numbers += 1
        names = self.r.sample(NAMES, 2) if dump is None else HALVES[len(dump.lows)]
        low = max(self.lsn - self.r.choice((0, 0, 2, 5)), dump.floor if dump else 0)
        rows = [self.row(name, self.state[name]) for name in names if name in self.state]
        absent = [{"h": 1, "k": name} for name in names if name not in self.state and dump is None]
        number = dump.number if dump else self.numbers
        self.chunks.append((Chunk(low, self.lsn, rows, absent, number), dump))
        if dump is not None:
            dump.lows.append(low)

    def commit(self) -> None:
        """Commit a manifest: log, perhaps some of it again, and some of the chunks that may go along."""
        before = self.landed.manifests[-1].position
        position = self.r.randint(before, self.lsn)
        again = self.r.choice((before, before, self.r.randint(0, before)))
        log = [event for event in self.log if again < event.lsn <= position]
        files = [self.landed.log(SCHEMA, log)] if log else []
        ready = [
            (c, d) for c, d in self.chunks if c.high <= position and self.r.random() < (0.3, 0.8)[bool(d)]
        ]
        self.chunks = [found for found in self.chunks if found not in ready]
        files += [self.landed.chunk(SCHEMA, chunk) for chunk, _ in ready if chunk.events()]
        waiting = {dump.number for _, dump in self.chunks if dump}
        for dump in self.dumps:
            if dump.finished_in is None and len(dump.lows) == 2 and dump.number not in waiting:
                dump.finished_in = self.landed.number + 1
                low = min(dump.lows)
                self.landed.full_dump(SCHEMA.table, dump.number, low, started_in=dump.started_in)
        self.landed.commit(position, files)

    def truth(self) -> dict[Key, int] | None:
        """Return the rows at the last manifest's position; None if the cut is not exact yet."""
        position = self.landed.manifests[-1].position
        ended = [dump.floor for dump in self.dumps if dump.finished_in is not None]
        if not ended or any(u > max(ended) for u in self.unlogged if u <= position):
            return None
        at = max((lsn for lsn in self.states if lsn <= position), default=None)
        return {(1, name): a for name, a in (self.states[at] if at is not None else {}).items()}


def run(seed: int, mutant: str = "", reader_of: Callable[[Landed], Manifests] = lambda _: _) -> bool:
    """Return whether every exact cut is the source. `reader_of`: what a merge reads manifests with."""
    r = random.Random(seed)
    source, target, frontier = Source(r), dict[Key, Target](), 0
    reader = reader_of(source.landed)
    for _ in range(r.randint(20, 120)):
        dice = r.random()
        if dice < 0.4:
            source.change()
        elif dice < 0.45:
            source.change_unlogged()
        elif dice < 0.7:
            source.read_chunk()
        elif dice < 0.85:
            source.commit()
        elif source.landed.number > frontier:
            after = r.choice((frontier, frontier, r.randint(0, frontier)))
            merge(source, reader, target, after, mutant)
            frontier, truth = source.landed.number, source.truth()
            if truth is not None and truth != {k: row.known.columns["a"][0] for k, row in target.items()}:
                return False
    return True


def merge(source: Source, reader: Manifests, target: dict[Key, Target], after: int, mutant: str) -> None:
    plan = plan_table(SCHEMA.table, reader, after, source.landed.number)
    plan = replace(plan, **MUTANTS[mutant]) if mutant else plan
    events = read(source.landed, plan)
    for sweep in plan.sweeps:
        dumped = {key_of(e) for file in sweep.chunks for e in source.landed.events[file.path]}
        at = {"lsn": sweep.position.lsn, "seq": sweep.position.seq}
        ghosts = [key for key, row in target.items() if row.position < sweep.position and key not in dumped]
        events += [Event("delete", values={"h": h, "k": k}, **at) for h, k in ghosts]
    apply_rules(target, events)


def key_of(event: Event) -> Key:
    return event.values["h"], event.values["k"]


MUTANTS: dict[str, dict[str, Any]] = {
    "what was before the dump counts": {"swept": None},
    "nothing is swept": {"sweeps": ()},
}


def test_every_exact_cut_is_the_source_whatever_lands_late_or_again() -> None:
    assert [seed for seed in range(500) if not run(seed)] == []


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_left_out_is_found_out(mutant: str) -> None:
    assert not all(run(seed, mutant) for seed in range(1000))
