"""The log reader's buffer: the log's events become whole transactions, and the open one. Does no I/O.

Invariants:

- Continuity: each event of a file ends where its header says, and begins where the one before it ended; files
  follow each other by number. Anything else stops, so that nothing is skipped or doubled.
- A transaction's `lsn` is where its GTID event begins; the position behind it is where its last event ends.
  Offsets are counted in 64 bits here. In a file that grew beyond 4 GiB within one transaction, what follows
  in that file counts as part of that transaction, until the next file begins.
- `feed` is the hot loop. Everything else happens once for each transaction, layout or statement.

Rows events lie in `connector.mysql.held`, the open transaction is a `connector.mysql.transaction`; what
statements do to tables is for `connector.mysql.effects`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from connector.errors import BugError, PreconditionError, TransientError
from connector.mysql import events
from connector.mysql.capturing import Capturing
from connector.mysql.effects import Effects, Untold
from connector.mysql.events import FRAMES, Begin
from connector.mysql.gtid import Gtids
from connector.mysql.held import BASE, EVENT_OVERHEAD, HeldRows, announcement
from connector.mysql.payload import Payload, size_of
from connector.mysql.segment import ROWS_EVENTS, TABLE_MAP, MysqlSegment, Transactions, unpack_position
from connector.mysql.segment import pack_position as pack
from connector.mysql.server import MAX_OFFSET
from connector.mysql.transaction import OpenTransaction
from connector.told import ToldSegment

_BODY = BASE + events.HEADER
_uint32 = struct.Struct("<I").unpack_from
_header = struct.Struct("<IBIIIH").unpack_from
"""Time, type, server id, size, end, flags."""


class LogBuffer:
    """The log read and not taken yet. One thread at a time, but for `position`.

    `gtids`: the transactions executed up to `position`, kept up to date here; None where that is not known.
    """

    def __init__(self, epoch: int, position: int, capturing: Capturing, gtids: Gtids | None = None) -> None:
        self.gtids = gtids
        self.whole_rows = 0
        self.position = position
        self.created: int | None = None
        self._epoch = epoch
        self._capturing = capturing
        self._held = HeldRows(capturing)
        self._effects = Effects(capturing, self._held)
        self._file, self._offset = unpack_position(position)
        self._started = False
        self._committed_at: int | None = None
        self._ordinal = 0
        self._transactions = Transactions()
        self._open: OpenTransaction | None = None
        self._payload: Payload | None = None
        self._waiting: list[bytes] = []

    @property
    def held_bytes(self) -> int:
        """What the rows events held take."""
        return self._held.bytes

    def _is_unpacking(self) -> bool:
        """Tell whether a compressed transaction is not unpacked yet, so that what is behind it waits."""
        return self._payload is not None

    @property
    def file(self) -> int:
        """The number of the file that is being read."""
        return self._file

    def feed(self, packets: Sequence[bytes]) -> None:
        """Add events as they came, with the packet's status byte and the checksum."""
        offset, ordinal, held = self._offset, self._ordinal, self._held
        payloads, ordinals, current = held.payloads, held.ordinals, held.current
        # From 11.4 on, MariaDB's events say where they end only at the begin and the end of a transaction.
        positionless = self._capturing.mariadb
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
                    raise BugError(f"a rows event outside of a transaction, {self._place()}")
                known = current.get(int.from_bytes(packet[20:26], "little"))
                if known is None:
                    raise BugError(f"a rows event without a table map, {self._place()}")
                if known[1].schema is not None and not self._open.landed:
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
            if self._open is None:
                self.position = pack(self._file, offset)
        self._offset, self._ordinal = offset, ordinal
        held.bytes += size

    def _learn(self, body: bytes) -> None:
        mapped = self._held.learn(body)
        if self._open is not None:
            self._open.touch(mapped)

    def go_on(self, upto_bytes: int) -> bool:
        """Go on in a compressed transaction by so many bytes; False: there is none, or its rest has to come.

        While it lasts, what `feed` adds waits behind it.
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

    def take(self) -> ToldSegment | MysqlSegment:
        """Take all whole transactions."""
        transactions, self._transactions = self._transactions, Transactions()
        rows, self.whole_rows = self.whole_rows, 0
        if self._open is not None:
            self._open.start -= rows
        return self._cut(rows, transactions)

    def take_open(self) -> ToldSegment | MysqlSegment | None:
        """Take what is held of the open transaction; only right after `take`."""
        if self._open is None or not self._held.payloads:
            return None
        transactions = Transactions()
        begin = self._open.begins[0]
        transactions.add(0, self._open.lsn, begin.micros, begin.txid)
        self._open.start, self._open.carried = 0, True
        return self._cut(len(self._held.payloads), transactions)

    def _cut(self, rows: int, transactions: Transactions) -> ToldSegment | MysqlSegment:
        committed_at = None if self._committed_at is None else _to_datetime(self._committed_at)
        segment = self._held.cut(rows, transactions, self._epoch, self.position, committed_at, self.gtids)
        set_aside = self._effects.take_set_aside()
        announced = [announcement(s, self._epoch, lsn) for lsn, s in self._effects.take_announced()]
        return ToldSegment(segment, set_aside, announced) if set_aside or announced else segment

    def take_untold(self) -> list[Untold]:
        """Take what has to be written down at the source, or to be given back by `put_aside`."""
        return self._effects.take_untold()

    def put_aside(self, untold: Untold) -> None:
        """Set a table aside whose change could not be written down."""
        self._effects.put_aside_untold(untold)

    def _frame(self, kind: int, packet: bytes) -> None:
        """Handle what frames the log, and may be in no file: ROTATE, FORMAT, heartbeats, made up events."""
        seconds, _, _, _, end, flags = _header(packet, BASE)
        if kind == events.FORMAT:
            self._held.change_tail(events.checksum_bytes(packet, BASE))
            self.created = seconds
        if kind == events.ROTATE:
            self._rotate(packet, bool(flags & events.ARTIFICIAL), end)
        elif kind in (events.FORMAT, events.START_ENCRYPTION) and end and not flags & events.ARTIFICIAL:
            self._advance(packet, end)  # either is sent without a place where reading begins in a file

    def _advance(self, packet: bytes, end: int) -> None:
        expected = self._offset + len(packet) - BASE
        if end != expected & MAX_OFFSET:
            raise self._broken(packet, expected)
        self._offset = expected
        if self._open is None:
            self.position = pack(self._file, expected)

    def _rotate(self, packet: bytes, artificial: bool, end: int) -> None:
        """Go on in the next file; a made up ROTATE only names the file that follows in the stream."""
        if not artificial:
            self._advance(packet, end)
        targets = events.rotate_targets(packet[_BODY:], self._held.tail)
        if artificial and (self._file, self._offset) in targets:
            self._started = True
            return
        number = self._file + 1
        if (number, 4) not in targets or not self._started:
            raise TransientError(f"the server went on at {targets}, not behind {self._place()}")
        if self._open is not None and not self._open.ended:
            raise TransientError(f"the log ended within a transaction, {self._place()}")
        self._file, self._offset, self.created = number, 4, None
        if self._open is not None:
            self._end_transaction()
        self.position = pack(number, 4)

    def _control(self, kind: int, packet: bytes, end: int) -> None:
        """Handle an event that is neither rows nor layout."""
        seconds, _, server_id, _, _, flags = _header(packet, BASE)
        body = packet[_BODY : len(packet) - self._held.tail]
        if kind in events.BEGINS:
            self._begin(events.parse_begin(kind, seconds, server_id, body))
        elif kind in events.STATEMENTS:
            self._query(events.parse_query(kind, body), seconds, end)
        elif kind == events.XID:
            self._commit(seconds, end)
        elif kind == events.XA_PREPARE:
            self._prepare(body, seconds, end)
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
            self._effects.put_aside(self._capturing.among(None), lsn, reason)
            if self._open is not None and not self._begun():  # in MySQL it is a transaction by itself
                self._commit(seconds, end)
        elif kind not in events.NOTHING and not flags & events.IGNORABLE:
            self._set_aside_unknown(kind)

    def _unpack(self, payload: Payload, upto_bytes: float = math.inf) -> bool:
        """Feed so many bytes of its events, which have neither checksums nor places; False: more are left."""
        padding, held, size = bytes(self._held.tail), self._held, 0
        for event in payload.events():
            packet, kind = b"\0" + event + padding, event[4]
            if kind == TABLE_MAP:
                self._learn(event[events.HEADER :])
            elif kind in ROWS_EVENTS:
                known = held.current.get(int.from_bytes(packet[20:26], "little"))
                if known is None:
                    raise BugError(f"a rows event without a table map, {self._place()}")
                if known[1].schema is not None and not self._passes_over():
                    held.hold(packet, self._ordinal)
                self._ordinal += 1
            else:
                self._control(kind, packet, payload.end)
            size += len(event) + EVENT_OVERHEAD
            if size >= upto_bytes:
                return False
        return True

    def _end_of_payload(self, packet: bytes, offset: int) -> int:
        """Give where a compressed transaction ends that comes in pieces, of which this is the first."""
        end = offset + size_of(packet)
        if _uint32(packet, 14)[0] != end & MAX_OFFSET:
            raise self._broken(packet, end)
        return end

    def _begin(self, begin: Begin) -> None:
        landed = self.gtids is not None and begin.gtid is not None and self.gtids.holds(begin.gtid)
        if self._open is not None:
            if not self._open.ended:
                raise BugError(f"a transaction begins within another one, {self._place()}")
            self._open.begin_again(begin, landed=landed)
            return
        self._ordinal = 0
        lsn, start = pack(self._file, self._offset), len(self._held.payloads)
        self._open = OpenTransaction(lsn, [begin], start, landed=landed)

    def _disown(self) -> None:
        """Take the open transaction for somebody else's."""
        if self._open is not None:
            self._open.is_ours = False

    def _passes_over(self) -> bool:
        """Tell whether the open transaction landed before, in the log of another server."""
        return self._open is not None and self._open.landed

    def _commit(self, seconds: int, end: int) -> None:
        if self._open is None:
            raise BugError(f"a commit without a begin in the log, {self._place()}")
        self._committed_at = self._open.begins[0].micros or seconds * 1_000_000
        if end > MAX_OFFSET:
            self._open.ended = True
        else:
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
        self.whole_rows = rows
        self._open = None

    def _query(self, query: events.Query, seconds: int, end: int) -> None:
        """Look at a statement: what begins or ends a transaction, and what changes tables by itself."""
        if self._open is None:
            raise BugError(f"a statement outside of a transaction, {self._place()}")
        statement = (query.statement or "").strip()
        first, _, rest = statement.upper().partition(" ")
        if first == "BEGIN" or (first == "XA" and rest.startswith(("START", "BEGIN"))):
            self._open.begun = True
            return
        if first != "COMMIT":
            self._disown()
        if first in ("COMMIT", "ROLLBACK") and not rest.startswith("TO"):
            if first == "ROLLBACK":
                self._put_touched_aside("a transaction was rolled back after it was logged")
            self._commit(seconds, end)
            return
        if first == "ROLLBACK":
            self._put_touched_aside("a savepoint was rolled back after it was logged")
        elif self._open.landed:
            pass  # as did its effects
        elif first == "XA":
            self._effects.end_prepared(statement, self._open.lsn)
        else:
            told = query._replace(statement=None if query.statement is None else statement)
            self._ordinal += self._effects.run(told, self._open.lsn, self._ordinal)
        if not self._begun():
            self._commit(seconds, end)

    def _begun(self) -> bool:
        """Tell whether a commit will follow: MariaDB's GTID tells, in MySQL a BEGIN has come before."""
        assert self._open is not None
        return self._open.begun or (self._capturing.mariadb and not self._open.begins[-1].standalone)

    def _prepare(self, body: bytes, seconds: int, end: int) -> None:
        """End a transaction that is an XA transaction's first half."""
        xid, one_phase = events.xid_of_xa(body)
        self._disown()
        if not one_phase and self._open is not None and not self._open.landed:
            self._effects.prepare(xid, self._open.tables, self._open.lsn)
        self._commit(seconds, end)

    def _put_touched_aside(self, reason: str) -> None:
        assert self._open is not None
        if not self._open.landed:
            self._effects.put_aside(self._open.tables, self._open.lsn, reason)

    def _set_aside_unknown(self, kind: int) -> None:
        """Set aside the tables whose layouts came before an unknown event: it is of their rows. Or stop."""
        if self._open is None or not self._open.mapped:
            raise PreconditionError(
                f"the log has an event of type {kind}, which is not known, {self._place()}",
                hint="upgrade deltatide; what the event changed can't be told",
            )
        self._disown()
        self._put_touched_aside(f"an event of type {kind} is not known, upgrade deltatide")

    def _place(self) -> str:
        return f"file {self._file} offset {self._offset}"

    def _broken(self, packet: bytes, expected: int) -> Exception:
        found = _uint32(packet, 14)[0]
        return TransientError(
            f"the log does not go on where it ended: an event of type {packet[5]} ends at {found}, "
            f"not at {expected & MAX_OFFSET}, of file {self._file}"
        )


def _to_datetime(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=micros)
