"""A thousand tables, one of which changes: a manifest's size, the time of a start, and the agent's memory."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

from tests.bench.capture.agent import Agent
from tests.bench.databases.database import Bench
from tests.bench.report import Measurement, at_most

TABLES, COLUMNS = 1000, 20
CHANGES = 40
"""The first manifests after the dumps still carry what the dumps changed, until a state object is written."""


def tables(bench: Bench) -> Iterator[Measurement]:
    """Capture the tables, stop, start again, and change one of them a few times."""
    count, folder = bench.rows(TABLES), bench.folder / "tables"
    columns = ", ".join(f"column_number_{n} varchar({n + 10})" for n in range(2, COLUMNS + 1))
    with bench.server.database("bench_tables") as database:
        for n in range(count):
            database.execute(f"CREATE TABLE t{n:04} (id int PRIMARY KEY, {columns})")
        with Agent(folder, database, landing="flush_seconds = 1") as agent:
            agent.until(lambda manifest: manifest.exact)
        with Agent(folder, database, landing="flush_seconds = 0.25") as agent:
            begun = time.monotonic()
            agent.next()
            yield Measurement(
                bench.name(f"start on {count:,} tables already captured"), time.monotonic() - begun, "s",
                target=at_most(10),
            )  # fmt: skip
            for n in range(CHANGES):
                database.execute(f"INSERT INTO t0007 (id) VALUES ({n})")
                number = agent.until(lambda manifest: bool(manifest.files)).manifest.number
            size, peak = agent.size_of(number), agent.peak_mb()
    shutil.rmtree(folder)
    name = bench.name(f"{count:,} tables of {COLUMNS} columns, one of which changes")
    yield Measurement(f"{name}: a manifest", size, "bytes", target=at_most(5000))
    yield Measurement(f"{name}: peak memory", peak, "MB", target=at_most(300))
