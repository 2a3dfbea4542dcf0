"""A backlog when the agent starts: bulk catch-up, compared with pg_recvlogical over TCP."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.capture.log import WaitingLog
from tests.bench.report import Measurement, at_least, at_most

ROUNDS = 2


def backlog(log: WaitingLog) -> Iterator[Measurement]:
    """Measure the default agent, which reads in bulk while it is far behind."""
    reference, runs = 0.0, []
    for _ in range(ROUNDS):
        reference = max(reference, log.decode(log.database.urls["TCP"]))
        runs.append(log.catch_up())
    ours = max(run.changes_per_second for run in runs)
    yield Measurement(
        log.name("backlog, bulk, TCP"), ours, "changes/s", log.database.decoder, reference, at_least(1.2)
    )
    cpu = min(run.cpu_seconds_per_million for run in runs)
    yield Measurement(log.name("backlog, CPU"), cpu, "s/million changes", target=at_most(8))
    peak = max(run.peak_mb for run in runs)
    yield Measurement(log.name("backlog, peak memory"), peak, "MB", target=at_most(300))
