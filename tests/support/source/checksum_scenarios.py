"""Checksums that a real database computes, compared with those of the landed values, type by type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from connector.checksums.definition import BUCKET, ROWS, SUM, checksum, row_text
from connector.errors import RequestError
from connector.schema import TableName
from connector.source import KeyRange, Source

Sums = dict[int, tuple[int, int]]

BUCKET_ENDS = (-(2**63), -257, -256, -1, 0, 255, 256, 2**63 - 1)
"""Keys at the ends of buckets and of all integers."""


def compare_checksums(source: Source, tables: Iterable[tuple[str, TableName]]) -> tuple[set[str], list[Any]]:
    """Return the types that are not covered, and what differs of the others.

    Each type has a table with the key ``id``; rows with values that can't land in the column don't count.
    """
    uncovered, differing = set(), []
    with closing(source.open_tables()) as reader:
        for type_, table in tables:
            with reader.open_chunk(table, KeyRange()) as chunk:
                expected = {row["id"]: row_text(chunk.schema, row) for row in landed_rows(chunk)}
            try:
                found = sums(reader, table)
            except RequestError:
                uncovered.add(type_)
                continue
            assert expected, type_
            for id_, text in expected.items():
                if found[id_] != (1, checksum(text)):
                    differing.append((type_, id_, text))
    return uncovered, differing


def landed_rows(chunk: Any) -> Iterator[dict[str, Any]]:
    """Yield a chunk's rows, but for those with `raw` values and those of uncovered types."""
    names = [column.name for column in chunk.schema.columns]
    for some in chunk.rows():
        raws = [None] * len(some.columns[0]) if some.raw is None else some.raw.to_pylist()
        for *values, raw in zip(*(column.to_pylist() for column in some.columns), raws, strict=True):
            if not raw:
                yield dict(zip(names, values, strict=True))


def sums(reader: Any, table: TableName, key_range: KeyRange = KeyRange(), bits: int = 0) -> Sums:
    """Return the count and sum of checksums by bucket, as the database computes them."""
    with reader.open_checksums(table, key_range, bits) as chunk:
        names = [column.name for column in chunk.schema.columns]
        parts = [dict(zip(names, some.columns, strict=True)) for some in chunk.rows()]
    rows = [
        row for part in parts for row in zip(*(part[n].to_pylist() for n in (BUCKET, ROWS, SUM)), strict=True)
    ]
    return {bucket: (count, total if total is None else int(total)) for bucket, count, total in rows}


def assert_buckets(reader: Any, table: TableName) -> None:
    """Check the buckets of a table with the key (id, part) that has two rows of each of `BUCKET_ENDS`."""
    found = sums(reader, table, bits=8)
    assert {bucket: count for bucket, (count, _) in found.items()} == {
        -(2**55): 2, -2: 2, -1: 4, 0: 4, 1: 2, 2**55 - 1: 2,
    }  # fmt: skip
    assert reader.key_span(table, ("id", "part")) == (-(2**63), 2**63 - 1)
    part = KeyRange(("-257",), ("0",), of_prefix=True)
    assert {bucket: count for bucket, (count, _) in sums(reader, table, part).items()} == {
        -256: 2, -1: 2, 0: 2,
    }  # fmt: skip
