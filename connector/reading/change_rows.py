"""Reads the events of landing files in the columns of one layout, as Arrow record batches.

A file is read completely, as its manifest describes it, or not at all. Its columns are cast to the wanted
types, which must be at least as wide; missing columns are null. `_cdc` is returned as it landed, and so is
`_before`, whose columns follow the layout, if the layout has it. A file without `_before` landed before it
was configured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from connector.errors import TableError
from connector.landing.event_batch import arrow_schema
from connector.landing.format import BEFORE, CDC, schema_path
from connector.landing.parquet import DamagedFileError, batches_of
from connector.position import Position
from connector.reading.change_log import Part
from connector.schema import TableName, TableSchema, fold
from connector.store.protocol import Store
from connector.store.read_ahead import read_ahead

GATHERED_BYTES = 1 << 20
"""Rows of several files that are returned together are smaller."""


def read_layout(store: Store, table: TableName, id_: str) -> TableSchema:
    """Read one of a table's layouts; `TableError` if it is gone."""
    path = schema_path(table, id_)
    data = store.read(path)
    if data is None:
        raise TableError(table, f"{store.url}/{path} is missing", hint="restore it from a copy")
    return TableSchema.from_json(data)


def read_rows(
    store: Store, parts: Sequence[Part], layouts: Mapping[str, TableSchema], wanted: TableSchema
) -> Iterator[pa.RecordBatch]:
    """Read the events of parts, whose layouts are given by id, as the columns of `wanted` and `_cdc`.

    Of a file's events at the same position, only the first is returned. Small files are read several at once,
    and their rows are returned together: each batch costs whoever takes it as much as hundreds of rows.
    `TableError` if a file differs from what its manifest says.
    """
    return gathered(table for tables in read_files(store, parts, layouts, wanted) for table in tables)


def gathered(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Return the rows of tables, those of small ones together; large ones are not copied for that."""
    found, size = list[pa.Table](), 0
    for table in tables:
        if size + table.nbytes >= GATHERED_BYTES:
            yield from _joined(found)
            found, size = [], 0
        if table.nbytes >= GATHERED_BYTES:
            yield from table.to_batches()
        else:
            found.append(table)
            size += table.nbytes
    yield from _joined(found)


def _joined(tables: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
    if tables:
        yield from pa.concat_tables(tables).combine_chunks().to_batches()


def read_files(
    store: Store, parts: Sequence[Part], layouts: Mapping[str, TableSchema], wanted: TableSchema
) -> Iterator[Iterator[pa.Table]]:
    """Read like `read_rows`, each part by itself, by row groups; finish one before asking for the next."""
    contents = read_ahead(store.read, [part.file.path for part in parts])
    for part, data in zip(parts, contents, strict=True):
        yield _tables_of(store, part, data, layouts[part.file.schema_id], wanted)


def _tables_of(
    store: Store, part: Part, data: bytes | None, landed: TableSchema, wanted: TableSchema
) -> Iterator[pa.Table]:
    after = part.after
    try:
        for batch in batches_of(landed, part.file, data):
            table = batch.table
            if after is not None:
                keep, after = _counting(table[CDC].combine_chunks(), after, part.upto)
                table = table if keep is None else table.filter(pa.array(keep))
            yield _as_wanted(table, landed, wanted)
    except DamagedFileError as error:
        raise TableError(
            part.file.table,
            f"landing file {store.url}/{error.path} is missing or not as it was written",
            hint="restore it from a copy",
        ) from error


def _counting(
    cdc: pa.StructArray, after: Position, upto: Position | None
) -> tuple[npt.NDArray[np.bool_] | None, Position]:
    """Return a mask of the events after `after` and all events before them, up to `upto`; None: all.

    Also returns the last position passed.
    """
    columns = [pc.struct_field(cdc, name).to_numpy(zero_copy_only=False) for name in ("epoch", "lsn", "seq")]
    epoch, lsn, seq = (
        np.concatenate(([first], column)) for first, column in zip(after, columns, strict=True)
    )
    ascending = (np.diff(epoch) > 0) | (
        (np.diff(epoch) == 0) & ((np.diff(lsn) > 0) | ((np.diff(lsn) == 0) & (np.diff(seq) > 0)))
    )
    last = Position(int(epoch[-1]), int(lsn[-1]), int(seq[-1]))
    if ascending.all() and (upto is None or last <= upto):
        return None, last
    keep = np.zeros(len(cdc), dtype=bool)
    for row, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        position = Position(*values)
        if position > after:
            keep[row] = upto is None or position <= upto
            after = position
    return keep, after


def _as_wanted(table: pa.Table, landed: TableSchema, wanted: TableSchema) -> pa.Table:
    names = {fold(name): name for name in (*(column.name for column in landed.columns), CDC)}
    layout = arrow_schema(wanted)
    if wanted.before_images:  # else a column of that name is the source's own
        names.pop(BEFORE, None)
    columns = [
        table[names[fold(field.name)]].cast(field.type)
        if fold(field.name) in names
        else pa.nulls(table.num_rows, field.type)
        for field in layout
    ]
    if wanted.before_images and landed.before_images:
        columns[-1] = _old_rows(table[BEFORE].combine_chunks(), layout.field(BEFORE).type)
    return pa.Table.from_arrays(columns, schema=layout)


def _old_rows(values: pa.StructArray, type_: pa.StructType) -> pa.StructArray:
    """Cast `_before`, field by field."""
    known = {fold(field.name): index for index, field in enumerate(values.type)}
    fields = [
        values.field(known[fold(field.name)]).cast(field.type)
        if fold(field.name) in known
        else pa.nulls(len(values), field.type)
        for field in type_
    ]
    return pa.StructArray.from_arrays(fields, fields=list(type_), mask=values.is_null())
