"""Which columns may be a hidden one under another name: for all short histories of a small table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, pairwise, product
from typing import NamedTuple

import pytest

from merge.columns.other_names import other_names

HIDDEN = "ssn"
NAMES = (HIDDEN, "a", "b", "new")


class Column(NamedTuple):
    name: str
    type: str
    is_hidden: bool = False


Table = tuple[Column, ...]


def table(text: str) -> Table:
    return tuple(Column(*each.split(":"), each.startswith(HIDDEN)) for each in text.split())


def changed(known: Table) -> Iterator[Table]:
    """Yield a table after each change of one statement: a name, two names, a column less, a new last one."""
    free = [name for name in NAMES if name not in {column.name for column in known}]
    for at, column in enumerate(known):
        yield from ((*known[:at], column._replace(name=name), *known[at + 1 :]) for name in free)
        yield known[:at] + known[at + 1 :]
    for one, other in combinations(range(len(known)), 2):
        swapped = list(known)
        swapped[one] = known[one]._replace(name=known[other].name)
        swapped[other] = known[other]._replace(name=known[one].name)
        yield tuple(swapped)
    yield from ((*known, Column(name, type_)) for name, type_ in product(free, ("string", "int")))


def histories(begin: Table, changes: int) -> Iterator[tuple[Table, ...]]:
    found = [(begin,)]
    for _ in range(changes):
        found = [(*known, new) for known in found for new in changed(known[-1])]
    yield from found


def shown(landed: tuple[Table, ...]) -> set[str]:
    """Return the names of columns with hidden values that show after each question was answered truly."""
    layouts = [{column.name: column.type for column in known} for known in landed]
    secret = {column.name for column in chain.from_iterable(landed) if column.is_hidden}
    hidden, plain = {HIDDEN}, set[str]()
    while asked := {name for each in hidden for name in other_names(each, layouts)} - hidden - plain:
        hidden |= asked & secret
        plain |= asked - secret
    return secret - hidden


def beside(landed: tuple[Table, ...]) -> set[str]:
    """Return the columns of the hidden one's type that were next to it."""
    pairs = [*chain.from_iterable(pairwise(known) for known in landed)]
    return {
        one.name
        for one, other in [*pairs, *(pair[::-1] for pair in pairs)]
        if other.is_hidden and one.type == other.type
    }


BEGINNINGS = ("ssn:string a:string b:int", "a:string ssn:string b:string", "a:string b:int ssn:string")


@pytest.mark.parametrize("begin", BEGINNINGS)
@pytest.mark.parametrize(("changes", "kept"), [(1, (0, 1)), (2, (0, 1, 2)), (2, (0, 2)), (3, (0, 1, 2, 3))])
def test_no_hidden_value_shows_unless_it_has_the_name_of_the_column_beside_it(
    begin: str, changes: int, kept: tuple[int, ...]
) -> None:
    """Then it looks as if the hidden one had been dropped, and that one was there as well. `kept`: landed."""
    for history in histories(table(begin), changes):
        landed = tuple(history[number] for number in kept)
        assert shown(landed) <= beside(landed), [[column.name for column in known] for known in landed]
