"""Builds DataFrames of rows that Python already has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def local_rows(
    spark: SparkSession, columns: Mapping[str, str], rows: Iterable[Sequence[int | str | None]]
) -> DataFrame:
    """Return rows as a DataFrame; `columns` maps names to types.

    `SparkSession.createDataFrame` would make a session of ours the process's active one, so the caller's
    next `SparkSession.getActiveSession` would return that.
    """
    values = json.dumps([dict(zip(columns, row, strict=True)) for row in rows])
    schema = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
    return spark.range(1).select(F.inline(F.from_json(F.lit(values), f"array<struct<{schema}>>")))
