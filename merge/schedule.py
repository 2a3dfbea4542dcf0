"""Merges repeatedly, with upkeep and verification in between, through outages of the store, until stopped."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_when_event_set,
    wait_exponential,
)

from connector.config import Config
from connector.errors import TransientError
from merge.job import merge_in
from merge.lake.control_table import FrontierReader
from merge.lake.kept_versions import read_kept
from merge.lake.upkeep import Finding, upkeep_in
from merge.landing_zone import LandingZone
from merge.proof.continuous import ContinuousVerification
from merge.report import MergeReport, Progress
from merge.spark.session_pool import merging_sessions
from merge.spark.unreachable import explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 60.0

RETRY_SECONDS = 600.0
"""When upkeep that failed is run again: merges wait for it, and go on meanwhile."""


def merge_every(
    spark: SparkSession,
    config: Config,
    seconds: float,
    *,
    tables: Collection[str] | None = None,
    progress: Progress | None = None,
    report: Callable[[MergeReport], None] | None = None,
    stop: threading.Event | None = None,
    more_upkeep: Callable[[], Iterable[Finding]] | None = None,
) -> None:
    """Merge repeatedly, starting at most every `seconds`, until `stop` is set.

    Then finish the tables under way, and record the cut with the tables merged so far. If the store can't be
    reached, retry with growing pauses, and log the error when it changes. A table's failure is in the report;
    other errors that affect all tables are raised. If ``maintain.every_hours`` is set, run upkeep that often,
    then `more_upkeep`, and log what they do; either that raises an error is repeated alone. If
    ``verify.every_hours`` is set, and `tables` is not, verify a share of the rows that often
    (`merge.proof.continuous`).
    """
    stop = stop or threading.Event()
    due, reader = UpkeepTimer(config), FrontierReader(config)
    verification = ContinuousVerification(config)
    with merging_sessions(spark, config) as sessions:
        landing = LandingZone.of(sessions.first, config)

        def do_what_is_due() -> float | None:
            """Return the seconds it took; None if it is too late to begin."""
            begun = time.monotonic()
            if stop.is_set():  # it was set in a pause
                return None
            done = merge_in(
                sessions, config, landing, tables=tables, progress=progress, stop=stop, reader=reader
            )
            if report is not None:
                report(done)
            if not stop.is_set() and tables is None:
                verification.step(sessions.first, landing, done.manifest)
            if not stop.is_set():
                due.look(sessions.first)
            lake = lambda: upkeep_in(sessions.first, config, stop=stop)  # noqa: E731
            for part, findings in ((due.lake, lake), (due.more, more_upkeep or tuple)):
                if not stop.is_set() and part.is_due:
                    with part.again_if_it_fails():
                        _log_upkeep(findings())
            return time.monotonic() - begun

        while not stop.is_set():
            outlasting = _through_outages(seconds, stop)
            took = outlasting(do_what_is_due)
            if outlasting.statistics["attempt_number"] > 1 and took is not None:
                log.info("the store answers again")
            stop.wait(max(0.0, seconds - (took or 0.0)))


def _through_outages(seconds: float, stop: threading.Event) -> Retrying:
    """Retry transient errors until `stop`, with growing pauses; log the error when it changes."""
    logged = ""

    def log_changed(state: RetryCallState) -> None:
        nonlocal logged
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, TransientError) and str(error) != logged:
            log.warning("%s; retrying%s", error, f" ({error.hint})" if error.hint else "")
            logged = str(error)

    return Retrying(
        retry=retry_if_exception_type(TransientError),
        wait=wait_exponential(multiplier=max(1.0, seconds), max=max(seconds, LONGEST_PAUSE_SECONDS)),
        stop=stop_when_event_set(stop),
        sleep=sleep_using_event(stop),
        before_sleep=log_changed,
        retry_error_callback=lambda _state: None,
    )


class UpkeepTimer:
    """Decides when upkeep is due: `maintain.every_hours` after the last one began, whoever ran it.

    The lake records that, so a restart does not make upkeep due. It is read only when upkeep may be due. Both
    of its parts are due then: that of the lake's tables, and what more there is.
    """

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        self._config, self._clock, self._next = config, clock, 0.0
        self.lake, self.more = UpkeepPart(clock), UpkeepPart(clock)

    def look(self, spark: SparkSession) -> None:
        """See whether upkeep is due by now. `StoreError` if the store can't be reached."""
        hours = self._config.maintain.every_hours
        if hours is None or self._clock() < self._next:
            return
        with explained(self._config):
            began_at = read_kept(spark, self._config).began_at
        now = self._clock()
        due = began_at is None or now >= began_at.timestamp() + 3600 * hours
        self._next = 3600 * hours + (now if due or began_at is None else began_at.timestamp())
        if due:
            self.lake.due_at = self.more.due_at = now


class UpkeepPart:
    """A part of upkeep; one that failed is due again in a while, alone, whatever is recorded of upkeep."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.due_at = math.inf

    @property
    def is_due(self) -> bool:
        """Return whether it is to be run now."""
        return self._clock() >= self.due_at

    @contextmanager
    def again_if_it_fails(self) -> Iterator[None]:
        """Have it due again in a while if the block, which runs it, raises an error: it did not end."""
        self.due_at = math.inf
        try:
            yield
        except Exception:
            self.due_at = self._clock() + RETRY_SECONDS
            raise


def _log_upkeep(findings: Iterable[Finding]) -> None:
    for finding in findings:
        level = logging.WARNING if finding.status == "failed" else logging.INFO
        hint = f" ({finding.hint})" if finding.hint else ""
        log.log(
            level, "%s: %s %s: %s%s", finding.subject, finding.action, finding.status, finding.reason, hint
        )
