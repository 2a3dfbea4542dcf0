"""Incremental refreshes of views: the same rows as full ones, and full ones wherever that is not certain."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from merge import merge_once
from merge.job import MergeRun
from merge.reading.named_tables import answer
from merge.report import ViewReport
from merge.views import changed_keys
from merge.views.incremental import IncrementalRefresh
from merge.views.inputs import Input
from merge.views.lineage import NotIncrementalError
from merge.views.refresh import Refresh
from tests.spark.views.test_views import with_views
from tests.support.landing.landed import Event, Landed, config_of, schema_of
from tests.support.spark.spark_sessions import forget_delta_logs, require_own_sessions

ORDERS = schema_of("public.orders", id="int", customer="int", status="string", amount="decimal(12,2)")
CUSTOMERS = schema_of("public.customers", id="bigint", country="string")
ITEMS = schema_of("public.items", ("order_id", "line"), order_id="int", line="int", price="int")
TABLES = (ORDERS, CUSTOMERS, ITEMS)
VIEWS = {
    "large": "SELECT o.id AS order_id, trim(status) AS id, customer FROM orders o WHERE amount > 3",
    "located": "SELECT i.line, i.order_id, i.price, o.status, c.country FROM items i JOIN orders o"
    " ON i.order_id = o.id LEFT JOIN customers c ON c.id = o.customer AND c.country <> 'c'",
    "without_items": "SELECT o.* FROM orders o LEFT ANTI JOIN items i ON i.order_id = o.id AND i.price > 2",
    "by_status": "SELECT count(*) AS n, status, sum(amount), max(id), count(DISTINCT customer), avg(amount)"
    " FROM orders WHERE amount > 1 GROUP BY status",
    "by_country": "SELECT c.country, id_range, sum(o.amount) AS amount, min(o.status) FROM"
    " (SELECT *, id div 3 AS id_range FROM orders) o LEFT JOIN customers c ON c.id = o.customer GROUP BY ALL",
}


class Shop:
    """Three tables and their lake; every table counts as large."""

    def __init__(self, spark: SparkSession, folder: Path, **queries: str) -> None:
        self.spark, self.folder = spark, folder
        self.landed = Landed.local(folder / "landing")
        for schema in TABLES:
            self.landed.table(schema)
        config = config_of(str(folder / "landing"), str(folder / "lake"), public__orders={"deletes": "soft"})
        self.config = with_views(config, incremental=True, **queries)

    def land(self, *changes: tuple[Any, str, dict[str, Any]]) -> None:
        """Land changes as (layout, op, values), in one manifest."""
        at = 10 * self.landed.number
        files = []
        for schema in TABLES:
            events = [
                Event(op, at + 1, number, values)
                for number, (of, op, values) in enumerate(changes)
                if of is schema
            ]
            files += [self.landed.log(schema, events)] if events else []
        self.landed.commit(at + 10, files)

    def refreshed(self) -> dict[str, ViewReport]:
        """Merge; return the views' reports."""
        report = merge_once(self.spark, self.config)
        assert report.exit_code == 0, report
        return {view.table.name: view for view in report.views}

    def check(self) -> None:
        """Compare each view with its query over the newest cut: all of them in one query, to save time."""
        sides = {name: (name, f"({view.sql})") for name, view in self.config.views.items()}
        parts = [
            f"SELECT '{name}' AS name, {number} AS side, to_json(struct(*)) AS row FROM {side}"
            for name, both in sides.items()
            for number, side in enumerate(both)
        ]
        rows = [
            tuple(row) for row in answer(self.spark, self.config, " UNION ALL ".join(parts)).frame.collect()
        ]
        kept, computed = (Counter(row[::2] for row in rows if row[1] == side) for side in (0, 1))
        assert kept == computed


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_keys, "MOST_OF_TABLE", 1 << 20)


def order(id_: int, status: str | None, amount: int | None = 5, customer: int | None = None) -> Any:
    values = {"id": id_, "status": status, "customer": customer}
    return (ORDERS, "insert", values | {"amount": None if amount is None else Decimal(amount)})


def random_changes(dice: random.Random, count: int) -> list[Any]:
    """Return random rows and deletes of few keys, some of which do not exist, or have null columns."""
    changes: list[Any] = []
    for _ in range(count):
        schema = dice.choice(TABLES)
        keys = {"id": dice.randrange(9), "order_id": dice.randrange(9), "line": dice.randrange(2)}
        values = {
            "customer": dice.choice([None, *range(5)]),
            "status": dice.choice([None, "", "a", "b", "c"]),
            "amount": dice.choice([None, *map(Decimal, range(7))]),
            "country": dice.choice([None, "a", "b", "c"]),
            "price": dice.choice([None, *range(5)]),
        }
        op = dice.choice(["insert", "update", "delete"])
        known = {column.name for column in schema.columns}
        known &= set(schema.key) if op == "delete" else known
        changes.append((schema, op, {n: value for n, value in (keys | values).items() if n in known}))
    return changes


@pytest.mark.parametrize(
    ("rounds", "names"),
    [(1, ("located", "without_items", "by_country")), pytest.param(25, tuple(VIEWS), marks=pytest.mark.soak)],
)
def test_an_incremental_refresh_gives_the_rows_of_a_full_one(
    spark: SparkSession, tmp_path: Path, rounds: int, names: tuple[str, ...]
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice, shop = random.Random(seed), Shop(spark, tmp_path, **{name: VIEWS[name] for name in names})
    shop.land(*random_changes(dice, 60), *(each for n in range(9) for each in [order(n, "a", n, n)]))
    assert not any(view.incremental for view in shop.refreshed().values())
    for _ in range(rounds):
        shop.land(*random_changes(dice, dice.choice([1, 3, 10])))
        if dice.random() < 0.5:
            shop.land(*random_changes(dice, 3))  # two manifests in one merge
        full = {
            name: v.full_because for name, v in shop.refreshed().items() if v.refreshed and not v.incremental
        }
        assert full == {}
        shop.check()


def test_keys_that_conditions_do_not_find_are_refused(spark: SparkSession) -> None:
    refresh = IncrementalRefresh(spark, *[None] * 9)  # type: ignore[arg-type]
    binary = spark.sql("SELECT CAST(k AS STRING) AS k FROM VALUES (X'41'), (X'FF') AS t(k)")
    wide = spark.range(300).toDF("k")
    with refresh.until:
        with pytest.raises(NotIncrementalError, match="literals"):
            refresh._only(binary, {"k": "string"}, ["k"])
        # Hashed as the types of the rows to be found, whatever those of the keys are.
        only = refresh._only(wide, {"k": "int"}, ["k"])
        assert only.among(wide.selectExpr("CAST(k AS INT) AS k")).count() == 300


COUNTS = "SELECT status, count(*) AS n FROM orders GROUP BY status"


def merged(shop: Shop) -> ViewReport:
    report = shop.refreshed()["n"]
    shop.check()
    return report


def test_a_refresh_is_full_if_it_is_not_known_what_has_changed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_own_sessions(spark)
    shop = Shop(spark, tmp_path, n=COUNTS)
    shop.land(order(1, "a"), order(3, "b"))
    assert not merged(shop).incremental
    shop.land(order(2, None))
    assert merged(shop).incremental, "the view has no group of nulls yet"
    # A version whose files are gone, and a truncate.
    shop.land(order(7, "c"))
    with monkeypatch.context() as patched:
        patched.setattr(
            Input, "at", lambda self, _: replace(self, frontier=replace(self.frontier, version=10**6))
        )
        reason = str(merged(shop).full_because)
        assert reason.startswith(("it failed: [", "it failed: Cannot time travel"))  # Delta 3.3: no name
        assert "table of cuts" not in reason, "no cut records it"
    shop.land((ORDERS, "truncate", {}), order(8, "a"))
    assert merged(shop).full_because == "public.orders was truncated"


@pytest.mark.soak
def test_a_refresh_is_full_if_others_wrote_to_the_view_or_restored_what_it_reads(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_own_sessions(spark)
    shop = Shop(spark, tmp_path, n=COUNTS)
    view = f"delta.`{tmp_path}/lake/views/n`"
    replace_rows = IncrementalRefresh._replace

    def overtaken(self: IncrementalRefresh, *more: Any) -> None:
        spark.sql(f"DELETE FROM {view} WHERE status = 'a'")
        replace_rows(self, *more)

    shop.land(order(1, "a"), order(3, "b"))
    assert not merged(shop).incremental
    # Somebody else writes to the view while it is refreshed.
    shop.land(order(4, "b"))
    with monkeypatch.context() as patched:
        patched.setattr(IncrementalRefresh, "_replace", overtaken)
        assert merged(shop).full_because == "somebody else changed its rows meanwhile"
    # The same, and the merge is killed before it notices.
    shop.land(order(5, None))
    with monkeypatch.context() as patched:
        patched.setattr(IncrementalRefresh, "_replace", overtaken)
        patched.setattr(Refresh, "_committed", lambda *_, **__: 1 / 0)
        assert "n" in {view.table.name for view in merge_once(spark, shop.config).views if view.error}
    report = merged(shop)
    assert (report.refreshed, report.incremental) == (True, False)
    # Killed after the refresh, before the cut, while nobody else wrote.
    shop.land(order(6, "c"))
    with monkeypatch.context() as patched:
        patched.setattr(MergeRun, "_append_cut", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shop.refreshed()
    assert not merged(shop).refreshed
    # The files of the table are restored from an older copy; its rebuild reuses the number of a lost version.
    orders, copy = tmp_path / "lake/public/orders", tmp_path / "copy"
    shutil.copytree(orders, copy)
    shop.land(order(9, "lost"))
    assert merged(shop).incremental
    shutil.rmtree(orders)
    copy.rename(orders)
    forget_delta_logs(spark)
    shop.land(order(10, "b"))
    assert not merged(shop).incremental
