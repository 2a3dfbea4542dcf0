"""What the states of views are, by the cuts and the Delta tables that there are."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("pyspark")

from connector.config import ViewConfig
from connector.schema import TableName
from merge.lake.control_table import Frontier
from merge.lake.target import (
    KEY_PROPERTY,
    SHAPE_PROPERTY,
    SOURCE_PROPERTY,
    TABLE_PROPERTY,
    Target,
    TargetState,
    targets_of,
)
from merge.queries import _built_anew_by
from merge.views import listing
from merge.views.dependencies import PlannedView
from merge.views.listing import ViewState
from merge.views.view import VIEW, View
from tests.support.landing.landed import config_of


def state_of(monkeypatch: pytest.MonkeyPatch, frontier: Frontier, **properties: str) -> ViewState:
    """Return the state of the view `spent` at a cut of manifest 8, if its place has these properties."""
    ours = {SOURCE_PROPERTY: "shop", TABLE_PROPERTY: "views.spent", KEY_PROPERTY: "[]", **properties}
    monkeypatch.setattr(listing, "read_state", lambda *_: TargetState("id", {}, ours, 1, 1))
    monkeypatch.setattr(listing, "applied_settings", lambda *_: nullcontext())
    monkeypatch.setattr(Target, "at", lambda *_: type("Rows", (), {"count": lambda _: 3})())
    spark: Any = None
    return listing._state(
        spark, config_of("/landing", "/lake"), PlannedView(View("spent", "SELECT 1"), {}), frontier, 8
    )


def test_a_view_is_current_if_the_newest_cut_has_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {SHAPE_PROPERTY: VIEW}
    found = state_of(monkeypatch, Frontier(8, 2, "id"), **shape)
    assert (found.state, found.manifest, found.rows, found.error) == ("current", 8, 3, None)
    assert state_of(monkeypatch, Frontier(7, 2, "id", error="no"), **shape).state == "failed"
    assert state_of(monkeypatch, Frontier(0), **shape).state == "new"


def test_a_view_whose_name_a_source_table_has_is_not_current_though_that_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = state_of(monkeypatch, Frontier(8, 2, "id"), **{KEY_PROPERTY: '["id"]'})
    assert (found.state, found.manifest, found.rows) == ("failed", None, None)
    assert "the rows of source table views.spent" in (found.error or "")


def test_a_view_whose_version_is_lost_is_built_anew_by_a_refresh_and_a_table_by_a_dump() -> None:
    views = {"spent": ViewConfig(sql="SELECT 1")}
    config = config_of("/landing", "/lake").model_copy(update={"views": views})

    def hint_for(namespace: str, name: str) -> str:
        table = TableName(namespace, name)
        return _built_anew_by(config, targets_of(config, [table])[table])

    assert hint_for("views", "spent") == "run deltatide views refresh spent --full"
    # A source may have a namespace of that name, too.
    for other in ("views.a", "public.spent"):
        assert hint_for(*other.split(".")).startswith(f"run deltatide dump {other}, then merge")
