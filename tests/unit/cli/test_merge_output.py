"""What repeated merges print: a line for each, which says what a scheduler and a person need."""

from __future__ import annotations

import json
import re

import pytest

from connector.cli.merge_output import Lines, line, print_json, print_tables
from connector.schema import TableName
from merge.report import MergeReport, TableReport, ViewReport

ORDERS, ITEMS, TOTAL = (
    TableName(*name.split(".")) for name in ("public.orders", "public.items", "views.total")
)
CUT = MergeReport(
    "shop",
    7,
    exact=True,
    recorded=True,
    seconds=1.23,
    tables=[TableReport(ORDERS, 7, 3, rows=1200, inserted=1200), TableReport(ITEMS, 7, 1)],
    views=[ViewReport(TOTAL, 7, 2, refreshed=True, rows=5)],
)


def failing(error: str) -> MergeReport:
    return MergeReport(
        "shop", 8, seconds=0.5, tables=[TableReport(ITEMS, 7, 1, error=error, hint="dump it again")]
    )


def test_a_line_has_the_cut_what_was_merged_and_what_failed() -> None:
    assert line(CUT) == "cut at manifest 7, 1 table, 1,200 events, 1 view, 1.2 s"
    assert line(failing("disk full")) == (
        "nothing new after manifest 8, not exact, 0.5 s, failed: public.items"
    )
    assert line(MergeReport("shop", 0)) == "nothing has landed yet, 0.0 s"
    names = [TableName("public", f"t{n}") for n in range(5)]
    many = MergeReport("shop", 9, tables=[TableReport(name, 7, 1, error="full") for name in names])
    assert line(many).endswith("failed: public.t0, public.t1, public.t2 and 2 more")


def test_each_merge_is_one_line_and_an_error_is_shown_when_it_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = Lines()
    for done in (CUT, failing("disk full"), failing("disk full"), failing("gone"), CUT, failing("gone")):
        lines.print(done)
    printed = capsys.readouterr()
    found = printed.out.splitlines()
    assert [re.sub(r"^\S+ \d\d:\d\d:\d\dZ  ", "", each) for each in found] == [
        line(CUT), *[line(failing("any"))] * 3, line(CUT), line(failing("any")),
    ]  # fmt: skip
    assert re.findall(r"public\.items: (.*)", printed.err) == ["disk full", "gone", "gone"]
    assert printed.err.count("dump it again") == 3


def test_a_single_merge_has_a_line_for_each_table_that_changed_and_json_has_the_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_tables(CUT)
    assert capsys.readouterr().out.splitlines() == [
        "public.orders: 1,200 events, 1,200 inserted, 0.0 s",
        "views.total: refreshed, 5 rows, 0.0 s",
        "cut at manifest 7, 1.2 s",
    ]
    print_json(CUT)
    (only,) = capsys.readouterr().out.splitlines()
    assert (json.loads(only)["manifest"], json.loads(only)["at"][-6:]) == (7, "+00:00")
