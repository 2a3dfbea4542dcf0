"""Merges a table's changes: reads log that has landed since the frontier, and appends what is new."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from connector.errors import GapError, TableError
from connector.landing.format import BEFORE
from connector.landing.manifest import LandedFile
from connector.position import Position
from merge.apply import Written
from merge.lake.control_table import Frontier
from merge.lake.schema import create_or_evolve_target, wanted_columns
from merge.lake.target import TargetState
from merge.plan import NOTHING, Landed, Resumed
from merge.shapes.before_images import old_rows_of
from merge.shapes.changes import append_changes, create_sql, landed_changes
from merge.shapes.shape_job import ShapeJob
from merge.spark.session_settings import applied_settings
from merge.table import settings_for

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChangesJob(ShapeJob):
    """The merge of a table's changes."""

    def is_idle(self, frontier: Frontier) -> bool:
        """Return whether no log has landed since a frontier."""
        try:
            return not self._log(frontier.manifest)[0]
        except TableError:  # unless the Delta table was dropped
            return False

    def write(self, frontier: Frontier, state: TargetState | None) -> tuple[TargetState, int, Written]:
        """Append the changes since a frontier. `TableError` if a manifest since then is missing."""
        files, after = self._log(frontier.manifest)
        if not frontier.manifest:
            files, after = self._fitting(files, state)
        state, written = self._appended(state, files, after)
        return state, sum(file.rows for file in files), written

    def _log(self, after: int) -> tuple[list[LandedFile], Position]:
        """List the log files of the manifests after number `after` that are kept.

        Also returns the position after which their events count: of a block that was compacted since, the
        files may begin with log that had landed by then, and was merged, or left out (`_fitting`).
        `TableError` if a manifest is missing that retention has not removed; from 0, begin after that one
        instead.
        """
        first = self._first_kept(after)
        if first > after + 1 and (after or not self.landing.is_removed(first - 1)):
            log.warning("%s: changes of manifests %d to %d are gone", self.target.name, after + 1, first - 1)
        news = [self.landing.get(number) for number in range(first, self.manifest.number + 1)]
        landed = Landed(self.shape.table, news)
        resumed = Resumed() if first > after + 1 else Resumed.of(self.shape.table, self.landing, after, news)
        found = {file.path: file for manifest in news for file in landed.files(manifest)}
        new = [file for file in found.values() if file.kind == "log" and file.last > resumed.read]
        return new, resumed.read

    def _first_kept(self, after: int) -> int:
        """Return the first manifest after number `after` from which on all are there."""
        first = self.manifest.number + 1
        try:
            self.landing.load(after + 1, self.manifest.number)
            while first > after + 1 and self.landing.get(first - 1):
                first -= 1
        except GapError:
            if after and not self.landing.is_removed(first - 1):
                raise TableError(
                    self.target.table,
                    f"manifest {first - 1} is missing in {self.landing.root}",
                    hint=f"restore it; or copy what you need of {self.target.name} and drop it:"
                    " the next merge begins it after that manifest",
                ) from None
        return first

    def _fitting(
        self, files: list[LandedFile], state: TargetState | None
    ) -> tuple[list[LandedFile], Position]:
        """Drop the first log, up to the last file whose types can't become those of later log.

        Also returns the position of its end, after which events count. By position: a compacted block's new
        files come with its last manifest, after later log that was not joined. If the types were changed back
        within the block, one of these files has log from before and after.
        """
        files, schemas = sorted(files, key=lambda file: file.last), self.schemas(files, state)
        newest = next(iter(schemas.values()))
        later = {newest.id: newest}
        for number in range(len(files), 0, -1):
            schema = schemas[files[number - 1].schema_id]
            if schema.id not in later:
                later[schema.id] = schema
                try:
                    wanted_columns(self.target.table, list(later.values()))
                except TableError as error:
                    log.warning("%s begins after %s: %s", self.target.name, files[number - 1].path, error)
                    return files[number:], files[number - 1].last
        return files, NOTHING

    def _appended(
        self, state: TargetState | None, files: list[LandedFile], after: Position
    ) -> tuple[TargetState, Written]:
        """Create the Delta table or evolve its columns, and append the events after a position."""
        rows, schemas = sum(file.rows for file in files), self.schemas(files, state)
        self.show(rows)
        newest, *others = (replace(schema, key=()) for schema in schemas.values())
        state = create_or_evolve_target(
            self.spark, self.target, state, self.mark, newest, others,
            create=create_sql, comments=self.comments,
        )  # fmt: skip
        old = old_rows_of(self.spark, self.target, state, self.mark, schemas.values())
        if not files:
            return state, Written()
        landed = sum(file.bytes for file in files)
        with applied_settings(self.spark, settings_for(rows, landed, state)):
            columns = {n: t for n, t in state.columns.items() if old is None or n != BEFORE}
            source = landed_changes(self.landing, files, schemas, columns, old, after)
            lowest = min(file.first for file in files)
            return state, append_changes(self.spark, self.target, source, lowest, self.mark)
