"""What a merge prints, and its figures in a file for Prometheus.

One merge prints a line for each table; repeated ones print a line for each merge. A table or view that fails
is shown with its reason on the standard error: of repeated merges once for each reason, or again if it failed
otherwise in between; each line names those that fail.

The file is as Prometheus's node exporter reads it with its textfile collector. A merge has no HTTP side: it
may be a job that ends. The file is replaced as a whole after each merge. A merge that never ends shows by its
age, ``deltatide_merge_end_timestamp_seconds``.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from connector.cli.printing import escape, out, show_error, when
from connector.errors import ConfigurationError, PreconditionError

log = logging.getLogger(__name__)

NOT_EXACT = "a dump is under way, rows are missing a column, or a table is quarantined or failed"
STOPPED = "stopped before all tables were merged"

MOST_NAMES = 3


def _now() -> datetime:
    return datetime.now(timezone.utc)


def print_json(done: Any) -> None:
    """Print one object, with `at`, the time of its end."""
    print(
        json.dumps({"at": _now().isoformat(timespec="milliseconds"), **done.to_dict()}, default=str),
        flush=True,
    )


def print_tables(done: Any) -> None:
    """Print a line for each table with events, and one for the cut."""
    for table in done.tables:
        _print_table(table)
    for view in done.views:
        print_view(view)
    if not done.recorded:
        out.print(_nothing(done))
        return
    exact = f", not exact: {STOPPED}" if done.stopped else f", not yet exact ({NOT_EXACT})"
    out.print(f"cut at manifest {done.manifest}{'' if done.exact else exact}, {done.seconds:.1f} s")


@dataclass
class Lines:
    """Prints one line for each of repeated merges; `_shown`: the errors of the last one."""

    _shown: dict[str, str] = field(default_factory=dict)

    def print(self, done: Any) -> None:
        """Print a merge, after the errors that the one before it did not have."""
        failed = {str(each.table): each for each in (*done.tables, *done.views) if each.error is not None}
        errors = {name: _error(each) for name, each in failed.items()}
        for name, each in failed.items():
            if self._shown.get(name) != errors[name]:
                _print_failed(each)
        self._shown = errors
        out.print(f"{when(_now())}  {escape(line(done))}")


def line(done: Any) -> str:
    """Say in one line what a merge did."""
    tables = [table for table in done.tables if table.rows and table.error is None]
    views = [view for view in done.views if view.refreshed and view.error is None]
    failed = [str(each.table) for each in (*done.tables, *done.views) if each.error is not None]
    facts = [f"cut at manifest {done.manifest}" if done.recorded else _nothing(done)]
    if done.stopped:
        facts.append(STOPPED)
    elif done.manifest and not done.exact:
        facts.append("not exact")
    if tables:
        facts.append(f"{_counted(len(tables), 'table')}, {_counted(sum(t.rows for t in tables), 'event')}")
    if views:
        facts.append(_counted(len(views), "view"))
    facts.append(f"{done.seconds:.1f} s")
    if failed:
        more = f" and {len(failed) - MOST_NAMES} more" if failed[MOST_NAMES:] else ""
        facts.append(f"failed: {', '.join(failed[:MOST_NAMES])}{more}")
    return ", ".join(facts)


def _nothing(done: Any) -> str:
    return f"nothing new after manifest {done.manifest}" if done.manifest else "nothing has landed yet"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _error(failed: Any) -> str:
    return str(failed.printed or failed.error)


def _print_failed(failed: Any) -> None:
    show_error("failed", _error(failed), failed.hint, of=str(failed.table))


def print_view(view: Any) -> None:
    """Print a view's refresh or failure, if any."""
    if view.error is not None:
        _print_failed(view)
    elif view.refreshed:
        how = "refreshed incrementally" if view.incremental else "refreshed"
        out.print(f"{escape(str(view.table))}: {how}, {view.rows:,} rows, {view.seconds:.1f} s")


def _print_table(table: Any) -> None:
    if table.error is not None:
        _print_failed(table)
    elif table.rows:
        out.print(f"{escape(str(table.table))}: {', '.join(_figures(table))}, {table.seconds:.1f} s")


def _figures(table: Any) -> Iterator[str]:
    yield f"{table.rows:,} events"
    counts = ("inserted", "updated", "deleted")
    shown = [f"{getattr(table, c):,} {c}" for c in counts if getattr(table, c) is not None]
    yield from shown or ["merged"]


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
