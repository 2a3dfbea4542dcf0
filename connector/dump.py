"""Dumps: which chunks are planned, read and committed, while the log keeps flowing. Knows no database.

A dump walks a table's key space in ranges ``(after, upto]`` that leave nothing out; the last one has no end.
A range is *planned* (its upper key is known), *read* by one worker in one snapshot into one landing file, and
*committed* by the first manifest whose position is at or after the chunk's high watermark.

Invariants:

- A range that was planned stays in `DumpState.open` until the manifest that commits its chunk: a crash, a
  lost connection or the end of an epoch leads to its being read again, never to its being skipped.
- A dump is complete when the end of the key space is planned and no range is open.
- A chunk that was read in an epoch that ended is dropped and read again.

Several workers read ranges of one dump, or of several, at once; committed in any order they give the same
state, since every row carries its chunk's low watermark as its position (DBLog, arXiv 2010.12597).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal

from connector.manifest import DumpState, LandedFile, OpenRange
from connector.schema import TableSchema
from connector.source import KeyRange

KEYS_PER_CHUNK = 1000
"""A VALUES list of this many keys is planned and answered in milliseconds."""

COMPLETED_KEPT = 100
"""So many finished dumps stay in the manifest, for `deltatide dumps` and for requests that come twice."""


@dataclass(frozen=True)
class PlanTask:
    """Find the upper key of the next chunk."""

    dump: DumpState
    after: tuple[str, ...] | None
    epoch: int


@dataclass(frozen=True)
class ReadTask:
    """Read one planned chunk; `keys` are the given ones, for a dump of keys."""

    dump: DumpState
    chunk: int
    range: KeyRange
    keys: Sequence[Sequence[str]] | None
    epoch: int


@dataclass(frozen=True)
class FinishedChunk:
    """A chunk that was read and lies in the store; `file` is None when its range held no row."""

    task: ReadTask
    low: int
    high: int
    rows: int
    schema: TableSchema
    file: LandedFile | None


@dataclass
class Dumps:
    """All dumps of a source. Every method may be called from any thread.

    `news` tells that a dump was queued or ended since the last `snapshot`.
    """

    states: list[DumpState]
    epoch: int
    last_number: int = 0
    news: bool = False
    _held: bool = False
    _closed: bool = False
    _lock: threading.Condition = field(default_factory=threading.Condition, repr=False)
    _reading: set[tuple[str, int]] = field(default_factory=set, repr=False)
    _planning: set[str] = field(default_factory=set, repr=False)
    _resting: dict[str, float] = field(default_factory=dict, repr=False)
    _finished: list[FinishedChunk] = field(default_factory=list, repr=False)

    def add(
        self,
        table: str,
        *,
        manifest: int,
        kind: Literal["full", "where", "keys"] = "full",
        reason: Literal["initial", "request", "repair", "missing"] = "request",
        request_id: str | None = None,
        where: str | None = None,
        keys: Sequence[Sequence[str]] | None = None,
        rows_estimate: int | None = None,
        floor: int | None = None,
    ) -> DumpState:
        """Queue a dump; it starts as soon as a worker is free. `manifest`: the number of the next manifest.

        `floor`: log before this position did not land for the table, so each chunk has to see all of it.
        """
        with self._lock:
            self.last_number += 1
            state = DumpState(
                id=request_id or uuid.uuid4().hex[:12],
                number=self.last_number,
                table=table,
                kind=kind,
                reason=reason,
                where=where,
                keys=[list(k) for k in keys] if keys is not None else None,
                epoch=self.epoch,
                requested_at=datetime.now(timezone.utc),
                started_in=manifest,
                rows_estimate=rows_estimate,
                floor=floor,
            )
            self.states.append(state)
            self.news = True
            self._lock.notify_all()
            return state

    def next_task(self, timeout: float) -> PlanTask | ReadTask | None:
        """Give a worker something to do, oldest dump first; None when there is nothing for `timeout` seconds.

        The task is this worker's until it calls `planned`, `finished` or `give_back`.
        """
        with self._lock:
            if not self._lock.wait_for(lambda: self._closed or self._has_task(), timeout) or self._closed:
                return None
            for state in self._awake():
                if task := self._take_task(state):
                    state.state = "running"
                    return task
            return None

    def _active(self) -> Iterable[DumpState]:
        return [s for s in self.states if s.active]

    def _awake(self) -> Iterable[DumpState]:
        now = time.monotonic()
        return [s for s in self._active() if self._resting.get(s.id, 0.0) <= now]

    def _has_task(self) -> bool:
        return not self._held and any(self._unread(s) or self._plannable(s) for s in self._awake())

    def _unread(self, state: DumpState) -> OpenRange | None:
        return next((r for r in state.open if (state.id, r.chunk) not in self._reading), None)

    def _plannable(self, state: DumpState) -> bool:
        return not state.planned_all and state.id not in self._planning

    def _take_task(self, state: DumpState) -> PlanTask | ReadTask | None:
        if planned := self._unread(state):
            self._reading.add((state.id, planned.chunk))
            return self._read_task(state, planned)
        if not self._plannable(state):
            return None
        if state.keys is not None:
            self._plan_keys(state)
            return self._take_task(state)
        self._planning.add(state.id)
        return PlanTask(state, _tuple(state.planned_upto), self.epoch)

    def _read_task(self, state: DumpState, planned: OpenRange) -> ReadTask:
        keys = None
        if state.keys is not None:
            keys = state.keys[planned.chunk * KEYS_PER_CHUNK : (planned.chunk + 1) * KEYS_PER_CHUNK]
        return ReadTask(
            state, planned.chunk, KeyRange(_tuple(planned.after), _tuple(planned.upto)), keys, self.epoch
        )

    @staticmethod
    def _plan_keys(state: DumpState) -> None:
        count = -(-len(state.keys or []) // KEYS_PER_CHUNK)
        state.open = [OpenRange(chunk=n) for n in range(count)]
        state.next_chunk, state.planned_all = count, True

    def planned(self, task: PlanTask, upto: tuple[str, ...] | None) -> None:
        """Record the upper key that was found; None ends the plan with an open-ended chunk."""
        with self._lock:
            state = task.dump
            self._planning.discard(state.id)
            if not state.active or task.epoch != self.epoch:
                return
            bound = list(upto) if upto is not None else None
            state.open.append(OpenRange(chunk=state.next_chunk, after=state.planned_upto, upto=bound))
            state.next_chunk += 1
            state.planned_upto = bound
            state.planned_all = bound is None
            self._lock.notify_all()

    def finished(self, chunk: FinishedChunk) -> None:
        """Hand in a chunk that lies in the store; it waits for a manifest at or after its high watermark."""
        with self._lock:
            if chunk.task.epoch != self.epoch or not chunk.task.dump.active:
                self._reading.discard((chunk.task.dump.id, chunk.task.chunk))
            else:
                self._finished.append(chunk)
            self._lock.notify_all()

    def give_back(self, task: PlanTask | ReadTask, rest_seconds: float = 0.0) -> None:
        """Return a task that could not be done now, for any worker to try again.

        Its dump rests so long, in which those behind it have their turn.
        """
        with self._lock:
            if rest_seconds:
                self._resting[task.dump.id] = time.monotonic() + rest_seconds
            if isinstance(task, PlanTask):
                self._planning.discard(task.dump.id)
            else:
                self._reading.discard((task.dump.id, task.chunk))
            self._lock.notify_all()

    def end(
        self, state: DumpState, outcome: Literal["cancelled", "failed"], error: str | None = None
    ) -> None:
        """Stop a dump before its end; what it has committed stays."""
        with self._lock:
            if not state.active:
                return
            state.state, state.error, state.finished_at = outcome, error, datetime.now(timezone.utc)
            state.open = []
            self.news = True
            self._finished = [c for c in self._finished if c.task.dump is not state]
            self._resting.pop(state.id, None)

    def active_of(self, table: str) -> list[DumpState]:
        """List the unfinished dumps of a table."""
        with self._lock:
            return [s for s in self._active() if s.table == table]

    def known(self, request_id: str) -> bool:
        """Tell whether a request of this id has been taken up already."""
        with self._lock:
            return any(s.id == request_id or s.id.startswith(f"{request_id}.") for s in self.states)

    def ready(self, position: int) -> bool:
        """Tell whether a manifest at this position may hold a chunk that waits."""
        high = self.waiting_for()
        return high is not None and high <= position

    def waiting_for(self) -> int | None:
        """Give the lowest high watermark of a chunk that waits to be committed; None when none waits."""
        with self._lock:
            return min((c.high for c in self._finished), default=None)

    def all_read(self) -> bool:
        """Tell whether nothing is left to read: the chunks that wait to be committed are the last ones."""
        with self._lock:
            active = list(self._active())
            uncommitted = sum(len(s.open) for s in active)
            return uncommitted == len(self._finished) and all(s.planned_all for s in active)

    def commit(self, position: int, manifest: int) -> list[FinishedChunk]:
        """Take the chunks that a manifest at `position` may hold, and count them as committed by it.

        The caller must commit that manifest or stop: there is no way back.
        """
        with self._lock:
            ready = [c for c in self._finished if c.high <= position]
            self._finished = [c for c in self._finished if c.high > position]
            for chunk in ready:
                self._count(chunk)
            for state in self._active():
                if state.planned_all and not state.open:
                    self._resting.pop(state.id, None)
                    state.state, state.finished_in = "complete", manifest
                    state.finished_at = datetime.now(timezone.utc)
            self._forget_old()
            return ready

    def finished_in(self, manifest: int) -> list[DumpState]:
        """List the dumps that the manifest of this number completes."""
        with self._lock:
            return [s for s in self.states if s.finished_in == manifest]

    def _count(self, chunk: FinishedChunk) -> None:
        state = chunk.task.dump
        state.open = [r for r in state.open if r.chunk != chunk.task.chunk]
        self._reading.discard((state.id, chunk.task.chunk))
        state.low = chunk.low if state.low is None else min(state.low, chunk.low)
        state.rows += chunk.rows
        state.chunks += 1

    def _forget_old(self) -> None:
        done = [s for s in self.states if not s.active]
        for state in done[: max(0, len(done) - COMPLETED_KEPT)]:
            self.states.remove(state)

    def close(self) -> None:
        """Hand out nothing any more; workers that wait return at once."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    def hold(self) -> None:
        """Hand out nothing until `go`: no log is being read, so no low watermark can be had."""
        with self._lock:
            self._held = True

    def go(self) -> None:
        """Hand out tasks: the log is being read in the present epoch."""
        with self._lock:
            self._held = False
            self._lock.notify_all()

    def begin_epoch(self, epoch: int) -> None:
        """Start over in a new epoch, held: chunks not committed are read again when its log is open.

        Full dumps of the old epoch are cancelled; the caller queues repair dumps of all tables instead, as a
        ghost sweep needs all chunks of a dump in one epoch.
        """
        with self._lock:
            self._drop_chunks(epoch)
            for state in self._active():
                if state.kind == "full":
                    self.end(state, "cancelled", "the log history ended, a repair dump follows")
                else:
                    state.epoch, state.floor = epoch, None

    def change_epoch(self, epoch: int, *, manifest: int) -> None:
        """Go on in the epoch of another server's log, held: chunks not committed are read again there.

        Full dumps begin again, for the ghost sweep's sake. Floors are lifted: whatever did not land is either
        seen by every snapshot of that server, or its log tells it again. `manifest`: the next one's number.
        """
        with self._lock:
            self._drop_chunks(epoch)
            for state in self._active():
                state.epoch, state.floor = epoch, None
                if state.kind == "full":
                    self.last_number += 1
                    state.number, state.started_in = self.last_number, manifest
                    state.open, state.next_chunk, state.planned_upto, state.planned_all = [], 0, None, False
                    state.low, state.rows, state.chunks = None, 0, 0

    def _drop_chunks(self, epoch: int) -> None:
        self.epoch, self._held = epoch, True
        for chunk in self._finished:
            self._reading.discard((chunk.task.dump.id, chunk.task.chunk))
        self._finished = []

    def snapshot(self) -> list[DumpState]:
        """Copy the states, for a manifest; what was news is told by it."""
        with self._lock:
            self.news = False
            return [s.model_copy(deep=True) for s in self.states]


def _tuple(key: list[str] | None) -> tuple[str, ...] | None:
    return tuple(key) if key is not None else None
