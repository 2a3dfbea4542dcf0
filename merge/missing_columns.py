"""Requests columns that no event has carried yet: a dump of the keys of just those rows.

A request is an object in the landing zone, so a Spark job needs no connection to the agent. It is written
before the merge that leaves the columns missing: a crash in between leaves one request too many, never too
few. Each request is a separate object: two jobs that ask for the same rows don't write to the same path.

Rows that are still incomplete while no request is waiting and no dump is running are requested again.
Otherwise a dump that missed them would leave them incomplete forever.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from connector.landing.format import REQUEST_BYTES, request_path
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.apply import KEEPS, NEWER
from merge.keys import TargetLayout, fit_a_request, key_text, same_rows
from merge.landing_zone import LandingZone
from merge.plan import TablePlan
from merge.report import TableReport
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

log = logging.getLogger(__name__)

KEYS_PER_REQUEST = 2_000
BYTES_PER_REQUEST = REQUEST_BYTES // 2
"""Of keys. The agent rejects a larger request than `REQUEST_BYTES`; it would be the same after each merge."""

MOST_KEYS = 50_000
"""Beyond this many keys, dumping the whole table costs the source less."""


@dataclass(frozen=True)
class IncompleteRows:
    """How many rows a merge leaves without a column, and how many of these it requests, at most."""

    left: int = 0
    requested: int = 0


INCOMPLETE = "size(_cdc.missing) > 0 AND _cdc.op <> 'delete'"
"""Rows of a target that still lack a column."""


def request_missing(
    landing: LandingZone,
    plan: TablePlan,
    source: DataFrame,
    layout: TargetLayout,
    target: DataFrame | None,
) -> IncompleteRows:
    """Request a dump of the keys that `source` will leave with missing columns.

    Skips rows that a running dump will bring or that were incomplete before, and all rows of a quarantined
    table, which only a full dump releases.
    """
    left = incomplete(source, layout, target, plan.dumping).orderBy("asked", ascending=False)
    found = left.limit(MOST_KEYS + 1).collect()
    asked = [row for row in found if row["asked"]] if plan.state.state == "captured" else []
    _request_keys(landing, plan.table, asked, layout)
    return IncompleteRows(len(found), len(asked))


def request_missing_again(
    landing: LandingZone, table: TableName, target: DataFrame, layout: TargetLayout
) -> int:
    """Request again all rows of a target that lack a column; return their number."""
    keys = _keys("", layout)
    found = target.where(INCOMPLETE).select(*keys).limit(MOST_KEYS + 1).collect()
    _request_keys(landing, table, found, layout)
    return len(found)


def count_incomplete(target: DataFrame) -> int:
    """Count the rows of a target that lack a column."""
    return target.where(INCOMPLETE).count()


def _request_keys(landing: LandingZone, table: TableName, found: Sequence[Row], layout: TargetLayout) -> None:
    keys = [[row[f"k{n}"] for n in range(len(layout.key))] for row in found]
    fit = fit_a_request(keys) and all(_bytes(key) <= BYTES_PER_REQUEST for key in keys)
    if len(keys) > MOST_KEYS or not fit:
        write_request(landing, [table])
        return
    for batch in _batches(sorted(keys)):
        write_request(landing, [table], batch)


def _batches(keys: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    """Split keys into what one request each names."""
    batch: list[list[str]] = []
    size = 0
    for key in keys:
        size += _bytes(key)
        if batch and (len(batch) == KEYS_PER_REQUEST or size > BYTES_PER_REQUEST):
            yield batch
            batch, size = [], _bytes(key)
        batch.append(key)
    if batch:
        yield batch


def _bytes(key: list[str]) -> int:
    """Return the bytes of a key in a request, in which a character may take twelve."""
    return len(json.dumps(key))


def incomplete(source: DataFrame, layout: TargetLayout, target: DataFrame | None, dumping: bool) -> DataFrame:
    """Return the keys that `source` leaves incomplete, as the source's text in columns ``k0``, ``k1``….

    `asked`: whether to request the row. Rows that were incomplete before have been requested; a running dump
    brings all others, except rows recreated without a column.
    """
    lacking = source.where("size(_cdc.missing) > 0 AND _cdc.op <> 'delete'").alias("source")
    anew = "source._cdc.since IS NOT NULL" if dumping else "true"
    if target is None:
        return lacking.select(*_keys("source.", layout), F.expr(anew).alias("asked"))
    known = target.alias("target").select(
        *[F.col(f"target.{quoted(name)}") for name in layout.key], F.col("target._cdc").alias("_cdc")
    )
    joined = lacking.join(known.alias("target"), same_rows(layout), "left")
    still = "size(array_intersect(source._cdc.missing, coalesce(target._cdc.missing, array()))) > 0"
    before = "coalesce(size(target._cdc.missing), 0) > 0 AND target._cdc.op <> 'delete'"
    left = (
        f"CASE WHEN target._cdc IS NULL THEN true WHEN NOT {NEWER} THEN {before}"
        f" WHEN {KEEPS} THEN {still} ELSE true END"
    )
    asked = (
        f"CASE WHEN target._cdc IS NULL THEN {anew} WHEN NOT {NEWER} THEN false"
        f" WHEN {KEEPS} THEN false ELSE {anew} END"
    )
    return joined.where(left).select(*_keys("source.", layout), F.expr(asked).alias("asked"))


def _keys(prefix: str, layout: TargetLayout) -> list[Column]:
    return [
        F.coalesce(
            F.col(f"{prefix}_cdc.raw")[n], key_text(F.col(f"{prefix}{quoted(n)}"), layout.columns[n])
        ).alias(f"k{i}")
        for i, n in enumerate(layout.key)
    ]


def has_pending_request(landing: LandingZone) -> bool:
    """Return whether a request of this kind is waiting for the agent."""
    return landing.exists(request_path("missing-*").replace("%2A", "*"))


def request_lost(
    landing: LandingZone,
    manifest: Manifest,
    reports: list[TableReport],
    source_of: Callable[[TableName], TableName],
    *,
    asks: bool,
) -> list[TableReport]:
    """Request full dumps of tables that need files the landing zone no longer has, unless one is due.

    Return the reports with hints that say so. `source_of`: the source table of a reported one.
    """
    dumping = {dump.table for dump in manifest.dumps if dump.active and dump.kind == "full"}
    lost = list(dict.fromkeys(source_of(r.table) for r in reports if r.lacks_history))
    lost = [t for t in lost if manifest.tables[t].key]
    lost = [t for t in lost if t not in dumping and manifest.tables[t].state == "captured"]
    if lost and asks:
        if not has_pending_request(landing):
            write_request(landing, lost)
            tables = ", ".join(map(str, lost))
            log.warning("files that these tables need are gone; requested full dumps: %s", tables)
        dumping.update(lost)
    hint = "a full dump was requested; the next merge after it builds the table"
    dumped = [r.lacks_history and source_of(r.table) in dumping for r in reports]
    return [replace(r, hint=hint) if d else r for r, d in zip(reports, dumped, strict=True)]


def write_request(
    landing: LandingZone, tables: Sequence[TableName], keys: Sequence[Sequence[str]] | None = None
) -> str:
    """Write one request (`keys`: of rows of one table; None: for whole tables) and return its id."""
    request_id = f"missing-{uuid.uuid4().hex[:16]}"
    body: dict[str, Any] = {
        "id": request_id,
        "kind": "dump",
        "tables": [str(table) for table in tables],
        "reason": "missing",
        "requested_at": datetime.now(timezone.utc).isoformat(),
    }
    if keys is not None:
        body["keys"] = [list(key) for key in keys]
    landing.write(request_path(request_id), json.dumps(body))
    return request_id
