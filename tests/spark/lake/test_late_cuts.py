"""Cuts that a merge records after another job has gone further than it knew."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from merge import as_of, merge_once
from merge.job import MergeRun
from merge.queries import begin
from tests.support.landing.zone import ORDERS, T, Zone, insert
from tests.support.spark.spark_sessions import another_session


@pytest.mark.parametrize("idle", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_late_cut_that_names_a_table_dropped_since_does_not_have_all_of_it_merged_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    """The landing zone may no longer have the beginning; an older cut names the table that is there now."""
    zone = Zone(spark, tmp_path)
    zone.begin(insert(5, 1))
    zone.log(20, insert(15, 2))
    record_cut = MergeRun.record_cut

    def late(run: MergeRun, *given: Any) -> Any:
        monkeypatch.setattr(MergeRun, "record_cut", record_cut)
        shutil.rmtree(tmp_path / "lake/public/orders")
        assert merge_once(another_session(spark), zone.config).exact
        return record_cut(run, *given)

    monkeypatch.setattr(MergeRun, "record_cut", late)
    zone.merge()
    assert begin(spark, zone.config, lambda _: [ORDERS.table])[2][0].frame is not None
    news = [] if idle else [insert(25, 3)]
    zone.log(30, *news)
    report = zone.merge()
    assert report.exact
    assert [table.rows for table in report.tables] == [len(news)]
    assert as_of(spark, zone.config)[T].count() == 2 + len(news)
