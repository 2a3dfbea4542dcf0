"""Dumps: which chunks are planned, read and committed, while the log keeps flowing. Knows no database.

A dump walks a table's key space in ranges ``(after, upto]`` that leave nothing out; the last has no end.
A range is *planned* (its upper key is known), *read* by one worker in one snapshot into one landing file, and
*committed* by the first manifest whose position is at or after the chunk's high watermark. Several workers
read at once, in any order: rows have their chunk's low watermark (arXiv 2010.12597).

Invariants:

- A planned range stays in `DumpState.open` until the manifest that commits its chunk: after a crash, a lost
  connection or the end of an epoch it is read again, never skipped.
- A dump is complete when the end of the key space is planned and no range is open. A full dump of a table
  begins only after the previous one has ended.
- When a first dump or a repair ends early, its table's need is recorded (`needs`), and only a full dump that
  begins after that makes the table complete, whatever other dumps of it there are.
- All chunks of a dump are read in one order of its key (`order`); they may be planned in another.
- A chunk that was read in an epoch that has ended is dropped and read again.
- So is an uncommitted chunk that was handed out before the log was lost. A snapshot shows commits that a
  crash may undo, which gives their positions to others. Only log read without a crash since before it proves
  it durable: over one connection, or later ones that are `unbroken` (`connector.source.LogReader`).
- A paused dump gets no further chunk; the one that is being read is committed as always. Pauses and settings
  are part of the state that manifests record (`recorded`), so they survive restarts and failovers, and no two
  agents disagree. Until that manifest the request's object stays, and is obeyed again after a crash.
- A finished dump is named by the manifest that finishes it: the merge needs it to sweep ghosts. Later
  manifests name only the last `COMPLETED_KEPT`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from connector.capture.dumps import tasks
from connector.capture.dumps.needs import DumpNeeds
from connector.capture.dumps.schedule import FOREVER, DumpSchedule
from connector.capture.dumps.tasks import FinishedChunk, PlanTask, ReadTask
from connector.landing.manifest import DumpKind, DumpState, OpenRange, TableState
from connector.schema import TableName

COMPLETED_KEPT = 100
"""Finished dumps kept in the manifest, for `deltatide dumps` and for repeated requests."""

MOST_ACTIVE, MOST_KEYS = 1000, 100_000
"""Limits of active dumps that requests asked for, and of their keys or ranges. Beyond, requests wait."""


@dataclass
class DumpQueue:
    """All dumps of a source. Every method may be called from any thread.

    `news`: a dump was queued, ended, paused or resumed, or something was set, since the last `snapshot`.
    """

    states: list[DumpState]
    epoch: int
    last_number: int = 0
    schedule: DumpSchedule = field(default_factory=DumpSchedule)
    needs: DumpNeeds = field(default_factory=DumpNeeds)
    news: bool = False
    _awaits_log: bool = False
    _closed: bool = False
    _log_losses: int = 0
    _lock: threading.Condition = field(default_factory=threading.Condition, repr=False)
    _reading: set[tuple[str, int]] = field(default_factory=set, repr=False)
    _planning: set[str] = field(default_factory=set, repr=False)
    _finished: list[FinishedChunk] = field(default_factory=list, repr=False)

    def add(
        self,
        table: TableName,
        *,
        manifest: int,
        kind: DumpKind = "full",
        reason: Literal["initial", "request", "repair", "missing"] = "request",
        request: str | None = None,
        digest: str | None = None,
        part: int | None = None,
        where: str | None = None,
        keys: Sequence[Sequence[str]] | None = None,
        ranges: Sequence[tuple[int | None, int | None]] = (),
        floor: int | None = None,
        xid_barrier: int | None = None,
    ) -> DumpState:
        """Queue a dump; it starts as soon as a worker is free. `manifest`: the number of the next manifest.

        `request` and `digest`: id and digest of the request that asks for it. The dump takes the request's id
        if no other dump has it, with the number of its part if it asks for several. `ranges`: its chunks'.
        `floor`: log before this position did not land for the table, so each chunk has to see all of it.
        `xid_barrier`: the dump starts once all transactions below have ended (`start_unblocked`).
        A full dump also satisfies its table's need.
        """
        with self._lock:
            state = DumpState(
                number=self._new_number(),
                id=tasks.unused_id(request, part, self.states, self.last_number),
                request=request,
                digest=digest,
                table=table,
                kind=kind,
                reason=reason,
                where=where,
                keys=[list(k) for k in keys] if keys is not None else None,
                epoch=self.epoch,
                requested_at=datetime.now(timezone.utc),
                started_in=manifest,
                rows_estimate=len(keys) if keys is not None else None,
                floor=floor,
                xid_barrier=xid_barrier,
                paused=self.schedule.control.pause_new,
            )
            if ranges:
                tasks.plan_named(state, ranges)
            if kind == "full" and reason != "missing":  # these must see only what has landed
                self.needs.note_gap(table, self.epoch, floor)
            self.needs.apply_to(state)
            self.states.append(state)
            self.news = True
            self._lock.notify_all()
            return state

    def next_task(self, timeout: float) -> PlanTask | ReadTask | None:
        """Return a worker's next task by the schedule; None if there is none within `timeout` seconds.

        The task belongs to this worker until it calls `planned`, `finished` or `give_back`.
        """
        deadline = time.monotonic() + timeout
        with self._lock:
            while not self._closed:
                task, seconds = self._take_next()
                left = deadline - time.monotonic()
                if task is not None or left <= 0:
                    return task
                self._lock.wait(min(left, seconds))
            return None

    def _take_next(self) -> tuple[PlanTask | ReadTask | None, float]:
        """Return a task, or None and the seconds after which to look again at the latest."""
        if self._awaits_log or self.schedule.held_back is not None:
            return None, FOREVER
        if soonest := self.schedule.seconds_until_free():
            return None, soonest
        soonest = FOREVER
        for state in self.schedule.in_order(self._active()):
            seconds = self.schedule.seconds_until_free(state)
            soonest = min(soonest, seconds or FOREVER)
            if not seconds and (task := self._take_task(state)):
                state.state = "running"
                state.started_at = state.started_at or datetime.now(timezone.utc)
                self.schedule.hand_out(state)
                return task, 0.0
        return None, soonest

    def _active(self) -> list[DumpState]:
        return [s for s in self.states if s.active]

    def _take_task(self, state: DumpState) -> PlanTask | ReadTask | None:
        if planned := next((r for r in state.open if (state.id, r.chunk) not in self._reading), None):
            self._reading.add((state.id, planned.chunk))
            return tasks.read_task(state, planned, self._log_losses)
        if state.planned_all or state.id in self._planning:
            return None
        if state.keys is not None:
            tasks.plan_named(state)
            return self._take_task(state)
        self._planning.add(state.id)
        return tasks.plan_task(state)

    def planned(self, task: PlanTask, upto: tuple[str, ...] | None, order: str | None = None) -> None:
        """Record the upper key found, and the key's order; None ends the plan with an unbounded chunk."""
        with self._lock:
            state = task.dump
            self._planning.discard(state.id)
            self.schedule.take_back(state)
            if not state.active or (task.epoch, task.number) != (self.epoch, state.number):
                return
            bound = list(upto) if upto is not None else None
            state.open.append(OpenRange(chunk=state.next_chunk, after=state.planned_upto, upto=bound))
            state.next_chunk, state.order = state.next_chunk + 1, state.order or order
            state.planned_upto, state.planned_all = bound, bound is None
            self._lock.notify_all()

    def finished(self, chunk: FinishedChunk) -> None:
        """Hand in a chunk that is in the store; it waits for a manifest at or after its high watermark.

        A stale one is read again: handed out in another epoch, before its dump began anew or log was lost.
        """
        with self._lock:
            task, state = chunk.task, chunk.task.dump
            self.schedule.read(state, chunk.rows)
            now = (self.epoch, state.number, self._log_losses)
            if (task.epoch, task.number, task.log_losses) != now or not state.active:
                self._reading.discard((state.id, task.chunk))
            else:
                self._finished.append(chunk)
            self._lock.notify_all()

    def give_back(self, task: PlanTask | ReadTask, rest_seconds: float = 0.0) -> None:
        """Return a task that can't be done now, for any to retry, after its dump has rested for others."""
        with self._lock:
            self.schedule.take_back(task.dump, rest_seconds=rest_seconds)
            if isinstance(task, PlanTask):
                self._planning.discard(task.dump.id)
            else:
                self._reading.discard((task.dump.id, task.chunk))
            self._lock.notify_all()

    def end(
        self, state: DumpState, outcome: Literal["cancelled", "failed"], error: str | None = None
    ) -> None:
        """Stop a dump early; what it has committed stays. If its table needed it, it needs a full one now."""
        with self._lock:
            if not state.active:
                return
            state.state, state.error, state.finished_at = outcome, error, datetime.now(timezone.utc)
            state.drop_details()
            self.news = True
            self._drop_chunks(state)
            self.schedule.forget(state)
            if state.reason in ("initial", "repair"):
                self.require(state.table, state.floor, state.xid_barrier)

    def widen(self, state: DumpState, error: str) -> None:
        """End a dump of some rows, unless it has ended, and queue one of the whole table in its place."""
        with self._lock:
            if state.active:
                self.end(state, "failed", error)
                self.add(state.table, manifest=state.started_in, reason=state.reason, floor=state.floor)

    def require(self, table: TableName, floor: int | None, xid_barrier: int | None) -> bool:
        """Record that only a full dump that begins from now on makes a table whole.

        It must see all commits before `floor`, and all transactions below `xid_barrier`. Return whether such
        a dump is already waiting.
        """
        with self._lock:
            self.needs.record(table, self.last_number, floor, xid_barrier)
            self.needs.note_gap(table, self.epoch, floor)
            unbegun = (s for s in self._active() if (s.kind, s.state) == ("full", "waiting"))
            postponed = [s for s in unbegun if s.table == table]
            for state in postponed:
                state.number = self._new_number()
                self.needs.apply_to(state)
            self.news = True
            return bool(postponed)

    def _new_number(self) -> int:
        self.last_number += 1
        return self.last_number

    def start_unblocked(self, position_past_barrier: Callable[[int], int | None]) -> None:
        """Start dumps when all transactions below their barrier have ended; set floors after these."""
        waiting = self.needs.with_dumps(self._active())
        for barrier in {state.xid_barrier for _, state in waiting if state.xid_barrier is not None}:
            if (end := position_past_barrier(barrier)) is not None:
                with self._lock:
                    self.needs.unblock(self._active(), barrier, self.epoch, end)
                    self.news = True
                    self._lock.notify_all()

    def lower_unreachable_floors(self, take_xid_barrier: Callable[[], int | None], position: int) -> None:
        """Lower floors and barriers in log that the source has since lost and may never reach again.

        `position`: where its log ends now. A lost barrier's transactions have all ended; a new one is lower.
        """
        with self._lock:
            seen = self.needs.with_dumps(self._active())
        waits = any(s.xid_barrier is not None or (s.floor or 0) > position for _, s in seen)
        barrier = take_xid_barrier() if waits else None
        with self._lock:
            self.news |= self.needs.lower(self._active(), barrier, self.epoch, position)

    def carry_gaps(self, tables: Mapping[TableName, TableState], position: int) -> None:
        """Extend the gaps of earlier epochs (`DumpNeeds.carry_gaps`), before chunks are read in this one."""
        with self._lock:
            self.news |= self.needs.carry_gaps(tables, self._active(), self.epoch, position)

    def active_of(self, table: TableName) -> list[DumpState]:
        """Return the unfinished dumps of a table."""
        with self._lock:
            return [s for s in self._active() if s.table == table]

    def has_taken(self, request_id: str, digest: str) -> bool:
        """Return whether a request of this id and content is among the dumps, finished ones included."""
        with self._lock:
            return any((s.request, s.digest) == (request_id, digest) for s in self.states)

    @property
    def is_full(self) -> bool:
        """Return whether so much is queued that further requests should wait."""
        with self._lock:
            asked = [s for s in self._active() if s.request is not None]
            return len(asked) >= MOST_ACTIVE or sum(len(s.keys or s.open) for s in asked) >= MOST_KEYS

    def committable(self, position: int) -> list[FinishedChunk]:
        """Return the waiting chunks that a manifest at this position may hold."""
        with self._lock:
            return [c for c in self._finished if c.high <= position]

    def reads_the_last(self) -> bool:
        """Return whether the last chunks are being read: a commit is due soon."""
        with self._lock:
            return bool(self._reading) and all(s.planned_all for s in self._active())

    def all_read(self) -> bool:
        """Return whether nothing is left to read: the chunks waiting to be committed are the last ones."""
        with self._lock:
            active = self._active()
            uncommitted = sum(len(s.open) for s in active)
            return uncommitted == len(self._finished) and all(s.planned_all for s in active)

    def take_committable(
        self, position: int, manifest: int, judged: Sequence[FinishedChunk] | None = None
    ) -> list[FinishedChunk]:
        """Take the chunks that a manifest at `position` may hold, and count them as committed by it.

        The caller must commit that manifest or stop: this can't be undone. `judged`: only some of these.
        A dump starts over whose key has another order now than when it was planned first.
        """
        with self._lock:
            ready = [c for c in self.committable(position) if judged is None or any(c is j for j in judged)]
            for state in tasks.note_orders(ready):
                self._start_over(state, manifest)
            ready = [c for c in ready if c.task.number == c.task.dump.number]
            self._finished = [c for c in self._finished if all(c is not r for r in ready)]
            for chunk in ready:
                self._count(chunk)
            for state in {chunk.task.dump.id: chunk.task.dump for chunk in ready}.values():
                self.schedule.committed(state)
            for state in self._active():
                if state.planned_all and not state.open:
                    self.schedule.forget(state)
                    state.state, state.finished_in = "complete", manifest
                    state.finished_at = datetime.now(timezone.utc)
                    state.drop_details()
                    self.needs.count(state)
            return ready

    def finished_in(self, manifest: int) -> list[DumpState]:
        """Return the dumps that the manifest of this number completes."""
        with self._lock:
            return [s for s in self.states if s.finished_in == manifest]

    def _count(self, chunk: FinishedChunk) -> None:
        state, number = chunk.task.dump, chunk.task.chunk
        state.open = [r for r in state.open if r.chunk != number]
        self._reading.discard((state.id, number))
        state.count_chunk(chunk.low, chunk.rows)

    def close(self) -> None:
        """Stop handing out tasks; waiting workers return at once."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    def requeue_uncommitted(self, landed: int, checked: int) -> None:
        """Await the log, read uncommitted chunks again, raise floors after `landed` to a catalog check."""
        with self._lock:
            self._log_losses += 1
            self.needs.raise_floors(self._active(), self.epoch, landed, checked)
            self._await_log_of(self.epoch)

    def await_log(self) -> None:
        """Stop handing out tasks until `log_opened`: no log is being read, so there is no low watermark."""
        with self._lock:
            self._awaits_log = True

    def log_opened(self) -> None:
        """Hand out tasks again: the log of the current epoch is being read."""
        with self._lock:
            self._awaits_log = False
            self._lock.notify_all()

    def hold_back(self, reason: str | None) -> None:
        """Stop handing out tasks while the source is overloaded; None: it no longer is."""
        with self._lock:
            self.schedule.held_back = reason
            self._lock.notify_all()

    @contextmanager
    def changing(self) -> Iterator[DumpSchedule]:
        """Change pauses or settings; workers look again afterward, and the next manifest records it."""
        with self._lock:
            yield self.schedule
            self.news = True
            self._lock.notify_all()

    def restart_in_epoch(self, epoch: int) -> None:
        """Start over in a new epoch: uncommitted chunks are read again once its log is open.

        Dumps whose chunks must be of one epoch are cancelled, and the caller queues repairs of all tables.
        """
        with self._lock:
            for state in (each for each in self._active() if each.within_epoch):
                self.end(state, "cancelled", "the log history ended; a repair dump follows")
            self._await_log_of(epoch)  # not earlier: floors of the ended dumps are positions of the old epoch
            for state in self._active():
                state.epoch, state.floor, state.xid_barrier = epoch, None, None
            self.needs.lift_floors()

    def continue_in_epoch(self, epoch: int, *, manifest: int) -> None:
        """Continue in the epoch of another server's log: once it is open, uncommitted chunks are read again.

        Full dumps, for the ghost sweep, and verifications start over. Floors are lifted, except by
        `carry_gaps`: that server's tables or log show what did not land. `manifest`: the next one's number.
        """
        with self._lock:
            self._await_log_of(epoch)
            self.needs.lift_floors()
            for state in self._active():
                state.epoch, state.floor, state.xid_barrier = epoch, None, None
                if state.within_epoch:
                    self._start_over(state, manifest)

    def _start_over(self, state: DumpState, manifest: int) -> None:
        self._drop_chunks(state)
        state.start_over(self._new_number(), manifest)
        self.needs.apply_to(state)
        self.schedule.restart_clock(state)

    def _await_log_of(self, epoch: int) -> None:
        self.epoch, self._awaits_log = epoch, True
        self._drop_chunks()

    def _drop_chunks(self, of: DumpState | None = None) -> None:
        """Drop uncommitted chunks of one dump, or of all; a dump of the same name may read them again."""
        dropped = [c for c in self._finished if of in (None, c.task.dump)]
        self._finished = [c for c in self._finished if of not in (None, c.task.dump)]
        self._reading -= {(c.task.dump.id, c.task.chunk) for c in dropped}

    def snapshot(self) -> list[DumpState]:
        """Copy the states, to be recorded by a manifest; later manifests leave out older finished dumps."""
        with self._lock:
            self.news = False
            copies = [s.model_copy(update={"open": list(s.open)}) for s in self.states]
            for state in [s for s in self.states if not s.active][:-COMPLETED_KEPT]:
                self.states.remove(state)
            return copies

    def recorded(self) -> dict[str, Any]:
        """Return what the next manifest records of dumps, by the names of its fields."""
        return {
            "dumps": self.snapshot(),
            "last_dump_number": self.last_number,
            "dump_control": self.schedule.control,
        }
