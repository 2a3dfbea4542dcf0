"""The data source ``deltatide`` in Spark: rows and types, ranges, and a stream that is started again."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from connector.landing.consumers import read_consumers
from connector.landing.format import RETENTION
from connector.landing.manifest_object import Retained
from connector.maintenance.compaction import compact
from connector.store.local import LocalStore
from merge import live
from tests.support.landing.landed import AT, Chunk, Event, schema_of
from tests.support.landing.zone import T, Zone, insert, update_of_a

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4")

pytestmark = pytest.mark.only_classic("a server's Python processes do not have deltatide")

ALL = schema_of(
    "public.all", ("i",), i="int", t="tinyint", s="smallint", l="bigint", f="float", d="double", o="boolean",
    n="decimal(20,2)", x="string", y="binary", a="date", z="timestamp", w="timestamp_ntz",
    p="array<timestamp>", q="array<string>",
)  # fmt: skip
EARLY = datetime(1, 1, 1, 0, 0, 0, 1)
VALUES: dict[str, Any] = {
    "i": 1, "t": 2, "s": 3, "l": 1 << 40, "f": 0.5, "d": 0.1, "o": True, "n": Decimal("1.10"), "x": "ß",
    "y": b"\0", "a": date(1500, 2, 28), "z": EARLY.replace(tzinfo=timezone.utc), "w": EARLY,
    "p": [AT, None], "q": ["a", None],
}  # fmt: skip
LATER = AT + timedelta(days=1)


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    from merge.reading.change_source import DeltatideSource

    spark.dataSource.register(DeltatideSource)
    return Zone(spark, tmp_path)


def options(zone: Zone, **more: Any) -> dict[str, Any]:
    return {"landing": str(zone.folder / "landing"), "source": "shop", "table": T, **more}


def changes(zone: Zone, **more: Any) -> Any:
    return zone.spark.read.format("deltatide").options(**options(zone, **more)).load()


def test_a_batch_query_reads_rows_of_the_merge_s_types_in_the_newest_layout(zone: Zone) -> None:
    zone.landed.table(ALL)
    zone.landed.commit(10, [zone.landed.log(ALL, [Event("insert", 5, 0, VALUES)])])
    zone.log(0x20, insert(0x15, 1), insert(0x15, 2))
    wider = schema_of(T, id="int", a="bigint", c="string", B="string")
    event = Event("update", 0x25, 0, {"id": 1, "a": 1 << 40, "c": "y"}, unchanged=("B",), raw={"c": "-inf"})
    zone.landed.table(wider)
    chunk = zone.landed.chunk(wider, Chunk(0x10, 0x28, [{"id": 9}]))
    zone.landed.commit(0x30, [zone.landed.log(wider, [event]), chunk])

    ours, merged = changes(zone, table="public.all"), live(zone.spark, zone.config, "public.all")
    names = list(VALUES)
    assert ours.select(*names).schema == merged.select(*names).schema
    assert ours.select(*names).toArrow() == merged.select(*names).toArrow()
    found = sorted(map(tuple, changes(zone).select("id", "a", "c", "B", "_cdc.op", "_cdc.lsn").collect()))
    assert found == [
        (1, 1, None, "x", "insert", 0x15),
        (1, 1 << 40, "y", None, "update", 0x25),
        (2, 2, None, "x", "insert", 0x15),
    ]
    (cdc,) = changes(zone, after="0/20").select("_cdc.unchanged", "_cdc.raw").collect()
    assert (cdc["unchanged"], cdc["raw"]) == (["B"], {"c": "-inf"})
    assert [row.id for row in changes(zone, after=2, dumps=True).orderBy("id").collect()] == [1, 9]
    assert changes(zone, upto=1).count() == 0
    for wrong, said in [
        ({"table": "public.nothing"}, "is no longer captured; hint: landed tables: public.all"),
        ({"after": "3", "upto": "2"}, "before after"),
    ]:
        with pytest.raises(PySparkException, match=said):
            changes(zone, **wrong).count()


def test_a_stream_reads_each_change_once_over_a_restart_and_compaction(zone: Zone, tmp_path: Path) -> None:
    store, sink = LocalStore(tmp_path / "landing/shop"), str(tmp_path / "sink")

    def land(*numbers: int) -> None:
        for n in numbers:
            zone.log(10 * n, insert(10 * n - 5, n), update_of_a(10 * n - 1, n, -n))

    def stream(**more: Any) -> Any:
        given = options(zone, consumer="loader", **more)
        frame = zone.spark.readStream.format("deltatide").options(**given).load()
        written = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "cp"))
        return written.start(sink)

    def lsns() -> list[int]:
        return sorted(r.lsn for r in zone.spark.read.parquet(sink).select("_cdc.lsn").collect())

    def expected(upto: int) -> list[int]:
        return sorted(lsn for n in range(1, upto + 1) for lsn in (10 * n - 5, 10 * n - 1))

    land(*range(1, 61))
    query = stream(max_manifests=40)
    query.processAllAvailable()
    query.stop()
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [80, 40]
    assert lsns() == expected(60)
    (consumer,) = read_consumers(store)
    assert consumer.title == "stream loader"
    assert consumer.manifest in (0, 40, 60), "recorded at the start and every ten minutes of the clock"
    land(*range(61, 105))
    for days in (0, 2):
        compact(store, 1, 104, clock=lambda: LATER + timedelta(days=days))  # noqa: B023
    last = max((tmp_path / "cp/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink()  # the last batch is planned again, from files that are gone
    query = stream(max_rows=50)
    query.processAllAvailable()
    query.stop()
    assert lsns() == expected(104)
    (consumer,) = read_consumers(store)
    assert consumer.manifest > 0
    land(105)
    store.put(RETENTION, Retained(first=110, at=AT).to_json())
    query = stream()
    with pytest.raises(PySparkException, match=r"manifests 105 to 109 were removed.*hint: start after"):
        query.processAllAvailable()
    query.stop()
