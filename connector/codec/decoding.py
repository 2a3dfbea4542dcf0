"""Decodes a segment of any database's log: window by window, and within each, table by table. Pure.

A *window* is a run of messages that bounds the memory of decoding, whatever the segment's size. Its messages
are grouped by the number that the log gives their table (relid, table id), then split where the table's
layout changes. Invariants: each message of a captured table is in exactly one part; batches of one table come
in position order; a table that can't be decoded does not affect the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connector.errors import BugError, DeltatideError
from connector.landing.event_batch import EventBatch, QuarantineNotice
from connector.schema import TableName

Indexes = npt.NDArray[Any]


class LayoutSpan(Protocol):
    """A table's layout from message `start` of the segment on."""

    @property
    def start(self) -> int: ...  # noqa: D102


L = TypeVar("L", bound=LayoutSpan)


class Part(Protocol):
    """Messages of one table under one layout; `lsn`: the first one's."""

    @property
    def table(self) -> TableName: ...  # noqa: D102
    @property
    def lsn(self) -> int: ...  # noqa: D102

    def decode(self) -> Iterable[EventBatch]:
        """Decode into batches, in position order."""


def windows(lengths: Indexes, most_bytes: int, most: int) -> Iterator[tuple[int, int]]:
    """Split messages of these lengths (bytes) into ranges ``[low, high)``; an oversized one is alone."""
    ends = np.cumsum(lengths)
    low = 0
    while low < len(lengths):
        before = int(ends[low - 1]) if low else 0
        high = int(np.searchsorted(ends, before + most_bytes, "right"))
        high = min(max(high, low + 1), low + most, len(lengths))
        yield low, high
        low = high


def grouped(numbers: Indexes, members: Indexes) -> Iterator[tuple[int, Indexes]]:
    """Group messages (`members`, ascending) by the number of their table."""
    if not len(numbers):
        return
    if numbers.min() == numbers.max():
        yield int(numbers[0]), members
        return
    order = np.argsort(numbers, kind="stable")
    numbers, members = numbers[order], members[order]
    firsts = np.flatnonzero(np.concatenate(([True], np.diff(numbers) != 0)))
    for number, some in zip(numbers[firsts], np.split(members, firsts[1:]), strict=True):
        yield int(number), some


def by_layout(
    groups: Iterable[tuple[int, Indexes]], layouts: Mapping[int, Sequence[L]], low: int
) -> Iterator[tuple[L, Indexes]]:
    """Split groups where the layout changes; `low`: the segment's index of the window's first message."""
    for number, members in groups:
        known = layouts.get(number, ())
        if not known or known[0].start > low + members[0]:
            raise BugError(f"a change of table id {number} arrives before its layout")
        bounds = np.searchsorted(members, [layout.start - low for layout in known], "left")
        for layout, some in zip(known, np.split(members, bounds)[1:], strict=True):
            if len(some):
                yield layout, some


def decoded(parts: Iterable[Part]) -> Iterator[EventBatch | QuarantineNotice]:
    """Decode parts; a table that can't be decoded yields one `QuarantineNotice` instead of the rest of it."""
    quarantined: set[TableName] = set()
    for part in parts:
        if part.table in quarantined:
            continue
        lsn = part.lsn
        try:
            for batch in part.decode():
                yield batch
                lsn = batch.last.lsn
        except MemoryError:
            raise
        except Exception as error:
            quarantined.add(part.table)
            yield _quarantine_notice(part.table, lsn, error)


def _quarantine_notice(table: TableName, lsn: int, error: Exception) -> QuarantineNotice:
    reason = getattr(error, "reason", None) or str(error) or type(error).__name__
    if isinstance(error, pa.ArrowException):  # it shows the value
        reason = re.sub("'.*'", "'...'", reason, flags=re.DOTALL)
        reason = re.sub(r"(?<!\w)-?\d[\d.]*", "...", reason)
    hint = error.hint if isinstance(error, DeltatideError) else None
    return QuarantineNotice(table, lsn, reason, hint or f"fix or exclude {table}, then dump it again")
