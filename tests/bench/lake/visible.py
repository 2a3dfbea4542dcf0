"""Latency from a commit in the source to a query of live rows that shows it, under steady load; then streams.

It counts from when a statement is sent until the first query of the view that shows its row has returned.
The session asks again and again, so a change waits for the query under way, too. The agent, the server, the
writer and Spark share the machine. Measured with Spark's defaults, and with the setting that merge/README.md
names for such queries.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from connector.config import load
from tests.bench.capture.agent import Agent
from tests.bench.capture.latency import Times, write_steadily
from tests.bench.databases.database import Bench, Database
from tests.bench.lake.streams import Streams
from tests.bench.report import Measurement, at_most

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLUSH_SECONDS = 0.25
CHANGES_PER_SECOND = 500
LOAD_SECONDS = 12
BULK_ROWS, ROWS_PER_COMMIT = 1_000_000, 50_000
WARM_UP = 20
"""The first queries load classes and compile them: after seven, that still takes as much CPU as all else of a
query, after twenty half as much. Only who asks for less than a minute has to wait for it."""

NEWEST = "SELECT coalesce(max(id), 0) FROM changes_live"


def visible(bench: Bench) -> Iterator[Measurement]:
    """Measure it on a table that was merged twice."""
    from merge import merge_once, register
    from merge.spark.session import local_session

    folder, rows, measured = bench.folder / "visible", 0, dict[str, Times]()
    seconds = LOAD_SECONDS // 3 if bench.quick else LOAD_SECONDS
    spark = local_session("deltatide-bench")
    try:
        with bench.server.database("bench_visible") as database:
            database.create_table("changes")
            landing = f"flush_seconds = {FLUSH_SECONDS}"
            with Agent(folder, database, landing=landing) as agent, ThreadPoolExecutor(1) as writer:
                agent.until(lambda manifest: manifest.exact)
                config = load(agent.configuration)
                for _ in range(2):
                    rows += _land(agent, len(write_steadily(database, 1, CHANGES_PER_SECOND, rows)))
                    merge_once(spark, config)
                register(spark, config)
                merged = rows
                for adaptive in ("true", "false"):
                    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
                    for _ in range(WARM_UP // 4 if bench.quick else WARM_UP):
                        spark.sql(NEWEST).collect()
                    writing = writer.submit(write_steadily, database, seconds, CHANGES_PER_SECOND, rows)
                    measured[adaptive] = _latencies(spark, writing, rows)
                    rows += len(writing.result())
                streams = Streams(folder / "streams", spark, str(agent.configuration), database)
                in_stream, rows = streams.latencies(writer, CHANGES_PER_SECOND, seconds, rows)
                rows += _insert(database, rows, BULK_ROWS // 5 if bench.quick else BULK_ROWS)
                _land(agent, rows - merged)
                rows_per_second = rows / streams.seconds_of_all()
    finally:
        spark.stop()
    shutil.rmtree(folder)
    load_ = f"{CHANGES_PER_SECOND} changes/s, flush_seconds {FLUSH_SECONDS:g}"
    for adaptive, latencies in measured.items():
        how = "" if adaptive == "true" else ", adaptive execution off"
        for percentile, target in ((50, at_most(1)), (99, at_most(3))):
            name = bench.name(f"commit to visible in a live view, p{percentile}, {load_}{how}")
            yield Measurement(name, float(np.percentile(latencies, percentile)), "s", target=target)
    for percentile in (50, 99):
        name = bench.name(f"commit to a stream's batch, p{percentile}, {load_}")
        yield Measurement(name, float(np.percentile(in_stream, percentile)), "s")
    yield Measurement(bench.name("a stream of all changes"), rows_per_second, "rows/s")


def _insert(database: Database, rows: int, more: int) -> int:
    """Insert many after the first `rows`; return how many."""
    with database.inserting("changes") as insert:
        for first in range(rows, rows + more, ROWS_PER_COMMIT):
            insert(first + 1, first + ROWS_PER_COMMIT)
    return more


def _land(agent: Agent, rows: int) -> int:
    """Wait until so many rows have landed; return how many."""
    landed = 0
    while landed < rows:
        landed += sum(file.rows for file in agent.next().manifest.files)
    return landed


def _latencies(spark: SparkSession, writing: Future[Times], rows: int) -> Times:
    """Query until all rows are there that are written after the first `rows`; return the seconds of each."""
    shown, returned = [rows], list[float]()
    while not writing.done() or shown[-1] < rows + len(writing.result()):
        shown.append(spark.sql(NEWEST).collect()[0][0])
        returned.append(time.time())
    sent = writing.result()
    numbers = np.arange(rows + 1, rows + len(sent) + 1)
    latencies: Times = np.array(returned)[np.searchsorted(shown[1:], numbers)] - sent
    return latencies
