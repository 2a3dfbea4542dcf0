"""Records in the landing zone how far this lake is, so that nothing it has yet to read is removed.

Order: the lake registers before its first merge plans anything, and a record is written after the cut that it
tells of. A crash, or a record that fails, leaves an older one, which only holds more.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timezone

from connector.config import Config
from connector.landing.consumers import Consumer, record_path, slot_due
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.control_table import Frontier, Frontiers
from merge.landing_zone import LandingZone
from merge.retry import SPARK_ERRORS, first_line
from merge.target import lake_name

log = logging.getLogger(__name__)


def register(landing: LandingZone, config: Config) -> None:
    """Register this lake as a consumer that has read nothing yet."""
    _write(landing, config, "lake", 0)


def record_progress(
    landing: LandingZone,
    config: Config,
    manifest: Manifest,
    before: Frontiers,
    frontiers: Mapping[TableName, Frontier],
) -> None:
    """Record up to which manifest all tables are merged, unless the last cut was shortly before."""
    slot = slot_due(before.merged_at, datetime.now(timezone.utc) + before.ahead)
    landed = [frontiers[table].manifest for table, state in manifest.tables.items() if state.schema_id]
    if slot is not None:
        _write(landing, config, slot, min(landed, default=manifest.number))


def _write(landing: LandingZone, config: Config, slot: str, manifest: int) -> None:
    lake = lake_name(config)
    consumer = Consumer(lake=lake, manifest=manifest, at=datetime.now(timezone.utc))
    try:
        landing.write(record_path(lake, slot), consumer.model_dump_json(), overwrite=True)
    except SPARK_ERRORS as error:
        log.warning(
            "how far %s is was not recorded in the landing zone, which keeps more for it: %s",
            lake,
            first_line(error),
        )
