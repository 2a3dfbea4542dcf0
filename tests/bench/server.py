"""The server that is measured, its rows of about 100 bytes in 10 columns, and the reference's clients."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from connector.demo.postgres_binaries import SUPPORTED, default_bin_dir, find_bin_dirs
from connector.demo.postgres_server import PostgresServer
from connector.errors import PreconditionError
from connector.position import format_lsn, parse_lsn

SETTINGS = {
    "shared_buffers": "512MB",
    "synchronous_commit": "off",
    # No checkpoint and no vacuum in the middle of a measurement.
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}

COLUMNS = """id bigint PRIMARY KEY, quantity int, price numeric(12,2), changed_at timestamp,
    code text, name text, city text, note text, active boolean, weight double precision"""

ROW = """n, (n % 1000)::int, (n % 100000) / 100.0, timestamp '2026-01-01' + n * interval '1 second',
    'code-' || n % 997, substr(md5(n::text), 1, 14), 'city ' || n % 5000, substr(md5((n * 7)::text), 1, 16),
    n % 2 = 0, n * 0.37::float8"""
"""A row made of the number `n`."""


class Database:
    """One measurement's own database. `url` is over TCP, `socket_url` over the Unix socket."""

    def __init__(self, server: PostgresServer, name: str, clients: Path) -> None:
        self.name = name
        self.url = server.url(database=name)
        credentials = self.url.partition("@")[0]
        self.socket_url = f"{credentials}@/{name}?host={server.socket_dir}&port={server.port}"
        self._clients = clients

    def execute(self, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Run statements in a session of their own, each its own transaction; the rows of the last."""
        connection = psycopg2.connect(self.url)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement, parameters)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def create_table(self, table: str, rows: int = 0) -> None:
        """Make a table with so many rows, numbered from 1."""
        self.execute(f"CREATE TABLE {table} ({COLUMNS})")
        if rows:
            self.insert(table, 1, rows)
            self.execute(f"VACUUM ANALYZE {table}")

    def insert(self, table: str, first: int, last: int) -> None:
        """Insert rows in one transaction."""
        self.execute(f"INSERT INTO {table} SELECT {ROW} FROM generate_series({first}, {last}) n")

    def end_of_log(self) -> int:
        """The position behind the last commit."""
        return parse_lsn(str(self.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]))

    def copy_slot(self, source: str, name: str) -> None:
        """Make a slot that stands where another one stands; one of that name is dropped first."""
        self.drop_slot(name)
        self.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (source, name))

    def drop_slot(self, name: str) -> None:
        """Drop a slot if there is one, once nobody uses it any more."""
        deadline = time.monotonic() + 20
        while True:
            rows = self.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", (name,))
            if not rows:
                return
            if not rows[0][0]:
                self.execute("SELECT pg_drop_replication_slot(%s)", (name,))
                return
            if time.monotonic() > deadline:
                raise PreconditionError(f"slot {name} is still in use")
            time.sleep(0.05)

    def receive(self, url: str, slot: str, publication: str, end: int) -> float:
        """Let pg_recvlogical write a slot's log up to a commit's end to nowhere; the seconds it took."""
        return self._timed(
            "pg_recvlogical", "-d", url, "-S", slot, "--start", "--no-loop", "-f", "/dev/null",
            "--endpos", format_lsn(end), "-o", "proto_version=1", "-o", f"publication_names={publication}",
        )  # fmt: skip

    def copy_out(self, table: str) -> float:
        """Let psql COPY a table to nowhere; the seconds it took."""
        return self._timed("psql", "-X", "-q", "-d", self.url, "-c", f"COPY {table} TO STDOUT")

    def _timed(self, program: str, *arguments: str) -> float:
        begun = time.monotonic()
        done = subprocess.run(
            [str(self._clients / program), *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise PreconditionError(f"{program} failed: {done.stderr.strip()}")
        return time.monotonic() - begun


class Bench:
    """A running server and a folder. `quick`: a tenth of the rows."""

    def __init__(self, server: PostgresServer, folder: Path, clients: Path, quick: bool) -> None:
        self.server, self.folder, self.quick = server, folder, quick
        self._clients = clients

    def rows(self, full: int) -> int:
        """How many rows to use where a full run uses so many."""
        return full // 10 if self.quick else full

    @contextmanager
    def database(self, name: str) -> Iterator[Database]:
        """A fresh database, dropped at the end with its slots."""
        maintenance = Database(self.server, "postgres", self._clients)
        maintenance.execute(f"CREATE DATABASE {name}")
        database = Database(self.server, name, self._clients)
        try:
            yield database
        finally:
            slots = "SELECT slot_name FROM pg_replication_slots WHERE database = %s"
            for (slot,) in maintenance.execute(slots, (name,)):
                maintenance.drop_slot(slot)
            maintenance.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def started(folder: Path, quick: bool) -> Iterator[Bench]:
    """Start the server; it ends with the block."""
    programs = clients = _bin_dir_with_clients()
    with PostgresServer.start(folder / "postgres", bin_dir=programs, settings=SETTINGS) as server:
        yield Bench(server, folder, clients, quick)


def _bin_dir_with_clients() -> Path:
    found = find_bin_dirs()
    preferred = [default_bin_dir(), *(found[v] for v in sorted(found, reverse=True) if v in SUPPORTED)]
    for folder in preferred:
        if all((folder / program).exists() for program in ("pg_recvlogical", "psql")):
            return folder
    raise PreconditionError(
        "no PostgreSQL with pg_recvlogical and psql found", hint="pip install 'deltatide[demo]'"
    )
