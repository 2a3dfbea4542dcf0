"""Reads what a query names, and what it would read, from the plans that EXPLAIN prints.

Spark has no other public interface to them, over Spark Connect least of all. The parsed plan needs none of
the tables to exist; the analyzed one needs all. A text is always explained as a subquery: what is no query,
or more than one, can't be parsed there, so nothing else is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from connector.errors import ConfigurationError
from connector.schema import fold
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def as_subquery(sql: str) -> str:
    """Return a query of the rows of another, which is nothing but a query then."""
    return f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n)"


def parsed(spark: SparkSession, sql: str) -> str:
    """Return a query's parsed plan. `ParseException` if it is not one query."""
    return _plan(spark, as_subquery(sql), "Parsed", "Analyzed")


def analyzed(spark: SparkSession, sql: str) -> str:
    """Return a query's analyzed plan; it is neither optimized nor planned further, as it has no rows."""
    return _plan(spark, f"{as_subquery(sql)} WHERE false", "Analyzed", "Optimized")


def _plan(spark: SparkSession, sql: str, wanted: str, following: str) -> str:
    text = "\n".join(row[0] for row in spark.sql(f"EXPLAIN EXTENDED {sql}").collect())
    _, found, plan = text.partition(f"== {wanted} Logical Plan ==")
    if not found:
        raise ConfigurationError(f"the query can't be explained: {text[:500]}")
    return plan.partition(f"== {following} Logical Plan ==")[0]


def foreign_relation(plan: str, views: Iterable[str]) -> str | None:
    """Return what a query reads besides these temporary views, by its analyzed plan."""
    own = {fold(quoted(name)) for name in views}
    within, alias = None, ""  # the depth of the view that we are in; the name that was given just above
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

    Names of its own, given by WITH, are not among them; if it is `recursive`, what such a name stands for may
    read itself. A name of several parts has commas: ``shop, orders``.
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
    """A WITH clause in a plan: the names it has given so far, and the one that is being defined.

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
        """Return whether a name in the part that is being read is one of these."""
        return name in self.names or (recursive and name == self.defining)

    def enter(self, depth: int, node: str) -> None:
        """Go on to the next node within the clause."""
        alias = node.lstrip("'").removeprefix(_ALIAS) if node.lstrip("'").startswith(_ALIAS) else None
        is_definition = depth == self.depth + 6 and not self.defined and alias is not None
        if (is_definition or depth == self.depth + 3) and self.defining is not None:
            self.names.add(self.defining)
            self.defining = None
        if is_definition and alias is not None:
            self.defining = fold(alias)
        self.defined = self.defined or depth == self.depth + 3


def _nodes(plan: str) -> Iterator[tuple[int, str]]:
    """Return depth and text of a plan's nodes but the first; each level is three characters deeper."""
    for line in plan.split("\n"):
        if found := _NODE.fullmatch(line):
            yield len(found[1]), found[2]


_NODE = re.compile(r"((?:[: ]  )*)[:+]- (.*)")
_ALIAS = "SubqueryAlias "
_RELATION = re.compile(r"'UnresolvedRelation \[(.*?)\], \[[^\]]*\], (?:true|false)")
_OWN_ROWS = ("OneRowRelation", "LocalRelation", "Range ", "CTERelationRef ", "UnionLoopRef ")
"""Leaves with rows that a query makes itself: literals, numbers, and what its WITH names."""
