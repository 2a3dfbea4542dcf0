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
DAMAGED = ("missing", "empty", "truncated", "flipped", "earlier")
TABLES = {how: schema_of(f"public.{how}", id="int", a="int", b="string") for how in DAMAGED}
COUNT = 2000


def damage(how: str, file: Path, earlier: bytes) -> None:
    good = file.read_bytes()
    middle = len(good) // 3
    damaged = {
        "empty": b"",
        "truncated": good[: len(good) // 2],
        "flipped": good[:middle] + bytes([good[middle] ^ 16]) + good[middle + 1 :],
        "earlier": earlier,  # whole, but another file's
    }
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(damaged[how])


def test_a_damaged_file_stops_its_table_alone(spark: SparkSession, tmp_path: Path) -> None:
    zone = Zone(spark, tmp_path)
    zone.landed.tables.pop(ORDERS.table)
    for schema in (*TABLES.values(), OTHER):
        zone.landed.table(schema)
    first = [insert(5, n) for n in range(COUNT)]
    zone.landed.commit(10, [zone.landed.log(schema, first) for schema in TABLES.values()])
    assert zone.merge().exact
    earlier = {how: one_file(tmp_path, how) for how in DAMAGED}
    second = [insert(15, n, a=-n) for n in range(COUNT + 1)]
    files = [zone.landed.log(schema, second) for schema in TABLES.values()]
    zone.landed.commit(20, [*files, zone.landed.log(OTHER, [Event("insert", 15, 0, {"id": 1, "a": 1})])])
    names = {}
    for how, old in earlier.items():
        file = one_file(tmp_path, how, beside=old)
        names[f"public.{how}"] = file.name
        damage(how, file, old.read_bytes())
    report = zone.merge()
    assert {str(failed.table) for failed in report.failed} == names.keys()
    for failed in report.failed:
        assert names[str(failed.table)] in (failed.error or "")
        assert "dump the table in full" in (failed.hint or "")
    assert not report.exact
    for how in DAMAGED:
        rows = zone.rows("id, a", f"public/{how}")
        assert (len(rows), max(a for _, a in rows)) == (COUNT, COUNT - 1), how
    assert zone.rows("id", "public/other") == [(1,)]
    # The hint leads out: a full dump since.
    flipped = TABLES["flipped"]
    zone.landed.full_dump(str(flipped.table), 1, low=25, started_in=3)
    zone.landed.commit(30, [zone.landed.chunk(flipped, Chunk(25, 28, [row(1, 5)], dump=1))])
    (merged,) = zone.merge(tables=[str(flipped.table)]).tables
    assert merged.error is None
    assert zone.rows("id, a", "public/flipped") == [(1, 5)]


def one_file(folder: Path, how: str, beside: Path | None = None) -> Path:
    (file,) = set((folder / f"landing/shop/data/public.{how}").rglob("*.parquet")) - {beside}
    return file


@pytest.mark.parametrize(
    "other", [{"system_id": "another"}, pytest.param({"database": "store"}, marks=pytest.mark.soak)], ids=str
)
def test_a_manifest_of_another_database_stops_merge_and_verify(
    spark: SparkSession, tmp_path: Path, other: dict[str, str]
) -> None:
    """Databases of one PostgreSQL server have one system id."""
    zone = Zone(spark, tmp_path)
    zone.log(10, insert(5, 1))
    zone.merge()
    zone.landed.verification(T, 1, 10, started_in=2, rows=1)
    zone.landed.commit(20, [zone.landed.verified(ORDERS, Chunk(10, 10, [row(1, 1)], dump=1))])
    path = tmp_path / "landing/shop" / manifest_path(2)
    good = path.read_text()
    foreign = json.loads(good)
    foreign["source"] |= other
    path.write_text(json.dumps(foreign))
    for read in (zone.merge, lambda: verify(spark, zone.config, "dump-1")):
        with pytest.raises(FormatError, match=r"different databases: 1 \(.*\) and 2 \("):
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
