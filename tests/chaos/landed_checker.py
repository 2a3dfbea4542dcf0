"""Compares what has landed up to each manifest with what it must hold, in plain Python, without Spark.

A manifest that is exact says: its files and those of all before it are the source at its position, all tables
together. So the landing files are resolved as they come (`tests.support.landing.cuts`), and the rows that a
manifest changes, or should have, are compared with what the writers' transactions up to there make them, of
which none may be missing that was known to be committed before the last one.
Lakes record a cut now and then; this checks every flush of every agent amid the faults.

A row lacks a column where its key changed and the log left out a long value: a merge has those rows dumped
again. Such a column is not compared here.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from connector.landing.manifest import Manifest
from connector.landing.manifest_store import read_retained
from connector.schema import TableName
from connector.store.protocol import Store
from tests.chaos.writers import COLUMNS, KEYS, Journal, Key
from tests.support.landing.cuts import Table, add_manifest

SHOWN = 20


class LandedChecker:
    """Takes manifests in their order. `checked` counts the exact ones, `rows` those compared.

    `differences` counts all that was wrong, of which `first` describes a few. `gave_up`: why nothing is
    checked any more, because `deltatide maintain` was faster.
    """

    def __init__(self, store: Store, namespace: str, journal: Journal) -> None:
        self.checked = self.rows = self.differences = 0
        self.first: list[str] = []
        self.gave_up = ""
        self._store, self._namespace = store, namespace
        self._writers = tuple(journal.last)
        self._journal, self._expected = journal, journal.expected_state()
        self._tables: dict[TableName, Table] = defaultdict(Table)
        self._due = {(table, key) for table, rows in self._expected.tables.items() for key in rows}

    def add(self, manifest: Manifest) -> None:
        """Add what a manifest commits; if it is exact, compare what has changed since the last exact one."""
        if self.gave_up:
            return
        try:
            touched = add_manifest(self._store, manifest, self._tables)
        except AssertionError as error:
            retained = read_retained(self._store)
            if retained is None or retained.first <= manifest.number:
                raise
            self.gave_up = f"manifest {manifest.number} was removed before it was checked: {error}"
            return
        self._due |= {(name.name, key) for name, keys in touched.items() for key in keys}
        if manifest.exact:
            self._check(f"manifest {manifest.number}", manifest.source_committed_at)

    def _check(self, name: str, at: datetime | None) -> None:
        self.checked += 1
        numbers = {}
        for writer in self._writers:
            row, _ = self._table("counters").row((writer,))
            numbers[writer] = row["value"] if row else 0
        if lacking := self._journal.lacking(numbers, at):
            self._differs(f"{name}: is older than it says: {lacking}")
        self._due |= self._expected.advance(numbers)
        self.rows += len(self._due)
        for table, key in sorted(self._due, key=repr):
            self._compare(name, table, key)
        self._due.clear()

    def _compare(self, name: str, table: str, key: Key) -> None:
        landed = self._table(table)
        row, decided = landed.row(key)
        if decided is not None:  # what lies before can't win any more
            landed.events[key] = [event for event in landed.events[key] if event.position >= decided]
        expected = self._expected.tables[table].get(key)
        wanted = None if expected is None else dict(zip(COLUMNS[table], expected, strict=True))
        if row is None or wanted is None:
            same = row is None and wanted is None
        else:
            same = all(wanted[column] == value for column, value in row.items())
            same = same and wanted.keys() - row.keys() <= ({"body"} if table == "notes" else set())
        if not same:
            self._differs(f"{name}: {table} {key[: KEYS[table]]} has landed as {row}, is {wanted}")

    def _differs(self, text: str) -> None:
        self.differences += 1
        if len(self.first) < SHOWN:
            self.first.append(text)

    def _table(self, table: str) -> Table:
        return self._tables[TableName(self._namespace, table)]
