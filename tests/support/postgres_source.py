"""A PostgreSQL source on a test's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from connector.config import SourceConfig, TableConfig
from connector.postgres.log.reader import BULK_BYTES
from connector.postgres.source import PostgresSource
from connector.schema import TableName
from tests.support.servers.postgres import Database

both_ways = pytest.mark.parametrize("way", ["libpq", "psycopg2"], indirect=True)
"""Runs a test with direct calls to libpq, and again with psycopg2 alone."""


def source_of(
    database: Database,
    tables: Sequence[str] = ("public.*",),
    keys: Mapping[str, Sequence[str]] | None = None,
    *,
    bulk_bytes: int = BULK_BYTES,
    url: str | None = None,
    exclude: Sequence[str] = (),
) -> PostgresSource:
    """Return a source whose slot is named after the database, because slots are server-wide."""
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


def confirmed(database: Database) -> int:
    """Return the position confirmed to the slot of `source_of`."""
    query = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    return int(database.execute(query, (database.name,))[0][0])
