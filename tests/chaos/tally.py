"""Counts faults that happened, by kind, and collects what went wrong; safe for threads."""

from __future__ import annotations

import threading
from collections import Counter

SHOWN = 30


class Tally:
    """`counts` by kind of fault; `problems`: what must not happen, of which a few are kept in words."""

    def __init__(self) -> None:
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
            if len(self.first) < SHOWN:
                self.first.append(text)
