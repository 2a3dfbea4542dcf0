"""SIGTERM and Ctrl-C, for the commands that run until they are stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `stop` at the first SIGTERM or Ctrl-C; a second one ends at once (`KeyboardInterrupt`).

    In the main thread only. Can be nested: the innermost one is called.
    """

    def ask(number: int, _frame: FrameType | None) -> None:
        for each in STOPPING:
            signal.signal(each, signal.default_int_handler)
        stop(signal.Signals(number))

    before = {each: signal.signal(each, ask) for each in STOPPING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
