"""The end of the demo: figures, differences, and what to try next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from connector.demo.compare import Comparison
from connector.demo.folder import DemoFolder
from connector.demo.landing_stats import LandingStats

DIFFERENCES_SHOWN = 10


def print_comparison(console: Console, comparisons: Sequence[Comparison], watch: LandingStats) -> None:
    """Print a line per table (at least one is required), and the first differences if there are any."""
    table = Table(header_style="bold", box=None, padding=(0, 1))
    table.add_column("table", no_wrap=True)
    for name in (f"in {comparisons[0].title}", "in Delta", "differences", "dumped", "captured"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in comparisons:
        found = watch.tables[each.table]
        differences = f"[bold red]{each.differences:,}[/]" if each.differences else "[green]0[/]"
        figures = (f"{n:,}" for n in (each.source_rows, each.target_rows, found.dumped, found.changes))
        source, target, dumped, changes = figures
        table.add_row(each.table, source, target, differences, dumped, changes)
    console.print()
    console.print(table)
    first = [difference for each in comparisons for difference in each.first]
    for difference in first[:DIFFERENCES_SHOWN]:
        console.print(f"[red]difference:[/] {escape(str(difference))}", highlight=False, soft_wrap=True)


def print_figures(console: Console, figures: Mapping[str, str]) -> None:
    """Print named figures, one per line."""
    table = Table(box=None, padding=(0, 2), show_header=False)
    for name, value in figures.items():
        table.add_row(f"[bold]{name}[/]", value)
    console.print()
    console.print(table)


def print_next_steps(console: Console, folder: DemoFolder, namespace: str) -> None:
    """Print where everything is, and commands that can be pasted."""
    command = _program("deltatide")
    configuration = shlex.quote(folder.shown(folder.configuration))
    steps = {
        "Delta tables": folder.shown(folder.lake / namespace),
        "landing zone": folder.shown(folder.landing / "shop"),
        "a table now": f"{command} live -c {configuration} {namespace}.orders --limit 5",
        "the cuts": f"{command} cuts -c {configuration}",
        "a notebook": "notebooks/01_first_look.ipynb",
    }
    console.print()
    for name, text in steps.items():
        console.print(f"[bold]{name:<14}[/]{escape(text)}", highlight=False, soft_wrap=True)


def _program(name: str) -> str:
    """Format a command of this environment so that the shell finds it."""
    return name if shutil.which(name) else _shown(Path(sys.executable).with_name(name))


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return shlex.quote(str(path) if relative.startswith("..") else relative)
