"""Peak memory while one huge transaction is captured."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from tests.bench.agent import Agent
from tests.bench.report import Measurement, at_most
from tests.bench.source import Bench

ROWS = 5_000_000


def memory(bench: Bench) -> Iterator[Measurement]:
    """Insert all rows in one transaction while the agent follows; it becomes visible whole."""
    rows, folder = bench.rows(ROWS), bench.folder / "memory"
    with bench.server.database("bench_memory") as database:
        database.create_table("stock")
        with Agent(folder, database) as agent:
            agent.until(lambda manifest: manifest.exact)
            database.insert("stock", 1, rows)
            landed = agent.until(lambda manifest: bool(manifest.files)).manifest
            peak = agent.peak_mb()
    shutil.rmtree(folder)
    if sum(file.rows for file in landed.files) != rows:
        raise AssertionError("the transaction was not landed whole")
    name = bench.name(f"one transaction of {rows:,} rows, peak memory")
    yield Measurement(name, peak, "MB", target=at_most(300))
