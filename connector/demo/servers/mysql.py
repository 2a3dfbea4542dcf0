"""An embedded, throwaway MySQL server for the demo, run like MariaDB's.

Its programs are the system's (Debian's `mysqld` may be MariaDB's, which does not count), otherwise release
8.0 from where the checkout's ``.ci/fetch-servers`` put it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from connector.demo.servers.mariadb import MariadbServer
from connector.errors import PreconditionError

INSTALL_HINT = "install mysql-server; or in a checkout, on Linux x86_64: make demo SOURCE=mysql"

SETTINGS: Mapping[str, str] = {
    "server-id": "1",
    "log-bin": "binlog",
    "binlog-row-metadata": "FULL",
    "gtid-mode": "ON",
    "enforce-gtid-consistency": "ON",
    "bind-address": "127.0.0.1",
    "mysqlx": "OFF",
    "secure-file-priv": "NULL",
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-buffer-pool-size": "64M",
    "performance-schema": "OFF",
    "max-connections": "100",
    "skip-name-resolve": "ON",
}
SYSTEM = os.pathsep.join(("/usr/sbin", "/usr/local/sbin"))
FETCHED = Path(__file__).resolve().parents[3] / ".cache" / "mysql-8.0"


def find_mysqld() -> Path | None:
    """Find the server's program; None if none of them starts."""
    path = os.pathsep.join((os.environ.get("PATH", ""), SYSTEM))
    for found in (shutil.which("mysqld", path=path), shutil.which(FETCHED / "bin" / "mysqld")):
        if found and _is_mysql(found):
            return Path(found)
    return None


def _is_mysql(program: str) -> bool:
    done = subprocess.run(
        [program, "--no-defaults", "--version"], capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and re.search("mariadb", done.stdout, re.IGNORECASE) is None


class MysqlServer(MariadbServer):
    """One server with its data in a folder; a context manager that closes it. As `MariadbServer`."""

    title = "MySQL"
    defaults = SETTINGS

    def __init__(self, folder: Path, settings: Mapping[str, str], base: Path | None = None) -> None:
        super().__init__(folder, settings, base)
        self._copied: Path | None = None
        self._program = base / "bin" / "mysqld" if base else find_mysqld()
        if self._program is not None and self._program.is_relative_to(FETCHED):
            self._base = FETCHED

    def close(self) -> None:
        """Stop the server at once; remove its data and any copy of its programs."""
        super().close()
        if self._copied is not None:
            shutil.rmtree(self._copied, ignore_errors=True)

    def _programs(self) -> tuple[str, str]:
        if self._program is None:
            raise PreconditionError("no MySQL server is installed", hint=INSTALL_HINT)
        if self._base and not self._user.reaches(self._base / "bin"):
            self._copy_programs()
        program = self._base / "bin" / "mysqld" if self._base else self._program
        return str(program), str(program)

    def _copy_programs(self) -> None:
        """Copy programs from a folder that the server's user can't reach, such as root's home."""
        self._copied = Path(tempfile.mkdtemp(prefix="deltatide-mysql-programs-"))
        self._copied.chmod(0o755)
        self._base = Path(shutil.copytree(self._base or FETCHED, self._copied / "mysql", symlinks=True))

    def _install_arguments(self) -> list[str]:
        return ["--initialize-insecure"]
