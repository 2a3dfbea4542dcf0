"""Peak memory while capturing one huge transaction."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from tests.bench.capture.agent import Agent
from tests.bench.databases.database import Bench
from tests.bench.report import Measurement, at_most

ROWS = 5_000_000
LARGE_MIB = 200


def memory(bench: Bench) -> Iterator[Measurement]:
    """Insert all rows in one transaction while the agent follows; one manifest must commit all of it."""
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
    if bench.server.title.startswith("PostgreSQL"):
        yield from _large_values(bench)


def _large_values(bench: Bench) -> Iterator[Measurement]:
    """Dump rows with one large value each, then change them while the agent follows."""
    mib, folder = bench.rows(LARGE_MIB), bench.folder / "large"
    with bench.server.database("bench_large") as database:
        large = f"repeat(repeat(md5(n::text), 1024), {32 * mib})"
        database.execute(
            "CREATE TABLE large (id int PRIMARY KEY, v text)",
            f"INSERT INTO large SELECT n, {large} FROM generate_series(1, 3) n",
        )
        with Agent(folder, database) as agent:
            agent.until(lambda manifest: manifest.exact)
            yield Measurement(bench.name(f"dump of values of {mib} MiB, peak memory"), agent.peak_mb(), "MB")
            database.execute(f"UPDATE large SET v = {large.replace('n::text', 'id::text')} || 'x'")
            agent.until(lambda manifest: any(file.kind == "log" for file in manifest.files))
            yield Measurement(bench.name(f"log of values of {mib} MiB, peak memory"), agent.peak_mb(), "MB")
    shutil.rmtree(folder)
