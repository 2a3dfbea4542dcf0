"""Assembles event groups: what a GTID opens, what is in it, and what closes it. Does no I/O.

::

    group     := GTID ( changes commit | statement | PAYLOAD | INCIDENT )
    changes   := [ BEGIN | XA START ] { TABLE_MAP { TABLE_MAP } ROWS { ROWS } | statement }
    commit    := XID | COMMIT | ROLLBACK | XA_PREPARE
    statement := QUERY | EXECUTE_LOAD_QUERY

GTID is MySQL's GTID, ANONYMOUS_GTID or TAGGED_GTID, or MariaDB's GTID. BEGIN, XA START, COMMIT and ROLLBACK
are texts of QUERY events. MySQL writes BEGIN where a commit follows; in MariaDB a GTID that is not
`standalone` says so. A statement without either is its own group; in MariaDB, its GTID may say that it is
without effect, since it only begins there, or was rolled back. PAYLOAD (TRANSACTION_PAYLOAD, MySQL) holds the
rest of its group, compressed; INCIDENT is a group in MySQL, in MariaDB it may be anywhere. Other events
(`events.NOTHING`) only annotate or prepare what follows them. Rows events go straight to `PendingRows`; what
statements do to tables is `DdlEffects`'.

Follows "Binlog Event" in MySQL's source documentation, and in MariaDB's "Replication Protocol" the pages
GTID_EVENT, QUERY_EVENT, TABLE_MAP_EVENT, ROWS_EVENT_V1/V2, XID_EVENT and XA_PREPARE_LOG_EVENT.

Invariant: a transaction's `lsn` is where its GTID event begins; the position after it is where its last event
ends. Offsets here have 64 bits. In a file that grew beyond 4 GiB within one group, what follows in that file
counts as part of that group, until the next file begins.
"""

from __future__ import annotations

from connector.errors import BugError, PreconditionError, TransientError
from connector.mysql.codec.segment import Transactions
from connector.mysql.gtid import Gtids, MariadbGtids
from connector.mysql.log import events
from connector.mysql.log.ddl_effects import DdlEffects
from connector.mysql.log.events import Begin
from connector.mysql.log.file_sequence import FileSequence
from connector.mysql.log.packet import BODY, header_of
from connector.mysql.log.pending_events import PendingRows
from connector.mysql.log.schema_cache import SchemaCache
from connector.mysql.log.transaction import OnePhaseCommits, OpenTransaction, ShownByLog
from connector.mysql.server import MAX_OFFSET
from connector.position import Position
from connector.schema import TableName

_UNCHECKED = (
    "rows were inserted with unique_checks = 0 and foreign_key_checks = 0, and MariaDB may not have kept them"
)

_TAKEN_BACK = "changes were rolled back after they had been logged"

_MISCOMPUTED = "MariaDB may have logged its virtual columns as they were before a trigger changed the row"

_MAP_FLAGS, _HAS_TRIGGERS = 7, 0x40
"""The upper byte of a table map's flags, and MariaDB's bit there: the table has triggers."""


class EventGroups:
    """The groups that are complete and not taken yet, and the open one.

    `ordinal`: of the next rows event in the open group. `whole_rows`: rows events of complete groups.
    `gtids`: the transactions executed up to the last complete group; None if unknown. `last`: where that
    group or file begins, with its GTID event or the file's creation time. `committed_at`: microseconds since
    1970.

    A group cut off at the end of a file by a crash never happened: MariaDB leaves it there and rolls it back.
    Parts of it may have been taken already, so it is added to `cut_off` and reading ends; the next reader,
    given the same set, skips it.
    """

    def __init__(
        self,
        epoch: int,
        files: FileSequence,
        pending: PendingRows,
        effects: DdlEffects,
        schema_cache: SchemaCache,
        gtids: Gtids | None,
        cut_off: set[Position] | None,
        one_phase: OnePhaseCommits,
        shown: ShownByLog,
    ) -> None:
        self.open: OpenTransaction | None = None
        self.ordinal = 0
        self.whole_rows = 0
        self.gtids = gtids
        self.last: tuple[int, Begin | int] | None = None
        self.committed_at: int | None = None
        self._epoch = epoch
        self._files, self._pending, self._effects, self._schema_cache = files, pending, effects, schema_cache
        self._cut_off, self._one_phase = set() if cut_off is None else cut_off, one_phase
        self._shown = shown
        self._whole = Transactions()

    def take_whole(self) -> tuple[int, Transactions]:
        """Take the complete groups: the number of their rows events, and their transactions."""
        rows, self.whole_rows = self.whole_rows, 0
        transactions, self._whole = self._whole, Transactions()
        if self.open is not None:
            self.open.shift(rows)
        return rows, transactions

    def take_part(self) -> Transactions:
        """Take the open group, as far as it has arrived; only right after `take_whole`."""
        assert self.open is not None
        begin, transactions = self.open.begins[0], Transactions()
        transactions.add(0, self.open.lsn, begin.micros, begin.txid)
        self.open.note_landed_part()
        return transactions

    @property
    def skips_rows(self) -> bool:
        """Return whether the open group has landed before."""
        return self.open is not None and self.open.landed

    def add_table_map(self, body: bytes) -> None:
        """Handle a TABLE_MAP: rows of its table may follow.

        One that has landed teaches nothing: its table may have been redefined since, before the point as of
        which it is known.
        """
        resolved = self._pending.pass_over(body) if self.skips_rows else self._pending.learn(body)
        if self.open is not None:
            triggers = self._schema_cache.mariadb and bool(body[_MAP_FLAGS] & _HAS_TRIGGERS)
            self._shown.note_triggers(resolved.table, triggers=triggers)
            self.open.touch(resolved, self.ordinal, triggers=triggers)

    def handle(self, kind: int, packet: bytes, end: int) -> None:
        """Handle an event that is neither rows nor a table map, nor one of a file or a payload.

        `end`: its end in the file; within a payload, the payload's.
        """
        seconds, _, server_id, _, _, flags = header_of(packet)
        body = packet[BODY : len(packet) - self._pending.tail]
        if kind in events.BEGINS:
            self._begin(events.parse_begin(kind, seconds, server_id, body))
        elif kind in events.STATEMENTS:
            temporary = bool(flags & events.THREAD_SPECIFIC)
            self._handle_statement(events.parse_query(kind, body)._replace(temporary=temporary), seconds, end)
        elif kind == events.XID:
            self._commit(seconds, end)
        elif kind == events.XA_PREPARE:
            self._prepare(body, seconds, end)
        elif kind == events.INCIDENT:
            self._handle_incident(seconds, end)
        elif kind == events.ANNOTATE:
            if self.open is not None:
                self.open.annotate(body, self.ordinal)
        elif kind == events.GTID_LIST and isinstance(self.gtids, MariadbGtids):
            self.gtids.begin_file(events.parse_gtid_list(body))
        elif kind not in events.NOTHING and not flags & events.IGNORABLE:
            self._report_unknown(kind)

    def _begin(self, begin: Begin) -> None:
        landed = self.gtids is not None and begin.gtid is not None and self.gtids.holds(begin.gtid)
        if self.open is not None:
            if not self.open.ended:
                raise BugError(f"a transaction starts within another one, {self._files}")
            self.open.begin_again(begin, len(self._pending.payloads), landed=landed)
            return
        self.ordinal = 0
        lsn, start = self._files.position, len(self._pending.payloads)
        landed = landed or Position(self._epoch, lsn, 0) in self._cut_off
        self.open = OpenTransaction(lsn, [begin], start, landed=landed)

    def _commit(self, seconds: int, end: int) -> None:
        if self.open is None:
            raise BugError(f"a commit without a BEGIN in the log, {self._files}")
        self.committed_at = self.open.begins[0].micros or seconds * 1_000_000
        self.open.ended = end > MAX_OFFSET
        if not self.open.ended:
            self.close()

    def close(self) -> None:
        """Close the open group, whose commit has arrived."""
        closed = self.open
        assert closed is not None
        rows, begin = len(self._pending.payloads), closed.begins[0]
        if rows > closed.start:
            self._whole.add(closed.start, closed.lsn, begin.micros, begin.txid)
        for each in closed.begins:
            if each.gtid is None:
                self.gtids = None
            elif self.gtids is not None:
                self.gtids.add(each.gtid, ours=closed.is_ours is True)
        if closed.may_lack:
            self._effects.reread(closed.tables, closed.lsn, _UNCHECKED)
        if closed.miscomputed:
            self._effects.reread(closed.miscomputed, closed.lsn, _MISCOMPUTED)
        self.last = closed.lsn, begin
        self.whole_rows = rows
        self._pending.end_transaction()
        self.open = None

    def end_with_file(self, *, crashed: bool) -> None:
        """Handle the end of a file within the open group: drop it if it was skipped, else stop reading."""
        assert self.open is not None
        begin = Position(self._epoch, self.open.lsn, 0)
        if not crashed or begin not in self._cut_off:
            if crashed:
                self._cut_off.add(begin)
            raise TransientError(f"the log ended within a transaction, {self._files}")
        self._pending.end_transaction()
        self.open = None

    def _handle_statement(self, query: events.Query, seconds: int, end: int) -> None:
        """Handle a statement: it opens or closes changes, or changes tables by itself."""
        if self.open is None:
            raise BugError(f"a statement outside of a transaction, {self._files}")
        statement = (query.statement or "").strip()
        first, _, rest = statement.upper().partition(" ")
        if first == "BEGIN" or (first == "XA" and rest.startswith(("START", "BEGIN"))):
            self.open.begun = True
            return
        if first != "COMMIT":
            self._disown()
        if first in ("COMMIT", "ROLLBACK") and not rest.startswith("TO"):
            if first == "ROLLBACK":
                self._take_back(self.open.first)
            else:
                self._note_one_phase(self.open.mapped)
            self._commit(seconds, end)
            return
        if first == "ROLLBACK":
            self._take_back(None)
        elif self.open.landed or self.open.begins[-1].without_effect:
            pass  # its effects have landed, or it has none here
        elif first == "XA":
            self._note_one_phase(self._effects.end_prepared(statement, self.open.lsn))
        else:
            query = query._replace(statement=None if query.statement is None else statement)
            self.ordinal += self._effects.apply_statement(query, self.open.lsn, self.ordinal)
        if not self._awaits_commit():
            self._commit(seconds, end)

    def _note_one_phase(self, tables: set[TableName]) -> None:
        """Record the tables of a commit in one phase; MySQL has none."""
        assert self.open is not None
        if self._schema_cache.mariadb:
            for table in tables:
                self._one_phase.add(table, Position(self._epoch, self.open.lsn, 0))

    def _awaits_commit(self) -> bool:
        """Return whether a commit will follow: MariaDB's GTID shows it, in MySQL a preceding BEGIN."""
        assert self.open is not None
        return self.open.begun or (self._schema_cache.mariadb and not self.open.begins[-1].standalone)

    def _prepare(self, body: bytes, seconds: int, end: int) -> None:
        """Close a group that is the first half of an XA transaction."""
        xid, one_phase = events.xid_of_xa(body)
        self._disown()
        if not one_phase and self.open is not None and not self.open.landed:
            self._effects.prepare(xid, self.open.mapped, self.open.lsn)
        self._commit(seconds, end)

    def _handle_incident(self, seconds: int, end: int) -> None:
        lsn = self.open.lsn if self.open else self._files.position
        self._disown()
        reason = "the server lost part of its log (an incident event)"
        self._effects.report_quarantine(self._schema_cache.among(None), lsn, reason)
        if self.open is not None and not self._awaits_commit():
            self._commit(seconds, end)

    def _disown(self) -> None:
        """Mark the open group as not our own write."""
        if self.open is not None:
            self.open.is_ours = False

    def _take_back(self, start: int | None) -> None:
        """Drop the rows from an event on, which were rolled back after they had been logged.

        None if that is unknown, or some of them have landed: then the tables are read again.
        """
        assert self.open is not None
        if start is not None:
            self._pending.drop_from(start)
        elif not self.open.landed:
            self._effects.reread(self.open.tables, self.open.lsn, _TAKEN_BACK)

    def _report_touched_tables(self, reason: str) -> None:
        assert self.open is not None
        if not self.open.landed:
            self._effects.report_quarantine(self.open.tables, self.open.lsn, reason)

    def _report_unknown(self, kind: int) -> None:
        """Quarantine the tables mapped before an unknown event, which may change their rows; else raise."""
        if self.open is None or not self.open.mapped:
            raise PreconditionError(
                f"the log has an event of type {kind}, which is unknown, {self._files}",
                hint="upgrade deltatide, which can't know what the event changed",
            )
        self._disown()
        self._report_touched_tables(f"upgrade deltatide: an event of type {kind} is unknown")
