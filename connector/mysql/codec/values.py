"""Decodes the values of one column in row events to its landing type in Arrow. Pure.

Invariant: a decoded value depends only on its bytes and its type, and is what `text_rows` returns for the
server's text of the same value: dump and log agree.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from connector.codec.cells import Bytes, Mask, Offsets, gather, offsets_of
from connector.errors import TableError
from connector.landing.event_batch import arrow_type
from connector.mysql.codec import types
from connector.mysql.codec.binary_json import json_text
from connector.mysql.codec.charsets import decode_texts, has_unwritten
from connector.mysql.codec.column_cells import fixed_width, hex_texts, valid_of, values_of
from connector.mysql.codec.compressed import uncompress_value
from connector.mysql.codec.numbers import (
    decode_bits,
    decode_decimals,
    decode_enums,
    decode_floats,
    decode_integers,
    decode_sets,
)
from connector.mysql.codec.temporal import decode_dates, decode_datetimes, decode_times, decode_timestamps
from connector.mysql.codec.types import ColumnType
from connector.schema import TableName

_INTEGERS = (types.TINY, types.SHORT, types.INT24, types.LONG, types.LONGLONG, types.YEAR)

_FIXED: dict[int, Callable[[Bytes, Offsets, Mask | None, ColumnType], pa.Array]] = {
    **dict.fromkeys(_INTEGERS, decode_integers),
    types.FLOAT: decode_floats,
    types.DOUBLE: decode_floats,
    types.NEWDECIMAL: decode_decimals,
    types.BIT: decode_bits,
    types.ENUM: decode_enums,
    types.SET: decode_sets,
    types.TIME: decode_times,
    types.TIME2: decode_times,
}


def decode_values(
    data: Bytes, starts: Offsets, ends: Offsets, valid: Mask | None, type_: ColumnType
) -> tuple[pa.Array, pa.Array | None]:
    """Decode the values ``data[start:end]`` to ``arrow_type(type_.landing)``.

    Offsets ascend as `cells.gather` requires; a row that is not `valid` (None: all are) has an empty range,
    and is null. `data` has `PADDING` at both ends. The second array is None if every value fits; otherwise it
    holds the server's text of those that the landing type can't hold (zero dates), whose rows are null in the
    first. `ValueError` for bytes that are not a value of the type.
    """
    if not len(starts) or (valid is not None and not valid.any()):
        return pa.nulls(len(starts), arrow_type(type_.landing)), None
    if type_.code in (types.DATE, types.NEWDATE):
        return decode_dates(data, starts, valid)
    if type_.code in (types.DATETIME, types.DATETIME2):
        return decode_datetimes(data, starts, valid, type_)
    if type_.code in (types.TIMESTAMP, types.TIMESTAMP2):
        return decode_timestamps(data, starts, valid, type_)
    if fixed := _FIXED.get(type_.code):
        return fixed(data, starts, valid, type_), None
    return decode_strings(gather(data, starts, ends, valid), type_), None


def decode_strings(cells: pa.Array, type_: ColumnType) -> pa.Array:
    """Decode the bytes of strings, binaries, JSON, geometries and MariaDB's aliases."""
    if type_.code in types.COMPRESSED:
        cells = _decode_each(cells, uncompress_value, pa.binary())
    if type_.code == types.JSON:
        return _decode_each(cells, json_text, pa.string())
    if type_.code in types.HEX_TYPES:
        return hex_texts(cells)
    if type_.alias:
        return _decode_each(pad(cells, type_.length), _ALIASES[type_.alias], pa.string())
    if type_.is_binary:
        return pad(cells, type_.length) if type_.code == types.STRING else cells
    return decode_texts(cells, type_.charset or "utf8mb4")


def check_key(table: TableName, name: str, cells: pa.Array, type_: ColumnType) -> None:
    """Refuse the bytes of a key column of an ambiguous type if another row's key may be the same text."""
    charset = type_.charset or ""
    if has_unwritten(cells, charset):
        column = f"`{name.replace('`', '``')}`"
        raise TableError(
            table,
            f"key column {name} has a character in an encoding that the server does not write for it in"
            f" {charset}: rows with different keys may have the same text",
            hint=f"convert {name} to utf8mb4, or change the values WHERE BINARY {column} <>"
            f" BINARY CONVERT(CONVERT({column} USING utf8mb4) USING {charset}), then dump it again",
        )


def _decode_each(cells: pa.Array, decode: Callable[[bytes], Any], type_: pa.DataType) -> pa.Array:
    return pa.array([None if cell is None else decode(cell) for cell in cells.to_pylist()], type_)


def pad(cells: pa.Array, width: int) -> pa.Array:
    """Restore the zero bytes that the log omits at the end of a BINARY(n)."""
    offsets = offsets_of(cells)
    lengths = np.diff(offsets)
    valid = valid_of(cells)
    if valid is None and (lengths == width).all():
        return cells
    if len(lengths) and lengths.max() > width:
        raise ValueError(f"a value of binary({width}) has {lengths.max()} bytes")
    matrix = np.zeros((len(lengths), width), np.uint8)
    matrix[np.arange(width) < lengths[:, None]] = values_of(cells)
    return fixed_width(matrix, valid)


def _uuid_text(value: bytes) -> str:
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _inet6_text(value: bytes) -> str:
    """Format an address as MariaDB does; C libraries don't shorten a single group of zeros.

    The longest run of zero groups, the first of equal ones, is omitted. The last four bytes of an address
    that stands for an IPv4 address are formatted as one.
    """
    groups = [int.from_bytes(value[i : i + 2], "big") for i in range(0, 16, 2)]
    runs = [(len(list(run)), zero) for zero, run in itertools.groupby(groups, key=lambda group: group == 0)]
    gap = max((length for length, zero in runs if zero), default=0)
    texts = [f"{group:x}" for group in groups]
    if gap == 0:
        return ":".join(texts)
    start = 0
    for length, zero in runs:
        if zero and length == gap:
            break
        start += length
    if start == 0 and (gap == 6 or (gap == 5 and groups[5] == 0xFFFF)):
        texts[6:] = [socket.inet_ntop(socket.AF_INET, value[12:])]
    return ":".join(texts[:start]) + "::" + ":".join(texts[start + gap :])


_ALIASES: dict[str, Callable[[bytes], str]] = {
    types.UUID: _uuid_text,
    types.INET6: _inet6_text,
    types.INET4: lambda value: socket.inet_ntop(socket.AF_INET, value),
}
