"""The agent's commands: check, run, reload, handover, schema, status."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from connector.cli.options import ConfigOption, JsonOption, LogJsonOption, VerboseOption
from connector.cli.printing import duration, escape, log_to_stderr, out, when
from connector.config import load
from connector.errors import PreconditionError
from connector.signals import SignalEvent, reloaded_by_signal, stopped_by_signals

if TYPE_CHECKING:
    from connector.control.status import Status, VerifiedStatus
    from connector.landing.layout_history import LayoutVersion

agent_commands = typer.Typer()

PACKAGES = ("fastapi", "prometheus_client", "psycopg2", "pymysql", "uvicorn")
"""The packages of the extra `agent`."""


def _require_packages() -> None:
    """Raise `PreconditionError` unless the agent's packages are installed; merges don't need them."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise PreconditionError(
            f"this command needs the agent's packages; not installed: {', '.join(missing)}",
            hint="pip install 'deltatide[agent]'",
        )


@agent_commands.command(epilog="Example: deltatide check -c shop.toml")
def check(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Check every precondition and show how to fix those that fail."""
    _require_packages()
    from connector.agent import check as check_all

    findings = check_all(load(config))
    failed = any(f.state == "failed" for f in findings)
    if as_json:
        print(json.dumps({"ok": not failed, "findings": [vars(f) for f in findings]}, indent=2))
    else:
        marks = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "failed": "[bold red]failed[/]"}
        for finding in findings:
            out.print(
                f"{marks[finding.state]:<8} {escape(finding.name)}: {escape(finding.detail, lines=True)}",
                highlight=False,
            )
            if finding.fix:
                out.print(f"         [bold]->[/] {escape(finding.fix, lines=True)}")
    raise typer.Exit(1 if failed else 0)


@agent_commands.command(epilog="Example: deltatide run -c shop.toml")
def run(
    config: ConfigOption,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another agent is active, and take over from it.")
    ] = False,
    verbose: VerboseOption = False,
    log_json: LogJsonOption = False,
) -> None:
    """Capture: follow the log, dump tables, land and commit, until SIGTERM or Ctrl-C.

    Any number of agents of one source may run with --standby, on any hosts: one is active, the others wait.
    """
    _require_packages()
    from connector.footprint import keep_small

    keep_small()
    log_to_stderr(verbose, as_json=log_json)
    stopped = SignalEvent()

    def exit_now(_signal: object) -> NoReturn:
        stopped.set()
        sys.exit(0)

    # Before capture begins there is nothing to land, and the configuration is fresh.
    with stopped_by_signals(exit_now), reloaded_by_signal(lambda: None):
        from connector import agent

        environment = dict(os.environ)  # connecting removes libpq's variables, and a reload may need them
        reread = partial(load, config, environment)
        progress = agent.run(load(config), reread, standby=standby, stopped=stopped)
    logging.getLogger("deltatide").info(
        "%s changes, %s dumped rows in %s manifests",
        progress.changes,
        progress.dumped_rows,
        progress.manifests,
    )


@agent_commands.command("reload", epilog="Example: deltatide reload -c shop.toml")
def reload_(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Have the running agent reload its configuration file: tables, and the sections dump and limits.

    The same as SIGHUP. Running dumps continue; other settings need a restart.
    """
    from connector.control.dump_requests import request_control
    from connector.control.source_view import SourceView

    request_id = request_control(SourceView(load(config)), kind="reload")
    if as_json:
        print(json.dumps({"id": request_id}))
    else:
        out.print(
            "requested: the agent reloads its own configuration file; check its log and deltatide status"
        )


@agent_commands.command(epilog="Example: deltatide handover -c shop.toml")
def handover(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Hand over from the active agent to a standby, for example before host maintenance.

    All agents must have been started with run --standby.
    """
    from connector.control.handover import request_handover
    from connector.control.source_view import SourceView

    done = request_handover(SourceView(load(config)))
    if as_json:
        print(json.dumps(vars(done)))
    else:
        out.print(escape(f"{done.agent} took over, {done.seconds:.1f} s after the former agent had ended"))


@agent_commands.command(epilog="Example: deltatide schema -c shop.toml public.orders")
def schema(
    config: ConfigOption,
    table: Annotated[str, typer.Argument(help="A table, as namespace.table.")],
    as_json: JsonOption = False,
) -> None:
    """Show a table's columns as they land, and how its layout has changed."""
    from connector.control.source_view import SourceView

    versions = SourceView(load(config)).layouts(table)
    if as_json:
        print(json.dumps([_layout_json(v) for v in versions], indent=2))
        return
    newest = versions[0].schema
    columns = Table("column", "source type", "lake type", "key", box=None)
    for column in newest.columns:
        number = str(newest.key.index(column.name) + 1) if column.name in newest.key else ""
        columns.add_row(Text(column.name), Text(column.source_type), Text(column.type), number)
    out.print(columns)
    history = Table("manifest", "landed", "position", "change", box=None)
    for version in versions:
        history.add_row(
            str(version.manifest),
            when(version.committed_at),
            version.position_text,
            Text(_format_change(version)),
        )
    out.print()
    out.print(history)


def _format_change(version: LayoutVersion) -> str:
    """Describe what a layout changed, as in ``added n (integer); dropped old``."""
    if version.is_first:
        return f"first layout, {len(version.schema.columns)} columns"
    parts = [f"added {c.name} ({c.source_type})" for c in version.added]
    parts += [f"dropped {c.name}" for c in version.dropped]
    parts += [f"{now.name}: {was.source_type} became {now.source_type}" for was, now in version.changed]
    if version.key_before != version.schema.key:
        parts.append(f"key {list(version.key_before or ())} became {list(version.schema.key)}")
    if version.images_changed:
        parts.append(f"before-images {'begin' if version.schema.before_images else 'end'}")
    return "; ".join(parts) if parts else "columns reordered"


def _layout_json(version: LayoutVersion) -> dict[str, Any]:
    return {
        "manifest": version.manifest,
        "committed_at": version.committed_at.isoformat(),
        "position": version.position_text,
        "schema_id": version.schema.id,
        "key": list(version.schema.key),
        "columns": [vars(c) for c in version.schema.columns],
        "before_images": version.schema.before_images,
        "change": _format_change(version),
    }


@agent_commands.command(epilog="Example: deltatide status -c shop.toml --watch")
def status(
    config: ConfigOption,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh it until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How often to refresh it, with --watch.")
    ] = 2.0,
) -> None:
    """Show the active agent, how far the log has landed, and what is quarantined."""
    from connector.control.source_view import SourceView
    from connector.control.status import status as read_status

    view = SourceView(load(config))
    if watch:
        from connector.cli.watch import watch as watch_status

        watch_status(view, every, as_json=as_json)
        return
    state = read_status(view)
    if as_json:
        print(json.dumps(state.as_json(), indent=2))
    else:
        print_status(state)
    raise typer.Exit(1 if state.quarantined else 0)


def verified_in_words(verified: VerifiedStatus) -> str:
    """Format how much of a lake was verified lately, and since when all of it has been."""
    share = verified.share_last_day
    lately = "nothing yet" if share is None else f"{share:.1%} of its rows in the last day"
    oldest = f"all since {when(verified.oldest_at)}"
    if verified.never_verified:
        oldest = f"some rows of {verified.never_verified:,} of {verified.tables:,} tables never"
    return f"{lately}, {oldest}"


def print_status(status: Status) -> None:
    """Print a status."""
    figures = {
        "source": status.source,
        "agent": status.agent,
        "manifest": status.manifest,
        "position": status.position,
        "epoch": status.epoch,
        "committed": when(status.committed_at),
        "source time": when(status.source_committed_at),
        "exact": status.exact,
        "gaps": status.gaps,
    }
    lag, at = status.figures.lag_seconds, status.figures.at
    if lag is not None and at is not None:
        moment = when(datetime.fromtimestamp(at, timezone.utc))
        figures["lag"] = f"{duration(lag)}, {status.figures.lag_bytes:,} bytes of log, at {moment}"
    if held_back := status.figures.dumps_held_back:
        figures["dumps"] = f"held back: {held_back}"
    for name, value in figures.items():
        out.print(f"{name:<12} {escape(str(value))}")
    table = Table("table", "state", "dumped", "active dumps", "reason", box=None)
    for name, t in status.tables.items():
        dumped = "only changes" if t.only_changes else "yes" if t.dumped else "no"
        verify = f" ({t.verifications} to verify)" if t.verifications else ""
        table.add_row(escape(name), t.state, dumped, f"{t.active_dumps}{verify}", escape(t.reason or ""))
    out.print(table)
    if status.lakes:
        lakes = Table("lake or stream", "merged or read up to", "recorded", box=None)
        for lake in status.lakes:
            lakes.add_row(escape(lake.lake), f"manifest {lake.manifest}", when(lake.at))
        out.print(lakes)
    for lake in status.lakes:
        for name, reason in lake.failing.items():
            out.print(f"[bold red]not merged[/]   {escape(name)} in {escape(lake.lake)}")
            out.print(f"             {escape(reason)}")
        if lake.failing_unnamed:
            out.print(f"[bold red]not merged[/]   {lake.failing_unnamed:,} more in {escape(lake.lake)}")
    for verified in status.verified:
        out.print(f"verified     {escape(verified.lake)}")
        out.print(f"             {verified_in_words(verified)}")
        for name, keys in verified.differences.items():
            out.print(f"[bold red]differs[/]      {escape(name)}: {keys:,} keys when last verified")
            out.print(f"[bold]hint:[/] deltatide verify {escape(name)} --repair")
    for name, t in status.tables.items():
        if t.hint:
            out.print(f"[bold]hint:[/] {escape(name)}: {escape(t.hint)}")
