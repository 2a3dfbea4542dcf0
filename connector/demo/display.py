"""Shows the demo's progress: live on a terminal, otherwise as a plain line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from connector.demo.landing_stats import TableFigures

LINE_SECONDS = 5.0


@dataclass
class Figures:
    """The figures to show at one moment; `cut` is the last manifest merged, None before the first."""

    phase: str
    tables: dict[str, TableFigures] = field(default_factory=dict)
    written: int = 0
    transactions: int = 0
    changes: int = 0
    changes_per_second: float = 0.0
    lag_seconds: float | None = None
    manifest: int = 0
    merges: int = 0
    cut: int | None = None

    @property
    def dumped(self) -> int:
        """Rows dumped in all tables."""
        return sum(table.dumped for table in self.tables.values())


class Display:
    """Prints steps and figures; `live` updates figures in place on a terminal while its block runs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._began = time.monotonic()
        self._last_line = 0.0

    def step(self, text: str) -> None:
        """Print the current step."""
        self.console.print(f"[dim]{self._elapsed():>5.0f} s[/]  {text}", highlight=False, soft_wrap=True)

    @contextmanager
    def live(self) -> Iterator[None]:
        """On a terminal, update figures in place during the block; the last ones stay."""
        if not self.console.is_terminal:
            yield
            return
        try:
            with Live(console=self.console, refresh_per_second=4) as self._live:
                yield
        finally:
            self._live = None

    def show(self, figures: Figures) -> None:
        """Show figures; without a terminal, only every LINE_SECONDS."""
        if self._live is not None:
            self._live.update(self._picture(figures))
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            self.step(line(figures))

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _picture(self, figures: Figures) -> RenderableType:
        table = Table(box=None, padding=(0, 2), header_style="bold")
        table.add_column("table")
        table.add_column("rows dumped", justify="right")
        table.add_column("", width=22)
        table.add_column("changes landed", justify="right")
        for name, each in sorted(figures.tables.items()):
            table.add_row(name, f"{each.dumped:,}", _bar(each), f"{each.changes:,}")
        return Group(
            Text(f"\n{self._elapsed():5.0f} s  {figures.phase}\n", style="bold"),
            table,
            _sums(figures),
            Text(),
        )


def line(figures: Figures) -> str:
    """Format figures as one line."""
    lag = "" if figures.lag_seconds is None else f", lag {figures.lag_seconds:.1f} s"
    return (
        f"{figures.phase}: {figures.dumped:,} rows dumped, {figures.changes:,} changes landed "
        f"({figures.changes_per_second:,.0f}/s{lag}), manifest {figures.manifest}, "
        f"{figures.merges} merges, {_cut(figures)}"
    )


def _cut(figures: Figures) -> str:
    return "no cut yet" if figures.cut is None else f"last cut {figures.cut}"


def _bar(table: TableFigures) -> RenderableType:
    if table.complete:
        return Text("complete", style="green")
    return ProgressBar(total=max(table.estimate or 0, table.dumped, 1), completed=table.dumped, width=20)


def _sums(figures: Figures) -> RenderableType:
    sums = Table(box=None, padding=(0, 2), show_header=False)
    lag = "-" if figures.lag_seconds is None else f"{figures.lag_seconds:.1f} s from commit to manifest"
    rows = {
        "writer": f"{figures.written:,} changes in {figures.transactions:,} transactions",
        "landed": f"{figures.changes:,} changes, {figures.changes_per_second:,.0f} per second",
        "lag": lag,
        "manifests": f"{figures.manifest}",
        "merges": f"{figures.merges}, {_cut(figures)}",
    }
    for name, value in rows.items():
        sums.add_row(Text(name, style="bold"), value)
    return Group(Text(), sums)
