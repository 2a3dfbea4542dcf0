"""What several looks at a masked table, whose log is yet to land, prove of its rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from connector.capture.hidden_columns import may_land
from connector.capture.tables import Tables
from connector.config import TableConfig
from connector.landing.column_names import IDS_PER_TABLE, ColumnNames
from connector.logged_table import ColumnLook, LoggedTable
from connector.postgres.definitions.table_facts import column_look
from connector.schema import Column, TableName, TableSchema
from tests.support.agent.agents import config_of

ITEMS = TableName.parse("public.items")
SETTINGS = TableConfig.model_validate({"mask": {"ssn": "sha256"}})

Look = tuple[int, dict[str, int], int]
"""The table's id, its columns' numbers, and the version of all of them."""

FIRST: Look = (7, {"id": 1, "ssn": 2, "note": 3}, 1)
BACK: Look = (7, {"id": 1, "ssn": 2, "note": 3}, 3)
OTHER: Look = (8, {"id": 1, "ssn": 2, "note": 3}, 4)
ALTERED: Look = (8, {"id": 1, "ssn": 2, "remark": 3}, 5)


def seen(looks: Sequence[Look]) -> ColumnNames:
    """Return what is known after these looks, where log up to the first has landed."""
    names = ColumnNames()
    for upto, (relation, numbers, version) in enumerate(looks, start=1):
        ids = {name: relation * IDS_PER_TABLE + number for name, number in numbers.items()}
        names = names.seen(ids, upto, dict.fromkeys(ids, version)).landed(1)
    return names


@pytest.mark.parametrize("between", [[BACK, OTHER], [OTHER, ALTERED], [BACK, OTHER, ALTERED]])
def test_rows_of_a_table_that_was_replaced_and_came_back_wait_for_log_up_to_then(
    between: list[Look],
) -> None:
    """For a time, `note` was the hidden column: the look before that is no longer known."""
    names = seen([FIRST, *between, BACK])
    for columns in (("id", "note", "old"), ("id", "note")):
        logged = LoggedTable(7, ITEMS, columns=columns)
        assert not may_land(logged, names, SETTINGS)
    assert may_land(LoggedTable(7, ITEMS, columns=("id", "ssn", "note")), names.landed(9), SETTINGS)
    assert ColumnNames.model_validate_json(names.model_dump_json()) == names
    assert names.lasting == names.landed(9).lasting


@pytest.mark.parametrize(
    ("now", "lands"), [({"id": 1, "ssn": 2}, False), ({"id": 1}, True), ({"id": 1, "remark": 2}, True)]
)
def test_a_chunk_under_a_name_from_before_lands_if_no_look_has_shown_its_column_hidden_since(
    now: dict[str, int], lands: bool
) -> None:
    """The look may be from before the chunk: the column may have been renamed back since."""
    names = seen([(7, {"id": 1, "note": 2}, 1), (7, now, 2)])
    numbers = tuple(7 * IDS_PER_TABLE + number for number in (1, 2))
    chunk = LoggedTable(7, ITEMS, dumped=True, columns=("id", "note"), numbers=numbers)
    assert may_land(chunk, names, SETTINGS) == lands


@pytest.mark.parametrize(
    ("now", "described", "lands"),
    [
        ({"id": 1, "ssn": 2, "note": 3}, "id ssn note", True),
        ({"id": 1, "ssn": 2, "note": 3}, "id note ssn", False),
        ({"id": 1, "ssn": 2, "note": 3}, "id note", False),  # a generated column was there meanwhile
        ({"id": 1, "tax": 2, "note": 3}, "id ssn note", True),
        ({"id": 1, "note": 2, "tax": 3}, "id note tax", False),
        ({"id": 1, "ssn": 2, "note": 4}, "id ssn note", True),
        ({"id": 1, "ssn": 2, "note": 4}, "id note", False),
    ],
)
@pytest.mark.parametrize("were_generated", [False, True])
def test_columns_that_were_altered_are_known_by_their_places_if_there_can_be_no_others(
    now: dict[str, int], described: str, lands: bool, *, were_generated: bool
) -> None:
    """As after a GRANT on them all, or after an update from a version of the agent that kept no versions."""
    names = seen([(7, FIRST[1], -1 if were_generated else 1), (7, now, 2)])
    logged = LoggedTable(7, ITEMS, columns=tuple(described.split()))
    assert may_land(logged, names, SETTINGS) == (lands and not were_generated)
    unversioned = names.model_copy(update={"earlier_versions": {}})
    assert may_land(logged, unversioned, SETTINGS) == lands


@pytest.mark.parametrize("edited", [False, True])
def test_places_tell_nothing_if_the_publication_was_edited_meanwhile(*, edited: bool) -> None:
    """For a time, it may have listed columns without `a`: `x` was `ssn`, and another `ssn` came and went."""
    ids = {name: 7 * IDS_PER_TABLE + n for name, n in {"id": 1, "a": 2, "ssn": 3}.items()}
    names = ColumnNames().seen(ids, 1, {"id": 1, "a": 1, "ssn": 1}, 5).landed(1)
    names = names.seen(ids, 2, {"id": 1, "a": 2, "ssn": 2}, 5 + edited)
    for columns, lands in (("id x ssn", not edited), ("id a ssn", not edited), ("id ssn", True)):
        logged = LoggedTable(7, ITEMS, columns=tuple(columns.split()))
        assert may_land(logged, names, SETTINGS) == lands
    assert may_land(LoggedTable(7, ITEMS, columns=("id", "a", "ssn")), names.landed(2), SETTINGS)


@pytest.mark.parametrize(
    ("hidden", "described", "lands"),
    [
        ("ssn", "id Note", False),  # a name that differs only by case: that of the hidden column, for a time
        ("ssn", "id ssn", True),
        ("ssn", "id x", False),
        ("ssn", "id ssn x", True),
        ("note", "id ssn x", True),  # the hidden one is in no log
    ],
)
def test_a_generated_column_is_at_no_place_and_no_name_in_the_log_is_of_it(
    hidden: str, described: str, lands: bool
) -> None:
    ids = {name: 7 * IDS_PER_TABLE + n for name, n in {"id": 1, "ssn": 2, "note": 3}.items()}
    names = ColumnNames().seen(ids, 1, {"id": 1, "ssn": 1, "note": -1}).landed(1)
    names = names.seen(ids, 2, {"id": 1, "ssn": 2, "note": -3})
    logged = LoggedTable(7, ITEMS, columns=tuple(described.split()))
    assert may_land(logged, names, TableConfig.model_validate({"mask": {hidden: "null"}})) == lands
    unversioned = names.model_copy(update={"earlier_versions": {}})
    assert may_land(logged, unversioned, TableConfig.model_validate({"mask": {hidden: "null"}})) == lands
    same = names.seen(ids, 3, {"id": 1, "ssn": 2, "note": -1})
    assert may_land(logged, same, TableConfig.model_validate({"mask": {hidden: "null"}})) == lands


def test_the_version_of_a_generated_column_is_negative() -> None:
    look = column_look({ITEMS: ("41=14337.-5,6964=14338.6", None)}, 1, 2, lambda _: True)
    assert (look.ids, look.versions) == ({ITEMS: {"a": 14337, "id": 14338}}, {ITEMS: {"a": -5, "id": 6}})


@pytest.mark.parametrize(
    ("late", "later", "next_"),
    [
        ({"id": 1, "note": 2}, {"id": 1, "note": 2, "ssn": 3}, {"id": 1, "note": 3}),
        ({"id": 1, "note": 2, "ssn": 3}, {"id": 1, "note": 3}, None),
        ({"id": 1, "ssn": 2}, {"id": 1, "note": 2}, None),
    ],
)
def test_a_look_that_the_watcher_hands_over_late_replaces_no_later_one_and_its_names_stay_known(
    late: dict[str, int], later: dict[str, int], next_: dict[str, int] | None
) -> None:
    """Both may be at one position, if the ALTER between them became visible while nothing was logged."""
    settings = {"columns": ["id", "ssn", "note"], "mask": {"ssn": "null"}, "mask_before_landing": True}
    named = {ITEMS: TableConfig.model_validate(settings)}
    tables = Tables({}, {}, config=config_of().model_copy(update={"tables": named}))
    tables.add(TableSchema(ITEMS, (Column("id", "bigint", "bigint"),), ("id",)))

    def look(numbers: dict[str, int]) -> ColumnLook:
        return ColumnLook(95, 95, {ITEMS: {name: 7 * IDS_PER_TABLE + n for name, n in numbers.items()}})

    looks = look({"id": 1, "note": 2}), look(late), look(later)
    for each in (looks[0], looks[2], looks[1]):
        tables.note_names(each)
    assert tables.looks.last(ITEMS) is looks[2]
    names = tables.states[ITEMS].column_names
    assert names is not None
    assert names.ids == looks[2].ids[ITEMS]
    if next_ is not None:
        assert tables.states[ITEMS].state == "captured"
        tables.note_names(look(next_))
    assert tables.states[ITEMS].reason == "column 'note' was 'ssn', which lands masked"


def test_a_hidden_name_counts_until_log_up_to_the_last_look_after_it_has_landed() -> None:
    """That look may be the one after another description with this name, though a look before had it, too."""
    names, logged = seen([(7, {"id": 1}, 1)]), LoggedTable(7, ITEMS, columns=("id", "note"))
    names = names.meeting({"ssn"}, 2).meeting({"ssn"}, 4)
    assert not may_land(logged, names.landed(3), SETTINGS)
    assert may_land(logged, names.landed(4), SETTINGS)
    assert names.landed(4).meeting((), 5) == names.landed(4)


def test_a_hidden_column_of_a_late_look_counts_until_log_up_to_the_last_look_has_landed() -> None:
    """It came, was given another name after that look, and was gone before the last one."""
    tables = Tables({}, {})
    tables.add(TableSchema(ITEMS, (Column("id", "bigint", "bigint"),), ("id",)))
    numbered = [{"id": 1}, {"id": 1, "ssn": 2}, {"id": 1}]
    first, late, last = (
        ColumnLook(end, end, {ITEMS: {name: 7 * IDS_PER_TABLE + n for name, n in numbers.items()}})
        for end, numbers in zip((1, 2, 4), numbered, strict=True)
    )
    for each in (first, last, late):
        tables.note_names(each)
        tables.note_landed(1)
    tables.note_landed(3)
    names, logged = tables.states[ITEMS].column_names, LoggedTable(7, ITEMS, columns=("id", "note"))
    assert names is not None
    assert not may_land(logged, names, SETTINGS)
    assert may_land(logged, names.landed(4), SETTINGS)


def test_a_hidden_column_of_a_late_look_that_was_there_before_counts_for_no_other_one() -> None:
    """As it would if the look was on time: it was dropped, and another one was added."""
    names = seen([(7, {"id": 1, "ssn": 2, "note": 3}, 1), (7, {"id": 1, "note": 3, "x": 4}, 1)])
    late = {name: 7 * IDS_PER_TABLE + n for name, n in {"id": 1, "ssn": 2, "note": 3}.items()}
    assert may_land(LoggedTable(7, ITEMS, columns=("id", "note", "x")), names.seen_late(late, 2), SETTINGS)


def test_a_late_look_at_a_table_that_was_replaced_is_remembered_in_case_it_comes_back() -> None:
    late = {name: 7 * IDS_PER_TABLE + n for name, n in {"id": 1, "ssn": 2}.items()}
    names = seen([(7, {"id": 1, "note": 2}, 1), (8, {"id": 1}, 3)]).seen_late(late, 2)
    back = {name: 7 * IDS_PER_TABLE + n for name, n in {"id": 1, "note": 2}.items()}
    assert names.seen(back, 4).others_of("note") == {"ssn"}


def test_a_hidden_column_of_a_table_that_was_replaced_and_came_back_is_known_by_its_number() -> None:
    other: Look = (7, {"id": 1, "note": 2}, 5)
    assert seen([FIRST, OTHER, other]).others_of("note") == {"ssn"}
