"""Finds the values in row images, walked column by column over many rows at once. Pure.

An image is a NULL bitmap over the columns that it has, then their values in sequence, each of its type's
width or prefixed by its length. The after image of a PARTIAL_UPDATE_ROWS event begins with its options and,
if they say so, a bitmap of the JSON columns for which it has only a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from connector.codec.cells import Bytes, Mask, Offsets, ValueRanges, unaligned
from connector.mysql.codec import types
from connector.mysql.codec.types import ColumnType

ABSENT, VALUE, NULL, DIFFERENCE = range(4)
"""What an image has for a column: nothing, a value, NULL, or a difference from the JSON before."""

_WALKED_ROWS = 1 << 15
"""Rows walked through all columns in one pass: few enough that their bytes stay in the CPU cache."""


class MalformedRowError(ValueError):
    """an event does not have the layout that its table map announced."""


@dataclass(frozen=True)
class ImageColumns:
    """The indexes of an image's columns, ascending; `differences`: of JSON it may have only differences."""

    present: tuple[int, ...]
    differences: bool = False


class RowWalker:
    """What a walk must know of each column: its width, or that of its length prefix."""

    def __init__(self, columns: Sequence[ColumnType]) -> None:
        self._widths = [column.width for column in columns]
        self._prefixes = [column.prefix for column in columns]
        self._json = [index for index, column in enumerate(columns) if column.code == types.JSON]
        self._runs: dict[tuple[int, ...], list[tuple[int, int]]] = {}

    def read(
        self, data: Bytes, offsets: Offsets, image: ImageColumns, into: ValueRanges, rows: Offsets
    ) -> Offsets:
        """Walk the images at offsets `offsets`, set their values in `rows`, return the offset after each."""
        after = np.empty(len(offsets), np.int64)
        for low in range(0, len(offsets), _WALKED_ROWS):
            part = slice(low, low + _WALKED_ROWS)
            after[part] = self.walk(data, offsets[part], image, (into, rows[part]))
        return after

    def walk(
        self, data: Bytes, offsets: Offsets, image: ImageColumns, into: tuple[ValueRanges, Offsets] | None
    ) -> Offsets:
        """Walk the images at offsets `offsets`, return the offset after each; `into` None: store nothing."""
        try:
            return self._walk(data, offsets, image, into)
        except IndexError:
            raise MalformedRowError("a row reaches beyond its event") from None

    def _walk(
        self, data: Bytes, offsets: Offsets, image: ImageColumns, into: tuple[ValueRanges, Offsets] | None
    ) -> Offsets:
        differing: dict[int, Mask] = {}
        if image.differences:
            offsets, differing = self._read_options(data, offsets)
        nulls = _Nulls(data, offsets, len(image.present))
        offset, fixed = offsets + nulls.width, 0
        for ordinal, column in enumerate(image.present):
            width, is_null = self._widths[column], nulls.of(ordinal)
            if width is not None and into is None and is_null is None:
                fixed += width
                continue
            offset, fixed = offset + fixed if fixed else offset, 0
            start, end = self._range(data, offset, column, is_null)
            if into is not None:
                images, rows = into
                kind = VALUE if is_null is None else np.where(is_null, NULL, VALUE)
                if column in differing:
                    kind = np.where(differing[column] & (kind == VALUE), DIFFERENCE, kind)
                images.kinds[column][rows] = kind
                images.starts[column][rows], images.ends[column][rows] = start, end
            offset = end
        return offset + fixed

    def _range(
        self, data: Bytes, offset: Offsets, column: int, is_null: Mask | None
    ) -> tuple[Offsets, Offsets]:
        width = self._widths[column]
        if width is not None:
            return offset, offset + (width if is_null is None else np.where(is_null, 0, width))
        prefix = self._prefixes[column]
        if prefix in (1, 2, 4):
            length = unaligned(data, f"<u{prefix}")[offset]
        else:
            length = unaligned(data, "<u4")[offset] & 0xFFFFFF
        if is_null is None:
            return offset + prefix, offset + prefix + length
        start = offset + np.where(is_null, 0, prefix)
        return start, start + np.where(is_null, 0, length)

    def _read_options(self, data: Bytes, offsets: Offsets) -> tuple[Offsets, dict[int, Mask]]:
        options = data[offsets]
        if (options > 1).any():
            raise MalformedRowError("a partial update has unknown options")
        has_bits, bits = options == 1, offsets + 1
        differing = {
            column: has_bits & (data[bits + ordinal // 8] >> ordinal % 8 & 1 == 1)
            for ordinal, column in enumerate(self._json)
        }
        return bits + np.where(has_bits, (len(self._json) + 7) // 8, 0), differing

    def skip(self, data: memoryview, offset: int, image: ImageColumns) -> int:
        """Return the offset after one image; the same walk for a single row."""
        if image.differences:
            offset += 1 + (data[offset] & 1) * ((len(self._json) + 7) // 8)
        width = (len(image.present) + 7) // 8
        nulls = int.from_bytes(data[offset : offset + width], "little") & (1 << len(image.present)) - 1
        offset += width
        if not nulls:
            for fixed, prefix in self._runs_of(image.present):
                offset += fixed
                if prefix:
                    offset += prefix + int.from_bytes(data[offset : offset + prefix], "little")
            return offset
        for ordinal, column in enumerate(image.present):
            if not nulls >> ordinal & 1:
                fixed_width, prefix = self._widths[column], self._prefixes[column]
                if fixed_width is not None:
                    offset += fixed_width
                else:
                    offset += prefix + int.from_bytes(data[offset : offset + prefix], "little")
        return offset

    def _runs_of(self, present: tuple[int, ...]) -> list[tuple[int, int]]:
        """Sum the widths before each length prefix: (bytes to skip, bytes of the prefix after them, or 0)."""
        if present not in self._runs:
            runs, fixed = [], 0
            for column in present:
                width = self._widths[column]
                if width is None:
                    runs.append((fixed, self._prefixes[column]))
                    fixed = 0
                else:
                    fixed += width
            self._runs[present] = [*runs, (fixed, 0)] if fixed else runs
        return self._runs[present]


class _Nulls:
    """The NULL bitmaps of rows; bits beyond the columns mean nothing."""

    def __init__(self, data: Bytes, offsets: Offsets, columns: int) -> None:
        self.width = (columns + 7) // 8
        self._bytes = [data[offsets + index] for index in range(self.width)]
        self._any = [int(np.bitwise_or.reduce(column)) if len(column) else 0 for column in self._bytes]

    def of(self, ordinal: int) -> Mask | None:
        """Mark the rows where the column is NULL; None: no row."""
        byte, bit = divmod(ordinal, 8)
        if not self._any[byte] >> bit & 1:
            return None
        mask: Mask = (self._bytes[byte] >> bit & 1).astype(np.bool_)
        return mask
