"""Columns that store another object's oid, and land its name: their text changes when it is renamed."""

from __future__ import annotations

from collections.abc import Collection

from psycopg2.extensions import connection as Connection

from connector.postgres.connection import all_rows

_TYPES = (
    "regclass regcollation regconfig regdictionary regnamespace regoper regoperator regproc regprocedure"
    " regrole regtype aclitem".split()
)

_COLUMNS = """
    WITH RECURSIVE used(relid, number, typid) AS (
        SELECT attrelid, attnum, atttypid FROM pg_attribute
        WHERE attrelid = ANY (%s::oid[]) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
        UNION
        SELECT u.relid, u.number, i.typid FROM used u JOIN pg_type t ON t.oid = u.typid CROSS JOIN LATERAL (
            SELECT t.typbasetype
            UNION ALL SELECT t.typelem
            UNION ALL SELECT a.atttypid FROM pg_attribute a
                WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        ) i(typid) WHERE i.typid <> 0)
    SELECT a.attrelid::bigint, a.attname::text, format_type(a.atttypid, a.atttypmod)
    FROM pg_attribute a
    WHERE (a.attrelid, a.attnum) IN (
        SELECT u.relid, u.number FROM used u JOIN pg_type t ON t.oid = u.typid
        WHERE t.typname = ANY (%s::name[]) AND t.typnamespace = 'pg_catalog'::regnamespace)
    ORDER BY a.attrelid, a.attnum"""


def object_columns(connection: Connection, tables: Collection[int]) -> dict[int, str]:
    """List, by table oid, its columns of such types, domains and what is made of them included."""
    listed: dict[int, list[str]] = {}
    for oid, column, formatted in all_rows(connection, _COLUMNS, (list(tables), _TYPES)):
        listed.setdefault(oid, []).append(f"{column} ({formatted})")
    return {oid: ", ".join(columns) for oid, columns in listed.items()}
