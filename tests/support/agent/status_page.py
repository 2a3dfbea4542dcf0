"""An agent on a database in memory, with its HTTP side, and a client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx

from connector.config import ControlConfig
from connector.control.live_agent import LiveAgent
from connector.control.server import serving
from connector.landing.lease import Lease
from connector.store.observed import ObservedStore
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent


def live_agent(store: Any, agent: Agent | None = None, **control: Any) -> LiveAgent:
    """Return what the HTTP side sees: an active agent, or one that only starts."""
    config = agent.config if agent is not None else Agent(SimpleNamespace(), store).config
    settings = ControlConfig.model_validate({"listen": "127.0.0.1:0", **control})
    live = LiveAgent(config.model_copy(update={"control": settings}), ObservedStore(store))
    live.store = store  # instead of what the configuration names
    if agent is not None:
        live.activate(agent.capture, Lease.acquire(store, 15, holder="test"))
    return live


@contextmanager
def client_of(live: LiveAgent, **headers: str) -> Iterator[httpx.Client]:
    """Serve an agent's HTTP side, and yield a client of it."""
    with serving(live) as url, httpx.Client(base_url=str(url), headers=headers, trust_env=False) as client:
        yield client


@contextmanager
def page_of(database: Any, store: MemoryStore, **control: Any) -> Iterator[tuple[httpx.Client, Agent]]:
    """Run an agent with its HTTP side until the end of the block; yield a client and the agent."""
    with Agent(database, store, delay_seconds=0.01) as agent:
        with client_of(live_agent(store, agent, **control)) as client:
            yield client, agent
