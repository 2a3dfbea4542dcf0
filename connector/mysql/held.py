"""Raw rows events as the log gave them, and the layouts to read them by: what a segment is cut from. No I/O.

Invariants: all events have one byte before them (the packet's status) and the same `tail` behind. Each table
id has its layout at or before its first event, also where segments part.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from connector.event import CdcColumns, EventBatch, arrow_type, assemble
from connector.landing import INSERT
from connector.mysql.capturing import Capturing, Mapped
from connector.mysql.gtid import Gtids
from connector.mysql.rows import truncate_event
from connector.mysql.segment import MysqlSegment, TableLayout, Transactions
from connector.position import Position
from connector.schema import TableName, TableSchema

BASE = 1
"""Bytes of a packet before the event: its status."""

EVENT_OVERHEAD = 41
"""What a bytes object and its place in a list take beside the event itself."""

_MADE_UP = 1 << 47
"""Table ids from here on are never used by a server (they have 48 bits, counted up from 1)."""


def announcement(schema: TableSchema, epoch: int, lsn: int) -> EventBatch:
    """Make the batch without rows that tells of a layout."""
    columns = [pa.nulls(0, arrow_type(column.type)) for column in schema.columns]
    place = Position(epoch, lsn, 0)
    return EventBatch(schema, assemble(schema, columns, CdcColumns(INSERT, epoch, lsn, 0)), place, place)


class HeldRows:
    """Rows events not taken yet, `payloads` with their `ordinals`, and the layouts of their tables.

    `current` gives for a table id the newest layout and its bytes. The hot loop appends to the two lists
    itself, and reads `current`; `bytes` is what they take.
    """

    def __init__(self, capturing: Capturing) -> None:
        self.bytes = 0
        self.tail = 0
        self.payloads: list[bytes] = []
        self.ordinals: list[int] = []
        self.current: dict[int, tuple[bytes, Mapped]] = {}
        self._capturing = capturing
        self._maps: dict[bytes, Mapped] = {}
        self._ids: dict[TableName, int] = {}
        self._known: dict[int, TableLayout] = {}
        self._layouts: list[TableLayout] = []
        self._made_up = 0

    def hold(self, packet: bytes, ordinal: int) -> None:
        """Add one event."""
        self.payloads.append(packet)
        self.ordinals.append(ordinal)
        self.bytes += len(packet) + EVENT_OVERHEAD

    def hold_truncate(self, mapped: Mapped, ordinal: int) -> None:
        """Add an event, made up, that empties a table."""
        self._made_up += 1
        table_id = _MADE_UP + self._made_up
        self._add_layout(table_id, mapped)
        self.hold(bytes(BASE) + truncate_event(table_id) + bytes(self.tail), ordinal)

    def learn(self, body: bytes) -> Mapped:
        """Learn a layout from a TABLE_MAP event, and give it; the same bytes mean the same one."""
        table_id = int.from_bytes(body[:6], "little")
        current = self.current.get(table_id)
        if current is not None and current[0] == body:
            return current[1]
        mapped = self._maps.get(body)
        if mapped is None:
            mapped = self._maps[body] = self._capturing.resolve(body)
        self.current[table_id] = body, mapped
        if mapped.schema is not None:
            self._ids[mapped.table] = table_id
            self._add_layout(table_id, mapped)
        return mapped

    def _add_layout(self, table_id: int, mapped: Mapped) -> None:
        self._layouts.append(
            TableLayout(len(self.payloads), table_id, mapped.table_map, mapped.schema, mapped.problem)
        )

    def change_tail(self, tail: int) -> None:
        """Go on with events that have so many bytes behind them; those held are made alike."""
        if tail == self.tail:
            return
        cut, added = max(0, self.tail - tail), bytes(max(0, tail - self.tail))
        self.payloads = [p[: len(p) - cut] + added for p in self.payloads]
        self.tail = tail

    def cut(
        self,
        rows: int,
        transactions: Transactions,
        epoch: int,
        position: int,
        committed_at: datetime | None,
        gtids: Gtids | None,
    ) -> MysqlSegment:
        """Take the first events out, as a segment."""
        payloads, self.payloads = self.payloads[:rows], self.payloads[rows:]
        ordinals, self.ordinals = self.ordinals[:rows], self.ordinals[rows:]
        layouts = [*self._known.values(), *(layout for layout in self._layouts if layout.start < rows)]
        self._known.update((x.table_id, x._replace(start=0)) for x in self._layouts if x.start < rows)
        later = [x._replace(start=x.start - rows) for x in self._layouts if x.start >= rows]
        self._layouts = later
        used = {*self._ids.values(), *(x.table_id for x in later)}
        self._known = {i: layout for i, layout in self._known.items() if i in used}
        self.bytes = sum(map(len, self.payloads)) + EVENT_OVERHEAD * len(self.payloads)
        return MysqlSegment(
            epoch, position, committed_at, payloads, ordinals, transactions, layouts,
            base=BASE, tail=self.tail, gtids=None if gtids is None else str(gtids),
            gtids_needed=None if gtids is None else gtids.needed,
        )  # fmt: skip
