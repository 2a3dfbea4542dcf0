"""Implements `Driver` with psycopg2 alone, where libpq can't be called directly: slower, equally correct.

- The log: psycopg2's `read_message` answers keepalives on its own, and may then report as flushed a position
  that it was not given: as long as the last message has none (at first, after a relation), the position up to
  which the server has read its log. So it reads a temporary copy of the slot, where that does no harm, and
  the slot itself moves only by `advance_slot`. This takes a second free slot.
- COPY: `copy_expert` pushes rows into a file until the end. So it runs in a thread, which waits while two
  batches are unread; the server then waits, too.
- One statement: psycopg2 speaks the simple query protocol, which runs any number of statements. So the
  statement is passed as a literal, for which PL/pgSQL opens a cursor: given two statements, the server
  refuses (``cannot open multi-query plan as cursor``) before it runs either. This needs PL/pgSQL, which every
  database has unless it was dropped.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import socket
import struct
import threading
from collections.abc import Iterator

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import ReplicationCursor

from connector.postgres.connection import close, literal
from connector.postgres.driver.interface import CopyError, c_text
from connector.postgres.driver.rowcopy import RowCopy
from connector.postgres.slot import STREAM, copy_slot, start_replication
from connector.silence import awaited_of

slots_needed = 2
languages_needed = ("plpgsql",)

_BATCH_BYTES = 256 << 10
"""Size of a handover between threads, which costs as much as many small rows."""

_LOG_BYTES = 64 << 10
"""How much log is read at once: libpq's buffer is read message by message, so more would save nothing."""

_LOG_HEADER = b"w" + bytes(24)
_PORTAL = "deltatide_alone"


def prepare_alone(connection: Connection, statement: str) -> None:
    """Have the server parse and plan exactly one statement without running it."""
    with _opened(connection, statement):
        pass


def run_alone(connection: Connection, statement: str) -> list[list[str]]:
    """Run exactly one query."""
    with _opened(connection, statement) as cursor:
        cursor.execute(f"FETCH ALL FROM {_PORTAL}")
        return [[value or "" for value in row] for row in cursor.fetchall()]


def open_copy(connection: Connection) -> ThreadedCopy:
    """Prepare a COPY TO STDOUT in any format."""
    return ThreadedCopy(connection)


def open_rows(connection: Connection) -> RowCopy:
    """Prepare a COPY TO STDOUT in text format."""
    return RowCopy(ThreadedCopy(connection))


def open_log(connection: Connection, slot: str, publication: str, position: int) -> CopiedSlotStream:
    """Stream the log after a position from a copy of the slot."""
    return CopiedSlotStream(connection, slot, publication, position)


@contextlib.contextmanager
def _copy_errors() -> Iterator[None]:
    try:
        yield
    except psycopg2.Error as error:
        text = error.diag.message_primary or next(iter(str(error).strip().splitlines()), "")
        raise CopyError(text or "the connection was lost", error.pgcode) from error


@contextlib.contextmanager
def _opened(connection: Connection, statement: str) -> Iterator[Cursor]:
    """Open a cursor for the statement on the server; it is closed with the transaction at the latest."""
    c_text(statement)
    block = f"DECLARE p refcursor := '{_PORTAL}'; BEGIN OPEN p FOR EXECUTE {literal(statement)}; END"
    with _copy_errors(), connection.cursor() as cursor:
        cursor.execute(f"DO {literal(block)}")
        yield cursor
        cursor.execute(f"CLOSE {_PORTAL}")


class ThreadedCopy:
    """Implements `Copy`: a thread runs the COPY and has the connection to itself until the end."""

    def __init__(self, connection: Connection) -> None:
        self.done = False
        self._connection, self._awaited = connection, awaited_of(connection)
        self._batches: queue.Queue[list[bytes] | None] = queue.Queue(maxsize=1)
        self._batch: list[bytes] = []
        self._size = 0
        self._next: list[bytes] = []
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._closed = False

    def start(self, command: str) -> None:
        """Send the command; `fetch` raises if the server refuses it."""
        c_text(command)
        self._thread = threading.Thread(target=self._run, args=(command,), name="copy", daemon=True)
        self._thread.start()

    def fetch(self) -> list[bytes]:
        """Return the rows that have arrived, without waiting; sets `done` at the end."""
        self.wait(0)
        rows, self._next = self._next, []
        return rows

    def pull(self) -> None:
        """Do nothing: the thread reads."""

    def wait(self, seconds: float) -> bool:
        """Wait for rows or the end; return False on timeout. `CopyError` if the COPY failed."""
        if self.done or self._next:
            return True
        try:
            batch = self._batches.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return False
        if batch is None:
            self._end()
        else:
            self._next = batch
        return True

    def close(self) -> None:
        """Close the connection; never raises.

        While it is in use, psycopg2 could only wait for the COPY's end.
        """
        self._closed = True
        if self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(psycopg2.Error, OSError):
                with socket.socket(fileno=os.dup(self._connection.fileno())) as shared:
                    # Then the close resets the connection; otherwise the server may wait long for room in it.
                    shared.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    shared.shutdown(socket.SHUT_RDWR)
            while self._thread.is_alive():
                with contextlib.suppress(queue.Empty):
                    self._batches.get(timeout=0.01)
        close(self._connection)

    def write(self, row: bytes) -> None:
        """Take a row from psycopg2; wait while the reader is behind."""
        self._batch.append(row)
        self._size += len(row)
        if self._size >= _BATCH_BYTES:
            self._hand_over()

    def _run(self, command: str) -> None:
        try:
            with self._connection.cursor() as cursor, self._awaited:
                cursor.copy_expert(command, self)
                self._hand_over()
        except BaseException as error:
            self._failure = error
        self._batches.put(None)

    def _hand_over(self) -> None:
        if self._closed:
            raise CopyError("the reader has closed the connection", None)
        batch, self._batch, self._size = self._batch, [], 0
        with self._awaited.resting():
            self._batches.put(batch)

    def _end(self) -> None:
        assert self._thread is not None
        self._thread.join()
        self.done = True
        if self._failure is not None:
            with _copy_errors():
                raise self._failure


def _copy_of(connection: Connection, slot: str) -> str:
    try:
        return copy_slot(connection, slot, STREAM)
    except psycopg2.errors.ConfigurationLimitExceeded as error:
        text = f"{error.diag.message_primary}; psycopg2 needs a second slot: raise max_replication_slots"
        raise CopyError(text, error.pgcode) from error


class CopiedSlotStream:
    """Implements `LogStream` on a temporary copy of the slot, which ends with the connection."""

    confirms_slot = False

    def __init__(self, connection: Connection, slot: str, publication: str, position: int) -> None:
        self.done = False
        self._connection = connection
        self._pending = False
        self._seen = 0
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        with _copy_errors():
            copy = _copy_of(connection, slot)
            self._cursor = connection.cursor(cursor_factory=ReplicationCursor)
            command = start_replication(copy, publication, position)
            with awaited_of(connection):
                self._cursor.start_replication_expert(command)  # type: ignore[no-untyped-call]

    def fetch(self) -> list[bytes]:
        """Return the messages that have arrived, up to a limit.

        psycopg2 exposes no keepalives, only the last one's position, up to which the server has read its log.
        Once everything before it has been read, a keepalive is made from it.
        """
        messages: list[bytes] = []
        size = 0
        with _copy_errors():
            while size < _LOG_BYTES and (message := self._cursor.read_message()) is not None:
                messages.append(_LOG_HEADER + message.payload)
                size += len(messages[-1])
                self._seen = message.wal_end
        self._pending = size >= _LOG_BYTES
        if (read_to := self._cursor.wal_end) != self._seen:
            self._seen = read_to
            messages.append(struct.pack(">cQqB", b"k", read_to, 0, 0))
        return messages

    def pull(self) -> None:
        """Do nothing: `fetch` reads."""

    def wait(self, seconds: float) -> bool:
        """Wait until there may be something to fetch; return False on timeout."""
        return self._pending or bool(self._poll.poll(max(0.0, seconds) * 1000))

    def report(self, written: int, confirmed: int) -> None:
        """Report to the server what was received, and what the copy of the slot no longer needs."""
        with _copy_errors():
            self._cursor.send_feedback(  # type: ignore[no-untyped-call]
                write_lsn=written, flush_lsn=confirmed, apply_lsn=confirmed, reply=True, force=True
            )

    def close(self) -> None:
        """Close the connection; never raises."""
        close(self._connection)
