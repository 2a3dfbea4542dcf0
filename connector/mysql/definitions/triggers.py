"""BEFORE triggers that may change what virtual columns are made of, for which MariaDB logs former values.

It computes such columns before the trigger runs in an UPDATE of several tables, for example. Which statements
did so is not in the log for certain: it lacks all but the first one of a stored function. So such a table is
not captured. A trigger counts if its body has the name of a column of which a virtual one is made, also by
way of other generated columns, or an executable comment, which may hide one.

Invariant: a table counts as without them only if that was read now. MariaDB shows triggers only to users with
the TRIGGER right; to others, a table whose log shows triggers (`ShownByLog.triggering`) has unknown ones.
What was granted on all databases, or on the session's own, only counts in sessions that began since, or took
it up (`_rights_taken_up`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import pymysql
from pymysql.connections import Connection

from connector.config import TableConfig
from connector.errors import TableError
from connector.mysql.catalog import LOCKED, conditions, opened, qualified
from connector.mysql.codec.charsets import lower
from connector.mysql.connection import code_of, query, quote, rows
from connector.schema import TableName


class _Column(NamedTuple):
    name: str
    type: str
    collation: str | None
    virtual: bool
    expression: str | None


class Triggers:
    """Those of tables with virtual columns at the moment of its creation (MariaDB). Used by one thread.

    `tables`: those that may have virtual columns. `logged`: those which have triggers by their log.
    """

    def __init__(
        self,
        connection: Connection[Any],
        tables: Collection[TableName],
        settings: Mapping[TableName, TableConfig],
        logged: Collection[TableName] = (),
    ) -> None:
        self._connection, self._tables, self._settings, self._logged = connection, tables, settings, logged
        unseen = not set(tables).isdisjoint(logged)
        self._grants = _rights_taken_up(connection) if unseen else None
        self._bodies: dict[TableName, dict[str, str]] | None = None
        self._columns: dict[TableName, list[_Column]] | None = None
        try:
            self._bodies = _bodies(connection, tables)
            self._columns = _columns(connection, [table for table, its in self._bodies.items() if its])
        except pymysql.Error as error:  # then each by itself
            if code_of(error) not in LOCKED:
                raise

    def of(self, table: TableName) -> TableError | None:
        """Return why triggers of a table prevent its capture; the driver's error if it is locked now."""
        bodies = self._of(table)
        if bodies is None:
            return unreadable(table) if table in self._logged and self.are_hidden(table) else None
        columns = self._columns if self._columns is not None else _columns(self._connection, [table])
        its = columns.get(table, []) if bodies else []
        landed = [column.name for column in its if column.virtual and self._lands(table, column.name)]
        for name, body in bodies.items():
            if set(landed) & (changed := changed_by(body, its)):
                return _changed_table(table, name, [column for column in its if column.name in changed])
        return None

    def are_hidden(self, table: TableName) -> bool:
        """Return whether a table with virtual columns may have triggers that we may not see."""
        if table not in self._tables or self._of(table) is not None:
            return False
        if self._grants is None:
            self._grants = _granted(self._connection)
        return not shows_triggers(self._grants, table)

    def _of(self, table: TableName) -> dict[str, str] | None:
        """Return the bodies of those BEFORE an INSERT or UPDATE; None if it shows no trigger at all."""
        if table not in self._tables:
            return {}
        bodies = self._bodies if self._bodies is not None else _bodies(self._connection, [table])
        return bodies.get(table)

    def _lands(self, table: TableName, column: str) -> bool:
        """Return whether anything in the lake depends on a column."""
        settings = self._settings.get(table)
        return settings is None or settings.where is not None or settings.selects(column)


def _granted(connection: Connection[Any]) -> list[str]:
    return [str(grant) for grant, *_ in rows(connection, "SHOW GRANTS")]


def _rights_taken_up(connection: Connection[Any]) -> list[str]:
    """Have all that was granted count in this session, and return what certainly does."""
    granted = _granted(connection)
    ((role,),) = rows(connection, "SELECT current_role()")
    try:
        query(connection, f"SET ROLE {quote(role) if role else 'NONE'}")
    except pymysql.Error:  # it was revoked
        query(connection, "SET ROLE NONE")
    return granted


def _bodies(connection: Connection[Any], tables: Iterable[TableName]) -> dict[TableName, dict[str, str]]:
    found: dict[TableName, dict[str, str]] = {}
    for condition in conditions(tables, "event_object_schema event_object_table"):
        for namespace, table, name, relevant, body in opened(
            connection,
            "SELECT event_object_schema, event_object_table, trigger_name,"
            " action_timing = 'BEFORE' AND event_manipulation <> 'DELETE', action_statement"
            f" FROM information_schema.triggers WHERE {condition}",
        ):
            bodies = found.setdefault(TableName(namespace, table), {})
            if relevant:
                bodies[name] = body
    return found


def _columns(connection: Connection[Any], tables: Iterable[TableName]) -> dict[TableName, list[_Column]]:
    found: dict[TableName, list[_Column]] = {}
    for condition in conditions(tables):
        for namespace, table, *column in opened(
            connection,
            "SELECT table_schema, table_name, column_name, column_type, collation_name,"
            " extra LIKE '%VIRTUAL%', generation_expression"
            f" FROM information_schema.columns WHERE {condition} ORDER BY ordinal_position",
        ):
            found.setdefault(TableName(namespace, table), []).append(_Column(*column))
    return found


def changed_by(body: str | None, columns: Iterable[_Column]) -> set[str]:
    """Return the virtual columns made of one that a trigger's body names, or may name."""
    generated = [column for column in columns if column.expression is not None]
    if body is None or re.search(r"/\*M?!", body):
        return {column.name for column in generated if column.virtual}
    changed = {column.name for column in columns if names(body, column.name)}
    made: set[str] = set()
    while found := {
        column.name
        for column in generated
        if column.name not in made and any(names(str(column.expression), each) for each in changed | made)
    }:
        made |= found
    return {column.name for column in generated if column.virtual and column.name in made}


def names(text: str, name: str) -> bool:
    """Return whether a text may name a column: an odd name may be part of another one, or of a literal."""
    text, name = lower(text), lower(name)
    if re.fullmatch(r"\w+", name, re.ASCII):
        return re.search(rf"(?<![\w$]){name}(?![\w$])", text) is not None
    doubled = (name.replace(mark, mark * 2) for mark in '`"')
    return name in text or any(each in text for each in doubled)


def shows_triggers(grants: Iterable[str], table: TableName) -> bool:
    """Return whether the right to see a table's triggers is certain: of several patterns one alone counts."""
    held: dict[str, bool] = {}
    for privileges, _, rest in (grant.removeprefix("GRANT ").partition(" ON ") for grant in grants):
        where = rest.partition(" TO ")[0]
        shows = not {"TRIGGER", "ALL PRIVILEGES"}.isdisjoint(privileges.split(", "))
        held[where] = shows or held.get(where, False)
    if held.get("*.*") or held.get(qualified(table)):
        return True
    competing = [where for where in held if _is_for(where, table.namespace, re.IGNORECASE)]
    return [held[where] and _is_for(where, table.namespace) for where in competing] == [True]


def _is_for(where: str, database: str, flags: int = 0) -> bool:
    """Return whether a grant is for databases, and this one is among them. `flags`: of the comparison."""
    if not where.startswith("`") or not where.endswith("`.*"):
        return False
    each = re.findall(r"\\?.", where[1:-3].replace("``", "`"), re.DOTALL)
    pattern = "".join({"%": ".*", "_": "."}.get(part, re.escape(part[-1])) for part in each)
    return re.fullmatch(pattern, database, re.DOTALL | flags) is not None


def unreadable(table: TableName) -> TableError:
    """Return why a table can't be captured whose triggers we may not see."""
    return TableError(
        table,
        "by the log it has triggers, which may change what its virtual columns are made of, and the agent may"
        " not see them",
        hint=f"GRANT TRIGGER ON {qualified(table)} TO the agent's user",
    )


def _changed_table(table: TableName, trigger: str, columns: list[_Column]) -> TableError:
    listed = ", ".join(column.name for column in columns)
    drop = [f"DROP COLUMN {quote(column.name)}" for column in reversed(columns)]
    add = [f"ADD COLUMN {quote(column.name)} {_definition(column)} STORED" for column in columns]
    return TableError(
        table,
        f"its BEFORE trigger {trigger} may change what its virtual columns ({listed}) are made of, and"
        " MariaDB may log their values from before that",
        hint=f"ALTER TABLE {qualified(table)} {', '.join([*drop, *add])}; or drop the trigger; or leave the"
        f" columns out by exclude_columns in {table.section}",
    )


def _definition(column: _Column) -> str:
    collation = f" COLLATE {column.collation}" if column.collation else ""
    return f"{column.type}{collation} AS ({column.expression})"
