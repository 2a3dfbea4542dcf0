"""Keeps the lease while a capture runs, and gives it up for another agent that could do better.

Invariants:

- The thread that renews the lease never ends alone: an error that is not transient ends the capture without
  another commit.
- A renewal that fails, or hangs, is repeated long before the lease expires: a lost answer, or a store that
  fails for some seconds, does not lose the lease of an agent that lives.
- An agent that hands over because it can't read the log releases the lease at once, whatever its other
  threads wait for.
"""

from __future__ import annotations

import logging
import time

from connector.background import BackgroundThread
from connector.capture.loop import Capture
from connector.errors import TransientError
from connector.landing.lease import Lease
from connector.listening import Listener

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""The longest pause before a renewal that failed is repeated; one that hung took as long, or longer."""


class LeaseKeeper(BackgroundThread):
    """A thread that renews the lease three times per lease period, with the agent's figures in it.

    An agent with standbys hands over if it can't read the log for half a lease period, or its source is
    silent.
    """

    def __init__(self, lease: Lease, capture: Capture, listener: Listener) -> None:
        super().__init__("lease")
        self._lease, self._capture, self._listener = lease, capture, listener
        self._seconds = lease.state.seconds
        self._is_failing = False

    def work(self) -> None:
        """Keep the lease until `stopping` is set, or until it is lost or given up."""
        try:
            self._keep()
        except BaseException as error:  # nobody else renews it
            self._capture.fail(error)

    def _keep(self) -> None:
        pause = min(self._seconds / 12, RETRY_SECONDS)
        now = time.monotonic()
        due = now + self._seconds / 3
        while not self.stopping.wait(max(0.0, now + pause - time.monotonic())):
            if self._capture.hands_over and self._could_another_do_better():
                self._give_up(pause)
                return
            if self._listener.failure is not None:
                raise self._listener.failure
            now = time.monotonic()
            if now >= due and self._renew():
                due = now + self._seconds / 3

    def _could_another_do_better(self) -> bool:
        if self._listener.silent:  # which has said so
            return True
        lost = self._capture.progress.lost_seconds
        if lost > self._seconds / 2:
            log.warning("the log could not be read for %.1f s", lost)
            return True
        return False

    def _give_up(self, pause: float) -> None:
        """Have the capture end, which may take long, and release the lease: again if the store fails."""
        self._capture.hand_over()
        self._lease.release(unreachable=True)
        while not self._lease.state.released and not self.stopping.wait(pause):
            self._lease.release(unreachable=True)

    def _renew(self) -> bool:
        """Renew the lease; False if the store does not answer, which is said once."""
        newest = self._capture.newest
        try:
            self._lease.renew(
                self._capture.progress.figures(newest), fenced=is_fenced(self._capture, self._lease)
            )
        except TransientError as error:
            if not self._is_failing:
                log.warning("can't renew the lease, retrying: %s", error)
            self._is_failing = True
            return False
        self._is_failing = False
        return True


def is_fenced(capture: Capture | None, lease: Lease) -> bool:
    """Return whether a manifest of this term is committed, after which no earlier agent can commit."""
    newest = capture.newest if capture is not None else None
    return newest is not None and newest.term == lease.term
