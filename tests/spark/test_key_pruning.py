"""Conditions on the target's keys: none that has changed is left out, and most others are."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from merge import apply as applying
from merge.key_pruning import LONGEST_LIST, key_conditions, key_filter, key_lists, key_ranges
from merge.keys import TargetLayout
from tests.support.landing.landed import Event, schema_of
from tests.support.landing.zone import Zone
from tests.support.spark.clocks import driver_in

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

AMONG = 2000
VALUES: dict[str, Callable[[int], Any]] = {
    "tinyint": lambda n: n % 256 - 128,
    "int": lambda n: n * 7 - AMONG,
    "bigint": lambda n: (-1) ** n * (2**63 - 1 - n),
    "decimal(38,10)": lambda n: Decimal(n * 10**17 - 10**20).scaleb(-10),
    "string": lambda n: f"{n % 7}\U0001f600'\\{n}",
    "binary": lambda n: n.to_bytes(3, "big"),
    "boolean": lambda n: n % 2 == 0,
    "date": lambda n: date.fromordinal(1 + n * 1800),
    "timestamp": lambda n: datetime(1900 + n % 200, 1, 1, 0, 0, 0, n, tzinfo=timezone.utc),
}


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("types", [*((t,) for t in VALUES), ("string", "int"), ("int", "date", "binary")])
def test_every_changed_key_meets_the_conditions(
    spark: SparkSession, types: tuple[str, ...], listed: bool
) -> None:
    rng = random.Random(str(types))
    columns = {f"k{n}": type_ for n, type_ in enumerate(types)}
    layout = TargetLayout(columns, tuple(columns), ())
    ddl = ", ".join(f"{name} {type_}" for name, type_ in layout.columns.items())
    rows = list({tuple(VALUES[t](rng.randrange(AMONG)) for t in types) for _ in range(AMONG)})
    changed = rows[: len(rows) // 20 + 1]
    source, target = spark.createDataFrame(changed, ddl), spark.createDataFrame(rows, ddl).alias("target")
    with key_conditions(spark, source, layout, len(changed) if listed else 10 * AMONG) as conditions:
        found = rows_of(target.where(f"true{conditions}"))
        assert rows_of(source) <= found
    if listed:
        return
    require_session_variables(spark)
    filtered = target.where("true" + key_filter(spark, source, layout, len(changed), "by_hash")).count()
    spark.sql("DROP TEMPORARY VARIABLE by_hash")
    assert filtered <= len(changed) + len(rows) / 8


def require_session_variables(spark: SparkSession) -> None:
    if spark.version < "4":
        pytest.skip("a filter by hash needs session variables, which Spark 4 brought")


def rows_of(frame: DataFrame) -> set[tuple[Any, ...]]:
    """Return a frame's rows; before Spark 4.1, binary values come as what no set can hold."""
    rows = (tuple(row) for row in frame.collect())
    return {tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in rows}


def test_floats_and_collated_strings_have_no_filter(spark: SparkSession) -> None:
    source = spark.createDataFrame([(1.5,)], "k double")
    for type_ in ("double", "float", "string collate UTF8_LCASE"):
        assert key_filter(spark, source, TargetLayout({"k": type_}, ("k",), ()), 1, "unused") == ""


def test_one_old_key_among_recent_ones_does_not_open_all_files_in_between(spark: SparkSession) -> None:
    layout = TargetLayout({"k": "bigint"}, ("k",), ())
    source = spark.range(1_000_000, 1_001_000).selectExpr("id AS k").union(spark.sql("SELECT 5L AS k"))
    assert key_ranges(source, layout) == (
        " AND (target.`k` BETWEEN 5L AND 5L OR target.`k` BETWEEN 1000000L AND 1000999L)"
    )
    assert key_ranges(source, layout, split=False) == " AND (target.`k` BETWEEN 5L AND 1000999L)"


def test_keys_that_are_null_stay_within_the_ranges(spark: SparkSession) -> None:
    layout = TargetLayout({"k": "date"}, ("k",), ("k",))
    source = spark.sql("SELECT DATE'2026-01-01' AS k UNION ALL SELECT NULL")
    assert "OR target.`k` IS NULL" in key_ranges(source, layout)
    assert key_ranges(spark.sql("SELECT CAST(NULL AS DATE) AS k"), layout) == ""


def test_few_keys_are_listed_and_many_are_not(spark: SparkSession) -> None:
    layout = TargetLayout({"k": "date", "n": "int"}, ("k", "n"), ("k",))
    source = spark.sql("SELECT DATE'2026-01-01' AS k, 1 AS n UNION ALL SELECT NULL, 2")
    with key_conditions(spark, source, layout, 2) as conditions:
        dates = "target.`k` IN (DATE'2026-01-01') OR target.`k` IS NULL"
        assert conditions == f" AND ({dates}) AND (target.`n` IN (1L, 2L))"
    long = spark.sql(f"SELECT repeat('x', {LONGEST_LIST}) AS k")
    assert key_lists(long, TargetLayout({"k": "string"}, ("k",), ())) == ""
    with key_conditions(spark, source, layout, 257) as conditions:
        assert "BETWEEN" in conditions
        require_session_variables(spark)
        assert "xxhash64(target.`k`, target.`n`)" in conditions


@pytest.mark.parametrize("few", [True, False])
def test_keys_that_python_cannot_hold_or_compare_are_not_fetched(spark: SparkSession, few: bool) -> None:
    """In Tokyo, the last second of the year 9999 in UTC is in the year 10000."""
    layout = TargetLayout({"k": "array<int>", "z": "timestamp", "n": "int"}, ("k", "z", "n"), ("k", "z"))
    source = spark.sql("SELECT ARRAY(1, 2) AS k, TIMESTAMP'9999-12-31 23:59:59Z' AS z, 3 AS n")
    only = TargetLayout({"z": "timestamp"}, ("z",), ("z",))
    with driver_in("Asia/Tokyo"):
        with key_conditions(spark, source, layout, 1 if few else 257) as conditions:
            assert conditions == " AND (target.`n` BETWEEN 3L AND 3L)"
        assert key_ranges(source, only) == key_lists(source, only) == ""


@pytest.mark.parametrize("few", [256, pytest.param(0, marks=pytest.mark.soak)])
def test_keys_too_long_for_the_type_of_older_files_are_merged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    if spark.version < "4":
        pytest.skip("Delta 3 widens no decimal")
    monkeypatch.setattr(applying, "LARGE_BYTES", -1)
    monkeypatch.setattr("merge.key_pruning.FEW_KEYS", few)
    zone = Zone(spark, tmp_path)
    narrow, wide = (schema_of("public.d", ("k",), k=f"decimal({p},0)", v="int") for p in (20, 38))
    zone.landed.table(narrow)
    zone.landed.commit(10, [zone.landed.log(narrow, [inserted(5, k, k) for k in range(3)])])
    zone.merge()
    zone.landed.table(wide)
    longer = [inserted(15, 1, 9), inserted(15, 10**30, 7), inserted(15, -(10**30), 8)]
    zone.landed.commit(20, [zone.landed.log(wide, longer)])
    assert not zone.merge().failed
    expected = [(-(10**30), 8), (0, 0), (1, 9), (2, 2), (10**30, 7)]
    assert zone.rows("k, v", "public/d") == expected


@pytest.mark.parametrize("few", [256, 0])
def test_only_files_that_hold_changed_keys_are_opened(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(applying, "LARGE_BYTES", -1)
    monkeypatch.setattr("merge.key_pruning.FEW_KEYS", few)
    zone = Zone(spark, tmp_path)
    table = schema_of("public.d", ("k",), k="decimal(20,0)", v="int")
    zone.landed.table(table)
    files: list[set[Path]] = []
    for lsn, keys in ((5, range(50)), (15, range(100, 150))):
        zone.landed.commit(lsn + 5, [zone.landed.log(table, [inserted(lsn, k, k) for k in keys])])
        zone.merge()
        files.append(set((tmp_path / "lake/public/d").glob("*.parquet")))
    old, away = files[0], tmp_path / "away"
    away.mkdir()
    for file in old:
        file.rename(away / file.name)
    zone.landed.commit(30, [zone.landed.log(table, [inserted(25, k, 7) for k in (149, 150)])])
    assert not zone.merge().failed
    for file in away.iterdir():
        file.rename(tmp_path / "lake/public/d" / file.name)
    rows = dict(zone.rows("k, v", "public/d"))
    assert rows == {**{k: k for k in (*range(50), *range(100, 149))}, 149: 7, 150: 7}
    assert old < files[1], "each range of keys has a file of its own"


def inserted(lsn: int, key: int, value: int) -> Event:
    return Event("insert", lsn, 2 * value, {"k": Decimal(key), "v": value})
