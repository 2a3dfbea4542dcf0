"""The start of capture, and the start over after a gap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.capture.dump_queue import DumpQueue
from connector.capture.lander import Lander
from connector.capture.manifest_history import ManifestLog
from connector.capture.startup import ensure_log_continues, open_history, repair_unlogged, start_capturing
from connector.capture.tables import Repair, Tables
from connector.config import Config
from connector.errors import FencedError, GapError, SourceMismatchError, TransientError
from connector.landing.manifest import Manifest
from connector.schema import Column, TableName, TableSchema
from connector.source import Failover, ResumePoint
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_source import MemorySource
from connector.testing.memory_store import MemoryStore
from tests.support.agents import config_of, shop
from tests.support.cuts import manifests_in


class Start:
    """One start of an agent, up to the moment at which it would open the log."""

    def __init__(self, database: MemoryDatabase, store: MemoryStore, config: Config | None = None) -> None:
        self.config = config or config_of()
        self.source = MemorySource(database, self.config.source)
        self.manifest_log = ManifestLog(store, 1)
        self.lander = Lander(store)

    def open(self) -> tuple[Tables, DumpQueue]:
        return open_history(self.source, self.manifest_log, self.lander, self.config)

    @property
    def newest(self) -> Manifest:
        return self.manifest_log.newest


@pytest.fixture
def database() -> MemoryDatabase:
    return shop(rows=3)


def hide(database: MemoryDatabase) -> int:
    """Commit what no snapshot shows yet; gives its xid."""
    with database.transaction(visible=False) as transaction:
        transaction.update("public.items", (2,), a="changed")
    return database.log[-1].xid


def drop_slot(database: MemoryDatabase) -> None:
    database.slots.clear()


def test_a_new_history_begins_at_the_end_of_the_log_with_every_table_to_dump(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    start = Start(database, store)
    start.open()
    assert (start.newest.number, start.newest.epoch, start.newest.position) == (1, 1, database.end)
    assert [(str(d.table), d.reason, d.number) for d in start.newest.dumps] == [
        ("public.items", "initial", 1),
        ("public.parts", "initial", 2),
    ]
    assert not start.newest.exact
    assert len(list(store.list("schema/"))) == 2


def test_commits_that_are_not_visible_when_a_history_begins_are_waited_for(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    xid = hide(database)
    start = Start(database, store)
    start.open()
    assert [(c.xid, c.lsn) for c in start.newest.not_yet_visible] == [(xid + 1, 0)]


def test_a_crash_between_slot_and_first_manifest_leaves_a_start_like_the_first(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    store.fail("create", "manifest/", error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        Start(database, store).open()
    position = database.end
    database.idle()
    xid = hide(database)
    start = Start(database, store)
    start.open()
    assert start.newest.position == position
    assert start.newest.epoch == 1
    assert all(c.xid > xid for c in start.newest.not_yet_visible)
    assert start.newest.not_yet_visible


def test_a_later_start_goes_on_with_the_state_of_the_newest_manifest(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    Start(database, store).open()
    start = Start(database, store)
    tables, dumps = start.open()
    before, after = manifests_in(store)
    assert after.position == before.position
    assert after.dumps == before.dumps
    assert tables.key(TableName.parse("public.parts")) == ("area", "number")
    assert dumps.last_number == 2


def test_a_table_that_is_new_is_dumped_and_its_log_counts_from_now_on(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    Start(database, store, config_of(exclude=["public.parts"])).open()
    xid = hide(database)
    start = Start(database, store)
    tables, _ = start.open()
    newest = start.newest
    (dump,) = newest.dumps[1:]
    assert (str(dump.table), dump.reason) == ("public.parts", "initial")
    assert (dump.floor or 0) >= newest.position
    assert (xid + 1, 0) in [(c.xid, c.lsn) for c in newest.not_yet_visible]
    assert [n.text for n in newest.notices] == ["capture begins"]
    assert set(map(str, tables.states)) == {"public.items", "public.parts"}


def test_a_table_that_is_no_longer_named_is_left_with_its_dumps(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    Start(database, store).open()
    start = Start(database, store, config_of(exclude=["public.parts"]))
    start.open()
    assert list(map(str, start.newest.tables)) == ["public.items"]
    assert [d.state for d in start.newest.dumps] == ["waiting", "cancelled"]


def test_a_gap_begins_a_new_epoch_and_dumps_every_table(database: MemoryDatabase, store: MemoryStore) -> None:
    Start(database, store).open()
    database.idle()
    drop_slot(database)
    xid = hide(database)
    start = Start(database, store)
    start.open()
    newest = start.newest
    gap = newest.gaps[0]
    assert (newest.epoch, newest.position) == (2, database.end)
    assert (gap.epoch, gap.after, gap.before) == (2, manifests_in(store)[0].position, database.end)
    assert "gone" in gap.reason
    assert [(d.state, d.reason) for d in newest.dumps] == [
        ("cancelled", "initial"),
        ("cancelled", "initial"),
        ("waiting", "repair"),
        ("waiting", "repair"),
    ]
    assert [(c.xid, c.lsn) for c in newest.not_yet_visible] == [(xid + 1, 0)]
    assert Start(database, store).open()
    assert len(newest.gaps) == 1


def test_a_crash_between_the_new_slot_and_its_manifest_is_a_gap_again(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    Start(database, store).open()
    drop_slot(database)
    database.idle()
    start = Start(database, store)
    tables, dumps = _loaded(start)
    store.fail("create", "manifest/", error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ensure_log_continues(start.source, start.manifest_log, tables, dumps, start.config)
    assert database.slots
    start = Start(database, store)
    start.open()
    assert start.newest.epoch == 2
    assert "moved" in start.newest.gaps[0].reason


def test_a_failover_begins_an_epoch_without_a_gap_or_a_repair(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Start(database, store).open()
    database.idle()
    there = ResumePoint(3, (), "a:1-5", "other", "a:1-4")
    start = Start(database, store)
    monkeypatch.setattr(
        start.source, "check_resumable", lambda *_: Failover(there, "the log is another server's")
    )
    start.open()
    newest = start.newest
    assert (newest.epoch, newest.position, newest.source.server) == (2, 3, "other")
    assert (newest.gtids, newest.gtids_needed) == ("a:1-5", "a:1-4")
    assert newest.gaps == []
    assert [(d.state, d.reason, d.epoch) for d in newest.dumps] == [("waiting", "initial", 2)] * 2
    noticed = [(n.kind, n.text) for manifest in manifests_in(store) for n in manifest.notices]
    assert noticed == [("failover", "the log is another server's")]


@pytest.mark.parametrize("gap", [False, True])
def test_layouts_are_adopted_in_a_new_epoch_though_its_positions_are_lower(
    gap: bool, database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody reads what a column added after a failover holds in the rows of before."""
    start = Start(database, store)
    tables, dumps = start.open()
    name = TableName("public", "items")
    key, *others = tables.schemas[name].columns
    some, more = (TableSchema(name, (key, *others, *new), (key.name,)) for new in _NEW_COLUMNS)
    assert tables.adopt(some, 1 << 60) == Repair(name, ("b1",))
    found = "the log is lost" if gap else Failover(ResumePoint(3, ()), "the log is another server's")
    monkeypatch.setattr(start.source, "check_resumable", lambda *_: found)
    assert ensure_log_continues(start.source, start.manifest_log, tables, dumps, start.config)
    assert tables.adopt(more, 5) == Repair(name, ("b2",))


_NEW_COLUMNS = [[Column(name, "bigint", "bigint") for name in names] for names in (["b1"], ["b1", "b2"])]


def test_a_failover_to_another_database_is_refused(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Start(database, store).open()
    start = Start(database, store)
    tables, dumps = _loaded(start)
    other = start.source.identity().model_copy(update={"system_id": "other"})
    monkeypatch.setattr(start.source, "check_resumable", lambda *_: Failover(ResumePoint(3, ()), "moved"))
    monkeypatch.setattr(start.source, "identity", lambda *_: other)
    with pytest.raises(SourceMismatchError):
        ensure_log_continues(start.source, start.manifest_log, tables, dumps, start.config)
    assert start.newest.epoch == 1


def _loaded(start: Start) -> tuple[Tables, DumpQueue]:
    newest = start.manifest_log.load(start.source.identity)
    assert newest is not None
    schemas = {name: start.lander.load_schema(name, s.schema_id) for name, s in newest.tables.items()}
    return Tables(dict(newest.tables), schemas), DumpQueue(list(newest.dumps), epoch=1, last_number=2)


def test_a_log_that_somebody_else_confirmed_is_a_gap(database: MemoryDatabase, store: MemoryStore) -> None:
    Start(database, store).open()
    database.idle()
    for slot in database.slots.values():
        slot.confirmed = database.end
    start = Start(database, store)
    start.open()
    assert start.newest.epoch == 2


def test_a_gap_stops_where_it_is_configured_to_and_begins_nothing(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    Start(database, store).open()
    drop_slot(database)
    with pytest.raises(GapError, match="is gone"):
        Start(database, store, config_of(on_gap="stop")).open()
    assert not database.slots
    assert manifests_in(store)[-1].epoch == 1


def test_a_start_at_another_server_leaves_the_floors_of_dumps_as_they_are(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """A dump from a lower floor would lose to log that is older than what it reads."""
    Start(database, store).open()
    database.unlogged[ITEMS] = 1
    database.idle(500)
    Start(database, store).open()  # queues a repair behind all log so far
    before = manifests_in(store)
    other = shop(rows=3)  # its log is shorter
    other.unlogged[ITEMS] = 2
    with pytest.raises(GapError):
        Start(other, store, config_of(on_gap="stop")).open()
    start = Start(other, store)
    start.source.fail("check_resumable")
    with pytest.raises(TransientError):
        start.open()
    assert before[-1].dumps[-1].floor == database.end > other.end
    assert manifests_in(store) == before


def test_the_progress_of_another_agent_is_not_taken_for_a_gap(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    mine, other = Start(database, store), Start(database, store)
    tables, dumps = mine.open()
    other.open()
    database.idle()
    other.manifest_log.commit(position=database.end)
    slot = next(iter(database.slots.values()))
    slot.confirmed = database.end
    with pytest.raises(FencedError):
        ensure_log_continues(mine.source, mine.manifest_log, tables, dumps, mine.config)
    assert list(database.slots.values()) == [slot]


def test_a_source_that_fails_in_the_middle_of_a_repair_is_repaired_the_next_time(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    Start(database, store).open()
    drop_slot(database)
    start = Start(database, store)
    start.source.fail("begin_log")
    with pytest.raises(TransientError):
        start.open()
    start.open()
    assert start.newest.epoch == 2
    assert start.newest.exact is False


ITEMS = TableName.parse("public.items")


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
    arguments = start.source, start.manifest_log, start.lander, tables, dumps, start.config, set[TableName]()
    with pytest.raises(TransientError):
        start_capturing(*arguments)
    database.idle()
    checked_at = start_capturing(*arguments)
    assert dumps.active_of(ITEMS)[-1].floor == checked_at > 1


def test_a_table_that_others_keep_locked_keeps_no_other_from_being_captured_and_is_taken_up_later(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    database.busy = {ITEMS}
    start = Start(database, store)
    tables, dumps = start.open()
    assert list(map(str, tables.states)) == ["public.parts"]
    arguments = start.source, start.manifest_log, start.lander, tables, dumps, start.config, {ITEMS}
    start_capturing(*arguments)
    assert ITEMS not in tables.states
    database.busy = set()
    start_capturing(*arguments)
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
    arguments = start.source, start.manifest_log, start.lander, tables, dumps, start.config, set[TableName]()
    start_capturing(*arguments)
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
