from __future__ import annotations

import threading

import pytest

from connector.capture import retry
from connector.capture.retry import RECONNECT_SECONDS, reconnecting
from connector.errors import TransientError


def test_work_is_not_begun_again_after_a_stop_in_the_pause() -> None:
    """An agent that lost its lease must not touch the slot or commit again, nor one that is to stop wait."""
    stop, attempts = threading.Event(), []

    def work() -> None:
        attempts.append(1)
        raise TransientError("lost")

    assert reconnecting(stop, stop.set)(work) is None
    assert len(attempts) == 1
    assert reconnecting(stop, stop.set)(work) is None
    assert len(attempts) == 1


def test_pauses_grow_until_an_attempt_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, attempts = threading.Event(), []
    pauses: list[float] = []

    def sleep_using(_stop: threading.Event):  # type: ignore[no-untyped-def]
        return pauses.append

    def work() -> str:
        attempts.append(1)
        if len(attempts) < 5:
            raise TransientError("lost")
        return "done"

    monkeypatch.setattr(retry, "sleep_using_event", sleep_using)
    assert reconnecting(stop, lambda: None, lambda: len(attempts) == 3)(work) == "done"
    first, second, *_ = RECONNECT_SECONDS
    assert pauses == [first, second, first, second]
