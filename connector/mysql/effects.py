"""What transactions do to tables without rows events: they empty them, have them read again or set aside.

Invariant: whatever may have changed a captured table and is not in its rows events is told: as an event that
empties it, as `Untold`, or by setting it aside. Nothing is passed over.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

from connector.event import SetAside
from connector.mysql.capturing import Capturing
from connector.mysql.events import Query
from connector.mysql.held import HeldRows
from connector.mysql.statement import Effect, changes_rows, effects_of
from connector.schema import TableName, TableSchema

log = logging.getLogger(__name__)

_ROW_FORMAT = "SET GLOBAL binlog_format = ROW, see that no session sets another, then dump the table again"


class Untold(NamedTuple):
    """A table whose rows may have changed at `lsn` without events that tell, and how."""

    table: TableName
    lsn: int
    reason: str


class Effects:
    """Effects found and not taken yet; `lsn` is always that of the transaction."""

    def __init__(self, capturing: Capturing, held: HeldRows) -> None:
        self._capturing, self._held = capturing, held
        self._untold: list[Untold] = []
        self._set_aside: list[SetAside] = []
        self._announced: list[tuple[int, TableSchema]] = []
        self._prepared: dict[str, set[TableName]] = {}

    def take_untold(self) -> list[Untold]:
        """Take what has to be written down, or to be given back by `put_aside_untold`."""
        untold, self._untold = self._untold, []
        return untold

    def take_set_aside(self) -> list[SetAside]:
        """Take the tables set aside."""
        set_aside, self._set_aside = self._set_aside, []
        return set_aside

    def take_announced(self) -> list[tuple[int, TableSchema]]:
        """Take the layouts that came, each with its transaction."""
        announced, self._announced = self._announced, []
        return announced

    def run(self, query: Query, lsn: int, ordinal: int) -> int:
        """Carry out what a statement did; give how many events it became."""
        if query.statement is None:
            effect = Effect("untold", query.database, None, "a statement that can't be read")
            return self._tell(effect, lsn, ordinal)
        count = 0
        for effect in effects_of(query.statement, query.database):
            count += self._tell(effect, lsn, ordinal + count)
        if changes_rows(query.statement):
            self._tell_indirect(query, lsn)
        return count

    def _tell_indirect(self, query: Query, lsn: int) -> None:
        """Have all tables read again that a change in the statement format may have led to."""
        databases = (None,) if query.updated is None else query.updated
        tables = {table for database in databases for table in self._capturing.among(database)}
        known = {found.table for found in self._set_aside} | {str(found.table) for found in self._untold}
        for table in sorted(table for table in tables if str(table) not in known):
            reason = "a change in the statement format may have led to it, by a view, a trigger or a routine"
            log.warning("%s: %s; its rows are read again", table, reason)
            self._untold.append(Untold(table, lsn, reason))

    def _tell(self, effect: Effect, lsn: int, ordinal: int) -> int:
        """Carry out what a statement did: a truncate is an event, the rest has to be read again."""
        truncated = 0
        for table in self._tables_of(effect):
            if effect.kind == "truncate":
                truncated += self._truncate(table, lsn, ordinal + truncated)
            elif effect.kind == "statement":
                self.put_aside({table}, lsn, f"{effect.reason} changed it", _ROW_FORMAT)
            elif effect.kind == "columns":
                self._announce(table, lsn, effect.columns)
            else:
                log.warning("%s: %s, its rows are read again", table, effect.reason)
                self._untold.append(Untold(table, lsn, effect.reason))
        return truncated

    def _announce(self, table: TableName, lsn: int, went: tuple[str, ...]) -> None:
        """Tell of a layout that no row may ever show: without the columns that went, then as it is now.

        The second comes from the catalog, which may be ahead of the log; what is told twice does no harm.
        """
        now = self._capturing.now(table)
        known = self._capturing.latest(table)  # asked after `now`, so that it has at least as many changes
        if known is not None and known.schema is not None:
            gone = {name.lower() for name in went}
            left = tuple(c for c in known.schema.columns if c.name.lower() not in gone)
            if left != known.schema.columns and gone.isdisjoint(map(str.lower, known.schema.key)):
                self._announced.append((lsn, replace(known.schema, columns=left)))
        if now is not None and now.schema is not None:
            self._announced.append((lsn, now.schema))

    def _tables_of(self, effect: Effect) -> set[TableName]:
        if effect.name is None:
            return set(self._capturing.among(effect.database))
        named = self._capturing.named(effect.database, effect.name)
        return set() if named is None else {named}

    def _truncate(self, table: TableName, lsn: int, ordinal: int) -> bool:
        mapped = self._capturing.latest(table)
        if mapped is None or mapped.schema is None:
            self.put_aside({table}, lsn, "it was truncated, and its layout is not known")
            return False
        self._held.hold_truncate(mapped, ordinal)
        return True

    def prepare(self, xid: str, touched: set[TableName], lsn: int) -> None:
        """An XA transaction was prepared; whether its rows count, another transaction tells later."""
        self._prepared[xid] = touched
        self.put_aside(touched, lsn, f"XA transaction {xid} was prepared, which is not supported")

    def end_prepared(self, statement: str, lsn: int) -> None:
        """Look at XA COMMIT or XA ROLLBACK."""
        if not statement.upper().startswith("XA COMMIT"):
            return
        xid = statement[len("XA COMMIT") :].strip()
        touched = self._prepared.pop(xid, None)
        tables = self._capturing.among(None) if touched is None else touched
        self.put_aside(tables, lsn, f"XA transaction {xid} was committed, which is not supported")

    def put_aside(self, tables: set[TableName], lsn: int, reason: str, hint: str = "") -> None:
        """Set tables aside."""
        for table in sorted(tables):
            log.error("%s is set aside: %s", table, reason)
            told = hint or f"dump it again: deltatide dump {table}"
            self._set_aside.append(SetAside(str(table), lsn, reason, told))

    def put_aside_untold(self, untold: Untold) -> None:
        """Set a table aside whose change could not be written down."""
        hint = f"dump it again: deltatide dump {untold.table}"
        self._set_aside.append(SetAside(str(untold.table), untold.lsn, untold.reason, hint))
