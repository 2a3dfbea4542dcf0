"""Decodes rows of the text protocol (the result of COM_QUERY) to Arrow, a column at a time. Pure.

The dump feeds the bytes that the server sends after the column definitions (and their EOF packet), packet
headers included, as they come off the socket: `RowStream.feed`. There a row is a packet in which each value
is prefixed by its length, 0xFB for NULL (MySQL's documentation, "Text Resultset Row").

The session of a dump: ``time_zone = '+00:00'``, ``character_set_results = NULL`` (each text in its column's
character set, decoded here as in the log), a ``sql_mode`` without PAD_CHAR_TO_FULL_LENGTH, no compression,
and for each column `types.select_expression`. Invariant: then a row has the same values as from the log.
"""

from __future__ import annotations

import datetime
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.codec.cells import Bytes, Mask, Offsets, gather, of_length, unaligned
from connector.errors import BugError
from connector.landing.event_batch import arrow_type
from connector.mysql.codec import types
from connector.mysql.codec.charsets import decode_texts
from connector.mysql.codec.column_cells import PADDING, from_numpy, hex_texts, texts_of
from connector.mysql.codec.numbers import decode_bits
from connector.mysql.codec.types import ColumnType

_HEADER = 4
_LONGEST = 0xFFFFFF
"""A packet of this length continues in the next one."""

_EOF, _ERR = 0xFE, 0xFF
_EOF_BYTES = 9
"""An EOF packet is shorter; a row that begins with the same byte (a value of 16 MiB and more) is longer."""

_uint32 = struct.Struct("<I").unpack_from


@dataclass(frozen=True)
class TextRows:
    """Rows in one buffer of less than 2 GiB, with `PADDING` at both ends: the offsets of start and end."""

    data: Bytes
    starts: Offsets
    ends: Offsets


class RowStream:
    """Splits the bytes of a result set into rows.

    A row that spans packets (16 MiB and more) is assembled as it arrives, in one buffer, which `take`
    returns: it takes memory of its own size, and linear time. `wanted`: the bytes that must be in `rest`
    before `take` can do anything. `pending`: `take` can do more with what is there.

    `ended`: the server has sent all rows. `error`: the payload of the ERR packet that it sent instead (with
    its first byte, 0xFF). Bytes after the end stay untouched in `rest`.
    """

    def __init__(self) -> None:
        self.ended = False
        self.error: bytes | None = None
        self.pending = False
        self.wanted = 0
        self._last_packet = 0
        self.rest = bytearray()
        self._long: bytearray | None = None
        self._missing = 0
        self._goes_on = False

    def feed(self, data: bytes | memoryview) -> None:
        """Add bytes as received; at most a few MB between two calls of `take`."""
        self.rest += data

    def take(self) -> TextRows:
        """Take complete rows fed since the last call; an incomplete row stays for the next.

        Rows before and after one that spans packets come with further calls, while `pending`.
        """
        self.wanted, self.pending = 0, False
        if self._long is not None or self._begins_long(0):
            return self._take_long()
        starts, ends, offset = self._split_packets()
        data = np.frombuffer(b"".join((PADDING, memoryview(self.rest)[:offset], PADDING)), np.uint8)
        if not self.ended:
            del self.rest[:offset]
        else:
            del self.rest[: offset + self._last_packet]
        return TextRows(data, starts + len(PADDING), ends + len(PADDING))

    def _split_packets(self) -> tuple[Offsets, Offsets, int]:
        """Find the whole rows that have arrived: their starts and ends, and the offset after the last one."""
        headers, end = _walk(self.rest)
        starts = np.array(headers, np.int64) + _HEADER
        ends = np.append(starts[1:] - _HEADER, np.int64(end))[: len(starts)]
        count = self._rows_before_the_end(starts, ends)
        if count == len(starts) and end > len(self.rest):
            count -= 1
            self.wanted = end - headers[-1]
        return starts[:count], ends[:count], headers[count] if count < len(headers) else end

    def _rows_before_the_end(self, starts: Offsets, ends: Offsets) -> int:
        """Return how many packets precede the end of the result, or a packet that continues in the next."""
        if not len(starts):
            return 0
        lengths, first = ends - starts, np.frombuffer(self.rest, np.uint8)[starts]
        for number in np.flatnonzero((lengths == _LONGEST) | (first >= _EOF)).tolist():
            start, end, length = int(starts[number]), int(ends[number]), int(lengths[number])
            if length == _LONGEST:
                self.pending = True
                return int(number)
            if end <= len(self.rest) and (first[number] == _ERR or length < _EOF_BYTES):
                self._end(start, end)
                return int(number)
        return len(starts)

    def _end(self, start: int, end: int) -> None:
        self.ended = True
        self._last_packet = end - start + _HEADER
        if self.rest[start] == _ERR:
            self.error = bytes(self.rest[start:end])

    def _begins_long(self, offset: int) -> bool:
        """Return whether a row that spans packets begins at an offset."""
        rest = self.rest
        return len(rest) >= offset + _HEADER and _uint32(rest, offset)[0] & _LONGEST == _LONGEST

    def _take_long(self) -> TextRows:
        """Take the row that spans packets, or nothing while it is incomplete."""
        if self._long is None:
            self._long, self._goes_on = bytearray(PADDING), True
        if not self._lengthen(self._long):
            nothing = np.zeros(0, np.int64)
            return TextRows(np.zeros(0, np.uint8), nothing, nothing)
        row, self._long = self._long, None
        end, self.pending = len(row), len(self.rest) > 0
        row += PADDING
        return TextRows(np.frombuffer(row, np.uint8), np.array([len(PADDING)]), np.array([end]))

    def _lengthen(self, row: bytearray) -> bool:
        """Move what has arrived of a row out of `rest`, less packet headers; return whether it is whole."""
        while self._missing or self._goes_on:
            if not self._missing:
                if len(self.rest) < _HEADER:
                    return False
                self._missing = _uint32(self.rest, 0)[0] & _LONGEST
                self._goes_on = self._missing == _LONGEST
                del self.rest[:_HEADER]
            part = self.rest[: self._missing]
            row += part
            self._missing -= len(part)
            del self.rest[: len(part)]
            if self._missing:
                return False
        return True


def _walk(data: bytearray) -> tuple[list[int], int]:
    """Return where packets begin, of which a byte or more is there, and where the last one ends.

    One step per row: this loop is as short as can be. What follows a special packet may be nonsense.
    """
    headers: list[int] = []
    add, unpack, offset, limit = headers.append, _uint32, 0, len(data) - _HEADER
    while offset < limit:
        add(offset)
        offset += (unpack(data, offset)[0] & _LONGEST) + _HEADER
    return headers, offset


def split_rows(rows: TextRows, columns: int) -> list[tuple[Offsets, Offsets, Mask | None]]:
    """Find the values of each column: starts, ends and which are not NULL (None: all).

    `BugError` if a row does not have `columns` values.
    """
    found: list[tuple[Offsets, Offsets, Mask | None]] = []
    offset = rows.starts
    try:
        for _ in range(columns):
            start, end, valid = _values(rows.data, offset)
            found.append((start, end, valid))
            offset = end
    except IndexError:
        raise BugError(f"a result row does not have {columns} columns") from None
    if (offset != rows.ends).any():
        raise BugError(f"a result row does not have {columns} columns")
    return found


_BYTES_OF_LENGTH = np.ones(256, np.int64)
_BYTES_OF_LENGTH[[252, 253, 254]] = 3, 4, 9


def _values(data: Bytes, offset: Offsets) -> tuple[Offsets, Offsets, Mask | None]:
    first = data[offset]
    if not len(first) or first.max() < 251:
        return offset + 1, offset + 1 + first, None
    start = offset + _BYTES_OF_LENGTH[first]
    length = first.astype(np.int64)
    for mark, mask in ((251, 0), (252, 0xFFFF), (253, 0xFFFFFF), (254, 0x7FFFFFFF)):
        here = first == mark
        length[here] = unaligned(data, "<u4")[offset[here] + 1] & mask
    valid = first != 251
    return start, start + length, None if valid.all() else valid


def decode_rows(
    rows: TextRows, columns: Sequence[ColumnType]
) -> tuple[list[pa.Array], list[pa.Array | None]]:
    """Decode rows to one array per column, as `values.decode_values` does, and the `raw` texts of each."""
    arrays, raws = [], []
    for type_, (start, end, valid) in zip(columns, split_rows(rows, len(columns)), strict=True):
        values, raw = _decode_column(rows.data, start, end, valid, type_)
        arrays.append(values)
        raws.append(raw)
    return arrays, raws


def _decode_column(
    data: Bytes, starts: Offsets, ends: Offsets, valid: Mask | None, type_: ColumnType
) -> tuple[pa.Array, pa.Array | None]:
    if type_.code == types.BIT and len(starts):
        starts = starts if valid is None else np.where(valid, starts, len(PADDING))
        return decode_bits(data, starts, valid, type_), None
    if type_.code in (types.FLOAT, types.DOUBLE):
        return _decode_points(data, starts, ends, valid, type_), None
    return decode_text(gather(data, starts, ends, valid), type_)


_POINT_BYTES, _X = 25, 9
"""A point: its spatial reference system (4 bytes), byte order, type (4), then x and y as doubles (MySQL's
documentation, "Internal Geometry Storage Format"; MariaDB's is the same).
"""


def _decode_points(
    data: Bytes, starts: Offsets, ends: Offsets, valid: Mask | None, type_: ColumnType
) -> pa.Array:
    """Decode points, whose x is the value of a float or double."""
    lengths = ends - starts
    if ((lengths if valid is None else lengths[valid]) != _POINT_BYTES).any():
        raise BugError(f"a {type_.type_name} did not come as a point")
    target = arrow_type(type_.landing)
    numbers = unaligned(data, "<f8")[starts + _X]
    return from_numpy(numbers.astype(target.to_pandas_dtype(), copy=False), target, valid)


def decode_text(
    cells: pa.Array, type_: ColumnType, charset: str | None = None
) -> tuple[pa.Array, pa.Array | None]:
    """Decode the server's texts of one column (not a BIT's bytes); `ValueError` for invalid texts."""
    target = arrow_type(type_.landing)
    if len(cells) == cells.null_count:
        return pa.nulls(len(cells), target), None
    if type_.code in types.HEX_TYPES:
        return hex_texts(cells), None
    if type_.landing == "binary":
        return cells, None
    if type_.landing == "string":
        return _decode_string(cells, type_, charset), None
    texts = texts_of(cells)
    if type_.landing in ("date", "timestamp", "timestamp_ntz"):
        return _decode_moments(texts, target)
    try:
        if type_.code == types.FLOAT:
            return texts.cast(pa.float64()).cast(target), None
        return texts.cast(target), None
    except pa.ArrowInvalid:
        raise ValueError(f"a text is not a valid {type_.type_name}") from None


_TEXT_TYPES = types.STRINGS | types.BLOBS | {types.ENUM, types.SET}


def _decode_string(cells: pa.Array, type_: ColumnType, charset: str | None) -> pa.Array:
    if type_.code in _TEXT_TYPES and type_.alias is None:
        return decode_texts(cells, charset or type_.charset or "utf8mb4")
    texts = cells.cast(pa.string())
    if type_.code == types.NEWDECIMAL:
        return pc.replace_substring_regex(texts, r"^(-?)0+(\d)", r"\1\2")
    return texts


_MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d)( \d\d:\d\d:\d\d(\.\d+)?)?")


def _decode_moments(texts: pa.Array, target: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
    raw = None
    if pc.any(pc.starts_with(texts, "0000")).as_py() or not _casts(texts, target):
        kept = pa.array([text is not None and _exists(text) for text in texts.to_pylist()])
        raw = pc.if_else(kept, None, texts)
        texts = pc.if_else(kept, texts, None)
    naive = target if pa.types.is_date(target) else pa.timestamp("us")
    values = texts.cast(naive)
    return (values if naive == target else values.view(target)), raw


def _casts(texts: pa.Array, target: pa.DataType) -> bool:
    try:
        texts.cast(pa.timestamp("us") if pa.types.is_timestamp(target) else target)
    except pa.ArrowInvalid:
        return False
    return True


def _exists(text: str) -> bool:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{of_length(text)} is not a date")
    try:
        datetime.date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return False
    return True
