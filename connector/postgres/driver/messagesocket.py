"""Reads the messages of a COPY or of replication from the connection's socket, bypassing libpq.

libpq doubles its buffer until it holds a complete message, then copies it: up to four times a large value
before anything is done with it, and several calls for each small message. Here the rest of an incomplete
message is read into memory of exactly its size. libpq only sends the command and reads the end (PostgreSQL's
manual, "Message Formats": a byte for the kind, a 32-bit length, the content).

Invariants:

- libpq finds in the socket, complete, everything that it must see: all from the first message on that is
  neither data nor skipped. So bytes are peeked first (MSG_PEEK), and only those before such a message are
  consumed. The rest of an incomplete message is consumed without peeking, since its length is known.
- Messages sent this way arrive complete and in order: what the socket doesn't accept at once precedes the
  next one.

An encrypted connection can't be read this way.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import NamedTuple

from connector.postgres.driver.copysocket import PASSED_OVER
from connector.postgres.driver.interface import CopyError
from connector.postgres.driver.libpq import CopyStream
from connector.postgres.driver.rowcopy import WAIT_SECONDS

PEEK_BYTES = 256 << 10

_DATA = ord("d")
_ANSWERS = frozenset(b"HW")
"""Responses that rows or log will follow, which end `start`: COPY OUT and COPY BOTH."""

_OURS = PASSED_OVER | _ANSWERS | {_DATA}

_HEADER = struct.Struct(">BI")
_LENGTH = 4
"""A message's length counts itself, but not its kind."""


class MessageSocket:
    """Implements `Copy` on the connection's socket, which must not be encrypted. One thread at a time."""

    def __init__(self, stream: CopyStream) -> None:
        self._stream = stream
        self._socket = socket.socket(fileno=os.dup(stream.socket))
        self._messages: list[bytes] = []
        self._incomplete: _Incomplete | None = None
        self._rest = self._unsent = b""
        self._answered = self._ended = self.done = False

    def start(self, command: str) -> None:
        """Send the command and wait until the server begins to copy; `CopyError` if it refuses."""
        try:
            self._stream.send_query(command)
            while not self._answered:
                with self._stream.awaited:
                    self.wait(WAIT_SECONDS)
                self.pull()
                if self._ended and not self._answered:
                    self._stream.end()
                    raise CopyError("the server did not begin to copy", None)
        except BaseException:
            self._socket.close()
            raise

    def fetch(self) -> list[bytes]:
        """Return the whole messages that have arrived, in order, without waiting; sets `done` at the end."""
        messages, self._messages = self._messages, []
        if self._ended and not self.done:
            self.done = True
            self._socket.close()
            self._stream.end()
        return messages

    def pull(self) -> None:
        """Read what has arrived on the socket, without waiting."""
        if self._ended:
            return
        with _lost_connections():
            self._push()  # read even if it can't send everything: the server may wait for us to read first
        with _lost_connections():
            self._take_missing()
            self._take_whole()

    def wait(self, seconds: float) -> bool:
        """Wait until there may be something to pull or fetch; return False on timeout."""
        return bool(self._messages) or self._ended or self._stream.wait(seconds)

    def send(self, message: bytes) -> None:
        """Send one CopyData message to the server."""
        self._unsent += _HEADER.pack(_DATA, _LENGTH + len(message)) + message
        with _lost_connections():
            self._push()

    def close(self) -> None:
        """Close the connection; never raises."""
        self._socket.close()
        self._stream.close()

    def _push(self) -> None:
        while self._unsent:
            self._unsent = self._unsent[self._socket.send(self._unsent, socket.MSG_DONTWAIT) :]

    def _take_missing(self) -> None:
        """Read the rest of the incomplete message, if there is one."""
        if self._incomplete is not None:
            self._add(self._incomplete.kind, self._incomplete.take(self._socket))
            self._incomplete = None

    def _take_whole(self) -> None:
        """Consume what has arrived, except what libpq must see."""
        peeked = self._socket.recv(PEEK_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        data = self._rest + peeked
        found = split_messages(data)
        taken = len(peeked)
        if found.foreign:
            taken = found.upto - len(self._rest)
        self._ended = found.foreign or not peeked  # closed: libpq detects that
        self._discard(taken)
        self._messages += found.messages
        self._answered = self._answered or found.answered
        self._rest = b"" if found.foreign else data[found.upto :]
        if len(self._rest) >= _HEADER.size:
            self._incomplete = _Incomplete(self._rest)
            self._rest = b""

    def _discard(self, size: int) -> None:
        while size:
            size -= len(self._socket.recv(size, socket.MSG_DONTWAIT))

    def _add(self, kind: int, content: bytes) -> None:
        if kind == _DATA:
            self._messages.append(content)
        self._answered = self._answered or kind in _ANSWERS


@contextmanager
def _lost_connections() -> Iterator[None]:
    """Turn errors of the socket into `CopyError`, except that it would block."""
    try:
        yield
    except BlockingIOError:
        pass
    except OSError as error:
        raise CopyError(f"the connection was lost: {error.strerror or error}", None) from error


class _Incomplete:
    """The content of a message whose header, at least, has arrived."""

    def __init__(self, begun: bytes) -> None:
        self.kind, size = _HEADER.unpack_from(begun)
        self._held = len(begun) - _HEADER.size
        self._content = BytesIO(bytes(size - _LENGTH))  # returns its memory as bytes without copying it
        self._content.write(memoryview(begun)[_HEADER.size :])

    def take(self, sock: socket.socket) -> bytes:
        """Read the rest and return the content; `BlockingIOError` if the rest has not arrived yet."""
        with self._content.getbuffer() as view:
            while self._held < len(view):
                got = sock.recv_into(view[self._held :], 0, socket.MSG_DONTWAIT)
                if not got:
                    raise CopyError("the connection was lost in the middle of a message", None)
                self._held += got
        return self._content.getvalue()


class Split(NamedTuple):
    """Complete messages found in a buffer: the contents of those with data, and the end of the last one.

    `answered`: one of them says that data will follow. `foreign`: the message at `upto` is for libpq.
    """

    messages: list[bytes]
    upto: int
    answered: bool
    foreign: bool


def split_messages(data: bytes) -> Split:
    """Find the messages in a buffer that begins with one. Pure."""
    messages: list[bytes] = []
    add, header = messages.append, _HEADER.unpack_from
    at, end, answered, foreign = 0, len(data), False, False
    while at < end:
        if data[at] not in _OURS:
            foreign = True
            break
        if end - at < _HEADER.size:
            break
        kind, size = header(data, at)
        upto = at + 1 + size
        if upto > end:
            break
        if kind == _DATA:
            add(data[at + _HEADER.size : upto])
        else:
            answered = answered or kind in _ANSWERS
        at = upto
    return Split(messages, at, answered, foreign)
