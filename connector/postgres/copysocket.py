"""Reads the rows of COPY ... TO STDOUT a socketful at a time, beside libpq.

libpq hands over one row at a call, which costs more than all else that is done with the row. So libpq only
sends the query and reads its end; in between the messages are taken from its socket, and the rows found in
them without a loop (PostgreSQL's manual, "Message Formats": the byte ``d``, a 32-bit length, the row).

Invariant: what libpq must see it finds in the socket, whole: all from CopyDone or an error on. So bytes are
looked at first (MSG_PEEK), and only those before such a message are taken. libpq meanwhile waits for the
query's answer, and passes over CopyDone when it comes.

An encrypted connection can't be read beside libpq: there it hands over row by row.
"""

from __future__ import annotations

import select
import socket
import time
from typing import NamedTuple, Protocol

import numpy as np
from psycopg2.extensions import connection as Connection

from connector.cells import Bytes
from connector.postgres.copytext import CopiedRows, Places
from connector.postgres.libpq import CopyError, CopyStream

BUFFER_BYTES = 2 << 20
"""How much is read at a time: enough for Arrow to be quick, little enough for the memory."""

WAIT_SECONDS = 60.0
"""A wait for rows wakes this often; the server may be silent for long while a predicate finds nothing."""

FEW_BYTES = 64 << 10
NAP_SECONDS = 0.0005
"""The server sends 8 kB at a time. Letting some gather saves most of the system calls."""

_HEADER = 5
_SHORTEST = 6
_NEWLINE, _ROW = b"\nd"
_PASSED_OVER = frozenset(b"HNSA")
"""The answer that rows will come; notices, changed settings, notifications: they may come at any time."""


class Copy(Protocol):
    """One COPY TO STDOUT in text format over one connection; one thread."""

    @property
    def done(self) -> bool:
        """Tell whether all rows were given."""

    def start(self, command: str) -> None:
        """Send the command."""

    def read(self) -> CopiedRows:
        """Wait for a buffer's fill of rows, or for the last ones; valid until the next call.

        `CopyError` when the server refused or broke off, or the connection was lost.
        """


def open_copy(connection: Connection) -> Copy:
    """Choose how to read a COPY over an idle connection, which must outlive the object's use."""
    stream = CopyStream(connection)
    return LibpqCopy(stream) if stream.encrypted else SocketCopy(stream)


class LibpqCopy:
    """Implements `Copy` by libpq's own calls."""

    def __init__(self, stream: CopyStream) -> None:
        self._stream = stream

    @property
    def done(self) -> bool:
        """Tell whether all rows were given."""
        return self._stream.done

    def start(self, command: str) -> None:
        """Send the command and wait until the server begins to copy."""
        self._stream.start(command)

    def read(self) -> CopiedRows:
        """Wait for a buffer's fill of rows, or for the last ones."""
        stream, rows, size = self._stream, list[bytes](), 0
        while not stream.done and size < BUFFER_BYTES:
            if not (some := stream.fetch_text()) and not stream.done:
                stream.wait(WAIT_SECONDS)
            rows += some
            size += sum(map(len, some))
            if not stream.done:
                stream.pull()
        return CopiedRows.of(rows)


class SocketCopy:
    """Implements `Copy` on the connection's socket, which must not be encrypted."""

    def __init__(self, stream: CopyStream) -> None:
        self._stream = stream
        self._buffer = bytearray(BUFFER_BYTES)
        self._walked = self._filled = 0
        self.done = False

    def start(self, command: str) -> None:
        """Send the command; `read` tells whether the server refuses it."""
        self._stream.send_query(command)

    def read(self) -> CopiedRows:
        """Wait for a buffer's fill of rows, or for the last ones."""
        self._make_room()
        walks: list[Walk] = []
        with socket.socket(fileno=self._stream.socket) as sock:
            try:
                while not self.done and self._filled < len(self._buffer):
                    self._wait(sock)
                    walks.append(self._take(sock))
            except OSError as error:
                raise CopyError(f"the connection was lost: {error.strerror or error}", None) from error
            finally:
                sock.detach()  # it stays libpq's
        if self.done:
            self._stream.end()
        return self._rows(walks)

    def _make_room(self) -> None:
        """Move what is left of a row that is not whole to the front; a row may outgrow the buffer."""
        rest = self._buffer[self._walked : self._filled]
        if len(rest) > len(self._buffer) // 2:
            self._buffer = bytearray(2 * len(self._buffer))
        self._buffer[: len(rest)] = rest
        self._walked, self._filled = 0, len(rest)

    def _wait(self, sock: socket.socket) -> None:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        while not poll.poll(WAIT_SECONDS * 1000):
            pass

    def _take(self, sock: socket.socket) -> Walk:
        """Take what has come out of the socket, but for what libpq must see."""
        with memoryview(self._buffer) as view:
            filled = self._filled
            end = filled + sock.recv_into(view[filled:], 0, socket.MSG_PEEK)
            walk = walk_messages(np.frombuffer(view[:end], np.uint8), self._walked)
            self.done = walk.foreign or end == filled  # closed: libpq finds that out
            taken = walk.upto if walk.foreign else end
            while filled < taken:
                filled += sock.recv_into(view[filled:taken])
        self._walked, self._filled = walk.upto, taken
        if end - filled < FEW_BYTES and not self.done:
            time.sleep(NAP_SECONDS)
        return walk

    def _rows(self, walks: list[Walk]) -> CopiedRows:
        """Give the rows, the bytes between them made zero: a length may look like a newline."""
        data = np.frombuffer(self._buffer, np.uint8)[: self._walked]
        rows = np.concatenate([walk.rows for walk in walks]) if walks else np.zeros(0, np.int64)
        for place in range(_HEADER):
            data[rows + place] = 0
        for begin, end in (span for walk in walks for span in walk.passed_over):
            data[begin:end] = 0
        return CopiedRows(data, rows + _HEADER)


class Walk(NamedTuple):
    """Whole messages found in a buffer: where those with rows begin, others to pass over, and their end.

    `foreign`: at `upto` begins a message that is libpq's.
    """

    rows: Places
    passed_over: list[tuple[int, int]]
    upto: int
    foreign: bool


def walk_messages(data: Bytes, begin: int) -> Walk:
    """Find the messages from `begin` on. Pure."""
    return _stride(data, begin) or _step(data, begin)


def _stride(data: Bytes, begin: int) -> Walk | None:
    """Find rows all at once: each begins behind the newline of the one before. None where that is not all.

    A length that ends in the byte of a newline, before a row that begins with a ``d``, looks the same, a few
    bytes behind a true beginning. What is found must chain, each message ending where the next begins.
    """
    area = data[begin:]
    newlines = np.flatnonzero(area[:-_HEADER] == _NEWLINE)
    rows = np.concatenate(([0], newlines[area[newlines + 1] == _ROW] + 1))
    if len(area) < _HEADER or area[0] != _ROW:
        return None
    rows = rows[np.diff(rows, prepend=-_SHORTEST) >= _SHORTEST]
    ends = rows + 1 + _lengths(area, rows)
    if (ends[:-1] != rows[1:]).any():
        return None
    if ends[-1] > len(area):
        rows, upto = rows[:-1], int(rows[-1])
    else:
        upto = int(ends[-1])
    if upto < len(area) and area[upto] != _ROW:
        return None
    return Walk(rows + begin, [], upto + begin, False)


def _lengths(area: Bytes, messages: Places) -> Places:
    lengths = area[messages + 1].astype(np.int64)
    for place in (2, 3, 4):
        lengths = lengths << 8 | area[messages + place]
    return lengths


def _step(data: Bytes, begin: int) -> Walk:
    """Find messages one by one."""
    text = data.tobytes()
    rows: list[int] = []
    passed_over: list[tuple[int, int]] = []
    at, foreign = begin, False
    while at < len(text):
        kind = text[at]
        foreign = kind != _ROW and kind not in _PASSED_OVER
        end = at + 1 + int.from_bytes(text[at + 1 : at + _HEADER], "big")
        if foreign or at + _HEADER > len(text) or end > len(text):
            break
        if kind == _ROW:
            rows.append(at)
        else:
            passed_over.append((at, end))
        at = end
    return Walk(np.array(rows, np.int64), passed_over, at, foreign)
