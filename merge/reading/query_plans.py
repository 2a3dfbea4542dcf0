"""Finds the tables that a query names, and those that it would read, in the plans that EXPLAIN prints.

Spark has no other public interface to plans, least of all over Spark Connect. The parsed plan does not need
the tables to exist; the analyzed one does. A text is always explained as a subquery, where anything but a
single query fails to parse, so nothing else is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from connector.errors import ConfigurationError
from connector.schema import fold
from merge.lake.retry import first_line
from merge.spark.session_settings import whole_plans
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import SparkSession


def as_subquery(sql: str) -> str:
    """Wrap a text as a subquery, in which only a query can be parsed."""
    return f"SELECT * FROM (\n{sql.rstrip().rstrip(';')}\n)"


def refusal(error: AnalysisException) -> str:
    """Return why Spark refuses a query that was given to it by `as_subquery`: its own lines are counted."""
    return in_own_lines(first_line(error))


def in_own_lines(refused: str) -> str:
    """Count the lines of the query itself in Spark's words on what it was given by `as_subquery`."""
    return re.sub(r"(?<=\bline )\d+(?=,? pos)", lambda found: str(int(found[0]) - 1), refused).rstrip(";")


def parsed(spark: SparkSession, sql: str) -> str:
    """Return a query's parsed plan. `ParseException` if it is not one query."""
    return _plan(spark, as_subquery(sql), "Parsed", "Analyzed")


def analyzed(spark: SparkSession, sql: str) -> str:
    """Return a query's analyzed plan; without rows, it is neither optimized nor planned further."""
    return _plan(spark, f"{as_subquery(sql)} WHERE false", "Analyzed", "Optimized")


def analyzed_and_optimized(spark: SparkSession, query: str) -> tuple[str, str]:
    """Return two plans of a query that can be analyzed; `ConfigurationError` if it can't be optimized."""
    text = _explained(spark, query)
    optimized = _between(text, "Optimized Logical", "Physical").lstrip()
    if not optimized[:1].isupper():  # not an operator, but an exception
        raise ConfigurationError(f"the query can't be optimized: {optimized[:500]}")
    return _between(text, "Analyzed Logical", "Optimized Logical"), optimized


def _plan(spark: SparkSession, sql: str, wanted: str, following: str) -> str:
    return _between(_explained(spark, sql), f"{wanted} Logical", f"{following} Logical")


def _explained(spark: SparkSession, sql: str) -> str:
    with whole_plans(spark):
        return "\n".join(row[0] for row in spark.sql(f"EXPLAIN EXTENDED {sql}").collect())


def _between(text: str, wanted: str, following: str) -> str:
    _, found, plan = text.partition(f"== {wanted} Plan ==")
    if not found:
        raise ConfigurationError(f"the query can't be explained: {text[:500]}")
    return plan.partition(f"== {following} Plan ==")[0]


def foreign_relation(plan: str, views: Iterable[str]) -> str | None:
    """Return a relation that a query reads besides these temporary views, by its analyzed plan, or None."""
    own = {fold(quoted(name)) for name in views}
    within, alias = None, ""  # the depth of the view that we are in; the name on the line above
    for (depth, node), (following, _) in pairwise([*_nodes(plan), (0, "")]):
        if within is not None and depth > within:
            continue
        view = re.match(r"View \((.*?), \[", node)
        within = depth if view and fold(view[1]) in own else None
        if view and within is None:
            return view[1]
        if within is None and following <= depth and not node.startswith(_OWN_ROWS):
            return alias or node.partition("[")[0].strip()
        alias = node.removeprefix(_ALIAS) if node.startswith(_ALIAS) else ""
    return None


def relations(plan: str, *, recursive: bool = False) -> list[str]:
    """Return the names of the tables that a query reads, by its parsed plan, each once.

    Names that the query defines by WITH are left out; if `recursive`, such a definition may read itself. The
    parts of a name are separated by commas: ``shop, orders``.
    """
    found: dict[str, None] = {}
    scopes: list[_With] = []
    for depth, node in _nodes(plan):
        while scopes and depth <= scopes[-1].depth:
            scopes.pop()
        for scope in scopes:
            scope.enter(depth, node)
        if node.startswith("CTE ["):
            scopes.append(_With(depth))
        for name in _RELATION.findall(node):
            if not any(scope.has(fold(name), recursive) for scope in scopes):
                found[name] = None
    return list(found)


@dataclass
class _With:
    """A WITH clause in a plan: the names defined so far, and the one being defined.

    ::

        CTE [a, b]
        :  :- SubqueryAlias a          two levels deeper: a definition, which sees those before it
        :  +- SubqueryAlias b
        +- Project                     one level deeper: the query, which sees all of them
    """

    depth: int
    names: set[str] = field(default_factory=set)
    defining: str | None = None
    defined: bool = False

    def has(self, name: str, recursive: bool) -> bool:
        """Return whether a name at the current point is one that this clause defines."""
        return name in self.names or (recursive and name == self.defining)

    def enter(self, depth: int, node: str) -> None:
        """Advance to the next node within the clause."""
        alias = node.lstrip("'").removeprefix(_ALIAS) if node.lstrip("'").startswith(_ALIAS) else None
        is_definition = depth == self.depth + 6 and not self.defined and alias is not None
        if (is_definition or depth == self.depth + 3) and self.defining is not None:
            self.names.add(self.defining)
            self.defining = None
        if is_definition and alias is not None:
            self.defining = fold(alias)
        self.defined = self.defined or depth == self.depth + 3


def _nodes(plan: str) -> Iterator[tuple[int, str]]:
    """Return depth and text of a plan's nodes except the first; a level is three characters of indent."""
    for line in plan.split("\n"):
        if found := _NODE.fullmatch(line):
            yield len(found[1]), found[2]


_NODE = re.compile(r"((?:[: ]  )*)[:+]- (.*)")
_ALIAS = "SubqueryAlias "
_RELATION = re.compile(r"'UnresolvedRelation \[(.*?)\], \[[^\]]*\], (?:true|false)")
_OWN_ROWS = ("OneRowRelation", "LocalRelation", "Range ", "CTERelationRef ", "UnionLoopRef ")
"""Leaves whose rows the query makes itself: literals, ranges of numbers, and names defined by WITH."""
