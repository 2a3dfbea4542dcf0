"""Comments of tables and columns at the source, in the lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from connector.landing.format import comments_id, comments_path
from connector.schema import TableComments
from tests.support.landing.zone import ORDERS, Zone, insert

ODD = "it's \"odd\" \\ `${spark.app.name}` %s {x} /* ü \U0001f600\n\t-- '; DROP TABLE"
OURS = "written by deltatide"
SHAPES = ("orders", "orders_history")  # changes are created and altered as histories are


def comment(zone: Zone, text: str = "", **columns: str) -> None:
    """Land comments, which the next manifest names."""
    found = TableComments.of(ORDERS.table, text, columns)
    id_ = comments_id(zone.landed.number + 1, found.digest)
    put = zone.landed.put
    assert put is not None
    put(comments_path(ORDERS.table, id_), found.to_json())
    zone.landed.tables[ORDERS.table] = zone.landed.tables[ORDERS.table].changed(comments=id_)


def described(zone: Zone, name: str) -> tuple[str, dict[str, str | None]]:
    """Return a Delta table's comment, and those of its columns but ours."""
    table = f"delta.`{zone.folder}/lake/public/{name}`"
    detail = zone.spark.sql(f"DESCRIBE DETAIL {table}").collect()[0]
    fields = {f.name: f.metadata.get("comment") for f in zone.spark.table(table).schema.fields}
    return detail["description"] or "", {name: text for name, text in fields.items() if text != OURS}


def versions(zone: Zone) -> list[int]:
    tables = (f"delta.`{zone.folder}/lake/public/{name}`" for name in SHAPES)
    return [zone.spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()[0]["version"] for table in tables]


def test_comments_follow_the_source_in_a_history_too_and_cost_nothing_while_they_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = Zone(spark, tmp_path, public__orders={"shapes": ["current", "history"]})
    comment(zone, ODD, a=ODD)
    zone.log(10, insert(5, 1))
    assert not zone.merge().failed
    created = (ODD, {"id": "int", "a": ODD, "b": "string"})
    assert [described(zone, name) for name in SHAPES] == [created] * 2

    comment(zone, "Orders", b="what it is")  # and nothing else: only the source's own comment of a is gone
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/lake/public/orders` ALTER COLUMN id COMMENT 'by hand'")
    zone.log(20)
    report = zone.merge()
    assert not report.failed
    assert report.exact
    changed: dict[str, Any] = {"id": "int", "a": "int", "b": "what it is"}
    assert described(zone, "orders") == ("Orders", changed | {"id": "by hand"})
    assert described(zone, "orders_history") == ("Orders", changed)

    before = versions(zone)
    zone.log(30)
    assert not zone.merge().failed
    assert versions(zone) == before
    zone.log(40, insert(35, 2))
    assert not zone.merge().failed
    assert versions(zone) == [version + 1 for version in before], "a commit of rows each, and no other"
    assert zone.rows() == [(1, 1, "x"), (2, 2, "x")]
