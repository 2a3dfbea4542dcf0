"""A lake tells the landing zone how far it is; what was removed since is read again by a dump."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from connector.landing import consumers, format
from connector.landing.consumers import forget, read_consumers
from connector.maintenance.retention import History, horizon, remove_unneeded
from connector.store.local import LocalStore
from merge import merge_once
from merge.job import MergeRun
from merge.lake.control_table import read_frontiers
from merge.landing_zone import LandingZone
from merge.report import TableReport
from tests.support.landing.landed import Chunk, config_of, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, insert, row, update_of_a


@pytest.fixture(autouse=True)
def blocks_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention removes whole blocks of manifests."""
    monkeypatch.setattr(format, "MANIFESTS_PER_BLOCK", 1)


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "landing/shop")


def remove_old(store: LocalStore) -> None:
    history = History.of(store)
    assert history is not None
    now = datetime.now(timezone.utc)
    remove_unneeded(history, horizon(history, timedelta(0), now), now=now, dry_run=False)


def test_a_lake_holds_what_it_has_yet_to_merge_and_no_more(
    zone: Zone, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "RECORD_SECONDS", 10**12)
    zone.log(10, insert(5, 1))
    zone.log(20, insert(15, 2))
    zone.merge(until=1)
    (consumer,) = read_consumers(store)
    assert (consumer.lake, consumer.manifest) == (f"{zone.folder}/lake", 1)
    zone.log(30, update_of_a(25, 1, 7))
    remove_old(store)
    zone.merge()
    assert zone.rows("id, a") == [(1, 7), (2, 2)]
    zone.log(40, insert(35, 3))
    zone.merge()
    assert zone.rows("id") == [(1,), (2,), (3,)]
    (consumer,) = read_consumers(store)
    assert consumer.manifest == 1  # not recorded again so soon
    monkeypatch.setattr(consumers, "RECORD_SECONDS", 10**-6)
    zone.log(50)
    zone.merge()
    (consumer,) = read_consumers(store)
    assert consumer.manifest == zone.landed.number


def test_a_new_lake_asks_for_a_dump_of_what_is_gone_and_begins_with_it(
    zone: Zone, store: LocalStore, tmp_path: Path
) -> None:
    for n in range(1, 5):
        zone.log(10 * n, insert(10 * n - 5, n))
    remove_old(store)
    lake = config_of(str(tmp_path / "landing"), str(tmp_path / "new"))
    for _ in range(2):
        (failed,) = merge_once(zone.spark, lake).failed
        assert "full dump was requested" in (failed.hint or "")
    (request,) = {path.split("/")[1] for path in store.list("requests/")}
    assert request.startswith("missing-")
    zone.log(45)
    zone.landed.full_dump(T, 1, low=45, started_in=6)
    zone.chunk(50, Chunk(45, 48, [row(n, n) for n in (1, 2, 3, 4)], dump=1))
    assert merge_once(zone.spark, lake).exact
    table = zone.spark.table(f"delta.`{tmp_path}/new/public/orders`")
    assert sorted(r["id"] for r in table.collect()) == [1, 2, 3, 4]


def test_a_record_that_can_t_be_written_stops_no_merge(
    zone: Zone, store: LocalStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise AnalysisException("AccessDenied")

    monkeypatch.setattr(LandingZone, "write", denied)
    zone.log(10, insert(5, 1))
    assert zone.merge().exact
    assert "was not recorded in the landing zone" in caplog.text
    assert read_consumers(store) == []


def test_a_lake_that_was_forgotten_asks_for_a_dump_and_goes_on_from_it(zone: Zone, store: LocalStore) -> None:
    zone.log(10, insert(5, 1))
    zone.merge()
    for n in range(2, 7):
        zone.log(10 * n, insert(10 * n - 5, n))
    for consumer in read_consumers(store):
        forget(store, consumer)
    remove_old(store)
    (failed,) = zone.merge().failed
    assert "full dump was requested" in (failed.hint or "")
    assert [request["tables"] for request in zone.requests()] == [[T]]
    (consumer,) = read_consumers(store)  # registered again
    assert (consumer.manifest, list(consumer.failing)) == (1, ["public.orders"])
    zone.log(65)
    zone.landed.full_dump(T, 1, low=65, started_in=8)
    zone.chunk(70, Chunk(65, 68, [row(n, n) for n in range(2, 7)], dump=1))
    assert zone.live() == [(n, n, "x") for n in range(2, 7)]
    assert zone.merge().exact
    assert zone.rows("id") == [(n,) for n in range(2, 7)]


@pytest.mark.soak
def test_a_table_that_returns_after_the_retention_time_begins_with_its_dump(
    zone: Zone, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "RECORD_SECONDS", 10**-6)
    zone.landed.table(schema_of("public.other", id="int"))
    zone.log(10, insert(5, 1), insert(5, 9))
    zone.merge()
    state = zone.landed.tables.pop(ORDERS.table)
    for n in (2, 3, 4):
        zone.log(10 * n)
    zone.merge()
    remove_old(store)
    zone.landed.tables[ORDERS.table] = state
    zone.log(45)
    zone.landed.full_dump(T, 1, low=45, started_in=6)
    zone.chunk(50, Chunk(45, 48, [row(1, 1), row(2, 2)], dump=1))
    assert zone.merge().exact
    assert zone.rows("id") == [(1,), (2,)]


@pytest.mark.parametrize("deletes", [pytest.param("hard", marks=pytest.mark.soak), "soft"])
def test_rows_that_another_landing_zone_may_have_brought_do_not_win_over_a_dump(
    spark: SparkSession, tmp_path: Path, deletes: str
) -> None:
    """The source came back from a backup, at earlier positions; the control table was lost."""
    tables = {"public__orders": {"deletes": deletes}}
    former = Zone(spark, tmp_path / "former", **tables)
    former.log(900, insert(805, 1, a=8), insert(810, 2))
    former.merge()
    shutil.rmtree(former.folder / "lake/_deltatide")
    zone = Zone(spark, tmp_path / "new")
    zone.config = config_of(f"{tmp_path}/new/landing", f"{former.folder}/lake", **tables)
    for n in (10, 20, 30):
        zone.log(n)
    zone.landed.full_dump(T, 1, low=40, started_in=4)
    zone.chunk(45, Chunk(40, 42, [row(1, 1)], dump=1))
    remove_old(LocalStore(tmp_path / "new/landing/shop"))
    assert zone.merge().exact
    table = f"delta.`{former.folder}/lake/public/orders`"
    assert [tuple(r) for r in spark.sql(f"SELECT id, a FROM {table}").collect()] == [(1, 1)]
    zone.log(60, insert(55, 3))
    assert zone.merge().exact
    assert [r["id"] for r in spark.sql(f"SELECT id FROM {table} ORDER BY 1").collect()] == [1, 3]


def begun(zone: Zone) -> MergeRun:
    """Begin a merge as another job does."""
    landing = LandingZone.of(zone.spark, zone.config)
    run = MergeRun.begun(
        zone.spark, zone.config, landing, read_frontiers(zone.spark, zone.config), lambda _: None
    )
    assert run is not None
    return run


@pytest.mark.soak
def test_a_job_that_was_overtaken_leaves_no_table_failing_that_another_has_merged(
    zone: Zone, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "RECORD_SECONDS", 10**12)
    zone.log(10, insert(5, 1))
    zone.merge()
    zone.log(20, insert(15, 2))
    slower = begun(zone)
    assert zone.merge().exact
    known = slower.frontiers.of(ORDERS.table)
    slower.record_cut([TableReport(ORDERS.table, 1, known.version, id=known.id, error="overtaken")])
    (consumer,) = read_consumers(store)
    assert consumer.failing, "it was the last to write"
    zone.log(30, insert(25, 3))
    assert zone.merge().exact
    (consumer,) = read_consumers(store)
    assert consumer.failing == {}


def test_of_many_tables_that_fail_the_others_are_counted_and_one_mended_is_news(
    zone: Zone, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "RECORD_SECONDS", 10**12)
    others = [schema_of(f"public.t{number:02}", id="int") for number in range(25)]
    for other in others:
        zone.landed.table(other)
    for left in (25, 24):
        zone.log(100 - left)
        run = begun(zone)
        run.prepare_lake()
        failed = [TableReport(other.table, 0, None, error="why") for other in others[:left]]
        run.record_cut([*failed, *(TableReport(o.table, run.manifest.number, 0) for o in others[left:])])
        (consumer,) = read_consumers(store)
        assert (len(consumer.failing), consumer.failing_unnamed) == (20, left - 20)
