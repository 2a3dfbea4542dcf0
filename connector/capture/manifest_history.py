"""The manifest history: the newest manifest, and the only way to write the next.

Invariant: `commit` returns only when manifest N+1 is durable and is ours. A crash leaves manifest N or
manifest N+1, and perhaps files that no manifest names. Within an epoch, positions never go back.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from connector.capture.retry import retrying
from connector.errors import (
    BugError,
    FencedError,
    PreconditionError,
    SourceMismatchError,
    TransientError,
)
from connector.landing.manifest import Manifest, Notice, SourceIdentity
from connector.landing.manifest_store import ManifestReader, ManifestWriter, newest_manifest
from connector.store.protocol import Store

log = logging.getLogger(__name__)


class ManifestHistory:
    """The linear history of one source, as its active agent writes it.

    `closes_fence`: the agent of an earlier term may still be alive, paused or cut off, or what it sent may
    still be under way. At any later time it could commit one more manifest, on which this agent would fail.
    So `load` first commits one that changes nothing: it takes the number that the other agent would use. In a
    new landing zone `begin` does that, and whoever finds it taken loads it.

    An agent never commits after a manifest of a greater term than its own, even if it was overtaken before it
    had read any. `ended_by`: set by another thread to the error that ends the agent: nothing is committed
    from then on. `in_doubt`: whether a create was given up, which may still take effect.
    """

    def __init__(
        self, store: Store, term: int, stop: threading.Event | None = None, *, closes_fence: bool = False
    ) -> None:
        self.closes_fence = closes_fence
        self.ended_by: BaseException | None = None
        self.in_doubt = False
        self._store = store
        self._term = term
        self._stop = stop or threading.Event()
        self._newest: Manifest | None = None
        self._writer = ManifestWriter(store)

    @property
    def newest(self) -> Manifest:
        """Return the last manifest committed."""
        if self._newest is None:
            raise LookupError("no manifest is committed yet")
        return self._newest

    @property
    def next_number(self) -> int:
        """Return the number of the next manifest."""
        return self._newest.number + 1 if self._newest else 1

    def is_stopping(self) -> bool:
        """Return whether the agent has been asked to end."""
        return self._stop.is_set()

    def load(self, identify: Callable[[Manifest], SourceIdentity]) -> Manifest | None:
        """Read the newest manifest; None in a new landing zone.

        `SourceMismatchError` in another source's, `FencedError` if it is of a greater term.
        """
        while True:
            found = retrying(self._stop)(ManifestReader(self._store).newest)
            if found is None:
                self._newest = None
                return None
            newest, base = found
            check_identity(newest.source, identify(newest))
            if newest.term > self._term:
                raise _overtaken(newest, self._term)
            self._newest, self._writer = newest, ManifestWriter(self._store, base)
            if not self.closes_fence or newest.term == self._term:
                return newest
            with suppress(FencedError):  # the other was faster, this once
                return self.commit()

    def verify(self) -> None:
        """Check that nobody has committed after our newest manifest; `FencedError` if somebody has."""
        later = retrying(self._stop)(newest_manifest, self._store)
        if later is not None and later.number >= self.next_number:
            raise _overtaken(later, self._term)

    def begin(self, identity: SourceIdentity, **state: Any) -> Manifest:
        """Commit the first manifest of a landing zone; `state`: epoch, position, tables, dumps and so on.

        `TransientError` if that of a former agent has taken effect since `load`, which is to be called again.
        """
        try:
            return self._write(Manifest(**self._header_of_next(), source=identity, **state))
        except FencedError as error:
            if not self.closes_fence:
                raise
            raise TransientError(f"{error}; looking whether that is a former one") from error

    def commit(self, *, notices: Sequence[Notice] = (), **changes: Any) -> Manifest:
        """Commit the next manifest: the newest one with `changes`; durable on return.

        What belongs to one manifest only (files, notices) is never carried over. Raises `FencedError` if
        another agent has written this number.
        """
        fresh = self._header_of_next() | {"files": [], "notices": list(notices)}
        return self._write(self.newest.model_copy(update=fresh | changes))

    def note_log_off(self, identify: Callable[[Manifest], SourceIdentity], reason: str) -> None:
        """Record the gap that begins where this server stopped logging; durable on return.

        Nothing else shows the gap once the server logs again. Any server of this database counts: a replica
        that took over lacks the same changes in its log. So does a server that can't be identified now: at
        worst, that costs an unneeded dump. Records nothing before the first manifest, nor for another
        database (`SourceMismatchError`).
        """
        newest = self._newest
        if newest is None or newest.pending_gap:
            return
        with suppress(TransientError, PreconditionError):
            check_identity(newest.source, identify(newest))
        log.error("gap: after %s %s", newest.position_text, reason)
        self.commit(pending_gap=reason)

    def _header_of_next(self) -> dict[str, Any]:
        return {
            "number": self.next_number,
            "term": self._term,
            "write_id": uuid.uuid4().hex,
            "committed_at": datetime.now(timezone.utc),
        }

    def _write(self, manifest: Manifest) -> Manifest:
        newest = self._newest
        if newest and (manifest.epoch, manifest.position) < (newest.epoch, newest.position):
            before, now = newest.position_text, manifest.position_text
            raise BugError(f"manifest {manifest.number} goes back from {before} to {now}")
        if self.ended_by is not None:
            raise self.ended_by
        self.in_doubt = True
        retrying(self._stop)(self._writer.commit, manifest)
        self.in_doubt = False
        self._newest = manifest
        log.debug("manifest %s at %s: %s files", manifest.number, manifest.position_text, len(manifest.files))
        return manifest


def _overtaken(later: Manifest, term: int) -> FencedError:
    return FencedError(
        f"manifest {later.number} was committed by another agent (its term is {later.term}, ours {term})",
        hint="run one agent per source; a standby waits for the lease",
    )


def check_identity(landed: SourceIdentity, now: SourceIdentity) -> None:
    """Refuse to go on with the landing zone of another database."""
    for field in ("kind", "system_id", "database"):
        before, after = getattr(landed, field), getattr(now, field)
        if before != after:
            raise SourceMismatchError(
                f"the landing zone of source {landed.name!r} belongs to a server with {field} {before!r};"
                f" this one has {after!r}",
                hint="choose another source.name or landing.url for this database",
            )
