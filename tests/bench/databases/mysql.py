"""MariaDB and MySQL under measurement, compared with their own clients."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pymysql

from connector.demo.servers.mariadb import INSTALL_HINT, MariadbServer, find_programs
from connector.errors import PreconditionError
from connector.mysql.connection import parse_url
from connector.mysql.server import end_of_log, find_server, position_of
from connector.position import unpack_binlog_position
from tests.bench.databases.database import Database, Server, SqlTables, timed
from tests.support.servers.mysql_server import ChrootedMysqlServer, find_root, is_mysql

SETTINGS = {
    "innodb-buffer-pool-size": "512M",
    "sync-binlog": "0",
    "max-binlog-size": "1G",
    "innodb-flush-log-at-trx-commit": "0",
}
MARIADB_SETTINGS = {**SETTINGS, "innodb-log-file-size": "512M"}
MYSQL_SETTINGS = {**SETTINGS, "innodb-redo-log-capacity": "1G"}

COLUMNS = """id bigint PRIMARY KEY, quantity int, price numeric(12,2), changed_at datetime(6),
    code varchar(40), name varchar(40), city varchar(40), note varchar(40), active boolean, weight double"""

ROW = """n, n % 1000, (n % 100000) / 100.0, timestamp '2026-01-01 00:00:00' + INTERVAL n SECOND,
    concat('code-', n % 997), left(sha2(n, 256), 14), concat('city ', n % 5000), left(sha2(n * 7, 256), 16),
    n % 2 = 0, n * 0.37"""
"""A row generated from the number `n`."""


class MysqlDatabase(SqlTables):
    """The database of one measurement."""

    reader = "mariadb -q -e 'SELECT *'"
    columns, analyze = COLUMNS, "ANALYZE LOCAL TABLE"

    def __init__(self, server: MariadbServer, name: str) -> None:
        self._server, self._name = server, name
        self.kind = "mysql" if is_mysql(server) else "mariadb"
        self.decoder = "mysqlbinlog -v" if self.kind == "mysql" else "mariadb-binlog -v"
        self.tables = f"{name}.*"
        self.urls: Mapping[str, str] = {"TCP": server.url(database=name)}
        self._mark = 0

    def write_changes(self, table: str, first: int, last: int) -> None:
        """Write transactions `first` to `last`."""
        with self._session() as cursor:
            for number in range(first, last + 1):
                row = number * 60
                cursor.execute("BEGIN")
                cursor.execute(self._insert(table, row + 1, row + 60))
                cursor.execute(
                    f"UPDATE {table} SET quantity = quantity + 1, changed_at = changed_at + INTERVAL 1 DAY"
                    f" WHERE id BETWEEN {row + 1} AND {row + 30}"
                )
                cursor.execute(f"DELETE FROM {table} WHERE id BETWEEN {row + 51} AND {row + 60}")
                cursor.execute("COMMIT")

    def end_of_log(self) -> int:
        """Return the position after the last commit."""
        with closing(self._connect()) as connection:
            return position_of(*end_of_log(connection, find_server(connection)))

    def mark(self) -> None:
        """Remember the end of the log; what follows must be in one file, because the decoder reads one."""
        self._mark = self.end_of_log()

    def rewind(self) -> None:
        """Do nothing: the position is in the landing zone."""

    def forget(self) -> None:
        """Do nothing: the next agent finds its small table."""

    def decode_log(self, url: str, end: int) -> float:
        """Decode the log file with mariadb-binlog or mysqlbinlog, output discarded; return the seconds."""
        (first, start), (last, stop) = unpack_binlog_position(self._mark), unpack_binlog_position(end)
        if first != last:
            raise PreconditionError(f"the log goes from file {first} to file {last}")
        program, file = self._decoder(f"binlog.{first:06}")
        return timed([*program, "-v", f"--start-position={start}", f"--stop-position={stop}", file])

    def read_table(self, table: str) -> float:
        """Read a table with the client, output discarded; return the seconds."""
        where = parse_url(self.urls["TCP"])
        command = [
            "mariadb",
            "--no-defaults",
            "--protocol=tcp",
            "-q",
            "-h",
            where["host"],
            "-P",
            where["port"],
        ]
        command += ["-u", where["user"], "-D", self._name, "-e", f"SELECT * FROM {table}"]
        return timed(list(map(str, command)), {"MYSQL_PWD": where["password"]})

    def _decoder(self, file: str) -> tuple[list[str], str]:
        """Return the decoder's command, and the log file's path as that command sees it."""
        if isinstance(self._server, ChrootedMysqlServer):
            with self._session() as cursor:
                cursor.execute("SELECT @@datadir")
                data = cursor.fetchall()[0][0]
            return ["chroot", str(self._server.root), "mysqlbinlog", "--no-defaults"], f"{data}{file}"
        return ["mariadb-binlog", "--no-defaults"], str(self._server.data_dir / file)

    def _insert(self, table: str, first: int, last: int) -> str:
        if self.kind == "mariadb":
            series = f"(SELECT seq AS n FROM seq_{first}_to_{last}) s"
        else:
            count = f"SELECT {first} UNION ALL SELECT n + 1 FROM c WHERE n < {last}"
            series = f"(WITH RECURSIVE c(n) AS ({count}) SELECT n FROM c) s"
        return f"INSERT INTO {table} SELECT {ROW} FROM {series}"

    @contextmanager
    def _session(self) -> Iterator[Any]:
        with closing(self._connect()) as connection, connection.cursor() as cursor:
            if self.kind == "mysql":
                cursor.execute("SET SESSION cte_max_recursion_depth = 100000000")
            yield cursor

    def _connect(self) -> Any:
        return pymysql.connect(**parse_url(self.urls["TCP"]), charset="utf8mb4", autocommit=True)


class MysqlBench:
    """A running MariaDB or MySQL server."""

    def __init__(self, server: MariadbServer) -> None:
        self.targets: Mapping[str, float] = {"capture": 0.6, "dump": 0.5}
        self.title = "MySQL" if is_mysql(server) else "MariaDB"
        self._server = server
        with closing(pymysql.connect(**parse_url(server.url()))) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT version()")
            self.version = str(cursor.fetchall()[0][0]).partition("-")[0]

    @contextmanager
    def database(self, name: str) -> Iterator[Database]:
        """Create a fresh database and start a new log file; drop the database at the end."""
        with closing(pymysql.connect(**parse_url(self._server.url()))) as connection:
            with connection.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
                cursor.execute("FLUSH BINARY LOGS")
        try:
            yield MysqlDatabase(self._server, name)
        finally:
            with closing(pymysql.connect(**parse_url(self._server.url()))) as connection:
                with connection.cursor() as cursor:
                    cursor.execute(f"DROP DATABASE {name}")


@contextmanager
def started_mariadb(folder: Path) -> Iterator[Server]:
    """Start MariaDB; stop it at the end of the block."""
    _require_client()
    if find_programs() is None:
        raise PreconditionError("no MariaDB server is installed", hint=INSTALL_HINT)
    with MariadbServer.start(folder / "mariadb", settings=MARIADB_SETTINGS) as server:
        yield MysqlBench(server)


@contextmanager
def started_mysql(folder: Path) -> Iterator[Server]:
    """Start MySQL; stop it at the end of the block."""
    _require_client()
    root = find_root()
    if root is None:
        raise PreconditionError("MySQL is not there", hint=".ci/fetch-servers, as root on Debian")
    with ChrootedMysqlServer.start(folder / "mysql", settings=MYSQL_SETTINGS, base=root) as server:
        yield MysqlBench(server)


def _require_client() -> None:
    for program in ("mariadb", "mariadb-binlog"):
        if shutil.which(program) is None:
            raise PreconditionError(f"{program} is not installed", hint="apt-get install mariadb-client")
