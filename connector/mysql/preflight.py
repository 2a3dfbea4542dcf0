"""Checks all preconditions of capture; each failure comes with the exact statement that fixes it.

Read-only: nothing here creates or changes anything at the source. Rights are tested by use, not read from
SHOW GRANTS, which roles and wildcards make unreliable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pymysql.connections import Connection

from connector.config import SourceConfig, TableConfig
from connector.errors import DeltatideError, LogOffError
from connector.mysql.catalog import find_tables
from connector.mysql.connection import row, rows
from connector.mysql.definitions.foreign_keys import Cascades
from connector.mysql.definitions.layouts import Definitions, with_virtual
from connector.mysql.definitions.triggers import Triggers
from connector.mysql.log.schema_cache import OWN_DATABASE
from connector.mysql.log.stream import REPLICA_HOST, created_at, replica_id
from connector.mysql.preflight_tables import CheckContext, check_tables, readable_tables, refusals
from connector.mysql.server import (
    NO_REPLICAS_TRIGGERS,
    REPLICAS_TRIGGERS,
    Server,
    end_of_log,
    is_replica,
    log_files,
)
from connector.mysql.state_table import GRANT, RIGHTS, StateTable
from connector.mysql.table_ids import table_ids
from connector.schema import TableName
from connector.source import Finding

OLDEST = {True: (10, 6), False: (8, 0)}
"""The oldest supported releases: MariaDB's with full metadata in its log and still maintained; MySQL's."""

CLOCK_SECONDS = 5.0
RETENTION_SECONDS = 86_400
"""An agent should survive being stopped for a day."""


def check(
    connection: Connection[Any],
    connect: Callable[[], Connection[Any]],
    server: Server,
    config: SourceConfig,
    tables: Mapping[TableName, TableConfig],
    state_table: StateTable,
    definitions: Definitions,
) -> list[Finding]:
    """Check everything and report all findings, good and bad."""
    variables = {str(n): str(v) for n, v in rows(connection, "SHOW GLOBAL VARIABLES")}
    account = row(connection, "SELECT CURRENT_USER()")
    assert account is not None
    name, _, host = str(account[0]).rpartition("@")
    user = f"'{name}'@'{host}'"
    busy: set[TableName] = set()
    found = find_tables(connection, config, busy)
    awaited = [facts.table for facts in found if facts.table not in busy]
    known = definitions.read(connection, awaited, tables)
    triggers = Triggers(connection, with_virtual(server, awaited, known), tables)
    context = CheckContext(
        connection, connect, server, config, tables, state_table, found, busy,
        known, readable_tables(connection, server, awaited),
        Cascades(connection, server), triggers, variables, user,
    )  # fmt: skip
    return [
        *_check_server(context),
        *_check_log(context),
        *_check_rights(context),
        *_check_own_table(context),
        *check_tables(context),
    ]


def _check_server(context: CheckContext) -> Iterator[Finding]:
    server = context.server
    good = server.release >= OLDEST[server.mariadb]
    oldest = ".".join(map(str, OLDEST[server.mariadb]))
    name = "MariaDB" if server.mariadb else "MySQL"
    yield Finding(
        "version", "ok" if good else "failed", f"{name} {server.version}",
        None if good else f"use {name} {oldest} or later",
    )  # fmt: skip
    yield from _check_server_id(context)
    now = row(context.connection, "SELECT UNIX_TIMESTAMP(NOW(6))")
    assert now is not None
    drift = abs(time.time() - float(now[0]))
    yield Finding(
        "clock", "warning" if drift > CLOCK_SECONDS else "ok", f"differs from ours by {drift:.1f} s",
        "synchronize the clocks (NTP)" if drift > CLOCK_SECONDS else None,
    )  # fmt: skip


def _check_server_id(context: CheckContext) -> Iterator[Finding]:
    ours, theirs = replica_id(context.config.name), context.server.server_id
    if theirs in (0, ours):
        yield Finding(
            "server_id", "failed", f"is {theirs}, which is {'ours' if theirs else 'none'}",
            "SET GLOBAL server_id = 1; and set it in the server's configuration file",
        )  # fmt: skip
        return
    if host := _other_replica(context, ours):
        yield Finding(
            "server_id", "failed", f"the agent's id {ours} is also the server_id of replica {host}",
            f"give replica {host} another server_id, or choose another source.name",
        )  # fmt: skip
        return
    yield Finding("server_id", "ok", f"is {theirs}; the agent reads as {ours}")


def _other_replica(context: CheckContext, ours: int) -> str | None:
    """Find a replica with our server id: the server would drop one connection when the other begins."""
    old = context.server.mariadb or context.server.release < (8, 4)
    found: list[tuple[Any, ...]] = []
    with refusals():  # not every user has the right
        found = rows(context.connection, "SHOW SLAVE HOSTS" if old else "SHOW REPLICAS")
    return next((str(host) for id_, host, *_ in found if int(id_) == ours and host != REPLICA_HOST), None)


def _check_log(context: CheckContext) -> Iterator[Finding]:
    """Check how the server logs; whether it does was checked first (`Source.ensure_logging`)."""
    if context.variable("log_bin") != "ON" or context.variable("binlog_storage_engine"):
        return
    yield from _check_stays_on(context)
    yield _check_setting(context, "binlog_format", "ROW")
    yield _check_setting(context, "binlog_row_metadata", "FULL")
    yield from _check_row_image(context)
    if not context.server.mariadb:
        yield _check_setting(context, "binlog_order_commits", "ON")
    yield from _check_replicas_triggers(context)
    yield from _check_partial_json(context)
    yield from _check_retention(context)
    yield from _check_crashes(context)
    yield from _check_features(context)


def _check_stays_on(context: CheckContext) -> Iterator[Finding]:
    """Report a server that would stop logging if it failed to write its log."""
    name = "binlog_error_action"
    action = context.variable(name)
    if action == "ABORT_SERVER":
        yield Finding(name, "ok", f"is {action}")
    elif action is not None:
        yield Finding(
            name, "warning", f"is {action}: if the log can't be written, changes continue without it",
            f"SET GLOBAL {name} = ABORT_SERVER; and set it in the server's configuration file",
        )  # fmt: skip


def _check_replicas_triggers(context: CheckContext) -> Iterator[Finding]:
    """Report a server that would run triggers of its own on what it applies, as soon as it is a replica.

    One that is a replica is refused (`ensure_logging`).
    """
    if (value := context.variable(REPLICAS_TRIGGERS)) not in (None, "NO"):
        surely_none = is_replica(context.connection) is False
        yield Finding(
            REPLICAS_TRIGGERS, "warning" if surely_none else "failed",
            f"is {value}: a replica's log has virtual columns from before its triggers ran",
            NO_REPLICAS_TRIGGERS,
        )  # fmt: skip


def _check_row_image(context: CheckContext) -> Iterator[Finding]:
    name = "binlog_row_image"
    image = context.variable(name) or "FULL"
    hint = f"SET GLOBAL {name} = FULL; and set it in the server's configuration file"
    if image == "FULL":
        yield Finding(name, "ok", f"is {image}")
    elif image == "FULL_NODUP":  # which omits virtual columns even where they have changed
        effect = "the first update of a table with virtual columns quarantines it"
        yield Finding(name, "warning", f"is {image}: {effect}", hint)
    elif context.config.allow_partial_row_images:
        effect = "changes carry only some columns, and are merged by column"
        yield Finding(name, "warning", f"is {image}: {effect}", hint)
    else:
        effect = "the log lacks columns of changed rows, and so may not tell all that happened to them"
        hint += "; or set source.allow_partial_row_images (its limits: docs/limits.md)"
        yield Finding(name, "failed", f"is {image}: {effect}", hint)


def _check_partial_json(context: CheckContext) -> Iterator[Finding]:
    """Check for partial JSON updates (MySQL), which are useless without the document before."""
    name, image = "binlog_row_value_options", context.variable("binlog_row_image")
    value = context.variable(name)
    if value is None:
        return
    if not value or image == "FULL":
        how = "is PARTIAL_JSON: differences are applied to the document before" if value else "is empty"
        yield Finding(name, "ok", how)
        return
    yield Finding(
        name, "failed", f"is {value}, and binlog_row_image is {image}: the log lacks the document before",
        f"SET GLOBAL {name} = ''; and set it in the server's configuration file",
    )  # fmt: skip


def survives_crashes(connection: Connection[Any], server: Server) -> bool:
    """Return whether log and tables agree after a crash, except for what table ids reveal."""
    return is_durable(connection) and (not server.mariadb or table_ids(connection) is not None)


def is_durable(connection: Connection[Any]) -> bool:
    """Return whether each commit is on disk, in log and tables, when done; this may change at any time."""
    found = dict(rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({_FLUSHES})"))
    return (found.get("sync_binlog"), found.get("innodb_flush_log_at_trx_commit")) in _DURABLE


_FLUSHES = "'sync_binlog', 'innodb_flush_log_at_trx_commit'"
_DURABLE = (("1", "1"), ("1", "3"))


def _check_crashes(context: CheckContext) -> Iterator[Finding]:
    """Report the cost of a server crash: if log and tables may differ after it, all are dumped again."""
    names = ("sync_binlog", "innodb_flush_log_at_trx_commit")
    values = tuple(context.variable(name) for name in names)
    settings = ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
    if values in _DURABLE:
        yield Finding("durability", "ok", settings)
    else:
        yield Finding(
            "durability", "warning", f"{settings}: after a server crash, all tables are dumped again",
            "SET GLOBAL sync_binlog = 1, GLOBAL innodb_flush_log_at_trx_commit = 1;",
        )  # fmt: skip
    if context.server.mariadb and table_ids(context.connection) is None:
        yield Finding(
            "process", "warning",
            "the user can't see InnoDB's table ids, so after a server crash, all tables are dumped again",
            f"GRANT PROCESS ON *.* TO {context.user};",
        )  # fmt: skip


def _check_retention(context: CheckContext) -> Iterator[Finding]:
    limit = int(context.variable("binlog_space_limit") or 0)
    if limit:
        yield Finding(  # MariaDB, which names it max_binlog_total_size, too
            "binlog_space_limit", "warning",
            f"is {limit}: log beyond that many bytes is removed, whether the agent has read it or not",
            "SET GLOBAL binlog_space_limit = 0; and remove it from the server's configuration file",
        )  # fmt: skip
    seconds = float(context.variable("binlog_expire_logs_seconds") or 0)
    seconds = seconds or float(context.variable("expire_logs_days") or 0) * 86_400
    if seconds == 0:
        until = "however old it is" if limit else "until it is purged by hand"
        yield Finding("retention", "ok", f"the log is kept {until}")
        return
    short = seconds < RETENTION_SECONDS
    name = (
        "binlog_expire_logs_seconds" if context.variable("binlog_expire_logs_seconds") else "expire_logs_days"
    )
    wanted = "604800" if name.endswith("seconds") else "7"
    yield Finding(
        "retention", "warning" if short else "ok",
        f"the log is kept {seconds / 3600:.1f} hours: an agent stopped for longer dumps all tables again",
        f"SET GLOBAL {name} = {wanted};" if short else None,
    )  # fmt: skip


def _check_features(context: CheckContext) -> Iterator[Finding]:
    """Report settings that users ask about, most of which need no action."""
    if _has_gtids(context):
        yield Finding("gtid", "ok", "is on: after a failover capture continues on the other server")
    else:
        yield Finding(
            "gtid", "warning", f"is {context.variable('gtid_mode')}: a failover dumps all tables again",
            "SET GLOBAL enforce_gtid_consistency = ON; then gtid_mode, step by step, to ON",
        )  # fmt: skip
    names = (
        "binlog_transaction_compression", "log_bin_compress", "binlog_encryption", "encrypt_binlog",
        "binlog_checksum",
    )  # fmt: skip
    settings = [f"{name} {context.variables[name]}" for name in names if name in context.variables]
    yield Finding("log format", "ok", ", ".join(settings))
    yield Finding("time zone tables", "ok", "not needed: times are read in UTC")


def _has_gtids(context: CheckContext) -> bool:
    return context.server.mariadb or context.variable("gtid_mode") == "ON"


def _check_rights(context: CheckContext) -> Iterator[Finding]:
    mariadb, user = context.server.mariadb, context.user
    client = "BINLOG MONITOR, REPLICA MONITOR" if mariadb else "REPLICATION CLIENT"
    try:
        with refusals() as denied:
            end_of_log(context.connection, context.server)
            files = log_files(context.connection)
    except LogOffError:
        return
    if not denied and is_replica(context.connection) is None:
        denied.append("whether the server is a replica can't be seen")
    if denied:
        yield Finding("rights", "failed", denied[0], f"GRANT {client}, REPLICATION SLAVE ON *.* TO {user};")
        return
    try:
        created_at(context.connect(), context.server, files[max(files)].name)
    except DeltatideError as error:
        yield Finding("rights", "failed", str(error), f"GRANT REPLICATION SLAVE ON *.* TO {user};")
    else:
        yield Finding("rights", "ok", f"{user} may read the log")


def _check_own_table(context: CheckContext) -> Iterator[Finding]:
    """Check that our own small table exists and is writable, or could be created."""
    unwritten = context.variable("read_only") == "ON" or is_replica(context.connection)
    with refusals() as denied:
        if not unwritten and context.state_table.is_there(context.connection):
            rows(context.connection, f"SELECT 1 FROM {OWN_DATABASE}.watermark LIMIT 0")
            context.state_table.try_writing(context.connection)
            yield Finding("own table", "ok", f"{OWN_DATABASE}.watermark exists")
            return
        if not unwritten and _may_create(context):
            yield Finding("own table", "ok", f"{OWN_DATABASE}.watermark will be created")
            return
    fix = f"{GRANT} TO {context.user};"
    missing = (
        denied[0]
        if denied
        else f"{OWN_DATABASE}.watermark does not exist, and the user may not create and write it"
    )
    if unwritten:
        missing = "the server is read-only or a replica"
        fix = "nothing to do; or capture its primary; or if it was promoted: RESET REPLICA ALL;"
    if _has_gtids(context):
        how = "by a pause" if context.server.mariadb else "by gtid_executed"
        yield Finding("own table", "warning", f"{missing}: low watermarks are taken {how}", fix)
    else:
        yield Finding(
            "own table", "failed", f"{missing}; dumps need it for their watermarks without GTIDs", fix
        )


def _may_create(context: CheckContext) -> bool:
    """Return whether the user may create the table and use it."""
    grants = [str(found[0]) for found in rows(context.connection, "SHOW GRANTS")]
    scopes = ("*.*", f"`{OWN_DATABASE}`.*")
    held: set[str] = set()
    for privileges, _, where in (g.removeprefix("GRANT ").partition(" ON ") for g in grants):
        if where.startswith(scopes):
            held.update(privileges.split(", "))
    return "ALL PRIVILEGES" in held or held.issuperset(RIGHTS)


def _check_setting(context: CheckContext, name: str, wanted: str) -> Finding:
    value = context.variable(name)
    if value == wanted:
        return Finding(name, "ok", f"is {value}")
    shown = "unknown to this server" if value is None else f"is {value}"
    formatted = wanted or "''"
    fix = f"SET GLOBAL {name} = {formatted}; and set it in the server's configuration file"
    return Finding(name, "failed", shown, fix)
