"""The log reader's buffer: raw rows events of whole transactions, and of the open one. Does no I/O.

Invariants:

- Continuity: each event of a file ends where its header says, and begins where the one before it ended; files
  follow each other by number. Anything else stops, so that nothing is skipped or doubled.
- A transaction's `lsn` is where its GTID event begins; the position behind it is where its last event ends.
  Offsets are counted in 64 bits here. In a file that grew beyond 4 GiB within one transaction, what follows
  in that file counts as part of that transaction, until the next file begins.
- `feed` is the hot loop. Everything else happens once for each transaction, layout or statement.
- All events in the buffer have one byte before them (the packet's status) and the same `tail` behind.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from connector.errors import BugError, PreconditionError, TransientError
from connector.event import EventBatch, SetAside
from connector.mysql import events
from connector.mysql.capturing import Capturing, Mapped
from connector.mysql.events import Gtid
from connector.mysql.rows import truncate_event
from connector.mysql.segment import (
    ROWS_EVENTS,
    TABLE_MAP,
    MysqlSegment,
    TableLayout,
    Transactions,
    unpack_position,
)
from connector.mysql.segment import pack_position as pack
from connector.mysql.server import MAX_OFFSET
from connector.mysql.statement import Effect, effects_of
from connector.schema import TableName

log = logging.getLogger(__name__)

BASE = 1
"""Bytes of a packet before the event: its status."""

EVENT_OVERHEAD = 41
"""What a bytes object and its place in a list take beside the event itself."""

_BODY = BASE + events.HEADER
_FRAMES = frozenset((events.ROTATE, events.FORMAT, events.HEARTBEAT, events.HEARTBEAT_2))
_BEGINS = frozenset((events.GTID, events.ANONYMOUS_GTID, events.TAGGED_GTID, events.MARIADB_GTID))
_STATEMENTS = frozenset((events.QUERY, events.COMPRESSED_QUERY))
_MADE_UP = 1 << 47
"""Table ids from here on are never used by a server (they have 48 bits, counted up from 1)."""

_uint32 = struct.Struct("<I").unpack_from
_header = struct.Struct("<IBIIIH").unpack_from
"""Time, type, server id, size, end, flags."""


@dataclass
class _Open:
    """The transaction that is being received: its events begin at `start`; `carried` were taken before.

    `ended`: its end has come, but its position can't be told before the next file begins (see the module).
    """

    lsn: int
    gtid: Gtid
    start: int
    carried: bool = False
    begun: bool = False
    ended: bool = False


class Untold(NamedTuple):
    """A table whose rows may have changed at `lsn` without events that tell, and how."""

    table: TableName
    lsn: int
    reason: str


@dataclass
class RefusingSegment:
    """A segment that tells first which tables were set aside when the log was read."""

    inner: MysqlSegment
    set_aside: Sequence[SetAside]

    @property
    def position(self) -> int:
        """The boundary behind the last whole transaction."""
        return self.inner.position

    @property
    def committed_at(self) -> datetime | None:
        """Commit time of that transaction."""
        return self.inner.committed_at

    @property
    def rows(self) -> int:
        """Number of rows events."""
        return self.inner.rows

    def decode(self) -> Iterator[EventBatch | SetAside]:
        """Decode into batches; the tables set aside come first, and have no batch."""
        aside = {found.table for found in self.set_aside}
        yield from self.set_aside
        for found in self.inner.decode():
            if isinstance(found, SetAside) or str(found.schema.table) not in aside:
                yield found


class LogBuffer:
    """Rows events read and not taken yet. One thread at a time, but for `position`.

    `untold` gathers what `Capturing` is to be told of; the reader takes it out.
    """

    def __init__(self, epoch: int, position: int, capturing: Capturing) -> None:
        self.bytes = 0
        self.whole_rows = 0
        self.position = position
        self.untold: list[Untold] = []
        self.created: int | None = None
        self._epoch = epoch
        self._capturing = capturing
        self._file, self._offset = unpack_position(position)
        self._started = False
        self._tail = 0
        self._committed_at: int | None = None
        self._payloads: list[bytes] = []
        self._ordinals: list[int] = []
        self._ordinal = 0
        self._transactions = Transactions()
        self._open: _Open | None = None
        self._maps: dict[bytes, Mapped] = {}
        self._current: dict[int, tuple[bytes, Mapped]] = {}
        self._ids: dict[TableName, int] = {}
        self._known: dict[int, TableLayout] = {}
        self._layouts: list[TableLayout] = []
        self._made_up = 0
        self._prepared: dict[str, set[TableName]] = {}
        self._set_aside: list[SetAside] = []

    @property
    def file(self) -> int:
        """The number of the file that is being read."""
        return self._file

    def feed(self, packets: Sequence[bytes]) -> None:
        """Add events as they came, with the packet's status byte and the checksum."""
        offset, ordinal, current = self._offset, self._ordinal, self._current
        payloads, ordinals = self._payloads, self._ordinals
        size = 0
        for packet in packets:
            kind = packet[5]
            if kind in _FRAMES or packet[18] & events.ARTIFICIAL:
                self._offset = offset
                self._frame(kind, packet)
                offset, payloads = self._offset, self._payloads
                continue
            end = offset + len(packet) - BASE
            if _uint32(packet, 14)[0] != end & MAX_OFFSET:
                raise self._broken(packet, end)
            if kind in ROWS_EVENTS:
                if self._open is None:
                    raise BugError(f"a rows event outside of a transaction, {self._place()}")
                known = current.get(int.from_bytes(packet[20:26], "little"))
                if known is None:
                    raise BugError(f"a rows event without a table map, {self._place()}")
                if known[1].schema is not None:
                    payloads.append(packet)
                    ordinals.append(ordinal)
                    size += len(packet) + EVENT_OVERHEAD
                ordinal += 1
            elif kind == TABLE_MAP:
                self._map(packet[_BODY : len(packet) - self._tail])
            else:
                self._offset, self._ordinal = offset, ordinal
                self._control(kind, packet, end)
                ordinal = self._ordinal
            offset = end
            if self._open is None:
                self.position = pack(self._file, offset)
        self._offset, self._ordinal = offset, ordinal
        self.bytes += size

    def take(self) -> RefusingSegment | MysqlSegment:
        """Take all whole transactions."""
        transactions, self._transactions = self._transactions, Transactions()
        rows, self.whole_rows = self.whole_rows, 0
        if self._open is not None:
            self._open.start -= rows
        return self._cut(rows, transactions)

    def take_open(self) -> RefusingSegment | MysqlSegment | None:
        """Take what is held of the open transaction; only right after `take`."""
        if self._open is None or not self._payloads:
            return None
        transactions = Transactions()
        transactions.add(0, self._open.lsn, self._open.gtid.micros, self._open.gtid.txid)
        self._open.start, self._open.carried = 0, True
        return self._cut(len(self._payloads), transactions)

    def _cut(self, rows: int, transactions: Transactions) -> RefusingSegment | MysqlSegment:
        payloads, self._payloads = self._payloads[:rows], self._payloads[rows:]
        ordinals, self._ordinals = self._ordinals[:rows], self._ordinals[rows:]
        layouts = [*self._known.values(), *(layout for layout in self._layouts if layout.start < rows)]
        self._known.update((x.table_id, x._replace(start=0)) for x in self._layouts if x.start < rows)
        later = [x._replace(start=x.start - rows) for x in self._layouts if x.start >= rows]
        self._layouts = later
        used = {*self._ids.values(), *(x.table_id for x in later)}
        self._known = {i: layout for i, layout in self._known.items() if i in used}
        self.bytes = sum(map(len, self._payloads)) + EVENT_OVERHEAD * len(self._payloads)
        committed_at = None if self._committed_at is None else _to_datetime(self._committed_at)
        segment = MysqlSegment(
            self._epoch, self.position, committed_at, payloads, ordinals, transactions, layouts,
            base=BASE, tail=self._tail,
        )  # fmt: skip
        set_aside, self._set_aside = self._set_aside, []
        return RefusingSegment(segment, set_aside) if set_aside else segment

    def _frame(self, kind: int, packet: bytes) -> None:
        """Handle what frames the log, and may be in no file: ROTATE, FORMAT, heartbeats, made up events."""
        seconds, _, _, _, end, flags = _header(packet, BASE)
        if kind == events.FORMAT:
            self._change_tail(events.checksum_bytes(packet, BASE))
            self.created = seconds
            if end and not flags & events.ARTIFICIAL:
                self._advance(packet, end)
        elif kind == events.ROTATE:
            self._rotate(packet, bool(flags & events.ARTIFICIAL), end)

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
        targets = events.rotate_targets(packet[_BODY:], self._tail)
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

    def _change_tail(self, tail: int) -> None:
        if tail == self._tail:
            return
        cut, added = max(0, self._tail - tail), bytes(max(0, tail - self._tail))
        self._payloads = [p[: len(p) - cut] + added for p in self._payloads]
        self._tail = tail

    def _control(self, kind: int, packet: bytes, end: int) -> None:
        """Handle an event that is neither rows nor layout."""
        seconds, _, server_id, _, _, flags = _header(packet, BASE)
        body = packet[_BODY : len(packet) - self._tail]
        if kind in _BEGINS:
            self._begin(events.parse_gtid(kind, seconds, server_id, body))
        elif kind in _STATEMENTS:
            self._query(events.parse_query(kind, body), seconds, end)
        elif kind == events.XID:
            self._commit(seconds, end)
        elif kind == events.XA_PREPARE:
            self._prepare(body, seconds, end)
        elif kind == events.TRANSACTION_PAYLOAD:
            self._unpack(body, end)
        elif kind == events.INCIDENT:
            self._put_aside(
                self._capturing.among(None), "the server lost part of its log (an incident event)"
            )
        elif kind not in events.NOTHING and not flags & events.IGNORABLE:
            raise PreconditionError(
                f"the log has an event of type {kind}, which is not known, {self._place()}",
                hint="upgrade deltatide; what the event changed can't be told",
            )

    def _unpack(self, body: bytes, end: int) -> None:
        """Feed the events within a compressed transaction, which have neither checksums nor places."""
        padding = bytes(self._tail)
        for event in events.unpack_payload(body):
            packet, kind = b"\0" + event + padding, event[4]
            if kind == TABLE_MAP:
                self._map(event[events.HEADER :])
            elif kind in ROWS_EVENTS:
                known = self._current.get(int.from_bytes(packet[20:26], "little"))
                if known is None:
                    raise BugError(f"a rows event without a table map, {self._place()}")
                if known[1].schema is not None:
                    self._hold(packet)
                self._ordinal += 1
            else:
                self._control(kind, packet, end)

    def _hold(self, packet: bytes) -> None:
        self._payloads.append(packet)
        self._ordinals.append(self._ordinal)
        self.bytes += len(packet) + EVENT_OVERHEAD

    def _begin(self, gtid: Gtid) -> None:
        if self._open is not None:
            if not self._open.ended:
                raise BugError(f"a transaction begins within another one, {self._place()}")
            self._open.ended, self._open.begun = False, False
            self._open.gtid = self._open.gtid._replace(standalone=gtid.standalone)
            return
        self._ordinal = 0
        self._open = _Open(pack(self._file, self._offset), gtid, len(self._payloads))

    def _commit(self, seconds: int, end: int) -> None:
        if self._open is None:
            raise BugError(f"a commit without a begin in the log, {self._place()}")
        self._committed_at = self._open.gtid.micros or seconds * 1_000_000
        if end > MAX_OFFSET:
            self._open.ended = True
        else:
            self._end_transaction()

    def _end_transaction(self) -> None:
        found = self._open
        assert found is not None
        rows = len(self._payloads)
        if rows > found.start:
            self._transactions.add(found.start, found.lsn, found.gtid.micros, found.gtid.txid)
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
        if first in ("COMMIT", "ROLLBACK") and not rest.startswith("TO"):
            if first == "ROLLBACK":
                self._put_aside(self._touched(), "a transaction was rolled back after it was logged")
            self._commit(seconds, end)
            return
        if first == "ROLLBACK":
            self._put_aside(self._touched(), "a savepoint was rolled back after it was logged")
        elif first == "XA":
            self._end_prepared(statement)
        elif query.statement is None:
            self._tell(Effect("untold", query.database, None, "a statement that can't be read"))
        else:
            for effect in effects_of(statement, query.database):
                self._tell(effect)
        if not self._begun():
            self._commit(seconds, end)

    def _begun(self) -> bool:
        """Tell whether a commit will follow: MariaDB's GTID tells, in MySQL a BEGIN has come before."""
        assert self._open is not None
        return self._open.begun or (self._capturing.mariadb and not self._open.gtid.standalone)

    def _prepare(self, body: bytes, seconds: int, end: int) -> None:
        """An XA transaction was prepared; whether its rows count, another transaction tells later."""
        xid, one_phase = events.xid_of_xa(body)
        if not one_phase:
            touched = self._touched()
            self._prepared[xid] = touched
            self._put_aside(touched, f"XA transaction {xid} was prepared, which is not supported")
        self._commit(seconds, end)

    def _end_prepared(self, statement: str) -> None:
        if not statement.upper().startswith("XA COMMIT"):
            return
        xid = statement[len("XA COMMIT") :].strip()
        touched = self._prepared.pop(xid, None)
        tables = self._capturing.among(None) if touched is None else touched
        self._put_aside(tables, f"XA transaction {xid} was committed, which is not supported")

    def _tell(self, effect: Effect) -> None:
        """Carry out what a statement did: a truncate is an event, the rest has to be read again."""
        if effect.name is None:
            tables = set(self._capturing.among(effect.database))
        else:
            named = self._capturing.named(effect.database, effect.name)
            tables = set() if named is None else {named}
        assert self._open is not None
        for table in tables:
            if effect.kind == "truncate":
                self._truncate(table)
            elif effect.kind == "statement":
                self._put_aside({table}, f"{effect.reason} changed it", _ROW_FORMAT)
            else:
                log.warning("%s: %s, its rows are read again", table, effect.reason)
                self.untold.append(Untold(table, self._open.lsn, effect.reason))

    def _truncate(self, table: TableName) -> None:
        mapped = self._capturing.latest(table)
        if mapped is None or mapped.schema is None:
            self._put_aside({table}, "it was truncated, and its layout is not known")
            return
        self._made_up += 1
        table_id = _MADE_UP + self._made_up
        layout = TableLayout(len(self._payloads), table_id, mapped.table_map, mapped.schema, mapped.problem)
        self._layouts.append(layout)
        self._hold(bytes(BASE) + truncate_event(table_id) + bytes(self._tail))
        self._ordinal += 1

    def _touched(self) -> set[TableName]:
        """Give the tables of the rows events held of the open transaction, and of parts taken before: all."""
        assert self._open is not None
        if self._open.carried:
            return set(self._capturing.among(None))
        ids = {int.from_bytes(p[20:26], "little") for p in self._payloads[self._open.start :]}
        return {self._current[i][1].table for i in ids if i in self._current}

    def _put_aside(self, tables: set[TableName], reason: str, hint: str = "") -> None:
        lsn = self._open.lsn if self._open else self.position
        for table in sorted(tables):
            hint = hint or f"dump it again: deltatide dump {table}"
            log.error("%s is set aside: %s", table, reason)
            self._set_aside.append(SetAside(str(table), lsn, reason, hint))

    def put_aside(self, untold: Untold) -> None:
        """Set a table aside whose change could not be written down."""
        hint = f"dump it again: deltatide dump {untold.table}"
        self._set_aside.append(SetAside(str(untold.table), untold.lsn, untold.reason, hint))

    def _map(self, body: bytes) -> None:
        """Learn a layout; the same bytes mean the same one."""
        table_id = int.from_bytes(body[:6], "little")
        current = self._current.get(table_id)
        if current is not None and current[0] == body:
            return
        mapped = self._maps.get(body)
        if mapped is None:
            mapped = self._maps[body] = self._capturing.resolve(body)
        self._current[table_id] = body, mapped
        if mapped.schema is not None:
            self._ids[mapped.table] = table_id
            self._layouts.append(
                TableLayout(len(self._payloads), table_id, mapped.table_map, mapped.schema, mapped.problem)
            )

    def _place(self) -> str:
        return f"file {self._file} offset {self._offset}"

    def _broken(self, packet: bytes, expected: int) -> Exception:
        found = _uint32(packet, 14)[0]
        return TransientError(
            f"the log does not go on where it ended: an event of type {packet[5]} ends at {found}, "
            f"not at {expected & MAX_OFFSET}, of file {self._file}"
        )


_ROW_FORMAT = "SET GLOBAL binlog_format = ROW, see that no session sets another, then dump the table again"


def _to_datetime(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=micros)
