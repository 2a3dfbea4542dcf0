"""Checks all preconditions of capture; each failure comes with the exact SQL that fixes it.

Read-only: nothing here creates or changes anything at the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg2.extensions import connection as Connection

from connector.config import SourceConfig, TableConfig
from connector.errors import DeltatideError, TransientError
from connector.findings import CAPTURED, ONLY_CHANGES, check_key_kept, check_patterns
from connector.postgres import publication
from connector.postgres.catalog import Catalog, layouts_of, row_security_hint
from connector.postgres.connection import all_rows, close, one_row, one_snapshot, quote
from connector.postgres.definitions.inheritance import uncaptured_heirs
from connector.postgres.definitions.object_columns import object_columns
from connector.postgres.definitions.refusals import TableLayout, whole_rows_sql
from connector.postgres.definitions.table_facts import TableFacts, find_tables, qualified
from connector.postgres.driver.choice import driver
from connector.postgres.key_sql import check_collations
from connector.postgres.predicate import TYPE_SCHEMAS
from connector.postgres.slot import check_standbys, copies, find_slot
from connector.schema import TableName
from connector.source import Finding

LEAST_MINORS = {14: 18, 15: 13, 16: 9, 17: 5}
"""By major version. Older servers decode what follows a transaction that was running when a table was
published by an outdated publication (fixed by commit 4909b38af0, "Fix data loss in logical replication").
"""

HEIRS = 3
"""As many tables that inherit from one are named; a hypertable has thousands."""

CLOCK_SECONDS = 5.0
"""A greater difference makes lag figures useless; events themselves carry the server's clock."""

_RESTART = "then restart the server"


@dataclass(frozen=True)
class _CheckContext:
    """The database and settings that each check reads."""

    connection: Connection
    config: SourceConfig
    tables: Mapping[TableName, TableConfig]
    role: str
    found: Sequence[TableFacts]
    layouts: Mapping[TableName, TableLayout]


def check(
    connection: Connection,
    connect_for_replication: Callable[[], Connection],
    config: SourceConfig,
    tables: Mapping[TableName, TableConfig],
) -> list[Finding]:
    """Check everything and report all findings, good and bad.

    `TransientError` if a second connection can't be opened now and nothing else keeps the agent from
    starting.
    """
    row = one_row(connection, "SELECT current_user::text")
    assert row is not None
    with one_snapshot(connection):  # else a table that is renamed meanwhile would seem unfit
        found = find_tables(connection, config)
        layouts = dict(layouts_of(Catalog(connection, tables), found))
        context = _CheckContext(connection, config, tables, row[0], found, layouts)
        findings = [
            *_check_server(context),
            *_check_capacity(context),
            *_check_load(context),
            *_check_languages(context),
            *_check_search_path(context),
            *_check_slot(context),
            *_check_tables(context),
            *_check_publication(context),
        ]
    return [*findings, *_check_role(context, connect_for_replication, findings)]


def _check_server(context: _CheckContext) -> Iterator[Finding]:
    connection = context.connection
    yield _check_version(connection.server_version)
    yield _check_pooler(connection)
    yield _check_setting(
        "wal_level", _setting(connection, "wal_level"), "logical", _system("wal_level", "logical")
    )
    move = "move the data to a database with encoding UTF8"
    yield _check_setting("encoding", _setting(connection, "server_encoding"), "UTF8", move)
    yield from check_standbys(_setting(connection, "synchronous_standby_names"))
    yield from check_collations(connection)
    standby, clock = _row(
        connection, "SELECT pg_is_in_recovery(), extract(epoch FROM clock_timestamp())::float8"
    )
    if standby:
        yield Finding("primary", "failed", "the server is a standby", "connect to the primary in source.url")
    drift = abs(time.time() - clock)
    yield Finding(
        "clock", "warning" if drift > CLOCK_SECONDS else "ok", f"differs from ours by {drift:.1f} s",
        "synchronize the clocks (NTP)" if drift > CLOCK_SECONDS else None,
    )  # fmt: skip


def _check_version(version: int) -> Finding:
    major, minor = divmod(version, 10000)
    found, least = f"PostgreSQL {major}.{minor}", LEAST_MINORS.get(major)
    if least is None:
        majors = ", ".join(map(str, LEAST_MINORS))
        return Finding("version", "failed", found, f"use a server of version {majors}")
    if minor < least:
        flaw = "its log may lack changes of tables published while transactions are running"
        return Finding(
            "version", "failed", f"{found}: {flaw}", f"update the server to {major}.{least} or later"
        )
    return Finding("version", "ok", found)


def _check_pooler(connection: Connection) -> Finding:
    """Compare the backend's process id with the one announced at login: a pooler announces its own."""
    if _row(connection, "SELECT pg_backend_pid()") == (connection.get_backend_pid(),):
        return Finding("session", "ok", "source.url connects directly to the server")
    return Finding(
        "session", "warning", "source.url points to a connection pooler", "connect to the server directly"
    )


def _check_role(
    context: _CheckContext, connect_for_replication: Callable[[], Connection], others: Sequence[Finding]
) -> Iterator[Finding]:
    connection, role = context.connection, quote(context.role)
    (allowed,) = _row(
        connection, "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user"
    )
    managed = all_rows(
        connection,
        "SELECT rolname::text FROM pg_roles WHERE rolname IN ('rds_replication', 'azure_replication')"
        " AND pg_has_role(oid, 'MEMBER')",
    )
    if not allowed and not managed:
        yield Finding(
            "replication", "failed", f"role {role} has no REPLICATION", f"ALTER ROLE {role} REPLICATION;"
        )
        return
    try:
        close(connect_for_replication())
    except DeltatideError as error:
        lasting = any(f.state == "failed" and f.table is None for f in others)
        if isinstance(error, TransientError) and not lasting:
            raise
        yield Finding("replication", "failed", str(error), error.hint)
    else:
        yield Finding("replication", "ok", f"role {role} may replicate")


def _check_load(context: _CheckContext) -> Iterator[Finding]:
    """Warn if dumps can't be held back for load that the role can't see (`connector.postgres.load_gauge`)."""
    (sees,) = _row(context.connection, "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')")
    if not sees:
        detail = "the role sees neither other sessions nor standbys, so dumps are not held back for them"
        yield Finding("load", "warning", detail, f"GRANT pg_read_all_stats TO {quote(context.role)};")


def _check_capacity(context: _CheckContext) -> Iterator[Finding]:
    connection = context.connection
    slots, senders, slots_max, senders_max, kept = _row(
        connection,
        "SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> %s AND slot_name !~ %s),"
        " (SELECT count(*) FROM pg_stat_replication WHERE application_name <> %s),"
        " current_setting('max_replication_slots')::int, current_setting('max_wal_senders')::int,"
        " current_setting('max_slot_wal_keep_size')",
        (context.config.slot, copies(context.config.slot), f"deltatide {context.config.name}"),
    )
    for name, used, limit, needed in (
        ("max_replication_slots", slots, slots_max, driver().slots_needed),
        ("max_wal_senders", senders, senders_max, 1),
    ):
        full = used + needed > limit
        why = "; psycopg2 alone needs two" if full and needed > 1 else ""
        yield Finding(
            name, "failed" if full else "ok", f"{used} of {limit} in use by others{why}",
            _system(name, str(limit + 4)) if full else None,
        )  # fmt: skip
    unlimited = kept == "-1"
    yield Finding(
        "max_slot_wal_keep_size", "ok",
        "unlimited: a stopped agent makes the server keep its log" if unlimited
        else f"{kept}: a slot farther behind is lost and its tables are dumped again",
    )  # fmt: skip


def _check_languages(context: _CheckContext) -> Iterator[Finding]:
    """Report procedural languages that the driver needs and our role can't use."""
    names = list(driver().languages_needed)
    query = (
        "SELECT lanname::text, has_language_privilege(oid, 'USAGE') FROM pg_language WHERE lanname = ANY (%s)"
    )
    usable = dict(all_rows(context.connection, query, (names,)))
    for name in names:
        if name not in usable:
            detail, fix = "psycopg2 alone needs it, and it is missing", f"CREATE EXTENSION {name};"
            yield Finding(f"language {name}", "failed", detail, fix)
        elif not usable[name]:
            detail = f"psycopg2 alone needs it, and role {quote(context.role)} may not use it"
            fix = f"GRANT USAGE ON LANGUAGE {name} TO {quote(context.role)};"
            yield Finding(f"language {name}", "failed", detail, fix)


def _check_search_path(context: _CheckContext) -> Iterator[Finding]:
    """Report schemas whose operators and functions conditions may use, and where anyone may create some."""
    query = f"""
        SELECT nspname::text FROM pg_namespace
        WHERE (nspname = 'public' OR nspname IN ({TYPE_SCHEMAS}))
            AND has_schema_privilege('public', oid, 'CREATE')
        ORDER BY 1"""
    for (name,) in all_rows(context.connection, query):
        yield Finding(
            f"schema {name}",
            "warning",
            "anyone may create operators there, and one that fits a request's condition better than"
            " PostgreSQL's would run as the agent",
            f"REVOKE CREATE ON SCHEMA {quote(name)} FROM PUBLIC;",
        )


def _check_slot(context: _CheckContext) -> Iterator[Finding]:
    name = context.config.slot
    slot = find_slot(context.connection, name)
    drop = f"SELECT pg_drop_replication_slot('{name}');"
    if slot is None:
        yield Finding("slot", "ok", f"{name} will be created")
    elif misfit := slot.misfit(context.connection.info.dbname):
        yield Finding("slot", "failed", misfit, f"{drop} or set source.slot to another name")
    elif slot.lost:
        stops = context.config.on_gap == "stop"
        then = 'the agent stops (source.on_gap = "stop")' if stops else "the tables will be dumped again"
        yield Finding("slot", "warning", f"{name} is lost ({slot.lost}): a gap, {then}")
    elif slot.active_pid is not None:
        yield Finding(
            "slot", "warning", f"{name} is in use by process {slot.active_pid}",
            f"if no agent is running: SELECT pg_terminate_backend({slot.active_pid});",
        )  # fmt: skip
    else:
        yield Finding("slot", "ok", f"{name} is there")


def _check_tables(context: _CheckContext) -> Iterator[Finding]:
    yield from check_patterns(
        context.config,
        context.tables,
        [facts.table for facts in context.found],
        "no table matches",
        "fix source.tables, or create the table",
    )
    yield from _check_kinds(context)
    oids = [table.oid for table in context.found]
    readable, naming = _unreadable(context), object_columns(context.connection, oids)
    heirs = uncaptured_heirs(context.connection, context.config, oids)
    for table in context.found:
        name, layout = f"table {table.table}", context.layouts[table.table]
        problems = [*readable.get(table.table, ())]
        if layout.schema is None:
            problems.append(Finding(name, "failed", layout.reason, layout.hint))
        yield from (replace(problem, table=table.table) for problem in problems)
        if not problems:
            yield Finding(name, "ok", CAPTURED if layout.schema and layout.schema.key else ONLY_CHANGES)
        if layout.schema is not None and layout.schema.before_images and table.identity != "f":
            detail = (
                "before_images: the log does not carry complete old rows; columns it lacks land as missing"
            )
            fix = whole_rows_sql(table.table, partitioned=table.partitioned)
            yield Finding(name, "warning", detail, fix, table=table.table)
        if layout.schema and (misfit := check_key_kept(context.tables.get(table.table), layout.schema)):
            yield misfit
        if layout.schema is not None and table.oid in naming:
            detail = f"{naming[table.oid]}: its text changes unlogged when the object it refers to is renamed"
            yield Finding(name, "warning", detail, "dump the table after such a change", table=table.table)
        if table.oid in heirs:
            yield _report_heirs(table.table, heirs[table.oid])


def _report_heirs(table: TableName, heirs: Sequence[TableName]) -> Finding:
    """Warn of rows that a SELECT of the table shows, and that are not captured with it."""
    named = [str(heir) for heir in heirs[:HEIRS]] + [f"{len(heirs) - HEIRS} more"] * (len(heirs) > HEIRS)
    detail = f"rows of the tables that inherit from it are their own, and not captured: {', '.join(named)}"
    fix = (
        "add these to source.tables; each lands as a table of its own, and needs a primary key of its own; or"
        " to source.exclude, if their rows are not needed"
    )
    return Finding(f"table {table}", "warning", detail, fix, table=table)


def _check_kinds(context: _CheckContext) -> Iterator[Finding]:
    """Report what is configured but leaves no row events in the log: foreign tables, views."""
    rows = all_rows(
        context.connection,
        "SELECT n.nspname::text, c.relname::text, c.relkind::text FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('f', 'v', 'm') AND NOT c.relispartition"
        " AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'",
    )
    for namespace, name, kind in rows:
        table = TableName(namespace, name)
        if not context.config.captures(table):
            continue
        what = {"f": "a foreign table", "v": "a view", "m": "a materialized view"}[kind]
        named = str(table) in context.config.tables
        yield Finding(
            f"table {table}", "failed" if named else "warning", f"is {what}, which is never in the log",
            "add it to source.exclude",
        )  # fmt: skip


def _unreadable(context: _CheckContext) -> dict[TableName, list[Finding]]:
    """Return what keeps our role from reading each table completely: missing grants, row security."""
    may = {
        oid: rights
        for oid, *rights in all_rows(
            context.connection,
            "SELECT c.oid::bigint, has_table_privilege(c.oid, 'SELECT'),"
            " has_schema_privilege(c.relnamespace, 'USAGE'), pg_has_role(c.relowner, 'USAGE')"
            " FROM pg_class c WHERE c.oid = ANY (%s::oid[])",
            ([table.oid for table in context.found],),
        )
    }
    there = [t for t in context.found if t.oid in may and None not in may[t.oid]]  # null: dropped since
    return {t.table: [*_check_readable(context, t, *may[t.oid])] for t in there}


def _check_readable(
    context: _CheckContext, table: TableFacts, may: bool, usage: bool, owner: bool
) -> Iterator[Finding]:
    name, role = f"table {table.table}", quote(context.role)
    grants = []
    if not usage:
        grants.append(f"GRANT USAGE ON SCHEMA {quote(table.table.namespace)} TO {role};")
    if not may:
        grants.append(f"GRANT SELECT ON {qualified(table.table)} TO {role};")
    if grants:
        yield Finding(name, "failed", f"role {role} may not read it", " ".join(grants))
    if table.policed:
        fix = row_security_hint(context.role, table.table, owner)
        yield Finding(name, "failed", f"row security may hide rows from role {role}", fix)


def _check_publication(context: _CheckContext) -> Iterator[Finding]:
    name = context.config.publication
    found = publication.find_publication(context.connection, name)
    if found is None:
        yield _check_creatable(context)
        return
    yield from _check_republished(context, found)
    problems = [*_check_narrowed(context, found), *_check_lacking(context, found)]
    yield from problems
    if not problems:
        extended = (
            ", will be extended" if publication.missing(found, [t.table for t in context.found]) else ""
        )
        yield Finding("publication", "ok", f"{name} is there{extended}")


def _check_narrowed(context: _CheckContext, found: publication.Publication) -> Iterator[Finding]:
    """Report what the publication omits from its tables; the agent fixes what its role owns."""
    partitioned = any(table.partitioned for table in context.found)
    for problem, fix in found.shortcomings(partitioned=partitioned):
        yield _narrow(found, problem, fix, fixable=found.owned)
    for table in (t.table for t in context.found if t.table in found.narrowed):
        problem, fixable = f"has a row filter or a column list for {table}", found.may_fix(table)
        yield replace(_narrow(found, problem, found.fix_hint(table), fixable=fixable), table=table)


def _narrow(found: publication.Publication, problem: str, fix: str, *, fixable: bool) -> Finding:
    if fixable:
        detail = f"{found.name} {problem}; the agent fixes that, and dumps what was omitted"
        return Finding("publication", "warning", detail, fix)
    return Finding("publication", "failed", f"{found.name} {problem}", fix)


def _check_lacking(context: _CheckContext, found: publication.Publication) -> Iterator[Finding]:
    """Report tables that the publication lacks and our role may not add; only those are quarantined."""
    for table in publication.missing(found, [t.table for t in context.found if t.table not in found.under]):
        if (table in found.split and found.owned) or found.may_fix(table):
            continue
        detail = f"{found.why_not_carried(table)} (role {quote(context.role)})"
        yield Finding("publication", "failed", f"{table}: {detail}", found.fix_hint(table), table=table)


def _check_republished(context: _CheckContext, found: publication.Publication) -> Iterator[Finding]:
    """Report partitions whose rows the log carries as rows of a table that is not captured."""
    for table in (t.table for t in context.found if t.table in found.under):
        detail, fix = found.why_not_carried(table), found.fix_hint(table)
        yield Finding(f"table {table}", "failed", detail, fix, table=table)


def _check_creatable(context: _CheckContext) -> Finding:
    name, captured = context.config.publication, [table.table for table in context.found]
    (may,) = _row(context.connection, "SELECT has_database_privilege(current_database(), 'CREATE')")
    if may and publication.owned_tables(context.connection).issuperset(captured):
        return Finding("publication", "ok", f"{name} will be created")
    statement = (
        publication.create_statement(name, captured) if captured else f"CREATE PUBLICATION {quote(name)}"
    )
    return Finding(
        "publication",
        "failed",
        f"{name} is missing, and role {quote(context.role)} may not create it",
        f"{statement};",
    )


def _check_setting(name: str, value: str, wanted: str, fix: str) -> Finding:
    good = value == wanted
    return Finding(name, "ok" if good else "failed", f"is {value}", None if good else fix)


def _system(name: str, value: str) -> str:
    return f"ALTER SYSTEM SET {name} = {value}; {_RESTART}"


def _setting(connection: Connection, name: str) -> str:
    return str(_row(connection, "SELECT current_setting(%s)", (name,))[0])


def _row(connection: Connection, query: str, parameters: object = None) -> tuple[Any, ...]:
    row = one_row(connection, query, parameters)
    assert row is not None
    return row
