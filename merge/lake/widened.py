"""Keeps filters from missing rows of columns that were widened.

Older files have such a column in its former type, and what decides whether to open a file, or a part of it,
takes the column's new type for theirs:

- Spark hands a filter to each Parquet file as a number of the type there. A greater decimal overflows: rows
  are missed without an error (``amount BETWEEN 0 AND 30000000.00``, of a file with decimal(8,2)), or the file
  can't be read. Integers are checked.
- Delta's statistics have a float as the shortest text, which as a double is another number.

A feature of the table says whether columns may have been widened, or another one that it was dropped since,
which rewrites no older version. The property of that name is only about what may still be: somebody may have
turned it off.

`WIDENED` is for the sessions of merges: Delta still skips files by decimals, and their own filters have no
doubles; queries of views may, and so may other readers, in any session. `with_whole_filters` is for frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, DoubleType, StructType

from merge.lake.target import TargetState
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PUSHED_DECIMALS = "spark.sql.parquet.filterPushdown.decimal"

WIDENED = {PUSHED_DECIMALS: "false"}
"""For reading a table with a widened column, where filters are literals of keys, or on decimals."""

NEVER_WIDENED_DIGITS = 9
"""Decimals of up to so many digits are as wide in Parquet as any that they may have been widened from."""


def with_whole_filters(frame: DataFrame, state: TargetState, *, decimals: bool = True) -> DataFrame:
    """Return a frame of a Delta table in this state, of which no filter misses a row.

    If a column was widened, filters on decimals and doubles are applied to rows alone; no file is skipped by
    them. The frame has the same columns. `decimals`: False in a session with `WIDENED`.
    """
    if not (state.widened or _is_newer(frame, state)):
        return frame
    return frame.select(*[_whole(field.name, field.dataType, decimals) for field in frame.schema.fields])


def _is_newer(frame: DataFrame, state: TargetState) -> bool:
    """Return whether a column has another type: a merge has widened it after the state was read."""
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    return any(types.get(name, type_) != type_ for name, type_ in state.columns.items())


def _whole(name: str, type_: DataType, decimals: bool) -> Column:
    column = F.col(quoted(name))
    if isinstance(type_, StructType):  # before-images
        wide = [field.name for field in type_ if _is_wide(field.dataType, decimals)]
        for part, value in {part: column.getField(part) for part in wide}.items():
            column = column.withField(quoted(part), F.greatest(value, value))
    elif _is_wide(type_, decimals):
        column = F.greatest(column, column)
    return column.alias(name)


def _is_wide(type_: DataType, decimals: bool) -> bool:
    if isinstance(type_, DecimalType):
        return decimals and type_.precision > NEVER_WIDENED_DIGITS
    return isinstance(type_, DoubleType)
