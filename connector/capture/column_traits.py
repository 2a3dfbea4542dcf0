"""What the catalog shows of tables' columns, and the log does not, as of the log that has landed.

MariaDB's log lacks which columns are virtual, have a default, or end a row's version (`Traits`). The catalog
has them as they are now, while a log that is behind has rows from before a statement that changed them. So
each manifest records them with the table (`TableState.traits`), and the log is opened with what the newest
one has.

Invariants:

- What a manifest has of a table is true at its position; it has nothing of one that was redefined, or added,
  since the last check that counts. What a check has found counts once the log has been read past the check,
  and if the log has had no statement since the check began that redefines the table: such a statement holds
  its table while it changes catalog and log, so no check falls in between.
- A statement that redefines a table has its traits forgotten, by the manifest that has its log, until a later
  check counts.
- Traits that changed without such a statement changed behind the log, which may have been misread since then.
  So the table is dumped again, and the log opened anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from connector.landing.event_batch import TableRedefined
from connector.landing.manifest import Manifest, TableState
from connector.schema import KnownTables, Layouts, TableName, Traits
from connector.source import CatalogSnapshot


@dataclass
class ColumnTraits:
    """A check that found other traits, which don't count yet, and where the log last redefined each table."""

    _check: CatalogSnapshot | None = None
    _redefined: dict[TableName, int] = field(default_factory=dict)

    def forget(self) -> None:
        """Forget all: positions of different epochs can't be compared."""
        self._check = None
        self._redefined.clear()

    def note_check(self, found: CatalogSnapshot, states: Mapping[TableName, TableState]) -> None:
        """Take note of a check if it found other traits, unless an earlier one still waits for the log."""
        if self._check is None and (others := _others(found.traits, states)):
            self._check = replace(found, traits=others)

    def note_redefined(self, found: Iterable[TableRedefined]) -> None:
        """Take note of statements in the log that is about to be committed."""
        self._redefined.update((each.table, each.lsn) for each in found)

    def is_due(self, position: int) -> bool:
        """Return whether traits count once the log is at a position."""
        return self._check is not None and self._check.position <= position

    def take(self, position: int, states: Mapping[TableName, TableState]) -> dict[TableName, Traits]:
        """Return the traits to record, which count at a position and differ from the recorded ones."""
        check = self._check
        if check is None or not self.is_due(position):
            return {}
        self._check = None
        settled = {t: its for t, its in check.traits.items() if self._redefined.get(t, -1) < check.begun}
        return _others(settled, states)


def _others(
    traits: Mapping[TableName, Traits], states: Mapping[TableName, TableState]
) -> dict[TableName, Traits]:
    return {table: its for table, its in traits.items() if table in states and states[table].traits != its}


def known_tables(layouts: Layouts, newest: Manifest) -> KnownTables:
    """Return what is known at the newest manifest's position; `layouts`: the last ones that landed."""
    traits = {table: state.traits for table, state in newest.tables.items() if state.traits is not None}
    return KnownTables(layouts, traits)
