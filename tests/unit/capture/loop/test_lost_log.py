"""A log that breaks again and again before anything of it is committed is lost; one that is slow is not."""

from __future__ import annotations

import pytest

from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, insert, read_upto
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")

EVER = 1_000_000


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
