"""Divides the values of a table's first key column into ranges with about as many rows each.

**The ranges partition all integers**: the first has no beginning and the last no end. So each key is in
exactly one range, whether it is in the source, in the lake or in both, and whenever it was added. Comparing
all ranges compares all keys, including missing ones and ghosts. The lake's row counts only decide where
ranges end. Rows without a key, which only others can have inserted into a lake, belong to the first range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from merge.proof.checksums import bucket_of
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from merge.proof.comparison import KeyEnds

MOST_BUCKETS = 1 << 16
"""Buckets counted at a time; Spark's driver holds them."""

FINER_BITS = 8
"""A bucket with too many rows is split into 256 smaller ones and counted again."""

LEAST_BITS = 1
"""Half of MySQL's greatest unsigned integer fits Spark's greatest integer."""


@dataclass(frozen=True)
class KeyRange:
    """Keys after `after` up to `upto`, as in `merge.proof.comparison.KeyEnds`; the lake has `rows` in it."""

    after: int | None
    upto: int | None
    rows: int

    @property
    def ends(self) -> KeyEnds:
        """Return its ends."""
        return self.after, self.upto


def key_ranges(frame: DataFrame, key: str, type_: str, most_rows: int) -> list[KeyRange]:
    """Divide all integers by a frame's values of `key`, of a type that `bucket_of` knows.

    A range has at most `most_rows` rows, unless two neighboring values have more. Deterministic.
    """
    ends = frame.agg(F.min(quoted(key)).alias("first"), F.max(quoted(key)).alias("last")).collect()[0]
    if ends["first"] is None:
        return [KeyRange(None, None, 0)]
    bits = max(LEAST_BITS, ((int(ends["last"]) - int(ends["first"])) // MOST_BUCKETS).bit_length())
    rows = _counted(frame, key, type_, bits)
    while bits > LEAST_BITS and (heavy := [start for start, count in rows.items() if count > most_rows]):
        finer = max(LEAST_BITS, bits - FINER_BITS)
        bucket = bucket_of(F.col(quoted(key)), type_, bits)
        dense = frame.where(bucket.isin([start >> bits for start in heavy]))
        rows = {start: count for start, count in rows.items() if start not in set(heavy)}
        rows |= _counted(dense, key, type_, finer)
        bits = finer
    return joined(rows, most_rows)


def _counted(frame: DataFrame, key: str, type_: str, bits: int) -> dict[int, int]:
    """Count rows by bucket; return the counts by each bucket's least value."""
    value = F.col(quoted(key))
    counts = frame.where(value.isNotNull()).groupBy(bucket_of(value, type_, bits).alias("bucket")).count()
    return {row["bucket"] << bits: row["count"] for row in counts.collect()}


def joined(rows: Mapping[int, int], most_rows: int) -> list[KeyRange]:
    """Join counts, keyed by least value, to ranges of at most `most_rows` if possible. Pure."""
    found: list[KeyRange] = []
    after, held = None, 0
    for start, count in sorted(rows.items()):
        if held and held + count > most_rows:
            found.append(KeyRange(after, start - 1, held))
            after, held = start - 1, 0
        held += count
    return [*found, KeyRange(after, None, held)]
