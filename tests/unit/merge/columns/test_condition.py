"""Which conditions have another answer for a row on another day, or for another user, by their plans."""

from __future__ import annotations

import pytest

from merge.columns.condition import why_unstable_in

COLUMNS = {
    "opens_at": "string",
    "at": "timestamp",
    "day": "date",
    "next day": "date",
    "tags": "array<string>",
    "n": "bigint",
}


def why(condition: str, *, optimized: str | None = None) -> str:
    """Judge a condition as EXPLAIN prints it, over these columns."""
    plans = (_plan(condition), _plan(condition if optimized is None else optimized))
    return why_unstable_in(*plans, COLUMNS) or ""


def _plan(condition: str) -> str:
    made = ", ".join(
        f"if ((rand(7) < cast(2 as double))) null else cast(null as {type_}) AS {name}#{n}"
        for n, (name, type_) in enumerate(COLUMNS.items())
    )
    return f"""
Project [1 AS 1#9]
+- Join Inner, {condition}
   :- SubqueryAlias __auto_generated_subquery_name
   :  +- Project [1 AS _cdc#8]
   :     +- OneRowRelation
   +- SubqueryAlias __auto_generated_subquery_name
      +- Project [{made}]
         +- OneRowRelation
"""


@pytest.mark.parametrize(
    "condition",
    [
        "(cast(opens_at#0 as timestamp) > at#1)",
        "(try_cast(opens_at#0 as timestamp) > 2026-01-01 00:00:00)",
        "(to_timestamp(opens_at#0, None, TimestampType, Some(UTC), false) > at#1)",
        "(to_timestamp(cast(n#5 as string), None, TimestampType, Some(UTC), false) > at#1)",
        "(to_timestamp(concat(opens_at#0, Some(x)), None, TimestampType, Some(UTC), false) > at#1)",
        "(coalesce(at#1, cast(opens_at#0 as timestamp)) > at#1)",
        "(cast(greatest(opens_at#0, x) as timestamp) > at#1)",
        "(cast(CASE WHEN (day#2 > 2026-01-01) THEN 08:00 ELSE 12:30 END as timestamp) > at#1)",
        "(cast(tags#4 as array<timestamp>)[0] > at#1)",
        "(from_json(StructField(a,TimestampType,true), opens_at#0, Some(UTC), false).a > at#1)",
        "between(at#1, opens_at#0, 2026-01-01 00:00:00)",
        "between(opens_at#0, 2026-01-01 00:00:00, 2026-02-01 00:00:00)",
        "between(at#1, 08:00, 12:30)",
        "between(at#1, concat(08:, 00), cast(2026-01-01 as date))",
        "between(at#1, coalesce(08:00, x), 2026-01-01)",
        "(nvl(at#1, 12:30) > at#1)",
        "between(coalesce(at#1, at#1), opens_at#0, 2026-01-01)",
        "between(at#1 + INTERVAL '1' DAY, 08:00, 12:30)",
        "(cast(if ((n#5 = 1)) 08:00 else 12:30 as timestamp) > at#1)",
        "(cast(nullif(12:30, n#5) as timestamp) > at#1)",
        "(cast(opens_at#0 - INTERVAL '01' HOUR as string) > x)",
        "(from_csv(StructField(a,TimestampType,true), concat(opens_at#0, )), Some(UTC), None).a > at#1)",
        "(variant_get(parse_json(concat(opens_at#0, ))), $.a, TimestampType, true, Some(UTC)) > at#1)",
        "(cast(split(concat(opens_at#0, )), ,, -1) as array<timestamp>)[0] > at#1)",
    ],
)
def test_a_text_that_becomes_a_timestamp_may_be_a_time_of_today(condition: str) -> None:
    assert "today" in why(condition)


def test_a_cast_that_only_the_optimized_plan_has_is_found() -> None:
    replaced = "(at#1 <=> cast(opens_at#0 as timestamp))"
    assert "today" in why("equal_null(at#1, opens_at#0)", optimized=replaced)
    assert (
        why("between(opens_at#0, 2026-01-01 00:00:00, x)", optimized="(opens_at#0 >= 2026-01-01 00:00:00)")
        == ""
    )


@pytest.mark.parametrize(
    "condition",
    [
        "equal_null(day#2, concat(to, day))",
        "equal_null(at#1, concat(to, day))",
        "(nvl(day#2, trim( today )) = day#2)",
        "between(date_add(day#2, 1), concat(yester, day), 2026-01-01)",
    ],
)
def test_a_constant_in_whose_place_the_optimized_plan_has_a_day_is_found(condition: str) -> None:
    """Spark takes 'today' for a date wherever it becomes one, before it prints the plan with all casts."""
    assert "today" in why(condition, optimized="(day#2 <=> 2026-11-26)")


def test_a_constant_may_be_one_and_a_word_the_merges_user() -> None:
    assert "12:30" in why("(at#1 > cast(12:30 as timestamp))")
    assert "12:30" in why("(at#1 > to_timestamp(12:30, None, TimestampType, Some(UTC), true))")
    assert "12:30" in why("(cast(to_time(opens_at#0) as timestamp_ntz) > 2026-01-01 00:00:00)")
    assert why("(opens_at#0 = current_user())") == "it calls current_user"


@pytest.mark.parametrize(
    "condition",
    [
        "(opens_at#0 > 12:30)",
        "((to_time(opens_at#0) > 12:30:00) AND (at#1 > cast(2026-01-01 as timestamp)))",
        "(opens_at#0 = current_user)",
        "between(opens_at#0, 08:00, 12:30)",
        "between(at#1, 2026-01-01 00:00:00, 2026-02-01 00:00:00)",
        "between(at#1, 2026-01-01, 2026-02-01)",
        "between(at#1, day#2 + INTERVAL '08:00' HOUR TO MINUTE, date_add(day#2, 1))",
        "between(at#1, cast(2026-01-01 as date), date_add(cast(2026-02-01 as date), 1))",
        "between(at#1, (2026-01-01 00:00:00 - INTERVAL '1' DAY), to_timestamp(2026-02-01, None, x))",
        "between(from_utc_timestamp(at#1, Europe/Berlin), 2026-01-01 00:00:00, 2026-02-01 00:00:00)",
        "(nvl(opens_at#0, none) = none)",
        "(nvl(opens_at#0, concat(no, ne)) = none)",
        "equal_null(day#2, date_add(cast(2026-01-01 as date), 1))",
        "(decode(day#2, 2026-01-01, first, other) = first)",
        "(nvl2(at#1, yes, no) = yes)",
        "(hour(cast(opens_at#0 as timestamp), Some(UTC)) >= 8)",
        "(at#1 > cast(2026-01-01 as timestamp))",
        "(at#1 > cast(greatest(day#2, next day#3) as timestamp))",
        "NOT (at#1 <=> cast(null as timestamp))",
        "(cast(opens_at#0 as timestamp_ntz) > 2026-01-01 00:00:00)",
        "(to_timestamp(opens_at#0, Some(HH:mm), TimestampType, Some(UTC), true) > at#1)",
        "(at#1 > to_timestamp(08:00, Some(HH:mm), TimestampType, Some(UTC), true))",
        "(to_timestamp(cast(n#5 as string), Some(yyyyMMdd), TimestampType, Some(UTC), true) > at#1)",
        "(to_timestamp(concat(opens_at#0,  , x), Some(HH:mm x), TimestampType, Some(UTC), true) > at#1)",
        "(cast(FLOOR((cast(n#5L as double) / cast(1000 as double))) as timestamp) > at#1)",
        "(cast(FLOOR((n#5 / cast(1000 as decimal(4,0)))) as timestamp) > at#1)",
        "(cast((cast(cast(opens_at#0 as bigint) as double) / cast(1000 as double)) as timestamp) > at#1)",
        "(at#1 > cast(cast(2026-01-01 as date) as timestamp))",
        "(at#1 > cast(cast(gettimestamp(01.02.2026, d.M.yyyy, TimestampType, try_to_date, Some(UTC), true)"
        " as date) as timestamp))",
        "(at#1 > make_timestamp(2026, 1, 1, 0, 0, cast(0 as decimal(16,6)), Some(UTC), true, TimestampType))",
        "(cast(at#1 - INTERVAL '1' DAY as string) > x)",
        "((from_json(StructField(a,StringType,true), opens_at#0, Some(UTC)).a = x) AND"
        " (gettimestamp(opens_at#0, HH:mm, TimestampType, to_timestamp, Some(UTC), true) > at#1))",
        "(secondwithfraction(cast(opens_at#0 as timestamp), Some(UTC)) = cast(8.000000 as decimal(8,6)))",
    ],
)
def test_other_conditions_are_accepted(condition: str) -> None:
    assert why(condition) == ""
