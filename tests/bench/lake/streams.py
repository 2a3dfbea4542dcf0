"""Streams of changes by the data source: from a commit to the batch that has it, and rows per second."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench.capture.latency import Times, write_steadily
from tests.bench.databases.database import Database
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_UP_SECONDS = 2


@dataclass
class _Seen:
    """The newest row of each batch, and when it was known."""

    newest: list[int] = field(default_factory=list)
    at: list[float] = field(default_factory=list)

    def batch(self, batch: DataFrame, _number: int) -> None:
        """Ask a batch for its newest row."""
        newest = batch.selectExpr("max(id)").collect()[0][0]
        if newest is not None:
            self.newest.append(newest)
            self.at.append(time.time())

    def has(self, last: int, query: Any) -> bool:
        """Return whether a row is there; raise what ended the query."""
        if (error := query.exception()) is not None:
            raise error
        return bool(self.newest) and self.newest[-1] >= last


@dataclass(frozen=True)
class Streams:
    """Streams of the table of changes; `folder`: for their checkpoints."""

    folder: Path
    spark: SparkSession
    configuration: str
    database: Database

    def latencies(
        self, writer: ThreadPoolExecutor, rate: int, seconds: float, rows: int
    ) -> tuple[Times, int]:
        """Write after the first `rows`; return the seconds until a batch had each, and how many there are."""
        seen = _Seen()
        query = self._started(self._changes("bench").writeStream.foreachBatch(seen.batch), "bench")
        try:
            for writing in (WARM_UP_SECONDS, seconds):
                sent = writer.submit(write_steadily, self.database, writing, rate, rows).result()
                numbers, rows = np.arange(rows + 1, rows + len(sent) + 1), rows + len(sent)
                wait_until(partial(seen.has, rows, query), "the stream has all changes", seconds=120)
        finally:
            query.stop()
        latencies: Times = np.array(seen.at)[np.searchsorted(seen.newest, numbers)] - sent
        return latencies, rows

    def seconds_of_all(self) -> float:
        """Read everything that has landed, from the start of a query until its end."""
        begun = time.monotonic()
        writing = self._changes("bench-all").writeStream.format("noop").trigger(availableNow=True)
        self._started(writing, "all").awaitTermination()
        return time.monotonic() - begun

    def _changes(self, consumer: str) -> DataFrame:
        from merge.reading.change_source import DeltatideSource

        self.spark.dataSource.register(DeltatideSource)
        options = {"config": self.configuration, "table": "public.changes", "consumer": consumer}
        return self.spark.readStream.format("deltatide").options(**options).load()

    def _started(self, writing: Any, name: str) -> Any:
        return writing.option("checkpointLocation", str(self.folder / name)).start()
