"""The command ``verify``: the agent reads, the lake is merged as far, and both are compared."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
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
from connector.errors import ConfigurationError, PreconditionError, RequestError
from connector.landing.manifest import DumpState

if TYPE_CHECKING:
    from connector.control.source_view import SourceView
    from connector.schema import TableName

verify_commands = typer.Typer()

SHOWN = 20
"""Differences printed; all of them are in the Delta table."""

LISTED = 100
"""Differences listed with --json."""

MOST_SEED = 1 << 31


def parse_share(text: str) -> float:
    """Parse ``--sample``: ``1%`` or ``0.01``, more than nothing and at most all."""
    try:
        share = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise typer.BadParameter(f"{text!r} is not a share such as 1% or 0.01")
    return share


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
    checksums: Annotated[
        bool,
        typer.Option(
            "--checksums",
            help="Have the database compute checksums, and read only the rows that these don't prove equal.",
        ),
    ] = False,
    sample: Annotated[
        float | None,
        typer.Option(
            "--sample",
            metavar="SHARE",
            parser=parse_share,
            help="Compare only a share of each table's key ranges, chosen at random, such as 1% or 0.01.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Choose the ranges of --sample as the run that printed this seed."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the lake with the source, row by row and exactly, while both keep changing.

    The running agent reads the tables; what has landed by then is merged, and compared as of that cut. Exit
    status 1 if anything differs, or still differs after --repair. Of --sample, that is said of the sample
    alone.
    """
    from connector.control.source_view import SourceView
    from connector.control.verifications import TABLES_AT_ONCE, captured_tables, require_agent

    settings, wanted = lake_config(config), chosen_keys(where, keys, keys_file)
    if (where is not None or wanted is not None) and len(tables or ()) != 1:
        raise ConfigurationError("name the table whose rows to verify", hint="deltatide verify --help")
    if checksums and (where is not None or wanted is not None):
        raise ConfigurationError("checksums are of whole tables", hint="leave out --checksums")
    if sample is not None and (checksums or where is not None or wanted is not None):
        raise ConfigurationError(
            "--sample can't be combined with --checksums, --where or --keys", hint="run the command for each"
        )
    if seed is not None and sample is None:
        raise ConfigurationError("--seed is for --sample", hint="leave out --seed")
    if sample is not None and seed is None:
        seed = random.randrange(MOST_SEED)
    view = SourceView(settings)
    require_agent(view)
    landing, others = captured_tables(view)
    names = tables or [str(name) for name in landing]
    if not names and not others:
        raise PreconditionError("no table is captured", hint="deltatide status")
    log_to_stderr(verbose=False)
    with progress_bar(shown=not as_json) as shown, ExitStack() as stack:
        run = _Run(settings, view, shown, stack)
        for first in range(0, len(names), TABLES_AT_ONCE):
            some = names[first : first + TABLES_AT_ONCE]
            if sample is not None and seed is not None:
                run.verify_sample(some, sample, seed)
            elif checksums:
                run.verify_checksums(some)
            else:
                run.verify(some, where, wanted)
        if repair:
            run.repair()
        listed = run.differences(LISTED if as_json else SHOWN)
        table = run.differences_table if listed else ""
    left_out = [] if tables else [str(name) for name in others]
    if as_json:
        chosen = {"sample": {"share": sample, "seed": seed}} if sample is not None else {}
        print(json.dumps({**run.to_dict(left_out, listed), **chosen}, indent=2, default=str))
    else:
        _print(run, left_out, listed, table)
        if sample is not None:
            out.print(
                f"This was a sample: it says nothing about other rows. To repeat it:"
                f" --sample {sample:g} --seed {seed}"
            )
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
        """Return whether everything was compared and is equal, but for what is equal since its repair.

        A repair concerns the keys that differed. What was left open of the table, or of others, stays open.
        """
        repaired = {table.table for result in self.repaired for table in result.tables}
        found = (table for result in self.found for table in result.tables)
        return all(result.equal for result in self.repaired) and all(
            table.equal or (table.conclusive and table.table in repaired) for table in found
        )

    @property
    def spark(self) -> Any:
        """Return the session; from then on, signals are graceful."""
        if self._spark is None:
            self._spark = self.stack.enter_context(stopping(self.config, self.stop))
        return self._spark

    @property
    def differences_table(self) -> str:
        """Return the name of the table of differences, in SQL."""
        from merge.proof.differences import differences_table

        return differences_table(self.config)

    def verify(
        self, names: Sequence[str], where: str | None = None, keys: list[list[str]] | None = None
    ) -> None:
        """Compare tables, or rows of one; what only the lake seems to have, by its keys."""
        result = self._compare(names, where, keys)
        self.found.append(result)
        for table in result.tables:
            if table.suspects:
                self.found.append(self._compare_again(table.table, keys=table.suspects))

    def verify_checksums(self, names: Sequence[str]) -> None:
        """Compare tables by checksums, and then as rows what these don't prove equal."""
        result = self._compare(names, checksums=True)
        proven = [table for table in result.tables if table.unproven == [] and table.error is None]
        if proven:
            self.found.append(replace(result, tables=proven))
        for table in (table for table in result.tables if table not in proven):
            rows = self._compare_again(table.table, ranges=table.unproven or None)
            self.found.append(as_rows(rows, table))

    def verify_sample(self, names: Sequence[str], share: float, seed: int) -> None:
        """Compare some ranges of each table's key; a table whose key has none, as a whole."""
        from connector.control.dump_requests import request_dump
        from connector.control.source_view import captured_name
        from merge.proof.sampling import choose_samples

        known = self.view.newest().tables
        self.shown(0, 1, "choosing ranges of keys")
        samples = choose_samples(
            self.spark, self.config, [captured_name(name, known) for name in names], share, seed
        )
        asked = [
            (sample, request_dump(self.view, [str(sample.table)], verify=True, ranges=sample.ranges))
            for sample in samples
            if sample.error is None
        ]
        refusals = [self._refusal(request) for _, request in asked]
        self._merge()
        for (sample, request), why in zip(asked, refusals, strict=True):
            if why is not None:
                self.found.append(not_verified(sample.table, str(why), why.hint))
            else:
                result = self._compare_read(request, [sample.table], ranges=sample.ranges)
                self.found.append(as_sample(result, sample))
        for sample in samples:
            if sample.error is not None:
                self.found.append(not_verified(sample.table, sample.error, sample.hint))

    def _refusal(self, request: str) -> RequestError | None:
        """Wait until the rows of a request are read; return why they never will be."""
        try:
            self._await(request)
        except RequestError as error:
            return error
        return None

    def repair(self) -> None:
        """Have the keys that differ dumped, and compare them again once they are merged."""
        from connector.control.dump_requests import request_dump
        from merge.proof.differences import differing_keys

        for result in self.found:
            for table in (table for table in result.tables if table.differing):
                name = str(table.table)
                keys = differing_keys(self.spark, self.config, result.run, table.table)
                dumps = self._await(request_dump(self.view, [name], None, keys))
                if failed := next((dump for dump in dumps if dump.state != "complete"), None):
                    raise RequestError(f"the repair of {name} is {failed.state}: {failed.error}")
                self.repaired.append(self._compare([name], None, keys))

    def _compare_again(self, table: TableName, **wanted: Any) -> Any:
        """Compare one of several tables once more: if it can't be read, that is its own error."""
        try:
            return self._compare([str(table)], **wanted)
        except RequestError as error:
            return not_verified(table, str(error), error.hint)

    def _compare(
        self,
        names: Sequence[str],
        where: str | None = None,
        keys: list[list[str]] | None = None,
        *,
        ranges: Any = None,
        checksums: bool = False,
    ) -> Any:
        from connector.control.dump_requests import request_dump
        from connector.control.source_view import captured_name

        known = self.view.newest().tables
        tables = [captured_name(name, known) for name in names]
        request = request_dump(
            self.view, list(names), where, keys, verify=True, checksums=checksums, ranges=ranges
        )
        dumps = self._await(request)
        if not checksums and all(dump.state != "complete" for dump in dumps):
            raise RequestError("; ".join(f"{dump.table}: {dump.error}" for dump in dumps))
        self._merge()
        return self._compare_read(request, tables, where=where, ranges=ranges)

    def _merge(self) -> None:
        """Merge what has landed by now."""
        spark = self.spark
        from merge import merge_once

        self.shown(0, 1, "merging")
        merged = merge_once(spark, self.config, stop=self.stop.event)
        self._exit_if_stopped()
        for table in merged.failed:
            err.print(f"[bold red]not merged[/] {escape(str(table.table))}: {escape(table.error or '')}")

    def _compare_read(self, request: str, tables: Sequence[TableName], **wanted: Any) -> Any:
        """Compare what the agent has read for a request."""
        from merge import verify as compare

        return compare(
            self.spark,
            self.config,
            request,
            tables=tables,
            progress=lambda done, of, what: self.shown(done, of, f"comparing {what}"),
            **wanted,
        )

    def _await(self, request: str) -> list[DumpState]:
        from connector.control.verifications import await_dumps

        try:
            found = await_dumps(self.view, request, self.shown, self.stop.event)
            self._exit_if_stopped()
        except (KeyboardInterrupt, typer.Exit):
            err.print(f"the agent keeps reading; to stop that: deltatide cancel {escape(request)}")
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
    nothing = "equal" if table.conclusive else "no difference found"
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


def as_rows(result: Any, checked: Any) -> Any:
    """Return the comparison of one table's rows, with what its checksums have told before.

    What checksums proved is so as of their own cut, and only if the table was settled then.
    """
    (table,) = result.tables
    known = {"bytes": checked.bytes + table.bytes, "by_rows": checked.error or checked.by_rows}
    if known["by_rows"] is None:
        known |= {"checked": checked.checked, "checked_at": checked.checked_at}
        known |= {"settled": checked.settled and table.settled, "note": table.note or checked.note}
    return replace(result, tables=[replace(table, **known)])


def as_sample(result: Any, sample: Any) -> Any:
    """Return the comparison of one table's rows, with what they are a sample of."""
    (table,) = result.tables
    return replace(result, tables=[replace(table, sample=sample.of, whole=sample.whole)])


def not_verified(table: TableName, error: str, hint: str | None) -> Any:
    """Return the comparison of a table that could not be compared."""
    from merge.proof.sides import TableVerification
    from merge.proof.verification import Verification

    return Verification("", [TableVerification(table, error=error, hint=hint)])


def _notes(table: Any) -> Iterator[str]:
    if table.whole is not None:
        yield f"all of its rows were compared, not a sample: {table.whole}"
    if table.by_rows is not None:
        yield f"all of its rows were compared, without checksums: {table.by_rows}"
    if table.note is not None:
        yield f"somebody else changed the Delta table: {table.note}; the next merge rebuilds it"
    if not table.settled:
        yield "the table was quarantined, or waiting for a dump that it needs: verify again once that is over"
    if table.waiting:
        yield f"{table.waiting:,} rows are missing columns, which were not compared"
    if table.incomplete is not None:
        yield table.incomplete
