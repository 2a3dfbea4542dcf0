"""A source on a test's own database, and helpers for its log and its chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from connector.config import SourceConfig, TableConfig
from connector.landing.event_batch import EventBatch, Quarantine
from connector.postgres.dump import PostgresTables
from connector.postgres.log.reader import BULK_BYTES, PostgresLog
from connector.postgres.source import PostgresSource
from connector.schema import TableName
from connector.source import KeyRange, ResumePoint, Segment
from tests.support.servers.postgres import Database
from tests.support.waiting import wait_until

Row = dict[str, Any]


def source_of(
    database: Database,
    tables: Sequence[str] = ("public.*",),
    keys: Mapping[str, Sequence[str]] | None = None,
    *,
    bulk_bytes: int = BULK_BYTES,
    url: str | None = None,
    exclude: Sequence[str] = (),
) -> PostgresSource:
    """A source whose slot is named after the database, as slots are the server's."""
    config = SourceConfig.model_validate(
        {
            "name": "it",
            "kind": "postgres",
            "url": url or database.url,
            "tables": list(tables),
            "exclude": list(exclude),
            "slot": database.name,
            "publication": "it",
        }
    )
    settings = {TableName.parse(name): TableConfig(key=list(key)) for name, key in (keys or {}).items()}
    return PostgresSource(config, settings, bulk_bytes=bulk_bytes)


@contextlib.contextmanager
def following(source: PostgresSource) -> Iterator[PostgresLog]:
    """The log from a new history on."""
    source.prepare()
    with opened(source, source.begin_history(fresh=False)) as log:
        yield log


@contextlib.contextmanager
def opened(source: PostgresSource, history: ResumePoint) -> Iterator[PostgresLog]:
    """The log behind the history's position."""
    log = source.open_log(1, history)
    try:
        yield log
    finally:
        log.close()
        source.close()


def read_rows(log: PostgresLog, rows: int) -> Segment:
    """Read until so many whole changes are held, and take them."""

    def enough() -> bool:
        log.read(0.05, 64 << 20)
        return log.buffered_rows >= rows

    wait_until(enough, f"{rows} changes are read")
    return log.take()


def read_to(log: PostgresLog, position: int) -> None:
    """Read until the position is reached."""

    def reached() -> bool:
        log.read(0.05, 64 << 20)
        return log.position >= position

    wait_until(reached, f"position {position} is reached")


def events(segment: Segment) -> list[Row]:
    """The events in position order, each a row with its table's name as `_table`."""
    found: list[Row] = []
    for batch in segment.decode():
        assert isinstance(batch, EventBatch), batch
        found += [{**row, "_table": str(batch.schema.table)} for row in batch.table.to_pylist()]
    return sorted(found, key=lambda row: (row["_cdc"]["lsn"], row["_cdc"]["seq"]))


def quarantines(segment: Segment) -> list[Quarantine]:
    """What the segment could not carry on."""
    return [found for found in segment.decode() if isinstance(found, Quarantine)]


def ops(rows: Sequence[Row], *columns: str) -> list[tuple[Any, ...]]:
    """Operation and some columns of each event."""
    return [(row["_cdc"]["op"], *(row[column] for column in columns)) for row in rows]


def end_of_log(database: Database) -> int:
    """Where the server's log ends now."""
    return int(database.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])


def confirmed(database: Database) -> int:
    """What the slot of `source_of` believes to be durable with us."""
    query = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    return int(database.execute(query, (database.name,))[0][0])


def chunk_rows(
    tables: PostgresTables, table: str, key_range: KeyRange | None = None, where: str | None = None
) -> list[Row]:
    """The rows of a chunk."""
    with tables.open_chunk(TableName.parse(table), key_range or KeyRange(), where) as chunk:
        names = [column.name for column in chunk.schema.columns]
        return [row for some in chunk.rows() for row in pa.table(some.columns, names).to_pylist()]
