"""Merging 100 changes into one small table and into 20, warm, compared with a MERGE written by hand."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from connector.config import Config, load
from connector.landing.manifest import Manifest
from tests.bench.agent import Agent
from tests.bench.report import Measurement
from tests.bench.source import Bench, Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES, ROWS, CHANGES = 20, 1000, 100
ROUNDS = 3
"""The first warms up the JVM; the best one counts."""


def merge(bench: Bench) -> Iterator[Measurement]:
    """Measure one table and twenty, in one Spark session."""
    from merge.session import local_session

    folder = bench.folder / "merge"
    names = [f"small_{number:02}" for number in range(1, TABLES + 1)]
    with bench.server.database("bench_merge") as database:
        for name in names:
            database.create_table(name, ROWS)
        with Agent(folder, database, landing="flush_seconds = 0.2") as agent:
            agent.until(lambda manifest: manifest.exact)
            spark = local_session("deltatide-bench")
            try:
                yield from _measure(bench, spark, load(agent.configuration), database, agent, names)
            finally:
                spark.stop()
    shutil.rmtree(folder)


def _measure(
    bench: Bench, spark: SparkSession, config: Config, database: Database, agent: Agent, names: list[str]
) -> Iterator[Measurement]:
    _merge(spark, config, None)
    folder = bench.folder / "merge"
    reference = folder / "reference"
    target = spark.read.format("delta").load(f"{folder}/lake/public/{names[0]}")
    target.drop("_cdc").write.format("delta").save(str(reference))
    ours, by_hand = [], []
    for _ in range(2 if bench.quick else ROUNDS):
        landed = _change(database, agent, names[:1])
        ours.append(_merge(spark, config, [f"public.{names[0]}"]))
        by_hand.append(_merge_by_hand(spark, agent, landed, reference))
    _change(database, agent, names)
    twenty = _merge(spark, config, None)
    what, hand = bench.name(f"merge of {CHANGES} changes, warm"), "MERGE written by hand"
    yield Measurement(f"{what}, 1 table", min(ours), "s", hand, min(by_hand))
    yield Measurement(f"{what}, {TABLES} tables", twenty, "s", f"{TABLES} x {hand}", TABLES * min(by_hand))


def _change(database: Database, agent: Agent, names: list[str]) -> Manifest:
    """Update rows of the tables in one transaction; return the manifest that holds it."""
    updates = (f"UPDATE {name} SET quantity = quantity + 1 WHERE id <= {CHANGES}" for name in names)
    database.execute("BEGIN", *updates, "COMMIT")
    return agent.until(lambda manifest: len(manifest.files) == len(names)).manifest


def _merge(spark: SparkSession, config: Config, tables: list[str] | None) -> float:
    from merge.job import merge_once

    begun = time.monotonic()
    report = merge_once(spark, config, tables=tables)
    if report.failed:
        raise AssertionError(report.failed[0].error)
    return time.monotonic() - begun


def _merge_by_hand(spark: SparkSession, agent: Agent, landed: Manifest, reference: Path) -> float:
    """MERGE the same changes into a table with the same rows: no ordering, deduplication or positions."""
    begun = time.monotonic()
    source = spark.read.parquet(str(agent.zone / landed.files[0].path)).drop("_cdc")
    source.createOrReplaceTempView("bench_source")
    spark.sql(
        f"MERGE INTO delta.`{reference}` target USING bench_source source ON target.id = source.id"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    return time.monotonic() - begun
