"""A driver whose clock is in another time zone than Spark's sessions, which are in UTC."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def driver_in(zone: str) -> Iterator[None]:
    """Set this process's time zone during the block."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        yield
    time.tzset()
