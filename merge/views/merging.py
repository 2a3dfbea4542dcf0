"""Refreshes all views of a merge: after the tables and before the cut, which records both together.

::

    tables merged -> views in order, each from the versions that the cut will name -> cut

A view is refreshed only if everything that it reads is as of the merge's manifest, so its rows are of one
position of the source. Otherwise it keeps its last rows, the cut records why, and the others go on. Whether a
cut is exact depends on its tables alone; readers of the cut don't see a view that is not of the cut's state
(`merge.views.view.stale_views`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from connector.config import Config
from connector.errors import ConfigurationError, DeltatideError, TableError
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.lake.control_table import Frontier
from merge.lake.retry import TABLE_ERRORS, UNEXPECTED, innermost, printed, where_it_was, whole_reason
from merge.lake.target import Target
from merge.landing_zone import LandingZone
from merge.reading.query_plans import in_own_lines
from merge.report import STOPPED, Progress, TableProgress, ViewReport
from merge.spark.unreachable import explain
from merge.views.dependencies import PlannedView, planned
from merge.views.inputs import Input
from merge.views.refresh import Refresh
from merge.views.view import views_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

VIEW_ERRORS: tuple[type[Exception], ...] = (*TABLE_ERRORS, ConfigurationError)
"""Errors that stop the refresh of one view and let the others go on."""


@dataclass(frozen=True)
class ViewsOfMerge:
    """The views of one merge up to a manifest, in order. `before`: their frontiers in the last cuts.

    `targets`: all tables of the lake. `forced`: views to refresh even if nothing has changed.
    """

    config: Config
    manifest: Manifest
    targets: Mapping[TableName, Target]
    before: Mapping[TableName, Frontier]
    views: list[PlannedView]
    forced: Collection[TableName] = frozenset()

    @classmethod
    def planned(
        cls,
        spark: SparkSession,
        config: Config,
        manifest: Manifest,
        targets: Mapping[TableName, Target],
        recorded: Mapping[TableName, Frontier],
    ) -> ViewsOfMerge | None:
        """Plan the configured views; None if there are none. Writes nothing.

        `recorded`: the frontiers of the last cuts. `ConfigurationError` for mistakes in the configuration.
        """
        if not config.views:
            return None
        views = views_of(config)
        before = {view.table: recorded.get(view.table, Frontier(0, missing=0)) for view in views}
        ordered = planned(spark, config, views, targets, recorded)
        return cls(config, manifest, targets, before, ordered)

    def refresh(
        self,
        spark: SparkSession,
        landing: LandingZone,
        frontiers: Mapping[TableName, Frontier],
        *,
        stop: threading.Event | None = None,
        show: Progress = lambda _: None,
    ) -> list[ViewReport]:
        """Refresh the views whose inputs have changed, in a session that nobody else uses; report on all.

        `frontiers`: the tables' in the coming cut. Once `stop` is set, the remaining views stay as they are.
        """
        at = dict(frontiers)
        reports: list[ViewReport] = []
        for view in self.views:
            table = view.view.table
            show(TableProgress(table, "merging"))
            stopped = stop is not None and stop.is_set()
            report = self._left(table) if stopped else self._refreshed(spark, landing, view, at)
            step = "failed" if report.error else "done" if report.refreshed else "unchanged"
            show(TableProgress(table, step, report.rows or 0, report.seconds))
            reports.append(report)
            at[table] = report.frontier
        return reports

    def differ(self, reports: Iterable[ViewReport]) -> bool:
        """Return whether any view's frontier or error differs from the last cuts."""
        pairs = ((self.before[report.table], report.frontier) for report in reports)
        return any(old != new or old.error != new.error for old, new in pairs)

    def _refreshed(
        self,
        spark: SparkSession,
        landing: LandingZone,
        view: PlannedView,
        at: Mapping[TableName, Frontier],
    ) -> ViewReport:
        table = view.view.table
        try:
            if view.problem is not None:
                raise view.problem
            inputs = {name: self._input(view, name, at.get(name)) for name in view.reads}
            target, before = view.view.target(self.config), self.before[table]
            refresh = Refresh(spark, self.config, landing, self.manifest, view, target, before, inputs)
            return refresh.run(full=table in self.forced)
        except VIEW_ERRORS as error:
            store = explain(error, self.config)
            if store is not None and store.affects_all:
                raise store from error
            return self._failed(table, store or error)

    def _input(self, view: PlannedView, name: TableName, frontier: Frontier | None) -> Input:
        """Return an input of a view. `TableError` if it is not as of the merge's manifest.

        `frontier` None: it has no current rows, and so no entry in cuts.
        """
        if frontier is None:
            raise TableError(
                view.view.table,
                f"only changes of {name}, which it reads, are captured: it has no current rows",
                hint=f"name {name.name}_changes in its query",
            )
        of_view = {planned.view.table: planned.view for planned in self.views}
        target = of_view[name].target(self.config) if name in of_view else self.targets[name]
        what = f"{name}, which it reads,"
        reason = None
        if frontier.error is not None:
            reason = f"{what} is not as of manifest {self.manifest.number}: {frontier.error}"
        elif frontier.version is None:
            reason = f"{what} has no rows yet"
        elif frontier.manifest != self.manifest.number:
            reason = f"{what} is as of manifest {frontier.manifest}, not {self.manifest.number}"
        elif frontier.built is not None and not frontier.is_built_with(target.built_with):
            reason = f"{what} was built with other columns, masks or rows than the configuration says"
        if reason is not None:
            hint = "it is refreshed by the next merge that brings all that it reads to one manifest"
            raise TableError(view.view.table, reason, hint=hint)
        return Input(target, frontier)

    def _failed(self, table: TableName, error: Exception) -> ViewReport:
        if isinstance(error, UNEXPECTED):
            log.error("refresh of %s failed, a bug:\n%s", table, where_it_was(error))
        reason = whole_reason(error, innermost(error))
        if isinstance(error, TableError) and error.table == table:
            reason = error.reason
        hint = error.hint if isinstance(error, DeltatideError) else None
        said = printed(error, reason)
        if isinstance(error, AnalysisException):
            reason, said = in_own_lines(reason), in_own_lines(said)
        return replace(self._left(table), error=reason, printed=said, hint=hint)

    def _left(self, table: TableName) -> ViewReport:
        at = self.before[table]
        return ViewReport(table, at.manifest, at.version, id=at.id, error=STOPPED)
