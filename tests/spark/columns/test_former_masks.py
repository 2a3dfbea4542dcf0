"""Masks that change while jobs run: none of the former ones comes back, and nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector import failpoint
from connector.config import Config
from connector.landing.format import manifest_path
from merge import as_of, live, merge_once, rebuild
from merge.lake import file_statistics
from merge.lake.commits import COMMITS_READ
from merge.lake.rewrite import Rewrite
from merge.lake.upkeep import upkeep
from merge.shapes import changes_job, history_job
from merge.table import TableJob
from tests.spark.columns.test_columns import salted
from tests.support.landing.landed import config_of
from tests.support.landing.zone import ORDERS, Zone, insert
from tests.support.spark.spark_sessions import another_session


def masked_orders(folder: Path) -> Config:
    """Return a configuration of the zone in a folder, by which a column of the orders is null."""
    return config_of(str(folder / "landing"), str(folder / "lake"), public__orders={"mask": {"b": "null"}})


def test_a_merge_with_the_former_masks_that_would_write_after_a_rebuild_writes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had read the table before the rebuild began, and merges up to a later manifest."""
    zone = Zone(spark, tmp_path)
    masked = masked_orders(tmp_path)
    zone.begin(insert(5, 1))
    zone.log(20, insert(15, 2))
    newest, away = tmp_path / "landing/shop" / manifest_path(2), tmp_path / "away"
    merge = TableJob.merge

    def late(job: TableJob, *given: Any, **named: Any) -> Any:
        monkeypatch.setattr(TableJob, "merge", merge)
        newest.rename(away)
        assert rebuild(spark, masked, str(ORDERS.table)).failed == []
        away.rename(newest)
        return merge(job, *given, **named)

    monkeypatch.setattr(TableJob, "merge", late)
    report = zone.merge()
    assert "rebuilt with other columns, masks or rows while" in (report.failed[0].error or "")
    assert not report.exact
    assert zone.rows("id, b") == [(1, None)]
    assert {row["b"] for row in live(spark, masked, str(ORDERS.table)).collect()} == {None}
    assert merge_once(spark, masked).exact
    assert zone.rows("id, b") == [(1, None), (2, None)]


@pytest.mark.soak
def test_a_table_restored_from_before_a_rebuild_with_other_masks_goes_on_with_the_former_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone, masked = Zone(spark, tmp_path), masked_orders(tmp_path)
    zone.begin(insert(5, 1))
    assert rebuild(spark, masked, str(ORDERS.table)).failed == []
    zone.log(20, insert(15, 2))
    assert merge_once(spark, masked).exact
    zone.spark.sql(f"RESTORE TABLE delta.`{tmp_path}/lake/public/orders` TO VERSION AS OF 1").collect()
    zone.log(30, insert(25, 3))
    assert zone.merge().exact
    zone.log(40, insert(35, 4))
    assert zone.merge().exact
    assert zone.rows("id, b") == [(1, "x"), (2, "x"), (3, "x"), (4, "x")]


@pytest.mark.soak
def test_a_table_restored_from_before_a_rebuild_with_other_masks_goes_on_after_nights_of_upkeep(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut names upkeep's commit. The last one that wrote rows, which is Delta's fence, is long before."""
    monkeypatch.setattr(file_statistics, "SMALL_FILES", 2)
    zone, masked = Zone(spark, tmp_path), masked_orders(tmp_path)
    zone.begin(insert(5, 1))
    assert rebuild(spark, masked, str(ORDERS.table)).failed == []
    zone.log(20, insert(15, 2))
    assert merge_once(spark, masked).exact
    table = f"delta.`{tmp_path}/lake/public/orders`"
    for night in range(COMMITS_READ):
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('night' = '{night}')")
    assert ("newest cut", "done") in [(each.subject, each.status) for each in upkeep(spark, masked)]
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 1").collect()
    zone.log(30, insert(25, 3))
    report = zone.merge()
    assert (report.exact, [each.error for each in report.failed]) == (True, [])
    assert zone.rows("id, b") == [(1, "x"), (2, "x"), (3, "x")]


@pytest.mark.soak
def test_a_rebuild_with_other_masks_that_a_former_merge_overtakes_loses_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had planned up to an earlier manifest, and its commit passes the fence, as of another generation."""
    zone = Zone(spark, tmp_path)
    masked = masked_orders(tmp_path)
    zone.begin(insert(5, 1))
    whole = Rewrite.whole

    def late(rewrite: Rewrite, *given: Any) -> Any:
        monkeypatch.setattr(Rewrite, "whole", whole)
        zone.log(20, insert(15, 2))
        assert merge_once(another_session(spark), zone.config).exact
        return whole(rewrite, *given)

    monkeypatch.setattr(Rewrite, "whole", late)
    assert rebuild(spark, masked, str(ORDERS.table)).failed == []
    assert {row["id"] for row in live(spark, masked, str(ORDERS.table)).collect()} == {1, 2}
    zone.log(30, insert(25, 3))
    assert merge_once(spark, masked).exact
    assert zone.rows("id, b") == [(1, None), (2, None), (3, None)]


@pytest.mark.soak
def test_a_merge_with_the_former_masks_that_builds_a_touched_table_anew_leaves_one_rebuilt_meanwhile(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = Zone(spark, tmp_path)
    masked = masked_orders(tmp_path)
    zone.begin(insert(5, 1))
    spark.sql(f"UPDATE delta.`{tmp_path}/lake/public/orders` SET a = 99")
    zone.log(20, insert(15, 2))
    continued = Rewrite.continued

    def late(rewrite: Rewrite, *given: Any) -> Any:
        monkeypatch.setattr(Rewrite, "continued", continued)
        assert rebuild(spark, masked, str(ORDERS.table)).exact
        return continued(rewrite, *given)

    monkeypatch.setattr(Rewrite, "continued", late)
    report = zone.merge()
    assert [str(each.error).partition(",")[0] for each in report.failed] == [
        f'{ORDERS.table}: delta.`{tmp_path}/lake/public/orders` was built with {{"mask": {{"b": "null"}}}}'
    ]
    assert not report.exact
    assert zone.rows("id, a, b") == [(1, 1, None), (2, 2, None)]


@pytest.mark.soak  # a shape that is dropped amid a merge is refused in lake/test_interference, too
@pytest.mark.parametrize(
    ("kind", "module", "name"),
    [("history", history_job, "apply_versions"), ("changes", changes_job, "append_changes")],
)
def test_a_shape_that_a_merge_with_the_former_masks_wrote_to_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, module: Any, name: str
) -> None:
    """It had read the Delta table, which was then dropped, and created again with today's masks."""
    its = {"shapes": ["current", kind]}
    zone = Zone(spark, tmp_path, public__orders=its)
    masked = config_of(
        str(tmp_path / "landing"), str(tmp_path / "lake"), public__orders=its | {"mask": {"b": "null"}}
    )
    zone.log(10, insert(5, 1))
    assert zone.merge().exact
    zone.log(20, insert(15, 2))
    zone.log(30, insert(25, 3))
    write, folder = getattr(module, name), tmp_path / f"lake/public/orders_{kind}"

    def dropped(*late: Any) -> Any:
        monkeypatch.setattr(module, name, write)
        shutil.rmtree(folder)
        merge_once(another_session(spark), masked, until=2)
        assert zone.rows("id, b", f"public/orders_{kind}") == [(1, None), (2, None)]
        return write(*late)

    monkeypatch.setattr(module, name, dropped)
    assert not zone.merge().exact
    zone.log(40)
    failed = {str(each.table): each for each in merge_once(spark, masked).failed}
    shape = failed[f"{ORDERS.table}_{kind}"]
    assert "a merge with other columns, masks or rows committed after it" in (shape.error or "")
    assert "then drop it" in (shape.hint or "")
    shutil.rmtree(folder)
    merge_once(spark, masked)
    assert zone.rows("id, b", f"public/orders_{kind}") == [(1, None), (2, None), (3, None)]


@pytest.mark.soak
def test_a_rebuild_with_other_masks_that_is_killed_before_its_cut_is_what_the_next_cut_names(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing of the table has landed since; masked and plain alike."""
    folders = str(tmp_path / "landing"), str(tmp_path / "lake")
    zone = Zone(spark, tmp_path)
    zone.config = salted(config_of(*folders, public__orders={"mask": {"b": "sha256"}}))
    zone.begin(insert(5, 1))

    def killed(moment: str) -> None:
        if moment == "table-rebuilt":
            raise KeyboardInterrupt

    for number, (mask, value) in enumerate([({"b": "null"}, None), ({}, "x")]):
        now = salted(config_of(*folders, public__orders={"mask": mask}))
        with monkeypatch.context() as patch:
            patch.setattr(failpoint, "reach", killed)
            with pytest.raises(KeyboardInterrupt):
                rebuild(spark, now, str(ORDERS.table))
        zone.log(20 + 10 * number)
        assert merge_once(spark, now).exact
        (found,) = as_of(spark, now)[str(ORDERS.table)].collect()
        assert found["b"] == value
