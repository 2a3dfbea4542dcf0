"""Upkeep of the lake's Delta tables: compacts files, purges deleted rows, and removes what no cut needs.

::

    newest cut -> for each table: look -> record what is kept -> for each table: act -> renew the newest cut

What a table needs is decided from Delta's metadata (its detail, history and checksum) and from the cuts; no
data file is opened for it.

Invariants:

- Every cut younger than ``lake.retention_days`` stays readable, and so does the newest one. VACUUM removes
  files replaced more than a day longer ago (`merge.lake.cut_retention`). If a version named by such a cut was
  replaced earlier, by a rewrite of files that merges don't know about or by a commit ahead of its cut, VACUUM
  waits.
- Rewriting files keeps the rows, but later cuts would still name an unchanged table's old version. So the
  newest cut is appended again with the new version (`merge.lake.commits.renewed_version`), from which merges
  continue.
- The mark on each commit says that it writes no rows. So it does not count as another writer, fence a merge,
  or show how far the table is.
- The next upkeep finds what a kill, a conflict with a merge, or a concurrent upkeep left undone.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from connector import failpoint
from connector.config import Config
from connector.errors import ConfigurationError, DeltatideError, TableError
from connector.schema import TableName
from merge.apply import LARGE_BYTES
from merge.lake.commits import (
    KEEPS_ROWS,
    REWRITES_FILES,
    USER_METADATA,
    Mark,
    commits_of,
    read_history,
    renewed_version,
)
from merge.lake.control_table import (
    Frontier,
    Frontiers,
    cuts_table,
    read_frontiers,
    renew_cut,
    young_versions,
)
from merge.lake.cut_retention import (
    SET_BY_US,
    VACUUM_MARGIN_HOURS,
    file_hours,
    needed_properties,
    replaced_file_hours,
)
from merge.lake.file_statistics import SMALL_BYTES, TARGET_BYTES, read_statistics
from merge.lake.kept_versions import Kept, KeptTable, append_kept, kept_table, read_kept
from merge.lake.retry import TABLE_ERRORS, first_line, is_conflict, with_retries
from merge.lake.target import SOURCE_PROPERTY, TABLE_PROPERTY, Target, properties_sql, targets_of
from merge.landing_zone import is_missing
from merge.spark.log_store import check_log_store
from merge.spark.session_pool import merging_sessions
from merge.spark.session_settings import COMPILED, applied_settings
from merge.spark.unreachable import check_endpoint, explain, explained

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

log = logging.getLogger(__name__)

SETTINGS = {
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_BYTES),
    "spark.databricks.delta.optimize.maxFileSize": str(TARGET_BYTES),
    # VACUUM lists a table with this many tasks: Spark's 10,000 take a minute for ten files.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}

UPKEEP_ERRORS: tuple[type[Exception], ...] = (*TABLE_ERRORS, ConfigurationError)
"""Errors that stop upkeep of one table only; a property may be unreadable, for example."""

CHECKPOINT_INTERVAL = ("delta.checkpointInterval", "10")
"""Delta's property, and its default."""

Progress = Callable[[int, int, str], None]
"""Called with the number of steps done, of all steps, and what is under way."""


@dataclass(frozen=True)
class Finding:
    """A step that a table needs, and why. `status`: planned, done, deferred (to the next upkeep), failed."""

    subject: str
    action: str
    reason: str
    status: str = "planned"
    seconds: float = 0.0
    hint: str | None = None


@dataclass(frozen=True)
class _Plan:
    """What one table needs: statements with their findings, in order; and what is kept."""

    target: Target
    frontier: Frontier
    kept: KeptTable
    actions: Sequence[tuple[Finding, str]] = ()
    deferred: Sequence[Finding] = ()
    vacuumed: int = 0
    """VACUUM, if planned, removes all files that versions up to this one replaced."""
    vacuum_until: float = math.inf
    """From when on VACUUM could remove files that kept cuts need, in seconds since 1970."""
    outdated: bool = False
    """Whether files of the newest cut's version have been or will be rewritten."""
    large: bool = False
    """Whether compiling the statements pays, as in a merge."""


def upkeep(
    spark: SparkSession,
    config: Config,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Finding]:
    """Maintain the lake's tables and yield each step as it is done; with `dry_run`, change nothing.

    Blocks between findings. Once `stop` is set, ends after the table under way. A table's failure is a
    finding; what affects all tables is raised, as `StoreError` if a store cannot serve it.
    """
    with merging_sessions(spark, config) as sessions:
        yield from upkeep_in(sessions.first, config, dry_run=dry_run, progress=progress, stop=stop)


def upkeep_in(
    spark: SparkSession,
    config: Config,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Finding]:
    """Run `upkeep` in a merge's session that nobody else is using."""
    check_endpoint(spark, config)
    with explained(config), applied_settings(spark, SETTINGS):
        frontiers = read_frontiers(spark, config)
        if not frontiers.newest:
            return
        if not dry_run:
            check_log_store(spark, config)
        kept, now = read_kept(spark, config), datetime.now(timezone.utc)
        days = config.lake.retention_days if config.lake is not None else 0.0
        young = young_versions(spark, config, now - timedelta(days=days))
        shown = progress or (lambda *_: None)
        run = _Upkeep(spark, config, days, frontiers, kept, young, now, shown, stop)
        plans, findings = run.look()
        yield from findings
        yield from run.planned(plans) if dry_run else run.act(plans)


@dataclass(frozen=True)
class _Upkeep:
    """One upkeep of a source's tables. `young`: the oldest version of each that young cuts name."""

    spark: SparkSession
    config: Config
    retention_days: float
    frontiers: Frontiers
    kept: Kept
    young: Mapping[tuple[TableName, str], int]
    now: datetime
    progress: Progress
    stop: threading.Event | None = None
    renewed: dict[TableName, tuple[Frontier, int]] = field(default_factory=dict)

    def is_stopped(self) -> bool:
        """Return whether to end after the table under way."""
        return self.stop is not None and self.stop.is_set()

    def look(self) -> tuple[list[_Plan], list[Finding]]:
        """Return what the tables need, and why some are left alone."""
        plans: list[_Plan] = []
        findings: list[Finding] = []
        merged = {t: f for t, f in self.frontiers.by_table.items() if f.version is not None}
        targets = targets_of(self.config, self.frontiers.by_table)
        for number, (table, frontier) in enumerate(sorted(merged.items())):
            if self.is_stopped():
                break
            self.progress(number, 2 * len(merged), f"{table}: reading metadata")
            try:
                found = self._plan(targets[table], frontier)
            except UPKEEP_ERRORS as error:
                found = self._failed(Finding(str(table), "look", "what it needs"), error)
            if isinstance(found, _Plan):
                plans.append(found)
            else:
                findings.append(found)
        return plans, findings

    def planned(self, plans: Sequence[_Plan]) -> Iterator[Finding]:
        """Yield what would be done."""
        for plan in plans:
            yield from (finding for finding, _ in plan.actions)
            yield from plan.deferred
        if outdated := [plan for plan in plans if plan.outdated]:
            yield _renewal(len(outdated))
        for name in (cuts_table(self.config), kept_table(self.config)):
            yield from (finding for finding, _ in self._control_actions(name))

    def act(self, plans: Sequence[_Plan]) -> Iterator[Finding]:
        """Run the plan, and yield each step as it is done."""
        if self.is_stopped():
            return
        kept = {**self.kept.tables, **{plan.target.table: plan.kept for plan in plans}}
        self._record(kept)
        failpoint.reach("upkeep-recorded")
        for number, plan in enumerate(plans):
            if self.is_stopped():
                break
            self.progress(len(plans) + number, 2 * len(plans), str(plan.target.table))
            findings = list(self._maintain(plan))
            yield from findings
            if any((f.action, f.status) == ("VACUUM", "done") for f in findings):
                kept[plan.target.table] = replace(plan.kept, vacuumed=plan.vacuumed)
        yield from self._renew_cut()
        if not self.is_stopped():
            yield from self._maintain_control_tables()
        if any(kept[plan.target.table] != plan.kept for plan in plans):
            self._record(kept)

    def _record(self, kept: Mapping[TableName, KeptTable]) -> None:
        with_retries(lambda: append_kept(self.spark, self.config, kept, self.now), kept_table(self.config))

    def _plan(self, target: Target, frontier: Frontier) -> _Plan | Finding:
        """Return what a table needs; if it does not continue, return why the next merge must handle it.

        Our commits on top of a restored copy would vouch for it, since they carry the frontier's manifest.
        """
        detail = self._detail(target.name)
        if detail is None or detail["id"] != frontier.id or frontier.version is None:
            return _left_to_merge(target, "it was dropped or replaced")
        self._check_owner(target, detail)
        known = self.kept.of(target.table, detail["id"])
        needed = min(self.young.get((target.table, detail["id"]), frontier.version), frontier.version)
        properties = dict(detail["properties"])
        checkpoint = needed - needed % int(properties.get(*CHECKPOINT_INTERVAL))
        history = read_history(self.spark, target, checkpoint)
        why_broken = commits_of(history, self.config.source.name, frontier, id_=detail["id"]).why_broken
        if why_broken is not None:
            return _left_to_merge(target, f"it was restored or written to: {why_broken}")
        log_hours = max(self._age_hours(row["timestamp"]) for row in history if row["version"] >= checkpoint)
        changes = needed_properties(properties, self.retention_days, log_hours)
        plan = _Plan(target, frontier, known, large=detail["sizeInBytes"] > LARGE_BYTES)
        actions = [
            *self._property_actions(target, properties, changes),
            *self._rewrites(target, detail, history[0]["version"]),
        ]
        outdated = renewed_version(history, self.config.source.name, frontier) != frontier.version
        outdated |= any(finding.action in REWRITES_FILES for finding, _ in actions)
        plan = replace(plan, actions=actions, outdated=outdated)
        hours = replaced_file_hours(properties | changes)
        is_new = self._age_hours(detail["createdAt"]) <= hours
        return plan if is_new else self._with_vacuum(plan, history, needed, hours)

    def _property_actions(
        self, target: Target, properties: Mapping[str, str], changes: dict[str, str]
    ) -> Iterator[tuple[Finding, str]]:
        if not changes:
            return
        shown = ", ".join(
            f"{name} from {properties.get(name, 'its default')} to {value}"
            for name, value in changes.items()
            if name != SET_BY_US
        )
        reason = f"{shown}, as cuts stay {self.retention_days:g} days"
        statement = f"ALTER TABLE {target.name} SET TBLPROPERTIES ({properties_sql(changes)})"
        yield Finding(str(target.table), "SET TBLPROPERTIES", reason), statement

    def _rewrites(self, target: Target, detail: Row, version: int) -> Iterator[tuple[Finding, str]]:
        statistics = read_statistics(self.spark, target.name, detail, version)
        if (why := statistics.why_purge()) is not None:
            yield Finding(str(target.table), "REORG", why), f"REORG TABLE {target.name} APPLY (PURGE)"
        if (why := statistics.why_optimize()) is not None:
            yield Finding(str(target.table), "OPTIMIZE", why), f"OPTIMIZE {target.name}"

    def _with_vacuum(self, plan: _Plan, history: Sequence[Row], needed: int, hours: float) -> _Plan:
        """Add VACUUM, which removes files replaced `hours` ago, or why it waits; nothing if it is not due.

        It is due until all files replaced up to the oldest version kept are gone. Cuts expire before files
        do, so for a table that no longer changes, one VACUUM may leave files to the next.
        """
        kept = replace(plan.kept, oldest=max(plan.kept.oldest, needed))
        if kept.oldest <= kept.vacuumed:
            return plan
        reason = f"no cut that is kept names a version before {kept.oldest}"
        finding = Finding(str(plan.target.table), "VACUUM", reason)
        keeps_files = KEEPS_ROWS - REWRITES_FILES
        replacing = (row for row in reversed(history) if row["operation"] not in keeps_files)
        first = next((row for row in replacing if row["version"] > needed), None)
        until = _until(first, hours)
        if first is not None and until <= self.now.timestamp():
            reason = (
                f"cuts that are kept name version {needed}, whose files version {first['version']}"
                f" ({first['operation']}) replaced long ago"
            )
            return replace(plan, deferred=[replace(finding, reason=reason, status="deferred")])
        actions = [*plan.actions, (finding, f"VACUUM {plan.target.name}")]
        old = (row for row in history if self._age_hours(row["timestamp"]) > hours)
        vacuumed = (row["version"] for row in old if row["version"] <= kept.oldest)
        upto = max(vacuumed, default=kept.vacuumed)
        return replace(plan, actions=actions, kept=kept, vacuumed=upto, vacuum_until=until)

    def _maintain(self, plan: _Plan) -> Iterator[Finding]:
        """Maintain a table, and find the version that cuts should name afterward."""
        mark = Mark(
            self.config.source.name, plan.frontier.manifest, layout=True, follows=plan.frontier.version
        )
        settings = {USER_METADATA: mark.to_json()} | (COMPILED if plan.large else {})
        with applied_settings(self.spark, settings):
            yield from self._done(plan.actions, plan.vacuum_until)
            yield from plan.deferred
            if not plan.outdated:
                return
            try:
                self._find_renewed(plan)
            except TABLE_ERRORS as error:
                finding = Finding(str(plan.target.table), "RENEW", "its version in the newest cut")
                yield self._outcome(finding, error)

    def _find_renewed(self, plan: _Plan) -> None:
        source, target, frontier = self.config.source.name, plan.target, plan.frontier
        version = renewed_version(read_history(self.spark, target, frontier.version or 0), source, frontier)
        if version is None:  # somebody else rewrote files: commit a mark
            detail = self._detail(target.name)
            properties = {} if detail is None else detail["properties"]
            unchanged = properties_sql({SET_BY_US: properties.get(SET_BY_US, "{}")})
            self.spark.sql(f"ALTER TABLE {target.name} SET TBLPROPERTIES ({unchanged})")
            history = read_history(self.spark, target, frontier.version or 0)
            version = renewed_version(history, source, frontier)
        if version is not None and version != frontier.version:
            self.renewed[target.table] = (frontier, version)

    def _renew_cut(self) -> Iterator[Finding]:
        if not self.renewed:
            return
        newest = self.frontiers.newest
        with_retries(
            lambda: renew_cut(self.spark, self.config, newest, self.renewed), cuts_table(self.config)
        )
        yield replace(_renewal(len(self.renewed)), status="done")

    def _maintain_control_tables(self) -> Iterator[Finding]:
        for name in (cuts_table(self.config), kept_table(self.config)):
            yield from self._done(self._control_actions(name))

    def _control_actions(self, name: str) -> list[tuple[Finding, str]]:
        """Return what a control table needs; sources share it, so its properties stay Delta's own."""
        detail = self._detail(name)
        if detail is None:
            return []
        subject = name.rstrip("`").rpartition("/")[2].rpartition("`")[2]
        newest = self.spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").collect()[0]["version"]
        why = read_statistics(self.spark, name, detail, newest).why_optimize()
        actions = [(Finding(subject, "OPTIMIZE", why), f"OPTIMIZE {name}")] if why else []
        if self._age_hours(detail["createdAt"]) > file_hours(6):
            finding = Finding(subject, "VACUUM", "files that compaction has replaced")
            actions.append((finding, f"VACUUM {name}"))
        return actions

    def _done(
        self, actions: Sequence[tuple[Finding, str]], vacuum_until: float = math.inf
    ) -> Iterator[Finding]:
        """Run statements up to the first one that fails: VACUUM relies on the properties.

        The statements before a VACUUM may have taken hours, so the time is checked again.
        """
        for finding, statement in actions:
            if finding.action == "VACUUM" and time.time() >= vacuum_until:
                late = "but upkeep took so long that this would remove files that kept cuts need"
                yield replace(finding, status="deferred", reason=f"{finding.reason}; {late}")
                return
            begun = time.monotonic()
            try:
                self.spark.sql(statement).collect()
            except TABLE_ERRORS as error:
                yield self._outcome(finding, error)
                return
            failpoint.reach("upkeep-done")
            yield replace(finding, status="done", seconds=time.monotonic() - begun)

    def _outcome(self, finding: Finding, error: Exception) -> Finding:
        if is_conflict(error):
            return replace(finding, status="deferred", reason=f"{finding.reason}; a merge committed first")
        return self._failed(finding, error)

    def _failed(self, finding: Finding, error: Exception) -> Finding:
        """Return the finding of an error that concerns one table; raise one that concerns the store."""
        store = explain(error, self.config)
        if store is not None and store.affects_all:
            raise store from error
        error = store or error
        log.debug("upkeep of %s failed", finding.subject, exc_info=error)
        hint = error.hint if isinstance(error, DeltatideError) else None
        return replace(finding, status="failed", reason=first_line(error), hint=hint)

    def _check_owner(self, target: Target, detail: Row) -> None:
        properties = detail["properties"]
        owner = (properties.get(SOURCE_PROPERTY), properties.get(TABLE_PROPERTY))
        if owner != (self.config.source.name, str(target.table)):
            raise TableError(target.table, f"{target.name} belongs to another source or table")

    def _detail(self, name: str) -> Row | None:
        try:
            return self.spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]
        except AnalysisException as error:
            if is_missing(error):
                return None
            raise

    def _age_hours(self, at: datetime) -> float:
        return (self.now.timestamp() - at.timestamp()) / 3600


def _until(replaced: Row | None, hours: float) -> float:
    """Return the time up to which VACUUM keeps the files that a commit replaced (None: no commit)."""
    if replaced is None:
        return math.inf
    return float(replaced["timestamp"].timestamp()) + 3600 * (hours - VACUUM_MARGIN_HOURS)


def _left_to_merge(target: Target, why: str) -> Finding:
    reason = f"{why}; the next merge that has changes of it rebuilds it"
    return Finding(str(target.table), "look", reason, "deferred")


def _renewal(tables: int) -> Finding:
    reason = f"files of {tables} of its tables were rewritten, so newer versions hold the same rows"
    return Finding("newest cut", "RENEW", reason)
