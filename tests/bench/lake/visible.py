"""Latency from a commit in the source to who reads it, under steady load: a query of live rows, a stream.

It counts from when a statement is sent until the first query of the view that shows its row has returned.
The session asks again and again, so a change waits for the query under way, too. The agent, the server, the
writer and Spark share the machine. Measured with Spark's defaults, and with the setting that merge/README.md
names for such queries. A stream reads the changes by the data source, and each of its batches is asked for
its newest change.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from connector.config import load
from tests.bench.capture.agent import Agent
from tests.bench.capture.latency import Times, write_steadily
from tests.bench.databases.database import Bench, Database
from tests.bench.report import Measurement, at_most
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLUSH_SECONDS = 0.25
CHANGES_PER_SECOND = 500
LOAD_SECONDS = 12
WARM_UP = 8
"""The first queries load classes and compile them."""

NEWEST = "SELECT coalesce(max(id), 0) FROM changes_live"


def visible(bench: Bench) -> Iterator[Measurement]:
    """Measure it on a table that was merged twice."""
    from merge import merge_once, register
    from merge.spark.session import local_session

    folder, rows, measured = bench.folder / "visible", 0, dict[str, Times]()
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
                for adaptive in ("true", "false"):
                    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
                    for _ in range(WARM_UP):
                        spark.sql(NEWEST).collect()
                    seconds = LOAD_SECONDS // 3 if bench.quick else LOAD_SECONDS
                    writing = writer.submit(write_steadily, database, seconds, CHANGES_PER_SECOND, rows)
                    measured[adaptive] = _latencies(spark, writing, rows)
                    rows += len(writing.result())
                streamed = _streamed(bench, spark, agent, writer, database, rows)
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
        yield Measurement(name, float(np.percentile(streamed, percentile)), "s")


def _streamed(
    bench: Bench, spark: SparkSession, agent: Agent, writer: ThreadPoolExecutor, database: Database, rows: int
) -> Times:
    """Write after the first `rows`; return the seconds until a stream of the changes has each of these."""
    from merge.reading.change_source import DeltatideSource

    shown, returned = list[int](), list[float]()

    def see(batch: DataFrame, _number: int) -> None:
        newest = batch.selectExpr("max(id)").collect()[0][0]
        if newest is not None:
            shown.append(newest)
            returned.append(time.time())

    spark.dataSource.register(DeltatideSource)
    options = {"config": str(agent.configuration), "table": "public.changes"}
    changes = spark.readStream.format("deltatide").options(**options, consumer="bench").load()
    checkpoint = str(bench.folder / "visible" / "checkpoint")
    query = changes.writeStream.foreachBatch(see).option("checkpointLocation", checkpoint).start()

    def reaches(last: int) -> bool:
        if (error := query.exception()) is not None:
            raise error
        return bool(shown) and shown[-1] >= last

    try:
        for seconds in (2, LOAD_SECONDS // 3 if bench.quick else LOAD_SECONDS):  # the first is to warm up
            sent = writer.submit(write_steadily, database, seconds, CHANGES_PER_SECOND, rows).result()
            last = rows + len(sent)
            wait_until(partial(reaches, last), "the stream has read all changes", seconds=120)
            numbers, rows = np.arange(rows + 1, last + 1), last
    finally:
        query.stop()
    latencies: Times = np.array(returned)[np.searchsorted(shown, numbers)] - sent
    return latencies


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
