"""Tables as the log, or a chunk of a dump, has them; and columns, as a look at the catalog shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

from connector.schema import TableName


@dataclass(frozen=True)
class LoggedTable:
    """A table, known by its id, in transaction `lsn`: its rows land as those of `table`.

    If a `root` is named, it is a partition of that, and its rows land as the root's; they are `identified`
    unless the log has less of their old keys. `dumped`: its rows are from a dump, which misses no change.
    `former`: the log may have kept using this name after the table was renamed, up to here; nobody knows if
    the table is gone. `columns`: the names of all its columns then, in order, with their `numbers` in a dump;
    empty if its root has them. `withheld`: rows of it up to here did not land. `xid`: of the transaction.
    `keeps_name`: the log may go on with this name, and this description, after the table was renamed.
    """

    id: int
    table: TableName
    root: TableName | None = None
    lsn: int = 0
    identified: bool = True
    dumped: bool = False
    former: bool = False
    columns: tuple[str, ...] = field(default=(), compare=False)
    numbers: tuple[int, ...] = field(default=(), compare=False)
    withheld: bool = False
    xid: int = field(default=0, compare=False)
    keeps_name: bool = field(default=False, compare=False)


Positions = Callable[[TableName, LoggedTable], int]
"""Returns up to which position it does not matter for a table what was logged."""


def shows_all(_xid: int) -> bool:
    """Stand for a look that shows each transaction of the log from before it."""
    return True


_orders = count()


@dataclass(frozen=True)
class ColumnLook:
    """The columns of tables, as one snapshot of the catalog shows them, between two ends of the log.

    By table, and by the columns' names, as the lake compares them. `ids`: what stays when a column is
    renamed. `versions`: what changes whenever it is altered, negative while it is generated. Both are empty
    if the database has no such ids. `published`: what changes whenever a list of the columns that are logged
    may have; absent: 0.
    `shows`: whether it shows a transaction of the log (`LoggedTable.xid`), which may be before `begun`.
    `order`: greater in each later look of a process; two may be at the same positions, or a crash between
    them may have taken log back.
    """

    begun: int = 0
    position: int = 0
    ids: Mapping[TableName, Mapping[str, int]] = field(default_factory=dict)
    versions: Mapping[TableName, Mapping[str, int]] = field(default_factory=dict)
    published: Mapping[TableName, int] = field(default_factory=dict)
    shows: Callable[[int], bool] = field(default=shows_all, compare=False)
    order: int = field(default_factory=_orders.__next__, compare=False)
