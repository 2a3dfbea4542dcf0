"""Figures of a running capture: counts, durations, lag. For the lease's status, the page and the metrics.

Written by the threads of the capture, read by any other without a lock: each read is a snapshot of single
values, which may be of slightly different moments.

Lag is measured where the log ends, not by the age of the last change, so an idle source is not behind: at
`Lag.sample` the source's end of log is remembered with the time, and once what has landed reaches it, nothing
from before that time is missing. While the end is unknown (the source does not answer), lag grows.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from connector.landing.manifest import Manifest
from connector.schema import TableName

BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper bounds of the durations that are counted apart, in seconds."""

SAMPLE_SECONDS = 1.0
MOST_SAMPLES = 1000
"""Ends of log that are remembered; when there are more, every other one is forgotten."""

FAR_BYTES = 64 << 20
"""From here on, lag is the age of the last commit that landed: a binary log's distance is no position."""


class Durations:
    """How often something took how long, in seconds; safe for threads."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._counts = [0] * (len(BOUNDS) + 1)
        self._lock = threading.Lock()

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Count how long the block takes, if it succeeds."""
        began = time.monotonic()
        yield
        self.add(time.monotonic() - began)

    def add(self, seconds: float) -> None:
        """Count one duration."""
        with self._lock:
            self._counts[sum(seconds > bound for bound in BOUNDS)] += 1
            self.seconds += seconds

    def cumulative(self) -> list[int]:
        """Return for each of `BOUNDS` how many took at most that long, then the total."""
        totals, total = [], 0
        for count in self._counts:
            total += count
            totals.append(total)
        return totals


class Lag:
    """How far what has landed is behind the source's log. Sampled by one thread; see the module."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes = 0
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()
        self._epoch = self._unread = self._end = -1
        self._complete_at: float | None = None

    def sample(self, newest: Manifest, position: int, unread_bytes: int, held_bytes: int) -> None:
        """Note what has been read (`position`), how much more there is, and how much of it is in memory."""
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
        """Return how old the oldest change that has not landed may be; None if that is not known yet."""
        complete_at = self._complete_at
        if complete_at is not None and self.bytes < FAR_BYTES:
            return max(0.0, self._clock() - complete_at)
        if newest.source_committed_at is None:
            return None
        return max(0.0, (datetime.now(timezone.utc) - newest.source_committed_at).total_seconds())


@dataclass
class Progress:
    """Figures of this run. Each is written by one thread.

    `dumps_held_back`: why no chunks are read for now. `turned_at`: when the loop last went around, by the
    monotonic clock; `lost_at`: since when it can't read the log, if it can't. `rows`: committed events by
    table and operation. `load`: the source's load as last measured, by the names of its limits.
    """

    changes: int = 0
    dumped_rows: int = 0
    manifests: int = 0
    reconnects: int = 0
    position: int = 0
    dumps_held_back: str | None = None
    turned_at: float = field(default_factory=time.monotonic)
    lost_at: float | None = None
    rows: Counter[tuple[TableName, str]] = field(default_factory=Counter)
    load: Mapping[str, float] = field(default_factory=dict)
    lag: Lag = field(default_factory=Lag)
    flushes: Durations = field(default_factory=Durations)
    chunks: Durations = field(default_factory=Durations)
    commits: Durations = field(default_factory=Durations)

    def committed(self, manifest: Manifest, events: Mapping[tuple[TableName, str], int]) -> None:
        """Count a manifest; `events`: how many its log files hold, by table and operation."""
        self.manifests += 1
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

    def turn(self) -> None:
        """Record that the loop made a turn and is reading the log."""
        self.turned_at, self.lost_at = time.monotonic(), None

    def lose(self) -> None:
        """Note that the loop goes around, and is about to open the log again."""
        self.reconnects += 1
        self.turned_at = time.monotonic()
        self.lost_at = self.lost_at or self.turned_at

    @property
    def lost_seconds(self) -> float:
        """Return for how long the log can't have been read; 0: it is being read."""
        return 0.0 if self.lost_at is None else time.monotonic() - self.lost_at

    def figures(self, newest: Manifest | None) -> dict[str, Any]:
        """Return the figures that the lease's status carries, as of now."""
        lag = None if newest is None else self.lag.seconds(newest)
        return {
            "changes": self.changes,
            "dumped_rows": self.dumped_rows,
            "manifests": self.manifests,
            "reconnects": self.reconnects,
            "lag_bytes": self.lag.bytes,
            "lag_seconds": None if lag is None else round(lag, 1),
            "position": self.position,
            "dumps_held_back": self.dumps_held_back,
            "at": time.time(),
        }
