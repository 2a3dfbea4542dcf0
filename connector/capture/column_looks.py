"""The last look at the columns of each table, and of which log it tells.

A writer and an ALTER of its table exclude each other until both have ended, and whoever has ended is visible
before the other goes on. So looks show them in their order: of a transaction that one look shows and the look
before did not, the table was altered before it or after it as the two differ; and if they don't, neither.

The catalog watcher hands its looks over from another thread, so a later one may have been noted before.
"""

from __future__ import annotations

from collections.abc import Iterable

from connector.logged_table import ColumnLook, LoggedTable
from connector.schema import TableName

_NONE = ColumnLook(order=-1)


class ColumnLooks:
    """Used only by the capture loop's thread."""

    def __init__(self) -> None:
        self._last: dict[TableName, ColumnLook] = {}

    def note(self, look: ColumnLook, tables: Iterable[TableName]) -> None:
        """Replace the last look at these tables, unless it is later; this one may not show some of them."""
        self._last |= {table: look for table in tables if self.last(table).order <= look.order}

    def forget(self) -> None:
        """Forget all looks: positions of different epochs can't be compared."""
        self._last.clear()

    def last(self, table: TableName) -> ColumnLook:
        """Return the last look at a table; an empty one, from before all log, if there was none."""
        return self._last.get(table, _NONE)

    def tells_of(self, logged: LoggedTable) -> bool:
        """Return whether the last look shows the transaction that described a table."""
        look = self.last(logged.table)
        return logged.lsn < look.begun and look.shows(logged.xid)
