"""The command ``verify``: the agent reads, the lake is merged as far, and both are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from connector.cli.dumps import KeysFileOption, KeysOption, WhereOption, chosen_keys
from connector.cli.lake import Stopping, lake_config, stopping
from connector.cli.printing import (
    ConfigOption,
    JsonOption,
    Shown,
    err,
    escape,
    log_to_stderr,
    out,
    progress_bar,
)
from connector.config import Config
from connector.errors import ConfigurationError, RequestError
from connector.landing.manifest import DumpState

if TYPE_CHECKING:
    from connector.control.source_view import SourceView

verify_commands = typer.Typer()

SHOWN = 20
"""Differences printed; all of them are in the Delta table."""

LISTED = 100
"""Differences listed with --json."""


@verify_commands.command(epilog="Example: deltatide verify -c shop.toml public.orders --repair")
def verify(
    config: ConfigOption,
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables, as namespace.table; without any, all of them.")
    ] = None,
    where: WhereOption = None,
    keys: KeysOption = None,
    keys_file: KeysFileOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Dump and merge the keys that differ, and verify them again.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the lake with the source, row by row and exactly, while both keep changing.

    The running agent reads the tables; what has landed by then is merged, and compared as of that cut. Exit
    status 1 if anything differs, or differs still after --repair.
    """
    from connector.control.source_view import SourceView
    from connector.control.verifications import TABLES_AT_ONCE, captured_tables, require_agent

    settings, wanted = lake_config(config), chosen_keys(where, keys, keys_file)
    if (where is not None or wanted is not None) and len(tables or ()) != 1:
        raise ConfigurationError("name the table whose rows to verify", hint="deltatide verify --help")
    view = SourceView(settings)
    require_agent(view)
    landing, others = captured_tables(view)
    names = tables or [str(name) for name in landing]
    log_to_stderr(verbose=False)
    with progress_bar(shown=not as_json) as shown, ExitStack() as stack:
        run = _Run(settings, view, shown, stack)
        for first in range(0, len(names), TABLES_AT_ONCE):
            run.verify(names[first : first + TABLES_AT_ONCE], where, wanted)
        if repair:
            run.repair()
        listed = run.differences(LISTED if as_json else SHOWN)
        table = run.differences_table if listed else ""
    left_out = [] if tables else [str(name) for name in others]
    if as_json:
        print(json.dumps(run.to_dict(left_out, listed), indent=2, default=str))
    else:
        _print(run, left_out, listed, table)
    raise typer.Exit(0 if run.equal and not left_out else 1)


@dataclass
class _Run:
    """One run of the command: what was found, and after a repair of that; Spark starts when it is needed."""

    config: Config
    view: SourceView
    shown: Shown
    stack: ExitStack
    found: list[Any] = field(default_factory=list)
    repaired: list[Any] = field(default_factory=list)
    stop: Stopping = field(default_factory=Stopping)
    _spark: Any = None

    @property
    def equal(self) -> bool:
        """Return whether nothing differs, or nothing does any more."""
        errors = any(table.error for result in self.found for table in result.tables)
        return not errors and all(result.equal for result in self.repaired or self.found)

    @property
    def spark(self) -> Any:
        """Return the session; from then on, signals are graceful."""
        if self._spark is None:
            self._spark = self.stack.enter_context(stopping(self.config, self.stop))
        return self._spark

    @property
    def differences_table(self) -> str:
        """Return the name of the table of differences, in SQL."""
        from merge.differences import differences_table

        return differences_table(self.config)

    def verify(
        self, names: Sequence[str], where: str | None = None, keys: list[list[str]] | None = None
    ) -> None:
        """Compare tables, or rows of one; what only the lake seems to have, by its keys."""
        result = self._compare(names, where, keys)
        self.found.append(result)
        for table in result.tables:
            if table.suspects:
                self.found.append(self._compare([str(table.table)], None, table.suspects))

    def repair(self) -> None:
        """Have the keys that differ dumped, and compare them again once they are merged."""
        from connector.control.dump_requests import request_dump
        from merge.differences import differing_keys

        for result in self.found:
            for table in (table for table in result.tables if table.differing):
                name = str(table.table)
                keys = differing_keys(self.spark, self.config, result.run, table.table)
                dumps = self._await(request_dump(self.view, [name], None, keys))
                if failed := next((dump for dump in dumps if dump.state != "complete"), None):
                    raise RequestError(f"the repair of {name} is {failed.state}: {failed.error}")
                self.repaired.append(self._compare([name], None, keys))

    def _compare(self, names: Sequence[str], where: str | None, keys: list[list[str]] | None) -> Any:
        from connector.control.dump_requests import request_dump
        from connector.control.source_view import captured_name

        request = request_dump(self.view, list(names), where, keys, verify=True)
        dumps = self._await(request)
        if all(dump.state != "complete" for dump in dumps):
            raise RequestError("; ".join(f"{dump.table}: {dump.error}" for dump in dumps))
        spark = self.spark
        from merge import merge_once
        from merge import verify as compare

        self.shown(0, 1, "merging")
        merged = merge_once(spark, self.config, stop=self.stop.event)
        self._exit_if_stopped()
        for table in merged.failed:
            err.print(f"[bold red]not merged[/] {escape(str(table.table))}: {escape(table.error or '')}")
        return compare(
            spark,
            self.config,
            request,
            where=where,
            tables=[captured_name(name, self.view.newest().tables) for name in names],
            progress=lambda done, of, what: self.shown(done, of, f"comparing {what}"),
        )

    def _await(self, request: str) -> list[DumpState]:
        from connector.control.verifications import await_dumps

        try:
            found = await_dumps(self.view, request, self.shown, self.stop.event)
            self._exit_if_stopped()
        except (KeyboardInterrupt, typer.Exit):
            err.print(f"the agent reads on; to end that: deltatide cancel {escape(request)}")
            raise
        return found

    def _exit_if_stopped(self) -> None:
        if self.stop.event.is_set():
            raise typer.Exit(self.stop.exit_code)

    def differences(self, most: int) -> list[dict[str, Any]]:
        """Return the first differences."""
        from merge import recorded_differences

        listed: list[dict[str, Any]] = []
        for result in (r for r in self.found if any(table.differing for table in r.tables)):
            found = recorded_differences(self.spark, self.config, result.run)
            rows = found.orderBy("table", "key", "column").limit(most - len(listed)).collect()
            listed += [row.asDict(recursive=True) for row in rows]
        return listed

    def to_dict(self, left_out: list[str], listed: list[dict[str, Any]]) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        return {
            "equal": self.equal and not left_out,
            "verified": [result.to_dict() for result in self.found],
            "repaired": [result.to_dict() for result in self.repaired],
            "not_verified": left_out,
            "differences": listed,
        }


def _print(run: _Run, left_out: Sequence[str], listed: Sequence[dict[str, Any]], table: str) -> None:
    for result in run.found:
        for each in result.tables:
            _print_table(each)
    if listed:
        shown = Table("table", "key", "column", "kind", "source", "lake", box=None)
        for row in listed:
            what = (row["table"], ", ".join(row["key"]), row["column"] or "", row["kind"])
            nothing = "NULL" if row["column"] else ""
            values = (row[n] if row[n] is not None else nothing for n in ("source_value", "lake_value"))
            shown.add_row(*map(escape, (*what, *values)))
        out.print(shown)
        runs = ", ".join(f"'{result.run}'" for result in run.found)
        out.print(f"all differences: SELECT * FROM {escape(table)} WHERE run IN ({runs})")
    for result in run.repaired:
        for each in result.tables:
            _print_table(each, "after the repair, ")
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
    nothing = "equal" if table.settled else "no difference found"
    at = f"as of manifest {table.manifest} ({escape(table.position)})"
    out.print(f"{name}: {when}{table.rows:,} rows read from the source, {counts or nothing} {at}")
    for text in _notes(table):
        out.print(f"  {escape(text)}")


def _notes(table: Any) -> Iterator[str]:
    if table.note is not None:
        yield f"somebody else changed the Delta table: {table.note}; the next merge rebuilds it"
    if not table.settled:
        yield "a dump was under way that this table needs, or it was quarantined: verify again after that"
    if table.waiting:
        yield f"{table.waiting:,} rows of it wait for columns, which were not compared"
    if table.suspects is None:
        yield "Spark can't evaluate the condition: rows that only the lake has were not looked for"
