"""The command ``views``. It needs Spark, which is imported only when it runs."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from connector.cli.lake import lake_config, open_spark
from connector.cli.merge_output import print_view
from connector.cli.options import ConfigOption, JsonOption
from connector.cli.printing import escape, log_to_stderr, out
from connector.config import Config
from connector.errors import ConfigurationError

view_commands = typer.Typer()


@view_commands.command(epilog="Example: deltatide views refresh revenue --full -c shop.toml")
def views(
    config: ConfigOption,
    action: Annotated[
        Literal["refresh"] | None, typer.Argument(help="refresh: bring views to the newest cut.")
    ] = None,
    names: Annotated[
        list[str] | None, typer.Argument(help="The views to refresh; without any, all of them.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Refresh them even if nothing that they read has changed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the materialized views: state, rows, as of which manifest, what they read, why one failed.

    Also shows why one is refreshed in full; others are refreshed incrementally. Merges refresh views. A
    refresh by hand reads what the newest cut names, and records that cut again.
    """
    if full and action is None:
        raise ConfigurationError("--full needs refresh", hint="deltatide views refresh --full")
    settings = lake_config(config)
    if action is None:
        _list(settings, as_json)
    else:
        log_to_stderr(verbose=False)
        _refresh(settings, names or [], full, as_json)


def _list(config: Config, as_json: bool) -> None:
    with open_spark(config, reads_landing=False) as spark:
        from merge.spark.unreachable import check_endpoint
        from merge.views.listing import view_states

        check_endpoint(spark, config)
        states = view_states(spark, config)
    if as_json:
        print(json.dumps([state.to_dict() for state in states], indent=2))
    elif not states:
        out.print("no views are configured: add \\[views.NAME] with sql or file")
    else:
        out.print(_shown(states))


def _shown(states: list[Any]) -> Table:
    shown = Table("view", "state", "rows", "as of manifest", "reads", "refreshed in full", "error", box=None)
    for view in states:
        rows = "" if view.rows is None else f"{view.rows:,}"
        manifest = "" if view.manifest is None else str(view.manifest)
        reads = ", ".join(view.inputs)
        cells = (view.name, view.state, rows, manifest, reads, view.full_because or "", view.error or "")
        shown.add_row(*map(escape, cells))
    return shown


def _refresh(config: Config, names: list[str], full: bool, as_json: bool) -> None:
    with open_spark(config) as spark:
        from merge.views.listing import refresh_views

        done = refresh_views(spark, config, names, full=full)
    if as_json:
        print(json.dumps(done.to_dict(), default=str))
    else:
        for view in done.views:
            print_view(view)
        if not any(view.refreshed or view.error for view in done.views):
            out.print(f"nothing to refresh as of manifest {done.manifest}: --full refreshes it anyway")
    raise typer.Exit(done.exit_code)
