"""How the log describes tables: under which name, and as whose rows (`connector.source.LoggedTable`). Pure.

The server describes a table before its first change, and again when the table may have changed. A partition
whose rows are published as its root's is described right after its root. A TRUNCATE, too, is preceded by
several descriptions: of the tables that it lists.

Invariant: descriptions are handed over with the changes that they precede, or with their transaction. What
is landed of a transaction is never without them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from connector.logged_table import LoggedTable
from connector.postgres.codec.pgoutput import Relation
from connector.schema import TableName

FULL = "f"
"""The replica identity of whole rows."""


class _Described(NamedTuple):
    """A table described before the change number `before`, in a transaction; `root`: just before it."""

    relation: Relation
    before: int
    lsn: int
    root: Relation | None


class Descriptions:
    """The descriptions not taken yet.

    `truncates` tells of a change by its number whether it is a TRUNCATE of a table, given by its id; False
    for a number that is not reached yet.
    """

    def __init__(self, truncates: Callable[[int, int], bool]) -> None:
        self._truncates = truncates
        self._whole: list[LoggedTable] = []
        self._open: list[_Described] = []
        self._next: tuple[int, int] | None = None

    def add(self, relation: Relation, lsn: int, kept: int, dropped: int) -> None:
        """Add a description, after so many changes that are kept, and dropped."""
        follows = bool(self._open) and self._next == (kept, dropped)
        self._open.append(_Described(relation, kept, lsn, self._open[-1].relation if follows else None))
        self._next = kept, dropped

    def commit(self) -> None:
        """The transaction is whole."""
        self._whole += map(self._resolved, self._open)
        self._open, self._next = [], None

    def take(self, kept: int) -> list[LoggedTable]:
        """Take those of whole transactions; `kept` changes are taken with them."""
        taken, self._whole = self._whole, []
        self._shift(kept)
        return taken

    def take_open(self, kept: int) -> list[LoggedTable]:
        """Take those of the open transaction that precede `kept` changes, which are all there are."""
        taken = [self._resolved(each) for each in self._open if each.before < kept]
        self._open = [each for each in self._open if each.before >= kept]
        self._shift(kept)
        return taken

    def _shift(self, kept: int) -> None:
        self._open = [each._replace(before=each.before - kept) for each in self._open]
        if self._next is not None:
            self._next = self._next[0] - kept, self._next[1]

    def _resolved(self, described: _Described) -> LoggedTable:
        relation, root = described.relation, described.root
        if root is not None and self._truncates(described.before, relation.relid):
            root = None
        table, lsn = _name(relation), described.lsn
        if root is None:
            return LoggedTable(relation.relid, table, lsn=lsn)
        identified = relation.identity == FULL or _identity(relation) == _identity(root)
        return LoggedTable(relation.relid, table, _name(root), lsn, identified)


def _identity(relation: Relation) -> tuple[str, set[str]]:
    return relation.identity, {column.name for column in relation.columns if column.is_key}


def _name(relation: Relation) -> TableName:
    return TableName(relation.namespace, relation.name)
