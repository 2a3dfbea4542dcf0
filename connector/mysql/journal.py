"""Our own two small tables at the source: what no log tells, and what proves where its log began.

``deltatide.watermark``: one row for each source name: the barrier that a chunk's low watermark rests on, an
id that replicas share, and the log file last read with its time of birth, by which a RESET or another server
is found out. ``deltatide.untold``: tables whose rows changed without row events, and where in the log.

Invariants:

- The file is written down only when a log is opened or goes on in the next file, so after a manifest.
- What is untold is written down before the log that told of it is taken, so a crash forgets nothing. Written
  twice it stays the same. After a failover, which may have lost the write, it is written again.
- Nobody needs the watermark's last writes: a failover that lost them is no gap. One that lost a write of
  ``untold`` is, as an agent that was stopped meanwhile would never hear of that change.

Where they can't be had or written, everything works without, but for this: a change that no log tells sets
its table aside, and MySQL's low watermarks need GTIDs in the barrier's place.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection

from connector.mysql.capturing import OWN_DATABASE, WATERMARK
from connector.mysql.connection import code_of, is_transient, literal, query, row, rows
from connector.mysql.server import is_replica
from connector.schema import TableName

_WATERMARK = str(WATERMARK)
_UNTOLD = f"{OWN_DATABASE}.untold"

GRANT = f"GRANT CREATE, SELECT, INSERT, UPDATE ON {OWN_DATABASE}.*"

_CREATE = (
    f"CREATE DATABASE IF NOT EXISTS {OWN_DATABASE}",
    f"CREATE TABLE IF NOT EXISTS {_WATERMARK} (source VARCHAR(64) CHARACTER SET ascii PRIMARY KEY,"
    " id CHAR(36) CHARACTER SET ascii NOT NULL, barrier BIGINT UNSIGNED NOT NULL DEFAULT 0,"
    " log_server VARCHAR(80) CHARACTER SET ascii, log_file BIGINT UNSIGNED, log_created BIGINT UNSIGNED)"
    " ENGINE = InnoDB",
    f"CREATE TABLE IF NOT EXISTS {_UNTOLD} (source VARCHAR(64) CHARACTER SET ascii,"
    " namespace VARBINARY(256), name VARBINARY(256), epoch INT NOT NULL, lsn BIGINT UNSIGNED NOT NULL,"
    " reason VARBINARY(500) NOT NULL, PRIMARY KEY (source, namespace, name)) ENGINE = InnoDB",
)


@dataclass(frozen=True)
class Birth:
    """A log file that was read: on which server, its number, and when it was begun (seconds since 1970)."""

    server: str
    file: int
    created: int


class Journal:
    """The two tables as one source name sees them; every method takes the connection to use."""

    def __init__(self, source: str) -> None:
        self._is_ours = f"source = {literal(source)}"
        self._source = literal(source)
        self._noted: dict[TableName, tuple[int, int, str]] = {}

    def create(self, connection: Connection[Any]) -> bool:
        """Create what is missing; False where we may not (a replica, or without the rights)."""
        try:
            if _is_read_only(connection):
                return False
            if not self.is_there(connection):
                for statement in _CREATE:
                    query(connection, statement)
            if self.identity(connection) is None:
                query(
                    connection,
                    f"INSERT INTO {_WATERMARK} (source, id) VALUES ({self._source}, '{uuid.uuid4()}')",
                )
        except pymysql.Error as error:
            if is_transient(code_of(error)) and code_of(error) != _READ_ONLY:
                raise
            return False
        return True

    def is_writable(self, connection: Connection[Any]) -> bool:
        """Tell whether our row is there and may be written: never on a replica, whatever the rights.

        What is written there would be a transaction of its own, which the other servers never get.
        """
        try:
            if _is_read_only(connection) or self.identity(connection) is None:
                return False
            self.try_writing(connection)
        except pymysql.Error as error:
            if is_transient(code_of(error)) and code_of(error) != _READ_ONLY:
                raise
            return False
        return True

    def is_there(self, connection: Connection[Any]) -> bool:
        """Tell whether both tables are there and readable."""
        found = rows(
            connection,
            f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{OWN_DATABASE}'"
            " AND table_name IN ('watermark', 'untold')",
        )
        return len(found) == 2

    def try_writing(self, connection: Connection[Any]) -> None:
        """Run a write of each kind that changes nothing; the driver's error where one is refused."""
        query(connection, f"UPDATE {_WATERMARK} SET barrier = barrier WHERE 1 = 0")
        query(connection, f"INSERT INTO {_UNTOLD} SELECT * FROM {_UNTOLD} WHERE 1 = 0")

    def identity(self, connection: Connection[Any]) -> str | None:
        """Give the id that this database and its replicas share; None where there is none."""
        if not self.is_there(connection):
            return None
        found = row(connection, f"SELECT id FROM {_WATERMARK} WHERE {self._is_ours}")
        return str(found[0]) if found else None

    def raise_barrier(self, connection: Connection[Any]) -> bool:
        """Commit a write: on return, all that is before it in the log is visible. False without a row."""
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {_WATERMARK} SET barrier = barrier + 1 WHERE {self._is_ours}")
            return bool(cursor.rowcount == 1)

    def birth(self, connection: Connection[Any]) -> Birth | None:
        """Give the log file that was written down last."""
        if not self.is_there(connection):
            return None
        found = row(
            connection,
            f"SELECT log_server, log_file, log_created FROM {_WATERMARK} WHERE {self._is_ours}"
            " AND log_file IS NOT NULL",
        )
        return Birth(str(found[0]), int(found[1]), int(found[2])) if found else None

    def note_birth(self, connection: Connection[Any], birth: Birth) -> None:
        """Write a log file down."""
        query(
            connection,
            f"UPDATE {_WATERMARK} SET log_server = {literal(birth.server)}, log_file = {birth.file},"
            f" log_created = {birth.created} WHERE {self._is_ours}",
        )

    def note_untold(
        self, connection: Connection[Any], table: TableName, epoch: int, lsn: int, reason: str
    ) -> None:
        """Write down that a table's rows changed at a place in the log without row events."""
        self._noted[table] = epoch, lsn, reason
        namespace, name = (f"X'{part.encode().hex()}'" for part in table)
        told = f"X'{reason.encode()[:500].hex()}'"
        query(
            connection,
            f"INSERT INTO {_UNTOLD} VALUES ({self._source}, {namespace}, {name}, {epoch}, {lsn}, {told})"
            f" ON DUPLICATE KEY UPDATE reason = {told}, epoch = {epoch}, lsn = {lsn}",
        )

    def note_again(self, connection: Connection[Any]) -> None:
        """Write down what was so before, where it is not there: a failover may have lost it."""
        known = self.untold(connection)
        for table, (epoch, lsn, reason) in list(self._noted.items()):
            if known.get(table) != _fingerprint(epoch, lsn):
                self.note_untold(connection, table, epoch, lsn, reason)

    def untold(self, connection: Connection[Any]) -> dict[TableName, str]:
        """Give the fingerprint of each table that is written down: where it changed last."""
        if not self.is_there(connection):
            return {}
        found = rows(connection, f"SELECT namespace, name, epoch, lsn FROM {_UNTOLD} WHERE {self._is_ours}")
        return {TableName(_text(s), _text(n)): _fingerprint(epoch, lsn) for s, n, epoch, lsn in found}


_READ_ONLY = 1836


def _is_read_only(connection: Connection[Any]) -> bool:
    found = row(connection, "SELECT @@global.read_only")
    return (found is not None and str(found[0]) not in ("0", "OFF")) or is_replica(connection)


def _fingerprint(epoch: int, lsn: int) -> str:
    return f"{epoch}:{lsn}"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
