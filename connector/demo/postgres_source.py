"""PostgreSQL for the demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from connector.demo.servers.postgres import PostgresServer
from connector.demo.source import ROWS_AT_ONCE, Dialect, Row
from connector.position import parse_lsn

DATABASE = "shop"

DIALECT = Dialect(
    types={
        "text": "text",
        "moment": "timestamptz",
        "local_time": "timestamp",
        "uuid": "uuid",
        "labels": "text[]",
        "json": "jsonb",
    },
    now="clock_timestamp()",
    new_uuid="gen_random_uuid()",
    series="generate_series({first}::bigint, {last}) {name}",
    later="timestamptz '{base}Z' + ({seconds}) * interval '1 second'",
    digest="md5({text})",
    joined="string_agg({text}, '')",
    json_object="jsonb_build_object",
    some_labels="ARRAY['a' || (i % 10), NULL, 'with \"quotes\", and commas']",
    final_labels="ARRAY['final', NULL]",
    replace_body="ON CONFLICT (id) DO UPDATE SET body = excluded.body",
    analyze="ANALYZE {tables}",
)

_AS_THEY_ARE = frozenset("boolean smallint integer bigint date numeric text ARRAY bytea".split()) | {
    "double precision",
    "character varying",
    "timestamp without time zone",
}


class PostgresSource:
    """A server with the shop's database; implements `connector.demo.source.DemoSource`."""

    title, kind, namespace, dialect = "PostgreSQL", "postgres", "public", DIALECT

    def __init__(self, server: PostgresServer) -> None:
        self.version = server.version
        self.url, self.password = server.url(database=DATABASE), server.password

    @classmethod
    @contextmanager
    def start(cls, folder: Path) -> Iterator[PostgresSource]:
        """Start the server; it stops at the end of the block."""
        with PostgresServer.start(folder, database=DATABASE) as server:
            yield cls(server)

    def connect(self) -> Any:
        """Open a session."""
        return psycopg2.connect(self.url, options="-c timezone=UTC")

    def end_of_log(self, connection: Any) -> int:
        """Return the position after the last commit."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_wal_lsn()")
            return parse_lsn(cursor.fetchone()[0])

    def selected(self, column: str, data_type: str) -> str:
        """Build the SELECT expression of a column."""
        if data_type == "timestamp with time zone":
            return f"{column} AT TIME ZONE 'UTC'"
        if data_type == "real":  # as Parquet's floats become Python's: the nearest double
            return f"{column}::float8"
        return column if data_type in _AS_THEY_ARE else f"{column}::text"

    def ordered(self, column: str, data_type: str) -> str:
        """Build the ORDER BY expression of a column."""
        formatted = self.selected(column, data_type)
        as_text = data_type in ("text", "character varying") or data_type not in _AS_THEY_ARE
        by_bytes = as_text and not data_type.startswith("timestamp")
        return f'{formatted} COLLATE "C"' if by_bytes else formatted

    def read(self, connection: Any, query: str) -> Iterator[list[Row]]:
        """Read through a server-side cursor."""
        with connection.cursor(name="compare") as cursor:
            cursor.execute(query)
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                yield [tuple(map(_plain, row)) for row in rows]


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value
