"""Plans and reads what has landed of a table since its Delta table, within the tasks of a query.

It runs in Spark's Python processes, which can't use Spark, and is a function of what the query hands it: of
manifest `after`, whose changes the Delta table certainly has, of manifest `upto`, and of the moment at which
that was the newest one. So two tasks of one query agree, or one fails, whatever lands, or is removed or
compacted, meanwhile. How the rows are used: `merge.reading.live_views`.

Plans are those of a merge (`merge.plan`). What a merge does to rows of the target that no event names is
one position here, `oldest`: rows positioned before it are gone. A truncate is one; so is the end of a full
dump, since each key in its chunks has a row at or after the dump's position once the chunks are merged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from connector.config import LandingConfig
from connector.errors import ConfigurationError, DeltatideError, GapError, SourceMismatchError, TableError
from connector.landing.column_names import ColumnNames
from connector.landing.consumers import last_rebuilt, rebuilt_tables
from connector.landing.format import CDC, TRUNCATE
from connector.landing.manifest import LandedFile, Manifest, TableState
from connector.position import Position, format_position
from connector.reading.change_log import Part
from connector.reading.change_rows import read_layout, read_rows
from connector.reading.landed_manifests import AsOf, LandedManifests, newest_in
from connector.reading.table_changes import groups_for_tasks
from connector.schema import Column, TableName, TableSchema, fold
from merge.lake.schema import wider
from merge.plan import NOTHING, TablePlan, plan_past_holes
from merge.reading.pending_events import read_events
from merge.reading.python_process import opened
from merge.sql_formatting import from_micros, to_micros

if TYPE_CHECKING:
    from connector.store.protocol import Store

Batches = Iterable[pa.RecordBatch]

NEWEST = "manifest bigint, kept bigint, micros bigint"
"""The number of the newest manifest, and the landing zone's `AsOf` before it was looked for."""
STATE, OLDEST = "state string", "epoch int, lsn bigint, seq bigint"
"""Rows of JSON: `oldest`, the same in all, and what a task is to read, `part`, or null if there is nothing.
One column: of two, each half of a plan would keep one."""

STATUS = (
    "`table` string, manifest bigint, position string, committed_at timestamp, age_seconds double,"
    " exact boolean, reason string"
)
_STATE = pa.schema([("state", pa.string())])
_STATUS = pa.schema(
    [
        ("table", pa.string()),
        ("manifest", pa.int64()),
        ("position", pa.string()),
        ("committed_at", pa.timestamp("us", "UTC")),
        ("age_seconds", pa.float64()),
        ("exact", pa.bool_()),
        ("reason", pa.string()),
    ]
)

CUT = "id string, manifest bigint, missing bigint"

MAY_LACK = "rows may wait for a column (_cdc.missing)"

AGAIN = "call merge.register again: views keep the columns that tables had then"

FORM = 1
"""Of what the plan of a view hands to these functions. It must change with that, since a view that was
registered before has its plan from then, and calls the functions that are installed now."""


@contextmanager
def explained() -> Iterator[None]:
    """Add the hint to our errors' text: Spark shows nothing else of them."""
    try:
        yield
    except DeltatideError as error:
        raise DeltatideError(f"{error}; hint: {error.hint}" if error.hint else str(error)) from error


@dataclass(frozen=True)
class Source:
    """A source's landing zone, by the source's name, for views of one form."""

    landing: LandingConfig
    name: str
    form: int = field(default_factory=lambda: FORM)  # a default would be that of views without one, too

    def open(self) -> Store:
        """Open its store, unless the view was registered by a release whose views have another form."""
        if vars(self).get("form") != FORM:
            raise ConfigurationError(
                "this view was registered by another release of deltatide than reads for it now",
                hint="call merge.register again, in a Python started since, and with Spark's of that release",
            )
        return opened(self.landing, self.name)

    def newest(self, batches: Batches) -> Batches:
        """Return the newest manifest, for `NEWEST`."""
        for _ in batches:
            with explained():
                store = self.open()
                now = AsOf.now(store)
                newest = {"manifest": newest_in(store).number, "kept": now.kept, "micros": to_micros(now.at)}
                yield pa.RecordBatch.from_pylist([newest])


@dataclass(frozen=True)
class Status:
    """How current the views of some tables are.

    `refused`: why some of them have none. `pending`: what those that have one read of what has landed.
    """

    source: Source
    tables: tuple[TableName, ...]
    refused: Mapping[TableName, str] = field(default_factory=dict)
    pending: Mapping[TableName, PendingTable] = field(default_factory=dict)

    def rows(self, batches: Batches) -> Batches:
        """Return a row for each table as of a manifest, for `STATUS`; from rows with `manifest`, `merged`.

        `merged`: by table, what the newest cut names of it (`CUT`); null if there is no cut.
        """
        for batch in batches:
            for given in batch.to_pylist():
                with explained():
                    found = self._rows(given["manifest"], dict(given["merged"] or ()))
                yield pa.RecordBatch.from_pylist(found, schema=_STATUS)

    def _rows(self, number: int, merged: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        store = self.source.open()
        manifests, rebuilt = LandedManifests(store), rebuilt_tables(store)
        manifests.load(number, number)
        manifest = manifests.get(number)
        rows = []
        for table in self.tables:
            cut, pending = merged.get(str(table)), self.pending.get(table)
            reason = self.refused.get(table)
            if reason is None and pending is not None:
                reason = pending.why_refused(store, manifests, manifest, cut, rebuilt)
            reason = reason or _why_inexact(manifest, table)
            reason = reason or _why_incomplete(manifests, manifest, table, cut)
            rows.append(_status(manifest, table, reason))
        return rows


def _status(manifest: Manifest, table: TableName, reason: str | None) -> dict[str, Any]:
    age = datetime.now(timezone.utc) - manifest.committed_at
    return {
        "table": str(table),
        "manifest": manifest.number,
        "position": format_position(manifest.position, manifest.source.kind),
        "committed_at": manifest.committed_at,
        "age_seconds": max(age.total_seconds(), 0.0),
        "exact": reason is None,
        "reason": reason,
    }


def _why_inexact(manifest: Manifest, table: TableName) -> str | None:
    """Return why the table's rows as of a manifest are not the source's at its position, or None."""
    state = manifest.tables.get(table)
    if state is None:
        return "it is not captured"
    if state.state == "quarantined":
        return f"it is quarantined: {state.reason}"
    if not state.dumped:
        return "its full dump has not ended"
    waiting = (d for d in manifest.dumps_of(table) if d.active and d.reason in ("repair", "missing"))
    return next((f"a dump that repairs it has not ended: {dump.id}" for dump in waiting), None)


def _why_incomplete(
    manifests: LandedManifests, manifest: Manifest, table: TableName, cut: Mapping[str, Any] | None
) -> str | None:
    """Return why rows may lack a column that no event has carried, or None. Only the rows would show it."""
    merged = 0 if cut is None or cut["id"] is None else cut["manifest"]
    if merged and cut is not None and cut["missing"] != 0:
        return MAY_LACK
    if merged >= manifest.number:
        return None
    manifests.load(merged or manifests.first_kept, manifest.number)
    try:
        return MAY_LACK if plan_past_holes(table, manifests, merged, manifest.number).partial else None
    except (GapError, TableError) as error:
        return f"what has landed can't be read: {error}"


@dataclass(frozen=True)
class PendingTable:
    """What has landed of one table since its Delta table, as events of the layout `emitted`.

    `only_emitted`: refuse events of any other layout, since what is then done to columns depends on it: even
    of one with the same columns in another order, whose names may have been swapped. `names`: those that one
    column may have had, as known and accepted when `emitted` was; with `only_emitted`, nothing is read once
    more are known. `table_id`, `generation`: the Delta table's, as it was then; None: there was none. Nothing
    is read once the newest cut names another table, or it is rebuilt with other columns, masks or rows.
    `layout_id`: of the layout that `emitted` was made of.
    """

    source: Source
    table: TableName
    emitted: TableSchema
    only_emitted: bool
    names: ColumnNames | None = None
    table_id: str | None = None
    generation: int = 0
    layout_id: str | None = None

    def state(self, batches: Batches) -> Batches:
        """Return rows with the oldest position, and what to read, for `STATE`.

        From rows with `upto`, `kept` and `micros` (`NEWEST`), `after`, `last`, `merged`. `after` null: there
        is no Delta table. `last`: a later manifest that it has as well if the cuts were read before it, as
        they are; counts where what landed after `after` is gone, damaged, or can't be shown. `merged`: a
        cut's manifest, epoch and position, and the Delta table's id there, or null.
        """
        for batch in batches:
            for given in batch.to_pylist():
                with explained():
                    found = self._state(self.source.open(), given)
                yield pa.RecordBatch.from_pylist([{"state": row} for row in found], schema=_STATE)

    def events(self, batches: Batches) -> Batches:
        """Read the events of parts (`STATE`), in the columns of the layout and `_cdc`."""
        for batch in batches:
            for row in batch.column("state").to_pylist():
                with explained():
                    if (part := json.loads(row)["part"]) is not None:
                        yield from self._events(part)

    def why_refused(
        self,
        store: Store,
        manifests: LandedManifests,
        manifest: Manifest,
        cut: Mapping[str, Any] | None,
        rebuilt: Mapping[str, int],
    ) -> str | None:
        """Return why queries of the view fail as of a manifest, or None; opens no landing files.

        `cut`: what the newest cut names of the table (`CUT`). `rebuilt`: as `rebuilt_tables` returns it.
        Damaged landing files, and another landing zone, are not looked for.
        """
        id_ = None if cut is None else cut["id"]
        after = 0 if cut is None or id_ is None or self.table_id is None else cut["manifest"]

        def layout_of(id_: str) -> TableSchema:
            return self.emitted if id_ == self.layout_id else read_layout(store, self.table, id_)

        try:
            self._check(manifest, id_, rebuilt.get(self.table_id or "", 0))
            if after < manifest.number:
                manifests.load(after or manifests.first_kept, manifest.number)
                self._plan(manifests, after, manifest.number, layout_of)
        except (GapError, TableError) as error:
            reason = error.reason if isinstance(error, TableError) else str(error)
            return f"its view's queries fail: {reason}" + (f"; hint: {error.hint}" if error.hint else "")
        return None

    def _state(self, store: Store, given: Mapping[str, Any]) -> list[str]:
        upto, after, last = given["upto"], given["after"] or 0, given["last"] or 0
        merged = given["merged"]
        manifests = LandedManifests(store, AsOf(given["kept"], from_micros(given["micros"])))
        if after < last and manifests.is_removed(after):
            after = last
        manifests.load(after or manifests.first_kept, upto)
        rebuilt = 0 if self.table_id is None else last_rebuilt(store, self.table_id)
        self._check(manifests.get(upto), None if merged is None else merged["id"], rebuilt)
        _check_same_zone(manifests, store, upto, merged)
        try:
            return self._planned(store, manifests, after, upto)
        except (GapError, TableError):
            if after >= last:
                raise
            manifests.require_kept(after)
            # As above: `last` is enough, as Delta pins its tables. `after` guards only against another order.
            return self._planned(store, manifests, last, upto)

    def _check(self, manifest: Manifest, merged_id: str | None, rebuilt: int) -> None:
        """Refuse to show the table as of a manifest; see `_require_same_rows`."""
        state = manifest.tables.get(self.table)
        if state is None or state.schema_id is None:
            raise TableError(
                self.table,
                "it is no longer captured",
                hint="its Delta table has it as last merged; call merge.register again for the other tables",
            )
        if tuple(state.key) != self.emitted.key:
            raise TableError(
                self.table, f"its key is ({', '.join(state.key)}) now", hint=f"merge, and {AGAIN}"
            )
        if self.only_emitted:
            self._require_names(state)
        self._require_same_rows(merged_id, rebuilt)

    def _plan(
        self, manifests: LandedManifests, after: int, upto: int, layout_of: Callable[[str], TableSchema]
    ) -> tuple[TablePlan, dict[str, TableSchema]]:
        """Plan what to read, with its layouts by id, which must fit."""
        plan = plan_past_holes(self.table, manifests, after, upto)
        layouts = {id_: layout_of(id_) for id_ in plan.all_schema_ids}
        plan = plan.of_key(layouts)
        for id_ in {file.schema_id for file in plan.all}:
            self._require_fit(layouts[id_])
        return plan, layouts

    def _planned(self, store: Store, manifests: LandedManifests, after: int, upto: int) -> list[str]:
        if after == upto:
            return _rows(NOTHING, [])
        plan, layouts = self._plan(manifests, after, upto, partial(read_layout, store, self.table))
        truncate = max(_truncates(store, plan, layouts), default=NOTHING)
        oldest = max([truncate, *(sweep.position for sweep in plan.sweeps)])
        counts = max(truncate, plan.swept or NOTHING)
        return _rows(oldest, _parts(plan, counts))

    def _events(self, part: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        files = [LandedFile.model_validate(file) for file in part["files"]]
        from_, after = Position(*part["from"]), None if part["after"] is None else Position(*part["after"])
        for batch in read_events(self.source.open(), self.table, files, self.emitted):
            cdc = batch.column(CDC)
            keep = pc.and_(_compare(cdc, from_, or_equal=True), pc.not_equal(_field(cdc, "op"), TRUNCATE))
            if after is not None:
                keep = pc.and_(keep, _compare(cdc, after, or_equal=False))
            yield batch.filter(keep)

    def _require_same_rows(self, merged_id: str | None, rebuilt: int) -> None:
        """Refuse a Delta table whose rows may have other columns, masks or conditions than ours have.

        `merged_id`: of the one that the newest cut names. `rebuilt`: the greatest generation of ours that is
        recorded: a rebuild does that before its rows are there, and this is asked after they were chosen.
        """
        if self.table_id is None:
            return
        replaced = merged_id not in (None, self.table_id)
        if replaced or rebuilt > self.generation:
            how = "dropped or replaced" if replaced else "rebuilt with other columns, masks or rows"
            raise TableError(
                self.table, f"its Delta table was {how} since this view was registered", hint=AGAIN
            )

    def _require_names(self, state: TableState) -> None:
        """Refuse columns that may have got another's name since: masks and conditions go by names."""
        known, now = self.names or ColumnNames(), state.column_names or ColumnNames()
        if now.lasting != known.lasting:
            raise TableError(
                self.table,
                "columns have had others' names, or may have had them, since this view selected by names",
                hint=AGAIN,
            )

    def _require_fit(self, landed: TableSchema) -> None:
        if self.only_emitted:
            self._require_same(landed)
            return
        wanted = {fold(column.name): column for column in self.emitted.columns}
        for column in landed.columns:
            known = wanted.get(fold(column.name))
            if known is None or known.name != column.name or wider(column.type, known.type) != known.type:
                here = "not there" if known is None else f"{known.name!r}, {known.type},"
                raise TableError(
                    self.table,
                    f"column {column.name!r} landed as {column.type}, and is {here} in this view",
                    hint=f"merge, and {AGAIN}",
                )

    def _require_same(self, landed: TableSchema) -> None:
        pairs = zip_longest(landed.columns, self.emitted.columns)
        differing = next(((one, other) for one, other in pairs if one != other), None)
        if differing is not None:
            found, known = map(_described, differing)
            raise TableError(
                self.table,
                f"events of another layout are pending ({found} instead of {known}), and this view selects or"
                " masks columns, or selects rows",
                hint=f"merge, and {AGAIN}",
            )


def _described(column: Column | None) -> str:
    if column is None:
        return "no column"
    masked = "" if column.mask is None else ", masked"
    return f"column {column.name!r} {column.source_type} as {column.type}{masked}"


def _check_same_zone(
    manifests: LandedManifests, store: Store, upto: int, merged: Mapping[str, Any] | None
) -> None:
    """Refuse a landing zone whose manifest of a cut is not the one that was merged.

    If that was removed, the first one kept must not be at an earlier position.
    """
    if merged is None:
        return
    number, merged_at = max(merged["manifest"], manifests.first_kept), (merged["epoch"], merged["position"])
    known = manifests.get(number) if number <= upto else None
    at = None if known is None else (known.epoch, known.position)
    if at is None or at < merged_at or (at > merged_at and number == merged["manifest"]):
        raise SourceMismatchError(
            f"manifest {merged['manifest']} of {store.url} is not the one that the lake has merged",
            hint="the landing zone was replaced; choose another lake.url or source.name for it",
        )


def _truncates(store: Store, plan: TablePlan, layouts: Mapping[str, TableSchema]) -> Iterator[Position]:
    bare = TableSchema(plan.table, (), ())
    for batch in read_rows(store, [Part(file) for file in plan.truncates], layouts, bare):
        for cdc in batch.column(CDC).to_pylist():
            if cdc["op"] == TRUNCATE:
                yield Position(cdc["epoch"], cdc["lsn"], cdc["seq"])


def _rows(oldest: Position, parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Format `STATE`: a row for each part, or one without any."""
    found: list[Mapping[str, Any] | None] = [*parts]
    return [json.dumps({"oldest": oldest._asdict(), "part": part}) for part in found or [None]]


def _parts(plan: TablePlan, counts: Position) -> Iterator[Mapping[str, Any]]:
    """Describe what each task reads; events before `counts` don't count."""
    for files, after in ((plan.files, None), (plan.again, plan.low)):
        for group in groups_for_tasks(files, lambda file: file):
            yield {"files": [file.model_dump(mode="json") for file in group], "from": counts, "after": after}


def _field(cdc: pa.StructArray, name: str) -> pa.Array:
    return pc.struct_field(cdc, name)


def _compare(cdc: pa.StructArray, position: Position, *, or_equal: bool) -> pa.BooleanArray:
    """Return which events are positioned after a position, or at it if `or_equal`."""
    epoch, lsn, seq = (_field(cdc, name) for name in ("epoch", "lsn", "seq"))
    last = (pc.greater_equal if or_equal else pc.greater)(seq, position.seq)
    later = pc.or_(pc.greater(lsn, position.lsn), pc.and_(pc.equal(lsn, position.lsn), last))
    return pc.or_(pc.greater(epoch, position.epoch), pc.and_(pc.equal(epoch, position.epoch), later))
