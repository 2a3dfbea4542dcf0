"""What information_schema says of tables, as the layout that their rows land under.

Invariant: the log's table map and a dump's look into the catalog give the same `TableSchema` for the same
layout: both go through `TableMap.schema`, here with the columns of the catalog. The catalog is that of now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from connector.config import SourceConfig, TableConfig
from connector.errors import TableError
from connector.mysql.capturing import Mapped, NotedColumn, captures, schema_of
from connector.mysql.connection import literal, quote, rows
from connector.mysql.tablemap import MappedColumn, TableMap
from connector.mysql.types import type_of_catalog
from connector.schema import TableName


@dataclass(frozen=True)
class TableFacts:
    """A base table as the catalog knows it."""

    table: TableName
    kind: str
    engine: str | None
    estimate: int | None


def find_tables(connection: Connection[Any], config: SourceConfig) -> list[TableFacts]:
    """List the base tables that the configuration names, in name order."""
    found = rows(
        connection,
        "SELECT table_schema, table_name, table_type, engine, table_rows FROM information_schema.tables"
        " WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY 1, 2",
    )
    facts = [TableFacts(TableName(s, t), kind, engine, n) for s, t, kind, engine, n in found]
    return [f for f in facts if captures(config, f.table)]


def estimate_rows(connection: Connection[Any], table: TableName) -> int | None:
    """Give the engine's estimate of a table's rows."""
    found = rows(connection, f"SELECT table_rows FROM information_schema.tables WHERE {_is(table)}")
    return None if not found or found[0][0] is None else int(found[0][0])


def qualified(table: TableName) -> str:
    """Spell a table for SQL."""
    return f"{quote(table.namespace)}.{quote(table.name)}"


def noted_columns(connection: Connection[Any], table: TableName) -> dict[str, NotedColumn]:
    """Give by column name what the log lacks."""
    found = rows(
        connection,
        "SELECT column_name, column_type, extra LIKE '%VIRTUAL%' FROM information_schema.columns"
        f" WHERE {_is(table)}",
    )
    return {name: NotedColumn(str(type_).lower(), bool(virtual)) for name, type_, virtual in found}


def table_map_of(connection: Connection[Any], table: TableName) -> TableMap | None:
    """Give a table's layout as it is now, in the form of the log's; None where it is not there.

    `TableError` for a type that is not known.
    """
    found = rows(
        connection,
        "SELECT column_name, column_type, character_set_name FROM information_schema.columns"
        f" WHERE {_is(table)} ORDER BY ordinal_position",
    )
    if not found:
        return None
    columns = []
    for name, column_type, charset in found:
        try:
            columns.append(MappedColumn(name, type_of_catalog(column_type, charset)))
        except ValueError as error:
            raise TableError(str(table), f"column {name}: {error}", hint="exclude the table") from error
    return TableMap(0, table, tuple(columns), primary_key(connection, table))


def primary_key(connection: Connection[Any], table: TableName) -> tuple[str, ...]:
    """Give the primary key's columns in its order; () without one."""
    found = rows(
        connection,
        "SELECT column_name FROM information_schema.statistics"
        f" WHERE {_is(table)} AND index_name = 'PRIMARY' ORDER BY seq_in_index",
    )
    return tuple(name for (name,) in found)


def layout_of(
    connection: Connection[Any], table: TableName, settings: Mapping[str, TableConfig]
) -> Mapped | None:
    """Give a table's layout and schema as they are now; None where it is not there.

    `problem` where its rows can't be captured; then `schema` is None.
    """
    try:
        table_map = table_map_of(connection, table)
        return None if table_map is None else Mapped(table, table_map, schema_of(table_map, settings))
    except TableError as error:
        return Mapped(table, None, None, error)


def layouts_of(
    connection: Connection[Any], found: Sequence[TableFacts], settings: Mapping[str, TableConfig]
) -> list[Mapped]:
    """Give the layout of each table as it is now."""
    layouts = (layout_of(connection, facts.table, settings) for facts in found)
    return [layout for layout in layouts if layout is not None]


def _is(table: TableName) -> str:
    """Spell the condition for one table: names are compared as the server compares them."""
    return f"table_schema = {literal(table.namespace)} AND table_name = {literal(table.name)}"
