"""Columns that no event carried: asked for, filled, and no cut is exact before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from merge import TableProgress, cuts, merge_once
from tests.support.landing.landed import Chunk, Event
from tests.support.landing.zone import T, Zone, insert, row, update_of_a
from tests.support.spark.spark_sessions import another_session


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


def test_missing_columns_are_asked_for_and_filled(zone: Zone) -> None:
    zone.spark = another_session(zone.spark)
    zone.spark.conf.set("mapreduce.output.fileoutputformat.compress", "true")
    zone.log(10, update_of_a(5, 1, 7))
    report = zone.merge()
    assert zone.rows("id, a, b, _cdc.missing") == [(1, 7, None, ["b"])]
    assert not report.exact
    (request,) = zone.requests()
    assert (request["tables"], request["keys"], request["reason"]) == ([T], [["1"]], "missing")
    zone.log(20, update_of_a(15, 1, 8))
    assert not zone.merge().exact  # the agent has not taken it up
    assert len(zone.requests()) == 1
    for part in (zone.folder / "landing/shop/requests").glob("*.json/*"):
        part.unlink()
    zone.chunk(30, Chunk(low=4, high=25, rows=[row(1, 6, "found")]))
    assert zone.merge().exact
    assert zone.rows("id, a, b, _cdc.missing") == [(1, 8, "found", None)]


@pytest.mark.soak
def test_a_crash_before_the_cut_does_not_make_it_exact_while_rows_wait_for_columns(zone: Zone) -> None:
    zone.log(10, insert(5, 9))
    assert zone.merge().exact
    zone.log(20, update_of_a(15, 1, 7))
    zone.merge()
    zone.forget_cuts(after=1)
    again = zone.merge()
    assert (again.exact, again.tables[0].missing) == (False, 1)
    zone.forget_cuts(after=1)
    zone.log(30, insert(25, 2))
    later = zone.merge()
    assert (later.exact, later.tables[0].missing) == (False, 1)
    assert len(zone.requests()) == 1


def test_a_cut_before_the_dump_that_brings_the_columns_is_not_exact(zone: Zone) -> None:
    """The agent has taken the request up, in a manifest that this merge leaves out."""
    zone.log(10, update_of_a(5, 1, 7))
    zone.merge()
    zone.log(20, insert(15, 2))
    for part in (zone.folder / "landing/shop/requests").glob("*.json/*"):
        part.unlink()
    zone.landed.missing_dump(T, 1)
    zone.log(30)
    assert not zone.merge(until=2).exact
    assert not zone.merge().exact


@pytest.mark.soak
@pytest.mark.parametrize(
    ("step", "until"),
    [
        ("reading", 2),
        *(
            pytest.param(*other, marks=pytest.mark.soak)
            for other in (("merging", 3), ("reading", 3), ("merging", 2))
        ),
    ],
)
def test_rows_that_another_job_left_waiting_keep_the_cut_from_being_exact(
    zone: Zone, step: str, until: int
) -> None:
    """The other job comes in between, and finds all there is to ask for."""
    zone.log(10, insert(5, 9))
    zone.merge()
    zone.log(20, update_of_a(15, 1, 7))
    zone.log(30, insert(25, 2))
    other: list[Any] = []

    def overtake(progress: TableProgress) -> None:
        if progress.step == step and not other:
            other.append(merge_once(another_session(zone.spark), zone.config, until=until))

    report = zone.merge(progress=overtake)
    assert not other[0].exact
    assert zone.rows("id, b, _cdc.missing") == [(1, None, ["b"]), (2, "x", None), (9, "x", None)]
    assert (report.manifest, report.exact) == (3, False)
    assert not zone.merge().exact
    assert not any(cut["exact"] for cut in cuts(zone.spark, zone.config).where("manifest > 1").collect())


def test_raw_texts_follow_their_columns(zone: Zone) -> None:
    zone.log(10, Event("insert", 5, 0, {"id": 1, "a": None, "b": None}, raw={"a": "NaN", "b": "infinity"}))
    zone.merge()
    zone.log(20, update_of_a(15, 1, 4))
    zone.merge()
    assert zone.rows("id, a, b, _cdc.raw") == [(1, 4, None, {"b": "infinity"})]
