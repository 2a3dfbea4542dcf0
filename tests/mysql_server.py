"""A throw-away MySQL server out of a folder that holds Debian's mysql-server-core and what it needs.

``.ci/fetch-servers`` makes the folder (as root, with debootstrap). The server runs in it by chroot, not as
root, listens on 127.0.0.1 only, and is ended by its own process id.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pymysql

from tests.waiting import wait_until

SETTINGS: Mapping[str, str] = {
    "server-id": "1",
    "log-bin": "binlog",
    "binlog-row-metadata": "FULL",
    "gtid-mode": "ON",
    "enforce-gtid-consistency": "ON",
    "bind-address": "127.0.0.1",
    "mysqlx": "OFF",
    "secure-file-priv": "NULL",
    "innodb-buffer-pool-size": "64M",
    "innodb-redo-log-capacity": "32M",
    "innodb-flush-log-at-trx-commit": "0",
    "performance-schema": "OFF",
    "skip-name-resolve": "ON",
}


def find_root() -> Path | None:
    """Find the folder with the server; None where it is not there, or we may not use it."""
    root = Path(os.environ.get("MYSQL_ROOT") or Path(__file__).parent.parent / ".cache" / "mysql")
    return root if os.geteuid() == 0 and (root / "usr/sbin/mysqld").exists() else None


class MysqlServer:
    """One server with its data within the folder; a context manager that closes it."""

    def __init__(self, root: Path, settings: Mapping[str, str] | None = None) -> None:
        self.root, self.settings = root, {**SETTINGS, **(settings or {})}
        self.password = secrets.token_hex(16)
        self.port = _free_port()
        self._data = f"/data-{secrets.token_hex(4)}"
        self._process: subprocess.Popen[bytes] | None = None
        self._run("--initialize-insecure").wait(120)
        self._start()
        with pymysql.connect(unix_socket=self._socket, user="root", autocommit=True) as root_session:
            cursor = root_session.cursor()
            cursor.execute(f"CREATE USER deltatide IDENTIFIED BY '{self.password}'")
            cursor.execute("GRANT ALL PRIVILEGES ON *.* TO deltatide WITH GRANT OPTION")

    def __enter__(self) -> MysqlServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether the server's process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def _socket(self) -> str:
        return f"{self.root}{self._data}.sock"

    def url(self, *, user: str = "deltatide", password: str | None = None, database: str = "") -> str:
        """Connection url over TCP."""
        secret = self.password if password is None else password
        return f"mysql://{quote(user)}:{quote(secret)}@127.0.0.1:{self.port}/{quote(database)}"

    def restart(self, *, crash: bool = False) -> None:
        """Stop the server, and start it on the same port and data."""
        self._stop(signal.SIGKILL if crash else signal.SIGTERM)
        self._start()

    def close(self) -> None:
        """End the server and remove its data."""
        self._stop(signal.SIGKILL)
        shutil.rmtree(f"{self.root}{self._data}", ignore_errors=True)

    def _start(self) -> None:
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        self._process = self._run(f"--port={self.port}", f"--socket={self._data}.sock", *settings)
        wait_until(self._answers, "MySQL answers", seconds=120)

    def _run(self, *arguments: str) -> subprocess.Popen[bytes]:
        account = pwd.getpwnam("nobody")
        folder = Path(f"{self.root}{self._data}")
        if not folder.exists():
            folder.mkdir()
            shutil.chown(folder, account.pw_uid)
            self.root.joinpath("tmp").chmod(0o1777)
            shutil.chown(self.root, account.pw_uid)
        user = f"--userspec={account.pw_uid}:{account.pw_gid}"
        command = ["chroot", user, str(self.root), "/usr/sbin/mysqld", "--no-defaults"]
        return subprocess.Popen(
            [*command, f"--datadir={self._data}/data", "--secure-file-priv=NULL", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _answers(self) -> bool:
        assert self.running, "MySQL has ended"
        try:
            pymysql.connect(unix_socket=self._socket, user="root").close()
        except pymysql.Error:
            return False
        return True

    def _stop(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
