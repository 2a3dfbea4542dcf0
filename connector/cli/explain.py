"""The command ``explain``. It needs Spark, which is imported only when it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from connector.cli.lake import lake_config, open_spark
from connector.cli.options import ConfigOption, JsonOption
from connector.cli.printing import escape, out
from connector.landing.format import CDC
from connector.position import CHUNK_SEQ, format_position

explain_commands = typer.Typer()

Found = Mapping[str, Any]


@explain_commands.command(
    epilog="Example: deltatide explain -c shop.toml public.orders 42 --at 120",
    context_settings={"ignore_unknown_options": True},  # -5 is a key
)
def explain(
    config: ConfigOption,
    table: Annotated[str, typer.Argument(help="The table, as namespace.table.")],
    key: Annotated[
        list[str], typer.Argument(help="The row's key: a value for each of its columns, in their order.")
    ],
    at: Annotated[
        int | None,
        typer.Option(min=1, metavar="MANIFEST", help="As of this manifest, as in deltatide cuts."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show every landed event of a row, why it won or lost, what results, and the row in Delta beside it.

    Write key values as for deltatide dump. Exit status 1 if the key has never landed, or if the row in Delta
    differs from what has landed.
    """
    settings = lake_config(config)
    with open_spark(settings) as spark:
        from merge import explain_row

        explanation = explain_row(spark, settings, table, key, at=at)
        found = explanation.to_dict()
    if as_json:
        print(json.dumps(found, indent=2, default=str))
    else:
        print_explanation(found, explanation.kind)
    raise typer.Exit(exit_status(found))


def exit_status(found: Found) -> int:
    """Return 1 if the row has never landed, or differs in Delta; else 0."""
    never = not any(event["values"] for event in found["events"])
    return 1 if never or (found["delta"] and found["delta"]["differences"]) else 0


def print_explanation(found: Found, kind: str) -> None:
    """Print the events as a table, then the row that results beside the row in Delta."""
    key = ", ".join(f"{name} = {value}" for name, value in found["key"].items())
    out.print(escape(f"{found['table']}, {key}, as of manifest {found['manifest']}"))
    if not any(event["values"] for event in found["events"]):
        out.print("no event of this key has landed")
    _print_events(found["events"], kind)
    if not found["complete"]:
        out.print(
            f"manifests before {found['first_manifest']} are gone, and no full dump has ended since:"
            " the row may be older than what is shown"
        )
    _print_rows(found, kind)


def _print_events(events: list[Any], kind: str) -> None:
    if not events:
        return
    columns = ("position", "manifest", "committed", "transaction", "op", "carries", "verdict", "file")
    shown = Table(*columns, box=None)
    for event in events:
        shown.add_row(
            _position(event, kind), str(event["manifest"]), event["committed_at"] or "",
            escape(event["txid"] or ""), event["op"], escape(", ".join(event["carried"])),
            escape(_verdict(event, kind)), escape(event["file"]),
        )  # fmt: skip
    out.print(shown)


def _verdict(event: Found, kind: str) -> str:
    """Return the verdict with its columns, or with the position that overruled the event."""
    if event["supplies"]:
        return f"{event['verdict']}: {', '.join(event['supplies'])}"
    if event["by"]:
        return f"{event['verdict']}, see {_position(event['by'], kind)}"
    return str(event["verdict"])


def _position(at: Found, kind: str) -> str:
    seq = at["seq"]
    ordinal = f"dump {seq - CHUNK_SEQ}" if seq >= CHUNK_SEQ else str(seq)
    return f"{at['epoch']} {format_position(at['lsn'], kind)} {ordinal}"


def _print_rows(found: Found, kind: str) -> None:
    """Print the row that results and the row in Delta, column by column."""
    delta = found["delta"]
    result, lake = found["result"], delta and delta["row"]
    if result is None:
        out.print("result: no row")
    if delta is None:
        out.print("Delta: no version of the table to compare")
    elif lake is None:
        out.print(f"Delta, merged up to manifest {delta['manifest']}: no row")
    if result or lake:
        differences = set(delta["differences"]) if delta else set()
        merged = f"in Delta, up to manifest {delta['manifest']}" if delta else "in Delta"
        shown = Table("column", "result", merged, "", box=None)
        for name in (result or lake)["values"]:
            ours, theirs = (_value(row, name) for row in (result, lake))
            shown.add_row(escape(name), ours, theirs, "differs" if name in differences else "")
        ours, theirs = (_position(row[CDC], kind) if row else "" for row in (result, lake))
        other = any(name.startswith(f"{CDC}.") for name in differences)
        shown.add_row(f"{CDC}: position", ours, theirs, "differs" if other else "")
        out.print(shown)
    if delta and delta["differences"]:
        which = ", ".join(delta["differences"])
        out.print(
            escape(f"the row in Delta is not what has landed up to manifest {delta['manifest']}: {which}")
        )
        out.print(escape(f"to replace all rows: deltatide rebuild {found['table']}"))
    if delta and delta["not_compared"]:
        out.print(escape(f"the row in Delta was not compared: {delta['not_compared']}"))
    if delta and delta["changed_by_others"]:
        out.print(escape(f"the Delta table was changed by others: {delta['changed_by_others']}"))


def _value(row: Found | None, name: str) -> str:
    if row is None:
        return ""
    if name in (row[CDC]["missing"] or ()):
        return "(not known yet)"
    value = row["values"][name]
    return "NULL" if value is None else escape(value)
