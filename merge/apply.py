"""Applies changes to Delta tables: the only file that writes to a target.

One MERGE for each table and run. A row only moves forward: it changes when its change has a greater position.

A small example, `target` before::

    id   a   b   _cdc.position   _cdc.missing
    1    1   x   (1, 10, 0)      null
    2    1   y   (1, 10, 2)      null

`source`, reconciled; the change of 1 lacks `b`, the one of 2 is stale, 3 is new::

    id   a   b      _cdc.position   _cdc.op   _cdc.missing   _cdc.since
    1    5   null   (1, 20, 0)      update    [b]            null
    2    9   z      (1, 10, 0)      insert    null           (1, 10, 0)
    3    7   q      (1, 20, 2)      insert    null           (1, 20, 2)

`target` after::

    id   a   b   _cdc.position   _cdc.missing
    1    5   x   (1, 20, 0)      null
    2    1   y   (1, 10, 2)      null
    3    7   q   (1, 20, 2)      null

Ties: source and target of one position hold the same event. A dumped row that was folded in since can know
more of it (a column that the target misses, or that changed while the log was lost): it wins when it does.

Fencing: the commit carries the manifest's number as Delta's transaction version for this source and table,
and Delta skips a commit whose version is not greater than the last one: a job that was overtaken can't bring
back what a later manifest deleted. A crash leaves the table at its old version or at the new one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from connector.landing import CDC
from merge.changes import Layout, keys_equal
from merge.reconcile import TARGET_FIELDS
from merge.settings import held
from merge.sql import listed, literal, position, quoted, text
from merge.target import Mark, Target, TargetState, read_commits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LARGE_BYTES = 64 << 20
"""From this size on, bounds of the keys in the MERGE are worth the pass over the changes that finds them."""

NEWER = f"{position('source')} > {position('target')}"
SAME = f"{position('source')} = {position('target')}"
DELETED = "source._cdc.op = 'delete'"
KEPT = "source._cdc.op <> 'delete'"
SINCE = "(source._cdc.since.epoch, source._cdc.since.lsn, source._cdc.since.seq)"
KEEPS = f"(source._cdc.since IS NULL OR {SINCE} <= {position('target')}) AND target._cdc.op <> 'delete'"
"""What `source` does not carry, `target` still knows: nothing after it made the row anew."""


@dataclass(frozen=True)
class Applied:
    """What became of a table: its version, the manifest whose state that is, and the number of rows written.

    A manifest other than the one asked for is that of a job that was faster. `requested`: see `Commits`.
    Numbers that Delta does not tell are None.
    """

    version: int
    manifest: int
    requested: int | None
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None


@dataclass(frozen=True)
class Rules:
    """What a merge has to reckon with; each that does not hold makes it simpler.

    `partial`: rows may lack columns. `ties`: dumped rows may know more of an event that was applied before.
    `soft`: deleted rows stay, with `op` delete.
    """

    partial: bool
    ties: bool
    soft: bool


def apply(
    spark: SparkSession,
    target: Target,
    state: TargetState,
    source: DataFrame,
    layout: Layout,
    rules: Rules,
    mark: Mark,
    since: int | None,
) -> Applied:
    """Write the changes up to the manifest of `mark` to a target, as one commit, durable on return.

    `since`: the version from which this job set out; requests of other jobs since count.

    When another job has brought the table to this manifest or a later one, nothing is written and the result
    says so. Delta's concurrent-modification errors come through: nothing was written, read again.
    """
    view = f"deltatide_{uuid.uuid4().hex}"
    bounds = key_bounds(source, layout) if state.bytes > LARGE_BYTES else ""
    source.createOrReplaceTempView(view)
    statement = overwrite_sql(target, view, layout, rules) if state.empty else None
    statement = statement or merge_sql(target, view, layout, rules, bounds)
    try:
        with held(spark, commit_settings(target, mark)):
            written = spark.sql(statement).collect()
    finally:
        spark.catalog.dropTempView(view)
    commits = read_commits(spark, target, mark.source, since)
    counts = written[0].asDict() if written else {}
    return Applied(
        commits.version,
        mark.manifest if commits.manifest is None else commits.manifest,
        None if commits.requested is None else max(mark.requested, commits.requested),
        *(counts.get(f"num_{kind}_rows") for kind in ("inserted", "updated", "deleted")),
    )


def commit_settings(target: Target, mark: Mark) -> dict[str, str]:
    """Give the settings by which Delta writes manifest and fence with the data, in the same commit.

    A platform that refuses them goes without the fence; positions alone keep rows from going back.
    """
    prefix = "spark.databricks.delta."
    return {
        f"{prefix}write.txnAppId": f"deltatide/{mark.source}/{target.table}",
        f"{prefix}write.txnVersion": str(mark.manifest),
        f"{prefix}commitInfo.userMetadata": mark.to_json(),
    }


def overwrite_sql(target: Target, view: str, layout: Layout, rules: Rules) -> str:
    """Spell the filling of an empty table.

    It overwrites, as a plain append could double rows that another job has added since: the changes hold all
    rows that any of these can have.
    """
    columns = ", ".join([*(f"source.{quoted(name)}" for name in layout.columns), f"{fresh_cdc()} AS {CDC}"])
    where = "" if rules.soft else f" WHERE {KEPT}"
    return f"INSERT OVERWRITE {target.name} SELECT {columns} FROM {view} AS source{where}"


def merge_sql(target: Target, view: str, layout: Layout, rules: Rules, bounds: str = "") -> str:
    """Spell the MERGE of reconciled changes, in the temporary view `view`, into a target."""
    deleting = f"UPDATE SET {CDC} = {deleted_cdc()}" if rules.soft else "DELETE"
    values = new_values(layout, rules)
    updates = ", ".join(
        f"{quoted(name)} = {value}" for name, value in values.items() if name not in layout.key
    )
    inserts = ", ".join([*(f"source.{quoted(name)}" for name in layout.columns), fresh_cdc()])
    return f"""
        MERGE INTO {target.name} AS target USING {view} AS source ON {keys_equal(layout.key)}{bounds}
        WHEN MATCHED AND {NEWER} AND {DELETED} THEN {deleting}
        WHEN MATCHED AND ({effective(layout, rules)}) AND {KEPT} THEN UPDATE SET {updates}
        WHEN NOT MATCHED{"" if rules.soft else f" AND {KEPT}"}
            THEN INSERT ({listed([*layout.columns, CDC])}) VALUES ({inserts})"""


def new_values(layout: Layout, rules: Rules) -> dict[str, str]:
    """Spell each column of a row that is in both `source` and `target` and is not deleted."""
    values = {name: f"source.{quoted(name)}" for name in layout.columns}
    if not rules.partial:
        return {**values, CDC: fresh_cdc()}
    for name in layout.values:
        lacking = f"{KEEPS} AND array_contains(source._cdc.missing, {text(name)})"
        values[name] = f"CASE WHEN {lacking} THEN target.{quoted(name)} ELSE source.{quoted(name)} END"
    missing = "array_intersect(source._cdc.missing, coalesce(target._cdc.missing, array()))"
    missing = f"CASE WHEN {KEEPS} THEN {_unless_empty(missing)} ELSE source._cdc.missing END"
    raw = """map_concat(
        map_filter(coalesce(target._cdc.raw, map()), (k, v) -> array_contains(source._cdc.missing, k)),
        coalesce(source._cdc.raw, map()))"""
    lacking = f"{KEEPS} AND source._cdc.missing IS NOT NULL"
    raw = f"CASE WHEN {lacking} THEN {_unless_empty(raw)} ELSE source._cdc.raw END"
    return {**values, CDC: _cdc({"missing": missing, "raw": raw})}


def _unless_empty(collection: str) -> str:
    return f"CASE WHEN size({collection}) > 0 THEN {collection} END"


def effective(layout: Layout, rules: Rules) -> str:
    """Spell that `source` says something that `target` does not hold yet."""
    return f"{NEWER} OR ({KEPT} AND {tie(layout, rules)})" if rules.ties else NEWER


def tie(layout: Layout, rules: Rules) -> str:
    """Spell that `source` knows more of the very event that `target` holds."""
    values = new_values(layout, rules)
    new = [values[name] for name in layout.values]
    old = [f"target.{quoted(name)}" for name in layout.values]
    raw, missing = "array_sort(map_entries({0}.raw))", "array_sort({0}.missing)"
    for fields, cdc in ((new, f"({values[CDC]})"), (old, "target._cdc")):
        fields += [raw.format(cdc), missing.format(cdc)]
    differs = f"NOT (struct({', '.join(new)}) <=> struct({', '.join(old)}))"
    return f"{SAME} AND source._cdc.since IS NOT NULL AND {differs}"


def fresh_cdc() -> str:
    """Spell `_cdc` of a row as its change has it."""
    return _cdc({})


def deleted_cdc() -> str:
    """Spell `_cdc` of a row that stays, marked as deleted."""
    return _cdc({"raw": "target._cdc.raw", "missing": "target._cdc.missing"})


def _cdc(values: Mapping[str, str]) -> str:
    fields = (f"{text(name)}, {values.get(name, f'source._cdc.{name}')}" for name in TARGET_FIELDS)
    return f"named_struct({', '.join(fields)})"


def key_bounds(source: DataFrame, layout: Layout) -> str:
    """Spell the smallest and greatest key among the changes, so that Delta opens only files between them."""
    ends: list[Any] = []
    for name in layout.key:
        ends += [F.min(quoted(name)), F.max(quoted(name))]
    found = source.agg(*ends).collect()[0]
    bounds = ""
    for n, name in enumerate(layout.key):
        low, high = literal(found[2 * n]), literal(found[2 * n + 1])
        if low is not None and high is not None:
            bounds += f" AND target.{quoted(name)} BETWEEN {low} AND {high}"
    return bounds
