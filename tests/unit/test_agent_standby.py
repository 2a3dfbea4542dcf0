"""An agent that is one of several: when it stands by again, and when it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from connector import agent
from connector.capture import retry
from connector.config import Config
from connector.errors import FencedError, RequestError
from connector.landing import lease as lease_module
from connector.landing.lease import Lease, read_lease
from connector.schema import TableName
from connector.source import Finding
from connector.testing.memory_store import MemoryStore
from tests.support.agents import CheckedSource, config_of, shop

Step = Callable[[Any], None]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def run(
    monkeypatch: pytest.MonkeyPatch,
    store: MemoryStore,
    *steps: Step,
    standby: bool = True,
    load_config: Callable[[], Config] | None = None,
) -> list[int]:
    """Run the agent, whose captures take these steps; return the terms in which it was active."""
    left, terms = list(steps), []

    def capture(self: Any) -> None:
        lease = read_lease(store)
        assert lease is not None
        terms.append(lease.term)
        left.pop(0)(self)

    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(lease_module, "STANDBY_POLL_SECONDS", 0.01)
    monkeypatch.setattr(agent, "HANDOVER_SECONDS", 0.05)
    monkeypatch.setattr(agent, "open_store", lambda *_a, **_k: store)
    monkeypatch.setattr(
        agent, "open_source", lambda _: CheckedSource(shop(rows=3), config_of().source, store)
    )
    monkeypatch.setattr(agent.Capture, "run", capture)
    agent.run(config_of(), load_config, standby=standby)
    assert left == []
    return terms


def hand_over(capture: Any) -> None:
    capture.hand_over()


def is_fenced(_capture: Any) -> None:
    raise FencedError("another agent is active")


def end(_capture: Any) -> None:
    pass


def test_it_stands_by_again_when_it_handed_over_or_was_overtaken(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    assert run(monkeypatch, store, hand_over, is_fenced, hand_over, end) == [1, 2, 3, 4]
    lease = read_lease(store)
    assert lease is not None
    assert lease.released


def test_it_ends_when_it_is_stopped_even_if_it_handed_over_or_was_overtaken(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    def stop_and_hand_over(capture: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        capture.hand_over()

    def stop_and_be_fenced(capture: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        is_fenced(capture)

    assert run(monkeypatch, store, stop_and_hand_over) == [1]
    with pytest.raises(FencedError):
        run(monkeypatch, store, stop_and_be_fenced)


def test_an_agent_alone_ends_when_it_is_overtaken_and_hands_nothing_over(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    def refuse(capture: Any) -> None:
        with pytest.raises(RequestError, match="not started with --standby"):
            capture.hand_over()

    assert run(monkeypatch, store, refuse, standby=False) == [1]
    with pytest.raises(FencedError):
        run(monkeypatch, store, is_fenced, standby=False)


@pytest.mark.parametrize("released", [True, False])
def test_only_what_was_taken_over_by_time_closes_the_fence(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, released: bool
) -> None:
    former = Lease.acquire(store, 0.05)
    if released:
        former.release()
    closes: list[bool] = []
    run(monkeypatch, store, lambda capture: closes.append(capture._manifest_history.closes_fence))
    assert closes == [not released]


def test_after_a_long_wait_it_begins_with_the_configuration_and_the_tables_of_now(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    changed = config_of().model_copy(update={"dump": config_of().dump.model_copy(update={"workers": 7})})
    findings = [[Finding("tables public.items", "failed", "no key", table=TableName("public", "items"))], []]
    monkeypatch.setattr(CheckedSource, "check", lambda _: findings.pop(0))
    monkeypatch.setattr(agent, "STALE_SECONDS", -1.0)
    begun: list[Any] = []
    run(
        monkeypatch, store, lambda capture: begun.append((capture.config.dump.workers, capture._unfit)),
        load_config=lambda: changed,
    )  # fmt: skip
    assert begun == [(7, [])]
