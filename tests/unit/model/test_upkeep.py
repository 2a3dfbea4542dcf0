"""A lake that merges, a compactor and a remover, each killed at any write, on one landing zone.

`compact`, `horizon`, `remove_unneeded` and `plan_table` are the real ones; files hold nothing but the log
positions of their events, so joining them is restated (`_joined`). So is how `merge.landing_zone` reads
manifests and records (`_Reader`), and when `merge.job` and `merge.lake.consumer` record how far a lake is
(`Upkeep._merge`).

Compactor and remover read ahead up to their next write: what they act on is as old as it can be. A merge
lists manifests and plans in one step, and opens each file in another. Time is days, of which one passes only
while nothing runs: neither a merge nor a pause is as long as originals stay.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from connector.errors import GapError
from connector.landing import format
from connector.landing.consumers import Consumer, record_path
from connector.landing.format import block_of
from connector.landing.manifest import DumpState, LandedFile, Manifest
from connector.landing.manifest_store import (
    ManifestReader,
    read_compacted,
    read_compaction_progress,
    read_retained,
)
from connector.maintenance import compaction, retention
from connector.testing.memory_store import MemoryStore
from merge.plan import TablePlan, plan_table
from tests.support.landing.landed import AT, Chunk, Event, Landed, schema_of
from tests.unit.model.checker import Search, search
from tests.unit.model.replay import Asks, Ended, Objects, perform
from tests.unit.model.replay import run as replay

NEEDED = "what a lake has yet to merge is kept"
AGAIN = "what its merges read again is kept"
GRACE = "originals stay for a day after the record"
FILES_FIRST = "new files are durable before the record"
WHOLE = "a record counts only for who reads to the end of its block"
RESUMED = "who goes on from within a block leaves out what it has applied"
AFTERWARDS = "how far a lake is is recorded after the merge"

DAY = timedelta(days=1)
SCHEMA = schema_of("public.t", k="int")
TABLE = SCHEMA.table
NEWEST = 7
COMPACTED = 3
UPTO = (2, 3, 7)
"""Merges end within the block that is compacted, at its end, or at the newest manifest."""

READS = ("read", "read_versioned", "list", "folders")

Process = tuple[str, int, tuple[Any, ...]]
"""A run of the compactor or the remover: which, on which day it began, and the answers it has had."""


@dataclass(frozen=True)
class Merge:
    """A merge under way: its range, its stage, what is left to read of its plan, and what it has read."""

    after: int
    upto: int
    stage: str = "register"
    plan: tuple[tuple[str, bool], ...] = ()
    low: tuple[int, ...] = ()
    read: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class World:
    """`left`: how many runs of each kind may still begin. `merged`: the lake's frontier, by its cut."""

    objects: Objects
    merged: int
    day: int = 0
    merge: Merge | None = None
    process: Process | None = None
    left: tuple[tuple[str, int], ...] = ()
    wrong: str | None = None


def event(lsn: int) -> Event:
    return Event("insert", lsn, 0, {"k": lsn})


def landed_zone() -> tuple[Objects, Landed]:
    """Land seven manifests: 1, and the blocks 2 to 3, 4 to 5 and 6 to 7; a chunk in 7 reads 6 again."""
    store, landed = MemoryStore(), Landed()
    landed.table(SCHEMA)
    begun = {"state": "running", "epoch": 1, "requested_at": AT, "started_in": 6}
    dump = DumpState(id="dump-1", number=1, table=TABLE, kind="keys", **begun)
    for number in range(1, NEWEST + 1):
        files = [landed.log(SCHEMA, [event(10 * number - 1)])]
        if number == NEWEST:
            files.append(landed.chunk(SCHEMA, Chunk(49, 60, [{"k": 1}])))
            landed.dumps[:] = [
                dump.model_copy(update={"state": "complete", "finished_in": NEWEST, "low": 49})
            ]
        elif number == 6:
            landed.dumps.append(dump)
        files = [file.model_copy(update={"bytes": len(_content(landed, file))}) for file in files]
        landed.put = store.put
        landed.commit(10 * number, files)
        landed.put = None
        for file in files:
            store.put(file.path, _content(landed, file))
    return tuple(sorted((path, 1, data) for path, data in store.objects.items())), landed


def _content(landed: Landed, file: LandedFile) -> bytes:
    return json.dumps([list(e.position) for e in landed.events[file.path]]).encode()


class Upkeep:
    """The steps, with the design's rules but for `without`."""

    def __init__(self, without: str = "") -> None:
        self.without = without
        self.first, self.landed = landed_zone()
        self._known: dict[tuple[Process, Objects], tuple[Any, tuple[Any, ...]]] = {}

    def start(self, merged: int, **left: int) -> World:
        """Begin with a lake that has merged so far; `left`: how many runs of each kind there are."""
        objects = _recorded(self.first, merged) if merged else self.first
        return World(objects, merged, left=tuple(left.items()))

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for kind, left in world.left:
            if left and kind == "merge" and world.merge is None:
                for upto in UPTO[bisect(UPTO, world.merged) :]:
                    new = replace(world, left=_less(world.left, kind), merge=Merge(world.merged, upto))
                    yield f"merge {world.merged} to {upto} begins", new
            elif left and kind != "merge" and world.process is None:
                new = replace(world, left=_less(world.left, kind))
                yield f"{kind} begins", self._ahead(new, (kind, world.day, ()))
        if world.process is not None:
            yield f"{world.process[0]} is killed", replace(world, process=None)
            yield self._written(world, world.process)
        if world.merge is not None:
            yield "the merge is killed", replace(world, merge=None)
            yield from self._merge(world, world.merge)
        elif world.day == 0 and world.process is None:
            yield "a day passes", replace(world, day=1)

    def _asks(self, process: Process) -> Asks | Ended:
        kind, day, answers = process
        programs = {"compact": self._compact, "retain": self._retain}
        return replay(lambda store: programs[kind](store, day), answers)

    def _compact(self, store: Any, day: int) -> None:
        late: list[tuple[str, bytes]] = []
        kept = late if self.without == FILES_FIRST else None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compaction, "join", lambda of, files: _joined(of, files, kept, day))
            oldest = (found := read_retained(store)) and found.first
            clock = lambda: AT + timedelta(hours=2) + day * DAY  # noqa: E731
            compaction.compact(store, oldest or 1, COMPACTED, clock=clock)
            for path, data in late:
                store.put(path, data)

    def _retain(self, store: Any, day: int) -> None:
        now = AT + (day + 9) * DAY
        history = retention.History.of(store)
        assert history is not None
        needed = retention.horizon(history, timedelta(0), now)
        retention.remove_unneeded(history, needed, now=now, dry_run=False)

    def _ahead(self, world: World, process: Process) -> World:
        """Let a process read up to its next write, or to its end."""
        key = (process, world.objects)
        if key not in self._known:
            kind, day, answers = process
            while isinstance(asks := self._asks((kind, day, answers)), Asks) and asks.call[0] in READS:
                answers = (*answers, perform(world.objects, asks.call)[1])
            self._known[key] = (asks, answers)
        asks, answers = self._known[key]
        ended = isinstance(asks, Ended)
        return replace(world, process=None if ended else (process[0], process[1], answers))

    def _written(self, world: World, process: Process) -> tuple[str, World]:
        asks = self._asks(process)
        assert isinstance(asks, Asks)
        objects, answer = perform(world.objects, asks.call)
        new = self._ahead(replace(world, objects=objects), (*process[:2], (*process[2], answer)))
        return f"{process[0]}: {asks.call[0]} {asks.call[1].rpartition('/')[2]}", new

    def _merge(self, world: World, merge: Merge) -> Iterator[tuple[str, World]]:
        if merge.stage == "register":
            objects = world.objects if merge.after else _recorded(world.objects, 0)
            if self.without == AFTERWARDS:
                objects = _recorded(objects, merge.upto)
            new = replace(merge, stage="list")
            yield "merge: register", replace(world, objects=objects, merge=new)
        elif merge.stage == "list":
            yield "merge: list manifests and plan", self._planned(world, merge)
        elif merge.plan:
            yield self._file_read(world, merge)
        elif merge.stage == "read":
            wrong = self._compared(merge)
            new = replace(world, merged=merge.upto, merge=replace(merge, stage="record", read=()))
            yield "merge: commit the table and the cut", replace(new, wrong=world.wrong or wrong)
        else:
            objects = _recorded(world.objects, world.merged)
            yield "merge: record how far it is", replace(world, objects=objects, merge=None)

    def _planned(self, world: World, merge: Merge) -> World:
        """Restates how a merge begins: what can no longer be read is refused, clearly."""
        zone = _Reader(world.objects, self.without)
        if zone.is_given_up(merge.upto):
            return replace(world, merge=None)
        try:
            plan = plan_table(TABLE, zone, merge.after, merge.upto)
        except GapError as error:
            if not merge.after:
                return replace(world, merge=None)  # a new lake may come too late; it requests a full dump
            return replace(world, merge=None, wrong=f"a registered lake finds that {error}")
        if self.without == RESUMED:
            plan = _nothing_resumed(plan)
        files = tuple((f.path, True) for f in plan.files) + tuple((f.path, False) for f in plan.again)
        return replace(world, merge=replace(merge, stage="read", plan=files, low=tuple(plan.low)))

    def _file_read(self, world: World, merge: Merge) -> tuple[str, World]:
        (path, new), rest = merge.plan[0], merge.plan[1:]
        data = perform(world.objects, ("read", path))[1]
        label = f"merge: read {path.rpartition('/')[2]}"
        if data is None and _Reader(world.objects, self.without).is_given_up(merge.upto):
            return f"{label}: gone, as the next try says", replace(world, merge=None)
        if data is None:
            return label, replace(world, merge=None, wrong=f"a merge finds {path} missing")
        events = tuple(tuple(e) for e in json.loads(data) if new or tuple(e) > merge.low)
        return label, replace(world, merge=replace(merge, plan=rest, read=(*merge.read, *events)))

    def _compared(self, merge: Merge) -> str | None:
        """Compare what was read with what a merge of the whole landing zone reads."""
        wanted, got = self._wanted(merge.after, merge.upto), sorted(merge.read)
        if got == wanted:
            return None
        return f"merge {merge.after} to {merge.upto} reads {_lsns(got)} in place of {_lsns(wanted)}"

    def _wanted(self, after: int, upto: int) -> list[tuple[int, ...]]:
        plan = plan_table(TABLE, self.landed, after, upto)
        events = self.landed.events
        new = [e.position for file in plan.files for e in events[file.path]]
        again = [e.position for file in plan.again for e in events[file.path] if e.position > plan.low]
        return sorted(tuple(position) for position in new + again)


class _Reader:
    """The manifests as `merge.landing_zone.LandingZone` reads them, with the records of their blocks."""

    def __init__(self, objects: Objects, without: str) -> None:
        self._store, self._without = MemoryStore(), without
        for path, _, data in objects:
            self._store.objects[path] = data

    def is_given_up(self, upto: int) -> bool:
        """Restates `check_end`: return whether the state after a manifest can no longer be read."""
        progress, last = read_compaction_progress(self._store), block_of(upto)[1]
        return progress is not None and upto < last <= progress.removing

    def get(self, number: int) -> Manifest:
        manifest = ManifestReader(self._store).read(number)
        if manifest is None:
            raise GapError(f"manifest {number} is missing")
        last = block_of(number)[1]
        manifest.compacted = read_compacted(self._store, last if self._without == WHOLE else number)
        return manifest

    def is_removed(self, number: int) -> bool:
        return False


def _nothing_resumed(plan: TablePlan) -> TablePlan:
    return replace(plan, files=plan.files + tuple(f for f in plan.again if f.kind == "log"), again=())


def _joined(
    store: Any, files: list[LandedFile], late: list[tuple[str, bytes]] | None, day: int
) -> LandedFile:
    """Restates `connector.maintenance.compaction.join`: the events of several files in one."""
    contents = [store.read(file.path) for file in files]
    for file, data in zip(files, contents, strict=True):
        if data is None:
            raise compaction.DamagedFileError(file.path)
    data = json.dumps([position for content in contents for position in json.loads(content)]).encode()
    path = files[0].path.replace("log-", f"joined-{day}-")
    if late is None:
        store.put(path, data)
    else:
        late.append((path, data))
    last = max(file.last for file in files)
    return files[0].model_copy(update={"path": path, "last": last, "bytes": len(data)})


def _recorded(objects: Objects, merged: int) -> Objects:
    return perform(objects, ("put", record_path("lake", "0"), _consumer(merged)))[0]


def _consumer(merged: int) -> bytes:
    return Consumer(id="lake", lake="lake", manifest=merged, at=AT).model_dump_json().encode()


def _less(left: tuple[tuple[str, int], ...], kind: str) -> tuple[tuple[str, int], ...]:
    return tuple((name, count - (name == kind)) for name, count in left)


def _lsns(events: list[tuple[int, ...]]) -> list[int]:
    return [lsn for _, lsn, _ in events]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format, "MANIFESTS_PER_BLOCK", 2)
    monkeypatch.setattr(compaction, "FEW_FILES", 1)
    monkeypatch.setattr(compaction, "read_ahead", map)


def explore(start: dict[str, int], without: str = "") -> Search:
    model = Upkeep(without)
    return search(model.start(**start), model.steps, lambda world: world.wrong, 60_000)


NEW = {"merged": 0, "compact": 2, "merge": 1}
WITHIN = {"merged": 2, "compact": 2, "merge": 1}
BEHIND = {"merged": 2, "compact": 1, "retain": 1, "merge": 2}
READS_AGAIN = {"merged": 6, "retain": 1, "merge": 1}
STARTS = {"new": NEW, "within a block": WITHIN, "behind": BEHIND, "reads again": READS_AGAIN}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_merge_reads_each_change_once_and_lacks_none_that_its_lake_needs(start: dict[str, int]) -> None:
    found = explore(start)
    print(found)
    assert found.wrong is None
    assert found.states > 300


@pytest.mark.parametrize(
    ("without", "start"),
    [
        (NEEDED, BEHIND), (AGAIN, READS_AGAIN), (GRACE, NEW), (FILES_FIRST, NEW), (WHOLE, NEW),
        (RESUMED, WITHIN), (AFTERWARDS, BEHIND),
    ],
)  # fmt: skip
def test_a_rule_left_out_is_found_out(
    without: str, start: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if without == NEEDED:
        monkeypatch.setattr(retention, "read_consumers", lambda _: [])
    if without == AGAIN:
        monkeypatch.setattr(retention, "read_again_after", lambda _, merged: merged)
    if without == GRACE:
        monkeypatch.setattr(compaction, "GRACE", timedelta(0))
    found = explore(start, without)
    print(f"without: {without}\n{found}")
    assert found.wrong is not None
