"""What of a table changes whenever it is rebuilt, and when a reading of it is judged (`catalog_fingerprint`).

- MariaDB: InnoDB's table ids, which need PROCESS. Not of partitions that hold former versions of rows, which
  never land: the server adds them by itself, without logging it (``PARTITION BY SYSTEM_TIME ... AUTO``).
- MySQL: the ids of tablespaces, each of one table or partition, and the time when the table was defined. Any
  statement that copies a table changes both, OPTIMIZE NO_WRITE_TO_BINLOG TABLE, too; TRUNCATE changes only
  the former, ALTER of the definition alone only the latter. From 9 on at the latest, the former need PROCESS.
  A table in a tablespace shared by several has only the time.

Readings lock no table. (MySQL would open each to tell its table id, and wait for those that others keep
locked, as while CREATE TABLE ... SELECT runs.)
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

import pymysql
from pymysql.connections import Connection

from connector.mysql.catalog import LOCKED, batched, conditions, qualified
from connector.mysql.catalog_fingerprint import Fingerprint, IdReading, Judge, Statements
from connector.mysql.connection import brief_wait, code_of, is_transient, literal, rows
from connector.mysql.server import Server, end_of_log, position_of
from connector.schema import TableName

PROCESS_DENIED = 1227

_UNSEEN = (1044, 1109, 1142, 1143, 1146, 1356, PROCESS_DENIED)
"""Missing rights, or a server without what is asked for."""

_FEW_IDS = 4
"""Up to this many ids are listed; a table with more partitions gets a digest."""


def _decoded(part: str) -> str:
    return f"CONVERT(CAST(CAST({part} AS BINARY) AS CHAR CHARACTER SET filename) USING utf8mb4)"


def decoded_name(column: str) -> tuple[str, str]:
    """Build the expressions for namespace and name of a table that InnoDB names in `column`."""
    namespace, name = f"SUBSTRING_INDEX({column}, '/', 1)", f"SUBSTRING_INDEX({column}, '/', -1)"
    return _decoded(namespace), _decoded(f"SUBSTRING_INDEX(SUBSTRING_INDEX({name}, '#P#', 1), '#p#', 1)")


_AFTER_TABLE = "SUBSTRING_INDEX(SUBSTRING_INDEX(name, '#P#', -1), '#p#', -1)"
_PARTITION_NAME = _decoded(f"SUBSTRING_INDEX(SUBSTRING_INDEX({_AFTER_TABLE}, '#SP#', 1), '#sp#', 1)")
"""Of a table without partitions, all of its name."""

_IDS = (
    f"SELECT {', '.join(decoded_name('name'))}, table_id, {_PARTITION_NAME}"
    " FROM information_schema.innodb_sys_tables WHERE name LIKE '%/%' AND name NOT LIKE '%/#sql%'"
    " ORDER BY table_id"
)

_OF_INDEXES = r"%/fts\_0000%"
"""Names of tablespaces of full-text indexes, a dozen each."""


class Log(Protocol):
    """The part of the log reader used here: its position."""

    epoch: int

    @property
    def position(self) -> int: ...  # noqa: D102


class TableIds:
    """Takes readings of the ids, and judges each once the log has been read past it.

    Used by one thread at a time. Log readers fill `statements`.
    """

    def __init__(self) -> None:
        self.statements = Statements()
        self._judge = Judge(self.statements)
        self._reading: IdReading | None = None
        self._unlocked: dict[TableName, int] = {}
        self._versioned: Collection[TableName] = ()

    def judge(
        self,
        connection: Connection[Any],
        server: Server,
        known: Mapping[TableName, Fingerprint],
        log: Log | None,
        versioned: Collection[TableName] = (),
    ) -> dict[TableName, Fingerprint]:
        """Return the fingerprints to remember; those already known if nothing can be judged yet.

        Takes a reading at each look, unless one still waits for the log. `versioned`: tables that may have
        former versions of their rows.
        """
        self._versioned = versioned
        self._unlocked = {table: epoch for table, epoch in self._unlocked.items() if table in known}
        if log is None:
            new = {table: print_ for table, print_ in known.items() if not print_.ids}
            epoch = max((k.epoch for k in known.values()), default=0) or 1
            reading = self._take(connection, server, new, epoch, position_of(*end_of_log(connection, server)))
            return {**known, **{table: reading.first(table, print_) for table, print_ in new.items()}}
        known = self._judged(known, log)
        if self._reading is None or self._reading.epoch != log.epoch:
            before = log.position  # the statements before that are known
            self._reading = self._take(connection, server, known, log.epoch, before)
        reading = self._reading
        known = self._judged(known, log)
        return {t: print_ if print_.ids else reading.first(t, print_) for t, print_ in known.items()}

    def _judged(self, known: Mapping[TableName, Fingerprint], log: Log) -> Mapping[TableName, Fingerprint]:
        """Judge the reading if the log has been read past it."""
        reading = self._reading
        if reading is None or reading.epoch != log.epoch or log.position < reading.after:
            return known
        self._reading = None
        return self._judge.judge(reading, known)

    def _take(
        self,
        connection: Connection[Any],
        server: Server,
        known: Mapping[TableName, Fingerprint],
        epoch: int,
        before: int,
    ) -> IdReading:
        """Read the ids, once the statements that may have changed one have finished.

        Those before `before` have begun; those that changed one without being logged yet will be before
        `after`, but for those that are logged late. At the first reading of a table in an epoch, any
        statement may have begun: `statements` lacks those from before the log was opened.
        """
        since = {table: print_.at if print_.epoch == epoch else 0 for table, print_ in known.items()}
        altered = {
            table
            for table, at in since.items()
            if self._unlocked.get(table) != epoch or self.statements.between(table, at, before) is not False
        }
        locked = _locked(connection, altered)
        self._unlocked |= dict.fromkeys(altered - locked, epoch)
        if server.mariadb:
            ids = table_ids(connection, self._versioned) or {}
        else:
            ids = _ids_in_mysql(connection, known)
        differing = {
            table
            for table, print_ in known.items()
            if print_.ids and print_.epoch == epoch and ids.get(table, print_.ids) != print_.ids
        }
        locked |= _locked(connection, differing)
        judged = {table: found for table, found in ids.items() if table not in locked}  # else the next time
        return IdReading(epoch, before, position_of(*end_of_log(connection, server)), judged)


def _locked(connection: Connection[Any], tables: Collection[TableName]) -> set[TableName]:
    """Return the tables that a statement keeps locked; those before have finished with the others."""
    if not tables:
        return set()
    locked: set[TableName] = set()
    with brief_wait(connection):
        for some in batched(sorted(tables), _OPENED_AT_ONCE):
            if not _are_usable(connection, some):
                locked |= {table for table in some if not _are_usable(connection, [table])}
    return locked


_OPENED_AT_ONCE = 50
"""Few enough for any server's stack; one that is locked makes each of them a query of its own."""


def _are_usable(connection: Connection[Any], tables: Collection[TableName]) -> bool:
    try:
        rows(
            connection, " UNION ALL ".join(f"(SELECT 1 FROM {qualified(table)} LIMIT 0)" for table in tables)
        )
    except pymysql.Error as error:
        if is_transient(code_of(error)) and code_of(error) not in LOCKED:
            raise
        return False
    return True


def _ids_in_mysql(connection: Connection[Any], tables: Collection[TableName]) -> dict[TableName, str]:
    """Return time and tablespaces of each table."""
    times: dict[TableName, str] = {}
    for condition in conditions(tables):
        found = rows(
            connection,
            "SELECT table_schema, table_name, UNIX_TIMESTAMP(create_time) FROM information_schema.tables"
            f" WHERE ({condition}) AND create_time IS NOT NULL",
        )
        times |= {TableName(namespace, name): str(created) for namespace, name, created in found}
    spaces = _tablespaces(connection, tables)
    return {table: f"{time}/{spaces.get(table, '')}" for table, time in times.items()}


def _tablespaces(connection: Connection[Any], tables: Collection[TableName]) -> dict[TableName, str]:
    """Return the ids of each table's own tablespaces; none without the right to see them."""
    if not tables:
        return {}
    by_name = {"/".join(table): table for table in tables}
    namespaces = sorted({table.namespace for table in tables})
    ranges = (f"name >= {literal(f'{each}/')} AND name < {literal(f'{each}0')}" for each in namespaces)
    statement = (
        "SELECT name, CAST(space AS CHAR) FROM information_schema.innodb_tablespaces_brief"
        f" WHERE ({' OR '.join(ranges)}) AND name NOT LIKE '{_OF_INDEXES}' ORDER BY name"
    )
    try:
        found = rows(connection, statement)
    except pymysql.Error as error:
        if code_of(error) in _UNSEEN:
            return {}
        raise
    ids: dict[TableName, list[str]] = {}
    for name, space in found:
        if table := next(filter(None, map(by_name.get, _names_of_table(name))), None):
            ids.setdefault(table, []).append(space)
    return {table: _short(some) for table, some in ids.items()}


def _names_of_table(name: str) -> Iterator[str]:
    """Yield what the table may be named that has a tablespace of this name, the longest first.

    It may be of a partition, and a table's name may hold what marks one.
    """
    yield name
    for mark in reversed([*_PARTITION.finditer(name)]):
        yield name[: mark.start()]


_PARTITION = re.compile("#[pP]#")


def table_ids(
    connection: Connection[Any], versioned: Collection[TableName] = ()
) -> dict[TableName, str] | None:
    """Return the ids of each table and its partitions as text; None without the right to see them.

    Of `versioned` tables, those of partitions with current rows; such a table is omitted if it is locked now.
    """
    try:
        found = rows(connection, _IDS)
    except pymysql.Error as error:
        if code_of(error) == PROCESS_DENIED:
            return None
        raise
    parts = Counter(TableName(namespace, name) for namespace, name, *_ in found)
    partitioned = {table for table in versioned if parts[table] > 1}
    current = _of_current_rows(connection, partitioned)
    ids: dict[TableName, list[str]] = {}
    for namespace, name, table_id, partition in found:
        table = TableName(namespace, name)
        if table not in partitioned or partition in current.get(table, ()):
            ids.setdefault(table, []).append(str(table_id))
    return {table: _short(some) for table, some in ids.items()}


def _of_current_rows(connection: Connection[Any], tables: Collection[TableName]) -> dict[TableName, set[str]]:
    """Return the partitions of each of these tables but for those of former versions; of none that is locked.

    After the ids were read, so a partition that is added in between is among neither.
    """
    found: dict[TableName, set[str]] = {}
    for condition in conditions(tables):
        with brief_wait(connection):
            listed = rows(
                connection,
                "SELECT table_schema, table_name, partition_name,"
                " partition_method = 'SYSTEM_TIME' AND coalesce(partition_description, '') <> 'CURRENT'"
                f" FROM information_schema.partitions WHERE ({condition})",
            )
        for namespace, name, partition, is_former in listed:
            if not is_former:
                found.setdefault(TableName(namespace, name), set()).add(partition)
    return found


def _short(ids: list[str]) -> str:
    text = ",".join(ids)
    return text if len(ids) <= _FEW_IDS else hashlib.sha256(text.encode()).hexdigest()[:16]
