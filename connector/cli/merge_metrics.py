"""Figures of the last merge in a file for Prometheus, as its node exporter's textfile collector reads them.

A merge has no HTTP side: it may be a job that ends. The file is replaced as a whole after each merge. A merge
that never ends shows by its age, ``deltatide_merge_end_timestamp_seconds``.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from connector.errors import ConfigurationError, PreconditionError

log = logging.getLogger(__name__)

OF_MERGE: Mapping[str, tuple[str, Callable[[Any], float]]] = {
    "deltatide_merge_manifest": ("The manifest that was merged.", lambda done: done.manifest),
    "deltatide_merge_exact": ("Whether its cut is exact.", lambda done: done.exact),
    "deltatide_merge_duration_seconds": ("How long the merge took.", lambda done: done.seconds),
    "deltatide_merge_failed_tables": ("Tables that could not be merged.", lambda done: len(done.failed)),
    "deltatide_merge_failed_views": (
        "Views that could not be refreshed.",
        lambda done: sum(view.error is not None for view in done.views),
    ),
}
OF_TABLE: Mapping[str, tuple[str, Callable[[Any], float]]] = {
    "deltatide_merge_table_events": ("Events merged.", lambda table: table.rows),
    "deltatide_merge_table_failed": ("Whether its merge failed.", lambda table: table.error is not None),
    "deltatide_merge_table_missing_rows": (
        "Rows with columns that no event has carried.",
        lambda table: table.missing or 0,
    ),
}
ENDED = "deltatide_merge_end_timestamp_seconds"


class MetricsFile:
    """A file with the figures of a source's last merge."""

    def __init__(self, path: Path) -> None:
        """Check that the file can be written: `ConfigurationError` without its folder."""
        if importlib.util.find_spec("prometheus_client") is None:
            raise PreconditionError(
                "--metrics-file needs the package prometheus-client", hint="pip install prometheus-client"
            )
        if not path.parent.is_dir():
            raise ConfigurationError(
                f"--metrics-file: {path.parent} is not a folder",
                hint="create it, or name a file in the folder of the textfile collector",
            )
        self._path = path

    def write(self, done: Any, now: Callable[[], float] = time.time) -> None:
        """Replace the file by the figures of a `merge.report.MergeReport`.

        If that fails, log an error: a full disk here must not end merges elsewhere.
        """
        from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

        registry = CollectorRegistry()
        for name, (text, figure) in OF_MERGE.items():
            Gauge(name, text, ["source"], registry=registry).labels(done.source).set(figure(done))
        for name, (text, figure) in OF_TABLE.items():
            gauge = Gauge(name, text, ["source", "table"], registry=registry)
            for table in done.tables:
                gauge.labels(done.source, str(table.table)).set(figure(table))
        Gauge(ENDED, "When the merge ended.", ["source"], registry=registry).labels(done.source).set(now())
        try:
            write_to_textfile(str(self._path), registry)
        except OSError as error:
            log.error("--metrics-file: can't write %s: %s", self._path, error)
