"""Figures of what has landed, from the landing zone's manifests, each read once."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta

from connector.landing.manifest import Manifest
from connector.landing.manifest_store import ManifestReader, newest_manifest
from connector.store.protocol import Store

RATE_SECONDS = 6.0


@dataclass
class TableFigures:
    """One table: rows dumped, their estimated total, whether its dump is complete, changes landed."""

    dumped: int = 0
    estimate: int | None = None
    complete: bool = False
    changes: int = 0


class LandingStats:
    """Follows a landing zone. `refresh` reads new manifests; the attributes are totals over all of them.

    `tables` is keyed by ``namespace.name``, `recent` by time: changes landed up to then.
    """

    def __init__(self, store: Store) -> None:
        self.newest: Manifest | None = None
        self.manifests = 0
        self.changes = 0
        self.dumped = 0
        self.chunks = 0
        self.files = 0
        self.bytes = 0
        self.lag: timedelta | None = None
        self.tables: dict[str, TableFigures] = {}
        self._store = store
        self._manifests = ManifestReader(store)
        self._recent: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def refresh(self) -> Manifest | None:
        """Read the manifests committed since the last call; return the newest, None if there is none yet."""
        if self.newest is None:
            newest = newest_manifest(self._store)
            for number in range(1, newest.number + 1 if newest else 1):
                self._count(self._manifests.read(number))
        else:
            while self._count(self._manifests.read(self.newest.number + 1)):
                pass
        self._recent.append((time.monotonic(), self.changes))
        while len(self._recent) > 2 and self._recent[0][0] < time.monotonic() - RATE_SECONDS:
            self._recent.popleft()
        return self.newest

    @property
    def changes_per_second(self) -> float:
        """Changes landed per second over the last few seconds."""
        (began, before), (ended, after) = self._recent[0], self._recent[-1]
        return (after - before) / max(ended - began, 0.001)

    def lag_seconds(self, end_of_log: int | None) -> float | None:
        """Return the time from commit to manifest of what landed last; None if nothing is in flight.

        `end_of_log`: nothing is written after it, so once everything up to there has landed, there is no lag.
        """
        if self.newest is None or self.lag is None:
            return None
        done = end_of_log is not None and self.newest.position >= end_of_log
        return None if done else self.lag.total_seconds()

    def _count(self, manifest: Manifest | None) -> bool:
        if manifest is None:
            return False
        self.newest = manifest
        self.manifests += 1
        log_files = [file for file in manifest.files if file.kind == "log"]
        for file in manifest.files:
            self._count_file(str(file.table), file.rows, file.kind == "chunk")
            self.files += 1
            self.bytes += file.bytes
        for name, state in manifest.tables.items():
            self.tables.setdefault(str(name), TableFigures()).complete = state.dumped
        for dump in manifest.dumps:
            if dump.reason == "initial":
                self.tables[str(dump.table)].estimate = dump.rows_estimate
        if log_files and manifest.source_committed_at is not None:
            self.lag = manifest.committed_at - manifest.source_committed_at
        return True

    def _count_file(self, table: str, rows: int, is_chunk: bool) -> None:
        figures = self.tables.setdefault(table, TableFigures())
        if is_chunk:
            figures.dumped += rows
            self.dumped += rows
            self.chunks += 1
        else:
            figures.changes += rows
            self.changes += rows
