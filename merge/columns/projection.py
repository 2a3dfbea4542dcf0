"""Turns landed events into events in a target's columns: selected, renamed, masked, filtered.

::

    landed file -> `frame` -> events that have only what the lake may have -> everything else

Invariants:

- It is applied where landed events, layouts and keys are read (`merge.landing_zone`), and nowhere else. So
  everything built on events (current rows, shapes, live, explain, verify, rebuilds) has the same columns. No
  frame has a value that is left out or masked, neither in a column nor as text in `_cdc.raw`.
- Each event is projected on its own. So a table is still a function of what has landed, whichever merges
  read it.
- No value gets through under an earlier or later name of its column, as far as layouts show
  (`check_renamed`).
- Keys pass unchanged, except for their names: rows are matched by them.
- Where `where` is false or unknown, an event becomes a delete at its position. So an update that takes a row
  out of the condition removes it. One that brings a row in inserts it with the columns that it carries; the
  others are missing, and requested as for any row (`merge.missing_columns`).
- `where` is evaluated per event, so an event that lacks one of its columns (an update, or the insert that an
  update of the key lands as) can't be decided. That stops the table: whether such a row belongs in the lake
  must not be guessed.

Events of `orders`, with ``exclude_columns = ["note"]``, ``mask = { card = "keep last 4" }``, ``rename = {
mail = "email" }``, ``where = "region = 'EU'"``::

    id   region   mail    card       note   op             id   region   email   card       op
    1    EU       a@b.c   12345678   x      insert    ->   1    EU       a@b.c   ****5678   insert
    2    US       d@e.f   87654321   y      insert         2                                delete
    1    US       a@b.c   12345678   x      update         1                                delete

A column that a mask leaves null is carried by every event.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from connector.checksums.definition import bucket_schema
from connector.config import Config
from connector.config.target_columns import (
    NULL,
    SHA256,
    TargetColumns,
    fingerprint,
    has_one_text,
    mask_identity,
    masked_type,
    words_of,
)
from connector.errors import ConfigurationError, TableError
from connector.landing.column_names import ColumnNames
from connector.landing.format import CDC, DELETE, DUMP, INSERT, UPDATE
from connector.schema import Column as SourceColumn
from connector.schema import TableComments, TableName, TableSchema, fold, folded
from merge.columns.condition import why_otherwise, why_unstable
from merge.columns.masks import masked
from merge.columns.other_names import other_names
from merge.spark.session_settings import judging_settings, same_meaning
from merge.sql_formatting import data_type, quoted, text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HOLDS = f"{CDC}.holds"
"""While a condition is applied, a column that says of which events it holds."""

ROWS = (INSERT, UPDATE, DUMP)
"""Operations of events that bring a row."""

_STABLE: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
"""Conditions, with types of columns, that have been judged: EXPLAIN is a query, frames are built often."""

SEEN = "one column has had both names, or may have had them, as the source's catalog or log has shown"

_ALL_COLUMNS = re.compile(r"[(,]\s*\*")


@dataclass(frozen=True)
class Projection:
    """The columns and rows of one table that its target has. `recorded`: as text, to compare targets with."""

    table: TableName
    settings: TargetColumns
    salt: bytes

    @classmethod
    def of(cls, config: Config, table: TableName) -> Projection | None:
        """Return a table's projection; None: the target has all rows and columns as they are."""
        settings = config.table(table)
        if not settings.narrows:
            return None
        if config.salt is None and SHA256 in settings.mask.values():
            raise ConfigurationError(
                f"{table}: a mask is {SHA256}, and the configuration has no lake.salt",
                hint='set it to a secret: [lake] salt = "${DELTATIDE_SALT}"',
            )
        return cls(table, settings, config.salt or b"")

    @property
    def recorded(self) -> str:
        """Return the projection as JSON; equal projections have equal text.

        Holds only fingerprints of the salt and of `where`, whose literals may be values.
        """
        its = self.settings
        key = self.salt if SHA256 in its.mask.values() else b""
        said: dict[str, Any] = {
            "columns": None if its.columns is None else sorted(folded(its.columns)),
            "exclude_columns": sorted(folded(its.exclude_columns)),
            "rename": {fold(name): new for name, new in its.rename.items() if new != name},
            "mask": {fold(name): mask for name, mask in its.mask.items()},
            "where": None if its.where is None else fingerprint(its.where, key),
            "salt": fingerprint("deltatide", key) if key else None,
        }
        return json.dumps({name: value for name, value in said.items() if value}, sort_keys=True)

    def schema(
        self,
        landed: TableSchema,
        layouts: Iterable[TableSchema] = (),
        names: ColumnNames | None = None,
    ) -> TableSchema:
        """Return a layout in the target's columns; a layout of landed checksums unchanged.

        `layouts`: all of the table's. `names`: as for `check_renamed`. `TableError` if the key is left out
        or masked, if two columns would get the same name, if a mask does not apply to a column's type, or if
        `check_renamed` refuses a column.
        """
        if _is_of_checksums(landed):
            return landed
        self.check_renamed(layouts, names)
        columns = tuple(map(self._column, self._selected(landed)))
        if misfit := self.settings.misfit_of_key(landed.key):
            raise self._refused(misfit)
        made = [fold(column.name) for column in columns]
        if twice := next((c.name for c in columns if made.count(fold(c.name)) > 1), None):
            raise self._refused(f"two columns of the target would have the name {twice!r}")
        return TableSchema(landed.table, columns, self.key(landed.key))

    @property
    def digest(self) -> str:
        """Return a hash of the projection."""
        return hashlib.sha256(self.recorded.encode()).hexdigest()[:16]

    def comments(self, found: TableComments) -> TableComments:
        """Return the comments of the target's columns, by their names there; masked ones say so."""
        columns = {}
        for name, comment in found.columns.items():
            if self.settings.selects(name):
                mask = self.settings.mask_of(name)
                masked_as = "" if mask is None else f" (masked: {mask})"
                columns[self.settings.name_of(name)] = comment + masked_as
        return replace(found, columns=columns)

    def key(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names that key columns have in the target."""
        return tuple(map(self.settings.name_of, names))

    def check_renamed(self, layouts: Iterable[TableSchema], names: ColumnNames | None = None) -> None:
        """Refuse a column that may be a masked or excluded one under another name (`other_names`).

        Looks at all layouts of the table: the column may have been renamed at the source, before or since.
        `names`: those that one column has had, or may have had. A column that is masked, left out or called
        unmasked (earlier: renamed to its own name) is accepted. One in `columns` is only listed, and one in
        `rename` only has another name in the lake: the hidden column may have been given its name.
        """
        its, known = self.settings, [layout for layout in layouts if not _is_of_checksums(layout)]
        written = {name: as_is for layout in known for name, as_is in _names_of(layout).items()}
        unmasked = [*its.unmasked, *(old for old, new in its.rename.items() if old == new)]
        named = folded([*its.mask, *its.exclude_columns, *unmasked])
        for hidden in (*its.mask, *its.exclude_columns):
            seen = names.others(fold(hidden)) if names is not None else ()
            others = {name: SEEN for name in seen if name in written}
            for name, why in (_other_names(fold(hidden), tuple(known)) | others).items():
                if name in named or not self.settings.selects(name):
                    continue
                raise TableError(
                    self.table,
                    f"column {written[name]!r} may be {hidden!r}, which is masked or left out, under another"
                    f" name: {why}",
                    hint=f"in {self.table.section}, name it in mask or exclude_columns as well; or, if it is"
                    f" another column, say so: unmasked = {json.dumps([written[name]], ensure_ascii=False)}",
                )

    def check_names(self, layouts: Iterable[TableSchema]) -> None:
        """Refuse settings that name a column in no layout: it is probably misspelled.

        A column that the source has dropped is still in older events, and must stay masked there.
        """
        its, known = self.settings, {name for layout in layouts for name in _names_of(layout)}
        for setting, names in (
            ("columns", its.columns or ()),
            ("exclude_columns", its.exclude_columns),
            ("rename", its.rename),
            ("mask", its.mask),
        ):
            if unknown := [name for name in names if fold(name) not in known]:
                raise self._refused(f"{setting} names column {unknown[0]!r}, which the table does not have")

    def frame(self, events: DataFrame, landed: TableSchema, newest: TableSchema) -> DataFrame:
        """Return events of a landed layout, with `_cdc`, in the columns of `schema(landed)`. Pure.

        For `where`, a column of the `newest` layout that the events lack, since it was added later, is null.
        """
        if _is_of_checksums(landed):
            return events
        if self.settings.where is None:
            return self._frame(events, landed)
        spark = events.sparkSession
        with judging_settings(spark) as otherwise:
            known = folded(column.name for column in landed.columns)
            added = (column for column in newest.columns if fold(column.name) not in known)
            nulls = (F.lit(None).cast(data_type(column.type)).alias(column.name) for column in added)
            events = events.select("*", *nulls)
            framed = self._frame(events, landed)
            if otherwise:
                self._require_one_meaning(events, self.settings.where, otherwise)
            return framed

    def _frame(self, events: DataFrame, landed: TableSchema) -> DataFrame:
        if self.settings.where is not None:
            events = self._with_condition(events, self.settings.where)
        cdc, alive = self._judged(landed)
        raw = F.col(CDC)["raw"]
        columns = []
        for column in self._selected(landed):
            value, mask = F.col(quoted(column.name)), self.settings.mask_of(column.name)
            if mask is not None and column.mask is None:
                value = masked(mask, value, raw[column.name], column.type, self.salt)
            if alive is not None and column.name not in landed.key:
                value = F.when(alive, value)
            columns.append(value.alias(self.settings.name_of(column.name)))
        return events.select(*columns, cdc.alias(CDC))

    def matching(self, rows: DataFrame, where: str, columns: Sequence[str]) -> DataFrame:
        """Return the target's rows that satisfy a condition in the source's names. Pure.

        The condition may use only unmasked columns among `columns`; Spark refuses others.
        """
        source = {fold(new): old for old, new in self.settings.rename.items()}
        masks = folded(self.settings.name_of(name) for name in self.settings.mask)
        named = {name: source.get(fold(name), name) for name in columns if fold(name) not in masks}
        whole = F.struct(*[F.col(quoted(name)) for name in rows.columns]).alias(CDC)
        known = rows.select(*[F.col(quoted(name)).alias(old) for name, old in named.items()], whole)
        found = known.where(where)
        return found.select(*[F.col(CDC)[name].alias(name) for name in rows.columns])

    def _judged(self, landed: TableSchema) -> tuple[Column, Column | None]:
        """Return the target's `_cdc`, and which events satisfy the condition (in `HOLDS`); None: all."""
        cdc = F.col(CDC)
        selected = {column.name: self.settings.name_of(column.name) for column in self._selected(landed)}
        plain = {name: new for name, new in selected.items() if self.settings.mask_of(name) is None}
        waiting = {name: new for name, new in selected.items() if self.settings.mask_of(name) != NULL}
        raw, unchanged = _renamed_texts(cdc["raw"], plain), _renamed_names(cdc["unchanged"], waiting)
        alive = None
        if self.settings.where is not None:
            alive = F.col(quoted(HOLDS))
            raw_key = _renamed_texts(cdc["raw"], {name: plain[name] for name in landed.key})
            raw = F.when(alive, raw).otherwise(raw_key)
            unchanged = F.when(alive, unchanged)
            gone = cdc["op"].isin(*ROWS) & ~alive
            op = F.when(gone, DELETE).otherwise(cdc["op"])
            cdc = cdc.withField("op", self._unless_undecided(op, landed))
        return cdc.withField("unchanged", unchanged).withField("raw", raw), alive

    def _with_condition(self, events: DataFrame, where: str) -> DataFrame:
        """Add to events whether they are rows that satisfy the condition, as the column `HOLDS`.

        As text, which these events' session parses: before Spark 4, `F.expr` makes casts by the settings of
        whatever session is active, so that one which fails under ANSI would give null. A delete or a truncate
        is not asked: its columns are null, which the condition may not be made for (it fails under ANSI).
        """
        try:
            known = events.where(F.coalesce(F.expr(where), F.lit(False))).schema.fields
            self._require_stable(
                events.sparkSession, where, {f.name: f.dataType.simpleString() for f in known}
            )
            is_row = f"{CDC}.op IN ({', '.join(map(text, ROWS))})"
            holds = f"CASE WHEN {is_row} THEN coalesce((\n{where}\n), false) ELSE false END"
            return events.selectExpr("*", f"{holds} AS {quoted(HOLDS)}")
        except (AnalysisException, ConfigurationError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise self._refused(f"where can't be evaluated: {reason}") from error

    def _require_stable(self, spark: SparkSession, where: str, types: Mapping[str, str]) -> None:
        names = _may_name(where, (name for name in types if name != CDC))
        judged = where, tuple((name, types[name]) for name in names)
        if judged in _STABLE:
            return
        if why := why_unstable(spark, where, dict(judged[1])):
            raise TableError(
                self.table,
                f"where must give the same answer for a row at every merge, and {why}",
                hint=f"change {self.table.section} in the configuration: compare texts as texts"
                " (opens_at > '12:30'), or make timestamps by a pattern (to_timestamp(opens_at, 'HH:mm'))",
            )
        _STABLE.add(judged)

    def _require_one_meaning(
        self, events: DataFrame, where: str, otherwise: Mapping[str, str | None]
    ) -> None:
        """Refuse a condition that a caller's session, set `otherwise`, would evaluate not as merges do."""
        types = {f.name: f.dataType.simpleString() for f in events.schema.fields if f.name != CDC}
        types = {name: types[name] for name in _may_name(where, types)}
        if why := why_otherwise(events.sparkSession, where, types, otherwise):
            raise TableError(self.table, why, hint=same_meaning(otherwise))

    def _unless_undecided(self, op: Column, landed: TableSchema) -> Column:
        """Return `op`, but fail on an event that lacks a column of the condition.

        Only updates can, or inserts from updates of the key; with partial row images, any event.
        """
        where = self.settings.where or ""
        needed = _may_name(where, (column.name for column in landed.columns))
        if not needed:
            return op
        cdc = F.col(CDC)
        lacking = F.arrays_overlap(cdc["unchanged"], F.array(*map(F.lit, needed)))
        problem = F.raise_error(
            F.lit(
                f"{self.table}: an update lacks a column of its where ({', '.join(needed)}), so whether the"
                " row is to be in the lake is not known; have the source log whole rows"
                " (binlog_row_image = FULL, REPLICA IDENTITY FULL), then dump the table in full"
            )
        )
        return F.when(lacking, problem.cast("string")).otherwise(op)

    def _selected(self, landed: TableSchema) -> list[SourceColumn]:
        return [column for column in landed.columns if self.settings.selects(column.name)]

    def _column(self, column: SourceColumn) -> SourceColumn:
        mask, name = self.settings.mask_of(column.name), self.settings.name_of(column.name)
        if column.mask is not None:
            return SourceColumn(name, f"{column.source_type}, masked: {self._landed(column)}", column.type)
        if mask is None:
            return SourceColumn(name, column.source_type, column.type)
        if mask != NULL and not has_one_text(column.type):
            raise self._refused(
                f"mask {mask!r} does not apply to column {column.name!r} ({column.source_type}), whose values"
                ' have no unique text; use "null", or leave the column out'
            )
        type_ = masked_type(mask, column.type)
        return SourceColumn(name, f"{column.source_type}, masked: {mask}", type_)

    def _landed(self, column: SourceColumn) -> str:
        """Return the mask under which a column landed, which must be the one that is configured."""
        mask = self.settings.mask_of(column.name)
        if mask is None or mask_identity(mask, self.salt) != column.mask:
            raise TableError(
                self.table,
                f"column {column.name!r} landed under another mask or salt than is configured now",
                hint=f"let the agent run with this configuration and dump the table in full: deltatide dump"
                f" {shlex.quote(str(self.table))}; then rebuild it: deltatide rebuild"
                f" {shlex.quote(str(self.table))}",
            )
        return mask

    def _refused(self, problem: str) -> TableError:
        return TableError(self.table, problem, hint=f"change {self.table.section} in the configuration")


def projections_of(config: Config) -> dict[TableName, Projection]:
    """Return the projections of all tables that have one."""
    found = {table: Projection.of(config, table) for table in config.tables}
    return {table: projection for table, projection in found.items() if projection is not None}


def recorded_projection(config: Config, table: TableName) -> str | None:
    """Return the property that a target with this projection must have; None: none."""
    projection = Projection.of(config, table)
    return None if projection is None else projection.recorded


@lru_cache(maxsize=256)
def _other_names(hidden: str, layouts: tuple[TableSchema, ...]) -> dict[str, str]:
    """Cache `other_names`, which is called once per layout."""
    types = [{fold(column.name): column.type for column in layout.columns} for layout in layouts]
    return other_names(hidden, types)


def _names_of(layout: TableSchema) -> dict[str, str]:
    return {fold(column.name): column.name for column in layout.columns}


def _is_of_checksums(landed: TableSchema) -> bool:
    return landed.columns == bucket_schema(landed.table).columns


def _may_name(where: str, columns: Iterable[str]) -> list[str]:
    """Return the columns that a condition may use."""
    words, of_all = words_of(where), _ALL_COLUMNS.search(where) is not None
    return [name for name in columns if of_all or folded(re.findall(r"\w+", name)) <= words]


def _pairs(names: Mapping[str, str]) -> Column:
    if not names:
        return F.create_map().cast("map<string,string>")
    return F.create_map(*[F.lit(name) for pair in names.items() for name in pair])


def _renamed_names(found: Column, names: Mapping[str, str]) -> Column:
    """Rename an array's names by `names`; drop all others."""
    pairs = _pairs(names)
    known = F.filter(found, lambda name: F.array_contains(F.map_keys(pairs), name))
    return F.transform(known, lambda name: F.element_at(pairs, name))


def _renamed_texts(found: Column, names: Mapping[str, str]) -> Column:
    """Rename the keys of a map of texts by `names`; drop all others; null if none is left."""
    pairs = _pairs(names)
    known = F.map_filter(found, lambda name, _: F.array_contains(F.map_keys(pairs), name))
    renamed = F.transform_keys(known, lambda name, _: F.element_at(pairs, name))
    return F.when(F.size(renamed) > 0, renamed)
