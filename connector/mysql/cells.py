"""Cells: the bytes of one column for many rows, as an Arrow binary array, null for NULL or absent. Pure.

Everything here works on whole columns: ranges of a buffer are gathered into contiguous cells, cells get new
offsets or nulls, the `raw` texts of the columns are put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connector.cells import Bytes, Mask, offsets_of, with_nulls

Places = npt.NDArray[np.int64]

PADDING = bytes(64)
"""Bytes before and behind all values, so that one of any fixed width (30 at most) can be read anywhere."""


def from_numpy(values: npt.NDArray[Any], type_: pa.DataType, valid: Mask | None) -> pa.Array:
    """Put numbers of the type's own width into an array."""
    values = np.ascontiguousarray(values)
    return with_nulls(pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)]), valid)


def fixed_width(matrix: Bytes, valid: Mask | None) -> pa.Array:
    """Make binary cells of the rows of a byte matrix."""
    rows, width = matrix.shape
    offsets = np.arange(0, (rows + 1) * width, max(1, width), dtype=np.int32)[: rows + 1]
    if width == 0:
        offsets = np.zeros(rows + 1, np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    return with_nulls(pa.Array.from_buffers(pa.binary(), rows, buffers), valid)


def values_of(cells: pa.Array) -> Bytes:
    """Give the bytes of all cells, one after the other."""
    offsets, data = offsets_of(cells), cells.buffers()[2]
    if data is None or not data.size:
        return np.zeros(0, np.uint8)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def with_offsets(cells: pa.Array, offsets: npt.NDArray[Any], data: Bytes) -> pa.Array:
    """Put other bytes into the cells; nulls stay."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return with_nulls(pa.Array.from_buffers(pa.binary(), len(cells), buffers), valid_of(cells))


def valid_of(cells: pa.Array) -> Mask | None:
    """Mark the cells that are not null; None: all."""
    if not cells.null_count:
        return None
    valid: Mask = cells.is_valid().to_numpy(zero_copy_only=False)
    return valid


def texts_of(cells: pa.Array) -> pa.Array:
    """See binary cells, known to be valid UTF-8, as strings."""
    return pa.Array.from_buffers(pa.string(), len(cells), cells.buffers(), offset=cells.offset)


def list_names(marks: Mapping[str, Mask]) -> pa.Array | None:
    """List, for each row, the names whose mask is True there; null where none is; None without names."""
    if not marks:
        return None
    table = np.stack(list(marks.values()), axis=1)
    sizes = table.sum(axis=1)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    names = pa.array(list(marks), pa.string()).take(pa.array(np.nonzero(table)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), names, mask=pa.array(sizes == 0))
