"""What the agent knows of its tables: layouts taken over, tables quarantined and released."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from connector.capture.dumps.needs import DumpNeeds
from connector.capture.tables import Repair, Tables
from connector.config import TableConfig
from connector.errors import TableError
from connector.landing.event_batch import QuarantineNotice, TableRedefined
from connector.landing.manifest import LandedFile
from connector.logged_table import ColumnLook
from connector.position import Position
from connector.schema import Column, TableName, TableSchema
from tests.support.agent.agents import config_of

NAME = TableName("public", "items")
OTHER = TableName("public", "other")


def layout(*columns: str, key: tuple[str, ...] = ("id",)) -> TableSchema:
    """A layout; a column is `name` (bigint) or `name:source type:type`."""
    parts = [(f"{c}:bigint:bigint" if ":" not in c else c).split(":") for c in columns]
    return TableSchema(NAME, tuple(Column(*p) for p in parts), key)


@pytest.fixture
def tables() -> Tables:
    tables = Tables({}, {})
    tables.add(layout("id", "a"))
    return tables


def texts(tables: Tables) -> list[str]:
    return [notice.text for notice in tables.take_notices()]


def test_a_known_layout_changes_nothing(tables: Tables) -> None:
    assert tables.adopt(layout("id", "a"), 100) is None
    assert texts(tables) == []


def test_the_key_of_a_table_that_was_left_meanwhile_is_the_tables_own_error(tables: Tables) -> None:
    tables.remove(NAME)
    with pytest.raises(TableError):  # a worker that has just been handed its dump must not end the agent
        tables.key(NAME)


def test_added_columns_leave_the_rows_that_hold_them_to_be_read(tables: Tables) -> None:
    new = layout("id", "a", "b", "c")
    assert tables.adopt(new, 100) == Repair(NAME, ("b", "c"))
    assert tables.states[NAME].schema_id == new.id
    assert texts(tables) == ["columns added: b, c"]


def test_dropped_columns_leave_nothing_to_be_read(tables: Tables) -> None:
    assert tables.adopt(layout("id"), 100) is None
    assert texts(tables) == ["columns dropped: a"]


@pytest.mark.parametrize("mask", [None, "null"])
def test_a_masked_column_that_would_land_under_another_name_quarantines_the_table(
    tables: Tables, mask: str | None
) -> None:
    """Before it is dumped, and even if its name is that of a dropped column, so that no layout tells."""
    ssn, note = Column("SSN", "text", "string", "null"), Column("Note", "text", "string", mask)
    before = replace(layout("id"), columns=(*layout("id").columns, ssn, note))
    assert tables.adopt(before, 90) is not None
    tables.note_names(ColumnLook(95, 95, {NAME: {"id": 1, "ssn": 2, "note": 3}}))
    assert tables.states[NAME].state == "captured"
    tables.note_names(ColumnLook(100, 100, {NAME: {"id": 1, "note": 2}}))
    state = tables.states[NAME]
    assert state.state == ("quarantined" if mask is None else "captured")
    if mask is None:
        assert state.reason == "column 'Note' was 'SSN', which lands masked"
        assert "name it in mask, too; or in unmasked" in str(state.hint)


def test_a_masked_column_is_known_under_a_name_that_lands_by_one_that_does_not_or_is_unmasked(
    tables: Tables,
) -> None:
    tables.config = config_of().model_copy(update={"tables": {NAME: TableConfig(unmasked=["said"])}})
    ssn = Column("ssn", "text", "string", "null")
    others = [Column(name, "text", "string") for name in ("said", "other")]
    before = replace(layout("id"), columns=(*layout("id").columns, ssn, *others))
    tables.adopt(before, 90)
    for position, name in enumerate(("ssn", "unlisted", "said", "other")):
        assert tables.states[NAME].state == "captured"
        tables.note_names(ColumnLook(95 + position, 95 + position, {NAME: {"id": 1, name: 2}}))
    assert tables.states[NAME].reason == "column 'other' was 'ssn', which lands masked"


def test_a_masked_column_that_has_not_landed_yet_is_known_by_its_number(tables: Tables) -> None:
    settings = {"columns": ["id", "a", "ssn"], "mask": {"ssn": "null"}, "mask_before_landing": True}
    named = {NAME: TableConfig.model_validate(settings)}
    tables.config = config_of().model_copy(update={"tables": named})
    for ids in ({"id": 1}, {"id": 1, "a": 2}, {"id": 1, "ssn": 2}, {"id": 1, "a": 2}):
        assert tables.states[NAME].state == "captured"
        tables.note_names(ColumnLook(95, 95, {NAME: ids}))
    assert tables.states[NAME].reason == "column 'a' was 'ssn', which lands masked"
    tables.release(NAME, layout("id", "a"))
    tables.note_names(ColumnLook(110, 110, {NAME: {"id": 1, "a": 2, "b": 3}}))
    assert tables.states[NAME].state == "captured", "whoever had it dumped wants it so"


def test_a_masked_column_that_would_land_under_a_new_name_quarantines_the_table(tables: Tables) -> None:
    ssn, note = Column("ssn", "text", "string", "null"), Column("note", "text", "string")
    tables.adopt(replace(layout("id"), columns=(*layout("id").columns, ssn)), 90)
    for ids in ({"id": 1, "ssn": 2}, {"id": 1, "note": 2}):
        tables.note_names(ColumnLook(95, 95, {NAME: ids}))
    assert tables.states[NAME].state == "captured", "it may be masked, too"
    tables.adopt(replace(layout("id"), columns=(*layout("id").columns, note)), 100)
    assert tables.states[NAME].state == "quarantined"
    tables.release(NAME, replace(layout("id"), columns=(*layout("id").columns, note)))
    tables.note_names(ColumnLook(110, 110, {NAME: {"id": 1, "note": 2}}))
    assert tables.states[NAME].state == "captured", "whoever had it dumped wants it so"


@pytest.mark.parametrize("released", [False, True])
def test_a_column_that_is_back_once_another_is_gone_may_be_that_one(
    tables: Tables, *, released: bool
) -> None:
    """A layout alone looks as if it had stayed; where columns have no ids, only their order in time tells."""
    tables.adopt(layout("id", "SSN", "note"), 90)
    if released:
        tables.quarantine(QuarantineNotice(NAME, 95, "its key changed", "fix it"))
        tables.release(NAME, layout("id", "other"))
        tables.adopt(layout("id", "other", "Note"), 110)
    else:
        tables.adopt(layout("id"), 100)
        tables.adopt(layout("id", "Note"), 110)
    names = tables.states[NAME].column_names
    assert names is not None
    assert "note" in names.others("ssn")
    tables.adopt(layout("id", "Note", "new"), 120)
    names = tables.states[NAME].column_names
    assert names is not None
    assert "new" not in names.others("note")


def test_names_that_the_log_gave_columns_of_a_quarantined_table_are_known(tables: Tables) -> None:
    tables.quarantine(QuarantineNotice(NAME, 95, "its key changed", "fix it"))
    renamed = [TableRedefined(NAME, 97, (("Ssn", "a"),)), TableRedefined(OTHER, 97, (("x", "y"),))]
    tables.note_redefined(renamed, config_of())
    tables.release(NAME, layout("id", "a"))
    names = tables.states[NAME].column_names
    assert names is not None
    assert names.others("ssn") == {"a"}


MASKED = {"columns": ["id", "mail", "a"], "mask": {"Mail": "null"}, "mask_before_landing": True}


@pytest.mark.parametrize(
    ("names", "settings", "problem"),
    [
        (["mail", "a"], {}, "column 'a' was 'mail', which lands masked"),
        (["mail", "aside", "A"], {}, "column 'A' was 'mail', which lands masked"),
        (["mail", "aside"], {}, None),  # which does not land
        (["mail", "a"], {"unmasked": ["A"]}, None),
        (["mail", "a"], {"mask": {"mail": "null", "a": "null"}}, None),
        (["mail", "a"], {"mask_before_landing": False}, None),  # the merge stops at it
        (["aside", "a"], {}, None),
    ],
)
def test_a_table_whose_log_renames_a_masked_column_to_one_that_is_not_is_quarantined(
    tables: Tables, names: list[str], settings: dict[str, Any], problem: str | None
) -> None:
    chosen = TableConfig.model_validate(MASKED | settings)
    config = config_of().model_copy(update={"tables": {NAME: chosen}})
    told = [TableRedefined(NAME, 97, (pair,)) for pair in pairwise(names)]
    for each in told:  # in whatever manifests
        tables.note_redefined([each], config)
    assert (tables.states[NAME].reason, tables.states[NAME].since) == (problem, 97 if problem else None)
    known = tables.states[NAME].column_names
    assert known is not None
    assert known.others(names[0]) == {name.lower() for name in names[1:]}


def test_a_masked_column_is_found_under_a_name_that_the_log_gave_another_before(tables: Tables) -> None:
    chosen = config_of().model_copy(update={"tables": {NAME: TableConfig.model_validate(MASKED)}})
    tables.note_redefined([TableRedefined(NAME, 97, (("aside", "a"),))], chosen)
    assert tables.states[NAME].state == "captured"
    tables.note_redefined([TableRedefined(NAME, 98, (("mail", "a"),))], chosen)  # since aside's is dropped
    assert tables.states[NAME].reason == "column 'a' was 'mail', which lands masked"


def test_whoever_has_a_quarantined_table_dumped_is_told_that_a_masked_column_would_land(
    tables: Tables,
) -> None:
    chosen = config_of().model_copy(update={"tables": {NAME: TableConfig.model_validate(MASKED)}})
    tables.quarantine(QuarantineNotice(NAME, 95, "its key changed", "fix it"))
    for _ in range(2):  # a log may be read again
        tables.note_redefined([TableRedefined(NAME, 97, (("mail", "a"),))], chosen)
    state = tables.states[NAME]
    assert state.reason == "column 'a' was 'mail', which lands masked; its key changed"
    assert state.since == 95
    assert "name it in mask, too" in str(state.hint)
    assert str(state.hint).endswith("and fix it; then: deltatide dump public.items")
    assert texts(tables) == ["its key changed", "column 'a' was 'mail', which lands masked"]


@pytest.mark.parametrize("fit", [True, False])
def test_names_of_columns_outlast_a_table_that_is_not_captured_for_a_while(
    tables: Tables, *, fit: bool
) -> None:
    """By log, ids or layouts; what is renamed meanwhile is seen by its id."""
    for ids in ({"id": 1, "ssn": 2}, {"id": 1, "a": 2}):
        tables.note_names(ColumnLook(95, 95, {NAME: ids}))
    tables.remove(NAME)
    recorded = tables.recorded(2, DumpNeeds())
    again = Tables(recorded["tables"], {}, former_names=recorded["former_names"])  # after a restart
    if not fit:
        again.quarantine_unfit(TableError(NAME, "it has no key"), 100)
    again.add(layout("id", "b"))
    again.note_names(ColumnLook(105, 105, {NAME: {"id": 1, "b": 2}}))
    names = again.states[NAME].column_names
    assert names is not None
    assert names.others("ssn") == {"a", "b"}
    assert again.recorded(3, DumpNeeds())["former_names"] == {}
    again.remove(NAME)
    again.begin_epoch(log_is_lost=False)
    assert [(table, its.upto) for table, its in again.former_names.items()] == [(NAME, 0)]
    again.add(layout("id", "b"))
    again.note_names(ColumnLook(110, 110, {NAME: {"id": 9}}))
    again.update(NAME, column_names=None)
    again.remove(NAME)
    assert again.former_names == {}, "nothing is known of them"


def test_a_rename_is_one_dropped_and_one_added(tables: Tables) -> None:
    assert tables.adopt(layout("id", "b"), 100) == Repair(NAME, ("b",))
    assert texts(tables) == ["columns added: b", "columns dropped: a"]


def test_a_column_that_was_dropped_and_is_there_again_leaves_all_rows_to_be_read(tables: Tables) -> None:
    tables.adopt(layout("id", "b"), 100)
    assert tables.adopt(layout("id", "b", "c"), 200) == Repair(NAME, ("c",))
    again = Tables(tables.snapshot(2), dict(tables.schemas))  # after a restart
    assert again.adopt(layout("id", "b", "c", "a"), 300) == Repair(NAME, None)
    assert again.states[NAME].dropped == []
    assert again.adopt(layout("id", "b", "c", "a", "d"), 400) == Repair(NAME, ("d",))


@pytest.mark.parametrize("now", [("b", "a", "c"), ("b", "c", "a"), ("c", "b", "a")])
def test_names_that_changed_places_leave_all_rows_to_be_read_where_columns_never_move(
    now: tuple[str, ...],
) -> None:
    """PostgreSQL: they were given each other's names, or one was dropped and added again at the end."""
    for keep_order in (True, False):
        tables = Tables({}, {}, columns_keep_order=keep_order)
        tables.add(layout("id", "a", "b", "c"))
        assert tables.adopt(layout("id", *now, "d"), 100) == Repair(NAME, None if keep_order else ("d",))
        moved = any("renamed or replaced: " in text for text in texts(tables))
        assert moved == keep_order


def test_columns_around_dropped_and_added_ones_have_not_moved() -> None:
    tables = Tables({}, {}, columns_keep_order=True)
    tables.add(layout("id", "a", "b", "c"))
    assert tables.adopt(layout("id", "a", "c", "d"), 100) == Repair(NAME, ("d",))


def test_a_changed_type_leaves_all_rows_to_be_read(tables: Tables) -> None:
    assert tables.adopt(layout("id", "a:text:string"), 100) == Repair(NAME, None)
    assert texts(tables) == ["columns changed type: a"]


@pytest.mark.parametrize("types", [("datetime", "datetime(3)"), ("time(3)", "time")])
def test_other_digits_of_seconds_leave_all_rows_to_be_read(tables: Tables, types: tuple[str, str]) -> None:
    before, after = types
    tables.adopt(layout("id", f"a:{before}:timestamp_ntz"), 100)
    assert tables.adopt(layout("id", f"a:{after}:timestamp_ntz"), 200) == Repair(NAME, None)


def test_a_longer_varchar_leaves_nothing_to_be_read(tables: Tables) -> None:
    tables.adopt(layout("id", "a:varchar(10):string"), 100)
    tables.take_notices()
    assert tables.adopt(layout("id", "a:varchar(20):string"), 200) is None
    assert texts(tables) == []


def test_more_members_leave_nothing_to_be_read_whatever_they_hold(tables: Tables) -> None:
    tables.adopt(layout("id", "a:enum('a)','b'):string"), 100)
    assert tables.adopt(layout("id", "a:enum('a)','b','c\n(d)'):string"), 110) is None


def test_an_older_layout_never_comes_after_a_newer_one(tables: Tables) -> None:
    new = layout("id", "a", "b")
    tables.adopt(new, 100)
    assert tables.adopt(layout("id", "a"), 99) is None
    assert tables.states[NAME].schema_id == new.id


def test_two_layouts_of_one_transaction_are_taken_over_in_order(tables: Tables) -> None:
    last = layout("id", "a", "b", "c")
    tables.adopt(layout("id", "a", "b"), 100)
    assert tables.adopt(last, 100) == Repair(NAME, ("c",))
    assert tables.states[NAME].schema_id == last.id


def test_a_changed_key_quarantines_the_table(tables: Tables) -> None:
    assert tables.adopt(layout("id", "a", key=("a",)), 100) is None
    state = tables.states[NAME]
    assert (state.state, state.since) == ("quarantined", 100)
    assert state.hint
    assert "deltatide dump" in state.hint
    assert tables.captured() == []


def test_a_table_that_is_quarantined_lands_nothing_and_takes_over_no_layout(tables: Tables) -> None:
    tables.quarantine(QuarantineNotice(NAME, 100, "odd value", "fix it"))
    tables.quarantine(QuarantineNotice(NAME, 200, "another", "fix it"))
    assert (tables.states[NAME].reason, tables.states[NAME].since) == ("odd value", 100)
    assert tables.adopt(layout("id", "a", "b"), 300) is None
    assert tables.landing([file_of(NAME)]) == []
    assert texts(tables) == ["odd value"]


def test_a_released_table_lands_under_its_present_layout_and_is_to_be_dumped(tables: Tables) -> None:
    tables.update(NAME, dumped=True)
    tables.quarantine(QuarantineNotice(NAME, 100, "odd value", "fix it"))
    present = layout("id", "a", key=("a",))
    tables.release(NAME, present)
    state = tables.states[NAME]
    assert (state.state, state.reason, state.key, state.schema_id) == ("captured", None, ["a"], present.id)
    assert not state.dumped
    assert tables.landing([file_of(NAME)]) == [file_of(NAME)]


def test_files_of_tables_that_are_not_captured_do_not_land(tables: Tables) -> None:
    assert tables.adopt(TableSchema(TableName("public", "other"), (), ()), 100) is None
    assert tables.landing([file_of("public.other"), file_of(NAME)]) == [file_of(NAME)]


def test_a_table_that_is_removed_is_reported(tables: Tables) -> None:
    tables.remove(NAME)
    assert tables.snapshot(2) == {}
    assert texts(tables) == ["is no longer captured"]


def test_a_snapshot_does_not_change_with_the_tables(tables: Tables) -> None:
    before = tables.snapshot(2)
    tables.quarantine(QuarantineNotice(NAME, 100, "odd value", "fix it"))
    assert before[NAME].state == "captured"


def file_of(table: str) -> LandedFile:
    position = Position(1, 100, 0)
    return LandedFile(
        path="p", table=table, schema_id="s", kind="log", rows=1, bytes=1, first=position, last=position
    )


def test_a_column_that_comes_back_between_two_looks_is_reported(tables: Tables) -> None:
    tables.note_columns(NAME, {"id", "a"})
    assert tables.states[NAME].dropped == []
    tables.note_columns(NAME, {"id"})
    again = Tables(tables.snapshot(2), dict(tables.schemas))  # after a restart
    assert again.adopt(layout("id", "a"), 100) is None  # the log never had a row without it
    assert again.states[NAME].dropped == ["a"]
    again.note_columns(NAME, {"id", "a"})
    assert again.states[NAME].dropped == []


def test_a_column_that_went_while_its_table_was_quarantined_leaves_all_rows_to_be_read_when_it_is_back(
    tables: Tables,
) -> None:
    tables.quarantine(QuarantineNotice(NAME, 100, "odd", "fix it"))
    tables.release(NAME, layout("id"))
    assert tables.adopt(layout("id", "a"), 200) == Repair(NAME, None)


def test_a_column_whose_return_the_log_showed_is_not_reported_twice(tables: Tables) -> None:
    tables.note_columns(NAME, {"id"})
    tables.adopt(layout("id"), 100)
    assert tables.adopt(layout("id", "a"), 200) == Repair(NAME, None)
    assert tables.states[NAME].dropped == []


@pytest.mark.parametrize("checks", [0, 1])
def test_a_column_that_is_back_in_another_case_leaves_all_rows_to_be_read(
    tables: Tables, checks: int
) -> None:
    """To the lake it is the old column, whose values it still has."""
    tables.adopt(layout("id", "B", "a"), 100)
    for _ in range(checks):
        tables.note_columns(NAME, {"id", "a"})
    assert tables.readds_dropped_column(NAME, {"id", "b", "a"}) == bool(checks)
    assert tables.adopt(layout("id", "b", "a"), 200) == Repair(NAME, None)
    assert not tables.readds_dropped_column(NAME, {"id", "b", "a"})
    assert tables.adopt(layout("id", "b", "a", "c"), 300) == Repair(NAME, ("c",))
    tables.adopt(layout("id"), 400)
    assert tables.adopt(layout("id", "A"), 500) == Repair(NAME, None)


def test_before_images_that_lack_columns_are_said_until_they_are_whole(tables: Tables) -> None:
    tables.note_before_images({NAME: None})
    assert texts(tables) == []
    for _ in range(2):  # said once
        tables.note_before_images({NAME: "log whole rows"})
    assert texts(tables) == ["its before-images lack columns, since the log does: log whole rows"]
    state = tables.snapshot(2)[NAME]
    assert (state.state, state.hint) == ("captured", "log whole rows")
    tables.note_before_images({NAME: None})
    assert texts(tables) == ["its before-images are whole"]
    assert (tables.states[NAME].reason, tables.states[NAME].hint) == (None, None)


def test_before_images_that_are_no_longer_asked_for_lack_nothing(tables: Tables) -> None:
    asking = replace(layout("id", "a"), before_images=True)
    assert tables.adopt(asking, 100) is None
    tables.note_before_images({NAME: "log whole rows"})
    assert tables.adopt(layout("id", "a"), 200) is None
    assert tables.states[NAME].hint is None


def test_a_quarantine_says_more_than_before_images(tables: Tables) -> None:
    tables.quarantine(QuarantineNotice(NAME, 100, "odd", "fix it"))
    tables.note_before_images({NAME: None, TableName("public", "left"): "x"})
    assert tables.states[NAME].reason == "odd"


def test_only_a_new_layout_after_the_last_check_of_a_table_that_lands_may_rename_a_column(
    tables: Tables,
) -> None:
    """Else each commit of a quarantined table's log, or of an agent behind, would check the catalog."""
    new = [layout("id", "b")]
    assert not tables.may_rename(new, 100), "its columns have no ids"
    tables.note_names(ColumnLook(100, 100, {NAME: {"id": 1, "a": 2}}))
    assert tables.may_rename(new, 101)
    assert not tables.may_rename(new, 100)
    assert not tables.may_rename([layout("id", "a")], 101)
    tables.quarantine(QuarantineNotice(NAME, 101, "its key changed", "fix it"))
    assert not tables.may_rename(new, 102)
