"""Merges a table's history: from the versions at its frontier, and what has landed since.

A history begins with everything that has landed. If a part of that is gone, or has types that can't become
today's, the history begins with the last full dump.
"""

from __future__ import annotations

from dataclasses import dataclass

from connector.errors import GapError, TableError
from connector.schema import TableSchema, fold
from merge.apply import Written
from merge.keys import TargetLayout
from merge.lake.control_table import Frontier
from merge.lake.schema import create_or_evolve_target, wanted_columns
from merge.lake.target import TargetState
from merge.shapes.history import HistorySource, apply_versions, create_sql
from merge.shapes.history_plan import HistoryPlan, plan_beginning, plan_from_last_dump, plan_history
from merge.shapes.shape_job import ShapeJob
from merge.shapes.versions import FROM, TO
from merge.spark.session_settings import applied_settings
from merge.table import settings_for


@dataclass(frozen=True)
class HistoryJob(ShapeJob):
    """The merge of a table's history."""

    def is_idle(self, frontier: Frontier) -> bool:
        """Return whether neither log nor chunks have landed since a frontier."""
        self.landing.load(frontier.manifest + 1, self.manifest.number)
        try:
            plan = plan_history(self.shape.table, self.landing, frontier.manifest, self.manifest.number)
        except GapError:
            return False
        return not plan.news

    def write(self, frontier: Frontier, state: TargetState | None) -> tuple[TargetState, int, Written]:
        """Write the versions since a frontier. `TableError` if manifests since then are gone.

        `GapError` if a new history can't begin: it needs all manifests, or those since a full dump began.
        """
        plan = self._plan(frontier, state)
        self.show(plan.rows)
        idle = frontier.version is not None and not plan.news  # but comments are
        state, written = self._written(plan, state, idle=idle)
        return state, plan.rows, written

    def _written(
        self, plan: HistoryPlan, state: TargetState | None, *, idle: bool
    ) -> tuple[TargetState, Written]:
        """Create the Delta table or evolve its columns, and write the versions of a plan, unless `idle`."""
        plan, schemas = self._keyed(plan, state)
        self._check_names(schemas)
        newest, *others = self._layouts(plan, schemas)
        state = create_or_evolve_target(
            self.spark, self.target, state, self.mark, newest, others,
            create=create_sql, comments=self.comments,
        )  # fmt: skip
        if idle:
            return state, Written()
        own = {name: type_ for name, type_ in state.columns.items() if name not in (FROM, TO)}
        layout = TargetLayout.of(own, self.key, newest)
        with applied_settings(self.spark, settings_for(plan.rows, plan.bytes, state)):
            source = HistorySource(self.landing, plan, schemas, layout, self.target.frame(self.spark))
            return state, apply_versions(self.spark, self.target, state, source, self.mark)

    def _keyed(
        self, plan: HistoryPlan, state: TargetState | None
    ) -> tuple[HistoryPlan, dict[str, TableSchema]]:
        """Drop what landed under another key; also return all schemas, the table's newest first."""
        files = [*plan.files, *(file for end in plan.ended for file in end.chunks)]
        schemas = self.schemas(files, state)
        return plan.of_key(schemas, self.key), schemas

    def _layouts(self, plan: HistoryPlan, schemas: dict[str, TableSchema]) -> list[TableSchema]:
        return [next(iter(schemas.values())), *(schemas[file.schema_id] for file in plan.files)]

    @property
    def key(self) -> tuple[str, ...]:
        """Return the table's key."""
        return tuple(self.manifest.tables[self.shape.table].key)

    def _plan(self, frontier: Frontier, state: TargetState | None) -> HistoryPlan:
        """Plan from a frontier, or from the beginning if there is none."""
        table, upto = self.shape.table, self.manifest.number
        self.landing.load(frontier.manifest + 1, upto)
        if not frontier.manifest:
            return self._fitting(plan_beginning(table, self.landing, upto), state)
        try:
            return plan_history(table, self.landing, frontier.manifest, upto)
        except GapError as error:
            raise TableError(
                self.target.table,
                f"{self.target.name} is at manifest {frontier.manifest}; what landed since is gone: {error}",
                hint=self.target.drop_hint,
            ) from error

    def _fitting(self, plan: HistoryPlan, state: TargetState | None) -> HistoryPlan:
        """Begin with the last full dump if earlier events have types that can't become today's."""
        try:
            wanted_columns(self.target.table, self._layouts(*self._keyed(plan, state)), self.target.drop_hint)
        except TableError:
            later = plan_from_last_dump(self.shape.table, self.landing, self.manifest.number)
            if later is None or later.since == plan.since:
                raise
            return later
        return plan

    def _check_names(self, schemas: dict[str, TableSchema]) -> None:
        taken = {
            column.name for s in schemas.values() for column in s.columns if fold(column.name) in (FROM, TO)
        }
        if taken:
            raise TableError(
                self.target.table,
                f"column {min(taken)!r} has a name that a history needs",
                hint=f'take "history" out of tables."{self.shape.table}".shapes',
            )
