"""A disk that is full while rows are written."""

from __future__ import annotations

import random
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.landing.landed import schema_of
from tests.support.landing.zone import ORDERS, Zone, insert
from tests.support.spark.spark_sessions import files_limited_to

OTHER = schema_of("public.other", id="int", a="int", b="string")
LARGE = f"{random.Random(1).getrandbits(4_000_000):x}"
"""A text of a megabyte that can't be compressed to less than half."""


def test_a_write_that_fails_midway_stops_its_table_alone_and_is_made_up_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = Zone(spark, tmp_path)
    zone.landed.table(OTHER)
    zone.landed.commit(10, [zone.landed.log(schema, [insert(5, 1)]) for schema in (ORDERS, OTHER)])
    assert zone.merge().exact
    changed = [insert(15, 1, b=LARGE), insert(15, 2)], [insert(15, 1, b="y")]
    files = [zone.landed.log(schema, events) for schema, events in zip((ORDERS, OTHER), changed, strict=True)]
    zone.landed.commit(20, files)
    with files_limited_to(spark, 100_000):
        full = zone.merge()
    (failed,) = full.failed
    assert (str(failed.table), full.exact) == ("public.orders", False)
    assert "File too large" in str(failed.error)
    assert zone.rows("id, b") == [(1, "x")]
    assert zone.rows("id, b", "public/other") == [(1, "y")]
    assert zone.merge().exact
    assert zone.rows("id, b") == [(1, LARGE), (2, "x")]
