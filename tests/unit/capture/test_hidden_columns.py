"""Rows of tables that hide columns land only if it is certain which columns they have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from connector.capture.hidden_columns import HiddenColumns, places_of
from connector.capture.lander import LandedSegment
from connector.config import TableConfig
from connector.landing.column_names import IDS_PER_TABLE
from connector.landing.manifest import InvisibleCommit, LandedFile
from connector.logged_table import LoggedTable
from connector.schema import TableName
from connector.source import ResumePoint
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import config_of
from tests.support.agent.starts import Start

ITEMS = TableName.parse("public.items")
RELATION = 7


Live = tuple[int, ...]


def histories(steps: int, live: Live = (1, 2, 3), last: int = 3) -> Iterator[list[Live]]:
    """Yield all histories of a table's columns, by their numbers, as they are added and dropped."""
    if not steps:
        yield [live]
        return
    steps -= 1
    following = [((*live, last + 1), last + 1)]
    following += [(live[:place] + live[place + 1 :], last) for place in range(len(live))]
    for after, latest in following:
        yield from ([live, *rest] for rest in histories(steps, after, latest))


def test_a_column_is_at_one_of_its_places_whatever_was_added_and_dropped_between_the_checks() -> None:
    for history in histories(5):
        before, after = history[0], history[-1]
        for described in history:
            for number in {*before} & {*described}:
                places = places_of(number, len(described), before, after)
                assert described.index(number) in places
                if before[: before.index(number)] == tuple(n for n in after if n < number):
                    assert len(places) == 1, "nothing on its left was dropped"


class Judged:
    """The shop, whose items mask `a`, and what is landed of them."""

    def __init__(
        self, database: MemoryDatabase, store: MemoryStore, ids: Mapping[str, int], **settings: Any
    ) -> None:
        self.database, self.position = database, database.end
        self.show(ids)
        tables = {ITEMS: TableConfig.model_validate({"mask": {"a": "sha256"}} | settings)}
        self.start = Start(database, store, config_of().model_copy(update={"tables": tables}))
        self.tables, self.dumps = self.start.open()
        self.hidden = HiddenColumns(self.start.source, self.tables, self.dumps)

    def show(self, ids: Mapping[str, int] | None) -> None:
        """Have the next check show these columns, by their numbers; None: not the table."""
        self.database.column_ids.pop(ITEMS, None)
        if ids is not None:
            relation = self.relation = ids.get("", RELATION)
            numbered = {name: relation * IDS_PER_TABLE + n for name, n in ids.items() if name}
            self.database.column_ids[ITEMS] = numbered

    def lands(self, columns: str | None, invisible: Sequence[InvisibleCommit] = ()) -> bool:
        """Return whether rows land, right after a description of these columns; None: after none."""
        with self.database.transaction() as transaction:
            transaction.update("public.items", (2,), a=str(self.database.end))
        self.position = self.database.end
        file = LandedFile.model_construct(table=ITEMS)
        landed = LandedSegment(ResumePoint(self.position), files=[file])
        if columns is not None:
            names = tuple(columns.split())
            landed.logged.append(LoggedTable(RELATION, ITEMS, lsn=self.position, columns=names))
        self.hidden.withhold(landed, [], self.start.newest, invisible, self.start.config)
        assert [each.withheld for each in landed.logged if each.withheld] == [True] * (not landed.files)
        return bool(landed.files)


BEFORE = {"id": 1, "x": 2, "a": 3, "b": 4}


@pytest.mark.parametrize(
    ("after", "columns", "lands"),
    [
        (BEFORE, "id x a b", True),
        ({**BEFORE, "c": 5}, "id x A b c", True),
        ({**BEFORE, "c": 5}, "id x a b", True),
        ({"id": 1, "a": 3, "b": 4}, "id a b", True),
        ({"id": 1, "x": 2, "b": 4}, "id x b", True),
        ({"id": 1, "x": 2, "b": 3}, "id x b", True),  # a was renamed, as the manifest says then
        ({"id": 1, "a": 3, "b": 4}, "id x a b", False),  # x was dropped, and a may have been x in between
        ({"id": 1, "x": 3, "a": 4, "b": 5}, "id x a b", False),  # the layout looks as before
        ({"id": 1, "x": 2, "a": 3, "c": 4}, "id x b a", False),  # a was b for a time
        ({**BEFORE, "": 8}, "id x a b", False),  # another table has its name by now
        (None, "id x a b", False),
        (None, "id b", False),
    ],
)
def test_rows_land_if_each_hidden_column_has_one_name_that_a_check_shows(
    database: MemoryDatabase,
    store: MemoryStore,
    after: Mapping[str, int] | None,
    columns: str,
    lands: bool,
) -> None:
    judged = Judged(database, store, BEFORE)
    judged.show(after)
    assert judged.lands(columns) == lands
    assert (ITEMS in judged.dumps.needs.by_table) != lands


LISTED = {"columns": ["id", "x", "a"], "mask_before_landing": True}


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
    numbers = tuple(RELATION * IDS_PER_TABLE + n for n in (1, 2, 3)) if chunk else ()
    each = LoggedTable(
        RELATION, ITEMS, lsn=database.end, dumped=chunk, columns=("id", "x", "A"), numbers=numbers
    )
    landed = LandedSegment(ResumePoint(database.end), logged=[each])
    judged.hidden.withhold(landed, [], judged.start.newest, [], judged.start.config)
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
    judged.tables.note_names(judged.start.source.check_catalog())
    for _ in range(2):
        each = LoggedTable(RELATION, ITEMS, lsn=database.end - 1, columns=tuple(columns.split()))
        landed = LandedSegment(ResumePoint(database.end), logged=[each])
        judged.hidden.withhold(landed, [], judged.start.newest, [], judged.start.config)
        assert judged.tables.states[ITEMS].state == state


def test_a_description_in_question_is_judged_again_until_it_is_certain(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """The log does not repeat it, unless the table was altered: after a check of that, it is done with."""
    judged = Judged(database, store, BEFORE)
    judged.show({"id": 1, "a": 3, "b": 4})
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
    commits = [InvisibleCommit(xid=1, lsn=database.end + step) for step in range(99)]
    assert not judged.lands("id x a", commits)
    judged.show({"id": 1, "x": 2})
    for _ in range(2):
        with database.transaction() as transaction:
            transaction.update("public.items", (2,), a=str(database.end))
        judged.tables.note_names(judged.start.source.check_catalog())
        judged.start.manifest_history.commit(position=database.end)
        nothing = LandedSegment(ResumePoint(database.end))
        judged.hidden.withhold(nothing, [], judged.start.newest, [], judged.start.config)
    judged.show({"id": 1, "x": 2, "y": 4})
    assert judged.lands("id x y")
    assert judged.tables.states[ITEMS].state == "captured"


def test_a_description_stays_in_question_while_a_change_after_it_has_yet_to_land(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    judged = Judged(database, store, BEFORE)
    commits = [InvisibleCommit(xid=1, lsn=database.end + step) for step in range(99)]
    assert not judged.lands("id x a b", commits)
    with database.transaction() as transaction:
        transaction.update("public.items", (2,), a=str(database.end))
    landed = database.end
    judged.start.manifest_history.commit(position=landed)
    judged.show({"id": 1, "a": 3, "b": 4})
    found = replace(judged.start.source.check_catalog(), begun=landed, position=landed + 1)
    judged.tables.note_names(found)
    assert not judged.lands(None)


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
    judged.tables.note_column_ids(found.column_ids, found.begun, found.position)
    assert judged.lands("id a b c")


def test_a_description_stays_in_question_though_a_chunk_is_certain(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    judged = Judged(database, store, BEFORE)
    judged.show({"id": 1, "a": 3, "b": 4})
    assert not judged.lands("id x a b")
    numbers = tuple(RELATION * IDS_PER_TABLE + n for n in (1, 3, 4))
    read = LoggedTable(RELATION, ITEMS, dumped=True, columns=("id", "a", "b"), numbers=numbers)
    landed = LandedSegment(ResumePoint(database.end), logged=[read])
    judged.hidden.withhold(landed, [], judged.start.newest, [], judged.start.config)
    assert landed.logged == [read], "nothing is withheld"
    assert not judged.lands(None)


def test_a_row_whose_commit_a_check_may_not_show_is_withheld(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    judged = Judged(database, store, BEFORE)
    assert judged.lands("id x a b")
    commits = [InvisibleCommit(xid=1, lsn=database.end + step) for step in range(99)]
    assert not judged.lands("id x a b", commits)
    assert judged.lands(None), "a later check shows it"


def test_a_dump_goes_on_unless_it_has_read_what_is_uncertain(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """Another one follows. If rows were withheld more often than dumps finish, none would ever end."""
    judged = Judged(database, store, BEFORE)
    (dump,) = judged.dumps.active_of(ITEMS)
    dump.state = "running"
    judged.show({"id": 1, "a": 3, "b": 4})
    assert not judged.lands("id x a b")
    assert dump.active
    assert judged.dumps.needs.by_table[ITEMS].outdated >= dump.number
    numbers = tuple(RELATION * IDS_PER_TABLE + n for n in (1, 2, 3, 4))
    read = LoggedTable(RELATION, ITEMS, dumped=True, columns=("id", "a", "x", "b"), numbers=numbers)
    landed = LandedSegment(ResumePoint(database.end), logged=[read])
    judged.hidden.withhold(landed, [], judged.start.newest, [], judged.start.config)
    assert not dump.active


def test_a_check_that_does_not_show_a_transaction_from_before_it_says_nothing_of_its_rows(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """Its commit was in the log, waiting for a synchronous standby, and is visible by now."""
    for shows in (False, True):
        judged = Judged(database, store, BEFORE)
        found = judged.start.source.check_catalog()
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


def test_a_chunk_that_has_read_the_numbers_of_its_columns_needs_no_check(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    judged = Judged(database, store, BEFORE)
    judged.tables.numbered = frozenset()
    for relation, name, certain in ((RELATION, "a", True), (RELATION, "c", False), (8, "c", True)):
        each = LoggedTable(
            relation,
            ITEMS,
            dumped=True,
            columns=("id", "x", name, "b"),
            numbers=tuple(relation * IDS_PER_TABLE + n for n in (1, 2, 3, 4)),
        )
        assert judged.hidden._is_certain(each, judged.start.config) == certain
        assert judged.hidden._needs_check({ITEMS: [each]}, judged.start.config) != certain
