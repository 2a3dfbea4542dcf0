"""The log reader: the stream of the binary log into the buffer, and what the source has to be told meanwhile.

Invariants:

- Nothing is confirmed to the server: it keeps its log by time or size, and `preflight` looks at that.
- What the log does not tell (`connector.mysql.journal`) is written down before `read` returns.
- The birth of each file that the log goes on in is written down, so that a RESET can be told later.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from pymysql.connections import Connection

from connector.errors import TransientError
from connector.manifest import UnsettledCommit
from connector.mysql.buffer import LogBuffer
from connector.mysql.connection import close, driver_errors
from connector.mysql.journal import Birth, Journal
from connector.mysql.segment import MysqlSegment, unpack_position
from connector.mysql.server import Server, end_of_log, format_position, log_files, position_of
from connector.mysql.stream import BinlogStream
from connector.told import ToldSegment

LOOK_SECONDS = 2.0
"""How often to ask for the end of the log."""

STALL_SECONDS = 60.0
"""The log's end is ahead and nothing comes for so long: the server reads another log than we think."""


class Landmark(NamedTuple):
    """A position that the log was read up to, the transactions executed up to there, and whose log it is.

    `writable`: our own tables may be written at that server.
    """

    position: int
    gtids: str | None
    server: str
    writable: bool


class MysqlLog:
    """Reads the log behind a position; implements `connector.source.LogReader`.

    `side`: a connection of its own for the end of the log and the journal.
    """

    def __init__(
        self,
        epoch: int,
        buffer: LogBuffer,
        stream: BinlogStream,
        side: Connection[Any],
        server: Server,
        journal: Journal,
        *,
        writable: bool,
    ) -> None:
        self.behind_bytes = 0
        self._epoch, self._buffer, self._stream, self._side = epoch, buffer, stream, side
        self._server, self._journal, self._writable = server, journal, writable
        self._born = buffer.file
        self._looked = 0.0
        self._moved = (buffer.position, time.monotonic())
        self._mark()

    @property
    def position(self) -> int:
        """A transaction boundary: all up to it has been read. It moves in idle stretches too."""
        return self._buffer.position

    @property
    def buffered_bytes(self) -> int:
        """Raw bytes held, of whole transactions and of the open one."""
        return self._buffer.held_bytes

    @property
    def buffered_rows(self) -> int:
        """Rows events held of whole transactions."""
        return self._buffer.whole_rows

    def read(self, seconds: float, upto_bytes: int) -> None:
        """Read until so many seconds have passed or the buffer holds so many bytes."""
        deadline = time.monotonic() + seconds
        self._stream.resume()
        while self._buffer.held_bytes < upto_bytes:
            if not self._buffer.go_on(upto_bytes - self._buffer.held_bytes):
                packets = self._stream.fetch(deadline - time.monotonic())
                if packets:
                    self._buffer.feed(packets)
            if time.monotonic() >= deadline:
                break
        self._mark()
        self._write_down()
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._look()

    def _mark(self) -> None:
        """Set the landmark, which dump workers read: in one step, as they are other threads."""
        gtids = None if self._buffer.gtids is None else str(self._buffer.gtids)
        self.landmark = Landmark(self._buffer.position, gtids, self._server.uuid, self._writable)

    def take(self) -> ToldSegment | MysqlSegment:
        """Take all whole transactions out of the buffer."""
        return self._buffer.take()

    def take_open(self) -> ToldSegment | MysqlSegment | None:
        """Take what is held of the open transaction, right after `take`."""
        return self._buffer.take_open()

    def confirm(self, position: int) -> None:
        """Do nothing: the server does not ask."""

    def unsettled(self, position: int) -> list[UnsettledCommit]:
        """Give none: a chunk's snapshot is proven without them."""
        return []

    def close(self) -> None:
        """Let go of the connections; never raises."""
        self._stream.close()
        close(self._side)

    def _write_down(self) -> None:
        for found in self._buffer.take_untold():
            if not self._writable:
                self._buffer.put_aside(found)
                continue
            with driver_errors("writing down what the log does not tell"):
                self._journal.note_untold(self._side, found.table, self._epoch, found.lsn, found.reason)
        if self._buffer.file != self._born and self._buffer.created is not None:
            self._note_birth(self._buffer.file, self._buffer.created)

    def _note_birth(self, file: int, created: int) -> None:
        self._born = file
        if self._writable:
            with driver_errors("writing down the log file"):
                self._journal.note_birth(self._side, Birth(self._server.uuid, file, created))

    def _look(self) -> None:
        """Ask for the end of the log; it must not lie behind us, nor ahead without anything coming."""
        with driver_errors("looking at the end of the log"):
            name, offset = end_of_log(self._side, self._server)
            end, position = position_of(name, offset), self.position
            self.behind_bytes = self._distance(position, name, offset)
        self._looked = now = time.monotonic()
        if end < position and self._buffer.whole_rows == 0:
            raise TransientError(
                f"the server's log ends at {name} {offset}, before {format_position(position)}"
            )
        if end <= position or position != self._moved[0] or self._buffer.held_bytes:
            self._moved = position, now
        elif now - self._moved[1] > STALL_SECONDS:
            raise TransientError(
                f"nothing comes behind {format_position(position)}, the log ends at {name} {offset}"
            )

    def _distance(self, position: int, name: str, offset: int) -> int:
        number, ours = unpack_position(position)
        if position_of(name, offset) <= position:
            return 0
        if position_of(name, 0) >> 32 == number:
            return offset - ours
        files = log_files(self._side)
        between = sum(f.size for f in files.values() if number <= f.number < position_of(name, 0) >> 32)
        return max(0, between - ours + offset)
