"""Capture by streaming, from the log to committed manifests, compared with the database's own log decoder."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.capture.log import WaitingLog
from tests.bench.report import Measurement, at_least, at_most

ROUNDS = 2


def capture(log: WaitingLog) -> Iterator[Measurement]:
    """Measure each transport; only TCP has a target."""
    runs = []
    for transport, url in log.database.urls.items():
        reference = ours = 0.0
        for _ in range(ROUNDS):
            reference = max(reference, log.decode(url))
            runs.append(log.stream(url))
            ours = max(ours, runs[-1].changes_per_second)
        target = at_least(log.targets["capture"]) if transport == "TCP" else None
        name = log.name(f"capture, streaming, {transport}")
        yield Measurement(name, ours, "changes/s", log.database.decoder, reference, target)
    cpu = min(run.cpu_seconds_per_million for run in runs)
    yield Measurement(log.name("capture, streaming, CPU"), cpu, "s/million changes", target=at_most(8))
    peak = max(run.peak_mb for run in runs)
    yield Measurement(log.name("capture, streaming, peak memory"), peak, "MB", target=at_most(300))
