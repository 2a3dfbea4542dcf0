"""Tables' definitions in information_schema, as the layouts under which their rows land.

Invariant: the log's table map and a dump's catalog query yield the same `TableSchema` for the same layout:
both go through `TableMap.schema`, here with the catalog's columns. The catalog is current.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pymysql
from pymysql.connections import Connection

from connector.config import SourceConfig, TableConfig
from connector.errors import NotYetError, TableError
from connector.mysql.codec.table_map import MappedColumn, TableMap
from connector.mysql.codec.types import LONGLONG, SET, ColumnType, type_of_catalog
from connector.mysql.connection import brief_wait, code_of, is_transient, literal, quote, rows
from connector.mysql.log.schema_cache import NotedColumn, ResolvedLayout, captures, landing_schema_of
from connector.mysql.server import Server
from connector.schema import TableComments, TableName


@dataclass(frozen=True)
class TableFacts:
    """A base table as the catalog shows it."""

    table: TableName
    kind: str
    engine: str | None
    estimate: int | None
    comment: str | None = None


def find_tables(
    connection: Connection[Any], config: SourceConfig, busy: set[TableName] | None = None
) -> list[TableFacts]:
    """List the configured base tables in name order.

    A table that other sessions keep locked is added to `busy`; without `busy`, it raises a transient driver
    error.
    """
    found = rows(
        connection,
        "SELECT table_schema, table_name, table_type, engine, table_rows, table_comment"
        " FROM information_schema.tables"
        " WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY 1, 2",
    )
    facts = [TableFacts(TableName(namespace, name), *rest) for namespace, name, *rest in found]
    named = [f for f in facts if captures(config, f.table)]
    return [_of_unlocked(connection, f, busy) if f.engine is None else f for f in named]


LOCKED = (1205, 1213)
"""Other sessions kept it locked longer than a session waits."""

_SKIPPED = 1684
"""MariaDB's warning, within a transaction, instead of a wait."""


def _of_unlocked(connection: Connection[Any], facts: TableFacts, busy: set[TableName] | None) -> TableFacts:
    """Reread the facts of a table that could not be opened: MariaDB returned no engine, and a warning.

    It was locked, or it is broken, which leaves it without an engine.
    """
    try:
        rows(connection, f"SELECT 1 FROM {qualified(facts.table)} LIMIT 0")
    except pymysql.Error as error:
        if busy is not None and code_of(error) in LOCKED:
            busy.add(facts.table)
        elif is_transient(code_of(error)):
            raise
        return facts
    condition = table_condition(facts.table)  # an unopened table's comment was why it was not opened
    found = rows(connection, f"SELECT engine, table_comment FROM information_schema.tables WHERE {condition}")
    return replace(facts, engine=found[0][0], comment=found[0][1]) if found else facts


def _opened(connection: Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    """Query one table's catalog; raise the driver's error if the table can't be opened now.

    MariaDB omits what it can't open, and warns. Statements that create or empty a table lock it, for example.
    """
    with connection.cursor() as cursor:
        cursor.execute(statement)
        found = list(cursor.fetchall())
        if cursor.warning_count:
            cursor.execute("SHOW WARNINGS")
            for _, code, text in cursor.fetchall():
                if is_transient(int(code)) or code == _SKIPPED:
                    raise pymysql.err.OperationalError(LOCKED[0], text)
    return found


def estimate_rows(connection: Connection[Any], table: TableName) -> int | None:
    """Return the engine's estimate of a table's rows."""
    found = rows(
        connection, f"SELECT table_rows FROM information_schema.tables WHERE {table_condition(table)}"
    )
    return None if not found or found[0][0] is None else int(found[0][0])


def qualified(table: TableName) -> str:
    """Format a table for SQL."""
    return f"{quote(table.namespace)}.{quote(table.name)}"


@contextmanager
def unless_locked(connection: Connection[Any], table: TableName) -> Iterator[None]:
    """Look a table up; `NotYetError` if other sessions keep it locked for longer than a second."""
    try:
        with brief_wait(connection):
            yield
    except pymysql.Error as error:
        if code_of(error) not in LOCKED:
            raise
        raise NotYetError(f"{table} is locked by another session") from error


def noted_columns(connection: Connection[Any], table: TableName) -> dict[str, NotedColumn]:
    """Return, by column name, what the log lacks about a column.

    `NotYetError` if other sessions keep the table locked for longer than a second.
    """
    with unless_locked(connection, table):
        found = _opened(
            connection,
            f"SELECT column_name, column_type, extra LIKE '%VIRTUAL%', {_IS_ROW_END},"
            " coalesce(column_default, 'NULL') <> 'NULL'"
            f" FROM information_schema.columns WHERE {table_condition(table)}",
        )
    return {name: NotedColumn(str(type_).lower(), *map(bool, rest)) for name, type_, *rest in found}


_IS_ROW_END = "coalesce(generation_expression, '') = 'ROW END'"
"""Whether the column ends a row's version: a SELECT shows only current rows, so no key needs it."""


def table_map_of(connection: Connection[Any], table: TableName) -> TableMap | None:
    """Return a table's current layout in the log's form; None if the table does not exist.

    `TableError` for an unknown type.
    """
    found, key = _columns_and_key(connection, table)
    return _table_map(connection, table, found, key) if found else None


def _table_map(
    connection: Connection[Any], table: TableName, found: Sequence[Sequence[Any]], key: Sequence[str]
) -> TableMap:
    """Return the layout of a table with these columns and primary key; `TableError` for an unknown type."""
    columns = []
    for name, column_type, charset, _, collation, *_ in found:
        try:
            type_ = _with_members(connection, table, name, type_of_catalog(column_type, charset))
            columns.append(MappedColumn(name, type_, collation=collation))
        except ValueError as error:
            raise TableError(table, f"column {name}: {error}", hint="exclude the table") from error
    row_end = next((column.name for column, (*_, ends) in zip(columns, found, strict=True) if ends), None)
    if any(column.name == row_end and column.type.code == LONGLONG for column in columns):
        raise TableError(
            table,
            "its versions are numbered by transaction id, so MariaDB logs its changes only as statements",
            hint=f"version {table} by timestamp(6) columns, or exclude it",
        )
    return TableMap(0, table, tuple(columns), tuple(column for column in key if column != row_end), row_end)


def _columns_and_key(
    connection: Connection[Any], table: TableName
) -> tuple[list[tuple[Any, ...]], tuple[str, ...]]:
    """Return a table's columns and its primary key, both of the same definition.

    Two queries read them, and others may re-create the table or change its key in between. So they are read
    again until the columns that the first shows as key columns are those of the second. Without a primary
    key, the server shows those of a unique one instead: then until the columns read before and after the key
    are the same.
    """
    found: list[tuple[Any, ...]] = []
    key: tuple[str, ...] = ()
    for _ in range(_READINGS):
        before = found
        found = _opened(
            connection,
            "SELECT column_name, column_type, character_set_name, column_comment, collation_name,"
            f" column_key = 'PRI', {_IS_ROW_END}"
            f" FROM information_schema.columns WHERE {table_condition(table)} ORDER BY ordinal_position",
        )
        if found == before:
            break
        key = primary_key(connection, table) if found else ()
        if {name for name, *_, in_key, _ in found if in_key} == {*key}:
            break
    return found, key


_READINGS = 3
"""Limit of attempts, for a table that keeps changing."""


def _with_members(
    connection: Connection[Any], table: TableName, column: str, type_: ColumnType
) -> ColumnType:
    """Return an enum or set with complete members: the catalog's utf8mb3 has ``?`` for some characters.

    The server converts their values to text, without reading a row. Without the right to read the table, they
    stay as they are. `ValueError` for a member that it does not return.
    """
    hidden = [index for index, member in enumerate(type_.values) if "?" in member]
    if not hidden:
        return type_
    is_set = type_.code == SET
    convert = _by_variables if is_set and "MariaDB" in connection.get_server_info() else _by_union
    numbers = [1 << index if is_set else index + 1 for index in hidden]
    try:
        found = convert(connection, table, column, numbers)
    except (pymysql.OperationalError, pymysql.ProgrammingError) as error:
        if is_transient(code_of(error)):
            raise
        return type_
    values = list(type_.values)
    for i, index in enumerate(hidden):
        values[index] = _revealed(values[index], found.get(i), is_set=is_set)
    return replace(type_, values=tuple(values))


def _by_union(
    connection: Connection[Any], table: TableName, column: str, numbers: Sequence[int]
) -> dict[int, str | None]:
    """Convert numbers as values of the column in a temporary result; return the texts by their index.

    MariaDB keeps only the first eight members of a set there.
    """
    listed = " UNION ALL ".join(f"SELECT {i} i, CAST({n} AS UNSIGNED) number" for i, n in enumerate(numbers))
    return dict(
        rows(
            connection,
            f"WITH RECURSIVE made (i, member) AS (SELECT -1, t.{quote(column)} FROM (SELECT 1) one"
            f" LEFT JOIN {qualified(table)} t ON FALSE UNION ALL SELECT hidden.i, hidden.number"
            f" FROM made JOIN ({listed}) hidden WHERE made.i < 0)"
            " SELECT i, CONVERT(member USING utf8mb4) FROM made WHERE i >= 0",
        )
    )


def _by_variables(
    connection: Connection[Any], table: TableName, column: str, numbers: Sequence[int]
) -> dict[int, str | None]:
    """Convert numbers as values of variables of the column's type (MariaDB only); slow for many."""
    type_of = f"TYPE OF {qualified(table)}.{quote(column)}"
    declared = " ".join(f"DECLARE m{i} {type_of} DEFAULT {number};" for i, number in enumerate(numbers))
    texts = ", ".join(f"CONVERT(m{i} USING utf8mb4)" for i in range(len(numbers)))
    (found,) = rows(connection, f"BEGIN NOT ATOMIC {declared} SELECT {texts}; END")
    return dict(enumerate(found))


def _revealed(shown: str, member: str | None, *, is_set: bool) -> str:
    """Return the complete text of a member, some of whose characters the catalog shows as ``?``."""
    hidden = "[^,]+" if is_set else ".+"
    pattern = hidden.join(map(re.escape, re.split(r"\?+", shown)))
    if member is None or not re.fullmatch(pattern, member, re.DOTALL):
        raise ValueError(f"the server does not return its member {shown!r} in full")
    return member


def primary_key(connection: Connection[Any], table: TableName) -> tuple[str, ...]:
    """Return the primary key's columns in key order; () without one."""
    found = _opened(
        connection,
        "SELECT column_name FROM information_schema.statistics"
        f" WHERE {table_condition(table)} AND index_name = 'PRIMARY' ORDER BY seq_in_index",
    )
    return tuple(name for (name,) in found)


def layout_of(
    connection: Connection[Any], table: TableName, settings: Mapping[TableName, TableConfig]
) -> ResolvedLayout | None:
    """Return a table's current layout and schema; None if the table does not exist.

    If its rows can't be captured, `problem` is set and `schema` is None.
    """
    try:
        found, key = _columns_and_key(connection, table)
        if not found:
            return None
        table_map = _table_map(connection, table, found, key)
        comments = {name: comment for name, _, _, comment, *_ in found}
        schema = landing_schema_of(table_map, settings)
        return ResolvedLayout(table, table_map, schema, comments=TableComments.of(table, None, comments))
    except TableError as error:
        return ResolvedLayout(table, None, None, error) if is_there(connection, table) else None


def is_there(connection: Connection[Any], table: TableName) -> bool:
    """Return whether a table exists; it may be dropped during a check."""
    return bool(rows(connection, f"SELECT 1 FROM information_schema.tables WHERE {table_condition(table)}"))


def layouts_of(
    connection: Connection[Any],
    server: Server,
    found: Sequence[TableFacts],
    settings: Mapping[TableName, TableConfig],
    busy: set[TableName] | None = None,
) -> list[ResolvedLayout]:
    """Return each table's current layout; with a problem if its log or snapshots are not exact.

    Omits those in `busy`, and those locked now; without `busy`, a lock is an error.
    """
    silent = cascades_silently(connection, server)
    layouts = []
    for facts in found:
        if busy is not None and facts.table in busy:
            continue
        try:
            layout = layout_of(connection, facts.table, settings)
            if layout is not None and (
                problem := _misfit(connection, facts, silent=silent) or unidentified(connection, layout)
            ):
                layout = ResolvedLayout(facts.table, None, None, problem)
        except pymysql.Error as error:
            if busy is None or code_of(error) not in LOCKED:
                raise
            busy.add(facts.table)
            continue
        if layout is not None:
            layouts.append(layout.with_comment(facts.comment))
    return layouts


def _misfit(connection: Connection[Any], facts: TableFacts, *, silent: bool) -> TableError | None:
    """Return what prevents exact capture of a table, whatever its layout."""
    table, formatted = facts.table, qualified(facts.table)
    if facts.engine not in TRANSACTIONAL:
        return TableError(
            table,
            f"it uses engine {facts.engine}, which has no snapshots",
            hint=f"ALTER TABLE {formatted} ENGINE = InnoDB",
        )
    if silent and (names := cascades_of(connection, table)):
        hint = f"ALTER TABLE {formatted} DROP FOREIGN KEY {quote(names[0])}, then add it again with RESTRICT"
        return TableError(table, cascading(names), hint=hint)
    return None


def unidentified(connection: Connection[Any], layout: ResolvedLayout) -> TableError | None:
    """Return why a table's configured key does not identify its rows; None if it does.

    Unless it is the primary key, it needs a unique index of its own: the log names rows by their key alone,
    so the delete of one of two rows with the same key is the delete of both. MariaDB adds the end of a row's
    version to such an index.
    """
    if layout.schema is None or layout.table_map is None:
        return None
    if layout.schema.key in ((), layout.table_map.key):
        return None
    table, key = layout.table, layout.schema.key
    indexes = _unique_indexes(connection, table)
    fitting = [nullable for columns, nullable in indexes if columns - {layout.table_map.row_end} == {*key}]
    if not all(fitting) or not is_there(connection, table):
        return None
    listed = ", ".join(map(quote, key))
    if fitting:
        reason = f"a column of its configured key ({', '.join(key)}) may be null"
        return TableError(
            table, reason, hint=f"ALTER TABLE {qualified(table)} MODIFY each of {listed} with NOT NULL"
        )
    reason = f"its configured key ({', '.join(key)}) has no unique index"
    return TableError(table, reason, hint=f"ALTER TABLE {qualified(table)} ADD UNIQUE ({listed})")


def _unique_indexes(connection: Connection[Any], table: TableName) -> list[tuple[set[str | None], bool]]:
    """Return the columns of each unique index (None for an expression), and whether one may be null."""
    found = _opened(
        connection,
        "SELECT index_name, column_name, nullable FROM information_schema.statistics"
        f" WHERE {table_condition(table)} AND non_unique = 0",
    )
    indexes: dict[str, tuple[set[str | None], bool]] = {}
    for name, column, nullable in found:
        columns, some = indexes.get(name, (set(), False))
        indexes[name] = columns | {column}, some or nullable == "YES"
    return list(indexes.values())


TRANSACTIONAL = ("InnoDB", "ROCKSDB")
_CASCADE = re.compile(
    r"^\s*CONSTRAINT `((?:[^`]|``)*)` FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)",
    re.MULTILINE,
)


def cascades_silently(connection: Connection[Any], server: Server) -> bool:
    """Return whether foreign keys change rows without logging: MySQL logs them since 9.6, by default."""
    if server.mariadb or server.release < (9, 6):
        return True
    found = rows(connection, "SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'")
    return bool(found) and found[0][1] != "OFF"


def cascades_of(connection: Connection[Any], table: TableName) -> list[str]:
    """Return a table's foreign keys that change its rows without logging; none if we may not see them."""
    try:
        definition = rows(connection, f"SHOW CREATE TABLE {qualified(table)}")
    except (pymysql.OperationalError, pymysql.ProgrammingError) as error:
        if is_transient(code_of(error)):
            raise
        return []
    return [name.replace("``", "`") for name in _CASCADE.findall(str(definition[0][1]))]


def cascading(names: Sequence[str]) -> str:
    """Describe the effect of such foreign keys."""
    listed = ", ".join(names)
    return f"its foreign keys ({listed}) change rows without logging it (CASCADE, SET NULL)"


def table_condition(table: TableName) -> str:
    """Build the condition for one table: the server compares names its own way."""
    return f"table_schema = {literal(table.namespace)} AND table_name = {literal(table.name)}"
