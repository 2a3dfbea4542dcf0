"""Decodes a segment of PostgreSQL's logical log (pgoutput): raw messages to event batches, by table. Pure.

The log reader's hot loop is cheap: it checks one byte of each message and appends the payload of a change::

    kind = payload[base]
    if kind in CHANGES:                                  # I, U, D, T
        payloads.append(payload)
    elif kind == ord("B"):
        transactions.add(len(payloads), parse_begin(payload, base))
    elif kind == ord("R"):                               # once per layout, see `RelationLayout`
        layouts.append(RelationLayout(len(payloads), parse_relation(payload, base), schema))

Decoding joins the payloads of a window into one buffer and then works by column. Invariants: every change
message that was appended has an ordinal in its transaction, and ``seq`` is twice that (the reader leaves out
those of tables that it does not capture, so only their order means anything); batches of one table come in
position order. Nothing here waits, reads or keeps state between segments.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from connector.codec.cells import Offsets
from connector.codec.decoding import by_layout, decoded, grouped, windows
from connector.errors import BugError
from connector.landing.event_batch import EventBatch, Placement, QuarantineNotice
from connector.logged_table import LoggedTable
from connector.postgres.codec.pgoutput import (
    CHANGES,
    Begin,
    Relation,
    parse_truncate,
)
from connector.postgres.codec.row_decoder import decode_changes
from connector.postgres.codec.tuples import HEADER, PADDING, TRUNCATE, Messages
from connector.schema import TableName, TableSchema
from connector.source import ResumePoint

WINDOW_MESSAGES = 1 << 16
WINDOW_BYTES = 32 << 20
"""Messages and bytes decoded at a time: they bound a decode's memory, whatever the segment's size."""

BATCH_VALUES = 2_500_000
"""Maximum values (rows times columns) in a batch, so that wide tables need no more memory than others."""


@dataclass
class Transactions:
    """A segment's transactions, each by the index of its first message, ascending."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    lsns: array[int] = field(default_factory=lambda: array("q"))
    committed: array[int] = field(default_factory=lambda: array("q"))
    xids: array[int] = field(default_factory=lambda: array("q"))

    def add(self, start: int, begin: Begin) -> None:
        """Record that messages from index `start` on belong to this transaction."""
        self.starts.append(start)
        self.lsns.append(begin.commit_lsn)
        self.committed.append(begin.committed_micros)
        self.xids.append(begin.xid)


class RelationLayout(NamedTuple):
    """The layout of `relation.relid` from message `start` on; `schema` None: the table is not captured.

    `schema.columns` are exactly the relation's columns, in its order.
    """

    start: int
    relation: Relation
    schema: TableSchema | None


class PostgresSegment:
    """Change messages of consecutive transactions; implements `connector.source.Segment`.

    `payloads` holds every change message (I, U, D, T) in log order, each with `base` bytes before its kind.
    `transactions` covers each message. One that began in an earlier segment starts at 0 here, and
    `first_ordinal` is the number of its change messages in earlier segments. `layouts` are in log order; each
    relid that occurs has one at or before its first message (known ones at 0). `decode` may be called again.
    """

    def __init__(
        self,
        epoch: int,
        end: ResumePoint,
        committed_at: datetime | None,
        payloads: Sequence[bytes],
        transactions: Transactions,
        layouts: Sequence[RelationLayout],
        *,
        base: int = 0,
        first_ordinal: int = 0,
        logged: Sequence[LoggedTable] = (),
    ) -> None:
        self.end, self.position = end, end.position
        self.logged = logged
        self.committed_at = committed_at
        self.rows = len(payloads)
        self._epoch = epoch
        self._payloads = list(payloads)
        self._padded: set[int] = set()
        self._base = base
        self._transactions = _NumberedTransactions(transactions, first_ordinal)
        self._layouts: dict[int, list[RelationLayout]] = {}
        for layout in layouts:
            self._layouts.setdefault(layout.relation.relid, []).append(layout)

    def decode(self) -> Iterator[EventBatch | QuarantineNotice]:
        """Decode into batches, for each table in position order.

        A table that can't be decoded yields one `QuarantineNotice` instead of that batch and all later ones.
        """
        return decoded(
            part for window in self._windows() for part in window.parts(self._layouts, self._epoch)
        )

    def _windows(self) -> Iterator[_Window]:
        lengths = np.fromiter(map(len, self._payloads), np.int64, len(self._payloads))
        lengths[list(self._padded)] -= len(PADDING)
        if len(lengths) and lengths.min() < self._base + HEADER:
            raise BugError(f"a change message has {lengths.min() - self._base} bytes")
        for low, high in windows(lengths, WINDOW_BYTES, WINDOW_MESSAGES):
            yield self._window(low, lengths[low:high])

    def _joined(self, low: int, count: int) -> bytes:
        """Join payloads, then pad. A single large message is kept padded instead of held twice."""
        if count > 1 or len(self._payloads[low]) < WINDOW_BYTES:
            return b"".join([*self._payloads[low : low + count], PADDING])
        if low not in self._padded:
            self._payloads[low] += PADDING
            self._padded.add(low)
        return self._payloads[low]

    def _window(self, low: int, lengths: Offsets) -> _Window:
        data = np.frombuffer(self._joined(low, len(lengths)), np.uint8)
        ends = np.cumsum(lengths)
        starts = ends - lengths + self._base
        kinds = data[starts]
        if not np.isin(kinds, np.frombuffer(CHANGES, np.uint8)).all():
            raise BugError("a segment has a message that is not a change")
        return _Window(low, Messages(data, kinds, starts, ends), self._transactions)


class _NumberedTransactions:
    """Transactions as arrays, with the ordinal of each one's first message."""

    def __init__(self, transactions: Transactions, first_ordinal: int) -> None:
        self.starts, self.lsns, self.committed, self.xids = (
            np.array(column, np.int64)
            for column in (transactions.starts, transactions.lsns, transactions.committed, transactions.xids)
        )
        self.first_ordinals = np.zeros(len(self.starts), np.int64)
        self.first_ordinals[:1] = first_ordinal


class _Window:
    """Consecutive messages in one buffer, each with its position."""

    def __init__(self, low: int, messages: Messages, transactions: _NumberedTransactions) -> None:
        self.low = low
        self.messages = messages
        index = low + np.arange(len(messages.kinds))
        transaction = np.searchsorted(transactions.starts, index, "right") - 1
        if transaction[0] < 0:
            raise BugError("a change message precedes the start of its transaction")
        self.lsns = transactions.lsns[transaction]
        self.seqs = 2 * (index - transactions.starts[transaction] + transactions.first_ordinals[transaction])
        self._first = int(transaction[0])
        present = slice(self._first, int(transaction[-1]) + 1)
        self._transaction = transaction - self._first
        self._txids = pa.array(transactions.xids[present]).cast(pa.string())
        self._committed = pa.array(transactions.committed[present], pa.timestamp("us", tz="UTC"))

    def placement(self, members: Offsets) -> Placement:
        """Return the positions of some of the messages."""
        picks = pa.array(self._transaction[members])
        return Placement(
            self.lsns[members], self.seqs[members], self._txids.take(picks), self._committed.take(picks)
        )

    def parts(self, layouts: Mapping[int, Sequence[RelationLayout]], epoch: int) -> list[_Part]:
        """Split the messages by relation and layout, in log order; omit those not captured."""
        parts = [
            _Part(self, epoch, layout.relation, layout.schema, some)
            for layout, members in by_layout(grouped(*self._messages_by_relation()), layouts, self.low)
            if layout.schema is not None
            for some in _in_batches(layout.schema, members)
        ]
        return sorted(parts, key=lambda part: int(part.members[0]))

    def _messages_by_relation(self) -> tuple[Offsets, Offsets]:
        """Pair relations and messages in log order; a truncate appears once per table."""
        data, kinds, starts = self.messages.data, self.messages.kinds, self.messages.starts
        members = np.flatnonzero(kinds != TRUNCATE)
        relids = np.zeros(len(members), np.int64)
        for byte in range(1, 5):
            relids = relids << 8 | data[starts[members] + byte]
        truncates = np.flatnonzero(kinds == TRUNCATE)
        if not len(truncates):
            return relids, members
        truncated = [(relid, m) for m in truncates.tolist() for relid in self._truncated(m)]
        relids = np.concatenate((relids, np.array([relid for relid, _ in truncated], np.int64)))
        members = np.concatenate((members, np.array([m for _, m in truncated], np.int64)))
        order = np.argsort(members, kind="stable")
        return relids[order], members[order]

    def _truncated(self, member: int) -> set[int]:
        start, end = self.messages.starts[member], self.messages.ends[member]
        return set(parse_truncate(self.messages.data[start:end].tobytes()).relids)


class _Part(NamedTuple):
    """Messages of one relation under one layout: their indexes in the window, ascending."""

    window: _Window
    epoch: int
    relation: Relation
    schema: TableSchema
    members: Offsets

    @property
    def table(self) -> TableName:
        """The table."""
        return self.schema.table

    @property
    def lsn(self) -> int:
        """The first message's lsn."""
        return int(self.window.lsns[self.members[0]])

    def decode(self) -> Iterator[EventBatch]:
        """Decode into one batch."""
        whole, members = self.window.messages, self.members
        messages = Messages(whole.data, whole.kinds[members], whole.starts[members], whole.ends[members])
        placement = self.window.placement(members)
        yield decode_changes(self.schema, self.relation, self.epoch, messages, placement)


def _in_batches(schema: TableSchema, members: Offsets) -> Iterator[Offsets]:
    rows = max(1, BATCH_VALUES // max(1, len(schema.columns) * (1 + schema.before_images)))
    return (members[low : low + rows] for low in range(0, len(members), rows))
