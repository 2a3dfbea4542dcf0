"""The two sides that a verification compares, and its result for a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.landing.format import CDC
from connector.landing.manifest import DumpState, LandedFile
from connector.schema import TableName, TableSchema, fold
from merge.keys import TargetLayout
from merge.overlay import as_wide
from merge.plan import TablePlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KeyEnds = tuple[int | None, int | None]
"""As in `connector.landing.requests.DumpRequest`: after a value of the first key column, up to another."""

SHOWN = "NOT coalesce(_cdc.op = 'delete', false)"
"""Rows of a Delta table that its readers see; rows that others wrote may have no `_cdc`."""


@dataclass(frozen=True)
class SampleOf:
    """The sample compared instead of a whole table: `ranges` of the key's `of_ranges`.

    `of_rows`: how many rows the lake had in all ranges when these were chosen.
    """

    ranges: int
    of_ranges: int
    of_rows: int


@dataclass(frozen=True)
class TableVerification:
    """One table's comparison: how many keys differ, by kind, after `rows` were read from the source.

    `manifest`: as of which manifest; `version`: of the Delta table. `waiting`: how many keys can't be
    compared yet, since a row lacks a column. `settled`: no first dump, repair, or dump of such rows was under
    way. `note`: a remark for people. `suspects`: keys, as the source's text, still to be compared: those that
    wait, and for a condition those that only the lake may have. None: unknown, and `incomplete` says why.
    `error`: why nothing was compared. `bytes`: how much the agent has landed.

    With checksums, `checked` (not `rows`) counts the source's rows compared, as of manifest `checked_at`.
    `unproven`: ranges of the first key column whose rows are still to be compared (None: the whole table's,
    for the reason `by_rows`).

    `sample`: set if only ranges of the key were compared; `equal` then covers only these. `whole`: why all
    rows were compared although a sample was asked for.
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
    incomplete: str | None = None
    checked: int = 0
    checked_at: int = 0
    unproven: list[KeyEnds] | None = field(default_factory=list)
    by_rows: str | None = None
    sample: SampleOf | None = None
    whole: str | None = None
    bytes: int = 0
    error: str | None = None
    hint: str | None = None

    @property
    def differing(self) -> int:
        """Count the findings; a key that differs and occurs twice counts twice."""
        return self.missing + self.ghosts + self.different

    @property
    def conclusive(self) -> bool:
        """Return whether everything was compared while the table was settled."""
        return self.error is None and self.settled and self.incomplete is None and self.unproven == []

    @property
    def has_result(self) -> bool:
        """Return whether the outcome is certain: something differs, or all was compared and no row waits."""
        return self.conclusive and bool(self.differing or not self.waiting)

    @property
    def equal(self) -> bool:
        """Return whether everything was compared, and nothing differs, waits, or is a suspect."""
        return self.conclusive and not self.differing and not self.waiting and not self.suspects


@dataclass(frozen=True)
class Sides:
    """The two sides of a comparison: files `read` from the source, with the log since, and the lake's table.

    `plan`: without what landed under another key; `newest`: the layout as of the cut; `verified`: the result
    as far as it is known before comparing. `projected`: the lake has only some of the table's columns and
    rows, or masks them (`merge.columns.projection`); both sides are then limited to these. `before`: the
    layout as of the last manifest before the dump, if the table had one. `lake_bytes`: the Delta
    table's size. `fresh`: what has landed after the manifest of the lake's version, up to the plan's.
    """

    read: tuple[LandedFile, ...]
    plan: TablePlan
    schemas: dict[str, TableSchema]
    newest: TableSchema
    lake: DataFrame
    verified: TableVerification
    projected: bool = False
    before: TableSchema | None = None
    lake_bytes: int = 0
    fresh: tuple[LandedFile, ...] = ()

    @cached_property
    def layout(self) -> TargetLayout:
        """Return the layout for comparing rows: the Delta table's columns, and any that it lacks."""
        return compared_layout(self.lake, self.newest, self.plan.state.key)

    @property
    def compared(self) -> list[str]:
        """List the columns to compare: the source's, without the key."""
        names = {fold(column.name) for column in self.newest.columns} - self._gone
        return [name for name in self.layout.values if fold(name) in names]

    @property
    def _gone(self) -> set[str]:
        """Return the columns that the table had before the dump, and not when its rows were read.

        They were dropped or renamed. The log shows that only with the next row event, however late, so the
        layout as of the cut may still have them. A column that the rows lack because it was added since is
        compared.
        """
        if self.before is None or self.plan.swept_since_read:
            return set()
        read = [self.schemas[file.schema_id] for file in self.plan.files]
        had, *have = ({fold(column.name) for column in schema.columns} for schema in (self.before, *read))
        return {name for name in had if not all(name in names for names in have)}

    @property
    def actual(self) -> DataFrame:
        """Return the lake's rows, without those marked as deleted."""
        return as_wide(self.lake, self.layout).where(SHOWN)

    @property
    def checked_columns(self) -> dict[str, str]:
        """Return the columns that have checksums, in order: names in the lake, with types."""
        return checked_columns(self.layout, self.newest)

    def why_unchecked(self, dump: DumpState) -> str | None:
        """Return why checksums can't be compared; None if they can."""
        if dump.bits is None:
            return "its checksums have no buckets"
        if self.projected:
            return "the lake has it with other columns, masks or rows"
        if self.plan.swept_since_read:
            return "it was dumped in full meanwhile"
        if self.plan.truncates:
            return "it was truncated meanwhile"
        wrong = unlike(self.lake, self.checked_columns)
        return f"the lake lacks column {wrong[0]}, or has it with another type" if wrong else None


def compared_layout(lake: DataFrame, newest: TableSchema, key: Sequence[str]) -> TargetLayout:
    """Return a Delta table's columns, and those of the newest layout that it lacks."""
    known = {f.name: f.dataType.simpleString() for f in lake.schema.fields if f.name != CDC}
    names = {fold(name) for name in known}
    more = {column.name: column.type for column in newest.columns if fold(column.name) not in names}
    return TargetLayout.of({**known, **more}, key, newest)


def checked_columns(layout: TargetLayout, newest: TableSchema) -> dict[str, str]:
    """Return the columns that have checksums, in order: names in the lake, with types."""
    named = {fold(name): name for name in layout.columns}
    return {named[fold(column.name)]: column.type for column in newest.columns}


def unlike(lake: DataFrame, columns: Mapping[str, str]) -> list[str]:
    """Return the columns that a Delta table lacks, or has with another type."""
    types = {f.name: f.dataType.simpleString() for f in lake.schema.fields}
    return [name for name, type_ in columns.items() if types.get(name) != type_]


def within(column: Column, ranges: Sequence[KeyEnds]) -> Column:
    """Return whether a value is in any of the ranges; null, which is no source's key, is in the first."""
    parts = [_in_range(column, *ends) for ends in ranges]
    while len(parts) > 1:  # pairwise: Spark recurses as deep as the condition is nested
        parts = [reduce(or_, parts[n : n + 2]) for n in range(0, len(parts), 2)]
    return parts[0]


def _in_range(column: Column, after: int | None, upto: int | None) -> Column:
    found = F.lit(True) if after is None else column > _literal(after)
    if upto is not None:
        found = found & (column <= _literal(upto))
    return found | column.isNull() if after is None else found


def _literal(value: int) -> Column:
    return F.lit(value if -(1 << 63) <= value < 1 << 63 else Decimal(value))
