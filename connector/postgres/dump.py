"""Reads tables in chunks alongside the log: one snapshot, one COPY, and the proof of what the snapshot sees.

The order of steps in `open_chunk` makes a chunk exact:

1. Lock the table as a SELECT would (ACCESS SHARE), before there is a snapshot: after an ALTER that rewrites
   the table between snapshot and read, the old snapshot would see it empty.
2. Take the log reader's position, then open the snapshot.
3. `low`: that position, lowered below every commit that the reader has seen and the snapshot has not
   (`connector.postgres.visibility`).
4. `high`: the end of the log after the snapshot was opened. Every commit that the snapshot shows is before
   it.

Keys are the source's text, compared by the server as the column's type, so any btree-ordered type works.
No index is relied on that may be in another order than the server compares by now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import psycopg2
import pyarrow as pa
from psycopg2.extensions import connection as Connection
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from connector.checksums.chunk import ChecksumChunk, whole_span
from connector.checksums.postgres_sql import bucket_columns
from connector.codec.cells import combine_raw
from connector.config import TableConfig
from connector.errors import DeltatideError, NotYetError, RequestError, TableError, TransientError
from connector.landing.column_names import IDS_PER_TABLE
from connector.logged_table import LoggedTable
from connector.position import parse_lsn
from connector.postgres.catalog import Catalog, Types, row_security_hint
from connector.postgres.codec.column_decoder import decode_column
from connector.postgres.codec.copytext import CopiedRows, split_rows
from connector.postgres.connection import all_rows, close, failed, one_line, one_row, quote, sqlstate_of
from connector.postgres.definitions.table_facts import find_table, qualified
from connector.postgres.driver.choice import driver
from connector.postgres.driver.interface import CopyError
from connector.postgres.key_sql import (
    WITHOUT_INDEXES,
    KeyColumn,
    compare_key,
    key_columns,
    keys_query,
    order_of,
)
from connector.postgres.log.wal import round_to_record_end
from connector.postgres.predicate import bounded, check_predicate, pick_rows, without_values
from connector.postgres.visibility import Snapshot, Visibility
from connector.schema import TableName, TableSchema
from connector.source import ChunkRows, KeyRange

SNAPSHOT_POLL_SECONDS = 0.1
SNAPSHOT_SECONDS = 1.0
"""How long to wait for a transaction that may commit before the history's first position in the log."""


LOCK_SECONDS = 1
"""Longest wait for an ALTER, which may take hours: dumps of other tables go first."""

_INTEGERS = ("smallint", "integer", "bigint")
_LOCKED = "55P03"
_CANCELED = "57014"
_MISSING = ("42P01", "3F000", "42883", "42704")
"""A table, schema, operator or type that was dropped or moved after it was looked up."""

_BY_CONDITION = ("08P01", "53000", "53100", "53200", "53400", "54")
"""A bad parameter, too much memory or space: for a condition or keys, a retry would not help."""


_COLUMNS = """FROM pg_attribute a WHERE a.attrelid = locked.oid AND a.attnum > 0 AND NOT a.attisdropped
           AND a.attgenerated = '' ORDER BY a.attnum"""

_READ_FROM = f"""
    WITH locked AS (
        SELECT l.relation AS oid, c.relkind FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation
        WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation'
          AND (c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relnamespace <> 'pg_catalog'::regnamespace
               OR c.oid IS NULL AND pg_get_indexdef(l.relation) IS NULL)),
    parts AS (
        SELECT DISTINCT t.relid, t.isleaf FROM locked l CROSS JOIN LATERAL pg_partition_tree(l.oid) t
        WHERE coalesce(l.relkind, 'p') = 'p' AND t.relid <> l.oid)
    SELECT oid::bigint, NULL, NULL, ARRAY(SELECT a.attname::text {_COLUMNS}),
           ARRAY(SELECT oid::bigint * {IDS_PER_TABLE} + a.attnum {_COLUMNS})
    FROM locked WHERE oid NOT IN (SELECT relid FROM parts)
      AND oid NOT IN (SELECT i.inhrelid FROM pg_inherits i JOIN locked l ON l.oid = i.inhparent
                      WHERE i.inhdetachpending)
    UNION ALL
    SELECT c.oid::bigint, n.nspname::text, c.relname::text, ARRAY[]::text[], ARRAY[]::bigint[]
    FROM parts p JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE p.isleaf AND (c.relfilenode <> c.oid OR pg_relation_size(c.oid) > 0)"""
"""What a transaction has read holds its lock to the end. What was created after the snapshot is not in its
pg_class; indexes are of no interest, and pg_get_indexdef sees the newest catalog. LOCK also locks partitions
whose DETACH CONCURRENTLY was cut off, which no SELECT reads, unless it is of the partition itself.
"""


class _NoLowWatermarkError(NotYetError):
    """a transaction that began before the slot was created is still running."""


class PostgresChunk:
    """An open chunk; implements `connector.source.Chunk`. Its rows can be read once.

    `reading`: rows are still arriving, and only this chunk can read them off the connection.
    """

    def __init__(
        self,
        connection: Connection,
        schema: TableSchema,
        low: int,
        high: int,
        query: str,
        *,
        marked: bool = False,
        order: str | None = None,
    ) -> None:
        self.schema, self.low, self.high, self.order = schema, low, high, order
        self._connection, self._query, self._marked = connection, query, marked
        self._copy = driver().open_rows(connection)
        self.reading = False

    def rows(self) -> Iterator[ChunkRows]:
        """Read the rows; the server is ahead only by what the socket buffers hold."""
        self._copy.start(f"COPY ({self._query}) TO STDOUT")
        self.reading = True
        while not self._copy.done:
            if decoded := self._decode(self._copy.read()):
                yield decoded
            del decoded  # a row may be large: release it before reading the next
        self.reading = False

    def read_from(self) -> list[LoggedTable]:
        """Return the table, and those of its partitions that are or were not empty.

        As attached now, not in the snapshot: rows of one that was attached after it may have been read, too.
        None that was read can have been detached meanwhile: that waits for our lock. Renaming a schema does
        not wait, so another table may have had the name for a moment: all that we have locked is returned.
        """
        table, lsn = self.schema.table, self.low + 1
        return [
            LoggedTable(oid, table, lsn=lsn, dumped=True, columns=tuple(columns), numbers=tuple(numbers))
            if namespace is None
            else LoggedTable(oid, TableName(namespace, name), table, lsn, dumped=True)
            for oid, namespace, name, columns, numbers in all_rows(self._connection, _READ_FROM)
        ]

    def abandon(self) -> None:
        """Close the connection if rows are still arriving on it; never raises."""
        if self.reading:
            self._copy.close()

    def _decode(self, rows: CopiedRows) -> ChunkRows | None:
        if not len(rows.starts):
            return None
        columns = self.schema.columns
        cells = split_rows(rows, len(columns) + self._marked)
        absent = decode_column(cells.pop(0), "boolean")[0] if self._marked else None
        arrays: list[pa.Array] = []
        raws: dict[str, pa.Array | None] = {}
        for column, values in zip(columns, cells, strict=True):
            try:
                array, raw = decode_column(values, column.type)
            except ValueError as error:
                raise TableError(self.schema.table, f"column {column.name}: {error}") from error
            arrays.append(array)
            raws[column.name] = raw
        return ChunkRows(arrays, combine_raw(raws), absent)


class PostgresTables:
    """Reads chunks over one connection; implements `connector.source.TableReader`. Used by one thread.

    `tables` returns the settings of tables, which a reload replaces; `types` the log's cache of types
    (`connector.postgres.catalog`); `timeline` the log's timeline: when it changes, the connection is
    reopened, since it may lead to a server that was replaced.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        tables: Callable[[], Mapping[TableName, TableConfig]],
        visibility: Callable[[], Visibility | None],
        timeline: Callable[[], str | None] = lambda: None,
        types: Callable[[], Types] = dict,
        predicate_seconds: float = 600.0,
    ) -> None:
        self._connect, self._tables = connect, tables
        self._visibility, self._predicate_seconds = visibility, predicate_seconds
        self._timeline, self._types = timeline, types
        self._open()

    def next_boundary(
        self,
        table: TableName,
        key: Sequence[str],
        after: tuple[str, ...] | None,
        rows: int,
        where: str | None,
    ) -> tuple[str, ...] | None:
        """Return the key of the row `rows` rows after `after` in key order; None if fewer are left.

        Also None if indexes may be in another order: then each range costs as much as the whole table.
        """
        with self._errors(table, where), self._reading():
            if any(column.indexed_otherwise for column in self._key_columns(table, key)):
                return None
            relation = self._rows_of(table)
            conditions, _ = self._conditions(table, key, KeyRange(after, None), where)
            columns = ", ".join(f"t.{quote(c)}" for c in key)
            # The type's output, of one row: a cast to text may be its owner's, and no value of the type.
            texts = ", ".join(f"pg_catalog.concat(t.{quote(c)})" for c in key)
            found_row = f"{relation} t{conditions} ORDER BY {columns} OFFSET {rows - 1} LIMIT 1"
            query = f"SELECT {texts} FROM (SELECT {columns} FROM {found_row}) t"
            with nullcontext() if where is None else self._condition(relation, where):
                found = driver().run_alone(self._connection, query)
            return tuple(found[0]) if found else None

    def estimate_rows(self, table: TableName) -> int | None:
        """Return the planner's estimate, from the last VACUUM or ANALYZE; None if there was none."""
        with self._errors(table, None):
            facts = find_table(self._connection, table)
            return facts.estimate if facts else None

    def key_span(self, table: TableName, key: Sequence[str]) -> tuple[int, int]:
        """Return the least and greatest value of the key's first column; (0, 0) if the table is empty."""
        with self._errors(table, None), self._reading():
            (column,) = key_columns(self._connection, table, key[:1])
            if column.type not in _INTEGERS:
                raise RequestError(f"{table}: key column {key[0]} ({column.type}) is not an integer")
            first, relation = quote(key[0]), self._rows_of(table)
            found = self._row(f"SELECT pg_catalog.min({first}), pg_catalog.max({first}) FROM {relation}")
            return whole_span(table, key[0], found)

    @contextmanager
    def open_chunk(
        self, table: TableName, key_range: KeyRange, where: str | None = None
    ) -> Iterator[PostgresChunk]:
        """Open a snapshot and the rows of a key range in it."""
        with self._snapshot(table, where) as (schema, low, high):
            columns = ", ".join(quote(c.name) for c in schema.columns)
            conditions, order = self._conditions(table, schema.key, key_range, where)
            relation = self._rows_of(table)
            if where is not None:
                self._key_columns(table, schema.key)  # whose index the condition might be sought by
                with self._condition(relation, where):
                    conditions = f" WHERE {pick_rows(self._connection, relation, conditions)}"
            query = f"SELECT {columns} FROM {relation}{conditions}"
            with self._closing(
                PostgresChunk(self._connection, schema, low, high, query, order=order)
            ) as chunk:
                yield chunk

    @contextmanager
    def open_checksums(self, table: TableName, key_range: KeyRange, bits: int) -> Iterator[ChecksumChunk]:
        """Open a snapshot and the checksums of a key range's rows in it."""
        with self._snapshot(table, None) as (schema, low, high):
            (encoding,) = self._row("SHOW server_encoding")
            buckets, relation = bucket_columns(schema, encoding, bits), self._rows_of(table)
            conditions, order = self._conditions(table, schema.key, key_range, None)
            query = f"SELECT {buckets} FROM {relation}{conditions} GROUP BY 1"
            yield ChecksumChunk(schema, low, high, lambda: all_rows(self._connection, query), order)

    @contextmanager
    def open_keys(self, table: TableName, keys: Sequence[Sequence[str]]) -> Iterator[PostgresChunk]:
        """Open a snapshot and the rows of the given keys; keys without a row come as `absent`."""
        with self._snapshot(table, "given keys") as (schema, low, high):
            if wrong := next((k for k in keys if len(k) != len(schema.key)), None):
                raise RequestError(
                    f"{table}: {list(wrong)!r} is not a key", hint=f"the key is ({', '.join(schema.key)})"
                )
            columns = self._key_columns(table, schema.key)
            query = keys_query(schema, columns, keys, self._rows_of(table))
            with self._closing(
                PostgresChunk(self._connection, schema, low, high, query, marked=True)
            ) as chunk:
                yield chunk

    def close(self) -> None:
        """Close the connection; never raises."""
        close(self._connection)

    def _open(self) -> None:
        self._of, self._connection = self._timeline(), self._connect()
        self._role = self._connection.info.user

    @contextmanager
    def _closing(self, chunk: PostgresChunk) -> Iterator[PostgresChunk]:
        try:
            yield chunk
        finally:
            chunk.abandon()

    @contextmanager
    def _snapshot(self, table: TableName, where: str | None) -> Iterator[tuple[TableSchema, int, int]]:
        """Open a transaction with a snapshot; yield schema, low and high. Ends the transaction on exit."""
        with self._errors(table, where):
            try:
                low, high = self._open_snapshot(table)
                layout = Catalog(self._connection, self._tables(), self._types()).layout_now(table)
                if layout.schema is None:
                    raise TableError(table, layout.reason, hint=layout.hint)
                yield layout.schema, low, high
            finally:
                self._end()  # a failed transaction would refuse the next table, too

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Run within a read-only transaction."""
        try:
            self._begin("READ ONLY")
            yield
        finally:
            self._end()

    @contextmanager
    def _condition(self, relation: str, where: str) -> Iterator[None]:
        """Check a condition, then run the block that uses it, and nothing else. Call in a transaction."""
        with bounded(self._connection, self._predicate_seconds):
            check_predicate(self._connection, relation, where)
            with without_values():
                yield

    def _open_snapshot(self, table: TableName) -> tuple[int, int]:
        visibility = self._visibility()
        if visibility is None:
            raise TransientError(f"{table}: the log is not being read yet")
        waiting = Retrying(
            retry=retry_if_exception_type(_NoLowWatermarkError),
            stop=stop_after_delay(SNAPSHOT_SECONDS),
            wait=wait_fixed(SNAPSHOT_POLL_SECONDS),
            reraise=True,
        )
        return waiting(self._try_snapshot, table, visibility)

    def _try_snapshot(self, table: TableName, visibility: Visibility) -> tuple[int, int]:
        """Open a snapshot that has a low watermark; if it has none, close it and raise."""
        relation = self._rows_of(table)  # before the transaction, whose first query takes its snapshot
        self._begin("ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._run(f"LOCK TABLE {relation} IN ACCESS SHARE MODE")
        with visibility.opening() as position:
            text, end = self._row("SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text")
            low = visibility.low_watermark(position, Snapshot.parse(text))
        if low is not None:
            return low, round_to_record_end(parse_lsn(end))
        self._end()
        raise _NoLowWatermarkError(
            f"{table}: waiting for transactions that began before the slot was created ({text})",
            hint="SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL",
        )

    def _conditions(
        self, table: TableName, key: Sequence[str], key_range: KeyRange, where: str | None
    ) -> tuple[str, str | None]:
        """Return the WHERE clause, and the order of the key if the range ends at one."""
        conditions, order = [], None
        if key_range.after or key_range.upto:
            columns = self._key_columns(table, key)
            order = None if key_range.of_prefix else order_of(columns)
            if not key_range.fits(len(columns)):
                raise TableError(table, f"the chunk's range is not of a key of {len(columns)} columns")
            for sign, values in ((">", key_range.after), ("<=", key_range.upto)):
                if values is not None:
                    conditions.append(compare_key(columns, sign, values))
        if where:
            conditions.append(f"({where}\n)")  # a trailing comment must not swallow the parenthesis
        return f" WHERE {' AND '.join(conditions)}" if conditions else "", order

    def _key_columns(self, table: TableName, key: Sequence[str]) -> list[KeyColumn]:
        """Look up a key's columns; an index that may be in another order is not used in this transaction."""
        columns = key_columns(self._connection, table, key)
        if any(column.indexed_otherwise for column in columns):
            self._run(WITHOUT_INDEXES)
        return columns

    def _rows_of(self, table: TableName) -> str:
        """Build the FROM clause for a table's own rows, without those of tables that inherit from it."""
        query = "SELECT 'ONLY ' FROM pg_class WHERE oid = to_regclass(%s) AND relkind <> 'p'"
        found = one_row(self._connection, query, (qualified(table),))
        return f"{found[0] if found else ''}{qualified(table)}"

    def _run(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)

    def _row(self, query: str) -> tuple[Any, ...]:
        row = one_row(self._connection, query)
        assert row is not None
        return row

    def _begin(self, mode: str) -> None:
        self._run(f"BEGIN {mode}; SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")

    def _end(self) -> None:
        """End the transaction, or if that fails, the connection, which the next use reopens."""
        try:
            self._run("ROLLBACK")
        except psycopg2.Error:
            close(self._connection)

    @contextmanager
    def _errors(self, table: TableName, where: str | None) -> Iterator[None]:
        if self._of != self._timeline():
            close(self._connection)
        if self._connection.closed:
            self._open()
        try:
            yield
        except (CopyError, psycopg2.Error) as error:
            raise _failure(table, where, error, self._role) from error
        except UnicodeDecodeError as error:  # which "char" could write before release 16
            raise TableError(table, "a key is not valid UTF-8") from error


def _failure(table: TableName, where: str | None, error: Exception, role: str) -> DeltatideError:
    """Distinguish a lost connection from a refused predicate, and both from a table that can't be read."""
    if isinstance(error, CopyError):
        message, state = str(error), error.sqlstate
    else:
        assert isinstance(error, psycopg2.Error)
        message, state = error.diag.message_primary or one_line(error), sqlstate_of(error)
    if where is not None and state is not None and state.startswith(_BY_CONDITION):
        state = "?"
    if where is None and state in _MISSING:
        return NotYetError(f"{table}: {message}")  # replaced under its name; once gone, it is left
    if state == _LOCKED:
        return NotYetError(f"{table}: another session holds a lock that blocks reading: {message}")
    if where is not None and state == _CANCELED:
        return RequestError(f"{table}: {message}", hint="raise source.predicate_seconds, or add an index")
    general = failed(str(table), message, state)
    if isinstance(general, TransientError):
        return general
    if where is not None:
        return RequestError(
            f"{table}: {message}", hint="write the predicate or key in the database's own SQL"
        )
    hint = None
    if state == "42501":
        grant = f"GRANT SELECT ON {qualified(table)} TO {quote(role)};"
        hidden = f"if row security hides rows: {row_security_hint(role, table, owner=False)}"
        hint = f"{grant} or, {hidden} then dump it again"
    return TableError(table, message, hint=hint)
