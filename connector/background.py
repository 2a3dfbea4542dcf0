"""Threads that run beside the capture loop. An error that ends one is raised in the loop."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

JOIN_SECONDS = 5.0

_Thread = TypeVar("_Thread", bound="BackgroundThread")


class BackgroundThread(ABC):
    """A daemon thread. A subclass implements `work`, which returns soon after `stopping` is set.

    `failure` holds the error that ended the thread; the capture loop raises it.
    """

    def __init__(self, name: str) -> None:
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def work(self) -> None:
        """Do the thread's work until `stopping` is set."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float = JOIN_SECONDS) -> None:
        """Stop the thread, and wait up to `timeout` seconds for it; does nothing if it was not started."""
        self.stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    @contextmanager
    def running(self: _Thread) -> Iterator[_Thread]:
        """Run the thread while the block runs."""
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # handed to the capture loop
            self.failure = error
