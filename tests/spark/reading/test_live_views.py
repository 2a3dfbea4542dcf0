"""Views of live rows: current at each query, equal to `merge.live`, and never wrong beside a merge."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from connector.errors import ConfigurationError, TableError
from connector.landing.column_names import ColumnNames
from merge import live, merge_once, rebuild, register
from merge.reading import live_views
from tests.spark.test_oracle import MANY, ONE, comparable, formatted, land, rows
from tests.support.landing.histories import World
from tests.support.landing.landed import Chunk, Event, Landed, config_of, schema_of
from tests.support.landing.zone import T, Zone, delete, insert, row, update_of_a
from tests.support.spark.spark_sessions import connected, served_at

if not hasattr(DataFrame, "scalar"):
    pytest.skip("live views need Spark 4", allow_module_level=True)

pytestmark = pytest.mark.only_classic("the classic session's server is connected to, where a test says so")

VIEW = "`public.orders_live`"
ALL_LARGE = -1
"""As `live_views.SMALL_BYTES`: of each Delta table, only files are opened that may have a wanted row."""
WAITS = "rows may wait for a column (_cdc.missing)"


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


def shown(zone: Zone, where: str = "true", spark: SparkSession | None = None) -> list[tuple[Any, ...]]:
    found = (spark or zone.spark).sql(f"SELECT id, a, b FROM {VIEW} WHERE {where}")
    return sorted(map(tuple, found.collect()))


@pytest.fixture
def merged(zone: Zone) -> Zone:
    """Two merges: keys 1 and 2, each in a file of its own."""
    zone.begin(insert(5, 1))
    zone.log(20, insert(15, 2))
    zone.merge()
    register(zone.spark, zone.config)
    return zone


def test_a_view_shows_what_lands_and_what_is_merged_without_being_registered_again(zone: Zone) -> None:
    zone.log(10, insert(5, 1), insert(5, 2))
    assert register(zone.spark, zone.config) == ["`orders_live`", VIEW, "_deltatide_status"]
    assert shown(zone) == [(1, 1, "x"), (2, 2, "x")]  # there is no Delta table yet
    zone.merge()
    register(zone.spark, zone.config)
    zone.log(20, update_of_a(15, 1, 7), delete(16, 2), insert(17, 3))
    changed = [(1, 7, "x"), (3, 3, "x")]
    with connected(served_at(zone.spark)) as remote:
        register(remote, zone.config)
        assert shown(zone, spark=remote) == changed
    assert shown(zone) == changed
    zone.merge()
    assert shown(zone) == changed == zone.rows()
    zone.log(30, insert(25, 4), delete(26, 1))
    together = zone.spark.sql(
        f"SELECT (SELECT count(*) FROM orders_live), s.* FROM {VIEW} JOIN _deltatide_status s WHERE id = 4"
    )
    (found,) = together.collect()
    assert (found[0], found["table"], found["manifest"], found["position"]) == (2, T, 3, "0/1E")
    assert (found["age_seconds"] >= 0, found["exact"], found["reason"]) == (True, True, None)


def test_live_rows_of_soft_deletes_have_their_field_whatever_is_yet_to_be_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    soft, hard = (Zone(spark, tmp_path, public__orders={"deletes": each}) for each in ("soft", "hard"))
    soft.log(10, insert(5, 1), insert(5, 2))
    soft.log(20, delete(15, 1))
    soft.merge()
    for ids in ([2], [2, 3]):
        register(spark, soft.config)
        for shows in (live(spark, soft.config, T), spark.table(VIEW)):
            alive = shows.where("_cdc.deleted_at IS NULL").select("id").collect()
            assert sorted(found.id for found in alive) == ids
        register(spark, hard.config)
        for shows in (live(spark, hard.config, T), spark.table(VIEW)):
            assert "deleted_at" not in shows.select("_cdc.*").columns
            assert shows.count() == len(ids)
        soft.log(30, insert(25, 3))


def test_a_merge_between_what_a_query_reads_loses_no_row_and_doubles_none(
    merged: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged.log(30, insert(25, 4), update_of_a(26, 1, 10))
    planned = merged.spark.sql(f"SELECT id, a, b FROM {VIEW}")
    assert "Delta" in planned._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    version = merged.history()[-1]["version"]
    merged.log(40, delete(35, 4), delete(36, 2), insert(37, 5))
    merged.merge()
    merged.log(50, delete(45, 5), insert(46, 6))
    found = [(1, 10, "x"), (6, 6, "x")]
    assert sorted(map(tuple, planned.collect())) == found == shown(merged)
    # The other order, which Delta does not have: the cut is recorded after the Delta table was pinned.
    pinned = f"SELECT * FROM delta.`{merged.folder}/lake/public/orders` VERSION AS OF {version}"
    monkeypatch.setattr(live_views, "uncached", lambda _: merged.spark.sql(pinned))
    register(merged.spark, merged.config)
    assert shown(merged) == found


def test_a_query_plans_and_reads_each_view_once_and_no_subquery_waits_for_another(
    merged: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs 16 subqueries at a time: those that wait could leave no room for those waited for."""
    merged.log(30, insert(25, 4), update_of_a(26, 1, 10))
    assert reads_of_delta(merged, exchanges=0) == 1
    monkeypatch.setattr(live_views, "TOGETHER", 0)
    register(merged.spark, merged.config)
    assert reads_of_delta(merged) == 1
    monkeypatch.setattr(live_views, "SMALL_BYTES", ALL_LARGE)
    register(merged.spark, merged.config)
    assert reads_of_delta(merged) == 2


def test_a_table_whose_merges_have_long_failed_does_not_have_queries_of_others_read_its_manifests() -> None:
    pending, others = [object() for _ in range(3)], object()

    def shown(merged: int, of: object, *, is_small: bool = True) -> Any:
        return SimpleNamespace(pending=of, is_small=is_small, merged=merged)

    at = live_views.FAR_BEHIND
    known = [shown(at, pending[0]), shown(0, pending[1]), shown(5 * at, others, is_small=False)]
    assert live_views._together(known[:2]) == (pending[0], pending[1])
    assert live_views._together([*known[:2], shown(at + 1, pending[2])]) == (pending[0], pending[2])
    assert live_views._together(known) == ()
    assert live_views._together([shown(1, number) for number in range(17)]) == ()


def reads_of_delta(merged: Zone, *, exchanges: int | None = None) -> int:
    """Check a query of a view and the status; return how often it reads the Delta table.

    `exchanges`: of the view alone; None: some, behind which a task plans for it.
    """
    joined = merged.spark.sql(f"SELECT v.id, exact, reason FROM {VIEW} v, _deltatide_status WHERE v.id < 9")
    execution: Any = joined._jdf.queryExecution()
    subqueries = execution.optimizedPlan().subqueriesAll()
    assert subqueries.size() > 2
    assert all(subqueries.apply(i).subqueriesAll().isEmpty() for i in range(subqueries.size()))
    assert sorted(map(tuple, joined.collect())) == [(id_, False, WAITS) for id_ in (1, 2, 4)]
    final, _, _ = execution.executedPlan().toString().partition("\n+- == Initial Plan ==")  # not a subquery's
    own = 1 if exchanges is None else 0
    assert (final.count("MapInArrow state("), final.count("MapInArrow events(")) == (own, 1)
    if exchanges is not None:
        alone: Any = merged.spark.sql(f"SELECT max(id) FROM {VIEW}")
        assert alone.collect() == [(4,)]
        plan = alone._jdf.queryExecution().executedPlan().toString().partition("\n+- == Initial Plan ==")[0]
        # Both halves have one subquery, of which the final and the initial plan are printed.
        assert (plan.count("Exchange"), plan.count("MapInArrow planned(")) == (exchanges, 2)
    return final.count("FileScan parquet [id#")  # the cuts have no such column


@pytest.mark.soak  # cached rows: lake/test_interference; other masks: columns/test_built_with
def test_neither_cached_rows_nor_rows_with_other_masks_are_shown(merged: Zone) -> None:
    """Spark takes cached rows for any part of a query that has their plan; meanwhile, others merge."""
    landing, lake, other = (str(merged.folder / name) for name in ("landing", "lake", "other"))
    cached = merged.spark.table(f"delta.`{lake}/public/orders`").cache()
    assert cached.count() == 2
    shutil.copytree(lake, other)
    for number in (3, 4):
        merged.log(10 * number, insert(10 * number - 5, number))
        merge_once(merged.spark, config_of(landing, other))
    shutil.copytree(other, lake, dirs_exist_ok=True)
    try:
        assert shown(merged) == [(key, key, "x") for key in (1, 2, 3, 4)]
        assert cached.count() == 2
    finally:
        cached.unpersist()
    masked = config_of(landing, lake, public__orders={"mask": {"b": "null"}})
    rebuild(merged.spark, masked, T)
    with pytest.raises((PySparkException, Py4JJavaError), match="rebuilt with other columns, masks or rows"):
        shown(merged)
    merged.log(50, insert(45, 5))
    register(merged.spark, masked)
    assert shown(merged) == [(key, key, None) for key in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize(
    "small_bytes", [live_views.SMALL_BYTES, pytest.param(ALL_LARGE, marks=pytest.mark.soak)]
)
def test_truncates_and_full_dumps_remove_rows_of_both_halves(
    merged: Zone, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_views, "SMALL_BYTES", small_bytes)
    register(merged.spark, merged.config)
    merged.log(30, insert(25, 4), Event("truncate", 26, 0, {}), insert(27, 5), update_of_a(28, 2, 20))
    assert shown(merged) == merged.live() == [(2, 20, None), (5, 5, "x")]
    merged.landed.full_dump(T, 1, 35, started_in=4)
    merged.chunk(40, Chunk(35, 38, [row(7, 7)]))
    assert shown(merged) == merged.live() == [(7, 7, "x")]
    merged.merge()
    merged.log(50, insert(45, 8))
    assert shown(merged) == merged.live() == [(7, 7, "x"), (8, 8, "x")]
    merged.log(60, delete(55, 7), delete(56, 8))
    merged.merge()
    assert shown(merged) == []
    merged.log(70, insert(65, 9))
    assert shown(merged) == [(9, 9, "x")]


def test_a_query_by_key_opens_only_the_files_of_a_large_delta_table_that_may_have_it(
    merged: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged.log(30, update_of_a(25, 1, 10))
    monkeypatch.setattr(live_views, "SMALL_BYTES", ALL_LARGE)
    register(merged.spark, merged.config)
    file = next(
        file
        for file in (merged.folder / "lake/public/orders").glob("*.parquet")
        if pq.read_table(file, columns=["id"]).column("id").to_pylist() == [2]
    )
    file.unlink()
    assert shown(merged, "id = 1") == [(1, 10, "x")]
    assert shown(merged, "id < 2") == [(1, 10, "x")]
    with pytest.raises((PySparkException, Py4JJavaError), match="FILE_NOT_EXIST"):
        shown(merged)


def test_what_would_not_be_a_live_view_is_refused(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    zone.spark.range(1).createOrReplaceTempView("orders_live")
    with pytest.raises(ConfigurationError, match="'orders_live' exists already") as refused:
        register(zone.spark, zone.config)
    assert "DROP VIEW `orders_live`" in (refused.value.hint or "")
    zone.spark.catalog.dropTempView("orders_live")
    for name, value in (
        ("spark.sql.execution.reuseSubquery", "false"),
        ("spark.databricks.delta.stalenessLimit", "1h"),
    ):
        zone.spark.conf.set(name, value)
        try:
            with pytest.raises(ConfigurationError, match=name):
                register(zone.spark, zone.config)
        finally:
            zone.spark.conf.unset(name)


def test_a_table_that_can_not_be_shown_does_not_keep_others_from_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = Zone(spark, tmp_path, public__others={"mask": {"ssn": "null"}})
    others = schema_of("public.others", id="int", ssn="string")
    zone.landed.table(others)
    zone.log(10, insert(5, 1))
    everything = register(spark, zone.config)
    assert everything == ["`orders_live`", VIEW, "`others_live`", "`public.others_live`", "_deltatide_status"]
    renamed = ColumnNames().after({"name"}, {"ssn"})
    zone.landed.table(schema_of("public.others", id="int", ssn="string", name="string"))
    state = zone.landed.tables[others.table].changed(column_names=renamed)
    zone.landed.tables[others.table] = state
    zone.landed.table(schema_of("archive.orders", id="int"))
    zone.log(20, insert(15, 2))
    assert register(spark, zone.config, [T, T]) == [VIEW, "_deltatide_status"]
    assert not spark.catalog.tableExists("orders_live")  # `archive` has such a table now
    assert register(spark, zone.config) == [VIEW, "`archive.orders_live`", "_deltatide_status"]
    assert shown(zone) == [(1, 1, "x"), (2, 2, "x")]
    assert not any(map(spark.catalog.tableExists, ("others_live", "`public.others_live`")))
    reasons = {found["table"]: found["reason"] for found in spark.table("_deltatide_status").collect()}
    assert (reasons[T], reasons["archive.orders"]) == (None, None)
    assert "it has no view: column 'name' may be 'ssn'" in reasons["public.others"]
    with pytest.raises(TableError, match="column 'name' may be 'ssn'"):
        register(spark, zone.config, ["public.others"])


@pytest.mark.soak
def test_a_delta_table_that_is_built_anew_is_not_mistaken_for_the_one_that_the_cuts_name(
    merged: Zone,
) -> None:
    shutil.rmtree(merged.folder / "lake/public/orders")
    merged.log(30, insert(25, 4))
    merged.merge()
    merged.log(40, insert(35, 5))
    with pytest.raises((PySparkException, Py4JJavaError), match="was dropped or replaced since"):
        shown(merged)
    register(merged.spark, merged.config)
    assert shown(merged) == [(1, 1, "x"), (2, 2, "x"), (4, 4, "x"), (5, 5, "x")]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("small_bytes", "together"),
    [(live_views.SMALL_BYTES, live_views.TOGETHER), (live_views.SMALL_BYTES, 0), (ALL_LARGE, 0)],
)
def test_any_random_history_shows_what_live_shows(
    spark: SparkSession, tmp_path: Path, small_bytes: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With truncates, chunks, keys that are raw text, partial rows, and events that land twice."""
    monkeypatch.setattr(live_views, "SMALL_BYTES", small_bytes)
    monkeypatch.setattr(live_views, "TOGETHER", together)
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
                frame = live(spark, config, str(schema.table)).collect()
                assert sorted(map(comparable, found)) == sorted(map(comparable, frame))
        if r.random() < 0.7:
            assert not merge_once(spark, config).failed
        for world in worlds.values():
            world.chunk([key for key, row in world.known().items() if row.missing], keyed=True)
