"""Handles what transactions do to tables without rows events: empties, rereads or quarantines the tables.

Invariant: whatever may have changed a captured table and is not in its rows events is reported: as an event
that empties it, as an `UnloggedNotice`, or by quarantining it. Nothing is ignored.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace

from connector.landing.event_batch import QuarantineNotice, TableRedefined, UnloggedNotice
from connector.mysql.catalog_fingerprint import Statements
from connector.mysql.codec.charsets import lower
from connector.mysql.log.ddl_parser import (
    Effect,
    as_mysql_reads,
    changes_rows,
    logged_late,
    rebuilt_by,
    statement_effects,
)
from connector.mysql.log.events import Query
from connector.mysql.log.pending_events import PendingRows
from connector.mysql.log.schema_cache import OWN_DATABASE, SchemaCache
from connector.schema import TableName, TableSchema

log = logging.getLogger(__name__)

_ROW_FORMAT = "SET GLOBAL binlog_format = ROW, let no session set another, then dump the table again"

_OURS = re.compile(
    rf"UPDATE {OWN_DATABASE}\.watermark SET [\w =+,']*"
    rf"|INSERT INTO {OWN_DATABASE}\.watermark \(source, id\) VALUES \([\w ,']*\)"
    rf"|INSERT INTO {OWN_DATABASE}\.watermark SELECT \* FROM {OWN_DATABASE}\.watermark WHERE 1 = 0",
    re.ASCII,
)
"""Our own writes as statements, once the server's binlog_format is another: they name no other table, nor a
view or a routine. Each chunk, and each opening of the log, which tries to write, would have all tables of
MariaDB dumped again.
"""

PREPARED_KEPT = 10_000
"""Limit of XA transactions whose tables are kept: more than are ever prepared at once."""


class DdlEffects:
    """Effects that were found and not taken yet; `lsn` is always that of the transaction.

    `prepared`: the tables of prepared XA transactions, by xid. It is kept when the log is reopened, since
    that may be after an XA PREPARE; transactions that are read again are already in it. Not after a gap. It
    has tables that are not captured, too: they may be by the commit, which a dump before it does not see.
    """

    def __init__(
        self,
        schema_cache: SchemaCache,
        held: PendingRows,
        statements: Statements | None = None,
        prepared: dict[str, set[TableName]] | None = None,
    ) -> None:
        self._schema_cache, self._held = schema_cache, held
        self._statements = statements or Statements()
        self._unlogged: dict[TableName, tuple[UnloggedNotice, UnloggedNotice]] = {}  # the first and the last
        self._quarantined: list[QuarantineNotice] = []
        self._announced: list[tuple[int, TableSchema]] = []
        self._redefined: list[TableRedefined] = []
        self._prepared = {} if prepared is None else prepared
        self._foreign_keys_known = False

    def take_found(
        self, open_lsn: int | None
    ) -> tuple[list[QuarantineNotice], list[tuple[int, TableSchema]]]:
        """Take the quarantined tables, and the announced layouts, each with its transaction's lsn.

        Those of the transaction that begins at `open_lsn` stay until they can be taken with it.
        """
        quarantined, announced = self._quarantined, self._announced
        self._quarantined = [found for found in quarantined if found.lsn == open_lsn]
        self._announced = [found for found in announced if found[0] == open_lsn]
        return (
            [found for found in quarantined if found.lsn != open_lsn],
            [found for found in announced if found[0] != open_lsn],
        )

    def count_unlogged(self, open_lsn: int | None) -> int:
        """Return the number of tables to be dumped again, except because of the transaction at `open_lsn`."""
        return sum(first.lsn != open_lsn for first, _ in self._unlogged.values())

    def take_done(self, open_lsn: int | None) -> list[TableRedefined | UnloggedNotice]:
        """Take what statements did to tables, except those of the transaction at `open_lsn`.

        Each may have changed the rows of all tables, so of those changes only the first of a table is told.
        """
        redefined, unlogged = self._redefined, self._unlogged
        self._redefined = [each for each in redefined if each.lsn == open_lsn]
        self._unlogged = {n: (last, last) for n, (_, last) in unlogged.items() if last.lsn == open_lsn}
        changed = [first for first, _ in unlogged.values() if first.lsn != open_lsn]
        return [*(each for each in redefined if each.lsn != open_lsn), *changed]

    def apply_statement(self, query: Query, lsn: int, ordinal: int) -> int:
        """Apply a statement's effects; return the number of events they became.

        `NotYetError`, before any of them, if the layout of its table can't be known now.
        """
        self._foreign_keys_known &= (query.statement or "")[:9].upper() == "SAVEPOINT"
        if query.statement is not None and not self._schema_cache.mariadb:
            query = query._replace(statement=as_mysql_reads(query.statement))
        self._note(query, lsn)
        if query.statement is None:
            self.reread_all(lsn, "a statement can't be read")
            self._note_redefined(self._schema_cache.among(None), lsn)
            return 0
        if _OURS.fullmatch(query.statement):
            return 0
        count, found = 0, statement_effects(query.statement, query.database)
        for effect in found:
            if effect.kind in ("unlogged", "traits"):
                self._note_redefined(self._tables_of(effect), lsn)
        effects = self._certain(found, query)
        for effect in sorted(effects, key=lambda each: each.kind != "columns"):  # which may raise
            if effect.kind == "truncate" and query.temporary:
                effect = effect._replace(
                    kind="unlogged", reason="TRUNCATE TABLE of it or of a temporary table"
                )
            count += self._apply_effect(effect, lsn, ordinal + count)
        if changes_rows(query.statement):
            self._reread_indirect(query, lsn)
        return count

    def _certain(self, effects: list[Effect], query: Query) -> list[Effect]:
        """Return the effects, without copies and lost defaults: as unlogged changes, or not if harmless.

        The catalog tells of which columns, and may be ahead of the log: it lacks those that MODIFY made
        others, for which the table is reread, and those that were dropped since.
        """
        found, lost = [], {lower(name) for effect in effects for name in effect.columns}
        for effect in effects:
            if effect.kind == "traits":
                continue
            if effect.kind == "default":
                if any(self._may_have_hidden_replace(table, effect) for table in self._tables_of(effect)):
                    found.append(effect._replace(kind="unlogged"))
                continue
            if effect.kind != "copy":
                found.append(effect)
                continue
            whys = (self._why_changed(table, query, lost) for table in self._tables_of(effect))
            found += [
                effect._replace(kind="unlogged", reason=f"{effect.reason} {why}") for why in whys if why
            ]
        return found

    def _may_have_hidden_replace(self, table: TableName, effect: Effect) -> bool:
        """Return whether a REPLACE before a DROP DEFAULT may have been taken for an update.

        In MariaDB's partial images, only the default of a key tells that it may be one (`row_decoder`), which
        the catalog, ahead of the log, no longer shows.
        """
        if not self._schema_cache.mariadb:
            return False
        known = self._schema_cache.latest(table)
        if known is None or known.schema is None or known.table_map is None:
            return True
        key = {lower(name) for name in (*known.table_map.key, *known.schema.key)}
        return not key.isdisjoint(lower(name) for name in effect.columns)

    def _why_changed(self, table: TableName, query: Query, lost: set[str]) -> str | None:
        """Return how a copy of a table, if it was one, may have changed values, or None.

        Also those of columns that went after it, but not those that it `lost` itself.

        - Stored columns are computed anew, in the session that copies.
        - Dates that its sql_mode does not allow become zeros, or fail in a strict one.
        - MySQL converts each TIMESTAMP to the session's time zone and back: of two instants that are the same
          time, as a clock is turned back, one becomes the other. It logs the zone if it did.
        """
        columns = self._schema_cache.noted(table)
        if not columns or any(column.stored for column in columns.values()):
            return "may have copied it, with its stored columns computed anew"
        known = self._schema_cache.types_of(table).items()
        went = [type_ for name, type_ in known if name not in columns and lower(name) not in lost]
        types = (*(column.type for column in columns.values()), *went)
        if query.lenient and any(type_.startswith("date") for type_ in types):
            return "may have copied it, with dates made zeros that its sql_mode does not allow"
        if query.zoned and any(type_.startswith("timestamp") for type_ in types):
            return "copied it, with its times converted to a time zone and back"
        return None

    def _note(self, query: Query, lsn: int) -> None:
        """Record the tables that a statement may have rebuilt."""
        late = True
        if query.statement is None:
            tables = self._schema_cache.among(None)
        else:
            late = logged_late(query.statement)
            rebuilt = rebuilt_by(query.statement, query.database)
            tables = {table for effect in rebuilt for table in self._tables_of(effect)}
        for table in tables:
            self._statements.add(table, lsn, late=late)

    def _note_redefined(self, tables: set[TableName], lsn: int) -> None:
        """Forget what MariaDB's log does not show of these tables' columns."""
        if self._schema_cache.mariadb:
            for table in sorted(tables):
                self._schema_cache.forget_traits(table)
                self._redefined.append(TableRedefined(table, lsn))

    def note_crash(self, position: int) -> None:
        """Record that the server crashed, and where its log begins again."""
        self._statements.add_crash(position)

    def reread_all(self, lsn: int, reason: str) -> None:
        """Dump all tables again: the log before `lsn` may differ from what is in them."""
        log.warning("%s, before %s: rereading the rows of all tables", reason, lsn)
        for table in sorted(self._schema_cache.among(None)):
            self._add_unlogged(table, lsn, reason)

    def reread(self, tables: set[TableName], lsn: int, reason: str) -> None:
        """Dump the captured ones among these tables again, as above."""
        for table in sorted(tables & self._schema_cache.among(None)):
            if self._add_unlogged(table, lsn, reason):
                log.warning("%s: %s; rereading its rows", table, reason)

    def _add_unlogged(self, table: TableName, lsn: int, reason: str) -> bool:
        """Report that a table's rows may have changed; return whether it is the first such change of it."""
        notice = UnloggedNotice(table, lsn, reason)
        first, _ = self._unlogged.get(table, (notice, notice))
        self._unlogged[table] = first, notice
        return first is notice

    def _reread_indirect(self, query: Query, lsn: int) -> None:
        """Reread all tables that a change in the statement format may have reached."""
        databases = (None,) if query.updated is None else query.updated
        tables = {table for database in databases for table in self._schema_cache.among(database)}
        reason = "a change in the statement format may have reached it through a view, a trigger or a routine"
        for table in sorted(tables - {found.table for found in self._quarantined}):
            if self._add_unlogged(table, lsn, reason):
                log.warning("%s: %s; rereading its rows", table, reason)

    def _apply_effect(self, effect: Effect, lsn: int, ordinal: int) -> int:
        """Apply one effect: a truncate becomes an event, others reread, quarantine or announce the table."""
        truncated = 0
        for table in self._tables_of(effect):
            if effect.kind == "truncate":
                truncated += self._truncate(table, lsn, ordinal + truncated)
            elif effect.kind == "statement":
                self.report_quarantine({table}, lsn, f"{effect.reason} changed it", _ROW_FORMAT)
            elif effect.kind == "columns":
                self._schema_cache.forget(table)
                self._announce(table, lsn, effect)
                added = (name for name, is_certain in effect.added if is_certain)
                self._schema_cache.forget_columns(table, (*effect.columns, *added), effect.renamed)
                if effect.renamed or self._schema_cache.mariadb:
                    self._redefined.append(TableRedefined(table, lsn, effect.renamed))
            elif self._matters(effect, table):
                self._schema_cache.forget(table)
                log.warning("%s: %s; rereading its rows", table, effect.reason)
                self._add_unlogged(table, lsn, effect.reason)
        return truncated

    def _matters(self, effect: Effect, table: TableName) -> bool:
        """Return whether an effect has the table's rows reread.

        A lost index counts only where a key is configured: if a primary key is gone, the log itself shows it.
        A lost foreign key counts only in MySQL, where a table with one may have been captured.
        """
        if effect.kind == "index":
            return self._schema_cache.has_configured_key(table)
        return effect.kind != "foreign key" or not self._schema_cache.mariadb

    def _announce(self, table: TableName, lsn: int, effect: Effect) -> None:
        """Announce a layout that no row may ever show: the catalog's, first without the columns that went.

        The catalog may be ahead of the log, and announcing twice is harmless. If it has a column of such a
        name, that is a different column, which a later statement added, so a layout without the name must
        come between the two. Without its key, or if the layout is unknown, the table has no such layout: its
        rows are reread. So they are if the catalog lacks a column that came: its values are not to be had any
        more, and only a dump, which goes on until the log has caught up, keeps cuts from being exact without.
        """
        now, gone = self._schema_cache.latest(table), {lower(name) for name in effect.columns}
        came = {lower(name) for name in (*dict(effect.added), *dict(effect.renamed).values())}
        if now is None or now.schema is None:
            if gone or came:
                self._add_unlogged(table, lsn, "ALTER TABLE changed columns of an unknown layout")
            return
        if not came.issubset(lower(column.name) for column in now.schema.columns):
            self._add_unlogged(table, lsn, "ALTER TABLE added or renamed a column that is gone by now")
        left = tuple(c for c in now.schema.columns if lower(c.name) not in gone)
        if not gone.isdisjoint(map(lower, now.schema.key)):
            self._add_unlogged(table, lsn, "ALTER TABLE dropped or renamed a column of its key")
        elif left != now.schema.columns:
            self._announced.append((lsn, replace(now.schema, columns=left)))
        self._announced.append((lsn, now.schema))

    def _tables_of(self, effect: Effect) -> set[TableName]:
        if effect.name is None:
            return set(self._schema_cache.among(effect.database))
        named = self._schema_cache.named(effect.database, effect.name)
        return set() if named is None else {named}

    def _truncate(self, table: TableName, lsn: int, ordinal: int) -> bool:
        resolved = self._schema_cache.latest(table)
        if resolved is None or resolved.schema is None:
            self.report_quarantine({table}, lsn, "it was truncated while its layout is unknown")
            return False
        self._held.append_synthetic_truncate(resolved, ordinal)
        return True

    def prepare(self, xid: str, mapped: set[TableName], lsn: int) -> None:
        """Handle an XA PREPARE; a later transaction decides whether its rows count."""
        self._prepared[xid] = self._prepared.pop(xid, set()) | mapped
        if len(self._prepared) > PREPARED_KEPT:
            del self._prepared[next(iter(self._prepared))]
        touched = mapped & self._schema_cache.among(None)
        self.report_quarantine(touched, lsn, f"XA transaction {xid} was prepared; XA is not supported")

    def end_prepared(self, statement: str, lsn: int) -> set[TableName]:
        """Handle XA COMMIT or XA ROLLBACK; return the tables with rows that are committed.

        If the transaction's tables are unknown, it may concern any.
        """
        if not statement.upper().startswith("XA COMMIT"):
            return set()
        xid = statement[len("XA COMMIT") :].strip()
        mapped = self._prepared.get(xid)
        if mapped is None:
            self.reread_all(lsn, f"XA transaction {xid} was committed, but its tables are unknown")
            return self._schema_cache.among(None)
        touched = mapped & self._schema_cache.among(None)
        self.report_quarantine(touched, lsn, f"XA transaction {xid} was committed; XA is not supported")
        return mapped

    def report_cascades(self, lsn: int) -> None:
        """Quarantine the tables of which a change elsewhere may have changed rows, which was not logged.

        The catalog tells which those are, and is asked again after a statement. It may be ahead of the log: a
        table whose foreign key is gone by now is reread when the statement that dropped it is read.
        """
        if not self._foreign_keys_known:
            for problem in self._schema_cache.cascading():
                self.report_quarantine({problem.table}, lsn, problem.reason, problem.hint or "")
            self._foreign_keys_known = True

    def report_quarantine(self, tables: set[TableName], lsn: int, reason: str, hint: str = "") -> None:
        """Report tables that can't be captured any longer, for `Tables.quarantine`."""
        for table in sorted(tables):
            advice = hint or f"dump it again: deltatide dump {table}"
            self._quarantined.append(QuarantineNotice(table, lsn, reason, advice))
