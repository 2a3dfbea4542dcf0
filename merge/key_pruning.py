"""Restricts what a MERGE reads of a large target to where the changed keys can be.

Conditions on the target alone, all implied by the equality of keys, so they never change the result. Which of
them apply depends on the key's types, not on its values: only keys whose types have literals are fetched.

- Few keys are *listed*: Delta skips files that can't hold any of them. Parquet skips pages, but not in the
  pass that finds the rows: Delta numbers these before they are filtered, so all keys are read.
- Of many keys there are *ranges*, by which Delta skips files and Parquet skips row groups: one per column,
  split at the widest gaps of the first one, since one old key among recent ones must not open every file.
- Many keys also make a *key filter*: the hash of each sets one bit of an array. A row of the target whose bit
  is not set can't match, and is dropped as it is scanned. Without the filter, every row is shuffled to the
  join with all of its columns, however few keys have changed. It applies only while the key has the types
  that were hashed.

The changes come from landed files alone, so the conditions are the same whenever they are computed. The array
is a session variable: Delta writes the text of the condition into each commit, where a literal would stay.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import functions as F

from connector.schema import decimal_of
from merge.keys import TargetLayout
from merge.sql_formatting import literal, quoted, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEW_KEYS = 256
LONGEST_LIST = 16 << 10
"""Up to this many keys, and this many characters, are listed."""

PUSHED_LISTS = {"spark.sql.parquet.pushdown.inFilterThreshold": str(FEW_KEYS)}
"""Spark's default: of a list longer than ten, it passes Parquet only the least and greatest value."""

MOST_KEYS = 1 << 20
"""With more changes than this, most of the target is read anyway."""

BITS_PER_KEY = 16
"""So one row in 16 passes the filter by chance."""

GAPS = 15
GAP_SHARE = 1 / 64
"""Ranges are split at up to this many gaps, each of at least this share of all that the keys span."""

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_HASHED = (*_INTEGERS, "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")
"""Types whose equal values have equal hashes: no floats, no strings with a collation."""


@contextmanager
def key_conditions(spark: SparkSession, source: DataFrame, layout: TargetLayout, rows: int) -> Iterator[str]:
    """Build the conditions for the MERGE of `source`, ``AND ...``, which has at most `rows` rows.

    They hold during the block, in this session. `source` is read several times if they are many.
    """
    listed = key_lists(source, layout) if rows <= FEW_KEYS else ""
    if listed or rows > MOST_KEYS:
        yield listed or key_ranges(source, layout, split=False)
        return
    name = f"deltatide_keys_{uuid.uuid4().hex}"
    try:
        yield key_ranges(source, layout) + key_filter(spark, source, layout, rows, name)
    finally:
        with suppress(PySparkException):
            spark.sql(f"DROP TEMPORARY VARIABLE IF EXISTS {name}")


def are_listed(layout: TargetLayout, rows: int) -> bool:
    """Return whether `key_conditions` lists the keys of so many rows; of two columns, it lists each."""
    return rows <= FEW_KEYS and len(layout.key) == 1 and _has_distance(layout.columns[layout.key[0]])


def key_lists(source: DataFrame, layout: TargetLayout) -> str:
    """List the values of each key column; empty if one has no literals, or if the list gets too long."""
    if not all(_has_literals(layout.columns[name]) for name in layout.key):
        return ""
    keys = source.select(*[F.col(quoted(name)) for name in layout.key]).collect()
    conditions = ""
    for n, name in enumerate(layout.key):
        values = {key[n] for key in keys}
        literals = [literal(value) for value in values - {None}]
        if not literals:
            return ""
        within = [f"target.{quoted(name)} IN ({', '.join(sorted(map(str, literals)))})"]
        if None in values:
            within.append(f"target.{quoted(name)} IS NULL")
        conditions += f" AND ({' OR '.join(within)})"
    return conditions if len(conditions) <= LONGEST_LIST else ""


def key_ranges(source: DataFrame, layout: TargetLayout, *, split: bool = True) -> str:
    """Build the ranges of the changes' keys, from their smallest and greatest values."""
    key = [name for name in layout.key if _has_literals(layout.columns[name])]
    if not key:
        return ""
    ends: list[Any] = []
    for name in key:
        ends += [F.min(quoted(name)), F.max(quoted(name)), F.max(F.col(quoted(name)).isNull())]
    found = source.agg(*ends).collect()[0]
    conditions = ""
    for n, name in enumerate(key):
        low, high, nulls = found[3 * n : 3 * n + 3]
        if low is None:
            continue
        splits = split and name == layout.key[0] and _has_distance(layout.columns[name])
        gaps = _gaps(source, name, low, high) if splits else []
        lows, highs = [low, *(after for _, after in gaps)], [*(before for before, _ in gaps), high]
        within = [
            f"target.{quoted(name)} BETWEEN {literal(a)} AND {literal(b)}"
            for a, b in zip(lows, highs, strict=True)
        ]
        if nulls:
            within.append(f"target.{quoted(name)} IS NULL")
        conditions += f" AND ({' OR '.join(within)})"
    return conditions


def _has_literals(type_: str) -> bool:
    """Return whether values of a type are fetched to be written as literals.

    Other types are never fetched: Python may not be able to hold such a value (the first or last instants,
    outside UTC) or to compare it (an array).
    """
    return type_ == "string" or _has_distance(type_)


def _has_distance(type_: str) -> bool:
    return type_ in _INTEGERS or type_ == "date" or decimal_of(type_) is not None


def _gaps(source: DataFrame, name: str, low: Any, high: Any) -> Sequence[tuple[Any, Any]]:
    """Return the widest gaps between a column's values, ascending, as pairs of neighboring values.

    `low`, `high`: its least and greatest value. Values are grouped by parts of the span between these, of
    half the width of a gap that counts: so no group has values on both sides of one.
    """
    if low == high:
        return []
    number = "CAST(unix_date({0}) AS DOUBLE)" if isinstance(low, date) else "CAST({0} AS DOUBLE)"
    value, least, most = (number.format(each) for each in (quoted(name), literal(low), literal(high)))
    part = F.expr(f"floor(({value} - {least}) / nullif(({most} - {least}) * {GAP_SHARE / 2}D, 0D))")
    known = source.where(F.col(quoted(name)).isNotNull())
    ends = known.groupBy(part).agg(F.min(quoted(name)), F.max(quoted(name))).collect()
    neighbors = pairwise(sorted((least, most) for _, least, most in ends))
    gaps = ((before, after) for (_, before), (after, _) in neighbors)
    wide = {gap: width for gap in gaps if (width := (gap[1] - gap[0]) / (high - low)) >= GAP_SHARE}
    return sorted(sorted(wide, key=lambda gap: wide[gap], reverse=True)[:GAPS])


def key_filter(spark: SparkSession, source: DataFrame, layout: TargetLayout, rows: int, name: str) -> str:
    """Set the session variable `name` to the filter of `source`'s keys, and build the condition.

    Returns no condition if equal values may hash differently, or if the platform has no session variables.
    """
    if not all(layout.columns[key] in _HASHED or decimal_of(layout.columns[key]) for key in layout.key):
        return ""
    try:
        spark.sql(f"DECLARE VARIABLE {name} ARRAY<BIGINT>")
    except (ParseException, AnalysisException):
        return ""
    words = 1 << max(4, (rows * BITS_PER_KEY // 64).bit_length())
    word, bit = _word_and_bit("", layout.key, words)
    changed = source.selectExpr(f"{word} AS word", f"shiftleft(1L, {bit}) AS bits")
    every = spark.range(words).selectExpr("CAST(id AS INT) AS word", "0L AS bits")
    filled = changed.unionByName(every).groupBy("word").agg(F.expr("bit_or(bits)").alias("bits"))
    ordered = "transform(array_sort(collect_list(struct(word, bits))), x -> x.bits)"
    filled.agg(F.expr(ordered).alias("bits")).createOrReplaceTempView(name)
    try:
        spark.sql(f"SET VAR {name} = (SELECT bits FROM {name})")
    finally:
        spark.catalog.dropTempView(name)
    word, bit = _word_and_bit("target.", layout.key, words)
    # Another job may widen the key before the MERGE, and equal values of two types have different hashes.
    types = (f"typeof(target.{quoted(key)}) <> {text(layout.columns[key])}" for key in layout.key)
    return f" AND ({' OR '.join(types)} OR shiftright(get({name}, {word}), {bit}) & 1 = 1)"


def _word_and_bit(prefix: str, key: Sequence[str], words: int) -> tuple[str, str]:
    """Build a key's word and bit in an array of this many 64-bit words (a power of two)."""
    hashed = f"xxhash64({', '.join(prefix + quoted(name) for name in key)})"
    return f"CAST(shiftright({hashed}, 6) & {words - 1} AS INT)", f"CAST({hashed} & 63 AS INT)"
