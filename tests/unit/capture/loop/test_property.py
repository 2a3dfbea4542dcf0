"""Random histories, with faults at random moments: every cut is exact, no event is lost, nothing is confirmed
that no manifest holds. Each rule taken out is found by the same check.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from connector.capture.dumps.queue import DumpQueue
from connector.capture.dumps.tasks import ReadTask
from connector.errors import BugError
from connector.landing.manifest import InvisibleCommit
from connector.landing.requests import ControlRequest, DumpRequest, submit
from connector.postgres.visibility import Snapshot, Visibility
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, Writer, shop
from tests.support.agent.killed_agents import break_things, live_through
from tests.support.landing.cuts import assert_every_cut_exact, assert_no_event_lost, manifests_in
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.mark.parametrize("seed", range(12))
def test_every_cut_is_exact_whatever_breaks(seed: int) -> None:
    chance = random.Random(seed)
    database, store = shop(rows=60, seed=seed), MemoryStore()
    settings = {"delay_seconds": 0.003, "chunk_rows": chance.choice([3, 7, 20])}
    database.asynchronous = seed % 3 == 0
    with Writer(database, seed):
        for _ in range(chance.randint(1, 4)):
            live_through(Agent(database, store, **settings), database, store, chance)
        with Agent(database, store) as agent:
            agent.wait_dumped()
    catch_up(database, store)
    assert_every_cut_exact(store, database)
    assert_no_event_lost(store, database)


def catch_up(database: MemoryDatabase, store: MemoryStore) -> None:
    """Capture to the end of the log, with every commit flushed and visible."""
    database.make_visible()
    database.flush()
    with Agent(database, store) as agent:
        agent.wait_caught_up()
        agent.wait_dumped()


def control_dumps(store: MemoryStore, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 3)):
        kind: Any = chance.choice(["pause", "resume", "resume", "cancel", "set"])
        if kind == "set":
            settings = {"workers": chance.randint(1, 4), "chunk_rows": chance.randint(1, 30)}
            submit(store, ControlRequest(kind="set", settings=settings))
        else:
            submit(store, ControlRequest(kind=kind, all=True))


@pytest.mark.parametrize("seed", range(12))
def test_every_cut_that_says_so_is_exact_however_dumps_are_controlled(seed: int) -> None:
    chance = random.Random(seed)
    database, store = shop(rows=60, seed=seed), MemoryStore()
    settings = {"delay_seconds": 0.003, "chunk_rows": chance.choice([3, 7, 20])}
    with Writer(database, seed):
        for _ in range(chance.randint(2, 5)):
            live_through(Agent(database, store, **settings), database, store, chance)
            control_dumps(store, chance)
        submit(store, ControlRequest(kind="resume", all=True))
        submit(store, DumpRequest())
        with Agent(database, store) as agent:
            agent.wait_dumped()
    catch_up(database, store)
    assert_every_cut_exact(store, database)
    assert_no_event_lost(store, database)


@pytest.mark.parametrize("seed", range(6))
def test_after_a_gap_every_cut_that_says_so_is_exact(seed: int) -> None:
    chance = random.Random(seed)
    database, store = shop(rows=30, seed=seed), MemoryStore()
    with Writer(database, seed):
        for _ in range(chance.randint(1, 3)):
            agent = Agent(database, store, delay_seconds=0.003)
            break_things(agent, store, chance)
            agent.start()
            agent.wait(lambda m: m.number >= chance.randint(2, 8), "the agent has committed")
            database.slots.clear()
            if chance.random() < 0.5:
                agent.wait(lambda m: m.epoch > 1, "the gap is found while running")
            agent.capture.stop()
            agent.join()
            assert agent.error is None
        with Agent(database, store) as agent:
            agent.wait_dumped()
    catch_up(database, store)
    manifests = assert_every_cut_exact(store, database)
    assert manifests[-1].epoch > 1
    assert manifests[-1].exact


def low_is_never_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    def low(_self: Visibility, position: int, _snapshot: Snapshot) -> int:
        return position - 1

    monkeypatch.setattr(Visibility, "low_watermark", low)


def low_is_above_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    true_low = Visibility.low_watermark

    def low(self: Visibility, position: int, snapshot: Snapshot) -> int | None:
        found = true_low(self, position, snapshot)
        return None if found is None else found + 40

    monkeypatch.setattr(Visibility, "low_watermark", low)


def chunks_are_committed_early(monkeypatch: pytest.MonkeyPatch) -> None:
    true_commit = DumpQueue.take_committable
    monkeypatch.setattr(
        DumpQueue,
        "take_committable",
        lambda self, _position, manifest, _judged: true_commit(self, 1 << 60, manifest),
    )


def chunks_are_forgotten_with_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    true_give_back = DumpQueue.give_back

    def give_back(self: DumpQueue, task: Any, rest_seconds: float = 0.0) -> None:
        if isinstance(task, ReadTask):
            task.dump.open = [r for r in task.dump.open if r.chunk != task.chunk]
        true_give_back(self, task, rest_seconds)

    monkeypatch.setattr(DumpQueue, "give_back", give_back)


def transactions_of_before_the_history_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    true_init = Visibility.__init__

    def init(self: Visibility, position: int, not_yet_visible: Iterable[InvisibleCommit] = ()) -> None:
        true_init(self, position, [commit for commit in not_yet_visible if commit.lsn])

    monkeypatch.setattr(Visibility, "__init__", init)


@pytest.mark.parametrize(
    "mutant",
    [
        transactions_of_before_the_history_are_not_waited_for,
        low_is_never_lowered,
        low_is_above_what_was_read,
        chunks_are_committed_early,
        chunks_are_forgotten_with_a_lost_connection,
    ],
)
def test_a_rule_taken_out_is_found(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    for seed in range(30):
        database, store = shop(seed=seed), MemoryStore()
        writer = Writer(database, seed)
        for _ in range(20):
            writer.step()
        agents = [Agent(database, store, delay_seconds=0.003) for _ in range(3)]
        with writer:
            for agent in agents:
                agent.source.fail("rows", after=seed % 10, times=3)
                agent.start()
                number = len(manifests_in(store)) + 3
                wait_until(
                    lambda a=agent, s=store, n=number: a.ended or len(manifests_in(s)) >= n,
                    "some manifests are there",
                )
                agent.capture.stop()
                agent.join()
        if any(isinstance(agent.error, BugError) for agent in agents):
            return  # the agent found it by itself
        assert [agent.error for agent in agents] == [None] * 3
        try:
            assert_every_cut_exact(store, database)
        except AssertionError:
            return
    pytest.fail(f"{mutant.__name__} was not found")
