"""The log of a `MemoryDatabase`, read change by change and decoded into real batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from connector.errors import TransientError
from connector.landing.event_batch import CdcColumns, EventBatch, QuarantineNotice, arrow_type, assemble
from connector.landing.format import DELETE, INSERT, UPDATE
from connector.landing.manifest import InvisibleCommit, LastCommit
from connector.logged_table import LoggedTable
from connector.position import Position
from connector.postgres.visibility import Visibility
from connector.schema import TableName
from connector.source import ResumePoint
from connector.testing.memory_database import Change, Commit, MemoryDatabase, Row, Slot


@dataclass(frozen=True)
class Logged:
    """One change with its position in the log."""

    commit: Commit
    ordinal: int
    change: Change


def last_commit_of(commit: Commit) -> LastCommit:
    """Return a commit in the form that manifests use."""
    return LastCommit(position=commit.position, txid=str(commit.xid), committed_at=commit.committed_at)


class MemorySegment:
    """Logged changes, decoded on demand; implements `connector.source.Segment`."""

    logged: Sequence[LoggedTable] = ()

    def __init__(
        self,
        epoch: int,
        position: int,
        logged: list[Logged],
        undecodable: dict[str, str],
        last_commit: LastCommit | None = None,
    ) -> None:
        self.end, self.position = ResumePoint(position, last_commit=last_commit), position
        self.committed_at: datetime | None = logged[-1].commit.committed_at if logged else None
        self.rows = len(logged)
        self._epoch, self._logged, self._undecodable = epoch, logged, undecodable

    def decode(self) -> Iterator[EventBatch | QuarantineNotice]:
        """Decode into one batch per table and layout."""
        groups: dict[tuple[TableName, str], list[Logged]] = {}
        for logged in self._logged:
            schema = logged.change.schema
            groups.setdefault((schema.table, schema.id), []).append(logged)
        for (table, _), group in groups.items():
            if reason := self._undecodable.get(str(table)):
                yield QuarantineNotice(table, group[0].commit.lsn, reason, "fix it, then dump it again")
            else:
                yield _batch(self._epoch, group)


def _batch(epoch: int, group: list[Logged]) -> EventBatch:
    schema = group[0].change.schema
    events = [event for logged in group for event in events_of(logged)]
    columns = [
        pa.array([None if c.name in e.unchanged else e.row.get(c.name) for e in events], arrow_type(c.type))
        for c in schema.columns
    ]
    commits = [e.commit for e in events]
    cdc = CdcColumns(
        op=pa.array([e.op for e in events], pa.string()),
        epoch=epoch,
        lsn=pa.array([c.lsn for c in commits], pa.int64()),
        seq=pa.array([e.seq for e in events], pa.int64()),
        txid=pa.array([str(c.xid) for c in commits], pa.string()),
        committed_at=pa.array([c.committed_at for c in commits], pa.timestamp("us", tz="UTC")),
        unchanged=pa.array([list(e.unchanged) or None for e in events], pa.list_(pa.string())),
    )
    return EventBatch(
        schema,
        assemble(schema, columns, cdc),
        first=Position(epoch, commits[0].lsn, events[0].seq),
        last=Position(epoch, commits[-1].lsn, events[-1].seq),
        partial=any(e.unchanged for e in events),
        truncates=any(e.op == "truncate" for e in events),
    )


@dataclass(frozen=True)
class LogEvent:
    """One event that a change lands as."""

    commit: Commit
    seq: int
    op: str
    row: Row
    unchanged: tuple[str, ...] = ()


def events_of(logged: Logged) -> list[LogEvent]:
    """Return the events of one change: two for an update that changed the key."""
    commit, change, seq = logged.commit, logged.change, 2 * logged.ordinal
    if change.old_key is None:
        return [LogEvent(commit, seq, change.op, change.row, change.unchanged)]
    old = dict(zip(change.schema.key, change.old_key, strict=True))
    return [
        LogEvent(commit, seq, DELETE, old),
        LogEvent(commit, seq + 1, INSERT if change.op == UPDATE else change.op, change.row, change.unchanged),
    ]


class LoggedSource(Protocol):
    """What a log reader needs from its source."""

    database: MemoryDatabase
    change_bytes: int
    undecodable: dict[str, str]

    def connect(self) -> Callable[[str], None]:
        """Open a connection; see `connector.testing.memory_source.MemorySource.connect`."""

    def slot_is(self, slot: Slot) -> bool:
        """Return whether the slot is still the one that was opened."""

    def is_captured(self, change: Change, lsn: int) -> bool:
        """Return whether the log carries a table's changes at this position."""


class MemoryLogReader:
    """Reads the log change by change; implements `connector.source.LogReader`."""

    def __init__(
        self, source: LoggedSource, slot: Slot, epoch: int, start: int, visibility: Visibility
    ) -> None:
        self._reach = source.connect()
        self.unbroken = False
        self._source, self._database, self._slot, self._epoch = source, source.database, slot, epoch
        self._visibility = visibility
        self._next = sum(commit.position <= start for commit in list(self._database.log))
        self._ordinal = 0
        self._whole: list[Logged] = []
        self._open: list[Logged] = []
        self._last_commit: LastCommit | None = None

    @property
    def position(self) -> int:
        """The boundary up to which the log was read."""
        return self._visibility.position

    @property
    def buffered_bytes(self) -> int:
        """The size of all changes held."""
        return self._source.change_bytes * (len(self._whole) + len(self._open))

    @property
    def buffered_rows(self) -> int:
        """The number of changes held of whole transactions."""
        return len(self._whole)

    @property
    def behind_bytes(self) -> int:
        """How far ahead the end of the log is."""
        return self._database.end - self.position

    def read(self, seconds: float, upto_bytes: int) -> None:
        """Read for `seconds`, or until the buffer holds `upto_bytes` bytes."""
        deadline = time.monotonic() + seconds
        with self._database.changed:
            while self.buffered_bytes < upto_bytes:
                self._reach("read")
                if not self._source.slot_is(self._slot):
                    raise TransientError("the slot is gone")
                more = self._pull()
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                if not more:
                    self._database.changed.wait(left)

    def _pull(self) -> bool:
        """Take one flushed change or commit; False at the end of the log, which is then the position."""
        database = self._database
        if self._next == len(database.log) or database.log[self._next].position > database.flushed:
            self._visibility.publish(database.flushed)
            return False
        commit = database.log[self._next]
        if self._ordinal < len(commit.changes):
            change = commit.changes[self._ordinal]
            if self._source.is_captured(change, commit.lsn):
                self._open.append(Logged(commit, self._ordinal, self._shown(change)))
            self._ordinal += 1
            return True
        self._whole += self._open
        self._open, self._ordinal, self._next = [], 0, self._next + 1
        self._visibility.publish(commit.position, [(commit.lsn, commit.xid)])
        self._last_commit = last_commit_of(commit)
        return True

    def _shown(self, change: Change) -> Change:
        """Return a change as a source sees it: without a key, a key update is an ordinary update."""
        if change.schema.table not in self._database.keyless:
            return change
        return replace(change, schema=self._database.shown(change.schema), old_key=None)

    def take(self) -> MemorySegment:
        """Take all whole transactions."""
        self._reach("take")
        whole, self._whole = self._whole, []
        return MemorySegment(
            self._epoch, self.position, whole, dict(self._source.undecodable), self._last_commit
        )

    def take_open(self) -> MemorySegment | None:
        """Take what is held of the open transaction."""
        if not self._open:
            return None
        taken, self._open = self._open, []
        return MemorySegment(
            self._epoch, self.position, taken, dict(self._source.undecodable), self._last_commit
        )

    def confirm(self, position: int) -> None:
        """Move the slot, which never goes back."""
        self._reach("confirm")
        self._slot.confirmed = max(self._slot.confirmed, position)

    def not_yet_visible(self, position: int) -> list[InvisibleCommit]:
        """Return the commits at or before a position that are not visible."""
        self._reach("not_yet_visible")
        snapshot = self._database.snapshot_now()
        self._visibility.forget_visible_commits(snapshot)
        return self._visibility.not_yet_visible(position, snapshot)

    def close(self) -> None:
        """Discard what is buffered."""
        self._whole, self._open = [], []
