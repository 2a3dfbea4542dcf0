"""Our own small table at the source: proof of where the log began, and a row to write to.

``deltatide.watermark``: one row per source name: the barrier that a chunk's low watermark rests on, an id
that replicas share, and the log file last read with its creation time, which reveals a RESET or another
server.

Invariants:

- The file is recorded only when a log is opened or continues in the next file, so after a manifest.
- Nobody needs its last writes: a failover that lost them is not a gap.

One rule says when it is written: on a server that is certainly a primary (`is_primary`) and permits it. On a
replica, our writes would be transactions of its own, which the other servers lack, and which may break its
replication. A server whose role we may not query counts as a replica, and so does one whose replication is
stopped. The rights are tested by no-op writes when a log is opened and when a server becomes a primary. Other
sessions' locks (FLUSH TABLES WITH READ LOCK) never change the answer: a write that is not urgent is
postponed, others wait. If the table is missing or not writable, everything still works, except that low
watermarks need GTIDs (MySQL) or time instead of the barrier (`connector.mysql.log.visibility`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection

from connector.mysql.catalog import LOCKED
from connector.mysql.connection import (
    READ_ONLY,
    brief_wait,
    code_of,
    is_transient,
    literal,
    query,
    row,
    rows,
)
from connector.mysql.log.schema_cache import OWN_DATABASE, WATERMARK
from connector.mysql.server import is_primary

_WATERMARK = str(WATERMARK)

RIGHTS = ("CREATE", "SELECT", "INSERT", "UPDATE")
GRANT = f"GRANT {', '.join(RIGHTS)} ON {OWN_DATABASE}.*"

_CREATE = (
    f"CREATE DATABASE IF NOT EXISTS {OWN_DATABASE}",
    f"CREATE TABLE IF NOT EXISTS {_WATERMARK} (source VARCHAR(64) CHARACTER SET ascii PRIMARY KEY,"
    " id CHAR(36) CHARACTER SET ascii NOT NULL, barrier BIGINT UNSIGNED NOT NULL DEFAULT 0,"
    " log_server VARCHAR(80) CHARACTER SET ascii, log_file BIGINT UNSIGNED, log_created BIGINT UNSIGNED)"
    " ENGINE = InnoDB",
)


@dataclass(frozen=True)
class RecordedFile:
    """A log file that was read: its server, number and creation time (seconds since 1970)."""

    server: str
    file: int
    created: int


class StateTable:
    """The table for one source name; every method takes the connection to use.

    `landed_id`: the id that the landing zone has from before the table existed, if it is this database's.
    """

    def __init__(self, source: str) -> None:
        self._is_ours = f"source = {literal(source)}"
        self._source = literal(source)
        self.landed_id: str | None = None

    def create(self, connection: Connection[Any]) -> bool:
        """Create what is missing; return False if not allowed (a replica, or missing rights)."""
        try:
            if not is_primary(connection):
                return False
            if not self.is_there(connection):
                for statement in _CREATE:
                    query(connection, statement)
            if self.identity(connection) is None:
                new = literal(self.landed_id or str(uuid.uuid4()))
                query(connection, f"INSERT INTO {_WATERMARK} (source, id) VALUES ({self._source}, {new})")
        except pymysql.Error as error:
            if is_transient(code_of(error)) and code_of(error) not in READ_ONLY:
                raise
            return False
        return True

    def is_writable(self, connection: Connection[Any], was: bool | None = None) -> bool:
        """Return whether our row exists and may be written.

        `was`: the previous answer, if any. If it was True, the rights are not tested again, and if locks keep
        us from testing them, the previous answer stands.
        """
        try:
            if not is_primary(connection) or self.identity(connection) is None:
                return False
            if not was:
                with brief_wait(connection):
                    self.try_writing(connection)
        except pymysql.Error as error:
            if was is not None and code_of(error) in LOCKED:
                return was
            if is_transient(code_of(error)) and code_of(error) not in READ_ONLY:
                raise
            return False
        return True

    def is_there(self, connection: Connection[Any]) -> bool:
        """Return whether the table exists and is readable."""
        found = rows(
            connection,
            f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{OWN_DATABASE}'"
            f" AND table_name = '{WATERMARK.name}'",
        )
        return bool(found)

    def try_writing(self, connection: Connection[Any]) -> None:
        """Run a no-op write of each kind; raise the driver's error if one is refused."""
        query(connection, f"UPDATE {_WATERMARK} SET barrier = barrier WHERE 1 = 0")
        query(connection, f"INSERT INTO {_WATERMARK} SELECT * FROM {_WATERMARK} WHERE 1 = 0")

    def identity(self, connection: Connection[Any]) -> str | None:
        """Return the id that this database and its replicas share; None without one."""
        if not self.is_there(connection):
            return None
        found = row(connection, f"SELECT id FROM {_WATERMARK} WHERE {self._is_ours}")
        return str(found[0]) if found else None

    def raise_barrier(self, connection: Connection[Any]) -> bool:
        """Commit a write: on return, everything before it in the log is visible. False if there is no row."""
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {_WATERMARK} SET barrier = barrier + 1 WHERE {self._is_ours}")
            return bool(cursor.rowcount == 1)

    def recorded_file(self, connection: Connection[Any]) -> RecordedFile | None:
        """Return the log file recorded last."""
        if not self.is_there(connection):
            return None
        found = row(
            connection,
            f"SELECT log_server, log_file, log_created FROM {_WATERMARK} WHERE {self._is_ours}"
            " AND log_file IS NOT NULL",
        )
        return RecordedFile(str(found[0]), int(found[1]), int(found[2])) if found else None

    def record_file(self, connection: Connection[Any], file: RecordedFile) -> bool:
        """Record a log file; return False if locks prevent it now, which is harmless for a while."""
        try:
            with brief_wait(connection):
                query(
                    connection,
                    f"UPDATE {_WATERMARK} SET log_server = {literal(file.server)}, log_file = {file.file},"
                    f" log_created = {file.created} WHERE {self._is_ours}",
                )
        except pymysql.Error as error:
            if code_of(error) not in LOCKED:
                raise
            return False
        return True
