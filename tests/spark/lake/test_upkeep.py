"""Upkeep of the lake: what it does and keeps readable, and that merges go on from it."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from connector.errors import ConfigurationError
from merge import as_of, cuts, merge_every, table
from merge.lake import file_statistics
from merge.lake.kept_versions import append_kept, read_kept
from merge.lake.upkeep import upkeep
from tests.support.landing.zone import T, Zone, delete, insert
from tests.support.spark.spark_sessions import forget_delta_logs
from tests.support.waiting import wait_until

DAY = 24 * 3600


class OldZone(Zone):
    """A zone whose lake can get older, and whose upkeep keeps cuts for ten days."""

    def maintain(self, **options: Any) -> dict[tuple[str, str], str]:
        """Return the status of each action of each subject."""
        found = list(upkeep(self.spark, self.config, **options))
        assert not [finding for finding in found if finding.status == "failed"]
        return {(finding.subject, finding.action): finding.status for finding in found}

    def age(self, days: float) -> None:
        """Let days pass, for Delta's logs and files and for the cuts."""
        lake = self.folder / "lake"
        hours = int(24 * days)
        self.spark.sql(
            f"UPDATE delta.`{lake}/_deltatide/cuts` SET merged_at = merged_at - INTERVAL {hours} HOURS"
        )
        for log in lake.glob("**/_delta_log"):
            for hadoops_own in log.glob(".*.crc"):
                hadoops_own.unlink()
            for checkpoint in log.glob("*.checkpoint.parquet"):  # it keeps its times, so its sums must go
                (log / f"{checkpoint.name.partition('.')[0]}.crc").unlink(missing_ok=True)
            for entry in (*log.glob("*.json"), *log.glob("*.crc")):
                written_at = entry.stat().st_mtime
                entry.write_text(_older(entry.read_text(), int(days * DAY * 1000)))
                os.utime(entry, (written_at, written_at))
        for file in lake.rglob("*.*"):
            os.utime(file, (file.stat().st_atime, file.stat().st_mtime - days * DAY))
        forget_delta_logs(self.spark)

    def ids(self, manifest: int) -> list[int]:
        return sorted(row["id"] for row in as_of(self.spark, self.config, manifest)[T].collect())

    def gone(self) -> dict[int, list[str]]:
        rows = cuts(self.spark, self.config).collect()
        return {row["manifest"]: row["gone"] for row in reversed(rows)}

    def files(self) -> int:
        return len(list((self.folder / "lake/public/orders").glob("*.parquet")))


def _older(text: str, by: int) -> str:
    names = "deletionTimestamp|createdTime|modificationTime|timestamp"
    return re.sub(rf'"({names})":(\d+)', lambda found: f'"{found[1]}":{int(found[2]) - by}', text)


@pytest.fixture
def zone(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OldZone:
    """Two small files are many."""
    monkeypatch.setattr(file_statistics, "SMALL_FILES", 2)
    zone = OldZone(spark, tmp_path)
    lake = zone.config.lake
    assert lake is not None
    keeping = {"lake": lake.model_copy(update={"retention_days": 10.0})}
    zone.config = zone.config.model_copy(update=keeping)
    return zone


def test_old_cuts_go_and_young_ones_stay_though_files_were_rewritten_long_ago(zone: OldZone) -> None:
    zone.begin(insert(5, 1), insert(5, 2))
    zone.log(20, insert(15, 3))
    zone.merge()
    assert zone.maintain(dry_run=True) == {
        (T, "SET TBLPROPERTIES"): "planned",
        (T, "OPTIMIZE"): "planned",
        ("newest cut", "RENEW"): "planned",
        ("cuts", "OPTIMIZE"): "planned",
    }
    assert (len(zone.history()), zone.files(), read_kept(zone.spark, zone.config).began_at) == (3, 2, None)
    assert set(zone.maintain().values()) == {"done"}
    assert zone.files() == 3
    assert (T, "OPTIMIZE") not in zone.maintain(dry_run=True)
    zone.age(12)
    zone.log(30)
    zone.merge()  # nothing new for the table: its cut names the version after OPTIMIZE
    assert zone.maintain()[T, "VACUUM"] == "done"
    assert zone.files() == 1
    assert zone.gone() == {1: [T], 2: [], 3: []}
    with pytest.raises(ConfigurationError, match=r"cut of manifest 1 is gone.*public\.orders") as refused:
        zone.ids(1)
    assert "lake.retention_days" in str(refused.value.hint)
    assert zone.ids(3) == [1, 2, 3]
    zone.log(40, delete(35, 1))
    report = zone.merge()
    assert (report.exact, zone.rows("id")) == (True, [(2,), (3,)])
    operations = [row["operation"] for row in zone.history()]
    assert operations.count("WRITE") == 1, "it was not rebuilt"


@pytest.mark.soak
def test_what_an_idle_table_replaced_is_removed_once_delta_may_and_never_said_to_be_back(
    zone: OldZone,
) -> None:
    for number in (1, 2):
        zone.log(10 * number, insert(10 * number - 5, number))
        zone.merge()
    zone.age(1)
    assert zone.maintain()[T, "OPTIMIZE"] == "done"
    slower = read_kept(zone.spark, zone.config)
    zone.age(10.5)
    assert (zone.maintain()[T, "VACUUM"], zone.files()) == ("done", 3)
    zone.age(1)
    assert (zone.maintain()[T, "VACUUM"], zone.files()) == ("done", 1)
    assert (T, "VACUUM") not in zone.maintain()
    assert zone.ids(2) == [1, 2]
    kept = read_kept(zone.spark, zone.config)
    assert slower.began_at is not None
    append_kept(zone.spark, zone.config, slower.tables, slower.began_at)
    assert read_kept(zone.spark, zone.config) == kept
    assert zone.gone() == {1: [T], 2: []}
    assert [cut.manifest for cut in cuts(zone.spark, zone.config).collect()] == [2, 1], "2 was renewed"


@pytest.mark.soak
def test_vacuum_waits_while_a_young_cut_names_files_that_somebody_else_rewrote(zone: OldZone) -> None:
    zone.begin(insert(5, 1))
    zone.log(20, insert(15, 2))
    zone.merge()
    zone.spark.sql(f"OPTIMIZE delta.`{zone.folder}/lake/public/orders`")
    zone.age(12)
    zone.log(30)
    zone.merge()
    found = zone.maintain()
    assert (found[T, "VACUUM"], found["newest cut", "RENEW"]) == ("deferred", "done")
    assert [zone.ids(number) for number in (1, 2, 3)] == [[1], [1, 2], [1, 2]]
    assert not any(zone.gone().values())
    zone.age(11)
    zone.log(40)
    zone.merge()
    assert zone.maintain()[T, "VACUUM"] == "done"
    assert zone.files() == 1
    assert zone.ids(4) == [1, 2]


def test_a_table_that_fails_stops_no_other(zone: OldZone) -> None:
    zone.begin(insert(5, 1))
    zone.log(20, insert(15, 2))
    zone.merge()
    name = f"delta.`{zone.folder}/lake/public/orders`"
    zone.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('deltatide.source' = 'another')")
    found = list(upkeep(zone.spark, zone.config))
    (failed,) = [finding for finding in found if finding.status == "failed"]
    assert failed.subject == T
    assert "belongs to another source" in failed.reason
    assert ("cuts", "OPTIMIZE", "done") in [(f.subject, f.action, f.status) for f in found]


@pytest.mark.soak
def test_a_merge_during_which_two_upkeeps_rewrite_its_files_is_done_again(
    zone: OldZone, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone.begin(insert(5, 1))
    zone.log(20, insert(15, 2))
    zone.merge()
    zone.log(30, delete(25, 1), insert(26, 3))
    begun, maintained = zone.folder / "begun", zone.folder / "maintained"

    @F.udf("boolean")
    def waits(_: int) -> bool:
        begun.touch()
        while not maintained.exists():
            time.sleep(0.05)
        return True

    attempts, apply = [], table.apply

    def slow(spark: Any, target: Any, state: Any, source: Any, *rest: Any) -> Any:
        attempts.append(target)
        return apply(spark, target, state, source.where(waits("id")), *rest)

    monkeypatch.setattr(table, "apply", slow)
    with ThreadPoolExecutor(3) as threads:
        merging = threads.submit(zone.merge)
        try:
            wait_until(begun.exists, "the MERGE reads its changes", seconds=120)
            found = [*threads.map(lambda _: zone.maintain(), range(2))]
        finally:
            maintained.touch()  # or the MERGE would wait for ever
        assert merging.result().exact
    assert "done" in [status.get((T, "OPTIMIZE")) for status in found]
    assert len(attempts) == 2
    assert zone.rows("id") == [(2,), (3,)]
    assert [row["operation"] for row in zone.history()].count("WRITE") == 1, "it was not rebuilt"
    assert zone.ids(2) == [1, 2]


def test_repeated_merges_do_upkeep_when_it_is_due_not_at_every_start(zone: OldZone) -> None:
    maintained = zone.config.maintain.model_copy(update={"every_hours": 1.0})
    zone.config = zone.config.model_copy(update={"maintain": maintained})
    zone.log(10, insert(5, 1))

    def merge_twice() -> None:
        stop, reports = threading.Event(), list[Any]()

        def report(done: Any) -> None:
            reports.append(done)
            if len(reports) == 2:
                stop.set()

        merge_every(zone.spark, zone.config, 0.1, report=report, stop=stop)

    merge_twice()
    began_at = read_kept(zone.spark, zone.config).began_at
    assert began_at is not None
    merge_twice()
    assert read_kept(zone.spark, zone.config).began_at == began_at


@pytest.mark.soak
@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_table_restored_from_an_older_copy_is_left_to_the_merge_that_rebuilds_it(
    zone: OldZone, meanwhile: bool
) -> None:
    """`meanwhile`: after upkeep has looked at it, which may be hours before its turn."""
    for number in (1, 2):
        zone.log(10 * number, insert(10 * number - 5, number))
        zone.merge()
    lake = zone.folder / "lake/public/orders"
    shutil.copytree(lake, zone.folder / "copy")
    zone.log(30, insert(25, 3))
    zone.merge()

    def restore(done: int = 0, total: int = 0, what: str = T) -> None:
        if what != T:
            return
        shutil.rmtree(lake)
        shutil.copytree(zone.folder / "copy", lake)
        forget_delta_logs(zone.spark)

    if meanwhile:
        found = zone.maintain(progress=restore)
    else:
        restore()
        found = zone.maintain()
    looked = {action: found[subject, action] for subject, action in found if subject == T}
    assert meanwhile or looked == {"look": "deferred"}
    assert ("newest cut", "RENEW") not in found
    with pytest.raises(ConfigurationError, match="restored from an older copy"):
        zone.ids(3)
    zone.log(40, insert(35, 4))
    assert zone.merge().exact
    assert zone.rows("id") == [(1,), (2,), (3,), (4,)]
