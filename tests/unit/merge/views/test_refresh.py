"""Which commit a view's rows are from, as its history and the last cuts say."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("pyspark")

from connector.errors import TableError
from connector.schema import TableName
from merge.lake import commits
from merge.lake.commits import COMMITS_READ, Mark
from merge.lake.control_table import Frontier
from merge.lake.retry import OvertakenError
from merge.lake.target import COLUMNS_PROPERTY, COLUMNS_SINCE_PROPERTY, Target, TargetState
from merge.views import refresh as module
from merge.views.dependencies import PlannedView
from merge.views.inputs import Input
from merge.views.refresh import Refresh
from merge.views.view import View, tables_read
from tests.support.landing.landed import config_of

CONFIG = config_of("/landing", "/lake")
SOURCE = CONFIG.source.name


def commit(version: int, operation: str, manifest: int | None = None, **made_of: Any) -> dict[str, Any]:
    metadata = None
    if manifest is not None:
        mark = json.loads(Mark(SOURCE, manifest, layout=operation == "CHANGE COLUMN").to_json())
        metadata = json.dumps({**mark, "view": made_of})
    known = {"version": version, "operation": operation, "userMetadata": metadata}
    return {**known, "operationMetrics": {"numOutputRows": "5"}}


def of_history(monkeypatch: pytest.MonkeyPatch, frontier: Frontier, *rows: dict[str, Any]) -> Refresh:
    monkeypatch.setattr(module, "read_history", lambda *_: sorted(rows, key=lambda row: -row["version"]))
    planned = PlannedView(View("a", "SELECT 1"), {})
    view = planned.view.target(CONFIG)
    return Refresh(Mock(), CONFIG, Mock(), Mock(number=12), planned, view, frontier, {})


@pytest.mark.parametrize(("manifest", "counts"), [(10, True), (11, False)])
def test_a_cut_vouches_only_for_commits_that_it_can_know(
    monkeypatch: pytest.MonkeyPatch, manifest: int, counts: bool
) -> None:
    """Files were restored from a copy, so the commits at these versions are new; nobody has checked them."""
    rows = [
        commit(7, "WRITE", 8),
        commit(8, "UPDATE"),
        commit(9, "MERGE", manifest, follows=7),
    ]
    found = of_history(monkeypatch, Frontier(10, 9, "v"), *rows)._written("v")
    assert (found is not None) == counts


@pytest.mark.parametrize("at", [0, 7])
def test_a_cut_vouches_for_the_commit_that_created_a_view(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Else what changed since is all since that commit, whose manifest may be long gone."""
    row = commit(at, "CREATE TABLE AS SELECT", 8)
    refresh = of_history(monkeypatch, Frontier(10, at, "v"), row)
    found = refresh._written("v")
    assert found is not None
    assert (found.recorded, refresh._unchanged_until(found)) == (True, 10)


@pytest.mark.parametrize(
    ("since", "named"),
    [([commit(9, "CHANGE COLUMN", 10)], 9), ([], 7), ([commit(9, "OPTIMIZE"), commit(10, "OPTIMIZE")], 7)],
)
def test_an_unchanged_view_is_recorded_at_a_version_that_is_there(
    monkeypatch: pytest.MonkeyPatch, since: list[dict[str, Any]], named: int
) -> None:
    """Upkeep has renewed it; or files were restored from a copy of before that, and perhaps rewritten."""
    made_of = {"query": View("a", "SELECT 1").definition, "inputs": {}, "spark": "4.1.4"}
    rows = [commit(7, "WRITE", 8, **made_of), commit(8, "OPTIMIZE"), *since]
    monkeypatch.setattr(module, "table_id", lambda *_: "v")
    refresh = of_history(monkeypatch, Frontier(10, 9, "v"), *rows)
    report = refresh._unchanged()
    assert report is not None
    assert report.version == named


@pytest.mark.parametrize(
    ("nine", "named"), [(commit(9, "CHANGE COLUMN", 12), 9), (commit(9, "OPTIMIZE"), None)]
)
def test_a_view_that_a_later_merge_has_refreshed_stays_at_a_version_that_is_there(
    monkeypatch: pytest.MonkeyPatch, nine: dict[str, Any], named: int | None
) -> None:
    made_of = {"query": View("a", "SELECT 1").definition, "inputs": {}, "spark": "4.1.4"}
    rows = [commit(7, "WRITE", 12, **made_of), commit(8, "OPTIMIZE"), nine, commit(10, "WRITE", 13)]
    monkeypatch.setattr(module, "table_id", lambda *_: "v")
    report = of_history(monkeypatch, Frontier(12, 9, "v"), *rows)._still_recorded()
    assert (report and report.version) == named


def test_an_unchanged_view_is_not_refreshed_though_only_upkeep_has_committed_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cut names upkeep's commit; the one that wrote the rows is long before. Nor is it forgotten what
    they were computed from."""
    made_of = {"query": View("a", "SELECT 1").definition, "inputs": {}, "spark": "4.1.4"}
    nights = [commit(at, "VACUUM END") for at in range(2, COMMITS_READ + 2)]
    last = COMMITS_READ + 2
    rows = [commit(0, "CREATE TABLE"), commit(1, "WRITE", 8, **made_of), *nights]
    rows.append(commit(last, "CHANGE COLUMN", 10))
    monkeypatch.setattr(commits, "_newest", lambda _spark, _target, count: rows[: -count - 1 : -1])
    monkeypatch.setattr(module, "table_id", lambda *_: "v")
    refresh = of_history(monkeypatch, Frontier(10, last, "v"))
    monkeypatch.setattr(module, "read_history", commits.read_history)
    report = refresh._unchanged()
    assert report is not None
    assert report.version == last
    frontiers = {TableName("views", "a"): refresh.frontier, TableName("shop", "orders"): Frontier(10, 3, "t")}
    assert tables_read(refresh.spark, CONFIG, TableName("views", "a"), frontiers) == set()


def test_a_full_refresh_does_not_take_the_incremental_one_of_another_job_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Delta has skipped ours, whose mark is the same. Only the other job knows what that one continues."""
    monkeypatch.setattr(module, "table_id", lambda *_: "v")
    mark, rows = Mark(SOURCE, 12), [commit(7, "WRITE", 8), commit(8, "UPDATE")]
    full = of_history(monkeypatch, Frontier(10, 7, "v"), *rows, commit(9, "WRITE", 12))
    assert (full._committed(mark).version, full._committed(mark).rows) == (9, 5)
    other = of_history(monkeypatch, Frontier(10, 7, "v"), *rows, commit(9, "MERGE", 12, follows=7))
    assert other._committed(mark, incremental=True).version == 9
    with pytest.raises(OvertakenError, match="by another job"):
        other._committed(mark)


@pytest.mark.parametrize("incremental", [False, True])
def test_a_refresh_does_not_take_that_of_another_query_or_other_versions_for_its_own(
    monkeypatch: pytest.MonkeyPatch, incremental: bool
) -> None:
    """Another job runs with a former configuration, or read a table before it was rebuilt with masks."""
    monkeypatch.setattr(module, "table_id", lambda *_: "v")

    def committed(**made_of: Any) -> int | None:
        row = commit(8, "WRITE", 12, **made_of)
        refresh = of_history(monkeypatch, Frontier(10, 7, "v"), commit(7, "WRITE", 8), row)
        table = Input(Mock(), Frontier(12, 5, "t"))
        refresh = replace(refresh, spark=Mock(version="4.1.4"), inputs={TableName("shop", "orders"): table})
        return refresh._committed(Mark(SOURCE, 12), incremental=incremental).version

    same = {"query": View("a", "SELECT 1").definition, "inputs": {"shop.orders": ["t", 5]}, "spark": "4.1.4"}
    assert committed(**same) == 8
    for other in ({"query": "0123456789abcdef"}, {"inputs": {"shop.orders": ["t", 4]}}):
        with pytest.raises(OvertakenError, match="by another job"):
            committed(**{**same, **other})


def test_a_view_is_not_refreshed_from_before_a_rebuild_with_other_masks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The merge had looked at the table before that, and is as of a later manifest."""
    target = Target(TableName("shop", "orders"), "orders")
    since = {COLUMNS_SINCE_PROPERTY: "6"}
    states = [TargetState("t", {}, its, 1, 1) for its in ({COLUMNS_PROPERTY: "{}"}, since, {})]
    monkeypatch.setattr(module, "version_is_unchanged", lambda *_: True)
    monkeypatch.setattr(module, "read_state", lambda *_: states.pop(0))
    refresh = of_history(monkeypatch, Frontier(10, 7, "v"))
    with pytest.raises(TableError, match="was built with"):
        refresh._state_of(Input(target, Frontier(12, 5, "t")))
    with pytest.raises(TableError, match="was rebuilt with other columns, masks or rows after version 5"):
        refresh._state_of(Input(target, Frontier(12, 5, "t")))
    assert refresh._state_of(Input(target, Frontier(12, 5, "t"))).id == "t"


def test_a_view_that_a_merge_has_brought_further_stays_in_the_cut_that_is_recorded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Views are refreshed by hand as of the newest cut, for minutes, while merges go on."""
    made_of = {"query": View("a", "SELECT 1").definition, "inputs": {}, "spark": "4.1.4"}
    renewed = commit(9, "CHANGE COLUMN", 12)
    rows = [commit(8, "WRITE", 12, **made_of), renewed, commit(10, "WRITE", 13, **made_of)]
    state, last = Mock(id="v"), Mock(last=Mark(SOURCE, 13))
    for name, value in {"table_id": "v", "read_state": state, "check_origin": True}.items():
        monkeypatch.setattr(module, name, lambda *_, value=value: value)
    monkeypatch.setattr(Refresh, "_commits", lambda *_: last)
    refresh = of_history(monkeypatch, Frontier(12, 9, "v"), *rows)
    report = refresh._refreshed(full=False)
    assert (report.frontier, report.refreshed) == (Frontier(12, 9, "v", 0), False)
    asked = replace(refresh, planned=PlannedView(View("a", "SELECT 2"), {}))
    for other, full in (
        (refresh, True),
        (asked, False),
        (replace(refresh, frontier=Frontier(11, 9, "v")), False),
        (replace(refresh, frontier=Frontier(12, 9, "v", error="no")), False),
        (replace(refresh, frontier=Frontier(12, 10, "v")), False),
    ):
        with pytest.raises(TableError, match="as of manifest 13 already"):
            other._refreshed(full=full)


def test_rows_of_other_columns_are_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query may make something else of them, as CAST(1.0 AS STRING) of what was CAST(1 AS STRING)."""
    rows = [commit(4, "MERGE", 10), commit(5, "CHANGE COLUMN", 10), commit(6, "OPTIMIZE")]
    refresh = of_history(monkeypatch, Frontier(10, 9, "v"), *rows)
    before = Frontier(10, 4, "t")
    assert refresh._same_rows(Input(Mock(), Frontier(12, 4, "t")), before)
    assert not refresh._same_rows(Input(Mock(), Frontier(12, 6, "t")), before)
