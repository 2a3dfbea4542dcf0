"""What lands of one table's columns: the selected ones, masked. Pure.

Invariants:

- A value of a column that is left out or masked is in no array that leaves here: not as text in `_cdc.raw`,
  either. Names of columns that are left out are in no `_cdc.unchanged`.
- A layout says under which mask a column landed (`Column.mask`). So another mask, or another salt, is another
  layout, and the table is dumped in full (`connector.capture.tables`).
- Keys land as they are: rows are matched by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from connector.config import Config, TableConfig
from connector.config.target_columns import NULL, has_one_text, mask_identity, masked_type
from connector.errors import TableError
from connector.landing.event_batch import CDC_TYPE, EventBatch, arrow_schema
from connector.landing.format import CDC
from connector.masking.values import masked
from connector.schema import Column, TableName, TableSchema
from connector.source import ChunkRows


@dataclass(frozen=True)
class LandedColumns:
    """The columns of one table that land."""

    table: TableName
    settings: TableConfig
    salt: bytes

    @classmethod
    def of(cls, config: Config, table: TableName) -> LandedColumns | None:
        """Return what lands of a table; None: all its columns, as they are."""
        settings = config.table(table)
        if not settings.mask_before_landing:
            return None
        return cls(table, settings, config.salt or b"")

    def layout(self, source: TableSchema) -> TableSchema:
        """Return the layout that lands.

        `TableError` if a key column would be left out or masked, or a mask does not apply to a column's type.
        """
        for name in source.key:
            if self.settings.mask_of(name) is not None or not self.settings.selects(name):
                raise self._refused(f"column {name!r} is in the key, so it can't be masked or left out")
        return replace(source, columns=tuple(map(self._column, self._selected(source))))

    def batch(self, batch: EventBatch) -> EventBatch:
        """Return events of the log as they land; `TableError` as for `layout`."""
        schema, events = self.layout(batch.schema), batch.table
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
        """Return rows of a chunk as they land."""
        columns = self._values(source, rows.columns, rows.raw)
        return replace(rows, columns=columns, raw=None if rows.raw is None else self._kept_raw(rows.raw))

    def _selected(self, source: TableSchema) -> list[Column]:
        return [column for column in source.columns if self.settings.selects(column.name)]

    def _column(self, column: Column) -> Column:
        mask = self.settings.mask_of(column.name)
        if mask is None:
            return column
        if mask != NULL and not has_one_text(column.type):
            raise self._refused(
                f"mask {mask!r} does not apply to column {column.name!r} ({column.source_type}), whose values"
                ' have no certain text; use "null", or leave the column out'
            )
        return replace(column, type=masked_type(mask, column.type), mask=mask_identity(mask, self.salt))

    def _refused(self, problem: str) -> TableError:
        return TableError(self.table, problem, hint=f"change {self.table.section} in the configuration")

    def _values(
        self, source: TableSchema, values: Sequence[pa.Array], raw: pa.Array | None
    ) -> list[pa.Array]:
        texts = None if raw is None or raw.null_count == len(raw) else raw.to_pylist(maps_as_pydicts="strict")
        landed = []
        for column, array in zip(source.columns, values, strict=True):
            mask = self.settings.mask_of(column.name)
            if mask is not None:
                held = texts and [(texts_of or {}).get(column.name) for texts_of in texts]
                landed.append(masked(mask, array, held, self.salt))
            elif self.settings.selects(column.name):
                landed.append(array)
        return landed

    def _kept_raw(self, raw: pa.Array) -> pa.Array:
        """Return `_cdc.raw` of the columns that land as they are; null where none is left."""
        if raw.null_count == len(raw):
            return raw
        kept = [
            [(name, text) for name, text in texts or () if self._is_plain(name)] or None
            for texts in raw.to_pylist()
        ]
        return pa.array(kept, raw.type)

    def _kept_unchanged(self, unchanged: pa.Array) -> pa.Array:
        """Return `_cdc.unchanged` of the columns that land; null where none is left.

        A column that a mask leaves null is carried by every event.
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
