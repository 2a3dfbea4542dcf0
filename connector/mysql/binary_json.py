"""MySQL's binary JSON to the text that MySQL prints for it. Pure.

Format: ``sql-common/json_binary.h``; the text: ``Json_wrapper::to_string``. Members keep the order in which
they are stored (by length, then bytes), and one blank follows each comma and colon.
"""

from __future__ import annotations

import base64
import struct
from decimal import Decimal

import numpy as np

from connector.mysql.cells import PADDING
from connector.mysql.numbers import decode_decimals
from connector.mysql.types import DATE, DATETIME, NEWDECIMAL, TIME, TIMESTAMP, ColumnType

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE = 15

_NUMBERS = {_INT16: "<h", _UINT16: "<H", _INT32: "<i", _UINT32: "<I", _INT64: "<q", _UINT64: "<Q"}
_LITERALS = {0: "null", 1: "true", 2: "false"}

_ESCAPES = {chr(code): f"\\u{code:04x}" for code in range(0x20)}
_ESCAPES |= {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_QUOTED = str.maketrans(_ESCAPES)


def json_text(document: bytes) -> str:
    """Give the text of a document; `ValueError` for one that is damaged. No bytes at all are JSON's null."""
    if not document:
        return "null"
    try:
        return _value(document[0], document[1:])
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"a JSON document cannot be read: {error!r}") from error


def _value(kind: int, data: bytes) -> str:
    if kind <= _LARGE_ARRAY:
        return _container(kind, data)
    if kind == _LITERAL:
        return _LITERALS[data[0]]
    if kind in _NUMBERS:
        return str(struct.unpack_from(_NUMBERS[kind], data)[0])
    if kind == _DOUBLE:
        return double_text(struct.unpack_from("<d", data)[0])
    if kind == _STRING:
        length, place = _length(data, 0)
        return _quote(_slice(data, place, length).decode())
    if kind == _OPAQUE:
        length, place = _length(data, 1)
        return _opaque(data[0], _slice(data, place, length))
    raise ValueError(f"JSON type {kind} is not known")


def _slice(data: bytes, place: int, length: int) -> bytes:
    if place + length > len(data):
        raise IndexError("a value reaches beyond its document")
    return data[place : place + length]


def _length(data: bytes, place: int) -> tuple[int, int]:
    """Read a length of 7 bits a byte, least significant first; gives it and the place behind."""
    length = 0
    for index in range(5):
        length |= (data[place + index] & 0x7F) << 7 * index
        if data[place + index] < 0x80:
            return length, place + index + 1
    raise ValueError("a length has more than five bytes")


def _container(kind: int, data: bytes) -> str:
    large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
    is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
    width, number = (4, "<I") if large else (2, "<H")
    count, size = (struct.unpack_from(number, data, place)[0] for place in (0, width))
    if size > len(data):
        raise IndexError("a value reaches beyond its document")
    keys, entries = 2 * width, 2 * width + (count * (width + 2) if is_object else 0)
    parts = []
    for index in range(count):
        place = entries + index * (1 + width)
        text = _element(data, data[place], place + 1, number, large)
        if is_object:
            at, length = struct.unpack_from(number + "H", data, keys + index * (width + 2))
            text = f"{_quote(_slice(data, at, length).decode())}: {text}"
        parts.append(text)
    return "{" + ", ".join(parts) + "}" if is_object else "[" + ", ".join(parts) + "]"


def _element(data: bytes, kind: int, place: int, number: str, large: bool) -> str:
    inlined = (_LITERAL, _INT16, _UINT16) + ((_INT32, _UINT32) if large else ())
    if kind not in inlined:
        place = struct.unpack_from(number, data, place)[0]
    return _value(kind, data[place:])


def _quote(text: str) -> str:
    return f'"{text.translate(_QUOTED)}"'


_FIXED_DIGITS = 15
"""Numbers whose decimal point is further than this from their digits are spelled with an exponent."""


def double_text(value: float) -> str:
    """Spell a double as MySQL's ``my_gcvt`` does, with the fewest digits, and ``.0`` where it has none."""
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent) if value else 1
    minus = "-" if sign else ""
    if -_FIXED_DIGITS + 1 <= point <= _FIXED_DIGITS:
        if point <= 0:
            return f"{minus}0.{'0' * -point}{text}"
        return f"{minus}{text[:point].ljust(point, '0')}.{text[point:] or '0'}"
    return f"{minus}{text[0]}{'.' + text[1:] if len(text) > 1 else ''}e{point - 1}"


def _opaque(field_type: int, data: bytes) -> str:
    if field_type == NEWDECIMAL:
        return _decimal(data)
    if field_type in (DATE, TIME, DATETIME, TIMESTAMP):
        return f'"{_temporal(field_type, struct.unpack_from("<q", data)[0])}"'
    return f'"base64:type{field_type}:{_base64(data)}"'


def _base64(data: bytes) -> str:
    """Encode as MySQL's ``base64_encode`` does, with a newline after each 76 characters but the last."""
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
