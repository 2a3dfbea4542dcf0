"""Chooses a sample of a table to compare: ranges of its key.

Ranges, not rows: the database reads them by its index, and both sides are restricted to the same ranges, so
ghosts in them are found, too (`merge.proof.key_ranges`). All ranges are equally likely. While the lake's keys
don't change, the same seed chooses the same ranges.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.checksums.definition import without_ranges
from connector.config import Config
from connector.errors import DeltatideError, TableError
from connector.schema import TableName, fold
from merge.lake.retry import TABLE_ERRORS, first_line
from merge.proof.checksums import RANGE_ROWS
from merge.proof.comparison import KeyEnds, SampleOf
from merge.proof.key_ranges import KeyRange, key_ranges
from merge.proof.opened_lake import OpenedLake, opened
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WANTED_RANGES = 20
"""Ranges of a sample, if possible: enough to spread over the table."""

MOST_RANGES = 200
"""Ranges of a sample, at most: one condition has all of them, and manifests list them until read."""

LEAST_ROWS = 256
"""Rows of a range, at least: a smaller range costs the source no less."""


@dataclass(frozen=True)
class Sample:
    """The part of a table to compare: these ranges of its key. None: all of it, for the reason `whole`.

    `error`: why no sample can be chosen.
    """

    table: TableName
    ranges: list[KeyEnds] | None = None
    of: SampleOf | None = None
    whole: str | None = None
    error: str | None = None
    hint: str | None = None


def choose_samples(
    spark: SparkSession, config: Config, tables: Collection[TableName], share: float, seed: int
) -> list[Sample]:
    """Choose a sample of each table by its rows in the newest cut. `share`: more than 0, at most 1."""
    with opened(spark, config) as lake:
        return [_sample(lake, table, share, seed) for table in tables]


def _sample(lake: OpenedLake, table: TableName, share: float, seed: int) -> Sample:
    try:
        key, type_, why = range_key(lake, table)
        if why is not None:
            return Sample(table, whole=why)
        rows = lake.rows(table).select(F.col(quoted(key)))
        ranges = key_ranges(rows, key, type_, rows_per_range(rows.count(), share))
    except TABLE_ERRORS as error:
        hint = error.hint if isinstance(error, DeltatideError) else None
        return Sample(table, error=first_line(error), hint=hint)
    chosen = choose(ranges, share, f"{seed} {table}")
    of = SampleOf(len(chosen), len(ranges), sum(range_.rows for range_ in ranges))
    return Sample(table, [range_.ends for range_ in chosen], of)


def range_key(lake: OpenedLake, table: TableName) -> tuple[str, str, str | None]:
    """Return the first key column's name and type in the lake, and why it can't be divided, or None."""
    layout = lake.layout(table)
    if not layout.key:
        raise TableError(table, "has no key: only its changes are captured")
    first = layout.column(layout.key[0])
    fields = {fold(f.name): f for f in lake.rows(table).schema.fields}
    field = fields.get(fold(first.name))
    if why := without_ranges(layout):
        return first.name, first.type, why
    if field is None or field.dataType.simpleString() != first.type:
        return first.name, first.type, f"the lake has key column {first.name} with another type"
    return field.name, first.type, None


def rows_per_range(rows: int, share: float) -> int:
    """Return the most rows that a range should have, to sample a table of this many rows. Pure."""
    sampled = rows * share
    return math.ceil(max(LEAST_ROWS, min(RANGE_ROWS, sampled / WANTED_RANGES), sampled / MOST_RANGES))


def choose(ranges: Sequence[KeyRange], share: float, seed: str) -> list[KeyRange]:
    """Choose a share of the ranges, at least one, keeping their order. Pure."""
    count = min(len(ranges), max(1, math.ceil(share * len(ranges) - 1e-9)))
    return [ranges[n] for n in sorted(random.Random(seed).sample(range(len(ranges)), count))]
