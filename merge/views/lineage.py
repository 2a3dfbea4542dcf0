"""Proves, by Spark's plan of a view's query, how its rows follow from those of its tables. Pure; no Spark.

The proof reads the analyzed plan that EXPLAIN prints, not the query's text: in the plan, Spark has resolved
names, stars, ordinals, aliases and implicit casts its own way, and each column has an id (``id#12``). Every
operator must be of a known kind, and every function known to be deterministic; what is not recognized is not
proven. EXPLAIN prints literals as they are, so a text may look like a part of the plan. But it can't have the
id of a column, since Spark renumbers columns in each analysis. So what is taken for a column is one, and
whatever else a literal looks like can only prevent a proof. Two kinds of texts could look like something
without an id, and are left out: constants in GROUP BY, since ``'count(1)'`` is printed like that aggregate;
and columns next to a name with an unbalanced bracket, since several are then read as one.

What is proven (`Lineage`):

- A *driving* table and *lookups*: each row before grouping is made of one row of the driving table, and of
  those rows of each lookup whose key columns equal columns of its parent: the driving table, or another
  lookup. A part of the key is enough. Inner joins count in any order. On the right of a LEFT, LEFT SEMI or
  LEFT ANTI join must be one lookup, equated in that join's own condition: conditions elsewhere don't decide
  which row it finds.
- The *identity*: columns of the output that tell which rows of the driving table an output row is made of:
  the driving table's key, copied as it is, or all expressions of GROUP BY.

So output rows of an identity depend on the driving rows that have it, and on what these look up; on no other
row of any table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from connector.schema import decimal_of, fold
from merge.reading.plan_text import Node, UnreadablePlanError, conjuncts, items_of, lists_after, tree_of
from merge.sql_formatting import quoted
from merge.views.determinism import (
    SUBQUERY,
    TIMES_OF_TODAY,
    depends_in_plan,
    depends_in_text,
    may_be_of_today,
)

IDENTITY_TYPES = frozenset(
    "tinyint smallint int bigint string binary boolean date timestamp timestamp_ntz".split()
)
"""Types that identify rows, besides decimals. Not floats: -0.0 equals 0.0."""

_INTEGERS = ("tinyint", "smallint", "int", "bigint")

_KINDS = {
    "Distinct": "it has DISTINCT",
    "Deduplicate": "it drops duplicates",
    "GlobalLimit": "it has LIMIT",
    "LocalLimit": "it has LIMIT",
    "Offset": "it has OFFSET",
    "Sample": "it has TABLESAMPLE",
    "Window": "it has a window function",
    "Union": "it has UNION",
    "Except": "it has EXCEPT",
    "Intersect": "it has INTERSECT",
    "Expand": "it groups by several sets (ROLLUP, CUBE, GROUPING SETS)",
    "Generate": "it makes several rows of one (explode, LATERAL VIEW)",
    "LateralJoin": "it has LATERAL",
    "Pivot": "it has PIVOT",
    "WithCTE": "it has WITH: write a subquery in FROM instead",
    "ResolvedHint": "it has a hint",
}
"""What the user wrote, by the node that Spark makes of it."""

NESTED = "it aggregates within a join or another aggregate"
_LEFT = ("LeftOuter", "LeftSemi", "LeftAnti")
_ID = re.compile(r"#(\d+)L?$")
_HAS_ID = re.compile(r"#\d")
_NAMED = r" AS [^#]*#(\d+)L?"
_BARE = re.compile(rf"\w+#(\d+)L?(?:{_NAMED})?")
_CUT_SHORT = re.compile(r"\.\.\. \d+ more fields")
_SIDE = re.compile(r"\w+#(\d+)L?|cast\(\w+#(\d+)L? as (bigint|decimal\((\d+),0\))\)")


class NotIncrementalError(Exception):
    """the view must be refreshed in full; the text says why."""


@dataclass(frozen=True)
class Relation:
    """What a query names: types by column, in order.

    `key`: of a table's current rows, which change only with landed events; of anything else ().
    """

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]


@dataclass(frozen=True)
class Lookup:
    """A table joined by columns of its key; `pairs`: each of these, and the column of `parent` it equals."""

    name: str
    parent: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Lineage:
    """How a query's rows follow from those of its tables. `lookups`: each after its parent.

    `identity`: columns of the output. If `grouped`, these are the groups; else each has the value of the
    column of the driving table's key at the same place in `key`.
    """

    driving: str
    lookups: tuple[Lookup, ...]
    identity: tuple[str, ...]
    key: tuple[str, ...]
    grouped: bool


def lineage_of(plan: str, sql: str, output: Mapping[str, str], relations: Sequence[Relation]) -> Lineage:
    """Prove the lineage of a query, by its analyzed plan (`merge.reading.query_plans.analyzed`).

    `output`: types of its columns by name, in order. `relations`: what it may read. `NotIncrementalError`
    says why it is not proven.
    """
    if (reason := depends_in_text(sql)) is not None:
        raise NotIncrementalError(reason)
    try:
        return _lineage_of(tree_of(plan), output, relations)
    except UnreadablePlanError:
        raise NotIncrementalError("its plan can't be read") from None


def _lineage_of(root: Node, output: Mapping[str, str], relations: Sequence[Relation]) -> Lineage:
    reader = _Reader({fold(quoted(each.name)): each for each in relations})
    reader.read(_body(root))
    if any(may_be_of_today(text, reader.type_of) for text in reader.texts):
        raise NotIncrementalError(TIMES_OF_TODAY)
    ids = dict(zip(output, _ids_of(root.text, "Project [", list(output), "]"), strict=True))
    keyless = next((name for name in reader.leaves if not reader.relation(name).key), None)
    if keyless is not None:
        raise NotIncrementalError(f"it reads {keyless}, which has no current rows of a table with a key")
    return reader.grouped_lineage(ids, output) if reader.groups is not None else reader.keyed_lineage(ids)


def _child(node: Node) -> Node:
    if len(node.children) != 1:
        raise NotIncrementalError(SUBQUERY if node.children else f"its plan has {node.kind}")
    return node.children[0]


def _body(root: Node) -> Node:
    """Return the query's own plan, without what `analyzed` puts around it."""
    condition = _child(root)
    alias = _child(condition)
    if (root.kind, condition.text, alias.kind) != ("Project", "Filter false", "SubqueryAlias"):
        raise UnreadablePlanError
    return _child(alias)


def _ids_of(text: str, before: str, names: Sequence[str], after: str) -> list[int]:
    """Return the ids of columns with known names in a node's text, between two others."""
    columns = ", ?".join(re.escape(name) + r"#(\d+)L?" for name in names)
    found = re.fullmatch(f"{re.escape(before)}{columns}{re.escape(after)}", text)
    if found is None:
        raise UnreadablePlanError
    return [int(id_) for id_ in found.groups()]


@dataclass
class _Reader:
    """What is known of a plan, from the top down; ids are unique in all of it.

    `columns`: table and column by id. `copies`: ids of columns that only rename others. `edges`: for each
    condition of inner joins, pairs of ids that it equates; `of_left`: the same for the table on the right of
    a left join. `groups`: texts of the expressions of GROUP BY, except for constants; `of_group`: which of
    them has an id. `texts`: of the nodes.
    """

    relations: Mapping[str, Relation]
    leaves: list[str] = field(default_factory=list)
    columns: dict[int, tuple[str, str]] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)
    edges: list[tuple[int, int]] = field(default_factory=list)
    of_left: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    groups: list[str] | None = None
    of_group: dict[int, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def relation(self, name: str) -> Relation:
        """Return a relation by its name in the query."""
        return self.relations[fold(quoted(name))]

    def read(self, node: Node, *, filtered: bool = False, joined: bool = False) -> None:
        """Read a node and those below; `filtered`, `joined`: whether there is a filter or join above it."""
        kind = node.kind
        if kind == "View":
            return self._leaf(node)
        if kind == "SubqueryAlias":
            return self.read(_child(node), filtered=filtered, joined=joined)
        if (reason := depends_in_plan(node.text)) is not None:
            raise NotIncrementalError(reason)
        if _CUT_SHORT.search(node.text):  # where a platform refuses the setting that prints all of it
            raise UnreadablePlanError
        self.texts.append(node.text)
        if kind == "Join":
            return self._join(node)
        if kind == "Aggregate":
            if filtered or joined or self.groups is not None:
                raise NotIncrementalError("it filters groups (HAVING)" if filtered else NESTED)
            self._aggregate(node)
        elif kind == "Project":
            self._project(node)
        elif kind not in ("Filter", "Sort"):
            raise NotIncrementalError(_KINDS.get(kind, f"its plan has {kind}"))
        return self.read(_child(node), filtered=filtered or kind == "Filter", joined=joined)

    def _leaf(self, node: Node) -> None:
        found = re.match(r"View \((.*?), \[", node.text)
        relation = self.relations.get(fold(found[1])) if found else None
        if relation is None or found is None:
            raise UnreadablePlanError
        if relation.name in self.leaves:
            raise NotIncrementalError(f"it reads {relation.name} twice")
        self.leaves.append(relation.name)
        ids = _ids_of(node.text, found[0], list(relation.columns), "])")
        self.columns |= {id_: (relation.name, name) for id_, name in zip(ids, relation.columns, strict=True)}

    def _project(self, node: Node) -> None:
        for item in items_of(lists_after(node.text, "Project ")[0]):
            found = _BARE.fullmatch(item)
            if found is not None and found[2] is not None:
                self.copies[int(found[2])] = int(found[1])

    def _aggregate(self, node: Node) -> None:
        lists = lists_after(node.text, "Aggregate ")
        if len(lists) != 2 or not lists[0]:
            raise NotIncrementalError("it aggregates all rows into one (no GROUP BY)")
        self.groups = [group for group in items_of(lists[0]) if _HAS_ID.search(group)]
        if not self.groups:
            raise NotIncrementalError("it groups by constants alone")
        for item in items_of(lists[1]):
            for group in self.groups:
                id_ = _ID.search(group) if item == group else None
                if item.startswith(group):
                    id_ = re.fullmatch(_NAMED, item[len(group) :]) or id_
                if id_ is not None:
                    self.of_group[int(id_[1])] = group

    def _join(self, node: Node) -> None:
        found = re.fullmatch(r"Join (\w+)(?:, (.*))?", node.text)
        if found is None or len(node.children) != 2:
            raise NotIncrementalError(SUBQUERY)
        kind, condition = found[1], found[2] or ""
        if kind not in ("Inner", *_LEFT):
            raise NotIncrementalError(f"it has a join of kind {kind}")
        left, right = node.children
        self.read(left, joined=True)
        known = len(self.leaves)
        self.read(right, joined=True)
        equal = list(_equalities(condition, self.type_of))
        if kind == "Inner":
            self.edges += equal
        elif len(self.leaves) != known + 1:
            raise NotIncrementalError("it left-joins several tables at once")
        else:
            self.of_left[self.leaves[-1]] = equal

    def _source(self, id_: int) -> tuple[str, str] | None:
        """Return the table and column whose values a column has, or None."""
        while id_ not in self.columns and id_ in self.copies:
            id_ = self.copies[id_]
        return self.columns.get(id_)

    def type_of(self, id_: int) -> str | None:
        """Return the type of a column, or None; asked when all columns are known."""
        source = self._source(id_)
        return None if source is None else self.relation(source[0]).columns[source[1]]

    def _lookups(self, driving: str) -> tuple[Lookup, ...] | None:
        """Return all other tables as lookups from `driving`; None if they are not."""
        reached, lookups = [driving], list[Lookup]()
        while len(reached) < len(self.leaves):
            found = (
                Lookup(name, parent, pairs)
                for name in self.leaves
                if name not in reached
                for parent in reached
                if (pairs := self._pairs(name, parent))
            )
            lookup = next(found, None)
            if lookup is None:
                return None
            reached.append(lookup.name)
            lookups.append(lookup)
        return tuple(lookups)

    def _pairs(self, name: str, parent: str) -> tuple[tuple[str, str], ...]:
        """Return the columns of a table's key that must equal columns of `parent`, with these."""
        pairs: dict[str, str] = {}
        for one, other in self.of_left.get(name, self.edges):
            for own, its in (
                (self._source(one), self._source(other)),
                (self._source(other), self._source(one)),
            ):
                if own and its and (own[0], its[0]) == (name, parent) and own[1] in self.relation(name).key:
                    pairs.setdefault(own[1], its[1])
        return tuple(pairs.items())

    def keyed_lineage(self, ids: Mapping[str, int]) -> Lineage:
        """Return the lineage of a query without groups; `ids`: of its columns."""
        sources = {source: name for name, id_ in ids.items() if (source := self._source(id_))}
        for name in self.leaves:
            key = self.relation(name).key
            if name in self.of_left or not all((name, column) in sources for column in key):
                continue
            if (lookups := self._lookups(name)) is not None:
                _check_types(self.relation(name).columns[column] for column in key)
                return Lineage(name, lookups, tuple(sources[name, column] for column in key), key, False)
        if len(self.leaves) > 1:
            raise NotIncrementalError(
                "no table with its whole key in the output joins all others by their keys"
            )
        raise NotIncrementalError("its output lacks a column of the table's key")

    def grouped_lineage(self, ids: Mapping[str, int], output: Mapping[str, str]) -> Lineage:
        """Return the lineage of a query with groups; `ids` and types of its columns."""
        shown = {group: name for name, id_ in ids.items() if (group := self._group(id_))}
        if not all(group in shown for group in self.groups or ()):
            raise NotIncrementalError("its output lacks a column of the GROUP BY")
        for name in self.leaves:
            if name not in self.of_left and (lookups := self._lookups(name)) is not None:
                identity = tuple(dict.fromkeys(shown[group] for group in self.groups or ()))
                _check_types(output[column] for column in identity)
                key = self.relation(name).key
                _check_types(self.relation(name).columns[column] for column in key)
                return Lineage(name, lookups, identity, key, True)
        raise NotIncrementalError("no table joins all others by their keys")

    def _group(self, id_: int) -> str | None:
        while id_ not in self.of_group and id_ in self.copies:
            id_ = self.copies[id_]
        return self.of_group.get(id_)


def _check_types(types: Iterable[str]) -> None:
    for type_ in types:
        if type_ not in IDENTITY_TYPES and decimal_of(type_) is None:
            raise NotIncrementalError(f"its rows are identified by a column of type {type_}")


def _equalities(condition: str, type_of: Callable[[int], str | None]) -> Iterator[tuple[int, int]]:
    """Return the pairs of columns that a condition equates, as ids."""
    for conjunct in conjuncts(condition):
        sides = [_SIDE.fullmatch(side) for side in conjunct.split(" = ")]
        if len(sides) != 2:
            continue
        ids = [_id_of_side(side, type_of) for side in sides]
        if ids[0] is not None and ids[1] is not None:
            yield ids[0], ids[1]


def _id_of_side(side: re.Match[str] | None, type_of: Callable[[int], str | None]) -> int | None:
    """Return the id of a column, or of one that is only cast to a type that has all of its values."""
    if side is None:
        return None
    if side[1] is not None:
        return int(side[1])
    widens = type_of(int(side[2])) in _INTEGERS and (side[4] is None or int(side[4]) >= 20)
    return int(side[2]) if widens else None
