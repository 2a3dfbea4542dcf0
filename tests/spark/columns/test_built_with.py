"""A cut is exact only of what was built with today's columns, masks and rows, even of an idle table."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import merge.job
from connector.config import Config
from connector.errors import ConfigurationError
from connector.landing.format import manifest_path
from merge import as_of, cuts, live, merge_once, rebuild
from merge.job import MergeRun
from merge.lake.control_table import COLUMNS, create_cuts, cuts_table
from merge.lake.target import targets_of
from tests.spark.views.test_views import with_views
from tests.support.landing.landed import config_of
from tests.support.landing.zone import ORDERS, Zone, delete, insert
from tests.support.spark.spark_sessions import another_session

T = str(ORDERS.table)


def with_orders(folder: Path, **settings: Any) -> Config:
    """Return a configuration of the zone in a folder, with these settings of the orders."""
    return config_of(str(folder / "landing"), str(folder / "lake"), public__orders=settings)


@pytest.mark.parametrize("recorded", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_an_idle_table_whose_condition_is_taken_out_is_refused_until_it_is_rebuilt(
    spark: SparkSession, tmp_path: Path, recorded: bool
) -> None:
    """And so is its history; also if the cuts are of a release that did not record what it was built with."""
    shapes = {"shapes": ["current", "history"]}
    zone = Zone(spark, tmp_path)
    zone.config = with_orders(tmp_path, where="a < 2", **shapes)
    zone.log(10, insert(5, 1), insert(6, 2))
    assert zone.merge().exact
    assert zone.rows("id") == [(1,)]
    assert as_of(spark, zone.config)[f"{T}_history"].count() == 1
    if not recorded:
        spark.sql(f"UPDATE {cuts_table(zone.config)} SET built_with = NULL")
        zone.log(20)
    zone.config = with_orders(tmp_path, **shapes)
    if recorded:
        with pytest.raises(ConfigurationError, match="than the configuration says") as refused:
            as_of(spark, zone.config)
        assert "deltatide merge" in (refused.value.hint or "")
        assert as_of(spark, zone.config, 1)[T].count() == 1
    report = zone.merge()
    assert [str(each.table) for each in report.failed] == [T, f"{T}_history"]
    assert all("was built with" in (each.error or "") for each in report.failed)
    assert not report.exact
    zone.log(30)
    assert not zone.merge().exact
    assert not cuts(spark, zone.config).first()["exact"]
    assert live(spark, zone.config, T).count() == 2
    zone.config = with_orders(tmp_path)
    assert rebuild(spark, zone.config, T).exact
    assert as_of(spark, zone.config)[T].count() == 2
    zone.log(40)
    assert zone.merge().exact


@pytest.mark.soak
@pytest.mark.parametrize("manifests", [1, 0])
def test_a_cut_of_a_merge_with_the_former_masks_that_was_under_way_during_a_rebuild_does_not_count(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifests: int
) -> None:
    """It names the version from before, of the same manifest as the rebuild's or of later ones.

    Nor does it refresh views from that version.
    """
    zone = Zone(spark, tmp_path)
    zone.config, masked = (
        with_views(with_orders(tmp_path, **settings), seen="SELECT id, b FROM orders")
        for settings in ({}, {"mask": {"b": "null"}})
    )
    zone.begin(insert(5, 1))
    zone.log(20)
    newest, away = tmp_path / "landing/shop" / manifest_path(2), tmp_path / "away"
    record_cut = MergeRun.record_cut

    def late(run: MergeRun, *given: Any) -> Any:
        monkeypatch.setattr(MergeRun, "record_cut", record_cut)
        if manifests:
            newest.rename(away)
        assert rebuild(another_session(spark), masked, T).exact
        if manifests:
            away.rename(newest)
        return record_cut(run, *given)

    monkeypatch.setattr(MergeRun, "record_cut", late)
    (view,) = zone.merge().views
    assert "was built with" in (view.error or "")
    assert zone.rows("id, b", "views/seen") == [(1, None)]
    assert cuts(spark, masked).first()["tables"][T]["version"] == 1
    with pytest.raises(ConfigurationError, match="than the configuration says"):
        as_of(spark, masked)
    assert [row["b"] for row in live(spark, masked, T).collect()] == [None]
    assert "was built with" in str(zone.merge().failed[0].error)
    report = merge_once(spark, masked)
    assert (report.exact, report.recorded) == (True, True)
    assert [row["b"] for row in as_of(spark, masked)[T].collect()] == [None]
    assert not merge_once(spark, masked).recorded


@pytest.mark.soak
@pytest.mark.parametrize("lands", [True, False])
def test_a_version_restored_from_before_a_rebuild_is_not_taken_for_the_one_that_the_cut_names(
    spark: SparkSession, tmp_path: Path, lands: bool
) -> None:
    """With it, Delta restores the properties; and nothing of the table lands, or nothing at all."""
    zone, masked = Zone(spark, tmp_path), with_orders(tmp_path, mask={"b": "null"})
    zone.log(10, insert(5, 1))
    assert zone.merge().exact
    assert rebuild(spark, masked, T).exact
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/lake/public/orders` TO VERSION AS OF 1").collect()
    if lands:
        zone.log(20)
    assert zone.merge().exact
    assert [row["b"] for row in as_of(spark, zone.config)[T].collect()] == ["x"]


@pytest.mark.parametrize("amid", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_table_that_was_dropped_and_built_anew_with_the_former_masks_is_refused_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amid: bool
) -> None:
    """By a job that knew of the dropped one, before the other job's cut or after it."""
    zone, masked = Zone(spark, tmp_path), with_orders(tmp_path, mask={"b": "null"})
    zone.log(10, insert(5, 1))
    assert zone.merge().exact
    zone.log(20, insert(15, 2))
    read = merge.job.read_state

    def built_anew(*given: Any) -> Any:
        monkeypatch.setattr(merge.job, "read_state", read)
        shutil.rmtree(tmp_path / "lake/public/orders")
        assert merge_once(another_session(spark), zone.config).exact
        return read(*given)

    if amid:
        monkeypatch.setattr(merge.job, "read_state", built_anew)
    else:
        built_anew(spark, targets_of(zone.config, [ORDERS.table])[ORDERS.table])
    report = merge_once(spark, masked)
    assert "was built with" in str(report.failed[0].error)
    assert not report.exact
    with pytest.raises(ConfigurationError, match="than the configuration says"):
        as_of(spark, masked)


@pytest.mark.soak
def test_a_view_that_a_late_cut_has_with_the_former_masks_is_not_read_as_current(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that reads the table by another view."""
    views = {"seen": "SELECT id, b FROM orders", "again": "SELECT b FROM seen", "two": "SELECT 2 AS b"}
    zone = Zone(spark, tmp_path)
    zone.config, masked = (
        with_views(with_orders(tmp_path, **settings), **views) for settings in ({}, {"mask": {"b": "null"}})
    )
    zone.log(10, insert(5, 1))
    append = MergeRun._append_cut

    def late(run: MergeRun, *given: Any) -> None:
        monkeypatch.setattr(MergeRun, "_append_cut", append)
        assert rebuild(another_session(spark), masked, T).exact
        append(run, *given)

    monkeypatch.setattr(MergeRun, "_append_cut", late)
    assert zone.merge().exact
    for name in ("seen", "again"):
        with pytest.raises(ConfigurationError, match=r"orders`, which .* reads, has other columns"):
            as_of(spark, masked, tables=[f"views.{name}"])
    assert as_of(spark, masked, tables=["views.two"])["views.two"].count() == 1
    assert merge_once(spark, masked).exact
    assert [row["b"] for row in as_of(spark, masked)["views.again"].collect()] == [None]


@pytest.mark.soak
def test_a_restored_table_gets_no_rows_of_a_version_with_other_masks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Where deletes are soft, it is rebuilt from the newest version that a cut names."""
    zone = Zone(spark, tmp_path)
    plain, masked = (with_orders(tmp_path, deletes="soft", **its) for its in ({}, {"mask": {"b": "null"}}))
    zone.config = masked
    zone.log(10, insert(5, 1), insert(6, 2), delete(7, 2))
    assert zone.merge().exact
    assert rebuild(spark, plain, T).exact
    assert zone.rows("id, b")[0] == (1, "x")
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/lake/public/orders` TO VERSION AS OF 1").collect()
    zone.log(20)
    assert zone.merge().exact
    assert zone.rows("id, b") == [(1, None), (2, None)]


@pytest.mark.soak
def test_a_rebuild_that_was_killed_before_its_cut_is_found_though_nothing_lands_any_more(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone, masked = Zone(spark, tmp_path), with_orders(tmp_path, mask={"b": "null"})
    zone.log(10, insert(5, 1))
    assert zone.merge().exact
    record_cut = MergeRun.record_cut

    def killed(run: MergeRun, reports: Any, *given: Any, **options: Any) -> Any:
        if not reports[0].error:
            raise KeyboardInterrupt
        return record_cut(run, reports, *given, **options)

    monkeypatch.setattr(MergeRun, "record_cut", killed)
    with pytest.raises(KeyboardInterrupt):
        rebuild(spark, masked, T)
    monkeypatch.undo()
    report = merge_once(spark, masked)
    assert (report.exact, report.recorded, report.failed) == (True, True, [])
    assert [row["b"] for row in as_of(spark, masked)[T].collect()] == [None]
    assert not merge_once(spark, masked).recorded


def test_what_was_dropped_as_it_was_built_otherwise_is_built_anew_though_nothing_lands_any_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As docs and hints say; also if an earlier release did not record what it was built with."""
    shapes = {"shapes": ["current", "history"]}
    zone, masked = Zone(spark, tmp_path), with_orders(tmp_path, mask={"b": "null"}, **shapes)
    zone.config = with_orders(tmp_path, **shapes)
    zone.log(10, insert(5, 1))
    assert zone.merge().exact
    for unknown in (False, True):
        if unknown:
            spark.sql(f"UPDATE {cuts_table(masked)} SET built_with = NULL")
        for name in ("orders", "orders_history"):
            shutil.rmtree(tmp_path / "lake/public" / name)
        report = merge_once(spark, masked)
        assert (report.exact, report.recorded, report.failed) == (True, True, [])
        shown = as_of(spark, masked)
        rows = [row["b"] for name in (T, f"{T}_history") for row in shown[name].collect()]
        assert rows == [None, None]
        assert not merge_once(spark, masked).recorded


@pytest.mark.soak
def test_what_a_cut_of_an_earlier_release_was_built_with_is_looked_up_though_nothing_has_landed(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone, masked = Zone(spark, tmp_path), with_orders(tmp_path, mask={"b": "null"})
    zone.log(10, insert(5, 1))
    assert zone.merge().exact
    spark.sql(f"UPDATE {cuts_table(zone.config)} SET built_with = NULL")
    assert as_of(spark, zone.config)[T].count() == 1
    with pytest.raises(ConfigurationError, match="than the configuration says"):
        as_of(spark, masked)
    report = merge_once(spark, masked)
    assert "was built with" in str(report.failed[0].error)
    assert not report.exact
    assert [zone.merge().recorded for _ in range(2)] == [True, False]
    assert cuts(spark, zone.config).first()["built_with"] == {}


def test_a_control_table_of_an_earlier_release_gets_the_column_that_it_lacks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = Zone(spark, tmp_path)
    zone.config = with_orders(tmp_path, mask={"b": "null"})
    with monkeypatch.context() as patch:
        patch.delitem(COLUMNS, "built_with")
        create_cuts(spark, zone.config)
    zone.log(10, insert(5, 1))
    assert zone.merge().exact
    (cut,) = cuts(spark, zone.config).collect()
    assert set(cut["built_with"]) == {T}
    zone.log(20)
    assert zone.merge().exact
