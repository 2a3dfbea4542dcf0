"""A truncate, a chunk, a sweep: which rows a merge deletes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from merge import apply, change_set, key_pruning, merge_once, table
from tests.support.landing.landed import AT, Chunk, Event, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, delete, insert, row, update_of_a
from tests.support.spark.spark_sessions import another_session


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


def gap(zone: Zone) -> None:
    """A row inserted before a gap and deleted in it; one whose `b` changed in it; then a full dump."""
    zone.log(10, insert(5, 1), insert(5, 2, b="old"))
    zone.log(20, update_of_a(3, 2, 22, epoch=2), epoch=2)
    zone.landed.full_dump(T, 7, low=2, started_in=zone.landed.number + 1, epoch=2)
    zone.chunk(9, Chunk(2, 8, [row(2, 22, "new"), row(3, 3)], dump=7, epoch=2), epoch=2)


def test_a_row_deleted_during_its_chunk_stays_deleted(zone: Zone) -> None:
    zone.log(10, insert(5, 1), insert(5, 2))
    zone.log(20, delete(15, 2))
    zone.merge()
    zone.chunk(30, Chunk(low=12, high=25, rows=[row(1, 1), row(2, 2), row(3, 3)]))
    assert zone.live() == [(1, 1, "x"), (3, 3, "x")]
    zone.merge()
    assert zone.rows() == zone.live() == [(1, 1, "x"), (3, 3, "x")]


@pytest.mark.soak
def test_a_truncate_deletes_what_is_older_and_nothing_else(zone: Zone) -> None:
    zone.begin(insert(5, 1), insert(5, 2))
    zone.log(20, insert(15, 3), Event("truncate", 16, 0, {}), insert(16, 4), insert(17, 2, a=9))
    assert zone.live() == [(2, 9, "x"), (4, 4, "x")]
    zone.merge()
    assert zone.rows() == [(2, 9, "x"), (4, 4, "x")]


@pytest.mark.parametrize("what", [pytest.param("truncate", marks=pytest.mark.soak), "sweep"])
def test_rows_that_a_slower_job_adds_between_reading_and_merging_are_deleted_too(
    zone: Zone, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Truncates and ghosts are computed from the rows that the MERGE itself finds in the table, and no bounds
    of keys, which were looked for before it, keep their deletes from such rows."""
    monkeypatch.setattr(apply, "LARGE_BYTES", 0)
    zone.log(5, insert(1, 9))
    zone.merge()
    if what == "truncate":
        zone.log(10, insert(6, 1))
        zone.log(20, Event("truncate", 15, 0, {}))
    else:
        gap(zone)
    overtaken, built = [], apply.merge_sql

    def statement(*arguments: Any) -> str:
        if not overtaken:
            overtaken.append(True)
            merge_once(another_session(zone.spark), zone.config, until=2)
            assert 1 in {found[0] for found in zone.rows("id")}
        return built(*arguments)

    monkeypatch.setattr(apply, "merge_sql", statement)
    zone.merge()
    assert overtaken
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
    zone.log(30, insert(25, 1, a=8), update_of_a(24, 4, 7), Event("truncate", 26, 0, {}))
    zone.merge()
    assert zone.rows(shown) == [(1, 8, "delete"), (2, 2, "delete"), (3, None, "delete"), (4, 7, "delete")]
    zone.chunk(31, Chunk(22, 23, [row(4, 4, "z")]))  # the truncate is merged already
    zone.merge()
    assert zone.rows("id, a, b, _cdc.op, _cdc.lsn, _cdc.missing")[3] == (4, 7, "z", "delete", 26, None)


@pytest.mark.parametrize("once", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_softly_deleted_row_says_when_until_it_is_created_anew(
    spark: SparkSession, tmp_path: Path, once: bool
) -> None:
    """However it is merged. A dump that finds a row gone says no time, nor does it change one."""
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})

    def step() -> None:
        if not once:
            zone.merge()

    zone.log(10, *[insert(5, key) for key in (1, 2, 3, 4, 6)])
    step()
    zone.log(20, *[delete(10 + key, key, committed_at=at(10 + key)) for key in (1, 2, 3)])
    step()
    zone.log(30, insert(25, 2))
    zone.chunk(40, Chunk(32, 33, [], absent=[{"id": 1}, {"id": 6}], dump=3))
    step()
    zone.log(50, insert(42, 3), Event("truncate", 44, 0, {}, committed_at=at(44)), insert(45, 7))
    zone.merge()
    found_gone = zone.landed.manifests[-1].committed_at
    times = {1: at(11), 2: at(44), 3: at(44), 4: at(44), 6: found_gone, 7: None}
    assert dict(zone.rows("id, _cdc.deleted_at")) == times
    assert zone.live() == [(7, 7, "x")]
    built_anew(zone, others=[(7, 7, "x")])
    assert dict(zone.rows("id, _cdc.deleted_at")) == {**times, 9: None}


@pytest.mark.parametrize("once", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_softly_deleted_row_that_came_again_in_a_gap_says_when_it_was_deleted_since(
    spark: SparkSession, tmp_path: Path, once: bool
) -> None:
    """By a delete (1), after an update (2), by a truncate after an update (3); 4 stayed gone."""
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(20, *[insert(5, key) for key in (1, 2, 3, 4)])
    zone.log(30, *[delete(25, key, committed_at=at(25)) for key in (1, 2, 3, 4)])
    if not once:
        zone.merge()
    since = [update_of_a(3, key, 7, epoch=2) for key in (2, 3)]
    since += [delete(4, key, epoch=2, committed_at=at(104)) for key in (1, 2)]
    since.append(Event("truncate", 6, 0, {}, epoch=2, committed_at=at(106)))
    zone.log(20, *since, insert(7, 5, epoch=2), epoch=2)
    zone.chunk(30, Chunk(22, 23, [], absent=[{"id": 4}], dump=3, epoch=2), epoch=2)
    zone.merge()
    assert [time for _, time in zone.rows("id, _cdc.deleted_at")] == [*map(at, (104, 104, 106, 25)), None]


@pytest.mark.parametrize("once", [False, True])
def test_a_row_that_a_dump_found_gone_was_deleted_by_a_truncate_if_the_dump_may_have_read_after_it(
    spark: SparkSession, tmp_path: Path, once: bool
) -> None:
    """Row 1; before the truncate, a logged delete took 2, and only an earlier dump has seen 3 and 4 gone."""
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(10, *[insert(5, key) for key in (1, 2, 3, 4)], delete(7, 2, committed_at=at(7)))
    zone.chunk(24, Chunk(20, 24, [], absent=[{"id": 3}, {"id": 4}], dump=3))
    zone.log(27, Event("truncate", 26, 0, {}, committed_at=at(26)))
    if not once:
        zone.merge()
    zone.chunk(28, Chunk(22, 28, [], absent=[{"id": 1}, {"id": 2}, {"id": 4}], dump=4))
    zone.merge()
    found_gone = zone.landed.manifests[-1].committed_at
    times = [(1, at(26), at(26)), (2, None, at(7)), *[(key, None, found_gone) for key in (3, 4)]]
    assert zone.rows("id, _cdc.committed_at, _cdc.deleted_at") == times


def test_rows_that_were_deleted_before_a_table_had_the_field_get_a_time_when_it_is_built_anew(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(10, *[insert(5, key) for key in (1, 2, 3, 4)])
    with monkeypatch.context() as former:
        timeless = F.col("_cdc").withField("deleted_at", F.lit(None).cast("timestamp"))
        former.setattr(table, "with_deleted_at", lambda rows, _: rows.withColumn("_cdc", timeless))
        zone.merge()
        zone.log(20, *[delete(15, key, committed_at=at(15)) for key in (1, 2)])
        zone.chunk(30, Chunk(22, 23, [], absent=[{"id": 4}], dump=3))
        zone.merge()
    assert dict(zone.rows("id, _cdc.deleted_at")) == {1: None, 2: None, 3: None, 4: None}
    zone.chunk(40, Chunk(32, 33, [], absent=[{"id": 2}], dump=4))
    zone.merge()
    assert dict(zone.rows("id, _cdc.deleted_at")) == {1: None, 2: at(15), 3: None, 4: None}
    built_anew(zone)
    times = {1: at(15), 2: at(15), 3: None, 4: zone.landed.manifests[-1].committed_at, 9: None}
    assert dict(zone.rows("id, _cdc.deleted_at")) == times


def at(seconds: int) -> datetime:
    return AT + timedelta(seconds=seconds)


def test_a_table_gets_the_time_of_deletes_with_its_first_soft_merge_and_keeps_the_field(
    spark: SparkSession, tmp_path: Path
) -> None:
    hard, soft = (Zone(spark, tmp_path, public__orders={"deletes": each}) for each in ("hard", "soft"))
    hard.log(10, insert(5, 1), insert(5, 2))
    hard.merge()
    soft.landed = hard.landed
    soft.log(20, delete(15, 1, committed_at=at(15)))
    soft.merge()
    assert soft.rows("id, _cdc.deleted_at") == [(1, at(15)), (2, None)]
    hard.log(30, insert(25, 1), insert(25, 3), delete(26, 2))
    hard.merge()
    assert hard.rows("id, _cdc.op, _cdc.deleted_at") == [(1, "insert", None), (3, "insert", None)]
    assert hard.live() == [(1, 1, "x"), (3, 3, "x")]


@pytest.mark.soak
def test_a_soft_deleted_row_gets_its_values_from_a_chunk_after_its_delete_was_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Deleted while the first dump runs; the merge of both manifests at once gives the same."""
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(140, delete(130, 2), update_of_a(120, 4, 7), delete(130, 4))
    zone.merge()
    shown = "id, a, b, _cdc.lsn, _cdc.missing"
    assert zone.rows(shown) == [(2, None, None, 130, ["a", "b"]), (4, 7, None, 130, ["b"])]
    zone.landed.full_dump(T, 1, 100, started_in=1)
    zone.chunk(150, Chunk(100, 145, [row(1, 1), row(2, 2, "y"), row(4, 4, "z")]))
    assert zone.merge().exact
    assert zone.rows(shown)[1:] == [(2, 2, "y", 130, None), (4, 7, "z", 130, None)]
    assert zone.live() == [(1, 1, "x")]


@pytest.mark.soak
def test_a_truncate_deletes_softly_only_the_rows_that_it_finds(spark: SparkSession, tmp_path: Path) -> None:
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(15, insert(10, 4), insert(10, 5), delete(11, 5))
    zone.merge()
    zone.log(25, insert(16, 1), insert(16, 2), delete(20, 1), delete(21, 4))
    zone.log(40, Event("truncate", 30, 0, {}), insert(32, 3), Event("truncate", 35, 0, {}))
    zone.merge()
    assert zone.rows("id, a, _cdc.lsn") == [(1, 1, 20), (2, 2, 30), (3, 3, 35), (4, 4, 21), (5, 5, 11)]
    assert not zone.live()


@pytest.mark.soak
def test_a_soft_deleted_row_has_its_last_values_however_merged_and_built_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also what came and went in one merge, and what a rebuild does not read since a full dump."""
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    rows = [insert(5, key) for key in (0, 1, 2, 3)]
    zone.log(10, *rows, insert(6, 4, b="y"), delete(7, 4))
    zone.merge()
    zone.log(20, update_of_a(13, 1, a=11), delete(14, 1), delete(15, 2), insert(16, 5), delete(17, 5))
    report = zone.merge()
    gone = [(1, 11, "x"), (2, 2, "x"), (4, 4, "y"), (5, 5, "x")]
    assert report.exact
    assert deleted(zone) == gone
    built_anew(zone)
    assert deleted(zone) == gone
    zone.landed.full_dump(T, 1, 38, started_in=zone.landed.number + 1)
    chunk = zone.landed.chunk(ORDERS, Chunk(38, 43, [row(3, 3)]))
    zone.landed.commit(45, [zone.landed.log(ORDERS, [delete(40, 0)]), chunk])
    zone.log(50, insert(47, 2, a=22))
    zone.merge()
    built_anew(zone)
    assert deleted(zone) == [(0, 0, "x"), (1, 11, "x"), (4, 4, "y"), (5, 5, "x")]
    assert zone.live() == [(2, 22, "x"), (3, 3, "x"), (9, 9, "x")]


def deleted(zone: Zone) -> list[tuple[Any, ...]]:
    """The rows marked as deleted; none of them says that it waits for a column."""
    found = zone.rows("id, a, b, _cdc.op, _cdc.missing")
    assert not [r for r in found if r[4] is not None]
    return [r[:3] for r in found if r[3] == "delete"]


def built_anew(zone: Zone, others: Sequence[tuple[Any, ...]] = ((3, 3, "x"),)) -> None:
    """Somebody else changes the table, and the next merge rewrites it."""
    zone.spark.sql(f"UPDATE delta.`{zone.folder}/lake/public/orders` SET b = 'mine' WHERE id IN (3, 7)")
    position = zone.landed.manifests[-1].position
    zone.log(position + 10, insert(position + 5, 9))
    assert zone.merge().exact
    alive = [found[:3] for found in zone.rows("id, a, b, _cdc.op") if found[3] != "delete"]
    assert alive[-2:] == [*others, (9, 9, "x")]


def test_after_a_gap_a_full_dump_sweeps_ghosts_and_fixes_what_changed_unseen(zone: Zone) -> None:
    gap(zone)
    zone.merge(until=2)
    assert zone.rows() == [(1, 1, "x"), (2, 22, "old")]
    assert zone.live() == [(2, 22, "new"), (3, 3, "x")]
    zone.merge()
    assert zone.rows() == [(2, 22, "new"), (3, 3, "x")]


@pytest.mark.soak
def test_log_that_lands_again_after_a_full_dump_brings_no_ghost_back(zone: Zone) -> None:
    zone.log(19, insert(18, 9))
    zone.merge()
    zone.landed.full_dump(T, 2, 25, started_in=2)
    zone.chunk(30, Chunk(25, 28, [row(1, 1)], dump=2))
    zone.merge()
    zone.log(40, insert(18, 9), update_of_a(24, 1, a=7), insert(35, 3))
    assert zone.live() == [(1, 1, "x"), (3, 3, "x")]
    assert zone.merge().exact
    assert zone.rows() == [(1, 1, "x"), (3, 3, "x")]


def test_a_table_built_anew_over_a_gap_has_no_ghosts(zone: Zone) -> None:
    gap(zone)
    assert zone.live() == [(2, 22, "new"), (3, 3, "x")]
    zone.merge()
    assert zone.rows() == [(2, 22, "new"), (3, 3, "x")]


@pytest.mark.parametrize("soft", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_first_load_takes_dumped_rows_as_they_are_unless_another_file_has_their_key(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soft: bool
) -> None:
    """Two chunks of a dump; log from during it: an update without `b`, a delete, an insert; an older one."""
    zone = Zone(spark, tmp_path, **({"public__orders": {"deletes": "soft"}} if soft else {}))
    monkeypatch.setattr(change_set, "PARTITION_BYTES", 1)
    monkeypatch.setattr(change_set, "FEW_DUMPED", 0)
    zone.log(20, update_of_a(6, 5, 50), update_of_a(15, 2, 20), delete(16, 3), insert(17, 9))
    zone.landed.full_dump(T, 1, low=10, started_in=1)
    chunks = [Chunk(10, 20, [row(k, k, f"b{k}") for k in ks]) for ks in ((1, 2, 3), (4, 5))]
    zone.chunk(30, *chunks)
    sorted_rows, merged = [], change_set.reconcile

    def reconciled(events: Any, *arguments: Any, **options: Any) -> Any:
        sorted_rows.append(events.count())
        return merged(events, *arguments, **options)

    monkeypatch.setattr(change_set, "reconcile", reconciled)
    zone.merge()
    kept = [(3, 3, "b3")] if soft else []
    assert zone.rows() == [(1, 1, "b1"), (2, 20, "b2"), *kept, (4, 4, "b4"), (5, 5, "b5"), (9, 9, "x")]
    assert sorted_rows == [3 + 2]  # the log since the dump began, and the dumped rows of its keys
    details = "_cdc.op, _cdc.lsn, _cdc.missing IS NULL AND _cdc.raw IS NULL"
    assert zone.rows(f"id, {details}")[:2] == [(1, "dump", 10, True), (2, "update", 15, True)]
    assert len(list((tmp_path / "lake/public/orders").glob("*.parquet"))) >= 2  # ranges of chunks


def test_a_first_load_of_one_chunk_alone_takes_its_rows_as_they_are(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One SELECT has no key twice, unless different keys are the same number in the target."""
    zone, sorted_columns, merged = Zone(spark, tmp_path), [], change_set.reconcile

    def reconciled(events: Any, key: Any, columns: Any, **options: Any) -> Any:
        sorted_columns.append(columns)
        return merged(events, key, columns, **options)

    monkeypatch.setattr(change_set, "reconcile", reconciled)
    zone.landed.tables.pop(ORDERS.table)
    files = []
    for number, (name, type_, keys) in enumerate(
        [("whole", "bigint", (1, 2)), ("widened", "double", (2.0**53, 2.0**53))], 1
    ):
        schema = schema_of(f"public.{name}", id=type_, **{name: "int"})
        zone.landed.table(schema)
        zone.landed.full_dump(str(schema.table), number, low=10, started_in=1)
        rows = [{"id": key, name: 7} for key in keys]
        files.append(zone.landed.chunk(schema, Chunk(10, 20, rows, dump=number)))
    zone.landed.commit(20, files)
    assert not zone.merge().failed
    assert sorted_columns == [["widened"]]
    assert zone.rows("id, _cdc.op, _cdc.lsn", "public/whole") == [(1, "dump", 10), (2, "dump", 10)]
    assert zone.rows("id", "public/widened") == [(2.0**53,)]


def test_a_first_load_of_rows_dumped_twice_reconciles_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_set, "FEW_DUMPED", 0)
    zone = Zone(spark, tmp_path)
    zone.landed.full_dump(T, 1, low=10, started_in=1)
    zone.chunk(20, Chunk(10, 20, [row(1, 1), row(2, 2)]))
    zone.landed.full_dump(T, 2, low=30, started_in=2)
    zone.chunk(40, Chunk(30, 40, [row(1, 7)], dump=2))
    zone.merge()
    assert zone.rows("id, a") == [(1, 7)]


def test_a_first_load_of_a_dump_that_started_over_with_other_ranges_reconciles_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dump keeps its id. Before a failover: chunk 1 with rows 3, 4; after it: chunk 0 with rows 1 to 4."""
    monkeypatch.setattr(change_set, "FEW_DUMPED", 0)
    zone = Zone(spark, tmp_path)
    before = Chunk(10, 20, [row(3, 3), row(4, 4)], dump=1)
    after = Chunk(30, 40, [row(k, 10 * k) for k in (1, 2, 3, 4)], dump=2, epoch=2)
    for number, (position, chunk) in zip((1, 0), ((20, before), (40, after)), strict=True):
        zone.landed.full_dump(T, chunk.dump, chunk.low, started_in=1, epoch=chunk.epoch)
        running = {"id": "dump-1", "state": "running", "finished_in": None}
        zone.landed.dumps[:] = [zone.landed.dumps[-1].model_copy(update=running)]
        state = zone.landed.tables[ORDERS.table]
        zone.landed.tables[ORDERS.table] = state.changed(full_dump=None)  # more chunks are to come
        file = zone.landed.chunk(ORDERS, chunk).model_copy(update={"dump": "dump-1", "chunk": number})
        zone.landed.commit(position, [file], epoch=chunk.epoch)
    zone.merge()
    assert zone.rows("id, a") == [(1, 10), (2, 20), (3, 30), (4, 40)]


def test_a_key_that_a_dump_has_twice_is_in_the_table_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_set, "FEW_DUMPED", 0)
    zone = Zone(spark, tmp_path)
    zone.landed.full_dump(T, 1, low=10, started_in=1)
    zone.chunk(20, Chunk(10, 20, [row(1, 1), row(2, 2)]), Chunk(12, 20, [row(2, 22), row(3, 3)]))
    zone.merge()
    assert zone.rows("id, a") == [(1, 1), (2, 22), (3, 3)]


def test_chunks_with_ranges_of_their_own_need_no_comparing_of_keys(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table for each case, with a column of its name: the keys of its chunks, whether they are apart.

    Chunks are read for that only if their manifest does not name their least and greatest keys.
    """
    cases = {
        "ascending": (([1, 2], [3, 4], [5, 6], [7, 8]), True),
        "descending": (([7, 8], [5, 6], [3, 4], [1, 2]), True),
        "touching": (([1, 3], [3, 4], [5, 6], [7, 8]), False),
        "overlapping": (([1, 9], [3, 4], [5, 6], [7, 8]), False),
    }
    recorded = {f"recorded_{name}": case for name, case in cases.items()}
    zone, found, asked, files = Zone(spark, tmp_path), {}, change_set._disjoint, []

    def disjoint(events: Any, layout: Any, chunks: int) -> bool:
        (name,) = cases.keys() & layout.columns.keys()
        found[name] = asked(events, layout, chunks)
        return found[name]

    monkeypatch.setattr(change_set, "FEW_DUMPED", 0)
    monkeypatch.setattr(change_set, "_disjoint", disjoint)
    zone.landed.tables.pop(ORDERS.table)
    for number, (name, (chunks, _)) in enumerate((cases | recorded).items(), 1):
        schema = schema_of(f"public.{name}", id="int", **{name: "int"})
        zone.landed.table(schema)
        zone.landed.full_dump(str(schema.table), number, low=10, started_in=1)
        for keys in chunks:
            rows = [{"id": key, name: key} for key in keys]
            file = zone.landed.chunk(schema, Chunk(10, 20, rows, dump=number))
            assert file.key_span == (min(keys), max(keys))
            files.append(file if name in recorded else file.model_copy(update={"key_span": None}))
    zone.landed.commit(20, files)
    monkeypatch.setattr(change_set, "PARTITION_BYTES", 2 * max(file.bytes for file in files) + 1)
    assert not zone.merge().failed
    assert found == {name: apart for name, (_, apart) in cases.items()}
    for name, (chunks, apart) in (cases | recorded).items():
        assert zone.rows("id", f"public/{name}") == sorted({(key,) for keys in chunks for key in keys})
        if apart:  # of two neighboring chunks each
            assert len(list((tmp_path / "lake/public" / name).glob("*.parquet"))) == 2, name


def test_a_key_that_somebody_widens_before_the_merge_matches_nevertheless(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spark.version < "4":
        pytest.skip("Delta 3 widens no integer to bigint")
    zone, built = Zone(spark, tmp_path), apply.merge_sql
    monkeypatch.setattr(apply, "LARGE_BYTES", -1)
    monkeypatch.setattr(key_pruning, "FEW_KEYS", 0)
    zone.log(10, insert(5, 1), insert(5, 2))
    zone.merge()

    def widened(*arguments: Any) -> str:
        name = f"delta.`{tmp_path}/lake/public/orders`"
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
        spark.sql(f"ALTER TABLE {name} ALTER COLUMN id TYPE bigint")
        return built(*arguments)

    monkeypatch.setattr(apply, "merge_sql", widened)
    zone.log(20, insert(15, 1, 100), insert(15, 2, 200))
    zone.merge()
    assert zone.rows("id, a") == [(1, 100), (2, 200)]
