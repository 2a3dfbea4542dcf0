"""Materialized views: refreshed with each merge, as of the same cut as the tables, and only if needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.config import Config, ViewConfig
from connector.errors import ConfigurationError
from connector.position import Moment
from connector.schema import TableName
from merge import as_of, rebuild
from merge.job import MergeRun
from merge.lake.upkeep import upkeep
from merge.reading.named_tables import answer
from merge.views.dependencies import named_by
from merge.views.listing import refresh_views, view_states
from merge.views.view import View
from tests.support.landing.landed import Event, schema_of
from tests.support.landing.zone import ORDERS, Zone, delete, insert

ITEMS = schema_of("public.items", id="int", order_id="int", price="int")
QUERIES = {
    "big": "SELECT name, total FROM spent WHERE total > 10",  # over a view that comes later in the file
    "spent": "WITH orders AS (SELECT * FROM `public.orders`)"
    " SELECT o.b AS name, sum(price) AS total FROM orders o JOIN items i ON i.order_id = o.id GROUP BY 1;",
    "odd": "SELECT id, 10 div (a - 4) FROM orders -- Delta can't hold the second column's name as it is",
}


def item(lsn: int, id_: int, order: int, price: int) -> Event:
    return Event("insert", lsn, 100 + id_, {"id": id_, "order_id": order, "price": price})


def with_views(config: Config, *, incremental: bool = False, **queries: str) -> Config:
    return config.model_copy(
        update={
            "views": {name: ViewConfig(sql=sql, incremental=incremental) for name, sql in queries.items()}
        }
    )


class Shop(Zone):
    """Orders and items, and views over them."""

    def __init__(self, spark: SparkSession, folder: Path, **queries: str) -> None:
        super().__init__(spark, folder, public__orders={"deletes": "soft", "shapes": ["current", "changes"]})
        self.landed.table(ITEMS)
        self.use(**queries)

    def use(self, **queries: str) -> None:
        self.config = with_views(self.config, **queries)

    def land(self, position: int, orders: list[Event], items: list[Event]) -> None:
        pairs = [(ORDERS, orders), (ITEMS, items)]
        self.landed.commit(position, [self.landed.log(schema, its) for schema, its in pairs if its])

    def refreshed(self, **options: Any) -> dict[str, Any]:
        """Merge; return of each view whether it was refreshed, or its error."""
        return {view.table.name: view.error or view.refreshed for view in self.merge(**options).views}

    def at(self, name: str, manifest: int | None = None) -> list[tuple[Any, ...]]:
        frames = as_of(self.spark, self.config, manifest, tables=[f"views.{name}"])
        return sorted(tuple(row) for row in frames[f"views.{name}"].collect())

    def asked(self, sql: str, at: str | None = None) -> list[tuple[Any, ...]]:
        moment = None if at is None else Moment.parse(at, "postgres")
        return sorted(tuple(row) for row in answer(self.spark, self.config, sql, at=moment).frame.collect())


def test_an_unknown_column_is_reported_with_the_line_of_the_views_own_text(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(spark, tmp_path, odd="SELECT id,\n  nope FROM orders")
    shop.land(10, [insert(5, 1)], [])
    (view,) = shop.merge().views
    assert str(view.error).endswith("line 2 pos 2")
    assert str(view.printed).endswith("line 2 pos 2")


def test_views_are_of_the_same_cut_as_the_tables_and_refreshed_only_when_their_inputs_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(spark, tmp_path, **QUERIES)
    shop.land(10, [insert(5, 1, b="ann"), insert(5, 2, b="bob")], [item(5, 1, 1, 7), item(5, 2, 2, 20)])
    assert shop.refreshed() == dict.fromkeys(QUERIES, True)
    assert shop.at("spent") == [("ann", 7), ("bob", 20)]
    assert shop.at("big") == [("bob", 20)]

    shop.land(20, [], [item(15, 3, 1, 5)])  # the orders stay as they are
    assert shop.refreshed() == {"big": True, "spent": True, "odd": False}
    assert (shop.at("big"), shop.at("big", 1)) == ([("ann", 12), ("bob", 20)], [("bob", 20)])
    joined = "SELECT s.total, (SELECT sum(price) FROM items) FROM spent s WHERE name = 'ann'"
    assert (shop.asked(joined), shop.asked(joined, "1")) == ([(12, 32)], [(7, 27)])

    shop.land(30, [insert(25, 4, b="cleo"), delete(25, 2)], [])  # a division by zero, and a soft delete
    report = shop.merge()
    failed = {view.table.name: view for view in report.views if view.error}
    assert list(failed) == ["odd"]
    assert (report.exact, report.exit_code, failed["odd"].manifest) == (True, 1, 2)
    assert shop.at("big") == [("ann", 12)]
    counted = "SELECT count(*) FROM orders_changes WHERE _cdc.op = 'delete'"
    assert shop.asked(counted) == [(1,)]  # the changes of a table are rows of their own
    assert shop.at("odd", 2) == [(1, -3), (2, -5)]
    assert "views.odd" not in as_of(spark, shop.config)
    for read in (lambda: shop.at("odd"), lambda: shop.asked("SELECT * FROM odd")):
        with pytest.raises(ConfigurationError, match="odd is not as of the cut of manifest 3: ") as refused:
            read()
        assert str(refused.value).endswith(str(failed["odd"].error))
    states = {state.name: state for state in view_states(spark, shop.config)}
    assert (states["odd"].state, states["odd"].manifest, states["odd"].rows) == ("failed", 2, 2)
    assert (states["big"].state, states["big"].manifest, states["big"].inputs) == ("current", 3, ["spent"])


@pytest.mark.soak
def test_views_are_refreshed_anew_whatever_became_of_their_queries_rows_and_merges(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(spark, tmp_path, **QUERIES)
    shop.land(10, [insert(5, 1, b="ann"), insert(5, 2, b="bob")], [item(5, 1, 1, 7), item(5, 2, 2, 20)])
    shop.land(20, [], [item(15, 3, 1, 5)])
    assert shop.refreshed() == dict.fromkeys(QUERIES, True)
    shop.land(30, [insert(25, 4, b="cleo"), delete(25, 2)], [])
    assert isinstance(shop.refreshed()["odd"], str), "a division by zero"

    # Other queries; a merge that is killed before its cut, and one that finds what it did.
    shop.use(**QUERIES | {"odd": "SELECT id FROM orders", "big": "SELECT name FROM spent"})
    with monkeypatch.context() as patched:
        patched.setattr(MergeRun, "_append_cut", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shop.merge()
    assert shop.refreshed() == dict.fromkeys(QUERIES, False)
    assert (shop.at("odd"), shop.at("big")) == ([(1,), (4,)], [("ann",)])

    # One table is merged alone; somebody else changes a view.
    shop.land(40, [insert(35, 5, b="dan")], [item(35, 4, 5, 1)])
    behind = "public.items, which it reads, is as of manifest 3, not 4"
    of_spent = f"views.spent, which it reads, is not as of manifest 4: {behind}"
    alone = {"big": of_spent, "spent": behind, "odd": True}
    assert shop.refreshed(tables=["public.orders"]) == alone
    spark.sql(f"DELETE FROM delta.`{tmp_path}/lake/views/odd`")
    assert shop.refreshed() == dict.fromkeys(QUERIES, True)
    assert shop.at("odd") == [(1,), (4,), (5,)]

    report = refresh_views(spark, shop.config, ["ODD"], full=True)
    assert {view.table.name: view.rows for view in report.views if view.refreshed} == {"odd": 3}
    rebuilt = rebuild(spark, shop.config, "public.items")
    assert [view.table.name for view in rebuilt.views if view.refreshed] == ["spent", "big"]
    assert sorted(as_of(spark, shop.config, 4)) == [
        *("public.items", "public.orders", "public.orders_changes"),
        *("views.big", "views.odd", "views.spent"),
    ]
    # Upkeep knows views, and keeps their rows.
    findings = list(upkeep(spark, shop.config))
    assert {"views.big", "views.odd", "views.spent"} <= {finding.subject for finding in findings}
    assert not [finding for finding in findings if finding.status == "failed"]
    assert shop.refreshed() == dict.fromkeys(QUERIES, False)


def test_mistakes_are_told_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, good="SELECT 1 AS one", ORDERS_changes="SELECT 1 AS one")
    shop.land(10, [insert(5, 1)], [])
    with pytest.raises(ConfigurationError, match=r"the table public\.orders_changes has the same name"):
        shop.merge()
    assert not (tmp_path / "lake").exists()
    with pytest.raises(ConfigurationError, match="'nope' is not a configured view"):
        refresh_views(spark, shop.config, ["nope"])
    with pytest.raises(ConfigurationError, match="no cut was recorded yet"):
        refresh_views(spark, shop.config, ["GOOD"])
    for sql in ("SELEC 1", "DELETE FROM orders", "SET x = 1", "SELECT 1; DROP TABLE orders"):
        with pytest.raises(ConfigurationError, match=r"views\.a is not a query"):
            named_by(spark, View("a", sql))
    with pytest.raises(ConfigurationError, match=r"near ','.*\(line 2, pos 2\)"):
        named_by(spark, View("a", "SELECT 1\n ,, 2"))
    # Since 4.2, Spark takes IDENTIFIER of a literal for the name itself.
    for sql in ("SELECT * FROM orders VERSION AS OF 1", "SELECT * FROM IDENTIFIER('or' || 'ders')"):
        with pytest.raises(ConfigurationError, match="has VERSION AS OF"):
            named_by(spark, View("a", sql))
    sql = """
        WITH orders AS (SELECT * FROM orders), b AS (SELECT * FROM orders, LATERAL (SELECT * FROM items))
        SELECT *, (SELECT max(id) FROM a.`c`) FROM b
        WHERE x = 'FROM nowhere' AND EXISTS (TABLE delta.`/x`) -- ;
    """
    assert sorted(named_by(spark, View("a", sql))) == ["a, c", "delta, /x", "items", "orders"]


@pytest.mark.soak
def test_a_table_where_a_shape_was_to_lie_is_read_as_a_table_and_views_are_refreshed_by_hand_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    soft = {"public__orders_changes": {"deletes": "soft"}}
    zone = Zone(spark, tmp_path, public__orders={"shapes": ["current", "changes"]}, **soft)
    zone.config = with_views(
        zone.config, both="SELECT id FROM orders_changes UNION ALL SELECT id FROM orders"
    )
    other = replace(ORDERS, table=TableName("public", "orders_changes"))
    zone.landed.table(other)
    zone.landed.commit(10, [zone.landed.log(other, [insert(5, 1), insert(6, 2)])])
    assert not zone.merge().exact
    zone.landed.commit(20, [zone.landed.log(other, [delete(15, 1)])])
    assert not zone.merge().exact
    found = answer(spark, zone.config, "SELECT id FROM orders_changes").frame
    assert [row["id"] for row in found.collect()] == [2]
    assert [view.state for view in view_states(spark, zone.config)] == ["current"]
    done = refresh_views(spark, zone.config, full=True)
    assert [(view.error, view.refreshed) for view in done.views] == [(None, True)]
    assert not done.exact
