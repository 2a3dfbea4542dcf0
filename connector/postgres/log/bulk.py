"""Reads the log in bulk: COPY of a slot's changes, several times faster than streaming message by message.

A temporary copy of the slot is consumed in batches, each decoded by the server in one call and sent as rows
of a binary COPY; our own slot stays put until `PostgresLogReader.confirm`. So no batch waits for a commit of
ours, and a lost connection loses only the copy.

Invariants:

- A batch ends at a transaction boundary, the only place where the server stops.
- A batch that reaches the end of log it was given (`upto`) moves the position there, since nothing before it
  is left.

The server holds a batch, and so at least a whole transaction, before it sends the first row. Where it has no
room for that (`temp_file_limit`, a full disk), the log is streamed instead, however much there is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import psycopg2
from psycopg2.extensions import connection as Connection

from connector.errors import BugError
from connector.position import format_lsn
from connector.postgres.codec.pgoutput import COPY_BASE
from connector.postgres.connection import close, driver_errors, literal, one_row, quote
from connector.postgres.driver.choice import driver
from connector.postgres.driver.interface import Copy, CopyError
from connector.postgres.log.buffer import LogBuffer
from connector.postgres.slot import BULK, NO_ROOM, REFUSED, advance_slot, copy_slot, end_of_log
from connector.postgres.visibility import Visibility
from connector.silence import Patience

log = logging.getLogger(__name__)

BATCH_CHANGES = 200_000
"""Limits what the server collects (in work_mem, then in a temporary file) before it sends the first row."""

_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"


class BacklogReader:
    """Feeds a buffer in batches until little is left; then it is `done`.

    `no_room`: it is done because the server has no room for a batch, none of which has been fed. `works`
    returns whether the server is at work on the connection, which another one shows.
    """

    def __init__(
        self,
        connection: Connection,
        buffer: LogBuffer,
        copy: str,
        publication: str,
        visibility: Visibility,
        enough_bytes: int,
        works: Callable[[], bool],
    ) -> None:
        self._patience = Patience("reading the log in bulk", works)
        self.done = self.no_room = False
        self._connection, self._buffer, self._copy = connection, buffer, copy
        self._publication, self._visibility, self._enough_bytes = publication, visibility, enough_bytes
        self._stream: Copy | None = None
        self._rows = self._upto = 0

    @classmethod
    def open(
        cls,
        connection: Connection,
        buffer: LogBuffer,
        slot: str,
        publication: str,
        visibility: Visibility,
        enough_bytes: int,
        works: Callable[[], bool],
    ) -> BacklogReader | None:
        """Copy the slot and move the copy to the visibility's position; None if no slot is free for it.

        Our own slot may be before that position: what was read last may not have landed yet.
        """
        try:
            with driver_errors("reading the log in bulk", REFUSED):
                copy = copy_slot(connection, slot, BULK)
                advance_slot(connection, copy, visibility.position)
                one_row(connection, "SELECT set_config('work_mem', '64MB', false)")
        except Exception as error:
            close(connection)
            if isinstance(error.__cause__, psycopg2.errors.ConfigurationLimitExceeded):
                log.warning("no replication slot is free for bulk reading; streaming instead")
                return None
            raise
        return cls(connection, buffer, copy, publication, visibility, enough_bytes, works)

    def read(self, seconds: float, upto_bytes: int) -> None:
        """Read for `seconds`, or until the buffer holds `upto_bytes` or little is left."""
        deadline = time.monotonic() + seconds
        with driver_errors("reading the log in bulk", REFUSED):
            while not self.done and self._buffer.bytes < upto_bytes:
                try:
                    if self._stream is None:
                        self._begin_batch()
                    elif not self._read_some(deadline):
                        return
                except CopyError as error:
                    self._end_without_room(error)

    def _end_without_room(self, error: CopyError) -> None:
        """Be done if the server has no room for the batch; raise any other error."""
        if self._rows or not (error.sqlstate or "").startswith(NO_ROOM):
            raise error
        log.warning("can't read the log in bulk, streaming instead: %s", error)
        self._stream = None
        self.done = self.no_room = True

    def close(self) -> None:
        """Close the connection, and with it the slot's copy; never raises."""
        if self._stream is not None:
            self._stream.close()
        close(self._connection)

    def _begin_batch(self) -> None:
        self._upto = end_of_log(self._connection)
        if self._upto - self._visibility.position < self._enough_bytes:
            self.done = True
            return
        self._rows = 0
        self._stream = driver().open_copy(self._connection)
        self._stream.start(
            f"COPY (SELECT lsn, data FROM pg_logical_slot_get_binary_changes({literal(self._copy)}, "
            f"{literal(format_lsn(self._upto))}, {BATCH_CHANGES}, 'proto_version', '1', "
            f"'publication_names', {literal(quote(self._publication))})) TO STDOUT (FORMAT binary)"
        )

    def _read_some(self, deadline: float) -> bool:
        """Feed what has arrived; return False on timeout."""
        stream = self._stream
        assert stream is not None
        rows = [] if stream.done else stream.fetch()
        if rows:
            self._patience.heard()
            self._feed(rows)
        if self._buffer.waiting:
            return False
        if stream.done:
            self._end_batch()
            return True
        if not rows:
            now = time.monotonic()
            if now >= deadline:
                return False
            if not stream.wait(deadline - now):
                self._patience.waited(deadline - now)
                return False
            self._patience.heard()
        stream.pull()
        return time.monotonic() < deadline

    def _feed(self, rows: list[bytes]) -> None:
        if rows[0].startswith(_HEADER):
            rows[0] = rows[0][len(_HEADER) :]
            if not rows[0]:
                del rows[0]
        if rows and rows[-1] == _TRAILER:
            del rows[-1]
        if rows:
            self._rows += len(rows)
            self._buffer.feed(rows, COPY_BASE)

    def _end_batch(self) -> None:
        self._stream = None
        if self._buffer.in_transaction:
            raise BugError("a batch of the log ended within a transaction")
        if self._rows < BATCH_CHANGES:
            self._buffer.idle(self._upto)
