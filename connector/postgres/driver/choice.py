"""Choose how connections copy and stream."""

from __future__ import annotations

import functools

from connector.postgres.driver import by_libpq
from connector.postgres.driver.interface import Driver


@functools.cache
def driver() -> Driver:
    """Return libpq's calls."""
    return by_libpq
