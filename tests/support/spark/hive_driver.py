"""A Spark driver with Hive's metastore for tests: merges a lake there, and prints what it found as JSON.

``python -m tests.support.spark.hive_driver FOLDER`` in an environment of `hive_environment`. Another driver
with the same settings finds the same tables, once this one has ended: Derby serves one process at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from connector.config import LakeConfig, ViewConfig
from connector.errors import ConfigurationError
from merge import MergeReport, as_of, live, merge_once
from merge.lake.upkeep import upkeep
from merge.spark.session import local_session
from merge.spark.session_settings import INTERPRETED
from tests.support.landing.landed import Event, Landed, config_of, schema_of
from tests.support.spark.spark_sessions import QUICK_JAVA, QUICK_START

T, ODD = "public.orders", "public.order items"
ORDERS = schema_of(T, id="int", a="int", at="timestamp_ntz", many="array<int>")
LARGER = schema_of(T, id="int", a="bigint", at="timestamp_ntz", many="array<int>", more="string")
ITEMS = schema_of(ODD, id="int", a="int")


def hive_settings(folder: Path) -> dict[str, str]:
    """Return Spark's settings for a metastore in the driver, with its database in a folder."""
    return {
        **INTERPRETED,
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/hive;create=true",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",  # VACUUM: not 10,000 tasks
    }


def hive_environment(folder: Path) -> dict[str, str]:
    """Return the variables of a driver with these settings."""
    given = " ".join(f"--conf {name}={value}" for name, value in hive_settings(folder).items())
    java = f"{QUICK_START} -Dderby.stream.error.file={folder}/derby.log"
    return {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{given} pyspark-shell", "JDK_JAVA_OPTIONS": java}


def main(argument: str) -> None:
    folder = Path(argument)
    found: dict[str, Any] = {}
    landed = Landed.local(folder / "landing")
    lake = {"catalog": "spark_catalog", "schema": "shop", "location": f"{folder}/lake"}
    config = config_of(str(folder / "landing"), str(folder)).model_copy(
        update={
            "lake": LakeConfig.model_validate(lake),
            "views": {"totals": ViewConfig(sql="SELECT count(*) AS orders, sum(a) AS a FROM orders")},
        }
    )
    spark = local_session("tests-hive", java_options=QUICK_JAVA)

    def event(op: str, lsn: int, key: int, **values: Any) -> Event:
        return Event(op, lsn, 2 * key, {"id": key, **values})

    def rows(query: str) -> list[list[Any]]:
        return sorted(list(row) for row in spark.sql(query).collect())

    def merged() -> dict[str, str]:
        return _errors(merge_once(spark, config))

    for layout in (ORDERS, ITEMS):
        landed.table(layout)
    new = [event("insert", 5, key, a=key) for key in (1, 2)]
    landed.commit(10, [landed.log(ORDERS, new), landed.log(ITEMS, [event("insert", 6, 1, a=1)])])
    try:
        merge_once(spark, config)
    except ConfigurationError as error:
        found["without a schema"] = f"{error}; {error.hint}"
    spark.sql(f"CREATE SCHEMA shop LOCATION '{folder}/warehouse'")
    found["first merge"] = merged()
    landed.table(LARGER)
    changes = [event("update", 15, 1, a=2**40, more="x"), event("delete", 16, 2), event("insert", 17, 3, a=3)]
    landed.commit(20, [landed.log(LARGER, changes)])
    found["second merge"] = merged()
    found["rows"] = rows("SELECT id, a, more FROM shop.orders")
    found["totals"] = rows("SELECT * FROM shop.totals")
    before = as_of(spark, config, 1, tables=[T])[T]
    found["at manifest 1"] = sorted([row.id, row.a] for row in before.collect())
    found["upkeep"] = {f"{it.subject}: {it.action}": it.status for it in upkeep(spark, config)}
    spark.sql("DROP TABLE shop.orders")
    landed.commit(30, [landed.log(LARGER, [event("update", 25, 3, a=30, more="y")])])
    found["merge after a drop"] = merged()
    shutil.rmtree(folder / "lake" / "public" / "orders")
    found["merge without its files"] = merged()
    landed.commit(40, [landed.log(LARGER, [event("insert", 35, 4, a=4)])])
    found["live"] = sorted([row.id, row.a] for row in live(spark, config, T).collect())
    spark.stop()
    print(json.dumps(found, default=str))


def _errors(report: MergeReport) -> dict[str, str]:
    """Return what failed, with its error and hint."""
    failed = {str(table.table): f"{table.error}; {table.hint}" for table in report.failed}
    return failed | {str(view.table): view.error for view in report.views if view.error}


if __name__ == "__main__":
    main(*sys.argv[1:])
