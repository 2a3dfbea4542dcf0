"""Applies the JSON difference of a partial update to the old document. Pure.

Format and rules: MySQL's ``sql-common/json_diff.cc`` (`read_binary`, `apply_json_diffs`). A difference is a
list of operations, each with a path to one element; each acts on the result of the previous ones. Invariant:
an operation that does not fit the document is a `ValueError`, never skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from connector.mysql.codec.binary_json import Tree, json_tree, tree_text

_REPLACE, _INSERT, _REMOVE = range(3)

_LEG = re.compile(
    r"""\.\s*(?P<quoted>"(?:[^"\\]|\\.)*")
      | \.\s*(?P<name>[^\s."\[\]*]+)
      | \[\s*(?P<last>last\s*(?:-\s*(?P<back>\d+)\s*)?)\]
      | \[\s*(?P<index>\d+)\s*\]""",
    re.VERBOSE | re.DOTALL,
)


class _Leg(NamedTuple):
    """A member's name, or an index into an array; `from_end`: counted from its last element."""

    key: str | int
    from_end: bool = False

    def index_in(self, elements: int) -> int:
        assert isinstance(self.key, int)
        return elements - 1 - self.key if self.from_end else self.key


class _Operation(NamedTuple):
    """What to do at a path."""

    kind: int
    path: list[_Leg]
    value: Tree


def changed_text(before: bytes, difference: bytes) -> str:
    """Apply a difference to the old document and return the new document's text."""
    document = json_tree(before)
    for operation in _operations(difference):
        _carry_out(document, operation)
    return tree_text(document)


def _operations(data: bytes) -> Iterator[_Operation]:
    offset = 0
    try:
        while offset < len(data):
            kind = data[offset]
            path, offset = _text(data, offset + 1)
            value = b""
            if kind in (_REPLACE, _INSERT):
                value, offset = _text(data, offset)
            elif kind != _REMOVE:
                raise ValueError(f"unknown operation {kind} in a JSON difference")
            yield _Operation(kind, _legs(path.decode()), json_tree(value))
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"can't parse a JSON difference: {type(error).__name__}") from error


def _text(data: bytes, offset: int) -> tuple[bytes, int]:
    """Read length-prefixed bytes; return them and their end offset."""
    length, offset = data[offset], offset + 1
    if length >= 251:
        width = {252: 2, 253: 3, 254: 8}[length]
        length, offset = int.from_bytes(data[offset : offset + width], "little"), offset + width
    if offset + length > len(data):
        raise IndexError("a value reaches beyond its difference")
    return data[offset : offset + length], offset + length


def _legs(path: str) -> list[_Leg]:
    legs, offset = [], 1
    while offset < len(path):
        match = _LEG.match(path, offset)
        if match is None:
            break
        if match["quoted"] is not None:
            legs.append(_Leg(json.loads(match["quoted"], strict=False)))
        elif match["name"] is not None:
            legs.append(_Leg(match["name"]))
        elif match["last"] is not None:
            legs.append(_Leg(int(match["back"] or 0), from_end=True))
        else:
            legs.append(_Leg(int(match["index"])))
        offset = match.end()
    if path[:1] != "$" or offset != len(path) or not legs:
        raise ValueError("a path of a JSON difference is malformed")
    return legs


def _carry_out(document: Tree, operation: _Operation) -> None:
    parent = document
    for leg in operation.path[:-1]:
        parent = _step(parent, leg)
    leg = operation.path[-1]
    if operation.kind == _INSERT:
        _insert(parent, leg, operation.value)
        return
    _step(parent, leg)  # it must exist
    if isinstance(parent, dict):
        name = str(leg.key)
        if operation.kind == _REMOVE:
            del parent[name]
        else:
            parent[name] = operation.value
    elif isinstance(parent, list):
        index = leg.index_in(len(parent))
        parent[index : index + 1] = [] if operation.kind == _REMOVE else [operation.value]


def _step(parent: Tree, leg: _Leg) -> Tree:
    """Return the element at a leg."""
    if isinstance(parent, dict) and isinstance(leg.key, str) and leg.key in parent:
        return parent[leg.key]
    if isinstance(parent, list) and isinstance(leg.key, int):
        index = leg.index_in(len(parent))
        if 0 <= index < len(parent):
            return parent[index]
    raise ValueError("a JSON difference has a path that the old document lacks")


def _insert(parent: Tree, leg: _Leg, value: Tree) -> None:
    """Insert a new member in order, or an element before its index; beyond the end, append it."""
    if isinstance(parent, dict) and isinstance(leg.key, str) and leg.key not in parent:
        members = sorted([*parent.items(), (leg.key, value)], key=_order)
        parent.clear()
        parent.update(members)
    elif isinstance(parent, list) and isinstance(leg.key, int):
        parent.insert(max(0, leg.index_in(len(parent))), value)
    else:
        raise ValueError("a JSON difference adds to a path that the old document lacks")


def _order(member: tuple[str, Tree]) -> tuple[int, bytes]:
    """Return the sort key of members as MySQL stores them: length, then bytes."""
    name = member[0].encode()
    return len(name), name
