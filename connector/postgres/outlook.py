"""What PostgreSQL's log does not tell of a table: its publication, its partitions, and replaced columns.

A table that is taken out of the publication and put back gets a new entry there; a partition that is
truncated by itself gets a new file, and one that is attached, detached or dropped changes the tree. A new
partition that is empty at the first look has nothing untold: its rows will be in the log. VACUUM FULL of a
partition looks the same as its truncation: the table is dumped once more than needed, never once less.

A column that is dropped and added again by the same name, with no row written between, looks in the log as
if nothing had happened, and yet no row has its old value: its number tells.

A fingerprint is ``<publication entry> @<column>=<number>,... <leaf>:<file>:<e when empty> ...``, columns as
the beginnings of their names' MD5, all else but the ``e`` as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from psycopg2.extensions import connection as Connection

from connector.config import SourceConfig, TableConfig
from connector.position import parse_lsn
from connector.postgres.catalog import Catalog, TableFacts, find_tables, layouts_of
from connector.postgres.connection import all_rows, one_row
from connector.postgres.wal import round_to_record_end
from connector.source import Outlook

_FINGERPRINTS = """
    SELECT c.oid::bigint, concat_ws(' ',
        coalesce((SELECT r.oid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
         WHERE p.pubname = %(publication)s AND r.prrelid = c.oid), 0),
        (SELECT '@' || string_agg(left(md5(a.attname), 8) || '=' || a.attnum, ',' ORDER BY a.attnum)
         FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
        (SELECT string_agg(concat(l.oid, ':', l.relfilenode, ':',
                                  CASE WHEN pg_relation_size(l.oid) = 0 THEN 'e' END), ' ' ORDER BY l.oid)
         FROM pg_partition_tree(c.oid) t JOIN pg_class l ON l.oid = t.relid
         WHERE c.relkind = 'p' AND t.isleaf))
    FROM pg_class c WHERE c.oid = ANY(%(tables)s::oid[])"""


def look(connection: Connection, config: SourceConfig, tables: Mapping[str, TableConfig]) -> Outlook:
    """Look at the tables that can be captured; the position is one that every change seen here is before."""
    facts = {str(t.table): t for t in find_tables(connection, config)}
    found = _capturable(connection, tables, facts)
    seen = dict(
        all_rows(connection, _FINGERPRINTS, {"publication": config.publication, "tables": list(found)})
    )
    row = one_row(connection, "SELECT pg_current_wal_insert_lsn()::text")
    assert row is not None
    fingerprints = {name: seen[oid] for oid, name in found.items() if oid in seen}
    return Outlook(fingerprints, round_to_record_end(parse_lsn(row[0])), frozenset(facts))


def _capturable(
    connection: Connection, tables: Mapping[str, TableConfig], facts: Mapping[str, TableFacts]
) -> dict[int, str]:
    layouts = layouts_of(Catalog(connection, tables), list(facts.values()))
    return {facts[str(t)].oid: str(t) for t, layout in layouts if layout.schema is not None}


def untold(before: str, now: str) -> bool:
    """Tell whether rows may have come or gone untold between two fingerprints of one table."""
    old, new = _parse(before), _parse(now)
    replaced = any(new.columns.get(name, number) != number for name, number in old.columns.items())
    gone_or_rewritten = any(
        new.leaves.get(leaf, ("", ""))[0] != file for leaf, (file, _) in old.leaves.items()
    )
    came_filled = any(leaf not in old.leaves and empty != "e" for leaf, (_, empty) in new.leaves.items())
    return old.entry != new.entry or replaced or gone_or_rewritten or came_filled


class _Parsed(NamedTuple):
    entry: str
    columns: dict[str, str]
    leaves: dict[str, tuple[str, str]]


def _parse(fingerprint: str) -> _Parsed:
    entry, *rest = fingerprint.split(" ")
    columns = [part[1:].split(",") for part in rest if part.startswith("@")]
    leaves = (part.split(":") for part in rest if not part.startswith("@"))
    return _Parsed(
        entry,
        dict(column.split("=") for group in columns for column in group),
        {leaf: (file, empty) for leaf, file, empty in leaves},
    )
