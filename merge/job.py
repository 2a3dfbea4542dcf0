"""Merges all tables of a source up to the newest manifest, and records the cut.

::

    frontier -> manifests after it -> for each table: plan -> schema -> changes -> apply -> cut

Invariants:

- All tables are merged up to the same manifest. A table that fails stays where it is, the others go on.
- The cut is recorded after the tables; a crash anywhere is repaired by the next run.
- A cut is exact only when no row waits for a column. Who leaves such rows behind says so in the very commit
  that does, so that a job that comes after a crash, or beside another one, knows of them though it finds
  nothing left to ask for.
- With nothing new, nothing is written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from connector import failpoint
from connector.config import Config
from connector.errors import ConfigurationError, DeltatideError, TableError
from connector.manifest import Manifest
from connector.schema import TableSchema
from merge.apply import LARGE_BYTES, Rules, apply
from merge.changes import Layout, changes
from merge.conflict import SPARK_ERRORS, attempts, first_line
from merge.frontier import Frontier, Place, append_cut, read_frontier
from merge.missing import missing_is_asked, request_missing
from merge.plan import TablePlan, plan_table
from merge.read import LandingZone
from merge.schema import prepare
from merge.settings import COMPILED, INTERPRETED, held
from merge.target import Commits, Mark, Target, TargetState, check_schema, read_commits, targets_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

KEPT_MANIFESTS = 1000
FEW_ROWS = 20_000
"""Up to so many events, on a small table, queries are interpreted."""

TABLE_ERRORS: tuple[type[Exception], ...] = (TableError, *SPARK_ERRORS)
"""What ends the merge of one table, and lets the others go on."""


@dataclass(frozen=True)
class TableProgress:
    """Where the merge of one table is: `step` is waiting, reading, merging, done, failed, or unchanged."""

    table: str
    step: str
    rows: int = 0
    seconds: float = 0.0


Progress = Callable[[TableProgress], None]


@dataclass(frozen=True)
class TableReport:
    """What a merge did to one table. Counts that Delta does not tell are None.

    `requested` rows wait for columns that this job asked for, or another one since the frontier was read;
    None when it can't be told whether one did.
    """

    table: str
    manifest: int
    version: int | None
    rows: int = 0
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    requested: int | None = 0
    seconds: float = 0.0
    error: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class MergeReport:
    """What a merge did. `manifest`: the one it merged up to; 0 when nothing has landed yet."""

    source: str
    manifest: int
    epoch: int = 0
    position: int = 0
    exact: bool = False
    recorded: bool = False
    seconds: float = 0.0
    tables: list[TableReport] = field(default_factory=list)

    @property
    def failed(self) -> list[TableReport]:
        """List the tables that could not be merged."""
        return [table for table in self.tables if table.error is not None]

    @property
    def exit_code(self) -> int:
        """Give 1 when a table failed, else 0."""
        return 1 if self.failed else 0

    def to_dict(self) -> dict[str, Any]:
        """Give all of it in plain values, for JSON."""
        return asdict(self)


def merge_once(
    spark: SparkSession,
    config: Config,
    *,
    tables: Collection[str] | None = None,
    until: int | None = None,
    progress: Progress | None = None,
    landing: LandingZone | None = None,
) -> MergeReport:
    """Merge what has landed since the frontier into the Delta tables, up to manifest `until` or the newest.

    `tables`: only these, as ``namespace.table``. Returns when all is durable, the cut included. A table's
    failure is in the report; what concerns all tables (landing zone not readable, a manifest missing, a newer
    format) is raised. Run again after a crash at any moment it gives the same tables.
    """
    landing = landing or LandingZone(spark, config.landing.url, config.source.name)
    with held(spark, INTERPRETED):
        return _merge_all(spark, config, landing, tables, until, progress or (lambda _: None))


def _merge_all(
    spark: SparkSession,
    config: Config,
    landing: LandingZone,
    tables: Collection[str] | None,
    until: int | None,
    progress: Progress,
) -> MergeReport:
    begun = time.monotonic()
    frontier = read_frontier(spark, config)
    # Looked at before the manifests: what the agent takes up meanwhile is in one of those then.
    asked = not frontier.exact and missing_is_asked(landing)
    manifest = _newest(landing, frontier, until)
    if manifest is None:
        return MergeReport(config.source.name, frontier.newest, frontier.epoch, frontier.position)
    if until is not None and not frontier.exact:
        asked = asked or _taken_up_after(landing, manifest.number)
    chosen = _chosen(manifest, frontier, tables)
    targets = targets_of(config, manifest.tables)
    if not frontier.newest:
        check_schema(spark, config)
    run = _Run(spark, config, landing, frontier, manifest, progress)
    reports = [run.merge(targets[table]) for table in chosen]
    places = run.places(reports)
    exact = not asked and run.is_exact(reports, places)
    further = places != dict(frontier.places) or manifest.number > frontier.newest
    recorded = further or (exact and not frontier.exact)
    if recorded:
        failpoint.reach("cut-missing")
        append_cut(spark, config, manifest, places, exact=exact)
    landing.forget(manifest.number - KEPT_MANIFESTS)
    return MergeReport(
        config.source.name,
        manifest.number,
        manifest.epoch,
        manifest.position,
        exact,
        recorded,
        time.monotonic() - begun,
        reports,
    )


def merge_every(
    spark: SparkSession,
    config: Config,
    seconds: float,
    *,
    tables: Collection[str] | None = None,
    progress: Progress | None = None,
    report: Callable[[MergeReport], None] | None = None,
    stop: threading.Event | None = None,
) -> int:
    """Merge again and again, at most every so many seconds, until `stop` is set.

    A merge under way is finished. Gives the exit code: 1 when the last merge had a table that failed. Errors
    that concern all tables end it.
    """
    stop = stop or threading.Event()
    landing = LandingZone(spark, config.landing.url, config.source.name)
    code = 0
    while not stop.is_set():
        begun = time.monotonic()
        done = merge_once(spark, config, tables=tables, progress=progress, landing=landing)
        code = done.exit_code
        if report is not None:
            report(done)
        stop.wait(max(0.0, seconds - (time.monotonic() - begun)))
    return code


def _newest(landing: LandingZone, frontier: Frontier, until: int | None) -> Manifest | None:
    """Give the manifest to merge up to; None when nothing has landed, or `until` is behind the frontier."""
    oldest = min((p.manifest for p in frontier.places.values()), default=frontier.newest)
    number = landing.newest(oldest, until)
    if frontier.newest and number >= frontier.newest:
        frontier.check(landing.get(frontier.newest))
    return landing.get(number) if number else None


def _taken_up_after(landing: LandingZone, number: int) -> bool:
    """Tell whether rows that were asked for are dumped only behind a manifest, up to which is merged."""
    later = (landing.get(n) for n in range(number + 1, landing.newest(number) + 1))
    return any(dump.reason == "missing" and dump.started_in > number for m in later for dump in m.dumps)


def _chosen(manifest: Manifest, frontier: Frontier, tables: Collection[str] | None) -> list[str]:
    """Name the tables to merge that are not at the manifest yet."""
    unknown = sorted(set(tables or ()) - set(manifest.tables))
    if unknown:
        raise ConfigurationError(
            f"no table {unknown[0]!r} has landed", hint=f"there are: {', '.join(sorted(manifest.tables))}"
        )
    wanted = manifest.tables if tables is None else [t for t in manifest.tables if t in tables]
    return [
        table
        for table in wanted
        if frontier.of(table).manifest < manifest.number or frontier.of(table).version is None
    ]


@dataclass(frozen=True)
class _Run:
    """One merge of a source up to one manifest."""

    spark: SparkSession
    config: Config
    landing: LandingZone
    frontier: Frontier
    manifest: Manifest
    progress: Progress

    def merge(self, target: Target) -> TableReport:
        """Merge one table; what is wrong with it alone is in the report."""
        begun = time.monotonic()
        try:
            report = self._attempts(target)
            failpoint.reach("table-merged")
        except TABLE_ERRORS as error:
            report = self._failed(target, error)
        seconds = time.monotonic() - begun
        step = "failed" if report.error else "done" if report.rows else "unchanged"
        self.progress(TableProgress(target.table, step, report.rows, seconds))
        return TableReport(**(asdict(report) | {"seconds": seconds}))

    def _failed(self, target: Target, error: Exception) -> TableReport:
        place = self.frontier.of(target.table)
        hint = error.hint if isinstance(error, DeltatideError) else None
        log.debug("merge of %s failed", target.table, exc_info=error)
        return TableReport(target.table, place.manifest, place.version, error=first_line(error), hint=hint)

    def _attempts(self, target: Target) -> TableReport:
        """Merge one table; when another job got in between, again from where that one left it."""
        places = iter([self.frontier.of(target.table)])

        def merge() -> TableReport:
            place = next(places, None) or read_frontier(self.spark, self.config).of(target.table)
            if place.manifest >= self.manifest.number and place.version is not None:
                requested = self._commits(target).requested
                return TableReport(target.table, place.manifest, place.version, requested=requested)
            return self._merge(target, place)

        return attempts(merge, f"{target.table} in {target.name}")

    def _merge(self, target: Target, place: Place) -> TableReport:
        table = target.table
        plan = plan_table(table, self.landing, place.manifest, self.manifest.number)
        if plan.idle and place.version is not None:
            return TableReport(table, self.manifest.number, place.version)
        self.progress(TableProgress(table, "reading", plan.rows))
        schemas = self.landing.schemas((table, id_) for id_ in plan.schema_ids)
        newest = schemas[plan.state.schema_id]
        others = [schema for schema in schemas.values() if schema is not newest]
        state, created = prepare(self.spark, target, self.config.source.name, newest, others)
        if created and place.version is not None:
            log.warning("%s: its Delta table is gone, it is built anew from the landing zone", table)
            return self._merge(target, Place(0))
        if not plan.files and not plan.sweeps:
            commits = self._commits(target)
            return TableReport(table, self.manifest.number, commits.version, requested=commits.requested)
        self.progress(TableProgress(table, "merging", plan.rows))
        small = plan.rows <= FEW_ROWS and state.bytes <= LARGE_BYTES
        with held(self.spark, {} if small else COMPILED):
            return self._apply(target, state, plan, schemas)

    def _apply(
        self, target: Target, state: TargetState, plan: TablePlan, schemas: Mapping[str, TableSchema]
    ) -> TableReport:
        layout = Layout(state.columns, tuple(plan.state.key))
        frame = target.frame(self.spark)
        source = changes(self.landing, plan, schemas, layout, None if state.empty else frame)
        requested = 0
        if plan.partial:
            requested = request_missing(self.spark, self.landing, plan, source, layout, frame)
        soft = self.config.table(plan.table).deletes == "soft"
        rules = Rules(plan.partial, plan.chunks, soft)
        mark = Mark(self.config.source.name, self.manifest.number, requested)
        since = self.frontier.of(plan.table).version
        done = apply(self.spark, target, state, source, layout, rules, mark, since)
        return TableReport(
            plan.table,
            done.manifest,
            done.version,
            plan.rows,
            done.inserted,
            done.updated,
            done.deleted,
            done.requested,
        )

    def _commits(self, target: Target) -> Commits:
        """Read what was done to a table since this job read the frontier."""
        since = self.frontier.of(target.table).version
        return read_commits(self.spark, target, self.config.source.name, since)

    def is_exact(self, reports: Iterable[TableReport], places: Mapping[str, Place]) -> bool:
        """Tell whether the tables are together what the source was at the manifest's position."""
        whole = all(place.manifest == self.manifest.number for place in places.values())
        return self.manifest.exact and whole and not any(r.error or r.requested != 0 for r in reports)

    def places(self, reports: Iterable[TableReport]) -> dict[str, Place]:
        """Say where each table is now; tables that were not merged stay where they were."""
        known = {table: self.frontier.of(table) for table in self.manifest.tables}
        done = {report.table: Place(report.manifest, report.version) for report in reports}
        return {**self.frontier.places, **known, **done}
