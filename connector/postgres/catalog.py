"""A table's definition in the catalog, as the layout under which its rows land.

Invariant: the log's Relation message and a dump's query of pg_attribute yield the same `TableSchema` for the
same layout, because both go through `Catalog.layout`.

The catalog is current; a Relation message may be older, or newer if its commit is not visible yet. So column
names and types come from the message, and the catalog supplies only what the message lacks: a domain's base
type, a type's name, the order of the key.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from psycopg2.extensions import connection as Connection

from connector.config import TableConfig
from connector.errors import NotYetError
from connector.landing.format import misnamed
from connector.postgres.codec.pgoutput import Relation
from connector.postgres.codec.types import landing_type, source_type
from connector.postgres.connection import all_rows, one_row, quote
from connector.postgres.definitions.refusals import (
    TableLayout,
    alike,
    ambiguous,
    deferring,
    keyless,
    misfit,
    misidentified,
    unidentifying,
    unlike_heap,
)
from connector.postgres.definitions.table_facts import TableFacts, find_table, qualified
from connector.postgres.visibility import Snapshot
from connector.schema import Column, TableName, TableSchema

FIRST_USER_OID = 16384
"""Types below this oid are built in, the same in every database."""


UNKNOWN = "???"
"""The name of a type that is missing from the catalog: dropped since, or not visible yet."""


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


_COLUMNS = """
    SELECT a.attrelid::bigint, a.attname::text, a.atttypid::bigint, a.atttypmod
    FROM pg_attribute a
    WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    ORDER BY a.attrelid, a.attnum"""


def row_security_hint(role: str, table: TableName, owner: bool) -> str:
    """Return the SQL that lets a role read all rows; a policy for the role would be no proof of that."""
    bypass = f"ALTER ROLE {quote(role)} BYPASSRLS;"
    return f"ALTER TABLE {qualified(table)} NO FORCE ROW LEVEL SECURITY; or {bypass}" if owner else bypass


def layouts_of(catalog: Catalog, found: Sequence[TableFacts]) -> list[tuple[TableName, TableLayout]]:
    """Return the current layout of each table; as many queries for a thousand tables as for one."""
    columns = catalog.columns(found)
    layouts = ((t, catalog.layout(t.table, columns[t.oid], t)) for t in found)
    return [(t.table, replace(layout, types=catalog.types_word(columns[t.oid]))) for t, layout in layouts]


Types = dict[tuple[int, int], tuple[str, str]]
"""Type name and landing type by type oid and modifier."""

FORMER_TYPES = 20
"""As many former types are kept for each table, the latest."""


def types_in(*fingerprints: str) -> Types:
    """Return the types in fingerprints' words for them, which are JSON in hex."""
    words = (word for fingerprint in fingerprints for word in fingerprint.split(" ") if word[:1] == "t")
    found = (each for word in words for each in json.loads(bytes.fromhex(word[1:])))
    return {(oid, typmod): (name, type_) for oid, typmod, name, type_ in found}


def with_former_types(before: str, now: str) -> str:
    """Return the current fingerprint with the types in the former one added: older log may have them."""
    known = types_in(now)
    former = [(type_, named) for type_, named in types_in(before).items() if type_ not in known]
    if not former:
        return now
    words = [word for word in now.split(" ") if word[:1] != "t"]
    return " ".join([*words, _types_word(known | dict(former[:FORMER_TYPES]))])


def _types_word(types: Types) -> str:
    return "t" + json.dumps([[*type_, *named] for type_, named in types.items()]).encode().hex()


class Catalog:
    """Builds layouts over its own connection.

    `types` caches type names for as long as the log is unbroken and chunks may wait for it. Log and dumps
    share it, so after a type is renamed, rows of both still land under one layout. `former`: types of former
    columns, which the database may no longer have. `before`: tables as they were when the log was opened.
    """

    def __init__(
        self,
        connection: Connection,
        tables: Mapping[TableName, TableConfig],
        types: Types | None = None,
        former: Mapping[tuple[int, int], tuple[str, str]] | None = None,
        before: Collection[TableFacts] = (),
    ) -> None:
        self._connection = connection
        self._before = {facts.oid: facts for facts in before}
        self._tables = tables
        self._types = {} if types is None else types
        self._former = {} if former is None else former
        self._examined: set[tuple[int, int]] = set()
        self._cut_down: set[tuple[int, int]] = set()
        self._alike: set[tuple[int, int]] = set()

    def layout_now(self, table: TableName) -> TableLayout:
        """Return a table's layout as of this connection's transaction; `NotYetError` if it had none then."""
        facts = find_table(self._connection, table)
        if facts is None:
            raise NotYetError(f"{table}: it was renamed or created just now")
        return self.layout(table, self.columns([facts])[facts.oid], facts)

    def columns(self, found: Sequence[TableFacts]) -> dict[int, list[CatalogColumn]]:
        """Return each table's columns by its oid, as pgoutput does: without dropped or generated ones."""
        columns: dict[int, list[CatalogColumn]] = {facts.oid: [] for facts in found}
        identities = {
            t.oid: {"d": t.primary_key, "i": t.identity_key, "f": None, "n": ()}[t.identity] for t in found
        }
        for relid, name, oid, typmod in all_rows(self._connection, _COLUMNS, (list(columns),)):
            identity = identities[relid]
            columns[relid].append(CatalogColumn(name, oid, typmod, identity is None or name in identity))
        self._resolve_all({(c.type_oid, c.typmod) for some in columns.values() for c in some})
        return columns

    def logged_layout(self, relation: Relation) -> TableLayout:
        """Return the layout of a table as the log describes it; may query.

        If it is gone, or renamed, and whatever has its name now, its key is the one that it had before, if
        that is what the log has.
        """
        table = TableName(relation.namespace, relation.name)
        facts, before = find_table(self._connection, table), self._before.get(relation.relid)
        if before is not None and (facts is None or facts.oid != relation.relid):
            names = {c.name for c in relation.columns}
            logged = {c.name for c in relation.columns if c.is_key}
            same = (before.table, before.identity) == (table, relation.identity)
            # A replica identity of whole rows does not show whether the key is still the same.
            if same and relation.identity != "f" and before.identifies_by(logged, names):
                facts = before
        return self.layout(table, relation.columns, facts)

    def layout(
        self, table: TableName, columns: Iterable[LayoutColumn], facts: TableFacts | None = None
    ) -> TableLayout:
        """Return the layout of a table with these columns; may query."""
        columns = list(columns)
        facts = facts or find_table(self._connection, table)
        layout = self._layout(table, columns, facts)
        names = {c.name for c in columns}
        logged = {c.name for c in columns if c.is_key}
        if facts is not None and facts.identifies_by(logged, names):
            return layout
        return replace(layout, as_logged=layout.schema is not None and not layout.schema.key)

    def _layout(
        self, table: TableName, columns: Sequence[LayoutColumn], facts: TableFacts | None
    ) -> TableLayout:
        changes_method = self._connection.server_version >= 150000
        if facts and (
            unfit := unlike_heap(facts, changes_method=changes_method)
            or misidentified(facts)
            or deferring(facts)
        ):
            return unfit
        before_images = table in self._tables and self._tables[table].before_images
        if problem := misnamed((c.name for c in columns), before_images=before_images):
            return TableLayout(
                None, problem, f"rename the column: ALTER TABLE {qualified(table)} RENAME COLUMN ... TO ..."
            )
        key = self._choose_key(table, columns, facts)
        if isinstance(key, TableLayout):
            return key
        self._resolve_all({(c.type_oid, c.typmod) for c in columns})
        for column in (c for c in columns if c.name in key):
            if (column.type_oid, column.typmod) in self._cut_down:
                return ambiguous(table, self._column(column))
            if (column.type_oid, column.typmod) in self._alike:
                return alike(table, self._column(column))
        return TableLayout(TableSchema(table, tuple(map(self._column, columns)), key, before_images))

    def _choose_key(
        self, table: TableName, columns: Sequence[LayoutColumn], facts: TableFacts | None
    ) -> tuple[str, ...] | TableLayout:
        """Choose the key: the configured one, else the primary key or identity index, whichever is logged."""
        names = {c.name for c in columns}
        logged = {c.name for c in columns if c.is_key}
        config = self._tables.get(table)
        if config is not None and config.only_changes:
            return () if logged else unidentifying(table, partitioned=bool(facts and facts.partitioned))
        configured = tuple(config.key or ()) if config else ()
        if configured:
            refusal = misfit(table, configured, names, logged, facts)
            return configured if refusal is None else refusal
        candidates = [facts.primary_key, facts.identity_key] if facts else []
        for candidate in candidates:
            if candidate and logged.issuperset(candidate):
                return candidate
        if logged and logged != names and (facts is None or facts.may_be_renamed(logged)):
            return tuple(c.name for c in columns if c.is_key)
        return keyless(table, facts)

    def shows(self, xid: int) -> bool:
        """Return whether the effects of a transaction are visible on this connection."""
        row = one_row(self._connection, "SELECT pg_current_snapshot()::text")
        return row is not None and Snapshot.parse(row[0]).shows(xid)

    def _column(self, column: LayoutColumn) -> Column:
        type_ = column.type_oid, column.typmod
        return Column(column.name, *(self._types.get(type_) or self._former.get(type_, (UNKNOWN, "string"))))

    def types_word(self, columns: Iterable[LayoutColumn]) -> str:
        """Return the word for the types of columns that `columns` returned; empty if all are built in."""
        types = {(c.type_oid, c.typmod) for c in columns if c.type_oid >= FIRST_USER_OID}
        found = {type_: self._types[type_] for type_ in sorted(types & self._types.keys())}
        return _types_word(found) if found else ""

    def _resolve_all(self, types: Collection[tuple[int, int]]) -> None:
        """Look up each type's name and landing type, and whether a key may have it.

        A domain lands as its base type. A name that is known already, to others, too, stays as it is.
        """
        unknown = []
        for oid, typmod in set(types) - self._examined:
            formatted = source_type(oid, typmod)
            if formatted is not None and oid < FIRST_USER_OID:
                self._types[oid, typmod] = formatted, landing_type(oid, typmod)
                self._examined.add((oid, typmod))
            else:
                unknown.append((oid, typmod))
        if unknown:
            given = {"oids": [oid for oid, _ in unknown], "typmods": [typmod for _, typmod in unknown]}
            bases = {(oid, typmod): row for oid, typmod, *row in all_rows(self._connection, _TYPES, given)}
            for type_, (formatted, *base, cut_down, alike) in bases.items():
                self._types.setdefault(type_, (formatted, landing_type(*base)))
                self._examined.add(type_)
                self._cut_down |= {type_} if cut_down else set()
                self._alike |= {type_} if alike else set()


_ALIKE = "24, 2203, 4191, 3615, 1008, 2208, 4192, 3645"
"""regproc, regoper, regcollation, tsquery, and their arrays: functions, operators and collations may share a
name, and a query is written without its parentheses.
"""

_WRITTEN_ALIKE = """
    SELECT FROM pg_type t JOIN pg_proc p ON p.oid = t.typoutput
    WHERE t.oid = used.oid AND (t.typname, p.prosrc) IN (('seg', 'seg_out'), ('issn', 'isn_out'))"""
"""Of types of extensions: `seg` keeps seven digits and writes six, `issn` leaves out the issue's number."""


def types_within(oid: str, built_in: str = "0") -> str:
    """Build the WITH clause for `used(oid)`: a type, and what it is made of that is not built in.

    `built_in`: and these, by their oids.
    """
    return f"""WITH RECURSIVE used(oid) AS (
        SELECT {oid}
        UNION
        SELECT i.oid FROM used u JOIN pg_type t ON t.oid = u.oid CROSS JOIN LATERAL (
            SELECT t.typbasetype
            UNION ALL SELECT t.typelem
            UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
            UNION ALL SELECT a.atttypid FROM pg_attribute a
                WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        ) i(oid) WHERE i.oid >= {FIRST_USER_OID} OR i.oid IN ({built_in}))"""


_TYPES = f"""
    WITH RECURSIVE given(oid, typmod) AS (SELECT * FROM unnest(%(oids)s::oid[], %(typmods)s::int[])),
    domain(oid, typmod, base, base_typmod, kind) AS (
        SELECT g.oid, g.typmod, t.oid, g.typmod, t.typtype FROM given g JOIN pg_type t ON t.oid = g.oid
        UNION ALL
        SELECT d.oid, d.typmod, b.oid, CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE d.base_typmod END,
               b.typtype
        FROM domain d JOIN pg_type t ON t.oid = d.base JOIN pg_type b ON b.oid = t.typbasetype
        WHERE d.kind = 'd')
    SELECT oid::bigint, typmod, format_type(oid, typmod), base::bigint, base_typmod,
        base >= {FIRST_USER_OID} AND EXISTS (
            {types_within("base")}
            SELECT FROM used u JOIN pg_type t ON t.oid = u.oid AND t.typtype = 'c'
            JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND a.attisdropped),
        EXISTS ({types_within("base", _ALIKE)}
            SELECT FROM used WHERE oid IN ({_ALIKE}) OR EXISTS ({_WRITTEN_ALIKE}))
    FROM domain WHERE kind <> 'd'"""
"""With whether a composite type, or one within, has lost an attribute, and whether values may look alike."""
