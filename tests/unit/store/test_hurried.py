"""Calls of a store that hang are given up, whatever they wait for; the lease is kept meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from connector.errors import TransientError
from connector.landing.lease import Lease, read_lease
from connector.store import hurried as hurried_module
from connector.store.hurried import CALLS, HurriedStore
from connector.testing.memory_store import MemoryStore
from tests.support.waiting import wait_until


def hang(monkeypatch: pytest.MonkeyPatch, store: MemoryStore, operation: str, times: int) -> threading.Event:
    """Have the next calls of an operation do nothing until the event is set."""
    goes_on, call, left = threading.Event(), getattr(store, operation), [None] * times

    def hanging(*given: Any) -> Any:
        if left:
            left.pop()
            goes_on.wait(30)
        return call(*given)

    monkeypatch.setattr(store, operation, hanging)
    return goes_on


CALLED: dict[str, Callable[[HurriedStore], object]] = {
    "put": lambda s: s.put("a", b""),
    "create": lambda s: s.create("a", b""),
    "read": lambda s: s.read("a"),
    "read_versioned": lambda s: s.read_versioned("a"),
    "replace": lambda s: s.replace("a", b"", None),
    "list": lambda s: s.list(""),
    "folders": lambda s: s.folders("a"),
    "delete": lambda s: s.delete("a"),
    "delete_all": lambda s: s.delete_all(["a"]),
}


@pytest.mark.parametrize("operation", CALLED)
def test_a_call_that_hangs_is_given_up_and_the_next_one_is_not(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    store = MemoryStore()
    monkeypatch.setattr(hurried_module, "CONTENT_SECONDS", 0.1)
    goes_on = hang(monkeypatch, store, operation, times=1)
    hurried = HurriedStore(store, 0.1)
    with pytest.raises(TransientError, match=r"^memory/a?: a request timed out after 0.1 s$"):
        CALLED[operation](hurried)
    CALLED[operation](hurried)
    goes_on.set()


def test_content_may_take_longer_than_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes the lease reads the newest manifest, and the state that it names."""
    store = MemoryStore()
    goes_on = hang(monkeypatch, store, "read", times=1)
    timer = threading.Timer(0.3, goes_on.set)
    timer.start()
    assert HurriedStore(store, 0.01).read("a") is None
    timer.join()


def test_no_more_calls_hang_than_there_are_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    goes_on = hang(monkeypatch, store, "read_versioned", times=CALLS + 1)
    hurried, before = HurriedStore(store, 0.01), threading.active_count()
    for _ in range(CALLS + 5):
        with pytest.raises(TransientError):
            hurried.read_versioned("a")
    assert threading.active_count() <= before + CALLS
    goes_on.set()
    wait_until(lambda: threading.active_count() <= before, "they end")
    assert HurriedStore(store, 30).read_versioned("a") is None


def test_a_lease_is_renewed_though_a_request_hangs_and_takes_effect_after_it_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    hurried, threads = HurriedStore(store, 0.1), threading.active_count()
    lease = Lease.acquire(hurried, 15)
    goes_on = hang(monkeypatch, store, "replace", times=1)
    lease.renew()
    lease.release()
    goes_on.set()
    wait_until(lambda: threading.active_count() == threads, "the late one has taken effect")
    left = read_lease(store)
    assert left is not None
    assert (left.renewals, left.released) == (1, True)
