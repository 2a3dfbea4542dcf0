"""SIGTERM and Ctrl-C, for the commands that run until they are stopped; SIGHUP, to reload."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT)


class SignalEvent(threading.Event):
    """An event that a signal handler may set, which is never cleared.

    A handler interrupts the main thread, also while that waits for the event. `threading.Event` has a lock
    that whoever begins or ends a wait holds for a moment: a handler that needs it then waits for ever. Here a
    wait is for a lock that `set` releases, which takes no lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._closed = threading.Lock()
        self._closed.acquire()
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all who wait."""
        self._is_set = True
        self._open()

    def clear(self) -> None:
        """Refuse: who was told to stop has been told so."""
        raise NotImplementedError("a signal can't be taken back")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds; return whether it is."""
        if not self._is_set and self._closed.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            self._open()  # for the next one who waits
        return self._is_set

    def _open(self) -> None:
        with suppress(RuntimeError):  # it is open, since it was set before
            self._closed.release()


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


@contextmanager
def stops_postponed() -> Iterator[None]:
    """Have a SIGTERM or Ctrl-C that comes within the block take effect at its end. In the main thread only.

    For a block that ends soon, whatever happens.
    """
    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _frame: came.append(number)) for each in STOPPING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if came:
            signal.raise_signal(came[0])
