"""Delta tables that somebody altered, without changing rows: that is respected, or refused with a hint."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.errors import TableError
from connector.position import CHUNK_SEQ
from merge import rebuild
from tests.support.landing.landed import Chunk
from tests.support.landing.zone import Zone, delete, insert, row, update_of_a


def test_a_column_a_constraint_and_clustering_of_others_stay_and_a_refused_row_has_a_hint(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = Zone(spark, tmp_path)
    zone.begin(insert(5, 1), insert(5, 2))
    name = f"delta.`{tmp_path}/lake/public/orders`"
    columns = "ADD COLUMNS (mine string, tags map<string,int>)"  # Spark can't compare maps
    for change in (columns, "ADD CONSTRAINT small CHECK (a < 100)", "CLUSTER BY (b)"):
        spark.sql(f"ALTER TABLE {name} {change}")
    spark.sql(f"OPTIMIZE {name} FULL")
    versions = len(zone.history())
    zone.log(20, update_of_a(15, 1, a=7), delete(15, 2), insert(15, 3))
    assert zone.merge().exact
    assert zone.rows("id, a, b, mine") == [(1, 7, "x", None), (3, 3, "x", None)]
    assert len(zone.history()) == versions + 1, "it was rebuilt"
    assert spark.sql(f"DESCRIBE DETAIL {name}").head()["clusteringColumns"] == ["b"]

    zone.log(30, insert(25, 4, a=700))
    (failed,) = zone.merge().failed
    assert "small" in (failed.error or "")
    assert "DROP CONSTRAINT" in (failed.hint or "")
    assert "700" not in (failed.printed or "")
    spark.sql(f"ALTER TABLE {name} DROP CONSTRAINT small")
    zone.chunk(40, Chunk(32, 33, [row(5, 5)]))
    assert zone.merge().exact
    assert zone.rows("id, a") == [(1, 7), (3, 3), (4, 700), (5, 5)]


@pytest.mark.soak
def test_fields_of_our_columns_that_somebody_has_moved_are_not_taken_for_one_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = Zone(spark, tmp_path)
    zone.chunk(10, Chunk(8, 9, [row(1, 1), row(2, 2)]))
    assert zone.merge().exact
    name = f"delta.`{tmp_path}/lake/public/orders`"
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN _cdc.lsn AFTER seq")
    zone.log(20, update_of_a(15, 1, a=7))
    assert zone.live() == [(1, 7, "x"), (2, 2, "x")]
    (failed,) = zone.merge().failed
    assert failed.hint == f"ALTER TABLE {name} ALTER COLUMN _cdc.lsn AFTER epoch"
    with pytest.raises(TableError, match="in another order"):
        rebuild(spark, zone.config, "public.orders")
    spark.sql(failed.hint)
    assert zone.merge().exact
    assert zone.rows("id, a, _cdc.lsn, _cdc.seq") == [(1, 7, 15, 2), (2, 2, 8, CHUNK_SEQ + 1)]


@pytest.mark.soak
def test_a_field_of_others_in_our_column_and_the_lack_of_that_column_have_a_hint(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = Zone(spark, tmp_path)
    zone.begin(insert(5, 1))
    name = f"delta.`{tmp_path}/lake/public/orders`"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (_cdc.`its own` string)")
    zone.log(20, insert(15, 2))
    (failed,) = zone.merge().failed
    assert failed.error is not None
    assert "a field _cdc.its own of somebody else's" in failed.error
    assert (failed.hint or "").startswith("drop that field")
    spark.sql(f"ALTER TABLE {name} DROP COLUMN _cdc.`its own`")
    assert zone.merge().exact
    spark.sql(f"ALTER TABLE {name} DROP COLUMN _cdc")
    zone.log(30, insert(25, 3))
    (failed,) = zone.merge().failed
    assert (failed.error or "").endswith(f"{name} has no _cdc")
    assert "drop that Delta table" in (failed.hint or "")
    assert zone.live() == [(1, 1, "x"), (2, 2, "x"), (3, 3, "x")]
