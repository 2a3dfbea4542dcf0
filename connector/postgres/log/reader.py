"""The log reader: in bulk while far behind, otherwise as a stream, both into one buffer.

Invariants:

- The buffer is empty whenever the reader switches between the two, so its messages are all of one kind.
- The log counts as read over one connection while the server process behind the side connection lives, which
  a crash of the server would end.
- Names of tables are compared with the catalog's once log has been read and before it is taken. So the names
  that log is taken with are checked against a catalog no older than any check whose dumps it follows.
- The log is opened again once everything from before a table was renamed has landed, if the server may go on
  with its former name.
- Only `confirm` lets the server discard log. The slot moves by a status message while it is streamed, and by
  `pg_replication_slot_advance` while a copy of it is read: in bulk, or as a stream by psycopg2 alone. Then
  others can move it, too, or create it anew, and the server begins at its position without an error, if that
  is after the one asked for. So whenever slot or copy have been opened, it must not have passed ours.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from psycopg2.extensions import connection as Connection

from connector.codec.log_segment import LogSegment
from connector.errors import PreconditionError, TransientError
from connector.landing.manifest import InvisibleCommit
from connector.position import format_lsn, parse_lsn
from connector.postgres.codec.segment import PostgresSegment
from connector.postgres.connection import all_rows, close, driver_errors, idle_sessions, one_row
from connector.postgres.log.buffer import LogBuffer
from connector.postgres.log.bulk import BacklogReader
from connector.postgres.log.descriptions import DESCRIBES_SCHEMA_RENAMES
from connector.postgres.log.stream import StreamReader
from connector.postgres.log.wal import round_to_record_end
from connector.postgres.primary_session import CHANGED, Process, process_of
from connector.postgres.slot import REFUSED, advance_slot, awaited_standbys, find_slot
from connector.postgres.visibility import Snapshot, Visibility
from connector.schema import TableName
from connector.silence import answered

log = logging.getLogger(__name__)

BULK_BYTES = 64 << 20
"""Read in bulk if the end of the log is further ahead than this: setup costs about 0.1 s."""

CAUGHT_UP_BYTES = 8 << 20
"""Switch to the stream when less than this is left."""

POLL_SECONDS = 2.0
"""Interval between queries for the end of the log and a snapshot that shows which commits are visible."""

WAIT_SECONDS = 0.05
"""Interval between attempts to resolve a layout that is not known yet."""

MOST_COMMITS = 20_000
"""Query a snapshot earlier if this many commits are recorded: about 3 MB."""

UNDECODABLE = ("42704", "22", "54", "XX")
"""SQLSTATEs, or their classes, of log that the server can't decode: changes older than the publication
(pgoutput looks it up as of each change), values whose text would exceed 1 GB, failing output functions.
"""

ADVANCE_SHARE = 0.05
"""Limit of the share of time spent advancing the slot: each time the server rereads the log up to there, from
the beginning of the longest transaction.
"""


_NAMES = """
    SELECT given.oid::bigint, n.nspname::text, c.relname::text, pg_current_snapshot()::text,
           pg_current_wal_insert_lsn()::text
    FROM unnest(%s::oid[]) AS given(oid) LEFT JOIN pg_class c ON c.oid = given.oid
    LEFT JOIN pg_namespace n ON n.oid = c.relnamespace"""


class PostgresLogReader:
    """Reads the log after a position; implements `connector.source.LogReader`.

    `side`: a separate connection for the catalog, snapshots and the end of the log. `connect` opens one for
    bulk reading, or (true) one for the stream. `unbroken`: see `connector.source.LogReader`.
    """

    def __init__(
        self,
        buffer: LogBuffer,
        visibility: Visibility,
        side: Connection,
        connect: Callable[[bool], Connection],
        slot: str,
        publication: str,
        bulk_bytes: int = BULK_BYTES,
    ) -> None:
        self.behind_bytes, self.unbroken = 0, False
        self.unreadable: str | None = None
        self._buffer, self._visibility, self._side, self._connect = buffer, visibility, side, connect
        self._slot, self._publication, self._bulk_bytes = slot, publication, bulk_bytes
        self._names = buffer.descriptions
        self._names.describes_schema_renames = side.server_version >= DESCRIBES_SCHEMA_RENAMES
        self._process: Process | None = process_of(side)
        self._log_source: StreamReader | BacklogReader | None = None
        self._may_read_in_bulk, self._warned_of_standbys = True, False
        self._late_standbys: dict[str, str] = {}
        self._confirmed = self._advanced = self._compared = visibility.position
        self._polled_at, self._advance_after, self._polled_position = 0.0, 0.0, -1
        try:
            self._choose_reader()
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> int:
        """A transaction boundary: everything up to it has been read. It moves while idle, too."""
        return self._visibility.position

    @property
    def buffered_bytes(self) -> int:
        """Raw bytes held, of whole transactions and the open one."""
        return self._buffer.bytes

    @property
    def buffered_rows(self) -> int:
        """Messages held, of whole transactions."""
        return self._buffer.whole_rows

    def read(self, seconds: float, upto_bytes: int) -> None:
        """Read for `seconds`, or until the buffer holds `upto_bytes`.

        Returns early at the end of a bulk read if the buffer must be taken before the stream can continue.
        Sets `unreadable` and raises `TransientError` if the server can't decode what comes next.
        """
        try:
            self._read(seconds, upto_bytes)
        except PreconditionError as error:
            if not (getattr(error.__cause__, "sqlstate", None) or "").startswith(UNDECODABLE):
                raise
            self.unreadable = str(error)
            raise TransientError(str(error)) from error

    def _read(self, seconds: float, upto_bytes: int) -> None:
        if outdated := self._names.outdated_before(self._confirmed):
            raise TransientError(f"the log still uses the former name {min(outdated)} of a renamed table")
        if not self._buffer.resume():
            time.sleep(min(seconds, WAIT_SECONDS))
        elif isinstance(self._log_source, BacklogReader):
            self._log_source.read(seconds, upto_bytes)
            if self._log_source.done and self._buffer.empty:
                self._choose_reader()
        elif isinstance(self._log_source, StreamReader):
            self._log_source.read(seconds, upto_bytes, lambda: self._visibility.position)
        if time.monotonic() - self._polled_at > POLL_SECONDS or self._visibility.size > MOST_COMMITS:
            self._compare_names()
            self._poll_end_of_log()
            self._note_if_held_back()
        self._advance_if_due()

    def take(self) -> LogSegment | PostgresSegment:
        """Take all whole transactions out of the buffer, once their tables' names are compared."""
        if self.position > self._compared:
            self._compare_names()
        return self._buffer.take()

    def take_open(self) -> LogSegment | PostgresSegment | None:
        """Take what is held of the open transaction; only right after `take`."""
        return self._buffer.take_open()

    def confirm(self, position: int) -> None:
        """Report to the source that everything up to `position` is durable here."""
        self._confirmed = max(self._confirmed, position)
        if isinstance(self._log_source, StreamReader):
            self._log_source.confirm(self._confirmed)
        self._advance_if_due()

    def not_yet_visible(self, position: int) -> list[InvisibleCommit]:
        """Return the commits at or before `position` that a fresh snapshot does not show yet."""
        return (
            self._visibility.not_yet_visible(position, self._poll_end_of_log())
            if self._visibility.size
            else []
        )

    def close(self) -> None:
        """Close the connections; never raises."""
        if self._log_source is not None:
            self._log_source.close()
        close(self._side)

    def _choose_reader(self) -> None:
        """Open the bulk or the stream reader, by the distance to the end of the log."""
        if isinstance(self._log_source, BacklogReader):
            self._may_read_in_bulk = not self._log_source.no_room
            self._log_source.close()
            self._log_source = None
        self._advance_slot()
        self._poll_end_of_log()
        far_behind = self.behind_bytes > self._bulk_bytes
        if far_behind and self._may_read_in_bulk and self._open_backlog():
            return
        connection, position = self._connect(True), self._visibility.position
        self._log_source = StreamReader(
            connection,
            self._buffer,
            self._slot,
            self._publication,
            position,
            self._confirmed,
            self._works(connection),
        )
        self._require_unpassed(position)
        self._poll_end_of_log()  # one process spans both readers: the server has not crashed

    def _require_unpassed(self, position: int) -> None:
        """Raise `TransientError` if the slot has passed a position: a gap, as the next try will find."""
        doing = f"reading slot {self._slot}"
        with driver_errors(doing), answered(self._side.fileno(), doing):
            found = find_slot(self._side, self._slot)
        if found is None or found.confirmed is None or found.confirmed > position:
            raise TransientError(f"slot {self._slot} was moved past {format_lsn(position)}, or re-created")

    def _works(self, connection: Connection) -> Callable[[], bool]:
        """Return what asks, beside the log, whether the server is at work on a connection that reads it."""
        session, doing = getattr(connection, "session", None), "looking for the session that reads the log"

        def works() -> bool:
            with driver_errors(doing), answered(self._side.fileno(), doing):
                return session is None or not idle_sessions(self._side, [session])

        return works

    def _open_backlog(self) -> bool:
        connection = self._connect(False)
        backlog = BacklogReader.open(
            connection,
            self._buffer,
            self._slot,
            self._publication,
            self._visibility,
            CAUGHT_UP_BYTES,
            self._works(connection),
        )
        if backlog is None:
            return False
        self._log_source = backlog
        self._require_unpassed(self._visibility.position)
        log.info("reading %s MiB of log in bulk", self.behind_bytes >> 20)
        return True

    def _advance_if_due(self) -> None:
        """Advance the slot to the confirmed position, unless the stream does so, or it just took long."""
        streamed = isinstance(self._log_source, StreamReader) and self._log_source.confirms_slot
        if self._confirmed > self._advanced and not streamed and time.monotonic() > self._advance_after:
            self._advance_slot()

    def _advance_slot(self) -> None:
        began = time.monotonic()
        with driver_errors("moving the slot", REFUSED):
            moved = advance_slot(self._side, self._slot, self._confirmed)
        now = time.monotonic()
        if moved:
            self._advanced, self._warned_of_standbys = self._confirmed, False
            self._advance_after = now + (now - began) / ADVANCE_SHARE
            return
        self._advance_after = now + POLL_SECONDS
        self._warn_of_standbys(self._confirmed)

    def _note_if_held_back(self) -> None:
        """Say so if the server sends nothing, for as long as a standby lacks what it would send."""
        stood, self._polled_position = self._polled_position == self.position, self.position
        if stood and self.behind_bytes and isinstance(self._log_source, StreamReader):
            self._warn_of_standbys(self.position + self.behind_bytes)

    def _warn_of_standbys(self, position: int) -> None:
        """Warn of standbys that lack log before a position, and have not moved since the last call.

        Once, until none of them lacks any: some move in steps.
        """
        doing = "looking for standbys that the server waits for"
        with driver_errors(doing), answered(self._side.fileno(), doing):
            late = awaited_standbys(self._side, self._slot, position)
        stuck, self._late_standbys = dict(late.items() & self._late_standbys.items()), late
        if stuck and not self._warned_of_standbys:
            log.warning(
                "slot %s stays where standbys in synchronized_standby_slots are, and so does what streams"
                " from it: %s. Start them, or take those that are gone out of that setting",
                self._slot,
                "; ".join(f"{name}{where}" for name, where in sorted(stuck.items())),
            )
        self._warned_of_standbys = bool(stuck) or (self._warned_of_standbys and bool(late))

    def _compare_names(self) -> None:
        """Find tables that were renamed without being described again, or may have been before they went.

        If there are any, logs something: only what is taken after this names them, and no more log may come.
        """
        self._compared = self.position
        if not (described := self._names.may_be_outdated()):
            return
        doing = "reading the names of tables"
        with driver_errors(doing), answered(self._side.fileno(), doing):
            found = all_rows(self._side, _NAMES, (described,))
        *_, snapshot, lsn = found[-1]
        current = {oid: TableName(*name) for oid, *name, _, _ in found if None not in name}
        end = round_to_record_end(parse_lsn(lsn))
        if self._names.compare(current, end, Snapshot.parse(snapshot).shows):
            with driver_errors("logging the end of a transaction"):
                one_row(self._side, "SELECT pg_current_xact_id()")

    def _poll_end_of_log(self) -> Snapshot:
        """Query a fresh snapshot and the end of the log; forget commits that the snapshot shows."""
        doing = "reading the end of the log"
        with driver_errors(doing), answered(self._side.fileno(), doing):
            row = one_row(self._side, "SELECT pg_current_snapshot()::text, pg_current_wal_flush_lsn()::text")
        assert row is not None
        if process_of(self._side) != self._process:
            raise TransientError(CHANGED)
        snapshot = Snapshot.parse(row[0])
        self._visibility.forget_visible_commits(snapshot)
        self.behind_bytes = max(0, parse_lsn(row[1]) - self._visibility.position)
        self._polled_at = time.monotonic()
        return snapshot
