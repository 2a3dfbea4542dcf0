"""Layouts that change, and what a Delta table's columns become."""

from __future__ import annotations

import shutil
import sys
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.config import ViewConfig
from connector.errors import ConfigurationError
from connector.landing.manifest import Notice, TableState
from connector.schema import TableName, fold
from merge import as_of, live, merge_once
from merge.lake import schema as lake_schema
from tests.support.landing.landed import AT, Chunk, Event, Landed, config_of, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, insert
from tests.support.spark.spark_sessions import to_arrow


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


LANDED_TYPES: dict[str, tuple[Any, Any]] = {
    "boolean": (True, False),
    "tinyint": (-128, 127),
    "smallint": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
    "decimal(20,0)": (Decimal(2**64 - 1), Decimal(0)),
    "decimal(12,2)": (Decimal("-9999999999.99"), Decimal("0.01")),
    "decimal(38,10)": (Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001")),
    "float": (1.5, -0.0),
    "double": (0.1, 5e-324),
    "string": ("", "tab\tnew\nline \U0001f600"),
    "binary": (b"", b"\x00\xff"),
    "date": (date(1, 1, 1), date(9999, 12, 31)),
    "timestamp": (datetime(1, 1, 2, tzinfo=timezone.utc), datetime(9999, 12, 30, 1, 2, 3, 4, timezone.utc)),
    "timestamp_ntz": (datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "array<bigint>": ([], [1, None, -(2**63)]),
    "array<string>": ([""], ["a", None]),
}


def widens_all(spark: SparkSession) -> bool:
    """Return whether Delta widens to more than `int`: from 4.0 on, the first for Spark 4."""
    return spark.version >= "4"


def test_columns_are_added_widened_and_kept_and_what_is_impossible_stops_one_table(zone: Zone) -> None:
    landed = zone.landed
    other = schema_of("public.other", id="int", v="int")
    landed.table(other)
    landed.commit(
        10,
        [landed.log(ORDERS, [insert(5, 1)]), landed.log(other, [Event("insert", 5, 0, {"id": 1, "v": 1})])],
    )
    zone.merge()
    large = 1 << 40 if widens_all(zone.spark) else 7
    wide = schema_of(T, **{"id": "int", "a": "bigint" if large > 7 else "int", "odd name, `here`": "date"})
    landed.table(wide)
    text = schema_of("public.other", id="int", v="string")
    landed.table(text)
    event = Event("insert", 15, 0, {"id": 2, "a": large})
    files = [landed.log(wide, [event]), landed.log(text, [Event("insert", 15, 0, {"id": 2, "v": "x"})])]
    landed.commit(20, files, notices=[Notice(table=T, kind="schema", text="columns added", at=AT)])
    report = zone.merge()
    assert zone.rows("id, a, b, `odd name, ``here```") == [(1, 1, "x", None), (2, large, None, None)]
    assert [str(table.table) for table in report.failed] == ["public.other"]
    assert "was int and is now string" in str(report.failed[0].error)
    assert report.failed[0].hint
    assert not report.exact
    assert zone.rows("id, v", "public/other") == [(1, 1)]


def test_a_first_timestamp_without_zone_is_added_and_a_date_becomes_one(zone: Zone) -> None:
    """An existing Delta table gets such a column only if its features are changed first."""
    zone.config = zone.config.model_copy(update={"views": {"every": ViewConfig(sql="SELECT * FROM orders")}})
    at, widens = datetime(2026, 1, 2, 3, 4, 5, 6), widens_all(zone.spark)
    for number, added in enumerate(({}, {"at": "timestamp_ntz"}), 1):
        orders = schema_of(T, id="int", **added)
        other = schema_of("public.other", id="int", d="timestamp_ntz" if added and widens else "date")
        files = []
        for schema, values in (
            (orders, dict.fromkeys(added, at)),
            (other, {"d": at if added and widens else at.date()}),
        ):
            zone.landed.table(schema)
            event = Event("insert", 10 * number - 5, 2 * number, {"id": number, **values})
            files.append(zone.landed.log(schema, [event]))
        zone.landed.commit(10 * number, files)
        report = zone.merge()
        assert (report.failed, [view.error for view in report.views], report.exact) == ([], [None], True)
    for name in ("public/orders", "views/every"):
        assert zone.rows("id, at", name) == [(1, None), (2, at)], name
    if widens:
        assert zone.rows("id, d", "public/other") == [(1, datetime(2026, 1, 2)), (2, at)]


def test_a_table_that_delta_does_not_widen_stops_and_goes_on_after_a_dump(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta before 4.0 widens integers only to int; newer ones are asked for what they refuse, too."""
    narrow, wide = ("int", "bigint") if not widens_all(zone.spark) else ("binary", "string")
    monkeypatch.setattr(lake_schema, "WIDER", {**lake_schema.WIDER, "binary": ("string",)})
    other = "public.other"
    values = {"int": 1, "bigint": 1 << 40, "binary": b"1", "string": "2"}
    for number, type_ in enumerate((narrow, wide), 1):
        schema = schema_of(other, id="int", v=type_)
        zone.landed.table(schema)
        event = Event("insert", 10 * number - 5, 0, {"id": number, "v": values[type_]})
        files = [zone.landed.log(schema, [event]), zone.landed.log(ORDERS, [insert(10 * number - 5, number)])]
        zone.landed.commit(10 * number, files)
        report = zone.merge()
    (failed,) = report.failed
    said = f"column 'v' was {narrow} and is now {wide}; this release of Delta can't"
    assert said in str(failed.error)
    for words in ("Delta is 4.0", f"deltatide dump {other}", "drop that Delta table"):
        assert words in failed.hint
    assert (zone.rows("id"), zone.rows("id", "public/other")) == ([(1,), (2,)], [(1,)])
    dumped = Chunk(low=25, high=26, rows=[{"id": key, "v": values[wide]} for key in (1, 2)])
    zone.landed.full_dump(other, 1, 25, started_in=3)
    zone.landed.commit(30, [zone.landed.chunk(schema, dumped)])
    shutil.rmtree(zone.folder / "lake/public/other")
    assert zone.merge().exact
    assert zone.rows("id, v", "public/other") == [(1, values[wide]), (2, values[wide])]


@pytest.mark.parametrize("viewed", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_no_filter_misses_a_row_from_before_its_column_was_widened(zone: Zone, viewed: bool) -> None:
    """As a number of decimal(8,2), 30000000.00 is negative; 0.1 as a float is greater than as a double."""
    if not widens_all(zone.spark):
        pytest.skip("Delta widens decimals and floats from 4.0 on")
    landed, name = zone.landed, "public.prices"
    narrow = schema_of(name, id="int", v="decimal(8,2)", f="float")
    wide = schema_of(name, id="int", v="decimal(18,2)", f="double")
    conditions = ("v BETWEEN 0 AND 30000000.00", "f > 0.1D OR id = 2")
    queries = {f"v{n}": f"SELECT id FROM prices WHERE {each}" for n, each in enumerate(conditions)}
    views = {view: ViewConfig(sql=sql, incremental=True) for view, sql in queries.items()} if viewed else {}
    zone.config = zone.config.model_copy(update={"views": views})
    for number, (schema, v) in enumerate(((narrow, "1.00"), (wide, "20000000.00")), 1):
        landed.table(schema)
        event = Event("insert", 10 * number - 5, 0, {"id": number, "v": Decimal(v), "f": 0.1})
        landed.commit(10 * number, [landed.log(schema, [event])])
        assert zone.merge().exact
    table = f"delta.`{zone.folder}/lake/public/prices`"
    for enabled in (
        "true",
        "false",
    ):  # the older files are still there
        zone.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = '{enabled}')")
        for frame in (as_of(zone.spark, zone.config)[name], live(zone.spark, zone.config, name)):
            for condition in conditions:
                assert {row["id"] for row in frame.where(condition).collect()} == {1, 2}, condition
            assert frame.schema["v"].dataType.simpleString() == "decimal(18,2)"
    zone.spark.sql(f"ALTER TABLE {table} DROP FEATURE typeWidening")  # rewrites the newest version only
    for condition in conditions:
        found = as_of(zone.spark, zone.config)[name].where(condition).collect()
        assert {row["id"] for row in found} == {1, 2}, condition
    for view in views:
        assert zone.rows("id", f"views/{view}") == [(1,), (2,)], queries[view]


def test_a_table_that_never_had_a_usable_layout_hinders_no_other_and_is_named(zone: Zone) -> None:
    bare = TableName("public", "bare")
    zone.landed.tables[bare] = TableState(state="quarantined", reason="it has no primary key")
    zone.log(10, insert(5, 1))
    report = zone.merge()
    assert (report.failed, report.exact, zone.rows()) == ([], False, [(1, 1, "x")])
    with pytest.raises(ConfigurationError, match="has not landed"):
        live(zone.spark, zone.config, str(bare))


def test_values_of_every_type_come_out_of_delta_as_they_landed(spark: SparkSession, tmp_path: Path) -> None:
    columns = {f"c{number}": type_ for number, type_ in enumerate(LANDED_TYPES)}
    wide = schema_of("public.wide", id="int", **columns)
    landed = Landed.local(tmp_path / "landing")
    landed.table(wide)
    config = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"))

    def row(key: int, which: int | None) -> dict[str, Any]:
        values = [None if which is None else pair[which] for pair in LANDED_TYPES.values()]
        return {"id": key, **dict(zip(columns, values, strict=True))}

    first = [Event("insert", 5, 2 * key, row(key, which)) for key, which in ((1, 0), (2, 1), (3, None))]
    landed.commit(10, [landed.log(wide, first)])
    assert not merge_once(spark, config).failed  # into an empty table
    swapped = [Event("update", 15, 2 * key, row(key, which)) for key, which in ((1, 1), (2, None), (3, 0))]
    landed.commit(20, [landed.log(wide, swapped)])
    assert not merge_once(spark, config).failed  # by MERGE
    frame = spark.read.format("delta").load(f"{tmp_path}/lake/public/wide")
    found = sorted(to_arrow(frame.drop("_cdc")).to_pylist(), key=lambda r: r["id"])
    assert found == [row(1, 1), row(2, None), row(3, 0)]
    assert {f.name: f.dataType.simpleString() for f in frame.schema.fields if f.name in columns} == columns


@pytest.mark.soak  # how names fold is tested below and in unit/test_schema
def test_columns_renamed_to_what_spark_takes_for_the_same_name_go_on_under_the_old_one(zone: Zone) -> None:
    """The agent has the table dumped, as for any name that is back."""
    first, second = ("İl", "adı", "µg"), ("il", "ADI", "μg")
    for number, names in enumerate((first, second), 1):
        schema = schema_of(T, id="int", **dict.fromkeys(names, "string"))
        zone.landed.table(schema)
        event = Event("insert", 10 * number - 5, 0, {"id": number, **dict.fromkeys(names, f"v{number}")})
        zone.landed.commit(10 * number, [zone.landed.log(schema, [event])])
        assert zone.merge().exact
    assert [
        found.asDict() for found in live(zone.spark, zone.config, T).drop("_cdc").orderBy("id").collect()
    ] == [{"id": number, **dict.fromkeys(first, f"v{number}")} for number in (1, 2)]


def test_names_fold_as_javas_characters_do(spark: SparkSession) -> None:
    """But for the letters that are newer than Java's Unicode."""
    character = "'java.lang.Character'"
    upper = f"cast(reflect({character}, 'toUpperCase', cast(id AS int)) AS int)"
    found = spark.range(sys.maxunicode + 1).selectExpr(
        "id",
        f"cast(reflect({character}, 'toLowerCase', {upper}) AS int) AS folded",
        f"reflect({character}, 'isDefined', cast(id AS int)) = 'true' AS defined",
    )
    folded = {
        row.id: row.folded for row in found.where("defined AND id NOT BETWEEN 55296 AND 57343").collect()
    }
    assert len(folded) > 100_000
    assert {chr(n): fold(chr(n)) for n in folded} == {chr(n): chr(to) for n, to in folded.items()}
