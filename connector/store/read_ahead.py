"""Reads many objects in order, several at once: from S3, each takes longer to answer than to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

READERS = 8

Item = TypeVar("Item")
Found = TypeVar("Found")


def read_ahead(read: Callable[[Item], Found], items: Sequence[Item]) -> Iterator[Found]:
    """Read items in order, the next ones at the same time."""
    with ThreadPoolExecutor(READERS, "read-ahead") as threads:
        for first in range(0, len(items), READERS):
            yield from threads.map(read, items[first : first + READERS])
