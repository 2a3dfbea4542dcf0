"""Which conditions have another answer for a row on another day, or for another user, in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from merge.columns.condition import depends_on_session, uses_patterns, why_unstable
from merge.spark.session_settings import judging_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {
    "opens_at": "string",
    "at": "timestamp",
    "day": "date",
    "next day": "date",
    "tags": "array<string>",
    "n": "decimal(20,0)",
}

OF_TODAY = (
    "CAST(opens_at AS timestamp) > TIMESTAMP '2026-01-01'",
    "opens_at::timestamp < at",
    "timestamp(opens_at) < at",
    "try_cast(opens_at AS timestamp) < at",
    "to_timestamp(opens_at) < at",
    "try_to_timestamp(opens_at) < at",
    "to_timestamp_ltz(opens_at) < at",
    "opens_at < at",
    "at IN (opens_at, at)",
    "at < '12:30'",
    "at < to_timestamp('12:30')",
    "at BETWEEN '08:00' AND '12:30'",
    "at BETWEEN opens_at AND TIMESTAMP '2026-01-01'",
    "opens_at BETWEEN TIMESTAMP '2026-01-01' AND TIMESTAMP '2026-02-01'",
    "nvl(at, '12:30') < at",
    "nullif(at, opens_at) IS NULL",
    "CAST(tags AS array<timestamp>)[0] < at",
    "from_json(opens_at, 'a timestamp').a < at",
    "date_format(opens_at, 'yyyy') = '2026'",
    "equal_null(at, opens_at)",
    "equal_null(at, '12:30')",
    "equal_null(day, concat('to', 'day'))",
    "equal_null(at, 'to' || 'day')",
    "nvl(day, trim(' today ')) < day",
    "day BETWEEN concat('yester', 'day') AND '2026-01-01'",
    "decode(at, '12:30', true, false)",
    "try_subtract(at, opens_at) > INTERVAL '1' HOUR",
    "try_add(opens_at, INTERVAL 1 HOUR) > '2026'",
    "opens_at - INTERVAL 1 HOUR > '2026'",
    "coalesce(at, at) BETWEEN opens_at AND '2026-01-01'",
    "CAST(if(n = 1, '08:00', '12:30') AS timestamp) < at",
)

BY_PATTERN = (
    "to_timestamp(opens_at, 'HH:mm') < at",
    "try_to_timestamp(opens_at, 'HH:mm') < at",
    "to_date(opens_at, 'd.M.yyyy') < day",
    "unix_timestamp(opens_at, 'HH:mm') > 0",
    "to_unix_timestamp(opens_at, 'HH:mm') > 0",
    "from_unixtime(n) > '2026'",
    "date_format(at, 'yyyy') = '2026'",
    "from_json(opens_at, 'a date').a < day",
    "to_json(struct(at)) > ''",
)

OF_THE_USER = ("opens_at = user", "opens_at = CURRENT_USER", "opens_at = session_user")

STABLE = (
    "true",
    "opens_at > '12:30'",
    "opens_at = 'user'",
    "opens_at BETWEEN '08:00' AND '12:30'",
    "nvl(opens_at, 'none') = 'none' OR nvl2(at, 'yes', 'no') = 'yes'",
    "equal_null(day, date_add('2026-01-01', 1)) OR nvl(opens_at, concat('no', 'ne')) = 'none'",
    "hour(opens_at) >= 8 AND minute(opens_at) = 30",
    "extract(hour FROM opens_at) = 8",
    "at > '2026-01-01' AND at > TIMESTAMP '2026-01-01' AND day < '2026-01-01'",
    "at BETWEEN '2026-01-01' AND TIMESTAMP '2026-02-01'",
    "at BETWEEN CAST('2026-01-01' AS date) AND to_timestamp('2026-02-01')",
    "from_utc_timestamp(at, 'Europe/Berlin') BETWEEN TIMESTAMP '2026-01-01' AND TIMESTAMP '2026-02-01'",
    "opens_at BETWEEN '2026-01-01 08:00:00' AND '2026-02-01 08:00:00'",
    "at BETWEEN at - INTERVAL 1 DAY AND date_add(day, 1)",
    "at IS NOT DISTINCT FROM NULL",
    "at > day AND at > greatest(day, `next day`)",
    "to_timestamp(opens_at, 'HH:mm') < to_timestamp('08:00', 'HH:mm')",
    "to_timestamp(trim(opens_at), 'HH:mm') < at AND to_timestamp(CAST(n AS string), 'yyyyMMdd') < at",
    "CAST(floor(n / 1000) AS timestamp) < at",
    "CAST(opens_at AS timestamp_ntz) < TIMESTAMP_NTZ '2026-01-01'",
    "to_date(opens_at) < day AND to_date(opens_at, 'd.M.yyyy') < day",
    "CAST(n AS int) = 1 AND upper(opens_at) LIKE '%:(' AND array_contains(tags, 'a')",
    "exists(tags, t -> t = 'now')",
    "from_json(opens_at, 'a string').a = 'x' AND to_timestamp(opens_at, 'HH:mm') < at",
    "CAST(CAST(opens_at AS bigint) / 1000 AS timestamp) < at AND extract(second FROM opens_at) = 0",
    "at >= CAST('2026-01-01' AS date) AND at > to_date('1.2.2026', 'd.M.yyyy')",
    "make_date(2026, 1, 1) < at",
    "at >= add_months(DATE '2026-01-01', -3) AND coalesce(at, day) BETWEEN '2026-01-01' AND day",
    "CASE WHEN n = 1 THEN at ELSE day END < at AND CAST(at AS string) LIKE '2026%'",
    "equal_null(opens_at, '12:30') AND opens_at > '2026-01-01 00:00:00' AND nvl(at, day) > '2026-01-01'",
    f"n IN ({', '.join(map(str, range(99)))}) AND at - INTERVAL 1 DAY > '2026-01-01T00:00:00Z'",
    "day BETWEEN '2026-01-01' AND at AND hour(at) BETWEEN 8 AND 18 AND date(at) = '2026-01-01'",
)


def refused(spark: SparkSession, where: str) -> str | None:
    """Return why a condition is refused; Spark before 4 does not know some of these functions and casts."""
    try:
        return why_unstable(spark, where, COLUMNS)
    except AnalysisException as error:
        if spark.version >= "4":
            raise
        return f"of today and current_user, maybe: {error}"


def test_conditions_that_depend_on_the_day_or_the_user_of_a_merge_are_found(spark: SparkSession) -> None:
    with judging_settings(spark):
        found = {each: refused(spark, each) for each in OF_TODAY + OF_THE_USER + STABLE}
        own = why_unstable(spark, "opens_at = user", COLUMNS | {"user": "string"})
        with pytest.raises(AnalysisException, match="deterministic"):
            why_unstable(spark, "n > 1 AND uuid() > opens_at", COLUMNS)
        by_pattern = {each for each in BY_PATTERN if uses_patterns(spark, each, COLUMNS)}
        by_pattern |= {each for each in STABLE[:14] if uses_patterns(spark, each, COLUMNS)}
    wrong = {each for each in OF_TODAY if "today" not in (found[each] or "")}
    wrong |= {each for each in OF_THE_USER if "current_user" not in (found[each] or "")}
    wrong |= {each for each in STABLE if found[each] is not None}
    assert (wrong, own, by_pattern) == (set(), None, {*BY_PATTERN})


OF_ANY_SESSION = (
    "opens_at IN ('a', 'b-c') OR at IS NULL",
    "NOT (day >= DATE '2026-01-01' AND opens_at LIKE 'a%') AND at IS NOT NULL",
)
OF_A_SESSION = (
    "opens_at = 1",
    "n + 1 > 2",
    "n div 2 = 1",
    "-n < 0",
    "at < '2026-01-01'",
    "at > at2",
    "CAST('2026-01-01' AS timestamp) < '2026-01-02'",
    "TIMESTAMP '2026-01-01' < TIMESTAMP '2026-01-02'",
    "size(tags) < 3",
    "day = '2026-01-01'",
    "at IS NULL OR at > '2026-01-01'",
)


def test_conditions_that_the_zone_or_ansi_rules_may_decide_are_found(spark: SparkSession) -> None:
    columns = COLUMNS | {"at2": "timestamp"}
    found = {each: depends_on_session(spark, each, columns) for each in OF_ANY_SESSION + OF_A_SESSION}
    assert found == dict.fromkeys(OF_ANY_SESSION, False) | dict.fromkeys(OF_A_SESSION, True)
