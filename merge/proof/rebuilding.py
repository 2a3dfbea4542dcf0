"""Rebuilds a Delta table from what has landed, in place or into another Delta table.

The state after a manifest is a function of the events that landed up to it. Merges reach it in many steps, a
rebuild in one, with the same plan, rules and commit (`merge.lake.rewrite`). The rows are equal in all columns
and in `_cdc`. So a rebuild repairs any damage to a Delta table, as long as the landing zone has all events of
the table, or its last full dump and everything since that dump began.

In place, one commit replaces the rows, and the cut is recorded after it. If the rebuild is killed at any
point, the table has its old rows or the new ones, and the next merge continues from there. If a merge commits
first, the rebuild starts over, up to the newest manifest.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from connector import failpoint
from connector.config import Config
from connector.errors import ConfigurationError, GapError
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.job import MergeRun
from merge.lake.commits import read_commits
from merge.lake.control_table import Frontier, read_frontiers
from merge.lake.retry import LOST_RACES, is_conflict, with_retries
from merge.lake.rewrite import Rewrite
from merge.lake.target import (
    Target,
    check_rival,
    check_schema,
    manifest_at,
    ownership_error,
    read_state,
    require_landed,
    table_name,
    targets_of,
)
from merge.landing_zone import LandingZone
from merge.report import MergeReport, Progress, TableProgress, TableReport
from merge.shapes.current import targets_at
from merge.shapes.shape import shapes_of, targets_with_shapes
from merge.spark.log_store import check_log_store
from merge.spark.session_pool import merging_sessions
from merge.spark.unreachable import check_endpoint, explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rebuild(
    spark: SparkSession,
    config: Config,
    table: str,
    *,
    into: str | None = None,
    at: int | None = None,
    progress: Progress | None = None,
) -> MergeReport:
    """Rewrite all rows of a table (``namespace.table``) from the landing zone, up to the newest manifest.

    On return the rows are durable, and so is a cut that names them. `into`: write the rows to this new table
    of the lake instead, record no cut, and leave the table itself as it is; with `at`, write its state after
    that manifest. `ConfigurationError` for a table that has not landed, an `into` that exists, a manifest
    that can't be read; `GapError` if the landing zone no longer has what the table is made of; `TableError`
    for a damaged landing file. On error, no row was written.
    """
    if at is not None and into is None:
        raise ConfigurationError(
            "a table can't go back to an earlier manifest: merges could not continue from there",
            hint="write its state to another table: --into NAMESPACE.TABLE",
        )
    name, show = table_name(table), progress or (lambda _: None)
    with merging_sessions(spark, config) as sessions, explained(config):
        session = sessions.first
        check_endpoint(session, config)
        landing = LandingZone.of(session, config)
        begun = time.monotonic()
        if into is None:
            done = with_retries(lambda: _in_place(session, config, landing, name, show), str(name))
        else:
            done = _into(session, config, landing, name, table_name(into), at, show)
    return replace(done, seconds=time.monotonic() - begun)


def _in_place(
    spark: SparkSession, config: Config, landing: LandingZone, table: TableName, show: Progress
) -> MergeReport:
    """Try to rebuild; a commit conflict propagates, and the caller must start over."""
    frontiers = read_frontiers(spark, config)
    run = MergeRun.begun(spark, config, landing, frontiers, show)
    manifest = require_landed(table, run.manifest if run else None)
    assert run is not None, "there is a manifest"
    targets = targets_with_shapes(config, targets_at(config, manifest), run.shapes)
    target, views = targets[table], run.plan_views(targets)
    check_rival(spark, target)
    rewrite = _rewrite(spark, config, landing, manifest, target, show)
    _require_complete(rewrite)
    run.prepare_lake()
    _disown(spark, run, target)
    report = rewrite.whole(frontiers.of(table))
    failpoint.reach("table-rebuilt")
    return run.record_cut([report], views)


def _disown(spark: SparkSession, run: MergeRun, target: Target) -> None:
    """Record that a table's version has other columns, masks or rows than it is about to have.

    If the rebuild is killed after its commit, the next merge then looks at the table, even if nothing of it
    has landed since, instead of recording a cut of that version.
    """
    state, at = read_state(spark, target), run.frontiers.of(target.table)
    if state is not None and state.built_with != target.columns:
        error = "it is being rebuilt with other columns, masks or rows"
        known = TableReport(
            target.table, at.manifest, at.version, id=at.id, missing=at.missing, error=error, built=at.built
        )
        run.record_cut([known], always=True)


def _into(
    spark: SparkSession,
    config: Config,
    landing: LandingZone,
    table: TableName,
    into: TableName,
    at: int | None,
    show: Progress,
) -> MergeReport:
    frontier = read_frontiers(spark, config).of(table)
    manifest = manifest_at(landing, table, at)
    check_log_store(spark, config)
    check_schema(spark, config)
    target = targets_at(config, manifest)[table]
    other = _place_of(spark, config, manifest, target, into)
    rewrite = _rewrite(spark, config, landing, manifest, target, show, other)
    _require_complete(rewrite)
    try:
        report = rewrite.whole(replace(frontier, manifest=min(frontier.manifest, manifest.number)))
    except LOST_RACES as error:  # another rebuild into it
        if not is_conflict(error):
            raise
        raise _exists(other) from error
    return MergeReport(
        config.source.name, manifest.number, manifest.epoch, manifest.position, tables=[report]
    )


def _rewrite(
    spark: SparkSession,
    config: Config,
    landing: LandingZone,
    manifest: Manifest,
    target: Target,
    show: Progress,
    into: Target | None = None,
) -> Rewrite:
    def shown(rows: int) -> None:
        show(TableProgress(target.table, "merging", rows))

    return Rewrite(spark, config, landing, manifest.number, target, shown, into, changes_columns=True)


def _require_complete(rewrite: Rewrite) -> None:
    """Refuse a table unless the landing zone has all of its events, or a full dump and all since."""
    table = rewrite.target.table
    try:
        rewrite.plan(0)
    except GapError as error:
        raise GapError(
            f"{table} can't be rebuilt: {error}, and with it what landed of the table before",
            hint=f"dump it in full: deltatide dump {table}; once the dump has ended, rebuild it",
        ) from error


def _place_of(
    spark: SparkSession, config: Config, manifest: Manifest, target: Target, into: TableName
) -> Target:
    """Return the location of a table to rebuild into, which must be free.

    Takes over the empty table that an earlier rebuild left there, if it was killed before it wrote rows.
    """
    holders = targets_of(config, shapes_of(config)) | targets_at(config, manifest)
    taken = {other.name.lower(): name for name, other in holders.items()}
    (place,) = targets_of(config, [into]).values()
    if (owner := taken.get(place.name.lower())) is not None:
        raise ConfigurationError(
            f"{place.name} is the Delta table of {owner}", hint="choose a name that no captured table has"
        )
    other = replace(place, table=target.table, columns=target.columns, soft=target.soft)
    state = read_state(spark, other)
    if state is None:
        return other
    owned = ownership_error(state, other, config.source.name, manifest.tables[target.table].key)
    if owned is not None:
        raise ConfigurationError(str(owned), hint="choose a name that no table of the lake has")
    if not state.empty or read_commits(spark, other, config.source.name, Frontier(0)).last is not None:
        raise _exists(other)
    return other


def _exists(other: Target) -> ConfigurationError:
    return ConfigurationError(f"{other.name} exists", hint="choose another name, or drop it")
