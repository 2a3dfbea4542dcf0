"""The checksums that a database computed, in the form in which they land."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from connector.checksums.definition import bucket_schema
from connector.errors import RequestError
from connector.landing.event_batch import arrow_type
from connector.logged_table import LoggedTable
from connector.schema import TableName, TableSchema
from connector.source import ChunkRows


@dataclass(frozen=True)
class ChecksumChunk:
    """An open chunk of checksums; implements `connector.source.Chunk`.

    `layout`: the layout of the rows. `read`: returns bucket, row count and sum of checksums for each bucket
    in the range.
    """

    layout: TableSchema
    low: int
    high: int
    read: Callable[[], Iterable[tuple[Any, ...]]]
    order: str | None = None

    @property
    def schema(self) -> TableSchema:
        """The layout of what lands."""
        return bucket_schema(self.layout.table)

    def rows(self) -> Iterator[ChunkRows]:
        """Read all buckets at once: there are at most as many as a chunk has rows."""
        if found := [(*bucket, self.layout.id) for bucket in self.read()]:
            types = [arrow_type(column.type) for column in self.schema.columns]
            parts = list(zip(*found, strict=True))
            arrays = [pa.array(part, type_) for part, type_ in zip(parts, types, strict=True)]
            yield ChunkRows(arrays, summed=sum(parts[1]))

    def read_from(self) -> Sequence[LoggedTable]:
        """Return none: no rows land."""
        return ()


def whole_span(table: TableName, column: str, found: Sequence[Any]) -> tuple[int, int]:
    """Return a key column's least and greatest value, as a database found them; (0, 0) for an empty table.

    `RequestError` if they are not integers.
    """
    if not all(isinstance(value, int | None) for value in found):
        raise RequestError(f"{table}: key column {column} is not an integer")
    first, last = found
    return first or 0, last or 0
