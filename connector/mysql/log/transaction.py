"""The transaction being received, as the log reader's buffer keeps it. Pure.

MariaDB may log rows that it has not kept. If a session has turned off ``unique_checks`` and
``foreign_key_checks``, InnoDB writes what is inserted into an empty table, or an empty partition, all at
once: at the statement's end, or the transaction's. If it finds duplicates then, it rolls back the
transaction so far. But INSERT IGNORE, INSERT ... SELECT, LOAD DATA ... IGNORE, and triggers and routines that
insert report no error, so the rows are logged. So a transaction `may_lack` its rows if it has an insert of
such a session, unless that is known to report duplicates: then it is only logged if there are none. Whether
the table was empty is not in the log, nor what a function inserts after its first statement.

It may also log former values of virtual columns: if a BEFORE trigger changes what they are made of, an UPDATE
of several tables, or with a subquery, and one FOR PORTION OF a period, computes them before the trigger runs.
The catalog shows such triggers, and their tables are quarantined (`definitions.triggers`). For those that it
does not show, as they came and went, or were there in log that is read late, the statement's text decides: a
table with triggers and virtual columns counts as `miscomputed` unless that is known to compute them last, for
all the log has. A session may turn off ``binlog_annotate_row_events`` within a transaction, so a statement's
text is only that of the rows which come right after it: all table maps of a statement precede all of its
rows. Of all that a statement runs in functions and triggers, the log only has the text of what writes first.
That may be in a trigger of another table, so no other one with triggers may come with it; a function is not
noticed.

And it logs what is rolled back, with the ROLLBACK, if the transaction has also made or dropped a temporary
table, or if a savepoint is followed by changes of a table without transactions. What the ROLLBACK of a whole
transaction takes back is dropped. What one to a savepoint takes back is not in the log: triggers and
functions have savepoints of their own there, by the same names.

Invariant: `is_ours` only if its only table is our watermark, and it contains nothing else: no other
statement, no second transaction, no XA. In doubt it is somebody else's, which every server needs.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from connector.mysql.log.events import Begin
from connector.mysql.log.schema_cache import WATERMARK, ResolvedLayout
from connector.position import Position
from connector.schema import TableName


@dataclass
class _Statement:
    """What writes the next rows. `text`: None if the log lacks it; `ordinal`: of its first rows event.

    `mapped`: the tables whose layouts have arrived since it began; `triggering`: those among them with
    triggers; `uncertain`: those with virtual columns, too.
    """

    text: bytes | None = None
    ordinal: int = 0
    mapped: set[TableName] = field(default_factory=set)
    triggering: set[TableName] = field(default_factory=set)
    uncertain: set[TableName] = field(default_factory=set)

    @property
    def miscomputed(self) -> set[TableName]:
        """The tables whose virtual columns it may compute before their triggers."""
        last = computed_last(self.text or b"", self.mapped) if self.uncertain else None
        return self.uncertain - {last} if self.triggering == {last} else self.uncertain


@dataclass
class OpenTransaction:
    """The transaction being received. Its events begin at `start`.

    `begins`: its begin; several in a file beyond 4 GiB. `landed`: landed before a failover, or cut off by a
    crash, so it is skipped. `ended`: its end has arrived, but its position is unknown until the next file
    begins (see the buffer). `is_ours`: see the module; None while it has no tables. `mapped`: the tables
    whose layouts have arrived; `tables`: the captured ones among them. `may_lack`: the server may not have
    kept its rows, `miscomputed`: the captured tables whose virtual columns it may have logged as they were
    before a trigger (MariaDB, see the module). `first`: the index of the event with which the latest of its
    begins begins; None if some since have landed.
    """

    lsn: int
    begins: list[Begin]
    start: int
    is_ours: bool | None = None
    landed: bool = False
    begun: bool = False
    ended: bool = False
    mapped: set[TableName] = field(default_factory=set)
    tables: set[TableName] = field(default_factory=set)
    may_lack: bool = False
    miscomputed: set[TableName] = field(default_factory=set)
    _statement: _Statement = field(default_factory=_Statement)
    first: int | None = None

    def __post_init__(self) -> None:
        self.first = self.start

    def annotate(self, statement: bytes, ordinal: int) -> None:
        """Record the text of the statement whose rows follow (MariaDB)."""
        self._statement = _Statement(statement, ordinal)

    def note_unchecked_insert(self) -> None:
        """Record rows that a session inserted without checks (MariaDB)."""
        text, mapped = self._statement.text, self._statement.mapped
        reported = text is not None and len(mapped) == 1 and reports_duplicates(text)
        self.may_lack |= not (reported or self.landed)

    def touch(self, mapped: ResolvedLayout, ordinal: int, *, triggers: bool = False) -> None:
        """Record a table whose rows may follow, from `ordinal` on.

        `triggers`: MariaDB says that it has some.
        """
        if ordinal > self._statement.ordinal:  # its rows have come
            self._statement = _Statement(None, ordinal)
        statement = self._statement
        self.mapped.add(mapped.table)
        statement.mapped.add(mapped.table)
        if mapped.schema is not None:
            self.tables.add(mapped.table)
        if triggers:
            statement.triggering.add(mapped.table)
        if triggers and mapped.table_map is not None and not self.landed:
            has_virtual = any(column.virtual and not column.hidden for column in mapped.table_map.columns)
            statement.uncertain |= {mapped.table} if has_virtual else set()
        self.miscomputed |= statement.miscomputed
        if self.is_ours is not False:
            self.is_ours = mapped.schema is None and mapped.table == WATERMARK

    def shift(self, events: int) -> None:
        """Record that this many events before it were taken."""
        self.start -= events
        self.first = None if self.first is None else self.first - events

    def note_landed_part(self) -> None:
        """Record that all of its events so far were taken."""
        self.start, self.first = 0, None

    def begin_again(self, begin: Begin, event: int, *, landed: bool) -> None:
        """Continue with the next transaction, whose events begin at an index, as if it were part of this."""
        self.ended, self.begun, self.landed, self.is_ours = False, False, landed, False
        self.first = event
        self.begins.append(begin)


def reports_duplicates(statement: bytes) -> bool:
    """Return whether a statement that changed one table is certain to fail if its rows have duplicates.

    Or to replace them: REPLACE writes its rows one by one.
    """
    if _LOAD.match(statement):
        return _LOAD_IGNORES.search(statement) is None
    return _REPORTING.match(statement) is not None


_NAME = rb"(?:`(?:[^`]|``)+`|[^\s`'\"(.]+(?=[\s(.]))"
_REPORTING = re.compile(
    rb"\s*(?:REPLACE\b|INSERT\s+(?:INTO\b\s*)?(?!(?:IGNORE|INTO)\b)"
    rb"%b(?:\s*\.\s*%b)?\s*(?:\((?:[^()`]|`(?:[^`]|``)*`)*\)\s*)?VALUES?\b)" % (_NAME, _NAME),
    re.IGNORECASE,
)
"""REPLACE, or INSERT ... VALUES without options, as mysqldump writes it."""

_LOAD = re.compile(rb"\s*LOAD\s+DATA\b", re.IGNORECASE)
_LOAD_IGNORES = re.compile(rb"\bLOCAL\b|\bIGNORE\b(?!\s+\d+\s+(?:LINES|ROWS)\b)", re.IGNORECASE)
"""LOCAL implies IGNORE, but not that of the file's first lines."""


def computed_last(statement: bytes, mapped: Collection[TableName]) -> TableName | None:
    """Return the table whose virtual columns a statement is certain to compute after its triggers, if any.

    It writes to no other table but by triggers and functions, which can't write to this one then, unless it
    is in one of them itself (see the module). They may to one of the same name in another database, or in
    other case: then which one is meant is unknown.
    """
    match = _OF_ONE_TABLE.match(statement)
    if match is None or _AFTER_TABLE[match["verb"].upper()].match(match["rest"]) is None:
        return None
    namespace, name = (_unquoted(match[part]) for part in ("namespace", "name"))
    named = [t for t in mapped if t.name.lower() == name and namespace in ("", t.namespace.lower())]
    return named[0] if len(named) == 1 else None


def _unquoted(name: bytes | None) -> str:
    text = (name or b"").decode(errors="replace")
    return (text[1:-1].replace("``", "`") if text.startswith("`") else text).lower()


_PLAIN_NAME = rb"(?:`(?:[^`]|``)+`|[\w$\x80-\xff]+)"
_OF_ONE_TABLE = re.compile(
    rb"(?:\s|/\*(?!M?!)(?:[^*]|\*(?!/))*\*/|(?:#|--(?=[ \t]))[^\n\0]*\n)*"  # no executable comment
    rb"(?P<verb>INSERT|REPLACE|UPDATE|DELETE)\b"
    rb"(?:\s*\b(?:LOW_PRIORITY|HIGH_PRIORITY|DELAYED|QUICK|IGNORE|INTO|FROM)\b)*"
    rb"\s*(?:(?P<namespace>%b)\s*\.\s*)?(?P<name>%b)\s*(?P<rest>.*)" % (_PLAIN_NAME, _PLAIN_NAME),
    re.IGNORECASE | re.DOTALL,
)
_ROWS = re.compile(rb"\(\s*%b|VALUES?\s*\(\s*(?!--)[^\s)/#]|SET\b|SELECT\b" % _PLAIN_NAME, re.IGNORECASE)
_AFTER_TABLE = {
    b"INSERT": _ROWS,
    b"REPLACE": _ROWS,
    b"UPDATE": re.compile(
        rb"(?:(?:AS\s+)?%b\s+)?SET\b(?!.*(?:\b(?:SELECT|VALUES)\b|/\*M?!))" % _PLAIN_NAME,
        re.IGNORECASE | re.DOTALL,
    ),
    b"DELETE": re.compile(rb";|$|(?:WHERE|ORDER|LIMIT|RETURNING)\b", re.IGNORECASE),
}
"""What follows the table where a statement writes only to it, and to all of a row's period.

Not an insert of nothing but defaults (``() VALUES ()``): up to 11.4, it computes no virtual column anew.
A subquery need not have a SELECT (``IN (VALUES (1), (2))``), and an executable comment may hide one: its
version ends where the word begins.
"""


@dataclass
class ShownByLog:
    """What a server's log has shown that its catalog need not.

    `native_keys`: whether there were changes without what foreign keys did along with them. MySQL logs that
    from 9.6 on, but not of changes that it applies in InnoDB's way: those that an older server has logged, or
    one so configured. The tables with such foreign keys are quarantined along with the change that shows it
    (`DdlEffects.report_cascades`), and from then on by each look at the catalog. `triggering`: the tables
    that had triggers by their last table map (MariaDB). Kept when the log is reopened. Written by one thread,
    read by any.
    """

    native_keys: bool = False
    triggering: set[TableName] = field(default_factory=set)
    server: str = ""

    def begin(self, server: str) -> None:
        """Begin anew with another server's log."""
        if server != self.server:
            self.server, self.native_keys, self.triggering = server, False, set()

    def note_triggers(self, table: TableName, *, triggers: bool) -> None:
        """Record whether a table map shows triggers."""
        if triggers:
            self.triggering.add(table)
        else:
            self.triggering.discard(table)


class LogBegin(NamedTuple):
    """Where an epoch's log is read from; 0 once all before it is visible.

    `barrier`: when a write of ours had returned that came after all before it; None without one.
    """

    lsn: int
    barrier: float | None = None


class OnePhaseCommits:
    """The last one of each table; kept when the log is reopened. Written by one thread, read by any.

    MariaDB commits a transaction that has also used an engine which can't prepare (Aria, even if it was only
    read) in one phase: it is logged first, ended by COMMIT instead of XID; then InnoDB commits it, out of the
    log's order, or loses it if the server crashes before that. An XA COMMIT is logged first, too.

    What precedes the log of an epoch was read by others, or not at all: until `settle`, it may end with one
    of any table.
    """

    def __init__(self) -> None:
        self._last: dict[TableName, Position] = {}
        self._begins: dict[int, LogBegin] = {}
        self._barrier: tuple[str, int, float | None] = "", 0, None

    def note_barrier(self, server: str, lsn: int, returned: float | None) -> None:
        """Record when a write of ours had returned that was begun after a server's log ended at `lsn`."""
        self._barrier = server, lsn, returned

    def begin(self, epoch: int, lsn: int, server: str = "") -> None:
        """Record where an epoch's log is read from; where it is reopened does not count."""
        at, barrier = self._barrier[:2], self._barrier[2]
        self._begins.setdefault(epoch, LogBegin(lsn, barrier if at == (server, lsn) else None))

    def begin_of(self, epoch: int) -> LogBegin:
        """Return where an epoch's log is read from."""
        return self._begins.get(epoch, LogBegin(0))

    def settle(self, epoch: int) -> None:
        """Record that all that precedes an epoch's log is visible."""
        self._begins[epoch] = LogBegin(0)

    def add(self, table: TableName, at: Position) -> None:
        """Record one, by where its transaction begins."""
        self._last[table] = at

    def has_since(self, table: TableName, epoch: int, lsn: int) -> bool:
        """Return whether one of a table begins, or may begin, at or after a place in an epoch's log."""
        last = self._last.get(table)
        begins = last is not None and last >= Position(epoch, lsn, 0)
        return begins or lsn < self.begin_of(epoch).lsn

    def since(self, epoch: int, lsn: int) -> set[TableName]:
        """Return the tables of which one is known to begin at or after a place in an epoch's log."""
        return {table for table, last in self._last.items() if last >= Position(epoch, lsn, 0)}
