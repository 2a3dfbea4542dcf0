"""Decodes change messages of one table into a batch of events. Pure.

Rules: an update that changes the key becomes a delete of the old key and an insert of the new one (``seq +
1``). A delete carries only its key or, for a table without a key, the columns of the replica identity. A
value that an update does not send (unchanged TOAST) is taken from the old tuple if it is there; otherwise its
column is null and listed in `unchanged`. Events keep the order of the messages.

A before-image is the old tuple of an update or delete, if the layout asks for it. If the log has no old
tuple, or only the replica identity's columns (REPLICA IDENTITY is not FULL), the other columns are listed as
missing. For an update that changes the key, the delete carries it.
"""

from __future__ import annotations

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
from connector.position import Position
from connector.postgres.codec.column_decoder import decode_column
from connector.postgres.codec.pgoutput import Relation
from connector.postgres.codec.tuples import (
    ABSENT,
    DELETE,
    INSERT,
    KEY,
    NULL,
    OLD,
    TEXT,
    TRUNCATE,
    UNCHANGED,
    Messages,
    MessageTuples,
    walk_messages,
)
from connector.schema import TableName, TableSchema

_OPS = (format.INSERT, format.UPDATE, format.DELETE, format.TRUNCATE)
_INSERT, _UPDATE, _DELETE, _TRUNCATE = range(4)

NONE: tuple[None, None] = None, None
"""No before-images, and no hint about them."""


@dataclass(frozen=True)
class _Rows:
    """The rows of messages: each row's message (None: one row per message), op and seq."""

    message: Offsets | None
    op: npt.NDArray[np.int8]
    is_delete: Mask
    seq: Offsets


def decode_changes(
    schema: TableSchema, relation: Relation, epoch: int, messages: Messages, placement: Placement
) -> EventBatch:
    """Decode messages of one relation under one schema, whose columns are exactly the relation's, in order.

    `TableError` or `ValueError` if a message or value can't be decoded, or a row's key is unknown.
    """
    names = [column.name for column in schema.columns]
    if names != [column.name for column in relation.columns]:
        raise TableError(schema.table, f"the log has columns {[c.name for c in relation.columns]}")
    tuples = walk_messages(messages, len(names))
    is_key = np.array([name in schema.key for name in names], np.bool_)
    no_key = not schema.key
    identity = np.array([c.is_key for c in relation.columns], np.bool_)
    _fill_unchanged(tuples, identity)
    rows = _rows_of(messages, placement, tuples, _key_changes(messages, tuples, is_key))
    columns, raws, unchanged = [], {}, {}
    before, hint = _before_images(schema, messages, tuples, rows, identity) if schema.before_images else NONE
    for index, column in enumerate(schema.columns):
        kind, start, end = _ranges(tuples, rows, index, bool(is_key[index] or (no_key and identity[index])))
        cells = gather(messages.data, start, end, None if (kind == TEXT).all() else kind == TEXT)
        values, raws[column.name] = decode_column(cells, column.type)
        if is_key[index]:
            _check_key(schema, column.name, values, kind, rows, raws[column.name])
        if (is_unchanged := kind == UNCHANGED).any():
            unchanged[column.name] = is_unchanged
        columns.append(values)
    cdc = _cdc(epoch, rows, placement)
    cdc.raw, cdc.unchanged = combine_raw(raws), list_names(unchanged)
    return EventBatch(
        schema,
        assemble(schema, columns, cdc, before),
        first=Position(epoch, int(placement.lsn[0]), int(rows.seq[0])),
        last=Position(epoch, int(placement.lsn[-1]), int(rows.seq[-1])),
        partial=bool(unchanged),
        truncates=bool((rows.op == _TRUNCATE).any()),
        before_hint=hint,
    )


def _before_images(
    schema: TableSchema, messages: Messages, tuples: MessageTuples, rows: _Rows, is_identity: Mask
) -> tuple[pa.StructArray | None, str | None]:
    """Decode the old row of each update and delete; also return a hint if some are incomplete."""
    replaces = (rows.op == _UPDATE) | (rows.op == _DELETE)
    if not replaces.any():
        return NONE
    message = np.arange(len(rows.op)) if rows.message is None else rows.message
    old = tuples.old or ValueRanges.absent(len(schema.columns), messages.starts)
    is_key_tuple = (tuples.tags == KEY)[message]
    values, raws, missing = [], {}, {}
    for index, column in enumerate(schema.columns):
        kind, start, end = old.kinds[index][message], old.starts[index][message], old.ends[index][message]
        kind[~replaces] = ABSENT
        start[~replaces] = end[~replaces]  # of an update's second row: its range follows that of the first
        cells = gather(messages.data, start, end, None if (kind == TEXT).all() else kind == TEXT)
        array, raws[column.name] = decode_column(cells, column.type)
        values.append(array)
        lacks = (kind != TEXT) & (kind != NULL)
        if not is_identity[index]:
            lacks |= is_key_tuple
        if (lacks := lacks & replaces).any():
            missing[column.name] = lacks
    image = before_struct(schema, values, replaces, list_names(missing), combine_raw(raws))
    return image, _whole_rows_hint(schema.table) if missing else None


def _whole_rows_hint(table: TableName) -> str:
    name = ".".join('"' + part.replace('"', '""') + '"' for part in table)
    what = f"ALTER TABLE {name} REPLICA IDENTITY FULL"
    return f"{what}; if it is partitioned, likewise for its partitions, in the same transaction"


def _fill_unchanged(tuples: MessageTuples, is_identity: Mask) -> None:
    """Take values that the new tuple lacks from the old one; a key tuple has only those of the identity.

    A value that was unchanged and not sent is large, so a null in the old tuple does not count: a partition
    that logs only the key, under a root that logs whole rows, sends such a tuple.
    """
    old, new = tuples.old, tuples.new
    if old is None:
        return
    has_value = (tuples.tags == OLD)[None, :] | ((tuples.tags == KEY)[None, :] & is_identity[:, None])
    fill = (new.kinds == UNCHANGED) & has_value & (old.kinds == TEXT)
    new.kinds[fill], new.starts[fill], new.ends[fill] = old.kinds[fill], old.starts[fill], old.ends[fill]


def _key_changes(messages: Messages, tuples: MessageTuples, is_key: Mask) -> Mask:
    """Mark the updates whose old and new tuples differ in a key column."""
    changed = np.zeros(len(messages.kinds), np.bool_)
    old, new = tuples.old, tuples.new
    both = np.flatnonzero(tuples.has_old & (messages.kinds != DELETE))
    if old is None or not len(both):
        return changed
    for index in np.flatnonzero(is_key).tolist():
        changed[both] |= old.kinds[index][both] != new.kinds[index][both]
        before, after = (_texts(messages, t, index, both) for t in (old, new))
        changed[both] |= pc.not_equal(before, after).to_numpy(zero_copy_only=False)
    return changed


def _texts(messages: Messages, tuples: ValueRanges, column: int, rows: Offsets) -> pa.Array:
    return gather(messages.data, tuples.starts[column][rows], tuples.ends[column][rows])


def _rows_of(messages: Messages, placement: Placement, tuples: MessageTuples, key_changed: Mask) -> _Rows:
    kinds = messages.kinds
    op = np.full(len(kinds), _UPDATE, np.int8)
    for kind, code in ((INSERT, _INSERT), (DELETE, _DELETE), (TRUNCATE, _TRUNCATE)):
        op[kinds == kind] = code
    if tuples.old is None:
        return _Rows(None, op, np.zeros(len(kinds), np.bool_), placement.seq)
    message = np.repeat(np.arange(len(kinds)), 1 + key_changed)
    first = np.concatenate(([True], np.diff(message) != 0))
    op, split = op[message], key_changed[message]
    op[split] = np.where(first[split], _DELETE, _INSERT)
    seq = placement.seq[message] + (split & ~first)
    return _Rows(message, op, op == _DELETE, seq)


def _ranges(tuples: MessageTuples, rows: _Rows, column: int, is_key: bool) -> tuple[Any, Any, Any]:
    """Return kind, start and end of one column's value in each row; ranges ascend."""
    new, old, message = tuples.new, tuples.old, rows.message
    if old is None or message is None:
        return new.kinds[column], new.starts[column], new.ends[column]
    kind, start, end = new.kinds[column][message], new.starts[column][message], new.ends[column][message]
    deletes, deleted = rows.is_delete, message[rows.is_delete]
    start[deletes] = old.starts[column][deleted]
    end[deletes] = (old.ends if is_key else old.starts)[column][deleted]
    kind[deletes] = old.kinds[column][deleted] if is_key else ABSENT
    return kind, start, end


def _check_key(
    schema: TableSchema, name: str, values: pa.Array, kind: Any, rows: _Rows, raw: pa.Array | None
) -> None:
    """Refuse a row without its key: the matching target row could not be found."""
    if values.null_count == 0:
        return
    lacking = values.is_null().to_numpy(zero_copy_only=False) & (rows.op != _TRUNCATE)
    if raw is not None:  # infinity, NaN: its text is the key
        lacking &= raw.is_null().to_numpy(zero_copy_only=False)
    if not lacking.any():
        return
    row = int(np.argmax(lacking))
    op = _OPS[rows.op[row]]
    what = "does not carry" if kind[row] == UNCHANGED else "has null for"
    hint = f"make the log carry the key: ALTER TABLE {schema.table} REPLICA IDENTITY FULL, then dump it again"
    raise TableError(schema.table, f"the log of a row's {op} {what} key column {name}", hint=hint)


def _cdc(epoch: int, rows: _Rows, placement: Placement) -> CdcColumns:
    lsn, txid, committed_at = placement.lsn, placement.txid, placement.committed_at
    if rows.message is not None:
        picks = pa.array(rows.message)
        lsn, txid, committed_at = lsn[rows.message], txid.take(picks), committed_at.take(picks)
    op: pa.Array | str = _OPS[rows.op[0]]
    if (rows.op != rows.op[0]).any():
        op = pa.array(_OPS, pa.string()).take(pa.array(rows.op))
    return CdcColumns(op, epoch, pa.array(lsn), pa.array(rows.seq), txid, committed_at)
