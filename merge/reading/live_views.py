"""Live rows in SQL: temporary views that are current at each query, not as of when they were registered.

A view is the plan of ``Delta table overlaid with what has landed since``, in which nothing is decided yet but
columns and types. Each query decides, in this order:

1. Its optimizer pins the Delta table and the table of cuts, both at their newest versions, within moments of
   each other. The Delta table then is at some manifest F, which nothing in it says. But every cut was
   recorded after the versions that it names, so F is at or after the manifest of each pinned cut, unless it
   was recorded between the two pins. That can't be told, so the newest cut does not count: `after` is the
   manifest of the one before it. It is wrong only if two merges began and ended between two steps of one
   optimizer rule.
2. Its execution first finds the newest manifest, `upto`: one scalar subquery, whose result all that follows
   needs, so all live views of the query show the same manifest. It is found after the pins, so F <= `upto`.
3. A task plans what landed in (`after`, `upto`] as a merge would, others read it, and the overlay is a
   merge's. ``after <= F <= upto`` is enough: applying again what was applied changes nothing (greatest
   position wins).

So a query whose Delta version was pinned long ago pairs it with the cuts of that time. What it needs may have
been removed since; then it fails. An empty Delta table may be one that is being built anew, whatever the cuts
say: then all that landed is read.

Not known here, but to `merge.live`, which looks at the Delta table's history: rows that somebody else has
written to it, or restored, show until the next merge has rebuilt it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.config import Config
from connector.errors import ConfigurationError
from connector.landing.format import CDC
from connector.schema import Column as SourceColumn
from connector.schema import TableName, TableSchema, fold
from merge.apply import Rules
from merge.columns.landed_files import CDC_TYPE, in_columns, schema_ddl
from merge.columns.projection import Projection
from merge.keys import TargetLayout
from merge.lake.control_table import ROWS_READ, cuts_table
from merge.lake.schema import check_layout
from merge.lake.target import ownership_error, table_name
from merge.landing_zone import LandingZone, is_missing
from merge.overlay import ALIVE, as_wide, fresh_rows, overlay
from merge.queries import Begun, begin, columns_with
from merge.reading.named_tables import view_names
from merge.reading.pending import NEWEST, STATE, STATUS, PendingTable, Source, Status
from merge.reconcile import position_of, reconcile
from merge.spark.session_settings import check_strict, plain_settings
from merge.sql_formatting import quoted, text

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from connector.landing.manifest import Manifest

STATUS_VIEW = "_deltatide_status"
SUFFIX = "_live"
TASKS, TASKS_WITHOUT_TABLE = 2, 8
"""How many tasks read what has landed. Spark can't know how much that is, and starts all of them; with
a Delta table, it is what landed since the merge before the last."""

OURS = {"deltatide": "live view"}
"""Metadata of a column of each view, by which it is recognized."""


def register(spark: SparkSession, config: Config, tables: Iterable[str] | None = None) -> list[str]:
    """Create temporary views of live rows, and `_deltatide_status`; return their names.

    For ``public.orders``: `` `public.orders_live` ``, and ``orders_live`` unless several namespaces have a
    table of that name. They have the columns of `merge.live` as of now. `tables`: of these, by default all
    that have landed with a key. Our own views of these names are replaced.

    `_deltatide_status` has a row for each of the tables: `table`, `manifest`, `position`, `committed_at` (of
    the manifest, by the agent's clock), `age_seconds` since then, `exact`, and the `reason` if it is not.

    `ConfigurationError` before Spark 4, if something else has one of these names, or if a Delta table is not
    one to start from; `TableError` if landed types can't become those of the Delta table.
    """
    if not hasattr(DataFrame, "scalar"):
        raise ConfigurationError("live views need Spark 4", hint="merge.live works with Spark 3.5")
    check_strict(spark)
    wanted = None if tables is None else [table_name(table) for table in tables]
    with plain_settings(spark):
        landing, manifest, begun = begin(spark, config, lambda all_: all_ if wanted is None else wanted)
        names = view_names(each.target.table for each in begun)
        by_table = {each.target.table: each for each in begun}
        views = {f"{name}{SUFFIX}": table for name, table in names.items()}
        for name in (*views, STATUS_VIEW):
            _require_free(spark, name)
        source = Source(config.landing, config.source.name)
        newest = _one_row(spark).mapInArrow(source.newest, NEWEST).scalar()
        builder = _Builder(spark, config, landing, manifest, source, newest)
        frames = {table: builder.view(each) for table, each in by_table.items()}
        for name, table in views.items():
            frames[table].createOrReplaceTempView(quoted(name))
        status = Status(source, tuple(by_table))
        _marked(
            _one_row(spark).select(newest.alias("manifest")).mapInArrow(status.rows, STATUS), "table"
        ).createOrReplaceTempView(STATUS_VIEW)
    return [*map(quoted, views), STATUS_VIEW]


def _one_row(spark: SparkSession) -> DataFrame:
    return spark.range(1, numPartitions=1)


def _marked(frame: DataFrame, name: str) -> DataFrame:
    """Mark a column of a view as ours."""
    return frame.withColumn(name, F.col(quoted(name)).alias(name, metadata=OURS))


def _require_free(spark: SparkSession, name: str) -> None:
    if not spark.catalog.tableExists(quoted(name)):
        return
    known = spark.table(quoted(name)).schema.fields
    if not any(field.metadata == OURS for field in known):
        raise ConfigurationError(
            f"a table or view {name!r} exists already, which is not a live view of ours",
            hint=f"drop it, if it is a temporary view (DROP VIEW {quoted(name)}), or change to another schema"
            " (USE ...) if it is one of the catalog's",
        )


@dataclass(frozen=True)
class _Builder:
    """Builds the views of one source; `newest`: the number of the newest manifest when a query runs."""

    spark: SparkSession
    config: Config
    landing: LandingZone
    manifest: Manifest
    source: Source
    newest: Column

    def view(self, begun: Begun) -> DataFrame:
        """Build a table's live rows, of which nothing is read before a query runs."""
        table, target = begun.target.table, begun.target
        state = self.manifest.tables[table]
        assert state.schema_id is not None, "it has landed"
        schema = self.landing.schemas([(table, state.schema_id)])[state.schema_id]
        known: dict[str, str] = {}
        if begun.state is not None:
            self._require_usable(begun, schema)
            known = begun.state.columns
        layout = TargetLayout.of(columns_with(table, known, [schema]), state.key, schema)
        frame = None if begun.state is None else as_wide(target.frame(self.spark), layout)
        landed = self._landed(table, state.schema_id)
        projection = self.landing.projection(table)
        emitted = landed if projection is not None else _widest(landed, layout)
        pending = PendingTable(self.source, table, emitted, only_emitted=projection is not None)
        at = self._state(pending, frame)
        events = self._events(pending, at, projection, TASKS_WITHOUT_TABLE if frame is None else TASKS)
        known_as = schema if projection is not None else emitted
        source = reconcile(
            in_columns(events, known_as, layout.columns),
            layout.key,
            layout.values,
            partial=True,
            raw_keys=layout.raw_keys,
        )
        if frame is None:
            return _marked(fresh_rows(source, layout), CDC)
        kept = frame.where(position_of(F.col(CDC)) >= at["floor"])
        rules = Rules(partial=True, ties=True, soft=False)
        return _marked(overlay(kept, source, layout, rules).where(ALIVE), CDC)

    def _require_usable(self, begun: Begun, schema: TableSchema) -> None:
        """Refuse a Delta table that `merge.live` would ignore."""
        assert begun.state is not None, "checked"
        error = ownership_error(begun.state, begun.target, self.config.source.name, schema.key)
        if error is not None:
            raise error
        if begun.frame is None:
            raise ConfigurationError(
                f"{begun.target.name} is not as merges left it, so live rows can't be built on it",
                hint="merge first, which rebuilds it; merge.live shows live rows without it",
            )
        check_layout(begun.target, begun.state, self.config.source.name, schema)

    def _landed(self, table: TableName, id_: str) -> TableSchema:
        """Read a layout as it landed, without projection."""
        zone = LandingZone(self.spark, self.config.landing.url, self.config.source.name)
        landed = zone.schemas([(table, id_)])[id_]
        return TableSchema(table, landed.columns, landed.key)

    def _state(self, pending: PendingTable, frame: DataFrame | None) -> Column:
        """Build the scalar with the floor and what to read; a query evaluates it once."""
        none = F.lit(None).cast("bigint")
        after, merged = none, F.lit(None).cast("struct<manifest:bigint,epoch:int,position:bigint>")
        cuts = None if frame is None else self._cuts(pending.table)
        if frame is not None and cuts is not None:
            filled = frame.select(F.lit(1)).limit(1).agg(F.count("*").alias("n")).scalar()
            after = F.when(filled > 0, cuts["after"])
            merged = cuts["merged"]
        given = _one_row(self.spark).select(
            self.newest.alias("upto"), after.alias("after"), merged.alias("merged")
        )
        return given.mapInArrow(pending.state, STATE).select(F.struct("*").alias("state")).scalar()

    def _cuts(self, table: TableName) -> Column | None:
        """Build the scalar with `after`, and the newest cut, `merged`; None if there are no cuts yet."""
        at = F.col("tables")[str(table)]
        fields = [F.col(name) for name in ("merged_at", "manifest", "epoch", "position")]
        try:
            cuts = self.spark.table(cuts_table(self.config)).where(
                f"source = {text(self.config.source.name)}"
            )
            _ = cuts.schema
        except AnalysisException as error:
            if not is_missing(error):
                raise
            return None
        newest = cuts.select("merged_at").orderBy(F.desc("merged_at")).limit(ROWS_READ)
        first = newest.agg(F.min("merged_at").alias("first")).scalar()
        row = F.struct(*fields, at["manifest"].alias("done"), at["id"].alias("id"))
        rows = F.sort_array(F.collect_list(row), asc=False)
        found = cuts.where(F.col("merged_at") >= first).agg(rows.alias("rows"))
        last = F.get("rows", F.lit(0))
        merged = F.struct(last["manifest"], last["epoch"], last["position"])
        before = F.filter(
            F.slice("rows", 2, ROWS_READ), lambda cut: cut["id"] == F.get("rows", F.lit(0))["id"]
        )
        after = F.array_max(F.transform(before, lambda cut: cut["done"]))
        merged = F.when(last.isNotNull(), merged)
        return found.select(F.struct(after.alias("after"), merged.alias("merged")).alias("cuts")).scalar()

    def _events(
        self, pending: PendingTable, at: Column, projection: Projection | None, tasks: int
    ) -> DataFrame:
        columns = {column.name: column.type for column in pending.emitted.columns}
        parts = (
            _one_row(self.spark).select(at["parts"].alias("parts")).select(F.explode("parts").alias("part"))
        )
        read = parts.repartition(tasks).mapInArrow(pending.events, schema_ddl({**columns, CDC: CDC_TYPE}))
        return read if projection is None else projection.frame(read, pending.emitted, pending.emitted)


def _widest(landed: TableSchema, layout: TargetLayout) -> TableSchema:
    """Return the landed columns with the types of the target, and then those that only the target has."""
    return TableSchema(landed.table, tuple(_columns(landed, layout)), landed.key)


def _columns(landed: TableSchema, layout: TargetLayout) -> Iterator[SourceColumn]:
    types = {fold(name): type_ for name, type_ in layout.columns.items()}
    for column in landed.columns:
        yield SourceColumn(column.name, column.source_type, types.pop(fold(column.name)))
    for name, type_ in layout.columns.items():
        if fold(name) in types:
            yield SourceColumn(name, "", type_)
