"""The demonstration's view of merges: the figures of those under way, and the last one with its cut.

Imports `merge` only where a function needs it, since the agent works without Spark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connector.config import Config
from connector.errors import OperatorError
from connector.landing import REQUESTS
from connector.store import Store, newest_manifest


class MergeWatch:
    """Follows the output of `deltatide merge --json`: a report on each line."""

    def __init__(self, log: Path) -> None:
        self.merges = 0
        self.cut: int | None = None
        self.requested = 0
        self._log = log
        self._read = 0

    def look(self) -> None:
        """Count the merges reported since the last look."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        complete = text.rpartition(b"\n")[0]
        self._read += len(complete)
        for line in complete.splitlines():
            if report := _report(line):
                self.add(report)

    def add(self, report: Mapping[str, Any]) -> None:
        """Count a merge by its report."""
        if report["recorded"]:
            self.merges += 1
            self.cut = report["manifest"]
            self.requested += sum(table["requested"] for table in report["tables"])


def _report(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    report = json.loads(line)
    return report if isinstance(report, dict) and "tables" in report else None


@dataclass(frozen=True)
class Cut:
    """One state of all tables: the manifest, and the Delta version of each table at it."""

    manifest: int
    versions: Mapping[str, int]


def merge_until_whole(
    spark: Any,
    config: Config,
    store: Store,
    position: int,
    on_merge: Callable[[Mapping[str, Any]], None],
    seconds: float,
) -> None:
    """Merge until a cut is exact, holds all up to a source position, and no row lacks a column any more.

    Rows that lack one are dumped again by the agent, which must be running. `OperatorError` when a table
    fails, or the limit of seconds is over.
    """
    from merge.job import merge_once

    limit = time.monotonic() + seconds
    while True:
        report = merge_once(spark, config)
        on_merge(report.to_dict())
        for table in report.failed:
            raise OperatorError(f"{table.table} could not be merged: {table.error}", hint=table.hint)
        whole = report.exact and report.position >= position
        if (
            whole
            and not any(table.requested for table in report.tables)
            and _is_settled(store, report.manifest)
        ):
            return
        if time.monotonic() > limit:
            raise OperatorError(
                f"no exact cut within {seconds:g} s, the last one is of manifest {report.manifest}"
            )
        time.sleep(0.5)


def _is_settled(store: Store, merged: int) -> bool:
    """Tell whether nobody waits for a dump, and no dump or chunk came after the merged manifest."""
    if any(True for _ in store.list(f"{REQUESTS}/")):
        return False
    newest = newest_manifest(store)
    return (
        newest is not None
        and newest.exact
        and (
            newest.number == merged
            or newest.dumps == []
            or all(dump.finished_in is not None and dump.finished_in <= merged for dump in newest.dumps)
        )
    )


def last_cut(spark: Any, config: Config) -> Cut:
    """Read the last cut from the control table."""
    from merge.frontier import cuts

    row = cuts(spark, config).orderBy("manifest", "merged_at", ascending=False).first()
    if row is None:
        raise OperatorError("no cut was recorded")
    return Cut(row["manifest"], {name: place["version"] for name, place in row["tables"].items()})


def write_in_key_order(
    spark: Any, config: Config, cut: Cut, table: str, key: tuple[str, ...], folder: Path
) -> list[str]:
    """Write a Delta table as of a cut to Parquet files whose names and rows are in key order.

    Gives the table's columns but for `_cdc`.
    """
    from merge.target import target_of

    name = target_of(config, table).name
    frame = spark.sql(f"SELECT * FROM {name} VERSION AS OF {cut.versions[table]}").drop("_cdc")
    frame.orderBy(*(f"`{column}`" for column in key)).write.mode("overwrite").parquet(str(folder))
    columns: list[str] = frame.columns
    return columns
