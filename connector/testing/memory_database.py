"""An in-memory database with what makes capture hard: a log, commits that are not yet visible, slots.

It behaves like PostgreSQL where it matters:

- A transaction's lsn is that of its commit record; the position after it is greater, and the next commit may
  begin exactly there.
- A commit is in the log before snapshots show it (`transaction(visible=False)`, then `make_visible`). Until
  then its rows are locked: writing to them raises `RowLockedError`. So commits of a row become visible in log
  order.
- A snapshot's xmax is one greater than the latest ended transaction's xid, so a hidden commit may be at or
  above it, and is then not among those that the snapshot lists as running (`snapshot_now`).
- A table's changes are in the log from the moment it was published.
- A slot begins at the end of the log, moves as it is confirmed, and can be lost.
- While `asynchronous`, commits are visible before they are durable. Readers get only what was flushed, and
  `crash` undoes the rest: its positions and xids are assigned again.

It has no indexes and no isolation except snapshots, and keeps all history: `state_at` returns every past
state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from connector.landing.format import DELETE, INSERT, TRUNCATE, UPDATE
from connector.logged_table import shows_all
from connector.postgres.visibility import Snapshot
from connector.schema import Column, TableComments, TableName, TableSchema

Key = tuple[Any, ...]
Row = Mapping[str, Any]
Rows = dict[Key, Row]

BEGINNING = 1000
CHANGE_LSN, COMMIT_LSN, COMMIT_END = 10, 10, 8
"""How far a change and a commit advance the log; `COMMIT_END`: from the commit's lsn to the position."""

_EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)


class RowLockedError(Exception):
    """a transaction that is not visible yet holds this row."""


@dataclass(frozen=True)
class Change:
    """One change of one row, as the log shows it. `unchanged` columns are not in the log's `row`."""

    schema: TableSchema
    op: str
    row: Row
    unchanged: tuple[str, ...] = ()
    old_key: Key | None = None

    @property
    def key(self) -> Key:
        """Return the key of the row after the change."""
        return tuple(self.row[c] for c in self.schema.key)


@dataclass(frozen=True)
class Commit:
    """One transaction in the log: its commit's lsn, and the position after it."""

    xid: int
    lsn: int
    position: int
    committed_at: datetime
    changes: tuple[Change, ...]


@dataclass
class Slot:
    """What the database keeps for one reader of its log; reading resumes at `confirmed`."""

    confirmed: int


@dataclass
class _Table:
    schema: TableSchema
    rows: Rows = field(default_factory=dict)
    visible: Rows = field(default_factory=dict)
    published_from: int | None = None


class MemoryDatabase:
    """Tables, a log, and slots; safe for threads. `changed` is notified when the log grows or shows more."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.changed = threading.Condition()
        self.log: list[Commit] = []
        self.slots: dict[str, Slot] = {}
        self.unlogged: dict[TableName, int] = {}
        self.comments: dict[TableName, TableComments] = {}
        self.column_ids: dict[TableName, dict[str, int]] = {}
        self.column_versions: dict[tuple[TableName, str], int] = {}
        self.shows: Callable[[int], bool] = shows_all
        self.busy: set[TableName] = set()
        self.keyless: set[TableName] = set()  # sources see their changes, and no key
        self.end = self.flushed = BEGINNING
        self.asynchronous = False
        self.crashes = 0
        self.next_xid = 700
        self._latest_ended = self.next_xid - 1
        self._tables: dict[TableName, _Table] = {}
        self._hidden: dict[int, Commit] = {}
        self._dropped: dict[TableName, _Table] = {}
        self._states: list[tuple[int, dict[str, Rows]]] = [(BEGINNING, {})]

    def create_table(self, name: str, key: Sequence[str], columns: Mapping[str, str]) -> TableSchema:
        """Create a table; `columns` maps each name to its landing type, which is its source type too."""
        table = TableName.parse(name)
        schema = TableSchema(table, tuple(Column(c, t, t) for c, t in columns.items()), tuple(key))
        with self.changed:
            self._tables[table] = _Table(schema)
        return schema

    def drop_table(self, name: str) -> None:
        """Drop a table without a trace in the log."""
        with self.changed:
            table = TableName.parse(name)
            self._dropped[table] = self._tables.pop(table)

    def schema(self, name: str | TableName) -> TableSchema | None:
        """Return a table's current layout; None if the table does not exist."""
        table = self._tables.get(TableName.parse(name) if isinstance(name, str) else name)
        return table.schema if table else None

    def schemas(self) -> list[TableSchema]:
        """Return the layouts of all tables."""
        with self.changed:
            return [t.schema for t in self._tables.values()]

    def shown(self, schema: TableSchema) -> TableSchema:
        """Return a layout as sources see it."""
        return replace(schema, key=()) if schema.table in self.keyless else schema

    def alter(
        self,
        name: str,
        *,
        add: Mapping[str, tuple[str, Any]] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        retype: Mapping[str, str] | None = None,
        key: Sequence[str] | None = None,
    ) -> TableSchema:
        """Change a table's layout and rewrite its rows; the log shows it with the next change of a row.

        `add` maps a column to its type and default, `retype` to a new type (values are converted by text or
        int). Like an ALTER, which waits for locks on the table, it first makes the table's hidden commits
        visible.
        """
        rename, retype, add = rename or {}, retype or {}, add or {}
        with self.changed:
            for xid in [
                x for x, c in self._hidden.items() if any(str(e.schema.table) == name for e in c.changes)
            ]:
                self.make_visible(xid)
            table = self._tables[TableName.parse(name)]
            kept = [c for c in table.schema.columns if c.name not in drop]
            columns = [
                Column(rename.get(c.name, c.name), retype.get(c.name, c.type), retype.get(c.name, c.type))
                for c in kept
            ]
            columns += [Column(c, type_, type_) for c, (type_, _) in add.items()]
            new_key = tuple(key) if key else tuple(rename.get(c, c) for c in table.schema.key)
            table.schema = replace(table.schema, columns=tuple(columns), key=new_key)
            rows: Rows = {}
            for row in table.rows.values():
                new = {rename.get(c.name, c.name): row[c.name] for c in kept}
                new |= {c: str(new[c]) if t == "string" else int(new[c]) for c, t in retype.items()}
                new |= {c: default for c, (_, default) in add.items()}
                rows[tuple(new[c] for c in new_key)] = new
            table.rows, table.visible = rows, dict(rows)
            self._advance(COMMIT_LSN + COMMIT_END)
            return table.schema

    @contextmanager
    def transaction(self, *, visible: bool = True) -> Iterator[Transaction]:
        """Open a transaction: committed at the end of the block, rolled back by an exception.

        See `make_visible`. One block at a time: transactions do not overlap.
        """
        with self.changed:
            transaction = Transaction(self)
            yield transaction
            if transaction.changes:
                self._commit(transaction, visible)

    def make_visible(self, xid: int | None = None) -> None:
        """Show one hidden commit, or all of them, to snapshots from now on."""
        with self.changed:
            for hidden in [xid] if xid is not None else sorted(self._hidden):
                self._latest_ended = max(self._latest_ended, hidden)
                for change in self._hidden.pop(hidden).changes:
                    if table := self._tables.get(change.schema.table):
                        apply_change(table.visible, change)
            self.changed.notify_all()

    def flush(self) -> None:
        """Make all commits durable."""
        with self.changed:
            self.flushed = self.end
            self.changed.notify_all()

    def crash(self) -> None:
        """Lose all connections and unflushed commits; continue after the record that recovery writes."""
        with self.changed:
            self.crashes += 1
            self.log = [commit for commit in self.log if commit.position <= self.flushed]
            self._states = [(at, state) for at, state in self._states if at <= self.flushed]
            self.end, self._hidden = self.flushed, {}
            self.next_xid = max((commit.xid for commit in self.log), default=699) + 1
            self._latest_ended = self.next_xid - 1
            for name, table in self._tables.items():
                table.rows = dict(self._states[-1][1].get(str(name), table.rows))
                table.visible = dict(table.rows)
            self._advance(COMMIT_LSN + COMMIT_END)
            self.flushed = self.end

    @property
    def hidden(self) -> list[int]:
        """Return the xids of commits that are in the log but not visible."""
        with self.changed:
            return sorted(self._hidden)

    def idle(self, distance: int = 50) -> None:
        """Make the log grow without touching any table."""
        with self.changed:
            self._advance(distance)

    def snapshot(self, table: TableName) -> tuple[Rows, Snapshot, int]:
        """Open a snapshot: a table's visible rows, the snapshot's transactions, the end of the log."""
        with self.changed:
            return dict(self._tables[table].visible), self.snapshot_now(), self.end

    def snapshot_now(self) -> Snapshot:
        """Return a snapshot as PostgreSQL does: only running transactions below its xmax are listed."""
        with self.changed:
            xmax = self._latest_ended + 1
            running = frozenset(xid for xid in self._hidden if xid < xmax)
            return Snapshot(min(running, default=xmax), xmax, running)

    def state_at(self, position: int) -> dict[str, Rows]:
        """Return the rows of all tables as of a log position: what every cut must equal."""
        with self.changed:
            return next(state for at, state in reversed(self._states) if at <= position)

    def publish(self, tables: Sequence[TableName]) -> list[TableName]:
        """Make the log carry tables from now on; return those that it did not carry before."""
        with self.changed:
            new = [t for t in tables if self._tables[t].published_from is None]
            for table in new:
                self._tables[table].published_from = self.end
            return new

    def is_published(self, table: TableName, lsn: int) -> bool:
        """Return whether the log carries a table's changes at this position."""
        found = self._tables.get(table) or self._dropped.get(table)
        return found is not None and found.published_from is not None and found.published_from <= lsn

    def locked(self, name: str) -> set[Key]:
        """Return the keys of a table that hidden commits lock."""
        with self.changed:
            changes = [c for h in self._hidden.values() for c in h.changes if str(c.schema.table) == name]
            keys = {c.key for c in changes if c.op != TRUNCATE} | {c.old_key for c in changes if c.old_key}
            return keys | (set(self._tables[TableName.parse(name)].rows) if self.truncating(name) else set())

    def truncating(self, name: str) -> bool:
        """Return whether a hidden commit locks the whole table."""
        changes = [c for h in self._hidden.values() for c in h.changes if str(c.schema.table) == name]
        return any(c.op == TRUNCATE for c in changes)

    def _commit(self, transaction: Transaction, visible: bool) -> None:
        lsn = self.end + CHANGE_LSN * len(transaction.changes)
        committed_at = _EPOCH + timedelta(milliseconds=lsn)
        xid, self.next_xid = self.next_xid, self.next_xid + 1
        commit = Commit(xid, lsn, lsn + COMMIT_END, committed_at, tuple(transaction.changes))
        for name, rows in transaction.rows.items():
            self._tables[name].rows = rows
        self.log.append(commit)
        self._hidden[xid] = commit
        self._advance(commit.position - self.end)
        if visible:
            self.make_visible(xid)

    def _advance(self, distance: int) -> None:
        self.end += distance
        if not self.asynchronous:
            self.flushed = self.end
        self._states.append((self.end, {str(n): dict(t.rows) for n, t in self._tables.items()}))
        self.changed.notify_all()

    def rows(self, table: TableName) -> Rows:
        """Return a table's rows as its writers see them."""
        return self._tables[table].rows


class Transaction:
    """Changes that are committed together. Keys are tuples; rows are passed whole."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.changes: list[Change] = []
        self.rows: dict[TableName, Rows] = {}
        self._database = database

    def insert(self, table: str, **row: Any) -> None:
        """Insert a row; its key must be free."""
        schema, rows = self._writable(table)
        key = tuple(row[c] for c in schema.key)
        if key in rows:
            raise ValueError(f"{table}: key {key} exists")
        self._write(Change(schema, INSERT, row), table, key)

    def update(self, table: str, key: Key, *, unchanged: Sequence[str] = (), **changed: Any) -> None:
        """Update a row, possibly its key; `unchanged` columns (large and untouched) are not in the log."""
        schema, rows = self._writable(table)
        row = {**rows[key], **changed}
        new_key = tuple(row[c] for c in schema.key)
        if new_key != key and new_key in rows:
            raise ValueError(f"{table}: key {new_key} exists")
        change = Change(schema, UPDATE, row, tuple(unchanged), key if new_key != key else None)
        self._write(change, table, key, new_key)

    def delete(self, table: str, key: Key) -> None:
        """Delete a row."""
        schema, rows = self._writable(table)
        self._write(Change(schema, DELETE, {c: rows[key][c] for c in schema.key}), table, key)

    def truncate(self, table: str) -> None:
        """Delete all rows, as one event."""
        schema, _ = self._writable(table)
        if self._database.locked(table):
            raise RowLockedError(table)
        self._write(Change(schema, TRUNCATE, {}), table)

    def _writable(self, table: str) -> tuple[TableSchema, Rows]:
        name = TableName.parse(table)
        schema = self._database.schema(name)
        if schema is None:
            raise ValueError(f"no table {table}")
        return schema, self.rows.setdefault(name, copy(self._database.rows(name)))

    def _write(self, change: Change, table: str, *keys: Key) -> None:
        if self._database.truncating(table) or self._database.locked(table).intersection(keys):
            raise RowLockedError(f"{table} {keys}")
        apply_change(self.rows[change.schema.table], change)
        self.changes.append(change)


def apply_change(rows: Rows, change: Change) -> None:
    """Apply a change to rows by key."""
    if change.op == TRUNCATE:
        rows.clear()
        return
    if change.old_key is not None:
        rows.pop(change.old_key, None)
    if change.op == DELETE:
        rows.pop(change.key, None)
    else:
        rows[change.key] = change.row
