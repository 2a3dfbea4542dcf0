"""Reads landing files, and selects the columns that a target has. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.landing.format import CDC, CDC_FIELDS
from connector.schema import TableSchema, fold
from merge.sql_formatting import data_type, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from merge.shapes.before_images import OldRows

CDC_TYPE = "struct<" + ",".join(f"{name}:{type_}" for name, type_ in CDC_FIELDS) + ">"

NAMED_CDC_TYPE = f"{CDC_TYPE[:-1]},file:string>"

WHOLE = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""A file that a manifest names is either read or an error, whatever the session's settings."""

LANDED = {
    **WHOLE,
    "datetimeRebaseMode": "CORRECTED",  # dates are the source's, not shifted to Spark 2's Julian calendar
    "parquet.page.verify-checksum.enabled": "true",
}

Columns = Mapping[str, str]
"""Names of a table's columns in order, with their Spark SQL types."""


def read_files(
    spark: SparkSession,
    paths: Sequence[str],
    landed: TableSchema,
    *,
    named: bool = False,
    old: OldRows | None = None,
) -> DataFrame:
    """Return the events of files of one layout; `named`: with the file's name in `_cdc.file`.

    `old`: with the before-images that the files have.
    """
    ddl = [schema_ddl({**types_of(landed), CDC: CDC_TYPE}), *(old.landed(landed) if old else [])]
    events = _with_nan_keys(spark.read.options(**LANDED).schema(", ".join(ddl)).parquet(*paths), landed)
    if not named:
        return events
    if hasattr(events, "metadataColumn"):
        file = events.metadataColumn("_metadata")["file_name"]
    elif all(fold(column.name) != "_metadata" for column in landed.columns):  # Spark before 4
        file = F.col("_metadata")["file_name"]
    else:  # the source's column hides it; by way of this, Parquet skips nothing
        file = F.element_at(F.split(F.input_file_name(), "/"), -1)
    return events.withColumn(CDC, F.col(CDC).withField("file", file))


def _with_nan_keys(events: DataFrame, landed: TableSchema) -> DataFrame:
    """Keep a query's filters on keys that are floats from Parquet, to be applied to rows alone.

    A file's statistics have no NaN, which Spark takes for greater than all: a filter (``key > 5``) would skip
    a file's events of that key, and show its row as of earlier ones.
    """
    floats = (name for name in landed.key if landed.column(name).type in ("float", "double"))
    for name in floats:
        value = F.col(quoted(name))
        events = events.withColumn(name, F.greatest(value, value))  # which nothing pushes
    return events


def no_events(spark: SparkSession, columns: Columns) -> DataFrame:
    """Return a frame of these columns without rows."""
    nulls = (f"CAST(NULL AS {data_type(type_)}) AS {quoted(name)}" for name, type_ in columns.items())
    return spark.sql(f"SELECT {', '.join(nulls)} WHERE false")


def in_columns(
    events: DataFrame, known: TableSchema, columns: Columns, old: OldRows | None = None
) -> DataFrame:
    """Return events of a layout as `columns`, ignoring the case of names; a missing column is null.

    Names in `_cdc` become those of `columns`, too. `old`: with before-images.
    """
    types, wanted = types_of(known), {fold(name): name for name in columns}
    renamed = {name: new for name in types if (new := wanted.get(fold(name), name)) != name}
    cdc = _renamed(renamed) if renamed else F.col(CDC)
    before = [old.column(known, partial(_new_name, renamed))] if old else []
    return events.select(*_selected(types, columns), cdc.alias(CDC), *before)


def types_of(schema: TableSchema) -> dict[str, str]:
    """Return the columns of a layout with their types."""
    return {column.name: column.type for column in schema.columns}


def schema_ddl(columns: Columns) -> str:
    """Build the schema of a frame, as Spark parses it."""
    return ", ".join(f"{quoted(name)} {data_type(type_)}" for name, type_ in columns.items())


def _selected(landed: Columns, columns: Columns) -> Iterator[Column]:
    """Select the wanted columns of a file, ignoring the case of their names."""
    named = {fold(name): name for name in landed}
    for name, type_ in columns.items():
        known = named.get(fold(name))
        if known == name and landed[known] == type_:
            yield F.col(quoted(name))
        else:
            value = F.lit(None) if known is None else F.col(quoted(known))
            yield value.cast(data_type(type_)).alias(name)


def _renamed(names: Mapping[str, str]) -> Column:
    """Return `_cdc` with these columns under their names in the target."""
    unchanged = F.transform(F.col(CDC)["unchanged"], lambda name: _new_name(names, name))
    raw = F.transform_keys(F.col(CDC)["raw"], lambda name, _: _new_name(names, name))
    return F.col(CDC).withField("unchanged", unchanged).withField("raw", raw)


def _new_name(names: Mapping[str, str], name: Column) -> Column:
    if not names:
        return name
    pairs = F.create_map(*[F.lit(each) for pair in names.items() for each in pair])
    return F.coalesce(F.element_at(pairs, name), name)
