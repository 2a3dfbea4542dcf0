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

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PADDING = bytes(64)
"""Bytes before and behind all values, so that one of any fixed width (30 at most) can be read anywhere."""

_MAP = pa.map_(pa.string(), pa.string())


def gather(
    data: Bytes, starts: npt.NDArray[Any], ends: npt.NDArray[Any], valid: Mask | None = None
) -> pa.Array:
    """Copy the ranges of `data` into one binary array of contiguous cells.

    Ranges ascend and do not overlap, but for equal ones side by side; `data` has less than 2 GiB. Where
    `valid` is False the cell is null; its range must be empty.
    """
    rows = len(starts)
    if rows == 0:
        return pa.array([], pa.binary())
    # Ranges and the gaps between them, alternating: [start, end, start, end, ...] are valid Arrow offsets.
    offsets = np.empty(2 * rows, np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    picks = np.arange(0, 2 * rows, 2, dtype=np.int32)
    repeated = starts[1:] < ends[:-1]
    if repeated.any():
        kept = np.concatenate(([True], ~repeated))
        offsets = offsets.reshape(-1, 2)[kept].reshape(-1)
        picks = (2 * (np.cumsum(kept) - 1)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    cells = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers).take(pa.array(picks))
    return cells if valid is None else with_nulls(cells, valid)


def with_nulls(array: pa.Array, valid: Mask | None) -> pa.Array:
    """Give the array (without offset) nulls where `valid` is False; its own are replaced."""
    if valid is None or valid.all():
        return array
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [bitmap, *array.buffers()[1:]])


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


def offsets_of(cells: pa.Array) -> npt.NDArray[np.int32]:
    """Give the offsets of a binary array's values into its data buffer, one more than it has rows."""
    if not len(cells):
        return np.zeros(1, np.int32)
    offsets: npt.NDArray[np.int32] = np.frombuffer(cells.buffers()[1], np.int32)
    return offsets[cells.offset : cells.offset + len(cells) + 1]


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


def combine_raw(raws: Mapping[str, pa.Array | None]) -> pa.Array | None:
    """Put the `raw` texts of the columns together into one map per row, null where a row has none.

    Gives None when no column has any. Entries of a row are in the order of the mapping.
    """
    present = [(name, raw) for name, raw in raws.items() if raw is not None and raw.null_count < len(raw)]
    if not present:
        return None
    count = len(present[0][1])
    rows = [np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False)) for _, raw in present]
    row = np.concatenate(rows)
    order = np.argsort(row, kind="stable")
    names = pa.array([name for name, _ in present], pa.string())
    column = np.repeat(np.arange(len(present)), [len(r) for r in rows])
    keys = names.take(pa.array(column[order]))
    items = pa.concat_arrays([raw.drop_null() for _, raw in present]).take(pa.array(order))
    sizes = np.bincount(row, minlength=count)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    bitmap = pa.py_buffer(np.packbits(sizes > 0, bitorder="little"))
    entries = pa.StructArray.from_arrays([keys, items], fields=[_MAP.key_field, _MAP.item_field])
    return pa.Array.from_buffers(_MAP, count, [bitmap, pa.py_buffer(offsets)], children=[entries])


def list_names(marks: Mapping[str, Mask]) -> pa.Array | None:
    """List, for each row, the names whose mask is True there; null where none is; None without names."""
    if not marks:
        return None
    table = np.stack(list(marks.values()), axis=1)
    sizes = table.sum(axis=1)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    names = pa.array(list(marks), pa.string()).take(pa.array(np.nonzero(table)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), names, mask=pa.array(sizes == 0))
