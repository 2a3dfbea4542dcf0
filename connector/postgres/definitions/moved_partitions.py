"""Partitions that came or went on PostgreSQL 14, which goes on with their rows as it did before.

Before release 15, the server process that sends the log decides at the first change of a table whether to
publish its rows, and as whose. If it becomes a partition afterward, its rows stay unpublished; if it is
detached, they go on as its root's. Only a process that begins to send the log after that decides anew.

Invariant: a fingerprint that shows other partitions than the known one is handed over only when the log is
about to be opened at or after the position of a check that showed just these. What was left out until then,
or came under a wrong name, precedes the check that hands it over, so the dump that this leads to repairs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from connector.postgres.catalog_fingerprint import parse, parts_changed
from connector.schema import TableName
from connector.source import CatalogSnapshot

DECIDES_ANEW = 150000
"""The first version whose process decides anew once a table has changed."""


class MovedPartitions:
    """The tables whose partitions differ from what is known, and which were first seen at what position.

    `opens_at`: where the log is about to be opened; None: it is open.
    """

    def __init__(self) -> None:
        self.opens_at: int | None = None
        self._seen: dict[TableName, tuple[Mapping[str, str], int]] = {}

    def hold_back(
        self, found: CatalogSnapshot, known: Mapping[TableName, str], read_upto: int
    ) -> CatalogSnapshot:
        """Return a check without the tables for which it is too early to act on it.

        While the log is open, those whose change has been read are `unprepared`: it is opened anew for them.
        """
        opens_at = self.opens_at
        moved = {t: now for t, now in found.tables.items() if t in known and parts_changed(known[t], now)}
        self._seen = {table: self._first_seen(table, now, found.position) for table, now in moved.items()}
        upto = read_upto if opens_at is None else opens_at
        due = {table for table, (_, position) in self._seen.items() if position <= upto}
        tables = {table: now for table, now in found.tables.items() if table not in moved or table in due}
        reopening = due if opens_at is None else frozenset[TableName]()
        return replace(found, tables=tables, unprepared=found.unprepared | reopening)

    def _first_seen(self, table: TableName, now: str, position: int) -> tuple[Mapping[str, str], int]:
        files = {leaf: file for leaf, (file, _) in parse(now).leaves.items()}
        before = self._seen.get(table)
        return before if before is not None and before[0] == files else (files, position)
