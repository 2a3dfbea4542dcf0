"""Threads of our own: those that run beside the capture loop, and one for each call that may hang.

An error that ends one is raised in the loop, or for whoever waits for the call.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from typing import TypeVar

JOIN_SECONDS = 5.0

_Thread = TypeVar("_Thread", bound="BackgroundThread")
_Result = TypeVar("_Result")


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


class TimedCalls:
    """Calls that nothing ends but their own limits, and that are given up after a time; safe for threads.

    One that was given up goes on in a daemon thread. There are never more than `at_most`.
    """

    def __init__(self, at_most: int) -> None:
        self._places = threading.BoundedSemaphore(at_most)

    def run(
        self,
        call: Callable[[], _Result],
        seconds: float,
        doing: str,
        discard: Callable[[_Result], object] = lambda _result: None,
    ) -> _Result:
        """Return or raise what a call does; `TimeoutError` after `seconds`. Signals may interrupt the wait.

        `discard` is given what a call returns that was given up.
        """
        if not self._places.acquire(timeout=seconds):
            raise TimeoutError(f"{doing} timed out after {seconds:g} s, as others do that go on")
        answer: futures.Future[_Result] = futures.Future()

        def run() -> None:
            try:
                found = call()
            except BaseException as error:  # for whoever waits
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(error)
            else:
                if answer.set_running_or_notify_cancel():
                    answer.set_result(found)
                else:
                    discard(found)
            finally:
                self._places.release()

        thread = threading.Thread(target=run, name="timed", daemon=True)
        try:
            try:
                thread.start()
            except RuntimeError:  # no thread is to be had now
                self._places.release()
                return call()
            with suppress(futures.TimeoutError):
                answer.exception(seconds)
        except BaseException:
            if not answer.cancel() and answer.exception() is None:
                discard(answer.result())
            raise
        if answer.cancel():
            raise TimeoutError(f"{doing} timed out after {seconds:g} s")
        return answer.result()
