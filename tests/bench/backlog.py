"""A backlog that waits when the agent starts: bulk catch-up, beside pg_recvlogical over TCP."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.log import WaitingLog
from tests.bench.report import Measurement, at_least, at_most

ROUNDS = 2


def backlog(log: WaitingLog) -> Iterator[Measurement]:
    """Measure the default agent, which reads in bulk while it is far behind."""
    url = log.database.url
    reference, runs = 0.0, []
    for _ in range(ROUNDS):
        reference = max(reference, log.receive(url))
        runs.append(log.catch_up(url))
    ours = max(run.changes_per_second for run in runs)
    yield Measurement("backlog, bulk, TCP", ours, "changes/s", "pg_recvlogical", reference, at_least(1.5))
    cpu = min(run.cpu_seconds_per_million for run in runs)
    yield Measurement("backlog, CPU", cpu, "s/million changes", target=at_most(8))
    peak = max(run.peak_mb for run in runs)
    yield Measurement("backlog, peak memory", peak, "MB", target=at_most(300))
