"""Builds a table as merging changes into it would leave it. Writes nothing.

`merge.queries.live` shows it; a rebuild of a table with soft deletes writes it. Rules and expressions are
the same as in the MERGE (`merge.apply`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.landing.format import CDC
from connector.schema import fold
from merge.apply import DELETED, KEPT, NEWER, SAME, Rules, fresh_values, new_values
from merge.keys import TargetLayout, same_rows
from merge.reconcile import DELETED_AT, TARGET_FIELDS, cdc_type
from merge.sql_formatting import data_type, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ALIVE = "_cdc.op <> 'delete'"
"""Rows of a table that are not marked as deleted."""


def overlay(target: DataFrame, source: DataFrame, layout: TargetLayout, rules: Rules) -> DataFrame:
    """Return `target` as merging the reconciled rows `source` would leave it. Pure.

    The cases of the MERGE; the first that holds applies::

        source                    target    result
        deleted                   no row    `source` if deletes are soft, else none
        not deleted               no row    `source`
        none, or adds nothing     any       `target`
        deleted                   any       `source` and `target` folded if deletes are soft, else none
        not deleted               any       `source` and `target` folded
    """
    source, target, same = source.alias("source"), target.alias("target"), same_rows(layout)
    untouched = target.join(source, same, "left_anti").select(*_columns(layout))
    touched = target.join(source, same, "left_semi").alias("target")
    absent = "target._cdc IS NULL"
    changed = f"{absent} OR {_shown(rules)}"
    stays = "true" if rules.soft else f"NOT (({changed}) AND {DELETED})"
    fresh = fresh_values(layout, rules)
    folded = [
        # A key in an expression would keep filters by key from the target, and so from its files.
        F.col(f"source.{quoted(name)}")
        if name in layout.key
        else F.expr(
            f"CASE WHEN {absent} THEN {fresh[name]} WHEN {changed} THEN {value}"
            f" ELSE target.{quoted(name)} END"
        ).alias(name)
        for name, value in new_values(layout, rules).items()
    ]
    both = source.join(touched, same, "left").where(stays).select(*folded)
    return untouched.unionByName(both)


def overlay_at_once(target: DataFrame, source: DataFrame, layout: TargetLayout, rules: Rules) -> DataFrame:
    """Return the rows of `overlay` that are `ALIVE`, reading each of the two frames once. Pure.

    Deletes are not soft. Such a plan is made faster, but no filter on the result reaches the target, so it is
    for small ones.
    """
    # What changed becomes the hash table, so the target need not be sorted.
    both = target.alias("target").join(
        source.alias("source").hint("shuffle_hash"), same_rows(layout), "full_outer"
    )
    unnamed, absent = "source._cdc IS NULL", "target._cdc IS NULL"
    # As a column, since each other one would repeat it; Spark writes it out in the filter, where it is once.
    taken = f"source._cdc IS NOT NULL AND ({absent} OR {_shown(rules)})"
    both = both.select("*", F.expr(taken).alias(TAKEN))
    alive = both.where(f"CASE WHEN {quoted(TAKEN)} THEN {KEPT} ELSE target.{ALIVE} END")
    # Without a target, each takes the value of `source`.
    named = {
        name: f"CASE WHEN {quoted(TAKEN)} THEN {value} ELSE target.{quoted(name)} END"
        for name, value in new_values(layout, rules).items()
    }
    keys = {
        name: f"CASE WHEN {unnamed} THEN target.{quoted(name)} ELSE source.{quoted(name)} END"
        for name in layout.key
    }
    return alive.select(*[F.expr(value).alias(name) for name, value in {**named, **keys}.items()])


TAKEN = f"{CDC}.taken"


def _shown(rules: Rules) -> str:
    """Build the condition that `source` adds something to `target`, or may: if not, both give the same row.

    Unlike `merge.apply.effective`, which keeps a MERGE from writing such rows, it compares no columns of
    events at one position: with tens of columns, that was most of a query's plan.
    """
    tied = f"{SAME} AND source._cdc.since IS NOT NULL"
    return f"({NEWER} OR ({tied if rules.soft else f'{KEPT} AND {tied}'}))" if rules.ties else NEWER


def fresh_rows(source: DataFrame, layout: TargetLayout, *, soft: bool = False) -> DataFrame:
    """Return an empty table as merging the reconciled rows `source` would leave it. Pure."""
    kept = source.alias("source") if soft else source.alias("source").where(KEPT)
    fresh = fresh_values(layout, Rules(partial=False, ties=False, soft=soft))
    return kept.select(*[F.expr(value).alias(name) for name, value in fresh.items()])


def as_wide(frame: DataFrame, layout: TargetLayout, *, marked: bool = False) -> DataFrame:
    """Cast a table to the columns and types of a layout; a column that it lacks is null.

    Columns are the same if their names differ only in case. `marked`: with `_cdc.deleted_at`.
    """
    named = {fold(name): name for name in frame.columns}
    found = ((name, named.get(fold(name)), type_) for name, type_ in layout.columns.items())
    columns = [
        (F.lit(None) if known is None else F.col(quoted(known))).cast(data_type(type_)).alias(name)
        for name, known, type_ in found
    ]
    cdc, there = F.col(CDC), frame.select(f"{CDC}.*").columns
    wanted = [*TARGET_FIELDS, *([DELETED_AT] if marked else [])]
    if there != wanted:  # or somebody has moved them, and casts go by place
        cdc = F.struct(*[(cdc[name] if name in there else F.lit(None)).alias(name) for name in wanted])
    return frame.select(*columns, cdc.cast(data_type(cdc_type(marked=marked))).alias(CDC))


def with_field_of_deletes(rows: DataFrame, *, soft: bool) -> DataFrame:
    """Return rows, none of which is deleted, with `_cdc.deleted_at` where deletes are soft, else without it.

    The Delta table may have it or not; queries must find the same fields whatever is yet to be merged.
    """
    cdc = F.col(CDC)
    never = F.lit(None).cast(data_type("timestamp"))
    return rows.withColumn(CDC, cdc.withField(DELETED_AT, never) if soft else cdc.dropFields(DELETED_AT))


def _columns(layout: TargetLayout) -> list[Column]:
    return [F.col(quoted(name)) for name in (*layout.columns, CDC)]
