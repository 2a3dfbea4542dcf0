"""The command ``verify``: the agent reads the source, a merge catches up, and both are compared."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.table import Table

from connector.cli.dumps import KeysFileOption, KeysOption, WhereOption, chosen_keys
from connector.cli.lake import lake_config
from connector.cli.options import ConfigOption, JsonOption
from connector.cli.printing import err, escape, log_to_stderr, out, progress_bar
from connector.cli.verification_run import VerificationRun
from connector.errors import ConfigurationError, PreconditionError

verify_commands = typer.Typer()

SHOWN = 20
"""Differences printed; all of them are in the Delta table."""

LISTED = 100
"""Differences listed with --json."""

MOST_SEED = 1 << 31


def parse_share(text: str) -> float:
    """Parse ``--sample``: ``1%`` or ``0.01``, more than 0 and at most 1."""
    try:
        share = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise typer.BadParameter(f"{text!r} is not a share such as 1% or 0.01")
    return share


RepairOption = Annotated[
    bool, typer.Option("--repair", help="Dump and merge the keys that differ, and verify them again.")
]
ChecksumsOption = Annotated[
    bool,
    typer.Option(
        "--checksums",
        help="Have the database compute checksums, and read only the rows that these don't prove equal.",
    ),
]
SampleOption = Annotated[
    float | None,
    typer.Option(
        "--sample",
        metavar="SHARE",
        parser=parse_share,
        help="Compare only a share of each table's key ranges, chosen at random, such as 1% or 0.01.",
    ),
]
SeedOption = Annotated[
    int | None, typer.Option(min=0, help="Choose the same ranges as the run that printed this seed.")
]


@verify_commands.command(epilog="Example: deltatide verify -c shop.toml public.orders --repair")
def verify(
    config: ConfigOption,
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables, as namespace.table; without any, all of them.")
    ] = None,
    where: WhereOption = None,
    keys: KeysOption = None,
    keys_file: KeysFileOption = None,
    repair: RepairOption = False,
    checksums: ChecksumsOption = False,
    sample: SampleOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the lake with the source, row by row and exactly, while both keep changing.

    The running agent reads the tables. Then what has landed is merged, and both are compared as of that cut.
    Exit status 1 if anything differs, or still differs after --repair. With --sample, this covers only the
    sample.
    """
    from connector.control.source_view import SourceView
    from connector.control.verifications import TABLES_AT_ONCE, captured_tables, require_agent

    settings = lake_config(config)
    scope = _Scope.chosen(tables, where, chosen_keys(where, keys, keys_file), checksums, sample, seed)
    view = SourceView(settings)
    require_agent(view)
    landing, others = captured_tables(view)
    names = tables or [str(name) for name in landing]
    if not names and not others:
        raise PreconditionError("no table is captured", hint="deltatide status")
    log_to_stderr(verbose=False)
    with progress_bar(shown=not as_json) as shown, ExitStack() as stack:
        run = VerificationRun(settings, view, shown, stack)
        for first in range(0, len(names), TABLES_AT_ONCE):
            scope.compare(run, names[first : first + TABLES_AT_ONCE])
        if repair:
            run.repair()
        listed = run.differences(LISTED if as_json else SHOWN)
        table = run.differences_table if listed else ""
    left_out = [] if tables else [str(name) for name in others]
    if as_json:
        print(json.dumps({**run.to_dict(left_out, listed), **scope.to_dict()}, indent=2, default=str))
    else:
        _print(run, left_out, listed, table)
        scope.print()
    raise typer.Exit(0 if run.equal and not left_out else 1)


@dataclass(frozen=True)
class _Scope:
    """The rows to compare: all (by checksums first or not), those of a condition or of keys, or a sample."""

    where: str | None
    keys: list[list[str]] | None
    checksums: bool
    sample: float | None
    seed: int

    @classmethod
    def chosen(
        cls,
        tables: Sequence[str] | None,
        where: str | None,
        keys: list[list[str]] | None,
        checksums: bool,
        sample: float | None,
        seed: int | None,
    ) -> _Scope:
        """Build the scope from the options; `ConfigurationError` if they contradict each other."""
        some = where is not None or keys is not None
        if some and len(tables or ()) != 1:
            raise ConfigurationError("name the table whose rows to verify", hint="deltatide verify --help")
        if checksums and some:
            raise ConfigurationError("checksums cover whole tables", hint="leave out --checksums")
        if sample is not None and (checksums or some):
            raise ConfigurationError(
                "--sample can't be combined with --checksums, --where or --keys",
                hint="run the command for each",
            )
        if seed is not None and sample is None:
            raise ConfigurationError("--seed is for --sample", hint="leave out --seed")
        return cls(where, keys, checksums, sample, random.randrange(MOST_SEED) if seed is None else seed)

    def compare(self, run: VerificationRun, names: Sequence[str]) -> None:
        """Compare some tables."""
        if self.sample is not None:
            run.verify_sample(names, self.sample, self.seed)
        elif self.checksums:
            run.verify_checksums(names)
        else:
            run.verify(names, self.where, self.keys)

    def to_dict(self) -> dict[str, Any]:
        """Return the options that repeat a sample, for JSON."""
        return {"sample": {"share": self.sample, "seed": self.seed}} if self.sample is not None else {}

    def print(self) -> None:
        """Print the options that repeat a sample."""
        if self.sample is not None:
            out.print(
                f"This was a sample: it says nothing about other rows. To repeat it:"
                f" --sample {self.sample!r} --seed {self.seed}"
            )


def _print(
    run: VerificationRun, left_out: Sequence[str], listed: Sequence[dict[str, Any]], table: str
) -> None:
    for result in run.found:
        for each in result.tables:
            _print_table(each)
    if listed:
        shown = Table("table", "key", "column", "kind", "source", "lake", box=None)
        for row in listed:
            key = ", ".join("NULL" if part is None else part for part in row["key"])
            what = (row["table"], key, row["column"] or "", row["kind"])
            nothing = "NULL" if row["column"] else ""
            values = (row[n] if row[n] is not None else nothing for n in ("source_value", "lake_value"))
            shown.add_row(*map(escape, (*what, *values)))
        out.print(shown)
        runs = ", ".join(f"'{result.run}'" for result in run.found)
        out.print(f"all differences: SELECT * FROM {escape(table)} WHERE run IN ({runs})")
    for result in run.repaired:
        for each in result.tables:
            _print_table(each, "after the repair, ")
            if each.differing:
                err.print(f"[bold]hint:[/] {escape(_unrepaired(str(each.table)))}")
    for name in left_out:
        err.print(f"[bold red]not verified[/] {escape(name)}: it is quarantined; see: deltatide status")


def _print_table(table: Any, when: str = "") -> None:
    name = escape(str(table.table))
    if table.error is not None:
        err.print(f"[bold red]not verified[/] {name}: {escape(table.error)}")
        if table.hint:
            err.print(f"[bold]hint:[/] {escape(table.hint)}")
        return
    kinds = {"missing": table.missing, "ghosts": table.ghosts, "different": table.different}
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
    nothing = "equal" if table.equal else "no difference found"
    at = f"as of manifest {table.manifest} ({escape(table.position)})"
    read = f"{table.rows:,} rows read from the source"
    if table.sample is not None:
        of = table.sample
        read = f"{of.ranges:,} of {of.of_ranges:,} key ranges, {table.rows:,} of about {of.of_rows:,} rows"
        nothing = f"{nothing} in this sample"
    if table.checked:
        read = f"{table.checked:,} rows compared by checksums as of manifest {table.checked_at}, {read}"
    out.print(f"{name}: {when}{read} ({table.bytes / 2**20:,.1f} MiB), {counts or nothing} {at}")
    for text in _notes(table):
        out.print(f"  {escape(text)}")


def _unrepaired(table: str) -> str:
    return (
        f"dump it in full: deltatide dump {table}; if it still differs once that is merged,"
        f" replace all rows: deltatide rebuild {table}"
    )


def _notes(table: Any) -> Iterator[str]:
    if table.whole is not None:
        yield f"all of its rows were compared, not a sample: {table.whole}"
    if table.by_rows is not None:
        yield f"all of its rows were compared, without checksums: {table.by_rows}"
    if table.note is not None:
        yield (
            f"somebody else changed the Delta table: {table.note};"
            " the next merge that has changes of it rebuilds it"
        )
    if not table.settled:
        yield "the table was quarantined, or waiting for a dump that it needs: verify again once that is over"
    if table.waiting:
        again = ": compared again below" if table.suspects else ""
        yield f"{table.waiting:,} rows wait for columns that the log left out{again}"
    if table.incomplete is not None:
        yield table.incomplete
