"""Raw rows events from the log, and the layouts to decode them: what segments are cut from. No I/O.

Invariants: all events have one byte before them (the packet's status) and the same `tail` after. Each table
id has its layout at or before its first event, also across segments.

A table map is valid only within its transaction: a restarted server counts its table ids from the beginning,
so the same id may be another table's. What is kept longer, by the bytes of whole table maps and for one log
file, only saves parsing them again.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from connector.landing.event_batch import CdcColumns, EventBatch, arrow_type, assemble
from connector.landing.format import INSERT
from connector.mysql.codec.compressed import TABLE_ID_BYTES
from connector.mysql.codec.rows_event import make_truncate_event
from connector.mysql.codec.segment import MysqlSegment, SegmentLayout, Transactions
from connector.mysql.codec.table_map import table_name_of
from connector.mysql.log.packet import BASE, TABLE_ID
from connector.mysql.log.schema_cache import ResolvedLayout, SchemaCache
from connector.position import Position
from connector.schema import TableSchema
from connector.source import ResumePoint

EVENT_OVERHEAD = 41
"""Memory of a bytes object and its list slot, beside the event itself."""

MAPS_KEPT = 10_000
"""Limit of table maps cached by their bytes. Each table, and each change or reopening of one, has its own."""

_FIRST_SYNTHETIC_ID = 1 << 47
"""Table ids from here on are never used by a server (they have 48 bits, counted up from 1)."""


def announcement(schema: TableSchema, epoch: int, lsn: int) -> EventBatch:
    """Build the batch without rows that announces a layout."""
    columns = [pa.nulls(0, arrow_type(column.type)) for column in schema.columns]
    at = Position(epoch, lsn, 0)
    return EventBatch(schema, assemble(schema, columns, CdcColumns(INSERT, epoch, lsn, 0)), at, at)


class PendingRows:
    """Rows events not taken yet, `payloads` with their `ordinals`, and the layouts of their tables.

    `current` maps a table id to its layout in the open transaction. The hot loop appends to the two lists
    itself, and reads `current`; `bytes` is their size.
    """

    def __init__(self, schema_cache: SchemaCache) -> None:
        self.bytes = 0
        self.tail = 0
        self.payloads: list[bytes] = []
        self.ordinals: list[int] = []
        self.current: dict[int, ResolvedLayout] = {}
        self._schema_cache = schema_cache
        self._maps: dict[bytes, ResolvedLayout] = {}
        self._known: dict[int, SegmentLayout] = {}
        self._layouts: list[SegmentLayout] = []
        self._layout_by_id: dict[int, ResolvedLayout] = {}
        self._synthetic_tables = 0

    def hold(self, packet: bytes, ordinal: int) -> None:
        """Add one event."""
        self.payloads.append(packet)
        self.ordinals.append(ordinal)
        self.bytes += len(packet) + EVENT_OVERHEAD

    def append_synthetic_truncate(self, resolved: ResolvedLayout, ordinal: int) -> None:
        """Append an event that empties a table, which no server wrote."""
        self._synthetic_tables += 1
        table_id = _FIRST_SYNTHETIC_ID + self._synthetic_tables
        self._add_layout(table_id, resolved)
        self.hold(bytes(BASE) + make_truncate_event(table_id) + bytes(self.tail), ordinal)

    def drop_from(self, start: int) -> None:
        """Remove the events from an index on; the layouts that came with them stay, for later ones."""
        self.bytes -= sum(map(len, self.payloads[start:])) + EVENT_OVERHEAD * (len(self.payloads) - start)
        del self.payloads[start:], self.ordinals[start:]
        self._layouts = [x._replace(start=min(x.start, start)) for x in self._layouts]

    def learn(self, body: bytes) -> ResolvedLayout:
        """Record and return the layout in a TABLE_MAP event; equal bytes are the same layout."""
        table_id = int.from_bytes(body[:TABLE_ID_BYTES], "little")
        resolved = self._maps.get(body)
        if resolved is None:
            if len(self._maps) >= MAPS_KEPT:
                self._maps.clear()
            resolved = self._maps[body] = self._schema_cache.resolve(body)
        self.current[table_id] = resolved
        if resolved.schema is not None and self._layout_by_id.get(table_id) is not resolved:
            self._add_layout(table_id, resolved)
        return resolved

    def pass_over(self, body: bytes) -> ResolvedLayout:
        """Record the table of a TABLE_MAP event whose rows are skipped; what is known of it stays."""
        resolved = ResolvedLayout(table_name_of(body))
        self.current[int.from_bytes(body[:TABLE_ID_BYTES], "little")] = resolved
        return resolved

    def end_transaction(self) -> None:
        """Forget which table each id is."""
        self.current.clear()

    def begin_file(self) -> None:
        """Forget all table maps: the server may have restarted."""
        self._maps.clear()

    def _add_layout(self, table_id: int, resolved: ResolvedLayout) -> None:
        self._layout_by_id[table_id] = resolved
        self._layouts.append(
            SegmentLayout(
                len(self.payloads),
                table_id,
                resolved.table_map,
                resolved.schema,
                resolved.problem,
                resolved.partial_images,
            )
        )

    def change_tail(self, tail: int) -> None:
        """Switch to events with `tail` bytes after them; pad or cut the buffered ones to match."""
        if tail == self.tail:
            return
        removed, added = max(0, self.tail - tail), bytes(max(0, tail - self.tail))
        self.payloads = [p[: len(p) - removed] + added for p in self.payloads]
        self.tail = tail

    def slice_segment(
        self,
        rows: int,
        transactions: Transactions,
        epoch: int,
        end: ResumePoint,
        committed_at: datetime | None,
    ) -> MysqlSegment:
        """Remove the first events, as a segment."""
        payloads, self.payloads = self.payloads[:rows], self.payloads[rows:]
        ordinals, self.ordinals = self.ordinals[:rows], self.ordinals[rows:]
        layouts = [*self._known.values(), *(layout for layout in self._layouts if layout.start < rows)]
        self._known.update((x.table_id, x._replace(start=0)) for x in self._layouts if x.start < rows)
        self._layouts = [x._replace(start=x.start - rows) for x in self._layouts if x.start >= rows]
        self._forget_unused()
        self.bytes = sum(map(len, self.payloads)) + EVENT_OVERHEAD * len(self.payloads)
        return MysqlSegment(
            epoch, end, committed_at, payloads, ordinals, transactions, layouts, base=BASE, tail=self.tail
        )

    def _forget_unused(self) -> None:
        """Keep only the layouts of buffered events and of the open transaction; the log repeats others."""
        used = {int.from_bytes(p[TABLE_ID], "little") for p in self.payloads} | self.current.keys()
        self._known = {table_id: known for table_id, known in self._known.items() if table_id in used}
        kept = {*self._known, *(layout.table_id for layout in self._layouts)}
        self._layout_by_id = {
            table_id: resolved for table_id, resolved in self._layout_by_id.items() if table_id in kept
        }
