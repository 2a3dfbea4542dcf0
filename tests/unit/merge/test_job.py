"""Which manifest and which tables a merge is about, before it asks Spark for anything."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from connector.errors import FormatError, GapError, SourceMismatchError, TableError
from connector.landing.format import manifest_path
from connector.landing.manifest import DumpState
from connector.schema import TableName
from merge import job
from merge.job import MergeRun, _newest
from merge.lake.control_table import AS_LANDED, Built, Frontier, Frontiers
from merge.lake.retry import WITHHELD
from merge.lake.target import targets_of
from merge.landing_zone import LandingZone
from merge.report import TableReport, ViewReport
from merge.shapes.shape import chosen_tables
from merge.spark.session_pool import SessionPool
from merge.spark.unreachable import StoreOutageError
from merge.table import Merged
from merge.views.merging import ViewsOfMerge
from tests.support.landing.landed import AT, Landed, config_of, schema_of

A, B = schema_of("public.a", id="int"), schema_of("public.b", id="int")
KEYED = (A.table, B.table, TableName("views", "spent"))


class Zone(Landed):
    """Manifests in memory, of which `lost` are gone or `damaged`; `asked` are those that were asked for."""

    lost: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()

    def newest(self, after: int, until: int | None = None) -> int:
        self.asked.append(after)
        return max(after, min(self.number, until or self.number))

    def check_end(self, upto: int) -> None:
        """Accept any manifest, as none is compacted."""

    def load(self, first: int, last: int) -> None:
        self.asked.extend(range(first, last + 1))

    def get(self, number: int) -> Any:
        self.asked.append(number)
        if number in self.lost:
            raise GapError(f"manifest {number} is missing")
        if number in self.damaged:
            raise FormatError(f"manifest {number} is damaged")
        return super().get(number)

    def read_by(self, _: Any) -> Zone:
        return self

    def read_ahead(self, _: int) -> None:
        """Read nothing."""

    def hint_for(self, _: Exception) -> None:
        """Return that the error is not about a landing file."""


def zone_of(manifests: int) -> Zone:
    zone = Zone()
    zone.asked = []
    for table in (A, B):
        zone.table(table)
    for number in range(1, manifests + 1):
        zone.commit(10 * number, [])
    return zone


def frontiers_at(newest: int, **frontiers: Frontier) -> Frontiers:
    named = {TableName("public", name): frontier for name, frontier in frontiers.items()}
    return Frontiers(newest, 1, 10 * newest, True, None, named)


def run_of(zone: Zone, frontiers: Frontiers, **options: Any) -> MergeRun:
    config: Any = config_of("/nowhere", "/nowhere")
    spark: Any = Mock()
    landing: Any = zone
    manifest = zone.get(zone.number)
    return MergeRun(spark, config, landing, frontiers, manifest, lambda _: None, **{"asks": True, **options})


@pytest.mark.parametrize(("until", "number", "chosen"), [(1, None, []), (2, 2, ["b"]), (3, 3, ["a", "b"])])
def test_up_to_a_manifest_that_is_behind_a_table_that_table_stays(
    until: int, number: int | None, chosen: list[str]
) -> None:
    """A table that no cut names is one that came into being after all of them."""
    zone: Any = zone_of(4)
    frontiers = frontiers_at(2, b=Frontier(1, 5, "id"))
    manifest = _newest(zone, frontiers, until)
    targets = targets_of(config_of("/nowhere", "/nowhere"), [A.table, B.table])
    assert (manifest and manifest.number) == number
    assert [
        table.name for table in (chosen_tables(manifest, frontiers, None, {}, targets) if manifest else [])
    ] == chosen


def test_a_merge_up_to_an_earlier_manifest_refuses_another_landing_zone_too() -> None:
    zone: Any = zone_of(4)
    zone.manifests[3] = zone.manifests[3].model_copy(update={"position": 1})
    with pytest.raises(SourceMismatchError, match="manifest 4"):
        _newest(zone, frontiers_at(4, b=Frontier(1, 5, "id")), 2)


def test_a_table_that_stays_behind_has_no_other_merge_read_its_manifests() -> None:
    zone: Any = zone_of(9)
    zone.asked.clear()
    manifest = _newest(
        zone, frontiers_at(8, a=Frontier(8, 5, "id"), b=Frontier(1, 5, "id", error="why")), None
    )
    assert manifest is not None
    assert set(zone.asked) == {8, 9}


@pytest.mark.parametrize("problem", ["missing", "damaged"])
def test_a_manifest_that_one_table_alone_needs_again_stops_no_other(problem: str) -> None:
    zone = zone_of(9)
    zone.lost, zone.damaged = ((3,), ()) if problem == "missing" else ((), (3,))
    run = run_of(zone, frontiers_at(8, a=Frontier(8, 5, "id", 0, built=AS_LANDED), b=Frontier(2, 5, "id", 0)))
    reports = [run.merge(target) for target in targets_of(run.config, run.manifest.tables).values()]
    assert [(r.table.name, r.manifest, r.error) for r in reports] == [
        ("a", 9, None),
        ("b", 2, f"manifest 3 is {problem}"),
    ]


def test_what_failed_for_its_layout_is_reported_before_what_it_has_to_catch_up_with_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zone = zone_of(9)
    run = run_of(zone, frontiers_at(8, b=Frontier(1, 5, "id", 0, error="why")))
    zone.asked.clear()

    def impossible(target: Any, *_: Any) -> None:
        raise TableError(target.table, "still")

    monkeypatch.setattr("merge.table.read_state", lambda *_: "state")
    monkeypatch.setattr("merge.table.check_layout", impossible)
    zone.schemas = lambda wanted: {id_: B for _, id_ in wanted}  # type: ignore[attr-defined]
    report = run.merge(targets_of(run.config, [B.table])[B.table])
    assert (report.manifest, report.error, zone.asked) == (1, "public.b: still", [])


def test_a_value_that_the_merge_of_one_table_cannot_handle_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planned(*_: Any) -> Any:
        return {[1]: 2}

    monkeypatch.setattr(job, "plan_past_holes", planned)
    run = run_of(zone_of(2), frontiers_at(1, a=Frontier(1, 5, "id", 0)))
    report = run.merge(targets_of(run.config, [A.table])[A.table])
    assert (report.manifest, report.error) == (1, f"TypeError {WITHHELD}")


def test_a_table_that_is_another_and_can_not_be_merged_again_yet_says_why_its_cut_is_not_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zone = zone_of(9)
    zone.is_removed = lambda number: number < 9  # type: ignore[attr-defined]
    run = run_of(zone, frontiers_at(9, a=Frontier(9, 5, "id", 0, built=Built("other masks"))))
    monkeypatch.setattr("merge.table.read_state", lambda *_: None)
    report = run.merge(targets_of(run.config, [A.table])[A.table])
    assert (report.manifest, report.version) == (9, 5)
    assert "was dropped, restored or rebuilt since it was merged, and manifest 8" in (report.error or "")
    assert "another manifest" in (report.hint or "")


@pytest.mark.parametrize("where", ["tables", "views"])
def test_what_was_merged_before_the_store_failed_is_recorded(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else merges amid outages would begin where the first one began, with ever more to read."""
    run = run_of(
        zone_of(9), frontiers_at(8, a=Frontier(8, 5, "id", 0, built=AS_LANDED), b=Frontier(2, 5, "id", 0))
    )
    merged, recorded = list[str](), list[Any]()

    def merge(self: MergeRun, target: Any) -> TableReport:
        merged.append(target.table.name)
        if where == "tables" and target.table == A.table:
            raise StoreOutageError("the store is gone", hint="wait")
        return TableReport(target.table, 9, 6, rows=1, id="id")

    def record_cut(self: MergeRun, reports: Any, views: Any, stop: threading.Event) -> None:
        if where == "views" and not stop.is_set():
            raise StoreOutageError("the store is gone", hint="wait")
        recorded.append([report.table.name for report in reports])

    for name, instead in {"merge": merge, "record_cut": record_cut, "plan_views": lambda *_: None}.items():
        monkeypatch.setattr(MergeRun, name, instead)
    monkeypatch.setattr(MergeRun, "prepare_lake", lambda _: None)
    monkeypatch.setattr(MergeRun, "begun", lambda *_, **__: run)
    known: Any = SimpleNamespace(read=lambda _: run.frontiers)
    pool: Any = SessionPool(run.spark, 1, lambda: run.spark)
    with pytest.raises(StoreOutageError, match="gone"):
        job._merge_all(pool, run.config, run.landing, None, None, run.progress, threading.Event(), known)
    assert merged == ["b", "a"], "the one that is most behind first"
    assert recorded == [["b"] if where == "tables" else ["b", "a"]]


def test_a_view_that_is_named_like_a_table_does_not_take_its_place_in_the_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source has a schema `views`, too. The view fails, and would have left the table where it was."""
    zone, name = zone_of(8), TableName("views", "spent")
    zone.table(schema_of(str(name), id="int"))
    zone.commit(90, [])
    before = Frontier(8, 5, "id", missing=0)
    run = run_of(zone, replace(frontiers_at(8, a=before, b=before), by_table=dict.fromkeys(KEYED, before)))
    cuts: list[tuple[dict[TableName, Frontier], bool]] = []
    monkeypatch.setattr(MergeRun, "_append_cut", lambda _, at, exact: cuts.append((at, exact)))
    monkeypatch.setattr(job, "record_progress", lambda *_: None)
    failed = {name: before, TableName("views", "other"): Frontier(0, missing=0)}
    reports = [ViewReport(of, at.manifest, at.version, id=at.id, error="no") for of, at in failed.items()]
    views = ViewsOfMerge(run.config, run.manifest, {}, failed, [])
    monkeypatch.setattr(ViewsOfMerge, "refresh", lambda *_, **__: reports)
    now = Frontier(9, 6, "id", missing=0)
    merged = [TableReport(table, 9, 6, id="id", missing=0, built=AS_LANDED) for table in KEYED]
    done = run.record_cut(merged, views)
    assert done.views == reports, "it is said that the view failed"
    ((entries, exact),) = cuts
    assert exact
    assert entries == {
        **dict.fromkeys(KEYED, now),
        TableName("views", "other"): Frontier(0, missing=0),
    }


@pytest.mark.parametrize("state", ["captured", "quarantined"])
def test_rows_of_a_quarantined_table_are_not_asked_for(state: Any) -> None:
    """Only a full dump takes it up again; the agent would reject each request, and say so."""
    zone = zone_of(1)
    zone.tables[A.table] = zone.tables[A.table].model_copy(update={"state": state})
    zone.commit(30, [])
    run = run_of(zone, frontiers_at(1))
    target = targets_of(run.config, [A.table])[A.table]
    assert run._may_request_again(Frontier(1, 5, "id", missing=3), target) == (state == "captured")


@pytest.mark.parametrize(("requested", "again"), [(3, False), (2, True), (0, True)])
def test_rows_that_a_merge_has_just_requested_are_not_requested_again(
    requested: int, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where keys change all the time, each merge finds rows that the one before left waiting, and others."""
    run = run_of(zone_of(9), frontiers_at(8, a=Frontier(8, 5, "id", missing=3)))
    report = TableReport(A.table, 9, 6, id="id", missing=3, requested=requested)
    plan = SimpleNamespace(is_empty=False, rows=1, state=run.manifest.tables[A.table])
    asked = list[int]()
    merging = SimpleNamespace(
        plan=plan,
        state=SimpleNamespace(built_since=0),
        merge=lambda _: Merged(report, None),
        request_missing_again=lambda: asked.append(3) or 3,  # type: ignore[func-returns-value]
    )
    monkeypatch.setattr(job, "plan_past_holes", lambda *_: plan)
    monkeypatch.setattr(job, "read_state", lambda *_: SimpleNamespace(id="id"))
    monkeypatch.setattr(job.TableJob, "prepared", lambda *_: merging)
    found = run.merge(targets_of(run.config, [A.table])[A.table])
    assert (found.error, found.requested, asked) == (None, 3 if again else requested, [3] if again else [])


def test_requests_are_looked_for_without_being_opened() -> None:
    """The agent may remove one between the two."""

    class Reader:
        read = property(lambda self: self)

        def text(self, path: str) -> Reader:
            assert path == "folder/shop/requests/missing-*.json"
            return self

        def inputFiles(self) -> list[str]:
            return ["folder/shop/requests/missing-1.json/part-0"]

        def isEmpty(self) -> bool:
            raise FileNotFoundError

    spark: Any = Reader()
    assert LandingZone(spark, "folder", "shop").exists("requests/missing-*.json")


def test_what_would_end_a_merge_is_found_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from connector.cli.lake import open_spark
    from merge.spark import session
    from merge.spark.unreachable import StoreOutageError

    class StartedError(Exception):
        pass

    def start(_: Any) -> Any:
        raise StartedError

    monkeypatch.setattr(session, "open_session", start)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    landed = Landed.local(tmp_path / "landing")
    landed.table(A)
    landed.commit(10, [])
    good = config_of(str(tmp_path / "landing"), str(tmp_path / "lake"))
    with pytest.raises(StartedError), open_spark(good):
        pass
    newest = tmp_path / "landing/shop" / manifest_path(1)
    newest.write_text(newest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(FormatError, match="format 2"), open_spark(good):
        pass
    dead = config_of("s3://bucket/landing", "s3://bucket/lake")
    dead = dead.model_copy(
        update={"landing": dead.landing.model_copy(update={"endpoint": "http://127.0.0.1:9"})}
    )
    for reads_landing in (True, False):
        with pytest.raises(StoreOutageError, match="refused"), open_spark(dead, reads_landing=reads_landing):
            pass


@pytest.mark.parametrize(("lsn", "refused"), [(19, True), (20, False), (21, False)])
def test_a_landing_zone_that_kept_only_later_manifests_must_be_at_a_later_position(
    lsn: int, refused: bool
) -> None:
    """Of another zone that was begun again, rows of this lake would win over its dumps."""
    zone = zone_of(4)
    zone.manifests[2] = zone.manifests[2].model_copy(update={"position": lsn})
    frontiers = frontiers_at(2)
    if refused:
        with pytest.raises(SourceMismatchError, match="manifest 3"):
            frontiers.check(zone, 3)
    else:
        frontiers.check(zone, 3)
    frontiers.check(zone, 1)


@pytest.mark.parametrize("paused", [False, True])
def test_a_paused_full_dump_answers_no_request_for_rows_nor_does_one_behind_it(paused: bool) -> None:
    """It may stay so for as long as nobody resumes it; the rows' own dump does not wait behind it."""
    zone = zone_of(1)
    known = {"table": A.table, "kind": "full", "epoch": 1, "requested_at": AT, "started_in": 1}
    zone.dumps.append(DumpState(id="d", number=1, state="running", paused=paused, **known))
    zone.dumps.append(DumpState(id="e", number=2, **known))
    zone.commit(30, [])
    run = run_of(zone, frontiers_at(1))
    target = targets_of(run.config, [A.table])[A.table]
    assert run._may_request_again(Frontier(1, 5, "id", missing=3), target) is paused
