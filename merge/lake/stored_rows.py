"""Reads Delta tables as they are, whatever anyone has cached of them.

Spark takes cached rows for any part of a query, of any session of the application, that has the cached plan.
A Delta table's plan names no version unless the query does. If another application merges meanwhile, cached
rows are older than the table: a truncate would leave the rows that it does not know of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.landing.format import CDC
from connector.schema import fold
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

METADATA = "_metadata"


def stored_rows(spark: SparkSession, name: str) -> DataFrame:
    """Return a Delta table, by its name in SQL, as it is when the frame is evaluated; for use at once.

    It is `uncached` only if somebody has cached it by now: that costs something for each row.
    """
    frame = spark.table(name)
    return uncached(frame) if spark.catalog.isCached(name) else frame


def uncached(frame: DataFrame) -> DataFrame:
    """Return a Delta table as it is, though somebody has cached it in some state, or will.

    This plan has a column that nobody caches, and that the optimizer leaves out; but Spark's scan then fills
    all of `METADATA`. Before Spark 4, a table with such a column of its own is returned as it is.
    """
    path = _path(frame)
    if path is None:
        return frame
    unlike = frame.select("*", F.concat(F.lit("deltatide:"), path).alias(f"{CDC}.path"))
    return unlike.select(*map(quoted, frame.columns))


def _path(frame: DataFrame) -> Column | None:
    if hasattr(frame, "metadataColumn"):
        return frame.metadataColumn(METADATA)["file_path"]
    return None if METADATA in map(fold, frame.columns) else F.col(METADATA)["file_path"]
