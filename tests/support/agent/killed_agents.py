"""Agents on a database in memory that fail, stop or are killed at random moments, one after the other."""

from __future__ import annotations

import random
from typing import Any

from connector.landing.manifest import DumpState
from connector.landing.requests import DumpRequest, submit
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, Killed, Writer, dump_of, shop
from tests.support.landing.cuts import assert_every_cut_exact, manifests_in
from tests.support.waiting import wait_until

MOMENTS = (
    "check_resumable open_log read take confirm not_yet_visible open_tables next_boundary open_chunk rows"
).split()
STORE_FAULTS = [
    ("create", "manifest/", "before"),
    ("create", "manifest/", "after"),
    ("put_file", "data/", "before"),
    ("put_file", "data/", "after"),
    ("put", "schema/", "before"),
    ("list", "requests/", "before"),
]


def break_things(agent: Agent, store: MemoryStore, chance: random.Random) -> None:
    """Have the next calls to source and store fail, at random."""
    for _ in range(chance.randint(0, 4)):
        agent.source.fail(chance.choice(MOMENTS), after=chance.randint(0, 20), times=chance.randint(1, 2))
    for _ in range(chance.randint(0, 2)):
        operation, prefix, when = chance.choice(STORE_FAULTS)
        store.fail(operation, prefix, when=when, times=chance.randint(1, 3))


def _doom(agent: Agent, chance: random.Random) -> None:
    """Let the agent die at one of its next writing calls."""
    left, when = chance.randint(1, 25), chance.choice(["before", "after"])

    def at(call: str, _arguments: tuple[Any, ...]) -> str | None:
        nonlocal left
        left -= call in ("put", "put_file", "create", "delete")
        return when if left == 0 else None

    agent.store.die_at(at)


def live_through(agent: Agent, database: MemoryDatabase, store: MemoryStore, chance: random.Random) -> None:
    """Run one agent, and stop or kill it in the middle of whatever it does."""
    break_things(agent, store, chance)
    fate = chance.choice(["stop", "kill", "kill", "disconnect"])
    if fate == "kill":
        _doom(agent, chance)
    agent.start()
    calls = len(store.calls) + chance.randint(5, 60)
    wait_until(lambda: len(store.calls) > calls or agent.ended, "the agent has done something", pause=0.002)
    if fate == "disconnect":
        agent.source.disconnect()
    if database.asynchronous and chance.random() < 0.7:
        database.crash()
    if chance.random() < 0.4:
        submit(store, _some_request(chance))
    agent.capture.stop()
    agent.join()
    assert agent.error is None or isinstance(agent.error, Killed)


def _some_request(chance: random.Random) -> DumpRequest:
    verify = chance.random() < 0.2
    if chance.random() < 0.5:
        keys = [[str(chance.randint(0, 120))] for _ in range(chance.randint(1, 20))]
        return DumpRequest(tables=["public.items"], keys=keys, verify=verify)
    return DumpRequest(tables=chance.choice([None, ["public.parts"]]), verify=verify)


def verified_through_kills(
    seed: int, *, checksums: bool = False
) -> tuple[MemoryDatabase, MemoryStore, DumpState]:
    """Verify a table while it changes and three agents end early; return its verification, which has ended.

    Every cut is exact.
    """
    chance = random.Random(seed)
    database, store = shop(rows=60, seed=seed), MemoryStore()
    database.asynchronous = seed % 3 == 0
    with Writer(database, seed):
        with Agent(database, store) as agent:
            agent.wait_dumped()
        request = submit(store, DumpRequest(tables=["public.items"], verify=True, checksums=checksums))
        for _ in range(3):
            live_through(Agent(database, store, chunk_rows=5, delay_seconds=0.003), database, store, chance)
        with Agent(database, store) as agent:
            agent.wait(lambda m: (d := dump_of(m, request)) and not d.active, "it has ended")
            agent.wait_dumped()
    assert_every_cut_exact(store, database)
    return database, store, dump_of(manifests_in(store)[-1], request)
