"""The Spark side: landed files become Delta tables. README.md beside this file states the rules.

For notebooks and jobs::

    from connector.config import load
    from merge import cuts, live, merge_once

    config = load("shop.toml")
    merge_once(spark, config)
    live(spark, config, "public.orders").show()
    cuts(spark, config).show()
"""

from __future__ import annotations

from merge.job import merge_once
from merge.lake.control_table import cuts
from merge.proof.comparison import TableVerification
from merge.proof.differences import recorded_differences
from merge.proof.explanation import Explanation, explain, explain_row
from merge.proof.lake_sums import LakeSums
from merge.proof.rebuilding import rebuild
from merge.proof.verification import Verification, verify
from merge.queries import as_of, live
from merge.reading.live_views import register
from merge.report import MergeReport, TableProgress, TableReport, ViewReport
from merge.schedule import merge_every
from merge.spark.session import local_session, open_session
from merge.views.listing import ViewState, refresh_views, view_states

__all__ = [
    "Explanation",
    "LakeSums",
    "MergeReport",
    "TableProgress",
    "TableReport",
    "TableVerification",
    "Verification",
    "ViewReport",
    "ViewState",
    "as_of",
    "cuts",
    "explain",
    "explain_row",
    "live",
    "local_session",
    "merge_every",
    "merge_once",
    "open_session",
    "rebuild",
    "recorded_differences",
    "refresh_views",
    "register",
    "verify",
    "view_states",
]
