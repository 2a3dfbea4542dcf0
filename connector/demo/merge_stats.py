"""The demo's view of merges: their figures, and the state of all tables at the last cut.

Imports `merge` only inside functions that need it: the agent works without Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from connector.config import Config
from connector.errors import OperatorError
from connector.landing.format import CDC, REQUESTS
from connector.landing.manifest_store import newest_manifest
from connector.store.protocol import Store


class MergeStats:
    """Follows the output of `deltatide merge --json`: one report per line.

    `merges` counts merges that recorded a cut; `cut` is the manifest of the last one; `requested` counts rows
    that merges asked the agent to dump again because no event had carried all of their columns.
    """

    def __init__(self, log: Path, store: Store) -> None:
        self.merges = 0
        self.cut: int | None = None
        self.requested = 0
        self._log, self._store = log, store
        self._read = 0
        self._last: dict[str, Any] = {}

    def refresh(self) -> None:
        """Read the reports printed since the last call; `OperatorError` if a table failed to merge."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            complete = log.read().rpartition(b"\n")[0]
        self._read += len(complete)
        for line in complete.splitlines():
            if report := _report(line):
                self._add(report)

    def _add(self, report: dict[str, Any]) -> None:
        self._last = report
        for table in report["tables"]:
            if table["error"]:
                raise OperatorError(f"{table['table']} was not merged: {table['error']}", hint=table["hint"])
            self.requested += table["requested"]
        if report["recorded"]:
            self.merges += 1
            self.cut = report["manifest"]

    def is_settled(self, position: int) -> bool:
        """Return whether the last merge left an exact cut at or after a position, with nothing pending.

        Pending: dumps of rows that lack a column, whether requested, running, or completed after that merge.
        """
        last = self._last
        if not last or not last["exact"] or last["position"] < position:
            return False
        waiting = next(iter(self._store.list(f"{REQUESTS}/")), None)
        newest = newest_manifest(self._store)
        return (
            waiting is None
            and newest is not None
            and all(not dump.active and (dump.finished_in or 0) <= last["manifest"] for dump in newest.dumps)
        )


def _report(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    report = json.loads(line)
    return report if isinstance(report, dict) and "tables" in report else None


def last_cut(spark: Any, config: Config) -> tuple[int, Mapping[str, Any]]:
    """Return the last exact cut's manifest, and each table's frame at that cut, by ``namespace.name``."""
    from merge import as_of, cuts

    row = cuts(spark, config).where("exact").orderBy("manifest", ascending=False).first()
    if row is None:
        raise OperatorError("no exact cut was recorded")
    return row["manifest"], as_of(spark, config, row["manifest"])


def write_in_key_order(frame: Any, key: tuple[str, ...], folder: Path) -> list[str]:
    """Write a table to Parquet files whose names and rows are in key order.

    Returns the table's columns without `_cdc`.
    """
    rows = frame.drop(CDC)
    rows.orderBy(*(f"`{column}`" for column in key)).write.mode("overwrite").parquet(str(folder))
    columns: list[str] = rows.columns
    return columns
