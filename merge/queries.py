"""Reads tables without waiting for a merge, and all tables together as of one cut. Writes nothing.

`live` is the Delta table plus what has landed since, reconciled by the rules of a merge.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from connector.config import Config
from connector.errors import ConfigurationError, TableError
from connector.landing.format import CDC
from connector.landing.manifest import Manifest
from connector.position import Moment
from connector.schema import TableName, TableSchema, fold
from merge.apply import Rules
from merge.change_set import changes
from merge.columns.landed_files import Columns
from merge.keys import TargetLayout
from merge.lake.commits import is_from_landing_zone, read_commits, version_is_unchanged
from merge.lake.control_table import Frontier, frontiers_in, read_frontiers
from merge.lake.schema import check_layout, wanted_columns, wider
from merge.lake.target import (
    SHAPE_PROPERTY,
    SHAPES,
    Target,
    TargetState,
    built_with,
    built_with_in,
    check_rival,
    ownership_error,
    read_state,
    require_landed,
    table_name,
    targets_of,
)
from merge.lake.widened import with_whole_filters
from merge.landing_zone import LandingZone
from merge.missing_columns import INCOMPLETE
from merge.overlay import ALIVE, as_wide, fresh_rows, overlay, with_field_of_deletes
from merge.plan import TablePlan, plan_past_holes
from merge.reading.cut_choice import find_cut, moment_of
from merge.reconcile import DELETED_AT
from merge.shapes.current import targets_at
from merge.shapes.shape import shapes_of
from merge.spark.session_settings import ANY_VERSION, applied_settings, check_strict, plain_settings
from merge.table import recorded_frontiers
from merge.views.view import VIEW, VIEWS, not_of_cut, stale_views, tables_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


def live(spark: SparkSession, config: Config, table: str) -> DataFrame:
    """Return a table as of the newest manifest: its columns and `_cdc`, without deleted rows.

    The frame keeps showing that state, from that manifest's files and the Delta table's current version,
    until VACUUM removes that version, or ``deltatide maintain`` the landing files, at least a day after it
    joined them. Costs a join of the Delta table with what has landed since its last merge. A Delta table that
    does not continue (`merge.lake.commits`), or that a merge refuses (another source's, another landing
    zone's, another key, types that can't become today's), is ignored, and everything that landed is read.
    `ConfigurationError` if no such table has landed, or if the session skips unreadable files.
    `SourceMismatchError` if the cuts are of another landing zone. `TableError` if landed types can't become
    today's, until a full dump has ended.
    """
    name = table_name(table)
    return live_tables(spark, config, lambda _: [name])[1][name].frame


def as_printed(frame: DataFrame) -> DataFrame:
    """Return a frame with its instants as text, in the session's time zone.

    Python can't hold the first and last instants unless the driver runs in UTC.
    """
    numbered = frame.toDF(*map(str, range(len(frame.columns))))  # two columns may have one name
    columns = []
    for number, field in enumerate(frame.schema):
        type_ = _with_texts(field.dataType)
        column = numbered[str(number)]
        changed = column if type_ == field.dataType else column.cast(type_)
        columns.append(changed.alias(field.name))
    return numbered.select(*columns)


def _with_texts(type_: DataType) -> DataType:
    """Return a type with text in place of instants."""
    if isinstance(type_, TimestampType):
        return StringType()
    if isinstance(type_, ArrayType):
        return ArrayType(_with_texts(type_.elementType), type_.containsNull)
    if isinstance(type_, MapType):
        return MapType(_with_texts(type_.keyType), _with_texts(type_.valueType), type_.valueContainsNull)
    if isinstance(type_, StructType):
        return StructType([StructField(f.name, _with_texts(f.dataType), f.nullable) for f in type_.fields])
    return type_


@dataclass(frozen=True)
class LiveTable:
    """A table's live rows; `may_lack`: some may lack a column that no event has carried yet."""

    frame: DataFrame
    may_lack: bool

    def is_complete(self) -> bool:
        """Return whether no row waits for a column; reads the rows only if one may."""
        return not self.may_lack or self.frame.where(INCOMPLETE).isEmpty()


def live_tables(
    spark: SparkSession, config: Config, choose: Callable[[Sequence[TableName]], Iterable[TableName]]
) -> tuple[Manifest, dict[TableName, LiveTable]]:
    """Return tables like `live`, all as of one manifest, the newest, which is returned first.

    `choose` gets the names of all tables that have landed.
    """
    check_strict(spark)
    with plain_settings(spark):
        return _live(spark, config, choose)


@dataclass(frozen=True)
class Begun:
    """A Delta table to overlay with what landed after `frontier`; `frame` None: ignore the table."""

    target: Target
    frontier: Frontier
    state: TargetState | None
    frame: DataFrame | None


def _live(
    spark: SparkSession, config: Config, choose: Callable[[Sequence[TableName]], Iterable[TableName]]
) -> tuple[Manifest, dict[TableName, LiveTable]]:
    landing, newest, begun = begin(spark, config, choose)
    return newest, {each.target.table: _live_table(landing, config, each, newest) for each in begun}


def begin(
    spark: SparkSession,
    config: Config,
    choose: Callable[[Sequence[TableName]], Iterable[TableName]],
    refused: dict[TableName, TableError] | None = None,
) -> tuple[LandingZone, Manifest, list[Begun]]:
    """Find tables' Delta tables as they are now, and the newest manifest after that.

    `refused`: gets the errors of tables, which are then left out; None: the first one is raised.
    """
    landing = LandingZone.of(spark, config)
    # This order keeps frontier <= state of the Delta table <= newest manifest, even while merges run.
    # The newest manifest is looked for once, after all Delta tables: so no table shows more than the others.
    frontiers = read_frontiers(spark, config)
    known = _newest(landing, frontiers.newest)
    landed = [table for table, state in known.tables.items() if state.schema_id is not None and state.key]
    names = list(choose(landed))
    for name in names:
        require_landed(name, known)
    frontiers.check(landing, landing.first_kept)
    targets = targets_at(config, known)
    begun: list[Begun] = []
    for name in names:
        try:
            begun.append(_begin(spark, config, landing, targets[name], frontiers.of(name)))
        except TableError as error:
            if refused is None:
                raise
            refused[name] = error
    return landing, _newest(landing, known.number), begun


def _newest(landing: LandingZone, after: int) -> Manifest:
    """Return the newest manifest, without reading those before `after`."""
    number = landing.newest(after)
    if not number:
        raise ConfigurationError("nothing has landed yet", hint="start the agent: deltatide run")
    return landing.get(number)


def _begin(
    spark: SparkSession, config: Config, landing: LandingZone, target: Target, frontier: Frontier
) -> Begun:
    """Find a table's Delta table as it is now."""
    check_rival(spark, target)
    state = read_state(spark, target)
    if state is not None and (frontier.version is None or frontier.id != state.id):
        recorded = recorded_frontiers(spark, config, target.table, state.id, frontier.manifest)
        frontier = recorded[0] if recorded else frontier
    frame = None if state is None else _continuing(spark, config, landing, target, state, frontier)
    return Begun(target, frontier, state, frame)


def _live_table(landing: LandingZone, config: Config, begun: Begun, newest: Manifest) -> LiveTable:
    """Return a table as of a manifest."""
    live, state, soft = _brought_up(landing, config, begun, newest), begun.state, begun.target.soft
    if not soft and (state is None or DELETED_AT not in state.structs.get(CDC, ())):
        return live
    return replace(live, frame=with_field_of_deletes(live.frame, soft=soft))


def _brought_up(landing: LandingZone, config: Config, begun: Begun, newest: Manifest) -> LiveTable:
    """Overlay a Delta table with what has landed since, up to a manifest."""
    name, source, frame = begun.target.table, config.source.name, begun.frame
    key = require_landed(name, newest).tables[name].key
    if (
        frame is not None
        and begun.state is not None
        and ownership_error(begun.state, begun.target, source, key) is None
    ):
        may_lack = begun.frontier.missing != 0
        if newest.number <= begun.frontier.manifest:
            return LiveTable(frame.where(ALIVE), may_lack)
        plan = plan_past_holes(name, landing, begun.frontier.manifest, newest.number)
        if plan.is_empty:
            return LiveTable(frame.where(ALIVE), may_lack)
        if _fits(landing, plan, begun.target, replace(begun.state, columns=_types(frame)), source):
            return LiveTable(_with_changes(landing, plan, frame), may_lack or plan.partial)
    plan = plan_past_holes(name, landing, 0, newest.number)
    return LiveTable(_with_changes(landing, plan, None), plan.partial)


def _continuing(
    spark: SparkSession,
    config: Config,
    landing: LandingZone,
    target: Target,
    state: TargetState,
    frontier: Frontier,
) -> DataFrame | None:
    """Return the Delta table in its current version; None if that does not continue.

    Commits of manifests before the frontier's are this landing zone's, as the cut that names it is.
    """
    if frontier.version is not None and frontier.id != state.id:
        return None
    commits = read_commits(spark, target, config.source.name, frontier, target.built_with, id_=state.id)
    last = commits.last
    vouched = frontier.version is not None and last is not None and last.manifest < frontier.manifest
    if commits.why_broken is not None or not (vouched or is_from_landing_zone(landing, last)):
        return None
    return with_whole_filters(target.at(spark, commits.newest), state)


def _fits(landing: LandingZone, plan: TablePlan, target: Target, state: TargetState, source: str) -> bool:
    """Return whether a merge could evolve a Delta table to the columns and types of the plan's events."""
    schemas, plan = _keyed(landing, plan)
    newest, *others = (schemas[id_] for id_ in plan.schema_ids)
    try:
        check_layout(target, state, source, newest, others)
    except TableError:
        return False
    return True


def _keyed(landing: LandingZone, plan: TablePlan) -> tuple[dict[str, TableSchema], TablePlan]:
    """Return a plan's schemas, and the plan without what landed under another key."""
    schemas = landing.schemas((plan.table, id_) for id_ in plan.all_schema_ids)
    return schemas, plan.of_key(schemas)


def _types(frame: DataFrame) -> dict[str, str]:
    return {f.name: f.dataType.simpleString() for f in frame.schema.fields if f.name != CDC}


def _with_changes(landing: LandingZone, plan: TablePlan, frame: DataFrame | None) -> DataFrame:
    schemas, plan = _keyed(landing, plan)
    known = {} if frame is None else _types(frame)
    wanted = columns_with(plan.table, known, [schemas[id_] for id_ in plan.schema_ids])
    layout = TargetLayout.of(wanted, plan.state.key, schemas[plan.schema_ids[0]])
    if frame is None:
        return fresh_rows(changes(landing, plan, schemas, layout, None), layout)
    target = as_wide(frame, layout)
    source = changes(landing, plan, schemas, layout, target)
    return overlay(target, source, layout, Rules(plan.partial, plan.chunks, soft=False)).where(ALIVE)


def columns_with(table: TableName, known: Columns, schemas: list[TableSchema]) -> dict[str, str]:
    """Return the columns that a target with `known` ones will have after a merge of events of `schemas`."""
    named = {fold(name): name for name in known}
    columns = dict(known)
    for wanted in wanted_columns(table, schemas).values():
        name = named.get(fold(wanted.name), wanted.name)
        type_ = wider(known.get(name, wanted.type), wanted.type)
        assert type_ is not None, "checked before"
        columns[name] = type_
    return columns


def as_of(
    spark: SparkSession,
    config: Config,
    manifest: int | None = None,
    *,
    position: str | None = None,
    committed_at: datetime | str | None = None,
    tables: Iterable[str] | None = None,
) -> dict[str, DataFrame]:
    """Return all tables as of one cut, by name: the source at one position if the cut is exact.

    The cut of a manifest, or the last exact one whose `position` (as ``deltatide cuts`` shows it; before it,
    ``2:`` names the epoch, else it is the newest) or whose last commit (`committed_at`; without zone: UTC) is
    at or before the given one; without any of these, the newest cut. `tables`: only these.

    Views are included, as ``views.NAME``, but for those that the cut could not bring up to date. Soft-deleted
    rows are included. `ConfigurationError` if no such cut was recorded, it has no such table, or the session
    skips unreadable files; also if one of the cut's Delta tables no longer has the cut's state. Then it was
    dropped or replaced, its history was cleaned up, its files were restored from an older copy (the version
    that the cut names is missing or holds another state), or ``deltatide maintain`` gave it up as older than
    ``lake.retention_days``. Of the newest cut, a table that was not built with the configured columns, masks
    and rows is refused, too; of a cut that is named, it is as it was built.
    """
    moment = moment_of(config, manifest, position, committed_at)
    wanted = None if tables is None else [table_name(table) for table in tables]
    _, frames = tables_at(spark, config, moment, lambda known, _: known if wanted is None else wanted)
    return {str(table): frame for table, frame in frames.items()}


Choose = Callable[[Sequence[TableName], Mapping[TableName, str]], Iterable[TableName]]
"""Takes the names of a cut's tables and views, and why it has no others; returns those to read."""


def tables_at(
    spark: SparkSession,
    config: Config,
    moment: Moment | None,
    choose: Choose,
) -> tuple[Row, dict[TableName, DataFrame]]:
    """Return the cut of a moment (None: the newest) and tables as of it, like `as_of`."""
    check_strict(spark)
    # An unchanged table's version may be of any age.
    with plain_settings(spark), applied_settings(spark, ANY_VERSION):
        row = find_cut(spark, config, moment)
        return row, _as_of(spark, config, row, choose, named=moment is not None)


def _as_of(
    spark: SparkSession,
    config: Config,
    row: Row,
    choose: Choose,
    *,
    named: bool,
) -> dict[TableName, DataFrame]:
    """Return tables as of a cut; `named`: the caller chose this one, so it is read as it was built."""
    frontiers = frontiers_in(row)
    targets = targets_of(config, frontiers)
    lacking = {t: at.error or "not merged yet" for t, at in frontiers.items() if at.version is None}
    lacking |= stale_views(spark, row, targets)
    doubtful = {t for t, at in frontiers.items() if not (named or at.is_built_with(built_with_in(config, t)))}
    there = [t for t in frontiers if t not in lacking]
    frames: dict[TableName, DataFrame] = {}
    for table in choose(there, lacking):
        if table in lacking:
            raise not_of_cut(config, table, row["manifest"], lacking[table])
        if table not in there:
            raise ConfigurationError(
                f"the cut of manifest {row['manifest']} has no table {str(table)!r}",
                hint=f"tables of that cut: {', '.join(sorted(map(str, there))) or 'none'}",
            )
        target, frontier = targets[table], frontiers[table]
        state = read_state(spark, target)
        if (reason := _why_gone(spark, config, target, state, frontier)) is not None:
            raise ConfigurationError(
                f"{target.name} {reason} after the cut of manifest {row['manifest']}",
                hint="choose a newer cut: deltatide cuts; if the newest is refused too,"
                f" {_built_anew_by(config, target)}",
            )
        assert state is not None, "else it is gone"
        assert frontier.version is not None, "of a table that is there"
        if not named:
            _check_built(config, target, state, frontier, row["manifest"])
            if doubtful and state.properties.get(SHAPE_PROPERTY) == VIEW:
                for name in doubtful & tables_read(spark, config, table, frontiers):
                    if (read := read_state(spark, targets[name])) is not None:
                        _check_built(config, targets[name], read, frontiers[name], row["manifest"], target)
        frames[table] = with_whole_filters(target.at(spark, frontier.version), state)
    return frames


def _built_anew_by(config: Config, target: Target) -> str:
    """Return what has a Delta table built anew which lost the newest cut's version."""
    table, shape = target.table, shapes_of(config).get(target.table)
    if table.namespace == VIEWS and table.name in config.views:
        return f"run deltatide views refresh {shlex.quote(table.name)} --full"
    dump = f"run deltatide dump {shlex.quote(str(shape.table if shape is not None else table))}, then merge"
    if shape is None:
        return f"{dump}: that rebuilds the table"
    # A shape that is there is not rebuilt. None of its changes is in a dump, which may be refused, too.
    change = f"the next merge that has a change of {shape.table}"
    then = change if shape.kind == "changes" else f"{dump}: that"
    drop = target.hint_to_drop("copy what you need and drop it, if it is still there")
    return f"{drop}; {then} begins a new one with what the landing zone has kept"


def _check_built(
    config: Config,
    target: Target,
    state: TargetState,
    frontier: Frontier,
    manifest: int,
    view: Target | None = None,
) -> None:
    """Refuse a version of the newest cut that has other columns, masks or rows than the configuration says.

    Of a shape, the Delta table itself says that it is one: the configuration may no longer have it. Of one
    that an earlier release recorded, its properties say what it was built with. `view`: the one that a job,
    perhaps with another configuration, has computed from this version.
    """
    kind, source = state.properties.get(SHAPE_PROPERTY), target.table
    if kind in SHAPES:
        source = TableName(source.namespace, source.name.removesuffix(f"_{kind}"))
    wanted, fits = built_with_in(config, source), (frontier.version or 0) >= state.built_since
    if not frontier.is_built_with(wanted) and (
        frontier.built is not None or built_with(state.built_with) != wanted or not fits
    ):
        what = f"{target.name}, which {view.name} reads," if view is not None else target.name
        raise ConfigurationError(
            f"{what} has other columns, masks or rows in the newest cut than the configuration says",
            hint="merge again: deltatide merge, which says what to do if that does not help; or name the cut"
            f" to read the table as it was: {manifest}",
        )


def _why_gone(
    spark: SparkSession, config: Config, target: Target, state: TargetState | None, frontier: Frontier
) -> str | None:
    """Return what became of a Delta table since a cut, if it no longer has the cut's state; else None."""
    if state is None or state.id != frontier.id:
        return "was dropped or replaced"
    if not version_is_unchanged(spark, target, config.source.name, frontier):
        return f"lost its version {frontier.version} (restored from an older copy, or history cleaned up)"
    return None
