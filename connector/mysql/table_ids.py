"""InnoDB's table ids, and when a reading of them is judged (`catalog_fingerprint`). MariaDB only.

MySQL's statements are atomic with its log, so nothing can be missing from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import pymysql
from pymysql.connections import Connection

from connector.mysql.catalog_fingerprint import Fingerprint, IdReading, Statements
from connector.mysql.connection import code_of, is_transient, quote, rows
from connector.mysql.server import Server, end_of_log, position_of
from connector.schema import TableName

PROCESS_DENIED = 1227

_LOCK_WAIT = 1205

_FEW_IDS = 4
"""Up to this many ids are listed; a table with more partitions gets a digest."""


def _decoded(part: str) -> str:
    return f"CONVERT(CAST(CAST({part} AS BINARY) AS CHAR CHARACTER SET filename) USING utf8mb4)"


def decoded_name(column: str) -> tuple[str, str]:
    """Build the expressions for namespace and name of a table that InnoDB names in `column`."""
    namespace, name = f"SUBSTRING_INDEX({column}, '/', 1)", f"SUBSTRING_INDEX({column}, '/', -1)"
    return _decoded(namespace), _decoded(f"SUBSTRING_INDEX(SUBSTRING_INDEX({name}, '#P#', 1), '#p#', 1)")


_IDS = (
    f"SELECT {', '.join(decoded_name('name'))}, table_id"
    " FROM information_schema.innodb_sys_tables WHERE name LIKE '%/%' AND name NOT LIKE '%/#sql%'"
    " ORDER BY table_id"
)


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
        self._reading: IdReading | None = None

    def judge(
        self,
        connection: Connection[Any],
        server: Server,
        known: Mapping[TableName, Fingerprint],
        log: Log | None,
    ) -> dict[TableName, Fingerprint]:
        """Return the fingerprints to remember; those already known if nothing can be judged yet."""
        if not server.mariadb:
            return dict(known)
        if self._reading is None or (log is not None and self._reading.epoch != log.epoch):
            epoch = log.epoch if log else max((k.epoch for k in known.values()), default=0) or 1
            self._reading = _take(connection, server, known, epoch)
        reading = self._reading
        if log is not None and log.position >= reading.after:
            self._reading = None
            return {table: reading.judge(table, print_, self.statements) for table, print_ in known.items()}
        new = {table: print_ for table, print_ in known.items() if not print_.ids}
        return {
            **known,
            **{table: reading.judge(table, print_, Statements()) for table, print_ in new.items()},
        }


def _take(
    connection: Connection[Any], server: Server, known: Mapping[TableName, Fingerprint], epoch: int
) -> IdReading:
    """Read the ids, after waiting for statements that may have changed one and are not logged yet."""
    before = position_of(*end_of_log(connection, server))
    ids = table_ids(connection) or {}
    differing = [t for t, print_ in known.items() if print_.ids and ids.get(t, print_.ids) != print_.ids]
    for table in differing:
        try:
            rows(connection, f"SELECT 1 FROM {quote(table.namespace)}.{quote(table.name)} LIMIT 0")
        except pymysql.Error as error:
            if is_transient(code_of(error)) and code_of(error) != _LOCK_WAIT:
                raise
            del ids[table]  # not judged this time
    return IdReading(epoch, before, position_of(*end_of_log(connection, server)), ids)


def table_ids(connection: Connection[Any]) -> dict[TableName, str] | None:
    """Return the ids of each table and its partitions as text; None without the right to see them."""
    try:
        found = rows(connection, _IDS)
    except pymysql.Error as error:
        if code_of(error) == PROCESS_DENIED:
            return None
        raise
    ids: dict[TableName, list[str]] = {}
    for namespace, name, table_id in found:
        ids.setdefault(TableName(namespace, name), []).append(str(table_id))
    return {table: _short(some) for table, some in ids.items()}


def _short(ids: list[str]) -> str:
    text = ",".join(ids)
    return text if len(ids) <= _FEW_IDS else hashlib.sha256(text.encode()).hexdigest()[:16]


def with_notes(
    known: Mapping[TableName, Fingerprint], noted: Mapping[TableName, str]
) -> dict[TableName, Fingerprint]:
    """Return the fingerprints with what the log reader recorded."""
    return {table: replace(print_, noted=noted.get(table, "")) for table, print_ in known.items()}
