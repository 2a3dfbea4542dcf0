"""What upkeep decides from metadata, before it asks Spark for anything."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.errors import PySparkException

from connector.errors import ConfigurationError, TransientError
from connector.schema import TableName
from merge import schedule
from merge.lake.commits import Mark, commits_of, renewed_version
from merge.lake.control_table import Frontier, Frontiers
from merge.lake.cut_retention import FILES, LOG, SET_BY_US, needed_properties
from merge.lake.file_statistics import SMALL_BYTES, FileStatistics, statistics_of
from merge.lake.kept_versions import Kept, KeptTable
from merge.lake.target import targets_of
from merge.lake.upkeep import Finding, _Plan, _Upkeep
from merge.schedule import UpkeepTimer
from tests.support.landing.landed import config_of
from tests.unit.merge.lake.test_commits import created, history, ours

UPKEPT = ("OPTIMIZE", Mark("shop", 1, layout=True))
VACUUMED = ("VACUUM END", Mark("shop", 1, layout=True))


NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
T = TableName("public", "orders")


def upkeep_of_ten_days(spark: Any = None) -> _Upkeep:
    """Keep cuts for ten days, and replaced files for eleven."""
    return _Upkeep(spark, config_of("/landing", "/lake"), 10, Frontiers(), Kept(), {}, NOW, lambda *_: None)


def with_vacuum(*days: float, needed: int, vacuumed: int = 0) -> _Plan:
    """Plan the VACUUM of a table that was written to and then compacted that many days ago."""
    rows: Any = history(created(), ours(1), *[UPKEPT] * (len(days) - 2))
    for row, ago in zip(reversed(rows), days, strict=True):
        row["timestamp"] = NOW - timedelta(days=ago)
    run = upkeep_of_ten_days()
    plan = _Plan(targets_of(run.config, {T: None})[T], Frontier(1, 1), KeptTable("id", 0, vacuumed))
    return run._with_vacuum(plan, rows, needed, hours=24 * 11)


def renewed(*commits: Any, at: int = 1) -> int | None:
    return renewed_version(history(*commits), "shop", Frontier(1, at))


def test_cuts_go_on_with_the_version_after_files_were_rewritten() -> None:
    assert renewed(created(), ours(1)) == 1
    assert renewed(created(), ours(1), VACUUMED) == 1, "its files are still there"
    assert renewed(created(), ours(1), UPKEPT) == 2
    assert renewed(created(), ours(1), "OPTIMIZE") is None, "somebody else's carries no mark"
    assert renewed(created(), ours(1), "OPTIMIZE", VACUUMED) == 3
    assert renewed(created(), ours(1), UPKEPT, ours(2)) == 1, "a merge is ahead of its cut"
    assert renewed(created(), ours(1), UPKEPT, "UPDATE") == 1, "a merge has to rebuild"
    assert renewed("CREATE TABLE", "WRITE", "OPTIMIZE", at=1) == 2, "the platform keeps no marks"


def test_a_cut_is_not_renewed_to_a_commit_of_a_later_manifest() -> None:
    """A merge of manifest 2 was killed between its ALTER and its MERGE, after somebody's OPTIMIZE."""
    altered = ("ADD COLUMNS", Mark("shop", 2, layout=True))
    assert renewed(created(), ours(1), "OPTIMIZE", altered) is None
    assert renewed(created(), ours(1), "OPTIMIZE", altered, UPKEPT) == 4


def test_a_merge_from_a_version_of_upkeep_never_goes_back_to_one_before_it() -> None:
    """It wrote nothing, so the newest commit that wrote rows is one whose files may be gone."""
    rows = history(created(), ours(1), UPKEPT, VACUUMED)
    judged = commits_of(rows, "shop", Frontier(1, 2))
    assert (judged.version, judged.manifest, judged.why_broken, judged.last) == (2, 1, None, Mark("shop", 1))
    assert commits_of(rows, "shop", Frontier(1, 1)).version == 1
    overtaken = history(created(), ours(1), ours(2), UPKEPT, ours(3))
    assert commits_of(overtaken, "shop", Frontier(1, 1)).why_broken is None, "a merge came first"


def test_vacuum_is_due_until_what_the_last_change_replaced_is_old_enough_for_delta() -> None:
    """Cuts get old after ten days, files after eleven, and an idle table has no later VACUUM."""
    plan = with_vacuum(30, 20, 10.5, needed=2)
    assert [finding.action for finding, _ in plan.actions] == ["VACUUM"]
    assert (plan.kept.oldest, plan.vacuumed) == (2, 1), "what version 2 replaced is still there"
    plan = with_vacuum(30.6, 20.6, 11.1, needed=2, vacuumed=1)
    assert ([finding.action for finding, _ in plan.actions], plan.vacuumed) == (["VACUUM"], 2)
    assert not with_vacuum(40, 30, 20.5, needed=2, vacuumed=2).actions
    assert with_vacuum(10.9, 10.8, 10.7, needed=2).vacuumed == 0


def test_vacuum_waits_for_cuts_whose_files_it_would_remove_by_the_time_it_runs() -> None:
    """Removed files are dated before their commit, and looking at a lake may take hours."""
    plan = with_vacuum(40, 30, 10.8, needed=1)
    assert (plan.actions, [finding.status for finding in plan.deferred]) == ((), ["deferred"])
    plan = with_vacuum(40, 30, 10.7, needed=1)
    assert not plan.deferred
    assert plan.vacuum_until == (NOW + timedelta(days=10.75 - 10.7)).timestamp()
    asked: list[str] = []

    class Idle:
        def sql(self, statement: str) -> Any:
            asked.append(statement)
            return SimpleNamespace(collect=list)

    rewrite = (Finding("a", "OPTIMIZE", "many files"), "OPTIMIZE a")
    found = [*upkeep_of_ten_days(Idle())._done([rewrite, *plan.actions], time.time() - 1)]
    assert [(finding.action, finding.status) for finding in found] == [
        ("OPTIMIZE", "done"),
        ("VACUUM", "deferred"),
    ]
    assert asked == ["OPTIMIZE a"]
    (found_in_time,) = upkeep_of_ten_days(Idle())._done(plan.actions, time.time() + 60)
    assert found_in_time.status == "done"


@pytest.mark.parametrize(
    ("properties", "days", "log_hours", "expected"),
    [
        ({}, 6, 0, {}),  # what Delta keeps by default
        ({}, 7, 0, {FILES: "interval 192 hours"}),
        ({}, 0, 0, {FILES: "interval 24 hours"}),
        ({}, 60, 0, {FILES: "interval 1464 hours", LOG: "interval 1464 hours"}),
        ({FILES: "interval 1 days"}, 6, 0, {FILES: "interval 168 hours"}),
        ({FILES: "interval 2 weeks"}, 6, 0, {}),  # somebody's own
        ({FILES: "interval 336 hours", SET_BY_US: json.dumps({FILES: "interval 336 hours"})}, 6, 0,
         {FILES: "interval 168 hours"}),
        ({FILES: "interval 50 days", LOG: "interval 40 days"}, 6, 0, {LOG: "interval 1200 hours"}),
        ({}, 6, 22 * 24, {}),
        ({}, 6, 24 * 24, {LOG: "interval 1488 hours"}),  # twice the age, and two weeks
        ({LOG: "interval 1488 hours", SET_BY_US: json.dumps({LOG: "interval 1488 hours"})}, 6, 24 * 24, {}),
        ({LOG: "interval 1488 hours", SET_BY_US: json.dumps({LOG: "interval 1488 hours"})}, 6, 1,
         {LOG: "interval 720 hours"}),
        ({LOG: "interval 1488 hours"}, 6, 1, {}),  # somebody's own
    ],
)  # fmt: skip
def test_properties_keep_young_cuts_and_leave_longer_ones_of_others(
    properties: dict[str, str], days: float, log_hours: float, expected: dict[str, str]
) -> None:
    changes = needed_properties(properties, days, log_hours)
    recorded = changes.pop(SET_BY_US, None)
    assert changes == expected
    assert bool(recorded) == bool(expected)
    again = properties | changes | ({SET_BY_US: recorded} if recorded else {})
    assert needed_properties(again, days, log_hours) == {}


def test_a_property_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="interval 1 moon"):
        needed_properties({FILES: "interval 1 moon"}, 7, 0)


def test_files_are_compacted_when_many_are_small_and_purged_when_many_rows_are_deleted() -> None:
    bounds = [0, SMALL_BYTES // 2, SMALL_BYTES, 4 * SMALL_BYTES]
    histogram = {"sortedBinBoundaries": bounds, "fileCounts": [9, 7, 3, 1], "totalBytes": [9, 7, 3, 1]}
    checksum = {
        "numFiles": 20,
        "tableSizeBytes": 20,
        "numDeletedRecordsOpt": 5,
        "fileSizeHistogram": histogram,
    }
    assert statistics_of(1, 1, checksum) == FileStatistics(20, 20, 16, 16, 0, 5)
    assert statistics_of(20, 20 * SMALL_BYTES, {}).small_files == 0
    assert statistics_of(20, 20 * SMALL_BYTES - 1, {}).small_files == 20
    assert "16 of 20 files" in str(FileStatistics(20, 20, 16, 16).why_optimize())
    assert FileStatistics(20, 20, 15, 15).why_optimize() is None
    assert "10,000 of 50,000 rows" in str(FileStatistics(1, 1, 0, 0, 40_000, 10_000).why_purge())
    assert FileStatistics(1, 1, 0, 0, 40_001, 10_000).why_purge() is None
    assert FileStatistics(1, 1, 0, 0, 1, 9_999).why_purge() is None


def test_upkeep_is_due_by_its_record_not_by_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("/landing", "/lake")
    config = config.model_copy(update={"maintain": config.maintain.model_copy(update={"every_hours": 2.0})})
    spark: Any = None
    reads: list[float] = []
    now, began = [10_000.0], [10_000.0 - 3600]

    def read(*_: Any) -> Kept:
        reads.append(now[0])
        return Kept(datetime.fromtimestamp(began[0], timezone.utc))

    monkeypatch.setattr(schedule, "read_kept", read)
    timer = UpkeepTimer(config, lambda: now[0])

    def due(timer: UpkeepTimer) -> bool:
        timer.look(spark)
        assert timer.more.is_due == timer.lake.is_due
        return timer.lake.is_due

    assert not due(timer), "another process began one an hour ago"
    now[0] += 3599
    assert not due(timer)
    assert len(reads) == 1
    now[0] += 1
    assert due(timer)
    began[0] = now[0]
    for part in (timer.lake, timer.more):
        with part.again_if_it_fails():
            pass
    assert not due(timer)
    assert not due(UpkeepTimer(config, lambda: now[0])), "a restart"
    never = UpkeepTimer(config_of("/landing", "/lake"), lambda: now[0])
    assert not due(never)


def test_upkeep_that_failed_is_due_again_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store did not answer for a moment: upkeep had only begun, which it had recorded."""
    config = config_of("/landing", "/lake")
    config = config.model_copy(update={"maintain": config.maintain.model_copy(update={"every_hours": 24.0})})
    spark: Any = None
    now, began = [1_000_000.0], list[datetime]()
    monkeypatch.setattr(schedule, "read_kept", lambda *_: Kept(began[-1] if began else None))
    timer = UpkeepTimer(config, lambda: now[0])

    def run(*, fails: bool) -> None:
        with timer.lake.again_if_it_fails():
            began.append(datetime.fromtimestamp(now[0], timezone.utc))
            if fails:
                raise TransientError("the store does not answer")

    def due() -> bool:
        timer.look(spark)
        return timer.lake.is_due

    assert due()
    with pytest.raises(TransientError):
        run(fails=True)
    assert not due(), "merges go on"
    now[0] += schedule.RETRY_SECONDS
    assert due()
    run(fails=False)
    now[0] += 23 * 3600
    assert not due()
    now[0] += 3600
    assert due()


@pytest.mark.parametrize("fails", ["lake", "landing zone"])
def test_a_part_of_upkeep_that_always_fails_neither_repeats_nor_stops_the_other(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    config = config_of("/landing", "/lake")
    config = config.model_copy(update={"maintain": config.maintain.model_copy(update={"every_hours": 24.0})})
    for name in ("merging_sessions", "LandingZone", "FrontierReader", "ContinuousVerification", "merge_in"):
        monkeypatch.setattr(schedule, name, MagicMock())
    monkeypatch.setattr(schedule, "read_kept", lambda *_: Kept(None))
    monkeypatch.setattr(schedule, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(schedule, "wait_exponential", lambda **_: lambda _: 0.0)
    runs, stop = Counter[str](), threading.Event()

    def run(part: str) -> tuple[()]:
        runs[part] += 1
        if runs[part] == 3:
            stop.set()
        if part == fails:
            raise TransientError("the store does not answer")
        return ()

    monkeypatch.setattr(schedule, "upkeep_in", lambda *_, **__: run("lake"))
    spark: Any = None
    schedule.merge_every(spark, config, 0.0, stop=stop, more_upkeep=lambda: run("landing zone"))
    other = "landing zone" if fails == "lake" else "lake"
    assert runs == {fails: 3, other: 1}


def test_an_outage_while_it_is_asked_whether_upkeep_is_due_is_one_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So merges are tried again; as an error of Spark's, it ended them all."""

    def read(*_: Any) -> Kept:
        raise PySparkException("s3a://lake/_deltatide: software.amazon.awssdk: Status Code: 503")

    spark: Any = None
    config = config_of("s3://landing/of", "s3://lake/of")
    config = config.model_copy(update={"maintain": config.maintain.model_copy(update={"every_hours": 24.0})})
    monkeypatch.setattr(schedule, "read_kept", read)
    with pytest.raises(TransientError):
        UpkeepTimer(config).look(spark)


def test_a_statement_that_lost_to_a_merge_waits_with_all_that_follow() -> None:
    """VACUUM relies on the properties that were to be set before it."""

    class Busy:
        def sql(self, statement: str) -> Any:
            asked.append(statement)
            raise PySparkException("[DELTA_CONCURRENT_DELETE_READ] a file was removed")

    asked: list[str] = []
    run = upkeep_of_ten_days(Busy())
    first, second = Finding("a", "SET TBLPROPERTIES", "short"), Finding("a", "VACUUM", "old")
    (found,) = run._done([(first, "ALTER"), (second, "VACUUM")])
    assert (found.action, found.status, asked) == ("SET TBLPROPERTIES", "deferred", ["ALTER"])
