"""Throwaway MySQL servers for tests, from programs that ``.ci/fetch-servers`` has fetched.

MySQL 9 is a folder with Debian's mysql-server-core and its dependencies (created as root, by debootstrap);
the server runs in it by chroot. MySQL 8.0 is a folder with programs that run on this system.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from connector.demo.servers import mysql
from connector.demo.servers.mariadb import MariadbServer
from connector.demo.servers.mysql import MysqlServer

SETTINGS: Mapping[str, str] = {
    "innodb-redo-log-capacity": "32M",
    "innodb-flush-log-at-trx-commit": "2",  # committed data survives a kill of the server
    "innodb-flush-method": "nosync",
}


def find_root() -> Path | None:
    """Return the folder with MySQL 9; None if it is missing, or if we are not root."""
    root = Path(os.environ.get("MYSQL_ROOT") or Path(__file__).resolve().parents[3] / ".cache" / "mysql")
    return root if os.geteuid() == 0 and (root / "usr/sbin/mysqld").exists() else None


class ChrootedMysqlServer(MariadbServer):
    """MySQL 9. `root`: the folder it runs in."""

    title = "MySQL"
    changes_user = True
    defaults: Mapping[str, str] = {**mysql.SETTINGS, **SETTINGS}

    def __init__(self, folder: Path, settings: Mapping[str, str], base: Path | None = None) -> None:
        assert base is not None, "the folder to run in"
        self.root, self.homes = base, base / "tmp"
        self.homes.chmod(0o1777)
        super().__init__(folder, settings)

    def _programs(self) -> tuple[str, str]:
        return "/usr/sbin/mysqld", "/usr/sbin/mysqld"

    def _install_arguments(self) -> list[str]:
        return ["--initialize-insecure", "--secure-file-priv=NULL"]

    def _command(self, program: str) -> list[str]:
        user = f"--userspec={self._user.uid}:{self._user.gid}"
        return ["chroot", user, str(self.root), *super()._command(program)]

    def _inside(self, path: Path) -> str:
        return "/" + str(path.relative_to(self.root))


def is_mysql(server: MariadbServer) -> bool:
    """Return whether a server is MySQL, of any release."""
    return isinstance(server, (ChrootedMysqlServer, MysqlServer))
