"""Read tables in chunks beside the log: one snapshot, one COPY, and the proof of what the snapshot sees.

The order of steps in `open_chunk` makes a chunk exact:

1. Lock the table as a SELECT would (ACCESS SHARE), before there is a snapshot: after an ALTER that rewrites
   the table between snapshot and read, the old snapshot would see it empty.
2. Take the log reader's position, then open the snapshot.
3. `low`: that position, lowered below every commit that the reader has seen and the snapshot has not
   (`connector.postgres.visibility`).
4. `high`: the end of the log after the snapshot was opened. Every commit that the snapshot shows is before.

Keys are the source's text, compared by the server as the column's type, so any btree-ordered type works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg2
import pyarrow as pa
from psycopg2.extensions import connection as Connection
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from connector.codec.cells import combine_raw
from connector.config import TableConfig
from connector.errors import DeltatideError, NotYetError, RequestError, TableError, TransientError
from connector.position import parse_lsn
from connector.postgres.catalog import Catalog, Types, row_security_hint
from connector.postgres.codec.copytext import CopiedRows, split_rows
from connector.postgres.codec.text_values import decode_column
from connector.postgres.connection import all_rows, close, failed, literal, one_row, quote
from connector.postgres.driver.choice import driver
from connector.postgres.driver.interface import CopyError
from connector.postgres.predicate import bounded, check_predicate, pick_rows
from connector.postgres.table_facts import find_table, qualified
from connector.postgres.visibility import Snapshot, Visibility
from connector.postgres.wal import round_to_record_end
from connector.schema import TableName, TableSchema
from connector.source import ChunkRows, KeyRange

SNAPSHOT_POLL_SECONDS = 0.1
SNAPSHOT_SECONDS = 1.0
"""How long to wait for a transaction that may commit before the history's first position in the log."""


LOCK_SECONDS = 1
"""How long to wait for an ALTER, which may take hours: other tables' dumps then go first."""

_LOCKED = "55P03"
_CANCELED = "57014"
_MISSING = ("42P01", "3F000")
_BY_CONDITION = ("08P01", "53000", "53100", "53200", "53400", "54")
"""A bad parameter, too much memory or space: no retry would help a condition or keys."""


class _NoLowWatermarkError(NotYetError):
    """a transaction that began before the slot was created is still running."""


class PostgresChunk:
    """An open chunk; implements `connector.source.Chunk`. Its rows can be read once.

    `reading`: rows are still arriving, and only this chunk can take them off the connection.
    """

    def __init__(
        self, connection: Connection, schema: TableSchema, low: int, high: int, query: str, marked: bool
    ) -> None:
        self.schema, self.low, self.high = schema, low, high
        self._query, self._marked = query, marked
        self._copy = driver().open_rows(connection)
        self.reading = False

    def rows(self) -> Iterator[ChunkRows]:
        """Read the rows; the server is ahead only by what the sockets hold."""
        self._copy.start(f"COPY ({self._query}) TO STDOUT")
        self.reading = True
        while not self._copy.done:
            if decoded := self._decode(self._copy.read()):
                yield decoded
            del decoded  # a row may be large: release it before reading the next
        self.reading = False

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

    `tables` returns the settings of tables, which a reload replaces, `types` the log's cache of types
    (`connector.postgres.catalog`), `timeline` the log's timeline: when that changes, the connection is opened
    again, as it may lead to a server that was replaced.
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
        """Return the key of the row `rows` rows after `after` in key order; None if fewer are left."""
        with self._errors(table, where), self._reading(table, where):
            conditions = self._conditions(table, key, KeyRange(after, None), where)
            # Without the alias, ORDER BY would sort by the selected text.
            columns = ", ".join(f"t.{quote(c)}" for c in key)
            texts = ", ".join(f"t.{quote(c)}::text" for c in key)
            found = driver().run_alone(
                self._connection,
                f"SELECT {texts} FROM {self._rows_of(table)} t{conditions} ORDER BY {columns}"
                f" OFFSET {rows - 1} LIMIT 1",
            )
            return tuple(found[0]) if found else None

    def estimate_rows(self, table: TableName) -> int | None:
        """Return the planner's estimate, from the last VACUUM or ANALYZE; None if there was none."""
        with self._errors(table, None):
            facts = find_table(self._connection, table)
            return facts.estimate if facts else None

    @contextmanager
    def open_chunk(
        self, table: TableName, key_range: KeyRange, where: str | None = None
    ) -> Iterator[PostgresChunk]:
        """Open a snapshot and the rows of a key range in it."""
        with self._snapshot(table, where) as (schema, low, high):
            columns = ", ".join(quote(c.name) for c in schema.columns)
            conditions = self._conditions(table, schema.key, key_range, where)
            relation = self._rows_of(table)
            if where is not None:
                with bounded(self._connection, self._predicate_seconds):
                    check_predicate(self._connection, relation, where)
                    conditions = f" WHERE {pick_rows(self._connection, relation, conditions)}"
            query = f"SELECT {columns} FROM {relation}{conditions}"
            with self._chunk(schema, low, high, query) as chunk:
                yield chunk

    @contextmanager
    def open_keys(self, table: TableName, keys: Sequence[Sequence[str]]) -> Iterator[PostgresChunk]:
        """Open a snapshot and the rows of the given keys; keys without a row come as `absent`."""
        with self._snapshot(table, "given keys") as (schema, low, high):
            if wrong := next((k for k in keys if len(k) != len(schema.key)), None):
                raise RequestError(
                    f"{table}: {list(wrong)!r} is not a key", hint=f"the key is ({', '.join(schema.key)})"
                )
            with self._chunk(schema, low, high, self._keys_query(schema, keys), marked=True) as chunk:
                yield chunk

    def close(self) -> None:
        """Close the connection; never raises."""
        close(self._connection)

    def _open(self) -> None:
        self._of, self._connection = self._timeline(), self._connect()
        self._role = self._connection.info.user

    @contextmanager
    def _chunk(
        self, schema: TableSchema, low: int, high: int, query: str, *, marked: bool = False
    ) -> Iterator[PostgresChunk]:
        chunk = PostgresChunk(self._connection, schema, low, high, query, marked)
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
                self._end()  # a failed transaction would refuse the next table too

    @contextmanager
    def _reading(self, table: TableName, where: str | None) -> Iterator[None]:
        """Run within a read-only transaction; a condition is checked first and its time limited."""
        try:
            self._begin("READ ONLY")
            if where is None:
                yield
            else:
                with bounded(self._connection, self._predicate_seconds):
                    check_predicate(self._connection, self._rows_of(table), where)
                    yield
        finally:
            self._end()

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
        """Open a snapshot that has a low watermark; if it has none, raise with none open."""
        self._begin("ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._run(f"LOCK TABLE {qualified(table)} IN ACCESS SHARE MODE")
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
    ) -> str:
        conditions = []
        if key_range.after or key_range.upto:
            types = self._key_types(table, key)
            for sign, values in ((">", key_range.after), ("<=", key_range.upto)):
                if values is not None:
                    if len(values) != len(types):
                        raise TableError(table, f"its key has {len(types)} columns instead of {len(values)}")
                    columns = ", ".join(map(quote, key))
                    row = ", ".join(f"{literal(v)}::{t}" for v, (t, _) in zip(values, types, strict=True))
                    conditions.append(f"({columns}) {sign} ({row})")
        if where:
            conditions.append(f"({where}\n)")  # a trailing comment must not swallow the parenthesis
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def _keys_query(self, schema: TableSchema, keys: Sequence[Sequence[str]]) -> str:
        """Join the keys, in the key's types without length limits, which would truncate too long a key.

        An absent key comes back as the column would format it (``1.50``, padded), unless the column could not
        hold it at all.
        """
        types = self._key_types(schema.table, schema.key)
        values = ", ".join(
            "(" + ", ".join(f"{literal(v)}::{t}" for v, (t, _) in zip(key, types, strict=True)) + ")"
            for key in keys
        )
        names = [f"k{number}" for number in range(len(schema.key))]
        formatted = {
            column: f"COALESCE(t.{quote(column)}, CASE WHEN v.{name}::{exact} = v.{name} "
            f"THEN v.{name}::{exact} ELSE v.{name} END)"
            for column, name, (_, exact) in zip(schema.key, names, types, strict=True)
        }
        columns = [formatted.get(c.name, f"t.{quote(c.name)}") for c in schema.columns]
        joined = " AND ".join(f"t.{quote(c)} = v.{n}" for c, n in zip(schema.key, names, strict=True))
        return (
            f"SELECT t.{quote(schema.key[0])} IS NULL, {', '.join(columns)} "
            f"FROM (VALUES {values}) v({', '.join(names)})"
            f" LEFT JOIN {self._rows_of(schema.table)} t ON {joined}"
        )

    def _rows_of(self, table: TableName) -> str:
        """Build the FROM clause for a table's own rows, without those of tables that inherit from it."""
        query = "SELECT 'ONLY ' FROM pg_class WHERE oid = to_regclass(%s) AND relkind <> 'p'"
        found = one_row(self._connection, query, (qualified(table),))
        return f"{found[0] if found else ''}{qualified(table)}"

    def _key_types(self, table: TableName, key: Sequence[str]) -> list[tuple[str, str]]:
        """Return the base types of key columns, without and with their length limits."""
        rows = all_rows(self._connection, _KEY_TYPES, (qualified(table), list(key)))
        types = {name: (plain, exact) for name, plain, exact in rows}
        if missing := [c for c in key if c not in types]:
            raise TableError(table, f"key column {', '.join(missing)} is gone", hint="dump it again")
        return [types[c] for c in key]

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
        """End the transaction, or else the connection, which the next use reopens."""
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


_KEY_TYPES = """
    WITH RECURSIVE base(name, oid, typmod, kind, next) AS (
        SELECT a.attname, t.oid, a.atttypmod, t.typtype, t.typbasetype
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = %s::regclass AND a.attname = ANY (%s::name[]) AND NOT a.attisdropped
        UNION ALL
        SELECT b.name, t.oid, CASE WHEN d.typtypmod >= 0 THEN d.typtypmod ELSE b.typmod END,
               t.typtype, t.typbasetype
        FROM base b JOIN pg_type d ON d.oid = b.oid JOIN pg_type t ON t.oid = b.next WHERE b.kind = 'd')
    SELECT name::text, format_type(oid, -1), format_type(oid, typmod) FROM base WHERE kind <> 'd'"""


def _failure(table: TableName, where: str | None, error: Exception, role: str) -> DeltatideError:
    """Distinguish a lost connection from a refused predicate, and both from a table that can't be read."""
    if isinstance(error, CopyError):
        message, state = str(error), error.sqlstate
    else:
        assert isinstance(error, psycopg2.Error)
        message, state = error.diag.message_primary or str(error).strip(), error.pgcode
        if state is None and not isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError)):
            state = "?"
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
