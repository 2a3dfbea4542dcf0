"""The log reader's buffer: from packets to segments of whole transactions, and of the open one. Does no I/O.

The grammar of the log, and the modules that parse it; this one dispatches to them::

    log   := { file }                                         file_sequence
    file  := FORMAT { group } [ ROTATE | STOP ]               file_sequence
    group := GTID { TABLE_MAP | ROWS | statement } commit     event_groups
           | GTID TRANSACTION_PAYLOAD                         transaction_payload, then as above

A packet is one event (`connector.mysql.log.packet` names its bytes), but a TRANSACTION_PAYLOAD may span
several. `feed` is the hot loop: it handles rows events itself. Everything else happens once per group, table
map or statement. `connector.mysql.log.pending_events` holds the rows events.

Follows "Binlog Event" and "Binlog Management" in MySQL's source documentation (for compressed transactions,
Transaction_payload_event), and "Replication Protocol" in MariaDB's. The modules above name the pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from connector.codec.log_segment import LogSegment
from connector.errors import BugError, NotYetError
from connector.landing.manifest import LastCommit
from connector.mysql import log_identity
from connector.mysql.catalog_fingerprint import Statements
from connector.mysql.codec.rows_event import CASCADING, MARIADB_INSERTS, SQL_KEYS_OR_NONE, UNCHECKED
from connector.mysql.codec.segment import ROWS_EVENTS, TABLE_MAP, MysqlSegment, Transactions
from connector.mysql.gtid import Gtids
from connector.mysql.log import events
from connector.mysql.log.ddl_effects import DdlEffects
from connector.mysql.log.event_groups import EventGroups
from connector.mysql.log.events import ARTIFICIAL, FRAMES, STOP, TRANSACTION_PAYLOAD, Begin
from connector.mysql.log.file_sequence import FileSequence
from connector.mysql.log.packet import (
    BASE,
    BODY,
    END,
    FILE_START,
    FLAGS,
    HEADER,
    ROWS_FLAGS,
    TABLE_ID,
    TYPE,
    TYPE_IN_EVENT,
    header_of,
    size_of,
    uint32_at,
)
from connector.mysql.log.pending_events import EVENT_OVERHEAD, PendingRows, announcement
from connector.mysql.log.schema_cache import SchemaCache
from connector.mysql.log.transaction import OnePhaseCommits, ShownByLog
from connector.mysql.log.transaction_payload import Payload
from connector.mysql.server import MAX_OFFSET
from connector.position import Position, pack_binlog_position, unpack_binlog_position
from connector.schema import TableName
from connector.source import ResumePoint


class LogBuffer:
    """The log that was read and not taken yet. Used by one thread at a time, except for `position`.

    `gtids`: the transactions executed up to `position`, updated here; None if unknown. `statements` records
    those that rebuild tables. A file that ends with neither a ROTATE nor a STOP means that the server
    crashed: unless log and tables agree after crashes (`survives_crashes`), all tables are dumped again. So
    they are if a ROTATE, which moves the position only when the next file is there, leads to a file that a
    new process began: the former process could not begin it, and ran without its log. After any crash, those
    in `one_phase` (`connector.mysql.log.transaction`) are.

    `locked`: why the layout of a table in the next event can't be known now; it and what follows wait.
    `cut_off`: see `connector.mysql.log.event_groups`; `prepared`: see `connector.mysql.log.ddl_effects`;
    `shown`: see `connector.mysql.log.transaction`. `engine_lsn`: how far InnoDB's log was on disk when
    the reader last asked, recorded with the last commit.
    """

    def __init__(
        self,
        epoch: int,
        position: int,
        schema_cache: SchemaCache,
        gtids: Gtids | None = None,
        statements: Statements | None = None,
        cut_off: set[Position] | None = None,
        prepared: dict[str, set[TableName]] | None = None,
        one_phase: OnePhaseCommits | None = None,
        shown: ShownByLog | None = None,
        *,
        survives_crashes: bool = True,
    ) -> None:
        self.position = position
        self.one_phase = one_phase or OnePhaseCommits()
        self._shown = shown or ShownByLog()
        self._epoch = epoch
        # Since 11.4, MariaDB's events carry their end only at the begin and the end of a transaction.
        self._ends_may_lack = schema_cache.mariadb
        self._inserts = MARIADB_INSERTS if schema_cache.mariadb else frozenset[int]()
        self._survives_crashes = survives_crashes
        self._files = FileSequence(position)
        self._pending = PendingRows(schema_cache)
        self._effects = DdlEffects(schema_cache, self._pending, statements, prepared)
        self._groups = EventGroups(
            epoch, self._files, self._pending, self._effects, schema_cache, gtids, cut_off, self.one_phase,
            self._shown,
        )  # fmt: skip
        self.locked: str | None = None
        self.engine_lsn: int | None = None
        self._payload: Payload | None = None
        self._waiting: list[bytes] = []

    @property
    def held_bytes(self) -> int:
        """Bytes of the buffered rows events."""
        return self._pending.bytes

    @property
    def whole_rows(self) -> int:
        """Buffered rows events of whole transactions."""
        return self._groups.whole_rows

    @property
    def gtids(self) -> Gtids | None:
        """The transactions executed up to `position`; None if unknown."""
        return self._groups.gtids

    @property
    def file(self) -> int:
        """The number of the file being read."""
        return self._files.file

    @property
    def created(self) -> int | None:
        """Its creation time, in seconds since 1970; None until it has arrived."""
        return self._files.created

    def feed(self, packets: Sequence[bytes]) -> None:
        """Add events as received, with the packet's status byte and the checksum; first retry if `locked`."""
        if self._is_unpacking():
            self._waiting += packets
            return
        if self.locked is not None:
            packets, self._waiting, self.locked = [*self._waiting, *packets], [], None
        files, groups, pending = self._files, self._groups, self._pending
        offset, ordinal = files.offset, groups.ordinal
        payloads, ordinals, current = pending.payloads, pending.ordinals, pending.current
        ends_may_lack, shown, inserts = self._ends_may_lack, self._shown, self._inserts
        size = 0
        left = iter(packets)
        for packet in left:
            kind = packet[TYPE]
            if kind in FRAMES or packet[FLAGS] & ARTIFICIAL:
                files.offset = offset
                self._handle_frame(kind, packet)
                offset, payloads = files.offset, pending.payloads
                continue
            end = offset + len(packet) - BASE
            announced = uint32_at(packet, END)[0]
            if announced != end & MAX_OFFSET and (announced or not ends_may_lack):
                is_first_piece = kind == TRANSACTION_PAYLOAD and size_of(packet) > len(packet) - BASE
                if not is_first_piece:
                    raise files.broken(packet, end)
            if kind in ROWS_EVENTS:
                if groups.open is None:
                    raise BugError(f"a rows event outside of a transaction, {files}")
                known = current.get(int.from_bytes(packet[TABLE_ID], "little"))
                if known is None:
                    raise BugError(f"a rows event without a table map, {files}")
                if known.schema is not None and not groups.open.landed:
                    payloads.append(packet)
                    ordinals.append(ordinal)
                    size += len(packet) + EVENT_OVERHEAD
                if kind in CASCADING and not packet[ROWS_FLAGS] & SQL_KEYS_OR_NONE:
                    shown.native_keys = True
                    self._effects.report_cascades(groups.open.lsn)
                elif kind in inserts and packet[ROWS_FLAGS] & UNCHECKED == UNCHECKED:
                    groups.open.note_unchecked_insert()
                ordinal += 1
            elif kind == TABLE_MAP:
                groups.ordinal = ordinal
                try:
                    groups.add_table_map(packet[BODY : len(packet) - pending.tail])
                except NotYetError as error:
                    self.locked, self._waiting = str(error), [packet, *left]
                    break
            else:
                files.offset, groups.ordinal = offset, ordinal
                try:
                    self._handle_control(kind, packet, end)
                except NotYetError as error:
                    if kind == TRANSACTION_PAYLOAD:  # part of it has been held
                        raise
                    self.locked, self._waiting = str(error), [packet, *left]
                    break
                ordinal = groups.ordinal
                if self._is_unpacking():
                    self._waiting = list(left)
                    break
            offset = end
            if groups.open is None and kind != STOP:  # a reader that resumes here must see the STOP
                self.position = pack_binlog_position(files.file, offset)
        files.offset, groups.ordinal = offset, ordinal
        pending.bytes += size

    def _handle_control(self, kind: int, packet: bytes, end: int) -> None:
        """Handle an event that is neither rows nor a table map."""
        if kind == STOP:
            self._files.stopped = True
        elif kind == TRANSACTION_PAYLOAD:
            payload = Payload(packet, self._files.offset)
            if payload.is_small:
                self._unpack(payload)
            else:
                self._payload = payload
        else:
            self._groups.handle(kind, packet, end)

    # Compressed transactions.

    def _is_unpacking(self) -> bool:
        """Return whether a compressed transaction is still being unpacked, so later events wait."""
        return self._payload is not None

    def unpack_more(self, upto_bytes: int) -> bool:
        """Unpack `upto_bytes` more of a compressed transaction; False: there is none, or more must arrive.

        Meanwhile, what is passed to `feed` waits behind it.
        """
        payload = self._payload
        if payload is None:
            return False
        for _ in range(len(self._waiting)):
            if payload.whole:
                break
            payload.add(self._waiting.pop(0))
        if not payload.whole:
            return False
        if not payload.ends_as_announced:
            raise self._files.broken(payload.head, payload.end)
        if self._unpack(payload, upto_bytes):
            self._payload, self._files.offset = None, payload.end
            if self._groups.open is None:
                self.position = self._files.position
            waiting, self._waiting = self._waiting, []
            self.feed(waiting)
        return True

    def _unpack(self, payload: Payload, upto_bytes: float = math.inf) -> bool:
        """Feed `upto_bytes` of its events, which have neither checksums nor offsets; False: more are left."""
        groups, pending, size = self._groups, self._pending, 0
        padding = bytes(pending.tail)
        for event in payload.events():
            packet, kind = bytes(BASE) + event + padding, event[TYPE_IN_EVENT]
            if kind == TABLE_MAP:
                groups.add_table_map(event[HEADER:])
            elif kind in ROWS_EVENTS:
                known = pending.current.get(int.from_bytes(packet[TABLE_ID], "little"))
                if known is None:
                    raise BugError(f"a rows event without a table map, {self._files}")
                if known.schema is not None and not groups.skips_rows:
                    pending.hold(packet, groups.ordinal)
                if groups.open and kind in CASCADING and not packet[ROWS_FLAGS] & SQL_KEYS_OR_NONE:
                    self._shown.native_keys = True
                    self._effects.report_cascades(groups.open.lsn)
                groups.ordinal += 1
            else:
                self._handle_control(kind, packet, payload.end)
            size += len(event) + EVENT_OVERHEAD
            if size >= upto_bytes and groups.open is not None:  # else the position would still be before it
                return False
        return True

    # Files.

    def _handle_frame(self, kind: int, packet: bytes) -> None:
        """Handle events that frame files or are in none: ROTATE, FORMAT, heartbeats, artificial events."""
        seconds, _, _, _, end, flags = header_of(packet)
        artificial = bool(flags & ARTIFICIAL)
        if kind == events.ROTATE:
            self._end_file(packet, artificial=artificial)
            return
        if kind == events.FORMAT:
            self._begin_file(packet, seconds)
        if kind in (events.FORMAT, events.START_ENCRYPTION) and end and not artificial:
            self._files.advance(packet)  # both lack an end if reading begins within a file
            if self._groups.open is None:
                self.position = self._files.position

    def _begin_file(self, packet: bytes, seconds: int) -> None:
        files = self._files
        self._pending.change_tail(events.checksum_bytes(packet))
        self._pending.begin_file()
        files.created = seconds
        if files.rotated and events.begins_process(packet):
            self._effects.reread_all(self.position, "the server ran for a while without writing its log")
        files.rotated = False
        if files.offset == FILE_START:
            self._groups.last = files.position, seconds

    def _end_file(self, packet: bytes, *, artificial: bool) -> None:
        """Move to the next file; an artificial ROTATE may only name the next file in the stream."""
        files, groups = self._files, self._groups
        if not artificial:
            files.advance(packet)
        targets = events.rotate_targets(packet[BODY:], self._pending.tail)
        if not files.leads_on(targets, artificial=artificial):
            return
        crashed = artificial and not files.stopped
        if groups.open is not None and not groups.open.ended:
            groups.end_with_file(crashed=crashed)
        files.begin_next(rotated=not artificial and groups.open is None)
        if crashed:
            self._effects.note_crash(files.position)  # before `position`, by which a reading is judged
        if groups.open is not None:
            groups.close()
        if not files.rotated:
            self.position = files.position
        if crashed and not self._survives_crashes:
            self._effects.reread_all(files.position, "the server crashed")
        elif crashed:
            # That file may have been begun while the last ones of the file before it were still to end.
            lost = self.one_phase.since(self._epoch, pack_binlog_position(files.file - 2, 0))
            self._effects.reread(lost, files.position, "the server crashed, and may lack rows that it logged")

    # Segments.

    @property
    def unlogged_count(self) -> int:
        """The number of tables that whole transactions may have changed without row events."""
        open_ = self._groups.open
        return self._effects.count_unlogged(open_.lsn if open_ else None)

    def take(self) -> LogSegment | MysqlSegment:
        """Take all whole transactions, and all that was found out about tables in the open one."""
        rows, transactions = self._groups.take_whole()
        open_ = self._groups.open
        return self._slice_segment(rows, transactions, open_.lsn if open_ else None)

    def take_open(self) -> LogSegment | MysqlSegment | None:
        """Take what is buffered of the open transaction; only right after `take`."""
        if self._groups.open is None or not self._pending.payloads:
            return None
        return self._slice_segment(len(self._pending.payloads), self._groups.take_part(), None)

    def _slice_segment(
        self, rows: int, transactions: Transactions, open_lsn: int | None
    ) -> LogSegment | MysqlSegment:
        micros = self._groups.committed_at
        committed_at = None if micros is None else log_identity.to_datetime(micros)
        segment = self._pending.slice_segment(rows, transactions, self._epoch, self._end(), committed_at)
        quarantined, layouts = self._effects.take_found(open_lsn)
        done = self._effects.take_done(open_lsn)
        announced = [announcement(schema, self._epoch, lsn) for lsn, schema in layouts]
        if not (quarantined or announced or done):
            return segment
        return LogSegment(segment, quarantined, announced, done)

    def _end(self) -> ResumePoint:
        gtids, needed = (None, None) if self.gtids is None else (str(self.gtids), self.gtids.needed)
        return ResumePoint(self.position, gtids=gtids, gtids_needed=needed, last_commit=self._last_commit())

    def _last_commit(self) -> LastCommit | None:
        if self._groups.last is None:
            return None
        lsn, begun = self._groups.last
        if isinstance(begun, Begin):
            last = log_identity.of_transaction(lsn, begun)
        else:
            last = log_identity.of_file(unpack_binlog_position(lsn)[0], begun)
        return last.model_copy(update={"engine_lsn": self.engine_lsn})
