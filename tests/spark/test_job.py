"""A merge of all tables: killed, repeated, overtaken, stopped; what it refuses, and where it runs."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.config import Config, MergeConfig
from connector.errors import ConfigurationError, FormatError, GapError, SourceMismatchError
from connector.landing.format import manifest_path
from merge import TableProgress, as_of, cuts, live, merge_every, merge_once
from merge.lake.target import Target
from merge.spark.unreachable import StoreOutageError
from tests.support.landing.landed import Event, Landed, config_of, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, delete, insert, update_of_a
from tests.support.servers.s3_server import S3
from tests.support.spark.spark_sessions import (
    another_session,
    require_conditional_writes,
    require_own_sessions,
)


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


def test_a_merge_killed_before_its_cut_is_repeated_without_rewriting_anything(zone: Zone) -> None:
    zone.begin(insert(5, 1), insert(5, 2))
    zone.log(20, update_of_a(15, 1, 7), delete(15, 2))
    zone.merge()
    before, versions = zone.rows(), len(zone.history())
    zone.forget_cuts(after=1)
    again = zone.merge()
    assert zone.rows() == before == [(1, 7, "x")]
    assert again.recorded
    assert again.tables[0].version == versions - 1
    assert len(zone.history()) == versions  # skipped whole: the manifest was applied
    zone.forget_cuts(after=0)
    zone.log(30)
    zone.merge()
    assert zone.rows() == before
    assert zone.history()[-1]["operationMetrics"]["numTargetRowsUpdated"] == "0"


def test_with_nothing_new_nothing_is_written(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    assert zone.merge().recorded
    report = zone.merge()
    assert not report.recorded
    assert not report.tables
    assert len(cuts(zone.spark, zone.config).collect()) == 1


def test_a_job_that_was_overtaken_brings_nothing_back(zone: Zone) -> None:
    zone.begin(insert(5, 1))
    zone.log(20, insert(15, 2))
    zone.log(30, delete(25, 2))
    zone.merge()
    zone.forget_cuts(after=1)  # the late job read the frontier before the other one wrote its cut
    late = zone.merge(until=2)
    assert zone.rows() == [(1, 1, "x")]
    assert (late.tables[0].manifest, late.manifest, late.exact) == (3, 2, False)


def test_two_jobs_at_once_leave_the_right_table(zone: Zone) -> None:
    zone.log(10, *(insert(5, key) for key in range(50)))
    zone.merge()
    for n in range(2, 8):
        zone.log(
            10 * n, *(insert(10 * n - 5, 100 * n + key) for key in range(9)), delete(10 * n - 4, 100 * n)
        )
    errors: list[BaseException] = []

    def run(untils: Sequence[int | None]) -> None:
        session = another_session(zone.spark)
        try:
            for until in untils:
                assert not merge_once(session, zone.config, until=until).failed
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(untils,)) for untils in ((2, 4, None), (3, 5, None))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    keys = [*range(50), *(100 * n + key for n in range(2, 8) for key in range(1, 9))]
    assert [found[0] for found in zone.rows("id")] == keys


@pytest.mark.soak
def test_a_table_that_appears_later_is_merged_from_its_beginning(zone: Zone) -> None:
    zone.begin(insert(5, 1))
    odd = schema_of('public."my.table %"', ("k.1", "k 2"), **{"k.1": "string", "k 2": "binary", "v": "int"})
    name = str(odd.table)
    zone.landed.table(odd)
    events = [Event("insert", 15, 0, {"k.1": "it's \\", "k 2": b"\x00", "v": 1})]
    zone.landed.commit(20, [zone.landed.log(odd, events)])
    zone.log(30, insert(25, 2))
    zone.merge(tables=[T])
    newest = cuts(zone.spark, zone.config).collect()[0]
    assert newest["tables"][name]["version"] is None
    zone.merge()
    assert [r["v"] for r in live(zone.spark, zone.config, name).collect()] == [1]
    zone.landed.commit(
        40, [zone.landed.log(odd, [Event("update", 35, 0, {**events[0].values, "v": 2}, unchanged=())])]
    )
    zone.merge()
    assert [r["v"] for r in as_of(zone.spark, zone.config, 4)[name].collect()] == [2]
    assert [r["v"] for r in as_of(zone.spark, zone.config, 3)[name].collect()] == [1]


def test_a_delta_table_that_was_dropped_is_built_anew(zone: Zone) -> None:
    zone.begin(insert(5, 1))
    shutil.rmtree(zone.folder / "lake/public/orders")
    zone.log(20, insert(15, 2))
    assert zone.live() == [(1, 1, "x"), (2, 2, "x")]
    zone.merge()
    assert zone.rows("id") == [(1,), (2,)]


def test_a_hole_in_the_chain_stops_the_merge(zone: Zone) -> None:
    for n in (1, 2, 3):
        zone.log(10 * n, insert(10 * n - 5, n))
    lost = zone.folder / "landing/shop" / manifest_path(2)
    whole = lost.read_bytes()
    lost.unlink()
    assert zone.merge(until=1).manifest == 1
    with pytest.raises(GapError, match="manifest 2 is missing"):
        zone.merge()
    shutil.rmtree(zone.folder / "lake")
    (failed,) = zone.merge().failed  # of a new lake, a table that was dumped since could be merged
    assert "manifest 2 is missing" in str(failed.error)
    lost.write_bytes(whole)
    zone.log(40)
    assert zone.merge().exact
    assert zone.rows("id") == [(1,), (2,), (3,)]


def test_a_newer_format_and_a_replaced_landing_zone_are_refused(zone: Zone) -> None:
    zone.begin(insert(5, 1))
    path = zone.folder / "landing/shop" / manifest_path(1)
    good = path.read_text()
    path.write_text(good.replace('"position": 10', '"position": 11'))
    for read in (zone.merge, zone.live):
        with pytest.raises(SourceMismatchError, match="manifest 1"):
            read()
    path.write_text(good)
    zone.log(20)
    newer = zone.folder / "landing/shop" / manifest_path(2)
    newer.write_text(newer.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(FormatError, match="format 2"):
        zone.merge()


def test_a_state_object_that_is_gone_or_damaged_stops_the_merge(zone: Zone) -> None:
    zone.landed.state_objects = 2
    zone.log(10, insert(5, 1))
    zone.merge()
    zone.log(20, insert(15, 2))
    zone.log(30, insert(25, 3))
    (_, path) = sorted((zone.folder / "landing/shop/state").iterdir())
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"captured"', b'"captures"'))
    with pytest.raises(FormatError, match=f"{path.name} is damaged"):
        zone.merge()
    path.unlink()
    with pytest.raises(FormatError, match=f"{path.name} is missing"):
        zone.merge()
    path.write_bytes(good)
    zone.merge()
    assert zone.rows("id") == [(1,), (2,), (3,)]


def test_an_unknown_table_is_named_with_those_there_are(zone: Zone) -> None:
    zone.log(10)
    with pytest.raises(ConfigurationError) as raised:
        zone.merge(tables=["public.order"])
    assert raised.value.hint is not None
    assert T in raised.value.hint


def test_merging_again_and_again_ends_gracefully(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    stop, reports = threading.Event(), []

    def seen(report: Any) -> None:
        reports.append(report)
        zone.log(20, insert(15, 2)) if len(reports) == 1 else stop.set()

    merge_every(zone.spark, zone.config, 0.01, report=seen, stop=stop)
    assert [report.manifest for report in reports] == [1, 2]
    assert zone.rows("id") == [(1,), (2,)]


def one_at_a_time(config: Config, parallel: int = 1) -> Config:
    return config.model_copy(update={"merge": MergeConfig(parallel=parallel)})


def test_each_table_merged_at_a_time_commits_under_its_own_name(spark: SparkSession, tmp_path: Path) -> None:
    require_own_sessions(spark)
    landed, underway, most = Landed.local(tmp_path / "landing"), set[str](), [0]
    config = one_at_a_time(config_of(str(tmp_path / "landing"), str(tmp_path / "lake")), 3)
    tables = [schema_of(f"public.t{n}", id="int") for n in range(6)]
    for table in tables:
        landed.table(table)
    landed.commit(10, [landed.log(table, [Event("insert", 5, 0, {"id": 1})]) for table in tables])

    def reported(step: TableProgress) -> None:
        if step.step == "reading":
            underway.add(str(step.table))
        most[0] = max(most[0], len(underway))
        if step.step == "done":
            underway.discard(str(step.table))

    assert merge_once(spark, config, progress=reported).exact
    assert 1 < most[0] <= 3
    for n in range(6):
        (log,) = (tmp_path / f"lake/public/t{n}/_delta_log").glob("*1.json")
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        assert [a["txn"]["appId"] for a in actions if "txn" in a] == [f"deltatide/shop/public.t{n}"]
        checksum = json.loads(log.with_suffix(".crc").read_text())
        assert (checksum["numFiles"], checksum.get("allFiles")) == (1, None), "nobody reads the list"


def test_an_error_that_affects_all_tables_begins_no_more(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed, begun = Landed.local(tmp_path / "landing"), list[str]()
    config = one_at_a_time(config_of(str(tmp_path / "landing"), str(tmp_path / "lake")))
    for n in range(3):
        landed.table(schema_of(f"public.t{n}", id="int"))
    landed.commit(10)

    def gone(_: SparkSession, target: Target) -> None:
        begun.append(str(target.table))
        raise StoreOutageError("the store is gone", hint="wait")

    monkeypatch.setattr("merge.job.check_rival", gone)
    with pytest.raises(StoreOutageError, match="gone"):
        merge_once(spark, config)
    assert begun == ["public.t0"]


def test_a_merge_asked_to_stop_finishes_the_table_under_way(spark: SparkSession, tmp_path: Path) -> None:
    landed, stop = Landed.local(tmp_path / "landing"), threading.Event()
    config = one_at_a_time(config_of(str(tmp_path / "landing"), str(tmp_path / "lake")))
    tables = [schema_of(f"public.{name}", id="int") for name in ("a", "b")]
    for table in tables:
        landed.table(table)
    landed.commit(10, [landed.log(table, [Event("insert", 5, 0, {"id": 1})]) for table in tables])

    def reported(step: TableProgress) -> None:
        if step.step == "merging":
            stop.set()

    first = merge_once(spark, config, stop=stop, progress=reported)
    assert (first.stopped, first.exact, [t.rows for t in first.tables]) == (True, False, [1])
    second = merge_once(spark, config)
    assert (second.stopped, second.exact, [t.rows for t in second.tables]) == (False, True, [1])
    assert {str(table.table) for table in (*first.tables, *second.tables)} == {"public.a", "public.b"}


def test_a_merge_asked_to_stop_before_its_first_table_records_no_cut(zone: Zone) -> None:
    """Its cut was the newest one, and not exact, though nothing was wrong."""
    stop = threading.Event()
    zone.log(10, insert(5, 1))
    assert zone.merge().exact
    zone.log(20, insert(15, 2))
    stop.set()
    report = zone.merge(stop=stop)
    assert (report.stopped, report.recorded, report.manifest) == (True, False, 1)
    report = zone.merge()
    assert (report.stopped, report.recorded, report.manifest, report.exact) == (False, True, 2, True)


def test_landing_zone_and_lake_on_s3(spark: SparkSession, s3: S3) -> None:
    require_conditional_writes()
    landed = Landed.on_s3(s3)
    landed.table(ORDERS)
    landed.commit(10, [landed.log(ORDERS, [insert(5, 1), update_of_a(6, 2, 5)])])
    config = config_of(landed.url, f"s3://{s3.bucket}/lake")
    assert not merge_once(spark, config).failed
    landed.commit(20, [landed.log(ORDERS, [delete(15, 1)])])
    assert not merge_once(spark, config).failed
    assert [tuple(r) for r in live(spark, config, T).select("id", "a", "b").collect()] == [(2, 5, None)]
    keys = [
        o["Key"]
        for o in s3.client().list_objects_v2(Bucket=s3.bucket, Prefix="landing/shop/requests/")["Contents"]
    ]
    assert any(".json/part-" in key for key in keys)
