"""Reports what a merge did, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from connector.schema import TableName
from merge.lake.control_table import AS_LANDED, Built, Frontier


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

    `id` and `version`: the Delta table and its version with the state after `manifest`. `missing`: how many
    of its rows lack a column that no event has carried; `requested`: how many of these this merge requested.
    `built`: with which columns, masks and rows that version was built.
    `lacks_history`: the landing zone no longer has what it must read, so it needs a full dump. `error`: as
    the lake records it, which may quote a row; `printed`: without values of rows.
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
    built: Built | None = None
    printed: str | None = None

    @classmethod
    def at(cls, table: TableName, at: Frontier, **more: Any) -> TableReport:
        """Report on a table that is at a frontier, without its error."""
        return cls(table, at.manifest, at.version, id=at.id, missing=at.missing, built=at.built, **more)

    @property
    def frontier(self) -> Frontier:
        """Return the table's frontier."""
        return Frontier(self.manifest, self.version, self.id, self.missing, self.error, self.built)


STOPPED = "the merge was stopped before it was refreshed"
"""The error of a view that was not refreshed because the merge was asked to stop."""


@dataclass(frozen=True)
class ViewReport:
    """What a merge did to one view: its frontier afterward, and if `refreshed` how many `rows` were written.

    `incremental`: only rows that may have changed were; `full_because`: why that was not done. With an
    `error` the view is unchanged: its rows don't belong to this merge's cut. `printed`: as for a table.
    """

    table: TableName
    manifest: int
    version: int | None
    id: str | None = None
    refreshed: bool = False
    incremental: bool = False
    full_because: str | None = None
    rows: int | None = None
    seconds: float = 0.0
    error: str | None = None
    hint: str | None = None
    printed: str | None = None

    @property
    def frontier(self) -> Frontier:
        """Return the view's frontier."""
        built = None if self.version is None else AS_LANDED
        return Frontier(self.manifest, self.version, self.id, 0, self.error, built)


@dataclass(frozen=True)
class MergeReport:
    """What a merge did. `manifest`: the one it merged up to; 0 when nothing has landed yet.

    `exact` is about tables only. `stopped`: it was asked to stop before all tables were merged and all views
    refreshed.
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
    views: list[ViewReport] = field(default_factory=list)

    @property
    def failed(self) -> list[TableReport]:
        """List the tables that could not be merged."""
        return [table for table in self.tables if table.error is not None]

    @property
    def exit_code(self) -> int:
        """Return 1 if a table or a view failed, else 0."""
        return 1 if self.failed or any(view.error is not None for view in self.views) else 0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON, with errors as they are printed."""
        return asdict(self) | {
            "tables": [_to_dict(table) for table in self.tables],
            "views": [_to_dict(view) for view in self.views],
        }


def _to_dict(report: TableReport | ViewReport) -> dict[str, Any]:
    values = asdict(report) | {"table": str(report.table), "error": report.printed or report.error}
    for internal in ("printed", "built"):
        values.pop(internal, None)
    return values
