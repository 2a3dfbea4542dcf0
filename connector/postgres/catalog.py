"""A table's definition in the catalog, as the layout its rows land under.

Invariant: the log's Relation message and a dump's query of pg_attribute yield the same `TableSchema` for the
same layout, because both go through `Catalog.layout`.

The catalog is current; a Relation message may be older. So column names and types come from the message, and
only what it lacks (a domain's base type, a type's name, the order of the key) from the catalog.

No query here waits for a lock or takes one per partition, so activity on one table never blocks a look at the
others. Hence pg_inherits, not pg_partition_tree(), which locks all partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from psycopg2.extensions import connection as Connection

from connector.config import SourceConfig, TableConfig
from connector.landing.format import misnamed
from connector.postgres.codec.types import landing_type, source_type
from connector.postgres.connection import all_rows, one_row, quote
from connector.schema import Column, TableName, TableSchema

FIRST_USER_OID = 16384
"""Types below this oid are built in, the same in every database."""


class LayoutColumn(Protocol):
    """A column as a Relation message describes it; `is_key`: it is part of the replica identity."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def type_oid(self) -> int: ...  # noqa: D102
    @property
    def typmod(self) -> int: ...  # noqa: D102
    @property
    def is_key(self) -> bool: ...  # noqa: D102


@dataclass(frozen=True)
class CatalogColumn:
    """A column as pg_attribute describes it now."""

    name: str
    type_oid: int
    typmod: int
    is_key: bool


@dataclass(frozen=True)
class Layout:
    """The schema a relation's rows land under; None if they can't, with the reason and what to do."""

    schema: TableSchema | None
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Index:
    """A unique index on plain columns and all rows; `immediate`: not of a deferrable key.

    `generated`: those of its columns that are computed, and so not in the log.
    """

    name: str
    columns: tuple[str, ...]
    nullable: tuple[str, ...]
    generated: tuple[str, ...]
    primary: bool
    identity: bool
    immediate: bool


@dataclass(frozen=True)
class TableFacts:
    """A table as the catalog shows it.

    `unlogged`: the parts that leave no row events (itself, or partitions that are unlogged or foreign).
    `misidentified`: partitions whose replica identity differs from the root's; the log carries their rows as
    the root's, with less of the old row than declared. `deferring`: partitions whose own primary key is
    deferrable; once they are published, the server refuses their updates. `policed`: row security would hide
    rows from our role.
    """

    oid: int
    table: TableName
    partitioned: bool
    identity: str
    indexes: tuple[Index, ...]
    estimate: int | None
    unlogged: tuple[TableName, ...] = ()
    misidentified: tuple[TableName, ...] = ()
    deferring: tuple[TableName, ...] = ()
    policed: bool = False

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The primary key if it can identify rows in the log: a deferrable one can't."""
        return next((i.columns for i in self.indexes if i.primary and i.immediate), ())

    @property
    def identity_key(self) -> tuple[str, ...]:
        """The columns of REPLICA IDENTITY USING INDEX."""
        return next((i.columns for i in self.indexes if i.identity), ())

    @property
    def generated(self) -> tuple[str, ...]:
        """The computed columns of the index that identifies rows: the log carries only the others."""
        identifies = (i for i in self.indexes if (i.identity if self.identity == "i" else i.primary))
        return next((i.generated for i in identifies), ())

    def may_be_renamed(self, logged: Collection[str]) -> bool:
        """Return whether the key may be these columns of an older Relation message, renamed since."""
        now = self.identity_key if self.identity == "i" else self.primary_key
        return len(now) in (0, len(logged))

    @property
    def deferrable(self) -> Index | None:
        """The primary key if it is deferrable."""
        return next((i for i in self.indexes if i.primary and not i.immediate), None)


_INDEXES = """
    (SELECT jsonb_agg(jsonb_build_array(
         x.relname::text, i.indisprimary, i.indisreplident, i.indimmediate,
         (SELECT jsonb_agg(jsonb_build_array(a.attname::text, a.attnotnull, a.attgenerated <> '')
                           ORDER BY k.place)
          FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
          WHERE k.place <= i.indnkeyatts)))
     FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
     WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
       AND i.indexprs IS NULL)"""

PARTS = """
    parts(root, relid, attached) AS (
        SELECT c.oid, c.oid, ''::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind = 'p' AND {roots}
        UNION ALL
        SELECT p.root, i.inhrelid, concat(p.attached, '.', i.xmin)
        FROM parts p JOIN pg_inherits i ON i.inhparent = p.relid
        WHERE NOT i.inhdetachpending)"""
"""Partitioned tables, each with itself and all its partitions, for a WITH RECURSIVE. `attached`: the
transactions that attached the partition and its ancestors."""

_IDENTITY = """
    (SELECT array_agg(a.attname ORDER BY a.attname)
     FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place), pg_attribute a
     WHERE {relation}.relreplident = 'i' AND i.indrelid = {relation}.oid AND i.indisreplident
       AND k.place <= i.indnkeyatts AND a.attrelid = i.indrelid AND a.attnum = k.attnum)"""

_FACTS = f"""
    WITH RECURSIVE {PARTS},
    leaves AS (
        SELECT p.root, sum(nullif(l.reltuples, -1)) AS estimate,
               jsonb_agg(jsonb_build_array(n.nspname::text, l.relname::text) ORDER BY l.oid)
                   FILTER (WHERE l.relpersistence <> 'p' OR l.relkind = 'f') AS unlogged,
               jsonb_agg(jsonb_build_array(n.nspname::text, l.relname::text) ORDER BY l.oid)
                   FILTER (WHERE l.relreplident <> r.relreplident
                           OR {_IDENTITY.format(relation="l")} IS DISTINCT FROM
                              {_IDENTITY.format(relation="r")}) AS misidentified,
               jsonb_agg(jsonb_build_array(n.nspname::text, l.relname::text) ORDER BY l.oid)
                   FILTER (WHERE l.relreplident = 'd' AND EXISTS (
                       SELECT FROM pg_index i
                       WHERE i.indrelid = l.oid AND i.indisprimary AND NOT i.indimmediate)) AS deferring
        FROM parts p JOIN pg_class r ON r.oid = p.root
        JOIN pg_class l ON l.oid = p.relid AND l.relkind <> 'p' JOIN pg_namespace n ON n.oid = l.relnamespace
        GROUP BY p.root)
    SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind = 'p', c.relreplident::text, {_INDEXES},
           CASE WHEN c.relkind = 'p' THEN leaves.unlogged
                WHEN c.relpersistence <> 'p' THEN
                    jsonb_build_array(jsonb_build_array(n.nspname::text, c.relname::text)) END,
           leaves.misidentified, leaves.deferring, row_security_active(c.oid),
           CASE WHEN c.relkind = 'p' THEN leaves.estimate ELSE nullif(c.reltuples, -1) END,
           ARRAY(SELECT n2.nspname::text || E'\\n' || c2.relname
                 FROM pg_partition_ancestors(c.oid) p, pg_class c2, pg_namespace n2
                 WHERE c.relispartition AND p.relid <> c.oid AND c2.oid = p.relid AND n2.oid =
                 c2.relnamespace)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN leaves ON leaves.root = c.oid"""

_CAPTURABLE = """
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence IN ('p', 'u')
      AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
    ORDER BY 2, 3"""

_COLUMNS = """
    SELECT a.attrelid::bigint, a.attname::text, a.atttypid::bigint, a.atttypmod
    FROM pg_attribute a
    WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    ORDER BY a.attrelid, a.attnum"""


def find_tables(connection: Connection, config: SourceConfig) -> list[TableFacts]:
    """List the configured tables; a partition belongs to its root if the root is configured."""
    found = []
    for *facts, ancestors in all_rows(connection, _FACTS.format(roots="true") + _CAPTURABLE):
        roots = [TableName(*ancestor.split("\n")) for ancestor in ancestors]
        table = _facts(facts)
        if config.captures(table.table) and not any(config.captures(root) for root in roots):
            found.append(table)
    return found


def find_table(connection: Connection, table: TableName) -> TableFacts | None:
    """Look up one table."""
    named = "n.nspname = %s AND c.relname = %s"
    row = one_row(connection, f"{_FACTS.format(roots=named)} WHERE {named}", (*table, *table))
    return _facts(row[:-1]) if row else None


def _facts(row: Sequence[Any]) -> TableFacts:
    oid, namespace, name, partitioned, identity, indexes, *leaves, policed, estimate = row
    unlogged, misidentified, deferring = (tuple(TableName(*leaf) for leaf in some or ()) for some in leaves)
    return TableFacts(
        oid, TableName(namespace, name), partitioned, identity,
        tuple(_index(*index) for index in indexes or ()),
        None if estimate is None else int(estimate),
        unlogged, misidentified, deferring, policed,
    )  # fmt: skip


def _index(
    name: str, primary: bool, identity: bool, immediate: bool, columns: Sequence[tuple[str, bool, bool]]
) -> Index:
    names = tuple(column for column, _, _ in columns)
    nullable = tuple(column for column, required, _ in columns if not required)
    generated = tuple(column for column, _, computed in columns if computed)
    return Index(name, names, nullable, generated, primary, identity, immediate)


def qualified(table: TableName) -> str:
    """Format a table for SQL."""
    return f"{quote(table.namespace)}.{quote(table.name)}"


def row_security_hint(role: str, table: TableName, owner: bool) -> str:
    """Return the SQL that lets a role read all rows; a policy for the role would not prove that."""
    bypass = f"ALTER ROLE {quote(role)} BYPASSRLS;"
    return f"ALTER TABLE {qualified(table)} NO FORCE ROW LEVEL SECURITY; or {bypass}" if owner else bypass


def layouts_of(catalog: Catalog, found: Sequence[TableFacts]) -> list[tuple[TableName, Layout]]:
    """Return the current layout of each table; as many queries for a thousand tables as for one."""
    columns = catalog.columns(found)
    return [(t.table, catalog.layout(t.table, columns[t.oid], t)) for t in found]


class Catalog:
    """Builds layouts over a connection of its own. Caches type names."""

    def __init__(self, connection: Connection, tables: Mapping[TableName, TableConfig]) -> None:
        self._connection = connection
        self._tables = tables
        self._types: dict[tuple[int, int], tuple[str, str]] = {}

    def layout_now(self, table: TableName) -> Layout:
        """Return a table's current layout, in this connection's transaction."""
        facts = find_table(self._connection, table)
        if facts is None:
            return Layout(None, "there is no such table", "create it, or take it out of source.tables")
        return self.layout(table, self.columns([facts])[facts.oid], facts)

    def columns(self, found: Sequence[TableFacts]) -> dict[int, list[CatalogColumn]]:
        """Return each table's columns by its oid, as pgoutput would: no dropped or generated ones."""
        columns: dict[int, list[CatalogColumn]] = {facts.oid: [] for facts in found}
        identities = {
            t.oid: {"d": t.primary_key, "i": t.identity_key, "f": None, "n": ()}[t.identity] for t in found
        }
        for relid, name, oid, typmod in all_rows(self._connection, _COLUMNS, (list(columns),)):
            identity = identities[relid]
            columns[relid].append(CatalogColumn(name, oid, typmod, identity is None or name in identity))
        self._resolve_all({(c.type_oid, c.typmod) for some in columns.values() for c in some})
        return columns

    def layout(
        self, table: TableName, columns: Iterable[LayoutColumn], facts: TableFacts | None = None
    ) -> Layout:
        """Return the layout of a table with these columns; may query."""
        columns = list(columns)
        facts = facts or find_table(self._connection, table)
        if facts and (unfit := _unlogged(facts) or _misidentified(facts) or _deferring(facts)):
            return unfit
        if problem := misnamed(c.name for c in columns):
            return Layout(None, problem, f"rename the column: ALTER TABLE {qualified(table)} RENAME COLUMN")
        key = self._key(table, columns, facts)
        if isinstance(key, Layout):
            return key
        self._resolve_all({(c.type_oid, c.typmod) for c in columns})
        return Layout(TableSchema(table, tuple(map(self._column, columns)), key))

    def _key(
        self, table: TableName, columns: Sequence[LayoutColumn], facts: TableFacts | None
    ) -> tuple[str, ...] | Layout:
        """Choose the key: the configured one, else the primary key or identity index, whichever is logged."""
        names = {c.name for c in columns}
        logged = {c.name for c in columns if c.is_key}
        config = self._tables.get(table)
        configured = tuple(config.key or ()) if config else ()
        if configured:
            refusal = _misfit(table, configured, names, logged, facts)
            return configured if refusal is None else refusal
        candidates = [facts.primary_key, facts.identity_key] if facts else []
        for candidate in candidates:
            if candidate and logged.issuperset(candidate):
                return candidate
        if logged and logged != names and (facts is None or facts.may_be_renamed(logged)):
            return tuple(c.name for c in columns if c.is_key)
        return _keyless(table, facts)

    def _column(self, column: LayoutColumn) -> Column:
        return Column(column.name, *self._types[column.type_oid, column.typmod])

    def _resolve_all(self, types: Collection[tuple[int, int]]) -> None:
        """Look up each type's name and landing type; a domain lands as its base type."""
        unknown = []
        for oid, typmod in set(types) - self._types.keys():
            spelled = source_type(oid, typmod)
            if spelled is not None and oid < FIRST_USER_OID:
                self._types[oid, typmod] = spelled, landing_type(oid, typmod)
            else:
                unknown.append((oid, typmod))
        if unknown:
            given = {"oids": [oid for oid, _ in unknown], "typmods": [typmod for _, typmod in unknown]}
            bases = {(oid, typmod): row for oid, typmod, *row in all_rows(self._connection, _TYPES, given)}
            for type_ in unknown:
                spelled, *base = bases.get(type_, ("???",))
                self._types[type_] = spelled, landing_type(*base) if base else "string"


_TYPES = """
    WITH RECURSIVE given(oid, typmod) AS (SELECT * FROM unnest(%(oids)s::oid[], %(typmods)s::int[])),
    domain(oid, typmod, base, base_typmod, kind) AS (
        SELECT g.oid, g.typmod, t.oid, g.typmod, t.typtype FROM given g JOIN pg_type t ON t.oid = g.oid
        UNION ALL
        SELECT d.oid, d.typmod, b.oid, CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE d.base_typmod END,
               b.typtype
        FROM domain d JOIN pg_type t ON t.oid = d.base JOIN pg_type b ON b.oid = t.typbasetype
        WHERE d.kind = 'd')
    SELECT oid::bigint, typmod, format_type(oid, typmod), base::bigint, base_typmod
    FROM domain WHERE kind <> 'd'"""


def _unlogged(facts: TableFacts) -> Layout | None:
    if not facts.unlogged:
        return None
    if facts.unlogged == (facts.table,):
        fix = f"ALTER TABLE {qualified(facts.table)} SET LOGGED; or add it to source.exclude"
        return Layout(None, "is an unlogged table, never in the log", fix)
    listed = ", ".join(map(str, facts.unlogged))
    fix = " ".join(f"ALTER TABLE {qualified(leaf)} SET LOGGED;" for leaf in facts.unlogged)
    return Layout(None, f"its partitions {listed} are unlogged or foreign tables, never in the log", fix)


def _misidentified(facts: TableFacts) -> Layout | None:
    names = (facts.table,) if facts.identity == "n" else facts.misidentified
    if not names:
        return None
    reason = f"replica identity of {', '.join(map(str, names))} does not fit"
    if facts.identity == "i":
        columns = ", ".join(map(quote, facts.identity_key))
        how = f"USING INDEX (its index of {columns}, as {facts.table} has)"
    else:
        how = "FULL" if facts.identity == "f" else "DEFAULT"
    return Layout(
        None, reason, " ".join(f"ALTER TABLE {qualified(name)} REPLICA IDENTITY {how};" for name in names)
    )


def _deferring(facts: TableFacts) -> Layout | None:
    if not facts.deferring or facts.deferrable:
        return None
    listed = ", ".join(map(str, facts.deferring))
    fix = f"DETACH it from {qualified(facts.table)}, make its primary key NOT DEFERRABLE, and ATTACH it again"
    return Layout(None, f"the primary key of its partition {listed} is deferrable", fix)


def _misfit(
    table: TableName, key: Sequence[str], names: set[str], logged: set[str], facts: TableFacts | None
) -> Layout | None:
    """Return why a configured key can't identify rows, or None."""
    if unknown := [c for c in key if c not in names]:
        return Layout(
            None,
            f"its configured key has no column {', '.join(unknown)}",
            f'correct key in [tables."{table}"]; columns are {", ".join(sorted(names))}',
        )
    if not logged.issuperset(key):
        return _not_logged(table, key)
    return _not_unique(facts, key) if facts else None


def _not_unique(facts: TableFacts, key: Sequence[str]) -> Layout | None:
    fitting = [i for i in facts.indexes if set(i.columns) == set(key)]
    if any(i.immediate and not i.nullable for i in fitting):
        return None
    spelled = qualified(facts.table)
    if usable := [i for i in fitting if i.immediate]:
        fix = " ".join(f"ALTER TABLE {spelled} ALTER {quote(c)} SET NOT NULL;" for c in usable[0].nullable)
        return Layout(None, f"key column {', '.join(usable[0].nullable)} may be null", fix)
    what = "only a deferrable" if fitting else "no"
    columns = ", ".join(map(quote, key))
    return Layout(
        None,
        f"its configured key ({', '.join(key)}) has {what} unique index",
        f"CREATE UNIQUE INDEX ON {spelled} ({columns});",
    )


def _keyless(table: TableName, facts: TableFacts | None) -> Layout:
    if facts and (key := facts.deferrable):
        columns, spelled = ", ".join(map(quote, key.columns)), qualified(table)
        return Layout(
            None,
            f"its primary key ({', '.join(key.columns)}) is deferrable, so the log can't identify rows by it",
            f"ALTER TABLE {spelled} DROP CONSTRAINT {quote(key.name)}, ADD PRIMARY KEY ({columns});",
        )
    if facts and facts.generated:
        return Layout(
            None,
            f"its key column {', '.join(facts.generated)} is generated, so the log lacks it",
            f"CREATE UNIQUE INDEX on NOT NULL columns that are not generated, ALTER TABLE {qualified(table)}"
            f' REPLICA IDENTITY USING INDEX it, and set key in [tables."{table}"] to these columns',
        )
    if facts and facts.primary_key:
        return _not_logged(table, facts.primary_key)
    return Layout(None, "it has no primary key", f'add a primary key, or set key in [tables."{table}"]')


def _not_logged(table: TableName, key: Sequence[str]) -> Layout:
    return Layout(
        None,
        f"its replica identity does not hold the key ({', '.join(key)})",
        f"ALTER TABLE {qualified(table)} REPLICA IDENTITY FULL, or DEFAULT if the key is the primary key",
    )
