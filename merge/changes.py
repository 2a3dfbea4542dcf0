"""What the events of a plan do to a table: one row per key, sweeps and truncates included. Writes nothing.

Truncates and ghosts enter as delete events, computed from the keys that the target holds, so that everything
a merge does to a table is one set of rows with one rule: the greatest position wins.

Invariant: the same rows come out whether the events arrive in one merge or in many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.landing import CDC, CDC_FIELDS, DELETE, TRUNCATE
from connector.position import Position
from connector.schema import TableSchema
from merge.plan import Sweep, TablePlan
from merge.read import Columns, LandingZone
from merge.reconcile import position_of, reconcile
from merge.sql import position_literal, quoted, text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Layout:
    """How the target looks: all its columns with their types, and the key."""

    columns: Columns
    key: tuple[str, ...]

    @property
    def values(self) -> list[str]:
        """List the columns beside the key."""
        return [name for name in self.columns if name not in self.key]


def changes(
    landing: LandingZone,
    plan: TablePlan,
    schemas: Mapping[str, TableSchema],
    layout: Layout,
    target: DataFrame | None,
) -> DataFrame:
    """Give what a plan does to `target` (None: it is empty): key, columns, `_cdc` as `merge.reconcile` says.

    Some of the rows may be stale, as log is read again; whoever applies them compares positions.
    """
    events = landing.events(plan.files, schemas, layout.columns)
    if plan.again:
        again = landing.events(plan.again, schemas, layout.columns)
        events = events.unionByName(again.where(f"(_cdc.epoch, _cdc.lsn) > ({plan.low[0]}, {plan.low[1]}L)"))
    if plan.truncates:
        events = _truncate(landing, plan, schemas, layout, events, target)
    for sweep in plan.sweeps:
        events = _sweep(landing, sweep, plan, schemas, layout, events, target)
    return reconcile(events, layout.key, layout.values, partial=plan.partial)


def _truncate(
    landing: LandingZone,
    plan: TablePlan,
    schemas: Mapping[str, TableSchema],
    layout: Layout,
    events: DataFrame,
    target: DataFrame | None,
) -> DataFrame:
    """Drop what came before the last truncate, and delete the target's rows from before it."""
    truncates = landing.events(plan.truncates, schemas, {}).where(F.col(CDC)["op"] == TRUNCATE)
    last = truncates.agg(F.max(position_of(F.col(CDC))).alias("at")).collect()[0]["at"]
    if last is None:
        return events
    position = Position(*last)
    after = events.where((F.col(CDC)["op"] != TRUNCATE) & ~_before(position))
    if target is None:
        return after
    return after.unionByName(_deletes(_older(target, layout, position), layout, position))


def _sweep(
    landing: LandingZone,
    sweep: Sweep,
    plan: TablePlan,
    schemas: Mapping[str, TableSchema],
    layout: Layout,
    events: DataFrame,
    target: DataFrame | None,
) -> DataFrame:
    """Delete the ghosts of a full dump: of the target's rows, and of the events themselves."""
    older = [] if target is None else [_older(target, layout, sweep.position)]
    if plan.starts_before(sweep.position):
        older.append(_older(events, layout, sweep.position))
    if not older:
        return events
    keys = {name: layout.columns[name] for name in layout.key}
    dumped = landing.events(sweep.chunks, schemas, keys).select(*keys_of(layout.key))
    suspects = older[0] if len(older) == 1 else older[0].union(older[1]).distinct()
    ghosts = suspects.join(dumped, on=list(layout.key), how="left_anti")
    return events.unionByName(_deletes(ghosts, layout, sweep.position))


def _older(frame: DataFrame, layout: Layout, position: Position) -> DataFrame:
    """Give the keys of the rows that are not deleted and positioned before `position`."""
    return frame.where((F.col(CDC)["op"] != DELETE) & _before(position)).select(*keys_of(layout.key))


def _before(position: Position) -> Column:
    return F.expr(f"(_cdc.epoch, _cdc.lsn, _cdc.seq) < {position_literal(position)}")


def _deletes(keys: DataFrame, layout: Layout, position: Position) -> DataFrame:
    """Make a delete event at `position` of each key."""
    known = {"op": text(DELETE), "epoch": position.epoch, "lsn": position.lsn, "seq": position.seq}
    fields = [f"{text(name)}, CAST({known.get(name, 'NULL')} AS {type_})" for name, type_ in CDC_FIELDS]
    cdc = F.expr(f"named_struct({', '.join(fields)})")
    values = [F.lit(None).cast(layout.columns[name]).alias(name) for name in layout.values]
    return keys.select(*keys_of(layout.key), *values, cdc.alias(CDC))


def keys_of(key: Sequence[str]) -> list[Column]:
    """Give the key's columns."""
    return [F.col(quoted(name)) for name in key]


def keys_equal(key: Sequence[str]) -> str:
    """Spell that source and target are the same row."""
    return " AND ".join(f"source.{quoted(name)} = target.{quoted(name)}" for name in key)
