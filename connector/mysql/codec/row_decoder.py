"""Decodes rows events of one table under one layout into batches of events. Pure.

Rules: an update that changes the key becomes a delete of the old key and an insert of the new one (``seq +
1``). A delete carries only its key or, for a table without a key, its whole image. A JSON difference is
applied to the old value. Events keep the log's order.

Images that lack columns (MINIMAL, NOBLOB, which any session may set) are refused, unless the configuration
allows them: they do not tell all that happened to a row, as the next rules show. An update may lack columns
in its new image alone (FULL_NODUP).

A column that an after image lacks is taken from the before image, which has the same value; if that lacks it
too, it is null and listed in `unchanged`. This applies to inserts as well: columns that they omit have their
default, which the log does not carry. One that omits all (``INSERT INTO t () VALUES ()``, MINIMAL) does not
even show how many rows it has, and is refused.

A table with system versioning (`TableMap.row_end`) lands its current rows: a version that ends is a delete,
and changes to ended versions do not land. Nor do hidden columns.

MariaDB logs a REPLACE of a row as an update, without the columns that it reset to their defaults (MINIMAL) or
without such texts (NOBLOB). It carries the key, which an UPDATE under MINIMAL does only if it sets it. So an
update that carries the key and lacks columns lands as a delete and an insert: what it lacks is requested. One
that lacks columns of the key, all with defaults, is refused: the row may have these in its key now. So is
one whose old row is whole only since all of its columns are in the key.

The image before an update or delete also lands as its before-image, if the layout asks for it. Columns that
it lacks (MINIMAL, NOBLOB) are listed there as missing. For an update that changes the key, the delete carries
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from connector.codec.cells import Mask, Offsets, ValueRanges, combine_raw, gather, list_names
from connector.errors import TableError
from connector.landing import format
from connector.landing.event_batch import CdcColumns, EventBatch, Placement, assemble, before_struct
from connector.mysql.codec.json_difference import changed_text
from connector.mysql.codec.numbers import big_endian, little_endian
from connector.mysql.codec.row_image import ABSENT, DIFFERENCE, NULL, VALUE, RowWalker
from connector.mysql.codec.rows_event import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    Events,
    Rows,
    Shape,
    find_rows,
    shapes_of,
)
from connector.mysql.codec.table_map import TableMap
from connector.mysql.codec.values import check_key, decode_values
from connector.position import Position
from connector.schema import TableName, TableSchema

_OPS = (format.INSERT, format.UPDATE, format.DELETE, format.TRUNCATE)

BATCH_VALUES = 2_500_000
"""Maximum values (rows times columns) in a batch, so that wide tables need no more memory than others."""

_LAST_MOMENTS = tuple(seconds << 24 | 999_999 for seconds in (0x7FFFFFFF, 0xFFFFFFFF))
"""MariaDB's greatest timestamp(6) as stored; since 11.5 it is the second one."""

EVENT_SEQ = 1 << 32
"""A row's ``seq``: its event's ordinal in the transaction times this, plus twice its ordinal in the event."""


@dataclass(frozen=True)
class _Landed:
    """The landed rows: each one's row in the log (None: each lands once), op and seq."""

    row: Offsets | None
    op: npt.NDArray[np.int8]
    seq: Offsets


@dataclass(frozen=True)
class _Images:
    """The images of rows; None if no row has one."""

    before: ValueRanges | None
    after: ValueRanges


_NAMED = 8
"""How many columns an error names."""

_WHOLE = "SET GLOBAL binlog_row_image = FULL, in all sessions, then dump the table again"


def decode_changes(
    schema: TableSchema,
    table_map: TableMap,
    epoch: int,
    events: Events,
    placement: Placement,
    *,
    partial_images: bool,
) -> Iterator[EventBatch]:
    """Decode events of one table under one schema, whose columns are the table map's landed columns.

    `partial_images`: also decode those that lack columns. `TableError` or `ValueError` if an event or value
    can't be decoded, or a row's key is unknown.
    """
    names = [column.name for column in schema.columns]
    if names != [column.name for column in table_map.landed]:
        raise TableError(schema.table, f"the log has columns {[c.name for c in table_map.landed]}")
    walker = RowWalker([column.type for column in table_map.columns])
    shapes = shapes_of(events, len(table_map.columns))
    if not partial_images:
        _require_whole(schema.table, table_map, shapes)
    if any(shape.is_bare for shape in shapes):
        reason = "the log of an insert carries no column of its rows"
        raise TableError(schema.table, reason, hint=_WHOLE)
    rows = find_rows(walker, events, shapes)
    decoder = _Decoder(schema, table_map, walker, epoch, events, shapes, placement)
    step = max(1, BATCH_VALUES // max(1, len(names) * (1 + schema.before_images)))
    for low in range(0, len(rows.event), step):
        batch = decoder.decode(rows.part(slice(low, low + step)))
        if batch is not None:
            yield batch


def _require_whole(table: TableName, table_map: TableMap, shapes: Sequence[Shape]) -> None:
    """Raise `TableError` if the log lacks columns of some row."""
    shown = [index for index, column in enumerate(table_map.columns) if not column.hidden]
    lacking = set().union(*(shape.lacks(shown) for shape in shapes))
    if lacking:
        names = [table_map.columns[index].name for index in sorted(lacking)]
        listed = ", ".join(names[:_NAMED] + ["..."] * (len(names) > _NAMED))
        raise TableError(
            table,
            f"the log lacks columns of changed rows ({listed}): binlog_row_image is not FULL, maybe only in a"
            " session",
            hint=f"{_WHOLE}; or set source.allow_partial_row_images and restart the agent first",
        )


class _Decoder:
    """Decodes rows of one table under one layout."""

    def __init__(
        self,
        schema: TableSchema,
        table_map: TableMap,
        walker: RowWalker,
        epoch: int,
        events: Events,
        shapes: Sequence[Shape],
        placement: Placement,
    ) -> None:
        self._schema = schema
        self._columns = table_map.columns
        self._types = [column.type for column in table_map.columns]
        self._walker = walker
        self._epoch = epoch
        self._data = events.data
        self._shapes = shapes
        self._placement = placement
        self._is_key = [column.name in schema.key for column in table_map.columns]
        names = [column.name for column in table_map.columns]
        self._row_end = None if table_map.row_end is None else names.index(table_map.row_end)
        primary = table_map.key or schema.key
        self._primary = {i for i, column in enumerate(table_map.columns) if column.name in primary}

    def decode(self, rows: Rows) -> EventBatch | None:
        """Decode some rows into one batch; None if none of them lands."""
        images = self._read(rows)
        operation = np.array([shape.operation for shape in self._shapes], np.int8)[rows.shape]
        kept = None
        if self._row_end is not None:
            operation, kept = self._of_current_rows(images, operation, self._row_end)
            if not kept.any():
                return None
        landed = self._landed(rows, operation, self._key_changes(rows, images, operation == UPDATE), kept)
        columns, raws, unchanged = [], {}, {}
        is_whole = (landed.op == INSERT) | (landed.op == UPDATE)
        for index, column in enumerate(self._columns):
            if column.hidden:
                continue
            kind, values, raws[column.name] = self._values(images, landed, index)
            if self._is_key[index]:
                self._check_key(column.name, values, kind, landed.op, raws[column.name])
                if column.type.is_ambiguous:
                    self._check_encodings(images, landed, index)
            if (is_unchanged := (kind == ABSENT) & is_whole).any():
                self._check_virtual(index, is_unchanged & (landed.op == UPDATE))
                unchanged[column.name] = is_unchanged
            columns.append(values)
        before, hint = self._before_images(images, landed) if self._schema.before_images else (None, None)
        cdc = self._cdc(rows, landed)
        cdc.raw, cdc.unchanged = combine_raw(raws), list_names(unchanged)
        event = rows.event if landed.row is None else rows.event[landed.row]
        lsn = self._placement.lsn[event[[0, -1]]]
        return EventBatch(
            self._schema,
            assemble(self._schema, columns, cdc, before),
            first=Position(self._epoch, int(lsn[0]), int(landed.seq[0])),
            last=Position(self._epoch, int(lsn[1]), int(landed.seq[-1])),
            partial=bool(unchanged),
            truncates=bool((landed.op == TRUNCATE).any()),
            before_hint=hint,
        )

    def _before_images(self, images: _Images, landed: _Landed) -> tuple[pa.StructArray | None, str | None]:
        """Decode the old row of each update and delete; also return a hint if some are incomplete."""
        replaces, old = (landed.op == UPDATE) | (landed.op == DELETE), images.before
        if old is None or not replaces.any():
            return None, None
        row = np.arange(len(landed.op)) if landed.row is None else landed.row
        values, raws, missing = [], {}, {}
        for index, column in enumerate(self._columns):
            if column.hidden:
                continue
            kind, start, end = old.kinds[index][row], old.starts[index][row], old.ends[index][row]
            kind[~replaces] = ABSENT
            start[~replaces] = end[
                ~replaces
            ]  # of an update's second row: its range follows that of the first
            valid = None if (kind == VALUE).all() else kind == VALUE
            array, raws[column.name] = decode_values(self._data, start, end, valid, column.type)
            values.append(array)
            if (lacks := (kind == ABSENT) & replaces).any():
                missing[column.name] = lacks
        image = before_struct(self._schema, values, replaces, list_names(missing), combine_raw(raws))
        return image, "SET GLOBAL binlog_row_image = FULL, in all sessions" if missing else None

    def _read(self, rows: Rows) -> _Images:
        """Walk the images of all rows, and complete the after images from the before images."""
        columns = len(self._types)
        after, before = ValueRanges.absent(columns, rows.start), None
        for index in np.unique(rows.shape).tolist():
            shape, some = self._shapes[index], np.flatnonzero(rows.shape == index)
            starts = rows.start[some]
            if shape.before is not None:
                before = before or ValueRanges.absent(columns, rows.start)
                starts = self._walker.read(self._data, starts, shape.before, before, some)
            if shape.after is not None:
                self._walker.read(self._data, starts, shape.after, after, some)
        if before is not None:
            fill = (after.kinds == ABSENT) & (before.kinds != ABSENT)
            fill[[column.virtual for column in self._columns]] = False
            for name in ("starts", "ends", "kinds"):
                getattr(after, name)[fill] = getattr(before, name)[fill]
        return _Images(before, after)

    def _values(self, images: _Images, landed: _Landed, index: int) -> tuple[Any, pa.Array, pa.Array | None]:
        """Decode one column of all landed rows: kinds in the image, values, `raw` texts."""
        kind, start, end = _ranges(images, landed, index, self._is_key[index] or not self._schema.key)
        valid = None if (kind == VALUE).all() else kind == VALUE
        differs = None if valid is None else kind == DIFFERENCE
        if differs is None or not differs.any():
            return kind, *decode_values(self._data, start, end, valid, self._types[index])
        row = np.flatnonzero(differs) if landed.row is None else landed.row[differs]
        changed = pa.array(self._changed(images, row, index), pa.string())
        whole = np.where(differs, start, end)
        values, raw = decode_values(self._data, start, whole, valid, self._types[index])
        return kind, pc.replace_with_mask(values, pa.array(differs), changed), raw

    def _changed(self, images: _Images, rows: Offsets, index: int) -> list[str]:
        """Apply JSON differences to the old values; `TableError` if those are missing."""
        name, before, after = self._columns[index].name, images.before, images.after
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
        return TableError(self._schema.table, reason, hint=hint)

    def _key_changes(self, rows: Rows, images: _Images, updates: Mask) -> Mask:
        """Mark the updates that land as delete and insert: their images differ in a key column, or see above.

        `TableError` if only one of the two keys is known.
        """
        changed = np.zeros(len(updates), np.bool_)
        before, after = images.before, images.after
        some = np.flatnonzero(updates)
        if before is None or not len(some):
            return changed
        for index in (i for i, is_key in enumerate(self._is_key) if is_key):
            old, new = before.kinds[index][some], after.kinds[index][some]
            if ((old == ABSENT) & (new != ABSENT)).any():
                self._refuse_key(self._columns[index].name, "update does not carry the old value of")
            changed[some] |= (old != new) | self._values_differ(before, after, index, some)
        return changed | (updates & self._may_replace(rows))

    def _may_replace(self, rows: Rows) -> Mask:
        """Mark the updates that may be a REPLACE in MariaDB; `TableError` if that is unclear."""
        marked = np.zeros(len(self._shapes), np.bool_)
        for number, shape in enumerate(self._shapes):
            if not shape.is_mariadbs_update or shape.before is None or shape.after is None:
                continue
            before, after = {*shape.before.present}, {*shape.after.present}
            shown = {index for index, column in enumerate(self._columns) if not column.hidden}
            is_whole = shown <= before and not shown <= self._primary  # a key may be whole under MINIMAL, too
            if is_whole or shown <= after:
                continue
            reset = self._primary - after
            marked[number] = reset != self._primary and not shown <= before | after
            if reset and all(self._columns[index].default for index in reset):
                raise TableError(
                    self._schema.table,
                    "the log of a row's update lacks columns, and a REPLACE of a default key looks the same",
                    hint=_WHOLE,
                )
        return marked[rows.shape]

    def _values_differ(self, before: ValueRanges, after: ValueRanges, index: int, some: Offsets) -> Any:
        width = self._types[index].width
        if width is not None and width <= 8:
            old, new = (little_endian(self._data, i.starts[index][some], width) for i in (before, after))
            return old != new
        old, new = (gather(self._data, i.starts[index][some], i.ends[index][some]) for i in (before, after))
        return pc.not_equal(old, new).to_numpy(zero_copy_only=False)

    def _of_current_rows(
        self, images: _Images, operation: npt.NDArray[np.int8], row_end: int
    ) -> tuple[npt.NDArray[np.int8], Mask]:
        """Return each row event's effect on the current rows, and which events have one."""
        after = self._is_current(images.after, row_end, (operation == INSERT) | (operation == UPDATE))
        before = self._is_current(images.before, row_end, (operation == UPDATE) | (operation == DELETE))
        operation = np.where(before & ~after, DELETE, np.where(after & ~before, INSERT, operation))
        return operation.astype(np.int8), before | after | (operation == TRUNCATE)

    def _is_current(self, images: ValueRanges | None, row_end: int, some: Mask) -> Mask:
        """Mark those of some rows whose version has not ended: its end is the greatest timestamp."""
        current = np.zeros(len(some), np.bool_)
        if images is None or not some.any():
            return current
        if (images.kinds[row_end][some] != VALUE).any():
            reason = f"the log of a change does not carry column {self._columns[row_end].name}"
            raise TableError(self._schema.table, reason, hint=_WHOLE)
        ends = big_endian(self._data, images.starts[row_end][some].astype(np.int64), 7)
        current[some] = np.isin(ends, np.array(_LAST_MOMENTS, np.uint64))
        return current

    def _landed(
        self, rows: Rows, operation: npt.NDArray[np.int8], key_changed: Mask, kept: Mask | None
    ) -> _Landed:
        seq = self._placement.seq[rows.event] + 2 * rows.ordinal
        is_all = kept is None or kept.all()
        if is_all and (operation == operation[0]).all() and not key_changed.any() and operation[0] != DELETE:
            return _Landed(None, operation, seq)
        row = np.repeat(np.arange(len(operation)), 1 + key_changed)
        row = row if kept is None else row[kept[row]]
        first = np.concatenate(([True], np.diff(row) != 0))
        op, split = operation[row], key_changed[row]
        op[split] = np.where(first[split], DELETE, INSERT)
        return _Landed(row, op, seq[row] + (split & ~first))

    def _check_key(self, name: str, values: pa.Array, kind: Any, op: Any, raw: pa.Array | None) -> None:
        """Refuse a row without its key: the matching target row could not be found."""
        if values.null_count == 0:
            return
        lacking = values.is_null().to_numpy(zero_copy_only=False) & (op != TRUNCATE)
        if raw is not None:  # a zero date: its text is the key
            lacking &= raw.is_null().to_numpy(zero_copy_only=False)
        if not lacking.any():
            return
        row = int(np.argmax(lacking))
        what = "has null for" if kind[row] == NULL else "does not carry"
        self._refuse_key(name, f"{_OPS[op[row]]} {what}")

    def _check_encodings(self, images: _Images, landed: _Landed, index: int) -> None:
        column = self._columns[index]
        kind, start, end = _ranges(images, landed, index, is_key=True)
        cells = gather(self._data, start, end, kind == VALUE)
        check_key(self._schema.table, column.name, cells, column.type)

    def _check_virtual(self, index: int, is_lacking: Mask) -> None:
        """Refuse an update that lacks a virtual column: MariaDB omits even those that have changed."""
        column = self._columns[index]
        if column.virtual and is_lacking.any():
            raise TableError(
                self._schema.table,
                f"the log of a row's update does not carry virtual column {column.name}",
                hint=_WHOLE,
            )

    def _refuse_key(self, name: str, what: str) -> None:
        table = self._schema.table
        hint = f"SET GLOBAL binlog_row_image = FULL, or choose another key for {table}, then dump it again"
        raise TableError(table, f"the log of a row's {what} key column {name}", hint=hint)

    def _cdc(self, rows: Rows, landed: _Landed) -> CdcColumns:
        event = rows.event if landed.row is None else rows.event[landed.row]
        picks = pa.array(event)
        op: pa.Array | str = _OPS[landed.op[0]]
        if (landed.op != landed.op[0]).any():
            op = pa.array(_OPS, pa.string()).take(pa.array(landed.op))
        placement = self._placement
        return CdcColumns(
            op,
            self._epoch,
            pa.array(placement.lsn[event]),
            pa.array(landed.seq),
            placement.txid.take(picks),
            placement.committed_at.take(picks),
        )


def _ranges(images: _Images, landed: _Landed, column: int, is_key: bool) -> tuple[Any, Any, Any]:
    """Return kind, start and end of one column's value in each landed row; ranges ascend."""
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
