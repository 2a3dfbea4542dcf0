"""Reads COPY rows and replication messages directly from libpq, at about a microsecond each.

psycopg2 wraps each replication message in a Python object and releases the interpreter lock for it, which
starves the reader as soon as another thread computes; and it answers keepalives on its own, with a flushed
position that no manifest may cover. Here the connection is psycopg2's, and only the calls of libpq's COPY
protocol are made directly (https://www.postgresql.org/docs/current/libpq-copy.html). Those that wait for the
server (`_wait_for_result`, `wait`) let other threads run; those that only read libpq's buffer don't.

Importing this module raises ImportError, AttributeError or OSError if psycopg2's libpq can't be reached.
Invariant: only what is passed to `start`, `send_query` and `send` of `CopyStream` is sent to the server.
"""

from __future__ import annotations

import ctypes
import select
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_ssize_t, c_void_p
from typing import Any

from psycopg2 import _psycopg
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import libpq_version

from connector.postgres.connection import close
from connector.postgres.driver.interface import CopyError, c_text
from connector.silence import awaited_of

_COPY_OUT, _COPY_BOTH = 3, 8
_COMMAND_OK, _TUPLES_OK = 1, 2
_SQLSTATE = ord("C")
_PRIMARY_MESSAGE = ord("M")


def _function(library: ctypes.CDLL, name: str, returns: Any, *takes: Any) -> Any:
    function = library[name]
    function.restype, function.argtypes = returns, list(takes)
    return function


# The extension module is linked with libpq: its handle resolves that libpq's functions, whichever it is.
_holding = ctypes.PyDLL(_psycopg.__file__)
_releasing = ctypes.CDLL(_psycopg.__file__)
_get = _function(_holding, "PQgetCopyData", c_int, c_void_p, c_void_p, c_int)
_free = _function(_holding, "PQfreemem", None, c_void_p)
_consume = _function(_holding, "PQconsumeInput", c_int, c_void_p)
_uses_tls = _function(_holding, "PQsslInUse", c_int, c_void_p)
_uses_gss = _function(_holding, "PQgssEncInUse", c_int, c_void_p)
_put = _function(_holding, "PQputCopyData", c_int, c_void_p, c_char_p, c_int)
_flush = _function(_holding, "PQflush", c_int, c_void_p)
_socket = _function(_holding, "PQsocket", c_int, c_void_p)
_error = _function(_holding, "PQerrorMessage", c_char_p, c_void_p)
_send_query = _function(_holding, "PQsendQuery", c_int, c_void_p, c_char_p)
_status = _function(_holding, "PQresultStatus", c_int, c_void_p)
_field = _function(_holding, "PQresultErrorField", c_char_p, c_void_p, c_int)
_clear = _function(_holding, "PQclear", None, c_void_p)
_wait_for_result = _function(_releasing, "PQgetResult", c_void_p, c_void_p)
_prepare = _function(_releasing, "PQprepare", c_void_p, c_void_p, c_char_p, c_char_p, c_int, c_void_p)
_execute = _function(
    _releasing, "PQexecParams", c_void_p, c_void_p, c_char_p, *[c_int, *[c_void_p] * 4, c_int]
)
_row_count = _function(_holding, "PQntuples", c_int, c_void_p)
_column_count = _function(_holding, "PQnfields", c_int, c_void_p)
_value = _function(_holding, "PQgetvalue", c_char_p, c_void_p, c_int, c_int)
_version = _function(_holding, "PQlibVersion", c_int)
_bytes = _function(ctypes.pythonapi, "PyBytes_FromStringAndSize", ctypes.py_object, c_void_p, c_ssize_t)


if not hasattr(Connection, "pgconn_ptr"):
    raise ImportError("psycopg2 does not expose the address of libpq's connection")
if _version() != libpq_version():
    raise ImportError(f"found libpq {_version()}, but psycopg2 uses {libpq_version()}")


class CopyStream:
    """One COPY TO STDOUT or START_REPLICATION on a psycopg2 connection, which must be idle.

    The connection must outlive this object. One thread at a time.
    """

    def __init__(self, connection: Connection) -> None:
        pointer = connection.pgconn_ptr
        if pointer is None or connection.closed:
            raise CopyError("the connection is closed", None)
        self._connection = connection
        self.awaited = awaited_of(connection)
        self._pg = c_void_p(pointer)
        self._buffer = c_void_p()
        self._reference = ctypes.byref(self._buffer)
        self._text = c_char_p.from_buffer(self._buffer)
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)
        self.done = False

    @property
    def socket(self) -> int:
        """The connection's file descriptor."""
        descriptor: int = _socket(self._pg)
        return descriptor

    @property
    def encrypted(self) -> bool:
        """Return whether the socket is encrypted, by TLS or GSSAPI."""
        return bool(_uses_tls(self._pg) or _uses_gss(self._pg))

    @property
    def pg(self) -> c_void_p:
        """The connection's libpq handle."""
        return self._pg

    def take(self, result: int | None, use: Callable[[int], None] = lambda _result: None) -> None:
        """Use a result from libpq, then free it; `CopyError` if it is an error."""
        try:
            if not result or _status(result) not in (_COMMAND_OK, _TUPLES_OK):
                raise self._refused(result) if result else self._lost()
            use(result)
        finally:
            _clear(result)

    def start(self, command: str) -> None:
        """Send the command and wait until the server begins to copy; `CopyError` if it refuses."""
        self.send_query(command)
        result = self._wait_for_result()
        status = _status(result)
        try:
            if status not in (_COPY_OUT, _COPY_BOTH):
                raise self._refused(result)
        finally:
            _clear(result)
            if status not in (_COPY_OUT, _COPY_BOTH):
                self._finish()

    def send_query(self, command: str) -> None:
        """Only send the command; the caller reads from the socket what precedes the query's end."""
        if not _send_query(self._pg, c_text(command)):
            raise self._lost()
        while unsent := _flush(self._pg):
            if unsent < 0:
                raise self._lost()
            self.wait(0.01)

    def end(self) -> None:
        """Read the end of the query; `CopyError` if it failed."""
        self.done = True
        result = self._wait_for_result()
        try:
            if _status(result) not in (_COMMAND_OK, _TUPLES_OK):
                raise self._refused(result)
        finally:
            _clear(result)
            self._finish()

    def fetch(self) -> list[bytes]:
        """Return the whole messages that have arrived, in order, without waiting; sets `done` at the end."""
        out: list[bytes] = []
        add, pg, buffer, reference = out.append, self._pg, self._buffer, self._reference
        while (size := _get(pg, reference, 1)) > 0:
            add(_bytes(buffer, size))
            _free(buffer)
        if size:
            self._end(size)
        return out

    def pull(self) -> None:
        """Read what has arrived on the socket, without waiting."""
        if not _consume(self._pg):
            raise self._lost()

    def wait(self, seconds: float) -> bool:
        """Wait until the socket is readable; return False on timeout."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def send(self, message: bytes) -> None:
        """Send one CopyData message to the server."""
        if _put(self._pg, message, len(message)) < 0 or _flush(self._pg) < 0:
            raise self._lost()

    def close(self) -> None:
        """Close the connection; never raises."""
        close(self._connection)

    def _end(self, size: int) -> None:
        if size == -2:
            raise self._lost()
        self.end()

    def _finish(self) -> None:
        while result := self._wait_for_result():
            _clear(result)

    def _wait_for_result(self) -> Any:
        with self.awaited:
            return _wait_for_result(self._pg)

    def _refused(self, result: int) -> CopyError:
        state, message = _field(result, _SQLSTATE), _field(result, _PRIMARY_MESSAGE)
        if message is None:
            return self._lost()
        return CopyError(message.decode(errors="replace"), state.decode() if state else None)

    def _lost(self) -> CopyError:
        text = (_error(self._pg) or b"").decode(errors="replace").strip()
        return CopyError(text.splitlines()[0] if text else "the connection was lost", None)


class TextCopyStream(CopyStream):
    """One COPY TO STDOUT in text format, which has no zero byte: `fetch` is a little faster."""

    def fetch(self) -> list[bytes]:
        """Return the whole rows that have arrived, in order, without waiting; sets `done` at the end."""
        out: list[bytes] = []
        add, pg, text, buffer, reference = out.append, self._pg, self._text, self._buffer, self._reference
        while (size := _get(pg, reference, 1)) > 0:
            add(text.value)  # type: ignore[arg-type]
            _free(buffer)
        if size:
            self._end(size)
        return out


def prepare(session: CopyStream, statement: str) -> None:
    """Have the server parse one statement, by the extended query protocol; `CopyError` if it refuses."""
    with session.awaited:
        result = _prepare(session.pg, b"", c_text(statement), 0, None)
    session.take(result)


def execute(session: CopyStream, statement: str) -> list[list[str]]:
    """Run one query by the extended query protocol; return all rows as text (null as empty).

    `CopyError` if the server refuses. Lets other threads run while it waits.
    """
    rows: list[list[str]] = []

    def keep(result: int) -> None:
        columns = range(_column_count(result))
        rows.extend([_value(result, r, c).decode() for c in columns] for r in range(_row_count(result)))

    with session.awaited:
        result = _execute(session.pg, c_text(statement), 0, None, None, None, None, 0)
    session.take(result, keep)
    return rows
