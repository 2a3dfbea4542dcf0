"""What makes a view depend on more than its tables, in texts and in plans as EXPLAIN prints them."""

from __future__ import annotations

import pytest

from merge.views.determinism import depends_in_plan, depends_in_text


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT TIMESTAMP 'now'",
        'SELECT DATE"today"',
        "SELECT cast(' Yesterday' AS date)",
        "SELECT timestamp_ntz r'\\u006eow'",
        "SELECT TIMESTAMP'\\u006eow'",
        "SELECT to_date('tomorrow')",
        "SELECT TIMESTAMP '8:00'",
        "SELECT timestamp'08:00:00'",
    ],
)
def test_literals_that_name_a_moment_are_found_in_the_text(sql: str) -> None:
    assert depends_in_text(sql) is not None


@pytest.mark.parametrize(
    "sql",
    ["SELECT now FROM today -- as of today", "SELECT DATE '2026-01-01', timestamp'-0001-01-01', 'date'"],
)
def test_other_words_name_no_moment(sql: str) -> None:
    assert depends_in_text(sql) is None


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("Project [id#1, rand(5) AS x#2]", "calls rand"),
        ("Filter (a#1 > current_timestamp())", "calls current_timestamp"),
        ("Project [spark_catalog.default.upper(b#1) AS x#2]", "calls spark_catalog.default.upper"),
        ("Project [upper(b#1)#7 AS x#2]", "upper, which is a function of the session"),
        ("Filter (a#1 > scalar-subquery#5 [])", "subquery"),
        ("Filter a#1 IN (list#5 [])", "subquery"),
        ("Filter exists#5 [a#1]", "subquery"),
        ("Project [cast(now as timestamp) AS x#2]", "time"),
        ("Project [to_date(concat(to, day), None, Some(UTC), true) AS x#2]", "time"),
        ("Project [coalesce(at#1, cast(concat(n, ow) as date)) AS x#2]", "time"),
        ("Filter (at#1 >= cast(00:00 as timestamp))", "time"),
        ("Filter (at#1 >= cast(cast(b#2 as time(6)) as timestamp_ntz))", "time"),
        ("Aggregate [a#1], [a#1, first(b#2, false) AS first(b)#3]", "calls first"),
        ("Project [transform(a#1, lambdafunction(x#2, x#2, false)) AS x#3]", "calls transform"),
    ],
)
def test_chance_and_time_are_found_in_plans(node: str, said: str) -> None:
    assert said in (depends_in_plan(node) or "")


@pytest.mark.parametrize(
    "node",
    [
        "Project [count(1)#7L, upper(b)#8, cast(a#1 as decimal(12,2)) AS x#2]",
        "Filter (at#1 >= cast(2026-01-01 as timestamp))",
        "Project [to_date(b#1, Some(yyyy), Some(UTC), true) AS d#2, CASE WHEN a#3 IN (1,2) THEN x END c#4]",
        "Aggregate [a#1], [a#1, count(1) FILTER (WHERE (b#2 > x5)) AS f#3L, sum(distinct c#4) AS s#5]",
    ],
)
def test_what_depends_on_columns_alone_is_left_alone(node: str) -> None:
    assert depends_in_plan(node) is None
