"""The names by which a query finds a source's tables, and how a cut is named."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

pytest.importorskip("pyspark")

from connector.errors import ConfigurationError
from connector.position import Moment
from connector.schema import TableName
from merge.reading import named_tables
from merge.reading.cut_choice import moment_of
from merge.reading.named_tables import _read_beside, named_in, view_names
from merge.reading.query_plans import foreign_relation
from tests.support.landing.landed import config_of

ORDERS, OLD, ODD = TableName("public", "orders"), TableName("old", "Orders"), TableName("public", "odd `one")


def test_a_table_goes_by_its_plain_name_unless_others_are_called_so() -> None:
    assert view_names([ORDERS]) == {"orders": ORDERS, "public.orders": ORDERS}
    assert view_names([ORDERS, OLD]) == {"public.orders": ORDERS, "old.Orders": OLD}


def test_only_what_a_query_names_is_read() -> None:
    tables = [ORDERS, OLD, ODD, TableName("public", "items")]
    assert named_in("SELECT * FROM `public.orders` o", tables) == [ORDERS, OLD]
    assert named_in("select count(*) from ITEMS", tables) == [tables[3]]
    assert named_in("SELECT * FROM `odd ``one`", tables) == [ODD]
    assert named_in("SELECT orders_2, my_items FROM x", tables) == []


@pytest.mark.parametrize(
    ("relation", "read"),
    [
        ("old.items", True),
        ("old, Items", True),
        ("items", False),  # another table's name
        ("dates", True),
        ("orders", False),
        ("other, dates", False),
    ],
)
def test_a_table_is_said_to_be_missing_only_if_a_query_reads_it(
    monkeypatch: pytest.MonkeyPatch, relation: str, read: bool
) -> None:
    """Its name may also be a column's, or that of a table which is there."""
    plan = f"'Project ['items, 'dates]\n+- 'UnresolvedRelation [{relation}], [], false"
    monkeypatch.setattr(named_tables, "parsed", lambda *_: plan)
    there, lacking = ("orders", "items"), [TableName("old", each) for each in ("items", "dates")]
    spark: Any = None
    assert (_read_beside(spark, "", there, lacking) is not None) == read


OWN = """id: bigint, a
b: string
Project [id#1L]
+- Filter false
   +- WithCTE
      :- CTERelationDef 0, false
      :  +- SubqueryAlias late
      :     +- LocalRelation [id#6L]
      +- Filter ((id#1L > scalar-subquery#2 []) AND exists#3 [id#1L])
         :  :- Aggregate [max(id#4L) AS max(id)#5L]
         :  :  +- SubqueryAlias p
         :  :     +- SubqueryAlias `public.odd``one`
         :  :        +- View (`public.Odd``one`, [id#4L])
         :  :           +- Relation [id#4L] parquet
         :  +- Project [a
b AS a
b#7]
         :     +- OneRowRelation
         +- Join Inner
            :- SubqueryAlias o
            :  +- SubqueryAlias orders
            :     +- View (`orders`, [id#1L])
            :        +- Join LeftOuter
            :           :- Relation [id#1L] parquet
            :           +- SubqueryAlias spark_catalog.shop.orders
            :              +- Relation spark_catalog.shop.orders[id#9L] parquet
            +- {}
"""


@pytest.mark.parametrize(
    ("leaf", "foreign"),
    [
        ("CTERelationRef 0, true, [id#6L], false, false", None),
        ("Range (0, 3, step=1)", None),
        ("View (`orders`, [id#1L])\n               +- Relation [id#1L] parquet", None),
        ("View (`late`, [id#1L])\n               +- LocalRelation [id#1L]", "`late`"),
        ("View (`spark_catalog`.`shop`.`orders`, [id#1L])\n               +- Range (0, 3)",
         "`spark_catalog`.`shop`.`orders`"),
        ("SubqueryAlias spark_catalog.shop.orders\n               +- Relation spark_catalog.shop.orders[i]",
         "spark_catalog.shop.orders"),
        ("SubqueryAlias o\n               +- Project [id#8L]\n                  +- Relation [id#8L] parquet",
         "Relation"),
    ],
)  # fmt: skip
def test_a_query_reads_its_views_and_what_it_makes_itself(leaf: str, foreign: str | None) -> None:
    assert foreign_relation(OWN.format(leaf), ["orders", "public.odd`one"]) == foreign


def test_what_a_condition_reads_counts_too() -> None:
    assert foreign_relation(OWN.format("OneRowRelation"), ["orders"]) == "`public.Odd``one`"


def test_one_of_manifest_position_and_time_names_a_cut() -> None:
    config, at = config_of("/landing", "/lake"), datetime(2026, 11, 21, tzinfo=timezone.utc)
    assert moment_of(config, None, None, None) is None
    assert moment_of(config, 7, None, None) == Moment("7", manifest=7)
    assert moment_of(config, None, "2:0/10", None) == Moment("2:0/10", position=(2, 16))
    for time in (at, at.replace(tzinfo=None), "2026-11-21", "2026-11-21T01:00+01:00"):
        moment = moment_of(config, None, None, time)
        assert moment is not None
        assert moment.committed_at == at
    for given, said in [
        ((1, "0/10", None), "name one cut each"),
        ((None, "here", None), "not a position"),
        ((None, None, "0/10"), "not a time"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            moment_of(config, *given)
