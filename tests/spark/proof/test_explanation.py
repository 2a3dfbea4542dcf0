"""One row explained: its events with their verdicts, the row that results, and the row in Delta."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from connector.cli.explain import exit_status, print_explanation
from connector.errors import ConfigurationError
from merge import explain, explain_row
from merge.lake.commits import USER_METADATA, Mark
from merge.landing_zone import LandingZone
from merge.proof.verdicts import TableEvents
from merge.spark.session_settings import applied_settings
from tests.support.landing.landed import Chunk, Event, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, delete, insert, row, update_of_a


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    return Zone(spark, tmp_path)


def verdicts(events: list[Row]) -> list[tuple[Any, ...]]:
    """Return LSN, manifest, verdict and supplied columns of each event."""
    return [(e["lsn"], e["manifest"], e["verdict"], "".join(e["supplies"])) for e in events]


def of_all_keys(zone: Zone) -> dict[int, list[tuple[Any, ...]]]:
    """Return the same by key, read at once."""
    landing = LandingZone(zone.spark, zone.config.landing.url, "shop")
    history = TableEvents.read(zone.config, landing, ORDERS.table, landing.newest(0))
    found = history.events(history.layout()).collect()
    keys = sorted({e["key"]["id"] for e in found})
    return {key: verdicts([e for e in found if e["key"]["id"] == key]) for key in keys}


def history(zone: Zone) -> None:
    """Land two dumps and log, some of it twice; manifests 1 to 5."""
    zone.log(10, insert(5, 1), insert(5, 2), insert(5, 3))
    zone.landed.full_dump(T, 1, 18, started_in=2)
    chunk = zone.landed.chunk(ORDERS, Chunk(18, 19, [row(1, 1), row(2, 2)]))
    zone.landed.commit(20, [zone.landed.log(ORDERS, [update_of_a(19, 1, a=11)]), chunk])
    zone.log(30, update_of_a(25, 1, a=12), delete(26, 2), insert(27, 4))
    zone.log(40, update_of_a(25, 1, a=12))
    zone.chunk(50, Chunk(22, 35, [row(1, 11), row(2, 2)], dump=2))


def forge(zone: Zone, statement: str) -> None:
    """Change rows by a commit that says that it changes none."""
    mark = Mark("shop", zone.landed.number, layout=True).to_json()
    with applied_settings(zone.spark, {USER_METADATA: mark}):
        zone.spark.sql(statement.replace("{}", f"delta.`{zone.folder}/lake/public/orders`"))


def test_each_event_has_the_verdict_by_which_its_row_is_as_it_is(
    zone: Zone, capsys: pytest.CaptureFixture[str]
) -> None:
    history(zone)
    assert of_all_keys(zone) == {
        1: [
            (5, 1, "before full dump", ""),
            (18, 2, "older", ""),
            (19, 2, "older", ""),
            (22, 5, "supplies columns", "b"),
            (25, 3, "wins", "a"),
            (25, 4, "landed again", ""),
        ],
        2: [
            (5, 1, "before full dump", ""),
            (18, 2, "chunk lost to log", ""),
            (22, 5, "chunk lost to log", ""),
            (26, 3, "wins", ""),
        ],
        3: [(5, 1, "ghost swept", "")],
        4: [(27, 3, "wins", "ab")],
    }
    zone.merge()
    zone.log(60, Event("truncate", 55, 0, {}))  # not merged yet
    found = explain_row(zone.spark, zone.config, T, ["4"])
    known = [(27, 3, "truncated", ""), (55, 6, "empties the table", "")]
    assert verdicts(found.events.collect()) == known
    shown = found.to_dict()
    assert (shown["result"], shown["delta"]["row"]["values"]) == (None, {"id": "4", "a": "4", "b": "x"})
    assert (shown["delta"]["manifest"], shown["delta"]["differences"], exit_status(shown)) == (5, [], 0)
    at = explain_row(zone.spark, zone.config, T, "1", at=5).to_dict()
    assert at["result"] == at["delta"]["row"] == {
        "values": {"id": "1", "a": "12", "b": "x"},
        "_cdc": {"op": "update", "epoch": 1, "lsn": 25, "seq": 2, "missing": None,
                 "committed_at": "2026-01-02 03:04:05+00"},
    }  # fmt: skip
    print_explanation(at, found.kind)
    text = capsys.readouterr().out
    assert "supplies columns: b" in text
    assert "landed again, see 1 0/19 2" in text
    assert "dump 2" in text
    assert "file" in text


def test_a_row_that_a_truncate_deleted_softly_may_have_no_commit_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As in tables from when a truncate's was not written; another time is a difference."""
    zone = Zone(spark, tmp_path, public__orders={"deletes": "soft"})
    zone.log(10, insert(5, 1), insert(5, 2), Event("truncate", 6, 0, {}))
    zone.merge()
    forge(
        zone, "UPDATE {} SET _cdc.committed_at = CASE WHEN id = 1 THEN _cdc.committed_at - INTERVAL 1 DAY END"
    )
    found = [explain_row(spark, zone.config, T, key).delta for key in ("1", "2")]
    assert [delta and delta.differences for delta in found] == [("_cdc.committed_at",), ()]


@pytest.mark.soak
def test_a_row_of_delta_that_no_event_explains_is_said_to_differ(
    zone: Zone, capsys: pytest.CaptureFixture[str]
) -> None:
    history(zone)
    zone.merge()

    def differences(key: str) -> Sequence[str]:
        explained = explain_row(zone.spark, zone.config, T, key)
        assert explained.delta is not None
        shown = explained.to_dict()
        assert exit_status(shown) == bool(explained.delta.differences)
        print_explanation(shown, explained.kind)
        return explained.delta.differences

    assert differences("1") == ()
    capsys.readouterr()
    forge(zone, "UPDATE {} SET b = NULL WHERE id = 1")
    forge(zone, "DELETE FROM {} WHERE id = 4")
    forge(zone, "INSERT INTO {} SELECT 3, a, b, _cdc FROM {} WHERE id = 1")
    assert differences("1") == ("b",)
    said = capsys.readouterr().out
    assert "differs" in said
    assert "deltatide rebuild public.orders" in said
    assert [differences(key) for key in ("3", "4")] == [("row",), ("row",)]
    zone.spark.sql(f"UPDATE delta.`{zone.folder}/lake/public/orders` SET a = 7 WHERE id = 1")
    assert differences("1") == ("a", "b")
    assert "changed by others: version" in capsys.readouterr().out


def test_a_key_is_one_value_for_each_column_and_what_it_is_not_is_said(zone: Zone) -> None:
    history(zone)
    for key, said in (
        (["1", "2"], "2 values given"),
        (["x"], "'x' is not a value"),
        (["3000000000"], "32 bits"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            explain(zone.spark, zone.config, T, key)
        assert said in f"{refused.value} {refused.value.hint}"
    with pytest.raises(ConfigurationError, match="has not landed"):
        explain(zone.spark, zone.config, "public.nothing", "1")
    with pytest.raises(ConfigurationError, match="manifest 9 is not in"):
        explain(zone.spark, zone.config, T, "1", at=9)
    never = explain_row(zone.spark, zone.config, T, "77").to_dict()
    assert (never["events"], never["result"], exit_status(never)) == ([], None, 1)


def test_parquet_skips_row_groups_by_the_key(zone: Zone, capsys: pytest.CaptureFixture[str]) -> None:
    history(zone)
    explain(zone.spark, zone.config, T, "1").explain()
    plan = capsys.readouterr().out
    scans = [line for line in plan.splitlines() if "FileScan parquet" in line]
    assert scans
    assert all("EqualTo(id,1)" in line for line in scans if "id#" in line), plan


def test_files_whose_keys_are_others_are_not_opened(zone: Zone) -> None:
    zone.landed.full_dump(T, 1, 5, started_in=1)
    zone.chunk(10, *(Chunk(5, 6, [row(key, key) for key in range(n, n + 10)]) for n in (0, 10, 20, 30)))
    zone.log(20, update_of_a(15, 12, a=7), delete(16, 35))
    zone.log(30, insert(25, 50), insert(26, 60))
    zone.log(40, Event("truncate", 35, 0, {}))
    zone.log(50, insert(45, 12), insert(46, 13))
    kept = {2, 5, 6, 7}  # a chunk, the updates, the truncate, the inserts
    expected = explain_row(zone.spark, zone.config, T, "12").to_dict()
    assert [e["lsn"] for e in expected["events"]] == [5, 15, 35, 45]
    opened = explain(zone.spark, zone.config, T, "12").inputFiles()
    assert len(set(opened)) == 4
    landed = [f for m in zone.landed.manifests for f in m.files]
    others = [f for f in landed if not any(name.endswith(f.path) for name in opened)]
    assert len(others) == len(landed) - len(kept)
    for file in others:
        (zone.folder / "landing/shop" / file.path).unlink()
    assert explain_row(zone.spark, zone.config, T, "12").to_dict() == expected
    assert explain_row(zone.spark, zone.config, T, "77").to_dict()["result"] is None


def test_a_raw_key_and_a_key_of_another_type_are_found_whatever_the_span_of_their_file(zone: Zone) -> None:
    of_date = schema_of("public.days", key=("id",), id="date", a="int")
    zone.landed.table(of_date)
    days = [
        Event("insert", 5, 0, {"id": date(2026, 1, 1), "a": 1}),
        Event("insert", 6, 0, {"a": 2}, raw={"id": "infinity"}),
    ]
    zone.landed.commit(10, [zone.landed.log(of_date, days)])
    for key, a in (("2026-01-01", "1"), ("infinity", "2")):
        found = explain_row(zone.spark, zone.config, "public.days", key).to_dict()
        assert found["result"]["values"]["a"] == a
    narrow, wide = (schema_of("public.n", id=type_, a="int") for type_ in ("decimal(5,0)", "decimal(9,2)"))
    zone.landed.table(narrow)
    old = zone.landed.log(narrow, [Event("insert", 15, 0, {"id": Decimal(5), "a": 5})])
    zone.landed.table(wide)
    new = zone.landed.log(wide, [Event("insert", 16, 0, {"id": Decimal("6.50"), "a": 6})])
    zone.landed.commit(20, [old, new])
    for key, a in (("5", "5"), ("6.5", "6")):
        found = explain_row(zone.spark, zone.config, "public.n", key).to_dict()
        assert found["result"]["values"]["a"] == a


def test_events_from_before_a_column_had_another_type_are_shown_without_it(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    dated = schema_of(T, id="int", a="int", b="date")
    zone.landed.table(dated)
    zone.landed.full_dump(T, 1, 18, started_in=2)
    chunk = Chunk(18, 19, [{"id": 1, "a": 1, "b": date(2026, 1, 31)}])
    zone.landed.commit(20, [zone.landed.chunk(dated, chunk)])
    found = explain(zone.spark, zone.config, T, "1").collect()
    assert [(e["verdict"], e["row"]["b"]) for e in found] == [
        ("before full dump", None),
        ("wins", date(2026, 1, 31)),
    ]
