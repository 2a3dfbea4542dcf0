"""Decodes cells, the text values of one column for many rows, to their landing types. Pure.

`pgoutput` and `copytext` both collect values into cells (an Arrow binary array, null for NULL), so log and
dump share one codec. Invariant: a decoded value depends only on the value and its type, never on other rows
of the batch: a row lands the same from dump and log.

Texts are those of a session with DateStyle ISO, TimeZone UTC, bytea_output hex, client_encoding UTF8 and the
default extra_float_digits. Only text arrays with quotes are parsed one by one.
"""

from __future__ import annotations

import binascii

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from connector.codec.cells import Mask, of_length, offsets_of, with_nulls
from connector.landing.event_batch import arrow_type
from connector.postgres.codec.arrays import decode_array
from connector.schema import array_of, decimal_of

# Values of the source's type that the landing type cannot hold. Spark's dates and timestamps cover the years
# 1 to 9999, which are also the only ones that Arrow parses.
_MISFIT_TIME = r"^(-?infinity|\d{5,}-\d\d-\d\d.*|\d{4,}-\d\d-\d\d.* BC)$"
_SPECIAL_NUMERIC = r"^(NaN|-?Infinity)$"
_NUMERIC = r"^-?\d+(\.\d+)?$"


def decode_column(cells: pa.Array, type_name: str) -> tuple[pa.Array, pa.Array | None]:
    """Decode the cells of one column to ``arrow_type(type_name)``.

    The second array is None if every value fits. Otherwise it holds, as strings, the source's text of values
    that the type can't hold (NaN or out-of-range numeric, infinity, years before 1 and after 9999, arrays
    with more dimensions or other bounds), whose rows are null in the first. `ValueError` for a text that is
    not a value of the type at all; the message has only its length, since no value may appear in a log.
    """
    if cells.type != pa.binary():
        cells = cells.cast(pa.binary())
    if cells.offset:  # if_else of pyarrow 17 is wrong about slices of binary arrays
        cells = cells.take(pa.array(np.arange(len(cells))))
    target = arrow_type(type_name)
    if type_name == "string":
        return cells.cast(target), None
    if type_name == "binary":
        return _decode_hex(cells), None
    if len(cells) == cells.null_count:
        return pa.nulls(len(cells), target), None
    texts = pa.Array.from_buffers(pa.string(), len(cells), cells.buffers(), offset=cells.offset)
    if type_name == "boolean":
        return _decode_boolean(texts), None
    if array_of(type_name):
        return _decode_lists(texts, target, type_name)
    return _decode_scalars(texts, target, type_name)


def _decode_scalars(texts: pa.Array, target: pa.DataType, type_name: str) -> tuple[pa.Array, pa.Array | None]:
    try:
        return texts.cast(target), None
    except pa.ArrowInvalid:
        misfit = _misfits(texts, type_name)
    raw = None
    if misfit is not None and pc.any(misfit).as_py():
        raw = pc.if_else(misfit, texts, None)
        texts = pc.if_else(misfit, None, texts)
    try:
        return texts.cast(target), raw
    except pa.ArrowInvalid:
        refused = of_length(_first_refused(texts, target))
        raise ValueError(f"{refused} is not a value of {type_name}") from None


def _misfits(texts: pa.Array, type_name: str) -> pa.Array | None:
    """Mark the valid values of the source's type that the landing type cannot hold."""
    if type_name in ("date", "timestamp", "timestamp_ntz"):
        return pc.match_substring_regex(texts, _MISFIT_TIME)
    if size := decimal_of(type_name):
        precision, scale = size
        fits = rf"^-?0*\d{{0,{precision - scale}}}(\.\d{{0,{scale}}}0*)?$"
        too_wide = pc.and_not(
            pc.match_substring_regex(texts, _NUMERIC), pc.match_substring_regex(texts, fits)
        )
        return pc.or_(pc.match_substring_regex(texts, _SPECIAL_NUMERIC), too_wide)
    return None


def _first_refused(texts: pa.Array, target: pa.DataType) -> str:
    """Find the first value that does not cast, by bisection."""
    while len(texts) > 1:
        half = len(texts) // 2
        try:
            texts.slice(0, half).cast(target)
            texts = texts.slice(half)
        except pa.ArrowInvalid:
            texts = texts.slice(0, half)
    return str(texts[0].as_py())


def _decode_lists(texts: pa.Array, target: pa.DataType, type_name: str) -> tuple[pa.Array, pa.Array | None]:
    try:
        return decode_array(texts, target)
    except pa.ArrowInvalid:
        raise ValueError(f"an element is not a value of {type_name}") from None


def _decode_boolean(texts: pa.Array) -> pa.Array:
    true = pc.equal(texts, "t")
    known = pc.or_(true, pc.equal(texts, "f"))
    if not pc.all(known, min_count=0).as_py():
        raise ValueError(f"{of_length(texts.filter(pc.invert(known))[0].as_py())} is not a boolean")
    return true


_NOT_HEX = 256


def _hex_pairs() -> npt.NDArray[np.uint16]:
    """Map each pair of hex digits, read as a little-endian number, to its byte; others to `_NOT_HEX`."""
    nibbles = np.full(256, _NOT_HEX, np.uint16)
    for digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
        nibbles[list(digits)] = np.arange(16)
    high, low = nibbles[np.arange(65536) & 0xFF], nibbles[np.arange(65536) >> 8]
    pairs = np.where((high < 16) & (low < 16), high * 16 + low, _NOT_HEX)
    return pairs.astype(np.uint16)


_PAIRS = _hex_pairs()
_PREFIX = int.from_bytes(b"\\x", "little")


_LARGE_BYTES = 64 << 10
"""Values this large on average are decoded one by one, with no copy but the result."""


def _decode_large_hex(text: memoryview, text_offsets: npt.NDArray[np.int32], valid: Mask) -> pa.Array:
    values: list[bytes] = []
    for begin, end, is_value in zip(text_offsets[:-1], text_offsets[1:], valid, strict=True):
        if is_value and bytes(text[begin : begin + 2]) != b"\\x":
            raise ValueError("a bytea value is not in hex format, bytea_output must be hex")
        try:
            values.append(binascii.unhexlify(text[begin + 2 : end]) if is_value else b"")
        except binascii.Error as error:
            raise ValueError("a bytea value holds a character that is not a hex digit") from error
    offsets = np.concatenate(([0], np.cumsum([len(v) for v in values]))).astype(np.int32)
    joined = values[0] if len(values) == 1 else b"".join(values)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    return with_nulls(pa.Array.from_buffers(pa.binary(), len(values), buffers), valid)


def _decode_hex(cells: pa.Array) -> pa.Array:
    """Decode bytea in hex format: look up all pairs of digits at once, then drop the prefixes."""
    if len(cells) == cells.null_count:
        return pa.nulls(len(cells), pa.binary())
    valid = cells.is_valid().to_numpy(zero_copy_only=False)
    text_offsets = offsets_of(cells)
    first, last = int(text_offsets[0]), int(text_offsets[-1])
    text = np.frombuffer(cells.buffers()[2], np.uint8)[first:last]
    text_offsets = text_offsets - first
    if len(text) >= _LARGE_BYTES * len(cells):
        return _decode_large_hex(memoryview(text.data), text_offsets, valid)
    if (text_offsets & 1).any():
        raise ValueError("a bytea value is not in hex format, bytea_output must be hex")
    digits = text.view("<u2")
    prefixes = text_offsets[:-1][valid] // 2
    if (np.diff(text_offsets)[valid] < 2).any() or (digits[prefixes] != _PREFIX).any():
        raise ValueError("a bytea value is not in hex format, bytea_output must be hex")
    kept = np.ones(len(digits), np.bool_)
    kept[prefixes] = False
    values = _PAIRS[digits[kept]]
    if len(values) and values.max() == _NOT_HEX:
        raise ValueError("a bytea value holds a character that is not a hex digit")
    offsets = text_offsets // 2
    offsets[1:] -= np.cumsum(valid, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(values.astype(np.uint8))]
    return with_nulls(pa.Array.from_buffers(pa.binary(), len(cells), buffers), valid)
