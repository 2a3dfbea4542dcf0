"""Says how current live views are, within a task of a query: the rows of `_deltatide_status`.

Invariant: it opens no landing files. Whether the rows that a view shows are damaged is not looked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from connector.errors import GapError, TableError
from connector.landing.consumers import rebuilt_tables
from connector.landing.manifest import Manifest
from connector.position import format_position
from connector.reading.landed_manifests import LandedManifests
from connector.schema import TableName
from merge.plan import plan_past_holes
from merge.reading.pending import Batches, PendingTable, Source, explained

STATUS = (
    "`table` string, manifest bigint, position string, committed_at timestamp, age_seconds double,"
    " exact boolean, reason string"
)
_STATUS = pa.schema(
    [
        ("table", pa.string()),
        ("manifest", pa.int64()),
        ("position", pa.string()),
        ("committed_at", pa.timestamp("us", "UTC")),
        ("age_seconds", pa.float64()),
        ("exact", pa.bool_()),
        ("reason", pa.string()),
    ]
)

CUT = "id string, manifest bigint, missing bigint"

MAY_LACK = "rows may wait for a column (_cdc.missing)"


@dataclass(frozen=True)
class Status:
    """How current the views of some tables are.

    `refused`: why some of them have none. `pending`: what those that have one read of what has landed.
    """

    source: Source
    tables: tuple[TableName, ...]
    refused: Mapping[TableName, str] = field(default_factory=dict)
    pending: Mapping[TableName, PendingTable] = field(default_factory=dict)

    def rows(self, batches: Batches) -> Batches:
        """Return a row for each table as of a manifest, for `STATUS`; from rows with `manifest`, `merged`.

        `merged`: by table, what the newest cut names of it (`CUT`); null if there is no cut.
        """
        for batch in batches:
            for given in batch.to_pylist():
                with explained():
                    found = self._rows(given["manifest"], dict(given["merged"] or ()))
                yield pa.RecordBatch.from_pylist(found, schema=_STATUS)

    def _rows(self, number: int, merged: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        store = self.source.open()
        manifests, rebuilt = LandedManifests(store), rebuilt_tables(store)
        manifests.load(number, number)
        manifest = manifests.get(number)
        rows = []
        for table in self.tables:
            cut, pending = merged.get(str(table)), self.pending.get(table)
            reason = self.refused.get(table)
            if reason is None and pending is not None:
                reason = pending.why_refused(store, manifests, manifest, cut, rebuilt)
            reason = reason or _why_inexact(manifest, table)
            reason = reason or _why_incomplete(manifests, manifest, table, cut)
            rows.append(_status(manifest, table, reason))
        return rows


def _status(manifest: Manifest, table: TableName, reason: str | None) -> dict[str, Any]:
    age = datetime.now(timezone.utc) - manifest.committed_at
    return {
        "table": str(table),
        "manifest": manifest.number,
        "position": format_position(manifest.position, manifest.source.kind),
        "committed_at": manifest.committed_at,
        "age_seconds": max(age.total_seconds(), 0.0),
        "exact": reason is None,
        "reason": reason,
    }


def _why_inexact(manifest: Manifest, table: TableName) -> str | None:
    """Return why the table's rows as of a manifest are not the source's at its position, or None."""
    state = manifest.tables.get(table)
    if state is None:
        return "it is not captured"
    if state.state == "quarantined":
        return f"it is quarantined: {state.reason}"
    if not state.dumped:
        return "its full dump has not ended"
    waiting = (d for d in manifest.dumps_of(table) if d.active and d.reason in ("repair", "missing"))
    return next((f"a dump that repairs it has not ended: {dump.id}" for dump in waiting), None)


def _why_incomplete(
    manifests: LandedManifests, manifest: Manifest, table: TableName, cut: Mapping[str, Any] | None
) -> str | None:
    """Return why rows may lack a column that no event has carried, or None. Only the rows would show it."""
    merged = 0 if cut is None or cut["id"] is None else cut["manifest"]
    if merged and cut is not None and cut["missing"] != 0:
        return MAY_LACK
    if merged >= manifest.number:
        return None
    manifests.load(merged or manifests.first_kept, manifest.number)
    try:
        return MAY_LACK if plan_past_holes(table, manifests, merged, manifest.number).partial else None
    except (GapError, TableError) as error:
        return f"what has landed can't be read: {error}"
