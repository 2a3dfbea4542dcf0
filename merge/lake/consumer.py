"""Records in the landing zone how far this lake is, so that nothing it has yet to read is removed.

And which of its tables are rebuilt with other columns, masks or rows.

Order: the lake registers before its first merge plans anything, and writes each record after the cut that it
names. A crash or a failed write leaves an older record, which only keeps more files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from connector.config import Config
from connector.errors import ConfigurationError
from connector.landing.consumers import MOST_FAILING, Consumer, rebuilt_path, record_path, slot_due
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.lake.control_table import Frontier, Frontiers, cuts_table
from merge.lake.retry import SPARK_ERRORS, first_line, reason_without_values
from merge.lake.target import lake_name
from merge.landing_zone import LandingZone
from merge.views.view import VIEWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def register(spark: SparkSession, landing: LandingZone, config: Config) -> None:
    """Register this lake as a consumer that has read nothing yet; its table of cuts must exist."""
    if not _write(spark, landing, config, "lake", 0):
        log.warning("files that it has yet to read may be removed; it would then request full dumps")


@dataclass(frozen=True)
class Recorded:
    """A cut as it was recorded: its manifest, the tables' frontiers, and shapes without a place (`refused`).

    `turned_exact`: the one before was not exact.
    """

    manifest: Manifest
    frontiers: Mapping[TableName, Frontier]
    refused: Mapping[TableName, ConfigurationError]
    turned_exact: bool

    @property
    def failing(self) -> dict[TableName, str]:
        """Return why tables and shapes did not merge; a table and a shape may have the same name."""
        found = {table: reason_without_values(at.error) for table, at in self.frontiers.items() if at.error}
        for name, error in self.refused.items():
            found[name] = "; ".join(filter(None, [str(error), found.get(name)]))
        return found

    @property
    def reached(self) -> int:
        """Return the manifest that all tables have reached."""
        waiting = {table for table, state in self.manifest.tables.items() if state.schema_id is None}
        landed = [at.manifest for table, at in self.frontiers.items() if table not in waiting]
        return min(landed, default=self.manifest.number)

    def is_news(self, before: Frontiers) -> bool:
        """Return whether other tables failed in one of the last cuts.

        Looks at all of them: of two jobs, the one that appends its cut first may write its record last.
        """
        if self.refused or self.turned_exact:
            return True
        own = {table for table, at in self.frontiers.items() if at.error}
        views = {name for each in before.failed for name in each if name.namespace == VIEWS}
        return any(each - (views - self.frontiers.keys()) != own for each in before.failed or [frozenset()])


def record_progress(
    spark: SparkSession, landing: LandingZone, config: Config, before: Frontiers, cut: Recorded
) -> None:
    """Record the manifest that all tables have reached, and which of them fail.

    Skips that if the last cut was shortly before, and the same tables failed then.
    """
    last = (before.merged_at, before.newest) if before.merged_at is not None else None
    now = datetime.now(timezone.utc) + before.ahead
    slot = slot_due(last, (now, cut.manifest.number), news=cut.is_news(before))
    if slot is not None:
        _write(spark, landing, config, slot, cut.reached, cut.failing)


def record_rebuilt(landing: LandingZone, table: TableName, table_id: str, generation: int) -> None:
    """Record that a Delta table is about to get rows with other columns, masks or conditions.

    Live views look there: those that are older than these rows no longer show the table.
    """
    try:
        said = json.dumps({"table": str(table), "generation": generation})
        landing.write(rebuilt_path(table_id, generation), said, overwrite=True)
    except SPARK_ERRORS as error:
        log.warning(
            "register live views of %s again: that it is rebuilt was not recorded in the landing zone: %s",
            table,
            first_line(error),
        )


def _write(
    spark: SparkSession,
    landing: LandingZone,
    config: Config,
    slot: str,
    manifest: int,
    failing: Mapping[TableName, str] | None = None,
) -> bool:
    """Write a record, which names the first tables of many that fail; return whether that worked."""
    named = dict(sorted((str(table), reason) for table, reason in (failing or {}).items())[:MOST_FAILING])
    more = len(failing or {}) - len(named)
    lake, now = lake_name(config), datetime.now(timezone.utc)
    try:
        (cuts,) = spark.sql(f"DESCRIBE DETAIL {cuts_table(config)}").collect()
        consumer = Consumer(
            id=cuts["id"], lake=lake, manifest=manifest, at=now, failing=named, failing_unnamed=more
        )
        landing.write(record_path(consumer.id, slot), consumer.model_dump_json(), overwrite=True)
    except SPARK_ERRORS as error:
        log.warning(
            "the progress of lake %s was not recorded in the landing zone: %s", lake, first_line(error)
        )
        return False
    return True
