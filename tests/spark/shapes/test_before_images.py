"""Before-images in the changes of a table and in the data source, and nowhere else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from merge import live
from tests.spark.reading.test_change_source import options
from tests.support.landing.landed import Event, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, insert

ASKING = replace(ORDERS, before_images=True)
LATER = replace(schema_of(T, id="int", A="bigint", b="string", timestamp="timestamp"), before_images=True)

WHOLE = Event("update", 21, 0, {"id": 1, "a": 2, "b": "y"}, before={"id": 1, "a": 1, "b": None})
LACKING = Event("update", 22, 0, {"id": 1, "a": 3, "b": "z"}, before={"_cdc": {"missing": ["id", "a", "b"]}})
GONE = Event("delete", 23, 0, {"id": 1}, before={"id": 1, "a": 3, "b": "z", "_cdc": {"raw": [("a", "NaN")]}})
WIDE = Event("update", 31, 0, {"id": 2, "A": 1 << 40}, before={"id": 2, "A": 1 << 41, "b": "x"})
EXPECTED = {
    (15, "insert"): None,
    (16, "update"): None,
    (20, "insert"): None,
    (21, "update"): (1, 1, None, None, None),
    (22, "update"): (None, None, None, ["id", "a", "b"], None),
    (23, "delete"): (1, 3, "z", None, {"a": "NaN"}),
    (31, "update"): (2, 1 << 41, "x", None, None),
}


def land_until_asked(zone: Zone) -> None:
    """Land changes without, then changes with before-images."""
    zone.log(18, insert(15, 2), Event("update", 16, 0, {"id": 2, "a": 2, "b": "x"}))
    zone.landed.table(ASKING)
    zone.landed.commit(23, [zone.landed.log(ASKING, [insert(20, 1), WHOLE, LACKING, GONE])])


def image(old: Any) -> tuple[Any, ...] | None:
    """An old row without the column that came later, its `_cdc` last."""
    if old is None:
        return None
    values = {name.lower(): value for name, value in old.asDict().items()}
    return (*(values[name] for name in ("id", "a", "b")), old["_cdc"]["missing"], old["_cdc"]["raw"])


def test_each_change_has_its_before_image_once_in_changes_and_in_the_data_source_and_nowhere_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = Zone(spark, tmp_path, public__orders={"shapes": ["current", "changes"]})
    land_until_asked(zone)
    # After a crash the agent may land again what it had landed.
    zone.landed.commit(23, [zone.landed.log(ASKING, [WHOLE, LACKING, GONE])])
    assert not zone.merge().failed
    zone.landed.table(LATER)
    zone.landed.commit(31, [zone.landed.log(LATER, [WIDE])])
    zone.forget_cuts(1)  # the next merge reads again what the Delta tables have
    assert not zone.merge().failed

    changes = spark.table(f"delta.`{tmp_path}/lake/public/orders_changes`")
    found = changes.select("_cdc", "_before").collect()
    assert Counter((r["_cdc"]["lsn"], r["_cdc"]["op"]) for r in found) == Counter(EXPECTED.keys())
    assert {(r["_cdc"]["lsn"], r["_cdc"]["op"]): image(r["_before"]) for r in found} == EXPECTED
    current = spark.table(f"delta.`{tmp_path}/lake/public/orders`")
    for frame in (current, live(spark, zone.config, T)):
        assert "_before" not in frame.columns
    assert [(r["id"], r["a"]) for r in current.collect()] == [(2, 1 << 40)]  # of the event, not of its image


@pytest.mark.soak
@pytest.mark.only_classic("a server's Python processes do not have deltatide")
def test_the_data_source_reads_before_images_of_all_layouts(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4")
    from merge.reading.change_source import DeltatideSource

    spark.dataSource.register(DeltatideSource)
    zone = Zone(spark, tmp_path)
    land_until_asked(zone)
    zone.landed.table(LATER)
    zone.landed.commit(31, [zone.landed.log(LATER, [WIDE])])
    frame = spark.read.format("deltatide").options(**options(zone)).load()
    assert {(r["_cdc"]["lsn"], r["_cdc"]["op"]): image(r["_before"]) for r in frame.collect()} == EXPECTED
