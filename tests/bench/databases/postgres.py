"""PostgreSQL under measurement, compared with its own clients."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from connector.demo.servers.postgres import PostgresServer
from connector.demo.servers.postgres_binaries import SUPPORTED, default_bin_dir, find_bin_dirs
from connector.errors import PreconditionError
from connector.position import format_lsn, parse_lsn
from tests.bench.capture.agent import PUBLICATION, SLOT
from tests.bench.databases.database import Database, Server, SqlTables, timed

SETTINGS = {
    "shared_buffers": "512MB",
    "synchronous_commit": "off",
    # No checkpoint and no vacuum during a measurement.
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}

COLUMNS = """id bigint PRIMARY KEY, quantity int, price numeric(12,2), changed_at timestamp,
    code text, name text, city text, note text, active boolean, weight double precision"""

ROW = """n, (n % 1000)::int, (n % 100000) / 100.0, timestamp '2026-01-01' + n * interval '1 second',
    'code-' || n % 997, substr(md5(n::text), 1, 14), 'city ' || n % 5000, substr(md5((n * 7)::text), 1, 16),
    n % 2 = 0, n * 0.37::float8"""
"""A row generated from the number `n`."""


_TRANSACTIONS = f"""
DO $$ BEGIN
    FOR t IN {{first}} .. {{last}} LOOP
        INSERT INTO {{table}} SELECT {ROW} FROM generate_series(t * 60 + 1, t * 60 + 60) n;
        UPDATE {{table}} SET quantity = quantity + 1, changed_at = changed_at + interval '1 day'
            WHERE id BETWEEN t * 60 + 1 AND t * 60 + 30;
        DELETE FROM {{table}} WHERE id BETWEEN t * 60 + 51 AND t * 60 + 60;
        COMMIT;
    END LOOP;
END $$"""

_TEMPLATE, _REFERENCE = "bench_template", "bench_reference"


class PostgresDatabase(SqlTables):
    """The database of one measurement.

    A template slot holds the marked position; each agent and each pg_recvlogical reads from a copy of it.
    """

    kind, tables = "postgres", "public.*"
    reader, decoder = "psql COPY TO STDOUT", "pg_recvlogical"
    columns, analyze = COLUMNS, "VACUUM ANALYZE"

    def __init__(self, server: PostgresServer, name: str, clients: Path) -> None:
        url = server.url(database=name)
        credentials = url.partition("@")[0]
        socket_url = f"{credentials}@/{name}?host={server.socket_dir}&port={server.port}"
        self.urls: Mapping[str, str] = {"TCP": url, "Unix socket": socket_url}
        self._url, self._clients = url, clients

    def query(self, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement in its own session and transaction; return its rows."""
        with self._session() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def write_changes(self, table: str, first: int, last: int) -> None:
        """Write transactions `first` to `last`."""
        self.execute(_TRANSACTIONS.format(table=table, first=first, last=last))

    def end_of_log(self) -> int:
        """Return the position after the last commit."""
        return parse_lsn(str(self.query("SELECT pg_current_wal_insert_lsn()::text")[0][0]))

    def mark(self) -> None:
        """Save the position of the agent's slot."""
        self._copy_slot(SLOT, _TEMPLATE)

    def rewind(self) -> None:
        """Reset the agent's slot to the mark."""
        self._copy_slot(_TEMPLATE, SLOT)

    def forget(self) -> None:
        """Drop the agent's slot."""
        self.drop_slot(SLOT)

    def _copy_slot(self, source: str, name: str) -> None:
        """Copy a slot with its position; an existing slot of the new name is dropped first."""
        self.drop_slot(name)
        self.query("SELECT pg_copy_logical_replication_slot(%s, %s)", (source, name))

    def drop_slot(self, name: str) -> None:
        """Drop a slot if it exists, once it is no longer in use."""
        deadline = time.monotonic() + 20
        while True:
            rows = self.query("SELECT active FROM pg_replication_slots WHERE slot_name = %s", (name,))
            if not rows:
                return
            if not rows[0][0]:
                self.query("SELECT pg_drop_replication_slot(%s)", (name,))
                return
            if time.monotonic() > deadline:
                raise PreconditionError(f"slot {name} is still in use")
            time.sleep(0.05)

    def decode_log(self, url: str, end: int) -> float:
        """Decode the log up to a commit's end with pg_recvlogical, output discarded; return the seconds."""
        self._copy_slot(_TEMPLATE, _REFERENCE)
        seconds = timed([
            self._clients / "pg_recvlogical", "-d", url, "-S", _REFERENCE, "--start", "--no-loop",
            "-f", "/dev/null", "--endpos", format_lsn(end),
            "-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}",
        ])  # fmt: skip
        self.drop_slot(_REFERENCE)
        return seconds

    def read_table(self, table: str) -> float:
        """COPY a table with psql, output discarded; return the seconds."""
        return timed([self._clients / "psql", "-X", "-q", "-d", self._url, "-c", f"COPY {table} TO STDOUT"])

    @contextmanager
    def _session(self) -> Iterator[Any]:
        connection = psycopg2.connect(self._url)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                yield cursor
        finally:
            connection.close()

    def _insert(self, table: str, first: int, last: int) -> str:
        return f"INSERT INTO {table} SELECT {ROW} FROM generate_series({first}, {last}) n"


class PostgresBench:
    """A running PostgreSQL server."""

    title = "PostgreSQL"

    def __init__(self, server: PostgresServer, clients: Path) -> None:
        self.targets: Mapping[str, float] = {"capture": 0.85, "dump": 0.55}
        self.version = server.version
        self._server, self._clients = server, clients

    @contextmanager
    def database(self, name: str) -> Iterator[Database]:
        """Create a fresh database; drop it at the end with its slots."""
        maintenance = PostgresDatabase(self._server, "postgres", self._clients)
        maintenance.execute(f"CREATE DATABASE {name}")
        try:
            yield PostgresDatabase(self._server, name, self._clients)
        finally:
            slots = "SELECT slot_name FROM pg_replication_slots WHERE database = %s"
            for (slot,) in maintenance.query(slots, (name,)):
                maintenance.drop_slot(slot)
            maintenance.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def started_postgres(folder: Path) -> Iterator[Server]:
    """Start the server; stop it at the end of the block."""
    programs = _bin_dir_with_clients()
    with PostgresServer.start(folder / "postgres", bin_dir=programs, settings=SETTINGS) as server:
        yield PostgresBench(server, programs)


def _bin_dir_with_clients() -> Path:
    found = find_bin_dirs()
    preferred = [default_bin_dir(), *(found[v] for v in sorted(found, reverse=True) if v in SUPPORTED)]
    for folder in preferred:
        if all((folder / program).exists() for program in ("pg_recvlogical", "psql")):
            return folder
    raise PreconditionError(
        "no PostgreSQL with pg_recvlogical and psql found", hint="pip install 'deltatide[demo]'"
    )
