"""The lake's commands: merge, live, cuts. They need Spark, which is imported only when one of them runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from connector.cli.lake import Stopping, lake_config, open_spark, stopping
from connector.cli.maintain import landing_zone_findings
from connector.cli.merge_output import Lines, MetricsFile, print_json, print_tables
from connector.cli.options import ConfigOption, JsonOption, LogJsonOption
from connector.cli.printing import escape, log_to_stderr, out, when
from connector.errors import ConfigurationError
from connector.landing.format import CDC
from connector.position import format_position
from connector.schema import TableName

merge_commands = typer.Typer()

COMPACTION_SECONDS = 600
"""How long upkeep between merges may compact the landing zone; the next merge waits for it."""

Tasks = dict[TableName, TaskID]
Show = Callable[[Any], None]

_DONE_AT = {"waiting": 0, "reading": 20, "merging": 50, "done": 100, "failed": 100, "unchanged": 100}


@merge_commands.command(epilog="Example: deltatide merge -c shop.toml --every 60")
def merge(
    config: ConfigOption,
    every: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Merge repeatedly, until Ctrl-C.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Merge what has landed, then exit (default).")] = False,
    tables: Annotated[
        list[str] | None, typer.Option("--tables", help="Only these tables; repeat it or use commas.")
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(min=1, metavar="MANIFEST", help="Stop at this manifest, not the newest."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per merge, each on its own line.")
    ] = False,
    metrics_file: Annotated[
        Path | None,
        typer.Option(
            "--metrics-file",
            metavar="FILE",
            help="Write the figures of each merge to this file, for Prometheus's textfile collector.",
        ),
    ] = None,
    log_json: LogJsonOption = False,
) -> None:
    """Merge what has landed into the Delta tables, all of them up to the same manifest."""
    if every is not None and (once or until is not None):
        raise ConfigurationError(
            "--every can't be combined with --once or --until", hint="deltatide merge --help"
        )
    log_to_stderr(verbose=False, as_json=log_json)
    settings = lake_config(config)
    names = [name.strip() for group in tables or [] for name in group.split(",") if name.strip()] or None
    metrics = None if metrics_file is None else MetricsFile(metrics_file)
    stop = Stopping(repeats=every is not None)
    shown = print_json if as_json else print_tables if every is None else Lines().print
    code = 0
    with (
        stopping(settings, stop, waits=every is not None) as spark,
        _shown(shown, bars=out.is_terminal and not as_json) as (progress, show),
    ):
        from merge import merge_every, merge_once

        def report(done: Any) -> None:
            show(done)
            if metrics is not None:
                metrics.write(done)

        if every is None:
            done = merge_once(spark, settings, tables=names, until=until, progress=progress, stop=stop.event)
            report(done)
            code = stop.exit_code if done.stopped else done.exit_code
        else:
            merge_every(
                spark, settings, every, tables=names, progress=progress, report=report, stop=stop.event,
                more_upkeep=lambda: landing_zone_findings(
                    settings, stop=stop.event, compaction_seconds=COMPACTION_SECONDS
                ),
            )  # fmt: skip
    raise typer.Exit(code)


@contextmanager
def _shown(show: Show, *, bars: bool) -> Iterator[tuple[Callable[[Any], None], Show]]:
    """Yield callbacks for progress, shown as bars if asked, and for reports, before which bars end."""
    if not bars:
        yield (lambda _step: None), show
        return
    columns = (
        TextColumn("{task.description:<32}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[rows]:>12,} events"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=out, transient=True) as shown:
        tasks: Tasks = {}

        def end(done: Any) -> None:
            for task in tasks.values():
                shown.remove_task(task)
            tasks.clear()
            show(done)

        yield (lambda step: _move(shown, tasks, step)), end


def _move(bars: Progress, tasks: Tasks, step: Any) -> None:
    if step.table not in tasks:
        tasks[step.table] = bars.add_task(str(step.table), total=100, rows=step.rows)
    bars.update(tasks[step.table], completed=_DONE_AT[step.step], rows=step.rows)


@merge_commands.command(epilog="Example: deltatide live -c shop.toml public.orders --limit 5")
def live(
    config: ConfigOption,
    table: Annotated[str, typer.Argument(help="The table, as namespace.table.")],
    limit: Annotated[int, typer.Option(min=1, help="The number of rows to show.")] = 20,
    cdc: Annotated[
        bool, typer.Option("--cdc", help="Also show `_cdc`: each row's position, commit time and operation.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a table as of the newest manifest, without waiting for a merge."""
    settings = lake_config(config)
    with open_spark(settings) as spark:
        from merge.queries import as_printed
        from merge.queries import live as live_frame
        from merge.spark.unreachable import check_endpoint

        check_endpoint(spark, settings)
        frame = as_printed(live_frame(spark, settings, table).limit(limit))
        if as_json:
            _print_json(frame)
            return
        columns = [name for name in frame.columns if cdc or name != CDC]
        shown = Table(*map(escape, columns), box=None)
        for row in frame.collect():
            values = row.asDict(recursive=True)
            shown.add_row(*(escape(_formatted(values[name])) for name in columns))
        out.print(shown)


@merge_commands.command(epilog="Example: deltatide cuts -c shop.toml")
def cuts(
    config: ConfigOption,
    limit: Annotated[int, typer.Option(min=1, help="The number of cuts to show, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the cuts, each the state of all tables at one position of the source."""
    settings = lake_config(config)
    with open_spark(settings, reads_landing=False) as spark:
        from merge.lake.control_table import cuts as cut_frame
        from merge.spark.unreachable import check_endpoint

        check_endpoint(spark, settings)
        frame = cut_frame(spark, settings).orderBy("manifest", ascending=False).limit(limit)
        if as_json:
            _print_json(frame)
            return
        shown = Table(
            "manifest",
            "epoch",
            "position",
            "source time",
            "merged",
            "exact",
            "kept",
            "Delta versions",
            box=None,
        )
        for row in frame.collect():
            versions = [_table_shown(name, row.tables[name]) for name in sorted(row.tables)]
            position = format_position(row.position, settings.source.kind)
            shown.add_row(
                str(row.manifest), str(row.epoch), position, when(row.source_committed_at),
                when(row.merged_at), "yes" if row.exact else "no", escape(_kept(row.gone)),
                escape(", ".join(versions)),
            )  # fmt: skip
        out.print(shown)


def _kept(gone: list[str]) -> str:
    """Return whether a cut can still be read."""
    if not gone:
        return "yes"
    return f"gone ({gone[0]}{f' and {len(gone) - 1} more' if gone[1:] else ''})"


def _table_shown(name: str, frontier: Any) -> str:
    """Return a table's version in a cut, and what keeps the cut from being exact."""
    rows = "1 row is" if frontier.missing == 1 else f"{frontier.missing} rows are"
    incomplete = f"{rows} missing a column" if frontier.missing else None
    kept = ", ".join(filter(None, (frontier.error, incomplete)))
    return f"{name} {frontier.version}" + (f" ({kept})" if kept else "")


def _print_json(frame: Any) -> None:
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    print(json.dumps(rows, indent=2, default=str))


def _formatted(value: Any) -> str:
    return "NULL" if value is None else str(value)
