"""Counts faults that happened, by kind, and collects what went wrong; safe for threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

SHOWN = 30


class Tally:
    """`counts` by kind of fault; `problems`: what must not happen, of which a few are kept in words.

    `say` is told of those at once: who interrupts a long run knows them.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.counts: Counter[str] = Counter()
        self.problems = 0
        self.first: list[str] = []
        self._lock = threading.Lock()

    def count(self, kind: str, times: int = 1) -> None:
        """Count a fault that happened."""
        with self._lock:
            self.counts[kind] += times

    def problem(self, text: str) -> None:
        """Note what must not happen."""
        with self._lock:
            self.problems += 1
            if len(self.first) >= SHOWN:
                return
            self.first.append(text)
        self._say(f"problem: {text}")
