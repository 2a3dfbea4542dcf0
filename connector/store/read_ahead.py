"""Reads many objects in order, several at once: on S3, latency dominates the time of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

READERS = 8

Item = TypeVar("Item")
Found = TypeVar("Found")


def read_ahead(read: Callable[[Item], Found], items: Sequence[Item]) -> Iterator[Found]:
    """Read items in order, fetching the next ones concurrently."""
    with ThreadPoolExecutor(READERS, "read-ahead") as threads:
        for first in range(0, len(items), READERS):
            yield from threads.map(read, items[first : first + READERS])
