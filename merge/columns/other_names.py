"""Finds columns that may be a masked or excluded one under another name, from a table's layouts. Pure.

Layouts carry neither dates nor renames (for those that the agent has seen in catalog or log, see
`connector.landing.column_names`). So this compares names, order and types, and reports every column
that may be the same, even if a table is stopped at another one already: whoever answers for that one would
let the other pass::

    before            after                        may be ssn
    id, ssn, note     id, old, note                old: the table never had both
    id, ssn, note     id, old, note, ssn           old: ssn became old, then a new ssn was added
    id, ssn           id, old, ssn                 old, of the same type: ssn renamed, or added in front
    id, ssn, note     id, note, ssn                note, of the same type: the two were swapped
    id, ssn, a, b     id, a, b, ssn                a and b, of the same type: each was given another's name
    id, ssn, a        id, note, a                  note, of the same type, even if another layout has both:
                                                   note became a, and ssn note
    id, ssn, note     id, note                     note, if it had another type, and has that of ssn now
    id, a, b, ssn     id, b, a                     a, of the same type: it is not where it was
    id, ssn, note     id, note, new                note, if all types are the same: note became new, and ssn
                                                   note
    id, ssn, note     id, ssn, note, other         none: a new column comes after the existing ones
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

Layout = Mapping[str, str]
"""The folded names of a layout's columns, in order, with their types."""

NEVER_BOTH = "the table never had both"
IN_ITS_PLACE = "in one layout it is where that one is in another"


def other_names(hidden: str, layouts: Sequence[Layout]) -> dict[str, str]:
    """Return the columns that may be `hidden` under another name, each with the reason."""
    having = [layout for layout in layouts if hidden in layout]
    if not having:
        return {}
    beside = {name for layout in having for name in layout}
    found = {name: NEVER_BOTH for layout in layouts for name in layout if name not in beside}
    for one, other in product(having, (layout for layout in layouts if hidden not in layout)):
        names = _taken_over(hidden, one, other, having)
        if not any(other.keys() <= each.keys() for each in having):  # then it was just dropped
            names += _renamed_alone(hidden, one, other)
        found = dict.fromkeys(names, IN_ITS_PLACE) | found
    for one, other in combinations(having, 2):
        found |= dict.fromkeys(_of_pair(hidden, one, other), IN_ITS_PLACE)
    return found


def _of_pair(hidden: str, one: Layout, other: Layout) -> Iterator[str]:
    """Yield the columns that may be `hidden`, which both layouts have."""
    added_at_end = False
    for before, after in ((one, other), (other, one)):
        names = _in_its_place(hidden, before, after)
        of_its_type = any(after[name] == before[hidden] for name in names)
        added_at_end |= of_its_type and [*after][-1] == hidden
        yield from [*names, *_renamed_alone(hidden, before, after)]
    if not added_at_end:
        yield from _exchanged(hidden, one, other)


def _in_its_place(hidden: str, before: Layout, after: Layout) -> list[str]:
    """Return columns only in `after` whose position is that of `hidden` (in both) in `before`."""
    was, now = _common(before, after), _common(after, before)
    added = (name for name in after if name not in before)
    found = [n for n in added if _is_new_name(n, hidden, was, [c for c in after if c in (*was, n)])]
    if was != now:
        return found
    last = _in_front(hidden, before)[-1:]
    if last and last[0] not in after:  # then that one was renamed
        return []
    in_front = _in_front(hidden, after)
    return [name for name in found if name in in_front and before[hidden] == after[name]]


def _taken_over(hidden: str, before: Layout, after: Layout, having: Sequence[Layout]) -> list[str]:
    """Return columns that are where `hidden`, which is gone, was, and have its type.

    Not one that had that type before, if all columns are in their order: then it has just stayed. Not one
    that may have been added behind it, at the end, before it was dropped: one of the layouts `having` it is
    between the two.
    """
    both = before.keys() & after.keys()
    moved = _common(before, after) != _common(after, before)
    found = []
    for name, type_ in after.items():
        was = [n for n in before if n == hidden or (n in after and n != name)]
        now = [n for n in after if n == name or n in before]
        became = type_ == before[hidden] and (moved or type_ != before.get(name))
        became = became and _is_new_name(name, hidden, was, now)
        behind = was[-1] == hidden and any(
            both <= each.keys() and name in each and hidden in _in_front(name, each) for each in having
        )
        if became and (name in before or not behind):
            found.append(name)
    return found


def _renamed_alone(hidden: str, before: Layout, after: Layout) -> list[str]:
    """Return the column where `hidden` was, if only names differ: all types are in their places."""
    if list(before.values()) != list(after.values()):
        return []
    name = list(after)[list(before).index(hidden)]
    return [name] if name != hidden else []


def _exchanged(hidden: str, one: Layout, other: Layout) -> list[str]:
    """Return the columns that are where `hidden` was, if names may just have moved: no place changed type."""
    places = zip(_common(one, other), _common(other, one), strict=True)
    moved = [(was, now) for was, now in places if was != now]
    if not all(one[was] in (one[now], other[now]) for was, now in moved):
        return []
    return [name for pair in moved if hidden in pair for name in pair if name != hidden]


def _common(layout: Layout, other: Layout) -> list[str]:
    return [name for name in layout if name in other]


def _in_front(name: str, layout: Layout) -> list[str]:
    names = list(layout)
    return names[: names.index(name)]


def _is_new_name(name: str, hidden: str, was: Sequence[str], now: Sequence[str]) -> bool:
    """Return whether a column stands where `hidden` stood, with all others in place."""
    return [name if n == hidden else n for n in was] == [n for n in now if n != hidden]
