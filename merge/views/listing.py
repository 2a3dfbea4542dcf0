"""Shows the views of a lake as of its newest cut, and refreshes them by hand, outside of merges.

Such a refresh reads the versions that the newest cut names, and records that cut again with the refreshed
views. Merges may run meanwhile; they record later cuts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from connector.config import Config
from connector.errors import ConfigurationError
from connector.schema import TableName, fold
from merge.job import MergeRun
from merge.lake.control_table import Frontier, Frontiers, read_frontiers
from merge.lake.retry import SPARK_ERRORS
from merge.lake.target import Target, ownership_error, read_state, targets_of
from merge.landing_zone import LandingZone
from merge.report import MergeReport, Progress
from merge.shapes.current import targets_at
from merge.shapes.shape import clashing, has_landed, shapes_of, targets_with_shapes, with_shapes
from merge.spark.log_store import check_log_store
from merge.spark.session_pool import merging_sessions
from merge.spark.session_settings import ANY_VERSION, PLAIN, WHOLE_PLANS, applied_settings
from merge.spark.unreachable import check_endpoint, explained
from merge.views.dependencies import PlannedView, planned
from merge.views.incremental import why_full
from merge.views.inputs import Input
from merge.views.refresh import IN_UTC
from merge.views.view import VIEWS, View, views_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ViewState:
    """A configured view. `state`: current (as of the newest cut), failed, or new (never refreshed).

    `manifest` and `rows`: of its present state; `inputs`: what its query reads; `error`: why it is not
    current. `full_because`: why its query can't be refreshed incrementally; None: it can, or what it reads
    is not there to tell.
    """

    name: str
    state: str
    manifest: int | None
    rows: int | None
    inputs: list[str]
    error: str | None
    full_because: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return asdict(self)


def view_states(spark: SparkSession, config: Config) -> list[ViewState]:
    """Return the configured views in the order of their refresh.

    Reads only the lake. `ConfigurationError` for a text that is not a query, and for a cycle.
    """
    views, frontiers = views_of(config), read_frontiers(spark, config)
    names = {view.table for view in views}
    shapes = shapes_of(config)
    tables = {table for table in frontiers.by_table if table not in names and table not in shapes}
    refused = clashing(config, tables, shapes)
    shapes = {name: shape for name, shape in shapes.items() if name not in refused}
    targets = targets_with_shapes(config, targets_of(config, tables), shapes) if tables else {}
    ordered = planned(spark, config, views, targets, names)
    targets |= {view.table: view.target(config) for view in views}
    return [
        replace(
            _state(
                spark, config, each, frontiers.by_table.get(each.view.table, Frontier(0)), frontiers.newest
            ),
            full_because=_full_because(spark, each, targets, frontiers),
        )
        for each in ordered
    ]


def _full_because(
    spark: SparkSession, each: PlannedView, targets: Mapping[TableName, Target], frontiers: Frontiers
) -> str | None:
    """Return why a view can't be refreshed incrementally as it should, by what it reads in the newest cut."""
    if not each.view.incremental:
        return None
    known = {name: Input(targets[name], frontiers.of(name)) for name in each.reads}
    if each.problem is not None or any(input_.frontier.version is None for input_ in known.values()):
        return None
    try:
        with applied_settings(spark, {**PLAIN, **ANY_VERSION, **WHOLE_PLANS, **IN_UTC}):
            return why_full(spark, each, known)
    except SPARK_ERRORS:
        return None


def _state(
    spark: SparkSession, config: Config, each: PlannedView, frontier: Frontier, newest: int
) -> ViewState:
    view = each.view
    taken = _why_taken(spark, config, view, frontier)
    merged, error = frontier.version is not None and taken is None, taken or frontier.error
    current = merged and error is None and frontier.manifest == newest
    return ViewState(
        view.name,
        "current" if current else "failed" if merged or error else "new",
        frontier.manifest if merged else None,
        None if taken else _rows(spark, config, view, frontier),
        sorted(table.name if table.namespace == VIEWS else str(table) for table in each.reads),
        error,
    )


def _why_taken(spark: SparkSession, config: Config, view: View, frontier: Frontier) -> str | None:
    """Return whose rows are where a view's are to be, if they are not its own; None if they may be.

    The entry in the cuts may be that of a source table, ``views.NAME``.
    """
    target = view.target(config)
    try:
        state = None if frontier.version is None else read_state(spark, target)
    except SPARK_ERRORS:
        return None
    problem = None if state is None else ownership_error(state, target, config.source.name, ())
    return None if problem is None else problem.reason


def _rows(spark: SparkSession, config: Config, view: View, frontier: Frontier) -> int | None:
    """Count a view's rows, from Delta's metadata; None if they can't be read."""
    if frontier.version is None:
        return None
    try:
        with applied_settings(spark, ANY_VERSION):
            return view.target(config).at(spark, frontier.version).count()
    except SPARK_ERRORS:
        return None


def refresh_views(
    spark: SparkSession,
    config: Config,
    names: Collection[str] = (),
    *,
    full: bool = False,
    progress: Progress | None = None,
) -> MergeReport:
    """Refresh views as of the newest cut, and record that cut again with them; durable on return.

    Refreshes those that are not of its state, and those that read one that changed. `full`: also the named
    views (all, if none is named) even if nothing has changed. `ConfigurationError` for an unknown view, or if
    there is no cut yet. A view's failure is in the report.
    """
    known = {fold(view.name): view.table for view in views_of(config)}
    unknown = next((name for name in names if fold(name) not in known), None)
    if unknown is not None or not known:
        listed = ", ".join(sorted(view.name for view in known.values()))
        what = "no views are configured" if unknown is None else f"{unknown!r} is not a configured view"
        raise ConfigurationError(
            what, hint=f"views: {listed}" if known else "add [views.NAME] with sql or file"
        )
    forced = {known[fold(name)] for name in names} or set(known.values())
    with merging_sessions(spark, config) as sessions, explained(config):
        session = sessions.first
        check_endpoint(session, config)
        landing = LandingZone.of(session, config)
        run = _at_newest_cut(session, config, landing, progress or (lambda _: None))
        targets = targets_with_shapes(config, targets_at(config, run.manifest), run.shapes)
        views = run.plan_views(targets)
        assert views is not None, "some are configured"
        return run.record_cut([], replace(views, forced=forced if full else frozenset()))


def _at_newest_cut(spark: SparkSession, config: Config, landing: LandingZone, progress: Progress) -> MergeRun:
    """Begin a run at the newest cut, which merges no table."""
    recorded, shapes = read_frontiers(spark, config), shapes_of(config)
    if not recorded.newest:
        raise ConfigurationError("no cut was recorded yet", hint="merge first: deltatide merge")
    manifest = landing.get(recorded.newest)
    recorded.check(landing)
    check_log_store(spark, config)
    refused = clashing(config, manifest.tables, shapes)
    shapes = {
        name: shape
        for name, shape in shapes.items()
        if name not in refused and has_landed(manifest, shape.table)
    }
    frontiers = with_shapes(recorded, shapes, landing, refused)
    return MergeRun(spark, config, landing, frontiers, manifest, progress, False, shapes, refused)
