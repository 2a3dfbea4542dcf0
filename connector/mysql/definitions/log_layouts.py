"""What the log reader asks the catalog of the server whose log it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymysql.connections import Connection

from connector.config import SourceConfig, TableConfig
from connector.errors import TableError
from connector.mysql import catalog
from connector.mysql.connection import driver_errors
from connector.mysql.definitions.foreign_keys import cascading_in_catalog
from connector.mysql.log.schema_cache import CapturedSchemas, NotedColumn, ResolvedLayout
from connector.mysql.server import Server
from connector.schema import KnownTables, TableName


def captured_schemas(
    connection: Connection[Any],
    server: Server,
    config: SourceConfig,
    settings: Mapping[TableName, TableConfig],
    listed: set[TableName],
    known: KnownTables,
) -> CapturedSchemas:
    """Return the log's tables for its reader, which keeps using the connection.

    `listed`: the tables known so far; those that are found now are added. `known`: as of where it begins.
    """

    def noted(table: TableName) -> Mapping[str, NotedColumn]:
        with driver_errors(f"looking up {table}"):
            return catalog.noted_columns(connection, table)

    def layout(table: TableName) -> ResolvedLayout | None:
        with driver_errors(f"looking up {table}"), catalog.unless_locked(connection, table):
            return catalog.layout_of(connection, table, settings)

    def cascading() -> list[TableError]:
        with driver_errors("looking up foreign keys"):
            return cascading_in_catalog(connection)

    def exists(table: TableName) -> bool:
        with driver_errors(f"looking up {table}"):
            return table in catalog.existing(connection, [table])

    with driver_errors("listing the tables"):
        listed |= {facts.table for facts in catalog.find_tables(connection, config, set())}
    return CapturedSchemas(
        config, settings, listed, noted, layout, cascading, known,
        mariadb=server.mariadb, lower_case=server.lower_case, exists=exists if server.keeps_case else None,
    )  # fmt: skip
