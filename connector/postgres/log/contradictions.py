"""Finds tables that the log describes differently from the last check of the catalog. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from connector.logged_table import LoggedTable, Positions
from connector.postgres.catalog_fingerprint import (
    FORMER,
    LOGGED,
    UNIDENTIFIED,
    UNLIKE_ALL,
    WITHHELD,
    relations_of,
)
from connector.schema import TableName


def contradicted_by_log(
    known: Mapping[TableName, str], logged: Sequence[LoggedTable], repaired_upto: Positions
) -> dict[TableName, str]:
    """Return new fingerprints for tables that the log describes differently; they match no later check.

    Only the log shows what was done and undone between two checks. (A renamed schema leaves no trace in its
    tables, nor does a table that was attached and detached.) A table whose rows appear there under another
    name: its changes did not land. Rows of another table, or of a partition that no check has seen, under a
    table's name: they landed, and may be gone since. Rows of a partition of which the log had less than their
    keys: old ones may be left. A former name, whatever is known of it: the catalog has shown that its table
    has another one by now. A table's log from before `repaired_upto` does not count: a dump sees its effect,
    or it was of a check's report. Tables that are contradicted again are returned again: a check that began
    meanwhile is no older than what was known of them.
    """
    relations = {table: relations_of(fingerprint) for table, fingerprint in known.items()}
    owners: dict[str, set[TableName]] = {}
    for table, (whole, parts) in relations.items():
        for relation in {whole, *parts}:
            owners.setdefault(relation, set()).add(table)
    found: dict[TableName, str] = {}

    def mark(table: TableName, relation: str, what: str) -> None:
        found[table] = _marked(found.get(table, known[table]), relation, what)

    for each in logged:
        relation, named = str(each.id), each.root or each.table
        if each.withheld:
            if named in relations:
                mark(named, relation, WITHHELD)
            continue
        for table in () if each.dumped else owners.get(relation, set()) - {named}:
            if each.lsn < repaired_upto(table, each):
                continue
            if each.former:
                mark(table, relation, FORMER)
            elif relations[table].whole == relation:
                words = found.get(table, known[table]).split(" ")
                found[table] = " ".join(_NAMED.sub(rf"\1{UNLIKE_ALL}", word) for word in words)
            elif each.root is not None:
                mark(table, relation, LOGGED)
        if named not in relations or each.lsn < repaired_upto(named, each):
            continue
        whole, parts = relations[named]
        if each.former or relation not in (parts if each.root else (whole,)):
            mark(named, relation, LOGGED)
        elif not each.identified:
            mark(named, relation, UNIDENTIFIED)
    return found


def _marked(fingerprint: str, relation: str, what: str) -> str:
    mark = f"{relation}:{what}:"
    return fingerprint if mark in fingerprint.split(" ") else f"{fingerprint} {mark}"


_NAMED = re.compile(r"^(n\d+)\.\d+$")
