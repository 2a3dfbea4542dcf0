"""An in-memory source: `connector.source`'s contract over a `MemoryDatabase`, with faults at named moments.

It decodes real batches and proves its low watermarks by the same rules as the PostgreSQL source, whose
`Visibility` it uses. Several sources may read one database: each stands for an agent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from connector.config import SourceConfig, TableConfig
from connector.errors import TableError, TransientError
from connector.landing.format import misnamed
from connector.landing.manifest import InvisibleCommit, Manifest, SourceIdentity
from connector.logged_table import ColumnLook, LoggedTable, Positions
from connector.postgres.visibility import Visibility
from connector.schema import KnownTables, TableName, TableSchema
from connector.source import (
    CatalogSnapshot,
    Finding,
    PreparedSource,
    ResumePoint,
    TableListing,
    UnfitTable,
    UnloggedChange,
)
from connector.testing.memory_database import Change, MemoryDatabase, Slot
from connector.testing.memory_log import MemoryLogReader
from connector.testing.memory_tables import MemoryTables


@dataclass
class _Fault:
    moment: str
    after: int
    times: int
    error: BaseException


class MemorySource:
    """An in-memory database as one agent sees it; implements `connector.source.Source`.

    `fail` and `disconnect` inject faults; `undecodable`: tables whose log events can't be decoded, and why. A
    change counts as `change_bytes` in a log reader's buffer, so a few rows make a large transaction.
    """

    keeps_column_order = True

    def __init__(self, database: MemoryDatabase, config: SourceConfig, *, change_bytes: int = 100) -> None:
        self.database = database
        self.change_bytes = change_bytes
        self.undecodable: dict[str, str] = {}
        self.visibility: Visibility | None = None
        self._config = config
        self._faults: list[_Fault] = []
        self._lock = threading.Lock()
        self._connections = 0
        self._crashes_before: int | None = None

    def fail(
        self, moment: str, *, after: int = 0, times: int = 1, error: BaseException | None = None
    ) -> None:
        """Make a named moment fail, once it has been passed `after` times.

        Moments: ensure_logging, check, identity, tables, check_catalog, look_at_columns, check_resumable,
        begin_log, open_log, read, take, confirm, not_yet_visible, open_tables, next_boundary, open_chunk,
        rows.
        """
        error = error or TransientError(f"the connection was lost on purpose, at {moment}")
        with self._lock:
            self._faults.append(_Fault(moment, after, times, error))

    def disconnect(self) -> None:
        """Break all connections that are open now."""
        with self._lock:
            self._connections += 1

    def connect(self) -> Callable[[str], None]:
        """Open a connection: a function to call at each named moment, which raises once it is broken."""
        connection = self._connections, self.database.crashes

        def reach(moment: str) -> None:
            if connection != (self._connections, self.database.crashes):
                raise TransientError(f"the connection is broken, at {moment}")
            self.reach(moment)

        return reach

    def reach(self, moment: str) -> None:
        """Pass a named moment; raises if it was set to fail."""
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

    def ensure_logging(self) -> None:
        """Do nothing: everything is logged. Fails only if set to."""
        self.reach("ensure_logging")

    def reconfigure(self, config: SourceConfig, tables: Mapping[TableName, TableConfig]) -> None:
        """Change which tables are captured."""
        self._config = config

    def check(self) -> list[Finding]:
        """Find nothing wrong."""
        self.reach("check")
        return [Finding("memory", "ok", self.database.name)]

    def identity(self, landed: Manifest | None = None) -> SourceIdentity:
        """Return which database this is."""
        self.reach("identity")
        return SourceIdentity(
            name=self._config.name,
            kind="postgres",
            system_id="memory",
            database=self.database.name,
            slot=self._config.slot,
        )

    def tables(self, among: Collection[TableName] | None = None) -> TableListing:
        """Return the tables that the configuration names."""
        self.reach("tables")
        known = [self.database.shown(schema) for schema in self.database.schemas()]
        named = [s for s in known if self._config.captures(s.table)]
        named = [s for s in named if among is None or s.table in among]
        busy = frozenset(s.table for s in named if s.table in self.database.busy)
        wanted = [s for s in named if s.table not in busy]
        keyless = self.database.keyless
        problems = {s.table: problem for s in wanted if s.table not in keyless and (problem := _problem(s))}
        return TableListing([s for s in wanted if s.table not in problems], list(problems.values()), busy)

    def evict_former_agent(self) -> None:
        """Do nothing: any number of readers may read the log."""

    def prepare(self) -> PreparedSource:
        """Publish the tables; commits that are hidden at that time may lack their changes in the log."""
        added = self.database.publish([s.table for s in self.tables().schemas])
        return PreparedSource(tuple(added), self._bar())

    def check_catalog(self, known: Mapping[TableName, str] | None = None) -> CatalogSnapshot:
        """Return the tables; a fingerprint is the count that a test keeps in `MemoryDatabase.unlogged`."""
        self.reach("check_catalog")
        listed = self.tables()
        seen = {s.table: str(self.database.unlogged.get(s.table, 0)) for s in listed.schemas}
        unfit = {problem.table: UnfitTable(problem.reason, problem.hint or "") for problem in listed.unfit}
        end, existing = self.database.end, frozenset(listed.existing)
        comments = {t: its for t, its in self.database.comments.items() if t in seen}
        look = self.look_at_columns(seen.keys())
        return CatalogSnapshot(
            seen, end, existing, unfit, busy=listed.busy, begun=end, comments=comments, look=look
        )

    def look_at_columns(self, tables: Collection[TableName]) -> ColumnLook:
        """Return what tests keep in `MemoryDatabase.column_ids` and `column_versions`."""
        self.reach("look_at_columns")
        end, database = self.database.end, self.database
        ids = {t: dict(its) for t, its in database.column_ids.items() if t in tables}
        versions = {t: {n: database.column_versions.get((t, n), 0) for n in its} for t, its in ids.items()}
        return ColumnLook(end, end, ids, versions, shows=database.shows)

    def unlogged(self, before: str, now: str) -> UnloggedChange | None:
        """Report an unlogged change of unspecified kind."""
        return UnloggedChange("a test said so") if before != now else None

    def remember(self, before: str | None, now: str) -> str:
        """Return the current fingerprint: nothing of an earlier one still counts."""
        return now

    def contradicted_by_log(
        self, known: Mapping[TableName, str], logged: Sequence[LoggedTable], repaired_upto: Positions
    ) -> dict[TableName, str]:
        """Return none: the log names every table correctly."""
        return {}

    def take_xid_barrier(self) -> None:
        """Take none: transactions do not overlap."""
        self.reach("take_xid_barrier")

    def position_past_barrier(self, barrier: int) -> int:
        """Return the end of the log."""
        return self.database.end

    def begin_log(self, *, fresh: bool, stopping: Callable[[], bool] = lambda: False) -> ResumePoint:
        """Create a slot at the end of the log, or adopt the existing one."""
        self.reach("begin_log")
        with self.database.changed:
            if fresh or self._config.slot not in self.database.slots:
                self.database.slots[self._config.slot] = Slot(self.database.end)
            return ResumePoint(self.database.slots[self._config.slot].confirmed, self._bar())

    def _bar(self) -> tuple[InvisibleCommit, ...]:
        return (InvisibleCommit(xid=self.database.next_xid, lsn=0),)

    def check_resumable(self, resume_point: ResumePoint) -> str | None:
        """Return why there is a gap: the slot is gone, or was moved past this position."""
        self.reach("check_resumable")
        slot = self.database.slots.get(self._config.slot)
        if slot is None:
            return f"slot {self._config.slot} is gone"
        return (
            f"slot {self._config.slot} was moved to {slot.confirmed}"
            if slot.confirmed > resume_point.position
            else None
        )

    def open_log(
        self, epoch: int, resume_point: ResumePoint, known: KnownTables | None = None
    ) -> MemoryLogReader:
        """Open the log; like PostgreSQL, not before what its slot has confirmed."""
        self.reach("open_log")
        slot = self.database.slots.get(self._config.slot)
        if slot is None:
            raise TransientError(f"slot {self._config.slot} is gone")
        self.visibility = Visibility(resume_point.position, resume_point.not_yet_visible)
        reader = MemoryLogReader(
            self, slot, epoch, max(resume_point.position, slot.confirmed), self.visibility
        )
        reader.unbroken, self._crashes_before = (
            self._crashes_before == self.database.crashes,
            self.database.crashes,
        )
        return reader

    def open_tables(self) -> MemoryTables:
        """Open a connection for dumps."""
        self.reach("open_tables")
        return MemoryTables(self)

    def any_not_null(self, columns: Sequence[str]) -> str:
        """Return the predicate that is true for rows in which one of these columns is not null."""
        return " or ".join(f"{column} is not null" for column in columns)

    def is_captured(self, change: Change, lsn: int) -> bool:
        """Return whether the log of this source carries a change of a transaction."""
        table = change.schema.table
        return self._config.captures(table) and self.database.is_published(table, lsn)

    def slot_is(self, slot: Slot) -> bool:
        """Return whether the slot is still the one that was opened."""
        return self.database.slots.get(self._config.slot) is slot

    def close(self) -> None:
        """Close all connections."""
        self.disconnect()


def _problem(schema: TableSchema) -> TableError | None:
    if not schema.key:
        return TableError(schema.table, "it has no primary key", hint="add a primary key")
    problem = misnamed(column.name for column in schema.columns)
    return TableError(schema.table, problem, hint="rename the column") if problem else None
