"""Reads tables without waiting for a merge, and all tables together as of one cut. Writes nothing.

`live` is the Delta table plus what has landed since, reconciled by the rules of a merge.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.config import Config
from connector.errors import ConfigurationError, TableError
from connector.landing.format import CDC
from connector.landing.manifest import Manifest
from connector.schema import TableName, TableSchema, fold
from merge.apply import Rules
from merge.change_set import changes
from merge.commits import is_from_landing_zone, read_commits, version_is_unchanged
from merge.control_table import Frontier, cuts, read_frontiers, recorded_frontiers
from merge.keys import Layout
from merge.landing_zone import Columns, LandingZone
from merge.overlay import ALIVE, as_wide, fresh_rows, overlay
from merge.plan import TablePlan, plan_past_holes
from merge.schema import check_layout, wanted_columns, wider
from merge.session_settings import ANY_VERSION, applied_settings, check_strict, plain_settings
from merge.sql import quoted
from merge.target import (
    Target,
    TargetState,
    check_rival,
    ownership_error,
    read_state,
    require_landed,
    table_id,
    table_name,
    targets_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def live(spark: SparkSession, config: Config, table: str) -> DataFrame:
    """Return a table as of the newest manifest: its columns and `_cdc`, without deleted rows.

    The frame keeps showing that state, from that manifest's files and the Delta table's current version,
    until VACUUM removes that version, or ``deltatide maintain`` the landing files, at least a day after it
    joined them. Costs a join of the Delta table with what has landed since its last
    merge; a Delta table that does not continue (`merge.commits`), or that a merge refuses (another source's,
    another landing zone's, of another key, of types that can't become today's), is ignored, and everything
    that landed is read. `ConfigurationError` if no such table has landed, or the session skips files that it
    can't read; `SourceMismatchError` if the cuts are of another landing zone; `TableError` if what landed
    itself has types that can't become today's, which a full dump ends.
    """
    check_strict(spark)
    with plain_settings(spark):
        return _live(spark, config, table)


def as_printed(frame: DataFrame) -> DataFrame:
    """Return a frame with its instants as text, in the session's time zone.

    Python has none at either end of time, unless the driver is in UTC.
    """
    types = {f.name: re.sub(r"\btimestamp\b", "string", f.dataType.simpleString()) for f in frame.schema}
    return frame.select(*(F.col(quoted(name)).cast(type_).alias(name) for name, type_ in types.items()))


def _live(spark: SparkSession, config: Config, table: str) -> DataFrame:
    landing = LandingZone(spark, config.landing.url, config.source.name)
    # This order keeps frontier <= state of the Delta table <= newest manifest, whatever merges run meanwhile.
    name = table_name(table)
    frontiers = read_frontiers(spark, config)
    frontier = frontiers.of(name)
    known = _captured(landing, name, frontiers.newest)
    frontiers.check(landing, landing.first_kept)
    target = targets_of(config, known.tables)[name]
    check_rival(spark, target)
    state = read_state(spark, target)
    if frontier.version is None and state is not None:
        recorded = recorded_frontiers(spark, config, name, state.id, frontier.manifest)
        frontier = recorded[0] if recorded else frontier
    frame = None if state is None else _continuing(spark, config, landing, target, state.id, frontier)
    newest = _captured(landing, name, known.number)
    source, key = config.source.name, newest.tables[name].key
    if frame is not None and state is not None and ownership_error(state, target, source, key) is None:
        if newest.number <= frontier.manifest:
            return frame.where(ALIVE)
        plan = plan_past_holes(name, landing, frontier.manifest, newest.number)
        if plan.is_empty:
            return frame.where(ALIVE)
        if _fits(landing, plan, target, replace(state, columns=_types(frame)), source):
            return _with_changes(landing, plan, frame)
    return _with_changes(landing, plan_past_holes(name, landing, 0, newest.number), None)


def _captured(landing: LandingZone, table: TableName, after: int) -> Manifest:
    """Return the newest manifest, which must name the table; those before `after` need not be read."""
    number = landing.newest(after)
    return require_landed(table, landing.get(number) if number else None)


def _continuing(
    spark: SparkSession, config: Config, landing: LandingZone, target: Target, id_: str, frontier: Frontier
) -> DataFrame | None:
    """Return the Delta table in its current version; None if that (its id: `id_`) does not continue.

    Commits of manifests before the frontier's are this landing zone's, as the cut that names it is.
    """
    if frontier.version is not None and frontier.id != id_:
        return None
    commits = read_commits(spark, target, config.source.name, frontier)
    last = commits.last
    vouched = frontier.version is not None and last is not None and last.manifest < frontier.manifest
    if commits.why_broken is not None or not (vouched or is_from_landing_zone(landing, last)):
        return None
    return target.at(spark, commits.newest)


def _fits(landing: LandingZone, plan: TablePlan, target: Target, state: TargetState, source: str) -> bool:
    """Return whether a merge could give a Delta table the columns and types that the plan's events need."""
    schemas, plan = _keyed(landing, plan)
    newest, *others = (schemas[id_] for id_ in plan.schema_ids)
    try:
        check_layout(target, state, source, newest, others)
    except TableError:
        return False
    return True


def _keyed(landing: LandingZone, plan: TablePlan) -> tuple[dict[str, TableSchema], TablePlan]:
    """Return a plan's schemas, and the plan without what landed under another key."""
    schemas = landing.schemas((plan.table, id_) for id_ in plan.all_schema_ids)
    return schemas, plan.of_key(schemas)


def _types(frame: DataFrame) -> dict[str, str]:
    return {f.name: f.dataType.simpleString() for f in frame.schema.fields if f.name != CDC}


def _with_changes(landing: LandingZone, plan: TablePlan, frame: DataFrame | None) -> DataFrame:
    schemas, plan = _keyed(landing, plan)
    known = {} if frame is None else _types(frame)
    wanted = _columns(plan, known, [schemas[id_] for id_ in plan.schema_ids])
    layout = Layout.of(wanted, plan.state.key, schemas[plan.schema_ids[0]])
    if frame is None:
        return fresh_rows(changes(landing, plan, schemas, layout, None), layout)
    target = as_wide(frame, layout)
    source = changes(landing, plan, schemas, layout, target)
    return overlay(target, source, layout, Rules(plan.partial, plan.chunks, soft=False)).where(ALIVE)


def _columns(plan: TablePlan, known: Columns, schemas: list[TableSchema]) -> dict[str, str]:
    """Return the columns that the target will have after a merge."""
    named = {fold(name): name for name in known}
    columns = dict(known)
    for wanted in wanted_columns(plan.table, schemas).values():
        name = named.get(fold(wanted.name), wanted.name)
        type_ = wider(known.get(name, wanted.type), wanted.type)
        assert type_ is not None, "checked before"
        columns[name] = type_
    return columns


def as_of(spark: SparkSession, config: Config, manifest: int) -> dict[str, DataFrame]:
    """Return all tables as of one cut, by name: the source at one position if the cut is exact.

    Soft-deleted rows are included. `ConfigurationError` if no cut of this manifest was recorded, if the
    session skips files that it can't read, or if one of the cut's Delta tables no longer has the cut's state:
    it was dropped or replaced since, its history was cleaned up, or its files were restored from an older
    copy, so that the version that the cut names is missing or another state's; or ``deltatide maintain`` gave
    it up, as it is older than ``lake.retention_days``.
    """
    check_strict(spark)
    # An unchanged table's version may be of any age.
    with plain_settings(spark), applied_settings(spark, ANY_VERSION):
        return _as_of(spark, config, manifest)


def _as_of(spark: SparkSession, config: Config, manifest: int) -> dict[str, DataFrame]:
    row = cuts(spark, config).where(f"manifest = {int(manifest)}").first()
    if row is None:
        raise ConfigurationError(
            f"no cut of manifest {manifest} was recorded", hint="list the cuts: deltatide cuts"
        )
    if row["gone"]:
        raise ConfigurationError(
            f"the cut of manifest {manifest} is gone: deltatide maintain removed its versions of"
            f" {', '.join(row['gone'])}",
            hint="choose a newer cut: deltatide cuts; lake.retention_days sets how long they stay",
        )
    frontiers = {
        TableName.parse(table): Frontier(**frontier.asDict()) for table, frontier in row["tables"].items()
    }
    targets = targets_of(config, frontiers)
    frames: dict[str, DataFrame] = {}
    for table, frontier in frontiers.items():
        if frontier.version is None:
            continue
        if (reason := _why_gone(spark, config, targets[table], frontier)) is not None:
            raise ConfigurationError(
                f"{targets[table].name} {reason} after the cut of manifest {manifest}",
                hint="choose a newer cut: deltatide cuts; if the newest is refused too, run"
                f" deltatide dump {shlex.quote(str(table))}, then merge: that rebuilds the table",
            )
        frames[str(table)] = targets[table].at(spark, frontier.version)
    return frames


def _why_gone(spark: SparkSession, config: Config, target: Target, frontier: Frontier) -> str | None:
    """Return what became of a Delta table since a cut, if it no longer has the cut's state; else None."""
    if table_id(spark, target) != frontier.id:
        return "was dropped or replaced"
    if not version_is_unchanged(spark, target, config.source.name, frontier):
        return f"lost its version {frontier.version} (restored from an older copy, or history cleaned up)"
    return None
