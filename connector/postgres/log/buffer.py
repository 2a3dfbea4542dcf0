"""The log reader's buffer: raw changes of complete transactions and of the open one. Does no I/O of its own.

Invariants:

- `Visibility` learns of a commit before it learns the position after it, even if all its rows are dropped:
  the dump that captures such a table must see it.
- `feed` is the hot loop: one check of a message's kind, one append. Everything else happens once per
  transaction or layout.
- All messages in the buffer have the same `base`; it changes only while the buffer is empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from connector.codec.log_segment import LogSegment
from connector.errors import BugError, NotYetError
from connector.landing.event_batch import QuarantineNotice
from connector.landing.manifest import LastCommit
from connector.logged_table import LoggedTable
from connector.postgres.codec.pgoutput import (
    CHANGES,
    Begin,
    Relation,
    parse_begin,
    parse_commit,
    parse_relation,
    parse_truncate,
    to_datetime,
)
from connector.postgres.codec.segment import PostgresSegment, RelationLayout, Transactions
from connector.postgres.definitions.refusals import TableLayout
from connector.postgres.log.descriptions import Descriptions
from connector.postgres.visibility import Visibility
from connector.schema import TableName
from connector.source import ResumePoint

log = logging.getLogger(__name__)

_BEGIN, _COMMIT, _RELATION, _TRUNCATE = b"BCRT"
_IGNORED = b"YOM"
"""Type, Origin, Message: none of them affects a table's state."""

MESSAGE_OVERHEAD = 41
"""Memory of a bytes object and its list slot, in addition to the message itself."""

Resolve = Callable[[Relation, int | None], "TableLayout | None"]
"""Returns a relation's layout, or None if it is not configured; also takes the xid of the transaction.

`NotYetError` if the layout is not known yet; the messages from there on wait.
"""


class _Open(NamedTuple):
    """The transaction being received: its messages begin at `start`; `carried` were taken before."""

    begin: Begin
    start: int
    carried: int


class LogBuffer:
    """Change messages that were read and not taken yet. Used by one thread at a time.

    `descriptions`: how they name tables.
    """

    def __init__(self, epoch: int, visibility: Visibility, resolve: Resolve) -> None:
        self.bytes = 0
        self.whole_rows = 0
        self._epoch = epoch
        self._visibility = visibility
        self._resolve = resolve
        self._position = visibility.position
        self._committed_at: int | None = None
        self._last_commit: tuple[int, int] | None = None
        self._payloads: list[bytes] = []
        self._base = 0
        self._transactions = Transactions()
        self._first_carried = 0
        self._open: _Open | None = None
        self._known: dict[int, RelationLayout] = {}
        self._layouts: list[RelationLayout] = []
        self._dropped: set[bytes] = set()
        self._quarantined: list[QuarantineNotice] = []
        self._waiting: list[bytes] = []
        self._reported = False
        self._dropped_changes = 0
        self.descriptions = Descriptions(self._truncates)

    @property
    def empty(self) -> bool:
        """Return whether nothing is buffered, not even part of a transaction."""
        return not self._payloads and self._open is None and not self._waiting

    @property
    def waiting(self) -> bool:
        """Return whether messages wait for a layout; nothing more should be fed before `resume`."""
        return bool(self._waiting)

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction has begun and its commit has not arrived."""
        return self._open is not None

    def feed(self, messages: Sequence[bytes], base: int) -> None:
        """Add messages, each with `base` bytes before its kind; move to the end of the last commit."""
        payloads, dropped = self._payloads, self._dropped
        if base != self._base:
            self._change_base(base)
        if self._waiting:
            self._waiting.extend(messages)
            return
        commits: list[tuple[int, int]] = []
        size, count = sum(map(len, messages)), len(messages)
        rest = iter(messages)
        for message in rest:
            kind = message[base]
            if kind in CHANGES:
                if dropped and kind != _TRUNCATE and message[base + 1 : base + 5] in dropped:
                    self._dropped_changes += 1
                    size -= len(message) + MESSAGE_OVERHEAD
                    continue
                payloads.append(message)
            elif kind == _COMMIT:
                self._commit(message, base, commits)
            elif kind == _BEGIN:
                self._open = _Open(parse_begin(message, base), len(payloads), 0)
                self._dropped_changes = 0
            elif kind == _RELATION:
                try:
                    self._relation(parse_relation(message, base))
                except NotYetError as error:
                    self._waiting = [message, *rest]
                    size, count = size - sum(map(len, self._waiting)), count - len(self._waiting)
                    self._report_waiting(error)
            elif kind not in _IGNORED:
                raise BugError(f"unknown log message {chr(kind)!r}")
        self.bytes += size + MESSAGE_OVERHEAD * count
        self._visibility.publish(self._position, commits)

    def resume(self) -> bool:
        """Retry messages that wait for their layout; return whether none waits any longer."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self.feed(waiting, self._base)
            self._reported = self._reported and bool(self._waiting)
        return not self._waiting

    def _report_waiting(self, error: NotYetError) -> None:
        if not self._reported:
            log.warning("waiting to read the log: %s", error)
        self._reported = True

    def idle(self, position: int) -> None:
        """Advance to a position before which the source has nothing for us; ignored within a transaction."""
        if self._open is None and position > self._position:
            self._position = position
            self._visibility.publish(position)

    def take(self) -> LogSegment | PostgresSegment:
        """Take all complete transactions, and all that was found out about tables in the open one."""
        rows, carried = self.whole_rows, self._first_carried
        transactions, self._transactions = self._transactions, Transactions()
        self.whole_rows = self._first_carried = 0
        quarantined, self._quarantined = self._quarantined, []
        if self._open is not None:
            self._open = self._open._replace(start=self._open.start - rows)
            lsn = self._open.begin.commit_lsn
            self._quarantined = [found for found in quarantined if found.lsn == lsn]
            quarantined = [found for found in quarantined if found.lsn != lsn]
        logged = [*self.descriptions.take(rows), *self.descriptions.outdated(self._position)]
        return self._slice_segment(rows, transactions, carried, quarantined, logged)

    def take_open(self) -> LogSegment | PostgresSegment | None:
        """Take what is buffered of the open transaction; only right after `take`."""
        if self._open is None or not self._payloads:
            return None
        begin, _, carried = self._open
        rows = len(self._payloads)
        transactions = Transactions()
        transactions.add(0, begin)
        self._open = _Open(begin, 0, carried + rows)
        quarantined, self._quarantined = self._quarantined, []
        logged = self.descriptions.take_open(rows)
        return self._slice_segment(rows, transactions, carried, quarantined, logged)

    def _slice_segment(
        self,
        rows: int,
        transactions: Transactions,
        carried: int,
        quarantined: Sequence[QuarantineNotice],
        logged: Sequence[LoggedTable],
    ) -> LogSegment | PostgresSegment:
        payloads, self._payloads = self._payloads[:rows], self._payloads[rows:]
        layouts = [*self._known.values(), *(layout for layout in self._layouts if layout.start < rows)]
        for layout in layouts:
            self._known[layout.relation.relid] = layout._replace(start=0)
        self._layouts = [
            layout._replace(start=layout.start - rows) for layout in self._layouts if layout.start >= rows
        ]
        self.bytes = sum(map(len, self._payloads)) + MESSAGE_OVERHEAD * len(self._payloads)
        committed_at = None if self._committed_at is None else to_datetime(self._committed_at)
        last_commit = None
        if self._last_commit is not None and committed_at is not None:
            end, xid = self._last_commit
            last_commit = LastCommit(position=end, txid=str(xid), committed_at=committed_at)
        segment = PostgresSegment(
            self._epoch, ResumePoint(self._position, last_commit=last_commit), committed_at, payloads,
            transactions, layouts, base=self._base, first_ordinal=carried, logged=logged,
        )  # fmt: skip
        return LogSegment(segment, quarantined) if quarantined else segment

    def _truncates(self, change: int, relid: int) -> bool:
        """Return whether a change that is held is a TRUNCATE of a table."""
        payload = self._payloads[change] if change < len(self._payloads) else b""
        is_truncate = payload[self._base : self._base + 1] == b"T"
        return is_truncate and relid in parse_truncate(payload, self._base).relids

    def _change_base(self, base: int) -> None:
        if not self.empty:
            raise BugError("the log reader was switched while its buffer was not empty")
        self._base = base

    def _commit(self, message: bytes, base: int, commits: list[tuple[int, int]]) -> None:
        if self._open is None:
            raise BugError("a commit without a BEGIN in the log")
        begin, start, carried = self._open
        commit = parse_commit(message, base)
        if commit.commit_lsn != begin.commit_lsn:
            raise BugError(f"commit {commit.commit_lsn} ends transaction {begin.commit_lsn} in the log")
        rows = len(self._payloads)
        if rows > start:
            if start == 0:
                self._first_carried = carried
            self._transactions.add(start, begin)
        if rows > start or carried or self._dropped_changes:
            commits.append((begin.commit_lsn, begin.xid))
        self.whole_rows = rows
        self.descriptions.commit()
        self._open = None
        self._position = commit.end_lsn
        self._committed_at = commit.committed_micros
        self._last_commit = (commit.end_lsn, begin.xid)

    def _relation(self, relation: Relation) -> None:
        """Record a layout; from here on, messages of tables that are not captured are dropped."""
        if self._open is None:
            raise BugError("the log describes a table outside a transaction")
        begin = self._open.begin
        found, lsn = self._resolve(relation, begin.xid), begin.commit_lsn
        schema = found.schema if found else None
        self.descriptions.add(relation, begin.xid, lsn, len(self._payloads), self._dropped_changes)
        self._layouts.append(RelationLayout(len(self._payloads), relation, schema))
        relid = relation.relid.to_bytes(4, "big")
        if schema is not None:
            self._dropped.discard(relid)
            return
        self._dropped.add(relid)
        if found is not None:
            table = TableName(relation.namespace, relation.name)
            self._quarantined.append(QuarantineNotice(table, lsn, found.reason, found.hint))
