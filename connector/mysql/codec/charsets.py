"""MySQL's character sets: finds one by collation, and decodes its bytes to UTF-8, many cells at once. Pure.

Invariant: a text decodes to what the server returns for it after ``SET NAMES utf8mb4``, and bytes that
Python's codec does not define are refused (`ValueError`), never replaced. Verified against MariaDB 10.11: all
bytes of the single-byte sets, all two-byte characters of the others (seven of big5 are undefined there and
known here); against MySQL 8.0 and 9.7: all characters of gb18030; against both: all of big5, cp932, sjis and
ujis.

In a few sets, some characters have several encodings, so two different values have the same text. The server
itself writes only one of them for a text: `has_unwritten` finds the others.

`decoder_known` is false for sets without an exact Python codec. `lower` is for names.
"""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connector.codec.cells import offsets_of
from connector.mysql.codec.column_cells import texts_of, values_of, with_offsets

BINARY = "binary"
UTF8 = frozenset(("utf8mb4", "utf8mb3", "utf8"))

_MAX_BYTES = {"utf8mb4": 4, "utf16": 4, "utf16le": 4, "utf32": 4, "gb18030": 4, "utf8mb3": 3, "ujis": 3}
_MAX_BYTES |= {"eucjpms": 3, "ucs2": 2, "big5": 2, "cp932": 2, "euckr": 2, "gb2312": 2, "gbk": 2, "sjis": 2}

# Collations below 1024 (MySQL's, and MariaDB's older ones); ranges are inclusive.
_COLLATIONS = {
    "big5": "1 84",
    "latin2": "2 9 21 27 77",
    "dec8": "3 69",
    "cp850": "4 80",
    "latin1": "5 8 15 31 47-49 94",
    "hp8": "6 72",
    "koi8r": "7 74",
    "swe7": "10 82",
    "ascii": "11 65",
    "ujis": "12 91",
    "sjis": "13 88",
    "cp1251": "14 23 50-52",
    "hebrew": "16 71",
    "tis620": "18 89",
    "euckr": "19 85",
    "latin7": "20 41 42 79",
    "koi8u": "22 75",
    "gb2312": "24 86",
    "greek": "25 70",
    "cp1250": "26 34 44 66 99",
    "gbk": "28 87",
    "cp1257": "29 58 59",
    "latin5": "30 78",
    "armscii8": "32 64",
    "cp866": "36 68",
    "keybcs2": "37 73",
    "macce": "38 43",
    "macroman": "39 53",
    "cp852": "40 81",
    "cp1256": "57 67",
    BINARY: "63",
    "geostd8": "92 93",
    "cp932": "95 96",
    "eucjpms": "97 98",
    "gb18030": "248-250",
    "utf8mb3": "33 76 83 192-215 223 576-578",
    "utf8mb4": "45 46 224-247 255-323 608-610",
    "ucs2": "35 90 128-151 159 640-642",
    "utf16": "54 55 101-124 672-674",
    "utf16le": "56 62",
    "utf32": "60 61 160-183 736-738",
}
_NO_PAD = 1024
"""The number of a MariaDB NO PAD collation is that of its PAD SPACE twin plus this."""

_UCA1400 = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")
"""MariaDB's UCA 14.0.0 collations: 256 numbers for each of these, from 2048 on."""


@cache
def _by_collation() -> dict[int, str]:
    found: dict[int, str] = {}
    for charset, ranges in _COLLATIONS.items():
        for numbers in ranges.split():
            low, _, high = numbers.partition("-")
            found |= dict.fromkeys(range(int(low), int(high or low) + 1), charset)
    return found


def charset_of(collation: int) -> str | None:
    """Return MySQL's name of a collation's character set; None for an unknown collation."""
    if 2 * _NO_PAD <= collation < 2 * _NO_PAD + 256 * len(_UCA1400):
        return _UCA1400[collation // 256 - 8]
    return _by_collation().get(collation % _NO_PAD if collation < 2 * _NO_PAD else -1)


def max_bytes(charset: str) -> int:
    """Return the length of the longest character in bytes."""
    return _MAX_BYTES.get(charset, 1)


# Python's codec for each set, and where MySQL differs from it: bytes to characters ('' if undefined).
_SINGLE: dict[str, tuple[str, dict[int, str]]] = {
    "ascii": ("ascii", {}),
    "cp1250": ("cp1250", {}),
    "cp1251": ("cp1251", {}),
    "cp1256": ("cp1256", dict.fromkeys((0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF), "")),
    "cp1257": ("cp1257", {}),
    "cp850": ("cp850", {}),
    "cp852": ("cp852", {}),
    "cp866": ("cp866", {0xFC: "ⁿ", 0xFD: "²"}),
    "greek": ("iso8859_7", {0xA1: "ʽ", 0xA2: "ʼ", 0xA4: "", 0xA5: "", 0xAA: ""}),
    "hebrew": ("iso8859_8", {0xAF: "‾"}),
    "koi8r": ("koi8_r", {}),
    "koi8u": ("koi8_u", {0x95: "•"}),
    "latin1": ("cp1252", {byte: chr(byte) for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}),
    "latin2": ("iso8859_2", {}),
    "latin5": ("iso8859_9", {}),
    "latin7": ("iso8859_13", {}),
    "macce": ("mac_latin2", {}),
    "macroman": ("mac_roman", {}),
    "tis620": ("tis_620", {}),
}
_GB18030_2005 = {b"\xa8\xbc": "\u1e3f", b"\x81\x35\xf4\x37": "\ue7c7"}
"""What MySQL has of this edition; Python's codec may have it or the one before, which exchanges the two."""

_WIDE: dict[str, tuple[str, dict[str, str]]] = {
    "big5": ("big5", {}),
    "cp932": ("cp932", {}),
    "euckr": ("cp949", {}),
    "gb18030": ("gb18030", {text.decode("gb18030"): to for text, to in _GB18030_2005.items()}),
    "gb2312": ("gb2312", {}),
    "gbk": ("gbk", {}),
    "sjis": ("shift_jis", {"＼": "\\"}),
    "ucs2": ("utf_16_be", {}),
    "ujis": ("euc_jp", {"＼": "\\"}),
    "utf16": ("utf_16_be", {}),
    "utf16le": ("utf_16_le", {}),
    "utf32": ("utf_32_be", {}),
}


def decoder_known(charset: str) -> bool:
    """Return whether texts of this character set can be decoded exactly."""
    return charset in UTF8 or charset in _SINGLE or charset in _WIDE


def decode_bytes(data: bytes, charset: str) -> str:
    """Decode one text."""
    return str(decode_texts(pa.array([data], pa.binary()), charset)[0].as_py())


def decode_texts(cells: pa.Array, charset: str) -> pa.Array:
    """Decode binary cells to strings; `ValueError` for bytes that the character set does not define."""
    if charset in UTF8:
        return cells.cast(pa.string())
    if charset in _SINGLE:
        return _decode_single(cells, charset)
    if charset in _WIDE:
        decode = _wide_decoder(charset)
        if len(values_of(cells)) > _AT_ONCE_BYTES:
            return pa.concat_arrays([_decode_long(cell, charset) for cell in cells])
        return pa.array([None if cell is None else decode(cell) for cell in cells.to_pylist()], pa.string())
    raise ValueError(f"character set {charset} cannot be decoded")


def _wide_decoder(charset: str) -> Callable[[bytes], str]:
    codec, differences = _WIDE[charset]
    table = str.maketrans(differences)
    return lambda cell: cell.decode(codec).translate(table)


_NOT_WRITTEN: dict[str, tuple[bytes, ...]] = {
    "big5": (b"\xa1\x5a", b"\xa1\xc3", b"\xa1\xc5", b"\xa1\xfe", b"\xa2\x40", b"\xa2\xcc", b"\xa2\xce"),
    "cp932": (b"\xed", b"\xee"),
    "sjis": (b"\\",),
    "ujis": (),
}
"""The sets in which some characters have several encodings, and how those begin that no server writes for a
text. Of the others it writes the least.
"""


def is_ambiguous(charset: str | None) -> bool:
    """Return whether some characters of a set have several encodings."""
    return charset in _NOT_WRITTEN


def has_unwritten(cells: pa.Array, charset: str) -> bool:
    """Return whether a text has a character in an encoding that the server does not write for it.

    Without such a one, texts differ where their bytes differ, and the server finds them by their text.
    `cells`: of an ambiguous set, and decodable.
    """
    decode, written, codec = _wide_decoder(charset), _written(charset), _WIDE[charset][0]
    for cell in cells.to_pylist():
        text = "" if cell is None else decode(cell)
        if written.keys().isdisjoint(text):
            continue
        if b"".join(written[each] if each in written else each.encode(codec) for each in text) != cell:
            return True
    return False


@cache
def _written(charset: str) -> dict[str, bytes]:
    """Return what the server writes for each character of which it does not write some encoding, or b""."""
    decode, leads = _wide_decoder(charset), range(0x80, 0x100)
    candidates = [bytes([a]) for a in range(0x100)]
    candidates += [bytes([a, b]) for a in leads for b in range(0x40, 0x100)]
    candidates += [bytes([0x8F, a, b]) for a in leads for b in leads if charset == "ujis"]
    encodings: dict[str, list[bytes]] = {}
    for each in candidates:
        with contextlib.suppress(ValueError):
            if len(text := decode(each)) == 1:
                encodings.setdefault(text, []).append(each)
    found = {}
    for text, some in encodings.items():
        writable = [each for each in some if not each.startswith(_NOT_WRITTEN[charset])]
        if writable != some or len(some) > 1:
            found[text] = min(writable, default=b"")
    return found


_UNDEFINED = 0

_AT_ONCE_BYTES = 8 << 20
"""Cells with more bytes in total are decoded one by one, so memory depends on the longest text."""

_PIECE_BYTES = 1 << 20


def _decode_long(cell: pa.Scalar, charset: str) -> pa.Array:
    """Decode one text in pieces; null stays null."""
    if not cell.is_valid:
        return pa.nulls(1, pa.string())
    data, text = memoryview(cell.as_buffer()), bytearray()
    codec = _WIDE[charset][0] if charset in _WIDE else ""
    decoder = codecs.getincrementaldecoder(codec)() if codec else None
    differences = str.maketrans(_WIDE[charset][1]) if codec else {}
    for low in range(0, len(data), _PIECE_BYTES):
        piece = data[low : low + _PIECE_BYTES]
        if decoder is None:
            single = pa.array([piece], pa.binary())
            text += _decode_single(single, charset)[0].as_buffer()
        else:
            is_last = low + _PIECE_BYTES >= len(data)
            text += decoder.decode(piece, is_last).translate(differences).encode()
    offsets = pa.py_buffer(np.array([0, len(text)], np.int32))
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(text)])


@cache
def _single_table(charset: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the UTF-8 of each byte (3 at most) and its length, `_UNDEFINED` for undefined bytes."""
    codec, differences = _SINGLE[charset]
    utf8, lengths = np.zeros((256, 3), np.uint8), np.zeros(256, np.uint8)
    for byte in range(256):
        text = differences.get(byte, bytes([byte]).decode(codec, "ignore")).encode()
        utf8[byte, : len(text)] = list(text)
        lengths[byte] = len(text) or _UNDEFINED
    return utf8, lengths


def _decode_single(cells: pa.Array, charset: str) -> pa.Array:
    data = values_of(cells)
    if not len(data) or data.max() < 0x80:
        return texts_of(cells)
    if len(data) > _AT_ONCE_BYTES:
        if len(cells) == 1:
            return _decode_long(cells[0], charset)
        half = len(cells) // 2
        halves = (cells[:half], cells[half:])
        return pa.concat_arrays([_decode_single(some, charset) for some in halves])
    utf8, lengths = _single_table(charset)
    sizes = lengths[data]
    if sizes.min() == _UNDEFINED:
        byte = int(data[np.argmin(sizes)])
        raise ValueError(f"byte 0x{byte:02X} is not a character of {charset}")
    boundaries = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    longer = utf8[data][np.arange(3) < sizes[:, None]]
    offsets = offsets_of(cells)
    return texts_of(with_offsets(cells, boundaries[offsets - offsets[0]], longer))


def lower(name: str) -> str:
    """Return the name of a table or column in lower case, as the servers compare names (utf8mb3_general_ci).

    Character by character: a Σ at a word's end is σ, not ς as in Python, and İ is i without a further dot.
    Python also knows capital letters that the servers don't: these stay apart there.
    """
    return name.lower() if name.isascii() else "".join(character.lower()[0] for character in name)
