"""Tables of a `MemoryDatabase`, read in chunks: one snapshot each, with a proven low watermark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from connector.checksums.chunk import ChecksumChunk, whole_span
from connector.checksums.definition import sums_of, uncovered
from connector.errors import NotYetError, RequestError, TransientError
from connector.landing.event_batch import arrow_type
from connector.logged_table import LoggedTable
from connector.postgres.visibility import Visibility
from connector.schema import TableName, TableSchema
from connector.source import ChunkRows, KeyRange
from connector.testing.memory_database import MemoryDatabase, Row

BATCH_ROWS = 100
"""Small, so a chunk in a test has more than one batch."""

_PREDICATE = re.compile(r"(\w+) (?:is not null|= '([^']*)')")


@dataclass(frozen=True)
class MemoryChunk:
    """An open chunk; implements `connector.source.Chunk`. `absent` are keys without a row."""

    schema: TableSchema
    low: int
    high: int
    found: list[Row]
    absent: list[Row] | None
    reach: Callable[[str], None]
    order: str | None = None

    def rows(self) -> Iterator[ChunkRows]:
        """Read the rows, a few at a time."""
        rows = [(row, False) for row in self.found] + [(row, True) for row in self.absent or ()]
        for start in range(0, len(rows), BATCH_ROWS):
            self.reach("rows")
            batch = rows[start : start + BATCH_ROWS]
            columns = [
                pa.array([r.get(c.name) for r, _ in batch], arrow_type(c.type)) for c in self.schema.columns
            ]
            absent = pa.array([a for _, a in batch]) if self.absent is not None else None
            yield ChunkRows(columns, absent=absent)

    def read_from(self) -> Sequence[LoggedTable]:
        """Return none: a check sees every table."""
        return ()


class DumpedSource(Protocol):
    """What chunks are read from: the database, and what its log reader has proven visible."""

    database: MemoryDatabase
    visibility: Visibility | None

    def connect(self) -> Callable[[str], None]:
        """Open a connection; see `connector.testing.memory_source.MemorySource.connect`."""


class MemoryTables:
    """Reads chunks in snapshots; implements `connector.source.TableReader`."""

    def __init__(self, source: DumpedSource) -> None:
        self._reach = source.connect()
        self._source = source

    def next_boundary(
        self,
        table: TableName,
        key: Sequence[str],
        after: tuple[str, ...] | None,
        rows: int,
        where: str | None,
    ) -> tuple[str, ...] | None:
        """Return the key of the row `rows` rows after `after` in key order; None if fewer are left."""
        self._reach("next_boundary")
        schema = self._schema(table)
        found = self._source.database.snapshot(table)[0].values()
        keys = sorted(_key(schema, r) for r in _select(schema, found, KeyRange(after), where))
        return tuple(map(str, keys[rows - 1])) if len(keys) >= rows else None

    def estimate_rows(self, table: TableName) -> int | None:
        """Return the number of rows."""
        self._schema(table)
        return len(self._source.database.snapshot(table)[0])

    def key_span(self, table: TableName, key: Sequence[str]) -> tuple[int, int]:
        """Return the least and greatest value of the key's first column; (0, 0) if the table is empty."""
        values = [row[key[0]] for row in self._source.database.snapshot(table)[0].values()]
        return whole_span(table, key[0], (min(values, default=None), max(values, default=None)))

    @contextmanager
    def open_chunk(
        self, table: TableName, key_range: KeyRange, where: str | None = None
    ) -> Iterator[MemoryChunk]:
        """Open a snapshot and the rows of a key range in it."""
        schema, rows, low, high = self._open_snapshot(table)
        yield MemoryChunk(schema, low, high, _select(schema, rows, key_range, where), None, self._reach)

    @contextmanager
    def open_checksums(self, table: TableName, key_range: KeyRange, bits: int) -> Iterator[ChecksumChunk]:
        """Open a snapshot and the checksums of a key range's rows in it."""
        schema, rows, low, high = self._open_snapshot(table)
        if why := uncovered(schema):
            raise RequestError(f"{table}: {why}")
        found = sums_of(schema, _select(schema, rows, key_range, None), bits)
        yield ChecksumChunk(schema, low, high, lambda: [(bucket, *sums) for bucket, sums in found.items()])

    @contextmanager
    def open_keys(self, table: TableName, keys: Sequence[Sequence[str]]) -> Iterator[MemoryChunk]:
        """Open a snapshot and the rows of the given keys; keys without a row come as `absent`."""
        schema, rows, low, high = self._open_snapshot(table)
        by_key = {_key(schema, row): row for row in rows}
        wanted = [_parse(schema, key) for key in keys]
        found = [by_key[k] for k in wanted if k in by_key]
        absent: list[Row] = [dict(zip(schema.key, k, strict=True)) for k in wanted if k not in by_key]
        yield MemoryChunk(schema, low, high, found, absent, self._reach)

    def _open_snapshot(self, table: TableName) -> tuple[TableSchema, list[Row], int, int]:
        self._reach("open_chunk")
        visibility, database = self._source.visibility, self._source.database
        if visibility is None:
            raise TransientError(f"{table}: the log is not being read yet")
        with visibility.opening() as position:
            with database.changed:
                schema = self._schema(table)
                rows, snapshot, high = database.snapshot(table)
            low = visibility.low_watermark(position, snapshot)
        if low is None:
            raise NotYetError(f"{table}: waiting for transactions that ran when the history began")
        return schema, list(rows.values()), low, high

    def _schema(self, table: TableName) -> TableSchema:
        schema = self._source.database.schema(table)
        if schema is None:
            raise NotYetError(f"{table}: does not exist now")
        return schema

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _key(schema: TableSchema, row: Row) -> tuple[Any, ...]:
    return tuple(row[c] for c in schema.key)


def _parse(schema: TableSchema, key: Sequence[str], within: KeyRange | None = None) -> tuple[Any, ...]:
    if not (within or KeyRange(tuple(key))).fits(len(schema.key)):
        raise RequestError(f"{schema.table}: {list(key)} is not a key")
    types = [schema.column(c).type for c in schema.key[: len(key)]]
    return tuple(text if type_ == "string" else int(text) for text, type_ in zip(key, types, strict=True))


def _select(schema: TableSchema, rows: Any, key_range: KeyRange, where: str | None) -> list[Row]:
    after, upto = (end and _parse(schema, end, key_range) for end in (key_range.after, key_range.upto))
    holds = _predicate(schema, where)
    return [
        row
        for row in rows
        if (not after or _key(schema, row)[: len(after)] > after)
        and (not upto or _key(schema, row)[: len(upto)] <= upto)
        and holds(row)
    ]


def _predicate(schema: TableSchema, where: str | None) -> Callable[[Row], bool]:
    """Parse ``column is not null`` and ``column = 'value'``, joined by ``or``."""
    names = {c.name for c in schema.columns}
    terms = [_PREDICATE.fullmatch(term) for term in where.split(" or ")] if where else []
    known = [(t[1], t[2]) for t in terms if t is not None and t[1] in names]
    if len(known) != len(terms):
        raise RequestError(f"{schema.table}: {where!r} is not a predicate")
    return lambda row: (
        not known or any(row[c] is not None if value is None else str(row[c]) == value for c, value in known)
    )
