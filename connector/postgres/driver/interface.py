"""What reading requires of the driver beyond ordinary queries, by contract.

`by_libpq` and `by_psycopg2` implement `Driver`, `choice` returns the one in use; nothing else knows which.
"""

from __future__ import annotations

from typing import Protocol

from psycopg2.extensions import connection as Connection

from connector.postgres.codec.copytext import CopiedRows


class CopyError(Exception):
    """The server or the connection ended a COPY with an error; `sqlstate` is None for a lost connection."""

    def __init__(self, message: str, sqlstate: str | None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


def c_text(statement: str) -> bytes:
    """Encode a statement for libpq, which stops at a zero byte: `CopyError` if there is one."""
    if "\0" in statement:
        raise CopyError("a statement can't contain a zero byte", "22021")
    return statement.encode()


class Messages(Protocol):
    """The messages of one COPY, read by one thread."""

    @property
    def done(self) -> bool:
        """Return whether all messages have been returned."""

    def fetch(self) -> list[bytes]:
        """Return the whole messages that have arrived, in order, without waiting; sets `done` at the end.

        `CopyError` if the server refused or aborted, or the connection was lost.
        """

    def pull(self) -> None:
        """Read what has arrived on the socket, without waiting."""

    def wait(self, seconds: float) -> bool:
        """Wait until there may be something to pull or fetch; return False on timeout."""

    def close(self) -> None:
        """Close the connection, on which messages may still be arriving; never raises."""


class Copy(Messages, Protocol):
    """One COPY TO STDOUT."""

    def start(self, command: str) -> None:
        """Send the command. `CopyError` if the server refuses it, here or from `fetch`."""


class LogStream(Messages, Protocol):
    """Replication messages: log data (kind ``w``, 24 bytes of header, payload) and keepalives (kind ``k``).

    `confirms_slot`: reports move the slot. Otherwise a copy of the slot is read, and only
    `connector.postgres.slot.advance_slot` moves the slot itself.
    """

    @property
    def confirms_slot(self) -> bool:
        """Return whether `report` moves the slot."""

    def report(self, written: int, confirmed: int) -> None:
        """Report to the server what was received, and what is durable: the position flushed and applied.

        The server answers by a keepalive.
        """


class Rows(Protocol):
    """The rows of one COPY TO STDOUT in text format, read by one thread."""

    @property
    def done(self) -> bool:
        """Return whether all rows have been read."""

    def start(self, command: str) -> None:
        """Send the command. `CopyError` if the server refuses it, here or from `read`."""

    def read(self) -> CopiedRows:
        """Wait for a bufferful of rows, or for the last ones; valid until the next call.

        `CopyError` if the server refused or aborted, or the connection was lost.
        """

    def close(self) -> None:
        """Close the connection, on which rows may still be arriving; never raises."""


class Driver(Protocol):
    """Functions on a psycopg2 connection, which must be idle and outlive what they return.

    `slots_needed`: number of replication slots that streaming the log takes. `languages_needed`: procedural
    languages that `prepare_alone` and `run_alone` use.
    """

    @property
    def slots_needed(self) -> int: ...  # noqa: D102
    @property
    def languages_needed(self) -> tuple[str, ...]: ...  # noqa: D102

    def prepare_alone(self, connection: Connection, statement: str) -> None:
        """Have the server parse one statement without running it; `CopyError` if it refuses.

        The server itself rejects a second statement. Call within a transaction.
        """

    def run_alone(self, connection: Connection, statement: str) -> list[list[str]]:
        """Run exactly one query; return all rows, whose columns must be text (null as empty).

        `CopyError` if the server refuses. Releases the interpreter lock while it waits. Call within a
        transaction.
        """

    def open_copy(self, connection: Connection) -> Copy:
        """Prepare a COPY TO STDOUT in any format."""

    def open_rows(self, connection: Connection) -> Rows:
        """Prepare a COPY TO STDOUT in text format."""

    def open_log(self, connection: Connection, slot: str, publication: str, position: int) -> LogStream:
        """Stream a slot's log after a position over a replication connection; `CopyError` if refused."""
