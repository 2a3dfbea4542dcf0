"""The publication: decides which tables the log carries, and ensures that it carries all of each.

Invariant: it publishes every kind of change, partitions under their root, and complete rows, all of them.
Edits by others are fixed here, as far as our role may; `connector.postgres.catalog_fingerprint` detects that
changes were missing meanwhile.

pgoutput reads the catalog as of each change, so fixing a publication restores no earlier change. Tables that
inherit are tables of their own, hence ONLY.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psycopg2
from psycopg2.extensions import connection as Connection

from connector.errors import PreconditionError, TransientError
from connector.postgres.connection import all_rows, failed, one_line, one_row, quote, sqlstate_of
from connector.postgres.definitions.table_facts import qualified
from connector.schema import TableName

log = logging.getLogger(__name__)

LOCK_SECONDS = 2
"""An autovacuum is canceled after one second (deadlock_timeout); other sessions may hold a lock for hours."""

CHANGE_SECONDS = 5
"""A statement takes milliseconds, but an event trigger's function may wait for anything. Meanwhile no log is
read, or the catalog is not checked.
"""

MOST_SLOW = 3
"""How many tables may take that long at once."""


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
        return f"{self.how_carried(table)}, and the agent's role may not change that"

    def how_carried(self, table: TableName) -> str:
        """Return how far it contains a table that it does not carry."""
        return f"it is {'only in part' if table in self.tables else 'not'} in publication {self.name}"

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


class OutdatedError(TransientError):
    """the catalog has changed since the statement was built; deltatide retries."""


class RefusedError(PreconditionError):
    """the server refuses to change the publication, as an event trigger or an extension may have it do.

    `answer`: what it says. `function`: where in a function it was raised, the innermost one first.
    """

    def __init__(self, message: str, answer: str, function: str | None, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.answer, self.function = answer, function


class SlowError(TransientError):
    """changing the publication takes too long, as an event trigger or an extension may have it do.

    `answer`, `function`: as above, where it was canceled.
    """

    def __init__(self, message: str, answer: str, function: str | None) -> None:
        super().__init__(message)
        self.answer, self.function = answer, function


KeptOut = LockedError | RefusedError | SlowError
"""Why a table can't be published for now."""

_KEPT_OUT = (LockedError, RefusedError, SlowError)


class Fixed(NamedTuple):
    """The tables added to an existing publication, and what keeps others out."""

    added: list[TableName]
    kept_out: dict[TableName, KeptOut]


def fix(connection: Connection, name: str, tables: Sequence[TableName], *, partitioned: bool) -> Fixed:
    """Create the publication, or make it carry all of each table.

    Skips tables that our role may not add, those locked (CREATE INDEX, VACUUM FULL) for longer than
    `LOCK_SECONDS`, and those that the server refuses (an event trigger), or does not add in `CHANGE_SECONDS`:
    they must not keep others from being captured. `PreconditionError`, with the SQL, if the publication
    itself is missing or omits kinds of changes, and the server refuses to change that.
    """
    publication = find_publication(connection, name)
    if publication is None:
        return _create(connection, name, tables) if tables else Fixed([], {})
    for problem, statement in publication.shortcomings(partitioned=partitioned):
        _alter(connection, f"publication {name} {problem}", statement)
        publication = find_publication(connection, name) or publication
    lacking = [t for t in tables if not publication.carries(t) and publication.may_fix(t)]
    for table in lacking:
        if table in publication.narrowed:
            log.warning("publication %s has a row filter or a column list for %s: removed", name, table)
    return _add(connection, publication, lacking)


def _create(connection: Connection, name: str, tables: Sequence[TableName]) -> Fixed:
    problem, statement = f"publication {name} is missing", create_statement(name, tables)
    try:
        _alter(connection, problem, statement)
    except _KEPT_OUT:
        _alter(connection, problem, create_statement(name, []), hint=statement)
        if publication := find_publication(connection, name):
            return _add(connection, publication, tables)
    return Fixed([], {})


def _add(connection: Connection, publication: Publication, tables: Sequence[TableName]) -> Fixed:
    """Add tables in one statement; if one is locked or refused, add each by itself."""
    statements = [publication.fix_hint(t) for t in tables if t in publication.narrowed]
    if whole := [t for t in tables if t not in publication.narrowed]:
        statements.append(f"{add_statement(publication.name, whole)};")
    if not statements:
        return Fixed([], {})
    try:
        _alter(connection, f"publication {publication.name} lacks tables", " ".join(statements))
    except _KEPT_OUT as error:
        if len(tables) == 1:
            log.warning("%s: skipping %s until that is over", error, tables[0])
            return Fixed([], {tables[0]: error})
        return _add_each(connection, publication, tables)
    return Fixed(list(tables), {})


def _add_each(connection: Connection, publication: Publication, tables: Sequence[TableName]) -> Fixed:
    """Add each table by itself. Once some have taken too long, the rest count as kept out, too, untried."""
    fixed, slow = Fixed([], {}), list[SlowError]()
    for table in tables:
        if len(slow) >= MOST_SLOW:
            fixed.kept_out[table] = slow[-1]
            continue
        one = _add(connection, publication, [table])
        fixed.added.extend(one.added)
        fixed.kept_out.update(one.kept_out)
        slow += [error for error in one.kept_out.values() if isinstance(error, SlowError)]
    return fixed


def try_to_add(connection: Connection, publication: Publication, table: TableName) -> None:
    """Raise the error for which `fix` would skip the table; changes nothing, as it is rolled back."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            _run(connection, f"publication {publication.name} lacks {table}", publication.fix_hint(table))
        finally:
            if not connection.closed:
                cursor.execute("ROLLBACK")


def uncarried(publication: Publication, tables: Collection[TableName]) -> dict[TableName, str]:
    """Return the tables that it does not carry completely and our role can't fix, each with what to do."""
    return {
        t: publication.fix_hint(t)
        for t in tables
        if not publication.carries(t) and not publication.may_fix(t)
    }


def _alter(connection: Connection, problem: str, statements: str, hint: str | None = None) -> None:
    log.info("%s", statements)
    _run(connection, problem, statements, hint)


def _run(connection: Connection, problem: str, statements: str, hint: str | None = None) -> None:
    """Run statements in one transaction: no change may be written between a DROP and its ADD.

    `LockedError` if a table's lock can't be acquired, `OutdatedError` if the catalog has changed since they
    were built, `SlowError` if one takes too long, `RefusedError`, with a hint, for any other error that
    lasts. What a function raises may last, whatever it says, unless it was canceled or rolled back: its disk,
    a lock that it waits for, or another server that it needs.
    """
    limits = f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; SET LOCAL statement_timeout = '{CHANGE_SECONDS}s'"
    begun = time.monotonic()
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"{limits}; {statements}")
    except psycopg2.Error as error:
        answer = " ".join((error.diag.message_primary or one_line(error)).split())
        if isinstance(error, psycopg2.errors.LockNotAvailable) and not error.diag.context:
            raise LockedError(f"{problem}: {answer}") from error
        if _is_outdated(error):
            raise OutdatedError(f"{problem}, and the catalog has changed: {answer}") from error
        canceled = isinstance(error, psycopg2.errors.QueryCanceled)
        if canceled and time.monotonic() - begun >= CHANGE_SECONDS:  # else somebody else did that
            answer = f"it takes longer than {CHANGE_SECONDS} s"
            raise SlowError(
                f"{problem}, and changing it failed: {answer}", answer, error.diag.context
            ) from error
        state = sqlstate_of(error)
        found = failed(problem, answer, state)
        raised = error.diag.context and not connection.closed and not (state or "").startswith(_PASSING)
        if not (raised or isinstance(found, PreconditionError)):
            raise found from error
        denied = isinstance(error, psycopg2.errors.InsufficientPrivilege)
        why = "the agent's role may not change that" if denied else "the server refuses to change that"
        raise RefusedError(
            f"{problem}, and {why}: {answer}", answer, error.diag.context, hint=hint or statements
        ) from error


_PASSING = ("40", "57")
"""Rollback, and operator intervention: they pass, wherever they strike."""

_OUTDATED = (
    psycopg2.errors.UndefinedTable,
    psycopg2.errors.InvalidSchemaName,
    psycopg2.errors.UndefinedObject,
    psycopg2.errors.DuplicateObject,
    psycopg2.errors.InvalidParameterValue,  # the table has become unlogged or temporary
)

_RACE = re.compile(r"tuple concurrently |cache lookup failed |could not open relation with OID ")
"""What the server says of a race with another session, as an internal error, which it never translates."""


def _is_outdated(error: psycopg2.Error) -> bool:
    """Return whether the catalog has changed, unless a trigger's own statement failed for that."""
    if isinstance(error, psycopg2.errors.InternalError_):  # also what extensions raise without a code
        found = _RACE.match(error.diag.message_primary or "") is not None
    else:
        found = isinstance(error, _OUTDATED)
    return found and not error.diag.context
