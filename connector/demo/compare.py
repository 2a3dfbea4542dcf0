"""Compares a source table with a Delta table, row by row and column by column.

Both sides are read in key order, a few thousand rows at a time, so memory is bounded. The values bypass the
agent's decoders (one side is SQL, the other Parquet that Spark wrote in key order), so anything that a
decoder bug loses or changes shows up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from connector.demo.source import ROWS_AT_ONCE, DemoSource, Row

DIFFERENCES_KEPT = 10


@dataclass(frozen=True)
class Difference:
    """One value that differs; `column` None: the row is missing on one side."""

    title: str
    table: str
    key: Row
    column: str | None
    source: Any
    target: Any

    def __str__(self) -> str:
        key = ", ".join(map(str, self.key))
        if self.column is None:
            return f"{self.table} ({key}): the row is only in {self.title if self.source else 'Delta'}"
        values = f"{_short(self.source)} in {self.title}, {_short(self.target)} in Delta"
        return f"{self.table} ({key}) {self.column}: {values}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


@dataclass
class Comparison:
    """The result for one table of the database `title`; `differences` counts all, `first` keeps a few."""

    title: str
    table: str
    source_rows: int = 0
    target_rows: int = 0
    differences: int = 0
    first: list[Difference] = field(default_factory=list)

    def add(self, key: Row, column: str | None, source: Any, target: Any) -> None:
        """Count a difference, and keep it if it is among the first."""
        self.differences += 1
        if len(self.first) < DIFFERENCES_KEPT:
            self.first.append(Difference(self.title, self.table, key, column, source, target))


@dataclass(frozen=True)
class SourceTable:
    """A table's columns and key, from the catalog of the database called `title`."""

    title: str
    namespace: str
    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]

    @property
    def order(self) -> tuple[str, ...]:
        """Columns, those of the key first."""
        return self.key + tuple(name for name, _ in self.columns if name not in self.key)


def source_table(source: DemoSource, connection: Any, name: str) -> SourceTable:
    """Read a table's columns and primary key from the catalog, which is the same in all databases."""
    wanted = (source.namespace, name)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            wanted,
        )
        columns = tuple(cursor.fetchall())
        cursor.execute(
            "SELECT k.column_name FROM information_schema.key_column_usage k"
            " JOIN information_schema.table_constraints c ON c.constraint_name = k.constraint_name"
            " AND c.table_schema = k.table_schema AND c.table_name = k.table_name"
            " WHERE c.constraint_type = 'PRIMARY KEY' AND k.table_schema = %s AND k.table_name = %s"
            " ORDER BY k.ordinal_position",
            wanted,
        )
        key = tuple(column for (column,) in cursor.fetchall())
    return SourceTable(source.title, *wanted, columns, key)


def source_rows(source: DemoSource, connection: Any, table: SourceTable) -> Iterator[list[Row]]:
    """Read a table in key order (text by its bytes), key columns first."""
    types = dict(table.columns)
    wanted = ", ".join(source.selected(f'"{name}"', types[name]) for name in table.order)
    order = ", ".join(source.ordered(f'"{name}"', types[name]) for name in table.key)
    return source.read(
        connection, f'SELECT {wanted} FROM "{table.namespace}"."{table.name}" ORDER BY {order}'
    )


def target_rows(folder: Path, columns: Sequence[str]) -> Iterator[list[Row]]:
    """Read Parquet files in name order, with the columns in the given order."""
    for file in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(ROWS_AT_ONCE, columns=list(columns)):
            values = [_python_values(batch.column(name)) for name in columns]
            yield list(zip(*values, strict=True))


def _python_values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        plain = column.cast(pa.timestamp("us", column.type.tz))
        times: list[Any] = plain.to_numpy(zero_copy_only=False).tolist()
        return times
    values: list[Any] = column.to_pylist()
    return values


def compare(table: SourceTable, source: Iterator[list[Row]], target: Iterator[list[Row]]) -> Comparison:
    """Compare two streams of rows, both in ascending key order, with the key columns first.

    A row in only one stream is one difference; in a row in both, each differing column is one.
    """
    result = Comparison(table.title, f"{table.namespace}.{table.name}")
    width, names = len(table.key), table.order
    left: list[Row] = []
    right: list[Row] = []
    while True:
        if not left and (left := next(source, [])):
            result.source_rows += len(left)
        if not right and (right := next(target, [])):
            result.target_rows += len(right)
        if not left or not right:
            break
        size = min(len(left), len(right))
        if left[:size] == right[:size]:
            left, right = left[size:], right[size:]
        else:
            left, right = _compare_slices(result, left, right, width, names)
    for rows, counted, is_source in ((left, source, True), (right, target, False)):
        _count_lonely(result, rows, counted, width, is_source)
    return result


def other_columns(table: SourceTable, columns: Sequence[str]) -> Comparison:
    """Return the differences between tables with different columns: each one that only one of them has."""
    result = Comparison(table.title, f"{table.namespace}.{table.name}")
    for name in sorted(set(table.order) ^ set(columns)):
        result.add((), name, *(("a column", None) if name in table.order else (None, "a column")))
    return result


def _compare_slices(
    result: Comparison, left: list[Row], right: list[Row], width: int, names: Sequence[str]
) -> tuple[list[Row], list[Row]]:
    """Walk two sorted runs of rows by key until one of them ends; return the rest of both."""
    i = j = 0
    while i < len(left) and j < len(right):
        source, target = left[i], right[j]
        if source[:width] == target[:width]:
            for name, one, other in zip(names, source, target, strict=True):
                if one != other and not (one != one and other != other):  # NaN is NaN
                    result.add(source[:width], name, one, other)
            i, j = i + 1, j + 1
        elif source[:width] < target[:width]:
            result.add(source[:width], None, source, None)
            i += 1
        else:
            result.add(target[:width], None, None, target)
            j += 1
    return left[i:], right[j:]


def _count_lonely(
    result: Comparison, rows: list[Row], more: Iterator[list[Row]], width: int, is_source: bool
) -> None:
    while rows:
        for row in rows:
            result.add(row[:width], None, row if is_source else None, None if is_source else row)
        rows = next(more, [])
        if is_source:
            result.source_rows += len(rows)
        else:
            result.target_rows += len(rows)
