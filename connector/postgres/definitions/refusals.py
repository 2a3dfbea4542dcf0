"""The layout of a table, or why its log or snapshots are not exact, and what to do about that. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from connector.postgres.connection import quote
from connector.postgres.definitions.table_facts import TableFacts, qualified
from connector.schema import Column, TableName, TableSchema


@dataclass(frozen=True)
class TableLayout:
    """The schema a relation's rows land under; None if they can't, with the reason and what to do.

    `as_logged`: the catalog has the table with the replica identity that the log has, or rows have no key.
    `types`: the word for its columns' types in its fingerprint (`types_in`), if it has some that are not
    built in.
    """

    schema: TableSchema | None
    reason: str = ""
    hint: str = ""
    as_logged: bool = True
    types: str = ""


def ambiguous(table: TableName, column: Column) -> TableLayout:
    """Refuse a key whose type has lost an attribute: no index is checked then, so rows may share a key."""
    what = f"the type {column.source_type} of its key column {column.name} has lost an attribute"
    fix = f"ALTER TABLE {qualified(table)} ALTER {quote(column.name)} TYPE ... USING ..."
    return TableLayout(
        None,
        f"{what}, so several rows may have one key",
        f"create the type anew as it is now, then {fix}, which fails if there are any",
    )


def unlike_heap(facts: TableFacts, *, changes_method: bool) -> TableLayout | None:
    """Refuse a table whose changes may not be in the log, or not as they are in it.

    `changes_method`: the server has a statement that moves a table to another access method.
    """
    if facts.unlogged or not facts.foreign_storage:
        return _unlogged(facts)
    listed, whole = facts.foreign_storage, facts.foreign_storage == (facts.table,)
    who = "it is" if whole else f"its partitions {', '.join(map(str, listed))} are"
    fix = " ".join(f"ALTER TABLE {qualified(part)} SET ACCESS METHOD heap;" for part in listed)
    if not changes_method:
        fix = f"put tables created with USING heap in place of {', '.join(map(qualified, listed))},"
    return TableLayout(
        None,
        f"{who} stored by another access method than heap, whose changes the log may not have",
        f"{fix} or add {facts.table} to source.exclude",
    )


def alike(table: TableName, column: Column) -> TableLayout:
    """Refuse a key of which different values have the same text, which is what lands."""
    what = f"the type {column.source_type} of its key column {column.name}"
    return TableLayout(
        None,
        f"{what} writes different values alike, so several rows may have one key",
        f"change the column's type (regproc to regprocedure, regoper to regoperator, issn to issn13), or set"
        f" key in {table.section} to other columns",
    )


def _unlogged(facts: TableFacts) -> TableLayout | None:
    if not facts.unlogged:
        return None
    if facts.unlogged == (facts.table,) and facts.partitioned:  # which SET LOGGED leaves as it is
        fix = "create it anew without UNLOGGED, and attach its partitions there; or add it to source.exclude"
        return TableLayout(None, "was created as UNLOGGED, and no publication takes such a table", fix)
    if facts.unlogged == (facts.table,):
        fix = f"ALTER TABLE {qualified(facts.table)} SET LOGGED; or add it to source.exclude"
        return TableLayout(None, "is an unlogged table, which is never in the log", fix)
    listed = ", ".join(map(str, facts.unlogged))
    fix = " ".join(f"ALTER TABLE {qualified(leaf)} SET LOGGED;" for leaf in facts.unlogged)
    return TableLayout(
        None, f"its partitions {listed} are unlogged or foreign tables, which are never in the log", fix
    )


def misidentified(facts: TableFacts) -> TableLayout | None:
    """Refuse a table that has no replica identity, or whose partitions have another one."""
    names = (facts.table,) if facts.identity == "n" else facts.misidentified
    if not names:
        return None
    reason = f"replica identity of {', '.join(map(str, names))} does not fit"
    if facts.identity == "i":
        columns = ", ".join(map(quote, facts.identity_key))
        how = f"USING INDEX (its index of {columns}, as {facts.table} has)"
    else:
        how = "FULL" if facts.identity == "f" else "DEFAULT"
    return TableLayout(
        None, reason, " ".join(f"ALTER TABLE {qualified(name)} REPLICA IDENTITY {how};" for name in names)
    )


def deferring(facts: TableFacts) -> TableLayout | None:
    """Refuse a table with partitions whose updates fail once they are published."""
    if not facts.deferring or facts.deferrable:
        return None
    listed = ", ".join(map(str, facts.deferring))
    fix = f"DETACH it from {qualified(facts.table)}, make its primary key NOT DEFERRABLE, and ATTACH it again"
    return TableLayout(None, f"the primary key of its partition {listed} is deferrable", fix)


def misfit(
    table: TableName, key: Sequence[str], names: set[str], logged: set[str], facts: TableFacts | None
) -> TableLayout | None:
    """Return why a configured key can't identify rows, or None."""
    if unknown := [c for c in key if c not in names]:
        return TableLayout(
            None,
            f"its configured key has no column {', '.join(unknown)}",
            f'correct key in [tables."{table}"]; columns are {", ".join(sorted(names))}',
        )
    if not logged.issuperset(key):
        return _not_logged(table, key)
    return _not_unique(facts, key) if facts else None


def _not_unique(facts: TableFacts, key: Sequence[str]) -> TableLayout | None:
    if facts.identifying(key):
        return None
    fitting = [i for i in facts.indexes if set(i.columns) == set(key)]
    formatted = qualified(facts.table)
    if usable := [i for i in fitting if i.immediate]:
        fix = " ".join(f"ALTER TABLE {formatted} ALTER {quote(c)} SET NOT NULL;" for c in usable[0].nullable)
        return TableLayout(None, f"key column {', '.join(usable[0].nullable)} may be null", fix)
    what = "only a deferrable" if fitting else "no"
    columns = ", ".join(map(quote, key))
    return TableLayout(
        None,
        f"its configured key ({', '.join(key)}) has {what} unique index",
        f"CREATE UNIQUE INDEX ON {formatted} ({columns});",
    )


def keyless(table: TableName, facts: TableFacts | None) -> TableLayout:
    """Return why a table has no key that the log identifies rows by."""
    if facts and (key := facts.deferrable):
        columns, formatted = ", ".join(map(quote, key.columns)), qualified(table)
        return TableLayout(
            None,
            f"its primary key ({', '.join(key.columns)}) is deferrable, so the log can't identify rows by it",
            f"ALTER TABLE {formatted} DROP CONSTRAINT {quote(key.name)}, ADD PRIMARY KEY ({columns});",
        )
    if facts and facts.generated:
        return TableLayout(
            None,
            f"its key column {', '.join(facts.generated)} is generated, so the log lacks it",
            f"CREATE UNIQUE INDEX on NOT NULL columns that are not generated, ALTER TABLE {qualified(table)}"
            f' REPLICA IDENTITY USING INDEX it, and set key in [tables."{table}"] to these columns',
        )
    if facts and facts.primary_key:
        return _not_logged(table, facts.primary_key)
    whole_rows = whole_rows_sql(table, partitioned=bool(facts and facts.partitioned))
    hint = (
        f"add a primary key, or set key in {table.section}; or, to capture only its changes from now on, set"
        f' shapes = ["changes"] there, and run: {whole_rows}'
    )
    return TableLayout(None, "it has no primary key", hint)


def whole_rows_sql(table: TableName, *, partitioned: bool) -> str:
    """Build the SQL that makes the log carry whole old rows.

    A partition has its own replica identity. While it differs from the root's, the table can't be captured.
    """
    sql = f"ALTER TABLE {qualified(table)} REPLICA IDENTITY FULL;"
    return f"{sql} likewise for each of its partitions, in the same transaction" if partitioned else sql


def unidentifying(table: TableName, *, partitioned: bool) -> TableLayout:
    """Refuse to publish a table without a replica identity: its updates and deletes would fail."""
    return TableLayout(
        None,
        "it has no replica identity, without which a published table can't be updated",
        whole_rows_sql(table, partitioned=partitioned),
    )


def _not_logged(table: TableName, key: Sequence[str]) -> TableLayout:
    return TableLayout(
        None,
        f"its replica identity does not hold the key ({', '.join(key)})",
        f"ALTER TABLE {qualified(table)} REPLICA IDENTITY FULL, or DEFAULT if the key is the primary key",
    )
