"""A table's fingerprint in the manifest, which detects changes without row events. Pure.

Two fields record such changes, and trigger a dump if they differ: `noted`, what the log reader recorded
(`connector.mysql.state_tables`), and `unlogged`, the table's ids when they were last seen to differ
without a statement that did it, with the log position.

A table gets another id whenever it is emptied or rebuilt: in MariaDB InnoDB's, in MySQL that of its
tablespace, with the time of its definition (`connector.mysql.table_ids`). A logged statement changes it as
well, and must not trigger a dump. So an `IdReading` lies between two positions, and is judged once the log
has been read past the second: a new id is unlogged if no statement that may have rebuilt the table came since
`at`, the position before the reading that saw the former id.

Invariant: `at` is before the reading, and whatever was logged before `at` had finished with the table by
then. MariaDB changes ids before it logs the statement, so a crash in between leaves an empty table and a log
without the statement. MySQL logs first, and the commit may wait for a replica before its id shows; but
OPTIMIZE it logs only after it has recreated, unlocked and analyzed the table, so a reading
in between takes that for unlogged: a dump too many.

An inconclusive reading decides nothing, and the next one decides: if a statement is between its own two
positions, or the statements kept by then no longer show whether there was one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from connector.schema import TableName

STATEMENTS_KEPT = 64
"""How many positions of statements that rebuild a table are kept: more than there are between two readings.
"""


@dataclass(frozen=True)
class Fingerprint:
    """See the module; `ids` is empty if unknown. `at` is a position of `epoch`."""

    noted: str = ""
    unlogged: str = ""
    epoch: int = 0
    at: int = 0
    ids: str = ""

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """Parse what `__str__` wrote."""
        noted, unlogged, epoch, at, ids = text.split("|")
        return cls(noted, unlogged, int(epoch), int(at), ids)

    def __str__(self) -> str:
        return f"{self.noted}|{self.unlogged}|{self.epoch}|{self.at}|{self.ids}"

    def differs(self, before: Fingerprint) -> bool:
        """Return whether rows may have changed without row events since an earlier fingerprint."""
        return (self.noted, self.unlogged) != (before.noted, before.unlogged)


class Statements:
    """Log positions of statements by the table they rebuild. The log reader writes, the watcher reads."""

    def __init__(self) -> None:
        self._epoch = 0
        self._of: dict[TableName, tuple[int, ...]] = {}

    def begin(self, epoch: int) -> None:
        """Discard what belongs to another epoch."""
        if epoch != self._epoch:
            self._epoch, self._of = epoch, {}

    def add(self, table: TableName, lsn: int) -> None:
        """Record a statement; ignore those that are read again after a lost connection."""
        known = self._of.get(table, ())
        if not known or lsn > known[-1]:
            self._of[table] = (*known, lsn)[-STATEMENTS_KEPT:]

    def between(self, table: TableName, after: int, upto: int) -> bool | None:
        """Return whether one begins at or after `after` and before `upto`; None if no longer known."""
        known = self._of.get(table, ())
        if any(after <= lsn < upto for lsn in known):
            return True
        return None if len(known) == STATEMENTS_KEPT and known[0] >= upto else False


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

    def judge(self, table: TableName, known: Fingerprint, statements: Statements) -> Fingerprint:
        """Return the fingerprint to remember; the log must have been read up to `after`."""
        ids = self.ids.get(table, "")
        if not ids or statements.between(table, self.before, self.after) is not False:
            return known
        seen = replace(known, epoch=self.epoch, at=self.before, ids=ids)
        if not known.ids or known.epoch != self.epoch:
            return seen  # another server assigns other ids
        since = statements.between(table, known.at, self.before)
        if since is None or (known.ids == ids and not since):
            return known
        if since or is_same(ids, known.ids):
            return seen
        return replace(seen, unlogged=f"{self.epoch}:{self.after}:{ids}")
