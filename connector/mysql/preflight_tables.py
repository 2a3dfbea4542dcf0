"""Checks for what prevents exact capture of single tables; each finding has the statement that fixes it.

Read-only. Rights are tested by use (`refusals`), not read from SHOW GRANTS. Where possible, all tables are
looked at together; one that leaves a doubt is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from connector.config import SourceConfig, TableConfig
from connector.errors import LogOffError, PreconditionError, TableError
from connector.findings import CAPTURED, ONLY_CHANGES, check_key_kept, check_patterns
from connector.mysql.catalog import (
    LOCKED,
    TableFacts,
    batched,
    captured_names,
    conditions,
    is_there,
    noted_columns,
    qualified,
    table_condition,
)
from connector.mysql.connection import brief_wait, code_of, is_transient, quote, rows, text_of
from connector.mysql.definitions.column_rights import granted_by_column, refuse_hidden
from connector.mysql.definitions.foreign_keys import Cascades, cascading
from connector.mysql.definitions.layouts import (
    LOGGED_OTHERWISE,
    RENAME,
    Definition,
    is_logged_otherwise,
    layout_now,
    why_unfit,
)
from connector.mysql.definitions.session_values import compares_texts_with_dates, depends_on_settings
from connector.mysql.definitions.triggers import Triggers
from connector.mysql.definitions.virtual_columns import miscomputed, miscomputed_columns
from connector.mysql.server import Server
from connector.mysql.state_table import StateTable
from connector.schema import TableName
from connector.source import Finding


@dataclass(frozen=True)
class CheckContext:
    """The server and settings that each check reads, and what was read of all tables.

    `definitions`, `readable`: of the tables for which that is certain.
    """

    connection: Connection[Any]
    connect: Callable[[], Connection[Any]]
    server: Server
    config: SourceConfig
    tables: Mapping[TableName, TableConfig]
    state_table: StateTable
    found: Sequence[TableFacts]
    busy: Collection[TableName]
    definitions: Mapping[TableName, Definition]
    readable: Collection[TableName]
    cascades: Cascades
    triggers: Triggers
    variables: Mapping[str, str]
    user: str

    def variable(self, name: str) -> str | None:
        """Return a global variable; None if this server has none of that name."""
        return self.variables.get(name)

    def may_have_virtual(self, table: TableName) -> bool:
        """Return whether a table has virtual columns, or that is not known."""
        definition = self.definitions.get(table)
        return definition is None or definition.virtual


def check_tables(context: CheckContext) -> Iterator[Finding]:
    """Check the captured tables, and configured names without a table."""
    yield from check_patterns(
        context.config,
        context.tables,
        [facts.table for facts in context.found],
        f"no table that {context.user} may see matches",
        "fix source.tables, create the table, or GRANT SELECT on it",
    )
    yield from _check_views(context)
    for facts in context.found:
        checks = (
            _check_readable,
            lambda _, facts: _check_engine(facts),
            _check_name,
            _check_key,
            _check_virtual,
            _check_session_values,
            _check_cascades,
            _check_triggers,
            _check_before_images,
        )
        locked = Finding(
            f"table {facts.table}", "warning", "other sessions keep it locked, so it was not checked"
        )
        if facts.table in context.busy:  # so not even its engine is known
            yield locked
            continue
        try:
            problems = [problem for check in checks if (problem := check(context, facts))]
        except pymysql.Error as error:
            if code_of(error) in LOCKED:
                yield locked
            elif is_there(context.connection, facts.table):
                raise
            continue
        if problems and not is_there(context.connection, facts.table):
            continue  # dropped since
        yield from (replace(problem, table=facts.table) for problem in problems)
        if not problems:
            settings = context.tables.get(facts.table)
            only_changes = settings is not None and settings.only_changes
            yield Finding(f"table {facts.table}", "ok", ONLY_CHANGES if only_changes else CAPTURED)


def _check_views(context: CheckContext) -> Iterator[Finding]:
    others = captured_names(context.connection, context.config) - {facts.table for facts in context.found}
    for condition in conditions(others):
        found = rows(
            context.connection,
            "SELECT table_schema, table_name FROM information_schema.tables"
            f" WHERE ({condition}) AND table_type = 'VIEW'",
        )
        for table in sorted(others.intersection(TableName(*each) for each in found)):
            named = str(table) in context.config.tables
            yield Finding(
                f"table {table}", "failed" if named else "warning", "is a view, which is never in the log",
                "add it to source.exclude",
            )  # fmt: skip


def readable_tables(
    connection: Connection[Any], server: Server, tables: Sequence[TableName]
) -> set[TableName]:
    """Return tables all of whose columns we may read for certain; not those among which one is locked."""
    found: set[TableName] = set()
    with brief_wait(connection):  # a statement that waits for one table keeps the others from being altered
        for some in batched(tables, _READ_AT_ONCE):
            each = (f"SELECT 1 FROM (SELECT * FROM {qualified(table)} LIMIT 0) one" for table in some)
            try:
                rows(connection, " UNION ALL ".join(each))
            except pymysql.Error as error:
                if is_transient(code_of(error)) and code_of(error) not in LOCKED:
                    raise
                continue
            found.update(some)
    return found if server.mariadb else found - granted_by_column(connection)


_READ_AT_ONCE = 50
"""One that can't be read has this many tables looked at singly."""


def _check_readable(context: CheckContext, facts: TableFacts) -> Finding | None:
    if facts.table in context.readable:
        return None
    shown = [
        name
        for (name,) in rows(
            context.connection,
            f"SELECT column_name FROM information_schema.columns WHERE {table_condition(facts.table)}",
        )
    ]
    with refusals() as denied:
        listed = ", ".join(["*", *map(quote, shown)])  # an asterisk stands for no invisible column
        try:
            rows(context.connection, f"SELECT {listed} FROM {qualified(facts.table)} LIMIT 0")
        except pymysql.Error as error:
            if code_of(error) != ER.NO_SUCH_TABLE:  # dropped since, and another one may have its name by now
                raise
    if not denied and not context.server.mariadb:
        try:
            refuse_hidden(context.connection, facts.table, shown)
        except TableError as error:
            denied = [error.reason]
    if not denied:
        return None
    grant = f"GRANT SELECT ON {qualified(facts.table)} TO {context.user};"
    return Finding(f"table {facts.table}", "failed", denied[0], grant)


def _check_engine(facts: TableFacts) -> Finding | None:
    """Check what stores the rows."""
    fix = f"ALTER TABLE {qualified(facts.table)} ENGINE = InnoDB; or add it to source.exclude"
    why = why_unfit(facts.engine)
    return Finding(f"table {facts.table}", "failed", why, fix) if why else None


def _check_name(context: CheckContext, facts: TableFacts) -> Finding | None:
    """Check whether the log names the table as the catalog does."""
    if not is_logged_otherwise(context.server, facts.table):
        return None
    return Finding(f"table {facts.table}", "failed", LOGGED_OTHERWISE, RENAME)


def _check_key(context: CheckContext, facts: TableFacts) -> Finding | None:
    name = f"table {facts.table}"
    definition = context.definitions.get(facts.table)
    layout = definition.layout if definition else layout_now(context.connection, facts.table, context.tables)
    if layout is None:
        return Finding(name, "failed", "the table no longer exists")
    if problem := layout.problem:
        return Finding(name, "failed", problem.reason, problem.hint)
    return check_key_kept(context.tables.get(facts.table), layout.schema) if layout.schema else None


def _check_virtual(context: CheckContext, facts: TableFacts) -> Finding | None:
    """Check for virtual columns that partial row images omit or miscompute.

    MariaDB omits them even if they have changed; MySQL: see `virtual_columns`.
    """
    image = context.variable("binlog_row_image")
    if image == "FULL" or not context.may_have_virtual(facts.table):
        return None
    if context.server.mariadb:
        noted = noted_columns(context.connection, facts.table)
        names = [name for name, column in noted.items() if column.virtual]
        reason = (
            f"has virtual columns ({', '.join(names)}), which the log omits with binlog_row_image = {image}"
        )
    else:
        names = miscomputed_columns(context.connection, context.server).get(facts.table, [])
        reason = miscomputed(names)
    if not names:
        return None
    return Finding(f"table {facts.table}", "failed", reason, "SET GLOBAL binlog_row_image = FULL;")


def _check_session_values(context: CheckContext, facts: TableFacts) -> Finding | None:
    """Check for virtual columns whose values depend on who reads them: log and dump have different ones."""
    if not context.may_have_virtual(facts.table):
        return None
    found = rows(
        context.connection,
        "SELECT column_name, data_type, extra LIKE '%VIRTUAL%', generation_expression FROM"
        f" information_schema.columns WHERE {table_condition(facts.table)} ORDER BY ordinal_position",
    )
    uncertain = {name for name, type_, *_ in found if type_ == "timestamp"}
    types = {name: str(type_) for name, type_, *_ in found}
    names = []
    for name, _, is_virtual, expression in found:
        if is_virtual and _is_uncertain(str(expression), uncertain, types, mariadb=context.server.mariadb):
            names.append(name)
            uncertain.add(name)
    if not names:
        return None
    return Finding(
        f"table {facts.table}", "warning",
        f"the values of virtual columns ({', '.join(names)}) may depend on settings of the session that reads"
        " or writes them, as its time zone or language: log and dumps may have different ones, and a changed"
        " setting changes them without a trace in the log",
        f"make them STORED, or leave them out by exclude_columns in {facts.table.section}",
    )  # fmt: skip


def _is_uncertain(
    expression: str, uncertain: Collection[str], types: Mapping[str, str], *, mariadb: bool
) -> bool:
    """Return whether an expression, or an uncertain column in it, depends on who computes it, and when.

    `types`: of all the table's columns.
    """
    dates = [name for name, type_ in types.items() if type_ in ("date", "datetime")]
    texts = [name for name, type_ in types.items() if type_.endswith(("char", "text"))]
    others = types.keys() - {*dates}
    if any(quote(name) in expression for name in uncertain):
        return True
    if compares_texts_with_dates(expression, dates, others, texts, mariadb=mariadb):
        return True
    all_dates = not any(quote(name) in expression for name in others)
    return depends_on_settings(expression, mariadb=mariadb, all_dates=all_dates)


def _check_before_images(context: CheckContext, facts: TableFacts) -> Finding | None:
    """Check whether the log carries complete old rows, if before-images are configured."""
    settings, image = context.tables.get(facts.table), context.variable("binlog_row_image")
    if settings is None or not settings.before_images or image in (None, "FULL", "FULL_NODUP"):
        return None
    return Finding(
        f"table {facts.table}", "warning",
        f"before_images: with binlog_row_image = {image} the log lacks columns of old rows, which land as"
        " missing",
        "SET GLOBAL binlog_row_image = FULL; and set it in the server's configuration file",
    )  # fmt: skip


def _check_cascades(context: CheckContext, facts: TableFacts) -> Finding | None:
    """Check for foreign keys that change rows by themselves, which InnoDB does without logging.

    MySQL logs such changes since 9.6, unless configured otherwise.
    """
    names = context.cascades.of(facts.table)
    if not names:
        return None
    return Finding(
        f"table {facts.table}", "failed",
        cascading(names),
        f"ALTER TABLE {qualified(facts.table)} DROP FOREIGN KEY `{names[0]}`; and add it again with ON DELETE"
        " RESTRICT ON UPDATE RESTRICT; or add the table to source.exclude",
    )  # fmt: skip


def _check_triggers(context: CheckContext, facts: TableFacts) -> Finding | None:
    """Check for triggers that change what virtual columns are made of, and for the right to see them."""
    name, table = f"table {facts.table}", facts.table
    if problem := context.triggers.of(table):
        return Finding(name, "failed", problem.reason, problem.hint)
    if not context.triggers.are_hidden(table):
        return None
    return Finding(
        name, "warning",
        "if it has triggers, the agent may not see them: it will be quarantined as soon as the log shows"
        " some, since they may change what its virtual columns are made of",
        f"GRANT TRIGGER ON {qualified(table)} TO {context.user};",
    )  # fmt: skip


class refusals:  # noqa: N801
    """A context manager that collects the server's refusals instead of raising them; raises for locks.

    That the server writes no log (`LogOffError`) is not a refusal.
    """

    def __enter__(self) -> list[str]:
        self._reasons: list[str] = []
        return self._reasons

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is not None and (code_of(error) in LOCKED or isinstance(error, LogOffError)):
            return False
        if isinstance(error, (pymysql.OperationalError, pymysql.ProgrammingError, PreconditionError)):
            self._reasons.append(text_of(error))
            return True
        return False
