"""The command ``query``. It needs Spark, which is imported only when it runs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from connector.cli.lake import lake_config, open_spark
from connector.cli.options import ConfigOption, JsonOption
from connector.cli.printing import err, escape, out, when
from connector.config import Config
from connector.errors import ConfigurationError
from connector.position import Moment, format_position

query_commands = typer.Typer()


@query_commands.command(
    epilog="Example: deltatide query -c shop.toml 'SELECT status, count(*) FROM orders GROUP BY 1' --live"
)
def query(
    config: ConfigOption,
    sql: Annotated[str, typer.Argument(help="One SELECT, in single quotes.")],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="CUT",
            help="The cut of this manifest; or the last exact one at or before a position or a commit time,"
            " written as in deltatide cuts. Default: the newest cut.",
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="As of the newest manifest, without waiting for a merge.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number of rows to show.")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Run a query over all tables as of one cut: they show the source at one position.

    Name a table without its namespace, as in FROM orders, or in full and in backquotes, as in
    FROM `public.orders`, which is required if several namespaces have a table of that name. Rows marked as
    deleted are left out. Only the tables that the query names are read. The cut used is printed to stderr.
    """
    if live and at is not None:
        raise ConfigurationError("--live can't be combined with --at", hint="deltatide query --help")
    settings = lake_config(config)
    moment = None if at is None else Moment.parse(at, settings.source.kind)
    with open_spark(settings, reads_landing=live) as spark:
        from merge.queries import as_printed
        from merge.reading.named_tables import answer
        from merge.spark.unreachable import check_endpoint

        check_endpoint(spark, settings)
        found = answer(spark, settings, sql, at=moment, live=live)
        columns = found.frame.columns
        if as_json and len(set(columns)) < len(columns):
            raise ConfigurationError("two columns have the same name", hint="rename one: SELECT a.id AS a_id")
        rows = as_printed(found.frame.limit(limit + 1)).collect()
    err.print(_state(found, settings))
    if len(rows) > limit:
        err.print(f"only the first {limit:,} rows are shown: see --limit")
    _print(columns, rows[:limit], as_json=as_json)


def _state(found: Any, config: Config) -> str:
    position = f"{found.epoch}:{format_position(found.position, config.source.kind)}"
    exact = "" if found.exact else ", not exact: see deltatide cuts"
    last = f", last commit {when(found.source_committed_at)}" if found.source_committed_at else ""
    return f"as of manifest {found.manifest}, position {position}{last}{exact}"


def _print(columns: list[str], rows: list[Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([row.asDict(recursive=True) for row in rows], indent=2, default=str))
        return
    shown = Table(*map(escape, columns), box=None)
    for row in rows:
        shown.add_row(*(escape("NULL" if value is None else str(value)) for value in row))
    out.print(shown)
