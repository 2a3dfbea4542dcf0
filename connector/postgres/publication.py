"""The publication: decides which tables the log carries, and ensures that it carries all of each.

Invariant: it publishes every kind of change, partitions under their root, and complete rows, all of them.
Edits by others are fixed here, as far as our role may; `connector.postgres.catalog_fingerprint` detects that
changes were missing meanwhile.

pgoutput reads the catalog as of each change, so fixing a publication restores no earlier change. Tables that
inherit are tables of their own, hence ONLY.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psycopg2
from psycopg2.extensions import connection as Connection

from connector.errors import PreconditionError, TransientError
from connector.postgres.connection import all_rows, one_row, quote
from connector.postgres.definitions.table_facts import qualified
from connector.schema import TableName

log = logging.getLogger(__name__)

LOCK_SECONDS = 2
"""An autovacuum is canceled after one second (deadlock_timeout); other sessions may hold a lock for hours."""


@dataclass(frozen=True)
class Publication:
    """A publication as the catalog shows it.

    `tables`: all that it publishes. `narrowed`: those with a row filter or a column list. `split`:
    partitioned ones that it contains, but publishes as their partitions. `under`: partitions whose rows it
    publishes as those of another table. `owned`: our role may alter it. `ours`: all tables that our role owns
    and so may add.
    """

    name: str
    operations: bool
    via_root: bool
    owned: bool
    tables: frozenset[TableName]
    narrowed: frozenset[TableName]
    split: frozenset[TableName]
    under: Mapping[TableName, TableName]
    ours: frozenset[TableName]

    def carries(self, table: TableName) -> bool:
        """Return whether it publishes complete rows of a table, and all of them."""
        return table in self.tables and table not in self.narrowed

    def may_fix(self, table: TableName) -> bool:
        """Return whether our role may make it carry a table."""
        return self.owned and table in self.ours and table not in self.under

    def why_not_carried(self, table: TableName) -> str:
        """Return why it does not carry a table, for one that our role can't add."""
        if table in self.under:
            return f"publication {self.name} publishes its rows as those of {self.under[table]}"
        if table in self.split:
            return f"publication {self.name} publishes its partitions as separate tables"
        how = "only in part" if table in self.tables else "not"
        return f"it is {how} in publication {self.name}, and the agent's role may not change that"

    def shortcomings(self, *, partitioned: bool) -> Iterator[tuple[str, str]]:
        """Return what it omits from every table, each with the SQL that fixes it.

        If partitions are published as themselves and our role can't change that, it is reported per
        partitioned table instead (`split`).
        """
        alter = f"ALTER PUBLICATION {quote(self.name)}"
        if not self.operations:
            operations = "insert, update, delete, truncate"
            yield "does not publish every kind of change", f"{alter} SET (publish = '{operations}');"
        if not self.via_root and partitioned and self.owned:
            yield "publishes partitions as separate tables", self._by_root()

    def _by_root(self) -> str:
        return f"ALTER PUBLICATION {quote(self.name)} SET (publish_via_partition_root = true);"

    def fix_hint(self, table: TableName) -> str:
        """Return the SQL that makes it carry a table completely; for a partition, what to do instead."""
        if root := self.under.get(table):
            take_out = f"ALTER PUBLICATION {quote(self.name)} DROP TABLE {qualified(root)};"
            return f"capture {root} instead, or set source.publication to another name, or: {take_out}"
        if table in self.split:
            return self._by_root()
        add = f"{add_statement(self.name, [table])};"
        if table not in self.narrowed:
            return add
        return f"ALTER PUBLICATION {quote(self.name)} DROP TABLE ONLY {qualified(table)}; {add}"


def find_publication(connection: Connection, name: str) -> Publication | None:
    """Look up the publication."""
    row = one_row(
        connection,
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot,"
        " pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s",
        (name,),
    )
    if row is None:
        return None
    later = connection.server_version >= 150000
    rows = all_rows(connection, _PUBLISHED.format(schemas=_SCHEMAS if later else ""), (name,))
    roots = {TableName(*row[:2]): TableName(*row[2:4]) for row in rows}
    split = frozenset(TableName(*row[:2]) for row in rows if row[4])
    narrowed = all_rows(connection, _NARROWED, (name,)) if later else []
    operations, via_root, owned = row
    return Publication(
        name,
        operations,
        via_root,
        owned,
        frozenset(table for table, root in roots.items() if table == root) - split,
        frozenset(TableName(*t) for t in narrowed),
        split,
        {table: root for table, root in roots.items() if table != root},
        owned_tables(connection),
    )


_PUBLISHED = """
    WITH RECURSIVE ancestry(relid, ancestor, level) AS (
        SELECT oid, oid, 0 FROM pg_class WHERE relkind IN ('r', 'p') AND relpersistence = 'p'
        UNION ALL
        SELECT a.relid, i.inhparent, a.level + 1
        FROM ancestry a JOIN pg_class c ON c.oid = a.ancestor AND c.relispartition
        JOIN pg_inherits i ON i.inhrelid = a.ancestor),
    published AS (
        SELECT DISTINCT ON (a.relid) a.relid, CASE WHEN p.pubviaroot THEN a.ancestor ELSE a.relid END AS root,
               NOT p.pubviaroot AS by_leaf
        FROM pg_publication p CROSS JOIN ancestry a JOIN pg_class c ON c.oid = a.ancestor
        WHERE p.pubname = %s AND (p.puballtables {schemas} OR EXISTS (
            SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = a.ancestor))
        ORDER BY a.relid, a.level DESC)
    SELECT n.nspname::text, c.relname::text, root_n.nspname::text, root.relname::text,
           p.by_leaf AND c.relkind = 'p'
    FROM published p JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_class root ON root.oid = p.root JOIN pg_namespace root_n ON root_n.oid = root.relnamespace
    WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'"""
"""Each table in it, and the table it publishes its rows as. The view pg_publication_tables would not do: it
omits partitions and does not see the catalog as of the snapshot.
"""

_SCHEMAS = """OR EXISTS (
            SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"""

_NARROWED = """
    SELECT n.nspname::text, c.relname::text
    FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
    JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE p.pubname = %s AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)"""


def owned_tables(connection: Connection) -> frozenset[TableName]:
    """Return the tables owned by our role or by one that it is a member of."""
    query = (
        "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid ="
        " c.relnamespace WHERE c.relkind IN ('r', 'p') AND pg_has_role(c.relowner, 'USAGE')"
    )
    return frozenset(TableName(*row) for row in all_rows(connection, query))


def missing(publication: Publication, tables: Sequence[TableName]) -> list[TableName]:
    """List the tables that the publication does not carry."""
    return [table for table in tables if table not in publication.tables]


def create_statement(name: str, tables: Sequence[TableName]) -> str:
    """Build the statement that creates the publication."""
    options = "publish_via_partition_root = true"
    of_tables = f"FOR TABLE {_listed(tables)} " if tables else ""
    return f"CREATE PUBLICATION {quote(name)} {of_tables}WITH ({options})"


def add_statement(name: str, tables: Sequence[TableName]) -> str:
    """Build the statement that adds tables."""
    return f"ALTER PUBLICATION {quote(name)} ADD TABLE {_listed(tables)}"


def _listed(tables: Sequence[TableName]) -> str:
    return ", ".join(f"ONLY {qualified(table)}" for table in tables)


class LockedError(TransientError):
    """another session holds a lock on a table, which blocks publishing it."""


class Fixed(NamedTuple):
    """The tables added to an existing publication, and those kept out by another session's lock."""

    added: list[TableName]
    locked: list[TableName]


def fix(connection: Connection, name: str, tables: Sequence[TableName], *, partitioned: bool) -> Fixed:
    """Create the publication, or make it carry all of each table.

    Skips tables that our role may not add, and those locked (CREATE INDEX, VACUUM FULL) for longer than
    `LOCK_SECONDS`: they must not keep others from being captured. `PreconditionError`, with the SQL, if the
    publication itself is missing or omits kinds of changes, and our role may not change that.
    """
    publication = find_publication(connection, name)
    if publication is None:
        return _create(connection, name, tables) if tables else Fixed([], [])
    for problem, statement in publication.shortcomings(partitioned=partitioned):
        _alter(connection, f"publication {name} {problem}", statement)
        publication = find_publication(connection, name) or publication
    lacking = [t for t in tables if not publication.carries(t) and publication.may_fix(t)]
    for table in lacking:
        if table in publication.narrowed:
            log.warning("publication %s has a row filter or a column list for %s: removed", name, table)
    return _add(connection, publication, lacking)


def _create(connection: Connection, name: str, tables: Sequence[TableName]) -> Fixed:
    problem = f"publication {name} is missing"
    try:
        _alter(connection, problem, create_statement(name, tables))
    except LockedError:
        _alter(connection, problem, create_statement(name, []))
        if publication := find_publication(connection, name):
            return _add(connection, publication, tables)
    return Fixed([], [])


def _add(connection: Connection, publication: Publication, tables: Sequence[TableName]) -> Fixed:
    """Add tables in one statement; if one is locked, add each by itself."""
    statements = [publication.fix_hint(t) for t in tables if t in publication.narrowed]
    if whole := [t for t in tables if t not in publication.narrowed]:
        statements.append(f"{add_statement(publication.name, whole)};")
    if not statements:
        return Fixed([], [])
    try:
        _alter(connection, f"publication {publication.name} lacks tables", " ".join(statements))
    except LockedError as error:
        if len(tables) == 1:
            log.warning("%s: skipping %s until the next check", error, tables[0])
            return Fixed([], list(tables))
        each = [_add(connection, publication, [table]) for table in tables]
        return Fixed([t for m in each for t in m.added], [t for m in each for t in m.locked])
    return Fixed(list(tables), [])


def locked_by_others(connection: Connection, tables: Collection[TableName]) -> set[TableName]:
    """Return the tables on which other sessions hold, or wait for, a lock that blocks publishing them."""
    if not tables:
        return set()
    named = [f"{table.namespace}\n{table.name}" for table in tables]
    return {TableName(*row) for row in all_rows(connection, _LOCKED, (named,))}


_LOCKED = """
    SELECT DISTINCT n.nspname::text, c.relname::text
    FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND l.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                     'AccessExclusiveLock')
      AND n.nspname || E'\n' || c.relname = ANY (%s)"""


def uncarried(publication: Publication, tables: Collection[TableName]) -> dict[TableName, str]:
    """Return the tables that it does not carry completely and our role can't fix, each with what to do."""
    return {
        t: publication.fix_hint(t)
        for t in tables
        if not publication.carries(t) and not publication.may_fix(t)
    }


def _alter(connection: Connection, problem: str, statements: str) -> None:
    """Run statements in one transaction: no change may be written between a DROP and its ADD.

    `TransientError` if the catalog has changed since they were built, `LockedError` if a lock can't be
    acquired.
    """
    log.info("%s", statements)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; {statements}")
    except psycopg2.errors.LockNotAvailable as error:
        raise LockedError(f"{problem}: {error.diag.message_primary}") from error
    except _OUTDATED as error:
        raise TransientError(
            f"{problem}, and the catalog has changed: {error.diag.message_primary}"
        ) from error
    except psycopg2.errors.InsufficientPrivilege as error:
        reason = error.diag.message_primary
        raise PreconditionError(
            f"{problem}, and the agent's role may not change that: {reason}", hint=statements
        ) from error


_OUTDATED = (
    psycopg2.errors.UndefinedTable,
    psycopg2.errors.InvalidSchemaName,
    psycopg2.errors.UndefinedObject,
    psycopg2.errors.DuplicateObject,
    psycopg2.errors.InvalidParameterValue,  # the table has become unlogged or temporary
    psycopg2.errors.InternalError_,  # tuple concurrently updated
)
