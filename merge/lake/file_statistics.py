"""Reads how a Delta table's rows are spread over files, from metadata alone, without opening data files.

The statistics of a version are in the checksum that Delta writes beside each commit (one small JSON object):
files by size, and rows that deletion vectors mark as deleted. DESCRIBE DETAIL lacks both. Live rows come
from the counts in the log. Where there is no checksum (another writer's commit, a catalog that hides the
log), only the number of files and their bytes are known, and deleted rows count as none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from merge.lake.retry import SPARK_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

SMALL_BYTES = 32 << 20
"""Files smaller than this are compacted; one of the size classes in which Delta counts files."""

TARGET_BYTES = 128 << 20
"""Large enough to read fast, and small enough that files still hold narrow ranges of keys
(`merge.key_pruning`) and that a rewrite of one is cheap."""

SMALL_FILES = 16
"""Compaction starts at this many small files and leaves few, so each byte is rewritten only a few times."""

DELETED_SHARE = 0.2
"""A purge rewrites all files with deleted rows, so it starts at this share of all rows."""

DELETED_ROWS = 10_000
"""Fewer deleted rows don't slow down a scan."""


@dataclass(frozen=True)
class FileStatistics:
    """Files and bytes of one version, in all and below `SMALL_BYTES`; live and deleted rows."""

    files: int
    bytes: int
    small_files: int
    small_bytes: int
    rows: int = 0
    deleted_rows: int = 0

    def why_optimize(self) -> str | None:
        """Return why small files should be compacted; None if they needn't be."""
        if self.small_files < SMALL_FILES:
            return None
        return (
            f"{self.small_files:,} of {self.files:,} files are smaller than {SMALL_BYTES >> 20} MiB,"
            f" {self.small_bytes / self.small_files / 2**20:.1f} MiB on average"
        )

    def why_purge(self) -> str | None:
        """Return why deleted rows should be removed from the files; None if they needn't be."""
        stored = self.rows + self.deleted_rows
        if self.deleted_rows < DELETED_ROWS or self.deleted_rows < DELETED_SHARE * stored:
            return None
        return f"{self.deleted_rows:,} of {stored:,} rows in its files are deleted"


def read_statistics(spark: SparkSession, name: str, detail: Row, version: int) -> FileStatistics:
    """Read the statistics of a Delta table's `version`; `detail`: its DESCRIBE DETAIL."""
    statistics = statistics_of(detail["numFiles"], detail["sizeInBytes"], _checksum(spark, detail, version))
    if statistics.deleted_rows < DELETED_ROWS:
        return statistics
    # Delta adds up the counts in its log.
    rows = spark.sql(f"SELECT count(*) AS rows FROM {name}").collect()[0]["rows"]
    return replace(statistics, rows=rows)


def _checksum(spark: SparkSession, detail: Row, version: int) -> dict[str, Any]:
    """Return Delta's checksum of a version; empty if it can't be read."""
    try:
        found = spark.read.text(f"{detail['location']}/_delta_log/{version:020}.crc").collect()
        return dict(json.loads(found[0]["value"])) if found else {}
    except SPARK_ERRORS:
        return {}


def statistics_of(files: int, size: int, checksum: dict[str, Any]) -> FileStatistics:
    """Return the statistics in a checksum; without one, assume files of equal size. Pure."""
    deleted, histogram = checksum.get("numDeletedRecordsOpt") or 0, checksum.get("fileSizeHistogram")
    if not histogram:
        small = files if size < files * SMALL_BYTES else 0
        return FileStatistics(files, size, small, size if small else 0, deleted_rows=deleted)
    below = [i for i, least in enumerate(histogram["sortedBinBoundaries"]) if least < SMALL_BYTES]
    small, small_bytes = (sum(histogram[name][i] for i in below) for name in ("fileCounts", "totalBytes"))
    return FileStatistics(checksum["numFiles"], checksum["tableSizeBytes"], small, small_bytes, 0, deleted)
