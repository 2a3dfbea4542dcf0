"""The command ``maintain``: a list of steps, each of which yields what it finds and does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from connector.cli.lake import Stopping, lake_config, stopping
from connector.cli.printing import ConfigOption, err, escape, log_to_stderr, out

maintain_commands = typer.Typer()

Shown = Callable[[int, int, str], None]


def _lake_tables(spark: Any, config: Any, dry_run: bool, progress: Shown, stop: Any) -> Iterator[Any]:
    from merge.upkeep import upkeep

    return upkeep(spark, config, dry_run=dry_run, progress=progress, stop=stop)


STEPS: tuple[tuple[str, Callable[..., Iterator[Any]]], ...] = (("lake tables", _lake_tables),)
"""Name and function of each step, in order.

A finding has `subject`, `action`, `reason`, `seconds`, `hint` and
`status`: planned, done, deferred, failed."""


@maintain_commands.command(epilog="Example: deltatide maintain -c shop.toml --dry-run")
def maintain(
    config: ConfigOption,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done and why; change nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per finding, each on its own line.")
    ] = False,
) -> None:
    """Compact and vacuum the lake's tables where they need it; cuts younger than lake.retention_days stay."""
    settings = lake_config(config)
    log_to_stderr(verbose=False)
    stop, statuses = Stopping(), []
    with stopping(settings, stop, reads_landing=False) as spark, _bar(shown=not as_json) as progress:
        for name, step in STEPS:
            if stop.event.is_set():
                break
            for finding in step(spark, settings, dry_run, progress, stop.event):
                statuses.append(finding.status)
                _print_json(name, finding) if as_json else _print(finding)
    if not as_json and not stop.event.is_set() and not statuses:
        out.print("nothing to do")
    if stop.event.is_set():
        raise typer.Exit(stop.exit_code)
    raise typer.Exit(1 if "failed" in statuses else 0)


@contextmanager
def _bar(*, shown: bool) -> Iterator[Shown]:
    """Yield what shows progress: a bar on a terminal, nothing elsewhere."""
    if not shown or not out.is_terminal:
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description:<48}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as bars:
        task = bars.add_task("reading the newest cut", total=None)
        yield lambda done, total, what: bars.update(task, completed=done, total=total, description=what)


def _print_json(step: str, finding: Any) -> None:
    print(json.dumps({"step": step} | asdict(finding)), flush=True)


def _print(finding: Any) -> None:
    """Print a finding as one line, and what to do about a failure as another."""
    what = f"{escape(finding.subject)}: {finding.action}"
    if finding.status == "failed":
        err.print(f"[bold red]failed[/] {what}: {escape(finding.reason)}")
        if finding.hint:
            err.print(f"[bold]hint:[/] {escape(finding.hint)}")
        return
    shown = {"planned": "would do", "done": "done", "deferred": "next time"}[finding.status]
    took = f", {finding.seconds:.1f} s" if finding.status == "done" else ""
    out.print(f"{shown}: {what} ({escape(finding.reason)}){took}")
