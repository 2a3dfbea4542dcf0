"""Servers of one test: their data folder is copied from one that was created once, which takes seconds."""

from __future__ import annotations

import atexit
import functools
import subprocess
import tempfile
from pathlib import Path

from connector.demo.servers.mariadb import MariadbServer
from tests.support.servers.mysql_server import ChrootedMysqlServer


class CopiedMariadbServer(MariadbServer):
    """MariaDB."""

    def _initialize(self) -> None:
        _copy_data(_created_by(MariadbServer, self._base), self)


class CopiedMysqlServer(ChrootedMysqlServer):
    """MySQL 9, with a server id of its own."""

    def _initialize(self) -> None:
        _copy_data(_created_by(ChrootedMysqlServer, self.root), self)
        (self.data_dir / "auto.cnf").unlink()


@functools.cache
def _created_by(kind: type[MariadbServer], base: Path | None) -> Path:
    """Return the data folder of a server that is never started; it is removed at the end."""
    server = kind(Path(tempfile.gettempdir()), {}, base)
    atexit.register(server.close)
    server._initialize()
    return server.data_dir


def _copy_data(created: Path, server: MariadbServer) -> None:
    server._home.chmod(0o755)
    server._user.own(server._home)
    subprocess.run(["cp", "-a", str(created), str(server.data_dir)], check=True)
