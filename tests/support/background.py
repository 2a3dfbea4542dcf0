"""Work that goes on in a thread while a test does something else."""

from __future__ import annotations

import threading
from typing import TypeVar

Self = TypeVar("Self", bound="Background")


class Background:
    """Runs `work` in a thread during a `with` block; `work` ends soon after `stopping` is set.

    What `work` raises is in `failure`, and raised at the end of the block, unless that fails by itself.
    """

    def __init__(self, name: str = "background") -> None:
        self.name = name
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until the work has ended; does nothing before the start."""
        self.stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self: Self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop()
        if kind is None and self.failure is not None:
            raise self.failure

    def work(self) -> None:
        """Do the work, until `stopping` is set."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error
