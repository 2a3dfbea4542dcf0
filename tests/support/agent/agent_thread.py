"""A capture in a thread of its own, which a test starts, waits for and ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from connector.capture.loop import Capture
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from tests.support.waiting import wait_until

Self = TypeVar("Self", bound="AgentThread")


class AgentThread:
    """An agent without its process; a context manager that ends it gracefully, and raises its error.

    `landed`: the store that tests read, which outlives the agent. `close`: called when the capture has ended.
    """

    patience_seconds = 60.0
    pause_seconds = 0.02

    def __init__(self, capture: Capture, landed: Any, close: Callable[[], object] = lambda: None) -> None:
        self.capture = capture
        self.error: BaseException | None = None
        self._landed, self._close = landed, close
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def ended(self) -> bool:
        """Return whether the thread has ended."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def start(self) -> None:
        """Start without `with`, for an agent that is expected to fail."""
        self._thread.start()

    def __enter__(self: Self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.capture.stop()
        self.join()
        if kind is None and self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self.capture.run()
        except BaseException as error:
            self.error = error
        finally:
            self._close()

    def join(self, seconds: float = 30) -> BaseException | None:
        """Wait until the thread ends; return the error that it ended with. Fail after `seconds`."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "capture did not end"
        return self.error

    def wait(self, condition: Callable[[Manifest], Any], what: str, seconds: float | None = None) -> Manifest:
        """Wait for a manifest that meets a condition; fail at once if the agent fails."""

        def found() -> Manifest | None:
            manifest = newest_manifest(self._landed)
            if manifest is not None and condition(manifest):
                return manifest
            if self.error is not None:
                raise AssertionError(f"the agent ended while waiting until {what}") from self.error
            return None

        patience = seconds or self.patience_seconds
        manifest = wait_until(found, what, seconds=patience, pause=self.pause_seconds)
        assert manifest is not None
        return manifest
