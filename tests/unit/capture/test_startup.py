"""Capture started and resumed."""

from __future__ import annotations

import pytest

from connector.capture.manifest_history import ManifestHistory
from connector.errors import FencedError, TransientError
from connector.schema import TableName
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import config_of, shop
from tests.support.agent.starts import Start, hide
from tests.support.landing.cuts import manifests_in

ITEMS = TableName.parse("public.items")


@pytest.fixture
def database() -> MemoryDatabase:
    return shop(rows=3)


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


def test_a_first_manifest_of_an_agent_that_was_killed_takes_effect_late_and_stops_nobody(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, true_create = list[tuple[str, bytes]](), store.create

    def send(path: str, data: bytes) -> bool:
        late.append((path, data))
        raise KeyboardInterrupt

    def create(path: str, data: bytes) -> bool:
        true_create(*late[0])
        return true_create(path, data)

    monkeypatch.setattr(store, "create", send)
    with pytest.raises(KeyboardInterrupt):
        Start(database, store).open()
    monkeypatch.setattr(store, "create", create)
    start = Start(database, store, history=ManifestHistory(store, 2, closes_fence=True))
    with pytest.raises(TransientError, match="its term is 1, ours 2"):
        start.open()
    start.open()
    assert [manifest.term for manifest in manifests_in(store)][:2] == [1, 2]
    assert (start.newest.term, start.newest.epoch, start.newest.gaps) == (2, 1, [])


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


def test_an_agent_that_was_overtaken_before_its_start_does_not_stop_the_one_that_is_active(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """It took the lease, and was paused, or waited for the source, for longer than the lease's length."""
    late, active = ManifestHistory(store, 1), ManifestHistory(store, 2, closes_fence=True)
    Start(database, store, history=active).open()
    with pytest.raises(FencedError, match="its term is 2, ours 1"):
        Start(database, store, config_of(tables=["public.items"]), history=late).open()
    assert active.commit(position=database.end).term == 2
