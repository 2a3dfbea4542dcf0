"""The start of capture, and the start over after a gap."""

from __future__ import annotations

import pytest

from connector.config import Config
from connector.dump import Dumps
from connector.errors import FencedError, GapError, SourceMismatchError, TransientError
from connector.history import open_history, repair_gap
from connector.lander import Lander
from connector.ledger import Ledger
from connector.manifest import Manifest
from connector.memory_database import MemoryDatabase
from connector.source import Failover, History
from connector.source_memory import MemorySource
from connector.store_memory import MemoryStore
from connector.tables import Tables
from tests.agents import config_of, shop
from tests.cuts import manifests_in


class Start:
    """One start of an agent, up to the moment at which it would open the log."""

    def __init__(self, database: MemoryDatabase, store: MemoryStore, config: Config | None = None) -> None:
        self.config = config or config_of()
        self.source = MemorySource(database, self.config.source)
        self.ledger = Ledger(store, 1)
        self.lander = Lander(store)

    def open(self) -> tuple[Tables, Dumps]:
        return open_history(self.source, self.ledger, self.lander, self.config)

    @property
    def newest(self) -> Manifest:
        return self.ledger.newest


@pytest.fixture
def database() -> MemoryDatabase:
    return shop(rows=3)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


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
    assert [(d.table, d.reason, d.number) for d in start.newest.dumps] == [
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
    assert [(c.xid, c.lsn) for c in start.newest.unsettled] == [(xid, 0)]


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
    assert xid in {c.xid for c in start.newest.unsettled}


def test_a_later_start_goes_on_with_the_state_of_the_newest_manifest(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    Start(database, store).open()
    start = Start(database, store)
    tables, dumps = start.open()
    before, after = manifests_in(store)
    assert after.position == before.position
    assert after.dumps == before.dumps
    assert tables.key("public.parts") == ("area", "number")
    assert dumps.last_number == 2


def test_a_table_that_is_new_is_dumped_and_its_log_counts_from_now_on(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    Start(database, store, config_of(exclude=["public.parts"])).open()
    xid = hide(database)
    start = Start(database, store)
    tables, _ = start.open()
    newest = start.newest
    assert [(d.table, d.reason, d.floor) for d in newest.dumps[1:]] == [
        ("public.parts", "initial", newest.position)
    ]
    assert (xid, 0) in [(c.xid, c.lsn) for c in newest.unsettled]
    assert [n.text for n in newest.notices] == ["is captured from now on"]
    assert set(tables.states) == {"public.items", "public.parts"}


def test_a_table_that_is_no_longer_named_is_left_with_its_dumps(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    Start(database, store).open()
    start = Start(database, store, config_of(exclude=["public.parts"]))
    start.open()
    assert list(start.newest.tables) == ["public.items"]
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
    assert [(c.xid, c.lsn) for c in newest.unsettled] == [(xid, 0)]
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
        repair_gap(start.source, start.ledger, tables, dumps, start.config)
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
    there = History(3, (), "a:1-5", "other", "a:1-4")
    start = Start(database, store)
    monkeypatch.setattr(start.source, "gap_after", lambda *_: Failover(there, "the log is another server's"))
    start.open()
    newest = start.newest
    assert (newest.epoch, newest.position, newest.source.server) == (2, 3, "other")
    assert (newest.gtids, newest.gtids_needed) == ("a:1-5", "a:1-4")
    assert newest.gaps == []
    assert [(d.state, d.reason, d.epoch) for d in newest.dumps] == [("waiting", "initial", 2)] * 2
    assert [(n.kind, n.text) for n in newest.notices] == [("failover", "the log is another server's")]


def test_a_failover_to_another_database_is_refused(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Start(database, store).open()
    start = Start(database, store)
    tables, dumps = _loaded(start)
    other = start.source.identity().model_copy(update={"system_id": "other"})
    monkeypatch.setattr(start.source, "gap_after", lambda *_: Failover(History(3, ()), "moved"))
    monkeypatch.setattr(start.source, "identity", lambda *_: other)
    with pytest.raises(SourceMismatchError):
        repair_gap(start.source, start.ledger, tables, dumps, start.config)
    assert start.newest.epoch == 1


def _loaded(start: Start) -> tuple[Tables, Dumps]:
    newest = start.ledger.load(start.source.identity)
    assert newest is not None
    schemas = {name: start.lander.load_schema(name, s.schema_id) for name, s in newest.tables.items()}
    return Tables(dict(newest.tables), schemas), Dumps(list(newest.dumps), epoch=1, last_number=2)


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


def test_the_progress_of_another_agent_is_not_taken_for_a_gap(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    mine, other = Start(database, store), Start(database, store)
    tables, dumps = mine.open()
    other.open()
    database.idle()
    other.ledger.commit(position=database.end)
    slot = next(iter(database.slots.values()))
    slot.confirmed = database.end
    with pytest.raises(FencedError):
        repair_gap(mine.source, mine.ledger, tables, dumps, mine.config)
    assert list(database.slots.values()) == [slot]


def test_a_source_that_fails_in_the_middle_of_a_repair_is_repaired_the_next_time(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    Start(database, store).open()
    drop_slot(database)
    start = Start(database, store)
    start.source.fail("begin_history")
    with pytest.raises(TransientError):
        start.open()
    start.open()
    assert start.newest.epoch == 2
    assert start.newest.exact is False
