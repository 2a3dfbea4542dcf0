"""Refreshes of views over a large table after few changes: incremental, compared with full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from connector.config import Config, ViewConfig
from tests.bench.databases.database import Bench
from tests.bench.lake.landing import MeasuredZone
from tests.bench.report import Measurement
from tests.support.landing.landed import config_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, CHANGES = 3_000_000, 100
QUERIES = {
    "filtered rows": "SELECT id, customer, amount FROM measured WHERE status <> 'sent'",
    "groups": "SELECT customer, count(*) AS n, sum(amount) AS amount FROM measured GROUP BY customer",
}


def views(bench: Bench, spark: SparkSession, folder: Path) -> Iterator[Measurement]:
    """Measure a view of rows and one of groups; the last of two refreshes of each kind counts."""
    rows = bench.rows(ROWS)
    zone = MeasuredZone.create(folder / "landing", ["public.measured"])
    zone.dump(rows)
    config = config_of(str(folder / "landing"), str(folder / "lake"))
    named = {
        f"v{number}": ViewConfig(sql=sql, incremental=True) for number, sql in enumerate(QUERIES.values())
    }
    config = config.model_copy(update={"views": named})
    _refreshed(spark, config)
    keys = np.arange(0, rows, rows // CHANGES, dtype=np.int64)
    seconds = {}
    for _ in range(2):
        zone.change(keys)
        seconds = _refreshed(spark, config, incremental=True)
    full = _refreshed(spark, config, full=True)
    for number, what in enumerate(QUERIES):
        name = bench.name(f"incremental refresh of {what}, {CHANGES} changes in {rows:,} rows")
        yield Measurement(name, seconds[f"v{number}"], "s", "full refresh", full[f"v{number}"])


def _refreshed(
    spark: SparkSession, config: Config, *, incremental: bool = False, full: bool = False
) -> dict[str, float]:
    """Merge, or refresh in full; return the seconds of each view's refresh."""
    from merge import merge_once, refresh_views

    report = refresh_views(spark, config, full=True) if full else merge_once(spark, config)
    for view in report.views:
        if view.error or not view.refreshed or view.incremental != incremental:
            raise AssertionError(view)
    return {view.table.name: view.seconds for view in report.views}
