"""The demonstration's folder and display: nothing that is not its own is removed, nothing secret is shown."""

from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from connector.demo.display import Display, Figures, line
from connector.demo.folder import DemoFolder
from connector.demo.landing_stats import LandingStats, TableFigures
from connector.demo.shop import Sizes
from connector.errors import PreconditionError
from connector.testing.memory_store import MemoryStore


def test_a_folder_that_is_not_the_demos_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(PreconditionError, match="is not empty, and not from an earlier demo"):
        DemoFolder.create(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PreconditionError, match="is not a folder"):
        DemoFolder.create(tmp_path / "file")


def test_the_folder_of_an_earlier_demo_is_emptied(tmp_path: Path) -> None:
    folder = DemoFolder.create(tmp_path / "demo")
    folder.landing.mkdir()
    (folder.landing / "file").touch()
    again = DemoFolder.create(tmp_path / "demo")
    assert not again.landing.exists()
    assert DemoFolder.create(tmp_path / "demo").path == folder.path


@pytest.mark.parametrize("name", ["demo", "with space", 'a "quote" and \\ backslash', "größe"])
def test_the_configuration_is_read_as_it_was_meant(tmp_path: Path, name: str) -> None:
    folder = DemoFolder.create(tmp_path / name)
    config = folder.configure(
        "postgres", "public", "postgresql://deltatide:p@ss/word@127.0.0.1:5432/shop", "p@ss/word"
    )
    assert config.source.url.get_secret_value() == "postgresql://deltatide:p%40ss%2Fword@127.0.0.1:5432/shop"
    assert config.landing.folder == folder.landing
    assert config.lake is not None
    assert config.lake.url == str(folder.lake)
    assert "p@ss" not in folder.configuration.read_text()


def test_the_address_of_the_page_is_the_one_that_the_agent_has_logged(tmp_path: Path) -> None:
    folder = DemoFolder.create(tmp_path / "demo")
    folder.agent_log.write_text("12:00:00 INFO    waiting\n")
    assert folder.status_page() is None
    folder.agent_log.write_text("12:00:00 INFO    status page: http://127.0.0.1:41234\n12:00:01 INFO    x\n")
    assert folder.status_page() == "http://127.0.0.1:41234"


def test_what_has_landed_to_the_end_is_not_behind_while_the_rest_is_merged() -> None:
    stats = LandingStats(MemoryStore())
    assert stats.lag_seconds(None) is None
    stats.lag = timedelta(seconds=3)
    stats.newest = SimpleNamespace(position=100)  # type: ignore[assignment]
    assert [stats.lag_seconds(end) for end in (None, 101, 100)] == [3.0, 3.0, None]


@pytest.mark.parametrize("rows", [1000, 20_000, 1_000_000])
def test_the_sizes_add_up_to_the_rows_asked_for(rows: int) -> None:
    sizes = vars(Sizes.of(rows))
    assert sum(sizes.values()) == rows
    assert min(sizes.values()) > 0


FIGURES = Figures(
    "writing",
    {"public.orders": TableFigures(1500, 3000, False, 7), "public.carts": TableFigures(5, 5, True, 0)},
    written=9, transactions=3, changes=7, changes_per_second=3.5, lag_seconds=0.25, manifest=4, merges=1,
    cut=3,
)  # fmt: skip


def test_without_a_terminal_figures_are_plain_lines_every_few_seconds() -> None:
    printed = io.StringIO()
    display = Display(Console(file=printed, width=80))
    with display.live():
        display.show(FIGURES)
        display.show(FIGURES)
    assert printed.getvalue().split("s  ", 1)[1].strip() == line(FIGURES)
    assert "1,505 rows dumped, 7 changes landed (4/s, lag 0.2 s), manifest 4, 1 merges, last cut 3" in line(
        FIGURES
    )


def test_on_a_terminal_the_display_names_every_table_and_figure() -> None:
    printed = io.StringIO()
    display = Display(Console(file=printed, width=100, force_terminal=True))
    with display.live():
        display.show(FIGURES)
    for text in ("public.orders", "1,500", "complete", "9 changes in 3 transactions", "last cut 3"):
        assert text in printed.getvalue()
