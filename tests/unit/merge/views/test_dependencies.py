"""What views read, by the plans that Spark prints, and in which order they are refreshed."""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("pyspark")

from connector.config import Config
from connector.errors import ConfigurationError
from connector.schema import TableName
from merge.lake.target import targets_of
from merge.reading.query_plans import relations
from merge.views import dependencies
from merge.views.dependencies import PlannedView, in_order, planned
from merge.views.view import View
from tests.support.landing.landed import config_of

ORDERS, OLD, ITEMS = TableName("public", "orders"), TableName("old", "Orders"), TableName("public", "items")

WITH = """
'Project [*]
+- 'SubqueryAlias __auto_generated_subquery_name
   +- CTE [orders, b]
      :  :- 'SubqueryAlias Orders
      :  :  +- 'Project ['UnresolvedRelation
      :  :     +- 'UnresolvedRelation [orders], [], false
      :  +- 'SubqueryAlias b
      :     +- 'Join Inner
      :        :- 'SubqueryAlias ORDERS
      :        :  +- 'UnresolvedRelation [ORDERS], [], false
      :        +- 'UnresolvedRelation [a, b] x], [], false
      +- 'Filter ('id IN (list#6 []) AND exists#7 [])
         :  :- 'Project ['id]
         :  :  +- CTE [z]
         :  :     :  +- SubqueryAlias z
         :  :     :     +- LocalRelation [col1#1]
         :  :     +- 'UnresolvedRelation [z], [], false
         :  +- 'UnresolvedRelation [B], [], false
         +- 'Join Inner
            :- 'SubqueryAlias orders
            :  +- 'UnresolvedRelation [z], [], false
            +- 'UnresolvedRelation [public, orders], [], false
"""

RECURSIVE = """
'Project [*]
+- 'SubqueryAlias __auto_generated_subquery_name
   +- CTE [t]
      :  +- 'SubqueryAlias t
      :     +- 'Union false, false
      :        :- 'UnresolvedRelation [items], [], false
      :        +- 'UnresolvedRelation [t], [], false
      +- 'UnresolvedRelation [T], [], false
"""


def test_names_that_a_query_gives_by_with_are_its_own_where_they_are_known() -> None:
    # Its `orders` is defined by the table; `z` is known only in one subquery.
    assert relations(WITH) == ["orders", "a, b] x", "z", "public, orders"]


def test_only_a_recursive_name_stands_for_itself_where_it_is_defined() -> None:
    assert relations(RECURSIVE, recursive=True) == ["items"]
    assert relations(RECURSIVE) == ["items", "t"]


def view(name: str, *reads: str) -> PlannedView:
    return PlannedView(View(name, ""), {other: TableName("views", other) for other in reads})


def test_each_view_comes_after_those_that_it_reads() -> None:
    order = in_order([view("a", "b", "c", "orders"), view("b", "c"), view("c"), view("d", "a")])
    assert [planned.view.name for planned in order] == ["c", "b", "a", "d"]


@pytest.mark.parametrize(
    "views", [[view("a", "a")], [view("a", "b"), view("b", "c"), view("c", "a")]], ids=["one", "three"]
)
def test_a_cycle_is_refused_and_told_in_order(views: list[PlannedView]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        in_order(views)
    cycle = str(refused.value).partition(": ")[2].split(" reads ")
    assert len(cycle) == len(views) + 1
    for reader, read in pairwise(cycle):
        assert read in {view.view.name: view.inputs for view in views}[reader]


def plan(
    monkeypatch: pytest.MonkeyPatch,
    reads: dict[str, list[str]],
    *tables: TableName,
    refreshed: tuple[str, ...] = (),
    catalog: bool = False,
) -> list[PlannedView]:
    """Plan views that read these names."""
    config = config_of("/landing", "/lake")
    if catalog:
        lake = {"catalog": "main", "schema": "shop"}
        config = Config.model_validate(config.model_dump(by_alias=True) | {"lake": lake})
    monkeypatch.setattr(dependencies, "named_by", lambda _, view: reads[view.name])
    views, of = [View(name, "") for name in reads], {TableName("views", name) for name in refreshed}
    return planned(None, config, views, targets_of(config, tables), of)  # type: ignore[arg-type]


def test_names_are_found_as_in_queries_whatever_their_case(monkeypatch: pytest.MonkeyPatch) -> None:
    (spent, big) = plan(monkeypatch, {"big": ["SPENT"], "spent": ["Orders", "public.items"]}, ORDERS, ITEMS)
    assert spent.inputs == {"orders": ORDERS, "public.items": ITEMS}
    assert big.inputs == {"spent": TableName("views", "spent")}


@pytest.mark.parametrize(
    ("name", "reads", "tables", "catalog", "said", "hint"),
    [
        ("a", ["x"], [ORDERS], False, "reads x, which is not a table", "`orders`, `public.orders`"),
        ("a", ["orders"], [ORDERS, OLD], False, "reads orders, which is no", "`old.Orders`, `public.orders`"),
        ("a", ["public, orders"], [ORDERS], False, "reads public.orders,", "as one name: `public.orders`"),
        ("Items", [], [ITEMS], False, "the table public.items has the same name", "rename views.Items"),
        ("Items", [], [ITEMS], True, "the table public.items has the same name", "rename views.Items"),
        # In a catalog, the table whose name differs by case alone lies at a name with a hash.
        ("Orders_b7e8acdd", [], [ORDERS, TableName("public", "Orders")], True, "has the same name", "rename"),
    ],
)
def test_what_is_wrong_stops_a_merge_only_while_the_view_is_new(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    reads: list[str],
    tables: list[TableName],
    catalog: bool,
    said: str,
    hint: str,
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        plan(monkeypatch, {"good": [], name: reads}, *tables, catalog=catalog)
    assert said in str(refused.value)
    assert hint in (refused.value.hint or "")
    found = plan(monkeypatch, {"good": [], name: reads}, *tables, refreshed=(name,), catalog=catalog)
    assert [said in str(view.problem) for view in found] == [False, True]
