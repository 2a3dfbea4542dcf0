"""Verifies tables: compares the lake, as of a cut, with the source. Changes nothing in the tables.

::

    rows that the agent read to verify + all that landed since -> what the table must hold --+
    the Delta table at the version of a cut ------------------------------------------------ + -> differences

The agent reads the source as for a dump (`connector.capture.dumps.queue`): in chunks, each at a proven low
watermark, while both sides keep changing. No merge takes up its files (kind verify). At a cut at or after the
manifest that finished this dump (or at that manifest, if nothing of the table has landed since the newest
cut, so that a merge would leave it as it is: `OpenedLake.frontier`):

- EXPECTED: the rows read, each at its chunk's low watermark, and everything that landed after the lowest of
  these, up to the cut, reconciled as a merge does into an empty table (`merge.plan.plan_verification`).
- ACTUAL: the Delta table at the version that the cut names, without rows marked as deleted.

**They must be equal.** Let P be the cut's position. A chunk's snapshot shows every commit up to its low
watermark L, so for each key of its range it has the source's row at L or later. P is at or after its high
watermark, so the snapshot shows nothing that has not landed by P. If events of the key in (L, P] count for a
column, the latest one decides, in the source at P as in EXPECTED. If there are none, nothing has changed the
column between L and P, and the row read has the source's value at P. So EXPECTED is the source at P, as the
lake must be at that cut. No key is skipped because it changed meanwhile, nor does it differ because of that:
whatever happens while rows are read (writes, lag, merges, a dump of the same table) is in both or in neither.

What else is compared, or not (for values see `merge.proof.differences`):

- Unlogged changes that a dump repairs meanwhile: chunks that landed since count like log, and events from
  before an ended full dump do not count. While such a repair is under way the table is not `settled`:
  differences may be what it is about to repair.
- Given keys are compared both ways. With a condition, the rows that satisfied it in the source's snapshot are
  compared, whether or not they still do at the cut. Spark can't evaluate the source's dialect exactly, so
  rows that seem to satisfy it in the lake, but that the source did not return, are only `suspects`: verify
  these keys.
- A row that still lacks a column can't be called equal: its key is one of the `suspects`, too.
- Columns that the source has dropped are not compared, even if no event has shown that yet, nor columns that
  its layout as of the cut does not have yet: no event has brought them.
- Events that landed under another key don't count.
- Rows marked as deleted (soft deletes) count as absent; their last values are not compared.
- If somebody else has changed the Delta table's rows since the cut, its newest version is compared, which is
  what people read; the next merge that has changes of it rebuilds it (`merge.lake.commits`).

A verification by checksums compares checksums computed by the database, and names the key ranges that they
did not prove equal (`merge.proof.checksums`). These are then read and compared as rows. The lake's checksums
may be computed before, while the database computes its own (`merge.proof.lake_sums`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from connector.config import Config
from connector.errors import ConfigurationError, DeltatideError, GapError, TableError
from connector.landing.format import CDC
from connector.landing.manifest import DumpState, Manifest, TableState
from connector.schema import TableName, TableSchema
from merge.change_set import changes
from merge.keys import TargetLayout, key_text, same_rows
from merge.lake.retry import SPARK_ERRORS, TABLE_ERRORS, first_line, without_values
from merge.lake.widened import with_whole_filters
from merge.landing_zone import LandingZone
from merge.overlay import ALIVE
from merge.plan import TablePlan, plan_verification
from merge.proof.checksums import TEXTS, unproven_ranges
from merge.proof.comparison import KeyEnds, Sides, TableVerification, within
from merge.proof.differences import (
    DIFFERENT,
    GHOST,
    MISSING,
    WAITING,
    differences,
    differing_keys,
    few_keys,
    record_and_count,
    requestable,
)
from merge.proof.lake_sums import LakeSums, TableSums
from merge.proof.opened_lake import ComparedVersion, OpenedLake, opened, settled
from merge.spark.session_settings import ANY_VERSION, COMPILED, applied_settings
from merge.spark.unreachable import explain
from merge.sql_formatting import quoted
from merge.table import FEW_ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNCOUNTED = (
    "the lake has rows that seem to satisfy the condition and that the source did not return, too many to ask"
    " for by key, or without a key: verify the whole table"
)

MANY_WAIT = (
    "too many rows wait for columns that the log left out to compare them again by key: merge until a cut is"
    " exact, then verify again"
)

SCANNED_BYTES = 256 << 20
"""Up to this size of a Delta table, the rows of some key ranges are found without compiled code, too."""

Progress = Callable[[int, int, str], None]
"""Called with the number of tables done, the number of all tables, and the one under way."""


@dataclass(frozen=True)
class Verification:
    """The comparison of some tables; `run`: its id in the table of differences."""

    run: str
    tables: list[TableVerification]

    @property
    def equal(self) -> bool:
        """Return whether all tables are equal."""
        return all(table.equal for table in self.tables)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        tables = [
            {
                **asdict(table),
                "table": str(table.table),
                "suspects": None if table.suspects is None else len(table.suspects),
                "unproven": None if table.unproven is None else len(table.unproven),
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
    ranges: Sequence[KeyEnds] | None = None,
    tables: Collection[TableName] = (),
    progress: Progress | None = None,
    merge: Callable[[], object] | None = None,
    sums: LakeSums | None = None,
) -> Verification:
    """Compare the tables that the agent has read for a request with `verify`, as of their newest cut.

    A table of which nothing has landed since that cut is compared as of the manifest that finished the
    reading. `merge`: called first if another table is not merged that far; by default, it gets an error.
    `sums`: checksums of the lake that are known. With these, a table is compared as of their cut, merged
    further or not. `request`: its id. `tables`: the tables that it names. Manifests list only recently ended
    dumps; a table whose dump is no longer listed gets an error. `where`: its condition, if any, to look for
    `suspects`. `ranges`: the ranges that it names; without them, rows that only the lake has are not found.
    Differences are durable on return (`merge.proof.differences`). The result includes tables that can't be
    compared: the dump failed or has not ended, or the lake is not merged that far (merge, then call this
    again). Raises errors that affect all tables, and `ConfigurationError` if the landing zone has no such
    verification.
    """
    compared = partial(
        compare, request=request, where=where, ranges=ranges, tables=tables, progress=progress, sums=sums
    )
    with opened(spark, config) as lake:
        if merge is None or not _is_behind(lake, request, sums):
            return compared(lake)
    merge()
    with opened(spark, config) as lake:
        return compared(lake)


def _is_behind(lake: OpenedLake, request: str, sums: LakeSums | None) -> bool:
    """Return whether a table that was read for a request is not merged that far, nor summed."""
    read = (dump for dump in _dumps_of(lake.newest, request) if dump.state == "complete")
    return any(
        lake.frontier(dump).manifest < (dump.finished_in or 0)
        and (sums is None or sums.usable(lake, dump) is None)
        for dump in read
    )


def compare(
    lake: OpenedLake,
    request: str,
    *,
    where: str | None = None,
    ranges: Sequence[KeyEnds] | None = None,
    tables: Collection[TableName] = (),
    progress: Progress | None = None,
    sums: LakeSums | None = None,
) -> Verification:
    """Compare like `verify`, in the session of an opened lake."""
    dumps = _dumps_of(lake.newest, request)
    lake.frontiers.check(lake.landing, lake.landing.first_kept)
    run = _Run(lake.spark, lake.config, lake.landing, lake, where, ranges, sums)
    compared = []
    for done, dump in enumerate(dumps):
        (progress or (lambda *_: None))(done, len(dumps), str(dump.table))
        compared.append(run.verify(dump))
    unlisted = sorted(set(tables) - {dump.table for dump in dumps})
    problem = f"its verification {request} is no longer in the manifests"
    lost = [TableVerification(name, error=problem, hint="verify again") for name in unlisted]
    return Verification(run.id, [*compared, *lost])


def _dumps_of(newest: Manifest | None, request: str) -> list[DumpState]:
    known = newest.dumps if newest is not None else ()
    dumps = [dump for dump in known if dump.verifies and request in (dump.request, dump.id)]
    if not dumps:
        raise ConfigurationError(
            f"the landing zone lists no verification {request}",
            hint="it lists only recently finished dumps; verify again: deltatide verify",
        )
    return dumps


@dataclass(frozen=True)
class _Run:
    spark: SparkSession
    config: Config
    landing: LandingZone
    lake: OpenedLake
    where: str | None
    ranges: Sequence[KeyEnds] | None
    sums: LakeSums | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def verify(self, dump: DumpState) -> TableVerification:
        """Compare one table; its own errors are in the result."""
        try:
            with applied_settings(self.spark, ANY_VERSION):
                return self._check(dump) if dump.kind == "checksums" else self._compare(dump)
        except TABLE_ERRORS as error:
            store = explain(error, self.config)
            if store is not None and store.affects_all:
                raise store from error
            hint = error.hint if isinstance(error, DeltatideError) else self.landing.hint_for(error)
            whole = self.landing.projection(dump.table) is None
            reason = first_line(error) if whole else without_values(error)
            return TableVerification(dump.table, error=reason, hint=hint)

    def _compare(self, dump: DumpState) -> TableVerification:
        """Compare the rows that were read."""
        both = self._open(dump)
        few = self._are_few(dump, both)
        with applied_settings(self.spark, {} if few else COMPILED):
            return self._compare_rows(dump, both, few=few)

    def _compare_rows(self, dump: DumpState, both: Sides, *, few: bool) -> TableVerification:
        layout, at = both.layout, self.landing.get(both.plan.upto)
        actual = both.actual
        expected = changes(self.landing, both.plan, both.schemas, layout, None).where(ALIVE)
        suspects: list[list[str]] | None = []
        incomplete: str | None = None
        if dump.kind == "verify_rows" and self.ranges is not None:
            asked = within(F.col(quoted(layout.key[0])), self.ranges)
            expected, actual = expected.where(asked), actual.where(asked)
        elif dump.kind == "verify_rows":
            keys = {name: layout.columns[name] for name in layout.key}
            scope = self.landing.events(both.plan.files, both.schemas, keys)
            if self.where is not None:
                matching = self._matching(both, self.where)
                suspects, incomplete = _suspects(matching, scope, layout)
            expected, actual = (_joined(frame, scope, layout, "left_semi") for frame in (expected, actual))
        found = differences(expected, actual, layout, both.compared)
        counts = record_and_count(self.spark, self.config, self.id, dump.table, at, found, few=few)
        if counts.get(WAITING) and suspects is not None:
            waiting = differing_keys(self.spark, self.config, self.id, dump.table, waiting=True)
            suspects = None if waiting is None else requestable(suspects + waiting)
            incomplete = MANY_WAIT if suspects is None else incomplete
        return replace(
            both.verified,
            rows=dump.rows,
            missing=counts.get(MISSING, 0),
            ghosts=counts.get(GHOST, 0),
            different=counts.get(DIFFERENT, 0),
            waiting=counts.get(WAITING, 0),
            suspects=suspects,
            incomplete=incomplete,
        )

    def _are_few(self, dump: DumpState, both: Sides) -> bool:
        """Return whether a comparison is of so few rows that its queries are interpreted.

        Given keys, or rows of a condition, are looked for among all of the lake's rows.
        """
        whole = dump.kind != "verify_rows"  # the lake has about as many rows
        easily_found = self.ranges is not None and both.lake_bytes <= SCANNED_BYTES
        return dump.rows <= FEW_ROWS and (whole or easily_found)

    def _matching(self, both: Sides, where: str) -> DataFrame | None:
        """Return the lake's rows that seem to satisfy a condition; None if Spark can't evaluate it.

        Also None if the condition uses columns that the lake masks or lacks.
        """
        projection = self.landing.projection(both.newest.table)
        try:
            if projection is not None:
                return projection.matching(both.actual, where, [*both.layout.key, *both.compared])
            found = both.actual.where(F.expr(where))
            _ = found.schema  # Spark Connect analyzes it only now
            return found
        except SPARK_ERRORS:
            return None

    def _check(self, dump: DumpState) -> TableVerification:
        """Compare the checksums that the database computed."""
        summed = None if self.sums is None else self.sums.usable(self.lake, dump)
        both = self._open(dump, summed)
        checked = replace(both.verified, checked=dump.rows, checked_at=both.verified.manifest)
        if why := both.why_unchecked(dump):
            return replace(checked, unproven=None, by_rows=why)
        known = summed is not None and summed.columns == both.checked_columns
        lake = summed.buckets if summed is not None and known else None
        with applied_settings(self.spark, TEXTS if self._are_few(dump, both) else TEXTS | COMPILED):
            ranges = unproven_ranges(self.landing, both, dump.bits or 0, lake)
        why = "most of it differs, or has changed meanwhile" if ranges is None else None
        return replace(checked, unproven=ranges, by_rows=why)

    def _open(self, dump: DumpState, summed: TableSums | None = None) -> Sides:
        """Return both sides: what a dump has read, and the lake's table to compare it with.

        `summed`: its version whose checksums are known; that may be of before the dump's end.
        """
        at = self._version(dump) if summed is None else summed.at
        fresh = () if summed is None else summed.fresh
        upto = max(at.manifest, dump.finished_in or 0)
        self.landing.check_end(upto)
        self.landing.load(max(1, dump.started_in - 1), upto)
        plan = plan_verification(dump, self.landing, upto)
        ids = [*plan.all_schema_ids, *(file.schema_id for file in fresh)]
        schemas = self.landing.schemas((dump.table, id_) for id_ in dict.fromkeys(ids))
        self._require_landed(dump, plan)
        read, plan, newest = plan.files, plan.of_key(schemas), schemas[plan.schema_ids[0]]
        lake = with_whole_filters(self.lake.targets[dump.table].at(self.spark, at.version), at.state)
        manifest = self.landing.get(at.manifest)
        verified = TableVerification(
            dump.table,
            manifest=manifest.number,
            position=manifest.position_text,
            version=at.version,
            settled=settled(manifest, dump.table),
            note=at.note,
            bytes=sum(file.bytes for file in read),
        )
        projected = self.landing.projection(dump.table) is not None
        before = self._layout_before(dump)
        return Sides(read, plan, schemas, newest, lake, verified, projected, before, at.state.bytes, fresh)

    def _layout_before(self, dump: DumpState) -> TableSchema | None:
        """Return a table's layout as of the last manifest before a dump; None if there is none."""
        try:
            state = self.landing.get(dump.started_in - 1).tables.get(dump.table)
        except GapError:  # or it is removed
            return None
        if state is None or state.schema_id is None:
            return None
        return self.landing.schemas([(dump.table, state.schema_id)])[state.schema_id]

    def _require_landed(self, dump: DumpState, plan: TablePlan) -> None:
        """Refuse a table if log is missing since its rows were read, unless a full dump has ended since."""
        if plan.swept_since_read:
            return
        manifests = (self.landing.get(number) for number in range(dump.started_in, plan.upto + 1))
        states = (manifest.tables.get(dump.table) for manifest in manifests)
        reasons = ("it was dropped, or left out" if state is None else _reason(state) for state in states)
        if why := next(filter(None, reasons), None):
            raise TableError(
                dump.table,
                f"was not captured for a while after its rows were read: {why}",
                hint="verify again",
            )

    def _version(self, dump: DumpState) -> ComparedVersion:
        """Return the version of the Delta table to compare; `TableError` if it is behind the dump."""
        target = self.lake.targets.get(dump.table)
        if dump.state != "complete" or dump.finished_in is None:
            raise TableError(
                dump.table,
                f"verification {dump.id} is {dump.state}" + (f": {dump.error}" if dump.error else ""),
                hint="see: deltatide dumps",
            )
        if target is None:
            raise TableError(dump.table, "is no longer captured")
        frontier = self.lake.frontier(dump)
        if frontier.manifest < dump.finished_in or frontier.version is None:
            raise TableError(
                dump.table,
                f"the lake has it as of manifest {frontier.manifest},"
                f" and the source was read up to {dump.finished_in}",
                hint="merge first: deltatide merge",
            )
        return self.lake.version_of(target, frontier.manifest)


def _reason(state: TableState) -> str | None:
    """Return why a table is not captured; None if it is."""
    return None if state.state == "captured" else state.reason or state.state


def _joined(frame: DataFrame, scope: DataFrame, layout: TargetLayout, how: str) -> DataFrame:
    return frame.alias("target").join(scope.alias("source"), same_rows(layout), how)


def _suspects(
    matching: DataFrame | None, scope: DataFrame, layout: TargetLayout
) -> tuple[list[list[str]] | None, str | None]:
    """Return the keys of the lake's rows that seem to satisfy a condition and that the source did not return.

    Or None and the reason, if Spark does not understand the condition, or they can't be requested by key.
    """
    unknown = None, "Spark can't evaluate the condition: rows that only the lake has were not looked for"
    if matching is None:
        return unknown
    raw = F.col(f"target.{CDC}")["raw"]
    key = [
        F.coalesce(raw[name], key_text(F.col(f"target.{quoted(name)}"), layout.columns[name]))
        for name in layout.key
    ]
    try:
        others = _joined(matching, scope, layout, "left_anti")
        found = few_keys(others.select(F.array(*key).alias("key")))
    except SPARK_ERRORS:
        return unknown
    return found, None if found is not None else UNCOUNTED
