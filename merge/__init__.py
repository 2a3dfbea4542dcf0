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

from merge.control_table import cuts
from merge.differences import recorded_differences
from merge.explanation import Explanation, explain, explain_row
from merge.job import merge_once
from merge.queries import as_of, live
from merge.rebuilding import rebuild
from merge.report import MergeReport, TableProgress, TableReport
from merge.schedule import merge_every
from merge.session import local_session, open_session
from merge.verification import TableVerification, Verification, verify

__all__ = [
    "Explanation",
    "MergeReport",
    "TableProgress",
    "TableReport",
    "TableVerification",
    "Verification",
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
    "verify",
]
