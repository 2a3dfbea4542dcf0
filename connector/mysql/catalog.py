"""Tables' definitions in information_schema, as the layouts under which their rows land.

Invariant: the log's table map and a dump's catalog query yield the same `TableSchema` for the same layout:
both go through `TableMap.schema`, here with the catalog's columns. The catalog is current.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from connector.config import SourceConfig, TableConfig
from connector.errors import NotYetError, TableError
from connector.mysql.codec.table_map import MappedColumn, TableMap
from connector.mysql.codec.types import LONGLONG, SET, ColumnType, type_of_catalog
from connector.mysql.connection import brief_wait, code_of, is_transient, literal, quote, rows
from connector.mysql.log.schema_cache import NotedColumn, ResolvedLayout, captures, landing_schema_of
from connector.schema import TableComments, TableName


@dataclass(frozen=True)
class TableFacts:
    """A base table as the catalog shows it."""

    table: TableName
    kind: str
    engine: str | None
    estimate: int | None
    comment: str | None = None


_FACTS = "table_type, engine, table_rows, table_comment"


def find_tables(
    connection: Connection[Any], config: SourceConfig, busy: set[TableName] | None = None
) -> list[TableFacts]:
    """List the configured base tables in name order.

    A table that other sessions keep locked is added to `busy`; without `busy`, it raises a transient driver
    error. Names come first, for which MariaDB opens no table: others are neither opened nor waited for.
    """
    named = captured_names(connection, config)
    facts = []
    for condition in conditions(named):
        found = rows(
            connection,
            f"SELECT table_schema, table_name, {_FACTS} FROM information_schema.tables WHERE ({condition})"
            " AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')",
        )
        facts += [TableFacts(TableName(namespace, name), *rest) for namespace, name, *rest in found]
    facts = sorted((f for f in facts if f.table in named), key=lambda f: f.table)
    opened = (_of_unlocked(connection, f, busy) if f.engine is None else f for f in facts)
    return [each for each in opened if each is not None]


def captured_names(connection: Connection[Any], config: SourceConfig) -> set[TableName]:
    """Return the configured names, also of views; no table is opened or waited for."""
    listed = rows(connection, "SELECT table_schema, table_name FROM information_schema.tables")
    return {table for table in (TableName(*found) for found in listed) if captures(config, table)}


LOCKED = (1205, 1213)
"""Other sessions kept it locked longer than a session waits."""

_SKIPPED = 1684
"""MariaDB's warning, within a transaction, instead of a wait."""


def _of_unlocked(
    connection: Connection[Any], facts: TableFacts, busy: set[TableName] | None
) -> TableFacts | None:
    """Reread the facts of a table that could not be opened: MariaDB returned no engine, and a warning.

    It was locked, dropped (None), or it is broken, which leaves it without an engine, and a BASE TABLE.
    """
    for _ in range(_READINGS):
        try:
            rows(connection, f"SELECT 1 FROM {qualified(facts.table)} LIMIT 0")
        except pymysql.Error as error:
            if code_of(error) == ER.NO_SUCH_TABLE:
                return None  # one that has its name by now is a different one
            if busy is not None and code_of(error) in LOCKED:
                busy.add(facts.table)
            elif is_transient(code_of(error)):
                raise
            return facts
        where = table_condition(facts.table)  # an unopened table's comment was why it was not opened
        found = rows(connection, f"SELECT {_FACTS} FROM information_schema.tables WHERE {where}")
        if not found or found[0][1] is not None:
            return TableFacts(facts.table, *found[0]) if found else None
    if busy is None:
        raise pymysql.err.OperationalError(LOCKED[0], f"{facts.table} is locked again and again")
    busy.add(facts.table)
    return facts


def opened(connection: Connection[Any], statement: str) -> list[tuple[Any, ...]]:
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
        found = opened(
            connection,
            f"SELECT column_name, column_type, {IS_VIRTUAL}, {IS_ROW_END}, {HAS_DEFAULT}, {_IS_STORED}"
            f" FROM information_schema.columns WHERE {table_condition(table)}",
        )
    return {name: NotedColumn(str(type_).lower(), *map(bool, rest)) for name, type_, *rest in found}


IS_ROW_END = "coalesce(generation_expression, '') = 'ROW END'"
"""Whether the column ends a row's version: a SELECT shows only current rows, so no key needs it."""

IS_VIRTUAL = "extra LIKE '%VIRTUAL%'"
HAS_DEFAULT = "coalesce(column_default, 'NULL') <> 'NULL'"  # one other than null

_IS_STORED = "extra LIKE '%STORED GENERATED%' AND coalesce(generation_expression, '') NOT LIKE 'ROW %'"
"""Whether the column is computed and stored; not by the server as it begins or ends a row's version."""


def table_map_of(connection: Connection[Any], table: TableName) -> TableMap | None:
    """Return a table's current layout in the log's form; None without one. `TableError`: an unknown type."""
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
        found = opened(
            connection,
            f"SELECT {', '.join(COLUMN_FIELDS)} FROM information_schema.columns"
            f" WHERE {table_condition(table)} ORDER BY ordinal_position",
        )
        if found == before:
            break
        key = primary_key(connection, table) if found else ()
        if {name for name, *_, in_key, _ in found if in_key} == {*key}:
            break
    return found, key


COLUMN_FIELDS = (
    "column_name",
    "column_type",
    "character_set_name",
    "column_comment",
    "collation_name",
    "column_key = 'PRI'",
    IS_ROW_END,
)
"""What a layout depends on, in the order in which `layout_from` takes it."""

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
    found = opened(
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
    found, key = _columns_and_key(connection, table)
    if not found:
        return None
    layout = layout_from(connection, table, found, key, settings)
    return layout if layout.problem is None or is_there(connection, table) else None


def layout_from(
    connection: Connection[Any],
    table: TableName,
    found: Sequence[Sequence[Any]],
    key: Sequence[str],
    settings: Mapping[TableName, TableConfig],
) -> ResolvedLayout:
    """Return the layout and schema of a table with these columns (`COLUMN_FIELDS`) and this primary key.

    Queries only for members of an enum or set that the catalog shows with ``?``.
    """
    try:
        table_map = _table_map(connection, table, found, key)
        schema = landing_schema_of(table_map, settings)
    except TableError as error:
        return ResolvedLayout(table, None, None, error)
    comments = {name: comment for name, _, _, comment, *_ in found}
    return ResolvedLayout(table, table_map, schema, comments=TableComments.of(table, None, comments))


def is_there(connection: Connection[Any], table: TableName) -> bool:
    """Return whether a table exists; it may be dropped during a check."""
    return bool(rows(connection, f"SELECT 1 FROM information_schema.tables WHERE {table_condition(table)}"))


def unidentified(connection: Connection[Any], layout: ResolvedLayout) -> TableError | None:
    """Read a table's unique indexes if its key needs one, and return `misidentified`."""
    if not _needs_index(layout):
        return None
    found = opened(
        connection,
        f"SELECT {', '.join(INDEX_FIELDS)} FROM information_schema.statistics"
        f" WHERE {table_condition(layout.table)} AND non_unique = 0",
    )
    problem = misidentified(layout, found)
    return problem if problem is None or is_there(connection, layout.table) else None


INDEX_FIELDS = ("index_name", "column_name", "nullable", "seq_in_index")
"""What the primary key and `misidentified` depend on."""


def _needs_index(layout: ResolvedLayout) -> bool:
    if layout.schema is None or layout.table_map is None:
        return False
    return layout.schema.key not in ((), layout.table_map.key)


def misidentified(layout: ResolvedLayout, indexed: Iterable[Sequence[Any]]) -> TableError | None:
    """Return why a table's configured key does not identify its rows; None if it does.

    Unless it is the primary key, it needs a unique index of its own: the log names rows by their key alone,
    so the delete of one of two rows with the same key is the delete of both. MariaDB adds the end of a row's
    version to such an index. `indexed`: the columns of unique indexes (`INDEX_FIELDS`).
    """
    if not _needs_index(layout):
        return None
    assert layout.schema is not None
    assert layout.table_map is not None
    table, key = layout.table, layout.schema.key
    indexes = _unique_indexes(indexed)
    fitting = [nullable for columns, nullable in indexes if columns - {layout.table_map.row_end} == {*key}]
    if not all(fitting):
        return None
    listed = ", ".join(map(quote, key))
    if fitting:
        reason = f"a column of its configured key ({', '.join(key)}) may be null"
        return TableError(
            table, reason, hint=f"ALTER TABLE {qualified(table)} MODIFY each of {listed} with NOT NULL"
        )
    reason = f"its configured key ({', '.join(key)}) has no unique index"
    return TableError(table, reason, hint=f"ALTER TABLE {qualified(table)} ADD UNIQUE ({listed})")


def _unique_indexes(indexed: Iterable[Sequence[Any]]) -> list[tuple[set[str | None], bool]]:
    """Return the columns of each unique index (None for an expression), and whether one may be null."""
    indexes: dict[str, tuple[set[str | None], bool]] = {}
    for name, column, nullable, *_ in indexed:
        columns, some = indexes.get(name, (set(), False))
        indexes[name] = columns | {column}, some or nullable == "YES"
    return list(indexes.values())


def table_condition(table: TableName) -> str:
    """Build the condition for one table: the server compares names its own way."""
    return f"table_schema = {literal(table.namespace)} AND table_name = {literal(table.name)}"


def conditions(tables: Iterable[TableName], by: str = "table_schema table_name") -> Iterator[str]:
    """Build conditions for all of the tables, of some thousand each; the server may find others as well.

    It may compare names without regard to case or accents. Only names of schemas and tables are compared, so
    MariaDB opens no other table. `by`: the two columns.
    """
    schema, name = by.split()
    for part in batched(sorted(tables), _NAMES_AT_ONCE):
        of: dict[str, list[str]] = {}
        for table in part:
            of.setdefault(table.namespace, []).append(literal(table.name))
        yield " OR ".join(
            f"{schema} = {literal(namespace)} AND {name} IN ({', '.join(names)})"
            for namespace, names in of.items()
        )


def batched(tables: Sequence[TableName], size: int) -> Iterator[Sequence[TableName]]:
    """Yield the tables in batches."""
    return (tables[first : first + size] for first in range(0, len(tables), size))


_NAMES_AT_ONCE = 5000
"""Their names take less than 2 MB, which any server accepts as a statement."""


def existing(connection: Connection[Any], tables: Collection[TableName]) -> set[TableName]:
    """Return which of the tables exist."""
    found: set[TableName] = set()
    for condition in conditions(tables):
        listed = rows(
            connection, f"SELECT table_schema, table_name FROM information_schema.tables WHERE {condition}"
        )
        found.update(TableName(*each) for each in listed)
    return found.intersection(tables)
