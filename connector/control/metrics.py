"""Metrics of one agent for Prometheus, from its memory: a scrape never waits for the store.

A standby reports only its state, its version and its store's errors; the active agent reports the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from connector import __version__
from connector.control.live_agent import STATES, LiveAgent
from connector.figures.progress import BOUNDS, Durations, Progress
from connector.landing.dump_progress import STATES as DUMP_STATES
from connector.landing.dump_progress import progress_of
from connector.landing.manifest import Manifest
from connector.landing.verified import DAY, Verified

CONTENT_TYPE = CONTENT_TYPE_LATEST

MIB = 1 << 20


class Metrics(Collector):
    """The metrics of an agent, in a registry of their own."""

    def __init__(self, live: LiveAgent) -> None:
        self._live = live
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Return all metrics as of now, in Prometheus's text format."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Return nothing: otherwise registering would collect the metrics."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Collect the metrics as of now."""
        yield from _agent(self._live)
        progress, newest = self._live.progress, self._live.newest_known()
        if progress is not None:
            yield from _verified(self._live.verified_known())
            yield from _progress(progress)
            yield from _load(progress)
        if progress is not None and newest is not None:
            yield from _lag(progress, newest)
            yield from _landed(newest)
            yield from _dumps(newest, progress.dumps_held_back)


def _gauge(name: str, text: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield GaugeMetricFamily(name, text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def _agent(live: LiveAgent) -> Iterator[Metric]:
    info = GaugeMetricFamily("deltatide_info", "This agent.", labels=["source", "kind", "version"])
    info.add_metric([live.config.source.name, live.config.source.kind, __version__], 1)
    yield info
    states = {state: float(state == live.state) for state in STATES}
    yield _gauges("deltatide_state", "1 for the agent's current state.", "state", states)
    errors = CounterMetricFamily(
        "deltatide_store_errors", "Calls of the landing zone's store that failed.", labels=["operation"]
    )
    for operation, count in live.store_errors.copy().items():
        errors.add_metric([operation], count)
    yield errors
    lease = live.lease_held()
    yield from _gauge("deltatide_lease_held", "Whether this agent holds the lease.", float(lease is not None))
    if lease is not None:
        until = lease.until.timestamp()
        yield from _gauge("deltatide_lease_expiry_timestamp_seconds", "When it ends, unrenewed.", until)
        yield from _gauge("deltatide_lease_term", "The number of this tenure.", lease.term)


def _progress(progress: Progress) -> Iterator[Metric]:
    rows = CounterMetricFamily("deltatide_rows", "Committed events.", labels=["table", "op"])
    for (table, operation), count in progress.rows.items():
        rows.add_metric([str(table), operation], count)
    yield rows
    yield CounterMetricFamily("deltatide_manifests", "Manifests committed.", value=progress.manifests)
    yield CounterMetricFamily(
        "deltatide_reconnects",
        "Interruptions after which the log was opened again.",
        value=progress.reconnects,
    )
    yield _histogram("deltatide_flush_duration_seconds", "Decoding and landing log.", progress.flushes)
    yield _histogram("deltatide_chunk_duration_seconds", "Reading and landing a chunk.", progress.chunks)
    yield _histogram("deltatide_commit_duration_seconds", "Committing a manifest.", progress.commits)


def _histogram(name: str, text: str, durations: Durations) -> Metric:
    counts = map(float, durations.cumulative())
    buckets = list(zip([*map(str, BOUNDS), "+Inf"], counts, strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=durations.seconds)


def _load(progress: Progress) -> Iterator[Metric]:
    load = dict(progress.load)
    retained = load.pop("retained_log_mib", None)
    if retained is not None:
        text = "Log that the source keeps for the agent, as last measured."
        yield from _gauge("deltatide_retained_log_bytes", text, retained * MIB)
    yield _gauges("deltatide_source_load", "As last measured, by the names of limits.", "figure", load)


def _lag(progress: Progress, newest: Manifest) -> Iterator[Metric]:
    seconds = progress.lag.seconds(newest)
    yield from _gauge("deltatide_lag_seconds", "The possible age of changes that have not landed.", seconds)
    yield from _gauge("deltatide_lag_bytes", "Log that has not landed.", progress.lag.bytes)


def _landed(newest: Manifest) -> Iterator[Metric]:
    yield from _gauge("deltatide_manifest_number", "The newest manifest.", newest.number)
    at = newest.committed_at.timestamp()
    yield from _gauge("deltatide_manifest_commit_timestamp_seconds", "When it was committed.", at)
    yield from _gauge("deltatide_exact", "Whether its cut is exact.", newest.exact)
    yield from _gauge("deltatide_gaps", "Gaps on record.", len(newest.gaps))
    found_at = max((gap.found_at.timestamp() for gap in newest.gaps), default=None)
    yield from _gauge("deltatide_last_gap_timestamp_seconds", "When the last gap was found.", found_at)
    states = Counter(table.state for table in newest.tables.values())
    counts = {state: float(states[state]) for state in ("captured", "quarantined")}
    yield _gauges("deltatide_tables", "Tables by state.", "state", counts)
    quarantined = {str(n): 1.0 for n, table in newest.tables.items() if table.state == "quarantined"}
    yield _gauges("deltatide_table_quarantined", "Each quarantined table.", "table", quarantined)


def _verified(records: list[Verified]) -> Iterator[Metric]:
    """Collect what was verified of lakes; of two with one name, the one whose last run began later."""
    never = datetime.min.replace(tzinfo=timezone.utc)
    lakes = {each.lake: each for each in sorted(records, key=lambda each: each.began_at or never)}
    if not lakes:
        return
    since = datetime.now(timezone.utc) - DAY
    shares = {name: each.share_since(since) or 0.0 for name, each in lakes.items()}
    yield _gauges(
        "deltatide_verified_share", "Of the rows, verified in the last day, 0 to 1.", "lake", shares
    )
    oldest = {name: at.timestamp() for name, each in lakes.items() if (at := each.oldest()) is not None}
    text = "When the range verified longest ago was verified, once all were."
    yield _gauges("deltatide_verified_oldest_timestamp_seconds", text, "lake", oldest)
    tables = {name: float(len(each.never())) for name, each in lakes.items()}
    text = "Tables with rows that were never verified."
    yield _gauges("deltatide_never_verified_tables", text, "lake", tables)
    text = "Keys that differed when they were last compared."
    family = GaugeMetricFamily("deltatide_differing_keys", text, labels=["lake", "table"])
    for name, each in lakes.items():
        differing = each.differing()
        for table in each.tables:
            family.add_metric([name, str(table)], differing.get(table, 0))
    yield family


def _dumps(newest: Manifest, held_back: str | None) -> Iterator[Metric]:
    known = [(dump, progress_of(dump, held_back, newest.dumps)) for dump in newest.dumps]
    states = Counter(progress.state for _, progress in known)
    counts = {state: float(states[state]) for state in (*DUMP_STATES.values(), "paused")}
    yield _gauges("deltatide_dumps", "Dumps that the newest manifest lists, by state.", "state", counts)
    yield from _gauge("deltatide_dumps_held_back", "Whether dumps are held back.", held_back is not None)
    labels = ["dump", "table"]
    rows = GaugeMetricFamily("deltatide_dump_rows", "Rows read by an unfinished dump.", labels=labels)
    share = GaugeMetricFamily("deltatide_dump_share", "Its share of the table, 0 to 1.", labels=labels)
    for dump, progress in known:
        if dump.active:
            rows.add_metric([dump.id, str(dump.table)], dump.rows)
            if progress.share is not None:
                share.add_metric([dump.id, str(dump.table)], progress.share)
    yield rows
    yield share
