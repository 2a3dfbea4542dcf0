"""Tracks commits that the log reader has seen and a snapshot may not show yet: proves the low watermark.

PostgreSQL writes a commit to the log before other sessions can see it. In between, the transaction ends,
waiting for synchronous standbys, possibly forever. The reader may deliver such a commit while every new
snapshot still shows its xid as running: listed in it, or at or after its xmax, which follows the latest
transaction that has *ended*, not the latest that has begun.

The proof has two halves.

*Commits after the history's first position* are in the log, so a chunk may miss one only if its low watermark
is below it. They are recorded here when they are read, by top-level xid, which is also how a snapshot
identifies them: neither has subtransactions, and a prepared transaction keeps its xid until COMMIT PREPARED
has ended.

*Commits before it* (or from before a table joined the publication) are not in the log, so every chunk must
see them. Their transactions already had xids when the slot was ready. So the source then takes an xid of its
own, the *xid barrier*: xids are assigned in order, so each such transaction has a lower one. A snapshot whose
xmin is at or after the barrier sees them all, whether or not it would have listed them; every other snapshot
is refused. Transactions from the barrier on began after the slot was ready, and commit after it in the log.

Invariants:

- A commit is recorded here *before* `position` reaches it (`publish` does both).
- A chunk takes `position` before it opens its snapshot. So every commit before that position is either
  recorded here, or was dropped by `forget_visible_commits`, because a snapshot older than the chunk's showed
  it.
- The highest barrier holds. A transaction below it may have written what the log does not carry, so chunks
  wait for it to end even if its commit has been read since.
- `forget_visible_commits` drops nothing while a chunk is between `opening` and `low_watermark`, since its
  snapshot may be the older one.

A transaction's lsn is that of its commit record, which is before the `position` that follows it. The next
commit may begin exactly at `position`, so a low watermark is always less than the position it derives from.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from connector.landing.manifest import InvisibleCommit

_WRAP = 1 << 32


@dataclass(frozen=True)
class Snapshot:
    """A ``pg_current_snapshot()``, in 64-bit xids: all before `xmin` had ended, none from `xmax` on."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Parse ``xmin:xmax:xip,xip``."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, running.split(","))) if running else frozenset())

    def full_xid(self, xid: int) -> int:
        """Return the 64-bit xid for a 32-bit one from the log: the one nearest to `xmax`."""
        full = self.xmax - self.xmax % _WRAP + xid % _WRAP
        if full > self.xmax + _WRAP // 2:
            return full - _WRAP
        if full < self.xmax - _WRAP // 2:
            return full + _WRAP
        return full

    def shows(self, xid: int) -> bool:
        """Return whether the transaction with a 32-bit xid had ended for this snapshot."""
        full = self.full_xid(xid)
        return full < self.xmin or (full < self.xmax and full not in self.running)


class Visibility:
    """The commits read but not known to be visible, and the position read up to. Safe for threads.

    `not_yet_visible` comes from the manifest after which the reader starts, or from the beginning of the
    history.
    """

    def __init__(self, position: int, not_yet_visible: Iterable[InvisibleCommit] = ()) -> None:
        entries = list(not_yet_visible)
        self._lock = threading.Condition()
        self._position = position
        self._opening = 0
        self._commits = [(e.lsn, e.xid) for e in entries if e.lsn]
        self._barrier = max((e.xid for e in entries if not e.lsn), default=0)

    @property
    def position(self) -> int:
        """The reader's position: a transaction boundary."""
        return self._position

    @property
    def size(self) -> int:
        """The number of commits recorded, plus one for a barrier."""
        return len(self._commits) + bool(self._barrier)

    def publish(self, position: int, commits: Sequence[tuple[int, int]] = ()) -> None:
        """Move the position, which never goes back, past commits given as (lsn, 32-bit xid)."""
        with self._lock:
            if commits:
                self._commits.extend(commits)
            self._position = max(self._position, position)

    @contextmanager
    def opening(self) -> Iterator[int]:
        """Yield the position to use while a chunk opens its snapshot; call `low_watermark` before leaving."""
        with self._lock:
            self._opening += 1
            position = self._position
        try:
            yield position
        finally:
            with self._lock:
                self._opening -= 1

    def low_watermark(self, position: int, snapshot: Snapshot) -> int | None:
        """Return the low watermark of a snapshot that was opened after the reader had reached `position`.

        None if a transaction below the barrier may still be running for the snapshot: then there is no low
        watermark, and the chunk must be reopened once that transaction has ended.
        """
        with self._lock:
            if snapshot.xmin < self._barrier:
                return None
            hidden = [lsn for lsn, xid in self._commits if lsn <= position and not snapshot.shows(xid)]
        return min([position, *hidden]) - 1

    def forget_visible_commits(self, snapshot: Snapshot) -> bool:
        """Forget the commits that a fresh snapshot shows; False, with no effect, while a chunk is opening.

        A snapshot opened before the commits were published only forgets fewer.
        """
        with self._lock:
            if self._opening:
                return False
            self._commits = [entry for entry in self._commits if not snapshot.shows(entry[1])]
            if snapshot.xmin >= self._barrier:
                self._barrier = 0
            return True

    def not_yet_visible(self, position: int, snapshot: Snapshot | None = None) -> list[InvisibleCommit]:
        """Return the commits still recorded at or before a position, and any barrier, for the manifest.

        `snapshot`: a fresh one, of which what it shows is left out, also while a chunk is being opened.
        """
        with self._lock:
            waits = self._barrier and (snapshot is None or snapshot.xmin < self._barrier)
            barrier = [InvisibleCommit(xid=self._barrier, lsn=0)] if waits else []
            return barrier + [
                InvisibleCommit(xid=xid, lsn=lsn)
                for lsn, xid in self._commits
                if lsn <= position and not (snapshot and snapshot.shows(xid))
            ]
