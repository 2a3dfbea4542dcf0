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
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from connector.config import LandingConfig
from connector.errors import ConfigurationError, DeltatideError, GapError, SourceMismatchError, TableError
from connector.landing.column_names import ColumnNames
from connector.landing.consumers import last_rebuilt
from connector.landing.format import CDC, TRUNCATE
from connector.landing.manifest import LandedFile, Manifest, TableState
from connector.position import Position
from connector.reading.change_log import Part
from connector.reading.change_rows import read_layout, read_rows
from connector.reading.landed_manifests import AsOf, LandedManifests, newest_in
from connector.reading.table_changes import groups_for_tasks
from connector.schema import Column, TableName, TableSchema, fold
from merge.lake.schema import wider
from merge.plan import NOTHING, TablePlan, plan_past_holes
from merge.reading.pending_events import are_after, read_events
from merge.reading.python_process import opened
from merge.sql_formatting import from_micros, to_micros

if TYPE_CHECKING:
    from connector.store.protocol import Store

Batches = Iterable[pa.RecordBatch]

NEWEST = "manifest bigint, kept bigint, micros bigint"
"""The number of the newest manifest, and the landing zone's `AsOf` before it was looked for."""
STATE, OLDEST = "state string", "epoch int, lsn bigint, seq bigint"
"""Rows of JSON: `oldest`, the same in all, and what a task is to read, `parts`; or `error`, why it can't.
One column: of two, each half of a plan would keep one."""

RECORDED = (
    "struct<micros:bigint,manifest:bigint,epoch:int,position:bigint,"
    "tables:array<struct<id:string,manifest:bigint>>>"
)
"""A cut, and when it was recorded; `tables`: what it names of some tables, in their order."""
_STATE = pa.schema([("state", pa.string())])

AGAIN = "call merge.register again: views keep the columns that tables had then"

FORM = 2
"""Of what the plan of a view hands to these functions. It must change with that, since a view that was
registered before has its plan from then, and calls the functions that are installed now."""


@contextmanager
def explained() -> Iterator[None]:
    """Add the hint to our errors' text: Spark shows nothing else of them."""
    try:
        yield
    except DeltatideError as error:
        raise DeltatideError(_with_hint(error)) from error


def _with_hint(error: DeltatideError) -> str:
    return f"{error}; hint: {error.hint}" if error.hint else str(error)


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
class Cuts:
    """What a table's Delta table has, by the cuts recorded last.

    `after`: a manifest whose changes it certainly has; 0: there is none. `last`: a later one that it has as
    well if the cuts were read before it, as they are; counts where what landed after `after` is gone,
    damaged, or can't be shown. `merged`: the manifest, epoch and position of the newest cut, and the Delta
    table's `id` there; None: there is no cut.
    """

    after: int = 0
    last: int = 0
    merged: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, recorded: Iterable[Mapping[str, Any]], number: int = 0) -> Cuts:
        """Take them from rows of `RECORDED`; `number`: which of the tables there."""
        cuts = sorted(recorded, key=lambda cut: (cut["micros"], cut["manifest"]), reverse=True)
        if not cuts:
            return cls()
        newest, named = cuts[0], [cut["tables"][number] for cut in cuts]
        merged = {name: newest[name] for name in ("manifest", "epoch", "position")} | {"id": named[0]["id"]}
        if named[0]["id"] is None:
            return cls(merged=merged)
        before = [each["manifest"] for each in named[1:] if each["id"] == named[0]["id"]]
        return cls(max(before, default=named[0]["manifest"]), named[0]["manifest"], merged)


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

        From rows with `newest` (`NEWEST`) and `cuts`: those recorded last (`RECORDED`), or null.
        """
        for batch in batches:
            for given in batch.to_pylist():
                with explained():
                    store, newest = self.source.open(), given["newest"]
                    manifests = LandedManifests(store, AsOf(newest["kept"], from_micros(newest["micros"])))
                    cuts = Cuts.of(given["cuts"] or ())
                    oldest, parts = self.planned(store, manifests, newest["manifest"], cuts)
                rows = [formatted(oldest, [part]) for part in parts] or [formatted(oldest, [])]
                yield pa.RecordBatch.from_pylist([{"state": row} for row in rows], schema=_STATE)

    def events(self, batches: Batches) -> Batches:
        """Read the events of parts (`STATE`), in the columns of the layout and `_cdc`."""
        for batch in batches:
            for row in batch.column("state").to_pylist():
                with explained():
                    found = json.loads(row)
                    if "error" in found:
                        raise DeltatideError(found["error"])
                    for part in found["parts"]:
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

    def planned(
        self, store: Store, manifests: LandedManifests, upto: int, cuts: Cuts
    ) -> tuple[Position, list[Mapping[str, Any]]]:
        """Return the oldest position, and what to read of manifests up to `upto`, in parts."""
        after, last, merged = cuts.after, cuts.last, cuts.merged
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

    def _planned(
        self, store: Store, manifests: LandedManifests, after: int, upto: int
    ) -> tuple[Position, list[Mapping[str, Any]]]:
        if after == upto:
            return NOTHING, []
        plan, layouts = self._plan(manifests, after, upto, partial(read_layout, store, self.table))
        truncate = max(_truncates(store, plan, layouts), default=NOTHING)
        oldest = max([truncate, *(sweep.position for sweep in plan.sweeps)])
        counts = max(truncate, plan.swept or NOTHING)
        return oldest, [*_parts(plan, counts)]

    def _events(self, part: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        files = [LandedFile.model_validate(file) for file in part["files"]]
        from_, after = Position(*part["from"]), None if part["after"] is None else Position(*part["after"])
        for batch in read_events(self.source.open(), self.table, files, self.emitted):
            cdc = batch.column(CDC)
            is_row = pc.not_equal(pc.struct_field(cdc, "op"), TRUNCATE)
            keep = pc.and_(are_after(cdc, from_, or_equal=True), is_row)
            if after is not None:
                keep = pc.and_(keep, are_after(cdc, after))
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


def of_failure(error: DeltatideError) -> str:
    """Format a row of `STATE` that fails whoever reads it."""
    return json.dumps({"error": _with_hint(error)})


def formatted(oldest: Position, parts: Iterable[Mapping[str, Any]]) -> str:
    """Format a row of `STATE`."""
    return json.dumps({"oldest": oldest._asdict(), "parts": [*parts]})


def _parts(plan: TablePlan, counts: Position) -> Iterator[Mapping[str, Any]]:
    """Describe what each task reads; events before `counts` don't count."""
    for files, after in ((plan.files, None), (plan.again, plan.low)):
        for group in groups_for_tasks(files, lambda file: file):
            yield {"files": [file.model_dump(mode="json") for file in group], "from": counts, "after": after}
