"""The common part of all shapes' merges: their own frontier, before and after a commit.

The control table keeps a shape's frontier beside that of the current rows. So a shape that is added to a
merged table begins with what the landing zone has kept, whatever the table's frontier, and if a merge is
killed between the two, the next one repairs that. No cut is exact while a shape lags.

If somebody else has changed a shape, it is neither merged further nor rebuilt: the landing zone may no longer
have the events that it was made of. The merge reports that, and what to do. The same goes for one that was
dropped amid a merge and created by another job, if the late commit came first: Delta then skips that of the
other job, and what landed before the late one's beginning is missing (`merge.lake.commits`). Or if the late
job has other columns, masks or rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from connector.config import Config
from connector.errors import TableError
from connector.landing.manifest import LandedFile, Manifest
from connector.schema import TableSchema
from merge.apply import Written
from merge.lake.comments import SourceComments, are_newer
from merge.lake.commits import Commits, Mark, read_commits
from merge.lake.control_table import Built, Frontier
from merge.lake.target import Target, TargetState, check_owner, read_state
from merge.landing_zone import LandingZone
from merge.report import TableReport
from merge.shapes.shape import Shape
from merge.table import Beginning, beginning_of, check_origin, idle_frontier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ShapeJob(ABC):
    """The merge of one shape up to a manifest; calls `show` with the number of events to be read.

    `continued`: the rows that it continues; None: none.
    """

    spark: SparkSession
    config: Config
    landing: LandingZone
    manifest: Manifest
    shape: Shape
    target: Target
    show: Callable[[int], None]
    continued: Frontier | None = None

    def merge(self, frontier: Frontier) -> TableReport:
        """Merge what has landed since a frontier; durable on return. Commit conflicts propagate.

        If nothing has, reads only manifests. `TableError` if the Delta table does not continue from its
        frontier. Also raises what `write` raises.
        """
        comments_known = not are_newer(self.manifest.tables[self.shape.table], frontier.manifest)
        idle = frontier.version is not None and comments_known and self.is_idle(frontier)
        if idle and (known := idle_frontier(self.spark, self.target, frontier)) is not None:
            return self.report(known)
        state = self.state()
        job = self
        if state is None:
            frontier = Frontier(0)
        else:
            frontier = self.begun(frontier, state)
            now = self.require_unchanged(frontier, state)
            if now.manifest >= self.manifest.number:
                return self.report(now)
            job = replace(self, continued=replace(frontier, id=state.id) if frontier.manifest else None)
        state, rows, written = job.write(frontier, state)
        return self.report(self.require_unchanged(frontier, state), rows, written)

    @abstractmethod
    def is_idle(self, frontier: Frontier) -> bool:
        """Return whether nothing has landed since a frontier; does not use Spark."""

    @abstractmethod
    def write(self, frontier: Frontier, state: TargetState | None) -> tuple[TargetState, int, Written]:
        """Write what has landed since a frontier; `state` None: create the Delta table.

        Returns its state before its rows were written, the number of events read, and what was written.
        """

    @property
    def key(self) -> tuple[str, ...]:
        """Return the key by which rows are matched."""
        return ()

    @property
    def comments(self) -> SourceComments:
        """Return the source table's comments."""
        table = self.shape.table
        return SourceComments.landed(self.landing, table, self.manifest.tables[table])

    def state(self) -> TargetState | None:
        """Read the Delta table's state; None if there is none. `TableError` if it is not this shape's."""
        state = read_state(self.spark, self.target)
        if state is not None:
            check_owner(state, self.target, self.config.source.name, self.key)
        return state

    @property
    def mark(self) -> Mark:
        """Return the mark of the merge's commit."""
        source, built_with = self.config.source.name, self.target.built_with
        mark = Mark(source, self.manifest.number, write_id=self.manifest.write_id, built_with=built_with)
        return mark if self.continued is None else mark.continuing(self.continued)

    def begins(self, frontier: Frontier, state: TargetState | None) -> Beginning:
        """Return where merging this Delta table begins: its frontier, if that is of this very table."""
        if state is None:
            return Beginning(None)
        if frontier.version is not None and frontier.id == state.id:
            return Beginning(frontier)
        upto = replace(frontier, manifest=self.manifest.number)
        return beginning_of(self.spark, self.config, self.landing, self.target, state.id, upto)

    def begun(self, frontier: Frontier, state: TargetState) -> Frontier:
        """Return the Delta table's frontier: recorded, or from its commits if these are this zone's."""
        begins = self.begins(frontier, state)
        if not begins.trusted:
            raise TableError(
                self.target.table,
                f"no cut names {self.target.name}, and the manifest that it was merged up to was removed",
                hint=self.target.drop_hint,
            )
        return begins.frontier or Frontier(begins.last.manifest if begins.last else 0)

    def require_unchanged(self, frontier: Frontier, state: TargetState) -> Frontier:
        """Return the table's current frontier; `TableError` if others have changed it since a frontier."""
        commits = self.commits(frontier, state)
        if commits.why_broken is not None:
            raise TableError(
                self.target.table,
                f"{self.target.name} is no longer the {self.shape.kind} that we merged: {commits.why_broken}",
                hint=self.target.drop_hint,
            )
        manifest, built = max(frontier.manifest, commits.manifest or 0), Built(self.target.built_with)
        return Frontier(manifest, commits.version, state.id, built=built)

    def schemas(self, files: Sequence[LandedFile], state: TargetState | None) -> dict[str, TableSchema]:
        """Read the schemas of files by id, after the table's newest one.

        `state` None: for a new Delta table. Then columns named in the configuration must exist.
        """
        newest = self.manifest.tables[self.shape.table].schema_id
        if state is None:
            self.landing.check_settings(self.shape.table, newest)
        ids = [newest] if newest is not None else []
        return self.landing.schemas((self.shape.table, id_) for id_ in [*ids, *(f.schema_id for f in files)])

    def commits(self, frontier: Frontier, state: TargetState) -> Commits:
        """Read the table's commits since a frontier; refuse a table of another landing zone."""
        source, built_with = self.config.source.name, self.target.built_with
        commits = read_commits(self.spark, self.target, source, frontier, built_with, id_=state.id)
        if commits.last is not None and commits.last.manifest >= self.manifest.number:
            check_origin(self.landing, self.target, commits.last)
        return commits

    def report(self, frontier: Frontier, rows: int = 0, written: Written | None = None) -> TableReport:
        """Return the report of a merge that has brought the table to a frontier."""
        written = written or Written()
        return TableReport(
            self.target.table,
            max(frontier.manifest, self.manifest.number),
            frontier.version,
            rows=rows,
            inserted=written.inserted,
            updated=written.updated,
            deleted=written.deleted,
            id=frontier.id,
            missing=0,
            built=frontier.built,
        )
