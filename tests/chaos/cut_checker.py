"""Compares every exact cut that a lake records with what it must hold, by Delta's time travel.

Cuts are read from the control table as they are recorded, and the tables at the versions that they name, all
with delta-rs, which shares no code with Spark. A cut's `counters` tell which transactions of each writer it
holds; from these follows every row of every table (`writers.ExpectedState`).

For each exact cut: the balances sum to zero over both tables, no counter is lower than at the cut before, and
every row is what the writers' transactions up to there make it. Nor does it lack a transaction that was known
to be committed before the last one that it says it has. Whatever is not so, and whatever can't be read, is a
difference. The other shapes of some tables are compared with these rows (`shape_checker`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltalake.exceptions import TableNotFoundError

from tests.chaos.lake_reader import LakeReader, rows_of
from tests.chaos.shape_checker import Change, ShapeChecker, Version
from tests.chaos.writers import COLUMNS, KEYS, Journal, Row
from tests.support.background import Background

CONTROL_TABLE = "_deltatide/cuts"
SHOWN = 20

CHANGE = ("_cdc['epoch']", "_cdc['lsn']", "_cdc['seq']", "_cdc['op']", "_cdc['unchanged']")
VERSION = (
    "_valid_from['epoch']", "_valid_from['lsn']", "_valid_from['seq']", "_valid_from['seen']",
    "_valid_to['epoch']", "_valid_to['lsn']", "_valid_to['seq']",
)  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """A row of the control table: each table's Delta id and version, by its qualified name."""

    manifest: int
    exact: bool
    merged_at: Any
    tables: Mapping[str, Mapping[str, Any]]
    source_committed_at: datetime | None


class CutChecker(Background):
    """Checks the cuts of a lake as they come, in a thread of its own.

    `shaped`: the tables that have all shapes. `recorded`, `exact` and `checked` count cuts; `rows` those
    compared, `events` the changes and versions; `differences` all that was wrong, of which `first` describes
    a few.
    """

    def __init__(
        self, lake: LakeReader, namespace: str, journal: Journal, shaped: Iterable[str] = ()
    ) -> None:
        super().__init__("cut checker")
        self.recorded = self.exact = self.checked = self.rows = self.events = self.differences = 0
        self.first: list[str] = []
        self.newest_exact = 0
        self._lake, self._namespace = lake, namespace
        self._journal, self._expected = journal, journal.expected_state()
        self._writers = tuple(journal.last)
        self._counters: dict[int, int] = {}
        self._read: set[str] = set()
        self._seen: set[tuple[Any, ...]] = set()
        self._known: dict[str, tuple[tuple[Any, Any], list[Row]]] = {}
        self._shapes = [ShapeChecker(table) for table in shaped]

    def work(self) -> None:
        """Check cuts; before it ends, also those recorded by the time of `stop`."""
        while True:
            ends = self.stopping.is_set()
            self.check_new()
            if ends:
                return
            self.stopping.wait(0.5)

    def check_new(self) -> None:
        """Check the exact cuts recorded since the last time, in the order of their manifests."""
        try:
            cuts = self._new_cuts()
        except Exception as error:
            self._differs(f"the control table can't be read: {type(error).__name__}: {error}")
            return
        self.recorded += len(cuts)
        for cut in sorted(cuts, key=lambda c: (c.manifest, c.merged_at)):
            if cut.exact:
                self.exact += 1
                self._check(cut)

    def _new_cuts(self) -> list[Cut]:
        """Read the files that were appended to the control table since the last time."""
        try:
            uris = self._lake.table(CONTROL_TABLE).file_uris()
        except TableNotFoundError:
            return []
        new = [uri for uri in uris if uri not in self._read]
        self._read.update(new)
        cuts = []
        for row in (row for uri in new for row in self._lake.file(uri)):
            tables = dict(row["tables"])
            cut = Cut(row["manifest"], row["exact"], row["merged_at"], tables, row["source_committed_at"])
            identity = (cut.manifest, cut.merged_at)
            if identity not in self._seen:  # upkeep may have joined files
                self._seen.add(identity)
                cuts.append(cut)
        return cuts

    def _check(self, cut: Cut) -> None:
        before = self.differences
        try:
            rows = {table: self._rows_at(cut, table, columns) for table, columns in COLUMNS.items()}
            self._check_rows(cut, rows)
            for shapes in self._shapes:
                self._check_shapes(cut, shapes)
        except Exception as error:
            self._differs(f"cut {cut.manifest}: {type(error).__name__}: {error}")
        self.checked += 1
        if self.differences == before:
            self.newest_exact = max(self.newest_exact, cut.manifest)

    def _rows_at(self, cut: Cut, table: str, columns: tuple[str, ...]) -> list[Row]:
        place = cut.tables[f"{self._namespace}.{table}"]
        version = place["id"], place["version"]
        known = self._known.get(table)
        if known is None or known[0] != version:
            known = self._known[table] = version, self._read_rows(table, columns, *version)
        return known[1]

    def _read_rows(self, table: str, columns: tuple[str, ...], id_: str, version: int) -> list[Row]:
        delta = self._lake.table(f"{self._namespace}/{table}", version)
        if str(delta.metadata().id) != id_:
            raise AssertionError(f"{table} at version {version} is another table than {id_}")
        return rows_of(delta, *columns)

    def _check_shapes(self, cut: Cut, shapes: ShapeChecker) -> None:
        """Compare a table's changes and versions with its rows, of which `_expected` has those of the cut."""
        columns = COLUMNS[shapes.table]
        found = self._rows_at(cut, f"{shapes.table}_changes", (*CHANGE, *columns))
        changes = [Change(row[:3], row[3], tuple(row[4] or ()), row[5:]) for row in found]
        found = self._rows_at(cut, f"{shapes.table}_history", (*VERSION, *columns))
        versions = [
            Version(row[:3], row[3], row[4:7] if row[4] is not None else None, row[7:]) for row in found
        ]
        self.events += len(changes) + len(versions)
        for text in shapes.wrong(changes, versions, self._expected.tables[shapes.table]):
            self._differs(f"cut {cut.manifest}: {shapes.table}: {text}")

    def _check_rows(self, cut: Cut, rows: Mapping[str, list[Row]]) -> None:
        name = f"cut {cut.manifest}"
        total = sum(row[-1] for table in ("accounts", "vaults") for row in rows[table])
        if total:
            self._differs(f"{name}: the balances sum to {total}")
        counters: dict[int, int] = {row[0]: row[1] for row in rows["counters"]}
        lower = {c: (was, counters.get(c)) for c, was in self._counters.items() if counters.get(c, -1) < was}
        if lower:
            self._differs(f"{name}: counters are lower than before: {lower}")
            return
        self._counters = counters
        numbers = {writer: counters[writer] for writer in self._writers}
        if lacking := self._journal.lacking(numbers, cut.source_committed_at):
            self._differs(f"{name}: is older than it says: {lacking}")
        self._expected.advance(numbers)
        for table, found in rows.items():
            self._compare(f"{name}: {table}", self._expected.tables[table], found, KEYS[table])

    def _compare(self, name: str, expected: Mapping[Any, Row], found: list[Row], width: int) -> None:
        self.rows += len(found)
        once = len(found) == len(expected) == len({row[:width] for row in found})
        if once and all(expected.get(row[:width]) == row for row in found):
            return
        want, have = Counter(expected.values()), Counter(found)
        for what, rows in (("lacks", want - have), ("has", have - want)):
            for row in sorted(rows.elements(), key=repr):
                self._differs(f"{name} {what} {_short(row)}")

    def _differs(self, text: str) -> None:
        self.differences += 1
        if len(self.first) < SHOWN:
            self.first.append(text)


def wait_checked(checker: CutChecker, manifest: int) -> Callable[[], bool]:
    """Return a condition: an exact cut of this manifest or a later one was checked."""
    return lambda: checker.newest_exact >= manifest


def _short(row: Row) -> str:
    return ", ".join(text if len(text := repr(v)) < 40 else f"{text[:20]}...({len(text)})" for v in row)
