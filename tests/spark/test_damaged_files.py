"""A landing file that is not as it was written stops its own table, and no row of it is merged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.errors import FormatError
from connector.landing.format import manifest_path
from merge import verify
from tests.support.landing.landed import Chunk, Event, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, insert, row

OTHER = schema_of("public.other", id="int", a="int")
COUNT = 2000


@pytest.mark.parametrize("how", ["missing", "empty", "truncated", "flipped", "of an earlier file"])
def test_a_damaged_file_stops_its_table_alone(spark: SparkSession, tmp_path: Path, how: str) -> None:
    zone = Zone(spark, tmp_path)
    zone.landed.table(OTHER)
    zone.log(10, *(insert(5, n) for n in range(COUNT)))
    zone.merge()
    data = tmp_path / "landing/shop/data/public.orders"
    first = set(data.rglob("*.parquet"))
    others = zone.landed.log(OTHER, [Event("insert", 15, 0, {"id": 1, "a": 1})])
    events = [insert(15, n, a=-n) for n in range(COUNT + 1)]
    zone.landed.commit(20, [zone.landed.log(ORDERS, events), others])
    (file,) = set(data.rglob("*.parquet")) - first
    good = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "flipped":
        middle = len(good) // 3
        file.write_bytes(good[:middle] + bytes([good[middle] ^ 16]) + good[middle + 1 :])
    else:
        contents = {"empty": b"", "truncated": good[: len(good) // 2]}
        file.write_bytes(contents.get(how, first.pop().read_bytes()))
    report = zone.merge()
    (failed,) = report.failed
    assert str(failed.table) == T
    assert file.name in (failed.error or "")
    assert "dump the table in full" in (failed.hint or "")
    assert not report.exact
    assert zone.rows("count(*), max(a)") == [(COUNT, COUNT - 1)]
    assert zone.rows("id", "public/other") == [(1,)]
    # The hint leads out: a full dump since.
    zone.landed.full_dump(T, 1, low=25, started_in=3)
    zone.chunk(30, Chunk(25, 28, [row(1, 5)], dump=1))
    assert zone.merge().exact
    assert zone.rows("id, a") == [(1, 5)]


def test_a_manifest_of_another_database_stops_merge_and_verify(spark: SparkSession, tmp_path: Path) -> None:
    zone = Zone(spark, tmp_path)
    zone.log(10, insert(5, 1))
    zone.merge()
    zone.landed.verification(T, 1, 10, started_in=2, rows=1)
    zone.landed.commit(20, [zone.landed.verified(ORDERS, Chunk(10, 10, [row(1, 1)], dump=1))])
    path = tmp_path / "landing/shop" / manifest_path(2)
    good = path.read_text()
    foreign = json.loads(good)
    foreign["source"] |= {"system_id": "another", "database": "store"}
    path.write_text(json.dumps(foreign))
    for read in (zone.merge, lambda: verify(spark, zone.config, "dump-1")):
        with pytest.raises(FormatError, match=r"different databases: .*2 \(of .* store, system id another\)"):
            read()
    path.write_text(good)
    assert zone.merge().exact
    assert zone.rows("id") == [(1,)]


def test_a_file_that_was_restored_is_merged(spark: SparkSession, tmp_path: Path) -> None:
    zone = Zone(spark, tmp_path)
    zone.log(10, insert(5, 1))
    (file,) = (tmp_path / "landing/shop/data/public.orders").rglob("*.parquet")
    good = file.read_bytes()
    file.write_bytes(b"")
    assert zone.merge().failed
    file.write_bytes(good)
    assert zone.merge().exact
    assert zone.rows("id") == [(1,)]
