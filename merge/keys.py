"""Row keys: their columns and, for values that a column can't hold, the source's own text.

A key column whose value the landed type can't hold (infinity, a NaN numeric, a year before 1, a zero date) is
null, and its text is in `_cdc.raw`, as with any column. So comparing or grouping keys includes that text, for
columns of such types::

    id   valid_to     _cdc.raw                   the same row
    1    2026-01-31   null                       1, 2026-01-31
    1    null         {"valid_to": "infinity"}   1, infinity

Floats need none of this: both in comparing and in grouping, Spark treats NaN as equal to itself and -0.0 as
equal to 0.0, as the databases' keys do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.landing.format import CDC
from connector.schema import TableSchema, array_of, decimal_of
from merge.sql_formatting import quoted, text

if TYPE_CHECKING:
    from pyspark.sql import Column

RAW_TYPE = "map<string,string>"

WHOLE = ("bigint unsigned", "bit(64)")
"""MySQL integers that land as decimals: common as keys, and their values are never raw."""

INCOMPARABLE = re.compile(r"\bmap<|\b(variant|geography|geometry)\b")
"""Types that Spark can't compare, in a column or nested; no source's type lands as one."""

MOST_PLAIN = 6
"""Digits after the point up to which Spark, and Java, format no decimal with an exponent."""


def may_be_raw(type_: str, source_type: str = "") -> bool:
    """Return whether a source has values that a column of this landed type can't hold."""
    if source_type in WHOLE:
        return False
    moments = ("date", "timestamp", "timestamp_ntz")
    return type_ in moments or decimal_of(type_) is not None or array_of(type_) is not None


@dataclass(frozen=True)
class TargetLayout:
    """The target's columns with their types, and its key.

    `raw_keys`: the key's columns that may be null, with their text in `_cdc.raw`.
    """

    columns: Mapping[str, str]
    key: tuple[str, ...]
    raw_keys: tuple[str, ...]

    @classmethod
    def of(cls, columns: Mapping[str, str], key: Sequence[str], newest: TableSchema) -> TargetLayout:
        """Return the layout of a target with these columns, into which rows of `newest` are merged."""
        sources = {column.name: column.source_type for column in newest.columns}
        raw = (name for name in key if may_be_raw(columns[name], sources.get(name, "")))
        return cls(columns, tuple(key), tuple(raw))

    @property
    def values(self) -> list[str]:
        """List the columns that are not in the key."""
        return [name for name in self.columns if name not in self.key]

    @property
    def compared(self) -> list[str]:
        """List those that Spark can compare: of others, which somebody has added, no event has a value."""
        return [name for name in self.values if INCOMPARABLE.search(self.columns[name]) is None]


def raw_column(name: str) -> str:
    """Return the name of the column that holds a key column's raw text in frames of keys."""
    return f"{CDC}.raw.{name}"


def with_raw(key: Sequence[str], raw_keys: Sequence[str]) -> list[Column]:
    """Select the key of rows with `_cdc`: its columns and their raw texts."""
    raw = F.col(CDC)["raw"]
    return [*map(_column, key), *(raw[name].alias(raw_column(name)) for name in raw_keys)]


def raw_of_key(raw_keys: Sequence[str]) -> Column:
    """Build `_cdc.raw` from the raw texts in a frame of keys; null if there are none."""
    if not raw_keys:
        return F.lit(None).cast(RAW_TYPE)
    texts = F.map_from_entries(F.array_compact(F.array(*raw_entries(raw_keys))))
    return F.when(F.size(texts) > 0, texts).cast(RAW_TYPE)


def raw_entries(raw_keys: Sequence[str]) -> list[Column]:
    """Build a map entry for each raw text in a frame of keys; null if there is none."""
    columns = [(name, _column(raw_column(name))) for name in raw_keys]
    return [
        F.when(raw.isNotNull(), F.struct(F.lit(name).alias("key"), raw.alias("value")))
        for name, raw in columns
    ]


def keys_equal(layout: TargetLayout) -> str:
    """Build the MERGE condition that `source` and `target`, which have `_cdc`, are the same row."""
    return " AND ".join(
        f"{_compare('<=>', name)} AND source._cdc.raw[{text(name)}] <=> target._cdc.raw[{text(name)}]"
        if name in layout.raw_keys
        else _compare("=", name)
        for name in layout.key
    )


def same_rows(layout: TargetLayout) -> Column:
    """Return that condition as a column, for joins: how SQL is parsed depends on the caller's session."""
    return _same(layout, lambda frame, name: F.col(f"{frame}.{CDC}")["raw"][name])


def same_keys(layout: TargetLayout) -> Column:
    """Return the condition that `source` and `target`, frames of keys, have the same key."""
    return _same(layout, lambda frame, name: F.col(f"{frame}.{quoted(raw_column(name))}"))


def _same(layout: TargetLayout, raw: Callable[[str, str], Column]) -> Column:
    found = F.lit(True)
    for name in layout.key:
        ours, other = (F.col(f"{frame}.{quoted(name)}") for frame in ("source", "target"))
        if name in layout.raw_keys:
            found = found & ours.eqNullSafe(other) & raw("source", name).eqNullSafe(raw("target", name))
        else:
            found = found & (ours == other)
    return found


def key_text(value: Column, type_: str) -> Column:
    """Format a key value as `connector.source.TableReader.open_keys` reads it.

    Independent of the session's time zone and settings: text that matches no row would leave it incomplete.
    """
    if type_ == "binary":
        return F.concat(F.lit("\\x"), F.lower(F.hex(value)))
    if type_ == "timestamp":
        since_1970 = F.expr("INTERVAL '0.000001' SECOND") * F.unix_micros(value)
        return F.concat((F.expr("TIMESTAMP_NTZ'1970-01-01'") + since_1970).cast("string"), F.lit("+00"))
    if element := array_of(type_):
        return _array_text(value, element)
    if (decimal := decimal_of(type_)) and decimal[1] > MOST_PLAIN:
        return _decimal_text(value, decimal[1])
    return value.cast("string")


def fit_a_request(keys: Iterable[Sequence[str | None]]) -> bool:
    """Return whether a request can name these keys, each a text per column; else the table must be dumped.

    It can't name null, which no source row has as a key, but which somebody may have inserted into the lake,
    nor a zero byte, which MySQL's texts may have, but no SQL literal.
    """
    return not any(part is None or "\0" in part for key in keys for part in key)


def _decimal_text(value: Column, scale: int) -> Column:
    """Format a decimal without an exponent, which Spark uses near zero unless ANSI rules hold.

    By its text: a comparison with a number may round the value.
    """
    text = value.cast("string")
    digits = F.lpad(F.regexp_replace(text, r"E.*|[-.]", ""), scale, "0")
    near_zero = F.concat(F.when(text.startswith("-"), "-0.").otherwise("0."), digits)
    return F.when(text.contains("E"), near_zero).otherwise(text)


def _array_text(value: Column, element: str) -> Column:
    def quoted_text(item: Column) -> Column:
        escaped = F.regexp_replace(key_text(item, element), r'(["\\])', r"\\$1")
        return F.coalesce(F.concat(F.lit('"'), escaped, F.lit('"')), F.lit("NULL"))

    return F.concat(F.lit("{"), F.array_join(F.transform(value, quoted_text), ","), F.lit("}"))


def _compare(sign: str, name: str) -> str:
    return f"source.{quoted(name)} {sign} target.{quoted(name)}"


def _column(name: str) -> Column:
    return F.col(quoted(name))
