"""Tables that inherit from another one (INHERITS) and are not its partitions.

To the log, and to a SELECT of ONLY their parent, their rows are theirs alone. So are those of what stores a
table's rows that way, such as the chunks of a hypertable, which is empty itself.
"""

from __future__ import annotations

from collections.abc import Collection

from psycopg2.extensions import connection as Connection

from connector.config import SourceConfig
from connector.config.section import matches
from connector.postgres.connection import all_rows
from connector.schema import TableName

_HEIRS = """
    WITH RECURSIVE edges(parent, child) AS (
        SELECT i.inhparent, i.inhrelid FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid AND NOT c.relispartition AND c.relpersistence <> 't'),
    heirs(parent, child) AS (
        SELECT parent, child FROM edges WHERE parent = ANY (%s::oid[])
        UNION SELECT e.parent, e.child FROM heirs h JOIN edges e ON e.parent = h.child)
    SELECT h.parent::bigint, h.child::bigint, n.nspname::text, c.relname::text
    FROM heirs h JOIN pg_class c ON c.oid = h.child JOIN pg_namespace n ON n.oid = c.relnamespace
    ORDER BY 3, 4"""


def uncaptured_heirs(
    connection: Connection, config: SourceConfig, tables: Collection[int]
) -> dict[int, list[TableName]]:
    """List, by table oid, the tables that inherit from it, also through others, and are not captured.

    Those that `source.exclude` names are left out: somebody knows of them. One that inherits from a captured
    table is listed for that one only.
    """
    children: dict[int, dict[int, TableName]] = {}
    for parent, child, *name in all_rows(connection, _HEIRS, (list(tables),)):
        children.setdefault(parent, {})[child] = TableName(*name)

    def below(oid: int) -> dict[int, TableName]:
        here = {c: t for c, t in children.get(oid, {}).items() if not config.captures(t)}
        return here | {c: t for child in here for c, t in below(child).items()}

    found = {oid: [t for t in below(oid).values() if not matches(config.exclude, t)] for oid in tables}
    return {oid: sorted(heirs) for oid, heirs in found.items() if heirs}
