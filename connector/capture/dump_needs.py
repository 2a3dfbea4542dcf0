"""What tables need a full dump for: recorded with each table, whatever becomes of the dumps there are.

A first dump or a repair that ends early (cancelled, failed, replaced) leaves a *need*: what it was to see is
not in the lake. No dump that has begun by then counts, since it may have read rows from before the change.
Any that begins later has to see as much: the need's floor and barrier become its own.

Invariants:

- A table is whole only when a full dump of a number greater than the need's `outdated` has completed. Dumps
  that have not begun when the need arises get new, greater numbers.
- Needs are part of the tables' state in each manifest (`TableState.need`), so they outlast dumps, restarts
  and the list of finished dumps. In another epoch their floors are lifted; the need remains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connector.landing.manifest import DumpNeed, DumpState, TableState
from connector.schema import TableName


@dataclass
class DumpNeeds:
    """The needs of a source's tables; guarded by the lock of its `DumpQueue`."""

    by_table: dict[TableName, DumpNeed] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Mapping[TableName, TableState]) -> DumpNeeds:
        """Take what a manifest records."""
        return cls({n: table.need.model_copy() for n, table in tables.items() if table.need is not None})

    def record(self, table: TableName, outdated: int, floor: int | None, xid_barrier: int | None) -> None:
        """Record that dumps up to the number `outdated` don't count; floor and barrier only grow."""
        need = self.by_table.setdefault(table, DumpNeed(outdated=outdated))
        need.outdated = outdated
        need.floor, need.xid_barrier = _later(need.floor, floor), _later(need.xid_barrier, xid_barrier)

    def apply_to(self, dump: DumpState) -> None:
        """Make a full dump that has not begun see what its table needs it for."""
        need = self.by_table.get(dump.table)
        if need is not None and dump.kind == "full":
            dump.floor = _later(dump.floor, need.floor)
            dump.xid_barrier = _later(dump.xid_barrier, need.xid_barrier)

    def count(self, dump: DumpState) -> None:
        """Take note of a completed dump, which may be what its table needed."""
        need = self.by_table.get(dump.table)
        if need is not None and dump.kind == "full" and dump.number > need.outdated:
            del self.by_table[dump.table]

    def forget(self, table: TableName) -> None:
        """Forget a table that is no longer captured; if captured again, it is dumped anyway."""
        self.by_table.pop(table, None)

    def lift_floors(self) -> None:
        """Lift floors and barriers: another epoch begins, in which they mean nothing."""
        for need in self.by_table.values():
            need.floor = need.xid_barrier = None

    def copy(self) -> dict[TableName, DumpNeed]:
        """Copy the needs, to be recorded by a manifest."""
        return {table: need.model_copy() for table, need in dict(self.by_table).items()}


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
