"""What the catalog says of a table, as the layout that its rows land under.

Invariant: the log's Relation message and a dump's look into pg_attribute give the same `TableSchema` for the
same layout, because both go through `Catalog.layout`.

The catalog is that of now; a Relation message may be older. So names and types of columns come from the
message, and only what it lacks (a domain's base type, a type's name, the order of the key) from the catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from psycopg2.extensions import connection as Connection

from connector.config import SourceConfig, TableConfig
from connector.postgres.connection import all_rows, one_row, quote
from connector.postgres.types import landing_type, source_type
from connector.schema import Column, TableName, TableSchema

FIRST_USER_OID = 16384
"""Types below are PostgreSQL's own, and the same in every database."""


class LayoutColumn(Protocol):
    """A column as a Relation message describes it; `is_key`: it is part of the replica identity."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def type_oid(self) -> int: ...  # noqa: D102
    @property
    def typmod(self) -> int: ...  # noqa: D102
    @property
    def is_key(self) -> bool: ...  # noqa: D102


@dataclass(frozen=True)
class CatalogColumn:
    """A column as pg_attribute describes it now."""

    name: str
    type_oid: int
    typmod: int
    is_key: bool


@dataclass(frozen=True)
class Layout:
    """The schema that a relation's rows land under; or, when they can't, None and what to do."""

    schema: TableSchema | None
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True)
class TableFacts:
    """A table as the catalog knows it. Keys are in their index's order; empty where there is none."""

    oid: int
    table: TableName
    partitioned: bool
    identity: str
    primary_key: tuple[str, ...]
    identity_key: tuple[str, ...]
    estimate: int | None


_INDEX_COLUMNS = """
    ARRAY(SELECT a.attname::text
          FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place), pg_attribute a
          WHERE i.indrelid = c.oid AND {which} AND i.indisvalid AND k.place <= i.indnkeyatts
            AND a.attrelid = i.indrelid AND a.attnum = k.attnum
          ORDER BY k.place)"""

_FACTS = f"""
    SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind = 'p', c.relreplident::text,
           {_INDEX_COLUMNS.format(which="i.indisprimary")},
           {_INDEX_COLUMNS.format(which="i.indisreplident")},
           CASE WHEN c.relkind = 'p' THEN
                (SELECT sum(nullif(l.reltuples, -1)) FROM pg_partition_tree(c.oid) p, pg_class l
                 WHERE p.isleaf AND l.oid = p.relid)
           ELSE nullif(c.reltuples, -1) END,
           ARRAY(SELECT n2.nspname::text || E'\\n' || c2.relname
                 FROM pg_partition_ancestors(c.oid) p, pg_class c2, pg_namespace n2
                 WHERE c.relispartition AND p.relid <> c.oid AND c2.oid = p.relid AND n2.oid =
                 c2.relnamespace)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"""

_CAPTURABLE = """
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
      AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
    ORDER BY 2, 3"""

_COLUMNS = """
    SELECT a.attname::text, a.atttypid::bigint, a.atttypmod
    FROM pg_attribute a
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    ORDER BY a.attnum"""


def find_tables(connection: Connection, config: SourceConfig) -> list[TableFacts]:
    """List the tables that the configuration names; a partition is part of its root where that is named."""
    found = []
    for *facts, ancestors in all_rows(connection, _FACTS + _CAPTURABLE):
        roots = [TableName(*ancestor.split("\n")) for ancestor in ancestors]
        table = _facts(facts)
        if config.captures(table.table) and not any(config.captures(root) for root in roots):
            found.append(table)
    return found


def find_table(connection: Connection, table: TableName) -> TableFacts | None:
    """Look one table up."""
    row = one_row(connection, f"{_FACTS} WHERE n.nspname = %s AND c.relname = %s", tuple(table))
    return _facts(row[:-1]) if row else None


def _facts(row: Sequence[Any]) -> TableFacts:
    oid, namespace, name, partitioned, identity, primary, identity_key, estimate = row
    return TableFacts(
        oid, TableName(namespace, name), partitioned, identity, tuple(primary), tuple(identity_key),
        None if estimate is None else int(estimate),
    )  # fmt: skip


def qualified(table: TableName) -> str:
    """Spell a table for SQL."""
    return f"{quote(table.namespace)}.{quote(table.name)}"


def layouts_of(catalog: Catalog, found: Sequence[TableFacts]) -> list[tuple[TableName, Layout]]:
    """Give the layout of each table as it is now."""
    return [(t.table, catalog.layout(t.table, catalog.columns(t), t)) for t in found]


class Catalog:
    """Makes layouts, over one connection that is nobody else's. Names of types are remembered."""

    def __init__(self, connection: Connection, tables: Mapping[str, TableConfig]) -> None:
        self._connection = connection
        self._tables = tables
        self._types: dict[tuple[int, int], tuple[str, str]] = {}

    def layout_now(self, table: TableName) -> Layout:
        """Give the layout of a table as it is now, in this connection's transaction."""
        facts = find_table(self._connection, table)
        if facts is None:
            return Layout(None, "there is no such table", "create it, or take it out of source.tables")
        return self.layout(table, self.columns(facts), facts)

    def columns(self, facts: TableFacts) -> list[CatalogColumn]:
        """List a table's columns as pgoutput would: without dropped and generated ones."""
        identity = {"d": facts.primary_key, "i": facts.identity_key, "f": None, "n": ()}[facts.identity]
        return [
            CatalogColumn(name, oid, typmod, identity is None or name in identity)
            for name, oid, typmod in all_rows(self._connection, _COLUMNS, (facts.oid,))
        ]

    def layout(
        self, table: TableName, columns: Iterable[LayoutColumn], facts: TableFacts | None = None
    ) -> Layout:
        """Give the layout of a table with these columns; may query."""
        columns = list(columns)
        facts = facts or find_table(self._connection, table)
        key = self._key(table, columns, facts)
        if isinstance(key, Layout):
            return key
        return Layout(TableSchema(table, tuple(map(self._column, columns)), key))

    def _key(
        self, table: TableName, columns: Sequence[LayoutColumn], facts: TableFacts | None
    ) -> tuple[str, ...] | Layout:
        """Choose the key: the configured one, else primary key or identity index, whichever is logged."""
        names = {c.name for c in columns}
        logged = {c.name for c in columns if c.is_key}
        config = self._tables.get(str(table))
        configured = tuple(config.key or ()) if config else ()
        if configured:
            return self._configured_key(table, configured, names, logged)
        candidates = [facts.primary_key, facts.identity_key] if facts else []
        for candidate in candidates:
            if candidate and logged.issuperset(candidate):
                return candidate
        if logged and logged != names:  # the message is older than a renaming of the key
            return tuple(c.name for c in columns if c.is_key)
        if facts and facts.primary_key:
            return _not_logged(table, facts.primary_key)
        return Layout(None, "it has no primary key", f'add a primary key, or set key in [tables."{table}"]')

    def _configured_key(
        self, table: TableName, key: tuple[str, ...], names: set[str], logged: set[str]
    ) -> tuple[str, ...] | Layout:
        if unknown := [c for c in key if c not in names]:
            return Layout(
                None,
                f"its configured key has no column {', '.join(unknown)}",
                f'correct key in [tables."{table}"]; columns are {", ".join(sorted(names))}',
            )
        return key if logged.issuperset(key) else _not_logged(table, key)

    def _column(self, column: LayoutColumn) -> Column:
        found = self._types.get((column.type_oid, column.typmod))
        if found is None:
            found = self._types[column.type_oid, column.typmod] = self._resolve(
                column.type_oid, column.typmod
            )
        return Column(column.name, *found)

    def _resolve(self, oid: int, typmod: int) -> tuple[str, str]:
        """Give a type's own name and the type it lands as; a domain's values are those of its base type."""
        spelled = source_type(oid, typmod)
        if spelled is None:
            row = one_row(self._connection, "SELECT format_type(%s, %s)", (oid, typmod))
            spelled = row[0] if row else "???"
        if oid < FIRST_USER_OID:
            return spelled, landing_type(oid, typmod)
        base = one_row(self._connection, _BASE_TYPE, {"oid": oid, "typmod": typmod})
        return spelled, landing_type(*base) if base else "string"


_BASE_TYPE = """
    WITH RECURSIVE domain(oid, typmod, kind) AS (
        SELECT oid, %(typmod)s, typtype FROM pg_type WHERE oid = %(oid)s
        UNION ALL
        SELECT b.oid, CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE d.typmod END, b.typtype
        FROM domain d JOIN pg_type t ON t.oid = d.oid JOIN pg_type b ON b.oid = t.typbasetype
        WHERE d.kind = 'd')
    SELECT oid::bigint, typmod FROM domain WHERE kind <> 'd'"""


def _not_logged(table: TableName, key: Sequence[str]) -> Layout:
    return Layout(
        None,
        f"its replica identity does not hold the key ({', '.join(key)})",
        f"ALTER TABLE {qualified(table)} REPLICA IDENTITY FULL, or DEFAULT if the key is the primary key",
    )
