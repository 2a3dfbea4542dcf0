"""A signal handler sets an event that the main thread waits for: neither waits for the other."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from connector.signals import SignalEvent, stopped_by_signals
from tests.support.waiting import wait_until


def test_a_signal_at_any_moment_of_a_wait_ends_it() -> None:
    moments = 1
    while wait_interrupted_at(moments):
        moments += 1
    assert moments > 3


def wait_interrupted_at(moment: int) -> bool:
    """Have a signal set an event at the `moment`-th line of a wait for it; return whether it has so many."""
    event, passed, outer = SignalEvent(), 0, sys._getframe()

    def interrupt(frame: FrameType, kind: str, _: Any) -> Any:
        nonlocal passed
        if kind == "call" and frame.f_back is outer and frame.f_code.co_name != "wait":
            return None
        passed += kind == "line"
        if kind == "line" and passed == moment:
            os.kill(os.getpid(), signal.SIGTERM)
        return interrupt

    def set_event(_signal: object) -> None:
        sys.settrace(None)
        event.set()

    timer = threading.Timer(0.05, event.set)  # the last lines of a wait come only once the event is set
    timer.start()
    with stopped_by_signals(set_event):
        sys.settrace(interrupt)
        try:
            assert event.wait(5), "it waited in vain"
        finally:
            sys.settrace(None)
            timer.cancel()
    timer.join()
    return passed >= moment


def test_it_wakes_all_who_wait_and_stays_set() -> None:
    event, woken = SignalEvent(), list[bool]()
    assert not event.is_set()
    assert not event.wait(0.01)
    assert not event.wait(-1)
    threads = [threading.Thread(target=lambda: woken.append(event.wait())) for _ in range(5)]
    for thread in threads:
        thread.start()
    event.set()
    event.set()
    wait_until(lambda: len(woken) == 5, "all are woken")
    assert all(woken)
    assert event.is_set()
    assert event.wait(0)
    assert event.wait()
