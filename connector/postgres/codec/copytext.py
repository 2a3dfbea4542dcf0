r"""Splits rows of ``COPY ... TO STDOUT`` in text format into cells, a column at a time. Pure.

Rows end in a newline, tabs separate values, ``\N`` is NULL; within values a backslash begins an escape, so a
raw tab or newline is never part of one (PostgreSQL's manual, COPY, "Text Format").
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connector.codec.cells import Bytes, Mask, gather, offsets_of
from connector.errors import BugError

_TAB, _NEWLINE, _BACKSLASH, _N = b"\t\n\\N"

Offsets = npt.NDArray[np.int64]

LARGE_ROW_BYTES = 1 << 20
"""A row of this size is split by itself, in a few passes over its bytes without copying it."""

_UNESCAPED = np.arange(256, dtype=np.uint8)
_UNESCAPED[list(b"bfnrtv")] = list(b"\b\f\n\r\t\v")


@dataclass(frozen=True)
class _Escapes:
    """Backslashes that begin an escape: their offsets, and their cells (counted row by row)."""

    offsets: Offsets
    cells: Offsets


class CopiedRows(NamedTuple):
    """Rows as COPY wrote them: row i begins at `starts[i]` in `data`; bytes between rows are zero.

    `split_rows` consumes `data`, replacing escapes in place.
    """

    data: Bytes
    starts: Offsets

    @classmethod
    def of(cls, rows: Sequence[bytes]) -> CopiedRows:
        """Put whole rows together."""
        if len(rows) == 1 and len(rows[0]) >= LARGE_ROW_BYTES:
            return cls(np.frombuffer(rows[0], np.uint8), np.zeros(1, np.int64))
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        return cls(np.frombuffer(bytearray().join(rows), np.uint8), np.cumsum(sizes) - sizes)


def split_rows(rows: CopiedRows, columns: int) -> list[pa.Array]:
    """Split COPY rows into one binary array of cells per column.

    `BugError` if rows do not have `columns` values.
    """
    data = rows.data
    if columns == 0:
        return []
    if len(rows.starts) == 1 and len(data) - rows.starts[0] >= LARGE_ROW_BYTES:
        return [_large_cell(cell) for cell in _large_cells(rows, columns)]
    marks = np.flatnonzero((data == _TAB) | (data == _NEWLINE) | (data == _BACKSLASH))
    is_end = data[marks] != _BACKSLASH
    ends = marks[is_end]
    _check_shape(rows, ends, columns)
    starts = np.empty_like(ends)
    starts[1:] = ends[:-1] + 1
    starts[::columns] = rows.starts
    nulls, escapes = None, None
    if len(ends) < len(marks):
        backslashes = _Escapes(marks[~is_end], np.cumsum(is_end)[~is_end])
        nulls, escapes = _nulls_and_escapes(data, starts, ends, backslashes)
        _unescape_letters(data, escapes.offsets)
    return [_column(data, starts, ends, nulls, escapes, column, columns) for column in range(columns)]


def _large_cells(rows: CopiedRows, columns: int) -> list[memoryview]:
    """Split the only row at its tabs, which are never part of a value."""
    row = memoryview(rows.data.data)[int(rows.starts[0]) :]
    ends = _find_all(rows.data[int(rows.starts[0]) :], _TAB)
    if row[-1] != _NEWLINE or len(ends) != columns - 1:
        raise BugError(f"a COPY row does not have {columns} columns")
    bounds = [-1, *ends, len(row) - 1]
    return [row[begin + 1 : end] for begin, end in itertools.pairwise(bounds)]


def _find_all(data: Bytes, byte: int) -> list[int]:
    offsets: list[int] = []
    for begin in range(0, len(data), LARGE_ROW_BYTES):
        found = np.flatnonzero(data[begin : begin + LARGE_ROW_BYTES] == byte)
        offsets += (found + begin).tolist()
    return offsets


def _large_cell(cell: memoryview) -> pa.Array:
    """Make an array of one cell. A large one without escapes uses the row's own memory."""
    if bytes(cell[:3]) == b"\\N":
        return pa.nulls(1, pa.binary())
    value: memoryview | bytes = cell
    if bytes(cell[:2]) == b"\\\\" and not _has_backslash(cell[2:]):
        value = cell[1:]  # as every bytea begins
    elif _has_backslash(cell):
        value = codecs.escape_decode(cell)[0]  # COPY's escapes are among Python's, and mean the same
    if len(value) < LARGE_ROW_BYTES:
        return pa.array([bytes(value)], pa.binary())
    offsets = pa.py_buffer(np.array([0, len(value)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(value)])


def _has_backslash(cell: memoryview) -> bool:
    blocks = (cell[begin : begin + LARGE_ROW_BYTES] for begin in range(0, len(cell), LARGE_ROW_BYTES))
    return any((np.frombuffer(block, np.uint8) == _BACKSLASH).any() for block in blocks)


def _check_shape(rows: CopiedRows, ends: Offsets, columns: int) -> None:
    if len(ends) != len(rows.starts) * columns:
        raise BugError(f"{len(ends)} COPY values do not make {len(rows.starts)} rows of {columns} columns")
    is_last = (rows.data[ends] == _NEWLINE).reshape(-1, columns)
    if not is_last[:, -1].all() or is_last[:, :-1].any():
        raise BugError(f"a COPY row does not have {columns} columns")


def _nulls_and_escapes(
    data: Bytes, starts: Offsets, ends: Offsets, backslashes: _Escapes
) -> tuple[Mask | None, _Escapes]:
    """Distinguish backslashes of NULLs, those that begin an escape, and those that are escaped."""
    offsets, cells = backslashes.offsets, backslashes.cells
    is_null = (ends[cells] - starts[cells] == 2) & (offsets == starts[cells]) & (data[offsets + 1] == _N)
    nulls = np.zeros(len(starts), np.bool_)
    nulls[cells[is_null]] = True
    offsets, cells = offsets[~is_null], cells[~is_null]
    # In a run of backslashes the first, third, ... begin an escape; runs end with their cell.
    begins = np.concatenate(([True], np.diff(offsets) != 1)) if len(offsets) else np.zeros(0, np.bool_)
    run = np.flatnonzero(begins)[np.cumsum(begins) - 1] if len(offsets) else offsets
    is_escape = (np.arange(len(offsets)) - run) % 2 == 0
    return (nulls if is_null.any() else None), _Escapes(offsets[is_escape], cells[is_escape])


def _unescape_letters(data: Bytes, offsets: Offsets) -> None:
    """Replace each escape's letter with the character it means; the backslash is dropped later."""
    letters = data[offsets + 1]
    special = letters != _BACKSLASH
    data[offsets[special] + 1] = _UNESCAPED[letters[special]]


def _column(
    data: Bytes,
    starts: Offsets,
    ends: Offsets,
    nulls: Mask | None,
    escapes: _Escapes | None,
    column: int,
    columns: int,
) -> pa.Array:
    first, last = starts[column::columns], ends[column::columns]
    valid = None
    if nulls is not None and (null := nulls[column::columns]).any():
        valid = ~null
        last = np.where(null, first, last)
    cells = gather(data, first, last, valid)
    if escapes is None:
        return cells
    here = escapes.cells % columns == column
    if not here.any():
        return cells
    rows = escapes.cells[here] // columns
    return _drop_backslashes(cells, rows, escapes.offsets[here] - first[rows])


def _drop_backslashes(cells: pa.Array, rows: Offsets, within: Offsets) -> pa.Array:
    """Remove one byte from each given row's cell, at its offset within the cell."""
    offsets = offsets_of(cells)
    text = np.frombuffer(cells.buffers()[2], np.uint8)[: offsets[-1]]
    kept = np.ones(len(text), np.bool_)
    kept[offsets[rows] + within] = False
    dropped = np.bincount(rows, minlength=len(cells))
    shorter = offsets.copy()
    shorter[1:] -= np.cumsum(dropped, dtype=np.int32)
    buffers = [cells.buffers()[0], pa.py_buffer(shorter), pa.py_buffer(text[kept])]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers)
