"""The lease is renewed as long as the agent lives, or the agent ends, or it hands over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from connector.capture import lease_keeper
from connector.capture.lease_keeper import LeaseKeeper
from connector.errors import FencedError, TransientError
from connector.figures.progress import Progress
from connector.landing.format import LEASE
from connector.landing.lease import Lease, read_lease
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, insert, landed_ids
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")


class Capturing:
    """A capture that is told how to end."""

    newest = None

    def __init__(self, *, hands_over: bool = False) -> None:
        self.hands_over, self.handed_over, self.error = hands_over, False, None
        self.progress = Progress()

    def hand_over(self) -> None:
        self.handed_over = True

    def fail(self, error: BaseException) -> None:
        self.error = error


class Listening:
    """A listener, as the keeper sees it."""

    silent, failure = False, None


class Keeping:
    """A lease that is kept until the test ends."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.listener, self._ends = store, Listening(), ExitStack()

    def begin(self, seconds: float, **settings: Any) -> Capturing:
        capture: Any = Capturing(**settings)
        self.lease = Lease.acquire(self.store, seconds)
        listener: Any = self.listener
        self._ends.enter_context(LeaseKeeper(self.lease, capture, listener).running())
        return capture

    def end(self) -> None:
        self._ends.close()

    @property
    def renewals(self) -> int:
        lease = read_lease(self.store)
        return -1 if lease is None else lease.renewals


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def keeping(store: MemoryStore) -> Iterator[Keeping]:
    keeping = Keeping(store)
    yield keeping
    keeping.end()


def test_it_is_renewed_three_times_per_period(keeping: Keeping) -> None:
    capture = keeping.begin(0.6)
    wait_until(lambda: keeping.renewals > 3, "it was renewed")
    assert (capture.error, capture.handed_over) == (None, False)


def test_a_renewal_that_fails_is_repeated_long_before_the_next_is_due(
    keeping: Keeping, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A third of the period later, two failures lost the lease of an agent that lives."""
    monkeypatch.setattr(lease_keeper, "RETRY_SECONDS", 0.01)
    store.fail("replace", LEASE, times=20)
    replace, tries = store.replace, list[str]()

    def counted(path: str, data: bytes, version: str | None) -> str | None:
        tries.append(path)
        return replace(path, data, version)

    store._faults, faults = [], store._faults
    capture = keeping.begin(3.0)
    store._faults = faults
    monkeypatch.setattr(store, "replace", counted)
    wait_until(lambda: keeping.renewals == 1, "it is renewed", seconds=8)
    assert len(tries) == 21
    assert capture.error is None
    assert caplog.text.count("can't renew the lease, retrying") == 1


def test_a_renewal_that_hung_is_repeated_at_once(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the lease has passed by then."""
    begun, ended = list[float](), list[float]()

    def hang(*_: object, **__: object) -> None:
        begun.append(time.monotonic())
        time.sleep(0.3)
        ended.append(time.monotonic())
        raise TransientError("no answer")

    monkeypatch.setattr(Lease, "renew", hang)
    keeping.begin(3.0)
    wait_until(lambda: len(ended) >= 4, "it is repeated")
    assert min(next_one - end for end, next_one in zip(ended, begun[1:], strict=False)) < 0.1


@pytest.mark.parametrize(
    "error", [FencedError("another agent is active"), ZeroDivisionError("odd"), MemoryError()]
)
def test_whatever_ends_the_renewals_ends_the_agent(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Lease, "renew", fail)
    capture = keeping.begin(0.1)
    wait_until(lambda: capture.error, "the capture ends")
    assert capture.error is error


def test_what_ends_the_listener_ends_the_agent(keeping: Keeping) -> None:
    capture = keeping.begin(0.3)
    keeping.listener.failure = ValueError("odd")  # type: ignore[assignment]
    wait_until(lambda: capture.error, "the capture ends")
    assert capture.error is keeping.listener.failure


@pytest.mark.parametrize("why", ["silent", "lost"])
def test_it_is_given_up_at_once_though_the_store_fails_for_a_while(
    keeping: Keeping, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """The capture waits for the database, so it won't release it soon."""
    capture = keeping.begin(0.3, hands_over=True)
    true_write, failures = store.replace, list[None]()

    def write(path: str, data: bytes, version: str | None) -> str | None:
        if b'"released": true' in data and len(failures) < 5:
            failures.append(None)
            raise TransientError("slow down")
        return true_write(path, data, version)

    monkeypatch.setattr(store, "replace", write)
    if why == "silent":
        keeping.listener.silent = True
    else:
        capture.progress.lose()
    wait_until(lambda: (lease := read_lease(store)) is not None and lease.released, "it is released")
    assert capture.handed_over
    assert len(failures) == 5


def test_an_agent_that_is_to_end_commits_nothing_more_though_it_is_about_to(
    store: MemoryStore, database: MemoryDatabase
) -> None:
    agent = Agent(database, store)
    agent.start()
    agent.wait_caught_up()
    reach = agent.source.reach

    def lose_the_lease(moment: str) -> None:
        if moment == "not_yet_visible":  # the next thing is the commit
            agent.capture.fail(FencedError("lost"))
        reach(moment)

    agent.source.reach = lose_the_lease
    insert(database, 1001)
    assert isinstance(agent.join(), FencedError)
    assert landed_ids(store) == []
