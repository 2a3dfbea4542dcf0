"""Work that goes on in a thread while a test does something else."""

from __future__ import annotations

import threading
from typing import TypeVar

Self = TypeVar("Self", bound="Background")


class Background:
    """Runs `work` in a thread during a `with` block; `work` ends soon after `stopping` is set."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self.work, daemon=True)

    def __enter__(self: Self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._thread.join()

    def work(self) -> None:
        """Do the work, until `stopping` is set."""
        raise NotImplementedError
