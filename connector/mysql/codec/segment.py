"""Decodes a segment of the binary log: raw rows events to event batches, by table. Pure.

The log reader's output, and the hot loop that produces it::

    packet = bytes of one event as the server sent them: `base` bytes (the packet's 0x00, semi-sync's two),
             the event (19 bytes of header, body), `tail` bytes (4 with a CRC32 checksum, else 0)
    kind = packet[base + 4]
    if kind in ROWS_EVENTS:                     # both versions, partial updates, MariaDB's compressed ones
        table_id = int.from_bytes(packet[base + 19 : base + 25], "little")
        if captured[table_id]:
            payloads.append(packet); ordinals.append(ordinal)
        ordinal += 1                            # counts rows events of all tables; 0 at a transaction's start
    elif kind == TABLE_MAP:                     # comes before each statement's rows, mostly the same bytes
        body = packet[base + 19 : len(packet) - tail]
        if body is new for its table id:
            layouts.append(SegmentLayout(len(payloads), table_id, parse_table_map(body, ...), schema))
    elif it begins a transaction (GTID event):
        transactions.add(len(payloads), lsn, committed_micros, txid); ordinal = 0
    elif a statement TRUNCATE TABLE:            # a transaction of its own
        payloads.append(pad(make_truncate_event(table_id))); ordinals.append(ordinal)

Events in a MySQL TRANSACTION_PAYLOAD have no checksum: the reader puts `base` and `tail` zero bytes around
each. `make_truncate_event` needs a table id with a layout; if the log has not shown the table, the reader
makes one up (a server never uses 2^47 or more), with a `SegmentLayout` of its current schema.

Invariants: a row's ``seq`` depends on its event's ordinal in the transaction and on its own in the event,
never on which tables are captured or where segments are split. Batches of one table come in position order.
Nothing here waits, reads or keeps state between segments.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pymysqlreplication.constants import BINLOG

from connector.codec.cells import Offsets
from connector.codec.decoding import by_layout, decoded, grouped, windows
from connector.errors import BugError, TableError
from connector.landing.event_batch import EventBatch, Placement, QuarantineNotice
from connector.logged_table import LoggedTable
from connector.mysql.codec.column_cells import PADDING
from connector.mysql.codec.compressed import HEADER, PLAIN, TABLE_ID_BYTES, TYPE_IN_EVENT, uncompress_event
from connector.mysql.codec.numbers import little_endian
from connector.mysql.codec.row_decoder import EVENT_SEQ, decode_changes
from connector.mysql.codec.rows_event import OPERATIONS, TRUNCATE_KIND, Events
from connector.mysql.codec.table_map import TableMap
from connector.schema import TableName, TableSchema
from connector.source import ResumePoint

TABLE_MAP = BINLOG.TABLE_MAP_EVENT
ROWS_EVENTS = frozenset((*(kind for kind in OPERATIONS if kind != TRUNCATE_KIND), *PLAIN))
"""Event types that `MysqlSegment` decodes."""

WINDOW_EVENTS = 1 << 18
WINDOW_BYTES = 4 << 20
"""Events decoded at a time, and their uncompressed bytes: they bound the memory, whatever the segment's size.
"""

_LEAST_BYTES = 27
"""Header, table id and flags."""


@dataclass
class Transactions:
    """A segment's transactions, each by the index of its first event, ascending.

    `lsns`: `pack_binlog_position` of the transaction's start (its GTID event). `committed`: microseconds
    since 1970. `txids`: its GTID, or None.
    """

    starts: array[int] = field(default_factory=lambda: array("q"))
    lsns: array[int] = field(default_factory=lambda: array("q"))
    committed: array[int] = field(default_factory=lambda: array("q"))
    txids: list[str | None] = field(default_factory=list)

    def add(self, start: int, lsn: int, committed: int, txid: str | None) -> None:
        """Record that events from index `start` on belong to this transaction."""
        self.starts.append(start)
        self.lsns.append(lsn)
        self.committed.append(committed)
        self.txids.append(txid)


class SegmentLayout(NamedTuple):
    """The layout of `table_id` from event `start` on; `schema` None: the table is not captured.

    `schema.columns` are exactly the table map's columns, in its order. `problem`: the layout could not be
    read (`parse_table_map`), or the reader found another reason to stop the table: its first event
    quarantines it, so `schema` still names it, by an older layout if need be. `partial_images`: rows of which
    the log has only some columns are decoded.
    """

    start: int
    table_id: int
    table_map: TableMap | None
    schema: TableSchema | None
    problem: TableError | None = None
    partial_images: bool = False


class MysqlSegment:
    """Rows events of consecutive transactions; implements `connector.source.Segment`.

    `payloads` and `ordinals` are parallel, see the module. `transactions` covers each event; one that began
    in an earlier segment starts at 0 here. `layouts` are in log order; each table id that occurs has one at
    or before its first event (known ones at 0). `rows` counts events, as rows are not known before decoding.
    `decode` may be called again. `end.last_commit`: see `connector.mysql.log_identity`.
    """

    logged: Sequence[LoggedTable] = ()

    def __init__(
        self,
        epoch: int,
        end: ResumePoint,
        committed_at: datetime | None,
        payloads: Sequence[bytes | bytearray],
        ordinals: Sequence[int],
        transactions: Transactions,
        layouts: Sequence[SegmentLayout],
        *,
        base: int = 0,
        tail: int = 0,
    ) -> None:
        if len(payloads) != len(ordinals):
            raise BugError(f"{len(payloads)} events have {len(ordinals)} ordinals")
        self.end, self.position = end, end.position
        self.committed_at = committed_at
        self.rows = len(payloads)
        self._epoch = epoch
        self._payloads = payloads
        self._lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
        self._ordinals = np.array(ordinals, np.int64)
        self._transactions = transactions
        self._base, self._tail = base, tail
        self._layouts: dict[int, list[SegmentLayout]] = {}
        for layout in layouts:
            self._layouts.setdefault(layout.table_id, []).append(layout)

    def decode(self) -> Iterator[EventBatch | QuarantineNotice]:
        """Decode into batches, for each table in position order.

        A table that can't be decoded yields one `QuarantineNotice` instead of that batch and all later ones.
        """
        return decoded(
            part for window in self._windows() for part in window.parts(self._layouts, self._epoch)
        )

    def _windows(self) -> Iterator[_Window]:
        lengths = self._lengths
        if len(lengths) and lengths.min() < self._base + _LEAST_BYTES + self._tail:
            raise BugError(f"a rows event has {lengths.min() - self._base - self._tail} bytes")
        for low, high in windows(lengths, WINDOW_BYTES, WINDOW_EVENTS):
            events = self._events(low, high)
            if np.isin(events.kinds, list(PLAIN)).any():
                yield from self._uncompressed_windows(low, high)
            else:
                yield self._window(low, events)

    def _events(self, low: int, high: int) -> Events:
        payloads, lengths = self._payloads[low:high], self._lengths[low:high]
        if len(payloads) == 1 and isinstance(payloads[0], bytearray):
            return _view_of_huge_event(payloads[0], lengths, self._base, self._tail)
        return _joined_events(payloads, lengths, self._base, self._tail)

    def _uncompressed_windows(self, low: int, high: int) -> Iterator[_Window]:
        """Uncompress events: a window holds no more of them than of others, so a huge one is alone."""
        plain: list[bytes] = []
        size = 0
        for index in range(low, high):
            end = int(self._lengths[index]) - self._tail
            event = uncompress_event(bytes(self._payloads[index][self._base : end]))
            if plain and size + len(event) > WINDOW_BYTES:
                yield self._window(index - len(plain), _joined_plain(plain))
                plain, size = [], 0
            plain.append(event)
            size += len(event)
        yield self._window(high - len(plain), _joined_plain(plain))

    def _window(self, low: int, events: Events) -> _Window:
        if not np.isin(events.kinds, list(OPERATIONS)).all():
            raise BugError("a segment has an event without rows")
        index = low + np.arange(len(events.kinds))
        ordinals = self._ordinals[low : low + len(events.kinds)]
        return _Window(low, events, _placement(self._transactions, index, ordinals))


def _joined_plain(events: Sequence[bytes]) -> Events:
    return _joined_events(events, np.fromiter(map(len, events), np.int64, len(events)), 0, 0)


def _joined_events(payloads: Sequence[bytes | bytearray], lengths: Offsets, base: int, tail: int) -> Events:
    data = np.frombuffer(b"".join([PADDING, *payloads, PADDING]), np.uint8)
    after = len(PADDING) + np.cumsum(lengths)
    starts = after - lengths + base
    return Events(data, data[starts + TYPE_IN_EVENT], starts, after - tail)


def _view_of_huge_event(payload: bytearray, lengths: Offsets, base: int, tail: int) -> Events:
    """View a huge event, as assembled by `stream`, in place: adds padding without a copy.

    The bytes before its values serve as the padding in front.
    """
    if len(payload) == lengths[0]:
        payload += PADDING
    data, starts = np.frombuffer(payload, np.uint8), np.array([base])
    return Events(data, data[starts + TYPE_IN_EVENT], starts, lengths - tail)


def _placement(transactions: Transactions, index: Offsets, ordinals: Offsets) -> Placement:
    transaction = np.searchsorted(np.array(transactions.starts, np.int64), index, "right") - 1
    if transaction[0] < 0:
        raise BugError("a rows event precedes the start of its transaction")
    first, last = int(transaction[0]), int(transaction[-1]) + 1
    picks = pa.array(transaction - first)
    return Placement(
        np.array(transactions.lsns, np.int64)[transaction],
        ordinals * EVENT_SEQ,
        pa.array(transactions.txids[first:last], pa.string()).take(picks),
        pa.array(transactions.committed[first:last], pa.timestamp("us", tz="UTC")).take(picks),
    )


class _Window(NamedTuple):
    """Consecutive events in one buffer, each with its position."""

    low: int
    events: Events
    placement: Placement

    def parts(self, layouts: Mapping[int, Sequence[SegmentLayout]], epoch: int) -> list[_Part]:
        """Split the events by table id and layout, in log order; omit those not captured."""
        ids = little_endian(self.events.data, self.events.starts + HEADER, TABLE_ID_BYTES)
        parts = [
            _Part(self, epoch, layout, layout.schema, members)
            for layout, members in by_layout(grouped(ids, np.arange(len(ids))), layouts, self.low)
            if layout.schema is not None
        ]
        return sorted(parts, key=lambda part: int(part.members[0]))


class _Part(NamedTuple):
    """Events of one table under one layout: their indexes in the window, ascending."""

    window: _Window
    epoch: int
    layout: SegmentLayout
    schema: TableSchema
    members: Offsets

    @property
    def table(self) -> TableName:
        """The table."""
        return self.schema.table

    @property
    def lsn(self) -> int:
        """The first event's lsn."""
        return int(self.window.placement.lsn[self.members[0]])

    def decode(self) -> Iterator[EventBatch]:
        """Decode into batches."""
        if self.layout.problem is not None or self.layout.table_map is None:
            raise self.layout.problem or BugError(f"{self.schema.table} has no layout")
        whole, members = self.window.events, self.members
        events = Events(whole.data, whole.kinds[members], whole.starts[members], whole.ends[members])
        placement = self.window.placement.take(members)
        yield from decode_changes(
            self.schema,
            self.layout.table_map,
            self.epoch,
            events,
            placement,
            partial_images=self.layout.partial_images,
        )
