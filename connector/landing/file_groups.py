"""Groups landing files by size: what one task reads, or what compaction joins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def groups_of(items: Iterable[T], bytes_of: Callable[[T], int], least: int) -> Iterator[list[T]]:
    """Split items, in order, into groups of at least `least` bytes; only the last one may have fewer.

    Without its last item, each group has fewer.
    """
    group: list[T] = []
    size = 0
    for item in items:
        group.append(item)
        size += bytes_of(item)
        if size >= least:
            yield group
            group, size = [], 0
    if group:
        yield group
