"""SIGTERM and Ctrl-C, for the commands that run until they are stopped; SIGHUP, to reload."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def reloaded_by_signal(reload: Callable[[], object]) -> Iterator[None]:
    """Call `reload` at each SIGHUP. In the main thread only."""
    before = signal.signal(signal.SIGHUP, lambda _number, _frame: reload())
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


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
