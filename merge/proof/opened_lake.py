"""A lake opened for comparison: its newest cut, its targets, and the landing zone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from connector.config import Config
from connector.errors import GapError, TableError
from connector.landing.manifest import DumpState, Manifest
from connector.schema import TableName, TableSchema
from merge.lake.commits import read_commits
from merge.lake.control_table import Frontier, Frontiers, read_frontiers
from merge.lake.target import Target, TargetState, check_owner, read_state
from merge.lake.widened import with_whole_filters
from merge.landing_zone import LandingZone
from merge.plan import plan_table
from merge.proof.comparison import SHOWN
from merge.shapes.current import targets_at
from merge.spark.log_store import check_log_store
from merge.spark.session_pool import merging_sessions
from merge.spark.unreachable import check_endpoint, explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class ComparedVersion:
    """The version of a Delta table to compare, as of `manifest`; `state`: the table's, read just before.

    `note`: why that is not the version of the last cut.
    """

    state: TargetState
    version: int
    manifest: int
    note: str | None = None


@dataclass(frozen=True)
class OpenedLake:
    """A lake and its landing zone; `newest`: the newest manifest, None if nothing has landed yet."""

    spark: SparkSession
    config: Config
    landing: LandingZone
    frontiers: Frontiers
    newest: Manifest | None
    targets: Mapping[TableName, Target]

    @classmethod
    def read(cls, spark: SparkSession, config: Config, landing: LandingZone) -> OpenedLake:
        """Read the newest manifest and the frontiers."""
        frontiers = read_frontiers(spark, config)
        number = landing.newest(frontiers.newest)
        newest = landing.get(number) if number else None
        targets = targets_at(config, newest) if newest else {}
        return cls(spark, config, landing, frontiers, newest, targets)

    def rows(self, table: TableName) -> DataFrame:
        """Read a table's rows as of the newest cut, without those marked as deleted."""
        target, frontier = self.targets.get(table), self.frontiers.of(table)
        if target is None or frontier.version is None:
            raise TableError(table, "has not been merged yet", hint="merge first: deltatide merge")
        state = read_state(self.spark, target)
        frame = target.at(self.spark, frontier.version)
        return (frame if state is None else with_whole_filters(frame, state)).where(SHOWN)

    def layout(self, table: TableName) -> TableSchema:
        """Return the layout of a captured table as of the newest manifest."""
        state = self.newest.tables.get(table) if self.newest is not None else None
        if state is None or state.schema_id is None:
            raise TableError(table, "has not landed yet", hint="see: deltatide status")
        return self.landing.schemas([(table, state.schema_id)])[state.schema_id]

    def frontier(self, dump: DumpState) -> Frontier:
        """Return a dump's table's frontier, as of the manifest that finished the dump if that is idle."""
        return self.frontier_at(dump.table, dump.finished_in or 0)

    def frontier_at(self, table: TableName, upto: int) -> Frontier:
        """Return a table's frontier, moved on to manifest `upto` if nothing is left to merge up to there.

        If nothing of the table has landed in between, its rows are the same at both: a merge would only
        record that. It has more to do if the last one failed, if rows wait for a column, or if the table has
        columns, masks or rows of its own, which may have been changed. So it has, too, if the table was not
        settled at that manifest: what repairs it may have landed since.
        """
        known = self.frontiers.of(table)
        if known.manifest >= upto or known.version is None or known.error is not None or known.missing != 0:
            return known
        if self.landing.projection(table) is not None:
            return known
        try:
            self.landing.load(known.manifest + 1, upto)
            at = self.landing.get(upto)
            idle = table in at.tables and settled(at, table)
            idle = idle and plan_table(table, self.landing, known.manifest, upto).is_empty
        except GapError:
            return known
        return replace(known, manifest=upto) if idle else known

    def version_of(self, target: Target, upto: int) -> ComparedVersion:
        """Return the version of a Delta table to compare: that of its frontier, which is at manifest `upto`.

        If others have changed its rows since, its newest one. `TableError` if it was replaced.
        """
        frontier, state = self.frontiers.of(target.table), read_state(self.spark, target)
        if state is None or state.id != frontier.id or frontier.version is None:
            raise TableError(
                target.table,
                f"{target.name} was dropped or replaced after the last cut",
                hint="rebuild it from the landing zone: deltatide rebuild " + shlex.quote(str(target.table)),
            )
        check_owner(state, target, self.config.source.name, self.landing.get(upto).tables[target.table].key)
        commits = read_commits(self.spark, target, self.config.source.name, frontier, id_=state.id)
        if commits.why_broken is None:
            return ComparedVersion(state, frontier.version, upto)
        upto = max(upto, commits.manifest or 0)
        return ComparedVersion(state, commits.newest, upto, commits.why_broken)


def settled(manifest: Manifest, table: TableName) -> bool:
    """Return whether, as of a manifest, a table is captured and needs no dump to be complete."""
    needed = (d for d in manifest.dumps_of(table) if d.active and d.reason != "request")
    state = manifest.tables[table]
    return not any(needed) and state.need is None and state.state == "captured"


@contextmanager
def opened(spark: SparkSession, config: Config) -> Iterator[OpenedLake]:
    """Yield the lake, in a session of its own."""
    check_endpoint(spark, config)
    with explained(config), merging_sessions(spark, config) as sessions:
        session = sessions.first
        check_log_store(session, config)
        landing = LandingZone.of(session, config)
        yield OpenedLake.read(session, config, landing)
