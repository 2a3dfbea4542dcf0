"""Wait for a condition instead of a fixed time; measure what is promised, but not how busy the machine is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, *, seconds: float = 30.0, pause: float = 0.02) -> T:
    """Call `condition` until its result is true, and return that; fail after `seconds`, naming `what`.

    Between two calls it waits for `pause` seconds, or twice a call's CPU time if that is longer: a costly
    condition leaves the processor to what it waits for. Exceptions from the condition propagate.
    """
    limit = time.monotonic() + seconds
    while True:
        begun = time.thread_time()
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > limit:
            raise AssertionError(f"waited {seconds:g} s in vain until {what}; last answer: {answer!r}")
        time.sleep(max(pause, 2 * (time.thread_time() - begun)))


class Lateness:
    """While entered, a thread sleeps again and again: `seconds` is by how much it woke up too late in all.

    On a machine that has time for everybody, next to nothing.
    """

    PAUSE = 0.01

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sleep, daemon=True)

    def __enter__(self) -> Lateness:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _sleep(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(self.PAUSE):
            now = time.monotonic()
            self.seconds += max(now - began - 2 * self.PAUSE, 0)
            began = now


def seconds_of(action: Callable[[], object]) -> float:
    """Return how many seconds an action takes, less those by which a busy machine wakes up others late."""
    with Lateness() as late:
        began = time.monotonic()
        action()
        took = time.monotonic() - began
    return took - late.seconds
