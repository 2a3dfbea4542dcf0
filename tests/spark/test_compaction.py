"""Merges, rebuilds and `live` through blocks of manifests that were compacted, their originals gone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.errors import ConfigurationError
from connector.landing import format
from connector.maintenance import compaction
from connector.maintenance.compaction import compact
from connector.schema import TableSchema
from connector.store.local import LocalStore
from merge import landing_zone
from merge.job import merge_in
from merge.landing_zone import LandingZone
from merge.spark.session_pool import merging_sessions
from tests.support.landing.landed import AT, Chunk, Event, schema_of
from tests.support.landing.zone import ORDERS, T, Zone, delete, insert, row, update_of_a

ROWS = [(2, 20, "x"), (3, 30, "y"), (4, 4, "x"), (9, 9, "x")]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of manifests 1 to 3, 4 to 7, 8 to 11."""
    monkeypatch.setattr(format, "MANIFESTS_PER_BLOCK", 4)
    monkeypatch.setattr(compaction, "FEW_FILES", 1)


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path) -> Zone:
    zone = Zone(spark, tmp_path)
    zone.log(10, insert(5, 1), insert(5, 2))
    zone.log(20, insert(15, 3), update_of_a(18, 2, 10))
    zone.log(30, delete(25, 1))
    zone.log(40, insert(35, 4))
    zone.log(50, update_of_a(45, 2, 20))
    zone.chunk(60, Chunk(24, 55, [row(1, 1), row(3, 3, "y"), row(9, 9)]))
    zone.log(70, update_of_a(65, 3, 30))
    zone.log(80, insert(75, 5))
    zone.log(90, delete(85, 5))
    return zone


def compact_all(zone: Zone) -> None:
    """Compact what may be, and remove its originals."""
    store = LocalStore(zone.folder / "landing/shop")
    for days in (1, 3):
        compact(store, 1, zone.landed.number, clock=lambda days=days: AT + timedelta(days=days))


def landing_files(zone: Zone) -> int:
    return len(list((zone.folder / "landing/shop/data").rglob("*.parquet")))


@pytest.mark.parametrize(
    "merged",
    [*(pytest.param(n, marks=pytest.mark.soak) for n in (None, 2, 3)), 5],  # each in `test_oracle_compacted`
)
def test_a_merge_from_any_manifest_a_rebuild_and_live_read_compacted_blocks(
    zone: Zone, merged: int | None
) -> None:
    if merged is not None:
        zone.merge(until=merged)
    before = landing_files(zone)
    compact_all(zone)
    assert before - landing_files(zone) == 4 - 2  # partial events are joined apart from the others
    assert zone.live() == ROWS
    assert zone.merge().exact
    assert zone.rows() == ROWS
    assert zone.live() == ROWS
    zone.spark.sql(f"DELETE FROM delta.`{zone.folder}/lake/public/orders`")
    zone.log(100, insert(95, 6))
    assert zone.merge().exact
    assert zone.rows() == [*ROWS[:3], (6, 6, "x"), ROWS[3]]


def test_a_state_within_a_compacted_block_is_refused(zone: Zone) -> None:
    compact_all(zone)
    with pytest.raises(ConfigurationError, match=r"manifests 4 to 7 .* were compacted: .* after manifest 6"):
        zone.merge(until=6)
    assert zone.merge(until=7).manifest == 7


def test_what_a_long_running_merge_knows_of_manifests_is_asked_again(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    with merging_sessions(zone.spark, zone.config) as sessions:
        landing = LandingZone(sessions.first, zone.config.landing.url, "shop")
        merge_in(sessions, zone.config, landing)
        compact_all(zone)
        zone.spark.sql(f"DELETE FROM delta.`{zone.folder}/lake/public/orders`")
        zone.log(100, insert(95, 6))
        monkeypatch.setattr(landing_zone, "CACHED_SECONDS", 0)
        assert not merge_in(sessions, zone.config, landing).failed
    assert zone.rows() == [*ROWS[:3], (6, 6, "x"), ROWS[3]]


def test_changes_begin_and_go_on_within_compacted_blocks_in_which_types_were_changed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Joined files bring back log from before the table begins, some of it of types that don't fit."""
    numbers, texts = (replace(schema_of(T, id="int", a=type_), key=()) for type_ in ("int", "string"))
    zone = Zone(spark, tmp_path, public__orders={"shapes": ["changes"]})

    def merged(*schemas: TableSchema) -> list[int]:
        for schema in schemas:
            zone.landed.table(schema)
            at = zone.landed.number + 1
            event = Event("insert", 10 * at - 5, 0, {"id": at, "a": at if schema is numbers else "x"})
            zone.landed.commit(10 * at, [zone.landed.log(schema, [event])])
        compact_all(zone)
        assert not zone.merge().failed
        return [id_ for (id_,) in zone.rows("id", "public/orders_changes")]

    assert merged(numbers, numbers, numbers, texts, numbers, texts, texts) == [6, 7]
    shutil.rmtree(tmp_path / "lake/public/orders_changes")
    assert merged(numbers, numbers, texts) == [10]
    assert merged(texts, texts) == [10, 11, 12]


def test_a_damaged_new_file_stops_its_table(zone: Zone) -> None:
    compact_all(zone)
    store = LocalStore(zone.folder / "landing/shop")
    block = landing_zone.parse_compacted(store.read(format.compacted_path(7)) or b"", "")
    (zone.folder / "landing/shop" / block.files[0].path).write_bytes(b"PAR1")
    (failed,) = zone.merge().failed
    assert str(failed.table) == T == str(ORDERS.table)
    assert "not as it was written" in (failed.error or "")
