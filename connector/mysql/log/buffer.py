"""The log reader's buffer: assembles the log's events into whole transactions and the open one. Does no I/O.

Invariants:

- Continuity: each event of a file ends where its header says, and begins where the one before it ended; files
  follow each other by number. Anything else is an error, so nothing is skipped or duplicated.
- A transaction's `lsn` is where its GTID event begins; the position after it is where its last event ends.
  Offsets here have 64 bits. In a file that grew beyond 4 GiB within one transaction, what follows in that
  file counts as part of that transaction, until the next file begins.
- `feed` is the hot loop. Everything else happens once per transaction, layout or statement.

`connector.mysql.log.pending_events` holds rows events, `connector.mysql.log.transaction` the open
transaction; `connector.mysql.log.ddl_effects` handles what statements do to tables.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from connector.errors import BugError, PreconditionError, TransientError
from connector.landing.manifest import LastCommit
from connector.log_segment import LogSegment
from connector.mysql import continuity
from connector.mysql.catalog_fingerprint import Statements
from connector.mysql.codec.segment import ROWS_EVENTS, TABLE_MAP, MysqlSegment, Transactions, unpack_position
from connector.mysql.codec.segment import pack_position as pack
from connector.mysql.gtid import Gtids
from connector.mysql.log import events
from connector.mysql.log.ddl_effects import DdlEffects, UnloggedChange
from connector.mysql.log.events import FRAMES, Begin
from connector.mysql.log.pending_events import BASE, EVENT_OVERHEAD, PendingRows, announcement
from connector.mysql.log.schema_cache import SchemaCache
from connector.mysql.log.transaction import OpenTransaction
from connector.mysql.log.transaction_payload import Payload, size_of
from connector.mysql.server import MAX_OFFSET
from connector.position import Position
from connector.schema import TableName

_BODY = BASE + events.HEADER
_uint32 = struct.Struct("<I").unpack_from
_header = struct.Struct("<IBIIIH").unpack_from
"""Time, type, server id, size, end, flags."""


class LogBuffer:
    """The log read and not taken yet. One thread at a time, except for `position`.

    `gtids`: the transactions executed up to `position`, kept current here; None if unknown. `statements`
    records those that rebuild tables. A file that ends with neither a ROTATE nor a STOP means that the server
    crashed: unless it `survives_crashes` with the same rows in log and tables, all tables are read again. So
    they are if a ROTATE, which moves the position only when the next file is there, leads to one that a new
    process began: the former process could not, and went on without its log.

    A transaction cut off by the end of such a file never happened: MariaDB leaves it there and rolls it back.
    Parts of it may have been taken already, so it is added to `cut_off`, reading ends, and the next reader,
    given the same set, skips it. `prepared`: see `connector.mysql.log.ddl_effects`.
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
        *,
        survives_crashes: bool = True,
    ) -> None:
        self.gtids = gtids
        self.whole_rows = 0
        self.position = position
        self.created: int | None = None
        self._epoch = epoch
        self._schema_cache = schema_cache
        self._held = PendingRows(schema_cache)
        self._effects = DdlEffects(schema_cache, self._held, statements, prepared)
        self._survives_crashes, self._stopped, self._rotated = survives_crashes, False, False
        self._file, self._offset = unpack_position(position)
        self._cut_off = set() if cut_off is None else cut_off
        self._started = False
        self._committed_at: int | None = None
        self._last: tuple[int, Begin | int] | None = None
        self._ordinal = 0
        self._transactions = Transactions()
        self._open: OpenTransaction | None = None
        self._payload: Payload | None = None
        self._waiting: list[bytes] = []

    @property
    def held_bytes(self) -> int:
        """Bytes of the rows events held."""
        return self._held.bytes

    def _is_unpacking(self) -> bool:
        """Return whether a compressed transaction is still being unpacked, so later events wait."""
        return self._payload is not None

    @property
    def file(self) -> int:
        """The number of the file being read."""
        return self._file

    def feed(self, packets: Sequence[bytes]) -> None:
        """Add events as received, with the packet's status byte and the checksum."""
        offset, ordinal, held = self._offset, self._ordinal, self._held
        payloads, ordinals, current = held.payloads, held.ordinals, held.current
        # Since 11.4, MariaDB's events carry their end only at the begin and the end of a transaction.
        positionless = self._schema_cache.mariadb
        size = 0
        if self._is_unpacking():
            self._waiting += packets
            return
        left = iter(packets)
        for packet in left:
            kind = packet[5]
            if kind in FRAMES or packet[18] & events.ARTIFICIAL:
                self._offset = offset
                self._frame(kind, packet)
                offset, payloads = self._offset, held.payloads
                continue
            end = offset + len(packet) - BASE
            said = _uint32(packet, 14)[0]
            if said != end & MAX_OFFSET and (said or not positionless):
                if kind != events.TRANSACTION_PAYLOAD:
                    raise self._broken(packet, end)
                end = self._end_of_payload(packet, offset)
            if kind in ROWS_EVENTS:
                if self._open is None:
                    raise BugError(f"a rows event outside of a transaction, {self._where()}")
                known = current.get(int.from_bytes(packet[20:26], "little"))
                if known is None:
                    raise BugError(f"a rows event without a table map, {self._where()}")
                if known.schema is not None and not self._open.landed:
                    payloads.append(packet)
                    ordinals.append(ordinal)
                    size += len(packet) + EVENT_OVERHEAD
                ordinal += 1
            elif kind == TABLE_MAP:
                self._learn(packet[_BODY : len(packet) - held.tail])
            else:
                self._offset, self._ordinal = offset, ordinal
                self._control(kind, packet, end)
                ordinal = self._ordinal
                if self._is_unpacking():
                    self._waiting = list(left)
                    break
            offset = end
            if self._open is None and kind != events.STOP:  # a reader that resumes here must see the STOP
                self.position = pack(self._file, offset)
        self._offset, self._ordinal = offset, ordinal
        held.bytes += size

    def _learn(self, body: bytes) -> None:
        mapped = self._held.learn(body)
        if self._open is not None:
            self._open.touch(mapped)

    def unpack_more(self, upto_bytes: int) -> bool:
        """Unpack `upto_bytes` more of a compressed transaction; False: there is none, or more must arrive.

        Meanwhile, what `feed` adds waits behind it.
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
        if self._unpack(payload, upto_bytes):
            self._payload, self._offset = None, payload.end
            if self._open is None:
                self.position = pack(self._file, payload.end)
            waiting, self._waiting = self._waiting, []
            self.feed(waiting)
        return True

    def take(self) -> LogSegment | MysqlSegment:
        """Take all whole transactions. What was found in the open one goes with it, in part or whole."""
        transactions, self._transactions = self._transactions, Transactions()
        rows, self.whole_rows = self.whole_rows, 0
        if self._open is not None:
            self._open.start -= rows
        return self._slice_segment(rows, transactions, self._open.lsn if self._open else None)

    def take_open(self) -> LogSegment | MysqlSegment | None:
        """Take what is held of the open transaction; only right after `take`."""
        if self._open is None or not self._held.payloads:
            return None
        transactions = Transactions()
        begin = self._open.begins[0]
        transactions.add(0, self._open.lsn, begin.micros, begin.txid)
        self._open.start, self._open.carried = 0, True
        return self._slice_segment(len(self._held.payloads), transactions, None)

    def _slice_segment(
        self, rows: int, transactions: Transactions, open_lsn: int | None
    ) -> LogSegment | MysqlSegment:
        committed_at = None if self._committed_at is None else continuity.to_datetime(self._committed_at)
        segment = self._held.slice_segment(
            rows, transactions, self._epoch, self.position, committed_at, self.gtids
        )
        segment.last_commit = self._last_commit()
        quarantined, layouts = self._effects.take_found(open_lsn)
        announced = [announcement(schema, self._epoch, lsn) for lsn, schema in layouts]
        return LogSegment(segment, quarantined, announced) if quarantined or announced else segment

    def _last_commit(self) -> LastCommit | None:
        if self._last is None:
            return None
        lsn, begun = self._last
        if isinstance(begun, Begin):
            return continuity.of_transaction(lsn, begun)
        return continuity.of_file(unpack_position(lsn)[0], begun)

    def take_unlogged(self) -> list[UnloggedChange]:
        """Take what must be recorded at the source, or else passed to `quarantine_unlogged`."""
        return self._effects.take_unlogged()

    def quarantine_unlogged(self, unlogged: UnloggedChange) -> None:
        """Quarantine a table whose change could not be recorded."""
        self._effects.quarantine_unlogged(unlogged)

    def _frame(self, kind: int, packet: bytes) -> None:
        """Handle framing events, which may be in no file: ROTATE, FORMAT, heartbeats, artificial events."""
        seconds, _, _, _, end, flags = _header(packet, BASE)
        if kind == events.FORMAT:
            self._held.change_tail(events.checksum_bytes(packet, BASE))
            self._held.begin_file()
            self.created = seconds
            if self._rotated and events.begins_process(packet, BASE):
                self._effects.reread_all(self.position, "the server ran for a while without writing its log")
            self._rotated = False
            if self._offset == continuity.FILE_START:
                self._last = pack(self._file, self._offset), seconds
        if kind == events.ROTATE:
            self._rotate(packet, bool(flags & events.ARTIFICIAL), end)
        elif kind in (events.FORMAT, events.START_ENCRYPTION) and end and not flags & events.ARTIFICIAL:
            self._advance(packet, end)  # both lack an end if reading begins within a file
            self.position = self.position if self._open else pack(self._file, self._offset)

    def _advance(self, packet: bytes, end: int) -> None:
        expected = self._offset + len(packet) - BASE
        if end != expected & MAX_OFFSET:
            raise self._broken(packet, expected)
        self._offset = expected

    def _rotate(self, packet: bytes, artificial: bool, end: int) -> None:
        """Move to the next file; an artificial ROTATE only names the file that follows in the stream."""
        if not artificial:
            self._advance(packet, end)
        targets = events.rotate_targets(packet[_BODY:], self._held.tail)
        if artificial and (self._file, self._offset) in targets:
            self._started = True
            return
        number, crashed = self._file + 1, artificial and not self._stopped
        if (number, 4) not in targets or not self._started:
            raise TransientError(f"the log continued at {targets}, not after {self._where()}")
        if self._open is not None and not self._open.ended:
            self._end_within_transaction(self._open, crashed=crashed)
        self._file, self._offset, self.created = number, 4, None
        self._stopped, self._rotated = False, not artificial and self._open is None
        if self._open is not None:
            self._end_transaction()
        if not self._rotated:
            self.position = pack(number, 4)
        if crashed and not self._survives_crashes:
            self._effects.reread_all(pack(number, 4), "the server crashed")

    def _end_within_transaction(self, found: OpenTransaction, *, crashed: bool) -> None:
        """Drop a transaction that a crash cut off and that was skipped; otherwise stop reading."""
        begin = Position(self._epoch, found.lsn, 0)
        if not crashed or begin not in self._cut_off:
            if crashed:
                self._cut_off.add(begin)
            raise TransientError(f"the log ended within a transaction, {self._where()}")
        self._held.end_transaction()
        self._open = None

    def _control(self, kind: int, packet: bytes, end: int) -> None:
        """Handle an event that is neither rows nor a layout."""
        seconds, _, server_id, _, _, flags = _header(packet, BASE)
        body = packet[_BODY : len(packet) - self._held.tail]
        if kind in events.BEGINS:
            self._begin(events.parse_begin(kind, seconds, server_id, body))
        elif kind in events.STATEMENTS:
            temporary = bool(flags & events.THREAD_SPECIFIC)
            self._query(events.parse_query(kind, body)._replace(temporary=temporary), seconds, end)
        elif kind == events.XID:
            self._commit(seconds, end)
        elif kind == events.XA_PREPARE:
            self._prepare(body, seconds, end)
        elif kind == events.STOP:
            self._stopped = True
        elif kind == events.TRANSACTION_PAYLOAD:
            payload = Payload(packet, end)
            if payload.is_small:
                self._unpack(payload)
            else:
                self._payload = payload
        elif kind == events.INCIDENT:
            lsn = self._open.lsn if self._open else self.position
            reason = "the server lost part of its log (an incident event)"
            self._disown()
            self._effects.quarantine(self._schema_cache.among(None), lsn, reason)
            if self._open is not None and not self._begun():  # in MySQL it is its own transaction
                self._commit(seconds, end)
        elif kind not in events.NOTHING and not flags & events.IGNORABLE:
            self._quarantine_unknown(kind)

    def _unpack(self, payload: Payload, upto_bytes: float = math.inf) -> bool:
        """Feed `upto_bytes` of its events, which have neither checksums nor offsets; False: more are left."""
        padding, held, size = bytes(self._held.tail), self._held, 0
        for event in payload.events():
            packet, kind = b"\0" + event + padding, event[4]
            if kind == TABLE_MAP:
                self._learn(event[events.HEADER :])
            elif kind in ROWS_EVENTS:
                known = held.current.get(int.from_bytes(packet[20:26], "little"))
                if known is None:
                    raise BugError(f"a rows event without a table map, {self._where()}")
                if known.schema is not None and not self._passes_over():
                    held.hold(packet, self._ordinal)
                self._ordinal += 1
            else:
                self._control(kind, packet, payload.end)
            size += len(event) + EVENT_OVERHEAD
            if size >= upto_bytes:
                return False
        return True

    def _end_of_payload(self, packet: bytes, offset: int) -> int:
        """Return the end offset of a compressed transaction in pieces, given the first."""
        end = offset + size_of(packet)
        if _uint32(packet, 14)[0] != end & MAX_OFFSET:
            raise self._broken(packet, end)
        return end

    def _begin(self, begin: Begin) -> None:
        landed = self.gtids is not None and begin.gtid is not None and self.gtids.holds(begin.gtid)
        if self._open is not None:
            if not self._open.ended:
                raise BugError(f"a transaction starts within another one, {self._where()}")
            self._open.begin_again(begin, landed=landed)
            return
        self._ordinal = 0
        lsn, start = pack(self._file, self._offset), len(self._held.payloads)
        landed = landed or Position(self._epoch, lsn, 0) in self._cut_off
        self._open = OpenTransaction(lsn, [begin], start, landed=landed)

    def _disown(self) -> None:
        """Mark the open transaction as not ours."""
        if self._open is not None:
            self._open.is_ours = False

    def _passes_over(self) -> bool:
        """Return whether the open transaction has landed before, so its rows are skipped."""
        return self._open is not None and self._open.landed

    def _commit(self, seconds: int, end: int) -> None:
        if self._open is None:
            raise BugError(f"a commit without a BEGIN in the log, {self._where()}")
        self._committed_at = self._open.begins[0].micros or seconds * 1_000_000
        self._open.ended = end > MAX_OFFSET
        if not self._open.ended:
            self._end_transaction()

    def _end_transaction(self) -> None:
        found = self._open
        assert found is not None
        rows = len(self._held.payloads)
        if rows > found.start:
            self._transactions.add(found.start, found.lsn, found.begins[0].micros, found.begins[0].txid)
        for begin in found.begins:
            if begin.gtid is None:
                self.gtids = None
            elif self.gtids is not None:
                self.gtids.add(begin.gtid, ours=found.is_ours is True)
        self._last = found.lsn, found.begins[0]
        self.whole_rows = rows
        self._held.end_transaction()
        self._open = None

    def _query(self, query: events.Query, seconds: int, end: int) -> None:
        """Handle a statement: it begins or ends a transaction, or changes tables by itself."""
        if self._open is None:
            raise BugError(f"a statement outside of a transaction, {self._where()}")
        statement = (query.statement or "").strip()
        first, _, rest = statement.upper().partition(" ")
        if first == "BEGIN" or (first == "XA" and rest.startswith(("START", "BEGIN"))):
            self._open.begun = True
            return
        if first != "COMMIT":
            self._disown()
        if first in ("COMMIT", "ROLLBACK") and not rest.startswith("TO"):
            if first == "ROLLBACK":
                self._quarantine_touched_tables("a transaction was rolled back after it was logged")
            self._commit(seconds, end)
            return
        if first == "ROLLBACK":
            self._quarantine_touched_tables("a savepoint was rolled back after it was logged")
        elif self._open.landed:
            pass  # and so have its effects
        elif first == "XA":
            self._effects.end_prepared(statement, self._open.lsn)
        else:
            query = query._replace(statement=None if query.statement is None else statement)
            self._ordinal += self._effects.run(query, self._open.lsn, self._ordinal)
        if not self._begun():
            self._commit(seconds, end)

    def _begun(self) -> bool:
        """Return whether a commit will follow: MariaDB's GTID shows it, in MySQL a preceding BEGIN."""
        assert self._open is not None
        return self._open.begun or (self._schema_cache.mariadb and not self._open.begins[-1].standalone)

    def _prepare(self, body: bytes, seconds: int, end: int) -> None:
        """End a transaction that is the first half of an XA transaction."""
        xid, one_phase = events.xid_of_xa(body)
        self._disown()
        if not one_phase and self._open is not None and not self._open.landed:
            self._effects.prepare(xid, self._open.tables, self._open.lsn)
        self._commit(seconds, end)

    def _quarantine_touched_tables(self, reason: str) -> None:
        assert self._open is not None
        if not self._open.landed:
            self._effects.quarantine(self._open.tables, self._open.lsn, reason)

    def _quarantine_unknown(self, kind: int) -> None:
        """Quarantine the tables mapped before an unknown event, which may change their rows; else raise."""
        if self._open is None or not self._open.mapped:
            raise PreconditionError(
                f"the log has an event of type {kind}, which is unknown, {self._where()}",
                hint="upgrade deltatide, since what the event changed is unknown",
            )
        self._disown()
        self._quarantine_touched_tables(f"upgrade deltatide: an event of type {kind} is unknown")

    def _where(self) -> str:
        return f"file {self._file} offset {self._offset}"

    def _broken(self, packet: bytes, expected: int) -> Exception:
        found = _uint32(packet, 14)[0]
        return TransientError(
            f"the log does not continue where it ended: an event of type {packet[5]} ends at {found}, "
            f"not at {expected & MAX_OFFSET}, of file {self._file}"
        )
