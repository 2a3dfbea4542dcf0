"""A database per test on a MariaDB or MySQL server of the test run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timezone
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER, FIELD_TYPE

from connector.demo.servers.mariadb import MariadbServer
from connector.demo.servers.mysql import MysqlServer
from connector.mysql.connection import parse_url
from connector.schema import TableName
from tests.support.servers.mysql_server import is_mysql
from tests.support.waiting import wait_until

# Committed data survives a kill of the server, as it must wherever the log is to be trusted; a crash of the
# machine is not what tests are about, so nothing waits for the disk. The query cache must not matter.
DURABLE_SETTINGS = {
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-flush-method": "nosync",
    "debug-no-sync": "1",
    "query-cache-type": "1",
}

# Tests are written in MariaDB's dialect; these patterns translate it for MySQL.
_MYSQL = (
    (
        r"FROM seq_(\d+)_to_(\d+)",
        r"FROM (WITH RECURSIVE s(seq) AS (SELECT \1 UNION ALL SELECT seq + 1 FROM s WHERE seq < \2)"
        r" SELECT seq FROM s) q",
    ),
    (r"SET GLOBAL log_bin_compress", "SET GLOBAL binlog_transaction_compression"),
    (r"binlog_row_metadata = NO_LOG", "binlog_row_metadata = MINIMAL"),
    (r"BINLOG MONITOR", "REPLICATION CLIENT"),
)
# More patterns for MySQL 8.2 and later.
_MYSQL_82 = (
    (r"SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"),
    (r"RESET MASTER", "RESET BINARY LOGS AND GTIDS"),
)


@dataclass(frozen=True)
class MysqlDatabase:
    """One test's database: `execute` for set-up, `connect` for sessions that a test holds open.

    The members from `kind` on implement `tests.support.source.tested_database`.
    """

    server: MariadbServer
    name: str
    lost = (pymysql.err.OperationalError, pymysql.err.InterfaceError)

    @property
    def is_mysql(self) -> bool:
        """Return whether the server is MySQL."""
        return is_mysql(self.server)

    @property
    def is_old(self) -> bool:
        """Return whether the server is MySQL 8.0."""
        return isinstance(self.server, MysqlServer)

    @property
    def url(self) -> str:
        """Return the URL of the user with all privileges, over TCP."""
        return self.server.url(database=self.name)

    def connect(self, url: str | None = None) -> Connection[Any]:
        """Open a session in UTC with autocommit; the test closes it, or the server when it stops."""
        return pymysql.connect(
            **parse_url(url or self.url),
            charset="utf8mb4",
            autocommit=True,
            init_command="SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'"
            + (", cte_max_recursion_depth = 1000000" if self.is_mysql else ""),
        )

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in a new session; return the rows of the last."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(self._translated(statement))
            return list(cursor.fetchall())

    def _translated(self, statement: str) -> str:
        patterns = _MYSQL if self.is_mysql else ()
        for pattern, replacement in patterns + (_MYSQL_82 if self.is_mysql and not self.is_old else ()):
            statement = re.sub(pattern, replacement, statement)
        return statement

    @property
    def kind(self) -> str:
        return "mysql" if self.is_mysql else "mariadb"

    @property
    def namespace(self) -> str:
        return self.name

    @property
    def port(self) -> int:
        return self.server.port

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "url": self.url}

    def script(self, text: str) -> None:
        statements = ["BEGIN", *filter(str.strip, text.split(";")), "COMMIT"]

        def done() -> bool:
            try:
                self.execute(*statements)
            except pymysql.err.OperationalError as error:
                if error.args[0] != ER.LOCK_DEADLOCK:
                    raise
                return False
            return True

        wait_until(done, "it is not the victim of a deadlock")

    def session(self) -> Connection[Any]:
        connection = self.connect()
        connection.autocommit(False)
        return connection

    def changed_unseen(self, statements: str) -> None:
        self.execute("SET sql_log_bin = 0", *filter(str.strip, statements.split(";")))

    def end_of_log(self) -> int:
        """Return the position at the current end of the server's log."""
        file, offset = self.execute("SHOW MASTER STATUS")[0][:2]
        return int(file.rpartition(".")[2]) << 32 | offset

    def all_sent(self, end: int) -> bool:
        with self.connect() as connection:
            threads = self._sessions(connection)
        states = [state for _, command, state in threads if command.startswith("Binlog Dump")]
        return bool(states) and all("has sent all binlog" in state for state in states)

    def end_sessions(self) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            for number, *_ in self._sessions(connection):
                with contextlib.suppress(pymysql.Error):  # it may have ended already
                    cursor.execute(f"KILL {number}")

    def _sessions(self, ours: Connection[Any]) -> list[tuple[int, str, str]]:
        """Return id, command and state of the sessions in this database, and of those that read the log."""
        with ours.cursor() as cursor:
            cursor.execute(
                "SELECT id, command, coalesce(state, '') FROM information_schema.processlist"
                f" WHERE id <> connection_id() AND (command LIKE 'Binlog Dump%' OR db = '{self.name}')"
            )
            return list(cursor.fetchall())

    def crash(self) -> None:
        self.server.stop(crash=True)

    def restart(self) -> None:
        self.server.restart()

    def columns(self, table: str) -> dict[str, str]:
        namespace, name = TableName.parse(table)
        found = self.execute(
            "SELECT column_name, data_type FROM information_schema.columns"
            f" WHERE table_schema = '{namespace}' AND table_name = '{name}'"
            " AND coalesce(generation_expression, '') = '' ORDER BY 1"
        )
        as_text = {"json", "time", "enum", "set"}
        selected = {"bit": "`{}` + 0", **dict.fromkeys(as_text, "CAST(`{}` AS char)")}
        return {c: selected.get(type_, "`{}`").format(c) for c, type_ in found}

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(self._translated(statement))
            moments = [column[1] == FIELD_TYPE.TIMESTAMP for column in cursor.description or ()]
            return [
                tuple(
                    v.replace(tzinfo=timezone.utc) if m and v else v
                    for v, m in zip(row, moments, strict=True)
                )
                for row in cursor.fetchall()
            ]


@contextlib.contextmanager
def fresh_database(server: MariadbServer, name: str) -> Iterator[MysqlDatabase]:
    """Create a new database; drop it at the end."""
    database = MysqlDatabase(server, name)
    MysqlDatabase(server, "").execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
    try:
        yield database
    finally:
        if server.running:
            MysqlDatabase(server, "").execute(f"DROP DATABASE IF EXISTS `{name}`")
