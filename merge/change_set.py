"""Reduces a plan's events to one row per key, with sweeps and truncates. Writes nothing.

Truncates and ghosts become delete events, computed from the target's keys, so that everything a merge does to
a table is one set of rows with one rule: the greatest position wins.

Invariant: the result is the same whether the events arrive in one merge or in many, including deleted rows
where deletes are soft. So a truncate must not move a row whose delete was logged before it: with a merge
between the two, the target says that the row is deleted; without one, only its events do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import Window
from pyspark.sql import functions as F

from connector.landing.format import CDC, CDC_FIELDS, DELETE, TRUNCATE
from connector.landing.manifest import LandedFile
from connector.position import CHUNK_SEQ, Position
from connector.schema import TableSchema
from merge.columns.landed_files import Columns
from merge.keys import TargetLayout, raw_of_key, same_keys, same_rows, with_raw
from merge.plan import Sweep, TablePlan
from merge.reconcile import DELETED_AT, SINCE_TYPE, group_columns, only_events, position_of, reconcile
from merge.sql_formatting import data_type, from_micros, position_literal, quoted, timestamp

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FEW_DUMPED = 20_000
"""Up to this many rows, sorting costs less than asking whether it is needed."""

MOST_OTHERS = 500_000
MOST_OTHER_BYTES = 64 << 20
"""Keys of events outside the dump are sent to every task only up to this many events."""

FEW_COLUMNS = 16
"""Up to this many columns, resolving each one separately costs less than grouping them."""

MOST_SETS = 100
"""With more distinct sets of missing columns than this, grouping gains little."""

FAST_ORDER = ("tinyint", "smallint", "int", "bigint")
"""Types whose least and greatest value Spark finds without sorting, and Python holds."""

PARTITION_BYTES = 32 << 20
MOST_PARTITIONS = 64
"""How dumped chunks are grouped for a first load, each group's rows in a file of their own at least.

Upkeep joins no files of this size. Twice as large, ten million narrow rows were read and written by one task.
A plan of many unions is slow to analyze.
"""


Groups = Sequence[Sequence[str]]
"""Columns that every event of a plan carries all or none of."""

Truncates = Mapping[Position, datetime | None]
"""Truncates by position, in order, with their commit times."""


class Events(Protocol):
    """Where events are read from: the landing zone, or a part of it."""

    def events(
        self, files: Sequence[LandedFile], schemas: Mapping[str, TableSchema], columns: Columns
    ) -> DataFrame:
        """Read events like `merge.landing_zone.LandingZone.events`."""


def changes(
    landing: Events,
    plan: TablePlan,
    schemas: Mapping[str, TableSchema],
    layout: TargetLayout,
    target: DataFrame | None,
    *,
    soft: bool = False,
    groups: Groups | None = None,
    values: Sequence[str] | None = None,
) -> DataFrame:
    """Return a plan's changes to `target` (None: it is empty): key, columns, `_cdc` (`merge.reconcile`).

    `soft`: deleted keys have the columns of their last version. `groups`: what `column_groups` returns; None:
    it is asked here. `values`: with `groups`, which columns to return besides the key; None: all.
    Some rows may be stale, since log is read again; the caller must compare positions.
    """
    events = _events(landing, plan, plan.files, schemas, layout)
    if plan.truncates:
        events = _truncate(landing, plan, schemas, layout, events, target, soft=soft)
    if target is not None:
        for sweep in plan.sweeps:
            events = events.unionByName(_ghost_deletes(landing, sweep, schemas, layout, target))
    if groups is None:
        groups = column_groups(landing, plan, schemas, layout)
    return _reconciled(events, plan, layout, groups, soft=soft, values=values)


def first_changes(
    landing: Events,
    plan: TablePlan,
    schemas: Mapping[str, TableSchema],
    layout: TargetLayout,
    *,
    soft: bool = False,
    groups: Groups,
) -> DataFrame:
    """Return the same changes to an empty target, without sorting what one full dump has read.

    A key that is in no other file has one event, its dumped row, which is taken as it is. Only the other keys
    are reconciled. The frame's partitions are ranges of chunks, so the table's files are ranges of the key.
    Keys that were dumped twice are looked for: such a row would stay in the table twice.
    """
    bulk, others = plan.dump_chunks, plan.other_files
    if not _is_one_snapshot(plan, layout):
        dumped, logged = (sum(file.rows for file in files) for files in (bulk, (*others, *plan.again)))
        broad = logged > MOST_OTHERS or sum(file.bytes for file in (*others, *plan.again)) > MOST_OTHER_BYTES
        sorting = dumped <= FEW_DUMPED or broad or bool(plan.truncates)
        if sorting or _any_twice(landing, bulk, schemas, layout):
            return changes(landing, plan, schemas, layout, None, soft=soft, groups=groups)
    rows = _in_order(landing, bulk, schemas, layout)
    if not others and not plan.again:
        return only_events(rows, layout.key, layout.values, soft=soft)
    events = _events(landing, plan, others, schemas, layout)
    raw = F.struct(F.col(CDC)["raw"].alias("raw")).alias(CDC)
    keys = events.select(*[F.col(quoted(name)) for name in layout.key], raw)
    keys = F.broadcast(keys).alias("target")
    alone = rows.alias("source").join(keys, same_rows(layout), "left_anti")
    theirs = landing.events(bulk, schemas, layout.columns).alias("source")
    events = events.unionByName(theirs.join(keys, same_rows(layout), "left_semi"))
    return only_events(alone, layout.key, layout.values, soft=soft).unionByName(
        _reconciled(events, plan, layout, groups, soft=soft)
    )


def _is_one_snapshot(plan: TablePlan, layout: TargetLayout) -> bool:
    """Return whether the only file is a chunk: what one SELECT has read has no key twice.

    Unless different keys are the same in the target: integers in a column that somebody widened to double.
    """
    alone = len(plan.dump_chunks) == len(plan.all) == 1
    return alone and not any(layout.columns[name] in ("float", "double") for name in layout.key)


def _events(
    landing: Events,
    plan: TablePlan,
    files: Sequence[LandedFile],
    schemas: Mapping[str, TableSchema],
    layout: TargetLayout,
) -> DataFrame:
    """Read the events that count, from a plan's new `files` and from those to read again."""
    events = landing.events(files, schemas, layout.columns)
    if plan.again:
        again = landing.events(plan.again, schemas, layout.columns)
        events = events.unionByName(again.where(_after(plan.low)))
    if plan.swept is not None and plan.straddles_sweep:
        events = events.where(~before(plan.swept))
    return events


def _any_twice(
    landing: Events, chunks: Sequence[LandedFile], schemas: Mapping[str, TableSchema], layout: TargetLayout
) -> bool:
    """Return whether any key is in the chunks twice."""
    spans = _spans(chunks, schemas, layout)
    keys = {name: layout.columns[name] for name in layout.key}
    events = landing.events(chunks, schemas, keys)
    if _apart(spans) if spans else _disjoint(events, layout, len(chunks)):
        return False
    rows = events.select(*with_raw(layout.key, layout.raw_keys))
    of_key = [F.col(quoted(name)) for name in rows.columns]
    return bool(rows.groupBy(*of_key).count().where("count > 1").limit(1).collect())


def _spans(
    chunks: Sequence[LandedFile], schemas: Mapping[str, TableSchema], layout: TargetLayout
) -> list[tuple[int, int]] | None:
    """Return the key spans of chunks by their manifests; None if one has none, or of another type.

    A value of the target's own type was not changed by the type, so different ones are different there, too.
    """
    first = layout.key[0]
    types = {schemas[chunk.schema_id].column(first).type for chunk in chunks}
    spans = [chunk.key_span for chunk in chunks if chunk.key_span is not None]
    return spans if types == {layout.columns[first]} and len(spans) == len(chunks) else None


def _apart(ranges: Iterable[tuple[Any, Any]]) -> bool:
    """Return whether no two ranges, each from its least to its greatest value, have a value in common.

    Of the first key column of chunks: then no key occurs twice, since a chunk is one snapshot of a table with
    that key.
    """
    return all(before[1] < after[0] for before, after in pairwise(sorted(ranges)))


def _disjoint(events: DataFrame, layout: TargetLayout, chunks: int) -> bool:
    """Return whether no two of these chunks overlap in the first key column; `chunks`: how many there are.

    Also False if checking would take as long as comparing the keys.
    """
    first = layout.key[0]
    if layout.columns[first] not in FAST_ORDER:
        return False
    column = F.col(quoted(first))
    ends = events.groupBy(F.col(CDC)["chunk"]).agg(F.min(column), F.max(column), F.max(column.isNull()))
    found = ends.collect()
    if len(found) < chunks or any(null for *_, null in found):
        return False
    return _apart((low, high) for _, low, high, _ in found)


def _in_order(
    landing: Events, chunks: Sequence[LandedFile], schemas: Mapping[str, TableSchema], layout: TargetLayout
) -> DataFrame:
    """Read chunks in partitions of neighbors, each of about `PARTITION_BYTES`."""
    parts = max(1, min(MOST_PARTITIONS, -(-sum(chunk.bytes for chunk in chunks) // PARTITION_BYTES)))
    size = -(-len(chunks) // parts)
    frames = []
    for first in range(0, len(chunks), size):
        group = chunks[first : first + size]
        count = max(1, sum(chunk.bytes for chunk in group) // PARTITION_BYTES)
        frames.append(landing.events(group, schemas, layout.columns).coalesce(count))
    return _union(frames)


def _union(frames: Iterable[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)


def _reconciled(
    events: DataFrame,
    plan: TablePlan,
    layout: TargetLayout,
    groups: Groups,
    *,
    soft: bool,
    values: Sequence[str] | None = None,
) -> DataFrame:
    return reconcile(
        events,
        layout.key,
        layout.values if values is None else values,
        partial=plan.partial,
        groups=groups,
        raw_keys=layout.raw_keys,
        soft=soft,
    )


def column_groups(
    landing: Events, plan: TablePlan, schemas: Mapping[str, TableSchema], layout: TargetLayout
) -> Groups:
    """Return which columns the plan's events always carry together, if asking is worth it: else one each."""
    each = [[name] for name in layout.values]
    partial = [file for file in plan.all if file.partial]
    if not partial or len(each) <= FEW_COLUMNS:
        return each
    unchanged = F.col(CDC)["unchanged"].alias("unchanged")
    found = landing.events(partial, schemas, layout.columns).select(unchanged).distinct()
    sets = [row["unchanged"] or () for row in found.limit(MOST_SETS + 1).collect()]
    return group_columns(layout.values, sets) if len(sets) <= MOST_SETS else each


def _truncate(
    landing: Events,
    plan: TablePlan,
    schemas: Mapping[str, TableSchema],
    layout: TargetLayout,
    events: DataFrame,
    target: DataFrame | None,
    *,
    soft: bool,
) -> DataFrame:
    """Drop events before the last truncate, and delete the target's rows from before it.

    If deletes are `soft`, the events stay, and each truncate deletes the rows that it found.
    """
    truncates = truncates_of(landing, plan, schemas)
    if not truncates:
        return events
    events = events.where(F.col(CDC)["op"] != TRUNCATE)
    if soft:
        return events.unionByName(truncated(events, target, layout, truncates))
    *_, last = truncates
    kept = events.where(~before(last))
    if target is None:
        return kept
    return kept.unionByName(_deletes(_keys_before(target, layout, last), layout, at_literal(last)))


def truncates_of(landing: Events, plan: TablePlan, schemas: Mapping[str, TableSchema]) -> Truncates:
    """Return a plan's truncates."""
    if not plan.truncates:
        return {}
    cdc = F.col(CDC)
    truncates = landing.events(plan.truncates, schemas, {}).where(cdc["op"] == TRUNCATE)
    micros = F.unix_micros(cdc["committed_at"]).alias("micros")  # the session's zone decides nothing
    rows = truncates.select(position_of(cdc).alias("at"), micros).distinct().collect()
    found = {Position(*row["at"]): row["micros"] for row in rows}
    return {at: None if found[at] is None else from_micros(found[at]) for at in sorted(found)}


def truncated(
    events: DataFrame, target: DataFrame | None, layout: TargetLayout, truncates: Truncates
) -> DataFrame:
    """Return a delete for each row that a truncate found, at the first such truncate. Pure.

    A truncate does not find a row whose delete was logged before it. It does find one deleted by a dump of
    keys, since that delete may land after the truncate::

        insert (1, 10, 0)   delete (1, 20, 0)     truncate (1, 30, 0)   ->   none
        insert (1, 10, 0)   truncate (1, 30, 0)   truncate (1, 40, 0)   ->   delete (1, 30, 0)

    A row that a truncate has deleted in the target already, at this very position, is found again: a chunk
    that landed since may know more of its last version. A delete has the truncate's commit time if the row is
    known to have been there: also if a dump since then found it gone that may have read after the truncate,
    unless an earlier dump had found it gone before.
    """
    cdc, key = F.col(CDC), with_raw(layout.key, layout.raw_keys)
    at, gone = position_of(cdc), cdc["op"] == DELETE
    of_dump = gone & (cdc["seq"] >= CHUNK_SEQ)
    known = F.array(*map(at_literal, truncates))
    truncate = F.array_min(F.filter(known, lambda truncate: truncate > at))

    def states_of(frame: DataFrame, high_lsn: Column) -> DataFrame:
        read_after = (at["epoch"] == truncate["epoch"]) & (high_lsn >= truncate["lsn"])
        late = of_dump & F.coalesce(read_after, F.lit(False))
        flags = {"truncate": truncate, "gone": gone, "of_dump": of_dump, "late": late}
        state = F.struct(at.alias("at"), *[value.alias(name) for name, value in flags.items()])
        return frame.select(*key, state.alias(CDC))

    states = states_of(events, cdc["high_lsn"])
    if target is not None:  # a dump in it had ended before a truncate that is yet to be merged
        states = states.unionByName(states_of(target, F.lit(None).cast("bigint")))
    of_key = [F.col(quoted(name)) for name in states.columns if name != CDC]
    in_order = Window.partitionBy(*of_key).orderBy(cdc["at"])
    earlier = F.last(F.when(~cdc["late"], cdc), ignorenulls=True)
    states = states.withColumn(
        CDC,
        cdc.withField("next", F.lead(cdc["at"]).over(in_order)).withField(
            "earlier", earlier.over(in_order.rowsBetween(Window.unboundedPreceding, -1))
        ),
    )
    lives = ~cdc["gone"] | cdc["of_dump"]
    found = lives & (cdc["next"].isNull() | (cdc["next"] >= cdc["truncate"]))
    before_dump = ~cdc["earlier"]["gone"] & (cdc["earlier"]["truncate"] == cdc["truncate"])
    times = F.map_from_arrays(known, F.array(*(F.expr(timestamp(time)) for time in truncates.values())))
    time = F.when(~cdc["gone"] | (before_dump & cdc["late"]), times[cdc["truncate"]])
    return _deletes(states.where(found & cdc["truncate"].isNotNull()), layout, cdc["truncate"], time)


def _ghost_deletes(
    landing: Events,
    sweep: Sweep,
    schemas: Mapping[str, TableSchema],
    layout: TargetLayout,
    target: DataFrame,
) -> DataFrame:
    """Return a delete for each ghost: each key of the target that a full dump lacks.

    Events from before the dump are not read.
    """
    keys = {name: layout.columns[name] for name in layout.key}
    dumped = landing.events(sweep.chunks, schemas, keys).select(*with_raw(layout.key, layout.raw_keys))
    ghosts = (
        _keys_before(target, layout, sweep.position)
        .alias("source")
        .join(dumped.alias("target"), same_keys(layout), "left_anti")
    )
    return _deletes(ghosts, layout, at_literal(sweep.position))


def _keys_before(frame: DataFrame, layout: TargetLayout, position: Position) -> DataFrame:
    """Return the keys of undeleted rows positioned before `position`."""
    older = frame.where((F.col(CDC)["op"] != DELETE) & before(position))
    return older.select(*with_raw(layout.key, layout.raw_keys))


def before(position: Position) -> Column:
    """Return whether an event or a row is positioned before a position."""
    return F.expr(f"(_cdc.epoch, _cdc.lsn, _cdc.seq) < {position_literal(position)}")


def _after(position: Position) -> Column:
    return F.expr(f"(_cdc.epoch, _cdc.lsn, _cdc.seq) > {position_literal(position)}")


def at_literal(position: Position) -> Column:
    """Return a known position as a struct that compares as positions do."""
    return F.struct(*map(F.lit, position)).cast(SINCE_TYPE)


def with_deleted_at(rows: DataFrame, found: datetime) -> DataFrame:
    """Give each softly deleted row a time: `found` where no event says when it was.

    `rows`: reconciled changes, or those of a table, which may have been deleted before it had the field.
    `found`: when the manifest was committed up to which the merge goes.
    """
    cdc = F.col(CDC)
    time = F.coalesce(cdc[DELETED_AT], cdc["committed_at"], F.expr(timestamp(found)))
    return rows.withColumn(CDC, cdc.withField(DELETED_AT, F.when(cdc["op"] == DELETE, time)))


def _deletes(
    keys: DataFrame, layout: TargetLayout, at: Column, committed_at: Column | None = None
) -> DataFrame:
    """Return a delete event for each key, at the position `at`."""
    known = {"op": F.lit(DELETE), "epoch": at["epoch"], "lsn": at["lsn"], "seq": at["seq"]}
    known |= {} if committed_at is None else {"committed_at": committed_at}
    fields = {name: known.get(name, F.lit(None)).cast(data_type(type_)) for name, type_ in CDC_FIELDS}
    fields["raw"] = raw_of_key(layout.raw_keys)
    cdc = F.struct(*[value.alias(name) for name, value in fields.items()])
    values = [F.lit(None).cast(data_type(layout.columns[name])).alias(name) for name in layout.values]
    return keys.select(*[F.col(quoted(name)) for name in layout.key], *values, cdc.alias(CDC))
