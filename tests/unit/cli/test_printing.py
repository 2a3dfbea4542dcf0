"""Whatever a table, a column or an error is called, it is printed as it is."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from connector.cli.merge_output import _print_table
from connector.cli.printing import err, escape
from merge.job import TableReport
from tests.support.agent.installed import landed_by_hand

ODD = st.text(alphabet=r"\[]/ab#@=: ", max_size=8)


@given(ODD, ODD)
def test_any_text_is_printed_as_it_is(one: str, other: str) -> None:
    shown = Text.from_markup(f"[bold]x{escape(one)}[/] {escape(other)}|", emoji=err._emoji)
    assert shown.plain == f"x{one} {other}|"
    assert [span.style for span in shown.spans if span.style != "none"] == ["bold"]


def test_a_cell_of_a_table_is_printed_as_it_is() -> None:
    name = r"a:key:b [bold]c\[/] \\[1]"
    table = Table(escape(name), box=None)
    table.add_row(escape(name))
    console = Console(file=io.StringIO(), width=100, emoji=False)
    console.print(table)
    assert console.file.getvalue().count(name) == 2  # type: ignore[attr-defined]


def test_a_failed_table_is_named_as_it_is_and_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    report = TableReport(
        "a.[red]:bug:\x1b[2J", 1, None, error="no [/] here \x9b2J", hint="see [link=x]y[/link]"
    )  # type: ignore[arg-type]
    _print_table(report)
    printed = capsys.readouterr().err
    assert r"failed a.[red]:bug:\x1b[2J: no [/] here \x9b2J" in printed
    assert "hint: see [link=x]y[/link]" in printed
    assert "\x1b[2J" not in printed
    assert "\x9b" not in printed


BROKEN = """
import sys
from connector.cli import main
from connector.control.source_view import SourceView
from connector.errors import BugError

def newest(view):
    url = view.config.source.url.get_secret_value()
    raise {error}(f"odd after {{len(url)}} characters")

SourceView.newest = newest
main()
"""


@pytest.mark.parametrize("error", ["BugError", "RuntimeError"])
def test_a_traceback_shows_no_value_of_a_variable(error: str, tmp_path: Path) -> None:
    """A secret is in many of them, and what a library shows of a traceback is its own choice."""
    file = landed_by_hand(tmp_path)
    file.write_text(file.read_text().replace("//u@", "//u:s3cret@"))
    command = [sys.executable, "-c", BROKEN.format(error=error), "status", "-c", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "odd after 28 characters" in done.stderr
    assert "Traceback" in done.stderr
    assert "s3cret" not in done.stderr
