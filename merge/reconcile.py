"""Reconciles events: any number of events per key, in any order, become one row per key. Pure.

For each key the event with the greatest position wins. A *boundary* is an event after which nothing older
counts: an insert, a dumped row, a delete, or an update that carries the whole row. Other updates lack columns
(`unchanged`); each column comes from the latest event since the last boundary that carries it.

Events of one key::

    position   op       unchanged   a    b
    (1, 10, 0) insert               1    x
    (1, 20, 0) update   [b]         2    null
    (1, 30, 2) update   [b]         3    null

and the resulting row::

    a   b   _cdc.position   _cdc.op   _cdc.missing   _cdc.since
    3   x   (1, 30, 2)      update    null           (1, 10, 0)

Without the insert, `b` is null, `missing` is ``[b]``, and `since`, the position of the last boundary, is
null. If `missing` names a column, `merge.apply` keeps the target's value, unless that is from before `since`.

Where deletes are soft, a deleted key has the columns of its last version, by the same rule: a delete is an
update that carries no column, and for a deleted key it is no boundary, nor is `since` its position::

    position   op       unchanged   a    b               a   b   _cdc.position   _cdc.op   _cdc.missing
    (1, 10, 0) update   [b]         1    null     ->     1   null   (1, 20, 0)   delete    [b]
    (1, 20, 0) delete

A softly deleted key also has `_cdc.deleted_at`: the commit time of its last delete that says one, unless the
key has events since then that are no deletes. A dump that finds the key gone says no time, nor that the row
was there until then. All other events say that; `lived` is the position of the last of them.

Ties: two events of one key at one position are the same event, landed twice; either is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.landing.format import CDC, DELETE, DUMP, INSERT
from merge.keys import raw_entries, raw_of_key, with_raw
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData

TARGET_FIELDS: dict[str, str] = {
    "op": "string",
    "epoch": "int",
    "lsn": "bigint",
    "seq": "bigint",
    "committed_at": "timestamp",
    "raw": "map<string,string>",
    "missing": "array<string>",
}
"""The fields of `_cdc` in a Delta table. A reconciled row also has `since`, and if `soft`, `lived`."""

DELETED_AT = "deleted_at"
"""One more field of `_cdc`, the last one, where deletes are soft; null in rows that are not deleted."""

MISSING_TYPE = TARGET_FIELDS["missing"]
RAW_ENTRIES = "array<struct<key:string,value:string>>"
SINCE_TYPE = "struct<epoch:int,lsn:bigint,seq:bigint>"


def cdc_type(*, marked: bool) -> str:
    """Return the type of `_cdc` in a Delta table of current rows; `marked`: with `DELETED_AT`."""
    fields = TARGET_FIELDS | ({DELETED_AT: "timestamp"} if marked else {})
    return "struct<" + ",".join(f"{name}:{type_}" for name, type_ in fields.items()) + ">"


def reconcile(
    events: DataFrame,
    key: Sequence[str],
    columns: Sequence[str],
    *,
    partial: bool,
    groups: Sequence[Sequence[str]] | None = None,
    raw_keys: Sequence[str] = (),
    soft: bool = False,
) -> DataFrame:
    """Return one row per key: key, other `columns`, and `_cdc` with `TARGET_FIELDS` and `since`.

    If `soft`, `_cdc` also has `lived`, and `DELETED_AT`, null if the commit time of the delete is not known.

    `events`: key, `columns`, `_cdc` as landed; no truncates. `partial`: whether an event may lack columns;
    if none does, the latest event is taken as it is. `groups`: columns that every event carries all or none
    of (`group_columns`); None: each column by itself, which is always right, but slow for hundreds. With
    `groups`, `columns` may be some of theirs: `missing` names all that a row lacks, `raw` has texts of these.
    A deleted key becomes a row with `op` delete. Its columns are meaningless, or if `soft` those of its last
    version, with the unknown ones in `missing`.
    `raw_keys`: the key columns whose raw text belongs to the key (`merge.keys`).
    """
    if not (partial or soft):
        return _by_row(events, key, columns, raw_keys)
    if not partial:
        groups = [columns] if columns else []
    elif groups is None:
        groups = [[name] for name in columns]
    return _by_group(events, key, columns, groups, raw_keys, soft=soft)


def group_columns(columns: Sequence[str], unchanged: Iterable[Collection[str]]) -> list[list[str]]:
    """Group columns that are in the same `unchanged` sets; these are all the sets that events list."""
    sets, groups = list(unchanged), dict[tuple[bool, ...], list[str]]()
    for name in columns:
        groups.setdefault(tuple(name in each for each in sets), []).append(name)
    return list(groups.values())


def only_events(
    events: DataFrame, key: Sequence[str], columns: Sequence[str], *, soft: bool = False
) -> DataFrame:
    """Return dumped rows as `reconcile` would, without grouping: each is the only event of its key."""
    cdc = F.col(CDC)
    never = F.lit(None).cast("timestamp")
    lived = [position_of(cdc).alias("lived"), never.alias(DELETED_AT)] if soft else []
    resolved = _target_cdc(cdc, cdc["raw"], F.lit(None).cast(MISSING_TYPE), position_of(cdc), lived)
    return events.select(*[F.col(quoted(name)) for name in [*key, *columns]], resolved.alias(CDC))


def position_of(cdc: Column) -> Column:
    """Return the position as a struct that compares as positions do."""
    return F.struct(cdc["epoch"], cdc["lsn"], cdc["seq"])


def is_boundary(cdc: Column) -> Column:
    """Return whether nothing older than an event counts."""
    return cdc["op"].isin(INSERT, DUMP, DELETE) | (F.size(_unchanged(cdc)) == 0)


def carries(cdc: Column, name: str) -> Column:
    """Return whether an event carries a column."""
    return (cdc["op"] != DELETE) & ~F.array_contains(_unchanged(cdc), name)


def is_current(at: Column, since: Column) -> Column:
    """Return whether the last event that carries a column, at `at`, is not before the last boundary."""
    return at.isNotNull() & F.coalesce(at >= since, F.lit(True))


def last_boundary(deleted: Column, boundary: Column, created: Column, *, soft: bool) -> Column:
    """Return a key's last boundary; deletes don't count for a softly deleted key."""
    return F.when(deleted, created).otherwise(boundary) if soft else boundary


def _unchanged(cdc: Column) -> Column:
    return F.coalesce(cdc["unchanged"], F.array().cast(MISSING_TYPE))


def _by_row(
    events: DataFrame, key: Sequence[str], columns: Sequence[str], raw_keys: Sequence[str]
) -> DataFrame:
    cdc = F.col(CDC)
    row = F.struct(*[F.col(quoted(c)) for c in columns], cdc)
    winners = _grouped(events, key, raw_keys).agg(F.max_by(row, position_of(cdc)).alias(CDC))
    winner, last = F.col(CDC), F.col(CDC)[CDC]
    raw = F.when(last["op"] != DELETE, last["raw"]).otherwise(raw_of_key(raw_keys))
    return winners.select(
        *[F.col(quoted(c)) for c in key],
        *[winner[c].alias(c) for c in columns],
        _target_cdc(last, raw, F.lit(None).cast(MISSING_TYPE), position_of(last)).alias(CDC),
    )


def _by_group(
    events: DataFrame,
    key: Sequence[str],
    columns: Sequence[str],
    groups: Sequence[Sequence[str]],
    raw_keys: Sequence[str],
    *,
    soft: bool,
) -> DataFrame:
    """Take each group of columns from the latest event that carries it, unless it is before the boundary.

    One aggregation is enough: the latest carrier is at or after the boundary exactly if any carrier is.
    """
    cdc = F.col(CDC)
    at = position_of(cdc)
    boundary = is_boundary(cdc)
    names, known = [F.array(*map(F.lit, group)) for group in groups], set(columns)
    returned = [[name for name in group if name in known] for group in groups]

    def latest(n: int) -> Column:
        carried = carries(cdc, groups[n][0])
        values = F.struct(*[F.col(quoted(name)).alias(name) for name in returned[n]])
        texts = F.array(*map(F.lit, returned[n]))
        raw = F.map_filter(cdc["raw"], lambda name, _text: F.array_contains(texts, name))
        wanted = [values.alias("values"), raw.alias("raw")] if returned[n] else []
        event = F.struct(at.alias("at"), *wanted)
        return F.max_by(F.when(carried, event), F.when(carried, at))

    told = F.when((cdc["op"] != DELETE) | cdc["committed_at"].isNotNull(), at)
    state = F.struct(at.alias("at"), cdc["op"], cdc["committed_at"])
    lived = [F.max_by(state, told).alias("lived")] if soft else []
    folded = _grouped(events, key, raw_keys).agg(
        F.struct(
            F.max_by(cdc, at).alias("last"),
            F.max(F.when(boundary, at)).alias("boundary"),
            F.max(F.when(boundary & (cdc["op"] != DELETE), at)).alias("created"),
            *lived,
            *[latest(n).alias(f"g{n}") for n in range(len(groups))],
        ).alias(CDC)
    )
    return _resolved(folded, key, columns, list(zip(returned, names, strict=True)), raw_keys, soft=soft)


def _resolved(
    folded: DataFrame,
    key: Sequence[str],
    columns: Sequence[str],
    groups: Sequence[tuple[Sequence[str], Column]],
    raw_keys: Sequence[str],
    *,
    soft: bool,
) -> DataFrame:
    """Build the rows from each key's `folded` events.

    `groups`: the columns of each that are returned, and an array of the names of all.
    """
    fold = F.col(CDC)
    deleted = fold["last"]["op"] == DELETE
    since = last_boundary(deleted, fold["boundary"], fold["created"], soft=soft)

    values: dict[str, Column] = {}
    missing, raws = [], [F.array_compact(F.array(*raw_entries(raw_keys)).cast(RAW_ENTRIES))]
    for n, (group, names) in enumerate(groups):
        latest = fold[f"g{n}"]
        known = is_current(latest["at"], since)
        missing.append(F.when(known, F.array()).otherwise(names))
        if group:
            found = F.when(known, latest["values"])
            values |= {name: found[name] for name in group}
            raw = F.when(known, F.map_entries(latest["raw"]))
            raws.append(F.coalesce(raw, F.array().cast(RAW_ENTRIES)))
    lacking = _unless_empty(F.concat(*missing) if missing else F.array().cast(MISSING_TYPE))
    raw = _unless_empty(F.map_from_entries(F.concat(*raws)))
    if not soft:
        raw, lacking = F.when(deleted, raw_of_key(raw_keys)).otherwise(raw), F.when(~deleted, lacking)
    lived = []
    if soft:
        last = fold["lived"]
        time = F.when(deleted & (last["op"] == DELETE), last["committed_at"])
        lived = [last["at"].alias("lived"), time.alias(DELETED_AT)]
    return folded.select(
        *[F.col(quoted(c)) for c in key],
        *[values[name].alias(name) for name in columns],
        _target_cdc(fold["last"], raw, lacking.cast(MISSING_TYPE), since, lived).alias(CDC),
    )


def _unless_empty(collection: Column) -> Column:
    return F.when(F.size(collection) > 0, collection)


def _target_cdc(
    last: Column, raw: Column, missing: Column, since: Column, lived: Sequence[Column] = ()
) -> Column:
    taken = ("op", "epoch", "lsn", "seq", "committed_at")
    return F.struct(
        *[last[name].alias(name) for name in taken],
        raw.alias("raw"),
        missing.alias("missing"),
        since.alias("since"),
        *lived,
    )


def _grouped(events: DataFrame, key: Sequence[str], raw_keys: Sequence[str]) -> GroupedData:
    return events.groupBy(*with_raw(key, raw_keys))
