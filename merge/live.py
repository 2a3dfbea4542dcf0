"""Reads tables without waiting for a merge, and all tables together as of one cut. Writes nothing.

Live is the Delta table and what has landed since, reconciled by the rules of a merge: the Delta table is its
materialization.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.config import Config
from connector.errors import ConfigurationError
from connector.landing import CDC
from connector.schema import TableSchema
from merge.apply import KEPT, Rules, effective, fresh_cdc, new_values
from merge.changes import Layout, changes, keys_equal
from merge.frontier import cuts, read_frontier
from merge.plan import TablePlan, plan_table
from merge.read import LandingZone
from merge.schema import CDC_TYPE, wanted_columns, wider
from merge.sql import quoted
from merge.target import TargetState, look, target_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def live(spark: SparkSession, config: Config, table: str) -> DataFrame:
    """Give a table as of the newest manifest: its columns and `_cdc`, without deleted rows.

    The frame keeps showing that manifest. Costs a join of the Delta table with what has landed since its last
    merge. `ConfigurationError` when no such table has landed.
    """
    landing = LandingZone(spark, config.landing.url, config.source.name)
    # In this order: frontier <= state of the Delta table <= newest manifest, whatever merges run meanwhile.
    place = read_frontier(spark, config).of(table)
    target = target_of(config, table)
    state = look(spark, target)
    frame = target.frame(spark) if state is not None else None
    newest = landing.newest(place.manifest)
    manifest = landing.get(newest) if newest else None
    if manifest is None or table not in manifest.tables:
        known = ", ".join(sorted(manifest.tables)) if manifest else "none yet"
        raise ConfigurationError(f"no table {table!r} has landed", hint=f"there are: {known}")
    after = place.manifest if frame is not None else 0
    plan = plan_table(table, landing, after, newest) if newest > after else None
    if frame is not None and (plan is None or plan.idle):
        return _alive(frame)
    assert plan is not None
    return _with_changes(landing, config, plan, state, frame)


def _with_changes(
    landing: LandingZone, config: Config, plan: TablePlan, state: TargetState | None, frame: DataFrame | None
) -> DataFrame:
    schemas = landing.schemas((plan.table, id_) for id_ in plan.schema_ids)
    layout = Layout(_columns(plan, state, list(schemas.values())), tuple(plan.state.key))
    if frame is None:
        source = changes(landing, plan, schemas, layout, None).alias("source")
        return source.where(KEPT).select(
            *[F.col(quoted(c)) for c in layout.columns], F.expr(fresh_cdc()).alias(CDC)
        )
    assert state is not None
    target = _as_wide(frame, state, layout)
    source = changes(landing, plan, schemas, layout, target)
    rules = Rules(plan.partial, plan.chunks, soft=config.table(plan.table).deletes == "soft")
    return overlay(target, source, layout, rules)


def overlay(target: DataFrame, source: DataFrame, layout: Layout, rules: Rules) -> DataFrame:
    """Give `target` as a merge of the reconciled rows `source` would leave it, without deleted rows. Pure."""
    keys = source.select(*[F.col(quoted(name)) for name in layout.key])
    key = list(layout.key)
    untouched = _alive(target.join(keys, on=key, how="left_anti")).select(*_names(layout))
    touched = target.join(keys, on=key, how="left_semi").alias("target")
    both = source.alias("source").join(touched, F.expr(keys_equal(layout.key)), "left")
    absent, wins = "target._cdc IS NULL", f"({effective(layout, rules)}) AND {KEPT}"
    gone = f"({effective(layout, rules)}) AND NOT {KEPT}"
    stays = (
        f"CASE WHEN {absent} THEN {KEPT} WHEN {gone} THEN false WHEN {wins} THEN true"
        " ELSE target._cdc.op <> 'delete' END"
    )
    fresh = {**{name: f"source.{quoted(name)}" for name in layout.columns}, CDC: fresh_cdc()}
    columns: list[Column] = [
        F.expr(
            f"CASE WHEN {absent} THEN {fresh[name]} WHEN {wins} THEN {value} ELSE target.{quoted(name)} END"
        ).alias(name)
        for name, value in new_values(layout, rules).items()
    ]
    return untouched.unionByName(both.where(stays).select(*columns))


def _alive(frame: DataFrame) -> DataFrame:
    return frame.where("_cdc.op <> 'delete'")


def _names(layout: Layout) -> list[Column]:
    return [F.col(quoted(name)) for name in (*layout.columns, CDC)]


def _columns(plan: TablePlan, state: TargetState | None, schemas: list[TableSchema]) -> dict[str, str]:
    """Give the columns that the target will have after a merge."""
    wanted = {name: column.type for name, column in wanted_columns(plan.table, schemas).items()}
    known = dict(state.columns) if state else {}
    return {
        **known,
        **{name: wider(known.get(name, type_), type_) or type_ for name, type_ in wanted.items()},
    }


def _as_wide(frame: DataFrame, state: TargetState, layout: Layout) -> DataFrame:
    """Give a target the columns and types that it will have after a merge."""
    columns = [
        F.col(quoted(name)).cast(type_).alias(name)
        if name in state.columns
        else F.lit(None).cast(type_).alias(name)
        for name, type_ in layout.columns.items()
    ]
    return frame.select(*columns, F.col(CDC).cast(CDC_TYPE).alias(CDC))


def as_of(spark: SparkSession, config: Config, manifest: int) -> dict[str, DataFrame]:
    """Give all tables as of one cut, by name: the state of the source at one position, when the cut is exact.

    `ConfigurationError` when no cut of this manifest was recorded. Rows deleted softly are among them.
    """
    row = cuts(spark, config).where(f"manifest = {int(manifest)}").first()
    if row is None:
        raise ConfigurationError(f"manifest {manifest} is no cut", hint="list them: deltatide cuts")
    return {
        table: spark.sql(f"SELECT * FROM {target_of(config, table).name} VERSION AS OF {place['version']}")
        for table, place in row["tables"].items()
        if place["version"] is not None
    }
