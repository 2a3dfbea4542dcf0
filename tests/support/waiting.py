"""Wait for a condition instead of a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
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
