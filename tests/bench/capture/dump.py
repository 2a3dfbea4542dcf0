"""A dump by two workers, from the first manifest to the one that completes it, compared with a client."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from tests.bench.capture.agent import Agent
from tests.bench.databases.database import Bench, Database
from tests.bench.report import Measurement, at_least, at_most

ROWS = 2_000_000
ROUNDS = 2


def dump(bench: Bench) -> Iterator[Measurement]:
    """Measure the first dump of one table."""
    rows = bench.rows(ROWS)
    with bench.server.database("bench_dump") as database:
        database.create_table("stock", rows)
        reference, runs = 0.0, []
        for _ in range(ROUNDS):
            reference = max(reference, rows / database.read_table("stock"))
            runs.append(_dump(bench, database, rows))
    rates, cpus, peaks = zip(*runs, strict=True)
    target = at_least(bench.server.targets["dump"])
    name = bench.name("dump, 2 workers, TCP")
    yield Measurement(name, max(rates), "rows/s", database.reader, reference, target)
    yield Measurement(bench.name("dump, CPU"), min(cpus), "s/million rows", target=at_most(4))
    yield Measurement(bench.name("dump, peak memory"), max(peaks), "MB", target=at_most(300))


def _dump(bench: Bench, database: Database, rows: int) -> tuple[float, float, float]:
    folder = bench.folder / "dump"
    with Agent(folder, database) as agent:
        begun = agent.next()
        ended = agent.until(lambda manifest: manifest.exact)
        peak = agent.peak_mb()
    shutil.rmtree(folder)
    database.forget()
    (state,) = ended.manifest.dumps
    if state.rows != rows:
        raise AssertionError(f"{state.rows} of {rows} rows were dumped")
    seconds = ended.created - begun.created
    return rows / seconds, (ended.cpu_seconds - begun.cpu_seconds) / rows * 1e6, peak
