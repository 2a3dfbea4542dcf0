"""Explains one row: every event of its key, the row that results, and the row in Delta beside it.

Invariants:

- The row in Delta is compared with the row that results at the manifest up to which the Delta table is
  merged, which may be behind the newest. So a difference is never just a delay: some column, or `_cdc`, is
  not what the landed events make.
- What only the Delta table can know is not compared: rows while old manifests are gone and no full dump has
  ended since, and in rows marked as deleted, columns that no landed event carries. Nor is the commit time of
  a row that a truncate may have deleted, if it has none: in older tables, such rows have none.

Nothing is written. Files whose keys, as their manifests say, do not include this one are not opened; the
others are filtered by key, and Parquet skips row groups by their statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from connector.config import Config
from connector.errors import ConfigurationError
from connector.landing.format import CDC
from connector.schema import TableName, fold
from merge.keys import TargetLayout, key_text
from merge.lake.commits import read_commits
from merge.lake.control_table import Frontier, cuts, frontiers_in, read_frontiers
from merge.lake.schema import wider
from merge.lake.target import (
    Target,
    TargetState,
    manifest_at,
    ownership_error,
    read_state,
    table_name,
    targets_of,
)
from merge.lake.widened import with_whole_filters
from merge.landing_zone import LandingZone
from merge.overlay import as_wide
from merge.proof.sought_key import SoughtKey
from merge.proof.verdicts import TableEvents
from merge.spark.session_settings import (
    ANY_VERSION,
    INTERPRETED,
    applied_settings,
    check_strict,
    plain_settings,
)
from merge.spark.unreachable import check_endpoint
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SCANNED_ROWS = 10_000_000
"""Up to this many landed rows, finding one key costs less than compiling the queries that judge its few
events: of 4 million rows, 6 s instead of 14, and 13 instead of 35 in a new session."""

COMPARED = ("op", "epoch", "lsn", "seq", "committed_at")
"""Fields of `_cdc` compared as they are; raw texts and missing columns are compared in any order."""


@dataclass(frozen=True)
class DeltaRow:
    """The row in Delta: `frame` has it, or is empty. `manifest`: up to which the Delta table is merged.

    `differences`: the columns that differ from what landed up to that manifest; `row` if only one of the two
    rows exists. `not_compared`: why they were not compared, or None. `why_broken`: why the Delta table does
    not continue (`merge.lake.commits`), or None.
    """

    frame: DataFrame
    manifest: int
    differences: tuple[str, ...] = ()
    not_compared: str | None = None
    why_broken: str | None = None


@dataclass(frozen=True)
class Explanation:
    """One row as of a manifest: its `events` (`TableEvents.events`), and the `result`, which may be empty.

    `columns`: with their types. `first`: the oldest manifest kept; `complete`: whether no part of the row
    went with older ones. `delta` None: there is no Delta table, or no cut names its version. `settings`: for
    the session, for reading this many events.
    """

    table: TableName
    kind: str
    key: dict[str, str]
    columns: Mapping[str, str]
    manifest: int
    first: int
    complete: bool
    events: DataFrame
    result: DataFrame
    delta: DeltaRow | None
    settings: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON; values of columns as text, as in `key`."""
        with applied_settings(self.events.sparkSession, self.settings):
            return self._to_dict()

    def _to_dict(self) -> dict[str, Any]:
        delta = None
        if self.delta is not None:
            delta = {
                "manifest": self.delta.manifest,
                "row": self._row(self.delta.frame),
                "differences": list(self.delta.differences),
                "not_compared": self.delta.not_compared,
                "changed_by_others": self.delta.why_broken,
            }
        return {
            "table": str(self.table),
            "key": self.key,
            "manifest": self.manifest,
            "first_manifest": self.first,
            "complete": self.complete,
            "events": self._events(),
            "result": self._row(self.result),
            "delta": delta,
        }

    def _events(self) -> list[dict[str, Any]]:
        plain = [name for name in self.events.columns if name not in ("key", "row", "raw", "committed_at")]
        at = key_text(F.col("committed_at"), "timestamp").alias("committed_at")
        values = self._texts(F.col("row"), F.col("raw")).alias("values")
        found = self.events.select(*plain, at, values).collect()
        return [self._event(row.asDict(recursive=True)) for row in found]

    def _event(self, event: dict[str, Any]) -> dict[str, Any]:
        values = dict(zip(self.columns, event["values"] or (), strict=False))
        carried = {*self.key, *event["carried"]}
        return event | {"values": {name: value for name, value in values.items() if name in carried}}

    def _row(self, frame: DataFrame) -> dict[str, Any] | None:
        columns = F.struct(*[F.col(quoted(name)) for name in self.columns])
        fields = [F.col(CDC)[name].alias(name) for name in ("op", "epoch", "lsn", "seq", "missing")]
        at = key_text(F.col(CDC)["committed_at"], "timestamp").alias("committed_at")
        values = self._texts(columns, F.col(CDC)["raw"]).alias("values")
        found = frame.select(values, F.struct(*fields, at).alias("cdc")).first()
        if found is None:
            return None
        texts = dict(zip(self.columns, found["values"], strict=True))
        return {"values": texts, CDC: found["cdc"].asDict(recursive=True)}

    def _texts(self, row: Column, raw: Column) -> Column:
        """Return the values of a row as text, in the order of the columns."""
        texts = [F.coalesce(raw[name], key_text(row[name], type_)) for name, type_ in self.columns.items()]
        return F.when(row.isNotNull(), F.array(*texts))


def explain(
    spark: SparkSession, config: Config, table: str, key: Sequence[str] | str, *, at: int | None = None
) -> DataFrame:
    """Return every landed event of a key, in order, with its verdict (`merge.proof.verdicts`).

    `key`: a text for each column of the table's key, as ``deltatide dump --keys`` takes them; `at`: only what
    had landed up to this manifest. `ConfigurationError` for a table that has not landed, a key that is none
    of this table's, a manifest that can't be read, or a session that skips files that it can't read.
    """
    return explain_row(spark, config, table, key, at=at).events


def explain_row(
    spark: SparkSession, config: Config, table: str, key: Sequence[str] | str, *, at: int | None = None
) -> Explanation:
    """Explain a row, with the same arguments and errors as `explain`."""
    check_strict(spark)
    check_endpoint(spark, config)
    with plain_settings(spark), applied_settings(spark, ANY_VERSION):
        return _explained(spark, config, table_name(table), [key] if isinstance(key, str) else key, at)


def _explained(
    spark: SparkSession, config: Config, table: TableName, key: Sequence[str], at: int | None
) -> Explanation:
    landing = LandingZone.of(spark, config)
    # Read frontier and version before the manifests, which are then at least as new.
    version = _version(spark, config, table, at)
    manifest = manifest_at(landing, table, at)
    history = TableEvents.read(config, landing, table, manifest.number)
    if version is not None and version.is_foreign(config.source.name, manifest.tables[table].key):
        version = None
    frame = None if version is None else version.read(spark)
    layout = _as_wide_as(history.layout(), frame)
    sought = SoughtKey.of(table, layout, key)
    delta, settings = None, INTERPRETED if history.rows_with(sought) <= SCANNED_ROWS else {}
    if frame is not None and version is not None:
        row = as_wide(frame, layout).where(sought.condition)
        with applied_settings(spark, settings):
            delta = _compared(config, history, version, row, layout, sought)
    return Explanation(
        table,
        manifest.source.kind,
        dict(zip(layout.key, key, strict=True)),
        layout.columns,
        manifest.number,
        history.first,
        history.complete,
        history.events(layout, sought),
        history.row(layout, sought),
        delta,
        settings,
    )


@dataclass(frozen=True)
class _Version:
    """A version of a Delta table, which is merged up to a manifest; `state`: as it is now."""

    target: Target
    state: TargetState
    version: int
    manifest: int
    why_broken: str | None = None

    def read(self, spark: SparkSession) -> DataFrame:
        return with_whole_filters(self.target.at(spark, self.version), self.state)

    def is_foreign(self, source: str, key: Sequence[str]) -> bool:
        """Return whether its rows can't be matched to the source table's."""
        return ownership_error(self.state, self.target, source, key) is not None


def _version(spark: SparkSession, config: Config, table: TableName, at: int | None) -> _Version | None:
    """Return the Delta table's newest version, or the one that the cut of manifest `at` names."""
    frontiers = read_frontiers(spark, config)
    target = targets_of(config, {*frontiers.by_table, table})[table]
    if at is not None:
        row = cuts(spark, config).where(f"manifest = {int(at)}").first()
        recorded = {} if row is None or str(table) in row["gone"] else frontiers_in(row)
        frontier = recorded.get(table, Frontier(at))
        state = None if frontier.version is None else read_state(spark, target)
        if frontier.version is None or state is None or state.id != frontier.id:
            return None
        unfit = frontier.built is not None and not frontier.is_built_with(target.built_with)
        if unfit or frontier.version < state.built_since:
            return None  # it has other columns, or masks
        return _Version(target, state, frontier.version, frontier.manifest)
    frontier, state = frontiers.of(table), read_state(spark, target)
    if state is None:
        return None
    known = frontier if frontier.id == state.id else Frontier(0)
    commits = read_commits(spark, target, config.source.name, known, id_=state.id)
    merged = max(known.manifest, commits.manifest or 0)
    return _Version(target, state, commits.newest, merged, commits.why_broken)


def _as_wide_as(layout: TargetLayout, frame: DataFrame | None) -> TargetLayout:
    """Return a layout with the Delta table's wider types."""
    known = {} if frame is None else {fold(name): type_ for name, type_ in frame.dtypes}
    columns = {
        name: wider(type_, known.get(fold(name), type_)) or type_ for name, type_ in layout.columns.items()
    }
    return TargetLayout(columns, layout.key, layout.raw_keys)


def _compared(
    config: Config,
    history: TableEvents,
    version: _Version,
    row: DataFrame,
    layout: TargetLayout,
    key: SoughtKey,
) -> DeltaRow:
    """Compare the row in Delta with the resulting row at the manifest up to which it is merged."""
    at, merged = version.manifest, history
    if at < history.first:
        why = f"the Delta table is merged up to manifest {at}, and those before {history.first} are gone"
        return DeltaRow(row, at, not_compared=why, why_broken=version.why_broken)
    if at < history.upto:
        try:
            history.landing.check_end(at)
        except ConfigurationError as error:
            return DeltaRow(row, at, not_compared=str(error), why_broken=version.why_broken)
        merged = TableEvents.read(config, history.landing, history.table, at)
    differences = _differences(merged, merged.row(layout, key), row, layout)
    return DeltaRow(row, at, differences, why_broken=version.why_broken)


def _differences(
    history: TableEvents, result: DataFrame, row: DataFrame, layout: TargetLayout
) -> tuple[str, ...]:
    """Name the columns in which the resulting and the actual row differ; each frame has at most one row."""
    both = result.select(_as_struct("result", result)).join(
        row.select(_as_struct("delta", row)), F.lit(True), "full_outer"
    )
    ours, theirs = F.col("result"), F.col("delta")
    partial = not history.complete
    known = F.coalesce(ours[CDC]["missing"], F.array().cast("array<string>"))
    alive = F.lit(not partial) & (theirs[CDC]["op"] != "delete")

    def differs(one: Column, other: Column) -> Column:
        return ~one.eqNullSafe(other)

    def entries(side: Column) -> Column:
        return F.array_sort(F.map_entries(side[CDC]["raw"]))

    checks: dict[str, Column] = {
        name: differs(ours[name], theirs[name]) & (alive | ~F.array_contains(known, name))
        for name in layout.columns
    }
    checks |= {f"{CDC}.{name}": differs(ours[CDC][name], theirs[CDC][name]) for name in COMPARED}
    if history.soft and history.plan.truncates:
        timed = (theirs[CDC]["op"] != "delete") | theirs[CDC]["committed_at"].isNotNull()
        checks[f"{CDC}.committed_at"] &= timed
    checks[f"{CDC}.raw"] = differs(entries(ours), entries(theirs)) & (alive | (F.size(known) == 0))
    missing = differs(F.array_sort(ours[CDC]["missing"]), F.array_sort(theirs[CDC]["missing"]))
    checks[f"{CDC}.missing"] = missing & alive
    one_alone = ours.isNull() != theirs.isNull()
    found = both.select(
        one_alone.alias("alone"),
        theirs.isNotNull().alias("extra"),
        theirs[CDC]["op"].alias("op"),
        F.array_compact(F.array(*[F.when(check, F.lit(name)) for name, check in checks.items()])).alias(
            "names"
        ),
    ).collect()
    return _named(found[0], history) if found else ()


def _named(found: Any, history: TableEvents) -> tuple[str, ...]:
    """Drop differences in what only the Delta table can know."""
    if not found["alone"]:
        return tuple(found["names"])
    kept = history.soft and found["op"] == "delete" and history.full_dump is not None
    only_there = found["extra"] and (kept or not history.complete)
    return () if only_there else ("row",)


def _as_struct(name: str, frame: DataFrame) -> Column:
    return F.struct(*[F.col(quoted(column)) for column in frame.columns]).alias(name)
