"""Implements `Driver` with libpq's own calls, and dumps with the connection's socket."""

from __future__ import annotations

import struct
import time

from psycopg2.extensions import connection as Connection

from connector.postgres.driver.copysocket import SocketCopy
from connector.postgres.driver.interface import Rows
from connector.postgres.driver.libpq import CopyStream, TextCopyStream, execute, prepare
from connector.postgres.driver.rowcopy import RowCopy
from connector.postgres.slot import start_replication

slots_needed = 1
languages_needed = ()

_POSTGRES_EPOCH = 946_684_800.0


def prepare_alone(connection: Connection, statement: str) -> None:
    """Have the server parse one statement, by the extended query protocol, which refuses a second one."""
    prepare(CopyStream(connection), statement)


def run_alone(connection: Connection, statement: str) -> list[list[str]]:
    """Run one query, by the extended query protocol, which refuses a second one."""
    return execute(CopyStream(connection), statement)


def open_copy(connection: Connection) -> CopyStream:
    """Prepare a COPY TO STDOUT in any format."""
    return CopyStream(connection)


def open_rows(connection: Connection) -> Rows:
    """Prepare a COPY TO STDOUT in text format, which is read from the socket unless that is encrypted."""
    stream = TextCopyStream(connection)
    return RowCopy(stream) if stream.encrypted else SocketCopy(stream)


class SlotStream(CopyStream):
    """Implements `LogStream` on the slot itself."""

    confirms_slot = True

    def report(self, written: int, confirmed: int) -> None:
        """Send written, flushed and applied positions. Only the flushed one lets the server discard log."""
        micros = int((time.time() - _POSTGRES_EPOCH) * 1_000_000)
        self.send(struct.pack(">cQQQqB", b"r", written, confirmed, confirmed, micros, 0))


def open_log(connection: Connection, slot: str, publication: str, position: int) -> SlotStream:
    """Stream a slot's log after a position."""
    stream = SlotStream(connection)
    stream.start(start_replication(slot, publication, position))
    return stream
