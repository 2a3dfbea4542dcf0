"""Holds dumps back while the source or the store is overloaded; reading the log continues.

A thread measures the load over its own connection, more often while dumps are unfinished. While any figure is
above its limit (``[limits]``), no further chunk is read; dumps resume once a measurement finds all of them at
or below their limits. This is not recorded in the manifest: each agent measures for itself, and reports the
reason in its lease.

A source or store that does not answer, for want of connections or time, counts as overloaded, and so does a
replica that was named to be watched and can't be reached, or does not replicate. A source that
refuses the queries is not watched, which is logged once. Nor is what the role may not see; `deltatide check`
warns of that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Protocol

from connector.background import BackgroundThread
from connector.config import LimitsConfig
from connector.errors import DeltatideError, OperatorError, TransientError
from connector.landing.format import LEASE
from connector.source import Finding
from connector.store.protocol import Store

log = logging.getLogger(__name__)

MEASURE_SECONDS = 5.0
"""Seconds between measurements while there are dumps: a few chunks of the default size."""

IDLE_SECONDS = 60.0
"""Seconds between measurements without dumps, for the metrics only."""


class LoadGauge(Protocol):
    """Measures a source's load over its own connection."""

    def measure(self) -> Mapping[str, float]:
        """Return figures by the names of their limits; one that is unknown or does not apply is absent.

        `retained_log_mib` has no limit: log that the source keeps for the agent.
        """

    def check(self, workers: int) -> list[Finding]:
        """Report whether there is room for an agent with so many dump workers, and what can't be measured."""

    def unknown(self) -> Mapping[str, str]:
        """Return why figures that were to be measured last are unknown, by the names of their limits."""

    def close(self) -> None:
        """Close the connection; never raises."""


def check_load(open_gauge: Callable[[], LoadGauge], workers: int) -> list[Finding]:
    """Return the findings of `LoadGauge.check`; if it can't be opened, as without a free connection, why."""
    try:
        with closing(open_gauge()) as gauge:
            return gauge.check(workers)
    except DeltatideError as error:
        return [Finding("connections", "warning", str(error), error.hint)]


class LoadWatcher(BackgroundThread):
    """A thread that measures the load and calls `note` with it and why dumps are held back, or None.

    `limits` may be replaced. `busy` returns whether any dump is unfinished.
    """

    def __init__(
        self,
        open_gauge: Callable[[], LoadGauge] | None,
        store: Store,
        limits: LimitsConfig,
        busy: Callable[[], bool],
        note: Callable[[Mapping[str, float], str | None], None],
    ) -> None:
        super().__init__("load")
        self.reason: str | None = None
        self.limits = limits
        self._open_gauge, self._store = open_gauge, store
        self._busy, self._note = busy, note
        self._gauge: LoadGauge | None = None
        self._found: Mapping[str, float] = {}
        self._reported: set[str] = set()

    def work(self) -> None:
        """Measure at intervals."""
        try:
            reason, due = None, time.monotonic()
            while not self.stopping.is_set():
                busy = self._busy()
                if busy or time.monotonic() >= due:
                    reason, due = self.why(), time.monotonic() + IDLE_SECONDS
                self._report(reason if busy else None)
                self.stopping.wait(MEASURE_SECONDS)
        finally:
            self._close_gauge()

    def why(self) -> str | None:
        """Measure, and return why dumps should be held back; None if nothing is above its limit."""
        limits = self.limits.model_dump()
        try:
            found = {**self._measure_source(), "store_seconds": self._measure_store()}
            self._found = found
        except (TransientError, OperatorError) as error:
            self._found = {}
            self._close_gauge()
            return f"the load can't be measured: {error}"
        high = [name for name, value in found.items() if limits.get(name) and value > limits[name]]
        reasons = [f"{n} is {found[n]:,.4g}, its limit is {limits[n]:,g}" for n in high]
        unknown = self._gauge.unknown() if self._gauge is not None else {}
        return ", ".join([*reasons, *(why for name, why in unknown.items() if limits.get(name))]) or None

    def _measure_source(self) -> Mapping[str, float]:
        if self._open_gauge is None:
            return {}
        try:
            self._gauge = self._gauge or self._open_gauge()
            return self._gauge.measure()
        except OperatorError as error:
            self._close_gauge()
            text = f"dumps are not held back when the source suffers: {error}"
            if text not in self._reported:
                self._reported.add(text)
                log.warning("%s%s", text, f" ({error.hint})" if error.hint else "")
            return {}

    def _measure_store(self) -> float:
        began = time.monotonic()
        self._store.read(LEASE)
        return time.monotonic() - began

    def _report(self, reason: str | None) -> None:
        if (reason is None) != (self.reason is None):
            log.warning("dumps are held back: %s", reason) if reason else log.info(
                "dumps are no longer held back"
            )
        self.reason = reason
        self._note(self._found, reason)

    def _close_gauge(self) -> None:
        if self._gauge is not None:
            self._gauge.close()
            self._gauge = None
