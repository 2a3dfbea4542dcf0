"""A table's history, without Spark: however it is merged, it is that of all events that have landed.

`merge.shapes.history_plan` is the real one; `tests.support.landing.versions` says the rules in plain Python.
What is derived from a plan's events, beginning with the versions at `since`, equals what all events give at
once. And it is true: each version agrees with the source's rows for as long as it is valid, and those that
are open are the current rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

import pytest

from connector.errors import GapError
from connector.landing.manifest import Gap, Manifest
from connector.position import CHUNK_SEQ, Position
from connector.schema import TableName, TableSchema
from merge.plan import Manifests
from merge.shapes import history_plan
from merge.shapes.history_plan import HistoryPlan, plan_beginning, plan_history
from tests.support.landing import versions as rules
from tests.support.landing.histories import KEY, NAMES, Batch, Key, World, carried, whole
from tests.support.landing.landed import AT, Chunk, Event, Landed
from tests.support.landing.versions import Read, Version, versions
from tests.unit.merge.test_oracle import SCHEMA

Histories = dict[Key, list[Version]]


@dataclass
class Zone:
    """A world that lands: log twice and again, chunks late, and now and then a full dump in several chunks.

    A manifest's position and a chunk's high watermark come after the last event that counts. `loses`: some
    deletes never land, so there are ghosts; and now and then no log lands for a while, with a new epoch or
    without. A full dump follows: it has a `floor`, which may be raised once before its chunks are read; a
    failover without a gap lifts it.
    """

    r: random.Random
    world: World
    loses: bool
    landed: Landed = field(default_factory=Landed)
    schema: TableSchema = SCHEMA
    full: tuple[int, int, int] | None = None
    ended: list[tuple[Position, int, set[Key]]] = field(default_factory=list)
    epoch: int = 1
    floor: int | None = None
    repair: int | None = None
    begun: list[tuple[int, int]] = field(default_factory=lambda: [(1, -1)])
    """Each epoch, and the position from which on its log counts."""

    def __post_init__(self) -> None:
        self.landed.table(self.schema)

    @property
    def gaps(self) -> set[Position]:
        """Return all gaps that manifests ever told of."""
        manifests, table = self.landed.manifests, self.schema.table
        own = {Position.of_gap(*gap) for m in manifests for gap in m.tables[table].gaps}
        return own | {Position(gap.epoch, 0, -1) for m in manifests[-1:] for gap in m.gaps}

    @property
    def keys(self) -> list[Key]:
        return [(x.h, name) for x in self.world.histories for name in NAMES]

    def dump_in_full(self) -> None:
        if self.full is None:
            if self.floor is not None:  # as if all its transactions had ended
                for x in self.world.histories:
                    x.hidden.clear()
            self.world.chunk(self.keys, keyed=False)
            lows = [chunk.low for chunk in self.world.pending if chunk.dump == self.world.dump]
            if lows:
                self.full = self.world.dump, min(lows), self.landed.number + 1
                if self.floor is not None:
                    raised = self.r.choice([self.floor, min(lows) + 1])
                    self.require(self.world.dump, raised)

    def require(self, number: int, floor: int) -> None:
        """Let a full dump run that sees all commits before a floor; `number`: it has this one now."""
        self.landed.dumps[:] = [d for d in self.landed.dumps if d.number != self.repair]
        self.landed.repair(str(self.schema.table), number, floor, epoch=self.epoch)
        self.repair, self.floor = number, floor

    def raise_floor(self) -> None:
        """Raise the floor of the full dump that waits; log from after the new one may have landed before."""
        assert self.floor is not None
        assert self.repair is not None
        self.require(self.repair, self.r.randint(self.floor, max(self.floor, self.world.position + 1)))

    def lose_log(self) -> None:
        """Let no log land up to now."""
        world = self.world
        world.pending.clear()
        batch = world.commit(world.lsn)
        batch.log.clear()
        if self.r.random() < 0.5:
            for x in world.histories:  # every snapshot of the new epoch shows what the former one committed
                x.hidden.clear()
            self.epoch += 1
            self.begun.append((self.epoch, batch.position + 1))
            gap = Gap(epoch=self.epoch, after=1, before=batch.position + 1, reason="lost", found_at=AT)
            self.landed.gaps.append(gap)
        else:
            world.dump += 1
            self.require(world.dump, batch.position + 1)
        self.landed.commit(batch.position + 1, [], epoch=self.epoch)

    def at(self, lsn: int) -> Position:
        """Return the position after a transaction that landed, or was lost."""
        return Position([epoch for epoch, before in self.begun if before <= lsn][-1], lsn, CHUNK_SEQ - 1)

    def fail_over(self) -> None:
        """Let the history go on in another server's log: full dumps start over, and no floor holds."""
        self.world.pending.clear()
        self.full = None
        self.commit(everything=True)
        for x in self.world.histories:
            x.hidden.clear()
        self.epoch += 1
        position = self.landed.manifests[-1].position
        self.begun.append((self.epoch, position))
        if self.repair is not None:
            self.world.dump += 1
            again = {"number": self.world.dump, "id": f"dump-{self.world.dump}", "floor": None}
            again |= {"epoch": self.epoch, "started_in": self.landed.number + 1}
            dumps = self.landed.dumps
            dumps[:] = [d.model_copy(update=again) if d.number == self.repair else d for d in dumps]
            self.repair, self.floor = self.world.dump, None
        self.landed.commit(position, [], epoch=self.epoch)
        self.world.batches.append(Batch(position - 1, [], []))

    def commit(self, *, everything: bool = False) -> None:
        world, r, landed = self.world, self.r, self.landed
        batch = world.commit(world.lsn if everything else r.randint(world.position, world.lsn))
        batch.log[:] = [replace(e, epoch=self.epoch) for e in batch.log]
        batch.chunks[:] = [replace(c, epoch=self.epoch) for c in batch.chunks]
        if self.loses:
            batch.log[:] = [e for e in batch.log if e.op != "delete" or r.random() < 0.5]
        log = list(batch.log)
        r.shuffle(log)
        cut = r.randint(0, len(log))
        parts = [log[:cut], log[cut:], r.sample(log, len(log) // 3)]
        files = [landed.log(self.schema, part) for part in parts if part]
        files += [landed.chunk(self.schema, replace(c, high=c.high + 1)) for c in batch.chunks]
        older = [f for m in landed.manifests for f in m.files if f.kind == "log"]
        if older and r.random() < 0.2:
            again = r.choice(older)
            if landed.put is not None:
                files.append(again)
            elif again.path in landed.events:  # it may be gone, after it was compacted
                files.append(landed.log(self.schema, landed.events[again.path]))
        if self.full and not any(chunk.dump == self.full[0] for chunk in world.pending):
            number, low, started = self.full
            landed.full_dump(
                str(self.schema.table),
                number,
                low,
                started_in=started,
                epoch=self.epoch,
            )
            there = {
                (row["h"], row["k"])
                for b in world.batches
                for c in b.chunks
                if c.dump == number
                for row in c.rows
            }
            at = Position.of_chunk(self.epoch, low, number)
            self.ended.append((at, batch.position + 1, there))
            self.full = self.floor = self.repair = None
        landed.commit(batch.position + 1, files, epoch=self.epoch)


def expected(zone: Zone) -> Histories:
    """Derive each key's versions from everything that has landed."""
    log, reads = list[Event](), list[Read]()
    ended = Position(0, 0, 0)
    finished = {d.finished_in: d.number for d in zone.landed.dumps}
    for number, batch in enumerate(zone.world.batches, 1):
        log += batch.log
        reads += [Read(e, c.high + 1) for c in batch.chunks for e in c.events() if e.position > ended]
        if number in finished:
            ended = next(at for at, _, _ in zone.ended if at.seq == CHUNK_SEQ + finished[number])
    return derived(zone, log, reads, [*zone.ended], {}, zone.gaps)


def derived(
    zone: Zone,
    log: Iterable[Event],
    reads: Iterable[Read],
    ended: Iterable[tuple[Position, int, set[Key]]],
    base: dict[Key, Version],
    gaps: Collection[Position],
) -> Histories:
    logs: dict[Key, list[Event]] = {key: [] for key in zone.keys}
    found: dict[Key, list[Read]] = {key: [] for key in zone.keys}
    for event in log:
        for key in zone.keys if event.op == "truncate" else [(event.values["h"], event.values["k"])]:
            logs[key].append(event)
    for read in reads:
        found[read.event.values["h"], read.event.values["k"]].append(read)
    for at, high, there in ended:
        for h, k in set(zone.keys) - there:
            key = dict(zip(KEY, (h, k), strict=True))
            event = Event("delete", at.lsn, at.seq, key, epoch=at.epoch)
            found[h, k].append(Read(event, high))
    return {key: versions(logs[key], found[key], gaps, base.get(key)) for key in zone.keys}


def merged(zone: Zone, before: Histories, plan: HistoryPlan) -> Histories:
    """Take over the versions at `since`, and derive what follows from the plan's events."""
    highs = {f.path: f.high or 0 for f in plan.chunks}
    events = [(e, f) for f in plan.files for e in zone.landed.events[f.path] if e.position > plan.since]
    log = [e for e, f in events if f.kind == "log"]
    reads = [Read(e, highs[f.path]) for e, f in events if f.kind == "chunk"]
    ended = []
    for end in plan.ended:
        there = {(e.values["h"], e.values["k"]) for f in end.chunks for e in zone.landed.events[f.path]}
        ended.append((end.position, end.high, there))
    kept = {key: [v for v in found if v.since <= plan.since] for key, found in before.items()}
    base = {
        key: replace(found[-1], until=None, ended=None)
        for key, found in kept.items()
        if found and (found[-1].until is None or found[-1].until > plan.since)
    }
    after = derived(zone, log, reads, ended, base, plan.gaps)
    return {
        key: [*(found[:-1] if key in base else found), *after[key]] if after[key] else found
        for key, found in kept.items()
    }


def run(seed: int, loses: bool = False, reader_of: Callable[[Landed], Manifests] = lambda _: _) -> None:
    """`reader_of`: what a merge reads a landing zone's manifests with."""
    r = random.Random(seed)
    truncates = r.random() < 0.3
    zone = Zone(r, World(r, 1 if truncates else 2, truncates), loses)
    found: Histories = {key: [] for key in zone.keys}
    frontier, reader = 0, reader_of(zone.landed)
    for _ in range(r.randint(5, 40)):
        zone.world.step()
        if r.random() < 0.1:
            zone.dump_in_full()
        if loses and zone.full is None and zone.repair is None and r.random() < 0.05:
            zone.lose_log()
        if zone.floor is not None and zone.full is None and r.random() < 0.2:
            zone.raise_floor()
        if r.random() < 0.03:
            zone.fail_over()
        if r.random() < 0.4:
            zone.commit()
        if zone.landed.number > frontier and r.random() < 0.6:
            after = r.choice([frontier, frontier, r.randint(0, frontier)])
            found = merged(zone, found, plan_history(SCHEMA.table, reader, after, zone.landed.number))
            frontier = zone.landed.number
            assert found == expected(zone), f"seed {seed}"
            check(zone, found, seed)
            lacking = [key for key, all_ in found.items() if all_ and all_[-1].known.missing]
            if lacking and zone.full is None:
                zone.world.chunk(lacking, keyed=True)


def check(zone: Zone, found: Histories, seed: int) -> None:
    """Check that versions are in order, and true wherever the log tells so; what is open is what is known.

    Where log is lost, that is only where an event begins a version.
    """
    histories = {x.h: x for x in zone.world.histories}
    for (h, name), all_ in found.items():
        for version, later in zip(all_, [*all_[1:], None], strict=False):
            assert later is None or (version.until is not None and version.until <= later.since), seed
        for commit in histories[h].log:
            end = zone.at(commit.lsn)
            valid = [v for v in all_ if v.since <= end and (v.until is None or v.until > end)]
            told = any(v.began and v.since[:2] == end[:2] for v in valid) and name in commit.state
            told = told or not zone.loses
            if valid and told and commit.lsn <= zone.world.position:
                (version,) = valid
                assert name in commit.state, f"seed {seed}: {name} at {commit.lsn}"
                assert version.known.agrees(whole(commit.state[name])), f"seed {seed}: {name} at {commit.lsn}"
    still_open = {key: v[-1].known for key, v in found.items() if v and v[-1].until is None}
    assert zone.gaps or zone.loses or still_open == zone.world.known(), f"seed {seed}"


@pytest.mark.parametrize("loses", [False, True])
def test_a_history_is_that_of_all_that_has_landed_however_it_is_merged(loses: bool) -> None:
    for seed in range(250):
        run(seed, loses)


MUTANTS = [
    "reads nothing again",
    "chunks count whole",
    "late chunks count",
    "no dump ends",
    "gaps don't matter",
    "no gap is told",
    "no gap is told late",
    "only floors show gaps",
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_left_out_is_found_out(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant == "reads nothing again":
        monkeypatch.setattr(history_plan, "landed_after", lambda *_: [])
    if mutant == "chunks count whole":
        monkeypatch.setattr(rules, "known_at_low", lambda read, _: carried(read.event))
    if mutant == "late chunks count":
        monkeypatch.setattr(history_plan, "_swept", lambda *_: Position(0, 0, 0))
    if mutant == "no dump ends":
        monkeypatch.setattr(history_plan, "_ended", lambda *_: [])
    if mutant == "gaps don't matter":
        monkeypatch.setattr(rules, "crosses", lambda *_: False)
    if mutant == "no gap is told":
        monkeypatch.setattr(history_plan, "_gaps", lambda *_: set())
    if mutant == "no gap is told late":
        monkeypatch.setattr(history_plan, "_late_gaps", lambda *_: set())
    if mutant == "only floors show gaps":
        monkeypatch.setattr(history_plan, "_listed", listed_by_floors)
    assert any(is_wrong(seed, loses) for seed in range(1000) for loses in (False, True))


def listed_by_floors(table: TableName, manifest: Manifest) -> set[Position]:
    floors = {(dump.epoch, dump.floor) for dump in manifest.dumps_of(table) if dump.floor is not None}
    return {Position.of_gap(*floor) for floor in floors} | {
        Position(gap.epoch, 0, -1) for gap in manifest.gaps
    }


def is_wrong(seed: int, loses: bool) -> bool:
    try:
        run(seed, loses)
    except AssertionError:
        return True
    return False


def test_a_ghost_ends_where_the_dump_that_lacks_it_begins_and_says_that_its_end_was_not_seen() -> None:
    def row(op: str, lsn: int, seq: int, **columns: object) -> Event:
        values = {"h": 1, "k": "x", "a": None, "b": None, "c": None, **columns}
        return Event(op, lsn, seq, values, epoch=2 if lsn > 100 else 1)

    inserted, chunk = row("insert", 10, 0, a=1), CHUNK_SEQ + 1
    gone = Read(row("delete", 50, chunk), 60)
    assert [(v.until, v.ended) for v in versions([inserted], [gone])] == [((1, 50, chunk), False)]
    # The log tells more of what happened while the dump was running.
    deleted = row("delete", 55, 0)
    assert [(v.until, v.ended) for v in versions([inserted, deleted], [gone])] == [((1, 55, 0), True)]
    # The first sight of a row; it goes on while dumps find it unchanged, and ends unseen where they don't.
    seen = [Read(row("dump", at, chunk, a=a), at + 5) for at, a in ((20, 1), (30, 1), (40, 2))]
    first, second = versions([], seen)
    assert (first.since, first.began, first.until, first.ended) == (
        (1, 20, chunk),
        False,
        (1, 40, chunk),
        False,
    )
    assert (second.began, second.until) == (False, None)
    # Between an insert and an update, a gap.
    update = row("update", 120, 0, a=3)
    assert [v.ended for v in versions([inserted, update], [], gaps=[Position(2, 0, -1)])] == [False, None]
    assert [v.ended for v in versions([inserted, update], [], gaps=[Position(1, 0, -1)])] == [True, None]


def test_where_the_first_manifests_are_gone_a_history_begins_with_the_last_full_dump() -> None:
    class Kept(Landed):
        def get(self, number: int) -> Manifest:
            if number < 2:
                raise GapError(f"manifest {number} is missing")
            return super().get(number)

    def at(lsn: int) -> Event:
        return Event("insert", lsn, 0, {"h": lsn, "k": "x", "a": 1, "b": "b", "c": 0.5})

    zone = Kept()
    zone.table(SCHEMA)
    zone.commit(10, [zone.log(SCHEMA, [at(5)])])
    zone.commit(20, [zone.log(SCHEMA, [at(15)])])
    zone.commit(30, [zone.log(SCHEMA, [at(25)])])
    with pytest.raises(GapError, match="manifest 1"):
        plan_beginning(SCHEMA.table, zone, 3)
    chunk = zone.chunk(SCHEMA, Chunk(29, 31, [at(5).values], dump=1))
    zone.full_dump(str(SCHEMA.table), 1, 29, started_in=4)
    zone.commit(40, [zone.log(SCHEMA, [at(35)]), chunk])
    plan = plan_beginning(SCHEMA.table, zone, 4)
    assert plan.since == (1, 29, CHUNK_SEQ)
    assert [file.first.lsn for file in plan.log] == [35]
    assert (plan.chunks, [end.position for end in plan.ended]) == ((chunk,), [(1, 29, CHUNK_SEQ + 1)])


def test_of_overlapping_full_dumps_one_that_ends_after_a_later_one_ends_no_version() -> None:
    zone = Landed()
    zone.table(SCHEMA)
    row = {"h": 1, "k": "x", "a": 1, "b": "b", "c": 0.5}
    zone.commit(15, [zone.chunk(SCHEMA, Chunk(10, 12, [row], dump=1))])
    zone.full_dump(str(SCHEMA.table), 2, 20, started_in=2)
    zone.commit(25, [zone.chunk(SCHEMA, Chunk(20, 22, [row], dump=2))])
    zone.full_dump(str(SCHEMA.table), 1, 10, started_in=1)
    zone.commit(35, [zone.chunk(SCHEMA, Chunk(30, 32, [row], dump=1))])
    for merges in (((0, 3),), ((0, 2), (2, 3)), ((0, 1), (1, 2), (2, 3))):
        plans = [plan_history(SCHEMA.table, zone, after, upto) for after, upto in merges]
        assert [end.position for plan in plans for end in plan.ended] == [(1, 20, CHUNK_SEQ + 2)]
