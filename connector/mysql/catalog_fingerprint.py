"""A table's fingerprint in the manifest, which detects changes without row events. Pure.

One field records such changes, and triggers a dump if it differs: `unlogged`, the table's ids when they were
last seen to differ without a statement that did it, with the log position. Of those that a statement made,
the log itself tells (`connector.landing.event_batch.UnloggedNotice`).

A table gets another id whenever it is emptied or rebuilt: in MariaDB InnoDB's, in MySQL that of its
tablespace, with the time of its definition (`connector.mysql.table_ids`). A logged statement changes it as
well, and must not trigger a dump. So an `IdReading` lies between two positions, and is judged once the log
has been read past the second: a new id is unexplained if no statement that may have rebuilt the table came
since `at`, the position before the reading that saw the former id.

Most statements keep the table locked until their id shows and the log has them. But OPTIMIZE is logged only
after it has recreated, unlocked and analyzed all its tables. So an unexplained id is unlogged unless such a
statement is logged before the end of the next reading, one look later; no other that follows explains it.

After a crash, nothing before or after it explains another id: MariaDB changes ids before it logs the
statement, so a crash in between leaves an empty table and a log without the statement. An agent does not know
of crashes in log that was read before it started. As each begins a new log file, there may have been one if
`at` is in an earlier file than the one from which the agent has read. While looks find the same id, `at`
stays where it is within a log file, so that fingerprints seldom change, and follows into the next one. On
MySQL, it does not: a crash leaves both what a statement does and its place in the log, or neither.

Invariants:

- `at` is before the reading, and whatever was logged before `at` had finished with the table by then. (MySQL
  logs first, and the commit may wait for a replica before its id shows.)
- Until an id is explained or unlogged, the former id and its `at` are what is remembered: an agent that
  starts meanwhile sees the difference again.
- An inconclusive reading decides nothing, and the next one decides: if a statement or a crash is between its
  own two positions, or the statements kept by then no longer show whether there was one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from connector.position import unpack_binlog_position
from connector.schema import TableName

STATEMENTS_KEPT = 64
"""How many positions of statements that rebuild a table are kept: more than there are between two readings.
"""


@dataclass(frozen=True)
class Fingerprint:
    """See the module; `ids` is empty if unknown. `at` is a position of `epoch`."""

    unlogged: str = ""
    epoch: int = 0
    at: int = 0
    ids: str = ""

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """Parse what `__str__` wrote; it used to begin with another field."""
        *_, unlogged, epoch, at, ids = text.split("|")
        return cls(unlogged, int(epoch), int(at), ids)

    def __str__(self) -> str:
        return f"{self.unlogged}|{self.epoch}|{self.at}|{self.ids}"

    def differs(self, before: Fingerprint) -> bool:
        """Return whether rows may have changed without row events since an earlier fingerprint."""
        return self.unlogged != before.unlogged


class Statements:
    """Log positions of statements by the table they rebuild, and of crashes.

    The log reader writes, the watcher reads.
    """

    def __init__(self) -> None:
        self._epoch = self._file = 0
        self._of: dict[TableName, tuple[int, ...]] = {}
        self._late: dict[TableName, tuple[int, ...]] = {}
        self._crashes: tuple[int, ...] = ()

    def begin(self, epoch: int, position: int | None) -> None:
        """Discard what belongs to another epoch; the log is read from `position` on, or once more.

        None if it does not matter whether the server crashed before that.
        """
        if epoch != self._epoch:
            self._epoch, self._of, self._late, self._crashes = epoch, {}, {}, ()
            self._file, _ = unpack_binlog_position(position or 0)

    def add(self, table: TableName, lsn: int, *, late: bool = False) -> None:
        """Record a statement; `late`: it may be logged after it has unlocked the table."""
        self._of[table] = _with(self._of.get(table, ()), lsn)
        if late:
            self._late[table] = _with(self._late.get(table, ()), lsn)

    def add_crash(self, position: int) -> None:
        """Record that the server crashed, and where its log begins again."""
        self._crashes = _with(self._crashes, position)

    def between(self, table: TableName, after: int, upto: int) -> bool | None:
        """Return whether one begins at or after `after` and before `upto`; None if no longer known."""
        known = self._of.get(table, ())
        if any(after <= lsn < upto for lsn in known):
            return True
        return None if len(known) == STATEMENTS_KEPT and known[0] >= upto else False

    def late_between(self, table: TableName, after: int, upto: int) -> bool:
        """Return whether one that is logged late is known to begin there."""
        return any(after <= lsn < upto for lsn in self._late.get(table, ()))

    def is_of_earlier_file(self, at: int, now: int) -> bool:
        """Return whether a file has ended after `at`, if an agent that starts now has to know."""
        return self._file > 0 and unpack_binlog_position(at)[0] < unpack_binlog_position(now)[0]

    def crashed_between(self, after: int, upto: int) -> bool:
        """Return whether the server may have crashed after `after`, and `upto` is in its log since then."""
        unknown = unpack_binlog_position(after)[0] < self._file
        return unknown or any(after < position <= upto for position in self._crashes)


def _with(known: tuple[int, ...], position: int) -> tuple[int, ...]:
    """Add a position, unless it is read again after a lost connection."""
    return known if known and position <= known[-1] else (*known, position)[-STATEMENTS_KEPT:]


def is_same(ids: str, others: str) -> bool:
    """Return whether a table with these ids was not rebuilt since it had others.

    MySQL's are `time/tablespaces`: the tablespaces decide, and if one of the two lacks them, the time does.
    """
    (time, _, spaces), (other_time, _, other_spaces) = ids.partition("/"), others.partition("/")
    return spaces == other_spaces if spaces and other_spaces else time == other_time


@dataclass(frozen=True)
class IdReading:
    """The ids of all tables at one moment between two positions of an epoch's log."""

    epoch: int
    before: int
    after: int
    ids: Mapping[TableName, str] = field(default_factory=dict)

    def first(self, table: TableName, known: Fingerprint) -> Fingerprint:
        """Return the fingerprint to remember of a table with unknown ids, or another server's."""
        ids = self.ids.get(table, "")
        return replace(known, epoch=self.epoch, at=self.before, ids=ids) if ids else known


@dataclass(frozen=True)
class _Unexplained:
    """A table's ids differed from the `known` ones; `seen`: what to remember if that was unlogged."""

    known: Fingerprint
    seen: Fingerprint


class Judge:
    """Judges readings, each once the log has been read up to its `after`; see the module."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._unexplained: dict[TableName, _Unexplained] = {}

    def judge(
        self, reading: IdReading, known: Mapping[TableName, Fingerprint]
    ) -> dict[TableName, Fingerprint]:
        """Return the fingerprints to remember."""
        settled = {table: self._settle(reading, table, print_) for table, print_ in known.items()}
        return {table: self._judge(reading, table, print_) for table, print_ in settled.items()}

    def _settle(self, reading: IdReading, table: TableName, known: Fingerprint) -> Fingerprint:
        """Decide about an earlier reading of this table, if that left its ids unexplained.

        What it saw stays until it is remembered: the caller may discard a judgment.
        """
        earlier = self._unexplained.get(table)
        if earlier is None:
            return known
        if earlier.known != known or earlier.seen.epoch != reading.epoch:
            del self._unexplained[table]
            return known
        explained = self._statements.late_between(table, earlier.seen.at, reading.after)
        unlogged = known.unlogged if explained else earlier.seen.unlogged
        return replace(earlier.seen, unlogged=unlogged)

    def _judge(self, reading: IdReading, table: TableName, known: Fingerprint) -> Fingerprint:
        statements, before, after = self._statements, reading.before, reading.after
        beside = statements.between(table, before, after)
        if table not in reading.ids or beside is not False or statements.crashed_between(before, after):
            return known
        seen = reading.first(table, known)
        if not known.ids or known.epoch != reading.epoch:
            return seen  # another server assigns other ids
        since, crashed = (
            statements.between(table, known.at, before),
            statements.crashed_between(known.at, before),
        )
        if since is None:
            return known
        if known.ids == seen.ids and not (
            since or crashed or statements.is_of_earlier_file(known.at, before)
        ):
            return known
        if is_same(seen.ids, known.ids) or (since and not crashed):
            return seen
        unlogged = replace(seen, unlogged=f"{reading.epoch}:{after}:{seen.ids}")
        if crashed:
            return unlogged
        self._unexplained[table] = _Unexplained(known, unlogged)
        return known
