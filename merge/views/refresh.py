"""Refreshes one view: runs its query over the versions that the coming cut names, and replaces its rows.

::

    versions of what it reads -> changed since the last refresh? -> query -> one commit -> version

Invariants:

- The query reads exactly the versions that the cut will name, through temporary views of one session: each
  leaf of its analyzed plan must lie in one of them.
- One commit writes rows, layout, and their provenance (the query, and each input's id and version). So a
  refresh is skipped only if the newest commit that wrote rows read the same inputs. An input's newer version
  counts as the same if all commits since keep its rows, as upkeep's do.
- The commit carries a mark like a table's rebuild. Delta skips it if another job has refreshed the view as of
  a later manifest; the view then does not belong to this cut.
- A refresh that fails, or is killed before its commit, leaves the old rows. If it is killed after the commit,
  the next merge names that commit's version or refreshes again.

Always in full: every row is recomputed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from connector.config import Config
from connector.errors import TableError
from connector.landing.manifest import Manifest
from connector.schema import TableName, folded
from merge.apply import LARGE_BYTES, commit_settings
from merge.lake.commits import (
    USER_METADATA,
    Commits,
    Mark,
    keeps_rows_since,
    newest_written,
    read_commits,
    read_history,
    version_is_unchanged,
    version_of,
)
from merge.lake.control_table import Frontier
from merge.lake.retry import OvertakenError, with_retries
from merge.lake.schema import MAPPING, NEEDS_MAPPING
from merge.lake.target import (
    KEY_PROPERTY,
    SHAPE_PROPERTY,
    SOURCE_PROPERTY,
    TABLE_PROPERTY,
    Target,
    TargetState,
    check_owner,
    properties_sql,
    read_state,
    table_id,
)
from merge.landing_zone import LandingZone
from merge.overlay import ALIVE
from merge.reading.query_plans import analyzed, as_subquery, foreign_relation
from merge.report import ViewReport
from merge.spark.session_settings import ANY_VERSION, COMPILED, applied_settings
from merge.sql_formatting import quoted
from merge.table import check_origin
from merge.views.dependencies import PlannedView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IN_UTC = {"spark.sql.session.timeZone": "UTC"}
"""Settings that make a view's rows independent of the session that refreshes it."""

MADE_OF = "view"
"""The field of a commit's user metadata that holds the query and inputs of its rows."""


@dataclass(frozen=True)
class Input:
    """A table or view at the version that the coming cut names; `target.shape` None: current rows."""

    target: Target
    frontier: Frontier

    @property
    def version(self) -> int:
        """Return its version."""
        assert self.frontier.version is not None, "checked before"
        return self.frontier.version

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return its rows, without those that are marked as deleted."""
        frame = self.target.at(spark, self.version)
        return frame.where(ALIVE) if self.target.shape is None else frame


@dataclass(frozen=True)
class Refresh:
    """The refresh of one view as of a manifest, from `frontier`, its state in the last cut."""

    spark: SparkSession
    config: Config
    landing: LandingZone
    manifest: Manifest
    planned: PlannedView
    target: Target
    frontier: Frontier
    inputs: Mapping[TableName, Input]

    def run(self, *, full: bool = False) -> ViewReport:
        """Refresh the view if an input or the query has changed, or always if `full`; durable on return."""
        begun = time.monotonic()
        done = (None if full else self._unchanged()) or with_retries(self._refreshed, self.target.name)
        version, id_, rows = done
        return ViewReport(
            self.target.table,
            self.manifest.number,
            version,
            id=id_,
            refreshed=rows is not None,
            rows=rows,
            seconds=time.monotonic() - begun,
        )

    @property
    def _source(self) -> str:
        return self.config.source.name

    def _made_of(self) -> dict[str, Any]:
        inputs = {str(table): [each.frontier.id, each.version] for table, each in self.inputs.items()}
        return {"query": self.planned.view.definition, "inputs": inputs}

    def _unchanged(self) -> tuple[int, str, None] | None:
        """Return version and id of the Delta table if a refresh would write the same rows, else None."""
        id_ = table_id(self.spark, self.target)
        if id_ is None:
            return None
        since = self.frontier.version or 0 if self.frontier.id == id_ else 0
        history = read_history(self.spark, self.target, since)
        written = newest_written(history, self._source)
        if written is None or written[1].manifest > self.manifest.number:
            return None
        if not self._same_inputs(written[0]):
            return None
        version = written[0]["version"]
        if self.frontier.id == id_ and self.frontier.version is not None:
            version = max(version, self.frontier.version)  # upkeep has renewed it
        return version, id_, None

    def _same_inputs(self, row: Any) -> bool:
        before, now = json.loads(row["userMetadata"]).get(MADE_OF) or {}, self._made_of()
        if before.get("query") != now["query"] or before.get("inputs", {}).keys() != now["inputs"].keys():
            return False
        return all(self._same_rows(each, *before["inputs"][str(t)]) for t, each in self.inputs.items())

    def _same_rows(self, each: Input, id_: str, version: int) -> bool:
        if each.frontier.id != id_ or each.version < version:
            return False
        if each.version == version:
            return True
        history = read_history(self.spark, each.target, version)
        return keeps_rows_since(history, self._source, version, each.version)

    def _refreshed(self) -> tuple[int, str, int | None]:
        """Replace the rows; return version, id, and the number of rows if Delta reports it."""
        state = read_state(self.spark, self.target)
        last = None if state is None else self._commits(state).last
        if last is not None and last.manifest >= self.manifest.number:
            check_origin(self.landing, self.target, last)
        if last is not None and last.manifest > self.manifest.number:
            raise TableError(
                self.target.table,
                f"another job has refreshed it as of manifest {last.manifest} already",
                hint="nothing to do: that job's cut has it",
            )
        mark = Mark(self._source, self.manifest.number, write_id=self.manifest.write_id).rebuild_after(last)
        with self._named_inputs() as names:
            large = sum(self._bytes(each) for each in self.inputs.values()) > LARGE_BYTES
            settings = {**ANY_VERSION, **IN_UTC, **(COMPILED if large else {})}
            with applied_settings(self.spark, settings):
                frame = self._query(names)
                self._write(frame, state, mark)
        history = read_history(self.spark, self.target, self.frontier.version or 0)
        version, id_ = version_of(history, mark), table_id(self.spark, self.target)
        if version is None or id_ is None:
            raise OvertakenError(f"{self.target.name} was refreshed as of a later manifest meanwhile")
        metrics = next(row["operationMetrics"] for row in history if row["version"] == version)
        rows = (metrics or {}).get("numOutputRows")
        return version, id_, int(rows) if rows is not None else 0

    def _commits(self, state: TargetState) -> Commits:
        check_owner(state, self.target, self._source, ())
        known = self.frontier if self.frontier.id == state.id else Frontier(0)
        return read_commits(self.spark, self.target, self._source, known)

    def _bytes(self, each: Input) -> int:
        """Return an input's current size. `TableError` if it lost the state that the cut will name."""
        state = read_state(self.spark, each.target)
        if state is None or state.id != each.frontier.id:
            reason = "was dropped or replaced"
        elif not version_is_unchanged(self.spark, each.target, self._source, each.frontier):
            reason = f"lost its version {each.version} (restored from an older copy, or history cleaned up)"
        else:
            return state.bytes
        hint = "the next merge that has changes of that table rebuilds it"
        raise TableError(self.target.table, f"{each.target.name} {reason}", hint=hint)

    @contextmanager
    def _named_inputs(self) -> Iterator[list[str]]:
        """Create temporary views of the inputs, under their names in the query."""
        names = list(self.planned.inputs)
        try:
            for name in names:
                rows = self.inputs[self.planned.inputs[name]].rows(self.spark)
                rows.createOrReplaceTempView(quoted(name))
            yield names
        finally:
            for name in names:
                self.spark.catalog.dropTempView(name)  # unlike its creation, this takes names as they are

    def _query(self, names: list[str]) -> DataFrame:
        sql = self.planned.view.sql
        frame = self.spark.sql(as_subquery(sql))
        columns = frame.columns
        if len(folded(columns)) < len(columns):
            twice = next(c for n, c in enumerate(columns) if c.lower() in map(str.lower, columns[:n]))
            raise TableError(
                self.target.table,
                f"two of its columns are named {twice!r}",
                hint="name them apart, as in: SELECT a.id AS a_id, b.id AS b_id",
            )
        foreign = foreign_relation(analyzed(self.spark, sql), names)
        if foreign is not None:
            raise TableError(
                self.target.table,
                f"its query reads {foreign}, which is no table or view of this lake",
                hint="a view reads only what belongs to the same cut",
            )
        return frame

    def _write(self, frame: DataFrame, state: TargetState | None, mark: Mark) -> None:
        """Write rows and layout in one commit, which creates the table if there is none (`state`)."""
        settings = commit_settings(self.target, mark)
        settings[USER_METADATA] = json.dumps({**json.loads(mark.to_json()), MADE_OF: self._made_of()})
        mapping = MAPPING if any(NEEDS_MAPPING.search(name) for name in frame.columns) else {}
        if state is None:
            with applied_settings(self.spark, settings):
                self._create(frame, mapping)
            return
        if not mapping.items() <= state.properties.items():
            with applied_settings(self.spark, {USER_METADATA: mark.for_layout_commit().to_json()}):
                alter = f"ALTER TABLE {self.target.name} SET TBLPROPERTIES ({properties_sql(mapping)})"
                self.spark.sql(alter)
        with applied_settings(self.spark, settings):
            writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            writer.saveAsTable(self.target.name)

    def _create(self, frame: DataFrame, mapping: Mapping[str, str]) -> None:
        properties = {
            SOURCE_PROPERTY: self._source,
            TABLE_PROPERTY: str(self.target.table),
            SHAPE_PROPERTY: str(self.target.shape),
            KEY_PROPERTY: "[]",
            **mapping,
        }
        rows = f"deltatide_{uuid.uuid4().hex}"
        frame.createOrReplaceTempView(rows)
        try:
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.target.name} USING DELTA {self.target.located}"
                f"TBLPROPERTIES ({properties_sql(properties)}) AS SELECT * FROM {rows}"
            )
        finally:
            self.spark.catalog.dropTempView(rows)
