"""The layouts of all tables, rebuilt only for those whose definition differs from the one known.

Invariant: a known layout is used only if it would be built from equal rows (`digests`) under the same
settings: a layout is a function of these alone. One that depends on more is never kept: members of an enum or
set that the catalog shows with ``?`` may change unseen. So it does not matter which session, or server, read
it first, and checks and the watcher share it.

Columns and unique indexes are read one after the other, and tables may change in between, so both belong to
one definition only if they agree on the primary key's columns, or are as they were read before. Whatever is
left, for that or as it is locked, dropped or hidden, is not in the result: it is looked up by itself
(`layout_now`), which also tells why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection

from connector.config import TableConfig
from connector.errors import TableError
from connector.mysql.catalog import (
    COLUMN_FIELDS,
    IS_ROW_END,
    LOCKED,
    TableFacts,
    existing,
    layout_from,
    layout_of,
    misidentified,
    qualified,
    unidentified,
)
from connector.mysql.codec.charsets import lower
from connector.mysql.connection import code_of
from connector.mysql.definitions.digests import COLUMNS, INDEXES, digest_of, read_digests, read_rows
from connector.mysql.definitions.foreign_keys import Cascades, cascading_table
from connector.mysql.definitions.triggers import Triggers
from connector.mysql.definitions.virtual_columns import miscomputed_columns, miscomputed_table
from connector.mysql.log.schema_cache import NotedColumn, ResolvedLayout, traits_of
from connector.mysql.log.transaction import ShownByLog
from connector.mysql.server import Server
from connector.schema import TableName

_TYPE = COLUMN_FIELDS.index("column_type")
_IN_KEY = COLUMN_FIELDS.index("column_key = 'PRI'")
_ROW_END = COLUMN_FIELDS.index(IS_ROW_END)
_VIRTUAL, _DEFAULT = len(COLUMN_FIELDS), len(COLUMN_FIELDS) + 1


@dataclass(frozen=True)
class Definition:
    """A table's layout, with a problem if its key is none, and whether it has virtual columns."""

    layout: ResolvedLayout
    virtual: bool


@dataclass(frozen=True)
class _Known:
    columns: str
    indexes: str | None
    settings: TableConfig | None
    definition: Definition


class Definitions:
    """Reads definitions, and keeps them. May be used from several threads."""

    def __init__(self) -> None:
        self._known: dict[TableName, _Known] = {}

    def read(
        self,
        connection: Connection[Any],
        tables: Iterable[TableName],
        settings: Mapping[TableName, TableConfig],
    ) -> dict[TableName, Definition]:
        """Return the current definition of each table that can be read among others."""
        try:
            columns = read_digests(connection, COLUMNS, tables).by_table
            indexes = read_digests(connection, INDEXES, columns)
            certain = [table for table in columns if indexes.complete or table in indexes.by_table]
            digests = {table: (columns[table], indexes.by_table.get(table)) for table in certain}
            found = {t: known.definition for t in certain if (known := self._unchanged(t, digests, settings))}
            return found | self._read_rows(connection, digests, digests.keys() - found.keys(), settings)
        except pymysql.Error as error:
            if code_of(error) not in LOCKED:
                raise
            return {}

    def keep_only(self, tables: Collection[TableName]) -> None:
        """Forget all other tables."""
        for table in list(self._known):
            if table not in tables:
                self._known.pop(table, None)

    def _unchanged(
        self,
        table: TableName,
        digests: Mapping[TableName, tuple[str, str | None]],
        settings: Mapping[TableName, TableConfig],
    ) -> _Known | None:
        known = self._known.get(table)
        if known is None or known.settings is not settings.get(table):
            return None
        return known if (known.columns, known.indexes) == digests[table] else None

    def _read_rows(
        self,
        connection: Connection[Any],
        digests: Mapping[TableName, tuple[str, str | None]],
        tables: Collection[TableName],
        settings: Mapping[TableName, TableConfig],
    ) -> dict[TableName, Definition]:
        """Read the definitions of tables whose digests are not known, and keep them."""
        columns = read_rows(connection, COLUMNS, tables).by_table
        indexes = read_rows(connection, INDEXES, columns)
        found = {}
        for table, rows in columns.items():
            indexed: Sequence[tuple[Any, ...]] = indexes.by_table.get(table, ())
            if not indexed and not indexes.complete:
                continue
            digest = digest_of(rows), digest_of(indexed)
            key = _primary_key(indexed)
            if {row[0] for row in rows if row[_IN_KEY]} != {*key} and digest != digests[table]:
                continue
            definition = _definition(connection, table, rows, indexed, settings)
            found[table] = definition
            if digest[0] is not None and not any("?" in row[_TYPE] for row in rows):
                self._known[table] = _Known(digest[0], digest[1], settings.get(table), definition)
        return found


def _primary_key(indexed: Iterable[Sequence[Any]]) -> tuple[str, ...]:
    return tuple(column for name, column, *_ in indexed if name == "PRIMARY")


def _definition(
    connection: Connection[Any],
    table: TableName,
    rows: Sequence[Sequence[Any]],
    indexed: Sequence[Sequence[Any]],
    settings: Mapping[TableName, TableConfig],
) -> Definition:
    columns = [row[: len(COLUMN_FIELDS)] for row in rows]
    layout = layout_from(connection, table, columns, _primary_key(indexed), settings)
    if problem := misidentified(layout, indexed):
        layout = ResolvedLayout(table, None, None, problem)
    if layout.table_map is not None and layout.schema is not None:
        unique = {column for _, column, *_ in indexed}
        layout = layout._replace(traits=traits_of({row[0]: _noted(row) for row in rows}, unique))
    return Definition(layout, any(row[_VIRTUAL] for row in rows))


def _noted(row: Sequence[Any]) -> NotedColumn:
    return NotedColumn(str(row[_TYPE]).lower(), *(bool(row[at]) for at in (_VIRTUAL, _ROW_END, _DEFAULT)))


def layout_now(
    connection: Connection[Any], table: TableName, settings: Mapping[TableName, TableConfig]
) -> ResolvedLayout | None:
    """Look up one table's layout, with a problem if its key is none; None if the table does not exist."""
    layout = layout_of(connection, table, settings)
    if layout is not None and (problem := unidentified(connection, layout)):
        return ResolvedLayout(table, None, None, problem)
    return layout


def layouts_of(
    definitions: Definitions,
    connection: Connection[Any],
    server: Server,
    found: Sequence[TableFacts],
    settings: Mapping[TableName, TableConfig],
    busy: set[TableName] | None = None,
    shown: ShownByLog | None = None,
) -> list[ResolvedLayout]:
    """Return each table's current layout; with a problem if its log or snapshots are not exact.

    Omits those in `busy`, and those locked now; without `busy`, a lock is an error.
    """
    shown = shown or ShownByLog()
    cascades = Cascades(connection, server, native=shown.native_keys)
    miscomputed = miscomputed_columns(connection, server)
    awaited = [facts for facts in found if busy is None or facts.table not in busy]
    known = definitions.read(connection, [facts.table for facts in awaited], settings)
    virtual = with_virtual(server, [facts.table for facts in awaited], known)
    triggers = Triggers(connection, virtual, settings, shown.triggering)
    layouts = []
    for facts in awaited:
        definition = known.get(facts.table)
        try:
            layout = definition.layout if definition else layout_now(connection, facts.table, settings)
            if layout is not None and (problem := _misfit(facts, server, cascades, miscomputed, triggers)):
                layout = ResolvedLayout(facts.table, None, None, problem)
        except pymysql.Error as error:
            if busy is None or code_of(error) not in LOCKED:
                raise
            busy.add(facts.table)
            continue
        if layout is not None:
            layouts.append(layout.with_comment(facts.comment))
    there = existing(connection, [layout.table for layout in layouts if layout.problem])
    return [layout for layout in layouts if not layout.problem or layout.table in there]


def _misfit(
    facts: TableFacts,
    server: Server,
    cascades: Cascades,
    miscomputed: Mapping[TableName, list[str]],
    triggers: Triggers,
) -> TableError | None:
    """Return what prevents exact capture of a table, whatever its layout."""
    table, formatted = facts.table, qualified(facts.table)
    if why := why_unfit(facts.engine):
        return TableError(table, f"it {why}", hint=f"ALTER TABLE {formatted} ENGINE = InnoDB")
    if is_logged_otherwise(server, table):
        return TableError(table, f"it {LOGGED_OTHERWISE}", hint=RENAME)
    if names := cascades.of(table):
        return cascading_table(table, names)
    if table in miscomputed:
        return miscomputed_table(table, miscomputed[table])
    return triggers.of(table)


def with_virtual(
    server: Server, tables: Iterable[TableName], known: Mapping[TableName, Definition]
) -> set[TableName]:
    """Return the tables that have, or may have, virtual columns which MariaDB computes before triggers."""
    if not server.mariadb:
        return set()
    return {table for table in tables if table not in known or known[table].virtual}


LOGGED_OTHERWISE = (
    "has capital letters in its name or its database's, and with lower_case_table_names = 2 the log has its"
    " changes under the name in lower case"
)
RENAME = (
    "rename it to lower case by way of another name, within a database named in lower case; or add it to"
    " source.exclude"
)


def is_logged_otherwise(server: Server, table: TableName) -> bool:
    """Return whether the log names a table otherwise than the catalog, so its changes would be another's."""
    return server.keeps_case and any(name != lower(name) for name in table)


def why_unfit(engine: str | None) -> str | None:
    """Return why tables of an engine can't be captured exactly; None if they can.

    MyRocks has snapshots. But its rows expire (``ttl_duration``), it keeps rows of transactions that were
    rolled back (``rocksdb_commit_in_the_middle``, ``rocksdb_bulk_load``), and nothing shows that a table was
    rebuilt.
    """
    if engine == "InnoDB":
        return None
    lacks = "whose rows may change without any log" if engine == "ROCKSDB" else "which has no snapshots"
    return f"uses engine {engine}, {lacks}"
