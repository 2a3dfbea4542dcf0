"""The last hour's lag and rows per second, in memory, and current rates by table."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import Any

from connector.control.live_agent import LiveAgent

POINT_SECONDS = 10.0
MOST_POINTS = 360
"""An hour."""


@dataclass(frozen=True)
class Point:
    """Figures as of a time (seconds since 1970); None: unknown, since the agent was not active."""

    at: float
    lag_seconds: float | None
    lag_bytes: int | None
    rows_per_second: float | None


class History:
    """A thread that takes a point every ten seconds. Readers get a copy.

    It also reads the lakes' records, since scrapes of the metrics don't.
    """

    def __init__(self, live: LiveAgent) -> None:
        self._live = live
        self._points: deque[Point] = deque(maxlen=MOST_POINTS)
        self._rates: dict[str, float] = {}
        self._before: tuple[float, Counter[str]] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def points(self) -> list[dict[str, Any]]:
        """Return the points, oldest first."""
        return [asdict(point) for point in list(self._points)]

    def rows_per_second(self) -> dict[str, float]:
        """Return rates by table, for tables with rows that landed between the last two points."""
        return self._rates

    def take_point(self) -> None:
        """Take a point now."""
        progress = self._live.progress
        if progress is None:
            self._points.append(Point(time.time(), None, None, None))
            return
        figures = progress.figures(self._live.newest_known())
        rows: Counter[str] = Counter()
        for (table, _), count in progress.rows.items():
            rows[str(table)] += count
        self._rates = self._rates_since(time.monotonic(), rows)
        total = round(sum(self._rates.values()), 1)
        self._points.append(Point(time.time(), figures.lag_seconds, figures.lag_bytes, total))

    def _rates_since(self, now: float, rows: Counter[str]) -> dict[str, float]:
        before, self._before = self._before, (now, rows)
        if before is None or now <= before[0]:
            return {}
        return {table: round(n / (now - before[0]), 1) for table, n in (rows - before[1]).items()}

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.take_point()
            self._live.look_at_lakes()
            self._stopping.wait(POINT_SECONDS)
