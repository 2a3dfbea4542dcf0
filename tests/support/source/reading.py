"""Read a source's log and chunks, for any database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from connector.landing.event_batch import EventBatch, QuarantineNotice, TableRedefined, UnloggedNotice
from connector.schema import TableName
from connector.source import KeyRange, LogReader, ResumePoint, Segment, Source, TableReader
from tests.support.waiting import wait_until

Row = dict[str, Any]


@contextlib.contextmanager
def following(source: Source) -> Iterator[Any]:
    """Open the log at the start of a new history."""
    source.prepare()
    with opened(source, source.begin_log(fresh=False)) as log:
        yield log


@contextlib.contextmanager
def opened(source: Source, history: ResumePoint) -> Iterator[Any]:
    """Open the log after a resume point; at the end close it and the source."""
    log = source.open_log(1, history)
    try:
        yield log
    finally:
        log.close()
        source.close()


def read_rows(log: LogReader, rows: int) -> Segment:
    """Read until at least `rows` whole changes (MySQL: rows events) are buffered, and take them."""

    def enough() -> bool:
        log.read(0.05, 64 << 20)
        return log.buffered_rows >= rows

    wait_until(enough, f"{rows} changes are read")
    return log.take()


def read_to(log: LogReader, position: int) -> None:
    """Read until the position is reached."""

    def reached() -> bool:
        log.read(0.05, 64 << 20)
        return log.position >= position

    wait_until(reached, f"position {position} is reached")


def events(segment: Segment) -> list[Row]:
    """Return the events in position order, each a row with its table's name as `_table`."""
    found: list[Row] = []
    for batch in segment.decode():
        if isinstance(batch, TableRedefined | UnloggedNotice):
            continue
        assert isinstance(batch, EventBatch), batch
        found += [{**row, "_table": str(batch.schema.table)} for row in batch.table.to_pylist()]
    return sorted(found, key=lambda row: (row["_cdc"]["lsn"], row["_cdc"]["seq"]))


def unlogged_in(segment: Segment) -> set[str]:
    """Return the names of the tables that may have changed without row events, by what the segment says."""
    return {found.table.name for found in segment.decode() if isinstance(found, UnloggedNotice)}


def quarantines(segment: Segment) -> list[QuarantineNotice]:
    """Return the tables that the segment quarantines."""
    return [found for found in segment.decode() if isinstance(found, QuarantineNotice)]


def ops(rows: Sequence[Row], *columns: str) -> list[tuple[Any, ...]]:
    """Return the operation and the given columns of each event."""
    return [(row["_cdc"]["op"], *(row[column] for column in columns)) for row in rows]


def chunk_rows(
    tables: TableReader, table: str, key_range: KeyRange | None = None, where: str | None = None
) -> list[Row]:
    """Return the rows of a chunk."""
    with tables.open_chunk(TableName.parse(table), key_range or KeyRange(), where) as chunk:
        names = [column.name for column in chunk.schema.columns]
        return [row for some in chunk.rows() for row in pa.table(some.columns, names).to_pylist()]
