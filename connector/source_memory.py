"""A source in memory: `connector.source`'s contract over a `MemoryDatabase`, with faults at named moments.

It decodes real batches and proves its low watermarks by the same rules as PostgreSQL's source, whose
`Visibility` it uses. Several sources may read one database: each stands for an agent.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from connector.config import SourceConfig
from connector.errors import RequestError, TableError, TransientError
from connector.event import CdcColumns, EventBatch, SetAside, arrow_type, assemble
from connector.landing import DELETE, INSERT, UPDATE
from connector.manifest import SourceIdentity, UnsettledCommit
from connector.memory_database import Change, Commit, MemoryDatabase, Row, Slot
from connector.position import Position
from connector.postgres.visibility import Snapshot, Visibility
from connector.schema import TableName, TableSchema
from connector.source import ChunkRows, Finding, History, KeyRange

BATCH_ROWS = 100
"""Few, so that a chunk in a test is more than one batch."""

_PREDICATE = re.compile(r"(\w+) (?:is not null|= '([^']*)')")


@dataclass
class _Fault:
    moment: str
    after: int
    times: int
    error: BaseException


class MemorySource:
    """A database in memory as one agent sees it; implements `connector.source.Source`.

    `fail` and `disconnect` break it; `undecodable` names tables whose log events can't be decoded, and why.
    A change counts as `change_bytes` in a log reader's buffer, so that few rows make a large transaction.
    """

    def __init__(self, database: MemoryDatabase, config: SourceConfig, *, change_bytes: int = 100) -> None:
        self.database = database
        self.change_bytes = change_bytes
        self.undecodable: dict[str, str] = {}
        self.visibility: Visibility | None = None
        self._config = config
        self._faults: list[_Fault] = []
        self._lock = threading.Lock()
        self._connections = 0

    def fail(
        self, moment: str, *, after: int = 0, times: int = 1, error: BaseException | None = None
    ) -> None:
        """Let a named moment fail, once it has passed `after` times.

        Moments: gap_after, begin_history, open_log, read, take, confirm, unsettled, open_tables,
        next_boundary, open_chunk, rows.
        """
        error = error or TransientError(f"the connection was lost on purpose, at {moment}")
        with self._lock:
            self._faults.append(_Fault(moment, after, times, error))

    def disconnect(self) -> None:
        """Break all connections that are open now."""
        with self._lock:
            self._connections += 1

    def connect(self) -> Callable[[str], None]:
        """Open a connection: what it gives is called at each named moment, and raises when it is broken."""
        connection = self._connections

        def reach(moment: str) -> None:
            if connection != self._connections:
                raise TransientError(f"the connection is broken, at {moment}")
            self.reach(moment)

        return reach

    def reach(self, moment: str) -> None:
        """Pass a named moment; raises where it was told to fail."""
        with self._lock:
            fault = next((f for f in self._faults if f.moment == moment), None)
            if fault is None:
                return
            if fault.after > 0:
                fault.after -= 1
                return
            fault.times -= 1
            if fault.times <= 0:
                self._faults.remove(fault)
        raise fault.error

    def check(self) -> list[Finding]:
        """Find nothing wrong."""
        return [Finding("memory", "ok", self.database.name)]

    def identity(self) -> SourceIdentity:
        """Tell which database this is."""
        return SourceIdentity(
            name=self._config.name,
            kind="postgres",
            system_id="memory",
            database=self.database.name,
            slot=self._config.slot,
        )

    def tables(self) -> list[TableSchema]:
        """List the tables that the configuration names."""
        self.reach("tables")
        return [s for s in self.database.schemas() if self._config.captures(s.table)]

    def prepare(self) -> tuple[UnsettledCommit, ...]:
        """Publish the tables; commits that are hidden then may lack their changes in the log."""
        added = self.database.publish([s.table for s in self.tables()])
        return self._hidden() if added and self._config.slot in self.database.slots else ()

    def begin_history(self, *, fresh: bool) -> History:
        """Make a slot at the end of the log, or adopt the one that is there."""
        self.reach("begin_history")
        with self.database.changed:
            if fresh or self._config.slot not in self.database.slots:
                self.database.slots[self._config.slot] = Slot(self.database.end)
            return History(self.database.slots[self._config.slot].confirmed, self._hidden())

    def _hidden(self) -> tuple[UnsettledCommit, ...]:
        return tuple(UnsettledCommit(xid=xid, lsn=0) for xid in self.database.hidden)

    def gap_after(self, position: int) -> str | None:
        """Tell whether the slot is gone, or was moved past this position."""
        self.reach("gap_after")
        slot = self.database.slots.get(self._config.slot)
        if slot is None:
            return f"slot {self._config.slot} is gone"
        return (
            f"slot {self._config.slot} was moved to {slot.confirmed}" if slot.confirmed > position else None
        )

    def open_log(self, epoch: int, position: int, unsettled: Sequence[UnsettledCommit]) -> MemoryLogReader:
        """Open the log; as PostgreSQL does, not before what its slot has confirmed."""
        self.reach("open_log")
        slot = self.database.slots.get(self._config.slot)
        if slot is None:
            raise TransientError(f"slot {self._config.slot} is gone")
        self.visibility = Visibility(position, unsettled)
        return MemoryLogReader(self, slot, epoch, max(position, slot.confirmed), self.visibility)

    def open_tables(self) -> MemoryTables:
        """Open a connection for dumps."""
        self.reach("open_tables")
        return MemoryTables(self)

    def holds_any(self, columns: Sequence[str]) -> str:
        """Give the predicate that is true for rows in which one of these columns is not null."""
        return " or ".join(f"{column} is not null" for column in columns)

    def is_captured(self, change: Change, lsn: int) -> bool:
        """Tell whether the log of this source carries a change of a transaction."""
        table = change.schema.table
        return self._config.captures(table) and self.database.is_published(table, lsn)

    def slot_is(self, slot: Slot) -> bool:
        """Tell whether the slot is still the one that was opened."""
        return self.database.slots.get(self._config.slot) is slot

    def close(self) -> None:
        """Let go of all connections."""
        self.disconnect()


@dataclass(frozen=True)
class Logged:
    """One change with its place in the log."""

    commit: Commit
    ordinal: int
    change: Change


class MemorySegment:
    """Logged changes, decoded on demand; implements `connector.source.Segment`."""

    def __init__(self, epoch: int, position: int, logged: list[Logged], undecodable: dict[str, str]) -> None:
        self.position = position
        self.committed_at: datetime | None = logged[-1].commit.committed_at if logged else None
        self.rows = len(logged)
        self._epoch, self._logged, self._undecodable = epoch, logged, undecodable

    def decode(self) -> Iterator[EventBatch | SetAside]:
        """Decode into one batch for each table and layout."""
        groups: dict[tuple[TableName, str], list[Logged]] = {}
        for logged in self._logged:
            schema = logged.change.schema
            groups.setdefault((schema.table, schema.id), []).append(logged)
        for (table, _), group in groups.items():
            if reason := self._undecodable.get(str(table)):
                yield SetAside(str(table), group[0].commit.lsn, reason, "mend it, then dump it again")
            else:
                yield _batch(self._epoch, group)


def _batch(epoch: int, group: list[Logged]) -> EventBatch:
    schema = group[0].change.schema
    events = [event for logged in group for event in events_of(logged)]
    columns = [
        pa.array([None if c.name in e.unchanged else e.row.get(c.name) for e in events], arrow_type(c.type))
        for c in schema.columns
    ]
    commits = [e.commit for e in events]
    cdc = CdcColumns(
        op=pa.array([e.op for e in events], pa.string()),
        epoch=epoch,
        lsn=pa.array([c.lsn for c in commits], pa.int64()),
        seq=pa.array([e.seq for e in events], pa.int64()),
        txid=pa.array([str(c.xid) for c in commits], pa.string()),
        committed_at=pa.array([c.committed_at for c in commits], pa.timestamp("us", tz="UTC")),
        unchanged=pa.array([list(e.unchanged) or None for e in events], pa.list_(pa.string())),
    )
    return EventBatch(
        schema,
        assemble(schema, columns, cdc),
        first=Position(epoch, commits[0].lsn, events[0].seq),
        last=Position(epoch, commits[-1].lsn, events[-1].seq),
        partial=any(e.unchanged for e in events),
        truncates=any(e.op == "truncate" for e in events),
    )


@dataclass(frozen=True)
class LogEvent:
    """One event that a change lands as."""

    commit: Commit
    seq: int
    op: str
    row: Row
    unchanged: tuple[str, ...] = ()


def events_of(logged: Logged) -> list[LogEvent]:
    """Give the events of one change: two for an update that changed the key."""
    commit, change, seq = logged.commit, logged.change, 2 * logged.ordinal
    if change.old_key is None:
        return [LogEvent(commit, seq, change.op, change.row, change.unchanged)]
    old = dict(zip(change.schema.key, change.old_key, strict=True))
    return [
        LogEvent(commit, seq, DELETE, old),
        LogEvent(commit, seq + 1, INSERT if change.op == UPDATE else change.op, change.row, change.unchanged),
    ]


class MemoryLogReader:
    """Reads the log change by change; implements `connector.source.LogReader`."""

    def __init__(
        self, source: MemorySource, slot: Slot, epoch: int, start: int, visibility: Visibility
    ) -> None:
        self._reach = source.connect()
        self._source, self._database, self._slot, self._epoch = source, source.database, slot, epoch
        self._visibility = visibility
        self._next = sum(commit.position <= start for commit in list(self._database.log))
        self._ordinal = 0
        self._whole: list[Logged] = []
        self._open: list[Logged] = []

    @property
    def position(self) -> int:
        """The boundary up to which the log was read."""
        return self._visibility.position

    @property
    def buffered_bytes(self) -> int:
        """The size of all changes held."""
        return self._source.change_bytes * (len(self._whole) + len(self._open))

    @property
    def buffered_rows(self) -> int:
        """How many changes of whole transactions are held."""
        return len(self._whole)

    @property
    def behind_bytes(self) -> int:
        """How far the end of the log is ahead."""
        return self._database.end - self.position

    def read(self, seconds: float, upto_bytes: int) -> None:
        """Read until so many seconds have passed or the buffer holds so many bytes."""
        deadline = time.monotonic() + seconds
        with self._database.changed:
            while self.buffered_bytes < upto_bytes:
                self._reach("read")
                if not self._source.slot_is(self._slot):
                    raise TransientError("the slot is gone")
                more = self._pull()
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                if not more:
                    self._database.changed.wait(left)

    def _pull(self) -> bool:
        """Take one change, or a commit, from the log; False at its end, which is then the position."""
        if self._next == len(self._database.log):
            self._visibility.publish(self._database.end)
            return False
        commit = self._database.log[self._next]
        if self._ordinal < len(commit.changes):
            change = commit.changes[self._ordinal]
            if self._source.is_captured(change, commit.lsn):
                self._open.append(Logged(commit, self._ordinal, change))
            self._ordinal += 1
            return True
        self._whole += self._open
        self._open, self._ordinal, self._next = [], 0, self._next + 1
        self._visibility.publish(commit.position, [(commit.lsn, commit.xid)])
        return True

    def take(self) -> MemorySegment:
        """Take all whole transactions."""
        self._reach("take")
        whole, self._whole = self._whole, []
        return MemorySegment(self._epoch, self.position, whole, dict(self._source.undecodable))

    def take_open(self) -> MemorySegment | None:
        """Take what is held of the open transaction."""
        if not self._open:
            return None
        taken, self._open = self._open, []
        return MemorySegment(self._epoch, self.position, taken, dict(self._source.undecodable))

    def confirm(self, position: int) -> None:
        """Move the slot, which never goes back."""
        self._reach("confirm")
        self._slot.confirmed = max(self._slot.confirmed, position)

    def unsettled(self, position: int) -> list[UnsettledCommit]:
        """Give the commits at or before a position that are not visible."""
        self._reach("unsettled")
        self._visibility.settle(_snapshot(self._database.hidden, self._database.next_xid))
        return self._visibility.unsettled(position)

    def close(self) -> None:
        """Hold nothing more."""
        self._whole, self._open = [], []


def _snapshot(hidden: Sequence[int], next_xid: int) -> Snapshot:
    return Snapshot(min(hidden, default=next_xid), next_xid, frozenset(hidden))


@dataclass(frozen=True)
class MemoryChunk:
    """An open chunk; implements `connector.source.Chunk`. `absent` are keys without a row."""

    schema: TableSchema
    low: int
    high: int
    found: list[Row]
    absent: list[Row] | None
    reach: Callable[[str], None]

    def rows(self) -> Iterator[ChunkRows]:
        """Read the rows, some at a time."""
        rows = [(row, False) for row in self.found] + [(row, True) for row in self.absent or ()]
        for start in range(0, len(rows), BATCH_ROWS):
            self.reach("rows")
            batch = rows[start : start + BATCH_ROWS]
            columns = [
                pa.array([r.get(c.name) for r, _ in batch], arrow_type(c.type)) for c in self.schema.columns
            ]
            absent = pa.array([a for _, a in batch]) if self.absent is not None else None
            yield ChunkRows(columns, absent=absent)


class MemoryTables:
    """Reads chunks in snapshots; implements `connector.source.TableReader`."""

    def __init__(self, source: MemorySource) -> None:
        self._reach = source.connect()
        self._source = source

    def next_boundary(
        self,
        table: TableName,
        key: Sequence[str],
        after: tuple[str, ...] | None,
        rows: int,
        where: str | None,
    ) -> tuple[str, ...] | None:
        """Give the key of the row that is `rows` rows after `after` in key order; None: fewer are left."""
        self._reach("next_boundary")
        schema = self._schema(table)
        found = self._source.database.snapshot(table)[0].values()
        keys = sorted(_key(schema, r) for r in _select(schema, found, KeyRange(after), where))
        return tuple(map(str, keys[rows - 1])) if len(keys) >= rows else None

    def estimate_rows(self, table: TableName) -> int | None:
        """Give the number of rows."""
        self._schema(table)
        return len(self._source.database.snapshot(table)[0])

    @contextmanager
    def open_chunk(
        self, table: TableName, key_range: KeyRange, where: str | None = None
    ) -> Iterator[MemoryChunk]:
        """Open a snapshot and the rows of a key range in it."""
        schema, rows, low, high = self._open_snapshot(table)
        yield MemoryChunk(schema, low, high, _select(schema, rows, key_range, where), None, self._reach)

    @contextmanager
    def open_keys(self, table: TableName, keys: Sequence[Sequence[str]]) -> Iterator[MemoryChunk]:
        """Open a snapshot and the rows of the given keys; keys without a row come as `absent`."""
        schema, rows, low, high = self._open_snapshot(table)
        by_key = {_key(schema, row): row for row in rows}
        wanted = [_parse(schema, key) for key in keys]
        found = [by_key[k] for k in wanted if k in by_key]
        absent: list[Row] = [dict(zip(schema.key, k, strict=True)) for k in wanted if k not in by_key]
        yield MemoryChunk(schema, low, high, found, absent, self._reach)

    def _open_snapshot(self, table: TableName) -> tuple[TableSchema, list[Row], int, int]:
        self._reach("open_chunk")
        visibility, database = self._source.visibility, self._source.database
        if visibility is None:
            raise TransientError(f"{table}: the log is not being read yet")
        with visibility.opening() as position:
            with database.changed:
                schema = self._schema(table)
                rows, hidden, next_xid, high = database.snapshot(table)
            low = visibility.low(position, _snapshot(hidden, next_xid))
        if low is None:
            raise TransientError(f"{table}: waiting for transactions that ran when the history began")
        return schema, list(rows.values()), low, high

    def _schema(self, table: TableName) -> TableSchema:
        schema = self._source.database.schema(table)
        if schema is None:
            raise TableError(str(table), "does not exist")
        return schema

    def close(self) -> None:
        """Hold nothing more."""


def _key(schema: TableSchema, row: Row) -> tuple[Any, ...]:
    return tuple(row[c] for c in schema.key)


def _parse(schema: TableSchema, key: Sequence[str]) -> tuple[Any, ...]:
    if len(key) != len(schema.key):
        raise RequestError(f"{schema.table}: {list(key)} is not a key")
    types = [schema.column(c).type for c in schema.key]
    return tuple(text if type_ == "string" else int(text) for text, type_ in zip(key, types, strict=True))


def _select(schema: TableSchema, rows: Any, key_range: KeyRange, where: str | None) -> list[Row]:
    after = key_range.after and _parse(schema, key_range.after)
    upto = key_range.upto and _parse(schema, key_range.upto)
    holds = _predicate(schema, where)
    return [
        row
        for row in rows
        if (not after or _key(schema, row) > after) and (not upto or _key(schema, row) <= upto) and holds(row)
    ]


def _predicate(schema: TableSchema, where: str | None) -> Callable[[Row], bool]:
    """Read ``column is not null`` and ``column = 'value'``, joined by ``or``."""
    names = {c.name for c in schema.columns}
    terms = [_PREDICATE.fullmatch(term) for term in where.split(" or ")] if where else []
    known = [(t[1], t[2]) for t in terms if t is not None and t[1] in names]
    if len(known) != len(terms):
        raise RequestError(f"{schema.table}: {where!r} is not a predicate")
    return lambda row: (
        not known or any(row[c] is not None if value is None else str(row[c]) == value for c, value in known)
    )
