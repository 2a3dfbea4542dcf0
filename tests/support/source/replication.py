"""A primary and a replica of one kind to fail over to, with GTIDs and parallel replication."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest

from connector.demo.servers.mariadb import INSTALL_HINT, MariadbServer, find_programs
from tests.support.servers.copied_data import CopiedMariadbServer, CopiedMysqlServer
from tests.support.servers.mysql_database import DURABLE_SETTINGS, MysqlDatabase
from tests.support.servers.mysql_server import find_root
from tests.support.waiting import wait_until

MARIADB = {
    "log-slave-updates": "ON",
    "slave-parallel-threads": "4",
    "slave-parallel-mode": "optimistic",
    **DURABLE_SETTINGS,
}
MYSQL = {"replica-parallel-workers": "4", "replica-preserve-commit-order": "OFF"}
"""A replica may commit in another order than its primary's log."""


@dataclass
class Replicated:
    """One database on two servers."""

    primary: MysqlDatabase
    replica: MysqlDatabase

    def wait_applied(self) -> None:
        """Wait until the replica has applied everything from the primary."""
        if self.primary.is_mysql:
            done = self.primary.execute("SELECT @@global.gtid_executed")[0][0]
            waited = self.replica.execute(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{done}', 60)")
        else:
            done = self.primary.execute("SELECT @@global.gtid_binlog_pos")[0][0]
            waited = self.replica.execute(f"SELECT MASTER_GTID_WAIT('{done}', 60)")
        assert waited == [(0,)], f"the replica has not applied {done}; see its log"

    def stop(self) -> None:
        """Stop replication, to go on later."""
        self.replica.execute(*(["STOP REPLICA"] if self.primary.is_mysql else ["STOP SLAVE"]))

    def promote(self) -> None:
        """End replication: the replica is no longer one."""
        self.stop()
        self.replica.execute("RESET REPLICA ALL" if self.primary.is_mysql else "RESET SLAVE ALL")

    def fail_over(self) -> None:
        """Promote the replica, and crash the primary."""
        self.promote()
        self.primary.server.stop(crash=True)

    def start(self) -> None:
        """Start or resume replication."""
        self.replica.execute(*(["START REPLICA"] if self.primary.is_mysql else ["START SLAVE"]))

    def turn_around(self) -> Replicated:
        """Make the former primary a replica of the promoted one, from where they parted; return the pair."""
        turned = Replicated(self.replica, self.primary)
        if not self.primary.is_mysql:
            parted = self.replica.execute("SELECT @@global.gtid_slave_pos")[0][0]
            turned.replica.execute(f"SET GLOBAL gtid_slave_pos = '{parted}'")
        turned.replica.execute(_follow(turned.primary))
        turned.start()
        return turned


def _follow(primary: MysqlDatabase) -> str:
    """Build the statement that makes a server a replica."""
    port, password = primary.server.port, primary.server.password
    if primary.is_mysql:
        return (
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_AUTO_POSITION = 1,"
            f" SOURCE_PORT = {port}, SOURCE_USER = 'deltatide', SOURCE_PASSWORD = '{password}',"
            " SOURCE_CONNECT_RETRY = 1, GET_SOURCE_PUBLIC_KEY = 1"
        )
    return (
        "CHANGE MASTER TO master_host = '127.0.0.1', master_use_gtid = slave_pos,"
        f" master_port = {port}, master_user = 'deltatide', master_password = '{password}',"
        " master_connect_retry = 1"
    )


@contextlib.contextmanager
def replicated(kind: str, folder: Path, name: str) -> Iterator[Replicated]:
    """Start two replicating servers with a fresh database; skip the test if their programs are missing."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(own_server(kind, folder, number)) for number in (1, 2)]
        primary, replica = (MysqlDatabase(server, "") for server in servers)
        password = servers[0].password
        replica.execute("SET sql_log_bin = 0", f"ALTER USER deltatide IDENTIFIED BY '{password}'")
        servers[1].password = password
        for database in (primary, replica):
            database.execute("RESET MASTER")
        if primary.is_mysql:
            replica.execute(_follow(primary))
        else:
            replica.execute("SET GLOBAL gtid_slave_pos = ''", _follow(primary))
        pair = Replicated(MysqlDatabase(servers[0], name), MysqlDatabase(servers[1], name))
        Replicated(primary, replica).start()
        primary.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")

        def arrived() -> bool:
            with contextlib.suppress(pymysql.Error):
                return bool(pair.replica.execute("SELECT 1"))
            return False

        wait_until(arrived, "the replica has the database", seconds=60)
        yield pair


def own_server(kind: str, folder: Path, number: int) -> MariadbServer:
    """Start a server for one test, with GTIDs; skip the test if its programs are missing."""
    if kind == "mysql":
        root = find_root()
        if root is None:
            pytest.skip(
                "MySQL is not installed: .ci/fetch-servers makes .cache/mysql, as root, with debootstrap"
            )
        settings = {"server-id": str(number), **MYSQL}
        return CopiedMysqlServer.start(folder / f"{kind}-{number}", settings=settings, base=root)
    if find_programs() is None:
        pytest.skip(f"MariaDB is not installed: {INSTALL_HINT}")
    settings = {"server-id": str(number), **MARIADB}
    return CopiedMariadbServer.start(folder / f"{kind}-{number}", settings=settings)
