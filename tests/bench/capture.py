"""Capture by streaming, from the slot to committed manifests, beside pg_recvlogical on the same transport."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.log import WaitingLog
from tests.bench.report import Measurement, at_least, at_most

ROUNDS = 2


def capture(log: WaitingLog) -> Iterator[Measurement]:
    """Measure over TCP and over the Unix socket."""
    transports = (("TCP", log.database.url, at_least(0.7)), ("Unix socket", log.database.socket_url, None))
    runs = []
    for transport, url, target in transports:
        reference = ours = 0.0
        for _ in range(ROUNDS):
            reference = max(reference, log.receive(url))
            runs.append(log.stream(url))
            ours = max(ours, runs[-1].changes_per_second)
        name = f"capture, streaming, {transport}"
        yield Measurement(name, ours, "changes/s", "pg_recvlogical", reference, target)
    cpu = min(run.cpu_seconds_per_million for run in runs)
    yield Measurement("capture, streaming, CPU", cpu, "s/million changes", target=at_most(8))
    peak = max(run.peak_mb for run in runs)
    yield Measurement("capture, streaming, peak memory", peak, "MB", target=at_most(300))
