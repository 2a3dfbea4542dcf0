"""Compares a table of PostgreSQL with a Delta table, row by row and column by column.

Both sides come in key order, some thousand rows at a time, so that memory is bounded. The values are read by
means of their own (SQL on one side, Parquet that Spark wrote in key order on the other), not by the agent's
decoders: what a bug there lost or changed shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extensions
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg2 import sql

ROWS_AT_ONCE = 20_000
DIFFERENCES_KEPT = 10

Row = tuple[Any, ...]

# What PostgreSQL is asked for, so that equal values are equal Python objects on both sides: times in UTC and
# without zone, numbers as they are, and everything that lands as the source's text as that text.
_AS_THEY_ARE = frozenset("boolean smallint integer bigint date numeric text ARRAY bytea".split()) | {
    "double precision",
    "character varying",
    "timestamp without time zone",
}


@dataclass(frozen=True)
class Difference:
    """One value that is not the same; a row that is missing on one side has `column` None."""

    table: str
    key: Row
    column: str | None
    source: Any
    target: Any

    def __str__(self) -> str:
        key = ", ".join(map(str, self.key))
        if self.column is None:
            return f"{self.table} ({key}): the row is only in {'PostgreSQL' if self.source else 'Delta'}"
        values = f"{_short(self.source)} in PostgreSQL, {_short(self.target)} in Delta"
        return f"{self.table} ({key}) {self.column}: {values}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


@dataclass
class Comparison:
    """The result for one table; `differences` counts all, `first` holds some."""

    table: str
    source_rows: int = 0
    target_rows: int = 0
    differences: int = 0
    first: list[Difference] = field(default_factory=list)

    def add(self, key: Row, column: str | None, source: Any, target: Any) -> None:
        """Count a difference, and keep it if it is one of the first."""
        self.differences += 1
        if len(self.first) < DIFFERENCES_KEPT:
            self.first.append(Difference(self.table, key, column, source, target))


@dataclass(frozen=True)
class SourceTable:
    """A table's columns and key, as PostgreSQL's catalog tells them."""

    namespace: str
    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]

    @property
    def order(self) -> tuple[str, ...]:
        """Columns with those of the key first."""
        return self.key + tuple(name for name, _ in self.columns if name not in self.key)


def source_table(connection: psycopg2.extensions.connection, namespace: str, name: str) -> SourceTable:
    """Read columns and primary key of a table from the catalog."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (namespace, name),
        )
        columns = tuple(cursor.fetchall())
        cursor.execute(
            "SELECT a.attname FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k (number, place)"
            " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number"
            " WHERE i.indisprimary AND i.indrelid = format('%%I.%%I', %s::text, %s::text)::regclass"
            " ORDER BY k.place",
            (namespace, name),
        )
        key = tuple(column for (column,) in cursor.fetchall())
    return SourceTable(namespace, name, columns, key)


def source_rows(connection: psycopg2.extensions.connection, table: SourceTable) -> Iterator[list[Row]]:
    """Read a table in key order (text by its bytes) through a cursor of the server, key columns first."""
    types = dict(table.columns)
    wanted = sql.SQL(", ").join(_selected(name, types[name]) for name in table.order)
    order = sql.SQL(", ").join(_ordered(name, types[name]) for name in table.key)
    query = sql.SQL("SELECT {} FROM {} ORDER BY {}").format(
        wanted, sql.Identifier(table.namespace, table.name), order
    )
    with connection.cursor(name="compare") as cursor:
        cursor.execute(query)
        while rows := cursor.fetchmany(ROWS_AT_ONCE):
            yield [tuple(map(_plain, row)) for row in rows] if "bytea" in types.values() else rows


def _selected(name: str, type_name: str) -> sql.Composable:
    column = sql.Identifier(name)
    if type_name == "timestamp with time zone":
        return sql.SQL("{} AT TIME ZONE 'UTC'").format(column)
    if type_name == "real":  # as Parquet's floats become Python's: the nearest double
        return sql.SQL("{}::float8").format(column)
    return column if type_name in _AS_THEY_ARE else sql.SQL("{}::text").format(column)


def _ordered(name: str, type_name: str) -> sql.Composable:
    column = _selected(name, type_name)
    as_text = type_name in ("text", "character varying") or type_name not in _AS_THEY_ARE
    by_bytes = as_text and not type_name.startswith("timestamp")
    return sql.SQL('{} COLLATE "C"').format(column) if by_bytes else column


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def target_rows(folder: Path, columns: Sequence[str]) -> Iterator[list[Row]]:
    """Read Parquet files in the order of their names, the columns in the order given."""
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
    """Compare two streams of rows, both in ascending order of their key columns, which come first.

    A row that is in one stream alone is one difference; of a row in both, each column that differs is one.
    """
    result = Comparison(f"{table.namespace}.{table.name}")
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
    """Give what differs between tables that have not the same columns: each column of one of them alone."""
    result = Comparison(f"{table.namespace}.{table.name}")
    for name in sorted(set(table.order) ^ set(columns)):
        result.add((), name, *(("a column", None) if name in table.order else (None, "a column")))
    return result


def _compare_slices(
    result: Comparison, left: list[Row], right: list[Row], width: int, names: Sequence[str]
) -> tuple[list[Row], list[Row]]:
    """Walk two runs of rows by key until one of them ends, and give what is left of both."""
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
