"""What a check of the catalog leads to: tables captured, dumped again, or quarantined."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Literal

import pytest

from connector.capture.catalog_changes import forget_contradicted_checks, repair_told, repair_unlogged
from connector.capture.dumps.queue import DumpQueue
from connector.capture.loop import Capture
from connector.capture.tables import Tables
from connector.errors import TransientError
from connector.landing.event_batch import UnloggedNotice
from connector.landing.manifest import FullDump
from connector.logged_table import LoggedTable
from connector.schema import TableName
from connector.source import CatalogSnapshot
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_source import MemorySource
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import config_of
from tests.support.agent.starts import Start

ITEMS = TableName.parse("public.items")


def without_dumps(database: MemoryDatabase, store: MemoryStore) -> tuple[Tables, DumpQueue]:
    """The state of an agent whose first dumps are not queued."""
    tables, dumps = Start(database, store).open()
    dumps.states.clear()
    return tables, dumps


def test_what_a_check_found_is_found_again_after_the_source_fails_before_its_dump_is_queued(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    start = Start(database, store)
    tables, dumps = start.open()
    database.unlogged[ITEMS] = 1
    tables.note_columns(ITEMS, {"id"})
    before = tables.snapshot(2)
    start.source.fail("take_xid_barrier")
    with pytest.raises(TransientError):
        repair_unlogged(start.source, tables, dumps, start.source.check_catalog(), 2, start.config)
    assert tables.snapshot(2) == before
    repair_unlogged(start.source, tables, dumps, start.source.check_catalog(), 2, start.config)
    assert [d.reason for d in dumps.active_of(ITEMS)] == ["repair"]


@pytest.mark.parametrize(("reason", "state", "floor", "expected"), [
    ("repair", "waiting", 49, [("repair", 50)]),
    ("repair", "waiting", 50, [("repair", 50)]),
    ("initial", "running", 49, [("repair", 50)]),
    ("initial", "running", 50, [("initial", 50)]),  # it sees all that
    ("repair", "running", 50, [("repair", 50)]),
    ("request", "waiting", 50, [("repair", 50)]),  # while it waits, the table counts as whole
    ("request", "running", 50, [("repair", 50)]),
])  # fmt: skip
def test_what_the_log_tells_is_dumped_unless_a_dump_that_the_table_needs_sees_it(
    database: MemoryDatabase, store: MemoryStore, reason: Literal["initial", "repair", "request"],
    state: Literal["waiting", "running"], floor: int, expected: list[tuple[str, int]],
) -> None:  # fmt: skip
    tables, dumps = without_dumps(database, store)
    dumps.add(ITEMS, manifest=1, reason=reason, floor=floor).state = state
    gone = UnloggedNotice(TableName.parse("public.gone"), 40, "it was renamed")
    repair_told(tables, dumps, [UnloggedNotice(ITEMS, 40, "it was rewritten"), gone], 2, 50)
    assert [(d.reason, d.floor) for d in dumps.active_of(ITEMS)] == expected
    assert not dumps.active_of(gone.table)


def test_a_requested_dump_that_a_need_has_begin_later_sees_what_the_log_tells(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    tables, dumps = without_dumps(database, store)
    dumps.require(ITEMS, 50, None)
    dumps.add(ITEMS, manifest=1)
    repair_told(tables, dumps, [UnloggedNotice(ITEMS, 40, "it was rewritten")], 2, 50)
    assert [d.reason for d in dumps.active_of(ITEMS)] == ["request"]


def test_what_the_log_tells_of_a_quarantined_table_waits_for_its_release(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    tables, dumps = without_dumps(database, store)
    tables.update(ITEMS, state="quarantined")
    repair_told(tables, dumps, [UnloggedNotice(ITEMS, 40, "it was rewritten")], 2, 50)
    assert not dumps.active_of(ITEMS)


@pytest.mark.parametrize("column", ["b", "B"])
def test_a_check_that_shows_a_dropped_column_again_leads_to_a_dump_whatever_its_case(
    database: MemoryDatabase, store: MemoryStore, column: str
) -> None:
    start = Start(database, store)
    tables, dumps = start.open()
    dumps.states.clear()
    tables.note_columns(ITEMS, {"id"})
    snapshot = replace(start.source.check_catalog(), columns={ITEMS: frozenset({"id", column})})
    repair_unlogged(start.source, tables, dumps, snapshot, 2, start.config)
    assert [(d.kind, d.reason) for d in dumps.active_of(ITEMS)] == [("full", "repair")]


def test_a_released_table_is_dumped_behind_its_joining_the_log_though_the_first_attempt_to_take_it_up_fails(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    start = Start(database, store)
    tables, dumps = start.open()
    tables.update(ITEMS, fingerprint=None)
    dumps.add(ITEMS, manifest=2, floor=1)
    start.source.fail("check_catalog")
    with pytest.raises(TransientError):
        start.start_capturing(tables, dumps)
    database.idle()
    checked_at = start.start_capturing(tables, dumps)
    assert dumps.active_of(ITEMS)[-1].floor == checked_at > 1


@pytest.mark.parametrize("dump", ["cancelled", "running", "complete"])
def test_a_table_that_a_failed_attempt_added_to_the_log_is_dumped_behind_that_whatever_became_of_its_dump(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, dump: str
) -> None:
    """The log lacks what transactions wrote to it that were running when it was added."""
    start = Start(database, store)
    tables, dumps = start.open()
    released(database, tables, dumps, dump)
    start.source.fail("check_catalog")
    with pytest.raises(TransientError):
        start.start_capturing(tables, dumps)
    with monkeypatch.context() as patch:  # or a RENAME hides the table
        patch.setattr(start.source, "check_catalog", lambda _known: CatalogSnapshot({}, 1, frozenset(), {}))
        start.start_capturing(tables, dumps)
    database.idle()
    checked_at = start.start_capturing(tables, dumps)
    (repair,) = dumps.active_of(ITEMS)
    assert (repair.reason, repair.state, repair.floor) == ("repair", "waiting", checked_at)
    start.start_capturing(tables, dumps)
    assert dumps.active_of(ITEMS) == [repair]


@pytest.mark.parametrize("dump", ["cancelled", "running", "complete"])
def test_a_table_that_was_added_to_the_log_right_before_a_crash_needs_a_dump_from_behind_that(
    database: MemoryDatabase, store: MemoryStore, dump: str
) -> None:
    start = Start(database, store)
    tables, dumps = start.open()
    released(database, tables, dumps, dump)
    start.source.prepare()  # and nothing remembers that
    database.idle()
    checked_at = start.start_capturing(tables, dumps)
    if dump == "cancelled":
        need = dumps.needs.by_table[ITEMS]
        assert need.floor == dumps.add(ITEMS, manifest=9).floor == checked_at
    else:
        (repair,) = dumps.active_of(ITEMS)
        assert (repair.reason, repair.floor) == ("repair", checked_at)


def released(database: MemoryDatabase, tables: Tables, dumps: DumpQueue, dump: str) -> None:
    """Release a table that the log lacks; the dump of it that this asked for has begun, or has ended."""
    layout = database.schema(ITEMS)
    assert layout is not None
    database.drop_table(str(ITEMS))
    database.create_table(str(ITEMS), layout.key, {column.name: column.type for column in layout.columns})
    tables.update(ITEMS, fingerprint=None)
    (state,) = dumps.active_of(ITEMS)
    state.state = "running"
    if dump != "running":
        dumps.end(state, dump)
        tables.update(ITEMS, dumped=dump == "complete")


def test_a_table_that_others_keep_locked_keeps_no_other_from_being_captured_and_is_taken_up_later(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    database.busy = {ITEMS}
    start = Start(database, store)
    tables, dumps = start.open()
    assert list(map(str, tables.states)) == ["public.parts"]
    start.start_capturing(tables, dumps, ITEMS)
    assert ITEMS not in tables.states
    database.busy = set()
    start.start_capturing(tables, dumps, ITEMS)
    assert [(d.reason, d.kind) for d in dumps.active_of(ITEMS)] == [("initial", "full")]
    database.busy = {ITEMS}
    assert ITEMS in Start(database, store).open()[0].states


def test_a_table_that_is_locked_right_after_its_release_is_quarantined_again(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """Its dump would rest on no fingerprint: what changes unlogged before the first one would go unseen."""
    start = Start(database, store)
    tables, dumps = start.open()
    tables.update(ITEMS, fingerprint=None)
    database.busy = {ITEMS}
    start.start_capturing(tables, dumps)
    assert (tables.states[ITEMS].state, tables.states[ITEMS].reason) == (
        "quarantined",
        "other sessions keep it locked",
    )


def test_a_repair_that_has_begun_goes_on_when_more_changes_unlogged_and_one_more_follows_it(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    start = Start(database, store)
    tables, dumps = start.open()
    for change in range(1, 5):
        database.unlogged[ITEMS] = change
        database.idle()
        snapshot = start.source.check_catalog()
        repair_unlogged(start.source, tables, dumps, snapshot, 2, start.config)
        while dumps.next_task(0) is not None:  # workers take what they may
            pass
    running, waiting = dumps.active_of(ITEMS)
    assert (running.state, running.reason, waiting.state) == ("running", "repair", "waiting")
    assert waiting.floor == snapshot.position


def test_the_first_dump_of_a_table_begins_behind_what_was_running_at_the_catalog_check(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log may be older than the check in effect: of a transaction from before a label was renamed."""
    barriers, ends = iter((7, 8)), {7: 10_000, 8: None}
    monkeypatch.setattr(MemorySource, "take_xid_barrier", lambda _self: next(barriers))
    monkeypatch.setattr(MemorySource, "position_past_barrier", lambda _self, barrier: ends[barrier])
    start = Start(database, store, config_of(tables=["public.items"]))
    start.open()
    assert [(d.floor, d.xid_barrier) for d in start.newest.dumps] == [(10_000, None)]
    database.idle(10_000)
    again = Start(database, store, config_of(tables=["public.*"]))
    _, dumps = again.open()
    assert [d.xid_barrier for d in again.newest.dumps] == [None, 8]
    dumps.start_unblocked({8: 20_000}.get)
    assert [d.floor for d in dumps.states] == [10_000, 20_000]


def test_log_that_a_full_dump_sees_the_effect_of_leaves_no_doubt(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that were renamed or partitions that were dropped, and whose older log is still to be read."""
    start = Start(database, store)
    tables, dumps = start.open()
    seen = []
    monkeypatch.setattr(
        start.source, "contradicted_by_log", lambda _, logged, upto: seen.append(upto(ITEMS, *logged)) or {}
    )

    def upto() -> int:
        logged = [LoggedTable(1, ITEMS, lsn=5)]
        assert not forget_contradicted_checks(start.source, tables, dumps, logged, 20)
        return int(seen[-1])

    (initial,) = dumps.active_of(ITEMS)
    initial.floor, initial.xid_barrier = 7, 9
    assert upto() == sys.maxsize, "its floor will be after the end of transactions that are running now"
    initial.xid_barrier = None
    assert upto() == 7
    dumps.end(initial, "cancelled")
    assert (upto(), dumps.needs.by_table[ITEMS].floor) == (7, 7)
    dumps.needs.forget(ITEMS)
    dumps.add(ITEMS, manifest=2, kind="keys", keys=[["1"]], floor=9)
    assert upto() == 0
    ended = FullDump(id="a", number=1, epoch=dumps.epoch, low=10, started_in=1)
    tables.update(ITEMS, full_dump=ended)
    assert upto() == 11
    tables.update(ITEMS, full_dump=ended.model_copy(update={"epoch": dumps.epoch + 1}))
    assert upto() == 0, "positions of different epochs can't be compared"


def test_a_table_that_the_log_contradicts_is_not_whole_until_it_is_dumped_again(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut with that log is not exact, although only the next check repairs the table."""
    start = Start(database, store)
    tables, dumps = start.open()
    tables.update(ITEMS, dumped=True)
    monkeypatch.setattr(start.source, "contradicted_by_log", lambda *_: {ITEMS: "doubted"})
    assert forget_contradicted_checks(start.source, tables, dumps, [LoggedTable(1, ITEMS, lsn=5)], 20)
    state = tables.snapshot(2, dumps.needs.copy())[ITEMS]
    assert (state.dumped, state.fingerprint) == (False, "doubted")
    assert state.need is not None
    assert state.need.floor == 20


def test_a_check_that_began_before_what_raised_a_doubt_is_not_applied(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    start = Start(database, store)
    capture = Capture(start.source, store, start.config)
    capture._checked_at = 5
    capture._apply_catalog_changes(CatalogSnapshot({}, 9, frozenset(), begun=4))
    with pytest.raises(LookupError):  # it has no manifest to apply one after
        capture._apply_catalog_changes(CatalogSnapshot({}, 9, frozenset(), begun=5))
