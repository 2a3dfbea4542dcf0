"""Merges one table: turns its plan into changes, one commit, and a frontier that is known to continue.

Reads the table's history after the commit, not before: one query then shows what became of the commit, and
whether anyone else has changed the table since the merge's starting frontier.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from connector.config import Config
from connector.errors import TableError
from connector.landing.format import CDC
from connector.landing.manifest import Manifest
from connector.schema import TableName, TableSchema
from merge.apply import LARGE_BYTES, Rules, Written, apply
from merge.change_set import Groups, changes, column_groups, first_changes, with_deleted_at
from merge.keys import TargetLayout
from merge.lake.comments import SourceComments
from merge.lake.commits import OVERTAKEN, Commits, Mark, is_from_landing_zone, read_commits
from merge.lake.control_table import AS_LANDED, BUILT, Built, Frontier, cuts_table
from merge.lake.retry import SPARK_ERRORS, OvertakenError, is_lost_file
from merge.lake.schema import check_layout, cluster_again, create_or_evolve_target
from merge.lake.target import Target, TargetState, built_otherwise, read_state
from merge.landing_zone import LandingZone
from merge.missing_columns import IncompleteRows, count_incomplete, request_missing, request_missing_again
from merge.overlay import as_wide, overlay
from merge.plan import TablePlan
from merge.reconcile import DELETED_AT
from merge.report import TableReport
from merge.spark.session_settings import (
    ANY_VERSION,
    COMPILED,
    ONE_TASK,
    PLANNED_ONCE,
    REWRITTEN,
    applied_settings,
)
from merge.sql_formatting import text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

FEW_ROWS = 20_000
"""With up to this many events, on a small table, queries are interpreted."""

SMALL_BYTES = 256 << 10
"""Up to this size, a table is merged in one task, if little is read."""

LITTLE_BYTES = 4 << 20
"""Of landing files: few events may be large, and the end of a full dump reads the keys of many chunks."""

TINY_BYTES = 32 << 10
"""Up to this size, files are rewritten whole; each merge leaves that many bytes behind until VACUUM."""


def settings_for(rows: int, landed: int, state: TargetState) -> Mapping[str, str]:
    """Return the settings for reading this many events and writing to a table in this state.

    `landed`: bytes of all files that are read, including those whose events do not count.
    """
    if rows > FEW_ROWS or max(landed, state.bytes) > LARGE_BYTES:
        return {**ANY_VERSION, **COMPILED}
    tasks = ONE_TASK if state.bytes <= SMALL_BYTES and landed <= LITTLE_BYTES else {}
    return {**ANY_VERSION, **tasks, **(REWRITTEN if state.bytes <= TINY_BYTES else {})}


@dataclass(frozen=True)
class Merged:
    """The result of merging one table; `why_broken`: why it can't be relied on, or None.

    `last`: the greatest mark among the table's commits.
    """

    report: TableReport
    why_broken: str | None
    last: Mark | None = None


def check_origin(landing: LandingZone, target: Target, last: Mark | None) -> bool:
    """Refuse a Delta table whose greatest mark shows that it was merged from another landing zone.

    Return whether it certainly was merged from this one.
    """
    from_here = is_from_landing_zone(landing, last)
    if last is not None and from_here is False:
        raise TableError(
            target.table,
            f"{target.name} was merged up to manifest {last.manifest} of another landing zone,"
            f" or that manifest is missing in {landing.root}",
            hint=target.drop_hint,
        )
    return bool(from_here)


def recorded_frontiers(
    spark: SparkSession, config: Config, table: TableName, id_: str, upto: int
) -> list[Frontier]:
    """Return a Delta table's frontiers up to a manifest, from all cuts, newest version first."""
    if not upto:
        return []
    cuts, name = cuts_table(config), text(str(table))
    as_landed = f"named_struct('fingerprint', {text(AS_LANDED.fingerprint)}, 'generation', 0L)"
    built = (
        f"CASE WHEN map_contains_key(built_with, {name}) THEN built_with[{name}]"
        f" WHEN built_with IS NOT NULL THEN {as_landed} END"
    )
    if "built_with" not in spark.table(cuts).columns:  # as an earlier release created it
        built = f"CAST(NULL AS {BUILT})"
    found = spark.sql(
        f"SELECT at.version, max(at.manifest) AS manifest, max(at.missing) AS missing, max(built) AS built"
        f" FROM (SELECT tables[{name}] AS at, {built} AS built FROM {cuts}"
        f" WHERE source = {text(config.source.name)})"
        f" WHERE at.id = {text(id_)} AND at.manifest <= {upto} AND at.version IS NOT NULL"
        " GROUP BY at.version ORDER BY at.version DESC"
    ).collect()
    return [
        Frontier(
            row["manifest"], row["version"], id_, row["missing"], built=row["built"] and Built(*row["built"])
        )
        for row in found
    ]


@dataclass(frozen=True)
class Beginning:
    """Where to begin merging a Delta table that the newest cuts don't name.

    `frontier`: the last one that an older cut recorded for it. None: there is none, so begin at its own
    marks, the greatest of which is `last`. Unless these certainly are this landing zone's (`trusted`), none
    of its rows counts: rows from an earlier zone, at later positions, would win over this zone's dump.
    """

    frontier: Frontier | None
    last: Mark | None = None
    trusted: bool = True


def beginning_of(
    spark: SparkSession, config: Config, landing: LandingZone, target: Target, id_: str, frontier: Frontier
) -> Beginning:
    """Find where the merge of the Delta table `id_` begins, from cuts up to `frontier`'s manifest.

    Refuse a table that no cut knows and that was merged from another landing zone.
    """
    found = recorded_frontiers(spark, config, target.table, id_, frontier.manifest)
    if found:
        return Beginning(found[0])
    last = read_commits(spark, target, config.source.name, Frontier(0)).last
    return Beginning(None, last, check_origin(landing, target, last))


def beginning_of_another(
    spark: SparkSession, config: Config, target: Target, id_: str | None, upto: int
) -> Frontier:
    """Return where merging begins if the Delta table is now `id_` (None: gone), not the one of its frontier.

    Where it is recorded: then a late job has recorded the former one after it. Else from the beginning.
    """
    known = [] if id_ is None else recorded_frontiers(spark, config, target.table, id_, upto)
    if known:
        return known[0]
    log.warning(
        "%s: its Delta table was dropped or replaced; rebuilding it from the landing zone", target.table
    )
    return Frontier(0)


def check_again(
    spark: SparkSession,
    config: Config,
    landing: LandingZone,
    target: Target,
    frontier: Frontier,
    manifest: Manifest,
) -> None:
    """Raise the error that still blocks a table, before reading all that it has to catch up with."""
    state, schema_id = read_state(spark, target), manifest.tables[target.table].schema_id
    if state is None:
        return
    if frontier.version is None:
        beginning_of(spark, config, landing, target, state.id, frontier)
    if schema_id is not None:
        newest = landing.schemas([(target.table, schema_id)])[schema_id]
        check_layout(target, state, config.source.name, newest)


def idle_frontier(spark: SparkSession, target: Target, frontier: Frontier) -> Frontier | None:
    """Return the frontier of a table of which nothing has landed since; None if it must be merged even so.

    Refuse a Delta table that was not built with the configured columns, masks and rows. One whose version is
    known to be is not looked at: what others have made of it since is seen when something of it lands.
    """
    known = frontier.is_built_with(target.built_with) and not frontier.disputed
    if known and frontier.error is None:
        return frontier
    state = read_state(spark, target)
    if state is None:  # what was built otherwise was dropped to be built anew
        return frontier if frontier.is_built_with(target.built_with) else None
    if state.built_with != target.columns:
        raise built_otherwise(state, target)
    if state.id != frontier.id or (frontier.version or 0) < state.built_since:
        return None  # another job has rebuilt it
    if frontier.built is not None and not frontier.is_built_with(target.built_with):
        return None  # somebody has restored it
    return replace(frontier, built=frontier.built or Built(target.built_with, state.generation))


def not_as_recorded(target: Target, before: int) -> TableError:
    """Build the error for a table that is not what its frontier names, with nothing that landed to merge."""
    return TableError(
        target.table,
        f"{target.name} was dropped, restored or rebuilt since it was merged, and manifest {before}, after"
        " which it is merged again, was removed",
        hint="merge again once another manifest has landed: that builds it anew, or finds it as it is",
    )


def is_lost(spark: SparkSession, target: Target, version: int) -> bool:
    """Return whether files of a version are gone; reads them all."""
    try:
        with applied_settings(spark, ANY_VERSION):
            # No statistics answer this. In Delta 4.0, a write to "noop" can't read deletion vectors.
            target.at(spark, version).selectExpr(f"max(xxhash64({CDC}.op))").collect()
    except SPARK_ERRORS as error:
        return is_lost_file(error)
    return False


@dataclass(frozen=True)
class Base:
    """The rows that a rebuild starts from: those in a Delta table's `version` that satisfy `where`."""

    target: Target
    version: int
    where: str = "true"

    def rows(self, spark: SparkSession, layout: TargetLayout) -> DataFrame:
        """Return the rows in the columns of a layout."""
        return as_wide(self.target.at(spark, self.version), layout, marked=True).where(self.where)


@dataclass(frozen=True)
class TableJob:
    """The merge of one table by one plan, into a Delta table in the given `state`; `mark`: for its commit.

    `asks`: whether to request rows that lack a column from the agent.
    """

    spark: SparkSession
    config: Config
    landing: LandingZone
    target: Target
    plan: TablePlan
    schemas: Mapping[str, TableSchema]
    state: TargetState
    mark: Mark
    asks: bool = True

    @classmethod
    def prepared(
        cls,
        spark: SparkSession,
        config: Config,
        landing: LandingZone,
        target: Target,
        plan: TablePlan,
        state: TargetState | None,
        *,
        asks: bool = True,
        like: TargetState | None = None,
    ) -> TableJob:
        """Create the Delta table (`state` None), or evolve its columns to the plan's.

        `like`: a Delta table whose rows it must hold, too: it gets that table's columns and names.
        """
        schemas = landing.schemas((plan.table, id_) for id_ in plan.all_schema_ids)
        plan = plan.of_key(schemas)
        newest, *others = (schemas[id_] for id_ in plan.schema_ids)
        if state is None:
            landing.check_settings(plan.table, plan.state.schema_id)
        write_id = landing.get(plan.upto).write_id
        mark = Mark(config.source.name, plan.upto, write_id=write_id, built_with=target.built_with)
        comments = SourceComments.landed(landing, plan.table, plan.state)
        ready = create_or_evolve_target(spark, target, state, mark, newest, others, like, comments=comments)
        mark = replace(mark, generation=ready.generation)
        return cls(spark, config, landing, target, plan, schemas, ready, mark, asks)

    @property
    def layout(self) -> TargetLayout:
        """Return the Delta table's layout."""
        newest = self.schemas[self.plan.schema_ids[0]]
        return TargetLayout.of(self.state.columns, self.plan.state.key, newest)

    def merge(self, frontier: Frontier, mark: Mark | None = None, base: Base | None = None) -> Merged:
        """Apply the plan, which begins at the frontier; with a rebuild's mark, rewrite all rows.

        A rebuild starts from the rows of `base`, or from none. `OvertakenError` if Delta skipped the commit,
        or if a merge of a later manifest came first.
        """
        rebuild, begins_anew = mark is not None, frontier.version is None
        mark = mark or (self.mark if begins_anew else self.mark.continuing(frontier))
        written, missing = Written(), IncompleteRows()
        replaces_all = rebuild or (self.state.empty and begins_anew)
        settings = settings_for(self.plan.rows, self.plan.bytes, self.state)
        if base is not None:  # whose size is not known
            settings = {**ANY_VERSION, **COMPILED}
        since = Frontier(0) if rebuild else frontier
        few = not rebuild and ONE_TASK.items() <= settings.items()  # of a rebuild, all history is read
        with applied_settings(self.spark, ONE_TASK if few else {}):
            if self.plan.all or self.plan.sweeps or rebuild:
                with applied_settings(self.spark, settings):
                    written, missing = self._apply(mark, replaces_all, base)
            with applied_settings(self.spark, PLANNED_ONCE):
                commits = read_commits(
                    self.spark, self.target, mark.source, since, mark.built_with, id_=self.state.id
                )
        # Then Delta skipped our commit.
        fenced = commits.last is not None and commits.last.generation > mark.generation
        if (fenced or commits.why_broken is not None) and self._is_built_otherwise():
            raise TableError(
                self.plan.table,
                f"{self.target.name} was rebuilt with other columns, masks or rows while it was merged",
                hint="stop merges that run with the former configuration",
            )
        skipped = bool(commits.marks) and mark not in commits.marks
        if rebuild and (skipped or commits.why_broken == OVERTAKEN):
            raise OvertakenError(f"{self.target.name} was merged up to a later manifest meanwhile")
        if commits.last is not None and commits.last.manifest >= self.plan.upto:
            check_origin(self.landing, self.target, commits.last)
        manifest = max(self.plan.upto, commits.manifest or 0)
        known_rows = frontier.missing == 0 and (frontier.version or 0) >= self.state.built_since
        complete = base is None if replaces_all else known_rows
        known = manifest == self.plan.upto and missing.left == 0 and complete
        report = TableReport(
            self.plan.table,
            manifest,
            commits.version,
            rows=self.plan.rows,
            inserted=written.inserted,
            updated=written.updated,
            deleted=written.deleted,
            id=self.state.id,
            missing=0 if known or commits.why_broken else self._count_missing(commits),
            requested=missing.requested,
            built=Built(mark.built_with or self.target.built_with, mark.generation),
        )
        why_broken = commits.why_broken or ("its properties were set back" if fenced else None)
        return Merged(report, why_broken, commits.last)

    def _is_built_otherwise(self) -> bool:
        """Return whether the Delta table now has other columns, masks or rows than this merge writes."""
        state = read_state(self.spark, self.target)
        return state is not None and state.built_with != self.target.columns

    def _apply(self, mark: Mark, replaces_all: bool, base: Base | None) -> tuple[Written, IncompleteRows]:
        """Write the changes; return what was written, and how many of the rows lack a column.

        `replaces_all`: together with the rows of `base`, the changes are the whole table and overwrite it.
        Otherwise they are merged, even into an empty table: another job may have rebuilt it meanwhile.
        """
        touches_any_row = bool(self.plan.truncates or self.plan.sweeps)
        now = self.landing.get(self.plan.upto).committed_at
        frame = None if base is None else with_deleted_at(base.rows(self.spark, self.layout), now)
        if not replaces_all and (self.plan.partial or touches_any_row):  # else its rows decide nothing
            frame = self.target.frame(self.spark)
        first = replaces_all and frame is None
        soft = self.target.soft
        groups = column_groups(self.landing, self.plan, self.schemas, self.layout)
        missing = IncompleteRows(self.plan.rows if self.plan.partial else 0)
        source = self._changes(frame, groups, soft=soft, first=first)
        if soft:
            source = with_deleted_at(source, now)
        if self.plan.partial and self.asks:
            # Their values are not read for that: of hundreds of columns, that would cost as much as merging.
            lacking = source if frame is None else self._changes(frame, groups, soft=soft, values=())
            missing = request_missing(self.landing, self.plan, lacking, self.layout, frame)
        marked = DELETED_AT in self.state.structs[CDC]
        rules = Rules(
            self.plan.partial, self.plan.chunks, soft, touches_any_row, replaces_all, marked, groups
        )
        if replaces_all and frame is not None:
            source = overlay(frame, source, self.layout, rules)
        rows = self.plan.rows
        written = apply(self.spark, self.target, self.state, source, self.layout, rules, mark, rows)
        if replaces_all:
            cluster_again(self.spark, self.target, self.mark, self.state)
        return written, missing

    def _changes(
        self,
        target: DataFrame | None,
        groups: Groups,
        *,
        soft: bool,
        first: bool = False,
        values: Sequence[str] | None = None,
    ) -> DataFrame:
        known = (self.landing, self.plan, self.schemas, self.layout)
        if first and not self.config.table(self.plan.table).key:
            return first_changes(*known, soft=soft, groups=groups)
        return changes(*known, target, soft=soft, groups=groups, values=values)

    def request_missing_again(self) -> int:
        """Request all rows that lack a column; return their number."""
        frame = self.target.frame(self.spark)
        return request_missing_again(self.landing, self.plan.table, frame, self.layout)

    def _count_missing(self, commits: Commits) -> int:
        with applied_settings(self.spark, ANY_VERSION):  # its rows may have been the same for weeks
            return count_incomplete(self.target.at(self.spark, commits.version))
