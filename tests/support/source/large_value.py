"""A program that lands one large value, from a dump or from the log, and prints the memory used.

``python -m tests.support.source.large_value dump|log text|bytea MIB`` prints the peak, in multiples of the
value's size as the server sends it, and how many times the CPU time of a value of a sixteenth of the size it
took. It stands in for the server, and for the little that libpq does where a connection is not encrypted.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from connector.capture.dumps.workers import _cdc_of
from connector.capture.lander import Lander
from connector.landing.event_batch import assemble
from connector.landing.manifest import LandedFile
from connector.position import CHUNK_SEQ, Position
from connector.postgres.definitions.refusals import TableLayout
from connector.postgres.driver.copysocket import SocketCopy
from connector.postgres.driver.messagesocket import MessageSocket
from connector.postgres.dump import PostgresChunk
from connector.postgres.log.buffer import LogBuffer
from connector.postgres.log.stream import STREAM_BASE
from connector.postgres.visibility import Visibility
from connector.schema import Column, TableName, TableSchema
from connector.silence import Awaited
from connector.store.local import LocalStore

PIECE = 1 << 20
TYPES = {"text": ("string", b"some words,\\n" * 5, 25), "bytea": ("binary", b"0123456789abcdef" * 4, 17)}
"""By source type: the landed type, some of its text in COPY, its oid."""


def main(way: str, type_: str, mib: str) -> None:
    """Land small values, of which the first warms up, then the large one, and print what that took."""
    land = {"dump": _land_dump, "log": _land_log}[way]
    with tempfile.TemporaryDirectory() as folder:
        lander = Lander(LocalStore(Path(folder)))
        size, seconds = int(mib) << 20, []
        for each in (size // 16, size // 16, size):
            Path("/proc/self/clear_refs").write_text("5")  # reset the peak
            before, started = _peak_bytes(), time.process_time()
            file = land(lander, type_, each)
            assert file is not None
            assert file.rows == 1
            seconds.append(time.process_time() - started)
        _, small, large = seconds
        print((_peak_bytes() - before) / size, large / small)
        lander.close()


def _schema(type_: str) -> TableSchema:
    columns = (Column("id", "integer", "int"), Column("v", type_, TYPES[type_][0]))
    return TableSchema(TableName("public", "t"), columns, ("id",))


def _pieces(type_: str, size: int) -> Iterator[bytes]:
    """Yield the value's text, of about `size` bytes, in pieces."""
    text = TYPES[type_][1]
    piece = text * (PIECE // len(text))
    for _ in range(size // len(piece)):
        yield piece


@contextmanager
def _sent_by_another_process(
    send: Callable[[socket.socket, str, int], None], type_: str, size: int
) -> Iterator[socket.socket]:
    """Yield a socket to read from; `send` gets the other end in a process of its own."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        send(theirs, type_, size)
        os._exit(0)
    theirs.close()
    with ours:
        yield ours


def _land_dump(lander: Lander, type_: str, size: int) -> LandedFile | None:
    with _sent_by_another_process(_send_copy, type_, size) as received:
        chunk: Any = PostgresChunk.__new__(PostgresChunk)
        chunk.schema, chunk.low, chunk.high, chunk._marked, chunk._query = _schema(type_), 1, 2, False, ""
        chunk._copy = SocketCopy(_Stream(received.fileno()))  # type: ignore[arg-type]
        position = Position(1, 1, CHUNK_SEQ)
        task: Any = SimpleNamespace(dump=SimpleNamespace(id="x"), chunk=0)
        cdc = _cdc_of(task, chunk, position)
        with lander.writer(chunk.schema, position) as writer:
            for rows in chunk.rows():
                writer.append(assemble(chunk.schema, rows.columns, cdc))
            os.wait()
            return writer.close()


def _send_copy(to: socket.socket, type_: str, size: int) -> None:
    first = b"1\t" + (b"\\\\x" if type_ == "bytea" else b"")
    length = len(first) + sum(map(len, _pieces(type_, size))) + 1
    to.sendall(b"H" + struct.pack(">IbHHH", 11, 0, 2, 0, 0) + b"d" + struct.pack(">I", length + 4) + first)
    for piece in _pieces(type_, size):
        to.sendall(piece)
    to.sendall(b"\nc" + struct.pack(">I", 4))


class _Stream:
    """The part of libpq that reading from its socket needs."""

    def __init__(self, descriptor: int) -> None:
        self.socket, self.awaited = descriptor, Awaited()

    def send_query(self, command: str) -> None:
        """Do nothing: the answer is already on the socket."""

    def wait(self, seconds: float) -> bool:
        """Wait for the answer."""
        return bool(select.select([self.socket], [], [], seconds)[0])

    def end(self) -> None:
        """Do nothing: the query succeeded."""


def _land_log(lander: Lander, type_: str, size: int) -> LandedFile | None:
    schema = _schema(type_)
    buffer = LogBuffer(1, Visibility(0), lambda _relation, _xid: TableLayout(schema, "", ""))
    with _sent_by_another_process(_send_log, type_, size) as received:
        stream: Any = _Stream(received.fileno())
        messages = MessageSocket(stream)
        messages.start("")
        while not messages.done:
            messages.pull()
            buffer.feed(messages.fetch(), STREAM_BASE)
        os.wait()
    return lander.land(buffer.take()).files[0]


def _send_log(to: socket.socket, type_: str, size: int) -> None:
    relation = b"R" + struct.pack(">I", 9) + b"public\0t\0d" + struct.pack(">H", 2)
    relation += b"\1id\0" + struct.pack(">Ii", 23, -1) + b"\0v\0" + struct.pack(">Ii", TYPES[type_][2], -1)
    begin = b"B" + struct.pack(">QqI", 100, 1, 7)
    commit = b"C" + struct.pack(">BQQq", 0, 100, 108, 1)
    to.sendall(b"W" + struct.pack(">IbH", 7, 0, 0) + _log_data(begin) + _log_data(relation))
    prefix = b"\\x" if type_ == "bytea" else b""
    length = len(prefix) + sum(map(len, _pieces(type_, size)))
    start = b"I" + struct.pack(">I", 9) + b"N" + struct.pack(">HcIcc", 2, b"t", 1, b"1", b"t")
    to.sendall(_log_data(start + struct.pack(">I", length) + prefix, more=length - len(prefix)))
    for piece in _pieces(type_, size):
        to.sendall(piece)
    to.sendall(_log_data(commit) + b"c" + struct.pack(">I", 4))


def _log_data(content: bytes, more: int = 0) -> bytes:
    """Return a message of log data whose content goes on with `more` bytes."""
    header = b"w" + struct.pack(">QQq", 100, 100, 1)
    return b"d" + struct.pack(">I", 4 + len(header) + len(content) + more) + header + content


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(*sys.argv[1:])
