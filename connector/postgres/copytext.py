r"""Rows of ``COPY ... TO STDOUT`` in text format to cells, a column at a time. Pure.

Rows end in a newline, values are parted by tabs, ``\N`` is NULL; within values a backslash begins an escape,
so that a raw tab or newline is never part of one (PostgreSQL's manual, COPY, "Text Format").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connector.cells import Bytes, Mask, gather, offsets_of
from connector.errors import BugError

_TAB, _NEWLINE, _BACKSLASH, _N = b"\t\n\\N"

Places = npt.NDArray[np.int64]

_UNESCAPED = np.arange(256, dtype=np.uint8)
_UNESCAPED[list(b"bfnrtv")] = list(b"\b\f\n\r\t\v")


@dataclass(frozen=True)
class _Escapes:
    """Backslashes that begin an escape: where they are, and in which cell (counted row by row)."""

    places: Places
    cells: Places


class CopiedRows(NamedTuple):
    """Rows as COPY wrote them: row i begins at `starts[i]` in `data`; what lies between rows is zero bytes.

    `split_rows` uses `data` up, replacing escapes in it.
    """

    data: Bytes
    starts: Places

    @classmethod
    def of(cls, rows: Sequence[bytes]) -> CopiedRows:
        """Put whole rows together."""
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        return cls(np.frombuffer(bytearray().join(rows), np.uint8), np.cumsum(sizes) - sizes)


def split_rows(rows: CopiedRows, columns: int) -> list[pa.Array]:
    """Split COPY rows into one binary array of cells for each column.

    `BugError` when rows do not have `columns` values.
    """
    data = rows.data
    if columns == 0:
        return []
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
        _unescape_letters(data, escapes.places)
    return [_column(data, starts, ends, nulls, escapes, column, columns) for column in range(columns)]


def _check_shape(rows: CopiedRows, ends: Places, columns: int) -> None:
    if len(ends) != len(rows.starts) * columns:
        raise BugError(f"{len(ends)} COPY values do not make {len(rows.starts)} rows of {columns} columns")
    is_last = (rows.data[ends] == _NEWLINE).reshape(-1, columns)
    if not is_last[:, -1].all() or is_last[:, :-1].any():
        raise BugError(f"a COPY row does not have {columns} columns")


def _nulls_and_escapes(
    data: Bytes, starts: Places, ends: Places, backslashes: _Escapes
) -> tuple[Mask | None, _Escapes]:
    """Tell the backslashes of NULLs from those that begin an escape and those that are escaped themselves."""
    places, cells = backslashes.places, backslashes.cells
    is_null = (ends[cells] - starts[cells] == 2) & (places == starts[cells]) & (data[places + 1] == _N)
    nulls = np.zeros(len(starts), np.bool_)
    nulls[cells[is_null]] = True
    places, cells = places[~is_null], cells[~is_null]
    # In a run of backslashes the first, third, ... begin an escape; runs end with their cell.
    begins = np.concatenate(([True], np.diff(places) != 1)) if len(places) else np.zeros(0, np.bool_)
    run = np.flatnonzero(begins)[np.cumsum(begins) - 1] if len(places) else places
    is_escape = (np.arange(len(places)) - run) % 2 == 0
    return (nulls if is_null.any() else None), _Escapes(places[is_escape], cells[is_escape])


def _unescape_letters(data: Bytes, places: Places) -> None:
    """Put the character that each escape stands for in place of its letter; the backslash goes later."""
    letters = data[places + 1]
    special = letters != _BACKSLASH
    data[places[special] + 1] = _UNESCAPED[letters[special]]


def _column(
    data: Bytes,
    starts: Places,
    ends: Places,
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
    return _drop_backslashes(cells, rows, escapes.places[here] - first[rows])


def _drop_backslashes(cells: pa.Array, rows: Places, within: Places) -> pa.Array:
    """Take out one byte of each given row, at its place within that row's cell."""
    offsets = offsets_of(cells)
    text = np.frombuffer(cells.buffers()[2], np.uint8)[: offsets[-1]]
    kept = np.ones(len(text), np.bool_)
    kept[offsets[rows] + within] = False
    dropped = np.bincount(rows, minlength=len(cells))
    shorter = offsets.copy()
    shorter[1:] -= np.cumsum(dropped, dtype=np.int32)
    buffers = [cells.buffers()[0], pa.py_buffer(shorter), pa.py_buffer(text[kept])]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers)
