"""A source whose commits become visible late, an agent that lands its log and dumps it, and merges.

The low watermarks are those of `Visibility`, what a merge reads is `plan_table`'s, and whether a cut is exact
`Manifest.exact`'s. Restated, for one row of one column per key: `DumpQueue.take_committable` (`_manifest`),
`connector.capture.loop` (the order of the agent's steps), `merge.reconcile`, `merge.change_set` and
`merge.apply` (`applied`), `merge.job` (the order of a merge's steps).

Merges begin when the agent has ended: manifests don't change, so a merge up to one of them reads the same
whether others follow or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest

from connector.landing.manifest import DumpState, InvisibleCommit
from connector.position import Position
from connector.postgres.visibility import Snapshot, Visibility
from connector.schema import TableName
from merge.plan import plan_table
from tests.support.landing.landed import AT, Chunk, Event, Landed, schema_of
from tests.unit.model.checker import Search, search

READ_AGAIN = "the log after the lowest low watermark is read again"
LOW = "a chunk's rows are positioned at its low watermark"
LOWERED = "a low watermark is below every commit that the snapshot does not show"
BELOW = "a low watermark is less than the position it derives from"
RECORDED = "manifests record the commits that are not visible yet"
OPENING = "nothing is forgotten while a chunk is opening"
HIGH = "a chunk is committed by a manifest at or after its high watermark"
DURABLE = "what is confirmed is in a manifest"
VERSION = "a merge that was overtaken can't commit"
CUT = "a cut is recorded after its tables"
DUMPED = "no cut is exact before all is dumped"

SCHEMA = schema_of("public.t", k="int", v="int")
TABLE: TableName = SCHEMA.table

Rows = tuple[tuple[int, int], ...]
"""Key and value of each row, in the order of the keys."""

Commit = tuple[int, int | None]
"""A transaction: its key, and the value that it leaves there; None for a delete."""


def rows_of(log: tuple[Commit, ...], first: Rows, shown: int = -1) -> Rows:
    """Return the rows after those of the commits that are `shown` (bits)."""
    rows = dict(first)
    for number, (key, value) in enumerate(log, 1):
        if shown >> number & 1:
            rows.pop(key, None)
            if value is not None:
                rows[key] = value
    return tuple(sorted(rows.items()))


@dataclass(frozen=True)
class Reading:
    """A chunk of a dump of all rows, in the making. `position`: where the log had been read to before."""

    stage: str = "waiting"
    position: int = 0
    high: int = 0
    shown: int = 0
    low: int = 0
    rows: Rows = ()


@dataclass(frozen=True)
class Landing:
    """A manifest: up to which commit the log has landed, its chunks, and what was not visible yet (bits)."""

    upto: int
    chunks: tuple[tuple[int, int, int, Rows], ...] = ()
    log: tuple[tuple[int, int, int | None], ...] = ()
    hidden: int = 0


@dataclass(frozen=True)
class Agent:
    """The source and the agent. Numbers of commits in place of positions; sets of commits are bits."""

    log: tuple[Commit, ...] = ()
    visible: int = 0
    read: int = 0
    landed: tuple[tuple[int, int, int | None], ...] = ()
    hidden: int = 0
    dumps: tuple[Reading, ...] = (Reading(), Reading())
    manifests: tuple[Landing, ...] = (Landing(0),)
    confirmed: int = 0
    crashes: int = 0


@dataclass(frozen=True)
class Job:
    """A merge from a frontier up to a manifest. `merged`: its table has been committed."""

    after: int
    upto: int
    merged: bool = False


Target = tuple[tuple[int, Position, int], ...]
"""Key, position and value of each row."""


@dataclass(frozen=True)
class Lake:
    """`version`: the manifest of the table's last commit; `cut`: the manifest, and the rows that it names."""

    log: tuple[Commit, ...]
    manifests: tuple[Landing, ...]
    target: Target = ()
    version: int = 0
    cut: int = 0
    shown: Rows = ()
    jobs: tuple[Job | None, ...] = (None, None)
    begun: int = 0


@dataclass(frozen=True)
class World:
    """What there is at first, and the bounds."""

    first: Rows = ((1, 0),)
    keys: tuple[int, ...] = (1,)
    commits: int = 3
    manifests: int = 3
    dumps: int = 2
    crashes: int = 1
    merges: int = 3


class Exactness:
    """The steps, with the design's rules but for `without`."""

    def __init__(self, world: World, without: str = "") -> None:
        self.world, self.without = world, without

    @property
    def start(self) -> Agent:
        return Agent(dumps=(Reading(),) * self.world.dumps, crashes=self.world.crashes)

    def steps(self, state: Agent | Lake) -> Iterator[tuple[str, Agent | Lake]]:
        if isinstance(state, Lake):
            yield from self._merges(state)
            return
        yield from self._source(state)
        yield from self._agent(state)
        for number, reading in enumerate(state.dumps):
            for label, new in self._read_chunk(state, reading):
                dumps = (*state.dumps[:number], new, *state.dumps[number + 1 :])
                yield f"dump {number + 1}: {label}", replace(state, dumps=dumps)
        if len(state.manifests) == self.world.manifests:
            landed = state.manifests[-1].upto
            yield (
                "merges begin",
                Lake(state.log[:landed], tuple(replace(m, hidden=0) for m in state.manifests)),
            )

    def _source(self, state: Agent) -> Iterator[tuple[str, Agent]]:
        end = len(state.log)
        locked = {key for n, (key, _) in enumerate(state.log, 1) if not state.visible >> n & 1}
        if end < self.world.commits:
            rows = dict(rows_of(state.log, self.world.first))
            for key in (key for key in self.world.keys if key not in locked):
                values = [end + 1, None] if key in rows else [end + 1]
                for value in values:
                    what = "delete" if value is None else "update" if key in rows else "insert"
                    yield f"commit {end + 1}: {what} {key}", replace(state, log=(*state.log, (key, value)))
        for n in range(1, end + 1):
            if not state.visible >> n & 1:
                yield f"commit {n} becomes visible", replace(state, visible=state.visible | 1 << n)

    def _agent(self, state: Agent) -> Iterator[tuple[str, Agent]]:
        if state.read < len(state.log):
            n = state.read + 1
            confirmed = n if self.without == DURABLE else state.confirmed
            new = replace(
                state, read=n, landed=(*state.landed, (n, *state.log[n - 1])), hidden=state.hidden | 1 << n
            )
            yield f"read commit {n}", replace(new, confirmed=confirmed)
        if state.hidden and (kept := self._not_forgotten(state)) != state.hidden:
            yield "forget visible commits", replace(state, hidden=kept)
        if len(state.manifests) < self.world.manifests:
            yield f"commit manifest {len(state.manifests) + 1}", self._manifest(state)
        if state.crashes:
            yield "the agent crashes and resumes", self._resumed(replace(state, crashes=state.crashes - 1))

    def _not_forgotten(self, state: Agent) -> int:
        opening = any(reading.stage in ("opening", "opened") for reading in state.dumps)
        if opening and self.without != OPENING:
            return state.hidden
        return _bits(not_forgotten(state.read, state.hidden, state.visible, len(state.log)))

    def _manifest(self, state: Agent) -> Agent:
        dumps, chunks = list(state.dumps), []
        for number, reading in enumerate(state.dumps):
            if reading.stage == "read" and (reading.high <= state.read or self.without == HIGH):
                chunks.append((number + 1, reading.low, reading.high, reading.rows))
                dumps[number] = Reading("committed")
        hidden = 0 if self.without == RECORDED else state.hidden
        landing = Landing(state.read, tuple(chunks), state.landed, hidden)
        return replace(state, manifests=(*state.manifests, landing), dumps=tuple(dumps), landed=())

    def _resumed(self, state: Agent) -> Agent:
        newest = state.manifests[-1]
        dumps = tuple(d if d.stage == "committed" else Reading() for d in state.dumps)
        read = max(newest.upto, state.confirmed)
        return replace(state, read=read, landed=(), hidden=newest.hidden, dumps=dumps)

    def _read_chunk(self, state: Agent, reading: Reading) -> Iterator[tuple[str, Reading]]:
        """Restates `connector.postgres.dump`: the position, the snapshot, the low watermark."""
        if reading.stage == "waiting":
            yield "take the position", Reading("opening", state.read)
        elif reading.stage == "opening":
            rows = rows_of(state.log, self.world.first, state.visible)
            end = len(state.log)
            yield "open the snapshot", Reading("opened", reading.position, end, state.visible, rows=rows)
        elif reading.stage == "opened":
            position = reading.position
            low = low_watermark(position, state.hidden, reading.shown, reading.high)
            low = position if self.without == LOWERED else low + 1 if self.without == BELOW else low
            yield "read the rows", Reading("read", high=reading.high, low=low, rows=reading.rows)

    def _merges(self, lake: Lake) -> Iterator[tuple[str, Lake]]:
        for place, job in enumerate(lake.jobs):
            if job is None:
                if lake.begun < self.world.merges and (place == 0 or lake.jobs[0] is not None):
                    for upto in range(lake.cut + 1, len(lake.manifests) + 1):
                        begun = replace(lake, begun=lake.begun + 1)
                        yield f"merge {lake.cut} to {upto} begins", _with(begun, place, Job(lake.cut, upto))
                continue
            yield f"merge to {job.upto} is killed", _with(lake, place, None)
            for label, new, left in self._continued(lake, job):
                yield f"merge to {job.upto}: {label}", _with(new, place, left)

    def _continued(self, lake: Lake, job: Job) -> Iterator[tuple[str, Lake, Job | None]]:
        recorded = replace(lake, cut=job.upto, shown=tuple((key, value) for key, _, value in lake.target))
        if self.without == CUT:
            if lake.cut < job.upto:
                yield "record the cut", recorded, job
            elif lake.version < job.upto:
                yield "commit the table", self._committed(lake, job), None
        elif job.merged and lake.version == job.upto and lake.cut < job.upto:
            yield "record the cut", recorded, None
        elif not job.merged and (lake.version <= job.upto or self.without == VERSION):
            yield "commit the table", self._committed(lake, job), replace(job, merged=True)

    def _committed(self, lake: Lake, job: Job) -> Lake:
        if lake.version == job.upto:
            return lake  # Delta skips a commit whose version is not newer
        zone = zone_of(raised(lake.manifests) if self.without == LOW else lake.manifests, self.world.keys)
        target = applied(zone, lake.target, job.after, job.upto, again=self.without != READ_AGAIN)
        return replace(lake, target=target, version=job.upto)

    def wrong(self, state: Agent | Lake) -> str | None:
        if isinstance(state, Agent) or not state.cut:
            return None
        exact = zone_of(state.manifests, self.world.keys).get(state.cut).exact
        if not exact and self.without != DUMPED:
            return None
        truth = rows_of(state.log[: state.manifests[state.cut - 1].upto], self.world.first)
        return None if state.shown == truth else f"cut {state.cut} has {state.shown}, the source had {truth}"


def _with(lake: Lake, place: int, job: Job | None) -> Lake:
    jobs = (*lake.jobs[:place], job, *lake.jobs[place + 1 :])
    return replace(lake, jobs=jobs if jobs[0] is not None else (jobs[1], None))


def _bits(numbers: frozenset[int]) -> int:
    return sum(1 << n for n in numbers)


def snapshot_of(shown: int, end: int) -> Snapshot:
    """Return what PostgreSQL would tell of a snapshot; the n-th commit has xid n, and `end` had been made."""
    ended = [n for n in range(1, end + 1) if shown >> n & 1]
    xmax = max(ended, default=0) + 1
    running = frozenset(range(1, xmax)) - frozenset(ended)
    return Snapshot(min(running, default=xmax), xmax, running)


def visibility_of(read: int, hidden: int) -> Visibility:
    """The n-th commit is at lsn n, and the next may begin where it ends."""
    commits = [InvisibleCommit(xid=n, lsn=n) for n in range(1, read + 1) if hidden >> n & 1]
    return Visibility(read + 1, commits)


@cache
def low_watermark(read: int, hidden: int, shown: int, end: int) -> int:
    low = visibility_of(read, hidden).low_watermark(read + 1, snapshot_of(shown, end))
    assert low is not None
    return low


@cache
def not_forgotten(read: int, hidden: int, visible: int, end: int) -> frozenset[int]:
    known = visibility_of(read, hidden)
    known.forget_visible_commits(snapshot_of(visible, end))
    return frozenset(commit.lsn for commit in known.not_yet_visible(read + 1))


def raised(manifests: tuple[Landing, ...]) -> tuple[Landing, ...]:
    """Put the rows of chunks at their high watermarks."""
    return tuple(
        replace(m, chunks=tuple((number, high, high, rows) for number, _, high, rows in m.chunks))
        for m in manifests
    )


class Zone(Landed):
    """A landing zone that is equal only to itself, so it can be a key of caches."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def event_of(n: int, key: int, value: int | None) -> Event:
    op = "delete" if value is None else "insert"
    return Event(op, n, 0, {"k": key, "v": value})


@cache
def zone_of(manifests: tuple[Landing, ...], keys: tuple[int, ...]) -> Zone:
    """Land what the manifests tell. Dump 1 is the table's first, in full; dump 2 is of its keys."""
    zone = Zone()
    zone.table(SCHEMA, dumped=False)
    begun = {"epoch": 1, "requested_at": AT, "started_in": 1}
    first = DumpState(id="dump-1", number=1, table=TABLE, kind="full", reason="initial", **begun)
    zone.dumps.append(first)
    for landing in manifests:
        files = [zone.log(SCHEMA, [event_of(*change)]) for change in landing.log]
        for number, low, high, rows in landing.chunks:
            found = [{"k": key, "v": value} for key, value in rows]
            absent = [{"k": key} for key in keys if key not in dict(rows)] if number > 1 else []
            if found or absent:
                files.append(zone.chunk(SCHEMA, Chunk(low, high + 1, found, absent, number)))
            if number == 1:
                zone.dumps.remove(first)
                zone.full_dump(str(TABLE), 1, low, started_in=1)
        zone.commit(landing.upto + 1, files)
    return zone


@cache
def applied(zone: Zone, target: Target, after: int, upto: int, *, again: bool) -> Target:
    """Apply a merge: for each key the event with the greatest position, unless the row's is greater."""
    plan = plan_table(TABLE, zone, after, upto)
    new = [event for file in plan.files for event in zone.events[file.path]]
    old = [event for file in plan.again for event in zone.events[file.path] if event.position > plan.low]
    events = [e for e in new + old * again if plan.swept is None or e.position >= plan.swept]
    rows: dict[int, tuple[Position, int]] = {key: (position, value) for key, position, value in target}
    for sweep in plan.sweeps:
        dumped = {event.values["k"] for file in sweep.chunks for event in zone.events[file.path]}
        ghosts = [key for key, (position, _) in rows.items() if position < sweep.position]
        for key in ghosts:
            if key not in dumped:
                del rows[key]
    for event in sorted(events, key=lambda event: event.position):
        key = event.values["k"]
        if key in rows and rows[key][0] >= event.position:
            continue
        rows.pop(key, None)
        if event.op != "delete":
            rows[key] = (event.position, event.values["v"])
    return tuple((key, *rows[key]) for key in sorted(rows))


def explore(world: World, without: str = "") -> Search:
    model = Exactness(world, without)
    return search(model.start, model.steps, model.wrong, 1_000_000)


ONE_DUMP = World(commits=2, dumps=1, crashes=1, merges=3)
TWO_DUMPS = World(commits=2, dumps=2, crashes=0, merges=1, manifests=2)
TWO_KEYS = World(keys=(1, 2), commits=2, dumps=1, crashes=0, merges=1)
RULES = [
    READ_AGAIN, LOW, LOWERED, BELOW, RECORDED, OPENING, HIGH, DURABLE, VERSION, CUT, DUMPED,
]  # fmt: skip


@pytest.mark.parametrize("world", [ONE_DUMP, TWO_DUMPS, TWO_KEYS], ids=["one dump", "two dumps", "two keys"])
def test_every_exact_cut_is_the_source_at_its_position(world: World) -> None:
    found = explore(world)
    print(found)
    assert found.wrong is None
    assert found.states > 10_000


@pytest.mark.parametrize("without", RULES)
def test_a_rule_left_out_is_found_out(without: str) -> None:
    found = explore(ONE_DUMP, without)
    print(f"without: {without}\n{found}")
    assert found.wrong is not None
