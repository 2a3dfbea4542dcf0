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
   merge's. All parts of a view's plan begin with one exchange, or subquery, that holds what that task
   returns, so one such task runs. Spark runs another if it loses what the first returned: with an executor,
   say. That one plans the same, or fails, though manifests were removed or compacted meanwhile; else a row of
   which only one half of the overlay knows would be lost. The parts also share the events that are read, by
   key (`merge.reading.shared_plans`).

A query costs Spark's planning more than its work: with adaptive execution, the rest of a plan is planned
again after each exchange, and each time Delta lists the files of each of its scans by a job. Each use of a
subquery is optimized and planned by itself, though it runs once. So both are few, and if the Delta table is
small, its overlay is of another form: one task reads the table once, and what has landed, and joins them. If
few tables are small, there is no exchange either: the subquery of point 2 reads the cuts, and its task plans
for all of these tables (`merge.reading.pending_tables`), since it can't know which of them the query has.
Delta has pinned its tables by then as well.

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
from functools import cached_property
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
from merge.overlay import ALIVE, as_wide, fresh_rows, overlay, overlay_at_once, with_field_of_deletes
from merge.queries import Begun, begin, columns_with
from merge.reading.named_tables import view_names
from merge.reading.pending import NEWEST, RECORDED, STATE, PendingTable, Source
from merge.reading.pending_tables import PLANNED, PendingTables
from merge.reading.shared_plans import Sent, not_older, not_older_than, whole
from merge.reading.view_status import CUT, STATUS, Status
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

TOGETHER = 16
"""Up to so many small tables, one task plans what each of them reads, though a query may have only one: that
takes less than an exchange, by which the parts of a view would share what a task of its own plans."""

FAR_BEHIND = 1000
"""How many manifests a table may be behind the others for that: its queries read them, others' need not."""

REQUIRED = {
    "spark.sql.execution.reuseSubquery": "true",
    "spark.sql.exchange.reuse": "true",
    "spark.databricks.delta.stats.skipping": "true",
}
"""Without the first, each half looks for the newest manifest; without the second, each half plans by itself;
without the third, Delta pins no version."""

STALENESS = "spark.databricks.delta.stalenessLimit"
"""With it, Delta may read an older version than the newest, which the cuts know nothing of."""

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
    cuts = newest_cuts(spark, config)
    shown = _shown(_Tables(spark, config, landing, manifest, source), begun, refused)
    builder = _Builder(spark, source, cuts, _together(shown))
    built = {each.pending.table: (builder.view(each), each.pending) for each in shown}
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


def _shown(
    tables: _Tables, begun: Sequence[Begun], refused: dict[TableName, TableError] | None
) -> list[_Shown]:
    """Decide what views of tables show; `refused`: as for `begin`."""
    shown: list[_Shown] = []
    for each in begun:
        try:
            shown.append(tables.shown(each))
        except TableError as error:
            if refused is None:
                raise
            refused[each.target.table] = error
    return shown


def _together(shown: Sequence[_Shown]) -> tuple[PendingTable, ...]:
    """Choose the tables for which one task plans, whichever of them a query has."""
    newest = max((each.merged for each in shown), default=0)
    chosen = [each.pending for each in shown if each.is_small and each.merged >= newest - FAR_BEHIND]
    return tuple(chosen) if len(chosen) <= TOGETHER else ()


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
class _Shown:
    """What a view shows: what has landed of a table (`pending`) over its Delta table, `frame`, if it has one.

    `known_as`: the layout of events as they are read, and projected. `is_small`: the Delta table is.
    `merged`: the manifest up to which it was merged. `soft`: deletes.
    """

    pending: PendingTable
    layout: TargetLayout
    known_as: TableSchema
    projection: Projection | None
    frame: DataFrame | None
    is_small: bool
    merged: int
    soft: bool


@dataclass(frozen=True)
class _Tables:
    """The tables of one source, as of manifest `manifest`."""

    spark: SparkSession
    config: Config
    landing: LandingZone
    manifest: Manifest
    source: Source

    def shown(self, begun: Begun) -> _Shown:
        """Return what the view of a table shows. `TableError` if it can't be shown."""
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
        is_small = delta is not None and delta.bytes <= SMALL_BYTES
        merged = begun.frontier.manifest
        return _Shown(pending, layout, known_as, projection, frame, is_small, merged, target.soft)

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


@dataclass(frozen=True)
class _Builder:
    """Builds the views of one source, of which nothing is read before a query runs.

    `cuts`: the rows of the control table appended last (`newest_cuts`). `together`: what one task plans.
    """

    spark: SparkSession
    source: Source
    cuts: DataFrame | None
    together: tuple[PendingTable, ...]

    @cached_property
    def newest(self) -> Column:
        """Build the scalar with the newest manifest when a query runs (`NEWEST`), or `PLANNED`."""
        if self.together:
            of = PendingTables(self.source, self.together)
            found = self._recorded_or_null().mapInArrow(of.planned, PLANNED)
        else:
            found = _one_row(self.spark).mapInArrow(self.source.newest, NEWEST)
        return found.select(F.struct("*")).scalar()

    def view(self, shown: _Shown) -> DataFrame:
        """Build a table's live rows."""
        rows = self._rows(shown)
        return _marked(with_field_of_deletes(rows, soft=True) if shown.soft else rows, CDC)

    def _rows(self, shown: _Shown) -> DataFrame:
        layout, frame, one_row = shown.layout, shown.frame, _one_row(self.spark)

        def changes(states: DataFrame) -> DataFrame:
            """Build what has landed, a row for each key, from rows with what to read (`STATE`)."""
            events = in_columns(_events(shown, states), shown.known_as, layout.columns)
            raw_keys = layout.raw_keys
            return reconcile(events, layout.key, layout.values, partial=True, raw_keys=raw_keys)

        if frame is None:
            planned = self._planned(shown.pending, is_merged=False).repartition(TASKS_WITHOUT_TABLE)
            return fresh_rows(changes(planned), layout)
        rules = Rules(partial=True, ties=True, soft=False)
        if shown.pending in self.together:
            mine = self.newest["tables"][self.together.index(shown.pending)]
            kept = not_older_than(frame, mine["oldest"]).coalesce(1)
            states = one_row.select(mine["state"].alias("state"))
            return overlay_at_once(kept, changes(states), layout, rules)
        planned = self._planned(shown.pending, is_merged=True)
        if shown.is_small:
            sent = Sent.of(planned)
            kept = sent.not_older(frame).coalesce(1)
            return overlay_at_once(kept, changes(sent.states(one_row)), layout, rules)
        planned = planned.repartition(TASKS)
        whole_rows = overlay(not_older(frame, planned), whole(changes(planned)), layout, rules)
        return whole_rows.where(ALIVE)

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

    def _planned(self, pending: PendingTable, *, is_merged: bool) -> DataFrame:
        """Build the row with the oldest position and what to read (`STATE`), which a query evaluates once."""
        cuts = self._cuts(pending) if is_merged else F.lit(None).cast(f"array<{RECORDED}>")
        given = _one_row(self.spark).select(self.newest.alias("newest"), cuts.alias("cuts"))
        return given.mapInArrow(pending.state, STATE)

    def _cuts(self, pending: PendingTable) -> Column:
        """Build the scalar with the cuts recorded last, as they name a table; null if there are none."""
        if self.cuts is None:
            return F.lit(None).cast(f"array<{RECORDED}>")
        # Of an aggregate without a group, Spark 4.2 would make a subquery of its own (`Sent.of`).
        recorded = self._recorded(self.cuts, [pending]).groupBy(F.col("source"))
        return recorded.agg(F.collect_list("cut").alias("cuts")).select("cuts").scalar()

    def _recorded_or_null(self) -> DataFrame:
        """Build the cuts recorded last, and a null: so there is a row for the task that plans."""
        none = _one_row(self.spark).select(F.lit(None).cast(RECORDED).alias("cut"))
        if self.cuts is None:
            return none
        return self._recorded(self.cuts, self.together).select("cut").unionAll(none).coalesce(1)

    def _recorded(self, cuts: DataFrame, tables: Sequence[PendingTable]) -> DataFrame:
        """Build the cuts recorded last, as they name some tables (`RECORDED`)."""
        named = [F.col("tables")[str(pending.table)] for pending in tables]
        fields = [[name[field].alias(field) for field in ("id", "manifest")] for name in named]
        of_each = F.array(*[F.struct(*each) for each in fields])
        at = F.unix_micros("merged_at").alias("micros")
        cut = F.struct(at, "manifest", "epoch", "position", of_each.alias("tables")).alias("cut")
        # One task reads them: they are few, and to sort what several read takes another stage.
        return cuts.coalesce(1).select("source", cut).orderBy(F.desc("cut.micros")).limit(ROWS_READ)


def _events(shown: _Shown, states: DataFrame) -> DataFrame:
    pending, projection = shown.pending, shown.projection
    columns = {column.name: column.type for column in pending.emitted.columns}
    read = states.mapInArrow(pending.events, schema_ddl({**columns, CDC: CDC_TYPE}))
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
