"""Finds columns that MySQL hides from us: invisible ones that our user may not read.

Its catalog shows only columns that we have a right to, and SELECT * omits invisible ones without a refusal.
Only SHOW CREATE TABLE shows all, to a user who has a right to the table, not just to some columns. MariaDB
refuses SELECT * to a user who may not read all columns, the invisible ones, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from connector.errors import TableError
from connector.mysql.catalog import qualified
from connector.mysql.connection import code_of, rows
from connector.schema import TableName

_COLUMN = re.compile(r"^  `((?:[^`]|``)*)` ", re.MULTILINE)


def refuse_hidden(connection: Connection[Any], table: TableName, shown: Collection[str]) -> None:
    """Refuse a table of MySQL if the catalog, which shows these columns, hides others from us, or may."""
    hint = f"GRANT SELECT ON {qualified(table)} TO the agent's user"
    try:
        ((_, definition),) = rows(connection, f"SHOW CREATE TABLE {qualified(table)}")
    except pymysql.Error as error:
        if code_of(error) != ER.TABLEACCESS_DENIED_ERROR:
            raise
        reason = "the user has rights to columns, not to the table, so an invisible one may be hidden from it"
        raise TableError(table, reason, hint=hint) from error
    columns, _, _ = str(definition).partition("\n) ")  # what follows has line breaks in comments
    names = (name.replace("``", "`") for name in _COLUMN.findall(columns))
    if hidden := [name for name in names if name not in shown]:
        raise TableError(table, f"the user may not read column {', '.join(hidden)}", hint=hint)


def granted_by_column(connection: Connection[Any]) -> set[TableName]:
    """Return the tables of MySQL to some of whose columns our user or a role of it was granted rights.

    Not those of roles before MySQL 8.0.19, which does not list them.
    """
    found: set[TableName] = set()
    for listed in ("column_privileges", "role_column_grants"):
        try:
            granted = rows(connection, f"SELECT table_schema, table_name FROM information_schema.{listed}")
        except pymysql.Error as error:
            if code_of(error) != ER.UNKNOWN_TABLE:
                raise
            continue
        found.update(TableName(*each) for each in granted)
    return found
