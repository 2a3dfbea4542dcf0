"""Log that arrives shows that the source lives; that it lands later does not."""

from __future__ import annotations

from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, insert, shop
from tests.support.waiting import wait_until


def test_log_counts_when_it_arrives_and_not_when_it_lands() -> None:
    database = shop(rows=3)
    with Agent(database, MemoryStore(), flush_seconds=0.5, heartbeat_seconds=60) as agent:
        agent.wait_dumped()
        agent.wait_caught_up()
        progress, before = agent.capture.progress, agent.capture.progress.arrivals
        insert(database, 1000)
        wait_until(lambda: progress.arrivals > before, "it has arrived")
        arrived, landed, turned = progress.arrivals, progress.manifests, progress.turned_at
        agent.wait_caught_up()
        wait_until(lambda: progress.turned_at > turned and progress.manifests > landed, "it has landed")
        assert progress.arrivals == arrived
