"""Rows of tables that hide columns land only if it is certain which columns they have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from connector.capture.dumps.tasks import FinishedChunk, ReadTask
from connector.capture.hidden_columns import MOST_SECONDS, WAIT_SECONDS, may_land
from connector.capture.lander import LandedSegment
from connector.config import TableConfig
from connector.landing.column_names import IDS_PER_TABLE, ColumnNames
from connector.landing.event_batch import QuarantineNotice
from connector.landing.manifest import LandedFile
from connector.logged_table import ColumnLook, LoggedTable, shows_all
from connector.schema import TableName
from connector.source import KeyRange, ResumePoint
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.unit.capture.hidden_columns.judged import ITEMS, LISTED, RELATION, Judged

Columns = tuple[tuple[int, str, int], ...]
"""Number, name and version of each."""

SETTINGS = TableConfig.model_validate({"mask": {"a": "sha256"}})


def histories(steps: int, live: Columns, last: int, version: int = 1) -> Iterator[list[Columns]]:
    """Yield all histories of a table's columns, as they are added, dropped and renamed."""
    if not steps:
        yield [live]
        return
    names = {name for _, name, _ in live}
    free = [name for name in ("a", "x", "y") if name not in names]
    following = [((*live, (last + 1, name, version)), last + 1) for name in free]
    for place, (number, _, _) in enumerate(live):
        altered = [live[:place], *(((*live[:place], (number, name, version))) for name in free)]
        following += [((*some, *live[place + 1 :]), last) for some in altered]
    for after, latest in following:
        yield from ([live, *rest] for rest in histories(steps - 1, after, latest, version + 1))


def seen(names: ColumnNames, columns: Columns, upto: int) -> ColumnNames:
    columns = ((0, "id", 0), *columns)
    ids = {name: RELATION * IDS_PER_TABLE + number for number, name, _ in columns}
    return names.seen(ids, upto, {name: version for _, name, version in columns})


@pytest.mark.parametrize("live", [((1, "a", 0), (2, "x", 0)), ((1, "x", 0), (2, "a", 0)), ((1, "x", 0),)])
@pytest.mark.parametrize("between", [None, 1, 2, 3])
def test_a_column_that_a_look_has_shown_hidden_lands_under_no_other_name_whatever_is_altered(
    live: Columns, between: int | None
) -> None:
    """Between the look before and the look after, or one more; unaltered, its table's rows land."""
    for history in histories(4, live, len(live)):
        names = seen(ColumnNames(), history[0], 1).landed(1)
        looks = [history[0], history[-1]]
        if between is not None:
            names, looks = seen(names, history[between], 2), [*looks, history[between]]
        names = seen(names, history[-1], 3)
        hidden = {number for look in looks for number, name, _ in look if name == "a"}
        is_unaltered = hidden and all(column in history[-1] for column in history[0] if column[0] in hidden)
        for described in history:
            columns = ("id", *(name for _, name, _ in described))
            lands = may_land(LoggedTable(RELATION, ITEMS, columns=columns), names, SETTINGS)
            shown = {number for number, name, _ in described if name != "a"}
            later = history[history.index(described) :]
            was_hidden = {n for look in looks if look not in later[1:] for n, name, _ in look if name == "a"}
            assert not (lands and shown & was_hidden), (history, described)
            assert lands or not is_unaltered or between is not None, (history, described)


BEFORE = {"id": 1, "x": 2, "a": 3, "b": 4}


@pytest.mark.parametrize(
    ("after", "altered", "columns", "lands"),
    [
        (BEFORE, "", "id x a b", True),
        (BEFORE, "a", "id x a b", True),  # the others are what they were
        (BEFORE, "a b", "id x a b", True),  # a GRANT on both, or so: by their places, they are these
        (BEFORE, "a b", "id x b a", False),  # for a time, each had the other's name
        (BEFORE, "a b", "id x a b c", True),  # c came, and is gone
        ({**BEFORE, "c": 5}, "", "id x A b c", True),
        ({**BEFORE, "c": 5}, "", "id x a b", True),
        ({**BEFORE, "c": 5}, "a", "id x a b c", True),  # a is at its place
        ({**BEFORE, "c": 5}, "a", "id x c b a", False),  # c has it
        ({**BEFORE, "c": 5}, "a b", "id x a b c", True),
        ({"id": 1, "a": 3, "b": 4, "c": 5}, "a b", "id a b c", False),  # x may have been a, and a b
        ({"id": 1, "a": 3, "b": 4}, "", "id a b", True),
        ({"id": 1, "a": 3, "b": 4}, "", "id x a b", True),  # x was dropped
        ({"id": 1, "x": 2, "b": 4}, "", "id x b", True),  # a was dropped
        ({"id": 1, "x": 2, "b": 3}, "", "id x b", False),  # a may be b, as the manifest says then
        ({"id": 1, "a": 3, "b": 4}, "a", "id x a b", False),  # x was dropped, and a may have been x
        ({"id": 1, "x": 3, "a": 4, "b": 5}, "", "id x a b", False),  # the layout looks as before
        ({"id": 1, "x": 2, "a": 3, "c": 4}, "a", "id x b a", False),  # a was b for a time
        ({**BEFORE, "": 8}, "", "id x a b", False),  # another table has its name by now
        (None, "", "id x a b", False),
        (None, "", "id b", False),
    ],
)
def test_rows_land_if_no_name_in_them_may_be_that_of_a_hidden_column(
    database: MemoryDatabase,
    store: MemoryStore,
    after: Mapping[str, int] | None,
    altered: str,
    columns: str,
    lands: bool,
) -> None:
    judged = Judged(database, store, BEFORE)
    judged.show(after, altered)
    assert judged.lands(columns) == lands
    assert (ITEMS in judged.dumps.needs.by_table) != lands


@pytest.mark.parametrize("chunk", [False, True])
@pytest.mark.parametrize(
    ("settings", "after", "state"),
    [
        (LISTED, {"id": 1, "x": 3}, "quarantined"),
        (LISTED | {"unmasked": ["x"]}, {"id": 1, "x": 3}, "captured"),
        (LISTED, {"id": 1, "x": 2, "y": 3}, "captured"),  # which does not land
        (LISTED, {"id": 1, "x": 2, "a": 3}, "captured"),
        (LISTED, {"id": 1, "x": 2}, "captured"),
        ({}, {"id": 1, "x": 3}, "captured"),  # the merge stops at it
    ],
)
def test_a_hidden_column_that_came_and_was_renamed_between_two_checks_is_known_by_the_log(
    database: MemoryDatabase,
    store: MemoryStore,
    settings: dict[str, Any],
    after: Mapping[str, int],
    state: str,
    *,
    chunk: bool,
) -> None:
    judged = Judged(database, store, {"id": 1, "x": 2}, **settings)
    judged.show(after)
    with database.transaction() as transaction:
        transaction.update("public.items", (2,), a="b")
    numbers = tuple(RELATION * IDS_PER_TABLE + n for n in (1, 2, 3)) if chunk else ()
    each = LoggedTable(
        RELATION, ITEMS, lsn=database.end - 1, dumped=chunk, columns=("id", "x", "A"), numbers=numbers
    )
    landed = LandedSegment(ResumePoint(database.end), logged=[each])
    assert judged.withhold(landed)
    known = judged.tables.states[ITEMS]
    assert known.state == state
    assert known.column_names is not None
    renamed = next((name for name, number in after.items() if (name, number) not in BEFORE.items()), None)
    expected = {} if renamed is None else {str(RELATION * IDS_PER_TABLE + 3): sorted(["a", renamed])}
    assert known.column_names.renamed == expected


@pytest.mark.parametrize(
    ("columns", "after", "state"),
    [
        ("id x a", {"id": 1, "x": 3}, "quarantined"),
        ("id a", {"id": 1, "x": 2}, "quarantined"),
        ("id a", {"id": 1, "y": 2}, "captured"),  # which does not land
        ("id x a", {"id": 1, "x": 2, "a": 3}, "captured"),
        ("id x", {"id": 1, "x": 2}, "captured"),
    ],
)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_hidden_column_of_a_table_that_came_between_two_checks_is_known_by_the_log(
    database: MemoryDatabase,
    store: MemoryStore,
    columns: str,
    after: Mapping[str, int],
    state: str,
    *,
    replaced: bool,
) -> None:
    judged = Judged(database, store, {**BEFORE, "": 8} if replaced else {}, **LISTED)
    judged.show(after)
    with database.transaction() as transaction:
        transaction.update("public.items", (2,), a="b")
    judged.tables.note_names(judged.start.source.check_catalog().look)
    for _ in range(2):
        each = LoggedTable(RELATION, ITEMS, lsn=database.end - 1, columns=tuple(columns.split()))
        landed = LandedSegment(ResumePoint(database.end), logged=[each])
        assert judged.withhold(landed)
        assert judged.tables.states[ITEMS].state == state


def test_a_description_in_question_is_judged_again_until_it_is_certain(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """The log does not repeat it, unless the table was altered: after a check of that, it is done with."""
    judged = Judged(database, store, BEFORE)
    judged.show({"id": 1, "a": 3, "b": 4}, "a")
    assert not judged.lands("id x a b")
    assert not judged.lands(None)
    names = judged.tables.states[ITEMS].column_names
    assert names is not None
    assert (names.earlier.keys(), names.ids.keys()) == (BEFORE.keys(), {"id", "a", "b"})
    judged.start.manifest_history.commit(position=judged.position)
    assert judged.lands("id a b")
    assert judged.lands(None)


def test_a_description_that_no_later_row_has_is_forgotten_while_its_table_is_idle(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """Or a column that is added long after a hidden one was dropped would be taken for that one."""
    settings = {"columns": ["id", "x", "a", "y"], "mask_before_landing": True}
    judged = Judged(database, store, {"id": 1, "x": 2, "a": 3}, **settings)
    database.shows = lambda _: False
    assert not judged.lands("id x a")
    database.shows = shows_all
    judged.show({"id": 1, "x": 2})
    for _ in range(2):
        with database.transaction() as transaction:
            transaction.update("public.items", (2,), a=str(database.end))
        judged.tables.note_names(judged.start.source.check_catalog().look)
        judged.start.manifest_history.commit(position=database.end)
        nothing = LandedSegment(ResumePoint(database.end))
        assert judged.withhold(nothing)
    judged.show({"id": 1, "x": 2, "y": 4})
    assert judged.lands("id x y")
    assert judged.tables.states[ITEMS].state == "captured"


def test_a_description_stays_in_question_while_a_change_after_it_has_yet_to_land(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    judged = Judged(database, store, BEFORE)
    database.shows = lambda _: False
    assert not judged.lands("id x a b")
    database.shows = shows_all
    with database.transaction() as transaction:
        transaction.update("public.items", (2,), a=str(database.end))
    landed = database.end
    judged.start.manifest_history.commit(position=landed)
    judged.show({"id": 1, "a": 3, "b": 4}, "a")
    found = judged.start.source.check_catalog().look
    judged.tables.note_names(replace(found, begun=landed, position=landed + 1))
    assert not judged.lands(None)


def test_a_description_stays_in_question_while_looks_do_not_show_its_table(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """It was renamed, or can't be captured, and the log may not describe it again; a look may find it."""
    judged = Judged(database, store, BEFORE)
    judged.show(None)
    assert not judged.lands("id a x b")
    for _ in range(2):
        judged.start.manifest_history.commit(position=judged.position)
        assert not judged.lands(None)
    judged.show(BEFORE | {"a": 2, "x": 3}, "a x")
    assert not judged.lands(None)
    judged.show({"id": 1, "a": 2, "": 8})
    judged.tables.note_names(judged.start.source.check_catalog().look)
    judged.start.manifest_history.commit(position=database.end)
    assert judged.lands(None), "it is another table, which was described before, or will be"


@pytest.mark.parametrize("keeps_name", [False, True])
def test_a_description_of_a_root_stays_in_question_after_another_table_has_taken_its_name(
    database: MemoryDatabase, store: MemoryStore, *, keeps_name: bool
) -> None:
    """The log goes on with its name and description until it is opened again."""
    judged = Judged(database, store, BEFORE)
    judged.show(BEFORE, "a x")
    assert not judged.lands("id a x b", keeps_name=keeps_name)
    judged.show({**BEFORE, "": 8})
    judged.tables.note_names(judged.start.source.check_catalog().look)
    for _ in range(2):
        judged.start.manifest_history.commit(position=database.end)
        assert judged.lands(None) != keeps_name
    judged.hidden.log_opened()
    assert judged.lands(None)


def test_rows_of_a_table_that_is_released_are_judged_by_a_description_from_before(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """The first of them have been read before the log is opened again; while it is quarantined, none wait."""
    judged = Judged(database, store, BEFORE)
    judged.tables.quarantine(QuarantineNotice(ITEMS, database.end, "its key changed", "fix it"))
    judged.show(BEFORE, "a x")
    assert judged.lands("id a x b"), "no manifest names them"
    judged.tables.release(ITEMS, judged.tables.schemas[ITEMS])
    assert not judged.lands(None)
    judged.tables.quarantine(QuarantineNotice(ITEMS, database.end, "its key changed", "fix it"))
    database.shows = lambda _: False
    with database.transaction() as transaction:
        transaction.update("public.items", (2,), a="c")
    each = LoggedTable(RELATION, ITEMS, lsn=database.end - 1, columns=("id", "b"))
    assert judged.withhold(LandedSegment(ResumePoint(database.end), logged=[each]))


def test_a_description_of_another_epoch_is_in_question_no_more(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """No look would show it for long, as after a failover to a standby that a commit was waiting for."""
    judged = Judged(database, store, BEFORE)
    database.shows = lambda _: False
    assert not judged.lands("id a b")
    database.shows = lambda xid: xid > 0
    judged.tables.begin_epoch(log_is_lost=False)
    judged.start.manifest_history.commit(position=judged.position, epoch=judged.start.newest.epoch + 1)
    with database.transaction() as transaction:
        transaction.update("public.items", (2,), a="c")
    landed = LandedSegment(ResumePoint(database.end), files=[LandedFile.model_construct(table=ITEMS)])
    names = tuple(BEFORE)
    landed.logged.append(LoggedTable(RELATION, ITEMS, lsn=database.end - 1, columns=names, xid=9))
    assert judged.withhold(landed)
    assert landed.files


def test_ids_from_before_what_has_landed_put_nothing_in_question(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """Or each ALTER would be judged by what the table was long ago, until one of its descriptions lands."""
    judged = Judged(database, store, BEFORE)
    judged.show({"id": 1, "a": 3, "b": 4})
    assert judged.lands("id a b")
    judged.start.manifest_history.commit(position=judged.position)
    assert judged.lands(None)
    judged.show({"id": 1, "a": 3, "b": 4, "c": 5})
    found = judged.start.source.check_catalog()  # the catalog watcher's
    judged.tables.note_names(found.look)
    assert judged.lands("id a b c")


def test_a_description_stays_in_question_though_a_chunk_is_certain(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    judged = Judged(database, store, BEFORE)
    judged.show({"id": 1, "a": 3, "b": 4}, "a")
    assert not judged.lands("id x a b")
    numbers = tuple(RELATION * IDS_PER_TABLE + n for n in (1, 3, 4))
    read = LoggedTable(RELATION, ITEMS, dumped=True, columns=("id", "a", "b"), numbers=numbers)
    landed = LandedSegment(ResumePoint(database.end), logged=[read])
    assert judged.withhold(landed)
    assert landed.logged == [read], "nothing is withheld"
    assert not judged.lands(None)


def test_rows_whose_commit_no_look_shows_yet_wait_and_are_withheld_only_after_a_time(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    database.keyless.add(ITEMS)
    judged = Judged(database, store, BEFORE)
    for visible in (True, False):
        with database.transaction() as transaction:
            transaction.update("public.items", (2,), a=str(visible))
        file = LandedFile.model_construct(table=ITEMS)
        each = LoggedTable(RELATION, ITEMS, lsn=database.end - 1, columns=tuple(BEFORE), xid=int(visible))
        landed = LandedSegment(ResumePoint(database.end), files=[file], logged=[each])
        database.shows = lambda _: False
        judged.tables.take_notices()
        for _ in range(3):
            assert not judged.withhold(landed)
            assert (landed.files, landed.logged, judged.tables.notices) == ([file], [each], [])
            judged.seconds += WAIT_SECONDS / 4
        database.shows = lambda xid: xid == 1
        judged.seconds += 0 if visible else WAIT_SECONDS / 4
        assert judged.withhold(landed)
        assert landed.files == ([file] if visible else [])
        judged.start.manifest_history.commit(position=database.end)
    assert not judged.lands(None), "it is in question, and rows that follow it don't wait any longer"
    database.shows = shows_all
    assert judged.lands(None), "a later look shows it"


def test_a_hidden_name_that_a_transaction_gave_for_a_time_is_known_once_a_look_shows_it(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """It came with a column in a transaction that no look showed for long, which gave it another name."""
    judged = Judged(database, store, {"id": 1, "x": 2}, **LISTED)
    database.shows = lambda _: False
    with database.transaction() as transaction:
        transaction.update("public.items", (2,), a="b")
    landed = LandedSegment(ResumePoint(database.end), files=[LandedFile.model_construct(table=ITEMS)])
    for columns in (("id", "x", "a"), ("id", "x")):
        landed.logged.append(LoggedTable(RELATION, ITEMS, lsn=database.end - 1, columns=columns))
    assert not judged.withhold(landed)
    judged.seconds += WAIT_SECONDS
    assert judged.withhold(landed)
    assert not landed.files
    judged.start.manifest_history.commit(position=database.end)
    database.shows = shows_all
    judged.show({"id": 1, "x": 3})
    judged.lands(None)
    assert judged.tables.states[ITEMS].reason == "column 'x' was 'a', which lands masked"


@pytest.mark.parametrize("quarantined", [False, True])
@pytest.mark.parametrize("chunk", [False, True])
def test_a_hidden_name_that_a_column_had_for_a_time_is_known_before_the_next_dump_lands(
    database: MemoryDatabase, store: MemoryStore, *, chunk: bool, quarantined: bool
) -> None:
    """In a transaction that no look showed for long, and after which the table is idle."""
    judged = Judged(database, store, {"id": 1, "x": 2}, **LISTED)
    if quarantined:
        judged.tables.quarantine(QuarantineNotice(ITEMS, database.end, "its key changed", "fix it"))
    database.shows = lambda _: False
    with database.transaction() as transaction:
        transaction.update("public.items", (2,), a="b")
    landed = LandedSegment(ResumePoint(database.end))
    for columns in (("id", "a"), ("id", "x")):
        landed.logged.append(LoggedTable(RELATION, ITEMS, lsn=database.end - 1, columns=columns))
    assert judged.withhold(landed) == quarantined
    judged.seconds += WAIT_SECONDS
    assert judged.withhold(landed)
    judged.start.manifest_history.commit(position=database.end)
    database.shows = shows_all
    judged.show({"id": 1, "x": 2}, "x")
    chunks = []
    if chunk:
        numbers = tuple(RELATION * IDS_PER_TABLE + n for n in (1, 2))
        read = LoggedTable(RELATION, ITEMS, dumped=True, columns=("id", "x"), numbers=numbers)
        (dump,) = judged.dumps.active_of(ITEMS)
        task = ReadTask(dump, dump.number, 0, KeyRange(None, None), None, 1)
        schema = judged.tables.schemas[ITEMS]
        chunks.append(FinishedChunk(task, database.end, database.end, 1, schema, None, [read]))
    else:
        judged.tables.note_names(judged.start.source.check_catalog().look)
        judged.start.manifest_history.commit(position=database.end)
    landed = LandedSegment(ResumePoint(database.end))
    assert judged.hidden.withhold(landed, chunks, judged.start.newest, judged.start.config)
    assert "column 'x' was 'a', which lands masked" in str(judged.tables.states[ITEMS].reason)


def test_descriptions_that_come_one_after_another_hold_back_no_manifest_for_long(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    judged = Judged(database, store, BEFORE)
    database.shows = lambda _: False
    landed = LandedSegment(ResumePoint(database.end), files=[LandedFile.model_construct(table=ITEMS)])
    while True:
        with database.transaction() as transaction:
            transaction.update("public.items", (2,), a=str(judged.seconds))
        landed.end = ResumePoint(database.end)
        landed.logged.append(LoggedTable(RELATION, ITEMS, lsn=database.end - 1, columns=tuple(BEFORE)))
        if judged.withhold(landed):
            break
        judged.seconds += WAIT_SECONDS / 2
    assert judged.seconds == MOST_SECONDS
    assert not landed.files


def test_only_tables_that_are_described_are_looked_at(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = Judged(database, store, BEFORE)
    looked, look = [], judged.start.source.look_at_columns

    def look_at_columns(tables: Collection[TableName]) -> ColumnLook:
        looked.append({*tables})
        return look(tables)

    monkeypatch.setattr(judged.start.source, "look_at_columns", look_at_columns)
    assert judged.lands("id x a b")
    assert judged.lands(None)
    assert looked == [{ITEMS}]


def test_a_dump_goes_on_unless_it_has_read_what_is_uncertain(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """Another one follows. If rows were withheld more often than dumps finish, none would ever end."""
    judged = Judged(database, store, BEFORE)
    (dump,) = judged.dumps.active_of(ITEMS)
    dump.state = "running"
    judged.show({"id": 1, "a": 3, "b": 4}, "a")
    assert not judged.lands("id x a b")
    assert dump.active
    assert judged.dumps.needs.by_table[ITEMS].outdated >= dump.number
    numbers = tuple(RELATION * IDS_PER_TABLE + n for n in (1, 2, 3, 4))
    read = LoggedTable(RELATION, ITEMS, dumped=True, columns=("id", "a", "x", "b"), numbers=numbers)
    landed = LandedSegment(ResumePoint(database.end), logged=[read])
    assert judged.withhold(landed)
    assert not dump.active


def test_a_check_that_does_not_show_a_transaction_from_before_it_says_nothing_of_its_rows(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """Its commit was in the log, waiting for a synchronous standby, and is visible by now."""
    for shows in (False, True):
        judged = Judged(database, store, BEFORE)
        found = judged.start.source.check_catalog().look
        judged.tables.note_names(replace(found, begun=1 << 40, shows=lambda _, it=shows: it))
        judged.show({"id": 1, "x": 3, "a": 4, "b": 5})  # which looks as before
        assert judged.lands("id x a b") == shows
        store = MemoryStore()


def test_of_a_table_without_a_key_a_notice_says_that_rows_did_not_land(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    database.keyless.add(ITEMS)
    judged = Judged(database, store, BEFORE)
    judged.show(None)
    judged.tables.take_notices()
    for columns in ("id x a b", None):  # each manifest that lacks rows says so
        assert not judged.lands(columns)
        assert [n.kind for n in judged.tables.notices if "rows did not land" in n.text] == ["gap"]
        judged.tables.take_notices()


def test_a_chunk_lands_if_a_look_has_shown_its_numbers_under_its_names(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """Else it may be late, of another table, or of a hidden column that was renamed and is gone by now."""
    judged = Judged(database, store, BEFORE)
    judged.tables.looks.forget()
    for relation, name, certain in ((RELATION, "a", True), (RELATION, "c", False), (8, "a", False)):
        each = LoggedTable(
            relation,
            ITEMS,
            dumped=True,
            columns=("id", "x", name, "b"),
            numbers=tuple(relation * IDS_PER_TABLE + n for n in (1, 2, 3, 4)),
        )
        assert judged.hidden._is_certain(each, judged.start.config) == certain
        assert judged.hidden._needs_look([each], judged.start.config) != certain
