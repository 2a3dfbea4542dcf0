"""Layouts and tables that come and go; each hint that a message gives is followed, and leads out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.landing.consumers import read_consumers
from connector.schema import TableSchema
from connector.store.local import LocalStore
from merge import cuts, live, rebuild
from merge.reading.named_tables import answer
from tests.support.landing.landed import Chunk, Event, config_of, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, delete, insert, update_of_a

TEXT = schema_of(T, id="int", a="string", b="string")
RENAMED = schema_of(T, ("pid",), pid="int", a="int", b="string")


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


def full_dump(zone: Zone, schema: TableSchema, number: int, low: int, *rows: dict[str, object]) -> None:
    zone.landed.full_dump(T, number, low, started_in=zone.landed.number + 1)
    zone.landed.commit(low + 5, [zone.landed.chunk(schema, Chunk(low, low + 3, rows, dump=number))])


@pytest.mark.soak
def test_an_impossible_type_that_was_changed_back_and_dumped_blocks_nothing(zone: Zone) -> None:
    zone.begin(insert(5, 1), insert(5, 2))
    zone.landed.table(TEXT)
    zone.landed.commit(20, [zone.landed.log(TEXT, [Event("insert", 15, 0, {"id": 3, "a": "many"})])])
    report = zone.merge()
    assert [(t.error is not None, t.hint is not None) for t in report.tables] == [(True, True)]
    (newest, *_) = cuts(zone.spark, zone.config).collect()
    assert (newest["exact"], newest["tables"][T]["manifest"]) == (False, 1)
    assert "string" in newest["tables"][T]["error"]
    assert not zone.merge().recorded  # failed again, and nothing is new
    zone.landed.table(ORDERS)
    full_dump(zone, ORDERS, 1, 30, {"id": 1, "a": 10}, {"id": 3, "a": 30})
    report = zone.merge()
    assert (report.failed, report.exact) == ([], True)
    assert zone.rows("id, a") == [(1, 10), (3, 30)]
    assert cuts(zone.spark, zone.config).collect()[0]["tables"][T]["error"] is None


def test_an_impossible_type_that_stays_is_fixed_as_its_hint_says(zone: Zone) -> None:
    zone.begin(insert(5, 1))
    zone.landed.table(TEXT)
    full_dump(zone, TEXT, 1, 20, {"id": 1, "a": "one"})
    (failed,) = zone.merge().failed
    assert "drop that Delta table" in (failed.hint or "")
    landing = LocalStore(zone.folder / "landing/shop")
    (lake,) = read_consumers(landing)
    assert lake.failing == {"public.orders": failed.error}
    shutil.rmtree(zone.folder / "lake/public/orders")
    zone.log(30)
    assert zone.merge().exact
    assert zone.rows("id, a") == [(1, "one")]
    (lake,) = read_consumers(landing)
    assert lake.failing == {}


def test_a_renamed_key_is_fixed_as_its_hint_says_with_soft_deletes_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(10, insert(5, 1), insert(5, 2), delete(6, 2), delete(6, 7))
    zone.merge()
    zone.landed.table(RENAMED, dumped=False)
    event = Event("insert", 25, 0, {"pid": 3, "a": 3, "b": "x"})
    zone.landed.commit(30, [zone.landed.log(RENAMED, [event])])
    (failed,) = zone.merge().failed
    assert "drop that Delta table" in (failed.hint or "")
    assert [found["pid"] for found in live(spark, zone.config, T).collect()] == [3]
    shutil.rmtree(zone.folder / "lake/public/orders")
    report = zone.merge()  # before the dump has ended
    assert (report.failed, report.exact) == ([], False)
    zone.landed.table(RENAMED)
    full_dump(zone, RENAMED, 1, 40, {"pid": 1, "a": 1}, {"pid": 3, "a": 3})
    zone.landed.commit(60, [zone.landed.log(RENAMED, [Event("delete", 55, 0, {"pid": 1})])])
    assert zone.merge().exact
    assert zone.rows("pid, _cdc.op") == [(1, "delete"), (3, "dump")]


def test_a_table_that_is_no_longer_captured_leaves_the_cuts(zone: Zone) -> None:
    other = schema_of("public.other", id="int", v="int")
    zone.landed.table(other)
    zone.landed.commit(10, [zone.landed.log(other, [Event("insert", 5, 0, {"id": 1, "v": 1})])])
    assert zone.merge().exact
    del zone.landed.tables[other.table]
    zone.log(20, insert(15, 1))
    assert zone.merge().exact
    assert list(cuts(zone.spark, zone.config).collect()[0]["tables"]) == [T]
    assert not zone.merge().recorded
    zone.landed.table(other)  # captured again, and dumped
    zone.landed.full_dump("public.other", 1, 25, started_in=3)
    chunk = Chunk(25, 28, [{"id": 2, "v": 2}])
    zone.landed.commit(30, [zone.landed.chunk(other, chunk)])
    assert zone.merge().exact
    assert zone.rows("id, v", "public/other") == [(2, 2)]


@pytest.mark.parametrize(
    ("text", "deletes", "twice"),
    [
        ("", "hard", False),
        pytest.param("", "hard", True, marks=pytest.mark.soak),
        pytest.param("__HIVE_DEFAULT_PARTITION__", "soft", True, marks=pytest.mark.soak),
        pytest.param("a\0b", "hard", True, marks=pytest.mark.soak),
    ],
)
def test_a_text_that_no_partition_can_hold_stops_the_table_and_not_silently_becomes_null(
    spark: SparkSession, tmp_path: Path, text: str, deletes: str, twice: bool
) -> None:
    """`twice`: no row has it any more, then another one has it."""
    zone = Zone(spark, tmp_path, public__orders={"partition_by": ["b"], "deletes": deletes})
    zone.log(10, insert(5, 1), insert(5, 2, b="a/b=c%20 "))
    assert zone.merge().exact
    zone.log(20, Event("update", 15, 2, {"id": 1, "a": 1, "b": text}))
    (failed,) = zone.merge().failed
    assert "cluster_by" in (failed.error or "")
    assert zone.live() == [(1, 1, text), (2, 2, "a/b=c%20 ")]
    if twice:
        zone.log(30, Event("update", 25, 2, {"id": 1, "a": 1, "b": None}), insert(25, 3, b=" "))
        assert zone.merge().exact, "no row has it any more"
        zone.log(40, insert(35, 4, b=text), delete(35, 2))
        assert zone.merge().failed
    shutil.rmtree(tmp_path / "lake/public/orders")
    zone.config = config_of(
        str(tmp_path / "landing"),
        str(tmp_path / "lake"),
        public__orders={"cluster_by": ["b"], "deletes": deletes},
    )
    assert zone.merge().exact
    assert dict(zone.rows("id, b"))[4 if twice else 1] == text


@pytest.mark.soak
def test_a_table_stays_clustered_when_all_of_its_rows_are_overwritten(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Delta drops the clustering then, and prints columns with odd names in backquotes."""
    name = "a.b c"
    zone = Zone(spark, tmp_path, public__orders={"cluster_by": [name.upper()]})
    odd = schema_of(T, **{"id": "int", name: "int"})
    zone.landed.table(odd)
    delta = f"delta.`{tmp_path}/lake/public/orders`"
    meanwhile = iter((f"ALTER TABLE {delta} CLUSTER BY NONE", f"DELETE FROM {delta}"))
    for number in (1, 2, 3):
        event = Event("insert", 10 * number - 5, 2 * number, {"id": number, name: number})
        zone.landed.commit(10 * number, [zone.landed.log(odd, [event])])
        assert zone.merge().exact
        (detail,) = spark.sql(f"DESCRIBE DETAIL {delta}").collect()
        assert detail["clusteringColumns"] == [f"`{name}`"]
        if (statement := next(meanwhile, None)) is not None:
            spark.sql(statement)
    assert zone.rows("id") == [(1,), (2,), (3,)]


@pytest.mark.soak
def test_rows_marked_as_deleted_before_deletes_became_hard_are_shown_by_nothing_and_go_with_a_rebuild(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(10, insert(5, 1), insert(5, 2), insert(5, 3), delete(6, 2), delete(6, 3))
    assert zone.merge().exact
    zone.config = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"))
    zone.log(20, insert(15, 3, 7), update_of_a(16, 3, 8), Event("delete", 17, 0, {"id": 3}), insert(18, 4))
    assert zone.live() == [(1, 1, "x"), (4, 4, "x")]
    assert zone.merge().exact
    assert zone.live() == [(1, 1, "x"), (4, 4, "x")]
    assert [
        row["id"] for row in answer(spark, zone.config, "SELECT id FROM orders ORDER BY id").frame.collect()
    ] == [1, 4]
    assert zone.rows("id, _cdc.op") == [(1, "insert"), (2, "delete"), (4, "insert")]
    assert rebuild(spark, zone.config, T).exact
    assert zone.rows("id") == [(1,), (4,)]


@pytest.mark.parametrize("type_", ["timestamp", pytest.param("binary", marks=pytest.mark.soak)])
def test_partitions_by_a_type_of_which_delta_changes_values_are_refused(
    spark: SparkSession, tmp_path: Path, type_: str
) -> None:
    zone = Zone(spark, tmp_path, public__orders={"partition_by": ["at"]})
    typed = schema_of(T, id="int", at=type_)
    zone.landed.table(typed)
    zone.landed.commit(10, [zone.landed.log(typed, [Event("insert", 5, 2, {"id": 1, "at": None})])])
    (failed,) = zone.merge().failed
    assert "cluster_by" in (failed.hint or "")
    assert not (tmp_path / "lake/public/orders").exists()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("merge.lake.target.INEXACT_PARTITIONS", ())
        assert zone.merge().exact
    zone.landed.commit(20, [zone.landed.log(typed, [Event("insert", 15, 2, {"id": 2, "at": None})])])
    (failed,) = zone.merge().failed
    assert "cluster_by" in (failed.hint or ""), "it was created before this was refused"


def test_names_that_differ_only_by_case_have_two_tables(zone: Zone) -> None:
    other = schema_of("public.Orders", id="int", a="int", b="string")
    zone.landed.table(other)
    files = [
        zone.landed.log(s, [Event("insert", 5, 0, {"id": n, "a": n})]) for n, s in ((1, ORDERS), (2, other))
    ]
    zone.landed.commit(10, files)
    assert zone.merge().exact
    folders = sorted(path.name for path in (zone.folder / "lake/public").iterdir())
    assert folders[1] == "orders"
    assert folders[0].startswith("Orders_")
    assert zone.rows("id") == [(1,)]
    assert zone.rows("id", f"public/{folders[0]}") == [(2,)]


def test_a_column_renamed_only_in_case_stays_one_column(zone: Zone) -> None:
    zone.log(10, insert(5, 1), insert(5, 2, b="raw"))
    zone.merge()
    upper = schema_of(T, id="int", A="int", B="string")
    zone.landed.table(upper)
    partial = Event("update", 15, 2, {"id": 1, "A": 7}, unchanged=("B",))
    special = Event("insert", 15, 6, {"id": 3, "A": None, "B": "y"}, raw={"A": "NaN"})
    zone.landed.commit(20, [zone.landed.log(upper, [partial, special])])
    assert zone.live() == [(1, 7, "x"), (2, 2, "raw"), (3, None, "y")]
    assert zone.merge().exact
    assert zone.rows("id, a, b, _cdc.raw") == [
        (1, 7, "x", None),
        (2, 2, "raw", None),
        (3, None, "y", {"a": "NaN"}),
    ]
