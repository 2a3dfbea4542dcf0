"""Applies changes to Delta tables: the only module that writes rows to a target.

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

Ties: at equal positions, source and target hold the same event. The source wins only if a dumped row folded
in since adds to it (a column missing in the target, or one that changed while the log was lost).

Where deletes are soft, a delete is an update that carries no column: a deleted row keeps the target's columns
and ties by the same rules. A row that is deleted at (1, 20, 0), and its `source` once a chunk has brought its
values::

    id   a      b      _cdc.position   _cdc.op   _cdc.missing   _cdc.since
    2    null   null   (1, 20, 0)      delete    [a, b]                       target
    2    1      y      (1, 20, 0)      delete    null           (1, 10, 0)    source, which wins

Fencing: the commit carries the manifest's number in Delta's transaction version for this source and table.
Delta skips a commit whose version is not greater than the last one, so a job that was overtaken can't bring
back what a later manifest deleted. A crash leaves the table at its old version or at the new one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.landing.format import CDC, DELETE
from merge.key_pruning import are_listed, key_conditions
from merge.keys import TargetLayout, keys_equal
from merge.lake.commits import USER_METADATA, Mark
from merge.lake.target import Target, TargetState
from merge.lake.widened import WIDENED
from merge.reconcile import DELETED_AT, TARGET_FIELDS
from merge.spark.session_settings import LISTED_KEYS, applied_settings
from merge.sql_formatting import listed, numbered_struct, position, quoted, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LARGE_BYTES = 64 << 20
"""From this size on, restricting the MERGE by key is worth the extra passes over the changes."""

NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""What a file's path has instead of a partition value that is null."""

NEWER = f"{position('source')} > {position('target')}"
SAME = f"{position('source')} = {position('target')}"
DELETED = "source._cdc.op = 'delete'"
KEPT = "source._cdc.op <> 'delete'"
SINCE = "(source._cdc.since.epoch, source._cdc.since.lsn, source._cdc.since.seq)"
# `target` still has what `source` does not carry: the row was not recreated since (nor, KEEPS, deleted).
CONTINUES = f"(source._cdc.since IS NULL OR {SINCE} <= {position('target')})"
KEEPS = f"{CONTINUES} AND target._cdc.op <> 'delete'"
LIVED = "(source._cdc.lived.epoch, source._cdc.lived.lsn, source._cdc.lived.seq)"
# Of a row that was deleted before, maybe before the table had the field, and is not known to live since.
STILL_DELETED = f"""CASE WHEN {DELETED} AND target._cdc.op = 'delete'
        AND (source._cdc.lived IS NULL OR {LIVED} <= {position("target")})
    THEN coalesce(target._cdc.{DELETED_AT}, target._cdc.committed_at, source._cdc.{DELETED_AT})
    ELSE source._cdc.{DELETED_AT} END"""
KEEPS_SOFT = f"{CONTINUES} AND ({DELETED} OR target._cdc.op <> 'delete')"


@dataclass(frozen=True)
class Written:
    """How many rows a statement wrote; None where Delta does not report it."""

    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None


@dataclass(frozen=True)
class Rules:
    """What a merge must handle; each rule that does not apply makes the statement simpler.

    `partial`: rows may lack columns. `ties`: dumped rows may add to an event that was applied before.
    `soft`: deleted rows stay, with `op` delete. `touches_any_row`: deletes were computed from the target's
    own rows. `replaces_all`: the changes hold every row the table can have, and overwrite it. `marked`: the
    table has `_cdc.deleted_at`, as where deletes are soft, or were.
    `groups`: columns that a change lacks all or none of; of other columns, nothing is known.
    """

    partial: bool
    ties: bool
    soft: bool
    touches_any_row: bool = False
    replaces_all: bool = False
    marked: bool = False
    groups: Sequence[Sequence[str]] = ()


def planning_of(state: TargetState, layout: TargetLayout, rows: int) -> Mapping[str, str]:
    """Return the settings by which the MERGE of so many changes into a large table is planned.

    Without deletion vectors, all rows of the files that it touches are shuffled, however few keys are listed.
    """
    return LISTED_KEYS if state.has_deletion_vectors and are_listed(layout, rows) else {}


def apply(
    spark: SparkSession,
    target: Target,
    state: TargetState,
    source: DataFrame,
    layout: TargetLayout,
    rules: Rules,
    mark: Mark,
    rows: int,
) -> Written:
    """Write the changes up to the manifest of `mark` (at most `rows`) as one commit, durable on return.

    Writes nothing if another job has already merged this manifest or a later one; the table's history shows
    that (`merge.lake.commits`). Delta's concurrent-modification errors propagate: nothing was written, and
    the caller must read the table again.
    """
    view = f"deltatide_{uuid.uuid4().hex}"
    _partitionable(source, target, state, rules).createOrReplaceTempView(view)
    # If deletes were computed from the target's rows, the MERGE may find rows that were not there before.
    pruned = state.bytes > LARGE_BYTES and not (rules.touches_any_row or rules.replaces_all)
    restricted = key_conditions(spark, source, layout, rows) if pruned else nullcontext("")
    planned = planning_of(state, layout, rows) if pruned else {}
    settings = commit_settings(target, mark) | (WIDENED if state.widened else {})
    try:
        with applied_settings(spark, planned), restricted as conditions, applied_settings(spark, settings):
            if rules.replaces_all:
                statement = overwrite_sql(target, view, layout, rules)
            else:
                statement = merge_sql(target, view, layout, rules, conditions)
            written = spark.sql(statement).collect()
    finally:
        spark.catalog.dropTempView(view)
    counts = written[0].asDict() if written else {}
    return Written(*(counts.get(f"num_{kind}_rows") for kind in ("inserted", "updated", "deleted")))


def _partitionable(source: DataFrame, target: Target, state: TargetState, rules: Rules) -> DataFrame:
    """Return `source`; its rows raise an error for text that Delta can't hold in a partition column.

    Delta, as Hive, takes the empty text and `NO_PARTITION` for null there. No store holds a NUL in a path.
    """
    for name in state.partitioned_by:
        if state.columns[name] == "string":
            value = F.col(quoted(name))
            lost = value.isin("", NO_PARTITION) | value.contains("\0")
            lost = lost if rules.soft else lost & (F.col(CDC)["op"] != DELETE)
            problem = F.raise_error(
                F.lit(
                    f"{target.table}: {target.name} is partitioned by column {name}, and a row has a text"
                    f" that Delta can't hold in a partition: empty, {NO_PARTITION}, or with a NUL; use"
                    f" cluster_by instead of partition_by in {target.table.section}, and {target.drop_hint}"
                )
            )
            source = source.withColumn(name, F.when(lost, problem.cast("string")).otherwise(value))
    return source


def commit_settings(target: Target, mark: Mark) -> dict[str, str]:
    """Return the settings that make Delta write manifest and fence in the same commit as the data.

    Platforms that refuse these settings run without the fence. Positions alone then keep rows from moving
    backward, but do not protect a history: an overtaken job deletes versions that it does not know about.
    """
    prefix = "spark.databricks.delta."
    return {
        f"{prefix}write.txnAppId": f"deltatide/{mark.source}/{target.table}",
        f"{prefix}write.txnVersion": str(mark.delta_txn_version),
        USER_METADATA: mark.to_json(),
    }


def overwrite_sql(target: Target, view: str, layout: TargetLayout, rules: Rules) -> str:
    """Build the statement that fills a new table, or rewrites all of its rows.

    It overwrites: an append could duplicate rows that another job has added, which the changes include.
    Columns are matched by name: one added later comes after `_cdc`.
    """
    fresh = fresh_values(layout, rules)
    columns = ", ".join([*(fresh[name] for name in layout.columns), f"{fresh[CDC]} AS {CDC}"])
    where = "" if rules.soft else f" WHERE {KEPT}"
    into = f"{target.name} ({listed([*layout.columns, CDC])})"
    return f"INSERT OVERWRITE {into} SELECT {columns} FROM {view} AS source{where}"


def merge_sql(target: Target, view: str, layout: TargetLayout, rules: Rules, conditions: str = "") -> str:
    """Build the MERGE of reconciled changes, in the temporary view `view`, into a target.

    Rows that keep values of the target have their own clause: its condition is evaluated once per row, while
    `new_values` would repeat it in each column.
    """
    fresh, folds = fresh_values(layout, rules), rules.soft or rules.partial
    anew = {**fresh, CDC: _cdc({DELETED_AT: STILL_DELETED}, rules)} if rules.soft else fresh
    matched = f"WHEN MATCHED AND ({effective(layout, rules)})"
    keeps = f"source._cdc.missing IS NOT NULL AND {KEEPS_SOFT if rules.soft else KEEPS}"
    inserts = ", ".join(fresh.values())
    return f"""
        MERGE INTO {target.name} AS target USING {view} AS source ON {keys_equal(layout)}{conditions}
        {"" if rules.soft else f"WHEN MATCHED AND {NEWER} AND {DELETED} THEN DELETE"}
        {f"{matched} AND {keeps} THEN UPDATE SET {_updates(layout, _folded(layout, rules))}" if folds else ""}
        {matched} THEN UPDATE SET {_updates(layout, anew)}
        WHEN NOT MATCHED{"" if rules.soft else f" AND {KEPT}"}
            THEN INSERT ({listed([*layout.columns, CDC])}) VALUES ({inserts})"""


def _updates(layout: TargetLayout, values: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(n)} = {value}" for n, value in values.items() if n not in layout.key)


def new_values(layout: TargetLayout, rules: Rules) -> dict[str, str]:
    """Build each column of a `target` row that `source` changes."""
    if rules.soft:
        return _folded(layout, rules, KEEPS_SOFT)
    if rules.partial:
        return _folded(layout, rules, KEEPS)
    return fresh_values(layout, rules)


def fresh_values(layout: TargetLayout, rules: Rules) -> dict[str, str]:
    """Build each column of a row that takes nothing from `target`."""
    return {**{name: f"source.{quoted(name)}" for name in layout.columns}, CDC: _cdc({}, rules)}


def _folded(layout: TargetLayout, rules: Rules, keeps: str = "true") -> dict[str, str]:
    """Build each column, from `target` where `keeps` holds and `source` lacks it.

    `missing` lists a group as a whole: its first column is found in few steps, the last of hundreds in many.
    """
    values = {name: f"source.{quoted(name)}" for name in layout.columns}
    first = {name: group[0] for group in rules.groups for name in group}
    for name in layout.values:
        lacking = f"{keeps} AND array_contains(source._cdc.missing, {text(first.get(name, name))})"
        values[name] = f"CASE WHEN {lacking} THEN target.{quoted(name)} ELSE source.{quoted(name)} END"
    missing = "array_intersect(source._cdc.missing, coalesce(target._cdc.missing, array()))"
    missing = f"CASE WHEN {keeps} THEN {_unless_empty(missing)} ELSE source._cdc.missing END"
    raw = """map_concat(
        map_filter(coalesce(target._cdc.raw, map()), (k, v) -> array_contains(source._cdc.missing, k)),
        coalesce(source._cdc.raw, map()))"""
    lacking = f"{keeps} AND source._cdc.missing IS NOT NULL"
    raw = f"CASE WHEN {lacking} THEN {_unless_empty(raw)} ELSE source._cdc.raw END"
    return {**values, CDC: _cdc({"missing": missing, "raw": raw, DELETED_AT: STILL_DELETED}, rules)}


def _unless_empty(collection: str) -> str:
    return f"CASE WHEN size({collection}) > 0 THEN {collection} END"


def effective(layout: TargetLayout, rules: Rules) -> str:
    """Build the condition that `source` adds something to `target`."""
    if not rules.ties:
        return NEWER
    tied = tie(layout, rules)
    return f"{NEWER} OR ({tied if rules.soft else f'{KEPT} AND {tied}'})"


def tie(layout: TargetLayout, rules: Rules) -> str:
    """Build the condition that `source` knows more about the event that `target` already holds."""
    values = new_values(layout, rules)
    new = [values[name] for name in layout.compared]
    old = [f"target.{quoted(name)}" for name in layout.compared]
    raw, missing = "array_sort(map_entries({0}.raw))", "array_sort({0}.missing)"
    for fields, cdc in ((new, f"({values[CDC]})"), (old, "target._cdc")):
        fields += [raw.format(cdc), missing.format(cdc)]
    differs = f"NOT ({numbered_struct(new)} <=> {numbered_struct(old)})"
    return f"{SAME} AND source._cdc.since IS NOT NULL AND {differs}"


def _cdc(values: Mapping[str, str], rules: Rules) -> str:
    """Build a row's `_cdc`, as its change carries it but for `values`."""
    fields = {name: values.get(name, f"source._cdc.{name}") for name in TARGET_FIELDS}
    if rules.marked:
        own = values.get(DELETED_AT, f"source._cdc.{DELETED_AT}")
        fields[DELETED_AT] = own if rules.soft else "CAST(NULL AS TIMESTAMP)"
    return f"named_struct({', '.join(f'{text(name)}, {value}' for name, value in fields.items())})"
