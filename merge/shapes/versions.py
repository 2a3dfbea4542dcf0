"""Derives a table's versions (SCD type 2) from its events. Pure, DataFrame to DataFrame.

Of each key, in order of positions, beginning with the version that was open before:

- a logged insert or update opens a version, and ends the one before; a delete or truncate ends it;
- a **dumped row** that equals the open version changes nothing. Otherwise it opens a version, first seen at
  the chunk's low watermark; the one before ended there at the latest, unseen;
- if a dump of keys, or a full dump that has ended, did not find a key, the key's version ends, unseen;
- an update that lacks columns takes them from the version that it ends; columns that no event has carried
  since the row was created are null, and in `missing`;
- at a *gap*, some log did not land. So a dumped row after it opens a version even if nothing changed, and an
  update takes no columns from before it.

A chunk may show rows newer than its low watermark: its snapshot was taken between its watermarks. So if the
log changed a key there, a dumped row counts only with the columns that none of these events carries, and not
at all if one of them created, deleted or fully rewrote the row.

Events of one key, and its versions::

    position      op       a   b        a   b      _valid_from   seen   _valid_to     seen
    (1, 10, c)    dump     1   x        1   x      (1, 10, c)    false  (1, 20, 0)    true
    (1, 20, 0)    update   2            2   x      (1, 20, 0)    true   (1, 30, c)    false
    (1, 30, c)    dump     3   x        3   x      (1, 30, c)    false  (1, 40, 0)    true
    (1, 40, 0)    delete

An end is also unseen if an insert follows, or a gap lies between. Ties: events of one key at one position are
the same event, landed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from connector.landing.format import CDC, DELETE, DUMP, INSERT, UPDATE
from connector.position import CHUNK_SEQ, Position
from merge.keys import TargetLayout, raw_of_key, same_rows, with_raw
from merge.reconcile import MISSING_TYPE, RAW_ENTRIES, carries, position_of
from merge.sql_formatting import data_type, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec

FROM, TO = "_valid_from", "_valid_to"

POINT_TYPE = "struct<epoch:int,lsn:bigint,seq:bigint,committed_at:timestamp,seen:boolean>"
"""One end of a version. `seen`: whether a log event there began or ended it."""

VERSION_TYPE = "struct<op:string,raw:map<string,string>,missing:array<string>>"
"""`_cdc` of a version: the event that opened it, as in the table of current rows."""

POSITION_TYPE = "struct<epoch:int,lsn:bigint,seq:bigint>"

VERSION = "version"
"""The `op` of the version that was open before all events."""

EVENT_FIELDS = {
    "op": "string",
    "epoch": "int",
    "lsn": "bigint",
    "seq": "bigint",
    "committed_at": "timestamp",
    "raw": "map<string,string>",
    "unchanged": "array<string>",
    "high_lsn": "bigint",
    "opened_by": "string",
    "seen": "boolean",
}
"""The fields of `_cdc` in these events; only a `VERSION` has the last two."""


def as_events(frame: DataFrame, layout: TargetLayout, **known: Column) -> DataFrame:
    """Select a layout's columns and `_cdc` with `EVENT_FIELDS`; fields that are not `known` are null."""
    have = frame.schema[CDC].dataType.names  # type: ignore[attr-defined]
    fields = {n: known.get(n, F.col(CDC)[n] if n in have else F.lit(None)) for n in EVENT_FIELDS}
    cdc = F.struct(*[fields[n].cast(data_type(type_)).alias(n) for n, type_ in EVENT_FIELDS.items()])
    columns = [F.col(quoted(n)).cast(data_type(t)).alias(n) for n, t in layout.columns.items()]
    return frame.select(*columns, cdc.alias(CDC))


def once(events: DataFrame, layout: TargetLayout) -> DataFrame:
    """Return each event of each key once."""
    row = F.struct(*[F.col(quoted(name)) for name in (*layout.columns, CDC)])
    at = position_of(F.col(CDC)).alias("at")
    rows = events.groupBy(*with_raw(layout.key, layout.raw_keys), at).agg(F.first(row).alias(CDC))
    return rows.select(*[F.col(CDC)[name].alias(name) for name in (*layout.columns, CDC)])


def true_at_low(
    chunks: DataFrame, log: DataFrame, layout: TargetLayout, truncates: Sequence[Position]
) -> DataFrame:
    """Reduce chunk events to what was already true at the low watermark (see above)."""
    cdc = F.col(CDC)
    known = [cdc["epoch"].alias("epoch"), cdc["lsn"].alias("lsn"), _is_boundary(cdc).alias("whole")]
    logged = F.collect_list(F.struct(*known, cdc["unchanged"].alias("unchanged")))
    by_key = log.groupBy(*with_raw(layout.key, layout.raw_keys)).agg(logged.alias(CDC))
    raw = raw_of_key(layout.raw_keys).alias("raw")
    keys = [F.col(quoted(name)) for name in layout.key]
    by_key = by_key.select(*keys, F.struct(raw, F.col(CDC).alias("logged")).alias(CDC))
    joined = chunks.alias("source").join(by_key.alias("target"), same_rows(layout), "left")

    own = F.col(f"source.{CDC}")
    found = F.coalesce(F.col(f"target.{CDC}")["logged"], F.expr("array()"))
    within = F.filter(found, lambda event: _between(own, event["epoch"], event["lsn"]))
    emptied = reduce(
        lambda one, other: one | other,
        (_between(own, F.lit(at.epoch), F.lit(at.lsn)) for at in truncates),
        F.lit(False),
    )
    names = F.array(*map(F.lit, layout.values)).cast(MISSING_TYPE)
    constant = F.aggregate(within, names, lambda kept, event: F.array_intersect(kept, event["unchanged"]))
    untouched = F.size(within) == 0
    partly = (own["op"] == DUMP) & ~F.exists(within, lambda event: event["whole"]) & (F.size(constant) > 0)
    carried = F.when(~untouched, F.array_except(names, constant))
    columns = [F.col(f"source.{quoted(name)}") for name in layout.columns]
    kept = joined.where(~emptied & (untouched | partly))
    return kept.select(*columns, own.withField("unchanged", carried).alias(CDC))


def _between(chunk: Column, epoch: Column, lsn: Column) -> Column:
    """Return whether a transaction lies between a chunk's watermarks."""
    return (epoch == chunk["epoch"]) & (lsn > chunk["lsn"]) & (lsn < chunk["high_lsn"])


def _is_boundary(cdc: Column) -> Column:
    whole = F.size(F.coalesce(cdc["unchanged"], F.array().cast(MISSING_TYPE))) == 0
    return cdc["op"].isin(INSERT, DELETE, VERSION) | whole


def deletes(keys: DataFrame, layout: TargetLayout, at: Position, committed_at: Column) -> DataFrame:
    """Return a delete at a position for each key of a frame of rows with `_cdc`."""
    distinct = keys.select(*with_raw(layout.key, layout.raw_keys)).distinct()
    raw = F.struct(raw_of_key(layout.raw_keys).alias("raw")).alias(CDC)
    rows = distinct.select(
        *[F.col(quoted(name)) for name in layout.key],
        *[F.lit(None).alias(name) for name in layout.values],
        raw,
    )
    position = dict(zip(("epoch", "lsn", "seq"), map(F.lit, at), strict=True))
    return as_events(rows, layout, op=F.lit(DELETE), committed_at=committed_at, **position)


def versions(
    events: DataFrame, layout: TargetLayout, gaps: Sequence[Position], *, partial: bool
) -> DataFrame:
    """Return the versions that events open: columns, `_valid_from`, `_valid_to`, `_cdc` (`VERSION_TYPE`).

    `events`: as `as_events`, each once. `gaps`: as `merge.shapes.history_plan.HistoryPlan`. `partial`:
    whether an event may lack columns.
    """
    cdc = F.col(CDC)
    order = Window.partitionBy(*with_raw(layout.key, layout.raw_keys)).orderBy(position_of(cdc))
    known = _running(events, layout, order, gaps) if partial else _as_carried(events, layout)
    values = [F.col(quoted(name)).alias(f"c{n}") for n, name in enumerate(layout.compared)]
    state = F.struct(*values, cdc["entries"].alias("raw"), cdc["missing"].alias("missing"))
    at = position_of(cdc)
    before = F.lag(F.struct(cdc["op"].alias("op"), state.alias("state"), at.alias("at"))).over(order)
    lived = before.isNotNull() & (before["op"] != DELETE)
    confirms = (cdc["op"] == DUMP) & lived & before["state"].eqNullSafe(state)
    confirms &= ~_crosses(before["at"], at, gaps)
    changing = known.withColumn(CDC, cdc.withField("confirms", confirms)).where(~F.col(CDC)["confirms"])

    following = F.lead(F.struct(*[cdc[n].alias(n) for n in ("op", "epoch", "lsn", "seq", "committed_at")]))
    following = following.over(order)
    ended = changing.withColumn(CDC, cdc.withField("following", following)).where(cdc["op"] != DELETE)
    logged = cdc["following"]["seq"] < CHUNK_SEQ
    gap = _crosses(at, position_of(cdc["following"]), gaps)
    old = cdc["op"] == VERSION
    began = F.when(old, cdc["seen"]).otherwise(cdc["op"] != DUMP)
    op = F.when(old, cdc["opened_by"]).otherwise(cdc["op"])
    seen = logged & cdc["following"]["op"].isin(UPDATE, DELETE) & ~gap
    raw = F.when(F.size(cdc["entries"]) > 0, F.map_from_entries(cdc["entries"]))
    missing = F.when(F.size(cdc["missing"]) > 0, cdc["missing"])
    version = F.struct(op.alias("op"), raw.alias("raw"), missing.alias("missing"))
    return ended.select(
        *[F.col(quoted(name)) for name in layout.columns],
        _point(cdc, began).alias(FROM),
        F.when(cdc["following"].isNotNull(), _point(cdc["following"], seen)).alias(TO),
        version.cast(VERSION_TYPE).alias(CDC),
    )


def _positions(gaps: Sequence[Position]) -> Column:
    rows = [F.struct(*map(F.lit, gap)) for gap in gaps]
    return F.array(*rows).cast(data_type(f"array<{POSITION_TYPE}>"))


def _crosses(before: Column, at: Column, gaps: Sequence[Position]) -> Column:
    """Return whether a gap lies between two positions; False if one is null."""
    before, at = before.cast(data_type(POSITION_TYPE)), at.cast(data_type(POSITION_TYPE))
    crossed = F.exists(_positions(gaps), lambda gap: (gap > before) & (gap <= at))
    return F.coalesce(crossed, F.lit(False))


def _point(cdc: Column, seen: Column) -> Column:
    names = ("epoch", "lsn", "seq", "committed_at")
    return F.struct(*[cdc[name].alias(name) for name in names], seen.alias("seen")).cast(
        data_type(POINT_TYPE)
    )


def _as_carried(events: DataFrame, layout: TargetLayout) -> DataFrame:
    """Add to `_cdc` the sorted `entries` of raw texts, and `missing`; all events carry all columns."""
    cdc = F.col(CDC)
    entries = F.array_sort(F.coalesce(F.map_entries(cdc["raw"]), F.array().cast(RAW_ENTRIES)))
    missing = F.when(cdc["op"] == VERSION, cdc["unchanged"])
    missing = F.array_sort(F.coalesce(missing, F.array().cast(MISSING_TYPE)))
    return events.withColumn(CDC, cdc.withField("entries", entries).withField("missing", missing))


def _running(
    events: DataFrame, layout: TargetLayout, order: WindowSpec, gaps: Sequence[Position]
) -> DataFrame:
    """Fill in each event's row with what was known at that point; add `entries` and `missing` to `_cdc`."""
    cdc = F.col(CDC)
    at, so_far = position_of(cdc), order.rowsBetween(Window.unboundedPreceding, 0)
    typed = at.cast(data_type(POSITION_TYPE))
    boundary = F.max(F.when(_is_boundary(cdc), typed)).over(so_far)
    since = F.greatest(boundary, F.array_max(F.filter(_positions(gaps), lambda gap: gap <= typed)))

    def latest(name: str) -> Column:
        value = F.struct(typed.alias("at"), F.col(quoted(name)).alias("value"), cdc["raw"][name].alias("raw"))
        carried = F.last(F.when(carries(cdc, name), value), ignorenulls=True).over(so_far)
        return F.when(since.isNull() | (carried["at"] >= since), carried)

    found = F.struct(*[latest(name).alias(f"c{n}") for n, name in enumerate(layout.values)])
    filled = events.withColumn(CDC, cdc.withField("found", found))
    of = {name: cdc["found"][f"c{n}"] for n, name in enumerate(layout.values)}
    texts = {name: cdc["raw"][name] for name in layout.raw_keys} | {n: of[n]["raw"] for n in layout.values}
    entries = [
        F.when(text.isNotNull(), F.struct(F.lit(name).alias("key"), text.alias("value")))
        for name, text in texts.items()
    ]
    missing = [F.when(of[name].isNull(), F.lit(name)) for name in layout.values]
    known = cdc.withField("entries", F.array_sort(F.array_compact(F.array(*entries).cast(RAW_ENTRIES))))
    known = known.withField(
        "missing", F.array_sort(F.array_compact(F.array(*missing).cast(MISSING_TYPE)))
    ).dropFields("found")
    return filled.select(
        *[F.col(quoted(name)) for name in layout.key],
        *[of[name]["value"].alias(name) for name in layout.values],
        known.alias(CDC),
    ).select(*[F.col(quoted(name)) for name in (*layout.columns, CDC)])
