"""What `make chaos` checks of a table's changes and history can be wrong: each lie is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.shape_checker import Change, ShapeChecker, Version
from tests.chaos.writers import Key, Row

BODY = "a long body"


class Cut:
    """Two counters and two notes, one of them renumbered, as a lake shows them at a cut."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[Key, Row]] = {
            "counters": {(1,): (1, 5), (2,): (2, 0)},
            "notes": {(-1,): (-1, 0, 0, "z"), (8,): (8, 1, 2, BODY)},
        }
        self.changes = {
            "counters": [Change((1, at, 0), "update", (), (1, at - 100)) for at in (103, 104, 105)],
            "notes": [
                Change((1, 110, 0), "insert", (), (7, 1, 2, BODY)),
                Change((1, 111, 0), "delete", (), (7, None, None, None)),
                Change((1, 111, 1), "insert", ("body",), (8, 1, 2, None)),
            ],
        }
        self.versions = {
            "counters": [
                Version((1, 103, 0), True, (1, 104, 0), (1, 3)),
                Version((1, 104, 0), True, (1, 105, 0), (1, 4)),
                Version((1, 105, 0), True, None, (1, 5)),
                Version((1, 90, 9), False, None, (2, 0)),
            ],
            "notes": [
                Version((1, 90, 9), False, None, (-1, 0, 0, "z")),
                Version((1, 110, 0), True, (1, 111, 0), (7, 1, 2, BODY)),
                Version((1, 111, 1), True, None, (8, 1, 2, BODY)),
            ],
        }

    def wrong(self, checker: ShapeChecker) -> list[str]:
        table = checker.table
        return list(checker.wrong(self.changes[table], self.versions[table], self.rows[table]))


def lose_a_change(cut: Cut) -> None:
    del cut.changes["counters"][1]


def repeat_a_change(cut: Cut) -> None:
    cut.changes["counters"].append(cut.changes["counters"][2])


def lose_the_last_change(cut: Cut) -> None:
    del cut.changes["notes"][2]
    del cut.versions["notes"][2]


def lose_a_delete(cut: Cut) -> None:
    del cut.changes["notes"][1]


def keep_a_version_open(cut: Cut) -> None:
    cut.versions["counters"][1] = cut.versions["counters"][1]._replace(until=None)


def show_another_value(cut: Cut) -> None:
    cut.versions["notes"][2] = cut.versions["notes"][2]._replace(row=(8, 1, 2, None))


def change_to_another_value(cut: Cut) -> None:
    cut.changes["notes"][2] = cut.changes["notes"][2]._replace(row=(8, 1, 9, None))


def lose_a_version(cut: Cut) -> None:
    del cut.versions["counters"][1]


def lose_a_closed_version(cut: Cut) -> None:
    del cut.versions["notes"][1]


def lose_the_beginning(cut: Cut) -> None:
    del cut.changes["counters"][0]
    del cut.versions["counters"][0]


def see_an_update_twice(cut: Cut) -> None:
    middle = cut.versions["counters"][1]
    cut.versions["counters"][1] = middle._replace(until=(1, 104, 9))
    cut.versions["counters"].append(middle._replace(since=(1, 104, 9)))


def invent_a_version(cut: Cut) -> None:
    cut.versions["notes"].append(Version((1, 109, 0), True, (1, 110, 0), (7, 1, 1, BODY)))


@pytest.mark.parametrize("table", ["counters", "notes"])
def test_shapes_of_what_was_changed_have_no_difference(table: str) -> None:
    checker = ShapeChecker(table)
    assert Cut().wrong(checker) == []
    assert Cut().wrong(checker) == []


def test_a_row_that_is_dumped_after_a_crash_may_begin_a_version_unchanged() -> None:
    cut, checker = Cut(), ShapeChecker("counters")
    middle = cut.versions["counters"][1]
    cut.versions["counters"][1] = middle._replace(until=(1, 104, 9))
    cut.versions["counters"].append(middle._replace(since=(1, 104, 9), seen=False))
    assert cut.wrong(checker) == []


@pytest.mark.parametrize(
    ("lie", "table", "expected"),
    [
        (lose_a_change, "counters", "changes of (1,): 5 follows 3"),
        (repeat_a_change, "counters", "a change is there twice"),
        (lose_the_last_change, "notes", "the open version of (8,) is None"),
        (lose_a_delete, "notes", "the last change of (7,) is an insert, but there is no row"),
        (keep_a_version_open, "counters", "a version of (1,) from (1, 104, 0) lasts beyond the next"),
        (show_another_value, "notes", "the open version of (8,) is (8, 1, 2, None)"),
        (change_to_another_value, "notes", "the last change of (8,) sets n to 9, the row has 2"),
        (lose_a_version, "counters", "the change at (1, 104, 0) begins no version"),
        (lose_a_closed_version, "notes", "the change at (1, 110, 0) begins no version"),
        (lose_the_beginning, "counters", "history of (1,) begin with 4, and began with 3"),
        (see_an_update_twice, "counters", "history of (1,): 4 follows 4"),
        (invent_a_version, "notes", "a version begins at (1, 109, 0), where no change is"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_lie_told_in_a_shape_is_found(lie: Callable[[Cut], None], table: str, expected: str) -> None:
    checker = ShapeChecker(table)
    assert Cut().wrong(checker) == []
    cut = Cut()
    lie(cut)
    assert any(text.startswith(expected) for text in cut.wrong(checker)), cut.wrong(checker)
