"""Records in the landing zone how far this lake is, so that nothing it has yet to read is removed.

Order: the lake registers before its first merge plans anything, and writes each record after the cut that it
names. A crash or a failed write leaves an older record, which only keeps more files.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from connector.config import Config
from connector.landing.consumers import MOST_FAILING, Consumer, record_path, slot_due
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.lake.control_table import Frontier, Frontiers, cuts_table
from merge.lake.retry import SPARK_ERRORS, first_line, reason_without_values
from merge.lake.target import lake_name
from merge.landing_zone import LandingZone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def register(spark: SparkSession, landing: LandingZone, config: Config) -> None:
    """Register this lake as a consumer that has read nothing yet; its table of cuts must exist."""
    if not _write(spark, landing, config, "lake", 0):
        log.warning("so files it has yet to read may be removed; it would then request full dumps")


def record_progress(
    spark: SparkSession,
    landing: LandingZone,
    config: Config,
    manifest: Manifest,
    before: Frontiers,
    frontiers: Mapping[TableName, Frontier],
) -> None:
    """Record the manifest that all `frontiers` have reached, and which tables fail.

    Not if the last cut was shortly before, and the same tables failed then.
    """
    last = (before.merged_at, before.newest) if before.merged_at is not None else None
    failing = _failing(frontiers)
    news = failing.keys() != _failing(before.by_table).keys()
    slot = slot_due(last, (datetime.now(timezone.utc) + before.ahead, manifest.number), news=news)
    waiting = {table for table, state in manifest.tables.items() if state.schema_id is None}
    landed = [frontier.manifest for table, frontier in frontiers.items() if table not in waiting]
    if slot is not None:
        _write(spark, landing, config, slot, min(landed, default=manifest.number), failing)


def _failing(frontiers: Mapping[TableName, Frontier]) -> dict[str, str]:
    """Return the reasons of the tables that did not merge, by name; the first ones, if there are many."""
    found = {str(table): reason_without_values(f.error) for table, f in frontiers.items() if f.error}
    return dict(sorted(found.items())[:MOST_FAILING])


def _write(
    spark: SparkSession,
    landing: LandingZone,
    config: Config,
    slot: str,
    manifest: int,
    failing: Mapping[str, str] | None = None,
) -> bool:
    """Write a record; return whether that worked."""
    lake, now = lake_name(config), datetime.now(timezone.utc)
    try:
        (cuts,) = spark.sql(f"DESCRIBE DETAIL {cuts_table(config)}").collect()
        consumer = Consumer(id=cuts["id"], lake=lake, manifest=manifest, at=now, failing=dict(failing or {}))
        landing.write(record_path(consumer.id, slot), consumer.model_dump_json(), overwrite=True)
    except SPARK_ERRORS as error:
        log.warning("how far %s is was not recorded in the landing zone: %s", lake, first_line(error))
        return False
    return True
