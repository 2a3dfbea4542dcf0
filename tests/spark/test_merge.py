"""The merge by its rules, one test each, on landing zones made by hand."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.config import Config
from connector.errors import ConfigurationError, FormatError, GapError, SourceMismatchError
from connector.landing import manifest_path
from connector.manifest import Notice
from merge import TableProgress, as_of, cuts, job, live, merge_every, merge_once
from tests.landed import AT, Chunk, Event, Landed, config_of, schema_of
from tests.s3_server import S3

T = "public.orders"
ORDERS = schema_of(T, id="int", a="int", b="string")


class Zone:
    """A landing zone with one table, and the lake beside it."""

    def __init__(self, spark: SparkSession, folder: Path, **tables: Any) -> None:
        self.spark, self.folder = spark, folder
        self.landed = Landed.local(folder / "landing")
        self.landed.table(ORDERS)
        self.config: Config = config_of(str(folder / "landing"), str(folder / "lake"), **tables)

    def log(self, position: int, *events: Event, epoch: int = 1) -> None:
        self.landed.commit(position, [self.landed.log(ORDERS, events)] if events else [], epoch=epoch)

    def chunk(self, position: int, *chunks: Chunk, epoch: int = 1) -> None:
        self.landed.commit(position, [self.landed.chunk(ORDERS, chunk) for chunk in chunks], epoch=epoch)

    def merge(self, **options: Any) -> Any:
        return merge_once(self.spark, self.config, **options)

    def rows(self, columns: str = "id, a, b", table: str = "public/orders") -> list[tuple[Any, ...]]:
        name = f"delta.`{self.folder}/lake/{table}`"
        return [tuple(r) for r in self.spark.sql(f"SELECT {columns} FROM {name} ORDER BY 1").collect()]

    def live(self) -> list[tuple[Any, ...]]:
        frame = live(self.spark, self.config, T).select("id", "a", "b")
        return [tuple(row) for row in frame.orderBy("id").collect()]

    def forget_cuts(self, after: int) -> None:
        self.spark.sql(f"DELETE FROM delta.`{self.folder}/lake/_deltatide/cuts` WHERE manifest > {after}")

    def history(self) -> list[Any]:
        frame = self.spark.sql(f"DESCRIBE HISTORY delta.`{self.folder}/lake/public/orders`")
        return frame.orderBy("version").collect()

    def requests(self) -> list[dict[str, Any]]:
        parts = (self.folder / "landing/shop/requests").glob("*.json/part-*")
        return [json.loads(part.read_text()) for part in parts]


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


def insert(lsn: int, key: int, a: int | None = None, b: str = "x", **more: Any) -> Event:
    return Event("insert", lsn, 2 * key, {"id": key, "a": key if a is None else a, "b": b}, **more)


def update_of_a(lsn: int, key: int, a: int, **more: Any) -> Event:
    """An update that does not carry `b`."""
    return Event("update", lsn, 2 * key, {"id": key, "a": a}, unchanged=("b",), **more)


def delete(lsn: int, key: int, **more: Any) -> Event:
    return Event("delete", lsn, 2 * key, {"id": key}, **more)


def row(key: int, a: int, b: str = "x") -> dict[str, Any]:
    return {"id": key, "a": a, "b": b}


def test_a_merge_killed_before_its_cut_is_repeated_without_rewriting_anything(zone: Zone) -> None:
    zone.log(10, insert(5, 1), insert(5, 2))
    zone.merge()
    zone.log(20, update_of_a(15, 1, 7), delete(15, 2))
    zone.merge()
    before, versions = zone.rows(), len(zone.history())
    zone.forget_cuts(after=1)
    again = zone.merge()
    assert zone.rows() == before == [(1, 7, "x")]
    assert again.recorded
    assert again.tables[0].version == versions - 1
    assert len(zone.history()) == versions  # skipped whole: the manifest was applied
    zone.forget_cuts(after=0)
    zone.log(30)
    zone.merge()
    assert zone.rows() == before
    assert zone.history()[-1]["operationMetrics"]["numTargetRowsUpdated"] == "0"


def test_with_nothing_new_nothing_is_written(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    assert zone.merge().recorded
    report = zone.merge()
    assert not report.recorded
    assert not report.tables
    assert len(cuts(zone.spark, zone.config).collect()) == 1


def test_a_job_that_was_overtaken_brings_nothing_back(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    zone.merge()
    zone.log(20, insert(15, 2))
    zone.log(30, delete(25, 2))
    zone.merge()
    zone.forget_cuts(after=1)  # the late job read the frontier before the other one wrote its cut
    late = zone.merge(until=2)
    assert zone.rows() == [(1, 1, "x")]
    assert (late.tables[0].manifest, late.manifest, late.exact) == (3, 2, False)


def test_two_jobs_at_once_leave_the_right_table(zone: Zone) -> None:
    zone.log(10, *(insert(5, key) for key in range(50)))
    zone.merge()
    for n in range(2, 8):
        zone.log(
            10 * n, *(insert(10 * n - 5, 100 * n + key) for key in range(9)), delete(10 * n - 4, 100 * n)
        )
    errors: list[BaseException] = []

    def run(untils: Sequence[int | None]) -> None:
        session = zone.spark.newSession()
        try:
            for until in untils:
                assert not merge_once(session, zone.config, until=until).failed
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(untils,)) for untils in ((2, 4, None), (3, 5, None))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    keys = [*range(50), *(100 * n + key for n in range(2, 8) for key in range(1, 9))]
    assert [found[0] for found in zone.rows("id")] == keys


def test_a_row_deleted_during_its_chunk_stays_deleted(zone: Zone) -> None:
    zone.log(10, insert(5, 1), insert(5, 2))
    zone.log(20, delete(15, 2))
    zone.merge()
    zone.chunk(30, Chunk(low=12, high=25, rows=[row(1, 1), row(2, 2), row(3, 3)]))
    assert zone.live() == [(1, 1, "x"), (3, 3, "x")]
    zone.merge()
    assert zone.rows() == zone.live() == [(1, 1, "x"), (3, 3, "x")]


def test_a_truncate_deletes_what_is_older_and_nothing_else(zone: Zone) -> None:
    zone.log(10, insert(5, 1), insert(5, 2))
    zone.merge()
    zone.log(20, insert(15, 3), Event("truncate", 16, 0, {}), insert(16, 4), insert(17, 2, a=9))
    assert zone.live() == [(2, 9, "x"), (4, 4, "x")]
    zone.merge()
    assert zone.rows() == [(2, 9, "x"), (4, 4, "x")]


@pytest.mark.parametrize("what", ["truncate", "sweep"])
def test_rows_that_a_slower_job_adds_between_reading_and_merging_are_deleted_too(
    zone: Zone, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Truncates and ghosts are computed from the rows that the MERGE itself finds in the table."""
    zone.log(5, insert(1, 9))
    zone.merge()
    if what == "truncate":
        zone.log(10, insert(6, 1))
        zone.log(20, Event("truncate", 15, 0, {}))
    else:
        gap(zone)
    overtaken, merge_it = [], job.apply

    def apply(*arguments: Any) -> Any:
        if not overtaken:
            overtaken.append(True)
            merge_once(zone.spark.newSession(), zone.config, until=2)
            assert 1 in {found[0] for found in zone.rows("id")}
        return merge_it(*arguments)

    monkeypatch.setattr(job, "apply", apply)
    zone.merge()
    assert zone.rows() == ([] if what == "truncate" else [(2, 22, "new"), (3, 3, "x")])


def test_soft_deletes_mark_the_row_and_keep_its_values(spark: SparkSession, tmp_path: Path) -> None:
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(10, insert(5, 1), insert(5, 2))
    zone.merge()
    zone.log(20, delete(15, 1), delete(15, 3))
    zone.merge()
    shown = "id, a, _cdc.op"
    assert zone.rows(shown) == [(1, 1, "delete"), (2, 2, "insert"), (3, None, "delete")]
    assert zone.live() == [(2, 2, "x")]
    zone.log(30, insert(25, 1, a=8), Event("truncate", 26, 0, {}))
    zone.merge()
    assert zone.rows("id, _cdc.op") == [(1, "delete"), (2, "delete"), (3, "delete")]


def gap(zone: Zone) -> None:
    """A row inserted before a gap and deleted in it; one whose `b` changed in it; then a full dump."""
    zone.log(10, insert(5, 1), insert(5, 2, b="old"))
    zone.log(20, update_of_a(3, 2, 22, epoch=2), epoch=2)
    zone.landed.full_dump(T, 7, low=2, started_in=zone.landed.number + 1, epoch=2)
    zone.chunk(9, Chunk(2, 8, [row(2, 22, "new"), row(3, 3)], dump=7, epoch=2), epoch=2)


def test_after_a_gap_a_full_dump_sweeps_ghosts_and_mends_what_changed_unseen(zone: Zone) -> None:
    gap(zone)
    zone.merge(until=2)
    assert zone.rows() == [(1, 1, "x"), (2, 22, "old")]
    assert zone.live() == [(2, 22, "new"), (3, 3, "x")]
    zone.merge()
    assert zone.rows() == [(2, 22, "new"), (3, 3, "x")]


def test_a_table_built_anew_over_a_gap_has_no_ghosts(zone: Zone) -> None:
    gap(zone)
    assert zone.live() == [(2, 22, "new"), (3, 3, "x")]
    zone.merge()
    assert zone.rows() == [(2, 22, "new"), (3, 3, "x")]


def test_missing_columns_are_asked_for_and_filled(zone: Zone) -> None:
    zone.log(10, update_of_a(5, 1, 7))
    report = zone.merge()
    assert zone.rows("id, a, b, _cdc.missing") == [(1, 7, None, ["b"])]
    assert not report.exact
    (request,) = zone.requests()
    assert (request["tables"], request["keys"], request["reason"]) == ([T], [["1"]], "missing")
    zone.log(20)
    assert not zone.merge().exact  # the agent has not taken it up
    for part in (zone.folder / "landing/shop/requests").glob("*.json/*"):
        part.unlink()
    zone.chunk(30, Chunk(low=4, high=25, rows=[row(1, 6, "found")]))
    assert zone.merge().exact
    assert zone.rows("id, a, b, _cdc.missing") == [(1, 7, "found", None)]


def test_a_crash_before_the_cut_does_not_make_it_exact_while_rows_wait_for_columns(zone: Zone) -> None:
    zone.log(10, insert(5, 9))
    assert zone.merge().exact
    zone.log(20, update_of_a(15, 1, 7))
    zone.merge()
    zone.forget_cuts(after=1)
    again = zone.merge()
    assert (again.exact, again.tables[0].requested) == (False, 1)
    zone.forget_cuts(after=1)
    zone.log(30, insert(25, 2))
    later = zone.merge()
    assert (later.exact, later.tables[0].requested) == (False, 1)
    assert len(zone.requests()) == 1


def test_a_cut_before_the_dump_that_brings_the_columns_is_not_exact(zone: Zone) -> None:
    """The agent has taken the request up, in a manifest that this merge leaves out."""
    zone.log(10, update_of_a(5, 1, 7))
    zone.merge()
    zone.log(20, insert(15, 2))
    for part in (zone.folder / "landing/shop/requests").glob("*.json/*"):
        part.unlink()
    zone.landed.missing_dump(T, 1)
    zone.log(30)
    assert not zone.merge(until=2).exact
    assert not zone.merge().exact


@pytest.mark.parametrize("until", [2, 3])
@pytest.mark.parametrize("step", ["reading", "merging"])
def test_rows_that_another_job_left_waiting_keep_the_cut_from_being_exact(
    zone: Zone, step: str, until: int
) -> None:
    """The other job comes in between, and finds all there is to ask for."""
    zone.log(10, insert(5, 9))
    zone.merge()
    zone.log(20, update_of_a(15, 1, 7))
    zone.log(30, insert(25, 2))
    other: list[Any] = []

    def overtake(progress: TableProgress) -> None:
        if progress.step == step and not other:
            other.append(merge_once(zone.spark.newSession(), zone.config, until=until))

    report = zone.merge(progress=overtake)
    assert not other[0].exact
    assert zone.rows("id, b, _cdc.missing") == [(1, None, ["b"]), (2, "x", None), (9, "x", None)]
    assert (report.manifest, report.exact) == (3, False)
    assert not zone.merge().exact
    assert not any(cut["exact"] for cut in cuts(zone.spark, zone.config).where("manifest > 1").collect())


def test_raw_texts_follow_their_columns(zone: Zone) -> None:
    zone.log(10, Event("insert", 5, 0, {"id": 1, "a": None, "b": None}, raw={"a": "NaN", "b": "infinity"}))
    zone.merge()
    zone.log(20, update_of_a(15, 1, 4))
    zone.merge()
    assert zone.rows("id, a, b, _cdc.raw") == [(1, 4, None, {"b": "infinity"})]


def test_columns_are_added_widened_and_kept_and_what_is_impossible_stops_one_table(zone: Zone) -> None:
    landed = zone.landed
    other = schema_of("public.other", id="int", v="int")
    landed.table(other)
    landed.commit(
        10,
        [landed.log(ORDERS, [insert(5, 1)]), landed.log(other, [Event("insert", 5, 0, {"id": 1, "v": 1})])],
    )
    zone.merge()
    wide = schema_of(T, **{"id": "int", "a": "bigint", "odd name, `here`": "date"})
    landed.table(wide)
    text = schema_of("public.other", id="int", v="string")
    landed.table(text)
    event = Event("insert", 15, 0, {"id": 2, "a": 1 << 40})
    files = [landed.log(wide, [event]), landed.log(text, [Event("insert", 15, 0, {"id": 2, "v": "x"})])]
    landed.commit(20, files, notices=[Notice(table=T, kind="schema", text="columns added", at=AT)])
    report = zone.merge()
    assert zone.rows("id, a, b, `odd name, ``here```") == [(1, 1, "x", None), (2, 1 << 40, None, None)]
    assert [table.table for table in report.failed] == ["public.other"]
    assert "string now and was int" in str(report.failed[0].error)
    assert report.failed[0].hint
    assert not report.exact
    assert zone.rows("id, v", "public/other") == [(1, 1)]


def test_a_table_that_appears_later_is_merged_from_its_beginning(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    zone.merge()
    odd = schema_of('public."my.table %"', ("k.1", "k 2"), **{"k.1": "string", "k 2": "binary", "v": "int"})
    name = str(odd.table)
    zone.landed.table(odd)
    events = [Event("insert", 15, 0, {"k.1": "it's \\", "k 2": b"\x00", "v": 1})]
    zone.landed.commit(20, [zone.landed.log(odd, events)])
    zone.log(30, insert(25, 2))
    zone.merge(tables=[T])
    newest = cuts(zone.spark, zone.config).collect()[0]
    assert newest["tables"][name]["version"] is None
    zone.merge()
    assert [r["v"] for r in live(zone.spark, zone.config, name).collect()] == [1]
    zone.landed.commit(
        40, [zone.landed.log(odd, [Event("update", 35, 0, {**events[0].values, "v": 2}, unchanged=())])]
    )
    zone.merge()
    assert [r["v"] for r in as_of(zone.spark, zone.config, 4)[name].collect()] == [2]
    assert [r["v"] for r in as_of(zone.spark, zone.config, 3)[name].collect()] == [1]


def test_a_delta_table_that_was_dropped_is_built_anew(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    zone.merge()
    shutil.rmtree(zone.folder / "lake/public/orders")
    zone.log(20, insert(15, 2))
    assert zone.live() == [(1, 1, "x"), (2, 2, "x")]
    zone.merge()
    assert zone.rows("id") == [(1,), (2,)]


def test_a_hole_in_the_chain_stops_the_merge(zone: Zone) -> None:
    for n in (1, 2, 3):
        zone.log(10 * n, insert(10 * n - 5, n))
    (zone.folder / "landing/shop" / manifest_path(2)).unlink()
    with pytest.raises(GapError, match="manifest 2 is missing"):
        zone.merge()
    assert zone.merge(until=1).manifest == 1


def test_a_newer_format_and_a_replaced_landing_zone_are_refused(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    zone.merge()
    path = zone.folder / "landing/shop" / manifest_path(1)
    good = path.read_text()
    path.write_text(good.replace('"position": 10', '"position": 11'))
    with pytest.raises(SourceMismatchError, match="manifest 1"):
        zone.merge()
    path.write_text(good)
    zone.log(20)
    newer = zone.folder / "landing/shop" / manifest_path(2)
    newer.write_text(newer.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(FormatError, match="format 2"):
        zone.merge()


def test_an_unknown_table_is_named_with_those_there_are(zone: Zone) -> None:
    zone.log(10)
    with pytest.raises(ConfigurationError) as raised:
        zone.merge(tables=["public.order"])
    assert raised.value.hint is not None
    assert T in raised.value.hint


def test_merging_again_and_again_ends_gracefully(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    stop, reports = threading.Event(), []

    def seen(report: Any) -> None:
        reports.append(report)
        zone.log(20, insert(15, 2)) if len(reports) == 1 else stop.set()

    assert merge_every(zone.spark, zone.config, 0.01, report=seen, stop=stop) == 0
    assert [report.manifest for report in reports] == [1, 2]
    assert zone.rows("id") == [(1,), (2,)]


LANDED_TYPES: dict[str, tuple[Any, Any]] = {
    "boolean": (True, False),
    "tinyint": (-128, 127),
    "smallint": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
    "decimal(20,0)": (Decimal(2**64 - 1), Decimal(0)),
    "decimal(12,2)": (Decimal("-9999999999.99"), Decimal("0.01")),
    "decimal(38,10)": (Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001")),
    "float": (1.5, -0.0),
    "double": (0.1, 5e-324),
    "string": ("", "tab\tnew\nline \U0001f600"),
    "binary": (b"", b"\x00\xff"),
    "date": (date(1, 1, 1), date(9999, 12, 31)),
    "timestamp": (datetime(1, 1, 2, tzinfo=timezone.utc), datetime(9999, 12, 30, 1, 2, 3, 4, timezone.utc)),
    "timestamp_ntz": (datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "array<bigint>": ([], [1, None, -(2**63)]),
    "array<string>": ([""], ["a", None]),
}


def test_values_of_every_type_come_out_of_delta_as_they_landed(spark: SparkSession, tmp_path: Path) -> None:
    columns = {f"c{number}": type_ for number, type_ in enumerate(LANDED_TYPES)}
    wide = schema_of("public.wide", id="int", **columns)
    landed = Landed.local(tmp_path / "landing")
    landed.table(wide)
    config = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"))

    def row(key: int, which: int | None) -> dict[str, Any]:
        values = [None if which is None else pair[which] for pair in LANDED_TYPES.values()]
        return {"id": key, **dict(zip(columns, values, strict=True))}

    first = [Event("insert", 5, 2 * key, row(key, which)) for key, which in ((1, 0), (2, 1), (3, None))]
    landed.commit(10, [landed.log(wide, first)])
    assert not merge_once(spark, config).failed  # into an empty table
    swapped = [Event("update", 15, 2 * key, row(key, which)) for key, which in ((1, 1), (2, None), (3, 0))]
    landed.commit(20, [landed.log(wide, swapped)])
    assert not merge_once(spark, config).failed  # by MERGE
    frame = spark.read.format("delta").load(f"{tmp_path}/lake/public/wide")
    found = sorted(frame.drop("_cdc").toArrow().to_pylist(), key=lambda r: r["id"])
    assert found == [row(1, 1), row(2, None), row(3, 0)]
    assert {f.name: f.dataType.simpleString() for f in frame.schema.fields if f.name in columns} == columns


def test_landing_zone_and_lake_on_s3(spark: SparkSession, s3: S3) -> None:
    client = s3.client()

    def put(path: str, data: bytes) -> None:
        client.put_object(Bucket=s3.bucket, Key=f"landing/shop/{path}", Body=data)

    landed = Landed(f"s3://{s3.bucket}/landing", put)
    landed.table(ORDERS)
    landed.commit(10, [landed.log(ORDERS, [insert(5, 1), update_of_a(6, 2, 5)])])
    config = config_of(landed.url, f"s3://{s3.bucket}/lake")
    assert not merge_once(spark, config).failed
    landed.commit(20, [landed.log(ORDERS, [delete(15, 1)])])
    assert not merge_once(spark, config).failed
    assert [tuple(r) for r in live(spark, config, T).select("id", "a", "b").collect()] == [(2, 5, None)]
    keys = [
        o["Key"]
        for o in client.list_objects_v2(Bucket=s3.bucket, Prefix="landing/shop/requests/")["Contents"]
    ]
    assert any(".json/part-" in key for key in keys)
