"""The ``deltatide`` command: parsing and printing only.

Exit status: 0 good, 1 failed, 2 wrong usage. An error is one to a few lines, with what to do; never a traceback.
What a program may read is printed as JSON with ``--json``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from connector import __version__
from connector.config import Config, load
from connector.errors import BugError, ConfigurationError, DeltatideError, PreconditionError, RequestError

app = typer.Typer(
    name="deltatide",
    help="Keeps Delta Lake tables in step with PostgreSQL tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

ConfigOption = Annotated[
    Path,
    typer.Option(
        "-c", "--config", metavar="FILE", help="The configuration, as in conf/.", envvar="DELTATIDE_CONFIG"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Log more.")]


def main() -> None:
    """Run the command; every error of ours becomes a message and an exit status."""
    try:
        app(standalone_mode=True)
    except DeltatideError as error:
        _fail(error)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _fail(error: DeltatideError) -> NoReturn:
    err.print(f"[bold red]error:[/] {_plain(error)}", highlight=False)
    if error.hint:
        err.print(f"[bold]hint:[/] {_escape(error.hint)}", highlight=False)
    if isinstance(error, BugError):
        err.print_exception()
    sys.exit(error.exit_code)


def _plain(error: BaseException) -> str:
    return _escape(str(error))


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


def _log_to_stderr(verbose: bool) -> None:
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )
    for noisy in ("botocore", "boto3", "urllib3", "s3transfer", "py4j"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        out.print(__version__, highlight=False)
        raise typer.Exit


@app.command(epilog="Example: deltatide check -c shop.toml")
def check(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Look at every precondition and show what mends those that fail."""
    from connector.agent import check as check_all

    findings = check_all(load(config))
    failed = any(f.state == "failed" for f in findings)
    if as_json:
        print(json.dumps({"ok": not failed, "findings": [vars(f) for f in findings]}, indent=2))
    else:
        marks = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "failed": "[bold red]failed[/]"}
        for finding in findings:
            out.print(
                f"{marks[finding.state]:<8} {_escape(finding.name)}: {_escape(finding.detail)}",
                highlight=False,
            )
            if finding.mend:
                out.print(f"         [bold]->[/] {_escape(finding.mend)}", highlight=False)
    raise typer.Exit(1 if failed else 0)


@app.command(epilog="Example: deltatide run -c shop.toml")
def run(config: ConfigOption, verbose: VerboseOption = False) -> None:
    """Capture: follow the log, take dumps, land and commit, until SIGTERM or Ctrl-C."""
    from connector import agent

    _log_to_stderr(verbose)
    progress = agent.run(load(config))
    logging.getLogger("deltatide").info(
        "%s changes, %s dumped rows in %s manifests",
        progress.changes,
        progress.dumped_rows,
        progress.manifests,
    )


@app.command(epilog="Example: deltatide dump -c shop.toml public.orders --where \"status = 'open'\"")
def dump(
    config: ConfigOption,
    tables: Annotated[list[str] | None, typer.Argument(help="Tables, as namespace.table.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All captured tables.")] = False,
    where: Annotated[
        str | None, typer.Option(help="Only rows for which this SQL condition of the source holds.")
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help='Only these keys: "1,2,3", or a JSON array of keys (arrays for keys of several columns).'
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the running agent for a dump of existing rows, while the log keeps flowing."""
    from connector.agent import request_dump

    if bool(tables) == everything:
        raise ConfigurationError("name tables, or --all for all of them", hint="deltatide dump --help")
    if where and keys:
        raise ConfigurationError("--where and --keys exclude each other", hint="ask for two dumps")
    request_id = request_dump(load(config), tables, where, parse_keys(keys) if keys else None)
    if as_json:
        print(json.dumps({"id": request_id}))
    else:
        out.print(f"asked for dump {request_id}; deltatide dumps shows how far it is", highlight=False)


def parse_keys(text: str) -> list[list[str]]:
    """Read the keys of ``--keys``: ``1,2,3`` or JSON; each key becomes a list of the source's text values."""
    if not text.lstrip().startswith("["):
        return [[part.strip()] for part in text.split(",") if part.strip()]
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"--keys is not JSON: {error.msg} at column {error.colno}") from error
    return [[str(v) for v in key] if isinstance(key, list) else [str(key)] for key in values]


@app.command(epilog="Example: deltatide dumps -c shop.toml")
def dumps(config: ConfigOption, as_json: JsonOption = False) -> None:
    """List dumps: what was asked for, and how far they have come."""
    from connector.agent import newest

    states = newest(load(config)).dumps
    if as_json:
        print(json.dumps([s.model_dump(mode="json", exclude={"open", "keys"}) for s in states], indent=2))
        return
    table = Table(
        "dump", "table", "kind", "reason", "state", "chunks", "rows", "of about", "finished", box=None
    )
    for s in states:
        table.add_row(
            s.id, s.table, s.kind, s.reason, s.error or s.state, f"{s.chunks:,}", f"{s.rows:,}",
            "" if s.rows_estimate is None else f"{s.rows_estimate:,}", _when(s.finished_at),
        )  # fmt: skip
    out.print(table)


@app.command(epilog="Example: deltatide status -c shop.toml --json")
def status(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Show who is active, how far the log has landed, and what is set aside."""
    from connector.agent import status as read_status

    state = read_status(load(config))
    if as_json:
        print(json.dumps(state, indent=2, default=str))
    else:
        _print_status(state)
    raise typer.Exit(1 if any(t["state"] == "set_aside" for t in state["tables"].values()) else 0)


def _print_status(state: dict[str, Any]) -> None:
    for name in (
        "source",
        "agent",
        "manifest",
        "position",
        "epoch",
        "committed",
        "source time",
        "exact",
        "gaps",
    ):
        out.print(f"{name:<12} {_escape(str(state[name]))}", highlight=False)
    table = Table("table", "state", "dumped", "active dumps", "reason", box=None)
    for name, t in state["tables"].items():
        table.add_row(
            name, t["state"], "yes" if t["dumped"] else "no", str(t["active_dumps"]), t["reason"] or ""
        )
    out.print(table)
    for name, t in state["tables"].items():
        if t["hint"]:
            out.print(f"[bold]hint:[/] {_escape(name)}: {_escape(t['hint'])}", highlight=False)


def _when(at: datetime | None) -> str:
    return "" if at is None else f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}Z"


@app.command(epilog="Example: deltatide merge -c shop.toml --every 60")
def merge(
    config: ConfigOption,
    every: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Merge again and again, until Ctrl-C.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Merge what has landed and end (the default).")
    ] = False,
    tables: Annotated[list[str] | None, typer.Option("--tables", help="Only these tables.")] = None,
    until: Annotated[
        int | None, typer.Option(min=1, metavar="MANIFEST", help="Up to this manifest, not the newest.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Merge what has landed into the Delta tables, all of them up to the same manifest."""
    if once and every is not None:
        raise ConfigurationError("--once and --every exclude each other", hint="deltatide merge --help")
    settings = _lake_config(config)
    names = [name.strip() for group in tables or [] for name in group.split(",")] or None
    with _spark(settings) as spark:
        from connector.merge_command import merge_until_done

        ok = merge_until_done(spark, settings, every=every, tables=names, until=until, as_json=as_json)
    raise typer.Exit(0 if ok else 1)


@app.command(epilog="Example: deltatide live -c shop.toml public.orders --limit 5")
def live(
    config: ConfigOption,
    table: Annotated[str, typer.Argument(help="The table, as namespace.table.")],
    limit: Annotated[int, typer.Option(min=1, help="Show so many rows.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show a table as of the newest manifest, without waiting for a merge."""
    settings = _lake_config(config)
    with _spark(settings) as spark:
        from merge import live as live_frame

        _print_rows(live_frame(spark, settings, table).limit(limit), as_json)


@app.command(epilog="Example: deltatide cuts -c shop.toml")
def cuts(
    config: ConfigOption,
    limit: Annotated[int, typer.Option(min=1, help="Show so many, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the cuts: each the state of all tables at one position of the source."""
    settings = _lake_config(config)
    with _spark(settings) as spark:
        from merge import cuts as cut_frame

        _print_rows(cut_frame(spark, settings).limit(limit), as_json)


def _print_rows(frame: Any, as_json: bool) -> None:
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    if as_json:
        print(json.dumps(rows, indent=2, default=str))
        return
    table = Table(*frame.columns, box=None)
    for row in rows:
        table.add_row(*(_escape(str(value)) for value in row.values()))
    out.print(table)


@contextmanager
def _spark(config: Config) -> Iterator[Any]:
    try:
        from merge.session import open_session
    except ModuleNotFoundError as error:
        raise PreconditionError(
            f"this command needs Spark: {error.name} is not installed", hint='pip install "deltatide[spark]"'
        ) from error
    session = open_session(config)
    try:
        yield session
    finally:
        session.stop()


@app.command(epilog="Example: deltatide demo --rows 200000")
def demo(
    folder: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("demo-data"),
    rows: Annotated[int, typer.Option(min=1000, help="Rows to begin with, in all tables.")] = 1_000_000,
    seconds: Annotated[int, typer.Option(min=5, help="How long to write while capturing.")] = 60,
) -> None:
    """Watch a live PostgreSQL being captured, dumped and merged, and compare lake and source row by row."""
    from connector.demo.run import demo as run_demo

    raise typer.Exit(run_demo(folder, rows=rows, seconds=seconds))


def _lake_config(path: Path) -> Config:
    config = load(path)
    if config.lake is None:
        raise ConfigurationError(
            f"{path}: [lake] is missing", hint='add [lake] with url = "..." or catalog and schema'
        )
    return config


if __name__ == "__main__":
    main()
