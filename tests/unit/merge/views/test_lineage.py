"""Texts of a query that look like another part of its plan prove nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from merge.views.lineage import Lineage, NotIncrementalError, Relation, lineage_of

ORDERS = Relation("orders", {"id": "int", "status": "string", "amount": "int"}, ("id",))


def lineage(output: dict[str, str], ids: str, body: str, read: Relation = ORDERS) -> Lineage:
    """Prove a lineage by the plan of a query over one table; `ids`: those of its output."""
    plan = f"""
x: int
Project [{ids}]
+- Filter false
   +- SubqueryAlias __auto_generated_subquery_name
      +- {body}
         +- SubqueryAlias {read.name}
            +- View (`{read.name}`, [id#0, status#1, amount#2])
               +- LocalRelation [id#0, status#1, amount#2]
"""
    return lineage_of(plan, "SELECT 1", output, [read])


def test_a_constant_that_is_printed_like_an_aggregate_is_no_group() -> None:
    """SELECT 'count(1)' AS metric, status, count(*) AS n FROM orders GROUP BY ALL"""
    output = {"metric": "string", "status": "string", "n": "bigint"}
    ids, items = "metric#5, status#1, n#6L", "[count(1) AS metric#5, status#1, count(1) AS n#6L]"
    found = lineage(output, ids, f"Aggregate [count(1), status#1], {items}")
    assert found == Lineage("orders", (), ("status",), ("id",), grouped=True)
    with pytest.raises(NotIncrementalError, match="constants"):
        lineage({"metric": "string", "n": "bigint"}, "metric#5, n#6L", f"Aggregate [count(1)], {items}")


@pytest.mark.parametrize(
    "body",
    ["Project [id#0 AS a [#5, (amount#2 + 1) AS b ]#6]", "Project [id#0 AS a (#5, (amount#2 + 1) AS b )#6]"],
)
def test_columns_that_are_read_as_one_since_a_name_has_a_bracket_are_no_copy(body: str) -> None:
    """SELECT id AS `a [`, amount + 1 AS `b ]` FROM orders"""
    names = [" AS ".join(item.split(" AS ")[1:]).rpartition("#")[0] for item in body[9:-1].split(", ")]
    with pytest.raises(NotIncrementalError, match="lacks a column of the table's key"):
        lineage(dict.fromkeys(names, "int"), f"{names[0]}#5, {names[1]}#6", body)


def test_nor_are_they_a_group() -> None:
    """SELECT status AS `a [`, count(*) AS `b ]` FROM orders GROUP BY status"""
    body = "Aggregate [status#1], [status#1 AS a [#5, count(1) AS b ]#6L]"
    with pytest.raises(NotIncrementalError, match="lacks a column of the GROUP BY"):
        lineage({"a [": "string", "b ]": "bigint"}, "a [#5, b ]#6L", body)


def test_names_of_tables_may_have_braces() -> None:
    found = lineage({"id": "int"}, "id#0", "Project [id#0]", replace(ORDERS, name="a{}"))
    assert found == Lineage("a{}", (), ("id",), ("id",), grouped=False)


def test_a_plan_that_is_cut_short_can_not_be_read() -> None:
    body = "Project [id#0, status#1 AS s#5, ... 3 more fields]"
    with pytest.raises(NotIncrementalError, match="can't be read"):
        lineage({"id": "int", "s": "string"}, "id#0, s#5", body)


@pytest.mark.parametrize(
    "made",
    [
        "cast(status#1 as timestamp)",
        "try_cast(coalesce(status#1, x) as timestamp)",
        "to_timestamp(status#1, None, TimestampType, Some(UTC), true)",
        "date_trunc(HOUR, cast(substring(status#1, 1, 5) as timestamp), Some(UTC))",
        "element_at(cast(split(status#1, ,, -1) as array<timestamp>), 1, None, true)",
        "CASE WHEN between(status#1, 2026-01-01 00:00:00, 2026-02-01 00:00:00) THEN status#1 END",
        "nvl(to_timestamp(status#1, Some(yyyy-MM-dd), TimestampType, Some(UTC), true), 12:30)",
        "nvl(coalesce(cast(amount#2 as timestamp), cast(id#0 as timestamp)), status#1)",
        "cast(status#1 - INTERVAL '01' HOUR as string)",
        "cast(if ((amount#2 = 1)) 08:00 else 12:30 as timestamp)",
    ],
)
def test_a_text_that_becomes_a_timestamp_may_be_a_time_of_the_day_of_the_refresh(made: str) -> None:
    """Spark reads '12:30' as today's, in the text of a column, too."""
    output = {"id": "int", "at": "timestamp"}
    with pytest.raises(NotIncrementalError, match="one of today"):
        lineage(output, "id#0, at#5", f"Project [id#0, {made} AS at#5]")


def test_so_may_one_that_is_hidden_by_a_text_with_a_bracket() -> None:
    """SELECT * FROM orders WHERE CAST(concat(status, '(') AS timestamp) > TIMESTAMP '2026-01-01'"""
    body = "Filter (cast(concat(status#1, () as timestamp) > 2026-01-01 00:00:00)"
    with pytest.raises(NotIncrementalError, match="one of today"):
        lineage({"id": "int", "status": "string", "amount": "int"}, "id#0, status#1, amount#2", body)


@pytest.mark.parametrize(
    "made",
    [
        "cast(amount#2 as timestamp)",
        "cast(cast(status#1 as date) as timestamp)",
        "cast(date_add(cast(status#1 as date), 7) as timestamp)",
        "cast(cast(status#1 as timestamp_ntz) as timestamp)",
        "to_timestamp(status#1, Some(yyyy-MM-dd), TimestampType, Some(UTC), true)",
        "cast(2026-01-01 as timestamp)",
        "CASE WHEN between(_cdc#3.committed_at, 2026-01-01 00:00:00, 2026-02-01 00:00:00) THEN 1 END",
        "CASE WHEN between(_cdc#3.deleted_at, 2026-01-01 00:00:00, 2026-02-01 00:00:00) THEN 1 END",
        "CASE WHEN between(status#1, a, nvl(status#1, none)) THEN status#1 END",
        "cast((cast(cast(status#1 as bigint) as double) / cast(1000 as double)) as timestamp)",
        "nvl(CASE WHEN (amount#2 > 1) THEN upper(status#1) END, none)",
        "nvl(cast(status#1 as date), cast(cast(2026-01-01 as date) as timestamp))",
    ],
)
def test_other_timestamps_are_of_their_own_day(made: str) -> None:
    output = {"id": "int", "at": "timestamp"}
    assert lineage(output, "id#0, at#5", f"Project [id#0, {made} AS at#5]").identity == ("id",)
