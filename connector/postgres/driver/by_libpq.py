"""Implements `Driver` with direct calls of libpq; unencrypted connections are read from their sockets."""

from __future__ import annotations

import struct
import time
from abc import ABC, abstractmethod

from psycopg2.extensions import connection as Connection

from connector.postgres.driver.copysocket import SocketCopy
from connector.postgres.driver.interface import Copy, LogStream, Rows
from connector.postgres.driver.libpq import CopyStream, TextCopyStream, execute, prepare
from connector.postgres.driver.messagesocket import MessageSocket
from connector.postgres.driver.rowcopy import RowCopy
from connector.postgres.slot import start_replication

slots_needed = 1
languages_needed = ()

_POSTGRES_EPOCH = 946_684_800.0

_REPLY = 1
"""Has the server answer at once, by a keepalive."""


def prepare_alone(connection: Connection, statement: str) -> None:
    """Have the server parse one statement by the extended query protocol, which allows only one."""
    prepare(CopyStream(connection), statement)


def run_alone(connection: Connection, statement: str) -> list[list[str]]:
    """Run one query by the extended query protocol, which allows only one."""
    return execute(CopyStream(connection), statement)


def open_copy(connection: Connection) -> Copy:
    """Prepare a COPY TO STDOUT in any format."""
    stream = CopyStream(connection)
    return stream if stream.encrypted else MessageSocket(stream)


def open_rows(connection: Connection) -> Rows:
    """Prepare a COPY TO STDOUT in text format."""
    stream = TextCopyStream(connection)
    return RowCopy(stream) if stream.encrypted else SocketCopy(stream)


class _SlotReports(ABC):
    """The sending half of `LogStream`: reports on the slot itself."""

    confirms_slot = True

    @abstractmethod
    def send(self, message: bytes) -> None:
        """Send one CopyData message to the server."""

    def report(self, written: int, confirmed: int) -> None:
        """Send written, flushed and applied positions. Only the flushed one lets the server discard log."""
        micros = int((time.time() - _POSTGRES_EPOCH) * 1_000_000)
        self.send(struct.pack(">cQQQqB", b"r", written, confirmed, confirmed, micros, _REPLY))


class SlotStream(CopyStream, _SlotReports):
    """Implements `LogStream` by libpq."""


class SlotSocket(MessageSocket, _SlotReports):
    """Implements `LogStream` on the connection's socket."""


def open_log(connection: Connection, slot: str, publication: str, position: int) -> LogStream:
    """Stream a slot's log after a position."""
    plain = CopyStream(connection)
    stream = SlotStream(connection) if plain.encrypted else SlotSocket(plain)
    stream.start(start_replication(slot, publication, position))
    return stream
