"""The log reader: streams the binary log into the buffer, and meanwhile records state at the source.

Invariants:

- Nothing is confirmed to the server: it keeps its log by time or size, which `preflight` checks.
- Unlogged changes are taken with the log that tells of them, and wait to land as rows do.
- When the log continues in a new file, the file's creation time is recorded at the next poll of the log's
  end, so a RESET can be detected later.
- Before it reports log that can't be read, what precedes it has landed, however long that takes: from what
  has landed on, the log may be a gap then. If this reader ends before that, the next one finds it again.
- If it is unknown what was executed, since an event is damaged, the log is reopened in its next file, which
  lists that.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

from pymysql.connections import Connection

from connector.codec.log_segment import LogSegment
from connector.errors import TransientError
from connector.landing.manifest import InvisibleCommit
from connector.mysql.codec.segment import MysqlSegment
from connector.mysql.connection import close, descriptor_of, driver_errors
from connector.mysql.failover import has_gtids
from connector.mysql.log.buffer import LogBuffer
from connector.mysql.log.stream import BinlogStream, UnreadableLogError
from connector.mysql.log.transaction import OnePhaseCommits
from connector.mysql.server import (
    Server,
    end_of_log,
    engine_lsn,
    ensure_logging,
    format_binlog_position,
    log_files,
    position_of,
)
from connector.mysql.state_table import RecordedFile, StateTable
from connector.position import unpack_binlog_position
from connector.silence import answered

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""Interval between queries for the end of the log."""

STALL_SECONDS = 60.0
"""If the log's end is ahead and nothing arrives for this long, the server reads another log than we think."""

LOCKED_SECONDS = 0.1
"""Pause between two attempts to look up a table that others keep locked; each waits for a second itself."""

_NOT_RECORDED = 0
"""No log file has this number."""

STALL_BYTES = 1 << 16
"""More than the heartbeats in that time. Within a transaction the position does not move, however long it is.
"""


class ReaderProgress(NamedTuple):
    """The position the log was read up to, the transactions executed up to there, and the log's server.

    `writable`: whether our own table may be written on that server. `one_phase`: of the log so far, which
    grows; `epoch`: of the position.
    """

    position: int
    gtids: str | None
    server: str
    writable: bool
    epoch: int
    one_phase: OnePhaseCommits


class MysqlLogReader:
    """Reads the log after a position; implements `connector.source.LogReader`.

    `side`: a separate connection for the end of the log and the state table. `unreadable_at`: the position
    after which the server could not read its log, once all before it has landed; or None. `unbroken`: a crash
    in between can't be ruled out.
    """

    unbroken = False

    def __init__(
        self,
        epoch: int,
        buffer: LogBuffer,
        stream: BinlogStream,
        side: Connection[Any],
        server: Server,
        state_table: StateTable,
        *,
        writable: bool,
    ) -> None:
        self.behind_bytes = 0
        self.unreadable_at: int | None = None
        self.epoch, self._buffer, self._stream, self._side = epoch, buffer, stream, side
        self._server, self._state_table, self._writable = server, state_table, writable
        self._recorded_file = self._opened_file = buffer.file
        self._polled_at = 0.0
        self._reported: str | None = None
        self._taken = self._confirmed = 0
        self._is_unread_reported = False
        self._moved = (buffer.position, stream.received, time.monotonic())
        self._publish_progress()

    @property
    def position(self) -> int:
        """A transaction boundary: everything up to it has been read. It moves while idle, too."""
        return self._buffer.position

    @property
    def buffered_bytes(self) -> int:
        """Raw bytes held, of whole transactions and the open one."""
        return self._buffer.held_bytes

    @property
    def buffered_rows(self) -> int:
        """Rows events held, of whole transactions, and tables that these may have changed without any."""
        return self._buffer.whole_rows + self._buffer.unlogged_count

    def read(self, seconds: float, upto_bytes: int) -> None:
        """Read for `seconds`, or until the buffer holds `upto_bytes`."""
        deadline = time.monotonic() + seconds
        while self._buffer.held_bytes < upto_bytes:
            if self._buffer.locked is not None:
                if self._is_still_locked(self._buffer.locked, deadline):
                    break
            elif not self._buffer.unpack_more(upto_bytes - self._buffer.held_bytes):
                packets = self._fetch(deadline - time.monotonic())
                if packets:
                    self._buffer.feed(packets)
            if time.monotonic() >= deadline:
                break
        self._publish_progress()
        if time.monotonic() - self._polled_at > POLL_SECONDS:
            self._poll_end_of_log()

    def _is_still_locked(self, why: str, deadline: float) -> bool:
        """Return whether the next event's table is still locked; then what precedes it can land meanwhile."""
        if why != self._reported:
            log.warning("%s; its rows in the log, and what follows, wait for that", why)
        self._reported = why
        self._buffer.feed([])
        if self._buffer.locked is None:
            return False
        time.sleep(max(0.0, min(LOCKED_SECONDS, deadline - time.monotonic())))
        return True

    def _fetch(self, seconds: float) -> list[bytes]:
        try:
            return self._stream.fetch(seconds)
        except UnreadableLogError as error:
            if not self._buffer.whole_rows and self._confirmed >= self._taken:
                self.unreadable_at = self._buffer.position
                raise
            if not self._is_unread_reported:
                log.warning("%s; what precedes it lands first", error)
            self._is_unread_reported = True
            time.sleep(max(0.0, min(LOCKED_SECONDS, seconds)))
            return []

    def _publish_progress(self) -> None:
        """Set the progress atomically, since dump workers read it from other threads."""
        gtids = None if self._buffer.gtids is None else str(self._buffer.gtids)
        buffer, server = self._buffer, self._server.uuid
        self.progress = ReaderProgress(
            buffer.position, gtids, server, self._writable, self.epoch, buffer.one_phase
        )

    def take(self) -> LogSegment | MysqlSegment:
        """Take all whole transactions out of the buffer."""
        has_rows = self._buffer.whole_rows > 0
        segment = self._buffer.take()
        self._taken = segment.position if has_rows else self._taken
        return segment

    def take_open(self) -> LogSegment | MysqlSegment | None:
        """Take what is held of the open transaction; only right after `take`."""
        return self._buffer.take_open()

    def confirm(self, position: int) -> None:
        """Confirm nothing, as the server needs none; raise if its GTIDs can be known by reopening the log."""
        self._confirmed = position
        file = unpack_binlog_position(position)[0]
        if self._buffer.gtids is not None or file <= self._opened_file:
            return
        self._opened_file = file
        with driver_errors("reading GTIDs"):
            if has_gtids(self._side, self._server):
                raise TransientError(f"what was executed before log file {file} is listed there")

    def not_yet_visible(self, position: int) -> list[InvisibleCommit]:
        """Return none: a chunk's snapshot is proven without them."""
        return []

    def close(self) -> None:
        """Close the connections; never raises."""
        self._stream.close()
        close(self._side)

    def _record_file(self) -> None:
        """Record the file being read, unless it is the recorded one."""
        file, created = self._buffer.file, self._buffer.created
        if not self._writable or file == self._recorded_file or created is None:
            return
        with driver_errors("recording the log file"):
            recorded = self._state_table.record_file(
                self._side, RecordedFile(self._server.uuid, file, created)
            )
        if recorded:
            self._recorded_file = file

    def _note_writable(self, writable: bool) -> None:
        """Record whether the server may be written to; once it may, write what was held back."""
        if writable and not self._writable:
            self._recorded_file = _NOT_RECORDED
        self._writable = writable

    def _poll_end_of_log(self) -> None:
        """Query the end of the log; raise if it is before our position, or ahead while nothing arrives.

        Also checks whether the server may be written to: it may have become a replica, or ceased to be one.
        """
        doing = "reading the end of the log"
        with driver_errors(doing):
            with answered(descriptor_of(self._side), doing):  # what follows may wait for a replica
                writable = self._state_table.is_writable(self._side, self._writable)
            self._note_writable(writable)
            if not self._writable:  # it may be a replica by now, and not log what it applies
                ensure_logging(self._side, self._server)
            self._record_file()
            self._buffer.engine_lsn = engine_lsn(self._side)
            name, offset = end_of_log(self._side, self._server)
            end, position = position_of(name, offset), self.position
            self.behind_bytes = self._distance(position, name, offset)
        self._polled_at = now = time.monotonic()
        if end < position and self._buffer.whole_rows == 0:
            raise TransientError(
                f"the server's log ends at {name} {offset}, before {format_binlog_position(position)}"
            )
        moved_from, received, since = self._moved
        waits = self._buffer.locked is not None or self._is_unread_reported
        more = waits or self._stream.received - received > STALL_BYTES
        comes = self._buffer.held_bytes or more
        if end <= position or position != moved_from or comes:
            self._moved = position, self._stream.received, now
        elif now - since > STALL_SECONDS:
            raise TransientError(
                f"nothing arrives after {format_binlog_position(position)}; the log ends at {name} {offset}"
            )

    def _distance(self, position: int, name: str, offset: int) -> int:
        number, ours = unpack_binlog_position(position)
        if position_of(name, offset) <= position:
            return 0
        if position_of(name, 0) >> 32 == number:
            return offset - ours
        files = log_files(self._side)
        between = sum(f.size for f in files.values() if number <= f.number < position_of(name, 0) >> 32)
        return max(0, between - ours + offset)
