"""A clock that a test sets by hand."""

from __future__ import annotations


class Clock:
    """Returns `now`, in seconds, when it is called as the clocks of `time` are."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
