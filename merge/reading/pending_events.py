"""Reads the events of landing files within the tasks of a query, and keeps those of small files for the next.

Invariant: what is kept of a file is what was read of it as its manifest describes it. A landing file never
changes, and its name is used once, even if the landing zone is replaced, so the same entry of a manifest
always stands for the same events.

Spark hands the tasks of one query after another to the same Python processes. Without this, each query would
decode again all files since the last merge, whose number grows with each flush.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from connector.reading.change_log import Part
from connector.reading.change_rows import gathered, read_files, read_layout

if TYPE_CHECKING:
    import pyarrow as pa

    from connector.landing.manifest import LandedFile
    from connector.position import Position
    from connector.schema import TableName, TableSchema
    from connector.store.protocol import Store

SMALL_BYTES = 1 << 20
"""Files up to this size are kept: of a larger one, decoding costs little beside what Spark does with it."""

KEPT_BYTES = 32 << 20
"""How much is kept in each process, as Arrow has it in memory."""

_Key = tuple[str, str, str]


@dataclass
class KeptEvents:
    """Events of files, by file and layout; the file that was used longest ago is forgotten first."""

    most_bytes: int = KEPT_BYTES
    _tables: OrderedDict[_Key, list[pa.Table]] = field(default_factory=OrderedDict)
    bytes: int = 0

    def get(self, key: _Key) -> list[pa.Table] | None:
        """Return what is kept of a file."""
        found = self._tables.get(key)
        if found is not None:
            self._tables.move_to_end(key)
        return found

    def keep(self, key: _Key, tables: list[pa.Table]) -> None:
        """Keep what was read of a file."""
        self._forget(key)
        self._tables[key] = tables
        self.bytes += _size(tables)
        while self.bytes > self.most_bytes:
            self._forget(next(iter(self._tables)))

    def _forget(self, key: _Key) -> None:
        self.bytes -= _size(self._tables.pop(key, []))


def _size(tables: list[pa.Table]) -> int:
    return sum(table.nbytes for table in tables)


KEPT = KeptEvents()
"""What this process has read."""


def read_events(
    store: Store, table: TableName, files: Sequence[LandedFile], wanted: TableSchema, kept: KeptEvents = KEPT
) -> Iterator[pa.RecordBatch]:
    """Read the events of a table's files like `connector.reading.change_rows.read_rows`, in any order."""
    keys = {file.path: (f"{store.url}/{file.path}", file.model_dump_json(), wanted.id) for file in files}
    known = {path: tables for path, key in keys.items() if (tables := kept.get(key)) is not None}
    unread = [file for file in files if file.path not in known]

    def read() -> Iterator[pa.Table]:
        layouts = {id_: read_layout(store, table, id_) for id_ in {file.schema_id for file in unread}}
        found = read_files(store, [*map(Part, unread)], layouts, wanted)
        for file, tables in zip(unread, found, strict=True):
            if file.bytes > SMALL_BYTES:
                yield from tables
            else:
                its = list(tables)
                kept.keep(keys[file.path], its)
                yield from its

    return gathered(chain(*known.values(), read()))


def are_after(cdc: pa.StructArray, position: Position, *, or_equal: bool = False) -> pa.BooleanArray:
    """Return which events are positioned after a position, or at it if `or_equal`."""
    epoch, lsn, seq = (pc.struct_field(cdc, name) for name in ("epoch", "lsn", "seq"))
    last = (pc.greater_equal if or_equal else pc.greater)(seq, position.seq)
    later = pc.or_(pc.greater(lsn, position.lsn), pc.and_(pc.equal(lsn, position.lsn), last))
    return pc.or_(pc.greater(epoch, position.epoch), pc.and_(pc.equal(epoch, position.epoch), later))
