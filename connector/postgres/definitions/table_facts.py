"""Queries what the catalog says of tables: indexes, replica identity, partitions, comments, columns' numbers.

No query here waits for a lock or takes one per partition, so activity on one table never blocks a check of
the others. Hence pg_inherits, not pg_partition_tree(), which locks all partitions.

A column keeps its number when it is renamed, and no number is used twice. Each ALTER of a column writes its
row anew, so while the version (its xmin) is the same, the column has had the same name all along. Generated
columns count, too: DROP EXPRESSION makes one a column like any other, under the same number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2.extensions import connection as Connection

from connector.config import SourceConfig
from connector.landing.column_names import IDS_PER_TABLE
from connector.logged_table import ColumnLook
from connector.position import parse_lsn
from connector.postgres.connection import all_rows, one_row, one_snapshot, quote
from connector.postgres.log.wal import round_to_record_end
from connector.postgres.visibility import Snapshot
from connector.schema import COMMENT_CHARACTERS, TableComments, TableName, fold


@dataclass(frozen=True)
class Index:
    """A unique index on plain columns and all rows; `immediate`: not of a deferrable key.

    `generated`: its computed columns, which are not in the log. `traces`: its oid, that of its constraint
    (``c``), and the number of its file (``f``). When another index takes over without a gap, one of these
    survives: on REINDEX, on ADD PRIMARY KEY USING INDEX, on an ALTER of a column's type that keeps the file,
    and on REINDEX CONCURRENTLY, but only if there is a constraint.
    """

    traces: frozenset[str]
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

    `unlogged`: the parts that leave no row events (itself, or partitions that are unlogged or foreign). No
    publication takes a partitioned table that is unlogged, though its partitions may be logged.
    `misidentified`: partitions whose replica identity differs from the root's; the log carries their rows as
    the root's, with less of the old row than declared. `deferring`: partitions whose own primary key is
    deferrable; once published, their updates would fail. `foreign_storage`: the parts that another access
    method than heap stores: whether and how the log has their changes is up to the extension that it is from.
    `policed`: row security would hide rows from our role.
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
    foreign_storage: tuple[TableName, ...] = ()
    policed: bool = False

    def identifying(self, key: Collection[str]) -> list[Index]:
        """Return the indexes that each identify rows by these columns."""
        return [i for i in self.indexes if {*i.columns} == {*key} and i.immediate and not i.nullable]

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The primary key, if it can identify rows in the log: a deferrable one can't."""
        return next((i.columns for i in self.indexes if i.primary and i.immediate), ())

    @property
    def identity_key(self) -> tuple[str, ...]:
        """The columns of REPLICA IDENTITY USING INDEX."""
        return next((i.columns for i in self.indexes if i.identity), ())

    @property
    def generated(self) -> tuple[str, ...]:
        """The computed columns of the index that identifies rows, which the log lacks."""
        identifies = (i for i in self.indexes if (i.identity if self.identity == "i" else i.primary))
        return next((i.generated for i in identifies), ())

    def identifies_by(self, logged: Collection[str], columns: Collection[str]) -> bool:
        """Return whether the replica identity is just these columns, of all that the log can have."""
        identity = {"d": self.primary_key, "i": self.identity_key, "f": columns}.get(self.identity, ())
        return {*identity} - {*self.generated} == {*logged} - {*self.generated}

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
         concat_ws(',', i.indexrelid, 'f' || nullif(x.relfilenode, 0),
             (SELECT 'c' || n.oid FROM pg_constraint n
              WHERE n.conrelid = i.indrelid AND n.conindid = i.indexrelid AND n.contype IN ('p', 'u'))),
         x.relname::text, i.indisprimary, i.indisreplident, i.indimmediate,
         (SELECT jsonb_agg(jsonb_build_array(a.attname::text, a.attnotnull, a.attgenerated <> '')
                           ORDER BY k.ordinal)
          FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, ordinal)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
          WHERE k.ordinal <= i.indnkeyatts)))
     FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
     WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
       AND i.indexprs IS NULL)"""

PARTS = """
    parts(root, relid, attached, leaving) AS (
        SELECT c.oid, c.oid, ''::text, false FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind = 'p' AND {roots}
        UNION ALL
        SELECT p.root, i.inhrelid, concat(p.attached, '.', i.xmin), p.leaving OR i.inhdetachpending
        FROM parts p JOIN pg_inherits i ON i.inhparent = p.relid)"""
"""Partitioned tables, each paired with itself and all its partitions, for a WITH RECURSIVE. `attached`: the
transactions that attached the partition and its ancestors. `leaving`: it, or an ancestor of it, is being
detached (CONCURRENTLY): queries of the root omit it, but the log may go on with its rows as the root's.
"""

_IDENTITY = """
    (SELECT array_agg(a.attname ORDER BY a.attname)
     FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, ordinal), pg_attribute a
     WHERE {relation}.relreplident = 'i' AND i.indrelid = {relation}.oid AND i.indisreplident
       AND k.ordinal <= i.indnkeyatts AND a.attrelid = i.indrelid AND a.attnum = k.attnum)"""

_FOREIGN_STORAGE = """
    {relation}.relam IN (
        SELECT oid FROM pg_am WHERE amtype = 't' AND amhandler <> 'heap_tableam_handler'::regproc)"""

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
                       WHERE i.indrelid = l.oid AND i.indisprimary AND NOT i.indimmediate)) AS deferring,
               jsonb_agg(jsonb_build_array(n.nspname::text, l.relname::text) ORDER BY l.oid)
                   FILTER (WHERE {_FOREIGN_STORAGE.format(relation="l")}) AS foreign_storage
        FROM parts p JOIN pg_class r ON r.oid = p.root
        JOIN pg_class l ON l.oid = p.relid AND l.relkind <> 'p' JOIN pg_namespace n ON n.oid = l.relnamespace
        WHERE NOT p.leaving GROUP BY p.root)
    SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind = 'p', c.relreplident::text, {_INDEXES},
           CASE WHEN c.relpersistence <> 'p' THEN
                    jsonb_build_array(jsonb_build_array(n.nspname::text, c.relname::text))
                WHEN c.relkind = 'p' THEN leaves.unlogged END,
           leaves.misidentified, leaves.deferring,
           CASE WHEN c.relkind = 'p' THEN leaves.foreign_storage
                WHEN {_FOREIGN_STORAGE.format(relation="c")} THEN
                    jsonb_build_array(jsonb_build_array(n.nspname::text, c.relname::text)) END,
           row_security_active(c.oid),
           CASE WHEN c.relkind = 'p' THEN leaves.estimate ELSE nullif(c.reltuples, -1) END,
           (SELECT jsonb_agg(jsonb_build_array(n2.nspname::text, c2.relname::text))
            FROM (SELECT relid FROM pg_partition_ancestors(c.oid) UNION
                  SELECT above.relid FROM pg_partition_ancestors(c.oid) p
                  JOIN pg_inherits i ON i.inhrelid = p.relid AND i.inhdetachpending
                  CROSS JOIN pg_partition_ancestors(i.inhparent) above) p, pg_class c2, pg_namespace n2
            WHERE c.relispartition AND p.relid <> c.oid AND c2.oid = p.relid AND n2.oid = c2.relnamespace)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN leaves ON leaves.root = c.oid"""

_CAPTURABLE = """
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence IN ('p', 'u')
      AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
    ORDER BY 2, 3"""


def find_tables(connection: Connection, config: SourceConfig) -> list[TableFacts]:
    """List the configured tables; a partition belongs to its root if that is configured, until it is gone."""
    found = []
    for *facts, ancestors in all_rows(connection, _FACTS.format(roots="true") + _CAPTURABLE):
        roots = [TableName(*ancestor) for ancestor in ancestors or ()]
        table = _facts(facts)
        if config.captures(table.table) and not any(config.captures(root) for root in roots):
            found.append(table)
    return found


def find_table(connection: Connection, table: TableName) -> TableFacts | None:
    """Look up one table."""
    named = "n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')"
    row = one_row(connection, f"{_FACTS.format(roots=named)} WHERE {named}", (*table, *table))
    return _facts(row[:-1]) if row else None


def _facts(row: Sequence[Any]) -> TableFacts:
    oid, namespace, name, partitioned, identity, indexes, *leaves, policed, estimate = row
    unlogged, misidentified, deferring, foreign = (
        tuple(TableName(*leaf) for leaf in some or ()) for some in leaves
    )
    return TableFacts(
        oid, TableName(namespace, name), partitioned, identity,
        tuple(_index(*index) for index in indexes or ()),
        None if estimate is None else int(estimate),
        unlogged, misidentified, deferring, foreign, policed,
    )  # fmt: skip


def _index(
    traces: str,
    name: str,
    primary: bool,
    identity: bool,
    immediate: bool,
    columns: Sequence[tuple[str, bool, bool]],
) -> Index:
    names = tuple(column for column, _, _ in columns)
    nullable = tuple(column for column, required, _ in columns if not required)
    generated = tuple(column for column, _, computed in columns if computed)
    return Index(frozenset(traces.split(",")), name, names, nullable, generated, primary, identity, immediate)


_OF_TABLE = ""
"""Stands for the table among its columns; no column has an empty name."""

_COMMENTS = """
    SELECT d.objoid::bigint, json_object_agg(coalesce(a.attname, %(of_table)s), left(d.description, %(most)s))
    FROM pg_description d LEFT JOIN pg_attribute a ON a.attrelid = d.objoid AND a.attnum = d.objsubid
    WHERE d.classoid = 'pg_class'::regclass AND d.objoid = ANY (%(tables)s::oid[]) AND d.objsubid >= 0
    GROUP BY d.objoid"""


def comments_of(connection: Connection, tables: Mapping[int, TableName]) -> dict[TableName, TableComments]:
    """Return the comments (COMMENT ON) of tables, given by oid; tables without any are left out.

    A partition's own are left out, too: its rows land as the root's.
    """
    given = {"of_table": _OF_TABLE, "most": COMMENT_CHARACTERS, "tables": list(tables)}
    found = {}
    for oid, comments in all_rows(connection, _COMMENTS, given):
        text = comments.pop(_OF_TABLE, None)
        found[tables[oid]] = TableComments.of(tables[oid], text, comments)
    return found


def qualified(table: TableName) -> str:
    """Format a table for SQL."""
    return f"{quote(table.namespace)}.{quote(table.name)}"


COLUMN_NUMBERS = f"""(
    SELECT string_agg(concat(encode(convert_to(a.attname, 'UTF8'), 'hex'), '=',
                             a.attrelid::bigint * {IDS_PER_TABLE} + a.attnum, '.',
                             CASE WHEN a.attgenerated <> '' THEN '-' END, a.xmin), ','
                      ORDER BY a.attgenerated = '', a.attnum)
    FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)"""
"""Of a table `c`. Generated columns have negative versions, and come first: of two names that differ only by
case, the other counts.
"""

PUBLISHED = """(
    SELECT ('x' || left(md5(string_agg(concat(r.oid, ':', r.xmin), ',' ORDER BY r.oid)), 8))::bit(32)::bigint
    FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
    WHERE p.pubname = %(publication)s
      AND r.prrelid IN (SELECT c.oid UNION SELECT pg_partition_ancestors(c.oid)))"""
"""Of a table `c`: which entries the publication has for it and its ancestors, and their last edits. Only an
entry can have a list of columns.
"""

UNWRITTEN = "l.reltuples < 0"
"""That an empty table `l` was never written to: it was never vacuumed, which is what empties a file."""

SINCE = "left(pg_walfile_name(pg_current_wal_lsn()), 8), pg_stat_get_bgwriter_stat_reset_time()"
"""The timeline, and when the server's statistics began: anew after a crash. A crash or a failover may take
back a transaction that a check has seen. Then another one gets its xid, and may alter the same columns.
"""

_NUMBERED = re.compile(r"([0-9a-f]+)=(\d+)\.(-?\d+)")

_LOOK = f"""
    SELECT n.nspname::text, c.relname::text, {COLUMN_NUMBERS}, {PUBLISHED}
    FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS given(namespace, name)
    JOIN pg_namespace n ON n.nspname = given.namespace
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = given.name AND c.relkind IN ('r', 'p')"""


def look_at_columns(connection: Connection, publication: str, tables: Collection[TableName]) -> ColumnLook:
    """Look at these tables alone; those that don't exist are left out."""
    begun = end_of_log(connection)
    with one_snapshot(connection):
        shows = snapshot_of(connection).shows
        schemas, names = [t.namespace for t in tables], [t.name for t in tables]
        given = {"publication": publication, "schemas": schemas, "names": names}
        found = {TableName(*row[:2]): row[2:] for row in all_rows(connection, _LOOK, given)}
        return column_look(found, begun, end_of_log(connection), shows)


def column_look(
    found: Mapping[TableName, Sequence[Any]], begun: int, position: int, shows: Callable[[int], bool]
) -> ColumnLook:
    """Build a look from what `COLUMN_NUMBERS` and `PUBLISHED` are of each table."""
    ids: dict[TableName, dict[str, int]] = {}
    versions: dict[TableName, dict[str, int]] = {}
    for table, (text, _) in found.items():
        columns = [
            (_name(name), int(id_), int(version)) for name, id_, version in _NUMBERED.findall(text or "")
        ]
        ids[table] = {name: id_ for name, id_, _ in columns}
        versions[table] = {name: version for name, _, version in columns}
    published = {table: number or 0 for table, (_, number) in found.items()}
    return ColumnLook(begun, position, ids, versions, published, shows)


def _name(text: str) -> str:
    return fold(bytes.fromhex(text).decode())


def snapshot_of(connection: Connection) -> Snapshot:
    """Return the snapshot of the transaction that is open."""
    row = one_row(connection, "SELECT pg_current_snapshot()::text")
    assert row is not None
    return Snapshot.parse(row[0])


def end_of_log(connection: Connection) -> int:
    """Return the end of the log, with what is not flushed yet."""
    row = one_row(connection, "SELECT pg_current_wal_insert_lsn()::text")
    assert row is not None
    return round_to_record_end(parse_lsn(row[0]))
