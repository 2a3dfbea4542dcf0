"""Events in columns: batches of one table under one schema, in the layout of a landing file.

A decoder (log) or a chunk reader (dump) supplies the table's columns as Arrow arrays; `assemble` adds `_cdc`.
Invariant: the rows of a batch are in position order, and all have its schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connector.errors import BugError
from connector.landing.format import BEFORE, CDC
from connector.position import Position
from connector.schema import TableName, TableSchema, array_of, decimal_of

_SCALARS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

CDC_TYPE = pa.struct(
    [
        pa.field("op", pa.string()),
        pa.field("epoch", pa.int32()),
        pa.field("lsn", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("txid", pa.string()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("low_lsn", pa.int64()),
        pa.field("high_lsn", pa.int64()),
        pa.field("dump", pa.string()),
        pa.field("chunk", pa.int32()),
        pa.field("unchanged", pa.list_(pa.string())),
        pa.field("raw", pa.map_(pa.string(), pa.string())),
    ]
)
"""`connector.landing.format.CDC_FIELDS` as Arrow types; a test keeps the two consistent."""


BEFORE_CDC_TYPE = pa.struct(
    [
        pa.field("missing", pa.list_(pa.string())),
        pa.field("raw", pa.map_(pa.string(), pa.string())),
    ]
)
"""`connector.landing.format.BEFORE_FIELDS` as Arrow types; a test keeps the two consistent."""


def arrow_type(type_name: str) -> pa.DataType:
    """Return the Arrow type of a Spark SQL type that a landing file may hold."""
    if decimal := decimal_of(type_name):
        return pa.decimal128(*decimal)
    if element := array_of(type_name):
        return pa.list_(arrow_type(element))
    try:
        return _SCALARS[type_name]
    except KeyError:
        raise BugError(f"no landing type {type_name!r}") from None


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of a table's landing file: its columns, `_cdc`, and optionally `_before`."""
    fields = [pa.field(c.name, arrow_type(c.type)) for c in schema.columns]
    before = [pa.field(BEFORE, before_type(schema))] if schema.before_images else []
    return pa.schema([*fields, pa.field(CDC, CDC_TYPE), *before])


def before_type(schema: TableSchema) -> pa.StructType:
    """Return the Arrow type of `_before`: the table's columns, and the struct of `BEFORE_FIELDS`."""
    fields = [pa.field(c.name, arrow_type(c.type)) for c in schema.columns]
    return pa.struct([*fields, pa.field(CDC, BEFORE_CDC_TYPE)])


@dataclass(frozen=True)
class EventBatch:
    """Events of one table under one schema, in position order; `table` has the landing layout.

    `partial`: some event lists `unchanged` columns. `truncates`: some event is a truncate. `before_hint`: set
    if a configured before-image is incomplete: how to make the log carry all of it.
    """

    schema: TableSchema
    table: pa.Table
    first: Position
    last: Position
    partial: bool = False
    truncates: bool = False
    before_hint: str | None = None


@dataclass(frozen=True)
class QuarantineNotice:
    """What a decoder returns for a table that it can't decode further, instead of events.

    `lsn` is the transaction of the first event that does not land.
    """

    table: TableName
    lsn: int
    reason: str
    hint: str


@dataclass(frozen=True)
class TableRedefined:
    """A statement in the log that changes a table's definition, perhaps in ways that the log does not show.

    `names`: of columns that it renames, the former name and the new one.
    """

    table: TableName
    lsn: int
    names: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class UnloggedNotice:
    """Log after which a table's rows may differ from what their events say: a statement, or a lost piece.

    The manifest that has this log names the dump of the table.
    """

    table: TableName
    lsn: int
    reason: str


Decoded = EventBatch | QuarantineNotice | TableRedefined | UnloggedNotice
"""What a segment of the log decodes into."""


@dataclass(frozen=True)
class Placement:
    """The position of each message: `lsn`, `seq` of its first row, `txid`, `committed_at`."""

    lsn: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int64]
    txid: pa.Array
    committed_at: pa.Array

    def take(self, members: npt.NDArray[np.int64]) -> Placement:
        """Return the positions of some of the messages, by their indexes."""
        picks = pa.array(members)
        return Placement(
            self.lsn[members], self.seq[members], self.txid.take(picks), self.committed_at.take(picks)
        )


@dataclass
class CdcColumns:
    """The fields of `_cdc`, each an Arrow array of the batch's length, a scalar for all rows, or None.

    Without arrays, it is built once and then sliced, for as many batches as there are.
    """

    op: pa.Array | str
    epoch: int
    lsn: pa.Array | int
    seq: pa.Array | int
    txid: pa.Array | None = None
    committed_at: pa.Array | None = None
    low_lsn: int | None = None
    high_lsn: int | None = None
    dump: str | None = None
    chunk: int | None = None
    unchanged: pa.Array | None = None
    raw: pa.Array | None = None
    _built: pa.StructArray | None = field(default=None, init=False, repr=False, compare=False)

    def to_struct(self, rows: int) -> pa.StructArray:
        """Return the struct column of `rows` rows."""
        values = [getattr(self, f.name) for f in CDC_TYPE]
        if any(isinstance(value, pa.Array) for value in values):
            return _struct(values, rows)
        if self._built is None or len(self._built) < rows:
            self._built = _struct(values, rows)
        return self._built.slice(0, rows)


def _struct(values: Sequence[object], rows: int) -> pa.StructArray:
    arrays = [_fill(value, f.type, rows) for value, f in zip(values, CDC_TYPE, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(CDC_TYPE))


def _fill(value: object, type_: pa.DataType, rows: int) -> pa.Array:
    if value is None:
        return pa.nulls(rows, type_)
    if isinstance(value, pa.Array):
        return value if value.type == type_ else value.cast(type_)
    return pa.repeat(pa.scalar(value, type_), rows)


def assemble(
    schema: TableSchema,
    columns: Sequence[pa.Array],
    cdc: CdcColumns,
    before: pa.StructArray | None = None,
) -> pa.Table:
    """Combine a table's columns and `_cdc` in the landing layout; lengths and types must agree.

    `before`: the old rows, if the layout has `_before` and there are any.
    """
    layout, rows = arrow_schema(schema), len(columns[0])
    arrays = [*columns, cdc.to_struct(rows)]
    if schema.before_images:
        arrays.append(pa.nulls(rows, layout.field(BEFORE).type) if before is None else before)
    return pa.Table.from_arrays(arrays, schema=layout)


def before_struct(
    schema: TableSchema,
    columns: Sequence[pa.Array],
    replaces: npt.NDArray[np.bool_],
    missing: pa.Array | None,
    raw: pa.Array | None,
) -> pa.StructArray:
    """Build `_before`: null where an event replaces no row, else old values and which are missing."""
    rows = len(replaces)
    fields = [_fill(value, f.type, rows) for value, f in zip((missing, raw), BEFORE_CDC_TYPE, strict=True)]
    ours = pa.StructArray.from_arrays(fields, fields=list(BEFORE_CDC_TYPE))
    type_ = before_type(schema)
    return pa.StructArray.from_arrays([*columns, ours], fields=list(type_), mask=pa.array(~replaces))
