"""The MariaDB and MySQL servers of a test run, started on first use; a database per test."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER, FIELD_TYPE

from connector.config import SourceConfig, TableConfig
from connector.demo.servers.mariadb import MariadbServer
from connector.mysql.connection import parse_url
from connector.mysql.dump import MysqlTables
from connector.mysql.log.reader import MysqlLog
from connector.mysql.source import MysqlSource
from connector.schema import TableName
from connector.source import KeyRange, ResumePoint
from tests.support.postgres_source import events, ops, quarantines
from tests.support.servers.mysql_server import MysqlServer
from tests.support.waiting import wait_until

__all__ = ["MariaDatabase", "chunk_rows", "events", "following", "opened", "ops", "read_rows", "read_to"]
__all__ += ["quarantines", "source_of"]

Row = dict[str, Any]


# Tests are written in MariaDB's dialect; what MySQL says otherwise.
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
# The same of releases from 8.2 on.
_MYSQL_82 = (
    (r"SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"),
    (r"RESET MASTER", "RESET BINARY LOGS AND GTIDS"),
)


@dataclass(frozen=True)
class MariaDatabase:
    """One test's own database: `execute` for set-up, `connect` for sessions that a test holds open.

    What scenarios for all databases ask for is at the end: see `tests.support.tested_database`.
    """

    server: MariadbServer | MysqlServer
    name: str
    lost = (pymysql.err.OperationalError, pymysql.err.InterfaceError)

    @property
    def is_mysql(self) -> bool:
        """Whether the server is MySQL."""
        return isinstance(self.server, MysqlServer)

    @property
    def is_old(self) -> bool:
        """Whether the server is MySQL 8.0."""
        return isinstance(self.server, MysqlServer) and self.server.release == "8.0"

    @property
    def url(self) -> str:
        """As the all-mighty user, over TCP."""
        return self.server.url(database=self.name)

    def connect(self, url: str | None = None) -> Connection[Any]:
        """A new session in UTC, autocommit; the test closes it, or the end of the server does."""
        return pymysql.connect(
            **parse_url(url or self.url),
            charset="utf8mb4",
            autocommit=True,
            init_command="SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'"
            + (", cte_max_recursion_depth = 1000000" if self.is_mysql else ""),
        )

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in a session of their own; the rows of the last."""
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
        return end_of_log(self)

    def all_sent(self, end: int) -> bool:
        with self.connect() as connection:
            threads = self._sessions(connection)
        states = [state for _, command, state in threads if command.startswith("Binlog Dump")]
        return bool(states) and all("has sent all binlog" in state for state in states)

    def end_sessions(self) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            for number, *_ in self._sessions(connection):
                with contextlib.suppress(pymysql.Error):  # it has ended by itself
                    cursor.execute(f"KILL {number}")

    def _sessions(self, ours: Connection[Any]) -> list[tuple[int, str, str]]:
        """Id, command and state of the sessions in this database, and of those that read the log."""
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
def fresh_database(server: MariadbServer | MysqlServer, name: str) -> Iterator[MariaDatabase]:
    """A new database, dropped at the end."""
    database = MariaDatabase(server, name)
    MariaDatabase(server, "").execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
    try:
        yield database
    finally:
        if server.running:
            MariaDatabase(server, "").execute(f"DROP DATABASE IF EXISTS `{name}`")


def reader_of(database: MariaDatabase) -> str:
    """The url of a new user who may read the log and this database, and write nothing."""
    user = f"reader{secrets.token_hex(4)}"
    client = "REPLICATION CLIENT" if database.is_mysql else "BINLOG MONITOR"
    database.execute(
        f"CREATE USER {user} IDENTIFIED BY 'secret'",
        f"GRANT REPLICATION SLAVE, {client} ON *.* TO {user}",
        f"GRANT SELECT ON `{database.name}`.* TO {user}",
    )
    return database.server.url(user=user, password="secret", database=database.name)


def source_of(
    database: MariaDatabase,
    tables: Sequence[str] = (),
    keys: Mapping[str, Sequence[str]] | None = None,
    *,
    url: str | None = None,
) -> MysqlSource:
    """A source of all tables of the database, named after it."""
    config = SourceConfig.model_validate(
        {
            "name": "t" + database.name.replace("_", "-")[-40:],
            "kind": "mariadb",
            "url": url or database.url,
            "tables": list(tables) or [f"{database.name}.*"],
        }
    )
    return MysqlSource(
        config, {TableName.parse(name): TableConfig(key=list(key)) for name, key in (keys or {}).items()}
    )


@contextlib.contextmanager
def following(source: MysqlSource) -> Iterator[MysqlLog]:
    """The log from a new history on."""
    source.prepare()
    with opened(source, source.begin_history(fresh=False)) as log:
        yield log


@contextlib.contextmanager
def opened(source: MysqlSource, history: ResumePoint) -> Iterator[MysqlLog]:
    """The log behind the history's position."""
    log = source.open_log(1, history)
    try:
        yield log
    finally:
        log.close()
        source.close()


def read_rows(log: MysqlLog, rows: int) -> Any:
    """Read until so many whole rows events are held, and take them."""

    def enough() -> bool:
        log.read(0.05, 64 << 20)
        return log.buffered_rows >= rows

    wait_until(enough, f"{rows} rows events are read")
    return log.take()


def read_to(log: MysqlLog, position: int) -> None:
    """Read until the position is reached."""

    def reached() -> bool:
        log.read(0.05, 64 << 20)
        return log.position >= position

    wait_until(reached, f"position {position} is reached")


def end_of_log(database: MariaDatabase) -> int:
    """Where the server's log ends now."""
    file, offset = database.execute("SHOW MASTER STATUS")[0][:2]
    return int(file.rpartition(".")[2]) << 32 | offset


def read_all(database: MariaDatabase, log: MysqlLog) -> list[Row]:
    """Everything up to the present end of the log, as events in order."""
    read_to(log, end_of_log(database))
    return events(log.take())


def chunk_rows(
    tables: MysqlTables, table: str, key_range: KeyRange | None = None, where: str | None = None
) -> list[Row]:
    """The rows of a chunk."""
    import pyarrow as pa

    with tables.open_chunk(TableName.parse(table), key_range or KeyRange(), where) as chunk:
        names = [column.name for column in chunk.schema.columns]
        return [row for some in chunk.rows() for row in pa.table(some.columns, names).to_pylist()]
