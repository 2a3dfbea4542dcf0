"""Finds differences between the source's rows and the lake's, and records them in a Delta table.

`differences` compares two frames of one table's rows by key, each row and column once. How values compare:

- Exactly, and null equals null: text by its bytes, instants by their microseconds whatever the session's time
  zone, decimals by value at the lake's scale. NaN equals NaN; in columns, -0.0 and 0.0 are two values. In
  keys they are one, as they are for the databases.
- Values that the column's type can't hold are compared by the source's own text (`_cdc.raw`).
- A column that the row still lacks (`_cdc.missing`) can't be compared. Such a key is neither equal nor
  different but `waiting`, and must be compared again.

The table of differences holds long values shortened, with their length and hash. Rows are only appended.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.config import Config
from connector.landing.format import CDC
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.keys import TargetLayout, fit_a_request, key_text, raw_column, with_raw
from merge.lake.own_tables import create_own_table
from merge.lake.retry import with_retries
from merge.lake.target import lake_table
from merge.spark.local_rows import local_rows
from merge.sql_formatting import listed, quoted, text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DIFFERENCES_PATH = "_deltatide/differences"
COLUMNS = {
    "run": "string",
    "source": "string",
    "table": "string",
    "key": "array<string>",
    "column": "string",
    "source_value": "string",
    "lake_value": "string",
    "kind": "string",
    "manifest": "bigint",
    "epoch": "int",
    "position": "bigint",
    "found_at": "timestamp",
}

MISSING, GHOST, DIFFERENT, WAITING = "missing", "ghost", "different", "waiting"

MOST_CHARACTERS = 200
"""Longer values are shortened in the table of differences."""

MOST_KEYS = 50_000
"""Beyond this many keys, dumping the whole table costs the source less."""

MOST_KEY_BYTES = 4 << 20
"""Limit of keys' bytes in one request, which holds twice as much, to allow for JSON's overhead."""

FAR_MICROS = 9 * 10**17

MOST_FETCHED = 1000
"""Up to this many differences of few rows are counted and written here, not by two more Spark jobs."""

FETCHED = {
    "key": "array<string>",
    **dict.fromkeys(("column", "source_value", "lake_value", "kind"), "string"),
}

FOUND = "struct<column: string, source_value: string, lake_value: string, kind: string>"


def differences(
    expected: DataFrame, actual: DataFrame, layout: TargetLayout, columns: Sequence[str]
) -> DataFrame:
    """Return how two frames of rows differ in `columns`: `key` as the source's text, and `FOUND`. Pure.

    Both have the layout's columns and `_cdc`, `expected` one row per key. A small example, keys 1 to 4::

        expected        actual               key   column   source_value   lake_value   kind
        1   x           1   y                [1]   a        x              y            different
        2   x                         ->     [2]   null     null           null         missing
                        3   x                [3]   null     null           null         ghost
        4   x           4   x, and again     [4]   null     null           2 rows       ghost
    """
    side = F.col(CDC)["side"]
    rows = [_side(frame, name, layout) for name, frame in (("source", expected), ("lake", actual))]
    both = rows[0].unionByName(rows[1])
    of_key = [F.col(quoted(name)) for name in both.columns if name != CDC]
    first = (
        F.first(F.when(side == F.lit(name), F.col(CDC)), True).alias(name) for name in ("source", "lake")
    )
    copies = F.sum(F.when(side == F.lit("lake"), 1).otherwise(0)).alias("copies")
    grouped = both.groupBy(*of_key).agg(F.struct(*first, copies).alias(CDC))
    found = grouped.select(_key_of(layout).alias("key"), F.explode(_found(layout, columns)).alias("found"))
    return found.select("key", "found.*")


def _side(frame: DataFrame, name: str, layout: TargetLayout) -> DataFrame:
    values = [F.col(quoted(column)).alias(f"c{n}") for n, column in enumerate(layout.columns)]
    cdc = F.col(CDC)
    row = F.struct(
        F.lit(name).alias("side"), *values, cdc["raw"].alias("raw"), cdc["missing"].alias("missing")
    )
    return frame.select(*with_raw(layout.key, layout.raw_keys), row.alias(CDC))


def _key_of(layout: TargetLayout) -> Column:
    """Return a group's key as `connector.source.TableReader.open_keys` reads it."""

    def part(name: str) -> Column:
        value = key_text(F.col(quoted(name)), layout.columns[name])
        return F.coalesce(F.col(quoted(raw_column(name))), value) if name in layout.raw_keys else value

    return F.array(*map(part, layout.key))


def _found(layout: TargetLayout, columns: Sequence[str]) -> Column:
    """Return the differences of a group's two rows, as an array of `FOUND`."""
    source, lake, copies = (F.col(CDC)[name] for name in ("source", "lake", "copies"))
    nothing = F.lit(None).cast("string")

    def whole(kind: str, lake_value: Column = nothing) -> Column:
        return F.struct(nothing, nothing, lake_value, F.lit(kind)).cast(FOUND)

    numbers = {name: n for n, name in enumerate(layout.columns)}
    parts = [_of_column(source, lake, name, numbers[name], layout.columns[name]) for name in columns]
    twice = F.when(copies > 1, whole(GHOST, F.concat(copies.cast("string"), F.lit(" rows"))))
    both = F.array_compact(F.array(*parts, twice))
    missing, ghost = F.array(whole(MISSING)), F.array(whole(GHOST))
    return F.when(lake.isNull(), missing).when(source.isNull(), ghost).otherwise(both)


def _of_column(source: Column, lake: Column, name: str, number: int, type_: str) -> Column:
    """Return how two rows differ in a column, or that one lacks it; null if they are equal."""
    values = source[f"c{number}"], lake[f"c{number}"]
    raws = source["raw"][name], lake["raw"][name]
    same = values[0].eqNullSafe(values[1]) & raws[0].eqNullSafe(raws[1])
    if "float" in type_ or "double" in type_:  # SQL's equality takes -0.0 for 0.0
        same = same & values[0].cast("string").eqNullSafe(values[1].cast("string"))
    lacking = (F.coalesce(F.array_contains(row["missing"], name), F.lit(False)) for row in (source, lake))
    waits = next(lacking) | (next(lacking) & ~same)
    kind = F.when(waits, WAITING).when(~same, DIFFERENT)
    texts = (F.coalesce(raw, value_text(value, type_)) for value, raw in zip(values, raws, strict=True))
    shown = map(_shown, texts)
    return F.when(kind.isNotNull(), F.struct(F.lit(name), *shown, kind).cast(FOUND))


def value_text(value: Column, type_: str) -> Column:
    """Format a value as it lands, even instants after the year 30,000, which Spark can't format in UTC."""
    if type_ != "timestamp":
        return key_text(value, type_)
    micros = F.unix_micros(value)
    far = F.concat(micros.cast("string"), F.lit(" microseconds since 1970"))
    return F.when(F.abs(micros) > F.lit(FAR_MICROS), far).otherwise(key_text(value, type_))


def _shown(value: Column) -> Column:
    """Shorten a long value so that two that differ still look different."""
    rest = F.format_string("... (%d characters, md5 %s)", F.length(value), F.md5(value.cast("binary")))
    short = F.concat(F.substring(value, 1, MOST_CHARACTERS), rest)
    return F.when(F.length(value) > MOST_CHARACTERS, short).otherwise(value)


def differences_table(config: Config) -> str:
    """Format the table of differences in SQL."""
    return lake_table(config, DIFFERENCES_PATH, "_deltatide_differences")


def record_and_count(
    spark: SparkSession,
    config: Config,
    run: str,
    table: TableName,
    at: Manifest,
    found: DataFrame,
    *,
    few: bool,
) -> dict[str, int]:
    """Record what `differences` finds like `record_differences`; return the number of keys by kind.

    `few`: it compares few rows.
    """
    if few and len(rows := found.limit(MOST_FETCHED + 1).collect()) <= MOST_FETCHED:
        if rows:
            record_differences(spark, config, run, table, at, local_rows(spark, FETCHED, rows))
        else:
            _create_table(spark, config)
        return Counter(kind for kind, _ in {(row["kind"], tuple(row["key"])) for row in rows})
    record_differences(spark, config, run, table, at, found)
    return _count_keys(recorded_differences(spark, config, run), table)


def record_differences(
    spark: SparkSession, config: Config, run: str, table: TableName, at: Manifest, found: DataFrame
) -> None:
    """Append what `differences` finds as of a manifest; durable on return. This evaluates the comparison."""
    _create_table(spark, config)
    known = {
        "run": text(run),
        "source": text(config.source.name),
        "table": text(str(table)),
        "manifest": f"{at.number}L",
        "epoch": str(at.epoch),
        "position": f"{at.position}L",
        "found_at": "current_timestamp()",
    }
    view = f"deltatide_{uuid.uuid4().hex}"
    found.createOrReplaceTempView(view)
    values = ", ".join(known.get(name, quoted(name)) for name in COLUMNS)
    insert = f"INSERT INTO {differences_table(config)} ({listed(COLUMNS)}) SELECT {values} FROM {view}"
    try:
        with_retries(lambda: spark.sql(insert).collect(), differences_table(config))
    finally:
        spark.catalog.dropTempView(view)


def _create_table(spark: SparkSession, config: Config) -> None:
    create_own_table(spark, config, differences_table(config), DIFFERENCES_PATH, COLUMNS)


def recorded_differences(spark: SparkSession, config: Config, run: str) -> DataFrame:
    """Return the differences that one verification recorded; columns as `COLUMNS`."""
    return spark.table(differences_table(config)).where(f"run = {text(run)}")


def _count_keys(found: DataFrame, table: TableName) -> dict[str, int]:
    """Count a table's differing keys by kind."""
    of_table = found.where(f"`table` = {text(str(table))}")
    counts = of_table.groupBy("kind").agg(F.countDistinct("key").alias("keys")).collect()
    return {row["kind"]: row["keys"] for row in counts}


def differing_keys(
    spark: SparkSession, config: Config, run: str, table: TableName, *, waiting: bool = False
) -> list[list[str]] | None:
    """Return a table's differing keys as the source's text; None: they can't be requested (`few_keys`).

    `waiting`: instead, the keys that wait for a column.
    """
    found = recorded_differences(spark, config, run).where(f"`table` = {text(str(table))}")
    waits = F.col("kind") == WAITING
    return few_keys(found.where(waits if waiting else ~waits).select("key").distinct())


def few_keys(keys: DataFrame) -> list[list[str]] | None:
    """Fetch the column `key`; None if these keys can't be requested (`requestable`)."""
    return requestable([list(row["key"]) for row in keys.limit(MOST_KEYS + 1).collect()])


def requestable(keys: list[list[str]]) -> list[list[str]] | None:
    """Return keys sorted; None if they are more than `MOST_KEYS`, or have more than `MOST_KEY_BYTES`.

    Also None if a request can't name one of them (`merge.keys.fit_a_request`).
    """
    if not fit_a_request(keys):
        return None
    size = sum(len(part.encode()) + 4 for key in keys for part in key)
    return sorted(keys) if len(keys) <= MOST_KEYS and size <= MOST_KEY_BYTES else None
