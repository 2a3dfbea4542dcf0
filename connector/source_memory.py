"""A source in memory: `connector.source`'s contract over a `MemoryDatabase`, with faults at named moments.

It decodes real batches and proves its low watermarks by the same rules as PostgreSQL's source, whose
`Visibility` it uses. Several sources may read one database: each stands for an agent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from connector.config import SourceConfig
from connector.errors import TransientError
from connector.manifest import Manifest, SourceIdentity, UnsettledCommit
from connector.memory_database import Change, MemoryDatabase, Slot
from connector.memory_log import MemoryLogReader
from connector.memory_tables import MemoryTables
from connector.schema import TableSchema
from connector.source import Finding, History, Outlook, Prepared
from connector.visibility import Visibility


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

    def identity(self, landed: Manifest | None = None) -> SourceIdentity:
        """Tell which database this is."""
        return SourceIdentity(
            name=self._config.name,
            kind="postgres",
            system_id="memory",
            database=self.database.name,
            slot=self._config.slot,
        )

    def tables(self, among: Collection[str] | None = None) -> list[TableSchema]:
        """List the tables that the configuration names."""
        self.reach("tables")
        named = [s for s in self.database.schemas() if self._config.captures(s.table)]
        return [s for s in named if among is None or str(s.table) in among]

    def prepare(self) -> Prepared:
        """Publish the tables; commits that are hidden then may lack their changes in the log."""
        added = self.database.publish([s.table for s in self.tables()])
        return Prepared(tuple(map(str, added)), self._hidden())

    def look(self) -> Outlook:
        """See the tables; nothing changes untold here but what a test counts in `MemoryDatabase.untold`."""
        self.reach("look")
        seen = {str(s.table): str(self.database.untold.get(s.table, 0)) for s in self.tables()}
        return Outlook(seen, self.database.end, frozenset(seen))

    def untold(self, before: str, now: str) -> bool:
        """Tell that something changed untold."""
        return before != now

    def begin_history(self, *, fresh: bool) -> History:
        """Make a slot at the end of the log, or adopt the one that is there."""
        self.reach("begin_history")
        with self.database.changed:
            if fresh or self._config.slot not in self.database.slots:
                self.database.slots[self._config.slot] = Slot(self.database.end)
            return History(self.database.slots[self._config.slot].confirmed, self._hidden())

    def _hidden(self) -> tuple[UnsettledCommit, ...]:
        return tuple(UnsettledCommit(xid=xid, lsn=0) for xid in self.database.hidden)

    def gap_after(
        self,
        position: int,
        gtids: str | None = None,
        server: str | None = None,
        gtids_needed: str | None = None,
    ) -> str | None:
        """Tell whether the slot is gone, or was moved past this position."""
        self.reach("gap_after")
        slot = self.database.slots.get(self._config.slot)
        if slot is None:
            return f"slot {self._config.slot} is gone"
        return (
            f"slot {self._config.slot} was moved to {slot.confirmed}" if slot.confirmed > position else None
        )

    def open_log(
        self,
        epoch: int,
        position: int,
        unsettled: Sequence[UnsettledCommit],
        gtids: str | None = None,
        gtids_needed: str | None = None,
    ) -> MemoryLogReader:
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
