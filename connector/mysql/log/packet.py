"""The layout of a packet: a status byte, then one event of the binary log. Names for its byte offsets. Pure.

::

    offset  bytes  field
    0       1      status: 0 for an event
    1       4      time, in seconds since 1970
    5       1      type
    6       4      id of the server on which the event originated
    10      4      size of the event, from its header to its checksum
    14      4      end: where the event ends in its file, modulo 2^32; 0 if it is in no file
    18      2      flags
    20             body; a TABLE_MAP and a rows event begin with the table's id (6 bytes)
    ...     0, 4   checksum

Follows "Binlog Event" in MySQL's source documentation (``page_protocol_replication_binlog_event``), and
2-Binlog Event Header and 3-Binlog Network Stream in MariaDB's "Replication Protocol". An event within a
compressed transaction has neither the status byte nor the checksum.
"""

from __future__ import annotations

import struct

BASE = 1
"""Bytes of a packet before the event: its status."""

HEADER = 19
"""Bytes of an event's header."""

FILE_START = 4
"""Offset of a file's first event; a magic number precedes it."""

TYPE, FLAGS, BODY = 5, 18, BASE + HEADER
TABLE_ID = slice(BODY, BODY + 6)
ROWS_FLAGS = TABLE_ID.stop
"""In a rows event, after the table's id: the first of two bytes."""

TYPE_IN_EVENT, SIZE_IN_EVENT = TYPE - BASE, 9
"""The same where there is no status byte."""

END, _SIZE = 14, BASE + SIZE_IN_EVENT

uint32_at = struct.Struct("<I").unpack_from
"""Unpack a 32-bit integer, such as that at `END`, where a call of `end_of` is too slow."""

_header = struct.Struct("<IBIIIH").unpack_from


def header_of(packet: bytes) -> tuple[int, int, int, int, int, int]:
    """Return time, type, server id, size, end and flags."""
    return _header(packet, BASE)


def end_of(packet: bytes | bytearray) -> int:
    """Return where the event ends in its file, modulo 2^32."""
    return int(uint32_at(packet, END)[0])


def size_of(packet: bytes) -> int:
    """Return the size of the event, which may span several packets: this is the first."""
    return int(uint32_at(packet, _SIZE)[0])
