"""Walks the tuples of pgoutput's change messages, for all messages of one table at once. Pure.

A tuple is a 16-bit column count and, for each column, a kind: ``n`` (null), ``u`` (unchanged TOAST, not
sent), or ``t``, a 32-bit length and a text. The walk goes column by column over all rows, so numpy does the
work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from connector.codec.cells import Bytes, Mask, Offsets, ValueRanges

INSERT, UPDATE, DELETE, TRUNCATE = b"IUDT"
KEY, OLD, NEW = b"KON"
TEXT, NULL, UNCHANGED, ABSENT = *b"tnu", 0
"""Kinds of a value; `ABSENT`: the message has no such tuple at all."""

HEADER = 5
"""Bytes of a change before the tag of its first tuple: its kind and its relation's id."""

PADDING = bytes(8)
"""Bytes after the last message, so the walk may read past a truncated one before it is refused."""

_WALKED_ROWS = 1 << 15
"""Rows walked through all columns in one pass: few enough that their bytes stay in the CPU cache."""


class MalformedTupleError(ValueError):
    """a message does not have the layout that its relation announced."""


@dataclass(frozen=True)
class Messages:
    """Change messages of one table in one buffer: their kinds, and the offsets of each one's kind and end.

    The buffer ends in `PADDING` and has less than 2 GiB.
    """

    data: Bytes
    kinds: Bytes
    starts: Offsets
    ends: Offsets


@dataclass(frozen=True)
class MessageTuples:
    """The tuples of messages: `old` if sent (None: no message sends one), and `new`.

    `tags` is the kind of the old tuple: `KEY`, the replica identity's columns, or `OLD`, the whole row.
    """

    tags: Bytes
    has_old: Mask
    old: ValueRanges | None
    new: ValueRanges


def walk_messages(messages: Messages, columns: int) -> MessageTuples:
    """Walk all tuples of the messages; `MalformedTupleError` if one does not fit its message exactly."""
    data, kinds, starts, ends = messages.data, messages.kinds, messages.starts, messages.ends
    tags = data[starts + HEADER]
    has_old = ((tags == KEY) | (tags == OLD)) & ((kinds == UPDATE) | (kinds == DELETE))
    if not has_old.any() and ((kinds == INSERT) | (kinds == UPDATE)).all():
        _expect(tags, NEW)
        new = ValueRanges.absent(columns, starts)
        _expect_end(_walk(data, starts + HEADER + 1, new, None), ends)
        return MessageTuples(tags, has_old, None, new)
    old, after = ValueRanges.absent(columns, starts), starts + HEADER
    with_old = np.flatnonzero(has_old)
    after[with_old] = _walk(data, starts[with_old] + HEADER + 1, old, with_old)
    deletes = kinds == DELETE
    if (deletes & ~has_old).any():
        raise MalformedTupleError("a delete has no old tuple")
    _expect_end(after[deletes], ends[deletes])
    new = ValueRanges.absent(columns, starts)
    with_new = np.flatnonzero((kinds == INSERT) | (kinds == UPDATE))
    offsets = after[with_new]
    if (offsets >= ends[with_new]).any():
        raise MalformedTupleError("a message ends before its new tuple")
    _expect(data[offsets], NEW)
    _expect_end(_walk(data, offsets + 1, new, with_new), ends[with_new])
    return MessageTuples(tags, has_old, old, new)


def _expect(found: Bytes, tag: int) -> None:
    if (found != tag).any():
        raise MalformedTupleError("a message lacks its new tuple")


def _expect_end(after: Offsets, ends: Offsets) -> None:
    if (after != ends).any():
        raise MalformedTupleError("a tuple does not end where its message does")


def _walk(data: Bytes, offsets: Offsets, into: ValueRanges, rows: Offsets | None) -> Offsets:
    """Walk the tuples at offsets `offsets` into the given rows (None: all); return the offset after each."""
    after = np.empty(len(offsets), np.int64)
    try:
        for low in range(0, len(offsets), _WALKED_ROWS):
            part = slice(low, low + _WALKED_ROWS)
            after[part] = _walk_part(data, offsets[part], into, part if rows is None else rows[part])
    except IndexError:
        raise MalformedTupleError("a tuple reaches beyond its message") from None
    return after


def _walk_part(data: Bytes, offsets: Offsets, into: ValueRanges, rows: slice | Offsets) -> Offsets:
    # Lengths are read at any byte; unsigned, so a walk through garbage only ever moves forward.
    lengths = np.ndarray((len(data) - 3,), ">u4", buffer=data.data, strides=(1,))
    columns = len(into.kinds)
    if ((data[offsets].astype(np.int32) << 8 | data[offsets + 1]) != columns).any():
        raise MalformedTupleError(f"a tuple does not have {columns} columns")
    offset = offsets + 2
    for kinds, starts, ends in zip(into.kinds, into.starts, into.ends, strict=True):
        kind = data[offset]
        is_text = kind == TEXT
        if is_text.all():
            start = offset + 5
            offset = start + lengths[offset + 1]
        else:
            if not (is_text | (kind == NULL) | (kind == UNCHANGED)).all():
                raise MalformedTupleError("a value is neither text, null nor unchanged")
            start = offset + 1 + 4 * is_text
            offset = start + np.where(is_text, lengths[offset + 1], 0)
        kinds[rows], starts[rows], ends[rows] = kind, start, offset
    return offset
