"""Records why tables need a full dump, with each table, so that needs outlast the dumps themselves.

A first dump or a repair that ends early (cancelled, failed, replaced) leaves a *need*: changes that it should
have read are not in the lake. Dumps that have already begun don't satisfy it, since they may have read rows
from before the change. A dump that begins later takes over the need's floor and barrier.

Invariants:

- A table is whole only when a full dump of a number greater than the need's `outdated` has completed. Dumps
  that have not begun when the need arises get new, greater numbers.
- Needs are part of the tables' state in each manifest (`TableState.need`), so they outlast dumps, restarts
  and the list of finished dumps. In another epoch their floors are lifted; the need remains.
- A floor is a condition on snapshots, which may be lifted, lowered or raised. That log before it did not land
  is a fact that nothing undoes. So whenever a floor is set, it is also noted in the table's `gaps`, in the
  floor's epoch, and stays in each manifest up to the one that ends a full dump from after it. A new floor
  carries it into another epoch (`carry_gaps`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from connector.landing.manifest import DumpNeed, DumpState, TableState
from connector.schema import TableName

MOST_GAPS = 20
"""How many gaps of a table are remembered: more than there are before a manifest records them."""


@dataclass
class DumpNeeds:
    """The needs of a source's tables; guarded by the lock of its `DumpQueue`.

    `gaps`: those noted last by this agent; `connector.capture.tables.Tables` decides which still count, and
    keeps those that a manifest has recorded.
    """

    by_table: dict[TableName, DumpNeed] = field(default_factory=dict)
    gaps: dict[TableName, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Mapping[TableName, TableState]) -> DumpNeeds:
        """Restore the needs that a manifest records."""
        return cls({n: table.need.model_copy() for n, table in tables.items() if table.need is not None})

    def record(self, table: TableName, outdated: int, floor: int | None, xid_barrier: int | None) -> None:
        """Record that dumps up to the number `outdated` don't count; floor and barrier only grow."""
        need = self.by_table.setdefault(table, DumpNeed(outdated=outdated))
        need.outdated = outdated
        need.floor, need.xid_barrier = _later(need.floor, floor), _later(need.xid_barrier, xid_barrier)

    def note_gap(self, table: TableName, epoch: int, floor: int | None) -> None:
        """Note that a table's log before a floor did not land, or did not show all changes."""
        if floor is not None:
            others = (gap for gap in self.gaps.get(table, ()) if gap != (epoch, floor))
            self.gaps[table] = (*others, (epoch, floor))[-MOST_GAPS:]

    def with_dumps(self, dumps: Iterable[DumpState]) -> list[tuple[TableName, DumpState | DumpNeed]]:
        """List dumps and needs with their tables: everything that may have a floor or barrier."""
        return [*((dump.table, dump) for dump in dumps), *self.by_table.items()]

    def unblock(self, dumps: Iterable[DumpState], barrier: int, epoch: int, end: int) -> None:
        """Replace a barrier by a floor: the position that all transactions below it precede."""
        for table, state in self.with_dumps(dumps):
            if state.xid_barrier == barrier:
                self._bound(table, state, epoch, max(state.floor or 0, end), None)

    def lower(self, dumps: Iterable[DumpState], barrier: int | None, epoch: int, position: int) -> bool:
        """Lower floors to a position and barriers to `barrier`; return whether any was greater."""
        above = [
            (table, state)
            for table, state in self.with_dumps(dumps)
            if (state.floor or 0) > position or (barrier and (state.xid_barrier or 0) > barrier)
        ]
        for table, state in above:
            self._bound(table, state, epoch, position, barrier)
        return bool(above)

    def raise_floors(self, dumps: Iterable[DumpState], epoch: int, landed: int, position: int) -> None:
        """Raise floors that the log has not reached, having landed up to `landed`, to a check at `position`.

        A crash or failover may have taken back the change that an earlier check saw. If the same has come
        again, a later check finds nothing new, but log between the two places may be from before the change.
        What log that has landed shows to be there is not taken back, nor is what was there before it. Whoever
        opens the log next does the same, so it need not be recorded.
        """
        for table, state in self.with_dumps(dumps):
            if state.floor is not None and landed < state.floor < position:
                self._bound(table, state, epoch, position, state.xid_barrier)

    def _bound(
        self, table: TableName, state: DumpState | DumpNeed, epoch: int, floor: int, xid_barrier: int | None
    ) -> None:
        state.floor, state.xid_barrier = floor, xid_barrier
        if isinstance(state, DumpNeed) or state.kind == "full":
            self.note_gap(table, epoch, floor)

    def carry_gaps(
        self, tables: Mapping[TableName, TableState], dumps: Iterable[DumpState], epoch: int, position: int
    ) -> bool:
        """Extend the gaps of earlier epochs to a position by which this epoch's log has caught up.

        A floor may have been ahead of what had landed; this epoch's log then repeats what is before it. The
        position becomes a floor of the dumps that repair these tables; otherwise the gaps would outlast them.
        Returns whether there are any.
        """
        carried = {n for n, state in tables.items() if state.gaps and state.gaps[-1][0] < epoch}
        for table in carried:
            self.note_gap(table, epoch, position)
        for table, state in self.with_dumps(dumps):
            if table in carried and (isinstance(state, DumpNeed) or state.kind == "full"):
                state.floor = _later(state.floor, position)
        return bool(carried)

    def apply_to(self, dump: DumpState) -> None:
        """Give a full dump that has not begun the floor and barrier that its table needs."""
        need = self.by_table.get(dump.table)
        if need is not None and dump.kind == "full":
            dump.floor = _later(dump.floor, need.floor)
            dump.xid_barrier = _later(dump.xid_barrier, need.xid_barrier)

    def will_show(self, table: TableName, dumps: Iterable[DumpState], position: int) -> bool:
        """Return whether one of a table's unfinished dumps sees all commits before a position.

        Only one that has to end before the table is whole: another may be requested, and cancelled.
        """
        need = self.by_table.get(table)
        owed = (
            dump
            for dump in dumps
            if dump.kind == "full"
            and (dump.reason in ("initial", "repair") or (need is not None and dump.number > need.outdated))
        )
        return any((dump.floor or 0) >= position for dump in owed)

    def count(self, dump: DumpState) -> None:
        """Record a completed dump, which may satisfy its table's need."""
        need = self.by_table.get(dump.table)
        if need is not None and dump.kind == "full" and dump.number > need.outdated:
            del self.by_table[dump.table]

    def forget(self, table: TableName) -> None:
        """Drop a table that is no longer captured; if captured again, it is dumped anyway."""
        self.by_table.pop(table, None)
        self.gaps.pop(table, None)

    def lift_floors(self) -> None:
        """Lift floors and barriers: another epoch begins, in which they mean nothing."""
        for need in self.by_table.values():
            need.floor = need.xid_barrier = None

    def copy(self) -> DumpNeeds:
        """Copy the needs and gaps, to be recorded by a manifest."""
        needs = {table: need.model_copy() for table, need in dict(self.by_table).items()}
        return DumpNeeds(needs, dict(self.gaps))


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
