"""Keys that a server considers equal, though their texts differ: which of them a dump of keys reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from connector.mysql.codec.table_map import MappedColumn, TableMap
from connector.mysql.codec.types import type_of_catalog
from connector.mysql.dump import MysqlTables
from connector.mysql.key_sql import KeyColumn
from connector.schema import TableName
from connector.source import ChunkRows

COLUMNS = {"id": type_of_catalog("int", None), "name": type_of_catalog("varchar(20)", "utf8mb4")}
LAYOUT = TableMap(
    1, TableName("shop", "t"), tuple(MappedColumn(*column) for column in COLUMNS.items()), ("id", "name")
)


class IgnoringCase(MysqlTables):
    """Tables of a server whose collation ignores case; it has these rows."""

    def __init__(self, *rows: tuple[int, str]) -> None:
        self._known = rows

    def _rows_with_numbers(
        self, layout: TableMap, columns: Sequence[KeyColumn], wanted: Sequence[Sequence[str]]
    ) -> Iterator[tuple[ChunkRows, list[int]]]:
        def key(id_: int | str, name: str) -> tuple[str, str]:
            return str(id_), name.casefold()

        keys = [key(*each) for each in wanted]
        rows = [row for row in self._known if key(*row) in keys]
        if rows:
            arrays: list[pa.Array] = [pa.array(values) for values in zip(*rows, strict=True)]
            yield ChunkRows(arrays, None, pa.array([False] * len(rows))), [keys.index(key(*r)) for r in rows]

    def found(self, *wanted: list[str]) -> list[tuple[Any, ...]]:
        """Return what is reported of these keys, with whether they are absent."""
        columns = [KeyColumn(*column) for column in COLUMNS.items()]
        return [
            row
            for some in self._rows_of(LAYOUT, columns, wanted)
            for row in zip(*(array.to_pylist() for array in (*some.columns, some.absent)), strict=True)
        ]


def test_a_key_that_only_equals_a_rows_is_absent_beside_that_row() -> None:
    """A lake's row of this text is a ghost, which nothing else but a full dump would delete."""
    tables = IgnoringCase((1, "a"), (2, "B"))
    assert tables.found(["1", "A"]) == [(1, "a", False), (1, "A", True)]
    assert tables.found(["1", "a"]) == [(1, "a", False)]
    both = tables.found(["1", "A"], ["1", "a"], ["2", "B"], ["3", "a"])
    assert set(both) == {(1, "a", False), (2, "B", False), (1, "A", True), (3, "a", True)}
