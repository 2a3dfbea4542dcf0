"""Decompresses what MariaDB compresses: rows events (``log_bin_compress``) and values (COMPRESSED). Pure.

The log reader handles MySQL's compressed transactions (TRANSACTION_PAYLOAD), which hold whole events.
"""

from __future__ import annotations

import zlib

from pymysqlreplication.constants import BINLOG

HEADER = 19
"""Bytes of every event's header."""

TYPE_IN_EVENT = 4

TABLE_ID_BYTES = 6
ROWS_HEADER = HEADER + TABLE_ID_BYTES + 2
"""Bytes of a rows event before what its version adds, or its column count: header, table id and flags."""

PLAIN = {
    166: BINLOG.WRITE_ROWS_EVENT_V1,
    167: BINLOG.UPDATE_ROWS_EVENT_V1,
    168: BINLOG.DELETE_ROWS_EVENT_V1,
    169: BINLOG.WRITE_ROWS_EVENT_V2,
    170: BINLOG.UPDATE_ROWS_EVENT_V2,
    171: BINLOG.DELETE_ROWS_EVENT_V2,
}
"""MariaDB's compressed rows events, and the plain event for each."""

_WITH_EXTRA, _UPDATES = (169, 170, 171), (167, 170)


def uncompress_event(event: bytes) -> bytes:
    """Return the plain event of a compressed rows event (header and body, no checksum); others unchanged.

    Only what follows the column bitmaps is compressed (MariaDB's ``row_log_event_uncompress``). The size in
    the header remains the compressed one. `ValueError` if the event is not compressed as announced.
    """
    kind = event[TYPE_IN_EVENT]
    if kind not in PLAIN:
        return event
    offset = ROWS_HEADER
    if kind in _WITH_EXTRA:
        offset += int.from_bytes(event[offset : offset + 2], "little")
    columns, offset = _packed(event, offset)
    offset += (columns + 7) // 8 * (2 if kind in _UPDATES else 1)
    head = event[:TYPE_IN_EVENT] + bytes([PLAIN[kind]]) + event[TYPE_IN_EVENT + 1 : offset]
    return head + _uncompress_rows(event[offset:])


def _packed(data: bytes, offset: int) -> tuple[int, int]:
    if data[offset] < 251:
        return data[offset], offset + 1
    return int.from_bytes(data[offset + 1 : offset + 3], "little"), offset + 3


def _uncompress_rows(data: bytes) -> bytes:
    """Read a byte of algorithm and width, a plain length of that width (most significant first), and zlib."""
    if not data or data[0] & 0x70:
        raise ValueError("a rows event has an unknown compression")
    width = data[0] & 0x07
    plain = zlib.decompress(data[1 + width :])
    if len(plain) != int.from_bytes(data[1 : 1 + width], "big"):
        raise ValueError("a compressed rows event differs from its announced length")
    return plain


def uncompress_value(value: bytes) -> bytes:
    """Return the plain bytes of a value of a COMPRESSED column (MariaDB's ``Field_longstr::uncompress``)."""
    if not value:
        return value
    method = value[0] >> 4
    if method == 0:
        return value[1:]
    if method != 8:
        raise ValueError(f"a column has unknown compression method {method}")
    bits = -zlib.MAX_WBITS if value[0] & 8 else zlib.MAX_WBITS
    return zlib.decompress(value[1 + (value[0] & 7) :], bits)
