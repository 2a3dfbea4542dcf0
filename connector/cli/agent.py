"""The agent's commands: check, run, dump, dumps, status."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from connector.cli.printing import ConfigOption, JsonOption, VerboseOption, escape, log_to_stderr, out, when
from connector.config import load
from connector.errors import ConfigurationError, RequestError
from connector.signals import stopped_by_signals

agent_commands = typer.Typer()


@agent_commands.command(epilog="Example: deltatide check -c shop.toml")
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
                f"{marks[finding.state]:<8} {escape(finding.name)}: {escape(finding.detail)}",
                highlight=False,
            )
            if finding.mend:
                out.print(f"         [bold]->[/] {escape(finding.mend)}")
    raise typer.Exit(1 if failed else 0)


@agent_commands.command(epilog="Example: deltatide run -c shop.toml")
def run(config: ConfigOption, verbose: VerboseOption = False) -> None:
    """Capture: follow the log, take dumps, land and commit, until SIGTERM or Ctrl-C."""
    from connector.footprint import keep_small

    keep_small()
    log_to_stderr(verbose)
    with stopped_by_signals(lambda _signal: sys.exit(0)):  # before capture begins nothing is to be landed
        from connector import agent

        progress = agent.run(load(config))
    logging.getLogger("deltatide").info(
        "%s changes, %s dumped rows in %s manifests",
        progress.changes,
        progress.dumped_rows,
        progress.manifests,
    )


@agent_commands.command(
    epilog="Example: deltatide dump -c shop.toml public.orders --where \"status = 'open'\""
)
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
        out.print(f"asked for dump {request_id}; deltatide dumps shows how far it is")


def parse_keys(text: str) -> list[list[str]]:
    """Read the keys of ``--keys``: ``1,2,3`` or JSON; each key becomes a list of the source's text values."""
    if not text.lstrip().startswith("["):
        return [[part.strip()] for part in text.split(",") if part.strip()]
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"--keys is not JSON: {error.msg} at column {error.colno}") from error
    return [[str(v) for v in key] if isinstance(key, list) else [str(key)] for key in values]


@agent_commands.command(epilog="Example: deltatide dumps -c shop.toml")
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
            "" if s.rows_estimate is None else f"{s.rows_estimate:,}", when(s.finished_at),
        )  # fmt: skip
    out.print(table)


@agent_commands.command(epilog="Example: deltatide status -c shop.toml --json")
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
        value = state[name]
        out.print(f"{name:<12} {escape(when(value) if isinstance(value, datetime) else str(value))}")
    table = Table("table", "state", "dumped", "active dumps", "reason", box=None)
    for name, t in state["tables"].items():
        table.add_row(
            name, t["state"], "yes" if t["dumped"] else "no", str(t["active_dumps"]), t["reason"] or ""
        )
    out.print(table)
    for name, t in state["tables"].items():
        if t["hint"]:
            out.print(f"[bold]hint:[/] {escape(name)}: {escape(t['hint'])}")
