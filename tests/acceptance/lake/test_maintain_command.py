"""What `deltatide maintain` says it would do, does, and leaves in order for agent, merges and new lakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connector.landing.consumers import read_consumers
from connector.landing.format import MANIFESTS_PER_BLOCK, manifest_path
from connector.landing.manifest_store import newest_manifest, read_manifest
from tests.support.agent.installed import Installation, assert_message
from tests.support.spark.lake import assert_lake, merge

pytestmark = pytest.mark.only_postgres

AT_ONCE = {"flush_seconds": 0.05, "retention_days": 0}


def newest_number(place: Installation) -> int:
    newest = newest_manifest(place.store)
    return newest.number if newest else 0


def test_what_every_lake_has_merged_is_removed_and_a_new_lake_begins_with_a_dump(
    place: Installation, tmp_path: Path, spark: Any
) -> None:
    place.database.execute("CREATE TABLE things (id int PRIMARY KEY); INSERT INTO things VALUES (1)")
    place.configure(landing=AT_ONCE)
    with place.agent() as agent:
        place.wait_dumped(agent)
        n = 1
        while newest_number(place) <= MANIFESTS_PER_BLOCK + 2:  # manifests are removed by whole blocks
            n += 1
            place.database.execute(f"INSERT INTO things VALUES ({n})")
        place.wait_caught_up(agent)
        merge(spark, place)
        (lake,) = read_consumers(place.store)
        assert lake.lake == str(place.lake)
        before = list(place.store.list(""))
        planned = place.run("maintain", "--dry-run", seconds=240)
        assert planned.returncode == 0, planned.stderr
        assert "would do: landing zone: remove " in planned.stdout
        assert set(before) <= set(place.store.list(""))
        unknown = place.run("maintain", "--forget", "s3://other/lake")
        assert_message(unknown, "no lake s3://other/lake", "hint: ", str(place.lake), status=2)
        done = place.run("maintain", seconds=240)
        assert done.returncode == 0, done.stderr
        assert "done: landing zone: remove " in done.stdout
        assert {manifest_path(1), manifest_path(2)} <= set(before)
        assert place.store.read(manifest_path(2)) is None
        assert read_manifest(place.store, 1) is None  # its number stays taken
        place.database.execute("INSERT INTO things VALUES (0)")
        place.wait_caught_up(agent)
        merge(spark, place)
        assert_lake(place, "things")
        # A lake that comes later.
        place.lake = tmp_path / "another"
        place.configure(landing=AT_ONCE)
        late = place.run("merge", seconds=240)
        assert late.returncode == 1
        assert "full dump was requested" in late.stdout + late.stderr
        place.wait(agent, lambda m: any(d.reason == "missing" for d in m.dumps), "a dump is asked for")
        place.wait_caught_up(agent)
        merge(spark, place)
        assert_lake(place, "things")
        assert [row["lake"] for row in place.json("status")["lakes"]] == sorted(
            [str(place.folder / "lake"), str(place.lake)]
        )
