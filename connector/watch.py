"""The watch: looks now and then for what changes a table's rows or capture without a trace in the log.

PostgreSQL's log does not tell of a partition that is attached, detached or truncated by itself, of a table
that was taken out of the publication and put back, or of a new table that the patterns name. The watch
compares fingerprints; `connector.capture` queues a full dump, or takes the table up, once the log has been
read past the moment of the look.

Invariant: a fingerprint is remembered in the manifest that queues the dump it asks for, so that a change is
acted on after a crash too, and one that happened while no agent ran is seen by the next.
"""

from __future__ import annotations

import logging
import threading

from connector.errors import OperatorError, TransientError
from connector.source import Outlook, Source

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""One query of the catalog; often enough that nobody wonders, seldom enough that nobody notices."""


class Watch:
    """A thread that looks, and the result it found last. `failure` holds what ended it for good."""

    def __init__(self, source: Source) -> None:
        self.failure: BaseException | None = None
        self._source = source
        self._found: Outlook | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def take(self) -> Outlook | None:
        """Give what was found since the last call, if anything."""
        found, self._found = self._found, None
        return found

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self._found = self._source.look()
            except (TransientError, OperatorError) as error:
                log.debug("could not look at the catalog: %s", error)
            except BaseException as error:  # handed to the capture loop, which raises it
                self.failure = error
                return
