"""Rows of a Delta table without Spark, whose queries cost a hundred times as much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def read_rows(path: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return columns, also fields of structs (`_cdc.op`), of all rows; names in any case, as in Spark."""
    table = DeltaTable(path)
    names = {field.name.lower(): field.name for field in table.schema().fields}
    paths = [column.split(".") for column in columns]
    wanted = dict.fromkeys(names[path[0].lower()] for path in paths)
    quoted = ", ".join(f'"{name}"' for name in wanted)
    batches = QueryBuilder().register("t", table).execute(f"SELECT {quoted} FROM t").read_all()
    table = pa.table(batches)
    types = {field.name: field.type for field in table.schema}
    places = [(names[path[0].lower()], path[1:]) for path in paths]
    return [tuple(_value(row[name], types[name], path) for name, path in places) for row in table.to_pylist()]


def _value(value: Any, type_: pa.DataType, path: Sequence[str]) -> Any:
    """Return a value, or a field of it; maps as dictionaries, which Arrow before 20 does not give."""
    if value is None:
        return None
    if path:
        return _value(value[path[0]], type_.field(path[0]).type, path[1:])
    if pa.types.is_struct(type_):
        return {field.name: _value(value[field.name], field.type, ()) for field in type_}
    return dict(value) if pa.types.is_map(type_) else value
