"""What chunks of every database must hold: scenarios on a table `t` that the test has filled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from connector.errors import RequestError
from connector.schema import TableName
from connector.source import KeyRange, TableReader
from tests.support.source.reading import Row, chunk_rows


def chunks(
    tables: TableReader, table: TableName, key: Sequence[str], rows: int
) -> Iterator[tuple[list[Row], tuple[str, ...] | None]]:
    """Walk a table in chunks of `rows` rows; yield the rows of each, and the key of its last one."""
    after = None
    while True:
        upto = tables.next_boundary(table, key, after, rows, None)
        yield chunk_rows(tables, str(table), KeyRange(after, upto)), upto
        if upto is None:
            return
        assert upto != after, "the same chunk again"
        after = upto


def every_row_once(
    tables: TableReader,
    table: TableName,
    key: Sequence[str],
    check_boundary: Callable[[tuple[str, ...], list[Row]], None] = lambda *_: None,
) -> None:
    """Walk a table whose column `n` counts from 1 to 60: each row is in one chunk.

    `check_boundary`: called with each boundary and the rows up to it.
    """
    found, sizes = [], []
    for rows, upto in chunks(tables, table, key, 7):
        if upto is not None:
            check_boundary(upto, rows)
        found += rows
        sizes.append(len(rows))
    assert sorted(row["n"] for row in found) == list(range(1, 61))
    assert sizes == [7] * 8 + [4]


def predicate(tables: TableReader, table: TableName, *, unknown: str, syntax: str) -> None:
    """Limit chunks of a table with ids from 1 to 100 by a predicate; one that fails spoils no later chunk.

    `unknown`, `syntax`: the server's messages for a column that does not exist, and for half a comparison.
    """
    where = "id % 10 = 0 OR id = 1 -- the ends"
    assert tables.next_boundary(table, ["id"], None, 3, where) == ("20",)
    rows = chunk_rows(tables, str(table), KeyRange(("20",), ("40",)), where)
    assert [row["id"] for row in rows] == [30, 40]
    with pytest.raises(RequestError, match=re.escape(unknown)):
        chunk_rows(tables, str(table), where="nope = 1")
    with pytest.raises(RequestError, match=re.escape(syntax)):
        tables.next_boundary(table, ["id"], None, 3, "id = ")
    assert len(chunk_rows(tables, str(table))) == 100


def rows_of_keys(
    tables: TableReader, table: TableName, keys: Sequence[Sequence[str]]
) -> list[tuple[object, ...]]:
    """Return the row of each key, with whether it is absent."""
    with tables.open_keys(table, keys) as chunk:
        return [
            row
            for some in chunk.rows()
            for row in zip(*(c.to_pylist() for c in (*some.columns, some.absent)), strict=True)
        ]


def batch_sizes(tables: TableReader, table: TableName) -> list[int]:
    """Return how many rows each batch of a chunk of the whole table holds."""
    with tables.open_chunk(table, KeyRange()) as chunk:
        return [len(some.columns[0]) for some in chunk.rows()]
