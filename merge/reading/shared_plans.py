"""What the parts of a live view's plan share: what one task has planned, and the rows that were made of it.

Spark runs what two parts of a plan have in common once, if it is an exchange with the same columns in both.
The optimizer leaves out columns that a part does not need, so each of these takes all. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.landing.format import CDC
from merge.reading.pending import OLDEST
from merge.reconcile import position_of
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Sent:
    """What a task has planned (`STATE`), as one row that is sent to all others."""

    row: DataFrame

    @classmethod
    def of(cls, planned: DataFrame) -> Sent:
        """Gather the rows of one partition, in all of which the oldest position is the same.

        They are grouped by it: of two aggregates without a group, Spark 4.2 makes a scalar subquery, which
        would wait for those that it reads.
        """
        part = F.struct("oldest", "state")
        parts = planned.select(_oldest().alias("oldest"), "state").groupBy("oldest")
        return cls(parts.agg(F.collect_list(part).alias("parts")).select("parts"))

    def states(self, one_row: DataFrame) -> DataFrame:
        """Return the rows again, in the partition of `one_row`."""
        states = F.transform("parts", lambda part: part["state"])
        return one_row.crossJoin(F.broadcast(self.row)).select(F.explode(states).alias("state"))

    def not_older(self, frame: DataFrame) -> DataFrame:
        """Leave out the rows of a Delta table from before the oldest position."""
        # Of `parts[0]`, the optimizer would send this field alone.
        return _not_older(frame, self.row, F.element_at("planned.parts", 1)["oldest"])


def not_older(frame: DataFrame, planned: DataFrame) -> DataFrame:
    """Leave out the rows of a Delta table from before the oldest position; `planned`: rows of `STATE`."""
    return _not_older(frame, planned.select(_oldest().alias("oldest")), F.col("planned.oldest"))


def not_older_than(frame: DataFrame, oldest: Column) -> DataFrame:
    """Leave out the rows of a Delta table from before the oldest position, a scalar."""
    return frame.where(F.coalesce(position_of(F.col(CDC)) >= oldest, F.lit(False)))


def _not_older(frame: DataFrame, planned: DataFrame, oldest: Column) -> DataFrame:
    # Of a bare comparison, the optimizer infers a filter, which would go below the exchange.
    is_not_older = F.coalesce(position_of(F.col(f"target.{CDC}")) >= oldest, F.lit(False))
    return frame.alias("target").join(F.broadcast(planned.alias("planned")), is_not_older, "left_semi")


def _oldest() -> Column:
    return F.from_json(F.get_json_object("state", "$.oldest"), OLDEST, {"mode": "FAILFAST"})


def whole(frame: DataFrame) -> DataFrame:
    """Keep the optimizer from leaving columns out where they are not needed.

    The parts of a plan that need some columns then share what those compute that need all. It does not look
    into what happens to the elements of an array.
    """
    rows = F.transform(F.array(F.struct(*map(F.col, map(quoted, frame.columns)))), lambda row: row)
    return frame.select(F.get(rows, F.lit(0)).alias("row")).select("row.*")
