"""One run of the command ``verify``: reads the source, merges, compares, repairs, and compares again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from connector.cli.lake import Stopping, stopping
from connector.cli.printing import Shown, err, escape
from connector.config import Config
from connector.errors import PreconditionError, RequestError
from connector.landing.manifest import DumpState

if TYPE_CHECKING:
    from connector.control.source_view import SourceView
    from connector.schema import TableName

ROUNDS = 3
"""How often open keys are compared again: a writer may leave out columns each time."""

STILL_WAIT = "rows still wait for columns that the log left out: verify again once a cut is exact"


@dataclass
class VerificationRun:
    """One run of the command: results before and after a repair. Starts Spark while the agent reads."""

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
        """Return whether everything was compared and is equal, possibly after its repair.

        A repair covers only the keys that differed. Anything else left open, of this table or others, stays
        open, except suspects, which get their own comparison (`_with_suspects`).
        """
        found, again = ([t for r in results for t in r.tables] for results in (self.found, self.repaired))
        repaired = {table.table for table in again}
        left = (table for table in found if table.differing and table.table not in repaired)
        conclusive = all(table.conclusive for table in (*found, *again))
        return conclusive and not any(left) and not any(table.differing for table in again)

    @property
    def spark(self) -> Any:
        """Return the session; from then on, signals end the command gracefully."""
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
        """Compare tables, or rows of one."""
        self.found += self._with_suspects(self._compare(names, where, keys))

    def verify_checksums(self, names: Sequence[str]) -> None:
        """Compare tables by checksums, then compare as rows what these don't prove equal."""
        result = self._compare(names, checksums=True)
        proven = [table for table in result.tables if table.unproven == [] and table.error is None]
        if proven:
            self.found.append(replace(result, tables=proven))
        left = {table.table: table for table in result.tables if table not in proven}
        for rows in self._compare_wholly([name for name, table in left.items() if not table.unproven]):
            self.found += self._with_suspects(as_rows(rows, left[rows.tables[0].table]))
        for name, table in left.items():
            if table.unproven:
                rows = self._compare_again(name, ranges=table.unproven)
                self.found += self._with_suspects(as_rows(rows, table))

    def _compare_wholly(self, tables: Sequence[TableName]) -> list[Any]:
        """Compare all rows of tables, with one request and one merge; return a result for each table.

        If the agent refuses that request, each table gets its own.
        """
        if len(tables) > 1:
            with suppress(RequestError):
                result = self._compare([str(table) for table in tables])
                return [replace(result, tables=[table]) for table in result.tables]
        return [self._compare_again(table) for table in tables]

    def verify_sample(self, names: Sequence[str], share: float, seed: int) -> None:
        """Compare some ranges of each table's key; if a key can't be divided, the whole table."""
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
        for (sample, request), why in zip(asked, refusals, strict=True):
            if why is not None:
                self.found.append(not_verified(sample.table, str(why), why.hint))
            else:
                result = self._compare_read(request, [sample.table], ranges=sample.ranges)
                self.found += self._with_suspects(as_sample(result, sample))
        for sample in samples:
            if sample.error is not None:
                self.found.append(not_verified(sample.table, sample.error, sample.hint))

    def _refusal(self, request: str) -> RequestError | None:
        """Wait until a request's rows are read; return why they never will be, or None."""
        try:
            self._await(request)
        except RequestError as error:
            return error
        return None

    def repair(self) -> None:
        """Have the differing keys dumped, and compare them again once they are merged."""
        from connector.control.dump_requests import request_dump
        from merge.proof.differences import differing_keys

        for result in self.found:
            for table in (table for table in result.tables if table.differing):
                name = str(table.table)
                keys = differing_keys(self.spark, self.config, result.run, table.table)
                dumps = self._await(request_dump(self.view, [name], None, keys))
                if failed := next((dump for dump in dumps if dump.state != "complete"), None):
                    raise RequestError(f"the repair of {name} is {failed.state}: {failed.error}")
                self.repaired += self._with_suspects(self._compare([name], None, keys))

    def _with_suspects(self, result: Any) -> list[Any]:
        """Return a comparison, followed by comparisons of the keys that it left open, at most `ROUNDS`."""
        results = [result]
        for table in result.tables:
            for number in range(1, ROUNDS + 1):
                if not table.suspects:
                    break
                again = self._compare_again(table.table, keys=table.suspects)
                (table,) = again.tables
                if table.suspects and number == ROUNDS:
                    table = replace(table, suspects=None, incomplete=STILL_WAIT)
                results.append(replace(again, tables=[table]))
        return results

    def _compare_again(self, table: TableName, **wanted: Any) -> Any:
        """Compare one of several tables again; if it can't be read, that is its own error."""
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
        sums = self._lake_sums() if checksums else None
        dumps = self._await(request, sums)
        if not checksums and all(dump.state != "complete" for dump in dumps):
            raise RequestError("; ".join(f"{dump.table}: {dump.error}" for dump in dumps))
        return self._compare_read(request, tables, where=where, ranges=ranges, sums=sums)

    def _lake_sums(self) -> Any:
        """Return what computes the lake's checksums while the agent has the database compute its own."""
        from merge import LakeSums

        return LakeSums(self.config, self._merge, self.stop.event)

    def _merge(self) -> None:
        """Merge what has landed so far."""
        spark = self.spark
        from merge import merge_once

        self.shown(0, 1, "merging")
        merged = merge_once(spark, self.config, stop=self.stop.event)
        self._exit_if_stopped()
        for table in merged.failed:
            err.print(f"[bold red]not merged[/] {escape(str(table.table))}: {escape(table.error or '')}")

    def _compare_read(self, request: str, tables: Sequence[TableName], **wanted: Any) -> Any:
        """Compare what the agent has read for a request, after a merge if the lake has not got that far."""
        from merge import verify as compare

        return compare(
            self.spark,
            self.config,
            request,
            tables=tables,
            merge=self._merge,
            progress=lambda done, of, what: self.shown(done, of, f"comparing {what}"),
            **wanted,
        )

    def _await(self, request: str, sums: Any = None) -> list[DumpState]:
        """Wait until the agent has done what a request asks for; Spark starts and sums the lake meanwhile."""
        from connector.control.verifications import await_dumps

        try:
            spark = self.spark
            options = () if sums is None else (partial(sums.compute, spark),)
            found = await_dumps(self.view, request, self.shown, self.stop.event, *options)
            self._exit_if_stopped()
        except (KeyboardInterrupt, SystemExit, typer.Exit, PreconditionError):
            err.print(f"the agent keeps reading; to stop that: deltatide cancel {escape(request)}")
            raise
        return found

    def _exit_if_stopped(self) -> None:
        if self.stop.event.is_set():
            raise typer.Exit(self.stop.exit_code)

    def differences(self, most: int) -> list[dict[str, Any]]:
        """Return the first differences."""
        from merge import recorded_differences
        from merge.proof.differences import WAITING

        listed: list[dict[str, Any]] = []
        for result in (r for r in self.found if any(table.differing for table in r.tables)):
            found = recorded_differences(self.spark, self.config, result.run)
            found = found.where(f"kind <> '{WAITING}'")
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


def as_rows(result: Any, checked: Any) -> Any:
    """Add the earlier result by checksums to the comparison of one table's rows.

    Checksums prove equality as of their own cut, and only if the table was settled then.
    """
    (table,) = result.tables
    known = {"bytes": checked.bytes + table.bytes, "by_rows": checked.error or checked.by_rows}
    if known["by_rows"] is None:
        known |= {"checked": checked.checked, "checked_at": checked.checked_at}
        known |= {"settled": checked.settled and table.settled, "note": table.note or checked.note}
    return replace(result, tables=[replace(table, **known)])


def as_sample(result: Any, sample: Any) -> Any:
    """Add the description of the sample to the comparison of one table's rows."""
    (table,) = result.tables
    return replace(result, tables=[replace(table, sample=sample.of, whole=sample.whole)])


def not_verified(table: TableName, error: str, hint: str | None) -> Any:
    """Return the result for a table that could not be compared."""
    from merge.proof.comparison import TableVerification
    from merge.proof.verification import Verification

    return Verification("", [TableVerification(table, error=error, hint=hint)])
