"""The agent as its HTTP side sees it: snapshots of what is in memory, without taking the capture's locks.

Only an active agent has the newest manifest in memory; before that, everything is read from the store, with a
separate client that gives up sooner than the agent's.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Literal

from connector.capture.loop import Capture
from connector.config import Config, DumpConfig
from connector.control.source_view import SourceView
from connector.errors import DeltatideError
from connector.figures.progress import Progress
from connector.landing.consumers import Consumer
from connector.landing.lease import AgentFigures, Holder, Lease
from connector.landing.manifest import Manifest
from connector.landing.requests import Malformed, Request
from connector.landing.verified import Verified
from connector.store.observed import ObservedStore

log = logging.getLogger(__name__)

State = Literal["starting", "standby", "active", "stuck"]

LAKES_SECONDS = 30.0
"""How long lakes' records are cached: lakes write one every ten minutes."""

STATES: tuple[State, ...] = ("starting", "standby", "active", "stuck")


class LiveAgent(SourceView):
    """The agent of this process: starting, standby (it waits for the lease), then active."""

    def __init__(self, config: Config, store: ObservedStore) -> None:
        super().__init__(config)
        self._observed = store
        self._role: State = "starting"
        self._capture: Capture | None = None
        self._lease: Lease | None = None
        self._lakes: list[Consumer] = []
        self._verified: list[Verified] = []
        self._lakes_due = 0.0

    @property
    def state(self) -> State:
        """Return the current state; stuck: active, but the capture loop has made no round for too long.

        A loop that retries an unanswered call of the store is not stuck.
        """
        if self._capture is None:
            return self._role
        alive_at = max(self._capture.progress.turned_at, self._observed.failed_at)
        return "stuck" if time.monotonic() - alive_at > self.config.control.stuck_seconds else "active"

    @property
    def progress(self) -> Progress | None:
        """Return the figures of the capture; None before it begins."""
        return self._capture.progress if self._capture is not None else None

    @property
    def store_errors(self) -> Counter[str]:
        """Return how many calls of the store have failed, by operation."""
        return self._observed.errors

    @property
    def store_failing_seconds(self) -> float:
        """Return for how many seconds every call of the store has failed; 0: the last one succeeded."""
        since = self._observed.failing_since
        return 0.0 if since is None else time.monotonic() - since

    def stand_by(self) -> None:
        """Mark the agent as waiting for the lease; keep its last tenure's configuration."""
        if self._capture is not None:
            self.config = self._capture.config
        self._role, self._capture, self._lease = "standby", None, None

    def activate(self, capture: Capture, lease: Lease) -> None:
        """Mark the agent as capturing, with the lease that it holds."""
        self._lease, self._capture, self._role = lease, capture, "active"

    @property
    def dump_config(self) -> DumpConfig:
        """Return the dump settings that the capture has last taken over."""
        return (self._capture or self).config.dump

    def newest(self) -> Manifest:
        """Return the newest manifest, from memory if active, else from the store."""
        known = self.newest_known()
        return known if known is not None else super().newest()

    def newest_known(self) -> Manifest | None:
        """Return the newest manifest in memory; None if there is none."""
        return self._capture.newest if self._capture is not None else None

    def lease(self) -> Holder | None:
        """Return the lease, from memory if this agent holds it, else from the store."""
        return self._lease.state if self._lease is not None else super().lease()

    def lease_held(self) -> Holder | None:
        """Return the lease if this agent holds it."""
        return self._lease.state if self._lease is not None else None

    def lakes(self) -> list[Consumer]:
        """Return the lakes, cached for `LAKES_SECONDS`, or longer while the store does not answer."""
        self.look_at_lakes()
        return self._lakes

    def waiting_requests(self) -> list[Request | Malformed]:
        """Return none if active: it takes them within seconds, and its page must not need the store."""
        return super().waiting_requests() if self._capture is None else []

    def verified(self) -> list[Verified]:
        """Return what was verified of lakes, cached in the same way."""
        self.look_at_lakes()
        return self._verified

    def verified_known(self) -> list[Verified]:
        """Return what was verified of lakes as it was last read."""
        return self._verified

    def look_at_lakes(self) -> None:
        """Read which lakes merge and what of them was verified, unless the cache is fresh."""
        if time.monotonic() >= self._lakes_due:
            self._lakes_due = time.monotonic() + LAKES_SECONDS
            try:
                self._lakes, self._verified = super().lakes(), super().verified()
            except DeltatideError as error:
                log.warning("can't read which lakes merge: %s", error)

    def figures(self) -> AgentFigures:
        """Return this agent's current figures if it is active, else the active agent's."""
        progress = self.progress
        return super().figures() if progress is None else progress.figures(self.newest_known())
