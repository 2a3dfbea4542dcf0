"""Streams the log: START_REPLICATION with pgoutput, message by message, over one replication connection.

Invariants:

- The position moves to the end of each commit received, and on a keepalive to the position up to which the
  server had read its log, since messages come in order.
- Only the position passed to `confirm` is reported as flushed for the slot, however far the stream has come.

- Each report asks for an answer. So a connection on which nothing comes, while the server has nothing to do
  for it but to answer, is lost, even if a proxy in between keeps it open.

While nobody calls `read`, a heartbeat thread keeps the server from dropping the connection
(wal_sender_timeout).
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable

from psycopg2.extensions import connection as Connection

from connector.postgres.connection import driver_errors
from connector.postgres.driver.choice import driver
from connector.postgres.driver.interface import CopyError
from connector.postgres.log.buffer import LogBuffer
from connector.postgres.slot import REFUSED
from connector.silence import Patience

STREAM_BASE = 25
"""Kind 'w', start and end of the log data, send time: the header before each payload in the stream."""

_KEEPALIVE_BYTES = 18
"""Less than any log data message; the shortest is a commit: 25 + 26 bytes."""

STATUS_SECONDS = 5.0
"""Well below any sensible wal_sender_timeout (60 s by default)."""

NAP_SECONDS = 0.0005
"""The server sends each message by itself. Letting some accumulate adds half a millisecond of delay and saves
two thirds of the reader's CPU time, since it otherwise wakes up for each message.
"""

FEW = 30
"""A read with fewer messages means that the socket was nearly empty."""


class StreamReader:
    """Feeds a buffer from the stream. `read` from one thread; `close` ends the heartbeat, too.

    The stream begins after `position`; what was read before it counts as flushed only up to `confirmed`.
    `works` returns whether the server is at work on the connection, which another one shows.
    """

    def __init__(
        self,
        connection: Connection,
        buffer: LogBuffer,
        slot: str,
        publication: str,
        position: int,
        confirmed: int,
        works: Callable[[], bool],
    ) -> None:
        self._buffer, self._patience = buffer, Patience("reading the log", works)
        self._received, self._confirmed = position, confirmed
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._failure: CopyError | None = None
        self._last_status = 0.0
        with driver_errors(f"reading the log from slot {slot}", REFUSED):
            self._stream = driver().open_log(connection, slot, publication, position)
            self._send_status()
        self._heartbeat = threading.Thread(
            target=self._send_status_updates, name="replication-status", daemon=True
        )
        self._heartbeat.start()

    @property
    def confirms_slot(self) -> bool:
        """Return whether `confirm` moves the slot itself, not a copy of it."""
        return self._stream.confirms_slot

    def read(self, seconds: float, upto_bytes: int, position: Callable[[], int]) -> None:
        """Read for `seconds`, or until the buffer holds `upto_bytes`."""
        deadline = time.monotonic() + seconds
        with self._lock, driver_errors("reading the log"):
            if self._failure:
                raise self._failure
            while self._buffer.bytes < upto_bytes:
                self._stream.pull()
                count = self._receive()
                self._received = max(self._received, position())
                now = time.monotonic()
                if now - self._last_status > STATUS_SECONDS:
                    self._send_status()
                if now >= deadline or self._buffer.waiting:
                    return
                if count < FEW:
                    if count:
                        time.sleep(NAP_SECONDS)
                    self._wait(deadline - now)

    def confirm(self, position: int) -> None:
        """Report to the server that everything up to a position is durable."""
        with self._lock, driver_errors("confirming the log"):
            if position > self._confirmed:
                self._confirmed = position
                self._send_status()

    def close(self) -> None:
        """Close the connection; never raises."""
        self._closed.set()
        with self._lock:
            self._stream.close()
        self._heartbeat.join()

    def _wait(self, seconds: float) -> None:
        if self._stream.wait(seconds):
            self._patience.heard()
        else:
            self._patience.waited(seconds)

    def _receive(self) -> int:
        messages = self._stream.fetch()
        if self._stream.done:
            raise CopyError("the server ended the stream", None)
        if not messages:
            return 0
        self._patience.heard()
        if min(map(len, messages)) > _KEEPALIVE_BYTES:
            self._buffer.feed(messages, STREAM_BASE)
        else:
            self._receive_with_keepalives(messages)
        return len(messages)

    def _receive_with_keepalives(self, messages: list[bytes]) -> None:
        data: list[bytes] = []
        for message in messages:
            if len(message) != _KEEPALIVE_BYTES:
                data.append(message)
                continue
            if data:
                self._buffer.feed(data, STREAM_BASE)
                data = []
            _, wal_end, _, reply_wanted = struct.unpack(">cQqB", message)
            self._buffer.idle(wal_end)
            if reply_wanted:
                self._send_status()
        if data:
            self._buffer.feed(data, STREAM_BASE)

    def _send_status(self) -> None:
        self._stream.report(max(self._received, self._confirmed), self._confirmed)
        self._last_status = time.monotonic()

    def _send_status_updates(self) -> None:
        while not self._closed.wait(STATUS_SECONDS / 2):
            with self._lock:
                if self._closed.is_set() or self._failure:
                    return
                if time.monotonic() - self._last_status < STATUS_SECONDS:
                    continue
                try:
                    self._send_status()
                except CopyError as error:
                    self._failure = error
