"""The catalog watcher: checks for changes of a table's rows or capture that leave no trace in the log.

PostgreSQL's log does not show that a partition was attached, detached or truncated by itself, that a table
was removed from the publication and added again, or that a new table matches the patterns. The watcher
compares fingerprints. `connector.capture.loop` queues a full dump, or starts capturing the table, once the
log has been read past the check.

Invariants:

- While checks fail or hang, manifests would still mark cuts as exact. So `BLIND_SECONDS` after the start of
  the last successful check, the log is reopened; that begins with a check and fails if the check does.
- A check that an earlier one's consequences have overtaken is discarded: it compared with fingerprints that
  are no longer known, and may find the same change once more.
- The manifest that queues a dump records the fingerprint that asked for it. So a change is acted on even
  after a crash, and the next agent sees a change made while none was running.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from connector.background import BackgroundThread
from connector.errors import OperatorError, TransientError
from connector.schema import TableName
from connector.source import CatalogSnapshot, Source

log = logging.getLogger(__name__)

CHECK_SECONDS = 10.0
"""Seconds between checks of the catalog: short enough for people, long enough to cause no load."""

FAILURES = 3
"""Log a transient error only after this many failed checks in a row: outages are reported elsewhere."""

BLIND_SECONDS = 120.0
"""How long the log is read without a successful check; longer than a server restart takes."""


class CatalogWatcher(BackgroundThread):
    """A thread that checks the catalog, and its latest result. `known` returns the known fingerprints."""

    def __init__(self, source: Source, known: Callable[[], Mapping[TableName, str]]) -> None:
        super().__init__("watch")
        self._source, self._known = source, known
        self._found: CatalogSnapshot | None = None
        self._failed, self._checked_at = 0, time.monotonic()
        self._reported: str | None = None
        self._last_error: TransientError | OperatorError | None = None

    def take(self) -> CatalogSnapshot | None:
        """Return what was found since the last call, if anything."""
        found, self._found = self._found, None
        return found

    def forget(self) -> None:
        """Discard all checks so far: the caller has just checked the catalog itself."""
        self._found, self._failed, self._last_error = None, 0, None
        self._checked_at = time.monotonic()

    def raise_if_blind(self) -> None:
        """Raise `TransientError` if no check has succeeded for `BLIND_SECONDS`."""
        if time.monotonic() - self._checked_at >= BLIND_SECONDS:
            why = self._last_error or "a check of the catalog takes too long"
            raise TransientError(f"changes without row events can't be seen: {why}") from self._last_error

    def work(self) -> None:
        """Check at intervals."""
        while not self.stopping.wait(CHECK_SECONDS):
            began = time.monotonic()
            try:
                known = self._known()
                found = self._source.check_catalog(known)
                self._failed, self._reported, self._last_error = 0, None, None
                if self._known() == known:
                    self._found, self._checked_at = found, max(began, self._checked_at)
            except (TransientError, OperatorError) as error:
                self._last_error = error
                self._failed += 1
                if isinstance(error, OperatorError) or self._failed >= FAILURES:
                    self._log_once(str(error))

    def _log_once(self, text: str) -> None:
        """Log once why checks fail: until they work again, unlogged changes go unseen."""
        if text != self._reported:
            log.warning("can't check for changes without row events, retrying: %s", text)
        self._reported = text
