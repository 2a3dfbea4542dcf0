"""Figures of a running capture (counts, durations, lag) for the lease, the status page and the metrics.

Written by the capture's threads, read by any other thread without a lock: a read returns individual values,
which may be from slightly different moments.

Lag is measured against the end of the log, not by the age of the last change, so an idle source is not
behind: `Lag.sample` remembers the end of the source's log with the time, and once what has landed reaches it,
nothing from before that time is missing. While the end is unknown (the source does not answer), lag grows.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone

from connector.landing.lease import AgentFigures
from connector.landing.manifest import Manifest
from connector.schema import TableName

BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper bounds of the histogram buckets of durations, in seconds."""

SAMPLE_SECONDS = 1.0
MOST_SAMPLES = 1000
"""Limit of remembered ends of log; beyond it, every other one is dropped."""

FAR_BYTES = 64 << 20
"""From here on, lag is the age of the last landed commit: a distance in binary logs is not a position."""


class Durations:
    """Histogram of durations in seconds; safe for threads."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._counts = [0] * (len(BOUNDS) + 1)
        self._lock = threading.Lock()

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Record how long the block takes, if it succeeds."""
        began = time.monotonic()
        yield
        self.add(time.monotonic() - began)

    def add(self, seconds: float) -> None:
        """Record one duration."""
        with self._lock:
            self._counts[sum(seconds > bound for bound in BOUNDS)] += 1
            self.seconds += seconds

    def cumulative(self) -> list[int]:
        """Return for each of `BOUNDS` how many durations were at most that long, then the total."""
        totals, total = [], 0
        for count in self._counts:
            total += count
            totals.append(total)
        return totals


class Lag:
    """How far what has landed lags behind the source's log. Sampled by one thread; see the module."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes = 0
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()
        self._epoch = self._unread = self._end = -1
        self._complete_at: float | None = None

    def sample(self, newest: Manifest, position: int, unread_bytes: int, held_bytes: int) -> None:
        """Record the position read so far, the bytes still unread, and the bytes held in memory."""
        now = self._clock()
        if newest.epoch != self._epoch:
            self._samples.clear()
            self._epoch, self._end = newest.epoch, -1
        if unread_bytes and unread_bytes == self._unread:  # not reported again since: the end may be the same
            self._end = max(self._end, position)
        else:
            self._end = position + unread_bytes
        self._unread, self.bytes = unread_bytes, unread_bytes + held_bytes
        if newest.position >= self._end:
            self._samples.clear()
            self._complete_at = now
            return
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_SECONDS:
            self._samples.append((now, self._end))
        while self._samples and self._samples[0][1] <= newest.position:
            self._complete_at = self._samples.popleft()[0]
        if len(self._samples) > MOST_SAMPLES:
            self._samples = deque(list(self._samples)[::2])

    def seconds(self, newest: Manifest) -> float | None:
        """Return the greatest possible age of the oldest change that has not landed; None if unknown."""
        complete_at = self._complete_at
        if complete_at is not None and self.bytes < FAR_BYTES:
            return max(0.0, self._clock() - complete_at)
        if newest.source_committed_at is None:
            return None
        return max(0.0, (datetime.now(timezone.utc) - newest.source_committed_at).total_seconds())


@dataclass
class Progress:
    """Figures of this run. Each is written by one thread.

    `arrivals`: how often log arrived, which shows that the source lives; what lands is no sign of that.
    `dumps_held_back`: why no chunks are being read. `turned_at`: when the loop last completed a round, by
    the monotonic clock; `lost_at`: when the log first broke since it last got anywhere, if it did. `rows`:
    committed events by table and operation. `load`: the source's load as last measured, by the names of its
    limits.
    """

    changes: int = 0
    dumped_rows: int = 0
    manifests: int = 0
    reconnects: int = 0
    arrivals: int = 0
    position: int = 0
    dumps_held_back: str | None = None
    turned_at: float = field(default_factory=time.monotonic)
    lost_at: float | None = None
    reading: bool = False
    rows: Counter[tuple[TableName, str]] = field(default_factory=Counter)
    load: Mapping[str, float] = field(default_factory=dict)
    lag: Lag = field(default_factory=Lag)
    flushes: Durations = field(default_factory=Durations)
    chunks: Durations = field(default_factory=Durations)
    commits: Durations = field(default_factory=Durations)

    def committed(self, manifest: Manifest, events: Mapping[tuple[TableName, str], int]) -> None:
        """Count a committed manifest; `events`: the events in its log files, by table and operation."""
        self.manifests += 1
        if manifest.position != self.position:  # else the log has got no further
            self.lost_at = None
        self.position = manifest.position
        named = {file.table for file in manifest.files if file.kind == "log"}
        counted = Counter({of: rows for of, rows in events.items() if of[0] in named})
        for file in manifest.files:
            if file.kind == "chunk":
                counted[file.table, "dump"] += file.rows
                self.dumped_rows += file.rows
            else:
                self.changes += file.rows
        self.rows = self.rows + counted  # replaced, so that others may read it

    def turn(self, *, more: bool, caught_up: bool) -> None:
        """Record that the loop completed a round and is reading the log; `more` of it, or nothing new.

        `caught_up`: all of it has landed.
        """
        self.turned_at, self.reading = time.monotonic(), True
        self.arrivals += more
        if caught_up:
            self.lost_at = None

    def lose(self) -> None:
        """Record that the loop completed a round without reading the log, and is about to open it again."""
        self.reconnects += 1
        self.turned_at, self.reading = time.monotonic(), False
        self.lost_at = self.lost_at or self.turned_at

    @property
    def lost_seconds(self) -> float:
        """Return for how long the log could not be read; 0 while it is being read.

        A log that breaks again and again before anything of it is committed has not been read meanwhile. One
        that is only slow has: it may take long until a huge transaction ends.
        """
        lost_at = self.lost_at
        return 0.0 if lost_at is None or self.reading else time.monotonic() - lost_at

    def figures(self, newest: Manifest | None) -> AgentFigures:
        """Return the figures that the lease carries, as of now."""
        lag = None if newest is None else self.lag.seconds(newest)
        return AgentFigures(
            changes=self.changes,
            dumped_rows=self.dumped_rows,
            manifests=self.manifests,
            reconnects=self.reconnects,
            lag_bytes=self.lag.bytes,
            lag_seconds=None if lag is None else round(lag, 1),
            position=self.position,
            dumps_held_back=self.dumps_held_back,
            at=time.time(),
        )
