"""Live rows in SQL: temporary views that are current at each query, not as of when they were registered.

A view is the plan of ``Delta table overlaid with what has landed since``, in which nothing is decided yet
but columns and types. Each query decides anew. Let F be the manifest that its version of the Delta table
holds, which nothing in that version says, and ``(after, upto]`` the manifests that the other half reads.

**Invariant:** ``after <= F <= upto``. Then the rows are exactly those after manifest `upto`, however far
`after` is below F: they are what a merge from `after` leaves of a table that is ahead of its frontier, as
after a crash. Events that are applied again lose or tie; a delete, truncate or sweep in between is read
with what it deletes; chunks bring the log since their low watermark along (`merge.plan`). Above F, `after`
would lose events. Below F, `upto` would bring rows back whose delete only the Delta table has seen.

How every query keeps it:

1. The optimizer pins the Delta tables and the table of cuts, each once for the whole query. A cut is
   recorded after the versions that it names, so F is at or after each cut of a table of cuts that was
   pinned first. It is: Delta pins all subqueries of a plan before the plan (`PrepareDeltaScan`), and what
   the cuts say is a scalar subquery of the plan that reads the Delta table. If the order were another, a
   merge that commits between the two pins would be lost. So the newest cut does not count either, as long
   as the landing zone has what landed since the one before it, and the view can show that.
2. Execution first finds the newest manifest: one scalar subquery, the same for all views of the query. So
   they show one manifest together, and since it is found after the pins, F <= `upto` for each of them.
3. A task plans as a merge would what landed in ``(after, upto]``, others read it, and the overlay is a
   merge's. All parts of a view's plan begin with one exchange that holds what that task returns, so one such
   task runs. Spark runs another if it loses what the first returned: with an executor, say. That one plans
   the same, or fails, though manifests were removed or compacted meanwhile; else a row of which only one
   half of the overlay knows would be lost. The parts also share the events that are read, by key
   (`merge.reading.shared_plans`).

A query costs Spark's planning more than its work: with adaptive execution, the rest of a plan is planned
again after each exchange, and each time Delta lists the files of each of its scans by a job. So exchanges
are few, and if the Delta table is small, its overlay is of another form: one task reads the table once, and
what has landed, and joins them, behind the exchange that sends it what was planned.

No subquery waits for another: a JVM runs 16 of them, for all queries, and queries whose subqueries all wait
for others would wait forever. (A view in a query's own subquery still has these two in it. On Spark 4.2, so
has an aggregate without GROUP BY that a query has twice, of one view.)

Merges in the middle: before the pins they are in F, after them in ``(after, upto]``. A frame that was
planned long ago keeps its pins; what it needs may be removed by then, and it fails. Compaction: one task
plans, and the files that it names stay for a day. Retention: as above.

Some settings must be as Spark and Delta have them by default when a query runs, or the halves are of
several states (`REQUIRED`, `STALENESS`). So are those of a write to a data source of version 2 that is not
Delta's: Delta's rule passes over its plan. Not known here, but to `merge.live`, which looks at the Delta
table's history: rows that somebody else has written, and a table that was restored, or dropped, show as
they are until the next merge has rebuilt them. Spark's own cache (``CACHE TABLE``) keeps what a view
showed then; of a Delta table it is not used (`merge.lake.stored_rows`): its rows may be from before `after`.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.config import Config
from connector.errors import ConfigurationError, TableError
from connector.landing.format import CDC
from connector.schema import Column as SourceColumn
from connector.schema import TableName, TableSchema, fold
from merge.apply import Rules
from merge.columns.landed_files import CDC_TYPE, in_columns, schema_ddl
from merge.columns.projection import Projection
from merge.keys import TargetLayout
from merge.lake.control_table import ROWS_READ, newest_cuts
from merge.lake.schema import check_layout
from merge.lake.stored_rows import uncached
from merge.lake.target import table_name
from merge.lake.widened import with_whole_filters
from merge.landing_zone import LandingZone
from merge.overlay import ALIVE, as_wide, fresh_rows, overlay, overlay_at_once
from merge.queries import Begun, begin, columns_with
from merge.reading.named_tables import view_names
from merge.reading.pending import CUT, NEWEST, STATE, STATUS, PendingTable, Source, Status
from merge.reading.shared_plans import Sent, not_older, whole
from merge.reconcile import reconcile
from merge.spark.session_settings import check_strict, get_setting, plain_settings, require_settings
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from connector.landing.manifest import Manifest

log = logging.getLogger(__name__)

STATUS_VIEW = "_deltatide_status"
SUFFIX = "_live"
TASKS, TASKS_WITHOUT_TABLE = 2, 8
"""How many tasks read what has landed. Spark can't know how much that is, and starts all of them; with
a Delta table, it is what landed since the merge before the last."""

SMALL_BYTES = 16 << 20
"""Up to this size of a Delta table, planning a query costs more than reading all of it in one task."""

REQUIRED = {
    "spark.sql.execution.reuseSubquery": "true",
    "spark.sql.exchange.reuse": "true",
    "spark.databricks.delta.stats.skipping": "true",
}
"""Without the first, each half looks for the newest manifest; without the second, each half plans by itself;
without the third, Delta pins no version."""

STALENESS = "spark.databricks.delta.stalenessLimit"
"""With it, Delta may read an older version than the newest, which the cuts know nothing of."""

MERGED = "struct<manifest:bigint,epoch:int,position:bigint,id:string>"

OURS = {"deltatide": "live view"}
"""Metadata of a column of each view, by which it is recognized."""


def register(spark: SparkSession, config: Config, tables: Iterable[str] | None = None) -> list[str]:
    """Create temporary views of live rows, and `_deltatide_status`; return their names.

    For ``public.orders``: `` `public.orders_live` ``, and ``orders_live`` unless several namespaces have such
    a table, registered or not. They have the columns of `merge.live` as of now. `tables`: of these, and
    `TableError` if one can't be shown. By default, of all that have landed with a key, except those that
    can't be shown: they are logged. Our own views of these names are replaced, those of another source, too.

    `_deltatide_status` has a row for each of the tables: `table`, `manifest`, `position`, `committed_at` (of
    the manifest, by the agent's clock), `age_seconds` since then, `exact`, and the `reason` if it is not, or
    if the table has no view.

    A view whose table has no Delta table now, or one that `merge.live` would ignore, reads everything that
    landed, until it is registered again. After a rebuild with other columns, masks or rows, or of a dropped
    Delta table, queries fail until it is. `ConfigurationError` before Spark 4, if something else has one of
    these names, or in a session with settings by which a view's halves would be of several states.
    """
    if not hasattr(DataFrame, "scalar"):
        raise ConfigurationError("live views need Spark 4", hint="merge.live works with Spark 3.5")
    if importlib.util.find_spec("pandas") is None:
        raise ConfigurationError(
            "live views need pandas, by which Spark runs them", hint="pip install 'pandas>=2.2'"
        )
    check_strict(spark)
    _check_pinning(spark)
    wanted = None if tables is None else [*dict.fromkeys(map(table_name, tables))]
    with plain_settings(spark):
        return _register(spark, config, wanted)


def _register(spark: SparkSession, config: Config, wanted: Sequence[TableName] | None) -> list[str]:
    landed: list[TableName] = []
    refused: dict[TableName, TableError] | None = {} if wanted is None else None

    def choose(known: Sequence[TableName]) -> Sequence[TableName]:
        landed.extend(known)
        return known if wanted is None else wanted

    landing, manifest, begun = begin(spark, config, choose, refused)
    source = Source(config.landing, config.source.name)
    newest = _one_row(spark).mapInArrow(source.newest, NEWEST).select(F.struct("*")).scalar()
    builder = _Builder(spark, config, landing, manifest, source, newest, newest_cuts(spark, config))
    built = _built(builder, begun, refused)
    frames = {table: frame for table, (frame, _) in built.items()}
    reasons = {table: _logged(error) for table, error in (refused or {}).items()}
    names = view_names(landed)
    views = {f"{name}{SUFFIX}": table for name, table in names.items() if table in frames}
    for name in (*views, STATUS_VIEW):
        _require_free(spark, name)
    for name in {f"{name}{SUFFIX}" for t in (*frames, *reasons) for name in (t.name, str(t))} - {*views}:
        if _is_ours(spark, name):  # of a table that is refused now, or whose name is ambiguous now
            spark.catalog.dropTempView(name)
    for name, table in views.items():
        frames[table].createOrReplaceTempView(quoted(name))
    pending = {table: its for table, (_, its) in built.items()}
    status = Status(source, (*frames, *reasons), reasons, pending)
    builder.status(status).createOrReplaceTempView(STATUS_VIEW)
    return [*map(quoted, views), STATUS_VIEW]


def _built(
    builder: _Builder, begun: Sequence[Begun], refused: dict[TableName, TableError] | None
) -> dict[TableName, tuple[DataFrame, PendingTable]]:
    """Build views, each with what its queries read; `refused`: as for `begin`."""
    built: dict[TableName, tuple[DataFrame, PendingTable]] = {}
    for each in begun:
        try:
            built[each.target.table] = builder.view(each)
        except TableError as error:
            if refused is None:
                raise
            refused[each.target.table] = error
    return built


def _logged(error: TableError) -> str:
    """Log why a table has no view, and return it."""
    reason = f"it has no view: {error.reason}"
    reason = f"{reason}; hint: {error.hint}" if error.hint else reason
    log.warning("%s: %s", error.table, reason)
    return reason


def _check_pinning(spark: SparkSession) -> None:
    """Refuse a session whose queries read several states."""
    require_settings(spark, REQUIRED, "a view's halves would be of several states")
    if re.fullmatch(r"0?[a-z]*", get_setting(spark, STALENESS) or "0") is None:
        raise ConfigurationError(
            f"{STALENESS} is set in this session: Delta tables would be read as they were before",
            hint=f'spark.conf.unset("{STALENESS}")',
        )


def _one_row(spark: SparkSession) -> DataFrame:
    return spark.range(1, numPartitions=1)


def _marked(frame: DataFrame, name: str) -> DataFrame:
    """Mark a column of a view as ours."""
    return frame.withColumn(name, F.col(quoted(name)).alias(name, metadata=OURS))


def _is_ours(spark: SparkSession, name: str) -> bool | None:
    """Return whether what has a name is a live view of ours; None: there is nothing."""
    if not spark.catalog.tableExists(quoted(name)):
        return None
    return any(field.metadata == OURS for field in spark.table(quoted(name)).schema.fields)


def _require_free(spark: SparkSession, name: str) -> None:
    if _is_ours(spark, name) is False:
        raise ConfigurationError(
            f"a table or view {name!r} exists already, which is not a live view of ours",
            hint=f"drop it, if it is a temporary view (DROP VIEW {quoted(name)}), or change to another schema"
            " (USE ...) if it is one of the catalog's",
        )


@dataclass(frozen=True)
class _Builder:
    """Builds the views of one source; `newest`: the newest manifest when a query runs (`NEWEST`).

    `cuts`: the rows of the control table appended last (`newest_cuts`).
    """

    spark: SparkSession
    config: Config
    landing: LandingZone
    manifest: Manifest
    source: Source
    newest: Column
    cuts: DataFrame | None

    def view(self, begun: Begun) -> tuple[DataFrame, PendingTable]:
        """Build a table's live rows, of which nothing is read before a query runs, and what it then reads."""
        table, target = begun.target.table, begun.target
        state = self.manifest.tables[table]
        assert state.schema_id is not None, "it has landed"
        schema = self.landing.schemas([(table, state.schema_id)])[state.schema_id]
        delta = begun.state if self._is_usable(begun, schema) else None
        known = {} if delta is None else delta.columns
        layout = TargetLayout.of(columns_with(table, known, [schema]), state.key, schema)
        frame = None
        if delta is not None:
            frame = as_wide(with_whole_filters(uncached(self.spark.table(target.name)), delta), layout)
        landed = self._landed(table, state.schema_id)
        projection = self.landing.projection(table)
        emitted = landed if projection is not None else _widest(landed, layout)
        # `schemas` above has judged the names (`check_renamed`).
        id_, generation = (None, 0) if delta is None else (delta.id, delta.generation)
        of, is_narrowed = (self.source, table), projection is not None
        pending = PendingTable(
            *of, emitted, is_narrowed, state.column_names, id_, generation, state.schema_id
        )
        known_as = schema if projection is not None else emitted

        def changes(states: DataFrame) -> DataFrame:
            """Build what has landed, a row for each key, from rows with what to read (`STATE`)."""
            events = in_columns(self._events(pending, states, projection), known_as, layout.columns)
            raw_keys = layout.raw_keys
            return reconcile(events, layout.key, layout.values, partial=True, raw_keys=raw_keys)

        planned = self._planned(pending, is_merged=frame is not None)
        if frame is None or delta is None:
            rows = fresh_rows(changes(planned.repartition(TASKS_WITHOUT_TABLE)), layout)
            return _marked(rows, CDC), pending
        rules = Rules(partial=True, ties=True, soft=False)
        if delta.bytes <= SMALL_BYTES:
            sent = Sent.of(planned)
            states, kept = sent.states(_one_row(self.spark)), sent.not_older(frame).coalesce(1)
            rows = overlay_at_once(kept, changes(states), layout, rules)
        else:
            planned = planned.repartition(TASKS)
            shown = overlay(not_older(frame, planned), whole(changes(planned)), layout, rules)
            rows = shown.where(ALIVE)
        return _marked(rows, CDC), pending

    def status(self, status: Status) -> DataFrame:
        """Build the rows of `_deltatide_status`."""
        merged = F.lit(None).cast(f"map<string,struct<{CUT}>>")
        if self.cuts is not None:
            fields = [name.split()[0] for name in CUT.split(", ")]
            named = F.transform_values("tables", lambda _, at: F.struct(*[at[n].alias(n) for n in fields]))
            newest = (
                self.cuts.select("merged_at", named.alias("merged")).orderBy(F.desc("merged_at")).limit(1)
            )
            merged = newest.select("merged").scalar()
        given = _one_row(self.spark).select(self.newest["manifest"].alias("manifest"), merged.alias("merged"))
        return _marked(given.mapInArrow(status.rows, STATUS), "table")

    def _is_usable(self, begun: Begun, schema: TableSchema) -> bool:
        """Return whether a Delta table is one that `merge.live` would begin with."""
        if begun.state is None or begun.frame is None:
            return False
        try:
            check_layout(begun.target, begun.state, self.config.source.name, schema)
        except TableError:
            return False
        return True

    def _landed(self, table: TableName, id_: str) -> TableSchema:
        """Read a layout as it landed, without projection."""
        zone = LandingZone(self.spark, self.config.landing.url, self.config.source.name)
        landed = zone.schemas([(table, id_)])[id_]
        return TableSchema(table, landed.columns, landed.key)

    def _planned(self, pending: PendingTable, *, is_merged: bool) -> DataFrame:
        """Build the row with the oldest position and what to read (`STATE`), which a query evaluates once."""
        cuts = self._cuts(pending.table) if is_merged else None
        if cuts is None:
            none = F.lit(None).cast("bigint")
            after, last, merged = none, none, F.lit(None).cast(MERGED)
        else:
            after, last, merged = cuts["after"], cuts["last"], cuts["merged"]
        newest = (self.newest[name].alias(name) for name in ("kept", "micros"))
        read = self.newest["manifest"].alias("upto"), after.alias("after"), last.alias("last")
        given = _one_row(self.spark).select(*read, *newest, merged.alias("merged"))
        return given.mapInArrow(pending.state, STATE)

    def _cuts(self, table: TableName) -> Column | None:
        """Build the scalar with the table's frontier in the newest cut, `last`, and in those before, `after`.

        `merged`: the newest cut. None if there are no cuts yet.
        """
        if self.cuts is None:
            return None
        at = F.col("tables")[str(table)]
        fields = [F.col(name) for name in ("merged_at", "manifest", "epoch", "position")]
        row = F.struct(*fields, at["manifest"].alias("done"), at["id"].alias("id")).alias("row")
        newest = self.cuts.select("source", row).orderBy(F.desc("row.merged_at")).limit(ROWS_READ)
        # Of an aggregate without a group, Spark 4.2 would make a subquery of its own (`Sent.of`).
        found = newest.groupBy("source").agg(F.sort_array(F.collect_list("row"), asc=False).alias("rows"))
        cut = F.get("rows", F.lit(0))
        same = F.filter(F.slice("rows", 2, ROWS_READ), lambda row: row["id"] == cut["id"])
        last = F.when(cut["id"].isNotNull(), cut["done"])
        after = F.coalesce(F.array_max(F.transform(same, lambda row: row["done"])), last)
        merged = F.when(cut.isNotNull(), F.struct(*[cut[n] for n in ("manifest", "epoch", "position", "id")]))
        named = F.struct(after.alias("after"), last.alias("last"), merged.alias("merged"))
        return found.select(named.alias("cuts")).scalar()

    def _events(self, pending: PendingTable, planned: DataFrame, projection: Projection | None) -> DataFrame:
        columns = {column.name: column.type for column in pending.emitted.columns}
        read = planned.mapInArrow(pending.events, schema_ddl({**columns, CDC: CDC_TYPE}))
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
