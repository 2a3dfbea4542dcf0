"""The tables that could not be published: why not, what to do, and when to try again.

Another session may hold a lock on a table, or the server may refuse it: an event trigger or an extension that
raises or takes too long, a check of the server's own. Only that table is unfit then. The log is not reopened
to publish it before it seems possible: locks show in pg_locks, and whether the server still refuses is tried
and rolled back.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from psycopg2.extensions import connection as Connection

from connector.postgres.connection import all_rows, quote
from connector.postgres.publication import (
    KeptOut,
    LockedError,
    OutdatedError,
    Publication,
    RefusedError,
    SlowError,
    find_publication,
    try_to_add,
)
from connector.schema import TableName
from connector.source import UnfitTable

RETRY_SECONDS = 60.0
"""A table is unfit for at least this long before it is tried again."""

_LOCKED = """
    SELECT DISTINCT n.nspname::text, c.relname::text
    FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND l.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                     'AccessExclusiveLock')
      AND n.nspname || E'\n' || c.relname = ANY (%s)"""
"""The tables on which other sessions hold, or wait for, a lock that blocks publishing them."""

_TRIGGERS = """
    SELECT evtname::text, evtenabled::text
    FROM (SELECT %s::text) AS raised(whence) CROSS JOIN pg_event_trigger t JOIN pg_proc p ON p.oid = t.evtfoid
    CROSS JOIN concat(quote_ident(proname), '()') AS called
    WHERE evtenabled <> 'D'
      AND (position(' ' || called IN whence) > 0 OR position('.' || called IN whence) > 0
        OR position(concat(' "', proname, '"') IN whence) > 0)
    ORDER BY 1"""
"""The event triggers whose functions an error names: with the schema, unless a function has a search path of
its own, or as other languages than PL/pgSQL do.
"""

_ENABLE = {"O": "ENABLE", "R": "ENABLE REPLICA", "A": "ENABLE ALWAYS"}


class Unpublished:
    """What keeps tables out of a publication, as `publication.fix` has found it."""

    def __init__(self, kept_out: Mapping[TableName, KeptOut]) -> None:
        self._kept_out = dict(kept_out)
        self._until = dict.fromkeys(kept_out, time.monotonic() + RETRY_SECONDS)
        self._unfit: dict[TableName, UnfitTable] = {}

    def still(self, connection: Connection, name: str) -> dict[TableName, UnfitTable]:
        """Return the tables that still can't be published; may try, which is rolled back."""
        found = find_publication(connection, name) if self._kept_out else None
        if found is None:
            return {}
        lacking = {t for t in self._kept_out if not found.carries(t) and found.may_fix(t)}
        due = {t for t in lacking if self._until[t] <= time.monotonic()}
        possible = self._possible(connection, found, due - _locked(connection, due))
        for table in lacking - possible - self._unfit.keys():
            self._unfit[table] = _unfit(connection, found, table, self._kept_out[table])
        return {t: self._unfit[t] for t in lacking - possible}

    def _possible(
        self, connection: Connection, publication: Publication, tables: Collection[TableName]
    ) -> set[TableName]:
        """Return those of some tables, which are not locked, that can be published, as far as is known.

        Once one takes too long, the others have their turn at a later check.
        """
        possible = set()
        for table in sorted(tables, key=self._until.__getitem__):
            if self._is_possible(connection, publication, table):
                possible.add(table)
            elif isinstance(self._kept_out[table], SlowError):
                break
        return possible

    def _is_possible(self, connection: Connection, publication: Publication, table: TableName) -> bool:
        """Return whether a table that is not locked can be published, as far as is known."""
        if isinstance(self._kept_out[table], LockedError):
            return True
        try:
            try_to_add(connection, publication, table)
        except (LockedError, RefusedError, SlowError) as error:
            self._kept_out[table], self._until[table] = error, time.monotonic() + RETRY_SECONDS
            self._unfit.pop(table, None)
            return False
        except OutdatedError:  # what adds it looks at the catalog anew
            pass
        return True


def _locked(connection: Connection, tables: Collection[TableName]) -> set[TableName]:
    if not tables:
        return set()
    named = [f"{table.namespace}\n{table.name}" for table in tables]
    return {TableName(*row) for row in all_rows(connection, _LOCKED, (named,))}


def _unfit(connection: Connection, publication: Publication, table: TableName, error: KeptOut) -> UnfitTable:
    how, then = publication.how_carried(table), f"dump it again: deltatide dump {table}"
    if isinstance(error, LockedError):
        reason = f"{how}, and can't be added: another session has locked it"
        return UnfitTable(reason, f"wait until the lock is released (see pg_locks), then {then}")
    where = f" ({' '.join(error.function.splitlines()[0].split())})" if error.function else ""
    fix = publication.fix_hint(table)
    disable, enable = [], []
    for name, enabled in all_rows(connection, _TRIGGERS, (error.function or "",)):
        disable.append(f"ALTER EVENT TRIGGER {quote(name)} DISABLE; ")
        enable.append(f" ALTER EVENT TRIGGER {quote(name)} {_ENABLE[enabled]};")
    to_capture = f"{''.join(disable)}{fix}{''.join(enable)}"
    return UnfitTable(
        f"{how}, and the server refuses to add it: {error.answer}{where}",
        f"have the server accept it: {to_capture} then {then}",
    )
