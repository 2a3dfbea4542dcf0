"""Converts MySQL's binary JSON to the text that MySQL prints for it. Pure.

Format: ``sql-common/json_binary.h``; the text: ``Json_wrapper::to_string``. Members keep their stored order
(by length, then bytes), one space follows each comma and colon; strings are quoted as Python does.
"""

from __future__ import annotations

import base64
import struct
from decimal import Decimal
from json.encoder import encode_basestring as quote
from typing import TypeAlias

import numpy as np

from connector.mysql.codec.column_cells import PADDING
from connector.mysql.codec.numbers import decode_decimals
from connector.mysql.codec.types import DATE, DATETIME, NEWDECIMAL, TIME, TIMESTAMP, ColumnType

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE = 15

_FORMATS = {_INT16: "<h", _UINT16: "<H", _INT32: "<i", _UINT32: "<I", _INT64: "<q", _UINT64: "<Q"}
_NUMBERS = {kind: struct.Struct(format).unpack_from for kind, format in _FORMATS.items()}
_INLINED_SMALL = frozenset((_LITERAL, _INT16, _UINT16))
_INLINED_LARGE = _INLINED_SMALL | {_INT32, _UINT32}
"""Values of these types are in the entry itself, not where it points."""

_LITERALS = {0: "null", 1: "true", 2: "false"}

Tree: TypeAlias = "dict[str, Tree] | list[Tree] | str"
"""A document: objects and arrays as such, scalars as the text that MySQL prints for them."""


def json_text(document: bytes) -> str:
    """Return a document's text; `ValueError` if it is damaged. Zero bytes are JSON's null."""
    return tree_text(json_tree(document))


def json_tree(document: bytes) -> Tree:
    """Parse a document, its members in stored order; otherwise like `json_text`."""
    if not document:
        return "null"
    try:
        return _value(document[0], document, 1)
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"can't parse a JSON document: {type(error).__name__}") from error


def tree_text(tree: Tree) -> str:
    """Return the text of a tree."""
    if isinstance(tree, str):
        return tree
    if isinstance(tree, dict):
        return "{" + ", ".join([f"{quote(name)}: {tree_text(value)}" for name, value in tree.items()]) + "}"
    return "[" + ", ".join(map(tree_text, tree)) + "]"


def _value(kind: int, data: bytes, offset: int) -> Tree:
    if kind == _STRING:
        length, offset = _length(data, offset)
        return quote(_slice(data, offset, length).decode())
    if kind <= _LARGE_ARRAY:
        return _container(kind, data, offset)
    if kind == _LITERAL:
        return _LITERALS[data[offset]]
    if kind in _NUMBERS:
        return str(_NUMBERS[kind](data, offset)[0])
    if kind == _DOUBLE:
        return double_text(struct.unpack_from("<d", data, offset)[0])
    if kind == _OPAQUE:
        length, start = _length(data, offset + 1)
        return _opaque(data[offset], _slice(data, start, length))
    raise ValueError(f"unknown JSON type {kind}")


def _slice(data: bytes, offset: int, length: int) -> bytes:
    if offset + length > len(data):
        raise IndexError("a value reaches beyond its document")
    return data[offset : offset + length]


def _length(data: bytes, offset: int) -> tuple[int, int]:
    """Read a length of 7 bits per byte, least significant first; return it and its end offset."""
    if data[offset] < 0x80:
        return data[offset], offset + 1
    length = 0
    for index in range(5):
        length |= (data[offset + index] & 0x7F) << 7 * index
        if data[offset + index] < 0x80:
            return length, offset + index + 1
    raise ValueError("a length has more than five bytes")


def _container(kind: int, data: bytes, start: int) -> Tree:
    large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
    width, number, inlined = (4, "I", _INLINED_LARGE) if large else (2, "H", _INLINED_SMALL)
    count, size = struct.unpack_from(f"<2{number}", data, start)
    if start + size > len(data):
        raise IndexError("a value reaches beyond its document")
    is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
    entries = start + 2 * width + (count * (width + 2) if is_object else 0)
    found = struct.unpack_from("<" + f"B{number}" * count, data, entries)
    inline = range(entries + 1, entries + 1 + count * (1 + width), 1 + width)
    values = [
        _value(kind, data, at if kind in inlined else start + offset)
        for kind, offset, at in zip(found[::2], found[1::2], inline, strict=True)
    ]
    if not is_object:
        return values
    names = struct.unpack_from("<" + f"{number}H" * count, data, start + 2 * width)
    return {
        _slice(data, start + at, length).decode(): value
        for at, length, value in zip(names[::2], names[1::2], values, strict=True)
    }


_FIXED_DIGITS = 15
"""A decimal point farther than this from the first digit becomes an exponent, unless the number has digits
after it anyway."""


def double_text(value: float) -> str:
    """Format a double as MySQL's ``my_gcvt`` does, with the fewest digits, and ``.0`` if it has none."""
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent) if value else 1
    minus = "-" if sign else ""
    if -_FIXED_DIGITS + 1 <= point <= _FIXED_DIGITS or len(text) > point > 0:
        if point <= 0:
            return f"{minus}0.{'0' * -point}{text}"
        return f"{minus}{text[:point].ljust(point, '0')}.{text[point:] or '0'}"
    return f"{minus}{text[0]}{'.' + text[1:] if len(text) > 1 else ''}e{point - 1}"


def _opaque(field_type: int, data: bytes) -> str:
    if field_type == NEWDECIMAL:
        return _decimal(data)
    if field_type in (DATE, TIME, DATETIME, TIMESTAMP):
        return f'"{_temporal(field_type, struct.unpack_from("<q", data)[0])}"'
    return quote(f"base64:type{field_type}:{_base64(data)}")


def _base64(data: bytes) -> str:
    """Encode as MySQL's ``base64_encode`` does, with newlines between every 76 characters."""
    text = base64.b64encode(data).decode()
    return "\n".join(text[i : i + 76] for i in range(0, len(text), 76))


def _decimal(data: bytes) -> str:
    type_ = ColumnType(NEWDECIMAL, precision=data[0], scale=data[1])
    padded = np.frombuffer(PADDING + data[2:] + PADDING, np.uint8)
    value = decode_decimals(padded, np.array([len(PADDING)]), None, type_)[0].as_py()
    return value if isinstance(value, str) else f"{value:f}"


def _temporal(field_type: int, packed: int) -> str:
    sign, size = ("-" if packed < 0 else ""), abs(packed)
    whole, micros = size >> 24, size & 0xFFFFFF
    clock = f"{whole >> 6 & 63:02d}:{whole & 63:02d}.{micros:06d}"
    if field_type == TIME:
        return f"{sign}{whole >> 12 & 0x3FF:02d}:{clock}"
    months = whole >> 22
    date = f"{months // 13:04d}-{months % 13:02d}-{whole >> 17 & 31:02d}"
    return date if field_type == DATE else f"{date} {whole >> 12 & 31:02d}:{clock}"
