"""Doubts about a check of the catalog: tables that the log describes differently. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from connector.logged_table import LoggedTable, Positions
from connector.postgres.catalog_fingerprint import LOGGED, UNIDENTIFIED, UNLIKE_ALL, parse
from connector.schema import TableName


def contradicted_by_log(
    known: Mapping[TableName, str], logged: Sequence[LoggedTable], repaired_upto: Positions
) -> dict[TableName, str]:
    """Return new fingerprints for tables that the log describes differently; they match no later check.

    Only the log shows what was done and undone between two checks. (A renamed schema leaves no trace in its
    tables, nor does a table that was attached and detached.) A table whose rows appear there under another
    name: its changes did not land. Rows of another table, or of a partition that no check has seen, under a
    table's name: they landed, and may be gone since. Rows of a partition of
    which the log had less than their keys: old ones may be left. A table's log from before `repaired_upto`
    does not count: a dump sees its effect.
    """
    parsed = {table: parse(fingerprint) for table, fingerprint in known.items()}
    owners: dict[str, set[TableName]] = {}
    for table, its in parsed.items():
        for relation in {its.words.get("r", ""), *its.leaves}:
            owners.setdefault(relation, set()).add(table)
    found = dict(known)
    for each in logged:
        relation, named = str(each.id), each.root or each.table
        for table in () if each.dumped else owners.get(relation, set()) - {named}:
            if each.lsn < repaired_upto(table):
                continue
            if parsed[table].words.get("r") == relation:
                words = found[table].split(" ")
                found[table] = " ".join(_NAMED.sub(rf"\1{UNLIKE_ALL}", word) for word in words)
            elif each.root is not None:
                found[table] += f" {relation}:{LOGGED}:"
        own = parsed[named].owns(relation, whole=each.root is None) if named in parsed else True
        if not (own and each.identified) and each.lsn >= repaired_upto(named):
            found[named] += f" {relation}:{LOGGED if each.identified else UNIDENTIFIED}:"
    return {table: fingerprint for table, fingerprint in found.items() if fingerprint != known[table]}


_NAMED = re.compile(r"^(n\d+)\.\d+$")
