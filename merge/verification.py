"""Verifies tables: compares the lake, as of a cut, with the source. Changes nothing in the tables.

::

    rows that the agent read to verify + all that landed since -> what the table must hold --+
    the Delta table at the version of a cut ------------------------------------------------ + -> differences

The agent reads the source as for a dump (`connector.capture.dump_queue`): in chunks, each at a proven low
watermark, while both sides keep changing. Its files (kind verify) are merged by nobody. At a cut at or after
the manifest that finished this dump:

- EXPECTED: the rows read, each at its chunk's low watermark, and all that landed after the lowest of these,
  up to the cut, reconciled as a merge does into an empty table (`merge.plan.plan_verification`).
- ACTUAL: the Delta table at the version that the cut names, without rows that are marked as deleted.

**They must be equal.** Let P be the cut's position. A chunk's snapshot shows every commit up to its low
watermark L, so for each key of its range it is the source's row at L or later; P is at or after its high
watermark, so it shows nothing that has not landed by P. If some event of the key in (L, P] counts for a
column, the latest one does: in the source at P, and in EXPECTED. If none does, nothing has changed it between
L and P, and the row read has the source's value at P. So EXPECTED is the source at P, as the lake must be at
that cut. No key is left out because it changed meanwhile, and none differs for that: whatever happens while
rows are read (writes, lag, merges, a dump of the same table) is in both, or in neither.

What else is compared, or not (values: `merge.differences`):

- An unlogged change that a dump repairs meanwhile: chunks that landed since count as log does, and what is
  from before a full dump that has ended does not. While such a repair is under way the table is not
  `settled`, and differences may be what it is about to repair.
- Given keys are compared both ways. Of a condition, the rows that satisfied it in the source's snapshot are,
  at the cut, whether they still do or not. Spark can't evaluate the source's dialect as the source does, so
  rows of the lake that seem to satisfy it and that the source did not return are only `suspects`: verify
  these keys.
- Columns that the source has dropped are not compared, nor those that its layout as of the cut does not have
  yet: no event has brought them. What landed under another key does not count.
- Rows marked as deleted (soft deletes) count as absent; their last values are not compared.
- If somebody else has changed the Delta table's rows since the cut, its newest version is compared, which is
  what people read; the next merge rebuilds it (`merge.commits`).

Checksums computed in the database would only save the agent rows to read: of ranges that they prove equal.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from connector.config import Config
from connector.errors import ConfigurationError, DeltatideError, TableError
from connector.landing.format import CDC
from connector.landing.manifest import DumpState, Manifest
from connector.schema import TableName, TableSchema, fold
from merge.backfill import key_text
from merge.change_set import changes
from merge.commits import read_commits
from merge.control_table import Frontier, Frontiers, read_frontiers
from merge.differences import (
    DIFFERENT,
    GHOST,
    MISSING,
    count_keys,
    differences,
    few_keys,
    record_differences,
    recorded_differences,
)
from merge.job import TABLE_ERRORS, merging_sessions
from merge.keys import Layout, same_rows
from merge.landing_zone import LandingZone
from merge.log_store import check_log_store
from merge.overlay import ALIVE, as_wide
from merge.plan import TablePlan, plan_verification
from merge.retry import SPARK_ERRORS, first_line
from merge.session_settings import ANY_VERSION, COMPILED, applied_settings
from merge.sql import quoted
from merge.table import FEW_ROWS
from merge.target import Target, check_owner, read_state, targets_of
from merge.unreachable import check_endpoint, explain, explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN = "NOT coalesce(_cdc.op = 'delete', false)"
"""Rows of a Delta table that its readers see; those of others may have no `_cdc`."""

Progress = Callable[[int, int, str], None]
"""Called with the number of tables done, of all tables, and the one under way."""


@dataclass(frozen=True)
class TableVerification:
    """One table's comparison: how many keys differ, by kind, after `rows` were read from the source.

    `manifest`: as of which manifest; `version`: of the Delta table. `waiting`: how many of its rows lack a
    column, which is not compared. `settled`: no first dump, repair, or dump of such rows was under way.
    `note`: what else there is to say. `suspects`: keys, as the source's text, that the lake may have too many
    (only of a condition; None: Spark can't evaluate it, or there are too many). `error`: why nothing was
    compared.
    """

    table: TableName
    manifest: int = 0
    position: str = ""
    version: int | None = None
    rows: int = 0
    missing: int = 0
    ghosts: int = 0
    different: int = 0
    waiting: int = 0
    settled: bool = True
    note: str | None = None
    suspects: list[list[str]] | None = field(default_factory=list)
    error: str | None = None
    hint: str | None = None

    @property
    def differing(self) -> int:
        """Count the findings; a key that differs and is there twice is two."""
        return self.missing + self.ghosts + self.different


@dataclass(frozen=True)
class Verification:
    """The comparison of some tables; `run` names its rows in the table of differences."""

    run: str
    tables: list[TableVerification]

    @property
    def equal(self) -> bool:
        """Return whether all tables were compared and are settled, and nothing differs."""
        return not any(table.error or table.differing or not table.settled for table in self.tables)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        tables = [
            {
                **asdict(table),
                "table": str(table.table),
                "suspects": None if table.suspects is None else len(table.suspects),
            }
            for table in self.tables
        ]
        return {"run": self.run, "equal": self.equal, "tables": tables}


def verify(
    spark: SparkSession,
    config: Config,
    request: str,
    *,
    where: str | None = None,
    tables: Collection[TableName] = (),
    progress: Progress | None = None,
) -> Verification:
    """Compare the tables that the agent has read for a request with `verify`, as of their newest cut.

    `request`: its id. `tables`: those that it names; manifests list only the dumps that ended last, so one of
    them may be listed no more, which is that table's error. `where`: its condition, if it has one, to look
    for `suspects`. The differences are durable on return (`merge.differences`). A table that can't be
    compared is in the result: its dump has not ended or failed, or the lake has not been merged as far
    (merge, then call this again). Raises what affects all tables, and `ConfigurationError` if the landing
    zone knows no such verification.
    """
    check_endpoint(spark, config)
    with explained(config), merging_sessions(spark, config) as sessions:
        session = sessions.first
        check_log_store(session, config)
        landing = LandingZone(session, config.landing.url, config.source.name)
        frontiers = read_frontiers(session, config)
        number = landing.newest(frontiers.newest)
        dumps = _dumps_of(landing.get(number) if number else None, request)
        frontiers.check(landing, landing.first_kept)
        targets = targets_of(config, landing.get(number).tables)
        run = _Run(session, config, landing, frontiers, targets, where)
        compared = []
        for done, dump in enumerate(dumps):
            (progress or (lambda *_: None))(done, len(dumps), str(dump.table))
            compared.append(run.verify(dump))
        unlisted = sorted(set(tables) - {dump.table for dump in dumps})
        problem = f"manifests list its verification {request} no more"
        lost = [TableVerification(name, error=problem, hint="verify again") for name in unlisted]
        return Verification(run.id, [*compared, *lost])


def _dumps_of(newest: Manifest | None, request: str) -> list[DumpState]:
    known = newest.dumps if newest is not None else ()
    dumps = [dump for dump in known if dump.verifies and request in (dump.request, dump.id)]
    if not dumps:
        raise ConfigurationError(
            f"the landing zone knows no verification {request}",
            hint="it lists only the dumps that ended last; verify again: deltatide verify",
        )
    return dumps


@dataclass(frozen=True)
class _Run:
    spark: SparkSession
    config: Config
    landing: LandingZone
    frontiers: Frontiers
    targets: Mapping[TableName, Target]
    where: str | None
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def verify(self, dump: DumpState) -> TableVerification:
        """Compare one table; errors of this table alone are in the result."""
        small = dump.rows <= FEW_ROWS and dump.kind == "verify"  # the table has about as many
        try:
            with applied_settings(self.spark, ANY_VERSION if small else ANY_VERSION | COMPILED):
                return self._compare(dump)
        except TABLE_ERRORS as error:
            store = explain(error, self.config)
            if store is not None and store.affects_all:
                raise store from error
            hint = error.hint if isinstance(error, DeltatideError) else self.landing.hint_for(error)
            return TableVerification(dump.table, error=first_line(error), hint=hint)

    def _compare(self, dump: DumpState) -> TableVerification:
        target, frontier = self._target_of(dump), self.frontiers.of(dump.table)
        version, upto, note = self._version(target, frontier)
        self.landing.check_end(upto)
        self.landing.load(dump.started_in, upto)
        plan = plan_verification(dump, self.landing, upto)
        schemas = self.landing.schemas((dump.table, id_) for id_ in plan.all_schema_ids)
        self._require_landed(dump, plan)
        plan, newest = plan.of_key(schemas), schemas[plan.schema_ids[0]]
        lake = target.at(self.spark, version)
        layout = _layout(lake, plan, newest)
        actual = as_wide(lake, layout).where(SHOWN)
        expected = changes(self.landing, plan, schemas, layout, None).where(ALIVE)
        suspects: list[list[str]] | None = []
        if dump.kind == "verify_rows":
            keys = {name: layout.columns[name] for name in layout.key}
            scope = self.landing.events(plan.files, schemas, keys)
            if self.where is not None:
                suspects = _suspects(actual, scope, layout, self.where)
            expected, actual = (_joined(frame, scope, layout, "left_semi") for frame in (expected, actual))
        at = self.landing.get(upto)
        found = differences(expected, actual, layout, _compared(layout, newest))
        record_differences(self.spark, self.config, self.id, dump.table, at, found)
        counts = count_keys(recorded_differences(self.spark, self.config, self.id), dump.table)
        return TableVerification(
            dump.table,
            manifest=upto,
            position=at.position_text,
            version=version,
            rows=dump.rows,
            missing=counts.get(MISSING, 0),
            ghosts=counts.get(GHOST, 0),
            different=counts.get(DIFFERENT, 0),
            waiting=frontier.missing or 0,
            settled=settled(at, dump.table),
            note=note,
            suspects=suspects,
        )

    def _require_landed(self, dump: DumpState, plan: TablePlan) -> None:
        """Refuse a table whose log has not all landed since the rows were read, unless a full dump has."""
        if plan.swept is not None and plan.swept >= plan.low:
            return
        manifests = (self.landing.get(number) for number in range(dump.started_in, plan.upto + 1))
        states = (m.tables[dump.table] for m in manifests)
        if why := next((state.reason or state.state for state in states if state.state != "captured"), None):
            raise TableError(
                dump.table,
                f"was not captured for a while after its rows were read: {why}",
                hint="verify again",
            )

    def _target_of(self, dump: DumpState) -> Target:
        """Return the Delta table to compare, which must be as far as the dump; `TableError` if not."""
        at, target = self.frontiers.of(dump.table).manifest, self.targets.get(dump.table)
        if dump.state != "complete" or dump.finished_in is None:
            raise TableError(
                dump.table,
                f"verification {dump.id} is {dump.state}" + (f": {dump.error}" if dump.error else ""),
                hint="see: deltatide dumps",
            )
        if target is None:
            raise TableError(dump.table, "is no longer captured")
        if at < dump.finished_in or self.frontiers.of(dump.table).version is None:
            raise TableError(
                dump.table,
                f"the lake has it as of manifest {at}, and the source was read up to {dump.finished_in}",
                hint="merge first: deltatide merge",
            )
        return target

    def _version(self, target: Target, frontier: Frontier) -> tuple[int, int, str | None]:
        """Return the version to compare, the manifest that it is at, and whether others have changed it."""
        state = read_state(self.spark, target)
        if state is None or state.id != frontier.id or frontier.version is None:
            raise TableError(
                target.table,
                f"{target.name} was dropped or replaced after the last cut",
                hint="the next merge rebuilds it from the landing zone: deltatide merge",
            )
        key = self.landing.get(frontier.manifest).tables[target.table].key
        check_owner(state, target, self.config.source.name, key)
        commits = read_commits(self.spark, target, self.config.source.name, frontier)
        if commits.why_broken is None:
            return frontier.version, frontier.manifest, None
        return commits.newest, max(frontier.manifest, commits.manifest or 0), commits.why_broken


def settled(manifest: Manifest, table: TableName) -> bool:
    """Return whether, as of a manifest, a table is captured, and needs no dump to be whole."""
    needed = (d for d in manifest.dumps_of(table) if d.active and d.reason != "request")
    state = manifest.tables[table]
    return not any(needed) and state.need is None and state.state == "captured"


def _layout(lake: DataFrame, plan: TablePlan, newest: TableSchema) -> Layout:
    """Return the layout in which rows are compared: the Delta table's columns, and any that it lacks."""
    known = {f.name: f.dataType.simpleString() for f in lake.schema.fields if f.name != CDC}
    names = {fold(name) for name in known}
    more = {column.name: column.type for column in newest.columns if fold(column.name) not in names}
    return Layout.of({**known, **more}, plan.state.key, newest)


def _compared(layout: Layout, newest: TableSchema) -> list[str]:
    """List the columns to compare: those that the source has, but for the key."""
    names = {fold(column.name) for column in newest.columns}
    return [name for name in layout.values if fold(name) in names]


def _joined(frame: DataFrame, scope: DataFrame, layout: Layout, how: str) -> DataFrame:
    return frame.alias("target").join(scope.alias("source"), same_rows(layout), how)


def _suspects(actual: DataFrame, scope: DataFrame, layout: Layout, where: str) -> list[list[str]] | None:
    """Return the keys of the lake's rows that seem to satisfy a condition and that the source did not return.

    None if Spark does not understand it, or there are too many.
    """
    raw = F.col(f"target.{CDC}")["raw"]
    key = [
        F.coalesce(raw[name], key_text(F.col(f"target.{quoted(name)}"), layout.columns[name]))
        for name in layout.key
    ]
    try:
        others = _joined(actual.where(F.expr(where)), scope, layout, "left_anti")
        return few_keys(others.select(F.array(*key).alias("key")))
    except SPARK_ERRORS:
        return None
