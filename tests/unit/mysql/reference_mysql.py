"""A naive encoder of MySQL's binary log, value by value: the oracle that the decoder is compared with.

Written after MySQL's documentation of the formats, one value at a time, in another way than the decoder.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any


def packed_number(number: int) -> bytes:
    if number < 251:
        return bytes([number])
    if number < 1 << 16:
        return b"\xfc" + number.to_bytes(2, "little")
    return (
        b"\xfd" + number.to_bytes(3, "little") if number < 1 << 24 else b"\xfe" + number.to_bytes(8, "little")
    )


def packed_text(text: bytes | str) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return packed_number(len(data)) + data


def bitmap_lsb(bits: Sequence[bool]) -> bytes:
    return bytes(
        sum(bit << place for place, bit in enumerate(bits[low : low + 8])) for low in range(0, len(bits), 8)
    )


def bitmap_msb(bits: Sequence[bool]) -> bytes:
    return bytes(
        sum(bit << 7 - place for place, bit in enumerate(bits[low : low + 8]))
        for low in range(0, len(bits), 8)
    )


@dataclass
class Col:
    """A column: binlog type code, metadata bytes, and what the optional metadata says of it."""

    name: str
    code: int
    meta: bytes = b""
    unsigned: bool | None = None
    collation: int | None = None
    values: tuple[str, ...] = ()
    real: int | None = None


def table_map(table_id: int, columns: Sequence[Col], key: Sequence[int] = (), *, names: bool = True) -> bytes:
    out = table_id.to_bytes(6, "little") + b"\1\0" + b"\1d\0" + b"\1t\0" + packed_number(len(columns))
    out += bytes(c.code for c in columns) + packed_text(b"".join(c.meta for c in columns))
    out += bitmap_lsb([True] * len(columns))
    numbers = [c.unsigned for c in columns if c.unsigned is not None]
    fields = {1: bitmap_msb(numbers)} if numbers else {}
    texts = [c.collation for c in columns if c.collation is not None and not c.values]
    if texts:
        fields[3] = b"".join(map(packed_number, texts))
    if names:
        fields[4] = b"".join(packed_text(c.name) for c in columns)
    for field, real in ((5, 248), (6, 247)):
        lists = [c.values for c in columns if c.real == real]
        if lists:
            fields[field] = b"".join(packed_number(len(v)) + b"".join(map(packed_text, v)) for v in lists)
    if key:
        fields[8] = b"".join(map(packed_number, key))
    if enums := [c.collation for c in columns if c.values]:
        fields[10] = packed_number(enums[0] or 45)
    return out + b"".join(bytes([f]) + packed_text(v) for f, v in fields.items())


def header(kind: int, body: bytes) -> bytes:
    return struct.pack("<IBIIIH", 0, kind, 1, 19 + len(body), 0, 0) + body


def image(values: Sequence[bytes | None], present: Sequence[bool]) -> bytes:
    """A row image of encoded values; unused bits of the bitmap are set, as MySQL has them."""
    some = [v for v, p in zip(values, present, strict=True) if p]
    nulls = [v is None for v in some] + [True] * (-len(some) % 8)
    return bitmap_lsb(nulls) + b"".join(v for v in some if v is not None)


def rows_event(
    kind: int,
    table_id: int,
    width: int,
    rows: Sequence[bytes],
    bitmaps: Sequence[Sequence[bool]],
) -> bytes:
    body = table_id.to_bytes(6, "little") + b"\1\0"
    if kind in (30, 31, 32, 39):
        body += b"\2\0"
    body += packed_number(width) + b"".join(bitmap_lsb(b) for b in bitmaps) + b"".join(rows)
    return header(kind, body)


def integer(value: int, width: int) -> bytes:
    return (value % (1 << 8 * width)).to_bytes(width, "little")


def varchar(value: bytes, prefix: int) -> bytes:
    return len(value).to_bytes(prefix, "little") + value


_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal(value: Decimal, precision: int, scale: int) -> bytes:
    sign, digits, exponent = value.as_tuple()
    number = "".join(map(str, digits)) + "0" * (scale + exponent)
    number = number.rjust(precision, "0")
    whole, fraction = number[: precision - scale], number[precision - scale :]
    head = len(whole) % 9
    groups = [whole[:head]] + [whole[i : i + 9] for i in range(head, len(whole), 9)]
    groups += [fraction[i : i + 9] for i in range(0, len(fraction), 9)]
    out = bytearray(b"".join(int(g).to_bytes(_BYTES[len(g)], "big") for g in groups if g))
    if sign:
        out = bytearray(b ^ 0xFF for b in out)
    out[0] ^= 0x80
    return bytes(out)


def _fraction(micros: int, scale: int) -> tuple[int, int]:
    width = (scale + 1) // 2
    return micros // 100 ** (3 - width), width


def datetime2(y: int, mo: int, d: int, h: int, mi: int, s: int, micros: int, scale: int) -> bytes:
    packed = ((y * 13 + mo) << 22) | d << 17 | h << 12 | mi << 6 | s
    fraction, width = _fraction(micros, scale)
    return (packed + 0x8000000000).to_bytes(5, "big") + fraction.to_bytes(width, "big")


def timestamp2(seconds: int, micros: int, scale: int) -> bytes:
    fraction, width = _fraction(micros, scale)
    return seconds.to_bytes(4, "big") + fraction.to_bytes(width, "big")


def time2(negative: bool, h: int, mi: int, s: int, micros: int, scale: int) -> bytes:
    fraction, width = _fraction(micros, scale)
    packed = (h << 12 | mi << 6 | s) << 8 * width | fraction
    return ((0x800000 << 8 * width) + (-packed if negative else packed)).to_bytes(3 + width, "big")


def date(y: int, m: int, d: int) -> bytes:
    return (y << 9 | m << 5 | d).to_bytes(3, "little")


def text_row(values: Sequence[bytes | None]) -> bytes:
    """A packet of the text protocol, header included (up to 16 MiB - 2)."""
    payload = b"".join(b"\xfb" if v is None else packed_text(v) for v in values)
    return packet(payload)


def packet(payload: bytes, sequence: int = 1) -> bytes:
    if len(payload) >= 0xFFFFFF:
        head = b"\xff\xff\xff" + bytes([sequence]) + payload[:0xFFFFFF]
        return head + packet(payload[0xFFFFFF:], sequence + 1)
    return len(payload).to_bytes(3, "little") + bytes([sequence]) + payload


EOF = packet(b"\xfe\0\0\2\0")


def json_document(value: Any) -> bytes:
    """MySQL's binary JSON of plain Python values; dicts keep MySQL's order: by length, then bytes."""
    kind, data = _json(value)
    return bytes([kind]) + data


def _json(value: Any) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 4, bytes([{None: 0, True: 1, False: 2}[value]])
    if isinstance(value, int):
        for kind, form, low, high in (
            (5, "<h", -(2**15), 2**15),
            (7, "<i", -(2**31), 2**31),
            (9, "<q", -(2**63), 2**63),
        ):
            if low <= value < high:
                return kind, struct.pack(form, value)
        return 10, struct.pack("<Q", value)
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        data = value.encode()
        return 12, _varint(len(data)) + data
    return _container(value)


def _varint(number: int) -> bytes:
    out = bytearray()
    while True:
        out.append(number & 0x7F | (0x80 if number > 0x7F else 0))
        number >>= 7
        if not number:
            return bytes(out)


def _container(value: Any, large: bool = False) -> tuple[int, bytes]:
    form, width = ("<I", 4) if large else ("<H", 2)
    is_object = isinstance(value, dict)
    items = sorted(value.items(), key=lambda i: (len(i[0].encode()), i[0].encode())) if is_object else None
    values = [v for _, v in items] if items is not None else list(value)
    keys = [k.encode() for k, _ in items] if items is not None else []
    offset = 2 * width + len(keys) * (width + 2) + len(values) * (1 + width) + sum(map(len, keys))
    key_offset = offset - sum(map(len, keys))
    entries, tail = b"", b""
    for v in values:
        kind, data = _json(v)
        if kind in (4, 5, 6) or (large and kind in (7, 8)):
            entries += bytes([kind]) + data.ljust(width, b"\0")
        else:
            at = offset + len(tail)
            if at > 0xFFFF and not large:
                return _container(value, large=True)
            entries += bytes([kind]) + struct.pack(form, at)
            tail += data
    key_entries = b""
    for key in keys:
        key_entries += struct.pack(form, key_offset) + struct.pack("<H", len(key))
        key_offset += len(key)
    size = offset + len(tail)
    if size > 0xFFFF and not large:
        return _container(value, large=True)
    body = (
        struct.pack(form, len(values))
        + struct.pack(form, size)
        + key_entries
        + entries
        + b"".join(keys)
        + tail
    )
    return (0 if is_object else 2) + large, body
