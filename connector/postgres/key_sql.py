"""SQL for keys: how they are compared, and how rows are found by them.

Invariant: all comparisons of a key follow the order of ORDER BY, which uses the default btree operator class
of its type, whatever the session's search path. So the operators of that class are qualified with their
schema. If they were looked up by path, a session whose path lacks an extension's schema (citext) would
compare the text that the values cast to, and chunks in two different orders would miss rows; and an operator
that someone planted in a schema of the path could run with the agent's rights.

If an operator or type moves to another schema after it was looked up, the statement fails, and the next
attempt finds it.

An index keeps the order in which it was built. Where a collation's library has become another since (an
upgrade of the system), a search in it misses rows. The server notes the version that its indexes were built
with, until somebody says that they were rebuilt (``REFRESH COLLATION VERSION``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from psycopg2.extensions import connection as Connection

from connector.errors import TableError
from connector.postgres.catalog import types_within
from connector.postgres.connection import all_rows, literal, quote
from connector.postgres.definitions.table_facts import qualified
from connector.schema import TableName, TableSchema
from connector.source import Finding

_STRATEGIES = {"<": "1", "<=": "2", "=": "3", ">=": "4", ">": "5"}
"""Strategy numbers of operators in a btree operator class."""


@dataclass(frozen=True)
class KeyColumn:
    """A column of a key: its base type, without and with its length limit (`exact`).

    `operators`: schema and name, by strategy; empty for arrays, enums, composite types and ranges, which
    PostgreSQL compares by operators of its own. `compared_as`: the type that both sides are cast to, for an
    extension's operators and for enums, whose operators refuse a domain beside its base type; None: no cast
    is needed. `order`: what its order depends on: the column, its type and collation, the collation's
    version, and the labels of an enum; for an array, composite type or range, those of all enums, and the
    attributes of composite types in it, and for all but arrays, and jsonb, the default collation's version.
    Not its row's version in the catalog: a GRANT writes a new one, too, as does any REVOKE on the table if
    the column has rights of its own. `indexed_otherwise`: its indexes may have been built in another order,
    by another version of a collation.
    """

    name: str
    type: str
    exact: str
    compared_as: str | None
    operators: Mapping[str, tuple[str, str]]
    order: str
    indexed_otherwise: bool

    def operator(self, sign: str) -> str:
        """Return the SQL of a comparison operator."""
        schema, name = self.operators.get(_STRATEGIES[sign], ("pg_catalog", sign))
        return f"OPERATOR({quote(schema)}.{name})"

    def value(self, text: str) -> str:
        """Return the SQL of a value, in the type that is compared."""
        return self.compared(f"{literal(text)}::{self.type}")

    def compared(self, expression: str) -> str:
        """Cast an expression to the type that is compared, so that its operator fits, and no other better."""
        return f"{expression}::{self.compared_as}" if self.compared_as else expression


_KEY_COLUMNS = """
    WITH RECURSIVE base(name, oid, typmod, kind, category, next, identity, collated) AS (
        SELECT a.attname, t.oid, a.atttypmod, t.typtype, t.typcategory, t.typbasetype,
               concat_ws('.', a.attrelid, a.attnum, a.atttypid, a.atttypmod, a.attcollation), a.attcollation
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = %s::regclass AND a.attname = ANY (%s::name[]) AND NOT a.attisdropped
        UNION ALL
        SELECT b.name, t.oid, CASE WHEN d.typtypmod >= 0 THEN d.typtypmod ELSE b.typmod END,
               t.typtype, t.typcategory, t.typbasetype, b.identity, b.collated
        FROM base b JOIN pg_type d ON d.oid = b.oid JOIN pg_type t ON t.oid = b.next WHERE b.kind = 'd')
    SELECT b.name::text, format_type(b.oid, -1), format_type(b.oid, b.typmod),
           CASE WHEN c.oid >= 16384 THEN format_type(c.opcintype, -1)
                WHEN b.kind = 'e' THEN format_type(b.oid, -1) END,
           (SELECT jsonb_object_agg(a.amopstrategy, jsonb_build_array(n.nspname::text, o.oprname::text))
            FROM pg_amop a JOIN pg_operator o ON o.oid = a.amopopr
            JOIN pg_namespace n ON n.oid = o.oprnamespace
            WHERE a.amopfamily = c.opcfamily AND a.amoppurpose = 's'
              AND a.amoplefttype = c.opcintype AND a.amoprighttype = c.opcintype),
           concat_ws(' ', b.identity, coalesce(
               pg_collation_actual_version(nullif(b.collated, 0)),
               CASE WHEN b.collated = 'pg_catalog."default"'::regcollation OR b.category IN ('C', 'R')
                         OR b.oid = 'pg_catalog.jsonb'::regtype THEN {default_version} END),
               CASE WHEN b.kind = 'e' OR b.category IN ('A', 'C', 'R') THEN (
                   SELECT md5(string_agg(concat(e.oid, ':', e.enumlabel), ','
                                         ORDER BY e.enumtypid, e.enumsortorder))
                   FROM pg_enum e WHERE b.kind <> 'e' OR e.enumtypid = b.oid) END,
               CASE WHEN b.category IN ('A', 'C', 'R') THEN {attributes} END),
           {another_version},
           c.oid IS NULL AND b.kind = 'b' AND NOT EXISTS (SELECT FROM pg_type t WHERE t.typarray = b.oid)
    FROM base b LEFT JOIN LATERAL (
        SELECT c.oid, c.opcfamily, c.opcintype
        FROM pg_opclass c JOIN pg_am m ON m.oid = c.opcmethod JOIN pg_type t ON t.oid = c.opcintype
        WHERE c.opcdefault AND m.amname = 'btree' AND (c.opcintype = b.oid OR EXISTS (
            SELECT FROM pg_cast x WHERE x.castsource = b.oid AND x.casttarget = c.opcintype
              AND x.castmethod = 'b' AND x.castcontext = 'i'))
        ORDER BY c.opcintype = b.oid DESC, t.typispreferred DESC, c.oid LIMIT 1) c ON true
    WHERE b.kind <> 'd'"""
"""The operator class is the one that the server takes: of the type, else of one it is binary coercible to."""

_ATTRIBUTES = f"""(
    {types_within("b.oid")}
    SELECT md5(string_agg(concat_ws('.', a.attrelid, a.attnum, a.atttypid, a.attcollation), ','
                          ORDER BY a.attrelid, a.attnum))
    FROM used u JOIN pg_type t ON t.oid = u.oid AND t.typtype = 'c'
    JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)"""

_ANOTHER_VERSION = f"""EXISTS (
    {types_within("b.oid")}
    SELECT FROM used u LEFT JOIN pg_range r ON u.oid IN (r.rngtypid, r.rngmultitypid)
    LEFT JOIN pg_type t ON t.oid = u.oid AND t.typtype = 'c'
    LEFT JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    CROSS JOIN LATERAL unnest(ARRAY[b.collated, r.rngcollation, a.attcollation]) AS found(oid)
    WHERE (SELECT n.collversion <> pg_collation_actual_version(n.oid)
                  OR n.collprovider = 'd' AND {{default_changed}}
           FROM pg_collation n WHERE n.oid = found.oid))
    OR b.oid = 'pg_catalog.jsonb'::regtype AND {{default_changed}}"""
"""Whether a collation of the column, of a range or of an attribute within has another version than noted.

By a subquery, since a join looks up the version of every collation that there is, hundreds of them.
"""

_DATABASE_VERSION = """
    (SELECT pg_database_collation_actual_version(oid) FROM pg_database WHERE datname = current_database())"""

_LIBRARY_VERSION = """
    (SELECT pg_collation_actual_version(oid) FROM pg_collation
     WHERE collprovider = 'c' AND collcollate !~ '^(C|C\\..*|POSIX)$' LIMIT 1)"""
"""Before release 15, a database's own collation is always the C library's, and has no version of its own."""

_DATABASE_CHANGED = """coalesce((
    SELECT datcollversion <> pg_database_collation_actual_version(oid) FROM pg_database
    WHERE datname = current_database()), false)"""

WITHOUT_INDEXES = "SET LOCAL enable_seqscan = on; " + "; ".join(
    f"SET LOCAL {name} = off"
    for name in (
        *("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"),
        *("enable_partition_pruning", "constraint_exclusion"),
    )
)
"""Has a transaction find rows by reading them all, also of partitions that by their bounds have none.

A role or database may have turned off the one way that is left: the server then takes the cheapest of all.
"""


def key_columns(connection: Connection, table: TableName, key: Sequence[str]) -> list[KeyColumn]:
    """Look up the columns of a key; `TableError` if a column does not exist or has no order."""
    found = {}
    noted = connection.server_version >= 150000
    query = _KEY_COLUMNS.format(
        default_version=_DATABASE_VERSION if noted else _LIBRARY_VERSION,
        attributes=_ATTRIBUTES,
        another_version=_ANOTHER_VERSION.format(default_changed=_DATABASE_CHANGED if noted else "false"),
    )
    for name, type_, exact, compared_as, operators, order, otherwise, unordered in all_rows(
        connection, query, (qualified(table), list(key))
    ):
        if unordered:
            raise TableError(
                table, f"key column {name}: type {type_} has no default operator class for btree"
            )
        found[name] = KeyColumn(name, type_, exact, compared_as, operators or {}, order, otherwise)
    if missing := [c for c in key if c not in found]:
        raise TableError(table, f"key column {', '.join(missing)} is gone", hint="dump it again")
    return [found[c] for c in key]


def check_collations(connection: Connection) -> Iterator[Finding]:
    """Report collations that have another version by now than the one noted for the database's indexes."""
    query = """
        SELECT format('ALTER COLLATION %I.%I REFRESH VERSION;', s.nspname, n.collname)
        FROM pg_collation n JOIN pg_namespace s ON s.oid = n.collnamespace
        WHERE n.oid IN (SELECT attcollation FROM pg_attribute WHERE attrelid >= 16384
                        UNION ALL SELECT rngcollation FROM pg_range WHERE rngtypid >= 16384)
          AND n.collversion <> pg_collation_actual_version(n.oid)"""
    if connection.server_version >= 150000:
        query += f"""
        UNION ALL SELECT format('ALTER DATABASE %I REFRESH COLLATION VERSION;', current_database())
        WHERE {_DATABASE_CHANGED}"""
    if refreshing := [statement for (statement,) in all_rows(connection, query)]:
        detail = (
            "the system orders text in another way than the indexes may have been built in:"
            " tables with such keys are dumped without their indexes, in one piece each"
        )
        rebuild = f"REINDEX DATABASE {quote(connection.info.dbname)};"
        yield Finding("collations", "warning", detail, " ".join([rebuild, *sorted(refreshing)]))


def order_of(columns: Sequence[KeyColumn]) -> str:
    """Return a hash that differs wherever the order of these columns may. Pure."""
    orders = "\n".join(column.order for column in columns)
    return hashlib.md5(orders.encode(), usedforsecurity=False).hexdigest()[:16]


def compare_key(columns: Sequence[KeyColumn], sign: str, values: Sequence[str]) -> str:
    """Build the comparison of a key's first columns with values: ``>`` or ``<=``. Pure."""
    pairs = list(zip(columns, values, strict=False))
    operators = {column.operator(sign) for column, _ in pairs}
    if len(operators) > 1:
        return _column_by_column(pairs, sign)
    names = ", ".join(column.compared(quote(column.name)) for column, _ in pairs)
    return f"({names}) {operators.pop()} ({', '.join(column.value(value) for column, value in pairs)})"


def _column_by_column(pairs: Sequence[tuple[KeyColumn, str]], sign: str) -> str:
    """Build the comparison of columns with operators in several schemas: a row comparison takes one."""
    (column, text), *rest = pairs
    name, value = column.compared(quote(column.name)), column.value(text)
    if not rest:
        return f"{name} {column.operator(sign)} {value}"
    strict = sign[0]
    not_beyond = f"{name} {column.operator(f'{strict}=')} {value}"
    return f"({not_beyond} AND ({name} {column.operator(strict)} {value} OR {_column_by_column(rest, sign)}))"


def keys_query(
    schema: TableSchema, columns: Sequence[KeyColumn], keys: Sequence[Sequence[str]], relation: str
) -> str:
    """Join keys to rows, in the key's types without length limits, which would truncate too long a key. Pure.

    Keys without a row follow, with true in the first selected column, and so do keys to which a row's is only
    equal (citext, numeric, some collations), without being the text that lands. They are returned as the
    column would format them (``1.50``, padded), unless the column could not hold them at all.
    """
    values = ", ".join(
        "(" + ", ".join(f"{literal(v)}::{c.type}" for v, c in zip(key, columns, strict=True)) + ")"
        for key in keys
    )
    names = {column.name: f"v.k{number}" for number, column in enumerate(columns)}
    wanted = f"(VALUES {values}) v({', '.join(name.removeprefix('v.') for name in names.values())})"
    rows = [f"t.{quote(c.name)}" for c in schema.columns]
    formatted = {c.name: _formatted(c, names[c.name]) for c in columns}
    joined = " AND ".join(_equal(c, f"t.{quote(c.name)}", names[c.name]) for c in columns)
    types = {c.name: schema.column(c.name).type for c in columns}
    texts = [name for name, type_ in types.items() if type_ == "string" or type_.startswith("array")]
    exact = " AND ".join([joined, *(_same_text(f"t.{quote(name)}", formatted[name]) for name in texts)])
    return (
        f"SELECT false, {', '.join(rows)} FROM {wanted} JOIN {relation} t ON {joined} UNION ALL "
        f"SELECT true, {', '.join(formatted.get(c.name, 'NULL') for c in schema.columns)} FROM {wanted} "
        f"WHERE NOT EXISTS (SELECT FROM {relation} t WHERE {exact})"
    )


def _same_text(one: str, other: str) -> str:
    """Compare what lands: the output of the type, not a cast to text, which may be its owner's function."""
    texts = f'pg_catalog.concat({one}) COLLATE pg_catalog."C"', f"pg_catalog.concat({other})"
    return " OPERATOR(pg_catalog.=) ".join(texts)


def _formatted(column: KeyColumn, value: str) -> str:
    exact = f"{value}::{column.exact}"
    return f"CASE WHEN {_equal(column, exact, value)} THEN {exact} ELSE {value} END"


def _equal(column: KeyColumn, one: str, other: str) -> str:
    return f"{column.compared(one)} {column.operator('=')} {column.compared(other)}"
