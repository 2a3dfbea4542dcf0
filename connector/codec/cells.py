"""Cells: the bytes of one column for many rows, as an Arrow binary array, null for NULL or absent. Pure.

Shared by the decoders of all databases: ranges of a buffer become contiguous cells; the `raw` texts of the
columns, and the names of those that a row lacks, are combined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

Offsets = npt.NDArray[np.int64]

_INT32_MAX = int(np.iinfo(np.int32).max)
_MAP = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True)
class ValueRanges:
    """Where the values of rows are: arrays of (columns, rows); a value is ``data[start:end]``.

    `kinds`: as the database's log has them; 0: an absent column. A column that is absent or NULL has an empty
    range within the row, so ranges ascend.
    """

    kinds: Bytes
    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]

    @classmethod
    def absent(cls, columns: int, offsets: Offsets) -> ValueRanges:
        """Return ranges of columns absent from every row: empty ones, at the offsets `offsets`."""
        starts = np.broadcast_to(offsets.astype(np.int32), (columns, len(offsets))).copy()
        return cls(np.zeros((columns, len(offsets)), np.uint8), starts, starts.copy())


def gather(
    data: Bytes, starts: npt.NDArray[Any], ends: npt.NDArray[Any], valid: Mask | None = None
) -> pa.Array:
    """Copy the ranges of `data` into one binary array of contiguous cells; a huge cell is not copied.

    Ranges are in ascending order and do not overlap, except for equal ones side by side. Where `valid` is
    False the cell is null; its range must be empty.
    """
    rows = len(starts)
    if rows == 0:
        return pa.array([], pa.binary())
    if rows == 1 and 4 * (int(ends[0]) - int(starts[0])) > len(data) and int(ends[0]) <= _INT32_MAX:
        return _view(data, int(starts[0]), int(ends[0]))
    wide = len(data) > np.iinfo(np.int32).max
    offset_type: type[np.signedinteger[Any]] = np.int64 if wide else np.int32
    # Ranges and the gaps between them, alternating: [start, end, start, end, ...] are valid Arrow offsets.
    offsets = np.empty(2 * rows, offset_type)
    offsets[0::2] = starts
    offsets[1::2] = ends
    picks = np.arange(0, 2 * rows, 2, dtype=offset_type)
    repeated = starts[1:] < ends[:-1]
    if repeated.any():
        kept = np.concatenate(([True], ~repeated))
        offsets = offsets.reshape(-1, 2)[kept].reshape(-1)
        picks = (2 * (np.cumsum(kept) - 1)).astype(offset_type)
    binary = pa.large_binary() if wide else pa.binary()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    cells = pa.Array.from_buffers(binary, len(offsets) - 1, buffers).take(pa.array(picks))
    if wide:
        cells = cells.cast(pa.binary())
    return cells if valid is None else with_nulls(cells, valid)


def unaligned(data: Bytes, dtype: str) -> npt.NDArray[Any]:
    """View the buffer as numbers that begin at every byte."""
    windows = max(0, len(data) - np.dtype(dtype).itemsize + 1)
    numbers: npt.NDArray[Any] = np.ndarray((windows,), dtype, buffer=data.data, strides=(1,))
    return numbers


def _view(data: Bytes, start: int, end: int) -> pa.Array:
    """Return one cell that covers most of its buffer, without copying it."""
    offsets = pa.py_buffer(np.array([start, end], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(data)])


def with_nulls(array: pa.Array, valid: Mask | None) -> pa.Array:
    """Return the array (without offset) with nulls where `valid` is False; its own nulls are replaced."""
    if valid is None or valid.all():
        return array
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [bitmap, *array.buffers()[1:]])


def offsets_of(cells: pa.Array) -> npt.NDArray[np.int32]:
    """Return the offsets of a binary array's values into its data buffer: one more than there are rows."""
    if not len(cells):
        return np.zeros(1, np.int32)
    offsets: npt.NDArray[np.int32] = np.frombuffer(cells.buffers()[1], np.int32)
    return offsets[cells.offset : cells.offset + len(cells) + 1]


def of_length(text: str) -> str:
    """Describe a text that can't be decoded without showing it: errors are logged and landed."""
    return f"a text of {len(text)} characters"


def combine_raw(raws: Mapping[str, pa.Array | None]) -> pa.Array | None:
    """Combine the `raw` texts of the columns into one map per row, null where a row has none.

    Returns None when no column has any. Entries of a row follow the order of the mapping.
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
    """List, for each row, the names whose mask is True there, or null if none; None without names."""
    if not marks:
        return None
    table = np.stack(list(marks.values()), axis=1)
    sizes = table.sum(axis=1)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    names = pa.array(list(marks), pa.string()).take(pa.array(np.nonzero(table)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), names, mask=pa.array(sizes == 0))
