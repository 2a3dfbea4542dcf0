"""An embedded, throwaway MariaDB server for the demo and the tests.

Invariants: the server listens only on 127.0.0.1 and a Unix socket, never runs as root, and ends with its
parent: by `stop`, at interpreter exit, or, if the parent is killed, by a watchdog process that sees a pipe
close. Only processes started here are signaled, by their process id.

Its programs come from the system's package manager (Debian and Ubuntu: mariadb-server). Not for data that
matters: nothing is flushed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pymysql
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from connector.demo.servers.server_user import ServerUser, UserArguments
from connector.demo.servers.starting import free_port, until_it_answers
from connector.demo.servers.watchdog import Watchdog
from connector.errors import OperatorError, PreconditionError

USER = "deltatide"
DEFAULT_SETTINGS: Mapping[str, str] = {
    "server-id": "1",
    "log-bin": "binlog",
    "binlog-format": "ROW",
    "binlog-row-metadata": "FULL",
    "binlog-row-image": "FULL",
    "bind-address": "127.0.0.1",
    "character-set-server": "utf8mb4",
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-buffer-pool-size": "64M",
    "performance-schema": "OFF",
    "max-connections": "100",
    "skip-name-resolve": "ON",
    "slave-net-timeout": "60",
}
START_SECONDS = 120.0
STOP_SECONDS = 60.0
PORT_TRIES = 5
INSTALL_HINT = "Debian and Ubuntu: sudo apt-get install mariadb-server"


def find_programs(base: Path | None = None) -> tuple[str, str] | None:
    """Find the server and the program that creates a data folder; None if they are not installed."""
    system = (os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")
    path = os.pathsep.join((f"{base}/bin", f"{base}/scripts") if base else system)
    server, install = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    return (server, install) if server and install else None


class MariadbServer:
    """One server with its data in a folder; a context manager that closes it.

    Attributes: `folder`, `port`, `password` (of the superuser `deltatide`), `settings`.
    """

    title = "MariaDB"
    defaults = DEFAULT_SETTINGS
    homes: Path | None = None
    """Where the folder for data and socket is created; None: the system's default."""
    changes_user = False
    """Whether `_command` changes to the server's user itself."""

    def __init__(self, folder: Path, settings: Mapping[str, str], base: Path | None = None) -> None:
        self.folder, self.settings = folder, {**self.defaults, **settings}
        self._base = base
        self.port = 0
        self.password = secrets.token_hex(16)
        self._user = ServerUser.choose("mysql")
        self._home = Path(tempfile.mkdtemp(prefix=f"deltatide-{self.title.lower()}-", dir=self.homes))
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None
        self._log = folder / f"{self.title.lower()}.log"

    @classmethod
    def start(
        cls, folder: Path, *, settings: Mapping[str, str] | None = None, base: Path | None = None
    ) -> MariadbServer:
        """Start a server with its data in the folder, which is created; on return it accepts connections.

        `settings` are added to DEFAULT_SETTINGS. `base`: where a release other than the system's was
        unpacked, with its programs in `bin` and `scripts`. Raises PreconditionError if there are no programs,
        or OperatorError with the end of the server's log if it does not start; no process is left then.
        """
        folder.mkdir(parents=True, exist_ok=True)
        server = cls(folder, settings or {}, base)
        try:
            server._initialize()
            server._launch()
            server._create_user()
        except BaseException:
            server.close()
            raise
        return server

    def __enter__(self) -> MariadbServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether the server's process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def data_dir(self) -> Path:
        """The folder of the server's data and logs."""
        return self._home / "data"

    def url(self, *, user: str = USER, password: str | None = None, database: str = "") -> str:
        """Connection url over TCP; the password is `deltatide`'s unless another one is given."""
        secret = self.password if password is None else password
        credentials = f"{quote(user, safe='')}:{quote(secret, safe='')}"
        return f"mysql://{credentials}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def stop(self, *, crash: bool = False) -> None:
        """Stop the server and wait until it has ended; the data stays."""
        process, self._process = self._process, None
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.dismiss()
        if process is None:
            return
        for step in (signal.SIGKILL,) if crash else (signal.SIGTERM, signal.SIGKILL):
            process.send_signal(step)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
                return
        process.wait()

    def restart(self, *, crash: bool = False) -> None:
        """Stop the server, and start it on the same port and data."""
        self.stop(crash=crash)
        self._launch()

    def close(self) -> None:
        """Stop the server at once and remove its data; may be called repeatedly."""
        atexit.unregister(self.close)
        self.stop(crash=True)
        shutil.rmtree(self._home, ignore_errors=True)

    def _programs(self) -> tuple[str, str]:
        """Return the server's program, and the one that creates a data folder."""
        found = find_programs(self._base)
        if found is None:
            raise PreconditionError("no MariaDB server is installed", hint=INSTALL_HINT)
        return found

    def _install_arguments(self) -> list[str]:
        """Return the arguments that create a data folder whose user root has no password."""
        return ["--skip-test-db", "--auth-root-authentication-method=normal"]

    def _command(self, program: str) -> list[str]:
        """Return the command that runs one of the programs, without its own arguments."""
        return [program, "--no-defaults", *([f"--basedir={self._base}"] if self._base else [])]

    def _inside(self, path: Path) -> str:
        """Return a path as the server sees it."""
        return str(path)

    @property
    def _socket(self) -> Path:
        return self._home / "socket"

    def _initialize(self) -> None:
        """Create the data folder, next to the socket in a folder that the server's user can reach."""
        self._home.chmod(0o755)
        self.data_dir.mkdir()
        for folder in (self._home, self.data_dir):
            self._user.own(folder)
        _, install = self._programs()
        command = [*self._command(install), f"--datadir={self._inside(self.data_dir)}"]
        command += [f"--user={self._user.name}"] if self._user.differs else []
        command += self._install_arguments()
        # In a shared folder, a starting server would remove the temporary tables of all others.
        own = {**os.environ, "TMPDIR": self._inside(self._home)}
        done = subprocess.run(command, env=own, capture_output=True, check=False)
        if done.returncode:
            text = (done.stderr or done.stdout).decode(errors="replace").strip()
            raise OperatorError(f"{Path(install).name} failed: {text[-500:]}")

    def _launch(self) -> None:
        """Start the server; retry if another process takes the free port first."""
        retrying = Retrying(
            retry=retry_if_exception_type(OperatorError), stop=stop_after_attempt(PORT_TRIES), reraise=True
        )
        program, _ = self._programs()
        retrying(self._try_port, program)
        atexit.register(self.close)

    def _try_port(self, program: str) -> None:
        port = self.port or free_port()
        self._spawn(program, port)
        if self._answers_in_time():
            self.port = port
            return
        self.stop(crash=True)
        lines = self._log.read_text(errors="replace").strip().splitlines()[-8:]
        raise OperatorError(f"{self.title} does not start:\n" + "\n".join(f"  {line}" for line in lines))

    def _spawn(self, program: str, port: int) -> None:
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        data, home, socket_ = map(self._inside, (self.data_dir, self._home, self._socket))
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._command(program), f"--datadir={data}", f"--port={port}", f"--socket={socket_}",
                 f"--tmpdir={home}", *settings],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                **(UserArguments() if self.changes_user else self._user.arguments()),
            )  # fmt: skip
        self._watchdog = Watchdog(self._process, signal.SIGKILL, self._user)

    def _answers_in_time(self) -> bool:
        retrying = until_it_answers(
            lambda error: isinstance(error, pymysql.Error), lambda: self.running, START_SECONDS
        )
        try:
            retrying(lambda: pymysql.connect(unix_socket=str(self._socket), user="root").close())
        except pymysql.Error:
            return False
        return True

    def _create_user(self) -> None:
        with pymysql.connect(unix_socket=str(self._socket), user="root", autocommit=True) as root:
            cursor = root.cursor()
            cursor.execute(f"CREATE USER {USER} IDENTIFIED BY '{self.password}'")
            cursor.execute(f"GRANT ALL PRIVILEGES ON *.* TO {USER} WITH GRANT OPTION")
