"""A table of which only changes are captured: it has no current rows, and belongs to exact cuts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.errors import ConfigurationError
from merge import as_of, cuts, live
from merge.lake.upkeep import upkeep
from merge.proof.explanation import explain, explain_row
from merge.proof.opened_lake import opened
from merge.proof.rebuilding import rebuild
from merge.reading.named_tables import answer
from tests.support.landing.landed import Event, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, insert

VISITS = "public.visits"
KEYLESS = replace(schema_of(VISITS, page="string"), key=())


def test_changes_of_a_table_without_a_key_are_merged_once_beside_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = Zone(spark, tmp_path, public__visits={"shapes": ["changes"]})
    zone.landed.table(KEYLESS)
    visits = [Event("insert", 11, n, {"page": "a"}) for n in (0, 2)] + [Event("delete", 12, 0, {"page": "a"})]
    zone.landed.commit(15, [zone.landed.log(ORDERS, [insert(10, 1)]), zone.landed.log(KEYLESS, visits)])
    more = [visits[-1], Event("truncate", 16, 0, {})]  # landed again, after a crash
    zone.landed.commit(20, [zone.landed.log(KEYLESS, more)])
    report = zone.merge()
    assert not report.failed
    assert {str(table.table) for table in report.tables} == {T, f"{VISITS}_changes"}
    assert report.exact
    assert zone.rows("_cdc.lsn, _cdc.seq, _cdc.op, page", "public/visits_changes") == [
        (11, 0, "insert", "a"), (11, 2, "insert", "a"), (12, 0, "delete", "a"), (16, 0, "truncate", None),
    ]  # fmt: skip
    assert not (tmp_path / "lake/public/visits").exists()
    newest = cuts(spark, zone.config).first()
    assert newest is not None
    assert set(newest["tables"]) == {T, f"{VISITS}_changes"}
    assert as_of(spark, zone.config)[f"{VISITS}_changes"].count() == 4
    assert not zone.merge().recorded
    for ask in (
        lambda: live(spark, zone.config, VISITS),
        lambda: explain(spark, zone.config, VISITS, ["a"]),
        lambda: rebuild(spark, zone.config, VISITS),
    ):
        with pytest.raises(
            ConfigurationError, match=r"only changes of .* are captured: it has no current rows"
        ):
            ask()
    assert answer(spark, zone.config, "SELECT count(*) FROM visits_changes").frame.collect() == [(4,)]
    with pytest.raises(ConfigurationError):
        answer(spark, zone.config, "SELECT * FROM visits")
    assert [row["id"] for row in live(spark, zone.config, T).collect()] == [1]


def test_a_table_without_current_rows_does_not_count_for_where_another_lies(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Their names differ only by case, and a cut names only the other one, which its readers must find."""
    keyed = schema_of("public.Visits", id="int")
    zone, name = Zone(spark, tmp_path, public__visits={"shapes": ["changes"]}), str(keyed.table)
    zone.landed.table(keyed)
    zone.landed.table(KEYLESS)
    visits = [Event("insert", 11, 0, {"page": "a"})]
    row = zone.landed.log(keyed, [Event("insert", 10, 0, {"id": 1})])
    zone.landed.commit(15, [row, zone.landed.log(KEYLESS, visits)])
    report = zone.merge()
    assert (report.exact, report.failed) == (True, [])
    assert zone.rows("id", "public/Visits") == [(1,)]
    assert as_of(spark, zone.config)[name].select("id").collect() == [(1,)]
    assert answer(spark, zone.config, "SELECT id FROM Visits").frame.collect() == [(1,)]
    assert live(spark, zone.config, name).select("id").collect() == [(1,)]
    found = explain_row(spark, zone.config, name, ["1"]).delta
    assert found is not None
    assert (found.differences, found.frame.count()) == ((), 1)
    with opened(spark, zone.config) as lake:
        assert lake.rows(keyed.table).count() == 1
    assert not rebuild(spark, zone.config, name).failed
    assert as_of(spark, zone.config)[name].select("id").collect() == [(1,)]
    assert {finding.status for finding in upkeep(spark, zone.config)} <= {"done"}
