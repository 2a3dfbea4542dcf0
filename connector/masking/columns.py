"""Which of a table's columns land, and in what form: the selected ones, masked. Pure.

Invariants:

- A value of a column that is left out or masked is in no array returned from here, not even as text in
  `_cdc.raw`. No `_cdc.unchanged` names a column that is left out.
- A layout records the mask under which a column landed (`Column.mask`). So another mask, or another salt, is
  another layout, and the table is dumped in full (`connector.capture.tables`).
- Keys land unmasked: rows are matched by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from connector.config import Config, TableConfig
from connector.config.target_columns import NULL, has_one_text, mask_identity, masked_type
from connector.errors import TableError
from connector.landing.column_names import ColumnNames
from connector.landing.event_batch import CDC_TYPE, EventBatch, arrow_schema
from connector.landing.format import CDC
from connector.masking.values import masked
from connector.schema import Column, TableName, TableSchema, fold, folded
from connector.source import ChunkRows

LANDS_MASKED = "which lands masked"
"""In the reason why a table is quarantined that would show a masked column."""


def shown_unmasked(table: TableName, was: str, name: str) -> TableError:
    """Build the error for a column that landed masked, and would land as it is under another name."""
    what = "name it in mask, too; or in unmasked, if it is another column"
    return TableError(
        table,
        f"column {name!r} was {was!r}, {LANDS_MASKED}",
        hint=f"in {table.section}, {what}: deltatide reload",
    )


def check_renamed(table: TableName, settings: TableConfig, name: str, former: Iterable[str]) -> None:
    """`TableError` if a column, by the names that it has had, was masked and would land as it is."""
    was = next((each for each in former if settings.mask_of(each) is not None), None)
    lands = settings.mask_before_landing and settings.selects(name) and settings.mask_of(name) is None
    if was is not None and lands and fold(name) not in folded(settings.unmasked):
        raise shown_unmasked(table, was, name)


def landed_masked(
    names: ColumnNames, known: TableSchema, schema: TableSchema, settings: TableConfig
) -> TableError | None:
    """Return what is wrong if a column of a layout landed masked before, under another name.

    One that is declared as `unmasked` may; but if it is given yet another name, that counts.
    """
    masked = {fold(c.name): c.name for c in known.columns if c.mask is not None}
    said = folded(settings.unmasked)
    for column in (c for c in schema.columns if c.mask is None and fold(c.name) not in said):
        if former := masked.keys() & names.others_of(fold(column.name)):
            return shown_unmasked(schema.table, masked[min(former)], column.name)
    return None


@dataclass(frozen=True)
class LandedColumns:
    """The columns of one table that land.

    `meant`: a section whose name differs from the table's only by case. If set, nothing lands: a mask may be
    missing.
    """

    table: TableName
    settings: TableConfig
    salt: bytes
    meant: TableName | None = None

    @classmethod
    def of(cls, config: Config, table: TableName) -> LandedColumns | None:
        """Return which columns of a table land; None: all of them, unmasked."""
        settings, salt = config.table(table), config.salt or b""
        if settings.mask_before_landing:
            return cls(table, settings, salt)
        if table in config.tables:
            return None
        alike = [n for n in config.tables if tuple(map(fold, n)) == tuple(map(fold, table))]
        meant = next((name for name in alike if config.tables[name].mask_before_landing), None)
        return None if meant is None else cls(table, config.tables[meant], salt, meant)

    def layout(self, source: TableSchema) -> TableSchema:
        """Return the layout that lands.

        `TableError` if a key column would be left out or masked, a mask does not apply to a column's type, or
        the table's section has its name in another case.
        """
        if self.meant is not None:
            raise TableError(
                self.table,
                f"{self.meant.section} has mask_before_landing, and differs from its name only by case",
                hint="name the section as the source names the table; if that is another table, give this one"
                f" a section of its own, which may be empty: {self.table.section}",
            )
        if misfit := self.settings.misfit_of_key(source.key):
            raise self._refused(misfit)
        return replace(source, columns=tuple(map(self._column, self._selected(source))))

    def batch(self, batch: EventBatch) -> EventBatch:
        """Return log events as they land; `TableError` as for `layout`, or if a mask fails."""
        schema = self.layout(batch.schema)
        with self._without_values():
            return self._batch(batch, schema)

    def _batch(self, batch: EventBatch, schema: TableSchema) -> EventBatch:
        events = batch.table
        cdc = events[CDC].combine_chunks()
        fields = {field.name: pc.struct_field(cdc, field.name) for field in CDC_TYPE}
        values = [events[column.name].combine_chunks() for column in batch.schema.columns]
        columns = self._values(batch.schema, values, fields["raw"])
        fields["raw"] = self._kept_raw(fields["raw"])
        fields["unchanged"] = self._kept_unchanged(fields["unchanged"])
        cdc = pa.StructArray.from_arrays(list(fields.values()), fields=list(CDC_TYPE))
        table = pa.Table.from_arrays([*columns, cdc], schema=arrow_schema(schema))
        return replace(batch, schema=schema, table=table)

    def rows(self, source: TableSchema, rows: ChunkRows) -> ChunkRows:
        """Return a chunk's rows as they land; `TableError` if a mask fails."""
        with self._without_values():
            columns = self._values(source, rows.columns, rows.raw)
            return replace(rows, columns=columns, raw=None if rows.raw is None else self._kept_raw(rows.raw))

    @contextmanager
    def _without_values(self) -> Iterator[None]:
        """Make a failure stop only this table, and keep the values that caused it out of the message."""
        try:
            yield
        except (MemoryError, TableError):
            raise
        except Exception as error:
            raise self._refused(f"a value can't be masked ({type(error).__name__})") from None

    def _selected(self, source: TableSchema) -> list[Column]:
        return [column for column in source.columns if self.settings.selects(column.name)]

    def _column(self, column: Column) -> Column:
        mask = self.settings.mask_of(column.name)
        if mask is None:
            return column
        if mask != NULL and not has_one_text(column.type):
            raise self._refused(
                f"mask {mask!r} does not apply to column {column.name!r} ({column.source_type}), whose values"
                ' have no unique text; use "null", or leave the column out'
            )
        return replace(column, type=masked_type(mask, column.type), mask=mask_identity(mask, self.salt))

    def _refused(self, problem: str) -> TableError:
        return TableError(self.table, problem, hint=f"change {self.table.section} in the configuration")

    def _values(
        self, source: TableSchema, values: Sequence[pa.Array], raw: pa.Array | None
    ) -> list[pa.Array]:
        texts: list[dict[str, str]] | None = None
        if raw is not None and raw.null_count < len(raw):
            texts = [dict(pairs or ()) for pairs in raw.to_pylist()]
        landed = []
        for column, array in zip(source.columns, values, strict=True):
            mask = self.settings.mask_of(column.name)
            if mask is not None:
                held = None if texts is None else [texts_of.get(column.name) for texts_of in texts]
                landed.append(masked(mask, array, held, self.salt))
            elif self.settings.selects(column.name):
                landed.append(array)
        return landed

    def _kept_raw(self, raw: pa.Array) -> pa.Array:
        """Return `_cdc.raw` for the columns that land unmasked; null where none is left."""
        if raw.null_count == len(raw):
            return raw
        kept = [
            [(name, text) for name, text in texts or () if self._is_plain(name)] or None
            for texts in raw.to_pylist()
        ]
        return pa.array(kept, raw.type)

    def _kept_unchanged(self, unchanged: pa.Array) -> pa.Array:
        """Return `_cdc.unchanged` for the columns that land; null where none is left.

        A column that its mask makes null is never unchanged: every event carries it.
        """
        if unchanged.null_count == len(unchanged):
            return unchanged
        kept = [
            [name for name in names or () if self._is_carried(name)] or None
            for names in unchanged.to_pylist()
        ]
        return pa.array(kept, unchanged.type)

    def _is_plain(self, name: str) -> bool:
        return self.settings.selects(name) and self.settings.mask_of(name) is None

    def _is_carried(self, name: str) -> bool:
        return self.settings.selects(name) and self.settings.mask_of(name) != NULL
