"""Merges into small tables, compared with the MERGE that Delta's documentation shows for changes.

The reference reads the same landed files, takes the newest event of each key by a window, and merges it into
a table with default properties, in a session with Spark's and Delta's default settings, table after table.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from connector.config import Config
from connector.landing.manifest import LandedFile, Manifest
from connector.position import Position
from tests.bench.databases.database import Bench
from tests.bench.lake.landing import COLUMNS, MeasuredZone
from tests.bench.lake.views import views
from tests.bench.report import Measurement, Target, at_most
from tests.support.landing.landed import config_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, CHANGES = 1000, 100
LOADED, IDLE = 200, 1000
CHANGED = (20, 100)
AUTO_CDC = (
    "Spark's own AUTO CDC flow has no row: Spark 4.2.0, the first release with one, refuses Delta 4.4.0's"
    " tables (AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE)"
)
REFERENCES = 6
"""Tables that the reference merges one after another; each takes about as long."""
WIDE_ROWS = 20_000
MANIFESTS = 10_000
STREAMED = 100
DEFAULTS = {
    "spark.databricks.delta.snapshotPartitions": "50",
    "spark.sql.shuffle.partitions": "200",
}


def merge(bench: Bench) -> Iterator[Measurement]:
    """Measure small tables (first loads, few changes, none), a wide one, planning, and views."""
    from merge.spark.session import local_session

    folder = bench.folder / "merge"
    spark = local_session("deltatide-bench")
    try:
        yield from _small_tables(bench, spark, folder / "small")
        yield _idle_tables(bench, spark, folder / "idle")
        yield from _wide_table(bench, spark, folder / "wide")
        yield _planning(bench, spark, folder / "planning")
        yield _streamed(bench, spark, folder / "streamed")
        yield from views(bench, spark, folder / "views")
    finally:
        spark.stop()
    shutil.rmtree(folder)


def _small_tables(bench: Bench, spark: SparkSession, folder: Path) -> Iterator[Measurement]:
    """Measure a first load of small tables, then few changes in some of them."""
    names = [f"public.small_{number:03}" for number in range(bench.rows(LOADED))]
    zone = MeasuredZone.create(folder / "landing", names)
    config = config_of(str(folder / "landing"), str(folder / "lake"))
    zone.dump(ROWS)
    name = bench.name(f"first load of {len(names)} small tables, each")
    yield Measurement(name, merge_once(spark, config) / len(names), "s", target=at_most(0.5))
    few, many = names[: bench.rows(CHANGED[0])], names[: bench.rows(CHANGED[1])]
    keys = np.arange(0, ROWS, ROWS // CHANGES, dtype=np.int64)
    zone.change(keys, tables=few)
    merge_once(spark, config)  # warms up
    landed = zone.change(keys, tables=few)
    seconds = merge_once(spark, config)
    known = _reference_seconds(spark, folder, few[:REFERENCES], landed)
    zone.change(keys, tables=many)
    for changed, value in ((few, seconds), (many, merge_once(spark, config))):
        name = bench.name(f"merge of {CHANGES} changes into each of {len(changed)} small tables, warm")
        yield Measurement(
            name, value, "s", "documented MERGE, one after another", known * len(changed),
            target=Target("ratio", "<=", 1 / 3),
        )  # fmt: skip


def _reference_seconds(
    spark: SparkSession, folder: Path, names: Sequence[str], landed: Sequence[str]
) -> float:
    """Return how long the reference takes per table for the same changes to the same rows."""
    reference = Reference(spark, folder / "reference")
    for number, name in enumerate(names):
        reference.create(number, f"{folder}/lake/public/{name.partition('.')[2]}")
    reference.merge(0, landed[:1])  # warms up
    return sum(reference.merge(number, [landed[number]]) for number in range(len(names))) / len(names)


def _idle_tables(bench: Bench, spark: SparkSession, folder: Path) -> Measurement:
    tables = bench.rows(IDLE)
    zone = MeasuredZone.create(folder / "landing", [f"public.t{number:04}" for number in range(tables)])
    zone.landed.commit(10)
    config = config_of(str(folder / "landing"), str(folder / "lake"))
    _record_merged(spark, config, zone.landed.manifests[-1])
    zone.landed.commit(20)
    merge_once(spark, config)  # warms up
    zone.landed.commit(30)
    name = bench.name(f"merge with nothing new for {tables} tables")
    return Measurement(name, merge_once(spark, config), "s", target=at_most(2))


def _wide_table(bench: Bench, spark: SparkSession, folder: Path) -> Iterator[Measurement]:
    """Measure a table of 300 columns, with events that carry all of them, and then one of them."""
    table, rows = "public.wide", bench.rows(WIDE_ROWS)
    zone = MeasuredZone.create(folder / "landing", [table], more_columns=300 - len(COLUMNS))
    config = config_of(str(folder / "landing"), str(folder / "lake"))
    columns = [column.name for column in zone.schemas[table].columns]
    zone.dump(rows)
    merge_once(spark, config)
    reference = Reference(spark, folder / "reference", columns)
    reference.create(0, f"{folder}/lake/public/wide")
    keys = np.arange(0, rows, 10, dtype=np.int64)
    seconds = known = partial = 0.0
    for _ in range(2):  # the first time warms up
        landed = zone.change(keys)
        seconds, known = merge_once(spark, config), reference.merge(0, landed)
        zone.change(keys, unchanged=[c for c in columns if c not in ("id", "status")])
        partial = merge_once(spark, config)
    name = bench.name(f"merge of {len(keys):,} changes into {rows:,} rows of 300 columns")
    yield Measurement(name, seconds, "s", "documented MERGE", known, target=Target("ratio", "<=", 2))
    name = bench.name("the same, of events that carry one column")
    yield Measurement(name, partial, "s", "of whole events", seconds, target=Target("ratio", "<=", 2))


def _planning(bench: Bench, spark: SparkSession, folder: Path) -> Measurement:
    """Measure the planning of a lake that catches up: one plan, and so one MERGE, per table."""
    from merge.landing_zone import LandingZone
    from merge.plan import plan_table

    count = bench.rows(MANIFESTS)
    zone = MeasuredZone.create(folder / "landing", [f"public.t{number:03}" for number in range(100)])
    zone.landed.state_objects = 100
    at, tables = Position(1, 1, 0), [schema.table for schema in zone.schemas.values()]
    schemas = list(zone.schemas.values())
    for number in range(count):
        schema = schemas[number % len(schemas)]
        file = LandedFile(
            path=f"data/{number}.parquet", table=schema.table, schema_id=schema.id, kind="log", rows=1,
            bytes=1, first=at._replace(lsn=10 * number + 5), last=at._replace(lsn=10 * number + 5),
        )  # fmt: skip
        zone.landed.commit(10 * number + 10, [file])
    begun = time.monotonic()
    landing = LandingZone(spark, str(folder / "landing"), "shop")
    newest = landing.newest(1)
    files = sum(len(plan_table(table, landing, 1, newest).files) for table in tables)
    if files != count - 1:
        raise AssertionError(f"{files} files were planned instead of {count - 1}")
    name = bench.name(f"planning of {count:,} manifests of 100 tables")
    return Measurement(name, time.monotonic() - begun, "s", target=at_most(10))


def _streamed(bench: Bench, spark: SparkSession, folder: Path) -> Measurement:
    """Measure the data source, in two tasks or more, against Spark's own reader of the same files."""
    from merge.reading.change_source import DeltatideSource

    count = bench.rows(STREAMED)
    zone = MeasuredZone.create(folder / "landing", ["public.streamed"])
    files = [path for _ in range(count) for path in zone.change(np.arange(5000, dtype=np.int64))]
    spark.dataSource.register(DeltatideSource)
    place = {"landing": str(folder / "landing"), "source": "shop", "table": "public.streamed"}
    frames = spark.read.format("deltatide").options(**place).load(), spark.read.parquet(*files)
    seconds = []
    for frame in frames:
        begun = time.monotonic()
        frame.write.format("noop").mode("overwrite").save()
        seconds.append(time.monotonic() - begun)
    rates = [count * 5000 / each for each in seconds]
    name = bench.name(f"changes read by the data source, {count} manifests of 5,000")
    return Measurement(name, rates[0], "rows/s", "Spark's Parquet reader", rates[1])


def _record_merged(spark: SparkSession, config: Config, manifest: Manifest) -> None:
    """Record that all tables are merged, without making a thousand Delta tables that no merge opens."""
    from merge.lake.control_table import AS_LANDED, Frontier, append_cut, create_cuts

    create_cuts(spark, config)
    at = Frontier(manifest.number, 0, "its id", missing=0, built=AS_LANDED)
    merged = dict.fromkeys(manifest.tables, at)
    append_cut(spark, config, manifest, merged, exact=True)


def merge_once(spark: SparkSession, config: Config, until: int | None = None) -> float:
    """Merge, and return the seconds; a table that fails is an error."""
    from merge import merge_once as merge

    begun = time.monotonic()
    report = merge(spark, config, until=until)
    if report.failed:
        raise AssertionError(report.failed[0].error)
    return time.monotonic() - begun


class Reference:
    """The MERGE of Delta's documentation, in a session of its own with default settings."""

    def __init__(self, spark: SparkSession, folder: Path, columns: Iterable[str] = COLUMNS) -> None:
        self._spark, self._columns = spark.newSession(), list(columns)
        for name, value in DEFAULTS.items():
            self._spark.conf.set(name, value)
        self._folder = folder

    def table(self, number: int) -> Path:
        """Return the folder of a table."""
        return self._folder / f"t{number:03}"

    def create(self, number: int, rows: str) -> None:
        """Create a table with the rows of another Delta table, without `_cdc`."""
        frame = self._spark.read.format("delta").load(rows).drop("_cdc")
        frame.write.format("delta").save(str(self.table(number)))

    def merge(self, number: int, landed: Sequence[str]) -> float:
        """Merge landed files, and return the seconds."""
        begun = time.monotonic()
        self._spark.read.parquet(*landed).createOrReplaceTempView("landed")
        newest = "_cdc.epoch DESC, _cdc.lsn DESC, _cdc.seq DESC"
        self._spark.sql(
            f"""MERGE INTO delta.`{self.table(number)}` AS target USING (
                SELECT {", ".join(self._columns)}, _cdc.op FROM (
                    SELECT *, row_number() OVER (PARTITION BY id ORDER BY {newest}) AS nth FROM landed
                ) WHERE nth = 1
            ) AS source ON target.id = source.id
            WHEN MATCHED AND source.op = 'delete' THEN DELETE
            WHEN MATCHED THEN UPDATE SET *
            WHEN NOT MATCHED AND source.op <> 'delete' THEN INSERT *"""
        ).collect()
        return time.monotonic() - begun
