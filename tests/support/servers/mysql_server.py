"""Throwaway MySQL servers, from programs that ``.ci/fetch-servers`` has fetched.

MySQL 9 is a folder with Debian's mysql-server-core and its dependencies (created as root, by debootstrap);
the server runs in it by chroot. MySQL 8.0 is a folder with programs that run on this system. Neither runs as
root; both listen on 127.0.0.1 only, and are stopped by process id.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pymysql

from tests.support.servers.server_programs import find_programs
from tests.support.waiting import wait_until

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
    "innodb-flush-log-at-trx-commit": "2",  # committed data survives a kill of the server
    "performance-schema": "OFF",
    "skip-name-resolve": "ON",
}


def find_root() -> Path | None:
    """Return the folder with MySQL 9; None if it is missing, or if we are not root."""
    root = Path(os.environ.get("MYSQL_ROOT") or Path(__file__).resolve().parents[3] / ".cache" / "mysql")
    return root if os.geteuid() == 0 and (root / "usr/sbin/mysqld").exists() else None


class MysqlServer:
    """One server with its data in its own folder; a context manager that closes it.

    `root`: the folder to chroot into; `base`: the folder of programs that run on this system.
    """

    def __init__(
        self, root: Path | None = None, settings: Mapping[str, str] | None = None, *, base: Path | None = None
    ) -> None:
        self.root, self.settings = root or Path("/"), {**SETTINGS, **(settings or {})}
        self.password = secrets.token_hex(16)
        self.port = _free_port()
        self.release = base.name.removeprefix("mysql-") if base else "9"
        self._base = base
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._home = self._make_home()
        self._process: subprocess.Popen[bytes] | None = None
        self._run("--initialize-insecure").wait(120)
        self._start()
        with pymysql.connect(unix_socket=self._socket, user="root", autocommit=True) as root_session:
            cursor = root_session.cursor()
            cursor.execute(f"CREATE USER deltatide IDENTIFIED BY '{self.password}'")
            cursor.execute("GRANT ALL PRIVILEGES ON *.* TO deltatide WITH GRANT OPTION")

    @classmethod
    def of_release(cls, release: str, scratch: Path) -> MysqlServer | None:
        """Start a server of a release that runs on this system, such as "8.0"; None if it was not fetched."""
        base = find_programs(f"mysql-{release}", scratch)
        return cls(base=base) if base else None

    def __enter__(self) -> MysqlServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Return whether the server's process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def data_dir(self) -> Path:
        """Return the folder of the server's data and logs."""
        return self._home / "data"

    @property
    def _socket(self) -> str:
        return f"{self._home}/socket"

    def _inside(self, path: Path | str) -> str:
        """Return a path as the server sees it."""
        return "/" + str(Path(path).relative_to(self.root))

    def url(self, *, user: str = "deltatide", password: str | None = None, database: str = "") -> str:
        """Return the connection URL over TCP."""
        secret = self.password if password is None else password
        return f"mysql://{quote(user)}:{quote(secret)}@127.0.0.1:{self.port}/{quote(database)}"

    def restart(self, *, crash: bool = False) -> None:
        """Stop the server, and start it again on the same port and data."""
        self.stop(crash=crash)
        self._start()

    def stop(self, *, crash: bool = False) -> None:
        """Stop the server; keep its data."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL if crash else signal.SIGTERM)
            process.wait(60)

    def close(self) -> None:
        """Stop the server and remove its data."""
        self.stop(crash=True)
        shutil.rmtree(self._home, ignore_errors=True)

    def _make_home(self) -> Path:
        """Create the folder for data and socket; the server's user owns it, everyone may enter it."""
        inside = None if self._base else self.root / "tmp"
        if inside:
            inside.chmod(0o1777)
        home = Path(tempfile.mkdtemp(prefix="deltatide-mysql-", dir=inside))
        home.chmod(0o755)
        if self._account:
            shutil.chown(home, self._account.pw_uid)
        return home

    def _start(self) -> None:
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        self._process = self._run(f"--port={self.port}", f"--socket={self._inside(self._socket)}", *settings)
        wait_until(self._answers, "MySQL answers", seconds=120)

    def _run(self, *arguments: str) -> subprocess.Popen[bytes]:
        user = self._account
        data = [f"--datadir={self._inside(self._home / 'data')}", f"--tmpdir={self._inside(self._home)}"]
        if self._base:
            command = [str(self._base / "bin/mysqld"), "--no-defaults", f"--basedir={self._base}", *data]
            owner = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
        else:
            assert user is not None, "chroot is root's"
            command = ["chroot", f"--userspec={user.pw_uid}:{user.pw_gid}", str(self.root)]
            command += ["/usr/sbin/mysqld", "--no-defaults", *data]
            owner = {}
        return subprocess.Popen(
            [*command, "--secure-file-priv=NULL", *arguments], **owner,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _answers(self) -> bool:
        assert self.running, "MySQL has ended"
        try:
            pymysql.connect(unix_socket=self._socket, user="root").close()
        except pymysql.Error:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
