"""The merge's rules and its plan, without Spark: thousands of random histories against a plain fold.

`apply_rules` says in a few lines what `merge.reconcile` and `merge.apply` do in SQL; `merge.plan` is the real
one. Each mutant takes one rule out, and must be found out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from connector.landing.manifest import LandedFile
from connector.position import CHUNK_SEQ, Position
from connector.schema import TableSchema
from merge.plan import Manifests, TablePlan, plan_table
from tests.support.landing.histories import COLUMNS, KEY, Batch, Gone, Key, Known, World, carried, is_boundary
from tests.support.landing.landed import Event, Landed, schema_of

TABLE = "public.things"
SCHEMA: TableSchema = schema_of(TABLE, KEY, **COLUMNS)


@dataclass(frozen=True)
class Target:
    position: Position
    known: Known
    lives: bool = True


def land(landed: Landed, batch: Batch, r: random.Random) -> None:
    """Commit a batch as a manifest: split over files in any order, some of it twice, some older log again."""
    log = list(batch.log)
    r.shuffle(log)
    cut = r.randint(0, len(log))
    parts = [log[:cut], log[cut:], r.sample(log, len(log) // 3)]
    files = [landed.log(SCHEMA, part) for part in parts if part]
    files += [landed.chunk(SCHEMA, chunk) for chunk in batch.chunks]
    older = [f for m in landed.manifests for f in m.files if f.kind == "log"]
    if older and r.random() < 0.2 and (events := landed.events.get(r.choice(older).path)):
        files.append(landed.log(SCHEMA, events))
    landed.commit(batch.position, files)


def apply_rules(target: dict[Key, Target], events: Sequence[Event], soft: bool = False) -> None:
    last = max((e.position for e in events if e.op == "truncate"), default=Position(0, 0, 0))
    by_key: dict[Key, list[Event]] = {}
    if soft:
        last, events = Position(0, 0, 0), [*events, *truncated(target, events)]
    for key in [key for key, row in target.items() if row.position < last]:
        del target[key]
    for event in events:
        if event.op != "truncate" and event.position > last:
            by_key.setdefault((event.values["h"], event.values["k"]), []).append(event)
    for key, found in by_key.items():
        apply_key(target, key, sorted(found, key=lambda e: e.position), soft)


def truncated(target: dict[Key, Target], events: Sequence[Event]) -> list[Event]:
    """The deletes of the rows that each truncate finds."""
    states: dict[Key, list[tuple[Position, bool]]] = {}
    for key, row in target.items():
        states.setdefault(key, []).append((row.position, row.lives or row.position.seq >= CHUNK_SEQ))
    for e in (e for e in events if e.op != "truncate"):
        found = e.op != "delete" or e.seq >= CHUNK_SEQ
        states.setdefault((e.values["h"], e.values["k"]), []).append((e.position, found))
    deletes: list[Event] = []
    for at in sorted({e.position for e in events if e.op == "truncate"}):
        for (h, k), known in states.items():
            before = max((state for state in known if state[0] < at), default=None)
            if before is not None and before[1]:
                known.append((at, False))
                deletes.append(Event("delete", at.lsn, at.seq, {"h": h, "k": k}, epoch=at.epoch))
    return deletes


def apply_key(target: dict[Key, Target], key: Key, events: list[Event], soft: bool) -> None:
    winner = events[-1]
    deleted = winner.op == "delete"
    # Where deletes are soft, what a row was before its delete counts: that is no boundary then.
    parts = [e for e in events if not (soft and deleted and e.op == "delete")]
    since = max((e.position for e in parts if is_boundary(e)), default=None)
    columns: dict[str, tuple[object, str | None]] = {}
    for event in parts:
        columns = {**({} if is_boundary(event) else columns), **carried(event)}
    row = target.get(key)
    if row is not None:
        if (since is None or since <= row.position) and (row.lives or deleted):
            columns = {**row.known.columns, **columns}
        knows_more = since is not None and columns != row.known.columns
        if winner.position < row.position or (winner.position == row.position and not knows_more):
            return
    target.pop(key, None)
    if soft or not deleted:
        target[key] = Target(winner.position, Known(columns), not deleted)


def run(
    seed: int, mutant: str = "", soft: bool = False, reader_of: Callable[[Landed], Manifests] = lambda _: _
) -> None:
    """`reader_of`: what a merge reads a landing zone's manifests with."""
    r = random.Random(seed)
    truncates = r.random() < 0.3
    world, landed = World(r, 1 if truncates else 2, truncates), Landed()
    landed.table(SCHEMA)
    reader = reader_of(landed)
    target: dict[Key, Target] = {}
    frontier = 0
    for _ in range(r.randint(5, 40)):
        world.step()
        if r.random() < 0.4:
            land(landed, world.commit(r.randint(world.position, world.lsn)), r)
        if landed.number > frontier and r.random() < 0.6:
            after = r.choice([frontier, frontier, r.randint(0, frontier)])
            apply_rules(target, read(landed, plan(reader, landed, after, mutant)), soft)
            frontier = landed.number
            check(world, target, seed, soft)
            lacking = [key for key, row in target.items() if row.lives and row.known.missing]
            if lacking:
                world.chunk(lacking, keyed=True)


def plan(reader: Manifests, landed: Landed, after: int, mutant: str) -> TablePlan:
    planned = plan_table(SCHEMA.table, reader, after, landed.number)
    if mutant == "reads nothing again":
        return replace(planned, again=())
    if mutant == "chunks at their high watermark":
        return replace(planned, files=tuple(raised(landed, file) for file in planned.files))
    return planned


def raised(landed: Landed, file: LandedFile) -> LandedFile:
    if file.kind == "log":
        return file
    assert file.high is not None
    path = f"{file.path}.raised"
    landed.events[path] = [replace(event, lsn=file.high) for event in landed.events[file.path]]
    return file.model_copy(update={"path": path})


def read(landed: Landed, planned: TablePlan) -> list[Event]:
    new = [event for file in planned.files for event in landed.events[file.path]]
    again = [event for file in planned.again for event in landed.events[file.path]]
    events = new + [event for event in again if event.position > planned.low]
    return [event for event in events if planned.swept is None or event.position >= planned.swept]


def check(world: World, target: dict[Key, Target], seed: int, soft: bool) -> None:
    truth, known, seen = world.truth(), world.known(), world.seen()
    got = {key: row.known for key, row in target.items() if row.lives}
    gone = {key: Gone(row.position, row.known) for key, row in target.items() if not row.lives}
    assert gone == (world.gone() if soft else {}), f"seed {seed}"
    assert got == known, f"seed {seed}"
    assert all(row.agrees(truth[key]) for key, row in got.items()), f"seed {seed}"
    assert got.keys() & seen == truth.keys() & seen, f"seed {seed}"


@pytest.mark.parametrize("soft", [False, True])
def test_any_delivery_of_random_histories_gives_the_source_at_every_cut(soft: bool) -> None:
    for seed in range(500):
        run(seed, soft=soft)


@pytest.mark.parametrize("mutant", ["reads nothing again", "chunks at their high watermark"])
def test_a_rule_left_out_is_found_out(mutant: str) -> None:
    assert any(is_wrong(seed, mutant) for seed in range(1000))


def is_wrong(seed: int, mutant: str) -> bool:
    try:
        run(seed, mutant)
    except (AssertionError, KeyError):
        return True
    return False
