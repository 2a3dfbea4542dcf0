"""Merges into a large table: ``python -m tests.bench.large``, or ``make bench-large``.

The reference for merges is the MERGE in Delta's documentation (`tests.bench.lake.merge`); for a first load, a
plain write of the same files to a Delta table. Both begin warm, after merges of a small table, and merge
twice: the second time counts. Ours come first, since the peak of memory is theirs. Merges of recent keys are
measured again in a table a tenth as large: how their cost grows with the table is an exponent, 0 if it does
not and 1 if it is proportional. A verification by checksums is compared with one by rows
(`tests.bench.lake.verification`). Writes bench-large.json.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from connector.config import Config
from tests.bench.lake.landing import Keys, MeasuredZone
from tests.bench.lake.merge import Reference, merge_once
from tests.bench.lake.verification import verification
from tests.bench.report import Measurement, Target, at_most, show, write
from tests.support.landing.landed import config_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW, SOME, MANY = 100, 10_000, 100_000
TABLE, SMALLER = "public.big", "public.smaller"


def large(folder: Path, rows: int) -> Iterator[Measurement]:
    """Measure a first load, then changes spread over the table, to recent keys, again, and stale ones."""
    from merge.spark.session import local_session

    zone = MeasuredZone.create(folder / "landing", [TABLE])
    dumped = zone.dump(rows)
    config = config_of(str(folder / "landing"), str(folder / "lake"))
    spread, few = _spread(rows, MANY), _spread(rows, FEW)
    spark = local_session("deltatide-bench")
    try:
        _warm_up(spark, folder / "warm")
        loaded = merge_once(spark, config)
        merges: list[tuple[list[list[str]], float]] = []  # what landed each time, the last one's seconds
        for keys in (few, spread):
            landed, ours = [], 0.0
            for _ in range(2):
                landed.append(zone.change(keys))
                ours = merge_once(spark, config)
            merges.append((landed, ours))
        recent = 0.0
        for _ in range(2):
            zone.change(np.arange(rows - MANY, rows, dtype=np.int64))
            recent = merge_once(spark, config)
        yield _slower(f"merge of {MANY:,} changes to recent keys", recent, "to spread ones", merges[1][1], 1)
        yield from _unneeded(spark, zone, folder, spread)
        yield _growth(spark, zone, folder, rows)
        yield _explained(spark, zone, folder)
        yield Measurement("peak memory of the driver", _java_peak_mib(), "MiB", target=at_most(3072))
        plain = folder / "plain"
        written = _write(spark, dumped, plain)
        yield _slower(f"first load of {rows:,} rows", loaded, "written as they are", written, 1 / 0.7)
        reference = Reference(spark, folder / "reference")
        reference.create(0, str(plain))
        for count, (landed, ours), factor in zip((FEW, MANY), merges, (8, 3), strict=True):
            *_, known = (reference.merge(0, files) for files in landed)
            name = f"merge of {count:,} changes spread over {rows:,} rows"
            yield _slower(name, ours, "documented MERGE", known, 1 / factor)
    finally:
        spark.stop()


def _warm_up(spark: SparkSession, folder: Path) -> None:
    """Load a small table, and merge changes into it and the reference's copy."""
    zone = MeasuredZone.create(folder / "landing", [TABLE])
    config = config_of(str(folder / "landing"), str(folder / "lake"))
    _write(spark, zone.dump(SOME), folder / "plain")
    merge_once(spark, config)
    reference = Reference(spark, folder / "reference")
    reference.create(0, str(folder / "plain"))
    for _ in range(5):
        changed = zone.change(_spread(SOME, FEW))
        merge_once(spark, config)
        reference.merge(0, changed)


def _java_peak_mib() -> float:
    """Return the peak resident memory of this process's Java process, in MiB."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (java,) = (pid for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "java")
    status = Path(f"/proc/{java}/status").read_text()
    return float(status.partition("VmHWM:")[2].split()[0]) / 1024


def _unneeded(spark: SparkSession, zone: MeasuredZone, folder: Path, keys: Keys) -> Iterator[Measurement]:
    """Merge old events again, alone and with 1 % new ones; count the data files and rows written."""
    stale = zone.lsn - 35  # before the last changes of these keys, and after those before them
    zone.change(keys, at=stale)
    written = _written(spark, folder, "numTargetFilesAdded", "numTargetFilesRemoved")
    yield Measurement(f"data files written by {len(keys):,} stale changes", written, "", target=at_most(0))
    new = keys[::100]
    zone.change(keys, at=stale + 1)
    zone.change(new)
    written = _written(spark, folder, *(f"numTargetRows{how}" for how in ("Inserted", "Updated", "Copied")))
    name = f"rows written by {len(new):,} changes among {len(keys):,} stale ones"
    yield Measurement(name, written, "", target=at_most(len(new)))


def _written(spark: SparkSession, folder: Path, *metrics: str) -> int:
    """Merge, and return the sum of some of Delta's metrics of that."""
    merge_once(spark, config_of(str(folder / "landing"), str(folder / "lake")))
    (last,) = spark.sql(f"DESCRIBE HISTORY delta.`{folder}/lake/public/big` LIMIT 1").collect()
    return sum(int(last["operationMetrics"].get(metric, 0)) for metric in metrics)


def _growth(spark: SparkSession, zone: MeasuredZone, folder: Path, rows: int) -> Measurement:
    """Measure how the cost of a merge of recent keys grows from a tenth of the rows to all."""
    smaller = MeasuredZone.create(folder / "smaller", [SMALLER])
    smaller.dump(rows // 10)
    config = config_of(str(folder / "smaller"), str(folder / "smaller-lake"))
    merge_once(spark, config)
    known = _recent_seconds(spark, smaller, config, rows // 10)
    seconds = _recent_seconds(spark, zone, config_of(str(folder / "landing"), str(folder / "lake")), rows)
    name = f"exponent of the cost of {SOME:,} changes to recent keys, {rows // 10:,} to {rows:,} rows"
    return Measurement(name, math.log10(seconds / known), "", target=at_most(0.3))


def _recent_seconds(spark: SparkSession, zone: MeasuredZone, config: Config, rows: int) -> float:
    """Return how long a merge of the last keys takes, at best of three."""
    seconds = []
    for _ in range(3):
        zone.change(np.arange(rows - SOME, rows, dtype=np.int64))
        seconds.append(merge_once(spark, config))
    return min(seconds)


def _explained(spark: SparkSession, zone: MeasuredZone, folder: Path) -> Measurement:
    """Measure the explanation of one row."""
    from merge import explain_row

    config = config_of(str(folder / "landing"), str(folder / "lake"))
    begun = time.monotonic()
    found = explain_row(spark, config, TABLE, "0").to_dict()
    seconds = time.monotonic() - begun
    if found["delta"]["differences"] or found["result"] is None:
        raise RuntimeError(f"a row is not as its events say: {found}")
    landed = sum(file.rows for manifest in zone.landed.manifests for file in manifest.files)
    return Measurement(f"explanation of one row of {landed:,} landed ones", seconds, "s", target=at_most(10))


def _write(spark: SparkSession, files: list[str], folder: Path) -> float:
    begun = time.monotonic()
    spark.read.parquet(*files).write.format("delta").save(str(folder))
    return time.monotonic() - begun


def _spread(rows: int, count: int) -> Keys:
    return np.linspace(0, rows - 1, count).astype(np.int64)


def _slower(name: str, seconds: float, reference: str, known: float, most: float) -> Measurement:
    return Measurement(name, seconds, "s", reference, known, target=Target("ratio", "<=", round(most, 3)))


PARTS = {"merge": large, "verify": verification}


def main() -> int:
    """Measure, print a table, write bench-large.json."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.large", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the table")
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    options = parser.parse_args()
    parts = [PARTS[options.only]] if options.only else list(PARTS.values())
    folder = Path(tempfile.mkdtemp(prefix="deltatide-bench-"))
    folder.chmod(0o755)  # PostgreSQL runs as a user of its own
    console, measurements, begun = Console(width=160), [], time.monotonic()
    try:
        for measurement in chain.from_iterable(part(folder, options.rows) for part in parts):
            measurements.append(measurement)
            console.print(f"{measurement.name}: {measurement.value:.1f} {measurement.unit}", style="dim")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(measurements, console)
    write(measurements, Path("bench-large.json"))
    console.print(f"bench-large.json is written; it took {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
