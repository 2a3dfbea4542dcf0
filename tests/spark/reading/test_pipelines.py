"""The example of a Declarative Pipeline, conf/pipelines, in the session's Spark Connect server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.landing.landed import Chunk, Event
from tests.support.landing.zone import ORDERS, Zone, delete, insert, row

dp = pytest.importorskip("pyspark.pipelines", reason="Declarative Pipelines need Spark 4.1")

pytestmark = pytest.mark.only_classic("a server's Python processes do not have deltatide")

EXAMPLE = Path(__file__).parents[3] / "conf" / "pipelines"
HAS_AUTO_CDC = hasattr(dp, "create_auto_cdc_flow")


@pytest.mark.parametrize("command", ["dry-run", pytest.param("run", marks=pytest.mark.soak)])
def test_the_example_pipeline_reads_what_has_landed(
    spark: SparkSession, spark_url: str, tmp_path: Path, command: str
) -> None:
    if command == "run" and HAS_AUTO_CDC:
        pytest.skip("in open source, no table format can be the target of AUTO CDC yet")
    zone = Zone(spark, tmp_path)
    zone.log(10, insert(5, 1), insert(6, 2))
    chunk = zone.landed.chunk(ORDERS, Chunk(12, 18, [row(1, 1), row(3, 3)]))
    log = zone.landed.log(ORDERS, [delete(15, 1), Event("truncate", 16, 0, {})])
    zone.landed.commit(20, [log, chunk])
    config = tmp_path / "shop.toml"
    config.write_text(
        '[source]\nname = "shop"\nkind = "postgres"\nurl = "postgresql://u@127.0.0.1:1/shop"\n'
        f'tables = ["public.*"]\n[landing]\nurl = "{tmp_path}/landing"\n'
    )
    schema = f"pipeline_{tmp_path.name.replace('-', '_')}"
    spark.sql(f"CREATE SCHEMA {schema} LOCATION '{tmp_path}/tables'")
    shutil.copytree(EXAMPLE, tmp_path / "pipelines")
    spec = tmp_path / "pipelines" / "spark-pipeline.yml"
    text = spec.read_text().replace("/var/lib/deltatide/pipelines", f"{tmp_path}/storage")
    spec.write_text(text.replace("database: default", f"database: {schema}"))
    done = subprocess.run(
        [sys.executable, "-m", "pyspark.pipelines.cli", command, "--spec", spec],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "SPARK_REMOTE": spark_url, "DELTATIDE_CONFIG": str(config)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr
    if command == "dry-run":
        return
    found = spark.sql(f"SELECT id, _cdc.op, _cdc.lsn FROM {schema}.order_changes ORDER BY 1, 3").collect()
    assert [tuple(found_row) for found_row in found] == [
        (1, "insert", 5),
        (1, "dump", 12),
        (1, "delete", 15),
        (2, "insert", 6),
        (3, "dump", 12),
    ]
