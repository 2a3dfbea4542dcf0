"""Which commits the log reader has seen that a snapshot may not show yet: the low watermark's proof.

PostgreSQL writes a commit to the log before other sessions can see it; in between lies the end of the
transaction, which waits for synchronous standbys, for ever if need be. The reader may hand over such a commit
while every new snapshot still shows its xid as running.

Invariants:

- A commit is recorded here *before* `position` reaches it (`publish` does both).
- A chunk takes `position` before it opens its snapshot. So every commit before that position is either
  recorded here, or was dropped by `settle` because an older snapshot than the chunk's showed it.
- A transaction without lsn was running when the history began, or when a table joined the publication. It may
  have written what the log does not carry, so chunks wait until their snapshot shows it, even if its commit
  has been read since.
- `settle` drops nothing while a chunk is between `opening` and `low`: its snapshot may be older than
  settle's.

A transaction's lsn is that of its commit record, which is before the `position` behind it. The next commit
may begin exactly at `position`, so a low watermark is always less than the position it was made from.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from connector.manifest import UnsettledCommit

_WRAP = 1 << 32


@dataclass(frozen=True)
class Snapshot:
    """What ``pg_current_snapshot()`` says, in 64-bit xids: all before `xmin` ended, none from `xmax` on."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Read ``xmin:xmax:xip,xip``."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, running.split(","))) if running else frozenset())

    def full_xid(self, xid: int) -> int:
        """Give the 64-bit xid of a 32-bit one from the log: the nearest to `xmax`."""
        full = self.xmax - self.xmax % _WRAP + xid % _WRAP
        if full > self.xmax + _WRAP // 2:
            return full - _WRAP
        if full < self.xmax - _WRAP // 2:
            return full + _WRAP
        return full

    def shows(self, xid: int) -> bool:
        """Tell whether the transaction of a 32-bit xid had ended for this snapshot."""
        full = self.full_xid(xid)
        return full < self.xmin or (full < self.xmax and full not in self.running)


class Visibility:
    """The commits that were read and not yet known to be visible, and the position read up to. Thread-safe.

    `unsettled` comes from the manifest that the reader starts behind, or from the beginning of the history.
    """

    def __init__(self, position: int, unsettled: Iterable[UnsettledCommit] = ()) -> None:
        entries = list(unsettled)
        self._lock = threading.Condition()
        self._position = position
        self._opening = 0
        self._commits = [(e.lsn, e.xid) for e in entries if e.lsn]
        self._awaited = {e.xid % _WRAP for e in entries if not e.lsn}

    @property
    def position(self) -> int:
        """The reader's position: a transaction boundary."""
        return self._position

    @property
    def size(self) -> int:
        """How many commits are recorded."""
        return len(self._commits) + len(self._awaited)

    def publish(self, position: int, commits: Sequence[tuple[int, int]] = ()) -> None:
        """Move the position, which never goes back, past commits given as (lsn, 32-bit xid)."""
        with self._lock:
            if commits:
                self._commits.extend(commits)
            self._position = max(self._position, position)

    @contextmanager
    def opening(self) -> Iterator[int]:
        """Give the position to use while a chunk opens its snapshot; call `low` before leaving."""
        with self._lock:
            self._opening += 1
            position = self._position
        try:
            yield position
        finally:
            with self._lock:
                self._opening -= 1

    def low(self, position: int, snapshot: Snapshot) -> int | None:
        """Give the low watermark of a snapshot that was opened after the reader had reached `position`.

        None: the snapshot still shows a transaction without lsn as running, so that there is no low
        watermark; the chunk has to be opened again when that transaction has ended.
        """
        with self._lock:
            if any(not snapshot.shows(xid) for xid in self._awaited):
                return None
            hidden = [lsn for lsn, xid in self._commits if lsn <= position and not snapshot.shows(xid)]
        return min([position, *hidden]) - 1

    def settle(self, snapshot: Snapshot) -> bool:
        """Forget the commits that a fresh snapshot shows; False, and nothing, while a chunk is being opened.

        The snapshot must be opened after the commits were published, or it simply settles less.
        """
        with self._lock:
            if self._opening:
                return False
            self._commits = [entry for entry in self._commits if not snapshot.shows(entry[1])]
            self._awaited = {xid for xid in self._awaited if not snapshot.shows(xid)}
            return True

    def unsettled(self, position: int) -> list[UnsettledCommit]:
        """Give what is still recorded of the commits at or before a position, for the manifest."""
        with self._lock:
            awaited = [UnsettledCommit(xid=xid, lsn=0) for xid in sorted(self._awaited)]
            return awaited + [
                UnsettledCommit(xid=xid, lsn=lsn) for lsn, xid in self._commits if lsn <= position
            ]
