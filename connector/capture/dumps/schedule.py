"""Decides which dump is read next, and when: order, parallelism, delays, rate. Knows no tables or threads.

Order:

1. dumps of keys, then of predicates, to be merged or verified: somebody waits for a few rows;
2. full dumps with few chunks planned so far, oldest first: a new or small table does not wait behind one that
   takes a week;
3. the other full dumps, and verifications of whole tables, in turn.

A chunk that is being read is never interrupted: order, pauses and settings take effect with the next one.

When: a dump gets a chunk while it, and all dumps together, have a free worker. A worker is free
`delay_seconds` after its last chunk. Rows that were read are a debt, paid off at `rows_per_second`; the next
chunk begins when the debt is zero. Slowing down never holds a snapshot open. Settings are looked up at each
decision, so a change also shortens waits that are under way.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from connector.config import DumpConfig
from connector.landing.manifest import DumpControl, DumpSettings, DumpState
from connector.schema import TableName

FEW_CHUNKS = 20
"""A full dump is favored up to this many chunks: a million rows of the default size."""

RATE_SECONDS = 60.0
"""Progress shows the mean speed over about this long."""

FOREVER = float("inf")


@dataclass(frozen=True)
class Settings:
    """The settings of a dump, or of all together; `rows_per_second` 0: no limit."""

    chunk_rows: int
    delay_seconds: float
    workers: int
    rows_per_second: int


class DumpSchedule:
    """The schedule of a source's dumps; its caller's lock guards it.

    `control`: what was set at run time. `held_back`: why no dump is being read, if the source suffers.
    """

    def __init__(
        self,
        config: DumpConfig | None = None,
        control: DumpControl | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config or DumpConfig()
        self.control = control or DumpControl()
        self.held_back: str | None = None
        self._clock = clock
        self._out: Counter[str] = Counter()
        self._worker_rests: list[tuple[float, DumpState]] = []
        self._dump_rests: dict[str, float] = {}
        self._owed: dict[str | None, _RowDebt] = {}
        self._turns: dict[str, int] = {}
        self._speeds: dict[str, _Speed] = {}

    def settings(self, dump: DumpState | None = None) -> Settings:
        """Return the settings for all dumps, or for one: its own, else set at run time, else configured."""
        own = dump.settings if dump is not None and dump.settings is not None else DumpSettings()
        at_run_time = self.control.settings.changed(own)
        config = self.config.model_dump(include=set(DumpSettings.model_fields))
        return Settings(**config | at_run_time.model_dump(exclude_none=True))

    def in_order(self, dumps: Iterable[DumpState]) -> list[DumpState]:
        """Return the unfinished dumps, given oldest first, that may go on; the first gets the next chunk.

        A full dump waits for the table's earlier full dump, and a dump with a barrier until that is lifted.
        """
        dumps = list(dumps)
        first: dict[TableName, DumpState] = {}
        for dump in dumps:
            if dump.kind == "full":
                first.setdefault(dump.table, dump)
        return sorted(
            (
                d
                for d in dumps
                if d.xid_barrier is None and (d.kind != "full" or d.state == "running" or first[d.table] is d)
            ),
            key=self._rank,
        )

    def _rank(self, dump: DumpState) -> tuple[int, int]:
        """Rank a dump; equals keep the order of the queue, whatever number one gets as it is postponed."""
        if dump.keys is not None or dump.where is not None:
            return 0 if dump.keys is not None else 1, 0
        if dump.next_chunk < FEW_CHUNKS and not dump.verifies:
            return 2, 0
        return 3, self._turns.get(dump.id, 0)

    def seconds_until_free(self, dump: DumpState | None = None) -> float:
        """Return how long until another chunk may be read, of this dump or of any; 0: now.

        `FOREVER`: until a task ends or something is set.
        """
        now = self._clock()
        if dump is not None and (dump.paused or self._dump_rests.get(dump.id, 0.0) > now):
            return FOREVER if dump.paused else self._dump_rests[dump.id] - now
        settings = self.settings(dump)  # after the above: thousands of dumps may be paused
        busy = self._out[dump.id] if dump is not None else self._out.total()
        ends = (
            ended + min(settings.delay_seconds, self.settings(rests_after).delay_seconds) - now
            for ended, rests_after in self._worker_rests
            if dump is None or rests_after is dump
        )
        rests = sorted(seconds for seconds in ends if seconds > 0)
        free = settings.workers - busy - len(rests)
        if free <= 0:
            return FOREVER if settings.workers <= busy else rests[-free]
        owed = self._owed.get(dump.id if dump is not None else None)
        return owed.seconds_left(settings.rows_per_second, now) if owed is not None else 0.0

    def hand_out(self, dump: DumpState) -> None:
        """Count a task that a worker takes."""
        self._out[dump.id] += 1
        self._turns[dump.id] = max(self._turns.values(), default=0) + 1
        self._speeds.setdefault(dump.id, _Speed(self._clock(), dump.rows))

    def take_back(self, dump: DumpState, *, rest_seconds: float = 0.0) -> None:
        """Count a task that is no longer with a worker; its dump may rest first."""
        self._out -= Counter({dump.id: 1})
        if rest_seconds:
            self._dump_rests[dump.id] = self._clock() + rest_seconds

    def read(self, dump: DumpState, rows: int) -> None:
        """Count a chunk that was read, which ends a task: its worker rests, its rows are owed.

        Drops rests that have ended; a dump never has more rests under way than workers.
        """
        now = self._clock()
        self.take_back(dump)
        self._worker_rests = [
            (ended, rests_after)
            for ended, rests_after in self._worker_rests
            if ended + self.settings(rests_after).delay_seconds > now
        ]
        if self.settings(dump).delay_seconds:
            self._worker_rests.append((now, dump))
        for whose in (None, dump.id) if dump.active else (None,):
            self._owed.setdefault(whose, _RowDebt(now)).rows += rows

    def committed(self, dump: DumpState) -> None:
        """Measure the speed of a dump after a commit of its chunks."""
        speed = self._speeds.setdefault(dump.id, _Speed(self._clock(), 0))
        dump.rows_per_second = speed.measured(self._clock(), dump.rows)

    def restart_clock(self, dump: DumpState) -> None:
        """Measure the speed from scratch: the dump was paused."""
        self._speeds.pop(dump.id, None)
        dump.rows_per_second = None

    def forget(self, dump: DumpState) -> None:
        """Drop a dump that has ended; tasks still with workers stay counted."""
        for known in (self._dump_rests, self._owed, self._turns, self._speeds):
            known.pop(dump.id, None)


@dataclass
class _RowDebt:
    """Rows that were read ahead of the allowed rate, as of a time."""

    at: float
    rows: float = 0.0

    def seconds_left(self, rate: int, now: float) -> float:
        """Pay off what the rate has allowed since; return how long it takes to pay the rest."""
        self.rows = max(0.0, self.rows - rate * (now - self.at)) if rate else 0.0
        self.at = now
        return self.rows / rate if rate else 0.0


class _Speed:
    """Rows per second of one dump, over the last minute or so."""

    def __init__(self, now: float, rows: int) -> None:
        self._seen = deque([(now, rows)])

    def measured(self, now: float, rows: int) -> float | None:
        """Add the rows as of now and return the mean; None if no time has passed."""
        self._seen.append((now, rows))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        return round((rows - before) / (now - since), 1) if now > since else None
