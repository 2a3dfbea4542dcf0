"""An embedded, throwaway PostgreSQL server for the demo and the tests.

Invariants: the server listens only on 127.0.0.1 and a Unix socket, never runs as root, and ends with its
parent: by `stop`, at interpreter exit, or, if the parent is killed, by a watchdog process that sees a pipe
close. Only processes started here are signaled, by their process id.

Not for data that matters: fsync is off.
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
from types import TracebackType
from typing import Literal
from urllib.parse import quote

import psycopg2
from psycopg2 import sql
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from connector.demo.servers.postgres_binaries import (
    default_bin_dir,
    find_bin_dirs,
    runnable_bin_dir,
    server_environment,
    version_text,
)
from connector.demo.servers.server_user import ServerUser
from connector.demo.servers.starting import free_port, until_it_answers
from connector.demo.servers.watchdog import Watchdog
from connector.errors import OperatorError

__all__ = ["PostgresServer", "find_bin_dirs"]

SUPERUSER = "deltatide"
DEFAULT_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "password_encryption": "scram-sha-256",
}
START_SECONDS = 60.0
STOP_SECONDS = 15.0
"""A fast stop waits for replication receivers; after this time it becomes an immediate one."""
PORT_TRIES = 5
SOCKET_PATH_BYTES = 90
"""A socket's complete path may have about 100 bytes, of which `/.s.PGSQL.65535` takes 15."""

StopMode = Literal["fast", "immediate"]
_SIGNALS: Mapping[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class _PortTakenError(OperatorError):
    """another process has taken the server's port."""


class PostgresServer:
    """One server with its data in a folder; a context manager that closes it.

    Attributes: `folder`, `bin_dir` (the programs in use), `version` (such as `16.10`), `port`, `socket_dir`,
    `password` (of the superuser `deltatide`).
    """

    def __init__(
        self, folder: Path, bin_dir: Path, user: ServerUser, settings: Mapping[str, str], port: int | None
    ) -> None:
        self.folder = folder
        self.bin_dir = bin_dir
        self.version = version_text(bin_dir, user) or ""
        self.settings = {**DEFAULT_SETTINGS, **settings}
        self.log_path = folder / "postgres.log"
        self.socket_dir = _socket_dir(user)
        self.port = port or 0
        self._fixed_port = port is not None
        self._user = user
        self._owner_pid = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None
        # If the server's user can't enter the folder, the data is next to the socket, with a link to it.
        self._home = folder if user.reaches(folder) else self.socket_dir
        link = folder / "data"
        if link.is_symlink() and link.exists():
            self._home = link.resolve().parent
        self.data_dir = self._home / "data"
        self.password = ""

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        bin_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        database: str = "postgres",
    ) -> PostgresServer:
        """Start a server with its data in the folder, which is created; on return it accepts connections.

        Data that an earlier server left in the folder is reused. `settings` are added to DEFAULT_SETTINGS.
        The port is a free one unless given. The database is created if it does not exist. Raises
        PreconditionError if there are no programs, or OperatorError with the end of the server's log if it
        does not start; no process is left then.
        """
        user = ServerUser.choose("postgres")
        programs = (
            runnable_bin_dir(Path(bin_dir), user) if bin_dir else runnable_bin_dir(default_bin_dir(), user)
        )
        folder = Path(folder).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        server = cls(folder, programs, user, settings or {}, port)
        try:
            server._initialize()
            server._launch()
            server._create_database(database)
        except BaseException:
            server.close()
            raise
        return server

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the postmaster; OperatorError while the server is stopped."""
        if self._process is None:
            raise OperatorError(f"the postgres server in {self.folder} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the postmaster is running."""
        return self._process is not None and self._process.poll() is None

    def url(self, *, user: str = SUPERUSER, password: str | None = None, database: str = "postgres") -> str:
        """Connection URL over TCP; the password is the superuser's unless another one is given."""
        secret = self.password if password is None else password
        credentials = f"{quote(user, safe='')}:{quote(secret, safe='')}"
        return f"postgresql://{credentials}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait until it has ended; the data stays. `immediate` acts like a server crash.

        A fast stop that replication receivers delay becomes an immediate one after STOP_SECONDS.
        """
        process, self._process = self._process, None
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.dismiss()
        if process is None:
            return
        for step in (_SIGNALS[mode], signal.SIGQUIT, signal.SIGKILL):
            if process.poll() is not None:
                return
            process.send_signal(step)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        process.wait()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server, and start it on the same port and data."""
        self.stop(mode)
        self._fixed_port = True
        self._launch()

    def close(self) -> None:
        """Stop the server at once and remove what it has outside its folder; may be called repeatedly.

        Data in the folder itself is left to the folder's owner.
        """
        atexit.unregister(self._close_at_exit)
        self.stop("immediate")
        if self._home != self.folder:
            with contextlib.suppress(FileNotFoundError):
                (self.folder / "data").unlink()
            shutil.rmtree(self._home, ignore_errors=True)
        shutil.rmtree(self.socket_dir, ignore_errors=True)

    def _close_at_exit(self) -> None:
        if os.getpid() == self._owner_pid:  # not in a fork of us
            self.close()

    def _initialize(self) -> None:
        """Create the data folder with initdb unless it exists, and set the superuser's password."""
        password_file = self._home / "password"
        if (self.data_dir / "PG_VERSION").exists():
            self.password = password_file.read_text().strip()
            return
        self.password = secrets.token_urlsafe(12)
        password_file.touch(mode=0o600)
        password_file.write_text(self.password + "\n")
        self.data_dir.mkdir(mode=0o700, exist_ok=True)
        self._user.own(password_file)
        self._user.own(self.data_dir)
        if self._home != self.folder:
            (self.folder / "data").unlink(missing_ok=True)
            (self.folder / "data").symlink_to(self.data_dir)
        command = [str(self.bin_dir / "initdb"), "-D", str(self.data_dir), "-U", SUPERUSER]
        command += [
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ]
        done = subprocess.run(
            command, cwd=self.socket_dir, env=server_environment(), capture_output=True, text=True,
            check=False, **self._user.arguments(),
        )  # fmt: skip
        if done.returncode != 0:
            raise OperatorError(f"initdb failed in {self.folder}: {_last_lines(done.stderr or done.stdout)}")

    def _launch(self) -> None:
        """Start the server; if another process takes the free port first, try another port."""
        atexit.register(self._close_at_exit)
        retrying = Retrying(
            retry=retry_if_exception_type(_PortTakenError), stop=stop_after_attempt(PORT_TRIES), reraise=True
        )
        retrying(self._try_port)

    def _try_port(self) -> None:
        if not self._fixed_port:
            self.port = free_port()
        log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._spawn()
        if self._answers():
            return
        with self.log_path.open("rb") as log:
            log.seek(log_start)
            text = log.read().decode(errors="replace")
        self.stop("immediate")
        taken = "could not bind" in text and not self._fixed_port
        raise (_PortTakenError if taken else OperatorError)(
            f"postgres {self.version} did not start on port {self.port}: {_last_lines(text)}",
            hint=f"see {self.log_path}",
        )

    def _spawn(self) -> None:
        settings = {**self.settings, "port": str(self.port), "unix_socket_directories": str(self.socket_dir)}
        command = [str(self.bin_dir / "postgres"), "-D", str(self.data_dir)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        # A separate session: Ctrl-C in a terminal goes only to us, and we stop the server when we are ready.
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.socket_dir, env=server_environment(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, **self._user.arguments(),
            )  # fmt: skip
        self._watchdog = Watchdog(self._process, signal.SIGQUIT, self._user)

    def _answers(self) -> bool:
        """Wait until the server accepts a connection; False if it ends, or after START_SECONDS."""

        def not_yet(error: BaseException) -> bool:
            # If the password is refused, another server took the port first.
            refused = "password authentication failed" in str(error)
            return isinstance(error, psycopg2.OperationalError) and not refused

        retrying = until_it_answers(not_yet, lambda: self.running, START_SECONDS)
        try:
            retrying(lambda: psycopg2.connect(self.url(), connect_timeout=2).close())
        except psycopg2.OperationalError:
            return False
        return self.running

    def _create_database(self, database: str) -> None:
        connection = psycopg2.connect(self.url())
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,))
                if cursor.fetchone() is None:
                    cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        finally:
            connection.close()


def _socket_dir(user: ServerUser) -> Path:
    """Create a folder that the server's user owns, with a path short enough for a socket."""
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent)) + len(
        "/deltatide-12345678/.s.PGSQL.65535"
    ) > SOCKET_PATH_BYTES or not user.reaches(parent):
        parent = Path("/tmp")
    folder = Path(tempfile.mkdtemp(prefix="deltatide-", dir=parent))
    user.own(folder)
    return folder


def _last_lines(text: str) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()[-3:]) or "no output"
