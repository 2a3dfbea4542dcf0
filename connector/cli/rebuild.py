"""The command ``rebuild``. It needs Spark, which is imported only when it runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from connector.cli.lake import lake_config, open_spark
from connector.cli.merge_output import NOT_EXACT
from connector.cli.options import ConfigOption
from connector.cli.printing import err, escape, log_to_stderr, out

rebuild_commands = typer.Typer()


@rebuild_commands.command(
    epilog="Example: deltatide rebuild -c shop.toml public.orders --into check.orders --at 120"
)
def rebuild(
    config: ConfigOption,
    table: Annotated[str, typer.Argument(help="The table, as namespace.table.")],
    into: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Write to this new table of the lake instead, as namespace.table; the table stays as it is.",
        ),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="MANIFEST", help="With --into: as of this manifest, as in deltatide cuts."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Rebuild all rows of a Delta table from the landing zone, whatever state it is in.

    Rebuilds it up to the newest manifest in one commit: readers see the old rows or the new ones, and merges
    may keep running. If their commits keep getting in first, it gives up after six attempts.
    """
    settings = lake_config(config)
    log_to_stderr(verbose=False)
    with open_spark(settings) as spark:
        from merge import rebuild as rebuild_table

        if out.is_terminal and not as_json:
            err.print("reading the landing zone", end="\r")
        done = rebuild_table(spark, settings, table, into=into, at=at)
    if as_json:
        print(json.dumps(done.to_dict(), default=str))
        return
    (rebuilt,) = done.tables
    where = escape(str(rebuilt.table) if into is None else f"{rebuilt.table} in {into}")
    out.print(
        f"{where}: rebuilt from {rebuilt.rows:,} events up to manifest {done.manifest}, {done.seconds:.1f} s"
    )
    if rebuilt.missing:
        out.print(f"up to {rebuilt.missing:,} rows are missing a column that no event has carried yet")
    if done.recorded:
        exact = "" if done.exact else f", not yet exact ({NOT_EXACT}, or other tables are behind)"
        out.print(f"cut at manifest {done.manifest}{exact}")
