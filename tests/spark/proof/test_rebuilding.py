"""Tables rebuilt from the landing zone, in place and into another table."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.errors import ConfigurationError, DeltatideError, GapError
from connector.landing.format import manifest_path
from merge import cuts, explain_row, merge_once, rebuild
from merge.job import MergeRun
from merge.lake import rewrite
from merge.lake.commits import USER_METADATA, Mark
from merge.lake.target import Target
from merge.proof import rebuilding
from merge.spark.session_settings import applied_settings
from tests.support.landing.landed import Chunk, Event, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, delete, insert, row, update_of_a


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


def rebuilt(zone: Zone, **options: Any) -> Any:
    return rebuild(zone.spark, zone.config, T, **options)


def forge(zone: Zone, *statements: str) -> None:
    """Change rows by commits that say that they change none."""
    table = f"delta.`{zone.folder}/lake/public/orders`"
    mark = Mark("shop", zone.landed.number, layout=True).to_json()
    for statement in statements:
        with applied_settings(zone.spark, {USER_METADATA: mark}):
            zone.spark.sql(statement.replace("{}", table))


def test_hidden_changes_are_undone_and_merges_go_on_from_there(zone: Zone) -> None:
    zone.log(10, insert(5, 1), insert(5, 2), insert(5, 3))
    assert zone.merge().exact
    forge(zone, "UPDATE {} SET b = 'wrong' WHERE id = 1", "DELETE FROM {} WHERE id = 2",
          "INSERT INTO {} SELECT 9, a, b, _cdc FROM {} WHERE id = 3")  # fmt: skip
    zone.log(20, insert(15, 4))
    zone.merge()
    assert zone.rows("id, b") == [(1, "wrong"), (3, "x"), (4, "x"), (9, "x")]
    report = rebuilt(zone)
    whole = [(1, 1, "x"), (2, 2, "x"), (3, 3, "x"), (4, 4, "x")]
    assert (report.exact, report.recorded, report.manifest, zone.rows()) == (True, True, 2, whole)
    versions = len(zone.history())
    assert not zone.merge().recorded, "there is nothing new"
    zone.log(30, delete(25, 4))
    assert zone.merge().exact
    assert (zone.rows(), len(zone.history())) == (whole[:3], versions + 1)


@pytest.mark.soak
def test_one_killed_before_its_cut_and_one_that_a_merge_overtook_leave_the_right_table(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone.begin(insert(5, 1), insert(5, 2))
    forge(zone, "DELETE FROM {} WHERE id = 1")
    with monkeypatch.context() as patched:
        patched.setattr(MergeRun, "record_cut", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rebuilt(zone)
    assert zone.rows("id") == [(1,), (2,)]
    assert cuts(zone.spark, zone.config).count() == 1
    zone.log(20, insert(15, 3))
    assert zone.merge().exact
    assert zone.rows("id") == [(1,), (2,), (3,)]

    forge(zone, "DELETE FROM {} WHERE id = 2")
    prepared = rewrite.TableJob.prepared

    def overtaken(*arguments: Any, **options: Any) -> Any:
        """Another job merges a later manifest after this one has looked at the table."""
        job = prepared(*arguments, **options)
        if zone.landed.number == 2:
            zone.log(30, delete(25, 3))
            merge_once(zone.spark, zone.config)
        return job

    monkeypatch.setattr(rewrite.TableJob, "prepared", overtaken)
    report = rebuilt(zone)
    assert (report.exact, report.manifest, zone.rows("id")) == (True, 3, [(1,), (2,)])

    zone.log(40, delete(35, 1), delete(35, 2))
    assert [rebuilt(zone).exact for _ in range(2)] == [True, True], "also of a table without rows"
    assert zone.rows("id") == []


def test_another_table_gets_the_state_after_any_manifest_and_asks_for_nothing(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone.log(10, insert(5, 1), update_of_a(6, 7, a=70))
    zone.log(20, update_of_a(15, 1, a=11), insert(16, 2))
    zone.log(30, delete(25, 1))
    report = rebuilt(zone, into="check.orders", at=2)
    assert (report.manifest, report.recorded, report.tables[0].missing) == (2, False, 1)
    assert zone.rows(table="check/orders") == [(1, 11, "x"), (2, 2, "x"), (7, 70, None)]
    assert zone.requests() == []
    assert not (zone.folder / "lake/public").exists()
    assert not (zone.folder / "lake/_deltatide").exists()
    for into, at, said in (
        ("check.orders", 3, "exists"),
        (T, None, "is the Delta table of public.orders"),
        ("check.other", 4, "manifest 4 is not in"),
        (None, 2, "can't go back"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            rebuilt(zone, into=into, at=at)
    with pytest.raises(ConfigurationError, match="has not landed"):
        rebuild(zone.spark, zone.config, "public.nothing")
    # Another rebuild had found the same place free before.
    place = Target(ORDERS.table, f"delta.`{zone.folder}/lake/check/orders`")
    monkeypatch.setattr(rebuilding, "_place_of", lambda *_: place)
    with pytest.raises(ConfigurationError, match="exists"):
        rebuilt(zone, into="check.orders", at=3)
    assert zone.rows("id", "check/orders") == [(1,), (2,), (7,)]


def test_what_is_gone_from_the_landing_zone_is_named_and_nothing_is_written(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    zone.log(20, insert(15, 2))
    zone.merge()
    (zone.folder / "landing/shop" / manifest_path(1)).unlink()
    before = len(zone.history())
    with pytest.raises(GapError, match="manifest 1 is missing") as refused:
        rebuilt(zone)
    assert "deltatide dump public.orders" in str(refused.value.hint)
    assert (len(zone.history()), zone.requests()) == (before, [])
    zone.log(25)
    zone.landed.full_dump(T, 1, low=25, started_in=4)
    zone.chunk(30, Chunk(25, 28, [row(1, 1), row(2, 2)], dump=1))
    assert rebuilt(zone).exact
    assert zone.rows() == [(1, 1, "x"), (2, 2, "x")]
    next((zone.folder / "landing/shop/data").rglob("chunk-*")).unlink()
    with pytest.raises(DeltatideError, match=r"landing file .* is missing"):
        rebuilt(zone)
    assert ORDERS.table in zone.landed.tables


@pytest.mark.soak
@pytest.mark.parametrize("merged", [True, False])
def test_rows_deleted_softly_before_the_last_full_dump_stay(
    spark: SparkSession, tmp_path: Path, merged: bool
) -> None:
    """The landing zone does not tell them any more; all other rows are as it tells.

    The full dump that deletes them has been `merged`, or has ended since the last merge.
    """
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(10, insert(5, 1), insert(5, 2), insert(5, 3), delete(6, 1))
    zone.merge()
    zone.landed.full_dump(T, 1, 18, started_in=2)
    chunk = zone.landed.chunk(ORDERS, Chunk(18, 19, [row(2, 2)]))
    zone.landed.commit(20, [zone.landed.log(ORDERS, [delete(17, 3)]), chunk])
    if merged:
        zone.merge()
        before = zone.rows("id, a, b, _cdc")
        assert [(r[0], r[3]["op"]) for r in before] == [(1, "delete"), (2, "dump"), (3, "delete")]
        forge(
            zone, "UPDATE {} SET b = 'wrong', _cdc.op = 'delete' WHERE id = 2", "DELETE FROM {} WHERE id = 1"
        )
    assert rebuilt(zone).exact
    rows = zone.rows("id, a, b, _cdc.op")
    assert rows == [(1, 1, "x", "delete"), (2, 2, "x", "dump"), (3, 3, "x", "delete")]
    if merged:
        assert zone.rows("id, a, b, _cdc") == before
        shutil.rmtree(zone.folder / "lake/public/orders")
        assert rebuilt(zone).exact
        assert zone.rows("id") == [(2,)]


@pytest.mark.soak
def test_another_table_holds_all_that_softly_deleted_rows_have(spark: SparkSession, tmp_path: Path) -> None:
    """A column was renamed in case, narrowed, or dropped before the last full dump."""
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    old = schema_of(T, id="int", a="bigint", Note="string", gone="string")
    new = schema_of(T, id="int", a="int", note="string")
    zone.landed.table(old)
    values = {"a": 5_000_000_002, "Note": "n", "gone": "g"}
    rows = [Event("insert", 5, 2 * key, {"id": key, **values}) for key in (1, 2)]
    zone.landed.commit(10, [zone.landed.log(old, rows)])
    zone.merge()
    zone.landed.commit(20, [zone.landed.log(old, [delete(15, 2)])])
    zone.merge()
    zone.landed.table(new)
    chunk = zone.landed.chunk(new, Chunk(30, 35, [{"id": 1, "a": 1, "note": "n"}], dump=7))
    zone.landed.full_dump(T, 7, 30, started_in=3)
    zone.landed.commit(40, [chunk])
    assert zone.merge().exact
    assert explain_row(spark, zone.config, T, ["1"]).delta.differences == ()
    rebuilt(zone, into="copy.orders")
    columns = "id, a, Note, gone, _cdc"
    assert zone.rows(columns, "copy/orders") == zone.rows(columns)
    assert zone.rows("id, a, Note, gone, _cdc.op", "copy/orders") == [
        (1, 1, "n", None, "dump"), (2, 5_000_000_002, "n", "g", "delete"),
    ]  # fmt: skip
