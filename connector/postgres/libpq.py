"""Reads COPY rows and replication messages straight from libpq, at about a microsecond each.

psycopg2 hands over a replication message through a Python object and gives the interpreter lock away for each
one, which starves the reader as soon as another thread computes; and it answers keepalives by itself, with a
flushed position that no manifest may cover. Here the connection is psycopg2's, and only the calls of libpq's
COPY protocol are made directly (https://www.postgresql.org/docs/current/libpq-copy.html). Those that wait for
the server (`_wait_for_result`, `wait`) let other threads run, those that only look into libpq's buffer don't.

Invariant: nothing is sent to the server but what `start`, `send_query` and `send` of `CopyStream` are given.
"""

from __future__ import annotations

import ctypes
import select
from ctypes import c_char_p, c_int, c_ssize_t, c_void_p
from typing import Any

from psycopg2 import _psycopg
from psycopg2.extensions import connection as Connection

_COPY_OUT, _COPY_BOTH = 3, 8
_COMMAND_OK, _TUPLES_OK = 1, 2
_SQLSTATE = ord("C")
_PRIMARY_MESSAGE = ord("M")


def _function(library: ctypes.CDLL, name: str, returns: Any, *takes: Any) -> Any:
    function = library[name]
    function.restype, function.argtypes = returns, list(takes)
    return function


# The extension module is linked with libpq: its handle finds libpq's functions, whichever libpq that is.
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
_bytes = _function(ctypes.pythonapi, "PyBytes_FromStringAndSize", ctypes.py_object, c_void_p, c_ssize_t)


class CopyError(Exception):
    """The server or the connection ended a COPY with an error; `sqlstate` is None when the connection did."""

    def __init__(self, message: str, sqlstate: str | None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class CopyStream:
    """One COPY TO STDOUT or START_REPLICATION on a psycopg2 connection, which must be idle.

    The connection must outlive this object's use; one thread at a time.
    """

    def __init__(self, connection: Connection) -> None:
        pointer = connection.pgconn_ptr
        if pointer is None or connection.closed:
            raise CopyError("the connection is closed", None)
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
        """Tell whether what goes over the socket is TLS, or GSSAPI's."""
        return bool(_uses_tls(self._pg) or _uses_gss(self._pg))

    def start(self, command: str) -> None:
        """Send the command and wait until the server begins to copy; `CopyError` when it refuses."""
        self.send_query(command)
        result = _wait_for_result(self._pg)
        status = _status(result)
        try:
            if status not in (_COPY_OUT, _COPY_BOTH):
                raise self._refused(result)
        finally:
            _clear(result)
            if status not in (_COPY_OUT, _COPY_BOTH):
                self._finish()

    def send_query(self, command: str) -> None:
        """Send the command alone; the caller reads from the socket what comes before the query's end."""
        if not _send_query(self._pg, command.encode()):
            raise self._lost()
        while unsent := _flush(self._pg):
            if unsent < 0:
                raise self._lost()
            self.wait(0.01)

    def end(self) -> None:
        """Take the end of the query; `CopyError` when it failed."""
        self.done = True
        result = _wait_for_result(self._pg)
        try:
            if _status(result) not in (_COMMAND_OK, _TUPLES_OK):
                raise self._refused(result)
        finally:
            _clear(result)
            self._finish()

    def fetch(self) -> list[bytes]:
        """Give the whole messages that have arrived, in order, without waiting; sets `done` at the end."""
        out: list[bytes] = []
        add, pg, buffer, reference = out.append, self._pg, self._buffer, self._reference
        while (size := _get(pg, reference, 1)) > 0:
            add(_bytes(buffer, size))
            _free(buffer)
        if size:
            self._end(size)
        return out

    def fetch_text(self) -> list[bytes]:
        """As `fetch`, for the text format, which holds no zero byte: a little quicker."""
        out: list[bytes] = []
        add, pg, text, buffer, reference = out.append, self._pg, self._text, self._buffer, self._reference
        while (size := _get(pg, reference, 1)) > 0:
            add(text.value)  # type: ignore[arg-type]
            _free(buffer)
        if size:
            self._end(size)
        return out

    def pull(self) -> None:
        """Take from the socket what has arrived, without waiting."""
        if not _consume(self._pg):
            raise self._lost()

    def wait(self, seconds: float) -> bool:
        """Wait until the socket is readable; False when the time is over first."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def send(self, message: bytes) -> None:
        """Send one CopyData message to the server."""
        if _put(self._pg, message, len(message)) < 0 or _flush(self._pg) < 0:
            raise self._lost()

    def _end(self, size: int) -> None:
        if size == -2:
            raise self._lost()
        self.end()

    def _finish(self) -> None:
        while result := _wait_for_result(self._pg):
            _clear(result)

    def _refused(self, result: int) -> CopyError:
        state, message = _field(result, _SQLSTATE), _field(result, _PRIMARY_MESSAGE)
        if message is None:
            return self._lost()
        return CopyError(message.decode(errors="replace"), state.decode() if state else None)

    def _lost(self) -> CopyError:
        text = (_error(self._pg) or b"").decode(errors="replace").strip()
        return CopyError(text.splitlines()[0] if text else "the connection was lost", None)
