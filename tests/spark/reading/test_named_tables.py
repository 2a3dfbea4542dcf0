"""All tables as of one cut, chosen by manifest, position or time, or live: in Python, and by a query."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.errors import ConfigurationError
from connector.position import Moment
from merge import as_of, queries
from merge.reading.named_tables import answer
from merge.spark.session_settings import applied_settings
from tests.support.landing.landed import AT, Event, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, delete, insert

ITEMS = schema_of("public.items", id="int", order_id="int")


def land(zone: Zone, lsn: int, *keys: int, minutes: int) -> None:
    """Land an order and an item for each key in one manifest, whose last commit is so many minutes late."""
    items = [Event("insert", lsn - 5, 100 + key, {"id": key, "order_id": key}) for key in keys]
    files = [zone.landed.log(ORDERS, [insert(lsn - 5, key) for key in keys]), zone.landed.log(ITEMS, items)]
    zone.landed.commit(lsn, files, at=AT + timedelta(minutes=minutes))


@pytest.mark.soak
def test_a_time_names_no_cut_with_later_commits_though_its_last_commit_says_an_early_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = Zone(spark, tmp_path)
    zone.landed.table(ITEMS)
    for lsn, key, minutes in ((0x10, 1, 0), (0x20, 2, 20), (0x30, 3, 5), (0x40, 4, 30)):
        land(zone, lsn, key, minutes=minutes)
        assert zone.merge().exact

    def orders(at: datetime) -> int:
        return as_of(spark, zone.config, committed_at=at)[T].count()

    assert [orders(AT + timedelta(minutes=m)) for m in (0, 6, 19, 20, 29, 30)] == [1, 1, 1, 3, 3, 4]
    far = datetime(2038, 1, 19, tzinfo=timezone.utc)
    zone.landed.commit(0x50, [zone.landed.log(ORDERS, [insert(0x45, 5)])], at=far)
    assert zone.merge().exact
    now = datetime.now(timezone.utc)
    land(zone, 0x60, 6, minutes=40)
    assert zone.merge().exact
    assert orders(now) == 6


def test_a_cut_is_chosen_by_manifest_position_or_time_and_queried(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.landed.table(ITEMS)
    land(zone, 0x10, 1, minutes=0)
    zone.merge()
    land(zone, 0x20, 2, minutes=10)
    zone.merge()
    land(zone, 0x30, 3, minutes=20)
    zone.merge(tables=[T])  # so this cut is not exact
    config = zone.config

    def orders(**moment: object) -> int:
        return as_of(spark, config, **moment)[T].count()  # type: ignore[arg-type]

    assert [orders(manifest=1), orders()] == [1, 3]
    assert orders(position="1:0/99") == 2
    later = AT + timedelta(minutes=11)
    assert orders(committed_at=later) == 2
    assert list(as_of(spark, config, 2, tables=["public.items"])) == ["public.items"]
    for moment, said in [
        ({"position": "0/F"}, "no exact cut at or before 0/F"),
        ({"manifest": 9}, "no cut of manifest 9"),
        ({"manifest": 1, "tables": ["public.other"]}, "no table 'public.other'"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            as_of(spark, config, **moment)  # type: ignore[arg-type]

    waiting = insert(0x35, 9, unchanged=("b",))  # the key 1 became 9; no event has carried the value of b
    zone.log(0x40, delete(0x35, 1), waiting)
    joined = "SELECT o.id, i.id FROM orders o LEFT JOIN `public.items` i ON i.order_id = o.id ORDER BY 1; "
    found = answer(spark, config, joined, at=Moment.parse("0/25", "postgres"))
    assert (found.manifest, found.exact) == (2, True)
    assert [tuple(row) for row in found.frame.collect()] == [(1, 1), (2, 2)]
    begin = queries._begin

    def begin_as_more_lands(*arguments: Any) -> Any:
        begun = begin(*arguments)
        if zone.landed.number == 4:  # one table was looked at, the other was not
            land(zone, 0x50, 5, minutes=30)
        return begun

    monkeypatch.setattr(queries, "_begin", begin_as_more_lands)
    found = answer(spark, config, joined, live=True)
    assert (found.manifest, found.exact) == (5, False)
    assert [tuple(row) for row in found.frame.collect()] == [(2, 2), (3, 3), (5, 5), (9, None)]
    assert answer(spark, config, "SELECT * FROM items", live=True).exact
    zone.merge()
    assert [row[0] for row in answer(spark, config, joined).frame.collect()] == [2, 3, 5, 9]  # 1 is marked
    spark.range(1).createOrReplaceTempView("mine")
    for sql, said in [
        ("SELECT * FROM mine", "reads `mine`, which is not a table as of manifest 5"),
        (
            f"SELECT * FROM orders, delta.`{tmp_path}/lake/public/orders`",
            "reads .*public/orders.*, which is not",
        ),
        ("DELETE FROM orders", "can't be run"),
        ("SELECT 1; SELECT 2", "can't be run"),
    ]:
        with pytest.raises(ConfigurationError, match=said) as refused:
            answer(spark, config, sql)
        assert "`orders`, `public.items`" in (refused.value.hint or "")


def test_a_table_that_no_cut_has_yet_is_refused_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    zone = Zone(spark, tmp_path)
    zone.landed.table(ITEMS)
    spark.range(1).write.format("delta").save(f"{tmp_path}/lake/public/items")  # somebody else's
    land(zone, 0x10, 1, minutes=0)
    (failed,) = zone.merge().failed
    for read in (
        lambda: as_of(spark, zone.config, tables=["public.items"]),
        lambda: answer(spark, zone.config, "SELECT count(*) FROM items"),
    ):
        with pytest.raises(ConfigurationError, match="cut of manifest 1 has no rows") as said:
            read()
        assert f"of public.items: {failed.error}" in str(said.value)
    with pytest.raises(ConfigurationError, match=r"can't be run: .*UNRESOLVED_COLUMN.* line 1 pos 7$"):
        answer(spark, zone.config, "SELECT items FROM orders")  # no column
    with applied_settings(spark, {"spark.sql.maxPlanStringLength": "100"}):  # as for smaller logs
        assert answer(spark, zone.config, "SELECT count(*) FROM orders").frame.collect()[0][0] == 1


def test_changes_that_only_an_older_cut_has_are_all_there(spark: SparkSession, tmp_path: Path) -> None:
    """The configuration no longer says that the table is one of changes, whose deletes are rows."""
    zone = Zone(spark, tmp_path, public__orders={"shapes": ["current", "changes"]})
    zone.log(10, insert(5, 1), delete(6, 1), insert(7, 2))
    assert zone.merge().exact
    config = zone.config.model_copy(update={"tables": {}})
    sql = "SELECT id, _cdc.op FROM orders_changes JOIN (SELECT count(*) FROM orders) ORDER BY _cdc.lsn"
    found = answer(spark, config, sql, at=Moment("1", manifest=1)).frame
    assert [tuple(row) for row in found.collect()] == [(1, "insert"), (1, "delete"), (2, "insert")]
