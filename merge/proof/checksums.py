"""Checksums in Spark (`connector.checksums.definition`), and what they leave to be compared as rows.

A bucket of the key is *proven equal* at a cut if the database's count and sum equal the lake's, and no event
of the bucket is after L, the lowest low watermark of all chunks of the dump. Their snapshots showed every
commit up to L. Anything else that they showed has landed by the cut as an event after L, and there is none.
So the bucket's rows are the source's at L, unchanged at the cut, and the same as the lake's. Any other bucket
is a *suspect*. That says nothing about its rows, which are then read and compared
(`merge.proof.verification`). So checksums never raise an alarm by themselves.

L covers all chunks, not just those that returned a part of the bucket: a chunk whose part had no rows returns
nothing, and an insert after its snapshot must still make the bucket a suspect.

If events have landed since, an equal sum is no proof: the lake may have missed all of them.

The lake's checksums may be of an earlier cut (`merge.proof.lake_sums`). Then a bucket of which anything has
landed since that cut is a suspect, too. Any other has the same rows in the source at L, at the end of the
reading, and at that cut, as of which it is proven equal.

A row with `_cdc.raw` makes its bucket a suspect, since Spark has no text for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.checksums.definition import (
    BUCKET,
    HEX_DIGITS,
    LAYOUT,
    NULL,
    ROWS,
    SEPARATOR,
    SUM,
    bucket_schema,
)
from connector.landing.format import CDC
from connector.landing.manifest import LandedFile
from connector.position import Position
from connector.schema import TableName
from merge.landing_zone import LandingZone
from merge.proof.comparison import KeyEnds, Sides
from merge.proof.differences import FAR_MICROS, value_text
from merge.reconcile import position_of
from merge.spark.session_settings import get_setting
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKETS = {column.name: column.type for column in bucket_schema(TableName("", "")).columns}
"""The columns of landed checksums."""

ZONE = "spark.sql.session.timeZone"
TEXTS = {ZONE: "UTC"}
"""In UTC, instants are formatted faster."""

NO_TEXT = "?"
"""Stands for a text that Spark can't build, so that it does not count as null."""

HALF_BITS = 28
"""Checksums are summed in two halves: sums of 64-bit integers are quick, and these do not overflow."""

MOST_RANGES = 200
"""Limit of ranges in one condition; beyond it, neighbors are joined, with what is between them."""

RANGE_ROWS = 50_000
"""Rows of a range, read in one snapshot; as many as in a chunk by default."""

_BITS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


@dataclass(frozen=True)
class Bucket:
    """Count and sum of checksums of a bucket's rows; `total` None: some row has none."""

    rows: int
    total: int | None


LakeBuckets = Mapping[int | None, Bucket]
"""Of the lake; rows without a key are in None."""


def unproven_ranges(
    landing: LandingZone, both: Sides, bits: int, lake: LakeBuckets | None = None
) -> list[KeyEnds] | None:
    """Return ranges of the first key column that cover all buckets not proven equal.

    `lake`: the lake's checksums, if they are known. None to read the whole table as rows: most of it is not
    proven equal, it has rows without a key, or its layout has changed since.
    """
    key, columns = both.layout.key[0], both.checked_columns
    read, layouts = read_buckets(landing.events(both.read, both.schemas, BUCKETS))
    lake = lake_buckets(both.actual, columns, key, bits) if lake is None else lake
    ours = {bucket: found for bucket, found in lake.items() if bucket is not None}
    if layouts - {both.newest.id} or len(ours) < len(lake):
        return None

    def touched_by(files: Sequence[LandedFile]) -> dict[int, Position]:
        if not files:
            return {}
        events = landing.events(files, both.schemas, {key: columns[key]})
        return touched_buckets(events, key, columns[key], bits)

    rows = {
        bucket: max(side[bucket].rows for side in (read, ours) if bucket in side) for bucket in {*read, *ours}
    }
    found = suspects(read, ours, touched_by(both.plan.again), both.plan.low)
    return ranges_of(found | touched_by(both.fresh).keys(), rows, bits, columns[key])


def read_buckets(events: DataFrame) -> tuple[dict[int, Bucket], set[str]]:
    """Return the landed checksums by bucket, and the schema ids of their rows."""
    grouped = events.groupBy(BUCKET).agg(
        F.sum(ROWS).alias(ROWS),
        F.when(F.count(SUM) == F.count(F.lit(1)), F.sum(SUM)).alias(SUM),
        F.collect_set(LAYOUT).alias(LAYOUT),
    )
    found = grouped.collect()
    buckets = {row[BUCKET]: Bucket(row[ROWS], None if row[SUM] is None else int(row[SUM])) for row in found}
    return buckets, {layout for row in found for layout in row[LAYOUT]}


def lake_buckets(
    frame: DataFrame, columns: Mapping[str, str], key: str, bits: int
) -> dict[int | None, Bucket]:
    """Return checksums by bucket of a Delta table's rows; `columns`: names with types, in order."""
    half, in_utc = F.lit(1 << HALF_BITS), get_setting(frame.sparkSession, ZONE) == "UTC"
    checksum = F.col("checksum")
    rows = frame.select(
        bucket_of(F.col(quoted(key)), columns[key], bits).alias(BUCKET),
        row_checksum(columns, in_utc=in_utc).alias("checksum"),
        F.col(CDC)["raw"].isNotNull().alias("raw"),
    )
    found = rows.groupBy(BUCKET).agg(
        F.count(F.lit(1)).alias(ROWS),
        F.sum(F.shiftright(checksum, HALF_BITS)).alias("high"),
        F.sum(checksum % half).alias("low"),
        F.max("raw").alias("raw"),
    )
    return {
        row[BUCKET]: Bucket(row[ROWS], None if row["raw"] else (row["high"] << HALF_BITS) + row["low"])
        for row in found.collect()
    }


def touched_buckets(events: DataFrame, key: str, type_: str, bits: int) -> dict[int, Position]:
    """Return the position of each bucket's last event, for buckets with events."""
    bucket = bucket_of(F.col(quoted(key)), type_, bits).alias(BUCKET)
    last = F.max(position_of(F.col(CDC))).alias("last")
    return {row[BUCKET]: Position(*row["last"]) for row in events.groupBy(bucket).agg(last).collect()}


def row_checksum(columns: Mapping[str, str], *, in_utc: bool) -> Column:
    """Return a row's checksum over these columns; `columns`: names with types, in order.

    `in_utc`: whether that is the session's time zone.
    """
    parts = [part for name, type_ in columns.items() for part in _parts(F.col(quoted(name)), type_, in_utc)]
    digits = F.substring(F.sha2(F.concat_ws(SEPARATOR, *parts).cast("binary"), 256), 1, HEX_DIGITS)
    return F.conv(digits, 16, 10).cast("bigint")


def _parts(value: Column, type_: str, in_utc: bool) -> tuple[Column, ...]:
    """Return what is joined for a value; ``concat_ws`` skips null."""
    if type_ == "string":
        return F.coalesce(F.octet_length(value).cast("string"), F.lit(NULL)), value
    text = _instant_text(value) if in_utc and type_ == "timestamp" else value_text(value, type_)
    return (F.coalesce(text, F.when(value.isNull(), NULL).otherwise(NO_TEXT)),)


def _instant_text(value: Column) -> Column:
    """Format an instant like `value_text`, in UTC as the session's time zone; null if it is too far away."""
    near = F.when(F.abs(F.unix_micros(value)) <= F.lit(FAR_MICROS), value)
    return F.concat(near.cast("string"), F.lit("+00"))


def bucket_of(value: Column, type_: str, bits: int) -> Column:
    """Return the bucket of a first key column's value; null for null."""
    if type_ in _BITS:
        return F.shiftright(value.cast("bigint"), bits)
    whole = F.floor(value / F.lit(Decimal(1 << bits))).cast("bigint")
    return F.when(value < F.lit(Decimal(1 << 63)), F.shiftright(value.cast("bigint"), bits)).otherwise(whole)


def suspects(
    read: Mapping[int, Bucket], lake: Mapping[int, Bucket], touched: Mapping[int, Position], low: Position
) -> set[int]:
    """Return the buckets not proven equal; `low`: the lowest low watermark of the chunks. Pure."""
    nothing = Bucket(0, 0)

    def proven(bucket: int) -> bool:
        theirs, ours = read.get(bucket, nothing), lake.get(bucket, nothing)
        same = theirs.total is not None and (theirs.rows, theirs.total) == (ours.rows, ours.total)
        return same and (bucket not in touched or touched[bucket] <= low)

    return {bucket for bucket in read.keys() | lake.keys() | touched.keys() if not proven(bucket)}


def ranges_of(found: set[int], rows: Mapping[int, int], bits: int, type_: str) -> list[KeyEnds] | None:
    """Return ranges of the first key column that cover the buckets `found`. Pure.

    `rows`: row counts of all buckets. None if reading the whole table costs no more: the ranges would be too
    many, or hold more than half of its rows.
    """
    if not found:  # also of a table that is empty on both sides
        return []
    known = sorted(rows.keys() | found)
    sizes = [rows.get(bucket, 0) for bucket in known]
    numbers = [number for number, bucket in enumerate(known) if bucket in found]
    gap = 1
    while gap <= len(known):
        runs = _runs(numbers, sizes, gap)
        if 2 * sum(sum(sizes[first : last + 1]) for first, last in runs) > max(sum(sizes), RANGE_ROWS):
            return None
        if len(runs) <= MOST_RANGES:
            return [_ends(known[first], known[last], bits, type_) for first, last in runs]
        gap *= 2
    return None


def _runs(numbers: Sequence[int], sizes: Sequence[int], gap: int) -> list[tuple[int, int]]:
    """Join numbers at most `gap` apart, up to about `RANGE_ROWS` rows; return each run's first and last."""
    runs: list[tuple[int, int]] = []
    held = 0
    for number in numbers:
        if runs and number - runs[-1][1] <= gap and held < RANGE_ROWS:
            held += sum(sizes[runs[-1][1] + 1 : number + 1])
            runs[-1] = (runs[-1][0], number)
        else:
            held = sizes[number]
            runs.append((number, number))
    return runs


def _ends(first: int, last: int, bits: int, type_: str) -> KeyEnds:
    """Return the ends of a run of buckets, limited to values that the column can hold."""
    least = -(1 << _BITS[type_]) if type_ in _BITS else 0
    greatest = (1 << _BITS.get(type_, 64)) - 1
    after, upto = (first << bits) - 1, ((last + 1) << bits) - 1
    return (after if after >= least else None, upto if upto < greatest else None)
