"""Where Delta tables lie: a schema of a catalog; and large ones, of which a merge opens only some files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.config import Config, LandingConfig, TableConfig
from connector.errors import ConfigurationError, SourceMismatchError, TableError
from connector.schema import TableName
from merge import apply, as_of, cuts, key_pruning, live, merge_once
from tests.spark.views.test_views import with_views
from tests.support.landing.landed import Chunk, Event, Landed, config_of, schema_of

ORDERS = schema_of("public.orders", id="int", a="int")


@pytest.fixture
def schema(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    name = f"shop_{tmp_path.name.replace('-', '_')}"
    spark.sql(f"CREATE SCHEMA {name} LOCATION '{tmp_path / 'warehouse'}'")
    yield name
    spark.sql(f"DROP SCHEMA {name} CASCADE")


def in_schema(folder: Path, name: str, **more: str) -> Config:
    config = config_of(str(folder / "landing"), str(folder / "lake"))
    lake = type(config.lake).model_validate({"catalog": "spark_catalog", "schema": name} | more)
    return config.model_copy(update={"lake": lake})


def test_a_schema_of_a_catalog_holds_tables_cuts_and_versions(
    spark: SparkSession, tmp_path: Path, schema: str
) -> None:
    landed, config = Landed.local(tmp_path / "landing"), in_schema(tmp_path, schema)
    landed.table(ORDERS)
    landed.commit(10, [landed.log(ORDERS, [Event("insert", 5, 0, {"id": 1, "a": 1})])])
    assert not merge_once(spark, config).failed
    landed.commit(20, [landed.log(ORDERS, [Event("update", 15, 0, {"id": 1, "a": 2})])])
    assert not merge_once(spark, config).failed
    assert [tuple(r) for r in spark.sql(f"SELECT id, a FROM {schema}.orders").collect()] == [(1, 2)]
    assert [row.manifest for row in cuts(spark, config).collect()] == [2, 1]
    assert [r.a for r in as_of(spark, config, 1)["public.orders"].collect()] == [1]
    landed.commit(30, [landed.log(ORDERS, [Event("delete", 25, 0, {"id": 1})])])
    assert live(spark, config, "public.orders").collect() == []
    listed = spark.sql(f"SHOW TABLES IN {schema}").where("NOT isTemporary")
    names = {row.tableName for row in listed.collect()}
    assert names == {"orders", "_deltatide_cuts"}


def test_new_tables_of_a_catalog_lie_in_the_given_folder(
    spark: SparkSession, tmp_path: Path, schema: str
) -> None:
    landed, folder = Landed.local(tmp_path / "landing"), tmp_path / "external"
    config = in_schema(tmp_path, schema, location=str(folder))
    landed.table(ORDERS)
    landed.commit(10, [landed.log(ORDERS, [Event("insert", 5, 0, {"id": 1, "a": 1})])])
    assert merge_once(spark, config).exact
    assert {path.parent.name for path in folder.glob("*/*/_delta_log")} == {"orders", "cuts"}
    spark.sql(f"DROP TABLE {schema}.orders")
    landed.commit(20, [landed.log(ORDERS, [Event("insert", 15, 0, {"id": 2, "a": 2})])])
    assert merge_once(spark, config).exact, "the files that were left are the same table again"
    assert [row.id for row in spark.sql(f"SELECT id FROM {schema}.orders ORDER BY id").collect()] == [1, 2]
    spark.sql(f"DROP TABLE {schema}.orders")
    texts = schema_of("public.orders", id="int", a="string")
    landed.table(texts)
    landed.full_dump("public.orders", 1, 25, started_in=3)
    landed.commit(30, [landed.chunk(texts, Chunk(25, 28, [{"id": 3, "a": "x"}]))])
    (failed,) = merge_once(spark, config).failed
    assert "holds another Delta table" in str(failed.error)
    assert str(folder / "public" / "orders") in str(failed.error)
    assert "remove that folder" in str(failed.hint)
    shutil.rmtree(folder / "public" / "orders")
    landed.commit(40)
    assert merge_once(spark, config).exact
    assert [tuple(r) for r in spark.sql(f"SELECT id, a FROM {schema}.orders").collect()] == [(3, "x")]


@pytest.mark.soak
def test_files_that_a_catalog_left_are_not_taken_for_what_has_landed(
    spark: SparkSession, tmp_path: Path, schema: str
) -> None:
    """Those of another landing zone, whose rows have later positions; each hint leads on."""
    former, folder = Landed.local(tmp_path / "former"), tmp_path / "external"
    config = in_schema(tmp_path, schema, location=str(folder))
    config = with_views(config, sums="SELECT sum(a) AS a FROM orders")
    shapes = {TableName.parse("public.orders"): TableConfig(shapes=["current", "changes"])}
    config = config.model_copy(update={"tables": shapes})
    before = config.model_copy(update={"landing": LandingConfig(url=str(tmp_path / "former"))})
    former.table(ORDERS)
    rows = [Event("insert", 500, number, {"id": number, "a": 1}) for number in (1, 7)]
    former.commit(600, [former.log(ORDERS, rows)])
    assert merge_once(spark, before).exact
    spark.sql(f"DROP SCHEMA {schema} CASCADE")
    spark.sql(f"CREATE SCHEMA {schema} LOCATION '{tmp_path / 'warehouse'}'")
    landed = Landed.local(tmp_path / "landing", "later-")
    landed.table(ORDERS)
    landed.full_dump("public.orders", 1, 20, started_in=1)
    landed.commit(30, [landed.chunk(ORDERS, Chunk(20, 25, [{"id": 1, "a": 9}, {"id": 2, "a": 2}]))])
    landed.commit(40, [landed.log(ORDERS, [Event("insert", 35, 0, {"id": 3, "a": 3})])])
    with pytest.raises(SourceMismatchError, match="but the lake has merged it"):
        merge_once(spark, config)
    tables = spark.sql(f"SHOW TABLES IN {schema} LIKE 'orders*'").where("NOT isTemporary").collect()
    assert not tables, "nothing else was written"  # SHOW TABLES lists the session's views, too
    spark.sql(f"DROP TABLE {schema}._deltatide_cuts")
    shutil.rmtree(folder / "_deltatide")
    failed = {str(table.table): table for table in merge_once(spark, config).failed}
    assert failed.keys() == {"public.orders", "public.orders_changes"}
    for name, table in failed.items():
        path = folder / name.replace(".", "/")
        assert "of another landing zone" in str(table.error)
        assert str(table.hint).endswith(f"{path}: remove that folder, too")
        spark.sql(f"DROP TABLE {schema}.{path.name}")
        shutil.rmtree(path)
    report = merge_once(spark, config)
    assert (report.exact, [view.error for view in report.views]) == (True, [None])
    assert [tuple(row) for row in spark.sql(f"SELECT id, a FROM {schema}.orders ORDER BY id").collect()] == [
        (1, 9),
        (2, 2),
        (3, 3),
    ]
    assert [tuple(row) for row in spark.sql(f"SELECT a FROM {schema}.sums").collect()] == [(14,)]
    spark.sql(f"DROP TABLE {schema}.orders_changes")
    spark.sql(f"DROP TABLE {schema}.sums")
    landed.commit(50, [landed.log(ORDERS, [Event("delete", 45, 0, {"id": 3})])])
    report = merge_once(spark, config)
    assert (report.exact, [view.error for view in report.views]) == (True, [None])
    ops = [row.op for row in spark.sql(f"SELECT _cdc.op FROM {schema}.orders_changes ORDER BY 1").collect()]
    assert ops == ["delete", "insert"], "of the files that were left, each change once"
    assert [tuple(row) for row in spark.sql(f"SELECT a FROM {schema}.sums").collect()] == [(11,)]


def test_two_tables_of_one_name_do_not_share_a_schema_and_stop_no_other(
    spark: SparkSession, tmp_path: Path, schema: str
) -> None:
    """The one that was there first goes on."""
    landed, config = Landed.local(tmp_path / "landing"), in_schema(tmp_path, schema)
    landed.table(ORDERS)
    landed.commit(10, [landed.log(ORDERS, [Event("insert", 5, 0, {"id": 1, "a": 1})])])
    assert merge_once(spark, config).exact
    names = ["archive.Orders", "archive.people", "public.People"]
    for number, layout in enumerate([ORDERS, *(schema_of(name, id="int", a="int") for name in names)], 2):
        landed.table(layout)
        landed.commit(
            10 * number, [landed.log(layout, [Event("insert", 10 * number - 5, 0, {"id": 2, "a": 2})])]
        )
    report = merge_once(spark, config)
    assert {str(table.table) for table in report.failed} == set(names)
    assert not report.exact
    assert all(
        "would also be" in str(table.error) and "exclude one" in str(table.hint) for table in report.failed
    )
    assert spark.table(f"{schema}.orders").count() == 2
    with pytest.raises(TableError, match=r"would also be the Delta table of public\.orders"):
        live(spark, config, "archive.Orders")


@pytest.mark.soak
def test_a_table_that_was_replaced_in_its_catalog_is_built_anew_once_it_is_dropped(
    spark: SparkSession, tmp_path: Path, schema: str
) -> None:
    """As the hint says. A table beside it whose name differs only by case has a Delta table of its own."""
    landed, config = Landed.local(tmp_path / "landing"), in_schema(tmp_path, schema)
    upper = schema_of("public.Orders", id="int", a="int")
    for number, layout in enumerate((ORDERS, upper)):
        landed.table(layout)
        landed.commit(10 + number, [landed.log(layout, [Event("insert", 5, 0, {"id": number, "a": 1})])])
    assert merge_once(spark, config).exact
    spark.sql(f"CREATE OR REPLACE TABLE {schema}.orders (id int) USING DELTA")
    landed.commit(20, [landed.log(ORDERS, [Event("insert", 15, 0, {"id": 7, "a": 7})])])
    (failed,) = merge_once(spark, config).failed
    assert "drop that table" in (failed.hint or "")
    with pytest.raises(ConfigurationError, match="replaced after the cut of manifest 2"):
        as_of(spark, config, 2)
    spark.sql(f"DROP TABLE {schema}.orders")
    assert merge_once(spark, config).exact
    found = as_of(spark, config, 3)
    assert {name: [r.id for r in frame.orderBy("id").collect()] for name, frame in found.items()} == {
        "public.orders": [0, 7],
        "public.Orders": [1],
    }


def test_a_schema_or_catalog_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    landed, config = Landed.local(tmp_path / "landing"), in_schema(tmp_path, "nowhere")
    landed.table(ORDERS)
    landed.commit(10, [landed.log(ORDERS, [Event("insert", 5, 0, {"id": 1, "a": 1})])])
    with pytest.raises(ConfigurationError, match="nowhere") as refused:
        merge_once(spark, config)
    assert "CREATE SCHEMA" in (refused.value.hint or "")
    config = in_schema(tmp_path, "nowhere", catalog="elsewhere")
    with pytest.raises(ConfigurationError, match=r"lake\.catalog: .* 'elsewhere'") as refused:
        merge_once(spark, config)
    assert "spark.sql.catalog.elsewhere" in (refused.value.hint or "")


LOW = {"n": -(2**63), "t": "", "d": date(1, 1, 1), "m": Decimal("-1234567890123456789012345678.0123456789")}
MIDDLE = {"n": 0, "t": "o'k\\ \n`é", "d": date(2026, 1, 1), "m": Decimal("0E-10")}
HIGH = {"n": 2**63 - 1, "t": "\U0001f600", "d": date(9999, 12, 31), "m": Decimal("9" * 28 + "." + "9" * 10)}


@pytest.mark.soak  # listed or in ranges, keys go through a MERGE in test_key_pruning, too
@pytest.mark.parametrize("listed", [True, False])
def test_a_large_table_is_merged_where_the_changed_keys_can_be(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    monkeypatch.setattr(apply, "LARGE_BYTES", 0)
    monkeypatch.setattr(key_pruning, "FEW_KEYS", 256 if listed else 0)
    bounds: list[str] = []
    name = "key_lists" if listed else "key_ranges"
    found = getattr(key_pruning, name)
    monkeypatch.setattr(key_pruning, name, lambda *a: bounds.append(found(*a)) or bounds[-1])
    table = schema_of("public.t", tuple(LOW), n="bigint", t="string", d="date", m="decimal(38,10)", a="int")
    landed = Landed.local(tmp_path / "landing")
    config = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"))
    landed.table(table)

    def event(op: str, lsn: int, key: dict[str, Any], **values: int) -> Event:
        return Event(op, lsn, 0, {**key, **values})

    landed.commit(10, [landed.log(table, [event("insert", 5, LOW, a=0), event("insert", 6, HIGH, a=0)])])
    assert not merge_once(spark, config).failed
    changes = [event("update", 15, LOW, a=1), event("insert", 16, MIDDLE, a=2), event("delete", 17, HIGH)]
    landed.commit(20, [landed.log(table, changes)])
    assert not merge_once(spark, config).failed
    rows = spark.sql(f"SELECT n, t, d, m, a FROM delta.`{tmp_path}/lake/public/t` ORDER BY a").collect()
    assert [row.asDict() for row in rows] == [{**LOW, "a": 1}, {**MIDDLE, "a": 2}]
    assert all(f"`{name}` {'IN' if listed else 'BETWEEN'}" in bounds[-1] for name in LOW)
