"""Spark's checksums are those of the landed values; what they don't prove equal is found as rows."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from connector.checksums.definition import bucket_schema, sums_of
from connector.config import Config
from connector.landing.manifest import DumpState, LandedFile
from connector.schema import TableName, TableSchema
from merge import LakeSums, merge_once, recorded_differences, verify
from merge.proof import sampling, verification
from merge.proof.checksums import Bucket, bucket_of, lake_buckets, unproven_ranges
from merge.proof.comparison import SampleOf, within
from merge.proof.key_ranges import key_ranges
from merge.proof.sampling import choose_samples
from merge.spark.session_settings import LITERAL, applied_settings
from tests.support.landing.landed import Chunk, Event, Landed, config_of, schema_of

UTC = timezone.utc
SMALL = Decimal(1).scaleb(-38)
VALUES: dict[str, tuple[str, Sequence[Any]]] = {
    "tiny": ("tinyint", (0, -128, 127)),
    "short": ("smallint", (0, -32768, 32767)),
    "whole": ("int", (0, -(2**31), 2**31 - 1)),
    "big": ("bigint", (0, -(2**63), 2**63 - 1)),
    "huge": ("decimal(20,0)", (Decimal(0), Decimal(2**64 - 1), Decimal(-7))),
    "money": ("decimal(12,2)", (Decimal("0.00"), Decimal("-0.01"), Decimal("9999999999.99"))),
    "fine": ("decimal(38,38)", (Decimal("0E-38"), SMALL, -SMALL)),
    "wide": ("decimal(38,10)", (Decimal("1E-10"), Decimal("0E-10"), Decimal(f"-{'9' * 28}.{'9' * 10}"))),
    "flag": ("boolean", (True, False, None)),
    "text": ("string", ("", "ä€😀;-", "\t\n\r\\ \x00 'x' {}", "-", "1;a")),
    "bytes": ("binary", (b"", b"\x00\xff\\x", b"abc")),
    "day": ("date", (date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10))),
    "local": ("timestamp_ntz", (datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999),
                                datetime(2026, 3, 29, 2, 30, 0, 500000))),
    "moment": ("timestamp", (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, 59, 10, UTC),
                             datetime(1900, 1, 1, 0, 0, 0, 120000, UTC))),
}  # fmt: skip
OTHER = {
    "tiny": "1Y", "short": "1S", "whole": "7", "big": "1L", "huge": "7", "money": "0.02", "fine": "2E-38BD",
    "wide": "0.0000000002", "flag": "NOT coalesce(flag, false)", "text": "'1;b'", "bytes": "X'00'",
    "day": "DATE'0001-01-03'", "local": "local + INTERVAL '0.000001' SECOND - INTERVAL '1' DAY",
    "moment": "TIMESTAMP'1970-01-01 00:00:00Z'",
}  # fmt: skip
TYPED = schema_of("public.typed", id="bigint", **{name: type_ for name, (type_, _) in VALUES.items()})
ROWS = [
    {"id": id_ - 20} | {name: r.choice([*values, None]) for name, (_, values) in VALUES.items()}
    for r in [random.Random(1)]
    for id_ in range(60)
]


def summed(
    landed: Landed, schema: TableSchema, rows: Sequence[dict[str, Any]], number: int, low: int, **known: Any
) -> LandedFile:
    """Land checksums of rows, each a bucket of its own, as a database computes them."""
    landed.verification(str(schema.table), number, low, started_in=landed.number + 1, kind="checksums",
                        rows=len(rows)).bits = 0  # fmt: skip
    buckets = [
        {"bucket": bucket, "rows": count, "sum": Decimal(total), "layout": schema.id}
        for bucket, (count, total) in sums_of(schema, rows, 0).items()
    ]
    return landed.verified(bucket_schema(schema.table), Chunk(low, low + 5, buckets, dump=number))


def test_each_type_is_proven_equal_and_each_planted_difference_is_found_among_few_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed = Landed.local(tmp_path / "landing")
    config = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"))
    landed.table(TYPED)
    landed.commit(10, [landed.chunk(TYPED, Chunk(5, 9, ROWS))])
    merged: list[str] = []
    sums = LakeSums(config, lambda: merged.append("merged") or merge_once(spark, config), threading.Event())
    sums.compute(spark, [running(TYPED)])
    assert (merged, [table.bits for table in sums._known.values()]) == (["merged"], [0])
    landed.commit(25, [summed(landed, TYPED, ROWS, 2, 20)])  # nothing else has landed since that merge
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        done = verify(spark, config, "dump-2")
        _assert_same_in_any_zone(spark, f"{tmp_path}/lake/public/typed")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    (table,) = done.tables
    assert done.equal, table
    assert (table.checked, table.rows, table.unproven, table.by_rows) == (60, 0, [], None)
    assert (table.checked_at, table.manifest) == (2, 2)
    assert 0 < table.bytes < 20_000

    with monkeypatch.context() as patched:
        patched.setattr(verification, "unproven_ranges", partial(unsummed, unproven_ranges))
        (table,) = verify(spark, config, "dump-2", sums=sums).tables
    assert table.equal
    assert (table.checked_at, table.manifest) == (1, 1)

    row = {**ROWS[-1], "text": "new"}
    again = [Event("update", lsn, 1, {**row, "id": id_}) for lsn, id_ in ((18, 37), (30, 38))]
    landed.commit(35, [landed.log(TYPED, again), landed.log(TYPED, [Event("delete", 31, 1, {"id": 39})])])
    assert not merge_once(spark, config).failed
    (table,) = verify(spark, config, "dump-2").tables
    assert table.unproven == [(36, 39)], "37 differs from what was read, 38 and 39 may have changed since"

    name = f"delta.`{tmp_path}/lake/public/typed`"
    one_off = ", ".join(
        f"{column} = CASE WHEN id = {id_} THEN {value} ELSE {column} END"
        for id_, (column, value) in enumerate(OTHER.items(), start=-20)
    )
    raw = "_cdc.raw = CASE WHEN id = 22 THEN map('day', 'infinity') END"
    with applied_settings(spark, LITERAL):  # before Spark 4, dates before 1582 are refused by default
        spark.sql(f"UPDATE {name} SET {one_off}, {raw} WHERE id < {len(OTHER) - 20} OR id = 22")
    spark.sql(f"DELETE FROM {name} WHERE id = 20")
    spark.sql(f"INSERT INTO {name} (id) VALUES (1000)")
    (table,) = verify(spark, config, "dump-2").tables
    planted = len(OTHER)
    assert table.unproven == [(-21, -21 + planted), (19, 20), (21, 22), (36, 1000)]

    read = [row for row in ROWS if row["id"] < 10]
    landed.verification(
        "public.typed", 3, 40, started_in=landed.number + 1, kind="verify_rows", rows=len(read)
    )
    landed.commit(45, [landed.verified(TYPED, Chunk(40, 44, read, dump=3))])
    ranges = [(None, 9), (999, 1000)]
    done = verify(spark, config, "dump-3", ranges=ranges)
    (table,) = done.tables
    assert (table.missing, table.ghosts, table.different) == (0, 1, planted), table
    _assert_sampled(spark, config, monkeypatch)
    found = recorded_differences(spark, config, done.run).select("key", "column").collect()
    assert {(int(row["key"][0]), row["column"]) for row in found} == {
        *((id_, column) for id_, column in enumerate(OTHER, start=-20)),
        (1000, None),
    }
    _assert_suspect_if_anything_landed_since_it_was_summed(spark, config, landed)


def _assert_suspect_if_anything_landed_since_it_was_summed(
    spark: SparkSession, config: Config, landed: Landed
) -> None:
    """Check a bucket whose sums are the same, though an event landed between the lake's and the source's."""
    sums = LakeSums(config, lambda: pytest.fail("merged"), threading.Event())
    sums.compute(spark, [running(TYPED)])
    landed.commit(50, [landed.log(TYPED, [Event("update", 48, 1, ROWS[25])])])
    landed.commit(55, [summed(landed, TYPED, ROWS, 5, 50)])
    (table,) = verify(spark, config, "dump-5", sums=sums).tables
    assert (4, 5) in (table.unproven or []), table
    assert (table.manifest, table.note is not None) == (4, True)


def running(schema: TableSchema) -> DumpState:
    """Return the state of a verification by checksums that is under way."""
    landed = Landed()
    dump = landed.verification(str(schema.table), 2, 20, started_in=2, kind="checksums")
    dump.state, dump.finished_in, dump.bits = "running", None, 0
    return dump


def unsummed(unproven: Any, landing: Any, both: Any, bits: int, lake: Any) -> Any:
    """Fail if the lake would be summed again."""
    assert lake is not None
    return unproven(landing, both, bits, lake)


def _assert_same_in_any_zone(spark: SparkSession, path: str) -> None:
    """Check the checksums of a Delta table in a session whose zone is not UTC, as platforms may force."""
    columns = {column.name: column.type for column in TYPED.columns}
    for ansi in ("true", "false"):
        with applied_settings(spark, {"spark.sql.ansi.enabled": ansi}):
            found = lake_buckets(spark.read.format("delta").load(path), columns, "id", 0)
        assert found == {id_: Bucket(*both) for id_, both in sums_of(TYPED, ROWS, 0).items()}, ansi


def _assert_sampled(spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check samples of the rows that the cut has, with keys from -20 to 39 but for 39, deleted."""
    monkeypatch.setattr(sampling, "LEAST_ROWS", 10)
    lost = TableName("public", "lost")
    sample, unknown = choose_samples(spark, config, [TYPED.table, lost], 0.5, 4)
    assert sample.of == SampleOf(3, 6, 59)
    assert sample.ranges == choose_samples(spark, config, [TYPED.table], 0.5, 4)[0].ranges
    (all_,) = choose_samples(spark, config, [TYPED.table], 1, 4)
    assert all_.ranges == [(None, -11), (-11, -1), (-1, 9), (9, 19), (19, 29), (29, None)]
    assert set(sample.ranges or ()) < set(all_.ranges)
    assert "has not landed yet" in str(unknown.error)


def test_ranges_have_about_as_many_rows_wherever_the_keys_are(spark: SparkSession) -> None:
    far = [2**62, 2**62 + 7, 2**63 - 1]
    keys = ", ".join(f"({key})" for key in [*range(1000), *far, "NULL"])
    frame = spark.sql(f"SELECT CAST(v AS bigint) AS v FROM VALUES {keys} AS t(v)")
    ranges = key_ranges(frame, "v", "bigint", 100)
    assert [range_.rows for range_ in ranges] == [100] * 10 + [3]
    assert ranges[3].ends == (299, 399)
    assert (ranges[0].after, ranges[-1].ends) == (None, (2**62 - 1, None))
    unsigned = spark.sql(f"SELECT CAST({2**64 - 1} AS decimal(20,0)) AS v UNION ALL SELECT 5BD")
    low, high = key_ranges(unsigned, "v", "decimal(20,0)", 1)
    assert (low.rows, low.after, high.rows, high.ends) == (1, None, 1, (low.upto, None))
    assert 5 <= (low.upto or 0) < 2**64 - 1
    inside = frame.where(within(F.col("v"), [ranges[0].ends, ranges[-1].ends]))
    assert inside.count() == 104, "rows without a key are in the first range"


def test_a_bucket_is_the_same_in_spark(spark: SparkSession) -> None:
    keys = [0, 1, 255, 256, 2**63 - 1, 2**63, 2**64 - 1]
    signed = [-(2**63), -257, -256, -1, *keys[:5]]
    for type_, values in (("decimal(20,0)", keys), ("bigint", signed)):
        rows = ", ".join(f"({value})" for value in values)
        frame = spark.sql(f"SELECT CAST(v AS {type_}) AS v FROM VALUES {rows} AS t(v)")
        for bits in (0, 8, 48):
            found = frame.select(bucket_of(F.col("v"), type_, bits).alias("b")).collect() if bits else []
            assert sorted(row["b"] for row in found) == sorted(value >> bits for value in values if bits)
