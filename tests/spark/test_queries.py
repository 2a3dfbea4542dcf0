"""What `live` shows when the Delta table is not one to start from, and old manifests are gone."""

from __future__ import annotations

import shutil
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.config import Config, ViewConfig
from connector.errors import TableError
from connector.landing.format import manifest_path
from merge import as_of, live, merge_once
from merge.queries import as_printed
from merge.spark.session_settings import EVERY_DAY, applied_settings
from tests.support.landing.landed import Chunk, Event, Landed, config_of, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, insert, row
from tests.support.spark.clocks import driver_in


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


def erp(zone: Zone) -> Config:
    """Another source with a table of the same name, key 7 in it, and the same lake."""
    landed = Landed.local(zone.folder / "other")
    landed.table(ORDERS)
    landed.commit(10, [landed.log(ORDERS, [insert(5, 7)])])
    (zone.folder / "other/shop").rename(zone.folder / "other/erp")
    config = config_of(str(zone.folder / "other"), str(zone.folder / "lake"))
    return config.model_copy(update={"source": config.source.model_copy(update={"name": "erp"})})


def test_no_row_of_another_source_or_landing_zone_is_shown(zone: Zone) -> None:
    zone.begin(insert(5, 1), insert(5, 2))
    other = erp(zone)
    for _ in range(2):
        assert [found["id"] for found in live(zone.spark, other, T).collect()] == [7]
        (failed,) = merge_once(zone.spark, other).failed
        assert "belongs to source 'shop'" in str(failed.error)
    shutil.rmtree(zone.folder / "landing")
    zone.landed = Landed.local(zone.folder / "landing", writer="another-")
    zone.landed.table(ORDERS)
    zone.log(10, insert(5, 3))  # its manifest has number and position of the one that was merged
    assert zone.live() == [(3, 3, "x")]


@pytest.mark.soak
def test_without_old_manifests_tables_start_at_their_full_dump(zone: Zone) -> None:
    """One that was left behind, in `live`, and all of them in a new lake."""
    other = schema_of("public.other", id="int", v="int")
    zone.landed.table(other)
    files = [zone.landed.log(other, [Event("insert", 5, 0, {"id": 1, "v": 1})])]
    zone.landed.commit(10, [*files, zone.landed.log(ORDERS, [insert(5, 1)])])
    zone.merge()
    zone.log(20, insert(15, 2))
    zone.log(30)
    zone.merge(tables=["public.other"])
    zone.landed.full_dump(T, 1, 40, started_in=4)
    zone.landed.full_dump("public.other", 2, 40, started_in=4)
    chunks = [
        zone.landed.chunk(ORDERS, Chunk(40, 43, [row(1, 1), row(2, 2)])),
        zone.landed.chunk(other, Chunk(40, 43, [{"id": 1, "v": 1}], dump=2)),
    ]
    zone.landed.commit(45, chunks)
    zone.log(60)
    (zone.folder / "landing/shop" / manifest_path(2)).unlink()
    assert zone.live() == [(1, 1, "x"), (2, 2, "x")]
    shutil.rmtree(zone.folder / "lake")
    (zone.folder / "landing/shop" / manifest_path(1)).unlink()
    assert zone.live() == [(1, 1, "x"), (2, 2, "x")]
    assert zone.merge().exact
    assert zone.rows("id, a") == [(1, 1), (2, 2)]
    assert zone.rows("id, v", "public/other") == [(1, 1)]


def test_a_delta_table_whose_types_can_not_become_todays_is_ignored(zone: Zone) -> None:
    """As the merge refuses it. Before a full dump, what landed has the old type too, and that is told."""
    zone.begin(insert(5, 1), insert(5, 2))
    typed = schema_of(T, id="int", a="int", b="int")
    zone.landed.table(typed)
    zone.landed.commit(20, [zone.landed.log(typed, [Event("insert", 15, 6, {"id": 3, "a": 3, "b": 9})])])
    with pytest.raises(TableError, match="'b' was int and is now string") as refused:
        zone.live()
    assert "dumped again" in (refused.value.hint or "")
    zone.landed.full_dump(T, 1, 30, started_in=3)
    rows = [{"id": n, "a": n, "b": 6 + n} for n in (1, 2, 3)]
    zone.landed.commit(35, [zone.landed.chunk(typed, Chunk(30, 33, rows))])
    assert zone.live() == [(1, 1, 7), (2, 2, 8), (3, 3, 9)]
    (failed,) = zone.merge().failed
    assert "Delta can't change that in place" in str(failed.error)


def test_filters_on_a_key_find_nan(zone: Zone) -> None:
    """It is in no statistics of a landing file: its events were skipped, and older ones or none counted."""
    readings = schema_of("public.readings", ("k",), k="double", v="string")
    zone.landed.table(readings)

    def land(position: int, *found: tuple[str, float, str | None]) -> list[list[str]]:
        log = [Event(op, position - 5 + n, 0, {"k": k, "v": v}) for n, (op, k, v) in enumerate(found)]
        zone.landed.commit(position, [zone.landed.log(readings, log)])
        shown = live(zone.spark, zone.config, "public.readings")
        wanted = ("k > 5", "k = double('NaN')", "k <> 1")
        return [[row["v"] for row in shown.where(condition).collect()] for condition in wanted]

    nan = float("nan")
    assert land(10, ("insert", 1.0, "a"), ("insert", nan, "b")) == [["b"]] * 3
    assert zone.merge().exact
    assert land(20, ("update", 1.0, "c"), ("update", nan, "d")) == [["d"]] * 3
    assert land(30, ("update", 1.0, "e"), ("delete", nan, None)) == [[]] * 3


def test_filters_find_the_days_that_java_skipped(zone: Zone) -> None:
    """Its former classes have no days from October 5 to 14, 1582: each became another one."""
    spark, sql = zone.spark, "SELECT day FROM days WHERE day = DATE'1582-10-10'"
    zone.config = zone.config.model_copy(update={"views": {"one": ViewConfig(sql=sql)}})
    days = schema_of("public.days", ("day",), day="date", at="timestamp")
    zone.landed.table(days)
    at = datetime(1582, 10, 10, 1, 2, 3, tzinfo=timezone.utc)
    event = Event("insert", 5, 0, {"day": at.date(), "at": at})
    zone.landed.commit(10, [zone.landed.log(days, [event])])
    wanted = ("day = DATE'1582-10-10'", "at = TIMESTAMP'1582-10-10 01:02:03Z'")
    assert [live(spark, zone.config, "public.days").where(each).count() for each in wanted] == [1, 1]
    with applied_settings(spark, dict.fromkeys(EVERY_DAY, "false")):  # merges have their own
        assert zone.merge().exact
    assert spark.table(f"delta.`{zone.folder}/lake/views/one`").count() == 1
    found = as_of(spark, zone.config)["public.days"]
    assert [found.where(each).count() for each in wanted] == [1, 1]


def test_instants_at_either_end_of_time_are_printed(zone: Zone) -> None:
    """In Tokyo, the last of them is in the year 10000."""
    prices = schema_of("public.prices", id="int", valid_to="timestamp", all="array<timestamp>")
    end = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc)
    zone.landed.table(prices)
    price = Event("insert", 5, 0, {"id": 1, "valid_to": end, "all": [end]})
    zone.landed.commit(10, [zone.landed.log(prices, [price])])
    with driver_in("Asia/Tokyo"):
        (found,) = as_printed(live(zone.spark, zone.config, "public.prices")).collect()
    assert (found["valid_to"], found["all"]) == ("9999-12-31 23:59:59", ["9999-12-31 23:59:59"])
    assert isinstance(found["_cdc"]["committed_at"], str)


def test_instants_beside_odd_names_are_printed(spark: SparkSession) -> None:
    """As in before-images, of whatever columns a table has."""
    frame = spark.sql("SELECT named_struct('unit price, `net`', 1, 'timestamp', TIMESTAMP'2026-01-02') AS s")
    (found,) = as_printed(frame).collect()
    assert found["s"].asDict() == {"unit price, `net`": 1, "timestamp": "2026-01-02 00:00:00"}
