"""What the newest rows of the control table say of all tables, whichever jobs wrote them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.schema import TableName
from merge.lake import control_table
from merge.lake.control_table import (
    Frontier,
    FrontierReader,
    Frontiers,
    append_cut,
    create_cuts,
    cuts_table,
    read_frontiers,
)
from merge.spark.session_settings import applied_settings
from tests.support.landing.zone import Zone

COMPACTED_AT = 166
"""A manifest after whose cut the control table's files may be compacted."""

FAST, SLOW = TableName("public", "fast"), TableName("public", "slow")


@pytest.mark.parametrize("hours_behind", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_what_a_slow_job_merged_is_not_forgotten_by_the_cuts_of_a_fast_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours_behind: int
) -> None:
    """Its cut has a manifest that the fast one left behind long ago, and its driver's clock may be behind."""
    ticks = count()

    def set_clock(hours: int) -> None:
        start = datetime(2026, 1, 1, hours, tzinfo=timezone.utc)
        monkeypatch.setattr(control_table, "_now", lambda: start + timedelta(seconds=next(ticks)))

    monkeypatch.setattr(control_table, "ROWS_READ", 2)
    monkeypatch.setattr(control_table, "ROWS_READ_AGAIN", 1)
    zone = Zone(spark, tmp_path)
    reader = FrontierReader(zone.config)
    for n in range(1, 8):
        zone.log(10 * n)
    create_cuts(spark, zone.config)

    def append(manifest: int, known: Frontiers, merged: TableName) -> None:
        tables = {table: known.of(table) for table in (FAST, SLOW)}
        tables[merged] = Frontier(manifest, manifest, "id")
        number = zone.landed.manifests[manifest - 1]
        append_cut(spark, zone.config, number, tables, exact=False, ahead=known.ahead)

    def fast(*manifests: int) -> None:
        for manifest in manifests:
            append(manifest, reader.read(spark), FAST)

    set_clock(9)
    fast(1)
    set_clock(9 - hours_behind)
    begun = read_frontiers(spark, zone.config)
    set_clock(9)
    fast(2, 3, 4)
    set_clock(9 - hours_behind)
    append(1, begun, SLOW)
    set_clock(9)
    fast(5, 6, 7)
    for found in (reader.read(spark), read_frontiers(spark, zone.config)):
        assert found.newest == 7
        assert found.by_table == {FAST: Frontier(7, 7, "id"), SLOW: Frontier(1, 1, "id")}


def test_a_control_table_of_another_process_is_not_compacted_after_each_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Delta compacts a table's files if it has not yet done so in a process, and forgets it if few remain."""
    zone, number = Zone(spark, tmp_path), 5
    for n in range(1, number + 1):
        zone.log(10 * n)
    zone.landed.manifests.append(zone.landed.manifests[-1].model_copy(update={"number": COMPACTED_AT}))
    create_cuts(spark, zone.config)
    for at, manifest in enumerate(zone.landed.manifests):
        known = (
            {} if at >= 2 else {"spark.databricks.delta.autoCompact.recordPartitionStats.enabled": "false"}
        )
        with applied_settings(spark, known):
            append_cut(spark, zone.config, manifest, {FAST: Frontier(manifest.number)}, exact=True)
    history = spark.sql(f"DESCRIBE HISTORY {cuts_table(zone.config)}").collect()
    done = [row["operation"] for row in reversed(history)]
    assert done == ["CREATE TABLE", *["WRITE"] * (number + 1), "OPTIMIZE"]
    assert read_frontiers(spark, zone.config).newest == COMPACTED_AT
