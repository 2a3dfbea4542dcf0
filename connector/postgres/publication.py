"""The publication: which tables the log carries, and that it carries all of each.

Invariant: it publishes every kind of change, partitions under their root, whole rows and all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg2.extensions import connection as Connection

from connector.postgres.catalog import qualified
from connector.postgres.connection import all_rows, one_row, quote
from connector.schema import TableName

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Publication:
    """A publication as the catalog shows it; `tables` are all it publishes, `narrowed` those it filters."""

    all_tables: bool
    operations: bool
    via_root: bool
    owned: bool
    tables: frozenset[TableName]
    narrowed: frozenset[TableName]


def find_publication(connection: Connection, name: str) -> Publication | None:
    """Look the publication up."""
    row = one_row(
        connection,
        "SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot,"
        " pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s",
        (name,),
    )
    if row is None:
        return None
    tables = all_rows(
        connection,
        "SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = %s",
        (name,),
    )
    narrowed = all_rows(connection, _NARROWED, (name,)) if connection.server_version >= 150000 else []
    all_tables, operations, via_root, owned = row
    return Publication(
        all_tables,
        operations,
        via_root,
        owned,
        frozenset(TableName(*t) for t in tables),
        frozenset(TableName(*t) for t in narrowed),
    )


_NARROWED = """
    SELECT n.nspname::text, c.relname::text
    FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
    JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE p.pubname = %s AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)"""


def missing(publication: Publication, tables: Sequence[TableName]) -> list[TableName]:
    """List the tables that the publication does not carry."""
    return [table for table in tables if table not in publication.tables]


def create_statement(name: str, tables: Sequence[TableName]) -> str:
    """Spell the statement that makes the publication."""
    listed = ", ".join(map(qualified, tables))
    return f"CREATE PUBLICATION {quote(name)} FOR TABLE {listed} WITH (publish_via_partition_root = true)"


def add_statement(name: str, tables: Sequence[TableName]) -> str:
    """Spell the statement that adds tables."""
    return f"ALTER PUBLICATION {quote(name)} ADD TABLE {', '.join(map(qualified, tables))}"


def extend(connection: Connection, name: str, tables: Sequence[TableName]) -> list[TableName]:
    """Create the publication, or add what it lacks; give the tables that were added to an existing one."""
    publication = find_publication(connection, name)
    if publication is None:
        if tables:
            _run(connection, create_statement(name, tables))
        return []
    lacking = missing(publication, tables)
    if lacking:
        _run(connection, add_statement(name, lacking))
    return lacking


def _run(connection: Connection, statement: str) -> None:
    log.info("%s", statement)
    with connection.cursor() as cursor:
        cursor.execute(statement)
