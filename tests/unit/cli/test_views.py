"""The command `views`: what it prints, and its exit status."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("pyspark")

from connector.cli import app, views
from connector.errors import ConfigurationError
from connector.schema import TableName
from merge.report import MergeReport, ViewReport
from merge.spark import unreachable
from merge.views import listing
from merge.views.listing import ViewState

ASKED: list[Any] = []
STATES = [
    ViewState("spent", "current", 12, 3400, ["public.items", "public.orders"], None),
    ViewState("big", "failed", 9, 7, ["spent"], "[DIVIDE_BY_ZERO] no", "it has LIMIT"),
    ViewState("new", "new", None, None, [], None),
]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = tmp_path / "shop.toml"
    file.write_text(
        '[source]\nname = "shop"\nkind = "postgres"\nurl = "postgresql://u@h/shop"\ntables = ["*.*"]\n'
        '[landing]\nurl = "./landing"\n[lake]\nurl = "./lake"\n[views.spent]\nfile = "spent.sql"\n'
    )
    reports = {
        "spent": ViewReport(TableName("views", "spent"), 12, 4, refreshed=True, rows=3400, seconds=1.25),
        "big": ViewReport(TableName("views", "big"), 9, 2, error="no [b]", hint="fix it"),
        "same": ViewReport(TableName("views", "same"), 12, 4),
        "few": ViewReport(TableName("views", "few"), 12, 4, refreshed=True, incremental=True, rows=3),
    }

    def refresh(_spark: Any, _config: Any, names: list[str], *, full: bool) -> MergeReport:
        ASKED.append((names, full))
        return MergeReport("shop", 12, views=[reports[name] for name in names])

    monkeypatch.setattr(views, "open_spark", lambda *_, **__: nullcontext())
    monkeypatch.setattr(unreachable, "check_endpoint", lambda *_: None)
    monkeypatch.setattr(listing, "view_states", lambda *_: STATES)
    monkeypatch.setattr(listing, "refresh_views", refresh)
    return str(file)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["views", *arguments])


def test_views_are_listed(config: str) -> None:
    lines = [line.split() for line in run("-c", config).output.splitlines()]
    assert lines[1] == ["spent", "current", "3,400", "12", "public.items,", "public.orders"]
    assert lines[2] == ["big", "failed", "7", "9", "spent", "it", "has", "LIMIT", "[DIVIDE_BY_ZERO]", "no"]
    assert lines[3] == ["new", "new"]
    found = json.loads(run("-c", config, "--json").output)
    assert found[1] == {
        "name": "big", "state": "failed", "manifest": 9, "rows": 7, "inputs": ["spent"],
        "error": "[DIVIDE_BY_ZERO] no", "full_because": "it has LIMIT",
    }  # fmt: skip


def test_a_refresh_says_what_it_did_and_fails_with_a_view(config: str) -> None:
    done = run("refresh", "spent", "big", "--full", "-c", config)
    assert (ASKED[-1], done.exit_code) == ((["spent", "big"], True), 1)
    assert "views.spent: refreshed, 3,400 rows, 1.2 s" in done.output
    assert "failed views.big: no [b]\nhint: fix it" in done.output
    assert "views.few: refreshed incrementally, 3 rows, 0.0 s" in run("refresh", "few", "-c", config).output
    done = run("refresh", "same", "-c", config)
    assert (ASKED[-1], done.exit_code) == ((["same"], False), 0)
    assert done.output == "nothing to refresh as of manifest 12: --full refreshes it anyway\n"
    assert json.loads(run("refresh", "same", "--json", "-c", config).output)["views"][0]["manifest"] == 12


def test_full_is_for_refreshes_only(config: str) -> None:
    assert isinstance(run("--full", "-c", config).exception, ConfigurationError)
    assert run("drop", "spent", "-c", config).exit_code == 2
