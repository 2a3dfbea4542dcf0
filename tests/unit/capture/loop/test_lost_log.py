"""A log that breaks again and again before anything of it is committed is lost; one that is slow is not."""

from __future__ import annotations

from typing import Any

import pytest

from connector.landing.manifest_store import newest_manifest
from connector.schema import TableName
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_log import MemoryLogReader
from connector.testing.memory_source import MemorySource
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, insert, read_upto
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")

EVER = 1_000_000
ITEMS = TableName.parse("public.items")


def test_log_that_always_breaks_before_a_commit_has_been_lost_since_it_first_broke(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """However often it is opened and read in between: the agent keeps the lease and gets no further."""
    with Agent(database, store) as agent:
        agent.wait_dumped()
        progress = agent.capture.progress
        agent.source.fail("take", times=EVER)
        insert(database, 1001)
        lost_at = wait_until(lambda: progress.lost_at, "it breaks")
        before = progress.reconnects
        wait_until(lambda: progress.reconnects > before + 2, "it breaks again and again")
        assert progress.lost_at == lost_at
        wait_until(lambda: progress.lost_seconds > 0, "it counts as lost", pause=0.001)
        agent.source._faults.clear()
        agent.wait_caught_up()
        wait_until(lambda: progress.lost_at is None, "it is not lost any more")


def test_log_that_is_read_after_it_broke_is_not_lost_however_long_a_commit_takes(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """As a huge transaction, which nobody would read faster."""
    with Agent(database, store, flush_seconds=60, heartbeat_seconds=60) as agent:
        agent.wait_dumped()
        progress = agent.capture.progress
        agent.source.fail("read", times=3)
        position = insert(database, 1001)
        wait_until(lambda: progress.reconnects == 3 and progress.reading, "it is read again")
        wait_until(lambda: read_upto(agent) >= position, "all of it is read")
        assert progress.lost_at is not None
        until = progress.turned_at + 1.0
        wait_until(lambda: progress.turned_at > until or progress.lost_seconds, "it has been read for long")
        assert progress.lost_seconds == 0


def test_a_break_of_a_log_that_has_landed_is_no_loss_when_it_breaks_again_much_later(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """Nothing is written at the source, so nothing is committed."""
    with Agent(database, store, heartbeat_seconds=60) as agent:
        agent.wait_dumped()
        agent.wait_caught_up()
        progress = agent.capture.progress
        manifests = progress.manifests
        agent.source.fail("read")
        wait_until(lambda: progress.reconnects and progress.lost_at is None, "it is read to its end")
        assert progress.manifests == manifests


def test_a_repair_that_waits_for_log_that_always_breaks_has_no_manifest_at_each_opening(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its floor is raised each time, since a crash may be why the log broke; pauses grow all the same."""
    opened = MemorySource.open_log

    def broken(*asked: Any) -> MemoryLogReader:
        reader = opened(*asked)
        reader.unbroken = False
        return reader

    monkeypatch.setattr(MemorySource, "open_log", broken)
    with Agent(database, store) as agent:
        agent.wait_dumped()
        progress, dumps = agent.capture.progress, agent.capture._dumps
        agent.source.fail("take", times=EVER)
        database.unlogged[ITEMS] = 1
        insert(database, 1001)
        queued = agent.wait(lambda m: any(dump.active for dump in m.dumps), "a repair is queued")
        for key in range(1002, 1006):
            before = progress.reconnects
            position = insert(database, key)
            wait_until(lambda: progress.reconnects > before + 1, "it breaks again")  # noqa: B023
            (repair,) = dumps.active_of(ITEMS)
            assert (repair.floor or 0) >= position
        assert newest_manifest(store).number == queued.number
        agent.source._faults.clear()
        agent.wait_dumped()
