"""Reads tables in chunks alongside the log: one snapshot, one SELECT, the proof of what the snapshot sees.

The order of steps in `open_chunk` makes a chunk exact:

1. Lock the table's definition as a SELECT of all columns does, before there is a snapshot: after an ALTER
   that rewrote the table, or a swap of tables, an older snapshot would not match the log.
2. Take the log reader's position, have all commits up to it visible, and open the snapshot
   (`connector.mysql.log.visibility`). In MariaDB, step 1 comes just before the snapshot.
3. `low`: the position taken, less one: a commit's lsn is its begin, so those before that position are seen.
   `high`: the end of the log after the snapshot was opened.

A second session holds the lock (MariaDB) and writes the barrier, since opening a snapshot ends the
transaction that would hold the lock. Both must lead to the server whose log is read. Nothing waits for the
rows: only an ALTER of the table waits for us.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.connections import Connection

from connector.checksums.chunk import ChecksumChunk, whole_span
from connector.checksums.mysql_sql import bucket_columns
from connector.codec.cells import combine_raw
from connector.config import TableConfig
from connector.errors import (
    DeltatideError,
    NotYetError,
    RequestError,
    TableError,
    TransientError,
)
from connector.logged_table import LoggedTable
from connector.mysql import key_sql as keys
from connector.mysql.catalog import estimate_rows, layout_of, qualified, table_map_of
from connector.mysql.codec.table_map import TableMap
from connector.mysql.codec.text_rows import RowStream, TextRows, decode_rows
from connector.mysql.codec.types import LONGLONG, ColumnType, select_expression
from connector.mysql.connection import close, code_of, is_transient, query, quote, row, rows, text_of
from connector.mysql.definitions.column_rights import refuse_hidden
from connector.mysql.key_sql import KeyColumn
from connector.mysql.log.reader import ReaderProgress
from connector.mysql.log.visibility import Visibility
from connector.mysql.predicate import FAILED, check_predicate, limit_time
from connector.mysql.server import end_of_log, find_server, position_of
from connector.mysql.state_table import StateTable
from connector.schema import TableName, TableSchema
from connector.silence import awaited_of
from connector.source import ChunkRows, KeyRange

BATCH_BYTES = 4 << 20
"""Bytes decoded at a time: enough for Arrow to be fast, few enough for memory."""

RECEIVE_BYTES = 1 << 16
"""Allocated for each read, of which TLS needs one per 16 KiB: 256 KiB took 2.5 times the CPU time."""

GATHER_SECONDS = 0.002
"""Rows that arrive within this time are decoded together."""

KEYS_AT_ONCE = 100
"""Keys looked up by one SELECT: few round trips, but a short statement even with the longest keys."""

_TOO_LONG = (1969, 3024)
"""A statement timed out, in MariaDB and in MySQL."""

_QUERY = 3
_NO_TABLE, _NO_RIGHT, _NO_COLUMN_RIGHT = 1146, 1142, 1143


class MysqlChunk:
    """An open chunk; implements `connector.source.Chunk`. Its rows can be read once."""

    def __init__(
        self,
        schema: TableSchema,
        low: int,
        high: int,
        read: Callable[[], Iterator[ChunkRows]],
        order: str | None = None,
    ) -> None:
        self.schema, self.low, self.high, self.order = schema, low, high, order
        self._read = read

    def rows(self) -> Iterator[ChunkRows]:
        """Read the rows; the server is ahead only by what the socket buffers hold."""
        return self._read()

    def read_from(self) -> Sequence[LoggedTable]:
        """Return none: what a check may not see is in the log."""
        return ()


class MysqlTables:
    """Reads chunks over two connections; implements `connector.source.TableReader`. Used by one thread.

    `tables` returns the settings of tables, which a reload replaces; `progress` the log reader's position and
    server, or None while no log is being read.
    """

    def __init__(
        self,
        connect: Callable[[], Connection[Any]],
        state_table: StateTable,
        tables: Callable[[], Mapping[TableName, TableConfig]],
        progress: Callable[[], ReaderProgress | None],
        predicate_seconds: float = 600.0,
    ) -> None:
        self._tables, self._log_progress = tables, progress
        self._predicate_seconds = predicate_seconds
        self._streaming = self._limited = False
        self._connection = connect()
        try:
            self._guard = connect()
            with self._errors(TableName("", ""), None):
                self._server = find_server(self._connection)
                self._guarding = find_server(self._guard)
            self._visibility = Visibility(self._guard, self._server, state_table)
        except BaseException:
            close(self._connection)
            raise

    def next_boundary(
        self,
        table: TableName,
        key: Sequence[str],
        after: tuple[str, ...] | None,
        rows: int,
        where: str | None,
    ) -> tuple[str, ...] | None:
        """Return the key of the row `rows` rows after `after` in key order; None if fewer are left."""
        with self._errors(table, where), self._reading(table, where):
            columns = self._key_columns(table, key, self._table_map(table))
            if any(column.is_misordered for column in columns):
                return None  # the table is one piece
            conditions = keys.conditions(columns, KeyRange(after, None), where)
            texts = keys.texts(columns)
            order = ", ".join(f"t.{quote(c)}" for c in key)
            limit = f"LIMIT 1 OFFSET {rows - 1}"
            statement = f"SELECT {texts} FROM {qualified(table)} t{conditions} ORDER BY {order} {limit}"
            with self._errors(table, where, of_rows=where is not None):
                found = row(self._connection, statement)
            return keys.read_key(table, columns, found) if found else None

    def estimate_rows(self, table: TableName) -> int | None:
        """Return the engine's estimate."""
        with self._errors(table, None):
            return estimate_rows(self._connection, table)

    def key_span(self, table: TableName, key: Sequence[str]) -> tuple[int, int]:
        """Return the least and greatest value of the key's first column; (0, 0) if the table is empty."""
        first = quote(key[0])
        with self._errors(table, None):
            found = row(self._connection, f"SELECT MIN({first}), MAX({first}) FROM {qualified(table)}") or ()
        return whole_span(table, key[0], found)

    @contextmanager
    def open_chunk(
        self, table: TableName, key_range: KeyRange, where: str | None = None
    ) -> Iterator[MysqlChunk]:
        """Open a snapshot and the rows of a key range in it."""
        with self._snapshot(table, where) as (schema, layout, low, high):
            self._check(table, where)
            columns = self._key_columns(table, schema.key, layout)
            order = keys.order_of(columns, key_range)

            def read() -> Iterator[ChunkRows]:
                statement = self._select(layout, keys.conditions(columns, key_range, where))
                return self._rows(layout, columns, statement, where)

            yield MysqlChunk(schema, low, high, read, order)

    @contextmanager
    def open_checksums(self, table: TableName, key_range: KeyRange, bits: int) -> Iterator[ChecksumChunk]:
        """Open a snapshot and the checksums of a key range's rows in it."""
        with self._snapshot(table, None) as (schema, layout, low, high):
            columns = self._key_columns(table, schema.key, layout)
            buckets = bucket_columns(schema, layout, bits)
            order = keys.order_of(columns, key_range)

            def read() -> Iterable[tuple[Any, ...]]:
                where = keys.conditions(columns, key_range, None)
                return rows(self._connection, f"SELECT {buckets} FROM {qualified(table)} t{where} GROUP BY 1")

            yield ChecksumChunk(schema, low, high, read, order)

    @contextmanager
    def open_keys(self, table: TableName, keys: Sequence[Sequence[str]]) -> Iterator[MysqlChunk]:
        """Open a snapshot and the rows of the given keys; keys without a row come as `absent`."""
        with self._snapshot(table, "given keys") as (schema, layout, low, high):
            if wrong := next((k for k in keys if len(k) != len(schema.key)), None):
                raise RequestError(
                    f"{table}: {list(wrong)!r} is not a key", hint=f"the key is ({', '.join(schema.key)})"
                )
            columns = self._key_columns(table, schema.key, layout)
            yield MysqlChunk(schema, low, high, lambda: self._rows_of(layout, columns, keys))

    def close(self) -> None:
        """Close the connections; never raises."""
        close(self._connection)
        close(self._guard)

    @contextmanager
    def _reading(self, table: TableName, where: str | None) -> Iterator[None]:
        """Run within a read-only transaction; a condition is checked first and its time limited."""
        query(self._connection, "START TRANSACTION READ ONLY")
        try:
            self._check(table, where)
            yield
        finally:
            self._end()

    def _check(self, table: TableName, where: str | None) -> None:
        if where is not None:
            limit_time(self._connection, self._server.mariadb, self._predicate_seconds)
            self._limited = True
            check_predicate(self._connection, qualified(table), where)

    @contextmanager
    def _snapshot(
        self, table: TableName, where: str | None
    ) -> Iterator[tuple[TableSchema, TableMap, int, int]]:
        """Open a transaction with a snapshot; yield schema, layout, low and high. Ends it on exit."""
        with self._errors(table, where):
            progress = self._log_progress()
            if progress is None:
                raise TransientError(f"{table}: the log is not being read yet")
            if {self._server.uuid, self._guarding.uuid} != {progress.server}:
                raise TransientError(f"{table}: source.url points to another server than the log's")
            try:
                low, high = self._open_snapshot(table, progress)
                layout = layout_of(self._connection, table, self._tables())
                if layout is None or layout.table_map is None or layout.schema is None:
                    raise (layout and layout.problem) or NotYetError(f"{table}: does not exist now")
                if not self._server.mariadb:
                    refuse_hidden(self._connection, table, {c.name for c in layout.table_map.columns})
                yield layout.schema, layout.table_map, low, high
            finally:
                self._end()

    def _open_snapshot(self, table: TableName, progress: ReaderProgress) -> tuple[int, int]:
        lock = f"SELECT * FROM {qualified(table)} LIMIT 0"  # the catalog hides what we may not read
        if self._server.mariadb:
            return self._open_in_mariadb(table, progress, lock)
        query(self._connection, "START TRANSACTION READ ONLY")
        rows(self._connection, lock)
        with _proof(table):
            self._visibility.have_visible(table, progress)
        rows(self._connection, f"SELECT 1 FROM {qualified(table)} LIMIT 1")
        return progress.position - 1, self._end_of_log(table)

    def _open_in_mariadb(self, table: TableName, progress: ReaderProgress, lock: str) -> tuple[int, int]:
        with _proof(table):
            visible = self._visibility.have_visible_in_mariadb(table, progress)
        query(self._guard, "START TRANSACTION READ ONLY")
        try:
            rows(self._guard, lock)
            query(self._connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            rows(self._connection, lock)
        finally:
            query(self._guard, "ROLLBACK")
        return visible - 1, self._end_of_log(table)

    def _end_of_log(self, table: TableName) -> int:
        with _proof(table):
            return position_of(*end_of_log(self._guard, self._server))

    def _select(self, layout: TableMap, conditions: str, *further: str) -> str:
        columns = [select_expression(f"t.{quote(c.name)}", c.type) for c in layout.columns]
        return f"SELECT {', '.join([*columns, *further])} FROM {qualified(layout.table)} t{conditions}"

    def _rows(
        self, layout: TableMap, columns: Sequence[KeyColumn], statement: str, where: str | None
    ) -> Iterator[ChunkRows]:
        """Run the SELECT and decode its rows as they arrive."""
        with self._errors(layout.table, where, of_rows=where is not None):
            query(self._connection, "SET character_set_results = NULL")
            for some in self._stream(statement):
                if len(some.starts):
                    yield self._decode(layout, columns, some)[0]

    def _stream(self, statement: str) -> Iterator[TextRows]:
        connection, stream = self._connection, RowStream()
        connection._execute_command(_QUERY, statement)
        packet = connection._read_packet()
        for _ in range(packet.read_length_encoded_integer() + 1):
            connection._read_packet()
        self._streaming = True
        while not stream.ended:
            if not stream.pending:
                self._gather(stream)
            yield stream.take()
        self._streaming = False
        if stream.error is not None:
            pymysql.err.raise_mysql_exception(stream.error)

    def _gather(self, stream: RowStream) -> None:
        """Wait for bytes, then take what else arrives promptly; splitting the rows detects their end."""
        while len(stream.rest) < max(BATCH_BYTES, stream.wanted):
            with awaited_of(self._connection):
                data = self._connection._rfile.read1(RECEIVE_BYTES)
            if not data:
                raise TransientError("reading rows: the server closed the connection")
            stream.feed(data)
            if len(stream.rest) >= stream.wanted and not self._comes_more():
                return

    def _comes_more(self) -> bool:
        return bool(select.select([self._connection._sock], [], [], GATHER_SECONDS)[0])

    def _decode(
        self, layout: TableMap, key: Sequence[KeyColumn], some: TextRows, *further: ColumnType
    ) -> tuple[ChunkRows, list[pa.Array]]:
        """Decode the table's columns and those selected after them."""
        try:
            arrays, raws = decode_rows(some, [*(c.type for c in layout.columns), *further])
        except ValueError as error:
            raise TableError(layout.table, str(error)) from error
        keys.check_encodings(layout, key, some, len(arrays))
        names = [c.name for c in layout.columns]
        raw = combine_raw(dict(zip(names, raws[: len(names)], strict=True)))
        return ChunkRows(arrays[: len(names)], raw), arrays[len(names) :]

    def _rows_of(
        self, layout: TableMap, columns: Sequence[KeyColumn], wanted: Sequence[Sequence[str]]
    ) -> Iterator[ChunkRows]:
        """Look up keys in the one snapshot, by the server's own comparison.

        The server may consider two keys equal ('a' and 'A'), so keys without a reported row are looked up
        again, until none of them has one. A key that is only equal to a row's has none of its text.
        """
        missing: list[Sequence[str]] = []
        with self._errors(layout.table, "given keys"):
            for low in range(0, len(wanted), KEYS_AT_ONCE):
                left = list(wanted[low : low + KEYS_AT_ONCE])
                while left:
                    found: set[int] = set()
                    exact: set[int] = set()
                    for rows_found, numbers in self._rows_with_numbers(layout, columns, left):
                        found.update(numbers)
                        exact |= keys.of_exact_text(layout, columns, rows_found, numbers, left)
                        yield rows_found
                    if not found:
                        missing += left
                        break
                    missing += [left[number] for number in sorted(found - exact)]
                    left = [key for number, key in enumerate(left) if number not in found]
            if missing:
                yield keys.absent_rows(layout, columns, missing)

    def _rows_with_numbers(
        self, layout: TableMap, columns: Sequence[KeyColumn], wanted: Sequence[Sequence[str]]
    ) -> Iterator[tuple[ChunkRows, list[int]]]:
        """Run one SELECT for some keys; yield rows, each with the number of the first key that matches it."""
        conditions = [f"({_equal(columns, key)})" for key in wanted]
        number = " ".join(f"WHEN {condition} THEN {index}" for index, condition in enumerate(conditions))
        statement = self._select(layout, f" WHERE {' OR '.join(conditions)}", f"CASE {number} END")
        query(self._connection, "SET character_set_results = NULL")
        for some in self._stream(statement):
            if len(some.starts):
                chunk, (numbers,) = self._decode(layout, columns, some, ColumnType(LONGLONG))
                present = pa.array([False] * len(numbers))
                yield ChunkRows(chunk.columns, chunk.raw, present), numbers.to_pylist()

    def _table_map(self, table: TableName) -> TableMap:
        found = table_map_of(self._connection, table)
        if found is None:
            raise NotYetError(f"{table}: does not exist now")
        return found

    def _key_columns(self, table: TableName, key: Sequence[str], layout: TableMap) -> list[KeyColumn]:
        by_name = {c.name: c for c in layout.columns}
        if missing := [c for c in key if c not in by_name]:
            raise TableError(table, f"key column {', '.join(missing)} is gone", hint="dump it again")
        found, mariadb = [by_name[name] for name in key], self._server.mariadb
        return [KeyColumn(c.name, c.type, c.collation, mariadb) for c in found]

    def _end(self) -> None:
        """End the transaction, or the connection if rows are still arriving."""
        try:
            if self._streaming:
                raise TransientError("rows are still arriving")
            query(self._connection, "ROLLBACK")
            query(self._connection, "SET character_set_results = utf8mb4")
            if self._limited:
                limit_time(self._connection, self._server.mariadb, 0)
                self._limited = False
        except (pymysql.Error, OSError, TransientError):
            close(self._connection)

    @contextmanager
    def _errors(self, table: TableName, where: str | None, of_rows: bool = False) -> Iterator[None]:
        try:
            yield
        except (pymysql.Error, OSError) as error:
            raise _failure(table, where, error, of_rows) from error


@contextmanager
def _proof(table: TableName) -> Iterator[None]:
    """Run what proves a snapshot; that a server refuses it is neither a table's fault nor a condition's.

    A right on the server was taken away, say, or GTIDs were turned off, which the log reader meets, too.
    """
    try:
        yield
    except pymysql.Error as error:
        if is_transient(code_of(error)):
            raise
        raise NotYetError(f"{table}: no snapshot can be proven: {text_of(error)}") from error


def _equal(columns: Sequence[KeyColumn], key: Sequence[str]) -> str:
    try:
        return keys.equal(columns, key)
    except ValueError as error:
        raise RequestError(str(error)) from error


def _failure(table: TableName, where: str | None, error: Exception, of_rows: bool) -> DeltatideError:
    """Distinguish a lost connection from a refused predicate, and both from a table that can't be read.

    `of_rows`: a condition was evaluated, so the server's message may contain a row's values.
    """
    code, message = code_of(error), text_of(error)
    if where is not None and code in _TOO_LONG:
        return RequestError(f"{table}: {message}", hint="raise source.predicate_seconds, or add an index")
    if is_transient(code):
        return TransientError(f"{table}: {message}")
    if code in (_NO_RIGHT, _NO_COLUMN_RIGHT) and where is not None:  # perhaps on what a function in it reads
        return RequestError(f"{table}: {message}", hint="GRANT SELECT ON that table TO the agent's user")
    if code in (_NO_RIGHT, _NO_COLUMN_RIGHT):
        return TableError(table, message, hint=f"GRANT SELECT ON {qualified(table)} TO the agent's user")
    if code == _NO_TABLE and (where is None or _names(table, message)):
        return NotYetError(f"{table}: {message}")  # replaced under its name; once gone, it is left
    if where is not None:
        why = f"{FAILED} {code}" if of_rows else message
        return RequestError(f"{table}: {why}", hint="write the predicate or key in the database's own SQL")
    return TableError(table, message)


def _names(table: TableName, message: str) -> bool:
    """Return whether the server says of this table that it is missing, not of one that a function reads."""
    return f"'{table.namespace}.{table.name}'".casefold() in message.casefold()
