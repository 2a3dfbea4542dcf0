"""Merges all tables of a source up to the newest manifest, and records the cut.

::

    frontier -> manifests after it -> for each table: plan -> schema -> changes -> apply -> views -> cut

Invariants:

- All tables are merged up to the same manifest, several at a time, each in a session of its own: Delta takes
  what a commit carries from the session. A table that fails stays where it is; the others go on.
- The cut is recorded after the tables, even if the store failed amid them; the next run repairs a crash.
- A cut is exact only if no row of a table waits for a column, counted in the very version that the cut names.
- A table is merged from its frontier only while that continues (`merge.lake.commits`). A Delta table that was
  replaced, or whose rows somebody else changed, is rebuilt from the landing zone. None of its current rows is
  trusted; where deletes are soft, the newest recorded version that it still has is.
- With nothing new, nothing is written. The caller's session is left as it was, and its commits carry no
  settings of a concurrent merge.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from connector import failpoint
from connector.config import Config
from connector.errors import ConfigurationError, DeltatideError, GapError
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.columns.configured import check_new_lake
from merge.lake.comments import are_newer
from merge.lake.consumer import Recorded, record_progress, register
from merge.lake.control_table import (
    Frontier,
    FrontierReader,
    Frontiers,
    append_cut,
    create_cuts,
    cuts_table,
    left_frontiers,
    read_frontiers,
)
from merge.lake.retry import SPARK_ERRORS, TABLE_ERRORS, described, row_hint, with_retries
from merge.lake.rewrite import Rewrite
from merge.lake.target import Target, built_with_in, check_rival, check_schema, read_state
from merge.landing_zone import DAMAGED_HINT, LandingZone
from merge.missing_columns import has_pending_request, request_lost
from merge.plan import plan_past_holes
from merge.report import STOPPED, MergeReport, Progress, TableProgress, TableReport, ViewReport
from merge.shapes.current import tables_of_cut, targets_at
from merge.shapes.merging import JOBS
from merge.shapes.shape import Shape, chosen_tables, clashing, shapes_of, targets_with_shapes, with_shapes
from merge.spark.log_store import check_log_store
from merge.spark.session_pool import SessionPool, merging_sessions
from merge.spark.session_settings import ONE_TASK, PLANNED_ONCE, applied_settings
from merge.spark.unreachable import StoreError, check_endpoint, explain, explained
from merge.table import (
    Merged,
    TableJob,
    beginning_of,
    beginning_of_another,
    check_again,
    idle_frontier,
    not_as_recorded,
)
from merge.views.merging import ViewsOfMerge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

KEPT_MANIFESTS = 1000


def merge_once(
    spark: SparkSession,
    config: Config,
    *,
    tables: Collection[str] | None = None,
    until: int | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> MergeReport:
    """Merge what has landed since the frontier into the Delta tables, up to manifest `until` or the newest.

    `tables`: only these, as ``namespace.table``. On return everything is durable, including the cut. A
    table's failure is in the report; what affects all tables (landing zone not readable, a manifest missing,
    a newer format) is raised, as `StoreError` if a store cannot serve it. Once `stop` is set, the tables
    under way are finished and the others stay where they are. Running again after a crash at any point gives
    the same tables.
    """
    with merging_sessions(spark, config) as sessions:
        landing = LandingZone.of(sessions.first, config)
        return merge_in(sessions, config, landing, tables=tables, until=until, progress=progress, stop=stop)


def merge_in(
    sessions: SessionPool,
    config: Config,
    landing: LandingZone,
    *,
    tables: Collection[str] | None = None,
    until: int | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    reader: FrontierReader | None = None,
) -> MergeReport:
    """Merge like `merge_once`, in sessions that nobody else uses; the first one reads `landing`.

    `reader`: the frontier reader of the previous merge, if there was one.
    """
    show, end, known = (
        progress or (lambda _: None),
        stop or threading.Event(),
        reader or FrontierReader(config),
    )
    check_endpoint(sessions.first, config)
    with explained(config):
        return _merge_all(sessions, config, landing, tables, until, show, end, known)


def _merge_all(
    sessions: SessionPool,
    config: Config,
    landing: LandingZone,
    tables: Collection[str] | None,
    until: int | None,
    progress: Progress,
    stop: threading.Event,
    reader: FrontierReader,
) -> MergeReport:
    begun = time.monotonic()
    with applied_settings(sessions.first, ONE_TASK):
        frontiers = reader.read(sessions.first)
    run = MergeRun.begun(sessions.first, config, landing, frontiers, progress, until=until)
    idle = MergeReport(config.source.name, frontiers.newest, frontiers.epoch, frontiers.position)
    if run is None:
        return idle
    targets = targets_with_shapes(config, targets_at(config, run.manifest), run.shapes)
    chosen = chosen_tables(run.manifest, run.frontiers, tables, run.shapes, targets)
    views = run.plan_views(targets)
    run.prepare_lake()
    landing.read_ahead(frontiers.newest)
    merged: dict[TableName, TableReport] = {}
    # Else merges that always end early would never get to the last ones.
    most_behind = sorted(chosen, key=lambda table: run.frontiers.of(table).manifest)
    try:
        run.merge_in_parallel([targets[table] for table in most_behind], sessions, stop, merged)
        reports = [merged[table] for table in chosen if table in merged]
        if chosen and not reports:  # stopped before the first one: a cut would only say that none has moved
            return replace(idle, stopped=True)
        reports = request_lost(landing, run.manifest, reports, run.source_of, asks=run.asks)
        done = run.record_cut(reports, views, stop)
    except StoreError:
        run.record_merged([*merged.values()], views)
        raise
    landing.forget(run.manifest.number - KEPT_MANIFESTS)
    stopped = len(reports) < len(chosen) or any(view.error == STOPPED for view in done.views)
    return replace(done, seconds=time.monotonic() - begun, stopped=stopped)


def _newest(landing: LandingZone, frontiers: Frontiers, until: int | None) -> Manifest | None:
    """Return the manifest to merge up to; None if nothing has landed, or no table is behind `until`.

    The older manifests that a lagging table needs are read when its turn comes.
    """
    oldest = min((p.manifest for p in frontiers.by_table.values()), default=frontiers.newest)
    if until is not None and until <= oldest:
        return None
    lags = until is not None and until < frontiers.newest
    number = until if lags else landing.newest(frontiers.newest, until)
    landing.check_end(until)
    frontiers.check(landing, landing.first_kept)
    return landing.get(number) if number else None


@dataclass(frozen=True)
class MergeRun:
    """One merge of a source up to one manifest. `asks`: whether to repeat requests for rows that still wait.

    `shapes`: those of the landed tables, by their names in the lake. `refused`: those that have no place.
    Each table is merged in a session of its own; the first session does the rest.
    """

    spark: SparkSession
    config: Config
    landing: LandingZone
    frontiers: Frontiers
    manifest: Manifest
    progress: Progress
    asks: bool
    shapes: Mapping[TableName, Shape] = field(default_factory=dict)
    refused: Mapping[TableName, ConfigurationError] = field(default_factory=dict)
    showing: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def begun(
        cls,
        spark: SparkSession,
        config: Config,
        landing: LandingZone,
        frontiers: Frontiers,
        progress: Progress,
        *,
        until: int | None = None,
    ) -> MergeRun | None:
        """Begin a merge up to manifest `until` or the newest; None if there is nothing to merge."""
        # Look for requests before manifests: if the agent serves one in between, a manifest has its dump.
        waits = any(f.missing for f in frontiers.by_table.values()) and has_pending_request(landing)
        shapes = shapes_of(config)
        manifest = _newest(landing, frontiers.naming(shapes), until)
        if manifest is None:
            return None
        refused = clashing(config, manifest.tables, shapes)
        shapes = {name: shape for name, shape in shapes.items() if name not in refused}
        frontiers = with_shapes(frontiers, shapes, landing, refused)
        shapes = {name: shape for name, shape in shapes.items() if shape.is_made_of(manifest)}
        check_log_store(spark, config)
        asks = until is None and not waits
        return cls(spark, config, landing, frontiers, manifest, progress, asks, shapes, refused)

    def prepare_lake(self) -> None:
        """Create the control table of a new lake and register it as a consumer of the landing zone."""
        newest = self.frontiers.newest
        if not newest:
            check_new_lake(self.config, self.manifest, self.refused)
            check_schema(self.spark, self.config)
        if not newest or self.landing.is_known_removed(newest):
            create_cuts(self.spark, self.config)
            left_frontiers(self.spark, self.config).check(self.landing, self.landing.first_kept)
            register(self.spark, self.landing, self.config)

    def merge_in_parallel(
        self,
        targets: Sequence[Target],
        sessions: SessionPool,
        stop: threading.Event,
        merged: dict[TableName, TableReport],
    ) -> None:
        """Merge tables and add their reports to `merged`; once `stop` is set, begin no more.

        An error that affects all tables is raised after the tables under way have ended.
        """

        def merge(session: SparkSession, target: Target) -> None:
            run = replace(self, spark=session, landing=self.landing.read_by(session))
            merged[target.table] = run.merge(target)

        sessions.for_each(targets, merge, stop)

    def merge(self, target: Target) -> TableReport:
        """Merge one table; errors of this table alone are in the report."""
        begun = time.monotonic()
        try:
            check_rival(self.spark, target)
            report = self._merge_with_retries(target)
            failpoint.reach("table-merged")
        except TABLE_ERRORS as error:
            store = explain(error, self.config)
            if store is not None and store.affects_all:
                raise store from error
            report = self._failed(target, store or error)
        seconds = time.monotonic() - begun
        step = "failed" if report.error else "done" if report.rows else "unchanged"
        self._show(target, step, report.rows, seconds)
        return replace(report, seconds=seconds)

    def _failed(self, target: Target, error: Exception) -> TableReport:
        known = error.hint if isinstance(error, DeltatideError) else self.landing.hint_for(error)
        hint = known or row_hint(error, target.name, self.config, self.source_of(target.table))
        if hint == DAMAGED_HINT and target.table in self.shapes:
            hint = self.shapes[target.table].damaged_hint
        reason, printed = described(error, f"merge of {target.table}", whole=target.columns is None)
        lost, at = isinstance(error, GapError), self.frontiers.of(target.table)
        return TableReport.at(target.table, at, error=reason, printed=printed, hint=hint, lacks_history=lost)

    def _show(self, target: Target, step: str, rows: int, seconds: float = 0.0) -> None:
        with self.showing:
            self.progress(TableProgress(target.table, step, rows, seconds))

    def _merge_with_retries(self, target: Target) -> TableReport:
        """Merge one table; after a commit conflict, retry from where the other job left it."""
        known = iter([self.frontiers.of(target.table)])

        def merge() -> TableReport:
            frontier = next(known, None) or self._read_frontier(target)
            if frontier.manifest >= self.manifest.number:
                return self._reached(target, frontier)
            is_shape = target.table in self.shapes
            return self._merge_shape(target, frontier) if is_shape else self._merge_from(target, frontier)

        return with_retries(merge, f"{target.table} in {target.name}")

    def _reached(self, target: Target, frontier: Frontier) -> TableReport:
        """Report on a table that is at the manifest; look at its Delta table if that may be another.

        ::

            at a later manifest, or without error, as configured    nothing to do, and not looked at
            what was recorded                                       nothing to do, no error any more
            another, of a shape                                     the shape's merge says
            another: gone, restored, a rebuild without its cut      what landed last is merged again, which
                                                                    builds it anew, or finds its version
            so, and the manifest before that was removed            `not_as_recorded`
        """
        ahead, before = frontier.manifest > self.manifest.number, self.manifest.number - 1
        if ahead or (frontier.error is None and frontier.is_built_with(target.built_with)):
            return TableReport.at(target.table, frontier)
        if (known := idle_frontier(self.spark, target, frontier)) is not None:
            return TableReport.at(target.table, known)
        if target.table in self.shapes:
            return self._merge_shape(target, frontier)
        if self.landing.is_removed(max(before, 1)):
            raise not_as_recorded(target, before)
        return self._merge_from(target, replace(frontier, manifest=before, error=None))

    def _merge_shape(self, target: Target, frontier: Frontier) -> TableReport:
        shape, show = self.shapes[target.table], partial(self._show, target, "merging")
        job = JOBS[shape.kind](self.spark, self.config, self.landing, self.manifest, shape, target, show)
        return job.merge(frontier)

    def _read_frontier(self, target: Target) -> Frontier:
        recorded = read_frontiers(self.spark, self.config)
        return with_shapes(recorded, self.shapes, self.landing, self.refused).of(target.table)

    def _merge_from(self, target: Target, frontier: Frontier) -> TableReport:
        """Merge from a frontier; from the beginning if its Delta table is gone or was replaced."""
        if frontier.error is not None:
            check_again(self.spark, self.config, self.landing, target, frontier, self.manifest)
        self.landing.load(frontier.manifest + 1, self.manifest.number)
        plan = plan_past_holes(target.table, self.landing, frontier.manifest, self.manifest.number)
        now = replace(frontier, manifest=self.manifest.number, error=None)
        idle = plan.is_empty and frontier.version is not None and frontier.error is None
        idle = idle and not self._may_request_again(frontier, target)
        idle = idle and not are_newer(plan.state, frontier.manifest)
        if idle and (known := idle_frontier(self.spark, target, now)) is not None:
            return TableReport.at(target.table, known)
        self._show(target, "reading", plan.rows)
        with applied_settings(self.spark, PLANNED_ONCE):
            state = read_state(self.spark, target)
        if frontier.version is not None and (state is None or state.id != frontier.id):
            upto, id_ = self.manifest.number, None if state is None else state.id
            at = beginning_of_another(self.spark, self.config, target, id_, upto)
            return self._merge_from(target, at) if at.manifest < upto else self._reached(target, at)
        if frontier.version is None and state is not None:
            begins = beginning_of(self.spark, self.config, self.landing, target, state.id, frontier)
            if begins.frontier is not None:
                return self._merge_from(target, begins.frontier)
            if not begins.trusted:
                log.warning("%s: no cut names it, and its manifest was removed; rebuilding it", target.name)
                return self._rewrite(target).from_nothing(begins.last)
        job = TableJob.prepared(self.spark, self.config, self.landing, target, plan, state)
        self._show(target, "merging", job.plan.rows)
        idle = plan.is_empty and frontier.version is not None and frontier.version >= job.state.built_since
        idle = idle and frontier.is_built_with(target.built_with)
        merged = Merged(TableReport.at(target.table, now), None) if idle else job.merge(frontier)
        if merged.why_broken is None:
            # Of those left, this merge may just have requested all: each only once, or it is dumped twice.
            waits = (merged.report.missing or 0) > merged.report.requested
            waits = waits and self._may_request_again(frontier, target)
            return replace(merged.report, requested=job.request_missing_again()) if waits else merged.report
        log.warning("%s: %s; rebuilding it from the landing zone", target.name, merged.why_broken)
        return self._rewrite(target).continued(frontier, merged.last)

    def _rewrite(self, target: Target) -> Rewrite:
        upto, show = self.manifest.number, partial(self._show, target, "merging")
        return Rewrite(self.spark, self.config, self.landing, upto, target, show)

    def _may_request_again(self, frontier: Frontier, target: Target) -> bool:
        """Return whether rows that have waited for a column since the frontier must be requested again."""
        asked = any(d.active and d.reason == "missing" for d in self.manifest.dumps_of(target.table))
        coming = asked or self.manifest.brings_all_rows(target.table)
        captured = self.manifest.tables[target.table].state == "captured"  # else it needs a full dump anyway
        return bool(frontier.missing) and self.asks and not coming and captured

    def source_of(self, name: TableName) -> TableName:
        """Return the source table of a table or a shape."""
        return self.shapes[name].table if name in self.shapes else name

    def plan_views(self, targets: Mapping[TableName, Target]) -> ViewsOfMerge | None:
        """Plan the views that this merge refreshes; none at an old manifest."""
        if self.manifest.number < self.frontiers.newest:
            return None
        recorded = self.frontiers.by_table
        return ViewsOfMerge.planned(self.spark, self.config, self.manifest, targets, recorded)

    def record_cut(
        self,
        reports: list[TableReport],
        views: ViewsOfMerge | None = None,
        stop: threading.Event | None = None,
        *,
        always: bool = False,
    ) -> MergeReport:
        """Refresh the views, and record the cut if anything changed; `always`: with any new error."""
        before = {table: self.frontiers.of(table) for table in [*tables_of_cut(self.manifest), *self.shapes]}
        frontiers = before | {report.table: report.frontier for report in reports}
        exact = (self.manifest.exact and not self.refused) and all(
            at.manifest == self.manifest.number
            and at.missing == 0
            and at.error is None
            and at.is_built_with(built_with_in(self.config, self.source_of(name)))
            for name, at in frontiers.items()
        )
        of_views: list[ViewReport] = []
        own: list[ViewReport] = []
        further = frontiers != before or self.manifest.number > self.frontiers.newest
        further = further or (exact and self.frontiers.overtaken)
        unknown = (name for name, at in before.items() if at.version is not None and at.built is None)
        further = further or any(frontiers[name].built is not None for name in unknown)
        # An error of a table that is at this manifest is one of the configuration: other jobs have theirs.
        failed = (name for name, at in frontiers.items() if always or at.manifest < self.manifest.number)
        further = further or any(frontiers[name].error and not before[name].error for name in failed)
        if views is not None:
            of_views = views.refresh(self.spark, self.landing, frontiers, stop=stop, show=self.progress)
            own = [view for view in of_views if view.table not in frontiers]  # else a table's, of that name
            further = further or views.differ(own)
        turned_exact = exact and not self.frontiers.exact
        recorded = further or turned_exact
        if recorded:
            failpoint.reach("cut-missing")
            entries = frontiers | {view.table: view.frontier for view in own}
            with_retries(lambda: self._append_cut(entries, exact), cuts_table(self.config))
            cut = Recorded(self.manifest, frontiers, self.refused, turned_exact)
            record_progress(self.spark, self.landing, self.config, self.frontiers, cut)
        at, source = self.manifest, self.config.source.name
        refused = [TableReport(name, 0, None, error=str(e), hint=e.hint) for name, e in self.refused.items()]
        tables = [*reports, *refused]
        done = MergeReport(source, at.number, at.epoch, at.position, exact, recorded, tables=tables)
        return replace(done, views=of_views)

    def record_merged(self, reports: list[TableReport], views: ViewsOfMerge | None) -> None:
        """Record what was merged before the store failed, if it can be: the next merge need not repeat it."""
        stopped = threading.Event()
        stopped.set()
        with suppress(*SPARK_ERRORS, DeltatideError):
            if any(report.rows for report in reports):
                self.record_cut(reports, views, stopped)

    def _append_cut(self, frontiers: Mapping[TableName, Frontier], exact: bool) -> None:
        ahead = self.frontiers.ahead
        append_cut(self.spark, self.config, self.manifest, frontiers, exact=exact, ahead=ahead)
