"""Rows events of one table under one layout to batches of its events. Pure.

Rules: an update that changes the key is a delete of the old key and an insert of the new one (``seq + 1``). A
delete carries its key and nothing else. A column that an image lacks (MINIMAL, NOBLOB) is taken from the
image before, which has the same value; where that lacks it too, it is listed in `unchanged` and null. That
holds for an insert as well: the columns that it leaves out have their default, which the log does not tell.
A JSON difference is carried out on the value before. Events keep the log's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from connector import landing
from connector.cells import Mask, combine_raw, gather
from connector.errors import TableError
from connector.event import CdcColumns, EventBatch, Placement, assemble
from connector.mysql.cells import Places, list_names
from connector.mysql.images import ABSENT, DIFFERENCE, NULL, VALUE, Images, Layout
from connector.mysql.json_difference import changed_text
from connector.mysql.numbers import little_endian
from connector.mysql.rows import DELETE, INSERT, TRUNCATE, UPDATE, Events, Rows, Shape, find_rows, shapes_of
from connector.mysql.tablemap import TableMap
from connector.mysql.values import decode_values
from connector.position import Position
from connector.schema import TableSchema

_OPS = (landing.INSERT, landing.UPDATE, landing.DELETE, landing.TRUNCATE)

BATCH_VALUES = 2_500_000
"""Values (rows times columns) of a batch at most, so that wide tables do not need more memory than others."""

EVENT_SEQ = 1 << 32
"""A row's ``seq`` is its event's ordinal in the transaction times this, plus twice its ordinal therein."""


@dataclass(frozen=True)
class _Landed:
    """The rows that land: for each the row of the log (None: each lands once), its op and seq."""

    row: Places | None
    op: npt.NDArray[np.int8]
    seq: Places


@dataclass(frozen=True)
class _Images:
    """The images of rows; None: no row has one."""

    before: Images | None
    after: Images


def decode_changes(
    schema: TableSchema, table_map: TableMap, epoch: int, events: Events, placement: Placement
) -> Iterator[EventBatch]:
    """Decode events of one table under one schema, whose columns are exactly the table map's, in order.

    `TableError` or `ValueError` when an event or a value can't be decoded, or when a row's key is not known.
    """
    names = [column.name for column in schema.columns]
    if names != [column.name for column in table_map.columns]:
        raise TableError(str(schema.table), f"the log has columns {[c.name for c in table_map.columns]}")
    layout = Layout([column.type for column in table_map.columns])
    shapes = shapes_of(events, len(names))
    rows = find_rows(layout, events, shapes)
    decoder = _Decoder(schema, table_map, layout, epoch, events, shapes, placement)
    step = max(1, BATCH_VALUES // max(1, len(names)))
    for low in range(0, len(rows.event), step):
        yield decoder.decode(rows.part(slice(low, low + step)))


class _Decoder:
    """Decodes rows of one table under one layout."""

    def __init__(
        self,
        schema: TableSchema,
        table_map: TableMap,
        layout: Layout,
        epoch: int,
        events: Events,
        shapes: Sequence[Shape],
        placement: Placement,
    ) -> None:
        self._schema = schema
        self._columns = table_map.columns
        self._types = [column.type for column in table_map.columns]
        self._layout = layout
        self._epoch = epoch
        self._data = events.data
        self._shapes = shapes
        self._placement = placement
        self._is_key = [column.name in schema.key for column in schema.columns]

    def decode(self, rows: Rows) -> EventBatch:
        """Decode some rows into one batch."""
        images = self._read(rows)
        operation = np.array([shape.operation for shape in self._shapes], np.int8)[rows.shape]
        landed = self._landed(rows, operation, self._key_changes(images, operation == UPDATE))
        columns, raws, unchanged = [], {}, {}
        is_whole = (landed.op == INSERT) | (landed.op == UPDATE)
        for index, column in enumerate(self._schema.columns):
            kind, values, raws[column.name] = self._values(images, landed, index)
            if self._is_key[index]:
                self._check_key(column.name, values, kind, landed.op, raws[column.name])
            if (is_unchanged := (kind == ABSENT) & is_whole).any():
                self._check_virtual(index, is_unchanged & (landed.op == UPDATE))
                unchanged[column.name] = is_unchanged
            columns.append(values)
        cdc = self._cdc(rows, landed)
        cdc.raw, cdc.unchanged = combine_raw(raws), list_names(unchanged)
        lsn = self._placement.lsn[rows.event[[0, -1]]]
        return EventBatch(
            self._schema,
            assemble(self._schema, columns, cdc),
            first=Position(self._epoch, int(lsn[0]), int(landed.seq[0])),
            last=Position(self._epoch, int(lsn[1]), int(landed.seq[-1])),
            partial=bool(unchanged),
            truncates=bool((landed.op == TRUNCATE).any()),
        )

    def _read(self, rows: Rows) -> _Images:
        """Walk the images of all rows, and complete the after images from those before."""
        columns = len(self._types)
        after, before = Images.absent(columns, rows.start), None
        for index in np.unique(rows.shape).tolist():
            shape, some = self._shapes[index], np.flatnonzero(rows.shape == index)
            place = rows.start[some]
            if shape.before is not None:
                before = before or Images.absent(columns, rows.start)
                place = self._layout.read(self._data, place, shape.before, before, some)
            if shape.after is not None:
                self._layout.read(self._data, place, shape.after, after, some)
        if before is not None:
            fill = (after.kinds == ABSENT) & (before.kinds != ABSENT)
            fill[[column.virtual for column in self._columns]] = False
            for name in ("starts", "ends", "kinds"):
                getattr(after, name)[fill] = getattr(before, name)[fill]
        return _Images(before, after)

    def _values(self, images: _Images, landed: _Landed, index: int) -> tuple[Any, pa.Array, pa.Array | None]:
        """Decode one column of all landed rows: what an image has of it, values, `raw` texts."""
        kind, start, end = _ranges(images, landed, index, self._is_key[index])
        valid = None if (kind == VALUE).all() else kind == VALUE
        differs = None if valid is None else kind == DIFFERENCE
        if differs is None or not differs.any():
            return kind, *decode_values(self._data, start, end, valid, self._types[index])
        row = np.flatnonzero(differs) if landed.row is None else landed.row[differs]
        changed = pa.array(self._changed(images, row, index), pa.string())
        whole = np.where(differs, start, end)
        values, raw = decode_values(self._data, start, whole, valid, self._types[index])
        return kind, pc.replace_with_mask(values, pa.array(differs), changed), raw

    def _changed(self, images: _Images, rows: Places, index: int) -> list[str]:
        """Carry differences of JSON out on the values before; `TableError` where those are not there."""
        name, before, after = self._schema.columns[index].name, images.before, images.after
        if before is None or (before.kinds[index][rows] != VALUE).any():
            raise self._no_difference(f"the log has only a difference to the JSON in column {name}")
        ranges = (a[index][rows].tolist() for a in (before.starts, before.ends, after.starts, after.ends))
        data = self._data.data
        try:
            return [
                changed_text(bytes(data[a:b]), bytes(data[c:d])) for a, b, c, d in zip(*ranges, strict=True)
            ]
        except ValueError as error:
            raise self._no_difference(f"column {name}: {error}") from error

    def _no_difference(self, reason: str) -> TableError:
        hint = "SET GLOBAL binlog_row_value_options = '', then dump the table again"
        return TableError(str(self._schema.table), reason, hint=hint)

    def _key_changes(self, images: _Images, updates: Mask) -> Mask:
        """Mark the updates whose images differ in a key column; `TableError` where only one is known."""
        changed = np.zeros(len(updates), np.bool_)
        before, after = images.before, images.after
        some = np.flatnonzero(updates)
        if before is None or not len(some):
            return changed
        for index in (i for i, is_key in enumerate(self._is_key) if is_key):
            old, new = before.kinds[index][some], after.kinds[index][some]
            if ((old == ABSENT) & (new != ABSENT)).any():
                self._refuse_key(self._schema.columns[index].name, "update does not carry the old value of")
            changed[some] |= (old != new) | self._differ(before, after, index, some)
        return changed

    def _differ(self, before: Images, after: Images, index: int, some: Places) -> Any:
        width = self._types[index].width
        if width is not None and width <= 8:
            old, new = (little_endian(self._data, i.starts[index][some], width) for i in (before, after))
            return old != new
        old, new = (gather(self._data, i.starts[index][some], i.ends[index][some]) for i in (before, after))
        return pc.not_equal(old, new).to_numpy(zero_copy_only=False)

    def _landed(self, rows: Rows, operation: npt.NDArray[np.int8], key_changed: Mask) -> _Landed:
        seq = self._placement.seq[rows.event] + 2 * rows.ordinal
        if (operation == operation[0]).all() and not key_changed.any() and operation[0] != DELETE:
            return _Landed(None, operation, seq)
        row = np.repeat(np.arange(len(operation)), 1 + key_changed)
        first = np.concatenate(([True], np.diff(row) != 0))
        op, split = operation[row], key_changed[row]
        op[split] = np.where(first[split], DELETE, INSERT)
        return _Landed(row, op, seq[row] + (split & ~first))

    def _check_key(self, name: str, values: pa.Array, kind: Any, op: Any, raw: pa.Array | None) -> None:
        """Refuse a row without its key: nothing could tell which row of the target it is."""
        if values.null_count == 0:
            return
        lacking = values.is_null().to_numpy(zero_copy_only=False) & (op != TRUNCATE)
        if not lacking.any():
            return
        row = int(np.argmax(lacking))
        if raw is not None and raw[row].is_valid:
            held = self._schema.column(name).type
            reason = f"key column {name} is {raw[row].as_py()!r}, which {held} cannot hold"
            hint = f"choose another key than {name} for this table"
            raise TableError(str(self._schema.table), reason, hint=hint)
        what = "has null for" if kind[row] == NULL else "does not carry"
        self._refuse_key(name, f"{_OPS[op[row]]} {what}")

    def _check_virtual(self, index: int, is_lacking: Mask) -> None:
        """Refuse an update that lacks a virtual column: MariaDB leaves those out that have changed, too."""
        column = self._columns[index]
        if column.virtual and is_lacking.any():
            raise TableError(
                str(self._schema.table),
                f"the log of a row's update does not carry virtual column {column.name}",
                hint="SET GLOBAL binlog_row_image = FULL, in all sessions, then dump the table again",
            )

    def _refuse_key(self, name: str, what: str) -> None:
        table = self._schema.table
        hint = f"SET GLOBAL binlog_row_image = FULL, or choose another key for {table}, then dump it again"
        raise TableError(str(table), f"the log of a row's {what} key column {name}", hint=hint)

    def _cdc(self, rows: Rows, landed: _Landed) -> CdcColumns:
        event = rows.event if landed.row is None else rows.event[landed.row]
        picks = pa.array(event)
        op: pa.Array | str = _OPS[landed.op[0]]
        if (landed.op != landed.op[0]).any():
            op = pa.array(_OPS, pa.string()).take(pa.array(landed.op))
        place = self._placement
        return CdcColumns(
            op,
            self._epoch,
            pa.array(place.lsn[event]),
            pa.array(landed.seq),
            place.txid.take(picks),
            place.committed_at.take(picks),
        )


def _ranges(images: _Images, landed: _Landed, column: int, is_key: bool) -> tuple[Any, Any, Any]:
    """Give kind, start and end of one column's value in each landed row; ranges ascend."""
    after, before, row = images.after, images.before, landed.row
    if row is None:
        return after.kinds[column], after.starts[column], after.ends[column]
    kind, start, end = after.kinds[column][row], after.starts[column][row], after.ends[column][row]
    deletes = landed.op == DELETE
    if before is not None and deletes.any():
        deleted = row[deletes]
        start[deletes] = before.starts[column][deleted]
        end[deletes] = (before.ends if is_key else before.starts)[column][deleted]
        kind[deletes] = before.kinds[column][deleted] if is_key else ABSENT
    return kind, start, end
