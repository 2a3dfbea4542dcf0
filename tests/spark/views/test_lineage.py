"""Which queries can be refreshed incrementally, by Spark's own plans of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from connector.schema import TableName
from merge.columns.landed_files import no_events
from merge.reading.query_plans import analyzed, as_subquery
from merge.spark.session_settings import PLAIN, WHOLE_PLANS, applied_settings
from merge.views.dependencies import PlannedView
from merge.views.incremental import proven_lineage
from merge.views.inputs import named
from merge.views.lineage import Lineage, Lookup, NotIncrementalError, Relation
from merge.views.refresh import IN_UTC
from merge.views.view import View
from tests.support.spark.spark_sessions import another_session

TABLES = {
    "orders": (
        {
            "id": "int",
            "customer": "int",
            "status": "string",
            "amount": "decimal(12,2)",
            "at": "timestamp",
            "_cdc": "struct<op:string>",
        },
        ("id",),
    ),
    "customers": ({"id": "bigint", "name": "string", "country": "string", "score": "double"}, ("id",)),
    "countries": ({"code": "string", "name": "string", "id": "int"}, ("code",)),
    "items": ({"order_id": "int", "line": "int", "price": "int", "at": "string"}, ("order_id", "line")),
    "ratings": ({"score": "double", "odd name": "int", "a#1, b": "string", "c)": "string"}, ("score",)),
    "wide": ({"id": "int", **{f"c{number}": "int" for number in range(60)}}, ("id",)),
    "changes": ({"id": "int", "a": "int"}, ()),
}
ORDERS, CUSTOMERS, ITEMS = "orders", "customers", "items"
CUSTOMER = Lookup(CUSTOMERS, ORDERS, (("id", "customer"),))
COUNTRY = Lookup("countries", CUSTOMERS, (("code", "country"),))
ORDER = Lookup(ORDERS, ITEMS, (("id", "order_id"),))
ITEM = ("order_id", "line")


def keyed(
    name: str, *lookups: Lookup, of: tuple[str, ...] = ("id",), key: tuple[str, ...] = ("id",)
) -> Lineage:
    return Lineage(name, lookups, of, key, grouped=False)


def grouped(name: str, *lookups: Lookup, of: tuple[str, ...], key: tuple[str, ...] = ("id",)) -> Lineage:
    return Lineage(name, lookups, of, key, grouped=True)


JOINED = "FROM orders o JOIN customers c ON c.id = o.customer"
PROVEN = {
    # Projections and filters.
    "SELECT * FROM orders": keyed(ORDERS),
    "SELECT ID, initcap(status) s FROM `orders` WHERE amount > 3 AND status <> 'x) AND (y'": keyed(
        ORDERS, of=("ID",)
    ),
    "SELECT o.id AS order_id, customer AS id FROM orders o": keyed(ORDERS, of=("order_id",)),
    "SELECT status AS id, id AS status FROM orders": keyed(ORDERS, of=("status",)),
    "SELECT id, a b, b a FROM (SELECT id, customer a, status b FROM orders) ORDER BY a": keyed(ORDERS),
    "SELECT x.id, amount + 1 AS n, n * 2 AS m, _cdc.op FROM orders x": keyed(ORDERS),
    "SELECT price, line AS l, order_id FROM items": keyed(ITEMS, of=("order_id", "l"), key=ITEM),
    "SELECT * FROM wide": keyed("wide"),
    "SELECT id, CASE WHEN status LIKE 'a%' THEN 1 ELSE 2 END AS c FROM orders"
    " WHERE at BETWEEN TIMESTAMP '2026-01-01' AND TIMESTAMP '2026-02-01' AND id IN (1, 2)": keyed(ORDERS),
    "SELECT id, 'rate' || status AS `odd, name#7` FROM orders": keyed(ORDERS),
    # Joins.
    f"SELECT o.id, c.name {JOINED} AND c.score > 3": keyed(ORDERS, CUSTOMER),
    "SELECT o.id, c.name FROM customers c JOIN orders o ON c.id = o.customer": keyed(ORDERS, CUSTOMER),
    "SELECT o.id, name FROM orders o LEFT JOIN customers c ON c.id = customer AND score > amount": keyed(
        ORDERS, CUSTOMER
    ),
    "SELECT o.id FROM orders o LEFT SEMI JOIN customers c ON c.id = o.customer": keyed(ORDERS, CUSTOMER),
    "SELECT o.id FROM orders o LEFT ANTI JOIN customers c ON c.id = o.customer": keyed(ORDERS, CUSTOMER),
    f"SELECT o.id, l.name {JOINED} LEFT JOIN countries l ON l.code = c.country": keyed(
        ORDERS, CUSTOMER, COUNTRY
    ),
    f"SELECT o.id FROM countries JOIN (SELECT o.id, c.country {JOINED}) o ON code = o.country": keyed(
        ORDERS, CUSTOMER, COUNTRY
    ),
    "SELECT i.*, status FROM items i JOIN orders o ON i.order_id = o.id": keyed(
        ITEMS, ORDER, of=ITEM, key=ITEM
    ),
    "SELECT i.order_id, line, name FROM items i JOIN orders o ON i.order_id = o.id LEFT JOIN"
    " (SELECT id AS x, name FROM customers WHERE score > 1) c ON c.x = o.customer": keyed(
        ITEMS, ORDER, CUSTOMER, of=ITEM, key=ITEM
    ),
    # A part of the key is enough.
    "SELECT o.id, i.price FROM orders o LEFT JOIN items i ON i.order_id = o.id": keyed(
        ORDERS, Lookup(ITEMS, ORDERS, (("order_id", "id"),))
    ),
    "SELECT * FROM orders JOIN customers USING (id)": keyed(
        ORDERS, Lookup(CUSTOMERS, ORDERS, (("id", "id"),))
    ),
    # Groups.
    "SELECT status, count(*), sum(amount) t, avg(id), count(DISTINCT at) FROM orders GROUP BY 1": grouped(
        ORDERS, of=("status",)
    ),
    "SELECT count(*) n, customer AS status, status AS s FROM orders WHERE id > 3 GROUP BY ALL": grouped(
        ORDERS, of=("status", "s")
    ),
    "SELECT date_trunc('day', at) AS day, max(amount) FROM orders GROUP BY day": grouped(ORDERS, of=("day",)),
    "SELECT concat(status, ')') x, min(id) FROM orders GROUP BY concat(status, ')')": None,
    "SELECT g, n * 2 AS d FROM (SELECT status AS g, count(*) AS n FROM orders GROUP BY status)": grouped(
        ORDERS, of=("g",)
    ),
    f"SELECT c.country, sum(o.amount) FILTER (WHERE o.status = 'x') {JOINED} GROUP BY c.country": grouped(
        ORDERS, CUSTOMER, of=("country",)
    ),
    "SELECT c.country, c.name, count(o.id) FROM orders o LEFT JOIN customers c ON c.id = o.customer"
    " GROUP BY c.name, c.country": grouped(ORDERS, CUSTOMER, of=("name", "country")),
}
"""Queries with their lineage; None: not proven, although it might be."""

REFUSED = {
    f"SELECT o.id {JOINED} AND o.id = (SELECT max(line) FROM items)": "subquery",
    "SELECT id FROM orders WHERE customer IN (SELECT id FROM customers)": "subquery",
    "SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM items WHERE order_id = o.id)": "subquery",
    "SELECT id, (SELECT max(price) FROM items) FROM orders": "subquery",
    "SELECT id, x FROM orders o, LATERAL (SELECT max(price) x FROM items WHERE order_id = o.id)": "subquery",
    "SELECT * FROM orders LIMIT 3": "LIMIT",
    "SELECT * FROM (SELECT * FROM orders ORDER BY id LIMIT 3)": "LIMIT",
    "SELECT * FROM orders OFFSET 3": "OFFSET",
    "SELECT id, row_number() OVER (ORDER BY id) FROM orders": "",
    "SELECT id, sum(amount) OVER (PARTITION BY status) FROM orders": "",
    "SELECT DISTINCT id FROM orders": "DISTINCT",
    "SELECT id FROM orders TABLESAMPLE (10 PERCENT)": "TABLESAMPLE",
    "SELECT id FROM orders UNION ALL SELECT id FROM orders": "UNION",
    "SELECT id FROM orders EXCEPT SELECT order_id FROM items": "EXCEPT",
    "SELECT id FROM orders INTERSECT SELECT order_id FROM items": "INTERSECT",
    "WITH o AS (SELECT * FROM orders) SELECT * FROM o": "WITH",
    "SELECT id, explode(array(1, 2)) FROM orders": "explode",
    "SELECT id, rand() FROM orders": "rand",
    "SELECT id FROM orders WHERE rand(7) > 0.5": "rand",
    "SELECT id, uuid() FROM orders": "uuid",
    "SELECT id, monotonically_increasing_id() FROM orders": "monotonically",
    "SELECT id FROM orders WHERE at > current_timestamp() - INTERVAL 1 DAY": "current_timestamp",
    "SELECT id FROM orders WHERE at > now()": "now",
    "SELECT id, current_date FROM orders": "current_date",
    "SELECT id, current_user FROM orders": "current_user",
    "SELECT id, unix_timestamp() FROM orders": "unix_timestamp",
    "SELECT id FROM orders WHERE at > TIMESTAMP 'now'": "time",
    "SELECT id FROM orders WHERE at > TIMESTAMP '\\u006eow'": "time",
    "SELECT id FROM orders WHERE at > CAST(concat('to', 'day') AS timestamp)": "time",
    "SELECT id FROM orders WHERE at > to_date('to' 'morrow')": "time",
    "SELECT id, transform(array(1), x -> x + id) FROM orders": "transform",
    # Keys.
    "SELECT status, amount FROM orders": "key",
    "SELECT id + 0 AS id FROM orders": "key",
    "SELECT coalesce(id, 0) AS id FROM orders": "key",
    "SELECT order_id, price FROM items": "key",
    "SELECT score, `odd name` FROM ratings": "double",
    "SELECT * FROM changes": "changes",
    "SELECT o.id FROM orders o JOIN changes ON changes.id = o.id": "changes",
    "SELECT 1 AS id": "",
    "SELECT id FROM VALUES (1) AS t(id)": "LocalRelation",
    "SELECT id FROM range(3)": "Range",
    # Joins.
    "SELECT a.id FROM orders a JOIN orders b ON a.customer = b.id": "twice",
    "SELECT o.id FROM orders o JOIN customers c ON c.name = o.status": "others by their keys",
    "SELECT o.id FROM orders o, customers c WHERE c.id = o.customer": "others by their keys",
    "SELECT o.id FROM orders o CROSS JOIN customers c": "Cross",
    "SELECT o.id FROM orders o JOIN customers c ON c.id <=> o.customer": "others by their keys",
    "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer OR c.score = 1": "others by their keys",
    "SELECT o.id FROM orders o JOIN customers c ON NOT c.id = o.customer": "others by their keys",
    "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer + 1": "others by their keys",
    "SELECT o.id FROM orders o JOIN customers c ON c.id = o.status": "others by their keys",
    "SELECT o.id FROM orders o JOIN customers c ON int(c.id) = o.customer": "others by their keys",
    "SELECT c.id FROM customers c JOIN orders o ON c.id = o.customer": "others by their keys",
    "SELECT o.id FROM orders o RIGHT JOIN customers c ON c.id = o.customer": "RightOuter",
    "SELECT o.id FROM orders o FULL JOIN customers c ON c.id = o.customer": "FullOuter",
    "SELECT o.id FROM customers c LEFT JOIN orders o ON c.id = o.customer": "others by their keys",
    "SELECT c.id FROM customers c LEFT JOIN orders o ON c.id = o.customer": "others by their keys",
    # The condition that finds the customer stands elsewhere: others are filled with nulls, too.
    "SELECT o.id FROM orders o LEFT JOIN customers c ON c.score > 1 JOIN items i ON c.id = i.order_id": "",
    "SELECT o.id FROM orders o LEFT JOIN (customers c JOIN countries ON code = country) ON c.id = customer":
    "several tables",
    "SELECT o.id FROM orders o JOIN (SELECT order_id FROM items GROUP BY 1) i ON i.order_id = o.id":
    "aggregates within a join",
    # Groups.
    "SELECT count(*) FROM orders": "no GROUP BY",
    "SELECT count(*) AS n FROM orders GROUP BY status": "lacks a column of the GROUP BY",
    "SELECT status, sum(amount) FROM orders GROUP BY status, customer": "lacks a column of the GROUP BY",
    "SELECT trim(status), sum(amount) FROM orders GROUP BY status": "lacks a column of the GROUP BY",
    "SELECT status, count(*) FROM orders GROUP BY status HAVING count(*) > 1": "HAVING",
    "SELECT * FROM (SELECT status, count(*) AS n FROM orders GROUP BY status) WHERE n > 1": "HAVING",
    "SELECT s, sum(n) FROM (SELECT status s, id, count(*) n FROM orders GROUP BY 1, 2) GROUP BY s": "another",
    "SELECT status, count(*) FROM orders GROUP BY ROLLUP (status)": "ROLLUP",
    "SELECT status, customer, count(*) FROM orders GROUP BY GROUPING SETS ((status), (customer))": "ROLLUP",
    "SELECT score, count(*) FROM customers GROUP BY score": "double",
    "SELECT status, first(amount) FROM orders GROUP BY status": "first",
    "SELECT status, collect_list(id) FROM orders GROUP BY status": "collect_list",
    "SELECT status, max_by(id, amount) FROM orders GROUP BY status": "max_by",
    "SELECT * FROM (SELECT status, amount FROM orders) PIVOT (sum(amount) FOR status IN ('a', 'b'))": "",
    "SELECT c.country, count(*) FROM customers c LEFT JOIN orders o ON o.customer = c.id GROUP BY 1":
    "others by their keys",
}  # fmt: skip


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    frames = {name: no_events(spark, columns) for name, (columns, _) in TABLES.items()}
    with applied_settings(spark, {**PLAIN, **IN_UTC, **WHOLE_PLANS}), named(spark, frames):
        yield spark


def lineage_of(session: SparkSession, sql: str) -> Lineage:
    view = PlannedView(View("a", sql), {name: TableName("public", name) for name in TABLES})
    relations = [Relation(name, columns, key) for name, (columns, key) in TABLES.items()]
    output = session.sql(as_subquery(sql)).schema
    return proven_lineage(view, analyzed(session, sql), output, relations)


def test_queries_whose_rows_follow_from_keys_or_groups_are_proven(session: SparkSession) -> None:
    found: dict[str, Lineage | None] = {}
    for sql in PROVEN:
        try:
            found[sql] = lineage_of(session, sql)
        except NotIncrementalError as error:
            found[sql] = None if PROVEN[sql] is None else error  # type: ignore[assignment]
    assert {sql: found[sql] for sql in PROVEN if found[sql] != PROVEN[sql]} == {}


def test_all_others_are_not_and_the_reason_is_told(session: SparkSession) -> None:
    wrong = {}
    for sql, reason in REFUSED.items():
        try:
            wrong[sql] = str(lineage_of(session, sql))
        except NotIncrementalError as error:
            if reason not in str(error):
                wrong[sql] = str(error)
    assert wrong == {}


@pytest.mark.only_classic("Spark Connect's sessions of one test run share functions")
def test_a_function_of_the_session_is_none_of_sparks(spark: SparkSession) -> None:
    """From 4.2 on, Spark takes its own function if one of the session has that name."""
    other, sql = another_session(spark), "SELECT id, lower(status) FROM orders"
    other.udf.register("lower", lambda _: "of the session")  # it can't be dropped again
    with named(other, {name: no_events(other, columns) for name, (columns, _) in TABLES.items()}):
        if other.version >= "4.2":
            assert other.sql("SELECT lower('A')").collect() == [("a",)]
            assert lineage_of(other, sql) == keyed(ORDERS)
            return
        with pytest.raises(NotIncrementalError, match="lower, which is a function of the session"):
            lineage_of(other, sql)


def test_a_table_under_two_names_is_refused(session: SparkSession) -> None:
    both = {"orders": TableName("public", "orders"), "public.orders": TableName("public", "orders")}
    with pytest.raises(NotIncrementalError, match="two names"):
        proven_lineage(PlannedView(View("a", "SELECT 1"), both), "", session.range(1).schema, [])
