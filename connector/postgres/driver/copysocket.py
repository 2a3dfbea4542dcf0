"""Reads the rows of COPY ... TO STDOUT from the connection's socket, many at a time, bypassing libpq.

libpq returns one row per call, which costs more than everything else done with the row. So libpq only sends
the query and reads its end; in between, messages are read from its socket, and their rows are found without a
loop (PostgreSQL's manual, "Message Formats": the byte ``d``, a 32-bit length, the row).

Invariants:

- libpq finds in the socket, complete, everything that it must see: all from CopyDone or an error on. So bytes
  are peeked first (MSG_PEEK), and only those before such a message are consumed. Meanwhile libpq waits for
  the query's response, and skips CopyDone when it comes.
- The buffer never grows. A row that does not fit is read by itself, into memory of exactly its size: its
  length is known from its first bytes, so it needs no peeking, and each byte is touched once.

An encrypted connection can't be read this way: there libpq returns row by row.
"""

from __future__ import annotations

import select
import socket
import time
from typing import NamedTuple

import numpy as np

from connector.codec.cells import Bytes, Offsets, unaligned
from connector.postgres.codec.copytext import LARGE_ROW_BYTES, CopiedRows
from connector.postgres.driver.interface import CopyError
from connector.postgres.driver.libpq import CopyStream
from connector.postgres.driver.rowcopy import BUFFER_BYTES, WAIT_SECONDS

FEW_BYTES = 64 << 10
NAP_SECONDS = 0.0005
"""The server sends 8 kB at a time. Letting data accumulate saves most of the system calls."""

_HEADER = 5
_SHORTEST = 6
_NEWLINE, _ROW = b"\nd"
PASSED_OVER = frozenset(b"HNSA")
"""The response that rows will follow; notices, changed settings and notifications, which may come at any
time.
"""


class SocketCopy:
    """Implements `Rows` on the connection's socket, which must not be encrypted."""

    def __init__(self, stream: CopyStream) -> None:
        self._stream = stream
        self._buffer = bytearray(BUFFER_BYTES)
        self._walked = self._filled = 0
        self.done = False

    def start(self, command: str) -> None:
        """Send the command; `read` raises if the server refuses it."""
        self._stream.send_query(command)

    def read(self) -> CopiedRows:
        """Wait for a bufferful of rows, or for the last ones."""
        self._make_room()
        walks: list[Walk] = []
        with socket.socket(fileno=self._stream.socket) as sock:
            try:
                if size := self._oversized():
                    return self._read_alone(sock, size)
                while not self.done and self._filled < len(self._buffer) and not self._oversized():
                    self._wait(sock)
                    walks.append(self._take(sock))
            except OSError as error:
                raise CopyError(f"the connection was lost: {error.strerror or error}", None) from error
            finally:
                sock.detach()  # libpq still owns it
        if self.done:
            self._stream.end()
        return self._rows(walks)

    def close(self) -> None:
        """Close the connection; never raises."""
        self._stream.close()

    def _make_room(self) -> None:
        """Move an incomplete row to the front of the buffer."""
        rest = self._buffer[self._walked : self._filled]
        self._buffer[: len(rest)] = rest
        self._walked, self._filled = 0, len(rest)

    def _oversized(self) -> int:
        """Return the size of the incomplete message if the buffer can't hold it; otherwise 0."""
        head = self._buffer[self._walked : min(self._filled, self._walked + _HEADER)]
        if len(head) < _HEADER or head[0] != _ROW:
            return 0
        size = 1 + int.from_bytes(head[1:], "big")
        return size if size > len(self._buffer) else 0

    def _read_alone(self, sock: socket.socket, size: int) -> CopiedRows:
        """Read the rest of an oversized row, whose beginning is at the buffer's front."""
        row = bytearray(size - _HEADER)
        held = self._filled - _HEADER
        row[:held] = self._buffer[_HEADER : self._filled]
        self._walked = self._filled = 0
        with memoryview(row) as view:
            while held < len(row):
                self._wait(sock)
                got = sock.recv_into(view[held:])
                if not got:
                    raise CopyError("the connection was lost in the middle of a row", None)
                held += got
        return CopiedRows(np.frombuffer(row, np.uint8), np.zeros(1, np.int64))

    def _wait(self, sock: socket.socket) -> None:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        with self._stream.awaited:
            while not poll.poll(WAIT_SECONDS * 1000):
                pass

    def _take(self, sock: socket.socket) -> Walk:
        """Consume what has arrived on the socket, except what libpq must see."""
        with memoryview(self._buffer) as view:
            filled = self._filled
            end = filled + sock.recv_into(view[filled:], 0, socket.MSG_PEEK)
            walk = walk_messages(np.frombuffer(view[:end], np.uint8), self._walked)
            self.done = walk.foreign or end == filled  # closed: libpq detects that
            taken = walk.upto if walk.foreign else end
            while filled < taken:
                filled += sock.recv_into(view[filled:taken])
        self._walked, self._filled = walk.upto, taken
        if end - filled < FEW_BYTES and not self.done:
            time.sleep(NAP_SECONDS)
        return walk

    def _rows(self, walks: list[Walk]) -> CopiedRows:
        """Return the rows, with the bytes between them zeroed: a length may look like a newline."""
        data = np.frombuffer(self._buffer, np.uint8)[: self._walked]
        rows = np.concatenate([walk.rows for walk in walks]) if walks else np.zeros(0, np.int64)
        data[rows] = 0
        unaligned(data, ">u4")[rows + 1] = 0
        for begin, end in (span for walk in walks for span in walk.passed_over):
            data[begin:end] = 0
        if len(rows) == 1 and len(data) >= LARGE_ROW_BYTES:
            data = data.copy()  # arrays of its cells may keep this memory, and the buffer is used again
        return CopiedRows(data, rows + _HEADER)


class Walk(NamedTuple):
    """Complete messages found in a buffer: the offsets of rows, the messages to skip, and the end.

    `foreign`: the message at `upto` is for libpq.
    """

    rows: Offsets
    passed_over: list[tuple[int, int]]
    upto: int
    foreign: bool


def walk_messages(data: Bytes, begin: int) -> Walk:
    """Find the messages from `begin` on. Pure.

    Most are rows, found all at once. What precedes and follows them, as in the first and the last bytes of
    every COPY, is found one by one.
    """
    before = _step(data, begin, upto_row=True)
    if before.foreign:
        return before
    rows, upto = _stride(data, before.upto)
    after = _step(data, upto)
    found = np.concatenate([rows, after.rows])
    return Walk(found, before.passed_over + after.passed_over, after.upto, after.foreign)


def _stride(data: Bytes, begin: int) -> tuple[Offsets, int]:
    """Find rows at once, each of which begins after the previous one's newline; return their end, too.

    A length that ends in a newline byte, before a row that begins with ``d``, looks the same, a few bytes
    after a true beginning. So only the messages count that chain: each ends where the next begins.
    """
    area = data[begin:]
    if len(area) < _HEADER or area[0] != _ROW:
        return np.zeros(0, np.int64), begin
    newlines = np.flatnonzero(area[:-_HEADER] == _NEWLINE)
    rows = np.concatenate(([0], newlines[area[newlines + 1] == _ROW] + 1))
    rows = rows[np.diff(rows, prepend=-_SHORTEST) >= _SHORTEST]
    ends = rows + 1 + _lengths(area, rows)
    breaks = np.flatnonzero(ends[:-1] != rows[1:])
    count = int(breaks[0]) + 1 if len(breaks) else len(rows)
    if ends[count - 1] > len(area):
        count -= 1
    return rows[:count] + begin, begin + (int(ends[count - 1]) if count else 0)


def _lengths(area: Bytes, messages: Offsets) -> Offsets:
    return unaligned(area, ">u4")[messages + 1].astype(np.int64)


def _step(data: Bytes, begin: int, *, upto_row: bool = False) -> Walk:
    """Find messages one by one; `upto_row`: only those before the next row."""
    text = memoryview(data.data)
    rows: list[int] = []
    passed_over: list[tuple[int, int]] = []
    at, foreign = begin, False
    while at < len(text):
        kind = text[at]
        foreign = kind != _ROW and kind not in PASSED_OVER
        end = at + 1 + int.from_bytes(text[at + 1 : at + _HEADER], "big")
        if foreign or (upto_row and kind == _ROW) or at + _HEADER > len(text) or end > len(text):
            break
        if kind == _ROW:
            rows.append(at)
        else:
            passed_over.append((at, end))
        at = end
    return Walk(np.array(rows, np.int64), passed_over, at, foreign)
