"""Refreshes a view incrementally: replaces only the rows that what changed between two cuts can have changed.

::

    landing files between the cuts -> changed keys of each table
      -> affected keys of the driving table, through the joins
      -> identities of the view's rows made of them -> one MERGE: those rows go, the same recomputed come

Let the lineage of the query be proven (`merge.views.lineage`). The view has the query's rows of an old cut,
whose tables' versions its last commit names, and is to have those of the new cut.

1. *Changed keys.* A merge changes rows only of keys that have events in the landing files after the old cut's
   manifest, up to the new one's (`merge.plan`). So these keys include all that changed, and perhaps others.
2. *Affected keys.* From the last lookup to the first, the rows of its parent that refer to a changed key, at
   the old or the new version, are changed as well. A driving row with no affected key is the same row at both
   versions, and so is all that it looks up: the query makes the same of it.
3. *Identities.* Without groups, these are the affected keys. With groups, they are the groups that the view's
   own query returns if the driving table has only the affected keys: once at the old versions, once at the
   new ones. A group that is neither is made of the same rows as before. (A condition on groups, HAVING, would
   hide some: for such a query nothing is proven.)
4. *Replacing.* Rows of these identities are deleted, and the query's rows of them at the new versions are
   inserted. Whole keys and groups are recomputed; nothing is added to an old value. So all aggregates are
   alike, and a sum of floats is that of some order of its rows, as in a full refresh.

In keys and groups, null equals null: rows whose key is null (with its text in `_cdc.raw`) count as one. Joins
are followed with the equality that the query has.

The MERGE is one commit with the manifest's mark, as each refresh is. It names the version of the view that it
continues. If it turns out that anybody else changed rows in between, or a crash leaves that unchecked, the
next refresh is full. So is one for which anything above is uncertain (`NotIncrementalError`): other inputs, a
table rebuilt, truncated, dumped in full, changed by others or in its layout, manifests that are gone, another
release of Spark; and one after a failure, such as a version whose files are gone. Nothing was written then.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from connector.schema import TableName
from merge.key_pruning import MOST_KEYS, key_conditions
from merge.keys import TargetLayout
from merge.lake.control_table import Frontier
from merge.lake.retry import SPARK_ERRORS
from merge.lake.target import Target, TargetState, read_state
from merge.landing_zone import LandingZone
from merge.reading.query_plans import analyzed, as_subquery
from merge.spark.session_settings import analyzes_late
from merge.sql_formatting import data_type, listed, quoted
from merge.views.changed_keys import changed_keys
from merge.views.dependencies import PlannedView
from merge.views.inputs import Input, named
from merge.views.lineage import Lineage, Lookup, NotIncrementalError, Relation, lineage_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

NO_LITERALS = "it has keys or groups that can't be written as literals"

HOLDING_FAILS: tuple[type[Exception], ...] = (AttributeError, NotImplementedError, *SPARK_ERRORS)
"""Spark Connect before 4.0 has no checkpoints, and platforms without executors of their own refuse them."""


def relations_of(
    spark: SparkSession,
    planned: PlannedView,
    inputs: Mapping[TableName, Input],
    states: Mapping[TableName, TargetState],
) -> list[Relation]:
    """Return what a view's query may name; `states`: of the inputs' Delta tables."""
    relations = []
    for name, table in planned.inputs.items():
        columns = dict(inputs[table].rows(spark).dtypes)
        key = () if inputs[table].target.shape else tuple(states[table].key)
        relations.append(Relation(name, columns, key if columns.keys() >= set(key) else ()))
    return relations


def proven_lineage(
    planned: PlannedView, plan: str, output: StructType, relations: Sequence[Relation]
) -> Lineage:
    """Return the lineage of a view's query, by its analyzed plan; `NotIncrementalError` if unproven."""
    if len(set(planned.inputs.values())) < len(planned.inputs):
        raise NotIncrementalError("it reads a table under two names")
    types = {each.name: each.dataType.simpleString() for each in output.fields}
    return lineage_of(plan, planned.view.sql, types, relations)


def why_full(spark: SparkSession, planned: PlannedView, inputs: Mapping[TableName, Input]) -> str | None:
    """Return why a view's query can't be refreshed incrementally; None if it can."""
    states = {name: read_state(spark, each.target) for name, each in inputs.items()}
    found = {name: state for name, state in states.items() if state is not None}
    if len(found) < len(states):
        return None
    relations = relations_of(spark, planned, inputs, found)
    with named(spark, {name: inputs[table].rows(spark) for name, table in planned.inputs.items()}):
        output = spark.sql(as_subquery(planned.view.sql)).schema
        plan = analyzed(spark, planned.view.sql)
    try:
        proven_lineage(planned, plan, output, relations)
    except NotIncrementalError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class IncrementalRefresh:
    """One incremental refresh of a view, whose query has this lineage and these columns (`output`).

    `inputs`: as of the new cut; `states`: of their Delta tables. `former`: their frontiers in the old cut, by
    name. `until`: what to do when it has ended.
    """

    spark: SparkSession
    landing: LandingZone
    source: str
    planned: PlannedView
    target: Target
    inputs: Mapping[TableName, Input]
    states: Mapping[TableName, TargetState]
    former: Mapping[str, Frontier]
    lineage: Lineage
    output: StructType
    until: ExitStack = field(default_factory=ExitStack)

    def run(self) -> None:
        """Write one commit, with the marks that are set in the session, durable on return.

        `NotIncrementalError` if nothing was written, since what has changed is not known or is too much.
        """
        with self.until:
            changed = {name: self._changed(name) for name in self._names}
            affected = self._held(self._affected(changed))
            output = {each.name: each.dataType.simpleString() for each in self.output.fields}
            only = self._only(affected, self._types(self.lineage.driving), self.lineage.key)
            if self.lineage.grouped:
                answers = [self._answer(inputs, only) for inputs in (self._before(changed), self._now())]
                groups = [answer.select(*_columns(self.lineage.identity)) for answer in answers]
                identities = self._held(_union(groups).distinct())
                only = self._only(identities, output, self.lineage.identity)
                fresh = only.among(self._answer(self._now()))
            else:
                fresh = self._answer(self._now(), only)
                if self.lineage.identity != self.lineage.key:
                    renamed = affected.toDF(*self.lineage.identity)
                    only = self._only(renamed, output, self.lineage.identity)
            self._replace(only, fresh)

    @property
    def _names(self) -> list[str]:
        return [self.lineage.driving, *(lookup.name for lookup in self.lineage.lookups)]

    def _input(self, name: str) -> Input:
        return self.inputs[self.planned.inputs[name]]

    def _former(self, name: str) -> Frontier:
        return self.former[str(self.planned.inputs[name])]

    def _key(self, name: str) -> list[str]:
        return self.states[self.planned.inputs[name]].key

    def _types(self, name: str) -> dict[str, str]:
        return self.states[self.planned.inputs[name]].columns

    def _changed(self, name: str) -> DataFrame | None:
        state = self.states[self.planned.inputs[name]]
        since, now = self._former(name), self._input(name)
        return changed_keys(self.spark, self.landing, self.source, since, now, state)

    def _now(self) -> dict[str, DataFrame]:
        return {name: self._input(name).rows(self.spark) for name in self._names}

    def _before(self, changed: Mapping[str, DataFrame | None]) -> dict[str, DataFrame]:
        """Return all rows of the old cut; of unchanged tables those of the new one, which are the same."""
        return {name: self._versions(name, changed)[0].rows(self.spark) for name in self._names}

    def _versions(self, name: str, changed: Mapping[str, DataFrame | None]) -> list[Input]:
        now, version = self._input(name), self._former(name).version
        return [now] if changed[name] is None or version is None else [now.at(version), now]

    def _affected(self, changed: Mapping[str, DataFrame | None]) -> DataFrame:
        """Return the driving table's keys of which the query may make other rows now."""
        keys = {name: [] if frame is None else [frame] for name, frame in changed.items()}
        for lookup in reversed(self.lineage.lookups):
            if keys[lookup.name]:
                keys[lookup.parent] += self._referring(lookup, _union(keys[lookup.name]), changed)
        found = keys[self.lineage.driving]
        if not found:  # what has changed is in no row of the query
            nothing = self._input(self.lineage.driving).rows(self.spark).where("false")
            found = [nothing.select(*_columns(self.lineage.key))]
        return _union(found).distinct()

    def _referring(
        self, lookup: Lookup, keys: DataFrame, changed: Mapping[str, DataFrame | None]
    ) -> list[DataFrame]:
        """Return the keys of a lookup's parent rows that refer to some of its keys, before or now."""
        own, its = ([pair[side] for pair in lookup.pairs] for side in (0, 1))
        looked_up = keys.select(*_columns(own)).distinct().toDF(*its)
        versions = (each.rows(self.spark) for each in self._versions(lookup.parent, changed))
        found = (_semi(rows, looked_up, its, nulls=False) for rows in versions)
        return [rows.select(*_columns(self._key(lookup.parent))) for rows in found]

    def _only(self, keys: DataFrame, types: Mapping[str, str], names: Sequence[str]) -> _Only:
        """Return a restriction to keys; it holds until the refresh has ended."""
        if (count := keys.count()) > MOST_KEYS:
            raise NotIncrementalError("too many of its rows are affected")
        of_types = {name: data_type(types[name]) for name in names}
        keys = keys.select(*[F.col(quoted(name)).cast(type_).alias(name) for name, type_ in of_types.items()])
        layout = TargetLayout(types, tuple(names), ())
        try:
            conditions = self.until.enter_context(key_conditions(self.spark, keys, layout, count))
        except UnicodeDecodeError:  # over Spark Connect, which brings no text that is no UTF-8
            raise NotIncrementalError(NO_LITERALS) from None
        if conditions and keys.alias("target").where(f"true{conditions}").count() < count:
            # A text that is no UTF-8, such as CAST(X'FF' AS STRING), is another one as a literal.
            raise NotIncrementalError(NO_LITERALS)
        return _Only(keys, tuple(names), conditions)

    def _answer(self, rows: Mapping[str, DataFrame], only: _Only | None = None) -> DataFrame:
        """Return the query's answer over these rows, of the driving table `only` some."""
        driving = self.lineage.driving
        rows = {**rows, driving: rows[driving] if only is None else only.among(rows[driving])}
        with named(self.spark, rows):
            return self._stored(self.spark.sql(as_subquery(self.planned.view.sql)))

    def _stored(self, frame: DataFrame) -> DataFrame:
        """Return the same frame, analyzed now: over Spark Connect, the names in it would change meaning."""
        name = f"deltatide_{uuid.uuid4().hex}"
        frame.createOrReplaceTempView(name)
        self.until.callback(self.spark.catalog.dropTempView, name)
        return self.spark.table(name)

    def _held(self, frame: DataFrame) -> DataFrame:
        """Compute a frame of keys once, where the platform can; otherwise it is computed at each use.

        Spark Connect's client returns a checkpoint as a frame of the active session, which has no other's.
        """
        if analyzes_late(self.spark) and SparkSession.getActiveSession() is not self.spark:
            return self._stored(frame)
        try:
            return frame.localCheckpoint()
        except HOLDING_FAILS:
            return self._stored(frame)

    def _deletable(self, only: _Only) -> DataFrame:
        """Return the identities of which to delete rows: one that is null throughout only if it has rows.

        Delta joins source and target and takes for matched what fulfills the condition; so does an identity
        of nulls beside the nulls that an outer join puts in place of a missing row. Then it fails.
        """
        null = reduce(and_, (F.col(quoted(name)).isNull() for name in only.names))
        if only.keys.where(null).isEmpty() or not self.target.frame(self.spark).where(null).isEmpty():
            return only.keys
        return only.keys.where(~null)

    def _replace(self, only: _Only, fresh: DataFrame) -> None:
        """Delete the view's rows of some identities and insert fresh ones, in one commit."""
        names = [each.name for each in self.output.fields]
        is_fresh = f"deltatide_{uuid.uuid4().hex}"
        gone = [
            F.col(quoted(each.name)) if each.name in only.names else F.lit(None).cast(each.dataType)
            for each in self.output.fields
        ]
        deletes = self._deletable(only).select(
            *[value.alias(name) for value, name in zip(gone, names, strict=True)],
            F.lit(False).alias(is_fresh),
        )
        inserts = fresh.select(*_columns(names), F.lit(True).alias(is_fresh))
        deletes.unionByName(inserts).createOrReplaceTempView(is_fresh)
        self.until.callback(self.spark.catalog.dropTempView, is_fresh)
        equal = " AND ".join(f"target.{quoted(name)} <=> source.{quoted(name)}" for name in only.names)
        values = ", ".join(f"source.{quoted(name)}" for name in names)
        self.spark.sql(
            f"MERGE INTO {self.target.name} AS target USING {is_fresh} AS source"
            f" ON NOT source.{is_fresh} AND {equal}{only.conditions}"
            " WHEN MATCHED THEN DELETE"
            f" WHEN NOT MATCHED AND source.{is_fresh} THEN INSERT ({listed(names)}) VALUES ({values})"
        ).collect()


@dataclass(frozen=True)
class _Only:
    """A restriction to rows with one of these keys; null equals null.

    `conditions`: implied by it, on the rows of `target` alone, by which files are skipped.
    """

    keys: DataFrame
    names: tuple[str, ...]
    conditions: str

    def among(self, rows: DataFrame) -> DataFrame:
        """Return the rows that have one of the keys."""
        pruned = rows.alias("target").where(f"true{self.conditions}")
        return _semi(pruned, self.keys, self.names, nulls=True)


def _semi(rows: DataFrame, keys: DataFrame, names: Sequence[str], *, nulls: bool) -> DataFrame:
    """Return the rows that have one of the keys; `nulls`: whether null equals null."""
    same = F.lit(True)
    for name in names:
        ours, theirs = (F.col(f"{frame}.{quoted(name)}") for frame in ("target", "source"))
        same = same & (ours.eqNullSafe(theirs) if nulls else ours == theirs)
    return rows.alias("target").join(F.broadcast(keys).alias("source"), same, "left_semi")


def _columns(names: Iterable[str]) -> list[Column]:
    return [F.col(quoted(name)) for name in names]


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.union(other), frames)
