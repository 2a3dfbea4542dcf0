"""What the findings of a check imply for a start, for single tables, and for configured names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from connector.config import SourceConfig, TableConfig
from connector.errors import PreconditionError, TableError
from connector.schema import TableName, TableSchema
from connector.source import Finding, Source, TableListing

CAPTURED = "can be captured"
ONLY_CHANGES = "its changes can be captured, from then on: it has no key, or only changes are asked for"


def unfit_tables(findings: Iterable[Finding]) -> list[TableError]:
    """Return the tables that a check has found unfit."""
    failed = (found for found in findings if found.state == "failed")
    return [TableError(f.table, f.detail, hint=f.fix) for f in failed if f.table is not None]


def require_fit(findings: Iterable[Finding]) -> None:
    """Raise `PreconditionError` if a failure concerns the whole source.

    A failure of one table only quarantines that table; a dropped table is ignored.
    """
    failed = [f for f in findings if f.state == "failed" and f.table is None and not f.dropped]
    if failed:
        lines = [f"{f.name}: {f.detail}" + (f"\n  -> {f.fix}" if f.fix else "") for f in failed]
        raise PreconditionError("\n".join(lines), hint="deltatide check shows the result of every check")


def never_dropped(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings where nothing has landed: a missing table's name is wrong, not dropped."""
    return [replace(found, dropped=False) for found in findings]


def check_patterns(
    config: SourceConfig, settings: Iterable[TableName], found: Collection[TableName], detail: str, fix: str
) -> Iterator[Finding]:
    """Report configured names and patterns that match no table, and settings of tables that are not captured.

    `detail`, `fix`: what is wrong with a pattern that matches nothing, and what to do. If something has
    landed, its table was dropped or is absent for a moment; the start decides whether to wait.
    """
    for pattern in config.tables:
        one = config.model_copy(update={"tables": [pattern], "exclude": []})
        if not any(one.captures(table) for table in found):
            yield Finding(f"tables {pattern}", "failed", detail, fix, dropped=True)
    for name in sorted(set(settings) - set(found)):
        yield Finding(f'[tables."{name}"]', "warning", "is not captured", "fix its name")


def check_key_kept(settings: TableConfig | None, schema: TableSchema) -> Finding | None:
    """Report a table whose section masks or leaves out a key column: it can land, but not be merged.

    Where columns are masked before they land, it can't land either: `connector.masking.source` reports it.
    """
    misfit = settings.misfit_of_key(schema.key) if settings and not settings.mask_before_landing else None
    if misfit is None:
        return None
    fix = f"change {schema.table.section} in the configuration"
    return Finding(f"table {schema.table}", "warning", f"merges will refuse it: {misfit}", fix, schema.table)


def checked_tables(source: Source, among: Collection[TableName]) -> TableListing:
    """List tables with the checks that a start makes: for tables that are created or released later."""
    listed = source.tables(among)
    return listed.without(unfit_tables(source.check())) if listed.schemas else listed
