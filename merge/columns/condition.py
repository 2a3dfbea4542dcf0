"""Judges whether a `where` has the same answer for a row whenever, and by whomever, a merge is run.

What its text shows is refused with the configuration. Here, Spark itself refuses what is random: as the
condition of a join. The analyzed plan that EXPLAIN prints shows what else the run decides, and the optimized
one what only the columns' types tell: that a text becomes a timestamp, which of a time alone ('12:30') is one
of today. Only there are all casts printed: the analyzed plan has functions that Spark replaces (BETWEEN, nvl,
a text less an interval) as they were called. Functions that are not known are accepted, unlike in views
(`merge.views.determinism`), of which a doubt costs only a full refresh.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from connector.landing.format import CDC
from merge.reading.query_plans import analyzed_and_optimized
from merge.spark.session_settings import FORMER, JSON, LITERAL, PARSER, analyzes_late, unfolded_settings
from merge.sql_formatting import quoted
from merge.views.determinism import (
    DEPENDS_ON_TIME,
    TIMES_OF_TODAY,
    may_be_of_today,
    may_be_special,
    names_moment,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_THE_RUN = re.compile(r"\b(current_\w+|localtime\w*|session_user|user|variablereference)\(")
"""How functions are printed that need no parentheses. They may be called unless a column has their name."""

_OF_THE_CLOCK = re.compile(r"\b(hour|minute|second|secondwithfraction)\(cast\((\w+#\d+)L? as timestamp\)")
"""What is the same on each day, in UTC."""

_BY_PATTERN = re.compile(
    r"\b(gettimestamp|(?:to_)?unix_timestamp|from_unixtime|date_format|(?:from|to)_(?:json|csv|xml))\(",
    re.IGNORECASE,
)
"""What Spark's former parser, a session's choice, reads or writes in another way."""

_OF_JSON = re.compile(r"\b(?:from|to|schema_of)_(?:json|csv|xml)\(", re.IGNORECASE)
"""What settings of `JSON` decide: what an unreadable part takes along, its field, and whether nulls
are written.
"""

_NULL_OR_NOT = re.compile(r"\bis(?:not)?null\(\w+#\d+L?\)")
_COMPUTES = re.compile(r"\w\(| (?:[-+*/%|&^]|div) |-\w+#")
"""What the session's time zone or its ANSI rules may decide: a cast, a function, a sum, an instant."""

_WRITTEN = {
    "spark.sql.variable.substitute": "${",
    "spark.sql.parser.escapedStringLiterals": "\\",
    "spark.sql.parser.quotedRegexColumnNames": "`",
    "spark.sql.ansi.doubleQuotedIdentifiers": '"',
}
"""Settings by which a text is read in another way, if it has these characters."""

_OF_TYPES = "spark.sql.timestampType"
"""Of the settings that are `LITERAL`, the one by which expressions make instants, or times without a zone."""

_MADE = re.compile(r"^[:+ -]*Project \[.*\brand\(.*", re.MULTILINE)
"""The projection that makes the columns; a condition with such a function is refused."""


def why_unstable(spark: SparkSession, condition: str, columns: Mapping[str, str]) -> str | None:
    """Return why a condition's answer may differ between merges, or None.

    `columns`: those that it may use, with their types. `AnalysisException` if it can't be analyzed, or is
    random.
    """
    analyzed, optimized, unfolded = _plans(spark, condition, columns)
    return why_unstable_in(analyzed, optimized if unfolded else f"{optimized}\n{analyzed}", columns)


def uses_patterns(spark: SparkSession, condition: str, columns: Mapping[str, str]) -> bool:
    """Return whether a condition reads texts as times, or writes them, by a pattern."""
    return _calls(_BY_PATTERN, spark, condition, columns)


def _calls(
    functions: re.Pattern[str], spark: SparkSession, condition: str, columns: Mapping[str, str]
) -> bool:
    return any(functions.search(plan) for plan in _plans(spark, condition, columns)[:2])


def why_otherwise(
    spark: SparkSession, condition: str, columns: Mapping[str, str], otherwise: Mapping[str, str | None]
) -> str | None:
    """Return why a session would not evaluate a condition as merges do, or None.

    `otherwise`: what it has set otherwise (`judging_settings`). Most of it counts when a frame is analyzed,
    which is now, but over Spark Connect whenever the frame is used.
    """
    of_types = [name for name in (_OF_TYPES,) if otherwise.get(name) is not None]  # unset, it is a merge's
    meanings = [*of_types, *(name for name in otherwise if name not in LITERAL)]
    of_json = (name for name in otherwise if name.startswith(JSON))
    read = (name for name, written in _WRITTEN.items() if name in otherwise and written in condition)
    if (otherwise.get(PARSER) or "").upper() == FORMER and uses_patterns(spark, condition, columns):
        name, what = PARSER, "a where with a pattern of times"
    elif (name := next(of_json, "")) and _calls(_OF_JSON, spark, condition, columns):
        what = "a where that reads or writes JSON, CSV or XML"
    elif not analyzes_late(spark):
        return None
    elif name := next(read, ""):
        what = f"over Spark Connect, a where with {_WRITTEN[name]}"
    elif meanings and depends_on_session(spark, condition, columns):
        name, what = meanings[0], "over Spark Connect, a where that may compute or compare instants"
    else:
        return None
    return f"{name} is {otherwise[name]} in this session: {what} could hold of other rows than in merges"


def depends_on_session(spark: SparkSession, condition: str, columns: Mapping[str, str]) -> bool:
    """Return whether a condition does more than compare columns, no instants, with values of their types."""
    analyzed = _NULL_OR_NOT.sub("", _MADE.sub("", _plans(spark, condition, columns)[0]))
    instants = (re.escape(name) for name, type_ in columns.items() if "timestamp" in type_)
    compared = any(re.search(rf"(?<!\w){name}#", analyzed) for name in instants)
    return compared or "timestamp" in condition.lower() or _COMPUTES.search(analyzed) is not None


def _plans(spark: SparkSession, condition: str, columns: Mapping[str, str]) -> tuple[str, str, bool]:
    """Return a condition's analyzed and optimized plan, and whether constants are as they were written."""
    unknown = [
        f"if(rand() < 2, NULL, CAST(NULL AS {type_})) AS {quoted(name)}" for name, type_ in columns.items()
    ]
    rows = f"SELECT {', '.join(unknown) or 'rand()'}"
    sql = f"SELECT 1 FROM (SELECT 1 AS {CDC}) JOIN ({rows}) ON (\n{condition}\n)"
    _ = spark.sql(sql).schema  # analyzes it; EXPLAIN would print the error in the plan's place
    with unfolded_settings(spark) as unfolded:
        return *analyzed_and_optimized(spark, sql), unfolded


def why_unstable_in(analyzed: str, optimized: str, columns: Mapping[str, str]) -> str | None:
    """Return the same by two plans, in which the columns are made of random numbers. Pure.

    Where a platform folds constants, the second one is followed by the first.
    """
    types = dict[int, str]()
    for name, type_ in columns.items():
        if found := re.search(rf" AS {re.escape(name)}#(\d+)", analyzed):
            types[int(found[1])] = type_
            analyzed, optimized = (  # names may have blanks
                plan.replace(f"{name}#{found[1]}", f"column#{found[1]}") for plan in (analyzed, optimized)
            )
    analyzed, optimized = (_OF_THE_CLOCK.sub(r"\1(\2", _MADE.sub("", plan)) for plan in (analyzed, optimized))
    if called := _OF_THE_RUN.search(analyzed):
        return f"it calls {called[1]}"
    if names_moment(analyzed) or names_moment(optimized) or may_be_special(analyzed, types.get):
        return DEPENDS_ON_TIME
    return TIMES_OF_TODAY if may_be_of_today(optimized, types.get) else None
