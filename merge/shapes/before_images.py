"""Before-images in `changes`: the Delta table's column `_before`, and how it is read from landing files.

`_before` has the table's columns, with their types in the Delta table, and its own `_cdc`: the columns that
the log did not carry, and texts that their types can't hold. It is null if the event replaced no row, or
landed before before-images were turned on.

Nothing else reads it: neither the current rows nor a history depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from connector.errors import TableError
from connector.landing.format import BEFORE, BEFORE_FIELDS, CDC
from connector.schema import TableSchema, fold
from merge.lake.schema import commit_layout
from merge.sql_formatting import data_type, quoted, text

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from merge.lake.commits import Mark
    from merge.lake.target import Target, TargetState

CDC_TYPE = "struct<" + ",".join(f"{name}:{type_}" for name, type_ in BEFORE_FIELDS) + ">"


@dataclass(frozen=True)
class OldRows:
    """The fields of `_before` in a frame, in order: the columns, and `_cdc`."""

    fields: Mapping[str, str]

    @property
    def type(self) -> str:
        """Return its type, as Spark parses it."""
        return struct_type(self.fields)

    def landed(self, schema: TableSchema) -> list[str]:
        """Return the column's definition in files of a layout; nothing if they lack it."""
        if not schema.before_images:
            return []
        columns = {column.name: column.type for column in schema.columns}
        return [f"{quoted(BEFORE)} {struct_type({**columns, CDC: CDC_TYPE})}"]

    def column(self, schema: TableSchema, renamed: Callable[[Column], Column]) -> Column:
        """Return the column for files of a layout; `renamed`: the name in the frame of a landed column."""
        if not schema.before_images:
            return F.lit(None).cast(self.type).alias(BEFORE)
        row, named = F.col(BEFORE), {fold(column.name): column.name for column in schema.columns}
        ours = row.getField(CDC)
        fields = {
            "missing": F.transform(ours.getField("missing"), renamed),
            "raw": F.transform_keys(ours.getField("raw"), lambda name, _: renamed(name)),
        }
        values = {CDC: F.struct(*[value.alias(name) for name, value in fields.items()])}
        for name, type_ in self.fields.items():
            known = named.get(fold(name))
            value = F.lit(None) if known is None else row.getField(known)
            values.setdefault(name, value.cast(data_type(type_)))
        return F.when(row.isNotNull(), F.struct(*[values[n].alias(n) for n in self.fields])).alias(BEFORE)


def struct_type(fields: Mapping[str, str]) -> str:
    """Format the type of a struct."""
    return "struct<" + ",".join(f"{quoted(name)}:{data_type(type_)}" for name, type_ in fields.items()) + ">"


def old_rows_of(
    spark: SparkSession, target: Target, state: TargetState, mark: Mark, schemas: Collection[TableSchema]
) -> OldRows | None:
    """Evolve `_before` to the columns of the Delta table; None if there is none and no layout needs one.

    `TableError` if `_before` is a column of the source table.
    """
    asked = any(schema.before_images for schema in schemas)
    columns = {name: type_ for name, type_ in state.columns.items() if name != BEFORE}
    found = _found(spark, target) if BEFORE in state.columns else {}
    if not asked and not found:
        return None
    if found is None:
        raise TableError(
            target.table,
            f"{target.name} already has a column {BEFORE}, which is not ours",
            hint="copy what you need of that Delta table, then drop it: the next merge creates it again",
        )
    statements = evolve_sql(target, found, columns)
    if statements:
        commit_layout(spark, mark, statements)
        found = _found(spark, target) or {}
    return OldRows(found)


def evolve_sql(target: Target, found: Mapping[str, str], columns: Mapping[str, str]) -> Sequence[str]:
    """Build the statements that give `_before` a Delta table's columns; `found`: its fields, if any."""
    alter = f"ALTER TABLE {target.name}"
    if not found:
        type_ = struct_type({**columns, CDC: CDC_TYPE})
        ours = text("written by deltatide")
        return [f"{alter} ADD COLUMNS ({quoted(BEFORE)} {type_} COMMENT {ours})"]
    path = {name: f"{quoted(BEFORE)}.{quoted(name)}" for name in columns}
    added = [f"{path[name]} {data_type(type_)}" for name, type_ in columns.items() if name not in found]
    statements = [f"{alter} ADD COLUMNS ({', '.join(added)})"] if added else []
    widened = {name: type_ for name, type_ in columns.items() if found.get(name, type_) != type_}
    return [*statements, *(f"{alter} ALTER COLUMN {path[n]} TYPE {data_type(t)}" for n, t in widened.items())]


def _found(spark: SparkSession, target: Target) -> dict[str, str] | None:
    """Return the fields of the Delta table's `_before`; None if that is another column."""
    type_ = spark.table(target.name).schema[BEFORE].dataType
    if not isinstance(type_, StructType) or CDC not in type_.names:
        return None
    return {field.name: field.dataType.simpleString() for field in type_.fields}
