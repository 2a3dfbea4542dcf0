"""Brings a table's history (SCD type 2) to a manifest: one MERGE replaces its versions from a position on.

Versions that ended by that position, `since` (`merge.shapes.history_plan`), stay. The events after it
continue from the versions that were open then (`merge.shapes.versions`). For the keys of these events,
everything that the table has from after `since` is replaced: differing versions are updated, new ones
inserted, and obsolete ones deleted. So the history after a manifest does not depend on which merges led
there, and a merge from an older manifest than the table's changes nothing.

Versions are matched by key and the position at which they begin. Delta does not read versions that ended
before `since`: `_valid_from` and `_valid_to` come first in the table, so its statistics cover them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.landing.format import CDC, TRUNCATE
from connector.landing.manifest import LandedFile
from connector.position import Position
from connector.schema import TableSchema
from merge.apply import LARGE_BYTES, Written, commit_settings
from merge.key_pruning import key_conditions
from merge.keys import TargetLayout, keys_equal, same_keys, same_rows, with_raw
from merge.lake.commits import Mark
from merge.lake.target import VECTORS_PROPERTY, Target, TargetState
from merge.lake.widened import WIDENED
from merge.landing_zone import LandingZone
from merge.reconcile import position_of
from merge.shapes.creation import create_shape_sql
from merge.shapes.history_plan import Ended, HistoryPlan
from merge.shapes.versions import (
    FROM,
    POINT_TYPE,
    TO,
    VERSION,
    VERSION_TYPE,
    as_events,
    deletes,
    once,
    true_at_low,
    versions,
)
from merge.spark.local_rows import local_rows
from merge.spark.session_settings import applied_settings
from merge.sql_formatting import (
    data_type,
    listed,
    numbered_struct,
    position_literal,
    quoted,
    text,
    timestamp,
    to_micros,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OBSOLETE = "obsolete"
"""The `op` of versions in the table that are obsolete."""


@dataclass(frozen=True)
class HistorySource:
    """The inputs of one merge's versions: the events of a plan, and the table as the MERGE finds it."""

    landing: LandingZone
    plan: HistoryPlan
    schemas: Mapping[str, TableSchema]
    layout: TargetLayout
    target: DataFrame

    def versions(self) -> DataFrame:
        """Return all versions of the plan's keys, from those open at `since` on, in the table's columns.

        Versions that only the table has are included, with `op` `OBSOLETE`.
        """
        truncates = self._truncates()
        log = once(self._read(self.plan.log).where(F.col(CDC)["op"] != TRUNCATE), self.layout)
        chunks = true_at_low(once(self._chunks(), self.layout), log, self.layout, [at for at, _ in truncates])
        events = log.unionByName(chunks)
        base, later = self._taken_over(), self._later()
        if self.plan.of_known_keys:
            keys = events.alias("target")
            base, later = (
                frame.alias("source").join(keys, same_rows(self.layout), "left_semi")
                for frame in (base, later)
            )
        ends = [
            deletes(_before(events, at).unionByName(base), self.layout, at, F.timestamp_micros(F.lit(micros)))
            for at, micros in truncates
        ]
        ends += [
            self._ghosts(end, events, log, base)
            for end in self.plan.ended
            if not any(_within(end, at) for at, _ in truncates)
        ]
        events = reduce(lambda one, other: one.unionByName(other), ends, events.unionByName(base))
        found = versions(events, self.layout, self.plan.gaps, partial=self.plan.partial)
        return self._with_obsolete(found, later)

    def events(self) -> DataFrame:
        """Return all events of the plan, and maybe some more."""
        return self.landing.events(self.plan.files, self.schemas, self.layout.columns)

    def _read(self, files: Sequence[LandedFile]) -> DataFrame:
        events = self.landing.events(files, self.schemas, self.layout.columns)
        return as_events(events, self.layout).where(f"{_at(CDC)} > {position_literal(self.plan.since)}")

    def _chunks(self) -> DataFrame:
        """Read the chunks; their events get the commit time that the log had reached before them."""
        chunks = self._read(self.plan.chunks)
        rows = [(*at, None if time is None else to_micros(time)) for at, time in self.plan.at.items()]
        times = local_rows(chunks.sparkSession, {"epoch": "int", "lsn": "bigint", "micros": "bigint"}, rows)
        own = F.col(f"source.{CDC}")
        same = (own["epoch"] == F.col("target.epoch")) & (own["lsn"] == F.col("target.lsn"))
        joined = chunks.alias("source").join(F.broadcast(times).alias("target"), same, "left")
        columns = [F.col(f"source.{quoted(name)}") for name in self.layout.columns]
        timed = own.withField("committed_at", F.timestamp_micros("target.micros"))
        return joined.select(*columns, timed.alias(CDC))

    def _truncates(self) -> list[tuple[Position, int | None]]:
        """Return positions and times (in microseconds) of the truncates."""
        files = [file for file in self.plan.log if file.truncates]
        if not files:
            return []
        cdc = F.col(CDC)
        events = self.landing.events(files, self.schemas, {}).where(cdc["op"] == TRUNCATE)
        events = events.where(f"{_at(CDC)} > {position_literal(self.plan.since)}")
        micros = F.unix_micros(cdc["committed_at"])
        found = events.select(position_of(cdc).alias("at"), micros.alias("micros")).distinct().collect()
        return [(Position(*row["at"]), row["micros"]) for row in found]

    def _taken_over(self) -> DataFrame:
        """Return the versions that were open at `since`, as events."""
        since = position_literal(self.plan.since)
        open_then = self.target.where(f"{_at(FROM)} <= {since} AND ({TO} IS NULL OR {_at(TO)} > {since})")
        own, begins = F.col(CDC), F.col(FROM)
        known = {name: begins[name] for name in ("epoch", "lsn", "seq", "committed_at", "seen")}
        return as_events(
            open_then,
            self.layout,
            op=F.lit(VERSION),
            raw=own["raw"],
            unchanged=own["missing"],
            opened_by=own["op"],
            **known,
        )

    def _later(self) -> DataFrame:
        return self.target.where(f"{_at(FROM)} > {position_literal(self.plan.since)}")

    def _ghosts(self, end: Ended, events: DataFrame, log: DataFrame, base: DataFrame) -> DataFrame:
        """Return deletes of keys that a full dump lacks, unless the log has later events of them."""
        names = {name: self.layout.columns[name] for name in self.layout.key}
        key = with_raw(self.layout.key, self.layout.raw_keys)
        cdc = F.col(CDC)
        dumped = self.landing.events(end.chunks, self.schemas, names).select(*key)
        during = (
            (cdc["epoch"] == end.position.epoch) & (cdc["lsn"] > end.position.lsn) & (cdc["lsn"] < end.high)
        )
        known = dumped.unionByName(log.where(during).select(*key)).alias("target")
        keyed = _before(events, end.position).unionByName(base).select(*key, cdc).alias("source")
        absent = keyed.join(known, same_keys(self.layout), "left_anti")
        return deletes(absent, self.layout, end.position, F.expr(timestamp(self.plan.at[end.position[:2]])))

    def _with_obsolete(self, found: DataFrame, later: DataFrame) -> DataFrame:
        """Add the versions that the table has and `found` lacks."""
        columns = [F.col(quoted(name)) for name in (*self.layout.columns, FROM, TO)]
        gone = F.col(CDC).withField("op", F.lit(OBSOLETE)).cast(VERSION_TYPE).alias(CDC)
        typed = [
            column.cast(data_type(type_)).alias(name)
            for column, (name, type_) in zip(
                columns, [*self.layout.columns.items(), (FROM, POINT_TYPE), (TO, POINT_TYPE)], strict=True
            )
        ]
        both = found.unionByName(later.select(*typed, gone))
        row = F.struct(*columns, F.col(CDC))
        begins = position_of(F.col(FROM)).alias("begins")
        obsolete = F.col(CDC)["op"] == OBSOLETE
        rows = both.groupBy(*with_raw(self.layout.key, self.layout.raw_keys), begins)
        best = rows.agg(F.min_by(row, obsolete).alias(CDC))
        return best.select(*[F.col(CDC)[name].alias(name) for name in (*self.layout.columns, FROM, TO, CDC)])


def _at(point: str) -> str:
    return f"({point}.epoch, {point}.lsn, {point}.seq)"


def _before(events: DataFrame, position: Position) -> DataFrame:
    return events.where(f"{_at(CDC)} < {position_literal(position)}")


def _within(end: Ended, at: Position) -> bool:
    return at.epoch == end.position.epoch and end.position.lsn < at.lsn < end.high


def apply_versions(
    spark: SparkSession, target: Target, state: TargetState, source: HistorySource, mark: Mark
) -> Written:
    """Write versions as one commit, durable on return.

    Like `merge.apply.apply`, writes nothing if another job has brought the table further.
    """
    view = f"deltatide_{uuid.uuid4().hex}"
    source.versions().createOrReplaceTempView(view)
    pruned = state.bytes > LARGE_BYTES and source.plan.of_known_keys
    layout, plan = source.layout, source.plan
    restricted = key_conditions(spark, source.events(), layout, plan.rows) if pruned else nullcontext("")
    settings = commit_settings(target, mark) | (WIDENED if state.widened else {})
    try:
        with restricted as conditions, applied_settings(spark, settings):
            written = spark.sql(merge_sql(target, view, layout, plan.since, conditions)).collect()
    finally:
        spark.catalog.dropTempView(view)
    counts = written[0].asDict() if written else {}
    return Written(*(counts.get(f"num_{kind}_rows") for kind in ("inserted", "updated", "deleted")))


def merge_sql(target: Target, view: str, layout: TargetLayout, since: Position, conditions: str = "") -> str:
    """Build the MERGE of versions, in the temporary view `view`, into a table that is right up to `since`."""
    names = [*layout.columns, FROM, TO, CDC]
    compared = [*map(quoted, layout.compared), FROM, TO, f"{CDC}.op"]
    sorted_ = ("array_sort(map_entries({0}._cdc.raw))", "array_sort({0}._cdc.missing)")
    ours, theirs = (
        numbered_struct([*(f"{alias}.{name}" for name in compared), *(s.format(alias) for s in sorted_)])
        for alias in ("source", "target")
    )
    updates = ", ".join(f"{quoted(n)} = source.{quoted(n)}" for n in names if n not in layout.key)
    obsolete = f"source._cdc.op = {text(OBSOLETE)}"
    return f"""
        MERGE INTO {target.name} AS target USING {view} AS source
        ON {keys_equal(layout)} AND {_at(f"source.{FROM}")} = {_at(f"target.{FROM}")}
            AND (target.{TO} IS NULL OR target.{TO}.epoch > {since.epoch}
                OR (target.{TO}.epoch = {since.epoch} AND target.{TO}.lsn >= {since.lsn}L)){conditions}
        WHEN MATCHED AND {obsolete} THEN DELETE
        WHEN MATCHED AND NOT ({ours} <=> {theirs}) THEN UPDATE SET {updates}
        WHEN NOT MATCHED AND NOT {obsolete}
            THEN INSERT ({listed(names)}) VALUES ({", ".join(f"source.{quoted(n)}" for n in names)})"""


create_sql = partial(
    create_shape_sql,
    first={FROM: POINT_TYPE, TO: POINT_TYPE},
    last={CDC: VERSION_TYPE},
    properties={VECTORS_PROPERTY: "true"},
)
"""Builds the statement that creates a history. Deletion vectors keep merges from rewriting whole files."""
