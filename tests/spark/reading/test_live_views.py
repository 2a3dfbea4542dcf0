"""Views of live rows: current at each query, equal to `merge.live`, and never wrong beside a merge."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from connector.errors import ConfigurationError
from connector.landing.format import manifest_path
from merge import live, merge_once, register
from merge.lake.target import Target
from tests.spark.test_oracle import MANY, ONE, comparable, formatted, land, rows
from tests.support.landing.histories import World
from tests.support.landing.landed import Chunk, Event, Landed, config_of, schema_of
from tests.support.landing.zone import T, Zone, delete, insert, row, update_of_a

if not hasattr(DataFrame, "scalar"):
    pytest.skip("live views need Spark 4", allow_module_level=True)

pytestmark = pytest.mark.only_classic("a server's Python processes do not have deltatide")

VIEW = "`public.orders_live`"


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


def shown(zone: Zone, where: str = "true") -> list[tuple[Any, ...]]:
    found = zone.spark.sql(f"SELECT id, a, b FROM {VIEW} WHERE {where}")
    return sorted(map(tuple, found.collect()))


@pytest.fixture
def merged(zone: Zone) -> Zone:
    """Three merges, so that views begin at a cut, not at the beginning: keys 1 to 3."""
    for number in (1, 2, 3):
        zone.log(10 * number, insert(10 * number - 5, number))
        zone.merge()
    return zone


def test_a_view_shows_what_lands_and_what_is_merged_without_being_registered_again(zone: Zone) -> None:
    zone.log(10, insert(5, 1), insert(5, 2))
    assert register(zone.spark, zone.config) == ["`orders_live`", VIEW, "_deltatide_status"]
    assert shown(zone) == [(1, 1, "x"), (2, 2, "x")]  # there is no Delta table yet
    zone.merge()
    zone.log(20, update_of_a(15, 1, 7), delete(16, 2), insert(17, 3))
    assert shown(zone) == [(1, 7, "x"), (3, 3, "x")]
    register(zone.spark, zone.config)
    for position in (30, 40, 50):
        zone.log(position, insert(position - 5, position), delete(position - 4, position - 10))
        assert shown(zone) == zone.live()
        zone.merge()
        assert shown(zone) == zone.live() == zone.rows()
    (found,) = zone.spark.sql("SELECT * FROM _deltatide_status").collect()
    assert (found["table"], found["manifest"], found["position"]) == (T, 5, "0/32")
    assert found["age_seconds"] >= 0
    assert (found["exact"], found["reason"]) == (True, None)


def pinned(frame: DataFrame) -> DataFrame:
    """Have the frame's query planned, as `explain` does: from then on it keeps its Delta version."""
    assert "Delta" in frame._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    return frame


def test_a_frame_planned_before_merges_and_read_after_them_has_no_ghosts_and_lacks_nothing(
    merged: Zone,
) -> None:
    register(merged.spark, merged.config)
    merged.log(40, insert(35, 4), update_of_a(36, 1, 10))
    planned = pinned(merged.spark.sql(f"SELECT id, a, b FROM {VIEW}"))
    merged.log(50, delete(45, 4), delete(46, 2), insert(47, 5))
    merged.merge()
    merged.log(60, delete(55, 5), insert(56, 6), update_of_a(57, 1, 11))
    merged.merge()
    merged.log(70, insert(65, 7))
    found = [(1, 11, "x"), (3, 3, "x"), (6, 6, "x"), (7, 7, "x")]
    assert sorted(map(tuple, planned.collect())) == found == shown(merged)


def test_a_cut_recorded_just_after_the_delta_table_was_pinned_does_not_count(
    merged: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged.log(40, insert(35, 4), delete(36, 1))
    version = merged.history()[-1]["version"]
    merged.merge()
    monkeypatch.setattr(Target, "frame", lambda self, spark: self.at(spark, version))
    register(merged.spark, merged.config)
    assert shown(merged) == [(2, 2, "x"), (3, 3, "x"), (4, 4, "x")]


def test_truncates_and_full_dumps_remove_rows_of_both_halves(merged: Zone) -> None:
    register(merged.spark, merged.config)
    merged.log(40, insert(35, 4), Event("truncate", 36, 0, {}), insert(37, 5), update_of_a(38, 2, 20))
    assert shown(merged) == merged.live() == [(2, 20, None), (5, 5, "x")]
    merged.merge()
    assert shown(merged) == merged.rows()
    merged.landed.full_dump(T, 1, 45, started_in=5)
    merged.chunk(50, Chunk(45, 48, [row(7, 7)]))
    assert shown(merged) == merged.live() == [(7, 7, "x")]
    merged.merge()
    merged.log(60, insert(55, 8))
    merged.merge()
    assert shown(merged) == merged.live() == [(7, 7, "x"), (8, 8, "x")]


def test_a_delta_table_that_is_built_anew_is_not_mistaken_for_the_one_that_the_cuts_name(
    merged: Zone,
) -> None:
    register(merged.spark, merged.config)
    rows = [(1, 1, "x"), (2, 2, "x"), (3, 3, "x")]
    merged.spark.sql(f"DELETE FROM delta.`{merged.folder}/lake/public/orders`")  # as one just created
    assert shown(merged) == rows
    merged.merge()
    shutil.rmtree(merged.folder / "lake/public/orders")
    merged.log(40, insert(35, 4))
    merged.merge()
    assert shown(merged) == [*rows, (4, 4, "x")]


def test_a_query_by_key_opens_only_the_files_of_delta_that_may_have_it(merged: Zone) -> None:
    register(merged.spark, merged.config)
    merged.log(40, update_of_a(35, 1, 10))
    file = next(
        file
        for file in (merged.folder / "lake/public/orders").glob("*.parquet")
        if pq.read_table(file, columns=["id"]).column("id").to_pylist() == [3]
    )
    file.unlink()
    assert shown(merged, "id = 1") == [(1, 10, "x")]
    assert shown(merged, "id IN (1, 2)") == [(1, 10, "x"), (2, 2, "x")]
    with pytest.raises(PySparkException, match=r"FILE_NOT_EXIST|does not exist|DeltaFileNotFound"):
        shown(merged)


def test_what_can_not_be_shown_is_an_error_with_a_hint(merged: Zone) -> None:
    register(merged.spark, merged.config)
    merged.spark.range(1).createOrReplaceTempView("orders_live")
    with pytest.raises(ConfigurationError, match="'orders_live' exists already") as refused:
        register(merged.spark, merged.config)
    assert "DROP VIEW `orders_live`" in (refused.value.hint or "")
    merged.spark.catalog.dropTempView("orders_live")
    wider = schema_of(T, id="int", a="bigint", b="string", c="int")
    merged.landed.table(wider)
    event = Event("insert", 35, 8, {"id": 4, "a": 4, "b": "x", "c": 4})
    merged.landed.commit(40, [merged.landed.log(wider, [event])])
    with pytest.raises(PySparkException, match=r"'a' landed as bigint.*int.*hint: merge, and call"):
        shown(merged)
    merged.merge()
    register(merged.spark, merged.config)
    assert shown(merged) == [(1, 1, "x"), (2, 2, "x"), (3, 3, "x"), (4, 4, "x")]
    assert merged.spark.sql(f"SELECT max(c) FROM {VIEW}").first() == (4,)
    newest = merged.folder / "landing/shop" / manifest_path(4)
    newest.write_text(newest.read_text().replace('"position":40', '"position":41'))
    with pytest.raises(PySparkException, match="is not the one that the lake has merged; hint"):
        shown(merged)


def test_any_random_history_shows_what_live_shows(spark: SparkSession, tmp_path: Path) -> None:
    """With truncates, chunks, keys that are raw text, partial rows, and events that land twice."""
    r = random.Random(7)
    worlds = {MANY: World(r, size=40), ONE: World(r, size=1, truncates=True)}
    landed = Landed.local(tmp_path / "landing")
    landed.state_objects, landed.formats = 3, formatted
    config = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"))
    for schema in worlds:
        landed.table(schema)
    lsn = 0
    for step in range(6):
        for _ in range(r.randint(2, 6)):
            lsn += 1
            for world in worlds.values():
                world.step()
        position = r.randint(worlds[MANY].position, lsn)
        landed.commit(
            position, [f for s, world in worlds.items() for f in land(landed, s, world.commit(position), r)]
        )
        if step == 0:
            merge_once(spark, config)
            register(spark, config)
            continue
        for schema, world in worlds.items():
            found = spark.table(f"`{schema.table}_live`").collect()
            assert rows(found) == world.known()
            if step % 2:
                shown = live(spark, config, str(schema.table)).collect()
                assert sorted(map(comparable, found)) == sorted(map(comparable, shown))
        if r.random() < 0.7:
            assert not merge_once(spark, config).failed
        for world in worlds.values():
            world.chunk([key for key, row in world.known().items() if row.missing], keyed=True)
