"""What a view reads: tables and views at the versions of one cut, under their names in its query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from merge.lake.control_table import Frontier
from merge.lake.target import Target, TargetState
from merge.lake.widened import with_whole_filters
from merge.overlay import ALIVE
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Input:
    """A table or view at the version that a cut names; `target.shape` None: current rows.

    `state`: of its Delta table, without which a query's filter may miss rows of a widened column.
    """

    target: Target
    frontier: Frontier
    state: TargetState | None = None

    @property
    def version(self) -> int:
        """Return its version."""
        assert self.frontier.version is not None, "checked before"
        return self.frontier.version

    def at(self, version: int) -> Input:
        """Return the same Delta table at another version."""
        return replace(self, frontier=replace(self.frontier, version=version))

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return its rows, without those that are marked as deleted; for a session with `WIDENED`."""
        frame = self.target.at(spark, self.version)
        frame = frame if self.state is None else with_whole_filters(frame, self.state, decimals=False)
        return frame.where(ALIVE) if self.target.shape is None else frame


@contextmanager
def named(spark: SparkSession, frames: Mapping[str, DataFrame]) -> Iterator[None]:
    """Create temporary views with these names, and drop them at the end."""
    try:
        for name, rows in frames.items():
            rows.createOrReplaceTempView(quoted(name))
        yield
    finally:
        for name in frames:
            spark.catalog.dropTempView(name)  # unlike its creation, this takes names as they are
