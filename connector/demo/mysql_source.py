"""MariaDB and MySQL for the demo. A TRUNCATE ends its transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from connector.demo.servers.mariadb import MariadbServer
from connector.demo.servers.mysql import MysqlServer
from connector.demo.source import ROWS_AT_ONCE, Dialect, Row
from connector.mysql.connection import parse_url
from connector.mysql.server import end_of_log, find_server, position_of

DATABASE = "shop"

SESSION = "SET time_zone = '+00:00', sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,STRICT_ALL_TABLES'"
MYSQL_SESSION = f"{SESSION}, cte_max_recursion_depth = 100000000, group_concat_max_len = 65536"

MARIADB = Dialect(
    types={
        "text": "varchar(200)",
        "moment": "timestamp(6)",
        "local_time": "datetime(6)",
        "uuid": "uuid",
        "labels": "set('a0', 'a1', 'a2', 'a3', 'a4', 'a5', 'a6', 'a7', 'a8', 'a9', 'ein Maß', 'final')",
        "json": "json",
    },
    now="now(6)",
    new_uuid="uuid()",
    series="(SELECT seq AS {name} FROM seq_{first}_to_{last}) {name}_series",
    later="timestamp '{base}' + INTERVAL ({seconds}) SECOND",
    digest="md5({text})",
    joined="group_concat({text} SEPARATOR '')",
    json_object="json_object",
    some_labels="'a' || (i % 10) || ',ein Maß'",
    final_labels="'final'",
    replace_body="ON DUPLICATE KEY UPDATE body = VALUES(body)",
    analyze="ANALYZE LOCAL TABLE {tables}",
)

_COUNT = "WITH RECURSIVE c(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM c WHERE n < {last})"
MYSQL = replace(
    MARIADB,
    types={**MARIADB.types, "uuid": "char(36)"},
    series=f"({_COUNT} SELECT n AS {{name}} FROM c) {{name}}_series",
    digest="left(sha2({text}, 256), 32)",  # releases from 9.6 on have no md5
)


class MysqlSource:
    """A server with the shop's database; implements `connector.demo.source.DemoSource`."""

    namespace = DATABASE

    def __init__(self, server: MariadbServer) -> None:
        if isinstance(server, MysqlServer):
            self.title, self.kind, self.dialect, self._session = "MySQL", "mysql", MYSQL, MYSQL_SESSION
        else:
            self.title, self.kind, self.dialect, self._session = "MariaDB", "mariadb", MARIADB, SESSION
        self.url, self.password = server.url(), server.password
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
            cursor.execute("SELECT version()")
            self.version = cursor.fetchone()[0].partition("-")[0]
        self.url = server.url(database=DATABASE)

    @classmethod
    @contextmanager
    def start(cls, kind: str, folder: Path) -> Iterator[MysqlSource]:
        """Start the server; it stops at the end of the block."""
        programs = MysqlServer if kind == "mysql" else MariadbServer
        with programs.start(folder) as server:
            yield cls(server)

    def connect(self) -> Any:
        """Open a session."""
        return pymysql.connect(**parse_url(self.url), charset="utf8mb4", init_command=self._session)

    def end_of_log(self, connection: Any) -> int:
        """Return the position after the last commit."""
        return position_of(*end_of_log(connection, find_server(connection)))

    def selected(self, column: str, data_type: str) -> str:
        """Build the SELECT expression of a column."""
        return f"CAST({column} AS char)" if data_type == "uuid" else column

    def ordered(self, column: str, data_type: str) -> str:
        """Build the ORDER BY expression of a column."""
        as_text = data_type in ("uuid", "char", "varchar", "text")
        return f"CAST({column} AS char CHARACTER SET utf8mb4) COLLATE utf8mb4_bin" if as_text else column

    def read(self, connection: Any, query: str) -> Iterator[list[Row]]:
        """Read rows as the server sends them."""
        with connection.cursor(SSCursor) as cursor:
            cursor.execute(query)
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                yield list(rows)
