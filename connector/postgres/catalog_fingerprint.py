"""Catalog fingerprint: detects row changes and publication gaps that leave no row events.

One query reads all tables. A fingerprint is a list of words separated by spaces; the first character of
each is its kind:

- ``r``: the relation's oid. Changed: another table has replaced it under the same name.
- ``n``: owner and xmin of its row type, which a RENAME or SET SCHEMA writes. Changed xmin: for a time the log
  may have carried its changes under another name. If the owner changed too, that alone may be the reason.
- ``p``: the publication's oid and xmin (any ALTER of its options writes that), and the table's entries in it
  (oid and xmin): its own, an ancestor's, or its schema's; ``+`` if it has its own. Changed: the log may have
  missed changes. An edit that was reverted counts: the changes in between are lost.
- ``@``: each column's name (the beginning of its MD5, regardless of case, as the lake compares names),
  number and type; ``g`` for a generated one, which the log lacks, ``v`` if older rows (a partition's, too)
  hold a default that was never written. Another number or type under the same name: no row has its old value.
  A name that is new with ``v``, or gains it (see `SINCE`), or has an old number (a RENAME): it has values.
  Type modifiers are left out: if they change a value, the table is rewritten.
- ``-``: the numbers of dropped columns. ``!``: names of columns dropped since the table was first seen,
  carried from check to check (`remember`), ``?`` if one came and went unseen. The log may not show that a
  column of that name comes back, and older rows in the lake hold its old values.
- ``~``: the labels of enums in its columns, ``%``: the attributes of composite types; through domains, arrays
  and ranges. They determine the text of untouched rows. A label includes its xmin: while it was renamed, rows
  in the log had the other text. It follows its enum's oid: once no column uses that, no row has the label.
- ``t``: names of its columns' types that are not built in, and what they land as, with those that it had
  (`connector.postgres.catalog.types_in`): older log has types that may be dropped by now.
- ``x``: the xmins of its columns, which every ALTER that rewrites values writes, and `SINCE`.
- ``k``: number and collation of each column of a unique index that has one. Changed: a dump that is running
  has planned its ranges in another order, and leaves out keys between them.
- ``u``: the traces of the unique indexes on the columns of its key (`Index.traces`). The log names rows by
  their keys alone: while no such index was there, several rows may have had one key, and the log's delete of
  one of them is the lake's delete of all. A trace that is still there proves that one always was.
- ``<leaf>:<file>:<e when new, empty and never emptied>``: the table, or each of its partitions (``log`` for
  the file: only the log has shown rows of it as the table's, `connector.postgres.log.contradictions`). A new
  file of a partition may mean a TRUNCATE of it alone, which the log does not carry. Its file is hashed with
  the transactions that attached it: while detached, it changed outside the log. One that is being detached
  counts until it is gone: so long the log may have its rows. For a table that is no partition root, a
  TRUNCATE is in the log, and it can't be UNLOGGED for a time while it has its own entry in the publication
  (``+``). So there a new file without a new ``x`` is a TRUNCATE, VACUUM FULL or CLUSTER, and no reason for a
  dump. Partitions then get one dump more than needed, never one less.

Row security is left out because no session of ours reads under it; inheritance, because each table is read
alone. A new column that is null everywhere, a new label, or a new, empty partition leaves nothing to read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from psycopg2.errors import LockNotAvailable
from psycopg2.extensions import connection as Connection

from connector.config import SourceConfig, TableConfig
from connector.postgres.catalog import Catalog, layouts_of, with_former_types
from connector.postgres.connection import all_rows, one_snapshot
from connector.postgres.definitions.refusals import TableLayout
from connector.postgres.definitions.table_facts import (
    COLUMN_NUMBERS,
    PARTS,
    PUBLISHED,
    SINCE,
    UNWRITTEN,
    TableFacts,
    column_look,
    comments_of,
    end_of_log,
    find_tables,
    snapshot_of,
)
from connector.postgres.publication import Publication, find_publication, uncarried
from connector.schema import TableName, folded
from connector.source import CatalogSnapshot, UnfitTable, UnloggedChange

LABELS = 64
"""An enum with more labels is kept as one hash, so even a new label triggers a dump."""

LOCK_SECONDS = 1
"""Longest wait for a lock, on a new partition or a catalog being rewritten: checks that hang see nothing."""

UNLIKE_ALL, LOGGED, UNIDENTIFIED, FORMER, WITHHELD = ".0", "log", "key", "name", "held"
"""What the log makes of a row type's word (no transaction has the xid 0), and of a table's or leaf's file."""

NAMED = re.compile("[0-9a-f]+(?==)")
"""A column's name in a fingerprint as the server returns it, in hex."""

_FINGERPRINTS = f"""
    WITH RECURSIVE {PARTS.format(roots="c.oid = ANY (%(tables)s::oid[])")},
    leaves AS (
        SELECT p.root, string_agg(concat(l.oid, ':', left(md5(concat(l.relfilenode, p.attached)), 8), ':',
            CASE WHEN NOT %(sized)s OR l.oid IN (SELECT unnest(%(known)s::oid[])) THEN NULL
                 WHEN l.relfilenode <> l.oid THEN NULL
                 WHEN pg_relation_size(l.oid) = 0 AND {{fresh}} THEN 'e' END), ' ' ORDER BY l.oid) AS files
        FROM parts p JOIN pg_class l ON l.oid = p.relid AND l.relkind <> 'p' GROUP BY p.root),
    missing AS (
        SELECT DISTINCT p.root, a.attname
        FROM parts p JOIN pg_attribute a ON a.attrelid = p.relid AND a.atthasmissing),
    used(relid, typid) AS (
        SELECT attrelid, atttypid FROM pg_attribute
        WHERE attrelid = ANY (%(tables)s::oid[]) AND attnum > 0 AND NOT attisdropped AND atttypid >= 16384
        UNION
        SELECT u.relid, inner_.typid FROM used u JOIN pg_type t ON t.oid = u.typid CROSS JOIN LATERAL (
            SELECT t.typbasetype
            UNION ALL SELECT t.typelem
            UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.typtype IN ('r', 'm')
                AND t.oid = ANY (ARRAY[r.rngtypid, r.rngmultitypid])
            UNION ALL SELECT a.atttypid FROM pg_attribute a
                WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        ) inner_(typid) WHERE inner_.typid >= 16384),
    enums AS (
        SELECT u.relid, CASE WHEN count(*) > %(labels)s
            THEN concat(u.typid, '/#', left(md5(string_agg(
                concat(e.oid, ':', e.xmin, e.enumlabel), ',' ORDER BY e.oid)), 8))
            ELSE string_agg(concat(
                u.typid, '/', left(md5(concat(e.oid, ':', e.xmin, e.enumlabel)), 8)), ',' ORDER BY e.oid)
            END AS labels
        FROM used u JOIN pg_enum e ON e.enumtypid = u.typid GROUP BY u.relid, u.typid),
    composites AS (
        SELECT u.relid, left(md5(string_agg(
            concat(a.attrelid, ':', a.attnum, ':', a.atttypid, ':', a.atttypmod, ':', a.attisdropped), ','
            ORDER BY a.attrelid, a.attnum)), 8) AS attributes
        FROM used u JOIN pg_type t ON t.oid = u.typid AND t.typtype = 'c'
        JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 GROUP BY u.relid)
    SELECT c.oid::bigint, concat_ws(' ',
        'r' || c.oid,
        'n' || (SELECT concat(t.typowner, '.', t.xmin) FROM pg_type t WHERE t.oid = c.reltype),
        'p' || coalesce((SELECT left(md5(concat_ws(' ', p.oid, p.xmin, entries.all_of_them, {{schemas}})), 8)
                                || CASE WHEN entries.own THEN '+' ELSE '' END
                         FROM pg_publication p, LATERAL (
                             SELECT string_agg(concat(r.oid, ':', r.xmin), ',' ORDER BY r.oid),
                                    bool_or(r.prrelid = c.oid)
                             FROM pg_publication_rel r WHERE r.prpubid = p.oid AND (r.prrelid = c.oid
                                 OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid)))
                         ) entries(all_of_them, own)
                         WHERE p.pubname = %(publication)s), '0'),
        (SELECT '@' || string_agg(concat(encode(convert_to(a.attname, 'UTF8'), 'hex'), '=',
                                         a.attnum, '.', a.atttypid,
                                         CASE WHEN a.attgenerated <> '' THEN 'g' END,
                                         CASE WHEN a.atthasmissing OR EXISTS (SELECT FROM missing m
                                              WHERE m.root = c.oid AND m.attname = a.attname)
                                              THEN 'v' END), ',' ORDER BY a.attnum)
         FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
        (SELECT '-' || string_agg(a.attnum::text, ',' ORDER BY a.attnum)
         FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attisdropped),
        (SELECT 'x' || left(md5(concat({SINCE}, string_agg(attnum || ':' || a.xmin, ',' ORDER BY attnum))), 8)
         FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
        (SELECT 'k' || string_agg(concat(a.attnum, '.', a.attcollation), ',' ORDER BY a.attnum)
         FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attcollation <> 0
           AND EXISTS (SELECT FROM pg_index i
                       WHERE i.indrelid = c.oid AND i.indisunique AND a.attnum = ANY (i.indkey))),
        (SELECT '~' || string_agg(labels, ',' ORDER BY labels) FROM enums WHERE enums.relid = c.oid),
        (SELECT '%%' || attributes FROM composites WHERE composites.relid = c.oid),
        CASE WHEN c.relkind = 'r' THEN concat(c.oid, ':', c.relfilenode, ':')
             ELSE (SELECT files FROM leaves WHERE leaves.root = c.oid) END), {COLUMN_NUMBERS}, {PUBLISHED}
    FROM pg_class c WHERE c.oid = ANY (%(tables)s::oid[])"""

_SCHEMAS = """(SELECT string_agg(concat(s.oid, ':', s.xmin), ',' ORDER BY s.oid)
                FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"""


def take_snapshot(
    connection: Connection,
    config: SourceConfig,
    tables: Mapping[TableName, TableConfig],
    known: Mapping[TableName, str] | None = None,
    unpublished: Mapping[TableName, UnfitTable] | None = None,
) -> CatalogSnapshot:
    """Take the fingerprints of all configured tables; every change they show is before the position.

    `connection` waits up to `LOCK_SECONDS` for a lock; `LockNotAvailable` if a catalog stays locked.
    Everything is read in one snapshot: between two queries a table may be replaced, or lose a column and
    regain it. `unpublished`: tables that can't be published now; those that should be are unfit.

    Reading sizes waits for locks, so it is limited to partitions that are not in the fingerprints `known`; if
    another session holds one of the locks, none of them counts as empty.
    """
    begun = end_of_log(connection)
    leaves = {int(leaf) for fingerprint in (known or {}).values() for leaf in parse(fingerprint).leaves}
    try:
        with one_snapshot(connection):
            return _take_snapshot(connection, config, tables, sorted(leaves), unpublished or {}, begun)
    except LockNotAvailable:
        with one_snapshot(connection):
            return _take_snapshot(connection, config, tables, None, unpublished or {}, begun)


def _take_snapshot(
    connection: Connection,
    config: SourceConfig,
    tables: Mapping[TableName, TableConfig],
    leaves: Sequence[int] | None,
    unpublished: Mapping[TableName, UnfitTable],
    begun: int,
) -> CatalogSnapshot:
    shows = snapshot_of(connection).shows
    facts = find_tables(connection, config)
    layouts = dict(layouts_of(Catalog(connection, tables), facts))
    found = find_publication(connection, config.publication)
    capturable = [t for t in facts if layouts[t.table].schema is not None]
    unfit = _unfit(found, capturable, layouts, unpublished)
    fit = {t.oid: t.table for t in capturable if t.table not in unfit}
    found_of = _fingerprints(connection, config.publication, list(fit), leaves)
    position = end_of_log(connection)
    return CatalogSnapshot(
        {
            t.table: f"{NAMED.sub(_hash_of, found_of[t.oid][0])} {_identity(t, layouts[t.table])}"
            for t in capturable
            if t.oid in found_of
        },
        position,
        frozenset(t.table for t in facts),
        unfit,
        frozenset(_unprepared(found, capturable) - unfit.keys()),
        {t: _columns(layouts[t]) for t in fit.values()},
        comments=comments_of(connection, fit),
        begun=begun,
        look=column_look({fit[oid]: its[1:] for oid, its in found_of.items()}, begun, position, shows),
    )


def _columns(layout: TableLayout) -> frozenset[str]:
    return frozenset(c.name for c in layout.schema.columns) if layout.schema else frozenset()


def _identity(facts: TableFacts, layout: TableLayout) -> str:
    """Return the words for what identifies rows, and for types; the layout must have a schema."""
    assert layout.schema is not None
    indexes = facts.identifying(layout.schema.key)
    return f"u{','.join(sorted(t for index in indexes for t in index.traces))} {layout.types}".rstrip()


def _fingerprints(
    connection: Connection, publication: str, oids: Sequence[int], leaves: Sequence[int] | None
) -> dict[int, tuple[str, str | None, int | None]]:
    """Return fingerprints by oid, names in hex, columns' numbers, and the publication's entries.

    `leaves`: partitions whose size is not read; None: all.
    """
    newer = connection.server_version >= 150000
    schemas, fresh = (_SCHEMAS, "true") if newer else ("NULL", UNWRITTEN)
    given: dict[str, Any] = {"publication": publication, "tables": list(oids), "labels": LABELS}
    given |= {"sized": leaves is not None, "known": leaves or []}
    found = all_rows(connection, _FINGERPRINTS.format(schemas=schemas, fresh=fresh), given)
    return {oid: (fingerprint, columns, published) for oid, fingerprint, columns, published in found}


def _hash_of(name: re.Match[str]) -> str:
    """Hash a column's name regardless of case; the server would fold it by its locale."""
    (lower,) = folded([bytes.fromhex(name[0]).decode()])
    return hashlib.md5(lower.encode(), usedforsecurity=False).hexdigest()[:8]


def _unfit(
    found: Publication | None,
    capturable: Sequence[TableFacts],
    layouts: Mapping[TableName, TableLayout],
    unpublished: Mapping[TableName, UnfitTable],
) -> dict[TableName, UnfitTable]:
    unfit = {t: UnfitTable(its.reason, its.hint) for t, its in layouts.items() if its.schema is None}
    if found is not None:
        for table, statement in uncarried(found, [t.table for t in capturable]).items():
            hint = f"{statement} then dump it again: deltatide dump {table}"
            unfit[table] = UnfitTable(found.why_not_carried(table), hint)
        for table in (t.table for t in capturable if not found.carries(t.table)):
            if table in unpublished:
                unfit.setdefault(table, unpublished[table])
    return unfit


def _unprepared(found: Publication | None, capturable: Sequence[TableFacts]) -> set[TableName]:
    """Return the tables that the log does not carry completely, for `prepare` to fix."""
    partitioned = any(t.partitioned for t in capturable)
    if found is None or any(found.shortcomings(partitioned=partitioned)):
        return {t.table for t in capturable}
    return {t.table for t in capturable if not found.carries(t.table) and found.may_fix(t.table)}


def unlogged(before: str, now: str) -> UnloggedChange | None:
    """Compare two fingerprints of a table: return what may have changed rows without row events."""
    old, new = parse(before), parse(now)
    changed = {word for word in "rnpx%" if old.words.get(word) != new.words.get(word)}
    if "p" in changed:
        return UnloggedChange("it, or part of it, was missing from the publication for a time", lost=True)
    if old.words.get("n", "").endswith(UNLIKE_ALL) and "r" not in changed:
        return UnloggedChange("the log has changes of it under another name", lost=True)
    if "n" in changed and "r" not in changed:
        return UnloggedChange("it was renamed for a time, or its owner changed", lost=_same_owner(old, new))
    reasons = {
        "another table of the same name replaced it": "r" in changed,
        "the log has rows under its name that are not its own, or of a partition that no check has seen": any(
            file == LOGGED for file, _ in old.leaves.values()
        ),
        "the replica identity of a partition was not the table's for a time": any(
            file == UNIDENTIFIED for file, _ in old.leaves.values()
        ),
        "the log went on with its former name": any(file == FORMER for file, _ in old.leaves.values()),
        "rows did not land, since columns that it hides may have had another name": any(
            file == WITHHELD for file, _ in old.leaves.values()
        ),
        "a column was added or replaced without row events": _columns_changed(old, new),
        "a column was added under the name of a dropped one": _came_back(old, new),
        "the labels of an enum changed": _labels_changed(old, new),
        "a composite type of a column changed": "%" in changed,
        "the collation of a column of its key changed": _collation_changed(old, new),
        "it was rewritten, or a partition truncated, attached or detached": _files_changed(
            old, new, altered="x" in changed
        ),
        "its key was without a unique index for a time, so rows may have shared a key": _unidentified(
            old, new
        ),
    }
    return next((UnloggedChange(reason) for reason, holds in reasons.items() if holds), None)


def remember(before: str | None, now: str) -> str:
    """Return the current fingerprint with the names of dropped columns, and former types, added.

    A full dump leaves null in a dropped column, so one that came and went unseen counts until the next dump.
    """
    if before is None:
        return now
    new = parse(now)
    gone = _gone(parse(before), new) - new.names
    if unlogged(before, now) is not None:
        gone -= {"?"}
    words = [word for word in now.split(" ") if not word.startswith("!")]
    return with_former_types(before, " ".join([*words, *(["!" + ",".join(sorted(gone))] if gone else [])]))


def parts_changed(before: str, now: str) -> bool:
    """Return whether partitions of a table have come filled, gone, or got another file."""
    old, new = parse(before), parse(now)
    return new.words["r"] not in new.leaves and _files_changed(old, new, altered=True)


class Words(NamedTuple):
    """A fingerprint's words without their first character, and the lists in some of them.

    `columns`: pairs of name and the rest. Names may repeat: a generated column's may differ from a real one's
    by case only, and hashes may collide.
    """

    words: dict[str, str]
    columns: list[tuple[str, str]]
    labels: frozenset[str]
    leaves: dict[str, tuple[str, str]]

    def listed(self, word: str) -> set[str]:
        """Return the items of a word that is a list."""
        return set(filter(None, self.words.get(word, "").split(",")))

    @property
    def names(self) -> set[str]:
        """Return the columns' names."""
        return {name for name, _ in self.columns}

    @property
    def numbers(self) -> set[str]:
        """Return the columns' numbers."""
        return {what.split(".")[0] for _, what in self.columns}

    @property
    def real(self) -> list[tuple[str, str]]:
        """Return the columns that land."""
        return [(name, what) for name, what in self.columns if "g" not in what]


class Relations(NamedTuple):
    """The oids in a fingerprint: the table's own, and those of its parts."""

    whole: str
    parts: frozenset[str]


def relations_of(fingerprint: str) -> Relations:
    """Return the oids alone: quick, for all tables at each commit."""
    words = fingerprint.split(" ")
    parts = frozenset(word.partition(":")[0] for word in words if ":" in word)
    return Relations(next((word[1:] for word in words if word[:1] == "r"), ""), parts)


def parse(fingerprint: str) -> Words:
    """Parse a fingerprint."""
    parts = fingerprint.split(" ")
    words = {part[:1]: part[1:] for part in parts if ":" not in part}
    columns = (column.partition("=") for column in words.get("@", "").split(",") if column)
    leaves = (part.split(":") for part in parts if ":" in part)
    return Words(
        words,
        [(name, what) for name, _, what in columns],
        frozenset(words["~"].split(",")) if "~" in words else frozenset(),
        {leaf: (file, empty) for leaf, file, empty in leaves},
    )


def _same_owner(old: Words, new: Words) -> bool:
    return old.words.get("n", "").split(".")[0] == new.words.get("n", "").split(".")[0]


def _gone(old: Words, new: Words) -> set[str]:
    """Return the names of all former columns, and ``?`` if one was added and dropped unseen."""
    seen = old.numbers | old.listed("-")
    same = old.words.get("r") == new.words.get("r")
    unseen = new.listed("-") - (seen if same else set())
    return old.names | old.listed("!") | ({"?"} if unseen else set())


def _came_back(old: Words, new: Words) -> bool:
    gone = _gone(old, new) - old.names
    came = {name for name, _ in new.real} - old.names
    return bool(came) and ("?" in gone or bool(came & gone))


def _columns_changed(old: Words, new: Words) -> bool:
    """Return whether a current column holds values that no row event carried."""
    before = {*old.real, *((name, what.rstrip("v")) for name, what in old.real)}
    came, names, numbers = {*new.real} - before, old.names, old.numbers
    return any(name in names or what.endswith("v") or what.split(".")[0] in numbers for name, what in came)


def _labels_changed(old: Words, new: Words) -> bool:
    """Return whether a label is gone of an enum that is still used; an old fingerprint may name no enums."""
    used = {label.rpartition("/")[0] for label in new.labels} | {""}
    labels = {label.rpartition("/")[2] for label in new.labels}
    gone = (enum for enum, _, label in (each.rpartition("/") for each in old.labels) if label not in labels)
    return not used.isdisjoint(gone)


def _collation_changed(old: Words, new: Words) -> bool:
    before = dict(column.split(".") for column in old.listed("k"))
    now = dict(column.split(".") for column in new.listed("k"))
    return any(before[column] != now[column] for column in before.keys() & now.keys())


def _unidentified(old: Words, new: Words) -> bool:
    """Return whether the key may have been without a unique index; an old fingerprint may lack the word."""
    before = old.listed("u")
    return bool(before) and before.isdisjoint(new.listed("u"))


def _files_changed(old: Words, new: Words, *, altered: bool) -> bool:
    """Return whether rows may have come or gone with a file."""
    alone = new.words["p"].endswith("+") and list(old.leaves) == list(new.leaves) == [new.words["r"]]
    if alone and not altered:
        return False
    gone_or_rewritten = any(
        new.leaves.get(leaf, ("", ""))[0] != file for leaf, (file, _) in old.leaves.items()
    )
    came_filled = any(leaf not in old.leaves and empty != "e" for leaf, (_, empty) in new.leaves.items())
    return gone_or_rewritten or came_filled
