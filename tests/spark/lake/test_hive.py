"""A lake in a real catalog: Hive's metastore, which outlasts the driver that merges into it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from merge.spark.session import SETTINGS, jar_settings
from tests.support.servers.spark_cluster import SPARK_HOME
from tests.support.spark.hive_driver import ODD, hive_environment, hive_settings

REPOSITORY = Path(__file__).parents[3]


def run(folder: Path, *command: str | Path) -> str:
    """Run a driver with Hive's metastore in a folder, and return what it printed last."""
    environment = {**hive_environment(folder), "SPARK_HOME": str(SPARK_HOME), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def query(folder: Path, *statements: str) -> list[str]:
    """Run statements in a driver of Spark's own, which knows nothing of ours but the tables."""
    settings = {**SETTINGS, **jar_settings(with_s3=False), **hive_settings(folder)}
    confs = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    program = SPARK_HOME / "bin" / "spark-sql"
    return run(folder, program, "--master", "local[2]", *confs, "-e", "; ".join(statements)).splitlines()


@pytest.mark.soak
def test_what_is_merged_into_hives_metastore_is_there_for_other_drivers(tmp_path: Path) -> None:
    driver = [sys.executable, "-m", "tests.support.spark.hive_driver", str(tmp_path)]
    found = json.loads(run(tmp_path, *driver).splitlines()[-1])
    assert "schema `spark_catalog`.`shop` does not exist; CREATE SCHEMA" in found["without a schema"]
    for merge in ("first merge", "second merge", "merge without its files"):
        assert found[merge].keys() == {ODD}, merge
        assert "this catalog holds only names of letters A to Z" in found[merge][ODD]
    assert "remove that folder" in found["merge after a drop"]["public.orders"], (
        "upkeep has changed the table"
    )
    assert found["rows"] == [[1, 2**40, "x"], [3, 3, None]]
    assert found["totals"] == [[2, 2**40 + 3]]
    assert found["at manifest 1"] == [[1, 1], [2, 2]]
    assert any("public.orders" in what for what in found["upkeep"])
    assert set(found["upkeep"].values()) <= {"done", "deferred"}
    assert found["live"] == [[1, 2**40], [3, 30], [4, 4]]
    read = query(
        tmp_path,
        "SELECT id, a, more FROM shop.orders ORDER BY id",
        "SELECT orders, a FROM shop.totals",
        "SELECT max(manifest), max(exact) FROM shop._deltatide_cuts",
        "SHOW TABLES IN shop",
    )
    assert read[:3] == ["1\t1099511627776\tx", "3\t30\ty", "2\t1099511627806"]
    assert read[3] == "3\tfalse", "the table that has no place there is in no exact cut"
    assert read[4:] == ["_deltatide_cuts", "_deltatide_upkeep", "orders", "totals"]
