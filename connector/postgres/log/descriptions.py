"""How the log describes tables: under which name, and as whose rows (`connector.source.LoggedTable`). Pure.

The server describes a table before its first change, and again when the table may have changed. A partition
whose rows are published as its root's is described right after its root. A TRUNCATE, too, is preceded by
several descriptions: of the tables that it lists.

It does not describe a table again because its schema was renamed (before PostgreSQL 16), nor a root that was
renamed itself, since it keeps track of descriptions by partition. What changes from then on lands under the
former name, and no byte of the log shows it. So only a name that the catalog still has, once all of its log
is read, is the name of what was logged under it. A table that has another name by then, or is gone, may have
been renamed before any of its changes, unless a later description shows its name of then.

Invariants:

- Log of a table that may not be described again is taken as that of its name only if a snapshot from after
  it shows the table under that name; otherwise as that of a former one.
- Descriptions are handed over with the changes that they precede, or with their transaction. What is landed
  of a transaction is never without them.
- A former name is handed over with all that was taken under it, even if the transaction that gives the new
  one is still open: the log may be lost before that one is whole, and would not show it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from connector.logged_table import LoggedTable
from connector.postgres.codec.pgoutput import Relation
from connector.schema import TableName

FULL = "f"
"""The replica identity of whole rows."""

DESCRIBES_SCHEMA_RENAMES = 160000
"""The first version that describes tables again after their schema was renamed."""


class _Described(NamedTuple):
    """A table described before the change number `before`, in a transaction; `root`: just before it.

    `former`: another name, which the log may have kept using until then.
    """

    relation: Relation
    before: int
    lsn: int
    root: Relation | None
    former: TableName | None
    xid: int


class Descriptions:
    """The descriptions not taken yet.

    `truncates` returns whether a change, given by its number, is a TRUNCATE of a table, given by its id;
    False for a number that is not reached yet. `describes_schema_renames`: the server describes tables again
    after their schema was renamed.
    """

    describes_schema_renames = True

    def __init__(self, truncates: Callable[[int, int], bool]) -> None:
        self._truncates = truncates
        self._names: dict[int, TableName] = {}
        self._roots: set[int] = set()
        self._xids: dict[int, int] = {}
        self._outdated: dict[int, int] = {}
        self._gone: dict[int, int] = {}
        self._whole: list[LoggedTable] = []
        self._open: list[_Described] = []
        self._replaced: list[tuple[int, TableName]] = []
        self._next: tuple[int, int] | None = None

    def add(self, relation: Relation, xid: int, lsn: int, kept: int, dropped: int) -> None:
        """Add a description in a transaction, after so many changes that are kept, and dropped."""
        follows = bool(self._open) and self._next == (kept, dropped)
        root = self._open[-1].relation if follows else None
        name, former = _name(relation), self._names.get(relation.relid)
        renamed = former is not None and self._is_undescribed(relation.relid, former, name)
        self._open.append(_Described(relation, kept, lsn, root, former if renamed else None, xid))
        if former is not None and renamed:
            self._replaced.append((relation.relid, former))
        self._next = kept, dropped
        self._names[relation.relid], self._xids[relation.relid] = name, xid
        self._outdated.pop(relation.relid, None)
        if root is not None:
            self._roots.add(root.relid)

    def may_be_outdated(self) -> list[int]:
        """Return the ids of the tables whose names may have changed without a description."""
        return sorted(self._keeping_names)

    @property
    def _keeping_names(self) -> Collection[int]:
        return self._roots if self.describes_schema_renames else self._names.keys()

    def compare(self, current: Mapping[int, TableName], position: int, shows: Callable[[int], bool]) -> bool:
        """Compare with a snapshot's names, from before `position`; return whether more are outdated now.

        `shows`: whether the snapshot shows a transaction, given its xid; a table that it lacks is gone only
        if it shows one that had the table. What is taken from now on names them.
        """
        before = {*self._outdated, *self._gone}
        outdated = [i for i, name in current.items() if self._is_undescribed(i, self._names[i], name)]
        self._outdated = {relid: self._outdated.get(relid, position) for relid in outdated}
        gone = [i for i in self.may_be_outdated() if i not in current and shows(self._xids[i])]
        self._gone = {relid: self._gone.get(relid, position) for relid in gone}
        return not before >= {*outdated, *gone}

    def outdated(self, position: int) -> list[LoggedTable]:
        """Return the tables whose changes up to a position may have their former names.

        Those that are gone are forgotten once no more changes of them can come.
        """
        replaced, self._replaced = self._replaced, []
        found = [*replaced, *((relid, self._names[relid]) for relid in (*self._outdated, *self._gone))]
        for relid in [relid for relid, since in self._gone.items() if since <= position]:
            self._forget(relid)
        return [LoggedTable(relid, name, lsn=position, former=True) for relid, name in found]

    def _forget(self, relid: int) -> None:
        self._roots.discard(relid)
        for known in (self._gone, self._names, self._xids):
            known.pop(relid, None)

    def outdated_before(self, position: int) -> list[TableName]:
        """Return the names of those found before a position; what was taken up to there names them."""
        return [self._names[relid] for relid, since in self._outdated.items() if since < position]

    def _is_undescribed(self, relid: int, name: TableName, now: TableName) -> bool:
        """Return whether the log may keep using a name, although the table has another one now."""
        schema_renamed = not self.describes_schema_renames and name.namespace != now.namespace
        return schema_renamed or (relid in self._roots and name != now)

    def commit(self) -> None:
        """The transaction is whole."""
        self._whole += self._resolved(self._open)
        self._open, self._replaced, self._next = [], [], None

    def take(self, kept: int) -> list[LoggedTable]:
        """Take those of whole transactions; `kept` changes are taken with them."""
        taken, self._whole = self._whole, []
        self._shift(kept)
        return taken

    def take_open(self, kept: int) -> list[LoggedTable]:
        """Take those of the open transaction that precede `kept` changes, which are all there are."""
        taken = self._resolved([each for each in self._open if each.before < kept])
        self._open = [each for each in self._open if each.before >= kept]
        self._shift(kept)
        return taken

    def _shift(self, kept: int) -> None:
        self._open = [each._replace(before=each.before - kept) for each in self._open]
        if self._next is not None:
            self._next = self._next[0] - kept, self._next[1]

    def _resolved(self, described: Iterable[_Described]) -> list[LoggedTable]:
        found = []
        for each in described:
            if each.former is not None:
                found.append(LoggedTable(each.relation.relid, each.former, lsn=each.lsn, former=True))
            found.append(self._logged(each))
        return found

    def _logged(self, described: _Described) -> LoggedTable:
        relation, root = described.relation, described.root
        if root is not None and self._truncates(described.before, relation.relid):
            root = None
        table, lsn = _name(relation), described.lsn
        if root is None:
            names, xid = tuple(column.name for column in relation.columns), described.xid
            keeps_name = relation.relid in self._keeping_names
            return LoggedTable(relation.relid, table, lsn=lsn, columns=names, xid=xid, keeps_name=keeps_name)
        identified = relation.identity == FULL or _identity(relation) == _identity(root)
        return LoggedTable(relation.relid, table, _name(root), lsn, identified)


def _identity(relation: Relation) -> tuple[str, set[str]]:
    return relation.identity, {column.name for column in relation.columns if column.is_key}


def _name(relation: Relation) -> TableName:
    return TableName(relation.namespace, relation.name)
