"""A PostgreSQL source on a test's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from connector.config import SourceConfig, TableConfig
from connector.postgres.log.reader import BULK_BYTES
from connector.postgres.source import PostgresSource
from connector.schema import TableName
from tests.support.servers.postgres import Database


def table_settings(
    keys: Mapping[str, Sequence[str]] | None, settings: Mapping[str, Mapping[str, Any]] | None
) -> dict[TableName, TableConfig]:
    """Return the settings of tables: their keys, and others."""
    given = {name: {"key": list(key)} for name, key in (keys or {}).items()} | dict(settings or {})
    return {TableName.parse(name): TableConfig.model_validate(each) for name, each in given.items()}


both_ways = pytest.mark.parametrize("way", ["socket", "psycopg2"], indirect=True)
"""Runs a test with connections read by their sockets, and again with psycopg2 alone."""

all_ways = pytest.mark.parametrize("way", ["socket", "libpq", "psycopg2"], indirect=True)
"""The same, and by direct calls of libpq, as encrypted connections are read."""


class Pooled:
    """A client's session with a transaction pooler: the server's `connection` behind it may be replaced."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.get_backend_pid = connection.get_backend_pid

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


def source_of(
    database: Database,
    tables: Sequence[str] = ("public.*",),
    keys: Mapping[str, Sequence[str]] | None = None,
    *,
    bulk_bytes: int = BULK_BYTES,
    url: str | None = None,
    exclude: Sequence[str] = (),
    publication: str = "it",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> PostgresSource:
    """Return a source whose slot is named after the database, because slots are server-wide.

    `settings`: of tables, other than their `keys`.
    """
    config = SourceConfig.model_validate(
        {
            "name": "it",
            "kind": "postgres",
            "url": url or database.url,
            "tables": list(tables),
            "exclude": list(exclude),
            "slot": database.name,
            "publication": publication,
        }
    )
    return PostgresSource(config, table_settings(keys, settings), bulk_bytes=bulk_bytes)


def confirmed(database: Database) -> int:
    """Return the position confirmed to the slot of `source_of`."""
    query = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    return int(database.execute(query, (database.name,))[0][0])
