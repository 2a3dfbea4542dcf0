"""Every precondition of capture, looked at together; each failure with the exact SQL that mends it.

Reads only; nothing here creates or changes anything at the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2.extensions import connection as Connection

from connector.config import SourceConfig, TableConfig
from connector.errors import DeltatideError
from connector.postgres import publication
from connector.postgres.catalog import Catalog, TableFacts, find_tables, qualified
from connector.postgres.connection import all_rows, close, one_row, quote
from connector.postgres.slot import find_slot
from connector.schema import TableName
from connector.source import Finding

OLDEST, NEWEST = 140000, 180000
"""Versions from 14 up to and without 18."""

CLOCK_SECONDS = 5.0
"""A greater difference makes lag figures useless; events themselves carry the server's clock."""

_RESTART = "then restart the server"


@dataclass(frozen=True)
class _Place:
    """What every look needs."""

    connection: Connection
    config: SourceConfig
    tables: Mapping[str, TableConfig]
    role: str
    found: Sequence[TableFacts]


def check(
    connection: Connection,
    connect_for_replication: Callable[[], Connection],
    config: SourceConfig,
    tables: Mapping[str, TableConfig],
) -> list[Finding]:
    """Look at everything and report all of it, good and bad."""
    row = one_row(connection, "SELECT current_user::text")
    assert row is not None
    place = _Place(connection, config, tables, row[0], find_tables(connection, config))
    findings = [*_server(place), *_role(place, connect_for_replication), *_capacity(place), *_slot(place)]
    findings += [*_tables(place), *_publication(place)]
    return findings


def _server(place: _Place) -> Iterator[Finding]:
    connection = place.connection
    version = connection.server_version
    good = OLDEST <= version < NEWEST
    yield Finding(
        "version", "ok" if good else "failed", f"PostgreSQL {version // 10000}.{version % 10000}",
        None if good else "use a server of version 14, 15, 16 or 17",
    )  # fmt: skip
    yield _expect("wal_level", _setting(connection, "wal_level"), "logical", _system("wal_level", "logical"))
    yield _expect(
        "encoding",
        _setting(connection, "server_encoding"),
        "UTF8",
        "move the data to a database with encoding UTF8",
    )
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


def _role(place: _Place, connect_for_replication: Callable[[], Connection]) -> Iterator[Finding]:
    connection, role = place.connection, quote(place.role)
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
        yield Finding("replication", "failed", str(error), error.hint)
    else:
        yield Finding("replication", "ok", f"role {role} may replicate")


def _capacity(place: _Place) -> Iterator[Finding]:
    connection = place.connection
    slots, senders, slots_max, senders_max, kept = _row(
        connection,
        "SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> %s),"
        " (SELECT count(*) FROM pg_stat_replication WHERE application_name <> %s),"
        " current_setting('max_replication_slots')::int, current_setting('max_wal_senders')::int,"
        " current_setting('max_slot_wal_keep_size')",
        (place.config.slot, f"deltatide {place.config.name}"),
    )
    for name, used, limit in (
        ("max_replication_slots", slots, slots_max),
        ("max_wal_senders", senders, senders_max),
    ):
        full = used >= limit
        yield Finding(
            name, "failed" if full else "ok", f"{used} of {limit} in use by others",
            _system(name, str(limit + 4)) if full else None,
        )  # fmt: skip
    unlimited = kept == "-1"
    yield Finding(
        "max_slot_wal_keep_size", "ok",
        "unlimited: a stopped agent makes the server keep its log" if unlimited
        else f"{kept}: a slot farther behind is lost, and its tables are dumped again",
    )  # fmt: skip


def _slot(place: _Place) -> Iterator[Finding]:
    name = place.config.slot
    slot = find_slot(place.connection, name)
    drop = f"SELECT pg_drop_replication_slot('{name}');"
    if slot is None:
        yield Finding("slot", "ok", f"{name} will be created")
    elif misfit := slot.misfit(place.connection.info.dbname):
        yield Finding("slot", "failed", misfit, f"{drop} or set source.slot to another name")
    elif slot.lost:
        yield Finding(
            "slot", "warning", f"{name} is lost ({slot.lost}): a gap, the tables will be dumped again"
        )
    elif slot.active_pid is not None:
        yield Finding(
            "slot", "warning", f"{name} is in use by process {slot.active_pid}",
            f"if no agent is running: SELECT pg_terminate_backend({slot.active_pid});",
        )  # fmt: skip
    else:
        yield Finding("slot", "ok", f"{name} is there")


def _tables(place: _Place) -> Iterator[Finding]:
    yield from _patterns(place)
    yield from _unfit(place)
    catalog = Catalog(place.connection, place.tables)
    for table in place.found:
        problems = [
            problem
            for problem in (_readable(place, table), _identity(place, table) or _key(place, catalog, table))
            if problem
        ]
        yield from problems or [Finding(f"table {table.table}", "ok", "can be captured")]


def _patterns(place: _Place) -> Iterator[Finding]:
    """Report names and patterns that match no table, and settings of tables that are not captured."""
    for pattern in place.config.tables:
        one = place.config.model_copy(update={"tables": [pattern], "exclude": []})
        if not any(one.captures(table.table) for table in place.found):
            yield Finding(
                f"tables {pattern}",
                "failed",
                "no table matches",
                "correct source.tables, or create the table",
            )
    names = {str(table.table) for table in place.found}
    for name in sorted(place.tables.keys() - names):
        yield Finding(f'[tables."{name}"]', "warning", "is not among the captured tables", "correct its name")


def _unfit(place: _Place) -> Iterator[Finding]:
    """Report what is named and leaves no row events in the log: unlogged, foreign, views."""
    rows = all_rows(
        place.connection,
        "SELECT n.nspname::text, c.relname::text, c.relkind::text FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE (c.relkind IN ('f', 'v', 'm') OR c.relkind IN ('r', 'p') AND c.relpersistence <> 'p')"
        " AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'",
    )
    for namespace, name, kind in rows:
        table = TableName(namespace, name)
        if not place.config.captures(table):
            continue
        what = {"f": "a foreign table", "v": "a view", "m": "a materialized view"}.get(
            kind, "an unlogged table"
        )
        named = str(table) in place.config.tables
        mend = f"ALTER TABLE {qualified(table)} SET LOGGED; or" if what.startswith("an unl") else ""
        yield Finding(
            f"table {table}", "failed" if named or mend else "warning", f"is {what}, never in the log",
            f"{mend} add it to source.exclude".strip(),
        )  # fmt: skip


def _readable(place: _Place, table: TableFacts) -> Finding | None:
    may, usage = _row(
        place.connection,
        "SELECT has_table_privilege(%s::oid, 'SELECT'), has_schema_privilege(%s, 'USAGE')",
        (table.oid, table.table.namespace),
    )
    role, namespace = quote(place.role), quote(table.table.namespace)
    grants = []
    if not usage:
        grants.append(f"GRANT USAGE ON SCHEMA {namespace} TO {role};")
    if not may:
        grants.append(f"GRANT SELECT ON {qualified(table.table)} TO {role};")
    if not grants:
        return None
    return Finding(f"table {table.table}", "failed", f"role {role} may not read it", " ".join(grants))


def _key(place: _Place, catalog: Catalog, table: TableFacts) -> Finding | None:
    layout = catalog.layout(table.table, catalog.columns(table), table)
    name = f"table {table.table}"
    if layout.schema is None:
        return Finding(name, "failed", layout.reason, layout.hint)
    key = layout.schema.key
    if key in (table.primary_key, table.identity_key):
        return None
    unique, nullable = _row(place.connection, _UNIQUE, {"oid": table.oid, "key": list(key)})
    if nullable:
        mend = " ".join(
            f"ALTER TABLE {qualified(table.table)} ALTER {quote(c)} SET NOT NULL;" for c in nullable
        )
        return Finding(name, "failed", f"key column {', '.join(nullable)} may be null", mend)
    if not unique:
        columns = ", ".join(map(quote, key))
        return Finding(
            name, "failed", f"its configured key ({', '.join(key)}) has no unique index",
            f"CREATE UNIQUE INDEX ON {qualified(table.table)} ({columns});",
        )  # fmt: skip
    return None


_UNIQUE = """
    SELECT EXISTS (
        SELECT FROM pg_index i WHERE i.indrelid = %(oid)s AND i.indisunique AND i.indisvalid
           AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
           AND ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
                     JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                     WHERE k.place <= i.indnkeyatts ORDER BY 1)
               = ARRAY(SELECT unnest(%(key)s::text[]) ORDER BY 1)),
        ARRAY(SELECT attname::text FROM pg_attribute
              WHERE attrelid = %(oid)s AND attname = ANY (%(key)s::name[]) AND NOT attnotnull)"""


def _identity(place: _Place, table: TableFacts) -> Finding | None:
    """Look at the partitions too: it is theirs that the log carries."""
    leaves = all_rows(
        place.connection,
        "SELECT n.nspname::text, c.relname::text"
        " FROM pg_partition_tree(%s) p JOIN pg_class c ON c.oid = p.relid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relreplident = 'n' OR p.isleaf AND c.relreplident <> %s",
        (table.oid, table.identity),
    )
    if table.identity == "n":
        leaves = [tuple(table.table)]
    if not leaves:
        return None
    names = [TableName(*leaf) for leaf in leaves]
    wanted = "FULL" if table.identity == "f" else "DEFAULT"
    return Finding(
        f"table {table.table}", "failed",
        f"replica identity of {', '.join(map(str, names))} does not fit",
        " ".join(f"ALTER TABLE {qualified(name)} REPLICA IDENTITY {wanted};" for name in names),
    )  # fmt: skip


def _publication(place: _Place) -> Iterator[Finding]:
    name = place.config.publication
    found = publication.find_publication(place.connection, name)
    if found is None:
        yield _creatable(place)
        return
    problems = [*_narrowness(place, found), *_lacking(place, found)]
    for problem, mend in problems:
        yield Finding("publication", "failed", f"{name} {problem}", mend)
    if not problems:
        extended = ", will be extended" if publication.missing(found, [t.table for t in place.found]) else ""
        yield Finding("publication", "ok", f"{name} is there{extended}")


def _narrowness(place: _Place, found: publication.Publication) -> Iterator[tuple[str, str]]:
    """Give what the publication leaves out of the tables it has, each with the SQL that mends it."""
    alter = f"ALTER PUBLICATION {quote(place.config.publication)}"
    if not found.operations:
        operations = "insert, update, delete, truncate"
        yield "does not publish every kind of change", f"{alter} SET (publish = '{operations}');"
    if not found.via_root and any(table.partitioned for table in place.found):
        yield "publishes partitions by themselves", f"{alter} SET (publish_via_partition_root = true);"
    for table in place.found:
        if table.table in found.narrowed:
            spelled = qualified(table.table)
            mend = f"{alter} DROP TABLE {spelled}; {alter} ADD TABLE {spelled};"
            yield f"has a row filter or a column list for {table.table}", mend


def _lacking(place: _Place, found: publication.Publication) -> Iterator[tuple[str, str]]:
    """Give the tables that the publication lacks and our role may not add."""
    lacking = publication.missing(found, [t.table for t in place.found])
    if lacking and not (found.owned and not _not_owned(place, lacking)):
        listed = ", ".join(map(str, lacking))
        yield (
            f"lacks {listed}, and role {quote(place.role)} may not add them",
            f"{publication.add_statement(place.config.publication, lacking)};",
        )


def _creatable(place: _Place) -> Finding:
    name, captured = place.config.publication, [table.table for table in place.found]
    (may,) = _row(place.connection, "SELECT has_database_privilege(current_database(), 'CREATE')")
    if may and not _not_owned(place, captured):
        return Finding("publication", "ok", f"{name} will be created")
    statement = (
        publication.create_statement(name, captured) if captured else f"CREATE PUBLICATION {quote(name)}"
    )
    return Finding(
        "publication",
        "failed",
        f"{name} is missing, and role {quote(place.role)} may not create it",
        f"{statement};",
    )


def _not_owned(place: _Place, tables: Sequence[TableName]) -> list[TableName]:
    """List the tables that belong to neither our role nor one that it is a member of."""
    ours = {
        TableName(*row)
        for row in all_rows(
            place.connection,
            "SELECT n.nspname::text, c.relname::text"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind IN ('r', 'p') AND pg_has_role(c.relowner, 'USAGE')",
        )
    }
    return [table for table in tables if table not in ours]


def _expect(name: str, value: str, wanted: str, mend: str) -> Finding:
    good = value == wanted
    return Finding(name, "ok" if good else "failed", f"is {value}", None if good else mend)


def _system(name: str, value: str) -> str:
    return f"ALTER SYSTEM SET {name} = {value}; {_RESTART}"


def _setting(connection: Connection, name: str) -> str:
    return str(_row(connection, "SELECT current_setting(%s)", (name,))[0])


def _row(connection: Connection, query: str, parameters: object = None) -> tuple[Any, ...]:
    row = one_row(connection, query, parameters)
    assert row is not None
    return row
