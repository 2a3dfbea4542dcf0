"""Turns cells (`connector.codec.cells`) into arrays, texts and bytes and back, for MySQL's decoders. Pure.

Everything here works on whole columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connector.codec.cells import Bytes, Mask, offsets_of, with_nulls

PADDING = bytes(64)
"""Bytes before and after all values, so one of any fixed width (30 at most) can be read anywhere."""


def from_numpy(values: npt.NDArray[Any], type_: pa.DataType, valid: Mask | None) -> pa.Array:
    """Return an array of numbers of the type's own width."""
    values = np.ascontiguousarray(values)
    return with_nulls(pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)]), valid)


def fixed_width(matrix: Bytes, valid: Mask | None) -> pa.Array:
    """Make binary cells from the rows of a byte matrix."""
    rows, width = matrix.shape
    offsets = np.arange(0, (rows + 1) * width, max(1, width), dtype=np.int32)[: rows + 1]
    if width == 0:
        offsets = np.zeros(rows + 1, np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    return with_nulls(pa.Array.from_buffers(pa.binary(), rows, buffers), valid)


def values_of(cells: pa.Array) -> Bytes:
    """Return the bytes of all cells, concatenated."""
    offsets, data = offsets_of(cells), cells.buffers()[2]
    if data is None or not data.size:
        return np.zeros(0, np.uint8)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def with_offsets(cells: pa.Array, offsets: npt.NDArray[Any], data: Bytes) -> pa.Array:
    """Replace the bytes of the cells; nulls stay."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return with_nulls(pa.Array.from_buffers(pa.binary(), len(cells), buffers), valid_of(cells))


def valid_of(cells: pa.Array) -> Mask | None:
    """Mark the cells that are not null; None: all."""
    if not cells.null_count:
        return None
    valid: Mask = cells.is_valid().to_numpy(zero_copy_only=False)
    return valid


def texts_of(cells: pa.Array) -> pa.Array:
    """View binary cells, known to be valid UTF-8, as strings."""
    return pa.Array.from_buffers(pa.string(), len(cells), cells.buffers(), offset=cells.offset)


_HEX = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint8).reshape(256, 2)


def hex_texts(cells: pa.Array) -> pa.Array:
    """Format the bytes of each cell as ``HEX()`` does."""
    data, offsets = values_of(cells), offsets_of(cells)
    if 2 * len(data) > np.iinfo(np.int32).max:
        raise ValueError(f"a value of {len(data)} bytes is too long for its hexadecimal digits")
    return texts_of(with_offsets(cells, 2 * (offsets - offsets[0]), _HEX[data].reshape(-1)))
