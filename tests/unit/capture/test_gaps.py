"""Capture restarted after a gap or a failover."""

from __future__ import annotations

import pytest

from connector.capture.dumps.queue import DumpQueue
from connector.capture.gaps import check_for_gap
from connector.capture.tables import Repair, Tables
from connector.errors import FencedError, GapError, SourceMismatchError, TransientError
from connector.schema import Column, TableName, TableSchema
from connector.source import Failover, ResumePoint
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import config_of, shop
from tests.support.agent.starts import Start, hide
from tests.support.landing.cuts import manifests_in

ITEMS = TableName.parse("public.items")


@pytest.fixture
def database() -> MemoryDatabase:
    return shop(rows=3)


def drop_slot(database: MemoryDatabase) -> None:
    database.slots.clear()


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
        check_for_gap(start.source, start.manifest_history, tables, dumps, start.config)
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
    assert check_for_gap(start.source, start.manifest_history, tables, dumps, start.config)
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
        check_for_gap(start.source, start.manifest_history, tables, dumps, start.config)
    assert start.newest.epoch == 1


def _loaded(start: Start) -> tuple[Tables, DumpQueue]:
    newest = start.manifest_history.load(start.source.identity)
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
    other.manifest_history.commit(position=database.end)
    slot = next(iter(database.slots.values()))
    slot.confirmed = database.end
    with pytest.raises(FencedError):
        check_for_gap(mine.source, mine.manifest_history, tables, dumps, mine.config)
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
