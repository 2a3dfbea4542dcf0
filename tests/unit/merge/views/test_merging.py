"""Which views of a merge can be refreshed, and what becomes of the others."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("pyspark")

from connector.config import ViewConfig
from connector.errors import ConfigurationError, TableError
from connector.schema import TableName
from merge.lake.control_table import Frontier
from merge.lake.target import targets_of
from merge.report import ViewReport
from merge.views import dependencies
from merge.views.dependencies import PlannedView
from merge.views.merging import ViewsOfMerge
from merge.views.refresh import Refresh
from merge.views.view import View, views_of
from tests.support.landing.landed import config_of

ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")
CONFIG = config_of("/landing", "/lake")
HERE = {ORDERS: Frontier(7, 3, "o", 0), ITEMS: Frontier(7, 5, "i", 0)}


def view(name: str, *reads: TableName, problem: TableError | None = None) -> PlannedView:
    return PlannedView(View(name, ""), {str(table): table for table in reads}, problem)


def of(name: str) -> TableName:
    return TableName("views", name)


def refreshed(
    monkeypatch: pytest.MonkeyPatch,
    views: list[PlannedView],
    at: dict[TableName, Frontier],
    *,
    failing: dict[str, Exception] | None = None,
    before: dict[TableName, Frontier] | None = None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Refresh views as of manifest 7; return the error of each, or the versions that it read."""
    read: dict[str, dict[TableName, int]] = {}

    def run(self: Refresh, *, full: bool) -> ViewReport:
        name = self.target.table.name
        if error := (failing or {}).get(name):
            raise error
        read[name] = {table: each.version for table, each in self.inputs.items()}
        return ViewReport(self.target.table, 7, 40, id=name, refreshed=True)

    monkeypatch.setattr(Refresh, "run", run)
    known = {view.view.table: Frontier(0, missing=0) for view in views} | (before or {})
    targets = targets_of(CONFIG, [ORDERS, ITEMS])
    of_merge = ViewsOfMerge(CONFIG, Mock(number=7), targets, known, views)
    reports = of_merge.refresh(Mock(), Mock(), at, stop=stop)
    assert [report.table for report in reports] == [view.view.table for view in views]
    assert of_merge.differ(reports)
    for report in reports:  # what failed is where it was
        was = known[report.table]
        assert report.error is None or (report.manifest, report.version) == (was.manifest, was.version)
    return {report.table.name: report.error or read[report.table.name] for report in reports}


def test_a_view_reads_the_versions_of_the_coming_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    found = refreshed(monkeypatch, [view("spent", ORDERS, ITEMS), view("big", of("spent"), ORDERS)], HERE)
    assert found == {"spent": {ORDERS: 3, ITEMS: 5}, "big": {of("spent"): 40, ORDERS: 3}}


def test_a_table_of_which_only_changes_are_captured_is_no_bug_in_a_view(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = refreshed(monkeypatch, [view("spent", ORDERS), view("other", ITEMS)], {ITEMS: HERE[ITEMS]})
    assert found["spent"] == (
        "only changes of public.orders, which it reads, are captured: it has no current rows"
    )
    assert found["other"] == {ITEMS: 5}
    assert not caplog.records


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (Frontier(6, 2, "o", 0), "public.orders, which it reads, is as of manifest 6, not 7"),
        (Frontier(7, 2, "o", 0, "no"), "public.orders, which it reads, is not as of manifest 7: no"),
        (Frontier(7), "public.orders, which it reads, has no rows yet"),
    ],
)
def test_a_view_waits_for_a_table_that_is_not_at_the_cut_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch, at: Frontier, said: str
) -> None:
    views = [view("spent", ORDERS), view("big", of("spent")), view("other", ITEMS)]
    found = refreshed(monkeypatch, views, HERE | {ORDERS: at}, before={of("spent"): Frontier(5, 9, "s", 0)})
    assert found["spent"] == said
    assert found["big"] == f"views.spent, which it reads, is not as of manifest 7: {said}"
    assert found["other"] == {ITEMS: 5}


def test_a_view_that_fails_keeps_its_state_and_stops_only_those_that_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    views = [
        view("spent", ORDERS),
        view("big", of("spent")),
        view("lost", ITEMS, problem=TableError(of("lost"), "reads nothing")),
        view("other", ITEMS),
    ]
    errors: list[Exception] = [TableError(of("spent"), "broken"), ConfigurationError("broken"), KeyError("b")]
    for error in errors:
        found = refreshed(monkeypatch, views, HERE, failing={"spent": error})
        assert "b" in found["spent"]
        assert found["big"].endswith(found["spent"])
        assert (found["lost"], found["other"]) == ("reads nothing", {ITEMS: 5})
    with pytest.raises(MemoryError):
        refreshed(monkeypatch, views, HERE, failing={"spent": MemoryError()})


def test_a_merge_that_is_stopped_does_not_call_its_views_current(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, current = threading.Event(), {of("spent"): Frontier(7, 9, "s", 0)}
    stop.set()
    found = refreshed(monkeypatch, [view("spent", ORDERS)], HERE, before=current, stop=stop)
    assert found == {"spent": "the merge was stopped before it was refreshed"}


def test_without_views_nothing_is_asked() -> None:
    assert ViewsOfMerge.planned(None, CONFIG, None, {}, {}) is None  # type: ignore[arg-type]


def test_a_query_is_another_if_its_text_is() -> None:
    queries = {
        "a": ViewConfig(sql="SELECT 1"),
        "b": ViewConfig(sql=" SELECT 1\n"),
        "c": ViewConfig(sql="SELECT 2"),
    }
    a, b, c = views_of(CONFIG.model_copy(update={"views": queries}))
    assert a.definition == b.definition != c.definition
    assert a.target(CONFIG).name.endswith("/lake/views/a`")


def test_views_differ_by_manifest_version_and_error_from_what_was_recorded() -> None:
    at = Frontier(7, 9, "s", 0)
    same = ViewReport(of("spent"), 7, 9, id="s", refreshed=False)

    def differs(recorded: Frontier, report: ViewReport = same) -> bool:
        before = {of("spent"): recorded}
        return ViewsOfMerge(CONFIG, Mock(), {}, before, []).differ([report])

    assert not differs(at)
    assert not differs(replace(at, error="no"), replace(same, error="no"))
    assert differs(replace(at, manifest=6))
    assert differs(replace(at, version=8))
    assert differs(replace(at, error="no"))
    assert differs(at, replace(same, error="no"))


def test_a_table_of_the_name_of_a_view_that_has_always_failed_stops_no_merge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever creates tables at the source would stop all of them."""
    config = CONFIG.model_copy(update={"views": {"items": ViewConfig(sql="SELECT 1 FROM orders")}})
    monkeypatch.setattr(dependencies, "named_by", lambda *_: ["orders"])
    targets, manifest, spark = targets_of(config, [ORDERS, ITEMS]), Mock(), Mock()
    with pytest.raises(ConfigurationError, match=r"the table public\.items has the same name"):
        ViewsOfMerge.planned(spark, config, manifest, targets, {})
    failed = {of("items"): Frontier(0, missing=0, error="division by zero")}
    views = ViewsOfMerge.planned(spark, config, manifest, targets, failed)
    assert views is not None
    assert "has the same name" in str(views.views[0].problem)
