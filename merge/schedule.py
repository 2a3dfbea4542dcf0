"""Merges repeatedly, through outages of the store, until stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from connector.config import Config
from connector.errors import TransientError
from merge.job import merge_in, merging_sessions
from merge.landing_zone import LandingZone
from merge.report import MergeReport, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 60.0


def merge_every(
    spark: SparkSession,
    config: Config,
    seconds: float,
    *,
    tables: Collection[str] | None = None,
    progress: Progress | None = None,
    report: Callable[[MergeReport], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Merge repeatedly, starting at most every `seconds`, until `stop` is set.

    Then finish the tables under way, and record the cut with the tables merged so far. If the store can't be
    reached, retry with growing pauses, and log the error when it changes. A table's failure is in the report;
    other errors that affect all tables are raised.
    """
    stop = stop or threading.Event()
    outage, since = _Outage(seconds), 0
    with merging_sessions(spark, config) as sessions:
        landing = LandingZone(sessions.first, config.landing.url, config.source.name)
        while not stop.is_set():
            begun = time.monotonic()
            try:
                done = merge_in(
                    sessions, config, landing, tables=tables, progress=progress, stop=stop, since=since
                )
            except TransientError as error:
                stop.wait(outage.pause_after(error))
                continue
            outage.end()
            since = done.manifest
            if report is not None:
                report(done)
            stop.wait(max(0.0, seconds - (time.monotonic() - begun)))


class _Outage:
    """A store outage: the error last logged, and the next pause."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._logged: str | None = None
        self._pause = 0.0

    def pause_after(self, error: TransientError) -> float:
        """Log the error unless it repeats the last one, and return the seconds to wait."""
        if str(error) != self._logged:
            log.warning("%s; retrying%s", error, f" ({error.hint})" if error.hint else "")
        self._logged = str(error)
        self._pause = min(max(1.0, self._seconds, 2 * self._pause), max(self._seconds, LONGEST_PAUSE_SECONDS))
        return self._pause

    def end(self) -> None:
        """Log that merges work again, if they had failed."""
        if self._logged is not None:
            log.info("the store answers again")
        self._logged, self._pause = None, 0.0
