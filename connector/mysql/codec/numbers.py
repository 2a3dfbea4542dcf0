"""Decodes integers, floats, bits, enums, sets and packed decimals of row events, a column at a time. Pure.

Formats: MySQL's ``Field_*::pack`` (little-endian, except bits), and ``decimal2bin`` of ``strings/decimal.c``.

Every function takes the buffer, which has `column_cells.PADDING` at both ends, the offset where each value
starts, and which rows have one (None: all). A row without a value may start anywhere between the paddings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connector.codec.cells import Bytes, Mask, Offsets, unaligned, with_nulls
from connector.mysql.codec import types
from connector.mysql.codec.column_cells import from_numpy
from connector.mysql.codec.types import ColumnType, decimal_words

U64 = npt.NDArray[np.uint64]

_WIDE = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}


def big_endian(data: Bytes, starts: Offsets, width: int) -> U64:
    """Read unsigned numbers of up to 8 bytes, most significant byte first."""
    values: U64 = unaligned(data, ">u8")[starts + (width - 8)].astype(np.uint64)
    return values if width == 8 else values & np.uint64((1 << 8 * width) - 1)


def little_endian(data: Bytes, starts: Offsets, width: int) -> U64:
    """Read unsigned numbers of up to 8 bytes, least significant byte first."""
    values: U64 = unaligned(data, "<u8")[starts]
    return values if width == 8 else values & np.uint64((1 << 8 * width) - 1)


def decode_integers(data: Bytes, starts: Offsets, valid: Mask | None, type_: ColumnType) -> pa.Array:
    """Decode integers and years to their landing type."""
    if type_.code == types.YEAR:
        years = data[starts].astype(np.int32)
        return from_numpy(np.where(years == 0, 0, years + 1900).astype(np.int32), pa.int32(), valid)
    if type_.code == types.LONGLONG and type_.unsigned:
        return unsigned_bigints(unaligned(data, "<u8")[starts], valid)
    width = type_.width or 0
    if type_.code == types.INT24:
        values = (unaligned(data, "<u4")[starts] << 8).view(np.int32) >> 8
        return from_numpy(values & 0xFFFFFF if type_.unsigned else values, pa.int32(), valid)
    if type_.unsigned:
        values = unaligned(data, f"<u{width}")[starts].astype(f"<i{2 * width}")
        return from_numpy(values, _WIDE[2 * width], valid)
    return from_numpy(unaligned(data, f"<i{width}")[starts], _WIDE[width], valid)


def unsigned_bigints(values: U64, valid: Mask | None) -> pa.Array:
    """Convert unsigned 64-bit numbers to decimal(20,0)."""
    return _decimals(values, np.zeros(len(values), np.uint64), pa.decimal128(20, 0), valid)


def _decimals(
    low: npt.NDArray[Any], high: npt.NDArray[Any], type_: pa.DataType, valid: Mask | None
) -> pa.Array:
    words = np.empty((len(low), 2), np.uint64)
    words[:, 0], words[:, 1] = low.view(np.uint64), high.view(np.uint64)
    return with_nulls(pa.Array.from_buffers(type_, len(low), [None, pa.py_buffer(words)]), valid)


def decode_floats(data: Bytes, starts: Offsets, valid: Mask | None, type_: ColumnType) -> pa.Array:
    """Decode floats and doubles."""
    if type_.code == types.FLOAT:
        return from_numpy(unaligned(data, "<f4")[starts], pa.float32(), valid)
    return from_numpy(unaligned(data, "<f8")[starts], pa.float64(), valid)


def decode_bits(data: Bytes, starts: Offsets, valid: Mask | None, type_: ColumnType) -> pa.Array:
    """Decode BIT(n) to a number."""
    values = big_endian(data, starts, type_.width or 0)
    if type_.length == 64:
        return unsigned_bigints(values, valid)
    return from_numpy(values.view(np.int64), pa.int64(), valid)


def decode_enums(data: Bytes, starts: Offsets, valid: Mask | None, type_: ColumnType) -> pa.Array:
    """Decode ENUM numbers to their texts; 0 is '', which MySQL stores for invalid values."""
    numbers = little_endian(data, starts, type_.size).astype(np.int32)
    if valid is not None:
        numbers[~valid] = 0
    if len(numbers) and numbers.max() > len(type_.values):
        raise ValueError(f"number {numbers.max()} is not among the {len(type_.values)} values of an enum")
    texts = pa.array(["", *type_.values], pa.string())
    return texts.take(pa.array(numbers, mask=None if valid is None else ~valid))


def decode_sets(data: Bytes, starts: Offsets, valid: Mask | None, type_: ColumnType) -> pa.Array:
    """Decode SET bits to their texts: the members in the order of the type, a comma between two.

    As the servers write it, an empty text takes no comma: '' and 'a' are ``a``, 'a' and '' are ``a,``.
    """
    bits = little_endian(data, starts, type_.size)
    if valid is not None:
        bits = np.where(valid, bits, np.uint64(0))
    distinct, picks = np.unique(bits, return_inverse=True)
    texts = pa.array([_set_text(int(number), type_.values) for number in distinct], pa.string())
    return texts.take(pa.array(picks.reshape(-1), mask=None if valid is None else ~valid))


def _set_text(number: int, values: tuple[str, ...]) -> str:
    if number >> len(values):
        raise ValueError(f"bits {number:#x} are not among the {len(values)} values of a set")
    text = ""
    for bit, value in enumerate(values):
        if number >> bit & 1:
            text += f",{value}" if text else value
    return text


_INT64_DIGITS = 18


def decode_decimals(data: Bytes, starts: Offsets, valid: Mask | None, type_: ColumnType) -> pa.Array:
    """Decode packed decimals to decimal128, or to text for types of more than 38 digits."""
    words, negative = _words(data, starts, type_)
    if type_.precision > types.DECIMAL_MAX_PRECISION:
        return _decimal_texts(words, negative, valid, type_)
    target = pa.decimal128(type_.precision, type_.scale)
    if type_.precision <= _INT64_DIGITS:
        small = np.zeros(len(starts), np.int64)
        for digits, word in words:
            small = small * 10**digits + word.view(np.int64)
        small = np.where(negative, -small, small)
        return _decimals(small, small >> 63, target, valid)
    low, high = _join(words, len(starts))
    low = np.where(negative, ~low + np.uint64(1), low)
    high = np.where(negative, ~high + (low == 0).astype(np.uint64), high)
    return _decimals(low, high, target, valid)


def _words(data: Bytes, starts: Offsets, type_: ColumnType) -> tuple[list[tuple[int, U64]], Mask]:
    """Read the words of each decimal without its sign: a negative one has all its bits inverted."""
    negative: Mask = data[starts] & 0x80 == 0
    words, offset = [], starts
    for index, (digits, width) in enumerate(decimal_words(type_.precision, type_.scale)):
        word = big_endian(data, offset, width)
        if index == 0:
            word ^= np.uint64(1 << 8 * width - 1)
        words.append((digits, np.where(negative, word ^ np.uint64((1 << 8 * width) - 1), word)))
        offset = offset + width
    return words, negative


def _join(words: list[tuple[int, U64]], rows: int) -> tuple[U64, U64]:
    """Combine decimal words into 128-bit numbers, by four limbs of 32 bits."""
    limbs = [np.zeros(rows, np.uint64) for _ in range(4)]
    for digits, word in words:
        carry = word
        for index, limb in enumerate(limbs):
            carry = limb * np.uint64(10**digits) + carry
            limbs[index] = carry & np.uint64(0xFFFFFFFF)
            carry = carry >> np.uint64(32)
    shift = np.uint64(32)
    return limbs[0] | limbs[1] << shift, limbs[2] | limbs[3] << shift


def _decimal_texts(
    words: list[tuple[int, U64]], negative: Mask, valid: Mask | None, type_: ColumnType
) -> pa.Array:
    texts: list[str | None] = []
    columns = [[f"{number:0{digits}d}" for number in word.tolist()] for digits, word in words]
    signs = ["-" if sign else "" for sign in negative.tolist()]
    whole = type_.precision - type_.scale
    for sign, *parts in zip(signs, *columns, strict=True):
        digits = "".join(parts)
        fraction = f".{digits[whole:]}" if type_.scale else ""
        texts.append(f"{sign}{digits[:whole].lstrip('0') or '0'}{fraction}")
    return pa.array(texts, pa.string(), mask=None if valid is None else ~valid)
