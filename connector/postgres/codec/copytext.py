r"""Splits rows of ``COPY ... TO STDOUT`` in text format into cells, a column at a time. Pure.

Rows end in a newline, tabs separate values, ``\N`` is NULL; within values a backslash begins an escape, so a
raw tab or newline is never part of one (PostgreSQL's manual, COPY, "Text Format"). Nor is a carriage return,
so Arrow's CSV reader splits the rows; escapes are replaced afterwards.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv

from connector.codec.cells import Bytes, Offsets, offsets_of
from connector.errors import BugError

_TAB, _NEWLINE, _BACKSLASH = b"\t\n\\"
_NULL = "\\N"


LARGE_ROW_BYTES = 1 << 20
"""A row of this size is split by itself, in a few passes over its bytes without copying it."""

_UNESCAPED = np.arange(256, dtype=np.uint8)
_UNESCAPED[list(b"bfnrtv")] = list(b"\b\f\n\r\t\v")


MOST_BYTES = 32 << 20
"""More rows than this are split in parts: large ones come one by one, and are not copied twice."""


class CopiedRows(NamedTuple):
    """Rows as COPY wrote them: row i begins at `starts[i]` in `data`; bytes between rows are zero.

    Unless the only row is a large one, a byte or more precedes each row. `split_rows` writes to them. Cells
    of such a large row may refer to `data`, which must then not be used again.
    """

    data: Bytes
    starts: Offsets

    @classmethod
    def of(cls, rows: Sequence[bytes]) -> CopiedRows:
        """Put whole rows together."""
        if len(rows) == 1 and len(rows[0]) >= LARGE_ROW_BYTES:
            return cls(np.frombuffer(rows[0], np.uint8), np.zeros(1, np.int64))
        sizes = np.fromiter(map(len, rows), np.int64, len(rows)) + 1
        data = bytearray(1) + bytearray(1).join(rows)
        return cls(np.frombuffer(data, np.uint8), np.cumsum(sizes) - sizes + 1)


def split_rows(rows: CopiedRows, columns: int) -> list[pa.Array]:
    """Split COPY rows into one binary array of cells per column.

    `BugError` if rows do not have `columns` values.
    """
    count = len(rows.starts)
    if not count or columns == 0:
        return [pa.array([], pa.binary())] * columns
    if count == 1 and len(rows.data) - rows.starts[0] >= LARGE_ROW_BYTES:
        return [_large_cell(cell) for cell in _large_cells(rows, columns)]
    if count > 1 and len(rows.data) > MOST_BYTES:
        halves = (split_rows(half, columns) for half in _halves(rows))
        return [pa.concat_arrays(parts) for parts in zip(*halves, strict=True)]
    return _split(rows, columns)


def _halves(rows: CopiedRows) -> tuple[CopiedRows, CopiedRows]:
    half = len(rows.starts) // 2
    cut = int(rows.starts[half]) - 1
    first = CopiedRows(rows.data[:cut], rows.starts[:half])
    return first, CopiedRows(rows.data[cut:], rows.starts[half:] - cut)


def _split(rows: CopiedRows, columns: int) -> list[pa.Array]:
    """Split rows by Arrow's CSV reader, for which what precedes a row is a first column, passed over.

    So no line is empty, and none begins with a byte order mark, which the reader would drop.
    """
    data = rows.data[: _end_of_last(rows.data)]
    data[rows.starts - 1] = _TAB
    escaped = bool((data == _BACKSLASH).any())
    names, convert = _reading(columns, nulls=escaped)
    read = csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names)
    try:
        table = csv.read_csv(pa.BufferReader(pa.py_buffer(data)), read, _TEXT_FORMAT, convert)
    except pa.ArrowInvalid:  # it shows the row
        raise BugError(f"a COPY row does not have {columns} columns") from None
    if table.num_rows != len(rows.starts):
        raise BugError(f"{len(rows.starts)} COPY rows were read as {table.num_rows}")
    cells = [_joined(column) for column in table.columns]
    return [_unescaped(each) for each in cells] if escaped else cells


def _end_of_last(data: Bytes) -> int:
    """Return where the last row ends; only zero bytes follow."""
    end = len(data)
    while end and data[end - 1] == 0:
        end -= 1
    if not end or data[end - 1] != _NEWLINE:
        raise BugError("a COPY row does not end")
    return end


_TEXT_FORMAT = csv.ParseOptions(
    delimiter="\t", quote_char=False, escape_char=False, newlines_in_values=False, ignore_empty_lines=False
)


@lru_cache(maxsize=64)
def _reading(columns: int, *, nulls: bool) -> tuple[list[str], csv.ConvertOptions]:
    names = [str(number) for number in range(columns + 1)]
    convert = csv.ConvertOptions(
        include_columns=names[1:],
        column_types=dict.fromkeys(names[1:], pa.binary()),
        null_values=[_NULL] if nulls else [],
        strings_can_be_null=nulls,
        check_utf8=False,
    )
    return names, convert


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _large_cells(rows: CopiedRows, columns: int) -> list[memoryview]:
    """Split the only row at its tabs, which are never part of a value."""
    data = rows.data[int(rows.starts[0]) : _end_of_last(rows.data)]
    row, ends = memoryview(data.data), _find_all(data, _TAB)
    if len(ends) != columns - 1:
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


def _unescaped(cells: pa.Array) -> pa.Array:
    """Replace escapes: each becomes the character that it means, and its backslash is dropped."""
    offsets = offsets_of(cells)
    if cells.buffers()[2] is None:
        return cells
    text = np.frombuffer(cells.buffers()[2], np.uint8)[: offsets[-1]]
    found = np.flatnonzero(text == _BACKSLASH)
    if not len(found):
        return cells
    rows = np.searchsorted(offsets, found, "right") - 1
    # In a run of backslashes the first, third, ... begin an escape; runs end with their cell.
    begins = (np.diff(found, prepend=-2) != 1) | (np.diff(rows, prepend=-1) != 0)
    run = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    is_escape = (np.arange(len(found)) - run) % 2 == 0
    return _without_backslashes(cells, text, rows[is_escape], found[is_escape])


def _without_backslashes(cells: pa.Array, text: Bytes, rows: Offsets, escapes: Offsets) -> pa.Array:
    """Drop the backslashes at these offsets, in these rows; convert the letters that follow them."""
    text = text.copy()
    text[escapes + 1] = _UNESCAPED[text[escapes + 1]]
    kept = np.ones(len(text), np.bool_)
    kept[escapes] = False
    dropped = np.bincount(rows, minlength=len(cells))
    offsets = offsets_of(cells).copy()
    offsets[1:] -= np.cumsum(dropped, dtype=np.int32)
    buffers = [cells.buffers()[0], pa.py_buffer(offsets), pa.py_buffer(text[kept])]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers)
