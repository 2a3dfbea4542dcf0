"""Foreign keys that change rows by themselves, which the log lacks.

Invariant: a table counts as without them only if that was read of this very table, now. No catalog proves
that it has not changed since, so it is asked at each check: once for all tables where the answer is complete,
else by SHOW CREATE TABLE, table by table.

- MySQL shows the foreign keys of every table that it shows at all.
- MariaDB hides them in information_schema.referential_constraints from users who may only SELECT, without a
  warning. InnoDB's own list is complete, but needs PROCESS. Without it, each table is asked. Likewise if a
  name in the list can't be assigned to a table for certain: the server ignores case, or the name is of before
  MySQL 5.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from connector.errors import TableError
from connector.mysql.catalog import qualified
from connector.mysql.connection import code_of, is_transient, quote, raw_rows, rows
from connector.mysql.server import Server
from connector.mysql.table_ids import PROCESS_DENIED, decoded_name
from connector.schema import TableName

_NAME = r"`(?:[^`]|``)*`"
_NAMES = rf"\({_NAME}(?:, {_NAME})*\)"
_ACTION = r" ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)"
_NO_ACTION = r" ON (?:DELETE|UPDATE) (?:NO ACTION|RESTRICT)"

_CASCADE = re.compile(
    rf"^\s*CONSTRAINT `((?:(?!\n\s*CONSTRAINT `)[\s\S])*?)`"
    rf" FOREIGN KEY {_NAMES} REFERENCES {_NAME}(?:\.{_NAME})? {_NAMES}(?:{_NO_ACTION})?{_ACTION}",
    re.MULTILINE,
)
"""Names may hold anything, line ends too. The key's own ends at FOREIGN KEY: MariaDB 11.4 does not double its
backticks.
"""

_ANY_CASCADE = re.compile(_ACTION)

_UNREADABLE = "of a name that can't be read"

_RULES = "('CASCADE', 'SET NULL', 'SET DEFAULT')"

_CHANGES_ROWS = 1 | 2 | 4 | 8
"""InnoDB's flags: ON DELETE CASCADE, SET NULL, ON UPDATE CASCADE, SET NULL."""

_ENCODED = re.compile(r"[\w@$]+/[\w@$]+", re.ASCII)
"""Names as InnoDB encodes them, so that they can be decoded."""

_TEMPORARY = "/#sql"
"""Names of tables that an ALTER is building."""


class Cascades:
    """The foreign keys of all tables at the moment of its creation. Used by one thread.

    `native`: the log has changes of another server, which did not log what foreign keys do.
    """

    def __init__(self, connection: Connection[Any], server: Server, *, native: bool = False) -> None:
        self._connection = connection
        self._having: set[TableName] | None = set()
        if native or _unlogged(connection, server):
            self._having = _in_innodb(connection, server) if server.mariadb else {*_in_catalog(connection)}

    def of(self, table: TableName) -> list[str]:
        """Return a table's foreign keys that change its rows without logging; none if we may not see them."""
        if self._having is None:
            return cascades_of(self._connection, table)
        return cascades_of(self._connection, table, listed=True) if table in self._having else []


def _unlogged(connection: Connection[Any], server: Server) -> bool:
    """Return whether the server's own foreign keys change rows without logging: MySQL logs them since 9.6.

    By default, and not of what it applies of a server that does not (`connector.mysql.log.transaction`).
    """
    if server.mariadb or server.release < (9, 6):
        return True
    found = rows(connection, "SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'")
    return bool(found) and found[0][1] != "OFF"


def _in_catalog(connection: Connection[Any]) -> dict[TableName, list[str]]:
    """Return the tables with such foreign keys, and the keys' names (MySQL)."""
    found = rows(
        connection,
        "SELECT constraint_schema, table_name, constraint_name"
        " FROM information_schema.referential_constraints"
        f" WHERE delete_rule IN {_RULES} OR update_rule IN {_RULES} ORDER BY constraint_name",
    )
    names: dict[TableName, list[str]] = {}
    for namespace, table, name in found:
        names.setdefault(TableName(namespace, table), []).append(name)
    return names


def cascading_in_catalog(connection: Connection[Any]) -> list[TableError]:
    """Return the tables with such foreign keys (MySQL), each as unfit for capture."""
    return [cascading_table(table, names) for table, names in _in_catalog(connection).items()]


def _in_innodb(connection: Connection[Any], server: Server) -> set[TableName] | None:
    """Return the tables with such foreign keys (MariaDB); None if each table must be asked."""
    try:
        found = rows(
            connection,
            f"SELECT for_name, {', '.join(decoded_name('for_name'))}"
            f" FROM information_schema.innodb_sys_foreign WHERE type & {_CHANGES_ROWS}",
        )
    except pymysql.Error as error:
        if code_of(error) == PROCESS_DENIED:
            return None
        raise
    listed = [each for each in found if _TEMPORARY not in each[0]]
    if any(not _ENCODED.fullmatch(encoded) or server.lower_case for encoded, *_ in listed):
        return None
    return {TableName(namespace, name) for _, namespace, name in listed}


def cascades_of(connection: Connection[Any], table: TableName, *, listed: bool = False) -> list[str]:
    """Read a table's foreign keys that change its rows; none if we may not see them.

    `listed`: the server's list of all has one of this table. If it still is there, its name is all that may
    be missing.
    """
    try:
        definition = raw_rows(connection, f"SHOW CREATE TABLE {qualified(table)}")  # defaults may be binary
    except (pymysql.OperationalError, pymysql.ProgrammingError) as error:
        if is_transient(code_of(error)):
            raise
        return [_UNREADABLE] if listed and code_of(error) != ER.NO_SUCH_TABLE else []
    text = str(definition[0][1].decode(errors="replace"))
    names = [name.replace("``", "`") for name in _CASCADE.findall(text)]
    return names or ([_UNREADABLE] if listed and _ANY_CASCADE.search(text) else [])


def cascading(names: Sequence[str]) -> str:
    """Describe the effect of such foreign keys."""
    listed = ", ".join(names)
    return f"its foreign keys ({listed}) change rows without logging it (CASCADE, SET NULL)"


def cascading_table(table: TableName, names: Sequence[str]) -> TableError:
    """Return why a table with such foreign keys can't be captured, and what to do."""
    drop = f"ALTER TABLE {qualified(table)} DROP FOREIGN KEY {quote(names[0])}"
    return TableError(table, cascading(names), hint=f"{drop}, then add it again with RESTRICT")
