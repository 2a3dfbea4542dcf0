"""Parses the text of an analyzed plan, as EXPLAIN prints it: nodes, lists, and conditions. Pure.

Texts and names of a query are printed as they are, so parentheses, commas and words in them can mislead every
function here; callers must not conclude anything from text that could be such a literal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

SUBQUERY = "Subquery"
"""The text of the node that stands for a subquery of its parent's expressions."""

_NODE = re.compile(r"((?:[: ]  )*)[:+]- (.*)")


class UnreadablePlanError(Exception):
    """the plan is not printed as expected."""


@dataclass
class Node:
    """One operator of a plan. Subqueries in its expressions are its first children."""

    text: str
    children: list[Node] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Return the operator's name."""
        return self.text.partition(" ")[0]


def tree_of(plan: str) -> Node:
    """Parse a plan. The first line lists its output; a level is three characters of indent."""
    _, *lines = plan.strip("\n").split("\n")
    if not lines:
        raise UnreadablePlanError
    root = Node(lines[0])
    path = [root]
    for line in lines[1:]:
        found = _NODE.fullmatch(line)
        level = len(found[1]) // 3 + 1 if found else 0
        if found is None or level > len(path) + 1:
            raise UnreadablePlanError
        if level > len(path):  # a subquery is two levels deeper than the operator that has it
            path[-1].children.append(Node(SUBQUERY))
            path.append(path[-1].children[-1])
        node = Node(found[2])
        del path[level:]
        path[-1].children.append(node)
        path.append(node)
    return root


def lists_after(text: str, before: str) -> list[str]:
    """Return the contents of the bracketed lists that follow `before` and end the text."""
    lists, at = [], len(before)
    while text[at : at + 1] == "[":
        end = closing(text, at)
        lists.append(text[at + 1 : end])
        at = end + 1 + (2 if text.startswith(", [", end + 1) else 0)
    if at != len(text):
        raise UnreadablePlanError
    return lists


def items_of(text: str, by: str = ", ") -> list[str]:
    """Split the content of a list, or of another sequence, where no parenthesis or bracket is open."""
    return _split(text, by) if text else []


def conjuncts(condition: str) -> Iterator[str]:
    """Split a condition at its ANDs, without the parentheses around each part."""
    while condition.startswith("(") and closing(condition, 0) == len(condition) - 1:
        condition = condition[1:-1]
    parts = _split(condition, " AND ")
    if len(parts) == 1:
        yield condition
    else:
        for part in parts:
            yield from conjuncts(part)


def closing(text: str, at: int) -> int:
    """Return where the parenthesis or bracket that opens at an index closes; the end if it does not."""
    depth = 0
    for index in range(at, len(text)):
        depth += (text[index] in "([") - (text[index] in ")]")
        if depth == 0:
            return index
    return len(text)


def _split(text: str, by: str) -> list[str]:
    """Split a text where no parenthesis or bracket is open."""
    parts, depth, first, at = [], 0, 0, 0
    while at < len(text):
        if depth == 0 and text.startswith(by, at):
            parts.append(text[first:at])
            first = at = at + len(by)
            continue
        depth += (text[at] in "([") - (text[at] in ")]")
        at += 1
    return [*parts, text[first:]]
