"""The Spark side: landed files become Delta tables. README.md beside this file tells the rules.

For notebooks and jobs::

    from connector.config import load
    from merge import cuts, live, merge_once

    config = load("shop.toml")
    merge_once(spark, config)
    live(spark, config, "public.orders").show()
    cuts(spark, config).show()
"""

from __future__ import annotations

from merge.frontier import cuts
from merge.job import MergeReport, TableProgress, TableReport, merge_every, merge_once
from merge.live import as_of, live
from merge.session import local_session, open_session

__all__ = [
    "MergeReport",
    "TableProgress",
    "TableReport",
    "as_of",
    "cuts",
    "live",
    "local_session",
    "merge_every",
    "merge_once",
    "open_session",
]
