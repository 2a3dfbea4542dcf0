"""Refreshes one view: runs its query over the versions that the coming cut names, and replaces its rows.

::

    versions of what it reads -> changed since the last refresh? -> query, of all or of what changed
      -> one commit -> version

Invariants:

- The query reads exactly the versions that the cut will name, through temporary views of one session: each
  leaf of its analyzed plan must lie in one of them.
- One commit writes rows, layout, and their provenance (the query, each input's id and version, and Spark's
  release). So a refresh is skipped only if the newest commit that wrote rows read the same inputs. An input's
  newer version counts as the same if all commits since keep its rows, as upkeep's do.
- The commit carries a mark like a table's rebuild. Delta skips it if another job has refreshed the view as of
  a later manifest; the view then does not belong to this cut.
- A refresh that fails, or is killed before its commit, leaves the old rows. If it is killed after the commit,
  the next merge names that commit's version or refreshes again.

In full, all rows are computed and replaced. Where it is provably the same, only those that can have changed
(`merge.views.incremental`). Such a commit names the version that it continues, and counts only if nobody else
changed rows in between: others may commit while it is computed, and Delta would keep their rows.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from connector.config import Config
from connector.errors import TableError
from connector.landing.manifest import Manifest
from connector.schema import TableName, folded
from merge.apply import LARGE_BYTES, commit_settings
from merge.lake.commits import (
    USER_METADATA,
    Commits,
    Mark,
    alters_columns,
    has_rows_of,
    is_version_of,
    keeps_rows_since,
    newest_written,
    read_commits,
    read_history,
    version_is_unchanged,
    version_of,
)
from merge.lake.control_table import Frontier
from merge.lake.retry import (
    BEING_CREATED,
    TABLE_ERRORS,
    OvertakenError,
    causes,
    described,
    is_conflict,
    with_retries,
)
from merge.lake.schema import MAPPING, NEEDS_MAPPING, type_features
from merge.lake.target import (
    KEY_PROPERTY,
    SHAPE_PROPERTY,
    SOURCE_PROPERTY,
    TABLE_PROPERTY,
    VECTORS_PROPERTY,
    Target,
    TargetState,
    built_otherwise,
    check_owner,
    properties_sql,
    read_state,
    table_id,
)
from merge.lake.widened import WIDENED
from merge.landing_zone import LandingZone
from merge.reading.query_plans import analyzed, as_subquery, foreign_relation
from merge.report import ViewReport
from merge.spark.session_settings import ANY_VERSION, COMPILED, ONE_TASK, WHOLE_PLANS, applied_settings
from merge.table import SMALL_BYTES, check_origin
from merge.views.dependencies import PlannedView
from merge.views.incremental import IncrementalRefresh, proven_lineage, relations_of
from merge.views.inputs import Input, named
from merge.views.lineage import NotIncrementalError
from merge.views.view import MADE_OF, provenance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

IN_UTC = {"spark.sql.session.timeZone": "UTC"}
"""Settings that make a view's rows independent of the session that refreshes it."""

VECTORS = {VECTORS_PROPERTY: "true"}
"""Few changed rows don't rewrite whole files."""


@dataclass(frozen=True)
class _Written:
    """Our newest commit that wrote a view's rows: its version, mark, and provenance.

    `recorded`: whether the view's entry in the last cuts is of these rows.
    """

    version: int
    mark: Mark
    made_of: Mapping[str, Any]
    recorded: bool = False


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
        done = None if full else self._unchanged()
        if done is None:
            done = with_retries(lambda: self._refreshed(full=full), self.target.name)
        return replace(done, seconds=time.monotonic() - begun)

    @property
    def _source(self) -> str:
        return self.config.source.name

    def _made_of(self) -> dict[str, Any]:
        inputs = {str(table): [each.frontier.id, each.version] for table, each in self.inputs.items()}
        return {"query": self.planned.view.definition, "inputs": inputs, "spark": self.spark.version}

    def _report(self, version: int, id_: str, **more: Any) -> ViewReport:
        return ViewReport(self.target.table, self.manifest.number, version, id=id_, **more)

    def _unchanged(self) -> ViewReport | None:
        """Return a report without a refresh if one would write the same rows, else None."""
        id_ = table_id(self.spark, self.target)
        written = None if id_ is None else self._written(id_)
        if id_ is None or written is None or not self._same_inputs(written):
            return None
        version = self.frontier.version if written.recorded else None  # upkeep may have renewed it
        return self._report(written.version if version is None else version, id_)

    def _still_recorded(self) -> ViewReport | None:
        """Return a report without a refresh if the last cut is of this manifest and names the rows of now.

        For a view that another job has since refreshed as of a later manifest.
        """
        at, id_ = self.frontier, table_id(self.spark, self.target)
        is_current = at.manifest == self.manifest.number and at.error is None
        if not is_current or id_ is None or at.id != id_ or at.version is None:
            return None
        history = read_history(self.spark, self.target, at.version)
        found = newest_written([row for row in history if row["version"] <= at.version], self._source)
        if found is None or found[1].manifest > at.manifest or not is_version_of(history, self._source, at):
            return None
        written = _Written(found[0]["version"], found[1], provenance(found[0]), recorded=True)
        return self._report(at.version, id_) if self._same_inputs(written) else None

    def _written(self, id_: str) -> _Written | None:
        """Return our newest commit that wrote the view's rows; None if its rows may be others."""
        since = self.frontier.version or 0 if self.frontier.id == id_ else 0
        history = read_history(self.spark, self.target, since, self._source)
        found = newest_written(history, self._source)
        if found is None or found[1].manifest > self.manifest.number:
            return None
        made_of = provenance(found[0])
        # A cut records a version only after its commit was checked. If that is not there any more, or another
        # one, or ours of a later manifest, which the cut could not know, files were restored from a copy.
        at = self.frontier
        recorded = (
            at.id == id_
            and at.version is not None
            and found[0]["version"] <= at.version
            and found[1].manifest <= at.manifest
            and is_version_of(history, self._source, at)
        )
        written = _Written(found[0]["version"], found[1], made_of, recorded)
        return written if recorded or self._continues(written) else None

    def _continues(self, written: _Written) -> bool:
        """Return whether nobody else changed rows between an incremental commit and what it continues."""
        follows = written.made_of.get("follows")
        if follows is None:
            return True
        history = read_history(self.spark, self.target, follows)
        return keeps_rows_since(history, self._source, follows, written.version - 1)

    def _unchanged_until(self, written: _Written) -> int:
        """Return the last manifest up to which nothing that the view reads had changed since our commit.

        A cut that still names the commit says so.
        """
        return max(written.mark.manifest, self.frontier.manifest if written.recorded else 0)

    def _same_inputs(self, written: _Written) -> bool:
        before, now, at = written.made_of, self._made_of(), self._unchanged_until(written)
        if before.get("query") != now["query"] or before.get("inputs", {}).keys() != now["inputs"].keys():
            return False
        known = ((each, *before["inputs"][str(table)]) for table, each in self.inputs.items())
        return all(self._same_rows(each, Frontier(at, version, id_)) for each, id_, version in known)

    def _same_rows(self, each: Input, before: Frontier) -> bool:
        if each.frontier.id != before.id or each.version < (before.version or 0):
            return False
        history = read_history(self.spark, each.target, before.version or 0)
        altered = alters_columns(history, before.version or 0, each.version)
        return not altered and has_rows_of(history, self._source, before, each.version)

    def _refreshed(self, *, full: bool) -> ViewReport:
        """Refresh the rows, incrementally if so configured, possible, and not to be `full`."""
        state = read_state(self.spark, self.target)
        last = None if state is None else self._commits(state).last
        if last is not None and last.manifest >= self.manifest.number:
            check_origin(self.landing, self.target, last)
        if last is not None and last.manifest > self.manifest.number:
            if not full and (recorded := self._still_recorded()) is not None:
                return recorded
            raise TableError(
                self.target.table,
                f"another job has refreshed it as of manifest {last.manifest} already",
                hint="nothing to do: that job's cut has it",
            )
        mark = Mark(self._source, self.manifest.number, write_id=self.manifest.write_id).rebuild_after(last)
        states = {table: self._state_of(each) for table, each in self.inputs.items()}
        inputs = {table: replace(each, state=states[table]) for table, each in self.inputs.items()}
        bytes_ = sum(each.bytes for each in states.values())
        scaled = COMPILED if bytes_ > LARGE_BYTES else ONE_TASK if bytes_ <= SMALL_BYTES else {}
        settings: dict[str, str] = {**ANY_VERSION, **IN_UTC, **WHOLE_PLANS, **scaled}
        if any(each.widened for each in states.values()):
            settings |= WIDENED
        with applied_settings(self.spark, settings):
            in_full = full or state is None or not self.planned.view.incremental
            written = None if in_full or state is None else self._written(state.id)
            known = replace(self, inputs=inputs)
            reason = None if written is None else known._incrementally(written, states, mark)
            if written is not None and reason is None:
                done = self._committed(mark, incremental=True)
                if self._continues(_Written(done.version or 0, mark, self._continuing(written))):
                    return done
                reason = "somebody else changed its rows meanwhile"
            if written is not None:  # a commit of which nothing was heard must not stand for this one
                state, mark = read_state(self.spark, self.target), mark.rebuild_after(mark)
            rows = {name: inputs[table].rows(self.spark) for name, table in self.planned.inputs.items()}
            with named(self.spark, rows):
                frame, _ = self._query()
                self._write(frame, state, mark)
        return replace(self._committed(mark), full_because=reason)

    def _continuing(self, written: _Written) -> dict[str, Any]:
        return {**self._made_of(), "follows": written.version}

    def _incrementally(
        self, written: _Written, states: Mapping[TableName, TargetState], mark: Mark
    ) -> str | None:
        """Refresh what has changed since our last commit, in one commit; or write nothing and return why."""
        try:
            refresh = self._incremental(written, states)
            with applied_settings(self.spark, self._commit_settings(mark, self._continuing(written))):
                refresh.run()
        except NotIncrementalError as error:
            return str(error)
        except TABLE_ERRORS as error:
            if is_conflict(error):
                raise
            what = f"incremental refresh of {self.target.name}"
            return " caused by ".join(
                [f"it failed: {described(error, what, whole=False)[1]}", *causes(error)]
            )
        return None

    def _incremental(self, written: _Written, states: Mapping[TableName, TargetState]) -> IncrementalRefresh:
        """Return the incremental refresh after our last commit. `NotIncrementalError` if there is none."""
        made_of, now = written.made_of, self._made_of()
        if any(made_of.get(name) != now[name] for name in ("query", "spark")):
            raise NotIncrementalError("its query or Spark's release has changed")
        if made_of["inputs"].keys() != now["inputs"].keys():
            raise NotIncrementalError("it reads other tables")
        at = self._unchanged_until(written)
        if at >= self.manifest.number:
            raise NotIncrementalError("a table was rebuilt at the same manifest")
        relations = relations_of(self.spark, self.planned, self.inputs, states)
        rows = {name: self.inputs[table].rows(self.spark) for name, table in self.planned.inputs.items()}
        with named(self.spark, rows):
            frame, plan = self._query()
            output = frame.schema
        if _layout(output) != _layout(self.spark.table(self.target.name).schema):
            raise NotIncrementalError("its columns have changed")
        lineage = proven_lineage(self.planned, plan, output, relations)
        former = {name: Frontier(at, version, id_) for name, (id_, version) in made_of["inputs"].items()}
        return IncrementalRefresh(
            self.spark, self.landing, self._source, self.planned, self.target, self.inputs, states, former,
            lineage, output,
        )  # fmt: skip

    def _committed(self, mark: Mark, *, incremental: bool = False) -> ViewReport:
        """Report on the commit with this mark; `OvertakenError` if Delta skipped it.

        Delta also skips it after another job's commit with the same mark, which counts if it read the same.
        """
        history = read_history(self.spark, self.target, self.frontier.version or 0)
        version, id_ = version_of(history, mark), table_id(self.spark, self.target)
        if version is None or id_ is None:
            raise OvertakenError(f"{self.target.name} was refreshed as of a later manifest meanwhile")
        row = next(row for row in history if row["version"] == version)
        found = provenance(row)  # the mark is the same, but what did that job read, and who has checked it?
        unchecked = found.pop("follows", None) is not None and not incremental
        if unchecked or (found and found != self._made_of()):
            raise OvertakenError(f"{self.target.name} was refreshed by another job as of the same manifest")
        metrics = row["operationMetrics"] or {}
        rows = metrics.get("numTargetRowsInserted" if incremental else "numOutputRows")
        return self._report(version, id_, refreshed=True, incremental=incremental, rows=int(rows or 0))

    def _commits(self, state: TargetState) -> Commits:
        check_owner(state, self.target, self._source, ())
        known = self.frontier if self.frontier.id == state.id else Frontier(0)
        return read_commits(self.spark, self.target, self._source, known)

    def _state_of(self, each: Input) -> TargetState:
        """Return an input's current state. `TableError` if it lost the version that the cut will name.

        Also if it was rebuilt with other columns, masks or rows since this job looked at it.
        """
        state = read_state(self.spark, each.target)
        if state is None or state.id != each.frontier.id:
            reason = "was dropped or replaced"
        elif not version_is_unchanged(self.spark, each.target, self._source, each.frontier):
            reason = f"lost its version {each.version} (restored from an older copy, or history cleaned up)"
        elif state.built_with != each.target.columns:
            raise built_otherwise(state, each.target)
        elif each.version < state.built_since:
            reason = f"was rebuilt with other columns, masks or rows after version {each.version}"
        else:
            return state
        hint = "the next merge that has changes of that table rebuilds it"
        raise TableError(self.target.table, f"{each.target.name} {reason}", hint=hint)

    def _query(self) -> tuple[DataFrame, str]:
        """Return the query's answer over the named inputs, and its analyzed plan."""
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
        plan = analyzed(self.spark, sql)
        foreign = foreign_relation(plan, self.planned.inputs)
        if foreign is not None:
            raise TableError(
                self.target.table,
                f"its query reads {foreign}, which is not a table or view of this lake",
                hint="a view reads only what belongs to the same cut",
            )
        return frame, plan

    def _write(self, frame: DataFrame, state: TargetState | None, mark: Mark) -> None:
        """Write rows and layout in one commit, which creates the table if there is none (`state`)."""
        settings = self._commit_settings(mark, self._made_of())
        mapping = MAPPING if any(NEEDS_MAPPING.search(name) for name in frame.columns) else {}
        if state is None:
            with applied_settings(self.spark, settings):
                self._create(frame, mapping)
            return
        types = (each.dataType.simpleString() for each in frame.schema.fields)
        lacking = {**VECTORS, **mapping, **type_features(types, state)}
        if not lacking.items() <= state.properties.items():
            with applied_settings(self.spark, {USER_METADATA: mark.for_layout_commit().to_json()}):
                alter = f"ALTER TABLE {self.target.name} SET TBLPROPERTIES ({properties_sql(lacking)})"
                self.spark.sql(alter)
        with applied_settings(self.spark, settings):
            writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            writer.saveAsTable(self.target.name)

    def _commit_settings(self, mark: Mark, made_of: Mapping[str, Any]) -> dict[str, str]:
        metadata = json.dumps({**json.loads(mark.to_json()), MADE_OF: made_of})
        return {**commit_settings(self.target, mark), USER_METADATA: metadata}

    def _create(self, frame: DataFrame, mapping: Mapping[str, str]) -> None:
        properties = {
            SOURCE_PROPERTY: self._source,
            TABLE_PROPERTY: str(self.target.table),
            SHAPE_PROPERTY: str(self.target.shape),
            KEY_PROPERTY: "[]",
            **VECTORS,
            **mapping,
        }
        rows = f"deltatide_{uuid.uuid4().hex}"
        frame.createOrReplaceTempView(rows)
        try:
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.target.name} USING DELTA {self.target.located}"
                f"TBLPROPERTIES ({properties_sql(properties)}) AS SELECT * FROM {rows}"
            )
        except AnalysisException as error:
            if self.target.folder is None or BEING_CREATED not in str(error):
                raise
            with suppress(AnalysisException):  # no Delta table: other files, or another job is creating it
                self.spark.sql(f"CREATE TABLE {self.target.name} USING DELTA {self.target.located}")
                raise OvertakenError(
                    f"{self.target.name}: {self.target.folder} already had a table"
                ) from error
            raise
        finally:
            self.spark.catalog.dropTempView(rows)


def _layout(schema: StructType) -> list[tuple[str, str]]:
    return [(each.name, each.dataType.simpleString()) for each in schema.fields]
