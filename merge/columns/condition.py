"""Judges whether a `where` has the same answer for a row whenever, and by whomever, a merge is run.

What its text shows is refused with the configuration. Here, the plan that EXPLAIN prints also shows what only
the columns' types tell: that a text becomes a timestamp, which of a time alone ('12:30') is one of today.
Functions that are not known are accepted, unlike in views (`merge.views.determinism`), of which a doubt costs
only a full refresh.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from merge.reading.query_plans import analyzed
from merge.sql_formatting import quoted
from merge.views.determinism import DEPENDS_ON_TIME, TIMES_OF_TODAY, may_be_of_today, names_moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_THE_RUN = re.compile(r"\b(current_\w+|localtime\w*|session_user|user)\(")
"""How functions are printed that need no parentheses. They may be called unless a column has their name."""

_PARSED_INSIDE = re.compile(
    r"\b(?:from_json|from_csv|from_xml|variant_get|try_variant_get)\(.*\bTimestampType\b"
)
_OF_THE_CLOCK = re.compile(r"\b(hour|minute|second)\(cast\((\w+#\d+)L? as timestamp\)")
"""What is the same on each day, in UTC."""


def why_unstable(spark: SparkSession, condition: str, columns: Mapping[str, str]) -> str | None:
    """Return why a condition's answer may differ between merges, or None.

    `columns`: those that it may use, with their types. `AnalysisException` if it can't be analyzed.
    """
    nulls = [f"CAST(NULL AS {type_}) AS {quoted(name)}" for name, type_ in columns.items()]
    rows = f"SELECT {', '.join(nulls) or 'NULL'}"
    plan = analyzed(spark, f"SELECT * FROM ({rows}) WHERE (\n{condition}\n)")
    return why_unstable_in(plan, columns, typed="timestamp" in condition.lower())


def why_unstable_in(plan: str, columns: Mapping[str, str], *, typed: bool = True) -> str | None:
    """Return the same by a plan whose last projection makes the columns. Pure.

    `typed`: whether the condition may have constants of type timestamp, all of which say so.
    """
    text, _, made = plan.rpartition("Project [")
    types = dict[int, str]()
    for name, type_ in columns.items():
        if found := re.search(rf" AS {re.escape(name)}#(\d+)", made):
            types[int(found[1])] = type_
            text = text.replace(f"{name}#{found[1]}", f"column#{found[1]}")  # names may have blanks
    text = _OF_THE_CLOCK.sub(r"\1(\2", text)
    if called := _OF_THE_RUN.search(text):
        return f"it calls {called[1]}"
    if names_moment(text):
        return DEPENDS_ON_TIME
    if may_be_of_today(text, types.get, typed=typed) or _PARSED_INSIDE.search(text):
        return TIMES_OF_TODAY
    return None
