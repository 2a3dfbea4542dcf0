"""The lake's commands: merge, live, cuts. They need Spark, which is imported only when one of them runs."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from connector.cli.printing import ConfigOption, JsonOption, err, escape, log_to_stderr, out, when
from connector.config import Config, load
from connector.errors import ConfigurationError, PreconditionError
from connector.landing import CDC
from connector.position import spell_position
from connector.signals import stopped_by_signals

merge_commands = typer.Typer()

_DONE_AT = {"waiting": 0, "reading": 20, "merging": 50, "done": 100, "failed": 100, "unchanged": 100}


@merge_commands.command(epilog="Example: deltatide merge -c shop.toml --every 60")
def merge(
    config: ConfigOption,
    every: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Merge again and again, until Ctrl-C.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Merge what has landed, and end (default).")] = False,
    tables: Annotated[
        list[str] | None, typer.Option("--tables", help="Only these tables; give it again or use commas.")
    ] = None,
    until: Annotated[
        int | None, typer.Option(min=1, metavar="MANIFEST", help="Up to this manifest, not the newest.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a report in JSON on a line, for each merge.")
    ] = False,
) -> None:
    """Merge what has landed into the Delta tables, all of them up to the same manifest."""
    if every is not None and (once or until is not None):
        raise ConfigurationError("--every excludes --once and --until", hint="deltatide merge --help")
    settings = _lake_config(config)
    names = [name.strip() for group in tables or [] for name in group.split(",") if name.strip()] or None
    log_to_stderr(verbose=False)
    stop = threading.Event()  # ends after the merge that is under way
    with (
        _spark(settings) as spark,
        stopped_by_signals(lambda _signal: stop.set()),
        _shown(as_json) as (progress, report),
    ):
        from merge.job import merge_every, merge_once

        if every is None:
            done = merge_once(spark, settings, tables=names, until=until, progress=progress)
            report(done)
            code = done.exit_code
        else:
            code = merge_every(
                spark, settings, every, tables=names, progress=progress, report=report, stop=stop
            )
    raise typer.Exit(code)


@contextmanager
def _shown(as_json: bool) -> Iterator[tuple[Callable[[Any], None], Callable[[Any], None]]]:
    """Give what shows a table's progress and a merge's report: bars on a terminal, lines elsewhere."""
    if as_json:
        yield (lambda _step: None), (lambda done: print(json.dumps(done.to_dict(), default=str), flush=True))
    elif out.is_terminal:
        columns = (
            TextColumn("{task.description:<32}"),
            BarColumn(),
            TextColumn("{task.fields[rows]:>12,} events"),
        )
        with Progress(*columns, TimeElapsedColumn(), console=out, transient=True) as bars:
            tasks: dict[str, TaskID] = {}
            yield (lambda step: _move(bars, tasks, step)), (lambda done: _print_report(done, bars, tasks))
    else:
        yield (lambda _step: None), _print_report


def _move(bars: Progress, tasks: dict[str, TaskID], step: Any) -> None:
    if step.table not in tasks:
        tasks[step.table] = bars.add_task(escape(step.table), total=100, rows=step.rows)
    bars.update(tasks[step.table], completed=_DONE_AT[step.step], rows=step.rows)


def _print_report(done: Any, bars: Progress | None = None, tasks: dict[str, TaskID] | None = None) -> None:
    if bars is not None and tasks is not None:
        for task in tasks.values():
            bars.remove_task(task)
        tasks.clear()
    for table in done.tables:
        _print_table(table)
    if not done.manifest:
        out.print("nothing has landed yet")
    elif done.recorded:
        exact = "" if done.exact else ", not yet exact (a dump is under way, a table is set aside or failed)"
        out.print(f"cut at manifest {done.manifest}{exact}, {done.seconds:.1f} s")
    elif bars is None:
        out.print(f"nothing new after manifest {done.manifest}")


def _print_table(table: Any) -> None:
    if table.error is not None:
        err.print(f"[bold red]failed[/] {escape(table.table)}: {escape(table.error)}")
        if table.hint:
            err.print(f"[bold]hint:[/] {escape(table.hint)}")
    elif table.rows:
        counts = ("inserted", "updated", "deleted")
        told = [f"{getattr(table, c):,} {c}" for c in counts if getattr(table, c) is not None]
        counted = ", ".join(told) or "merged"
        out.print(f"{escape(table.table)}: {table.rows:,} events, {counted}, {table.seconds:.1f} s")


@merge_commands.command(epilog="Example: deltatide live -c shop.toml public.orders --limit 5")
def live(
    config: ConfigOption,
    table: Annotated[str, typer.Argument(help="The table, as namespace.table.")],
    limit: Annotated[int, typer.Option(min=1, help="Show so many rows.")] = 20,
    cdc: Annotated[bool, typer.Option("--cdc", help="Show where each row comes from, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a table as of the newest manifest, without waiting for a merge."""
    settings = _lake_config(config)
    with _spark(settings) as spark:
        from merge.live import live as live_frame

        frame = live_frame(spark, settings, table).limit(limit)
        if as_json:
            _print_json(frame)
            return
        shown = Table(*(c for c in frame.columns if cdc or c != CDC), box=None)
        for row in frame.collect():
            values = row.asDict(recursive=True)
            shown.add_row(*(escape(_spelled(values[str(c.header)])) for c in shown.columns))
        out.print(shown)


@merge_commands.command(epilog="Example: deltatide cuts -c shop.toml")
def cuts(
    config: ConfigOption,
    limit: Annotated[int, typer.Option(min=1, help="Show so many, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the cuts: each is the state of all tables at one position of the source."""
    settings = _lake_config(config)
    with _spark(settings) as spark:
        from merge.frontier import cuts as cut_frame

        frame = cut_frame(spark, settings).orderBy("manifest", ascending=False).limit(limit)
        if as_json:
            _print_json(frame)
            return
        shown = Table(
            "manifest", "epoch", "position", "source time", "merged", "exact", "Delta versions", box=None
        )
        for row in frame.collect():
            versions = [f"{name} {row.tables[name].version}" for name in sorted(row.tables)]
            position = spell_position(row.position, settings.source.kind)
            shown.add_row(
                str(row.manifest), str(row.epoch), position, when(row.source_committed_at),
                when(row.merged_at), "yes" if row.exact else "no", escape(", ".join(versions)),
            )  # fmt: skip
        out.print(shown)


def _print_json(frame: Any) -> None:
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    print(json.dumps(rows, indent=2, default=str))


def _spelled(value: Any) -> str:
    return "NULL" if value is None else str(value)


def _lake_config(path: Path) -> Config:
    config = load(path)
    if config.lake is None:
        raise ConfigurationError(
            f"{path}: [lake] is missing", hint="add [lake] with url, or with catalog and schema"
        )
    return config


@contextmanager
def _spark(config: Config) -> Iterator[Any]:
    try:
        from merge.session import open_session
    except ModuleNotFoundError as error:
        raise PreconditionError(
            f"this command needs Spark: {error.name} is not installed", hint='pip install "deltatide[spark]"'
        ) from error
    if sys.stderr.isatty():
        err.print("starting Spark", end="\r")
    session = open_session(config)
    try:
        yield session
    finally:
        session.stop()
