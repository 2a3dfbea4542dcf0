"""Reports what a merge did, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from connector.schema import TableName
from merge.control_table import Frontier


@dataclass(frozen=True)
class TableProgress:
    """Progress of one table's merge: `step` is waiting, reading, merging, done, failed, or unchanged."""

    table: TableName
    step: str
    rows: int = 0
    seconds: float = 0.0


Progress = Callable[[TableProgress], None]


@dataclass(frozen=True)
class TableReport:
    """What a merge did to one table. Counts that Delta does not report are None.

    `id` and `version` identify the Delta table and version with the state after `manifest`, in which
    `missing` rows lack a column that no event has carried. This merge asked the agent for `requested` of
    them. `lacks_history`: what it must read is no longer in the landing zone, so it needs a full dump.
    """

    table: TableName
    manifest: int
    version: int | None
    rows: int = 0
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    id: str | None = None
    missing: int | None = 0
    requested: int = 0
    seconds: float = 0.0
    error: str | None = None
    hint: str | None = None
    lacks_history: bool = False

    @property
    def frontier(self) -> Frontier:
        """Return the table's frontier."""
        return Frontier(self.manifest, self.version, self.id, self.missing, self.error)


@dataclass(frozen=True)
class MergeReport:
    """What a merge did. `manifest`: the one it merged up to; 0 when nothing has landed yet.

    `stopped`: it was asked to stop before it had merged all tables.
    """

    source: str
    manifest: int
    epoch: int = 0
    position: int = 0
    exact: bool = False
    recorded: bool = False
    seconds: float = 0.0
    tables: list[TableReport] = field(default_factory=list)
    stopped: bool = False

    @property
    def failed(self) -> list[TableReport]:
        """List the tables that could not be merged."""
        return [table for table in self.tables if table.error is not None]

    @property
    def exit_code(self) -> int:
        """Return 1 if a table failed, else 0."""
        return 1 if self.failed else 0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        tables = [asdict(table) | {"table": str(table.table)} for table in self.tables]
        return asdict(self) | {"tables": tables}
