"""Unpacks MySQL's compressed transactions (TRANSACTION_PAYLOAD): from an event's pieces to the events in it.

One event is up to a gigabyte, and its contents many times that. So its pieces are written to a temporary
file, and its events are streamed one by one. Small ones, by far the most common, stay in memory. An event is
parsed once it is whole, since its checksum, which the stream verifies, comes last.

Format: ``mysql/binlog/event/control_events.h``, Transaction_payload_event.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from functools import cached_property
from typing import IO, Any, NamedTuple

import pyarrow as pa

from connector.errors import BugError
from connector.mysql.log.packet import BASE, BODY, HEADER, SIZE_IN_EVENT, end_of, size_of
from connector.mysql.server import MAX_OFFSET

AT_ONCE_BYTES = 1 << 20
"""A payload of at most this size, uncompressed, is decompressed at once."""

_BLOCK_BYTES = 1 << 20
_SIZE, _ALGORITHM, _PLAIN_SIZE = 1, 2, 3
_ZSTD, _NONE = 0, 255
_HEAD_BYTES = BODY + 64
"""More than the fields before the payload take."""

_uint32 = struct.Struct("<I").unpack_from


class _Fields(NamedTuple):
    """What precedes the payload in its event; `start`: its offset in the packet."""

    algorithm: int
    size: int
    plain_size: int
    start: int


class Payload:
    """The event of a compressed transaction, starting with its first packet; `begin`: where in the log file.

    `end`: where it ends. `whole`: all of its pieces have arrived, so its events may be read.
    """

    def __init__(self, packet: bytes, begin: int) -> None:
        self.end = begin + size_of(packet)
        self._missing = size_of(packet) - (len(packet) - BASE)
        self._packet = packet
        self._file: IO[bytes] | None = None
        self._events: Iterator[bytes] | None = None
        if self._missing:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
            self._file.write(packet)
            self._packet = packet[:_HEAD_BYTES]

    @property
    def head(self) -> bytes:
        """Return the begin of its first packet."""
        return self._packet[:_HEAD_BYTES]

    @property
    def ends_as_announced(self) -> bool:
        """Return whether it ends where its header says."""
        return end_of(self._packet) == self.end & MAX_OFFSET

    @cached_property
    def _fields(self) -> _Fields:
        return _fields_of(self._packet)

    @property
    def whole(self) -> bool:
        """Return whether no piece is missing."""
        return self._missing == 0

    @property
    def is_small(self) -> bool:
        """Return whether its events are small enough to be read at once."""
        return self.whole and self._fields.plain_size <= AT_ONCE_BYTES

    def add(self, piece: bytes) -> None:
        """Add the next piece of the event."""
        if self._file is None or len(piece) > self._missing:
            raise BugError("a compressed transaction is longer than the log announces")
        self._file.write(piece)
        self._missing -= len(piece)

    def events(self) -> Iterator[bytes]:
        """Return the events within, complete, without checksums; resumes where the last call stopped."""
        if self._events is None:
            self._events = _split_events(self._blocks(), self._fields.plain_size)
        return self._events

    def _blocks(self) -> Iterator[bytes]:
        """Yield the uncompressed bytes in blocks; all at once only if `is_small`."""
        algorithm, size, plain_size, start = self._fields
        if self._file is not None:
            self._file.seek(start)
            raw: Any = pa.PythonFile(_Limited(self._file, size), mode="r")
        else:
            raw = pa.BufferReader(memoryview(self._packet)[start : start + size])
        if self.is_small and algorithm == _ZSTD:
            yield pa.decompress(raw.read(), decompressed_size=plain_size, codec="zstd", asbytes=True)
            return
        stream = raw if algorithm == _NONE else pa.CompressedInputStream(raw, "zstd")
        while block := stream.read(_BLOCK_BYTES):
            yield block
        if self._file is not None:
            self._file.close()


class _Limited:
    """The first bytes of a file; the event's checksum follows them."""

    closed = False

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._left))
        self._left -= len(data)
        return data

    def close(self) -> None:
        """Leave the file to its owner."""


def _fields_of(packet: bytes) -> _Fields:
    fields: dict[int, int] = {}
    offset = BODY
    while True:
        field, offset = _packed(packet, offset)
        if field == 0:
            break
        length, offset = _packed(packet, offset)
        fields[field], _ = _packed(packet, offset)
        offset += length
    algorithm = fields.get(_ALGORITHM, _ZSTD)
    if algorithm not in (_ZSTD, _NONE):
        raise BugError(f"a transaction in the log has unknown compression algorithm {algorithm}")
    size = fields[_SIZE]
    return _Fields(algorithm, size, size if algorithm == _NONE else fields[_PLAIN_SIZE], offset)


def _packed(data: bytes, offset: int) -> tuple[int, int]:
    first = data[offset]
    if first < 251:
        return first, offset + 1
    width = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[offset + 1 : offset + 1 + width], "little"), offset + 1 + width


def _split_events(blocks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Split blocks, of `size` bytes in total, into events."""
    rest, came, wanted = b"", 0, HEADER
    waiting: list[bytes] = []
    for block in blocks:
        came += len(block)
        waiting.append(block)
        if len(rest) + sum(map(len, waiting)) < wanted:
            continue
        data = b"".join([rest, *waiting])
        waiting.clear()
        offset = 0
        while offset + HEADER <= len(data):
            wanted = _uint32(data, offset + SIZE_IN_EVENT)[0]
            if wanted < HEADER:
                raise BugError(f"an event within a compressed transaction has {wanted} bytes")
            if offset + wanted > len(data):
                break
            yield data[offset : offset + wanted]
            offset += wanted
            wanted = HEADER
        rest = data[offset:]
    if rest or waiting or came != size:
        raise BugError(f"a compressed transaction has {came} bytes instead of the announced {size}")
