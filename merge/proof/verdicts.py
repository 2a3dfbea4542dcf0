"""Everything that has landed of a table: each event, why it won or lost, and the resulting rows.

A merge's own code computes the resulting row from these events (`merge.plan`, `merge.change_set`); they are
filtered by key as they are read. The verdicts follow from the same expressions by which a merge decides
(`is_boundary`, `carries`, `last_boundary`, `before`):

======================  ==========================================================================
verdict                 meaning; `by` is the position of what overruled the event
======================  ==========================================================================
wins                    the greatest position; of a delete: the row is gone
supplies columns        a later event wins, but lacks columns: the last that carries those of `supplies`
older                   a later event has all columns that it carries
chunk lost to log       the same, of a dumped row: the log after its low watermark has a later event
truncated               the table was emptied after it
before full dump        from before the last full dump, which has the row
ghost swept             from before the last full dump, which does not have the row
landed again            another copy of an event that landed before
empties the table       a truncate, which is an event of every key
======================  ==========================================================================

Each event is compared with all landed events, in whichever merges they were: the result is the same.
Events that landed under another key are left out, since they can't be matched to today's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from connector.config import Config
from connector.errors import GapError
from connector.landing.format import CDC, DELETE, DUMP, TRUNCATE
from connector.landing.manifest import FullDump, LandedFile, Manifest
from connector.position import CHUNK_SEQ, Position
from connector.schema import TableName, TableSchema, fold
from merge.change_set import Truncates, at_literal, before, changes, truncated, truncates_of
from merge.columns.landed_files import Columns
from merge.keys import TargetLayout, with_raw
from merge.lake.schema import wanted_columns, wider
from merge.landing_zone import LandingZone
from merge.overlay import fresh_rows
from merge.plan import TablePlan, plan_table
from merge.proof.sought_key import SoughtKey
from merge.reconcile import SINCE_TYPE, carries, is_boundary, is_current, last_boundary, position_of
from merge.spark.local_rows import local_rows
from merge.sql_formatting import data_type, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WINS = "wins"
SUPPLIES = "supplies columns"
OLDER = "older"
CHUNK_LOST = "chunk lost to log"
TRUNCATED = "truncated"
IN_DUMP = "before full dump"
SWEPT = "ghost swept"
AGAIN = "landed again"
EMPTIES = "empties the table"

EVENTS = ("log", "chunk")
"""The kinds of landing files whose rows are events."""

VERDICT_TYPES = {
    "verdict": "string",
    "supplies": "array<string>",
    "by": SINCE_TYPE,
    "carried": "array<string>",
}

FIELDS = ("op", "epoch", "lsn", "seq", "committed_at", "txid", "dump", "chunk", "low_lsn", "high_lsn", "raw")
"""The fields of `_cdc` that an explained event has as columns."""


@dataclass(frozen=True)
class KeptManifests:
    """A source's manifests from number `first` on; those before it are gone, and count as empty."""

    landing: LandingZone
    first: int
    nothing: Manifest = field(
        default_factory=lambda: Manifest.model_construct(
            number=1, epoch=0, position=0, files=[], notices=[], tables={}, dumps=[], compacted=None
        )
    )

    @classmethod
    def of(cls, landing: LandingZone, upto: int) -> KeptManifests:
        """Find the oldest manifest from which on all are there, up to `upto`."""
        first = upto
        with suppress(GapError):
            while first > 1 and landing.get(first - 1):
                first -= 1
        return cls(landing, first)

    def get(self, number: int) -> Manifest:
        """Return a manifest; one with nothing in it if it is gone."""
        return self.landing.get(number) if number >= self.first else self.nothing

    def is_removed(self, number: int) -> bool:
        """Return whether a manifest is gone."""
        return number < self.first


@dataclass(frozen=True)
class KeyedEvents:
    """The landed events of one key, and truncates, which have no key; without a key, all events."""

    landing: LandingZone
    key: SoughtKey | None

    def events(
        self,
        files: Sequence[LandedFile],
        schemas: Mapping[str, TableSchema],
        columns: Columns,
        *,
        named: bool = False,
    ) -> DataFrame:
        """Read events like `LandingZone.events`, of this key alone if `columns` has it."""
        if self.key is None or not columns:
            return self.landing.events(files, schemas, columns, named=named)
        files = [file for file in files if self.key.may_be_in(file, schemas[file.schema_id])]
        return self.landing.events(files, schemas, columns, named=named).where(self.key.condition)


@dataclass(frozen=True)
class TableEvents:
    """Everything landed of one table up to a manifest: the files that its `plan` reads, and all others.

    `files`: by name, each with the first manifest that lists it. `first`: the oldest manifest kept.
    """

    table: TableName
    landing: LandingZone
    plan: TablePlan
    schemas: Mapping[str, TableSchema]
    files: Mapping[str, tuple[int, LandedFile]]
    first: int
    soft: bool

    @classmethod
    def read(cls, config: Config, landing: LandingZone, table: TableName, upto: int) -> TableEvents:
        """Read the manifests up to `upto`, as far back as they are kept."""
        manifests = KeptManifests.of(landing, upto)
        plan = plan_table(table, manifests, 0, upto)
        if plan.swept is None and plan.state.full_dump is not None:  # its manifests are gone
            plan = replace(plan, swept=plan.state.full_dump.position)
        files = _files(table, manifests, upto)
        named = {file.schema_id for _, file in files.values()}
        ids = [*plan.all_schema_ids, *named]
        schemas = landing.schemas((table, id_) for id_ in ids)
        keyed = {
            name: (number, file)
            for name, (number, file) in files.items()
            if list(schemas[file.schema_id].key) == plan.state.key
        }
        soft = config.table(table).deletes == "soft"
        return cls(table, landing, plan.of_key(schemas), schemas, keyed, manifests.first, soft)

    @property
    def upto(self) -> int:
        """Return the last manifest included."""
        return self.plan.upto

    @property
    def full_dump(self) -> FullDump | None:
        """Return the last full dump that was complete."""
        return self.plan.state.full_dump

    @property
    def complete(self) -> bool:
        """Return whether all events that make up the table's rows are still there."""
        return self.first == 1 or (self.full_dump is not None and self.full_dump.started_in >= self.first)

    def rows_with(self, key: SoughtKey) -> int:
        """Count the events of all keys in the files that may hold a key."""
        files = [file for _, file in self.files.values()]
        return sum(file.rows for file in files if key.may_be_in(file, self.schemas[file.schema_id]))

    def layout(self) -> TargetLayout:
        """Return the columns that a new Delta table would have."""
        schemas = [self.schemas[id_] for id_ in self.plan.schema_ids]
        columns = {c.name: c.type for c in wanted_columns(self.table, schemas).values()}
        return TargetLayout.of(columns, self.plan.state.key, schemas[0])

    def row(self, layout: TargetLayout, key: SoughtKey | None = None) -> DataFrame:
        """Return the rows that a merge makes of the events: one key's, or all."""
        events = KeyedEvents(self.landing, key)
        source = changes(events, self.plan, self.schemas, layout, None, soft=self.soft)
        return fresh_rows(source, layout, soft=self.soft)

    def events(self, layout: TargetLayout, key: SoughtKey | None = None) -> DataFrame:
        """Return each landed event (of one key, or all) with its verdict, in order of positions.

        Columns: `key`, a struct; manifest, the first that lists the file; file; `FIELDS`; `carried`: the
        columns that it carries; `row`: their values; verdict; `supplies`: the columns that the row takes from
        it; `by`, a position. A truncate has neither key nor row.
        """
        keyed = KeyedEvents(self.landing, key)
        landed = self._located(self._landed(keyed, layout))
        truncates = truncates_of(keyed, self.plan, self.schemas)
        judged = self._judged(landed.where(F.col(CDC)["op"] != TRUNCATE), layout, truncates)
        found = _explained(judged, layout)
        if any(file.truncates for _, file in self.files.values()):
            found = found.unionByName(self._truncates(layout))
        return found.orderBy("epoch", "lsn", "seq", "manifest", "file")

    def _landed(self, keyed: KeyedEvents, layout: TargetLayout) -> DataFrame:
        """Read all events; values of a type that can't become the column's current one are null."""
        by_columns: dict[tuple[str, ...], list[LandedFile]] = {tuple(layout.columns): []}
        for _, file in self.files.values():
            fitting = _fitting(self.schemas[file.schema_id], layout)
            if set(layout.key) <= set(fitting):
                by_columns.setdefault(fitting, []).append(file)
        frames = []
        for names, files in by_columns.items():
            columns = {name: layout.columns[name] for name in names}
            frame = keyed.events(files, self.schemas, columns, named=True)
            nulls = {name: F.lit(None).cast(data_type(t)) for name, t in layout.columns.items()}
            selected = [(F.col(quoted(n)) if n in names else nulls[n]).alias(n) for n in layout.columns]
            frames.append(frame.select(*selected, CDC))
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _located(self, events: DataFrame) -> DataFrame:
        """Add manifest and path to events that have the name of their file."""
        rows = [(name, number, file.path) for name, (number, file) in self.files.items()]
        columns = {"name": "string", "manifest": "bigint", "path": "string"}
        places = local_rows(events.sparkSession, columns, rows)
        known = F.col(f"source.{CDC}.file") == F.col("target.name")
        joined = events.alias("source").join(F.broadcast(places).alias("target"), known)
        cdc = F.col(f"source.{CDC}").withField("manifest", F.col("target.manifest"))
        cdc = cdc.withField("file", F.col("target.path"))
        others = [F.col(f"source.{quoted(name)}") for name in events.columns if name != CDC]
        return joined.select(*others, cdc.alias(CDC))

    def _truncates(self, layout: TargetLayout) -> DataFrame:
        """Return the truncates as explained events."""
        files = [file for _, file in self.files.values() if file.truncates]
        events = self._located(self.landing.events(files, self.schemas, {}, named=True))
        nulls = [F.lit(None).cast(data_type(type_)).alias(name) for name, type_ in layout.columns.items()]
        known = {"verdict": F.lit(EMPTIES), "supplies": F.array(), "by": F.lit(None), "carried": F.array()}
        cdc = F.col(CDC)
        for name, value in known.items():
            cdc = cdc.withField(name, value.cast(VERDICT_TYPES[name]))
        emptying = events.where(F.col(CDC)["op"] == TRUNCATE).select(*nulls, cdc.alias(CDC))
        return _explained(emptying, layout, F.lit(False))

    def _judged(self, events: DataFrame, layout: TargetLayout, truncates: Truncates) -> DataFrame:
        """Add to each event's `_cdc` its verdict and the basis for it."""
        swept, cdc = self.plan.swept, F.col(CDC)
        at = position_of(cdc)
        counts = F.lit(True) if swept is None else ~before(swept)
        if truncates and self.soft:
            found = truncated(events.where(counts), None, layout, truncates)
            nowhere = cdc.withField("file", F.lit(None).cast("string"))
            nowhere = nowhere.withField("manifest", F.lit(None).cast("bigint"))
            events = events.unionByName(found.withColumn(CDC, nowhere))
        elif truncates:
            counts &= ~before(max(truncates))
        names = with_raw(layout.key, layout.raw_keys)
        key = Window.partitionBy(*names)
        copies = Window.partitionBy(*names, at).orderBy(cdc["manifest"], cdc["file"])

        def latest(condition: Column) -> Column:
            return F.max(F.when(counts & condition, at)).over(key)

        last = F.max(F.when(counts, F.struct(at.alias("at"), cdc["op"].alias("op")))).over(key)
        boundary = is_boundary(cdc)
        created = latest(boundary & (cdc["op"] != DELETE))
        facts = {
            "copy": F.row_number().over(copies),
            "last": last["at"],
            "gone": last["op"] == DELETE,
            "since": last_boundary(last["op"] == DELETE, latest(boundary), created, soft=self.soft),
            "dumped": F.lit(False) if swept is None else F.max(_is_of_dump(cdc, swept)).over(key),
            **{f"c{n}": latest(carries(cdc, name)) for n, name in enumerate(layout.values)},
        }
        for name, value in facts.items():
            cdc = cdc.withField(name, value)
        judged = events.withColumn(CDC, cdc)
        return self._verdicts(judged, layout, truncates).where(F.col(CDC)["file"].isNotNull())

    def _verdicts(self, events: DataFrame, layout: TargetLayout, truncates: Truncates) -> DataFrame:
        """Turn the facts about each event and its key into a verdict. The first rule that holds applies."""
        cdc = F.col(CDC)
        at, last, since = position_of(cdc), cdc["last"], cdc["since"]
        wins, is_swept, emptied = at == last, F.lit(False), F.lit(None).cast(SINCE_TYPE)
        if self.plan.swept is not None:
            is_swept = before(self.plan.swept)
        if truncates and not self.soft:
            known = F.array(*map(at_literal, truncates))
            emptied = F.array_min(F.filter(known, lambda truncate: truncate > at))

        def supplied(n: int, name: str) -> Column:
            carrier = cdc[f"c{n}"]
            is_last = carries(cdc, name) & (carrier == at) & is_current(carrier, since)
            return F.when(is_last if self.soft else is_last & ~cdc["gone"], F.lit(name))

        supplies = _names([supplied(n, name) for n, name in enumerate(layout.values)])
        overruled = F.when(at < since, since).otherwise(last)
        again = cdc["copy"] > 1
        verdict = (
            F.when(again, AGAIN)
            .when(is_swept, F.when(cdc["dumped"], IN_DUMP).otherwise(SWEPT))
            .when(emptied.isNotNull(), TRUNCATED)
            .when(wins, WINS)
            .when(F.size(supplies) > 0, SUPPLIES)
            .when((cdc["op"] == DUMP) & (overruled["seq"] < CHUNK_SEQ), CHUNK_LOST)
            .otherwise(OLDER)
        )
        by = F.when(again, at).when(emptied.isNotNull(), emptied).when(~wins, overruled)
        if self.plan.swept is not None:
            by = F.when(is_swept & ~again, at_literal(self.plan.swept)).otherwise(by)
        counts = verdict.isin(WINS, SUPPLIES)
        found = {
            "verdict": verdict,
            "supplies": F.when(counts, supplies).otherwise(F.array()),
            "by": by,
            "carried": _names([F.when(carries(cdc, name), F.lit(name)) for name in layout.values]),
        }
        for name, value in found.items():
            cdc = cdc.withField(name, value.cast(VERDICT_TYPES[name]))
        return events.withColumn(CDC, cdc)


def _explained(events: DataFrame, layout: TargetLayout, has_key: Column | None = None) -> DataFrame:
    """Select the columns of explained events from judged ones."""
    cdc, has_key = F.col(CDC), F.lit(True) if has_key is None else has_key
    key, row = (
        F.when(has_key, F.struct(*[F.col(quoted(name)).alias(name) for name in names]))
        for names in (layout.key, layout.columns)
    )
    fields = [cdc[name].alias(name) for name in ("manifest", "file", *FIELDS, "carried")]
    judged = [cdc[name].alias(name) for name in ("verdict", "supplies", "by")]
    return events.select(key.alias("key"), *fields, row.alias("row"), *judged)


def _fitting(schema: TableSchema, layout: TargetLayout) -> tuple[str, ...]:
    """Return a layout's columns to which the schema's types can be widened, or which the schema lacks."""
    types = {fold(column.name): column.type for column in schema.columns}
    return tuple(
        name for name, type_ in layout.columns.items() if wider(types.get(fold(name), type_), type_) == type_
    )


def _names(found: list[Column]) -> Column:
    """Return the names that are not null."""
    return F.array_compact(F.array(*found)) if found else F.array()


def _is_of_dump(cdc: Column, swept: Position) -> Column:
    """Return whether an event is a row of the full dump whose lowest chunk is at `swept`."""
    return (cdc["op"] == DUMP) & (cdc["epoch"] == swept.epoch) & (cdc["seq"] == swept.seq)


def _files(table: TableName, manifests: KeptManifests, upto: int) -> dict[str, tuple[int, LandedFile]]:
    """Return a table's files to read, by name; for a compacted block, the files it was compacted to."""
    found: dict[str, tuple[int, LandedFile]] = {}
    replaced: set[str] = set()
    for number in range(manifests.first, upto + 1):
        manifest = manifests.get(number)
        compacted = manifest.compacted.tables.get(table) if manifest.compacted else None
        files = [*manifest.files_of(table), *(compacted.files if compacted else ())]
        replaced.update(compacted.replaced if compacted else ())
        for file in files:
            if file.kind not in EVENTS:
                continue
            found.setdefault(file.path.rpartition("/")[2], (number, file))
    return {name: place for name, place in found.items() if place[1].path not in replaced}
