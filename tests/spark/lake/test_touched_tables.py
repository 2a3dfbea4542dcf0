"""Delta tables that somebody touched: restored, written to, dropped, replaced; and the cuts of before."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from connector.errors import ConfigurationError
from connector.schema import TableSchema
from merge import apply as applying
from merge import as_of, cuts, live, table
from merge.lake import control_table
from merge.lake.commits import Mark
from merge.report import TableProgress
from merge.spark.session_settings import all_settings
from tests.support.landing.landed import Chunk, Event, Landed, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, delete, insert, row, update_of_a
from tests.support.spark.spark_sessions import forget_delta_logs, require_own_sessions


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


def name(zone: Zone) -> str:
    return f"delta.`{zone.folder}/lake/public/orders`"


def ids(frame: Any) -> list[int]:
    return sorted(found["id"] for found in frame.collect())


def test_a_restored_table_is_built_anew_and_its_cuts_stay(zone: Zone) -> None:
    zone.begin(insert(5, 1), insert(5, 2))
    zone.log(20, delete(15, 1))
    zone.merge()
    zone.spark.sql(f"RESTORE TABLE {name(zone)} TO VERSION AS OF 1")
    assert ids(zone.spark.table(name(zone))) == [1, 2]
    zone.log(30, insert(25, 3))
    assert [found[0] for found in zone.live()] == [2, 3]
    report = zone.merge()
    assert (report.failed, report.exact) == ([], True)
    assert zone.rows("id") == [(2,), (3,)]
    assert [ids(as_of(zone.spark, zone.config, n)[T]) for n in (1, 2, 3)] == [[1, 2], [2], [2, 3]]
    versions = len(zone.history())
    zone.log(40, insert(35, 4))
    zone.merge()
    assert zone.rows("id") == [(2,), (3,), (4,)]
    assert len(zone.history()) == versions + 1  # it goes on from there


def test_rows_that_somebody_else_changed_are_built_anew(zone: Zone) -> None:
    zone.begin(insert(5, 1), insert(5, 2))
    zone.spark.sql(f"UPDATE {name(zone)} SET a = 0")
    zone.log(20, insert(15, 3))
    assert zone.live() == [(1, 1, "x"), (2, 2, "x"), (3, 3, "x")]
    assert zone.merge().exact
    assert zone.rows() == [(1, 1, "x"), (2, 2, "x"), (3, 3, "x")]


@pytest.mark.soak
def test_a_dropped_table_whose_rebuild_failed_half_way_is_built_whole(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone.begin(insert(5, 1))
    shutil.rmtree(zone.folder / "lake/public/orders")
    zone.log(20, insert(15, 2))
    with monkeypatch.context() as patched:
        patched.setattr(table, "apply", killed)
        with pytest.raises(KeyboardInterrupt):
            zone.merge()
    assert zone.rows("id") == []  # created, and nothing in it
    zone.log(30, insert(25, 3))
    assert zone.merge().exact
    assert zone.rows("id") == [(1,), (2,), (3,)]
    with pytest.raises(ConfigurationError, match="dropped or replaced after the cut of manifest 1"):
        as_of(zone.spark, zone.config, 1)
    newest = cuts(zone.spark, zone.config).collect()[0]["manifest"]
    assert ids(as_of(zone.spark, zone.config, newest)[T]) == [1, 2, 3]


def killed(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_the_control_table_may_be_lost(zone: Zone) -> None:
    zone.begin(insert(5, 1), insert(5, 2))
    zone.log(20, delete(15, 2))
    zone.merge()
    shutil.rmtree(zone.folder / "lake/_deltatide")
    zone.log(30, insert(25, 3))
    assert zone.merge().exact
    assert zone.rows("id") == [(1,), (3,)]
    assert ids(as_of(zone.spark, zone.config, 3)[T]) == [1, 3]


@pytest.mark.soak
def test_a_job_that_was_overtaken_leaves_the_exact_cut_of_its_manifest_as_it_is(zone: Zone) -> None:
    other = schema_of("public.other", id="int", v="int")
    zone.landed.table(other)

    def commit(n: int, *tables: TableSchema) -> None:
        event = Event("insert", 10 * n - 5, 0, {"id": n, "a": n, "b": "x", "v": n})
        zone.landed.commit(10 * n, [zone.landed.log(table, [event]) for table in tables])

    commit(1, ORDERS, other)
    zone.merge()
    commit(2, ORDERS, other)
    due = [True]

    def overtake(step: TableProgress) -> None:
        if step.table == ORDERS.table and step.step == "merging" and due:
            due.clear()
            assert zone.merge().exact
            commit(3, ORDERS)
            assert zone.merge().exact

    assert not zone.merge(until=2, progress=overtake).exact
    listed = {row["manifest"]: row["exact"] for row in cuts(zone.spark, zone.config).collect()}
    assert listed == {1: True, 2: True, 3: True}
    assert {str(table): ids(frame) for table, frame in as_of(zone.spark, zone.config, 2).items()} == {
        T: [1, 2],
        "public.other": [1, 2],
    }


@pytest.mark.soak
def test_a_lake_of_another_landing_zone_is_refused_though_its_cuts_are_lost(zone: Zone) -> None:
    """Its fences would skip what has landed in the new one, up to the number that the old one had."""
    zone.log(10, insert(5, 1))
    zone.log(20, insert(15, 2))
    assert zone.merge().exact
    for gone in ("lake/_deltatide", "landing"):
        shutil.rmtree(zone.folder / gone)
    zone.landed = Landed.local(zone.folder / "landing", writer="another-")
    zone.landed.table(ORDERS)
    for number in (3, 4, 5):
        zone.log(10 * number, insert(10 * number - 5, number))
        if number != 4:
            (failed,) = zone.merge().failed
            assert "manifest 2 of another landing zone" in str(failed.error)
    assert [found[0] for found in zone.live()] == [3, 4, 5]
    shutil.rmtree(zone.folder / "lake/public/orders")  # as the hint says
    assert "drop that Delta table" in str(failed.hint)
    assert zone.merge().exact
    assert zone.rows("id") == [(3,), (4,), (5,)]


def test_a_live_frame_keeps_the_state_it_was_made_at(zone: Zone) -> None:
    zone.begin(insert(5, 1), insert(5, 2))
    idle = live(zone.spark, zone.config, T)
    zone.log(20, insert(15, 3))
    frame = live(zone.spark, zone.config, T)
    zone.log(30, delete(25, 1), delete(25, 3))
    zone.merge()
    zone.spark.sql(f"DELETE FROM {name(zone)}")
    assert (ids(idle), ids(frame)) == ([1, 2], [1, 2, 3])


def test_the_callers_session_is_left_as_it_was_and_its_commits_are_its_own(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller writes to a table of its own in the midst of the merge's commit; another merge fails."""
    require_own_sessions(zone.spark)
    zone.log(10, insert(5, 1))
    mine = f"delta.`{zone.folder}/mine`"
    zone.spark.sql(f"CREATE TABLE {mine} (id int) USING DELTA")
    applied_settings = applying.applied_settings

    @contextmanager
    def meanwhile(spark: Any, settings: Any) -> Iterator[None]:
        with applied_settings(spark, settings):
            if settings:
                zone.spark.sql(f"INSERT INTO {mine} VALUES (1)")
            yield

    monkeypatch.setattr(applying, "applied_settings", meanwhile)
    zone.spark.conf.set("deltatide.test", "kept")
    before = all_settings(zone.spark)
    zone.merge()
    with monkeypatch.context() as patched:
        patched.setattr(table, "apply", killed)
        zone.log(20, insert(15, 2))
        with pytest.raises(KeyboardInterrupt):
            zone.merge()
    after = all_settings(zone.spark)
    last = "spark.databricks.delta.lastCommitVersionInSession"
    assert {k: v for k, v in after.items() if k != last} == {k: v for k, v in before.items() if k != last}
    assert SparkSession.getActiveSession() is zone.spark
    zone.merge()
    assert zone.spark.table(mine).count() == 2
    for table_name in (mine, f"delta.`{zone.folder}/lake/_deltatide/cuts`"):
        history = zone.spark.sql(f"DESCRIBE HISTORY {table_name}").collect()
        assert [row["userMetadata"] for row in history] == [None] * len(history)
        states = zone.spark.read.json(f"{table_name.split('`')[1]}/_delta_log/*.json")
        assert "txn" not in states.columns


@pytest.mark.soak
def test_rows_that_an_answer_did_not_fill_keep_cuts_inexact_and_are_asked_for_again(zone: Zone) -> None:
    """The dump ran before the row's commit was visible, and answered that there is none."""
    zone.log(10, update_of_a(5, 1, 7))
    assert not zone.merge().exact
    (request,) = zone.requests()
    for part in (zone.folder / "landing/shop/requests").glob("*.json/*"):
        part.unlink()
    zone.chunk(20, Chunk(low=4, high=15, rows=[row(2, 2)], absent=[{"id": 1}]))
    report = zone.merge()
    assert (report.exact, report.tables[0].missing) == (False, 1)
    zone.log(30)
    report = zone.merge()
    assert (report.exact, report.tables[0].missing) == (False, 1)
    (again,) = zone.requests()
    assert again["keys"] == request["keys"]
    zone.log(40, insert(35, 3))
    assert not zone.merge().exact
    assert len(zone.requests()) == 1  # it waits
    for part in (zone.folder / "landing/shop/requests").glob("*.json/*"):
        part.unlink()
    zone.chunk(50, Chunk(low=45, high=48, rows=[row(1, 7, "found")]))
    assert zone.merge().exact


def test_columns_go_by_name_into_a_table_that_is_empty(zone: Zone) -> None:
    zone.log(10)
    zone.merge()
    wide = schema_of(T, c="string", id="int", a="int", b="string")
    zone.landed.table(wide)
    event = Event("insert", 15, 0, {"id": 1, "a": 2, "b": "b", "c": "c"})
    zone.landed.commit(20, [zone.landed.log(wide, [event])])
    assert zone.merge().exact
    assert zone.rows("id, a, b, c, _cdc.op") == [(1, 2, "b", "c", "insert")]


@pytest.mark.soak
def test_columns_go_by_name_into_a_table_that_is_built_anew_after_it_lost_one(zone: Zone) -> None:
    """The Delta table keeps the column, behind `_cdc`; what has landed since the dump does not have it."""
    zone.begin(insert(5, 1))
    wide = schema_of(T, id="int", a="int", late="string", gone="string", b="string")
    zone.landed.table(wide)
    event = Event("insert", 15, 0, {"id": 2, "a": 2, "late": "l", "gone": "g", "b": "b"})
    zone.landed.commit(20, [zone.landed.log(wide, [event])])
    assert zone.merge().exact
    narrow = schema_of(T, late="string", id="int", a="int", b="string")
    zone.landed.table(narrow)
    zone.landed.full_dump(T, 1, 28, started_in=3)
    rows = [{"id": n, "a": n, "late": f"l{n}", "b": "c"} for n in (1, 2)]
    zone.landed.commit(30, [zone.landed.chunk(narrow, Chunk(28, 29, rows))])
    assert zone.merge().exact
    zone.spark.sql(f"UPDATE {name(zone)} SET a = 0")
    event = Event("insert", 35, 0, {"id": 3, "a": 3, "late": "l3", "b": "x"})
    zone.landed.commit(40, [zone.landed.log(narrow, [event])])
    assert zone.merge().exact
    columns = [column for column, _ in zone.spark.table(name(zone)).dtypes]
    assert columns == ["id", "a", "b", "_cdc", "late", "gone"]
    assert zone.rows("id, a, b, late, gone, _cdc.op") == [
        (1, 1, "c", "l1", None, "dump"), (2, 2, "c", "l2", None, "dump"), (3, 3, "x", "l3", None, "insert"),
    ]  # fmt: skip


def put_back(zone: Zone) -> None:
    shutil.rmtree(zone.folder / "lake/public/orders")
    shutil.copytree(zone.folder / "copy", zone.folder / "lake/public/orders")
    forget_delta_logs(zone.spark)


@pytest.mark.soak
def test_a_cut_of_before_files_were_put_back_is_refused_not_shown_with_other_rows(zone: Zone) -> None:
    """The next merge gives the cut's version again, to a state of its own."""
    zone.begin(insert(5, 1))
    shutil.copytree(zone.folder / "lake/public/orders", zone.folder / "copy")
    zone.log(20, insert(15, 2))
    zone.merge()
    put_back(zone)
    with pytest.raises(ConfigurationError, match="lost its version 2") as refused:
        as_of(zone.spark, zone.config, 2)
    zone.log(30, insert(25, 9))
    assert zone.merge().exact
    with pytest.raises(ConfigurationError, match="lost its version 2"):
        as_of(zone.spark, zone.config, 2)
    assert "after the cut of manifest 2" in str(refused.value)
    assert "choose a newer cut" in (refused.value.hint or "")
    assert [ids(as_of(zone.spark, zone.config, n)[T]) for n in (1, 3)] == [[1], [1, 2, 9]]


@pytest.mark.soak
def test_the_hint_of_a_refused_cut_leads_out_though_the_table_does_not_change(zone: Zone) -> None:
    zone.begin(insert(5, 1))
    shutil.rmtree(zone.folder / "lake/public/orders")
    zone.log(20)
    assert zone.merge().exact  # an idle table is not looked at
    with pytest.raises(
        ConfigurationError, match="dropped or replaced after the cut of manifest 2"
    ) as refused:
        as_of(zone.spark, zone.config, 2)
    assert f"deltatide dump {T}" in (refused.value.hint or "")
    zone.landed.full_dump(T, 1, 21, started_in=3)
    zone.chunk(30, Chunk(21, 25, [row(1, 1)]))
    assert zone.merge().exact
    assert ids(as_of(zone.spark, zone.config, 3)[T]) == [1]


@pytest.mark.parametrize(
    "since", [*(pytest.param(since, marks=pytest.mark.soak) for since in ("now", "a week ago")), "vacuumed"]
)
def test_what_somebody_else_wrote_does_not_survive_in_rows_that_are_deleted(
    spark: SparkSession, tmp_path: Path, since: str
) -> None:
    """A rebuild goes on from the frontier's version; if its files are gone, from the landing zone."""
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(10, insert(5, 1), insert(5, 2), insert(5, 3), delete(6, 3))
    zone.merge()
    spark.sql(f"UPDATE {name(zone)} SET b = 'mine' WHERE id <> 2")
    spark.sql(f"INSERT INTO {name(zone)} SELECT 77, 7, 'forged', _cdc FROM {name(zone)} WHERE id = 2")
    if since != "now":
        spark.sql(
            f"ALTER TABLE {name(zone)} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = '0 hours')"
        )
    if since == "vacuumed":
        spark.sql(f"DELETE FROM {name(zone)}")
        spark.sql(f"VACUUM {name(zone)}")
    # Row 1 is deleted between the low watermark of a full dump and the snapshot of its chunk.
    zone.landed.full_dump(T, 1, 28, started_in=2)
    chunk = zone.landed.chunk(ORDERS, Chunk(28, 33, [row(2, 2)]))
    zone.landed.commit(40, [zone.landed.log(ORDERS, [delete(30, 1)]), chunk])
    assert zone.merge().exact
    gone = [(1, None, None, "delete"), (2, 2, "x", "dump")]
    kept = [(1, 1, "x", "delete"), (2, 2, "x", "dump"), (3, 3, "x", "delete")]
    assert zone.rows("id, a, b, _cdc.op") == (gone if since == "vacuumed" else kept)


@pytest.mark.soak
def test_a_file_missing_for_an_instant_does_not_cost_a_rebuild_the_deleted_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(10, insert(5, 1), insert(5, 2), delete(6, 1))
    zone.merge()
    spark.sql(f"UPDATE {name(zone)} SET b = 'mine' WHERE id = 2")
    zone.landed.full_dump(T, 1, 18, started_in=2)
    zone.chunk(20, Chunk(18, 19, [row(2, 2)]))
    apply = table.apply

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.setattr(table, "apply", rebuilt)
        return apply(*arguments)

    def rebuilt(*_: Any) -> Any:
        monkeypatch.setattr(table, "apply", apply)
        raise PySparkException("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file")

    monkeypatch.setattr(table, "apply", interrupted)
    (failed,) = zone.merge().failed
    assert "FILE_NOT_EXIST" in str(failed.error)
    assert zone.merge().exact
    assert zone.rows("id, a, b, _cdc.op") == [(1, 1, "x", "delete"), (2, 2, "x", "dump")]


@pytest.mark.soak
def test_a_table_captured_again_goes_on_from_the_last_version_that_a_cut_recorded(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest cuts don't name it, its history's beginning is gone; only its last version has row 1."""
    monkeypatch.setattr(control_table, "ROWS_READ", 1)
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(10, insert(5, 1), insert(5, 2), delete(6, 1))
    zone.merge()
    zone.landed.tables.pop(ORDERS.table)
    zone.landed.table(schema_of("public.other", id="int"))
    zone.log(20)
    zone.merge()
    spark.sql(f"ALTER TABLE {name(zone)} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    (zone.folder / f"lake/public/orders/_delta_log/{0:020}.json").unlink()
    zone.landed.table(ORDERS)
    zone.landed.full_dump(T, 1, 28, started_in=3)
    zone.chunk(30, Chunk(28, 29, [row(2, 2)]))
    assert not zone.merge().failed
    assert zone.rows("id, a, b, _cdc.op") == [(1, 1, "x", "delete"), (2, 2, "x", "dump")]
    mark = Mark.parse(zone.history()[-1].userMetadata, "shop")
    assert mark is not None
    assert not mark.rebuilt


@pytest.mark.soak
@pytest.mark.parametrize("how", ["RESTORE", "restored"])
def test_rows_deleted_after_the_version_that_a_table_was_put_back_to_stay_marked(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    """Neither the landing zone since the last full dump nor the table as it is now has their delete."""
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(10, insert(5, 1), insert(5, 2))
    zone.merge()
    first = zone.history()[-1].version
    shutil.copytree(tmp_path / "lake/public/orders", tmp_path / "copy")
    zone.log(20, delete(15, 1))
    zone.merge()
    zone.landed.full_dump(T, 1, 28, started_in=3)
    zone.chunk(30, Chunk(28, 29, [row(2, 2)]))
    zone.merge()
    if how == "RESTORE":
        spark.sql(f"RESTORE TABLE {name(zone)} TO VERSION AS OF {first}")
    else:
        put_back(zone)
        spark.sql(f"UPDATE {name(zone)} SET b = 'mine'")
    zone.log(40, insert(35, 9))
    assert zone.merge().exact
    assert zone.rows("id, a, b, _cdc.op") == [
        (1, 1, "x", "delete"),
        (2, 2, "x", "dump"),
        (9, 9, "x", "insert"),
    ]


@pytest.mark.soak
def test_a_table_put_back_as_it_was_without_rows_is_built_anew_though_we_altered_it_since(zone: Zone) -> None:
    """The ALTER takes the version that the first rows had. All commits of a merge name its manifest."""
    zone.log(10)
    zone.merge()
    shutil.copytree(zone.folder / "lake/public/orders", zone.folder / "copy")
    zone.log(20, insert(15, 1))
    zone.merge()
    put_back(zone)
    wider = schema_of(T, id="int", a="int", b="string", c="string")
    zone.landed.table(wider)
    event = Event("insert", 25, 4, {"id": 2, "a": 2, "b": "x", "c": "new"})
    zone.landed.commit(30, [zone.landed.log(wider, [event])])
    assert zone.merge().exact
    assert zone.rows("id, c") == [(1, None), (2, "new")]
    marks = [Mark.parse(made.userMetadata, "shop") for made in zone.history()]
    assert [mark and (mark.manifest, mark.layout) for mark in marks][:3] == [(1, True), (3, True), (3, False)]
