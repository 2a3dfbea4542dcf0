"""Finds the keys of a table whose rows may differ between two cuts, from what has landed between them.

A merge changes rows only of keys with events in the landing files that it reads for the first time, which the
manifests after its frontier name (`merge.plan`). Exceptions are truncates, the end of a full dump, and
rebuilds, which delete rows that no event names: then the changed keys are not known. Neither are they if
anybody else wrote to the table, which only its history shows, or if manifests are gone. If its columns have
changed, a query may return something else for the same rows. Its history shows this, too: a merge without
rows alters the table, but its cut names the version before, so the manifest that says so may be an earlier
one.

The keys are those of all events, also of such as changed nothing. Raw texts of keys (`merge.keys`) are left
out: the null key stands for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.errors import GapError
from merge.key_pruning import MOST_KEYS
from merge.lake.commits import alters_columns, has_rows_of, only_merged_since, read_history
from merge.lake.control_table import Frontier
from merge.lake.target import TargetState
from merge.landing_zone import LandingZone
from merge.plan import TablePlan, plan_table
from merge.sql_formatting import quoted
from merge.views.inputs import Input
from merge.views.lineage import NotIncrementalError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_OF_TABLE = 1 / 2
"""If landing files are larger than this share of a table, recomputing all rows costs less."""


def changed_keys(
    spark: SparkSession, landing: LandingZone, source: str, since: Frontier, now: Input, state: TargetState
) -> DataFrame | None:
    """Return the keys of a table that may have changed since a frontier; None if its rows are the same.

    `state`: of its Delta table. `NotIncrementalError` if they are not known, or are much of the table.
    """
    table, upto = now.target.table, now.frontier
    if since.id != upto.id or since.version is None or now.version < since.version:
        raise NotIncrementalError(f"{table} was dropped, replaced or restored")
    history = read_history(spark, now.target, since.version)
    if alters_columns(history, since.version, now.version):
        raise NotIncrementalError(f"the columns of {table} have changed")
    if has_rows_of(history, source, since, now.version):
        return None
    if not only_merged_since(history, source, since, upto):
        raise NotIncrementalError(f"{table} was rebuilt, or somebody else changed it")
    plan = _plan(landing, since, now, state)
    schemas = landing.schemas((table, id_) for id_ in plan.all_schema_ids)
    if plan.of_key(schemas) != plan:
        raise NotIncrementalError(f"the key of {table} has changed")
    types = {name: state.columns[name] for name in state.key}
    return (
        landing.events(plan.all, schemas, types).select(*[F.col(quoted(name)) for name in types]).distinct()
    )


def _plan(landing: LandingZone, since: Frontier, now: Input, state: TargetState) -> TablePlan:
    """Return what merges between the two frontiers have read."""
    table = now.target.table
    try:
        landing.load(since.manifest + 1, now.frontier.manifest)
        plan = plan_table(table, landing, since.manifest, now.frontier.manifest)
    except GapError:
        raise NotIncrementalError(f"manifests after {since.manifest} are gone") from None
    if plan.sweeps:
        raise NotIncrementalError(f"{table} was dumped in full")
    if plan.truncates:
        raise NotIncrementalError(f"{table} was truncated")
    if plan.altered or plan.state.key != state.key:
        raise NotIncrementalError(f"the columns of {table} have changed")
    if plan.rows > MOST_KEYS or plan.bytes > state.bytes * MOST_OF_TABLE:
        raise NotIncrementalError(f"too much of {table} may have changed")
    return plan
