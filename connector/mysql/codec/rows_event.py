"""Groups a table's rows events by shape, and finds where each of their rows begins. Pure.

A rows event holds rows without lengths, so a row's start is known only once the previous one was walked. So
row k of every event is walked at once (numpy), and when only a few long events are left, those one by one.

Formats: ``mysql/binlog/event/rows_event.h``; version 1 events (MariaDB) and version 2 (MySQL). Each event
lists the columns in its images: MINIMAL and NOBLOB omit some.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pymysqlreplication.constants import BINLOG

from connector.codec.cells import Bytes, Offsets, unaligned
from connector.mysql.codec.compressed import HEADER, ROWS_HEADER, TABLE_ID_BYTES, TYPE_IN_EVENT
from connector.mysql.codec.row_image import ImageColumns, MalformedRowError, RowWalker

INSERT, UPDATE, DELETE, TRUNCATE = range(4)
TRUNCATE_KIND, PARTIAL_UPDATE = 255, BINLOG.PARTIAL_UPDATE_ROWS_EVENT
OPERATIONS = {
    BINLOG.WRITE_ROWS_EVENT_V1: INSERT,
    BINLOG.WRITE_ROWS_EVENT_V2: INSERT,
    BINLOG.UPDATE_ROWS_EVENT_V1: UPDATE,
    BINLOG.UPDATE_ROWS_EVENT_V2: UPDATE,
    PARTIAL_UPDATE: UPDATE,
    BINLOG.DELETE_ROWS_EVENT_V1: DELETE,
    BINLOG.DELETE_ROWS_EVENT_V2: DELETE,
    TRUNCATE_KIND: TRUNCATE,
}
"""Event types that hold a table's rows, uncompressed; one is our own, see `make_truncate_event`."""

_VERSION_2 = (
    *(BINLOG.WRITE_ROWS_EVENT_V2, BINLOG.UPDATE_ROWS_EVENT_V2, BINLOG.DELETE_ROWS_EVENT_V2),
    PARTIAL_UPDATE,
)
CASCADING = frozenset((BINLOG.UPDATE_ROWS_EVENT_V2, BINLOG.DELETE_ROWS_EVENT_V2, PARTIAL_UPDATE))
"""MySQL's changes that foreign keys may carry on to other tables."""

SQL_KEYS_OR_NONE = 0x10 | 0x02
"""Flags of rows events, USE_SQL_FOREIGN_KEY_F (from MySQL 9.6 on) and NO_FOREIGN_KEY_CHECKS_F: what foreign
keys did is in the log, too, or they did nothing.
"""

MARIADB_INSERTS = frozenset((BINLOG.WRITE_ROWS_EVENT_V1, 166))
"""The latter is compressed (`connector.mysql.codec.compressed`)."""

UNCHECKED = 0x02 | 0x04
"""Flags of rows events, NO_FOREIGN_KEY_CHECKS_F and RELAXED_UNIQUE_CHECKS_F: of a session that has turned off
``foreign_key_checks`` and ``unique_checks``.
"""

_MARIADB_UPDATE = BINLOG.UPDATE_ROWS_EVENT_V1
_UPDATES = (_MARIADB_UPDATE, BINLOG.UPDATE_ROWS_EVENT_V2, PARTIAL_UPDATE)

_FEW_EVENTS = 32
"""Up to this many events are walked faster one by one than all at once."""


def make_truncate_event(table_id: int) -> bytes:
    """Build the event for a TRUNCATE TABLE, which the log has only as a statement."""
    header = bytes(TYPE_IN_EVENT) + bytes([TRUNCATE_KIND]) + bytes(HEADER - TYPE_IN_EVENT - 1)
    return header + table_id.to_bytes(TABLE_ID_BYTES, "little") + bytes(2)


@dataclass(frozen=True)
class Events:
    """Rows events of one table in one buffer: their types, and the offsets of each one's header and end.

    The buffer has `column_cells.PADDING` at both ends and less than 2 GiB.
    """

    data: Bytes
    kinds: Bytes
    starts: Offsets
    ends: Offsets


@dataclass(frozen=True)
class Shape:
    """Events of one operation, whose images have the same columns (None: no such image).

    `events` are their indexes, ascending; `starts` is the offset of each one's first row.
    """

    operation: int
    before: ImageColumns | None
    after: ImageColumns | None
    events: Offsets
    starts: Offsets
    is_mariadbs_update: bool = False

    def lacks(self, columns: Collection[int]) -> set[int]:
        """Return which of some columns the log lacks of these rows.

        An update whose old row is whole lacks none: what its new row lacks has not changed (FULL_NODUP).
        """
        image = self.after if self.before is None else self.before
        return set() if image is None else {*columns} - {*image.present}

    @property
    def is_bare(self) -> bool:
        """Return whether the rows have no bytes at all, so their number is unknown."""
        return self.operation == INSERT and self.after is not None and not self.after.present


@dataclass(frozen=True)
class Rows:
    """Rows in log order: each one's event, ordinal within the event, shape's index, and offset."""

    event: Offsets
    ordinal: Offsets
    shape: npt.NDArray[np.int16]
    start: Offsets

    def part(self, picks: slice) -> Rows:
        """Return some of the rows."""
        return Rows(self.event[picks], self.ordinal[picks], self.shape[picks], self.start[picks])


def shapes_of(events: Events, columns: int) -> list[Shape]:
    """Group events by operation and columns present; `MalformedRowError` for another column count."""
    data, kinds, width = events.data, events.kinds, (columns + 7) // 8
    offset = events.starts + ROWS_HEADER
    if (is_second := np.isin(kinds, _VERSION_2)).any():
        offset = offset + np.where(is_second, unaligned(data, "<u2")[offset], 0)
    has_rows = kinds != TRUNCATE_KIND
    if not has_rows.all():
        offset[~has_rows] = 0
    wide = data[offset] == 252
    counts = np.where(wide, unaligned(data, "<u2")[offset + 1], data[offset])
    if (counts != columns)[has_rows].any():
        raise MalformedRowError(f"an event of the log does not have {columns} columns")
    offset = offset + np.where(wide, 3, 1)
    is_update = np.isin(kinds, _UPDATES)
    starts = np.where(has_rows, offset + np.where(is_update, 2, 1) * width, events.ends)
    if (starts > events.ends).any():
        raise MalformedRowError("an event of the log ends before its rows")
    keys = np.zeros((len(kinds), 1 + 2 * width), np.uint8)
    keys[:, 0] = kinds
    for byte in range(width):
        keys[:, 1 + byte] = np.where(has_rows, data[offset + byte], 0)
        keys[:, 1 + width + byte] = np.where(is_update, data[offset + is_update * width + byte], 0)
    return [_shape(key, columns, some, starts[some]) for key, some in _groups(keys)]


def _groups(keys: Bytes) -> Iterator[tuple[Bytes, Offsets]]:
    if (keys == keys[0]).all():
        yield keys[0], np.arange(len(keys))
        return
    distinct, group = np.unique(keys, axis=0, return_inverse=True)
    for index, key in enumerate(distinct):
        yield key, np.flatnonzero(group.reshape(-1) == index)


def _shape(key: Bytes, columns: int, events: Offsets, starts: Offsets) -> Shape:
    kind, operation = int(key[0]), OPERATIONS[int(key[0])]
    first, second = (_present(bitmap, columns) for bitmap in np.split(key[1:], 2))
    before = ImageColumns(first) if operation in (UPDATE, DELETE) else None
    after = None
    if operation in (INSERT, UPDATE):
        after = ImageColumns(first if operation == INSERT else second, differences=kind == PARTIAL_UPDATE)
    return Shape(operation, before, after, events, starts, kind == _MARIADB_UPDATE)


def _present(bitmap: Bytes, columns: int) -> tuple[int, ...]:
    return tuple(np.flatnonzero(np.unpackbits(bitmap, bitorder="little")[:columns]).tolist())


def find_rows(walker: RowWalker, events: Events, shapes: list[Shape]) -> Rows:
    """Find every row of the events, in log order; `MalformedRowError` if rows do not fill their event."""
    found = [_find(walker, events.data, shape, events.ends[shape.events]) for shape in shapes]
    event, ordinal, start = (np.concatenate(column) for column in zip(*found, strict=True))
    shape = np.repeat(np.arange(len(shapes), dtype=np.int16), [len(f[0]) for f in found])
    rows = Rows(event, ordinal, shape, start)
    if (start[1:] > start[:-1]).all():
        return rows
    order = np.argsort(start, kind="stable")
    return Rows(event[order], ordinal[order], shape[order], start[order])


def _find(walker: RowWalker, data: Bytes, shape: Shape, limits: Offsets) -> tuple[Offsets, Offsets, Offsets]:
    """Return event, ordinal and start of each row, in no order."""
    events, offsets = shape.events, shape.starts
    if shape.operation == TRUNCATE:
        return events, np.zeros(len(events), np.int64), offsets - 1
    found: list[tuple[Offsets, Offsets, Offsets]] = []
    while len(events) > _FEW_EVENTS:
        found.append((events, np.full(len(events), len(found)), offsets))
        offsets = _skip_rows(walker, data, shape, offsets)
        if (offsets > limits).any():
            raise MalformedRowError("a row reaches beyond its event")
        more = offsets < limits
        if not more.all():
            events, offsets, limits = events[more], offsets[more], limits[more]
    walked = len(found)
    text = data.data
    for event, offset, limit in zip(events.tolist(), offsets.tolist(), limits.tolist(), strict=True):
        starts = np.array(_scan(walker, text, shape, offset, limit), np.int64)
        found.append((np.full(len(starts), event), walked + np.arange(len(starts)), starts))
    if not found:
        return events, events, offsets
    event, ordinal, start = (np.concatenate(column) for column in zip(*found, strict=True))
    return event, ordinal, start


def _skip_rows(walker: RowWalker, data: Bytes, shape: Shape, offsets: Offsets) -> Offsets:
    for image in (shape.before, shape.after):
        if image is not None:
            offsets = walker.walk(data, offsets, image, None)
    return offsets


def _scan(walker: RowWalker, data: memoryview, shape: Shape, offset: int, limit: int) -> list[int]:
    starts = []
    images = [image for image in (shape.before, shape.after) if image is not None]
    while offset < limit:
        starts.append(offset)
        for image in images:
            offset = walker.skip(data, offset, image)
    if offset != limit:
        raise MalformedRowError("a row reaches beyond its event")
    return starts
