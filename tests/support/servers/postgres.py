"""The PostgreSQL servers of a test run, one per version, started on first use; a database per test."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extensions

from connector.demo.servers.postgres import PostgresServer, find_bin_dirs
from connector.demo.servers.postgres_binaries import SUPPORTED
from connector.position import parse_lsn
from connector.schema import TableName
from tests.support.waiting import wait_until

AS_THEY_ARE = frozenset(
    [
        *"boolean smallint integer bigint numeric text bytea date".split(),
        "character varying",
        "character",
        "timestamp with time zone",
        "timestamp without time zone",
        "double precision",
    ]
)
"""Types whose values are equal Python objects on both sides; all others are compared as text."""

DEFAULT_VERSIONS = (16, 15)
"""Versions that tests run on by default: these include PostgreSQL's client programs."""


def postgres_versions() -> list[int]:
    """Return the supported major versions found here, for `parametrize("postgres", ..., indirect=True)`."""
    return [version for version in find_bin_dirs() if version in SUPPORTED]


class PostgresServers:
    """The servers of this test run by major version; a context manager that closes them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[int, PostgresServer] = {}

    def __enter__(self) -> PostgresServers:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._running.values():
            server.close()

    def get(self, version: int | None = None) -> PostgresServer:
        """Return the server of a version; start it if it is not running, as after a test that stopped it."""
        found = find_bin_dirs()
        version = version or next((v for v in DEFAULT_VERSIONS if v in found), None) or max(found)
        server = self._running.get(version)
        if server is None or not server.running:
            if server is not None:
                server.close()
            folder = self._folder / f"postgres{version}"
            server = self._running[version] = PostgresServer.start(folder, bin_dir=found[version])
        return server


@dataclass(frozen=True)
class Database:
    """One test's database: `execute` for set-up, `connect` for sessions that a test holds open.

    The other members implement `tests.support.source.tested_database`.
    """

    server: PostgresServer
    name: str
    kind = "postgres"
    namespace = "public"
    lost = (psycopg2.OperationalError, psycopg2.InterfaceError)

    @property
    def url(self) -> str:
        """Return the URL of the superuser, over TCP."""
        return self.server.url(database=self.name)

    def connect(self, *, autocommit: bool = True) -> psycopg2.extensions.connection:
        """Open a session; the test closes it, or it ends when the database is dropped."""
        connection = psycopg2.connect(self.url)
        connection.autocommit = autocommit
        return connection

    def execute(self, statement: str, parameters: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """Run semicolon-separated statements in a new session; return the rows of the last."""
        return _execute(self.url, statement, parameters)

    @property
    def port(self) -> int:
        return self.server.port

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "url": self.url, "slot": self.name}

    def script(self, text: str) -> None:
        self.execute(text)

    def session(self) -> psycopg2.extensions.connection:
        return self.connect(autocommit=False)

    def changed_unseen(self, statements: str) -> None:
        # The log's decoding leaves out what is written to a table while DDL rewrites it. The catalog keeps no
        # trace of that mark, and the log does not show it.
        mark = "UPDATE pg_class SET relrewrite = {} WHERE relnamespace = 'public'::regnamespace"
        mark += " AND relkind = 'r'"
        self.execute(
            f"SET LOCAL allow_system_table_mods = on; {mark.format('oid')}; {statements}; {mark.format('0')}"
        )

    def end_of_log(self) -> int:
        return parse_lsn(self.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])

    def all_sent(self, end: int) -> bool:
        return self.execute(
            "SELECT sent_lsn >= %s::pg_lsn FROM pg_stat_replication JOIN pg_replication_slots"
            " ON active_pid = pid WHERE slot_name = %s",
            (f"{end >> 32:X}/{end & 0xFFFFFFFF:X}", self.name),
        ) == [(True,)]

    def end_sessions(self) -> None:
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'deltatide shop' AND datname = current_database()"
        )

    def crash(self) -> None:
        self.server.stop("immediate")

    def restart(self) -> None:
        self.server.restart()

    def columns(self, table: str) -> dict[str, str]:
        namespace, name = TableName.parse(table)
        found = self.execute(
            "SELECT column_name::text, data_type::text FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = %s AND is_generated = 'NEVER' ORDER BY 1",
            (namespace, name),
        )
        return {column: _selected(column.replace('"', '""'), type_) for column, type_ in found}

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        found = self.execute(statement)
        return [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in found]


def _selected(column: str, type_: str) -> str:
    if type_ in AS_THEY_ARE:
        return f'"{column}"'
    return f'"{column}"::text'


@contextlib.contextmanager
def fresh_database(server: PostgresServer, name: str) -> Iterator[Database]:
    """Create a new database; drop it at the end with its sessions and replication slots."""
    _execute(server.url(), f'CREATE DATABASE "{name}"')
    try:
        yield Database(server, name)
    finally:
        if server.running:
            _drop_database(server, name)


def database_name(test_name: str, number: int) -> str:
    """Return the test's name as an identifier, truncated to fit and made unique by the number."""
    return f"{re.sub(r'[^a-z0-9]+', '_', test_name.lower()).strip('_')[:48]}_{number}"


def _drop_database(server: PostgresServer, name: str) -> None:
    def slots_gone() -> bool:
        _execute(
            server.url(),
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE database = %s AND active_pid IS NOT NULL",
            (name,),
        )
        ended = psycopg2.errors.ObjectInUse, psycopg2.errors.UndefinedObject  # a temporary one, by itself
        with contextlib.suppress(*ended):
            _execute(
                server.url(),
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
                (name,),
            )
        return not _execute(server.url(), "SELECT 1 FROM pg_replication_slots WHERE database = %s", (name,))

    wait_until(slots_gone, f"the slots of database {name} are dropped")
    _execute(server.url(), f'DROP DATABASE "{name}" WITH (FORCE)')


def _execute(url: str, statement: str, parameters: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(url)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()
