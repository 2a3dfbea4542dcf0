"""Creates the replication slot, checks that it still holds our log, and advances it.

Invariant: a slot's confirmed position is never ahead of the newest manifest's, unless somebody else consumes
or re-creates it. So a slot that is ahead is a gap.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from psycopg2.extensions import connection as Connection
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from connector.errors import FencedError, PreconditionError
from connector.position import format_lsn, parse_lsn
from connector.postgres.connection import all_rows, literal, one_row, one_row_unless, quote
from connector.source import Finding

log = logging.getLogger(__name__)

PLUGIN = "pgoutput"

RELEASE_POLL_SECONDS = 0.2
LINGER_SECONDS = 1.0
"""How long the server may take to notice that we have closed a connection."""

RELEASE_SECONDS = 10.0
"""How long a killed agent's walsender may hold the slot before it counts as in use."""

STREAM, BULK = "stream", "bulk"
"""How a copy of the slot is read, as part of its name. A streamed copy stands for the slot itself and holds
it.
"""

REFUSED = ("55000",)
"""The SQLSTATE with which the server refuses to read, copy or move a slot that it has invalidated. When the
log is next opened, the slot is found lost: a gap.
"""

NO_ROOM = "53"
"""The class of SQLSTATEs for insufficient resources. The server holds all the log that a query asks for, and
at least a whole transaction, before it returns the first row: `temp_file_limit` or its disk may not allow it.
"""


@dataclass(frozen=True)
class Slot:
    """A slot as pg_replication_slots shows it. `lost`: why it can no longer be read, or None.

    `two_phase`: it sends prepared transactions before they commit, whatever its reader asks for. `failover`:
    standbys keep a copy of it.
    """

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    confirmed: int | None
    lost: str | None
    temporary: bool
    two_phase: bool = False
    failover: bool = False

    def misfit(self, database: str) -> str | None:
        """Return why this slot can't be ours, or None."""
        if self.plugin != PLUGIN:
            return f"slot {self.name} is of {self.plugin or 'physical replication'}, not of {PLUGIN}"
        if self.database != database:
            return f"slot {self.name} belongs to database {self.database}, not to {database}"
        if self.two_phase:
            return f"slot {self.name} was created with two_phase, and would send what has not committed"
        return None


def find_slot(connection: Connection, name: str) -> Slot | None:
    """Look up the slot."""
    row = one_row(
        connection,
        "SELECT plugin, database, active_pid, confirmed_flush_lsn::text, wal_status, temporary, to_jsonb(s)"
        " FROM pg_replication_slots s WHERE slot_name = %s",
        (name,),
    )
    if row is None:
        return None
    plugin, database, pid, confirmed, wal_status, temporary, columns = row
    # Columns of later versions only: conflicting since 16, invalidation_reason and failover since 17.
    reason = columns.get("invalidation_reason") or ("conflicting" if columns.get("conflicting") else None)
    lost = reason or ("wal_status is lost" if wal_status == "lost" else None)
    return Slot(
        name, plugin, database, pid, parse_lsn(confirmed) if confirmed else None, lost, temporary,
        two_phase=bool(columns.get("two_phase")), failover=bool(columns.get("failover")),
    )  # fmt: skip


def create_slot(
    connection: Connection,
    name: str,
    stopping: Callable[[], bool],
    connect: Callable[[], Connection],
    failover: bool = False,
) -> int:
    """Create a slot; return the position from which it keeps the log.

    Waits for running transactions, prepared ones, too, however long they take, unless the agent is
    `stopping`; then nothing is left of the slot, if a session that `connect` opens can say so to the server.
    If there are any, it says so.
    """
    running = one_row(connection, "SELECT pg_snapshot_xmin(pg_current_snapshot()) < pg_current_xact_id()")
    if running == (True,):
        log.warning(
            "creating slot %s waits for running transactions to end: SELECT pid, xact_start, query FROM"
            " pg_stat_activity WHERE backend_xid IS NOT NULL; SELECT * FROM pg_prepared_xacts",
            name,
        )
    arguments = f"{literal(name)}, '{PLUGIN}'{', failover => true' if failover else ''}"
    query = f"SELECT lsn::text FROM pg_create_logical_replication_slot({arguments})"
    row = one_row_unless(stopping, connection, query, connect)
    assert row is not None
    return parse_lsn(row[0])


def drop_slot(connection: Connection, name: str) -> bool:
    """Drop the slot if it exists; return whether standbys kept it. Waits a while for a walsender."""
    found = wait_until_released(connection, name)
    one_row(
        connection,
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
        (name,),
    )
    return found is not None and found.failover


def wait_until_released(connection: Connection, name: str, ours: Collection[int] = ()) -> Slot | None:
    """Wait until nobody uses the slot; `FencedError` with the process id if somebody still does.

    `ours`: server processes behind connections that we lost or closed. One that lingers is ended: where
    only our side of the network failed, it would hold the slot until wal_sender_timeout, or for ever.
    """
    began = time.monotonic()

    def find_released() -> Slot | None:
        lingers = time.monotonic() - began > LINGER_SECONDS
        return _find_released(connection, name, ours if lingers else ())

    waiting = Retrying(
        retry=retry_if_exception_type(FencedError),
        stop=stop_after_delay(RELEASE_SECONDS),
        wait=wait_fixed(RELEASE_POLL_SECONDS),
        reraise=True,
    )
    return waiting(find_released)


def end_readers(connection: Connection, name: str) -> None:
    """End our role's server processes that read the slot or a copy of it; they may take a moment to end.

    Our role is the one that has logged in, though it may act as another.
    """
    one_row(
        connection,
        "SELECT count(pg_terminate_backend(active_pid))"
        " FROM (SELECT set_config('role', 'none', true)) AS own, pg_replication_slots"
        " JOIN pg_stat_activity ON pid = active_pid AND pid <> pg_backend_pid() AND usename = session_user"
        " WHERE slot_name = %s OR temporary AND slot_name ~ %s",
        (name, copies(name)),
    )


def _find_released(connection: Connection, name: str, ours: Collection[int]) -> Slot | None:
    slot = find_slot(connection, name)
    pid = slot.active_pid or _copy_reader(connection, name) if slot else None
    if pid in ours:
        end_readers(connection, name)
    if pid is not None:
        raise FencedError(
            f"slot {name} is in use by server process {pid}",
            hint=f"stop the other agent, or SELECT pg_terminate_backend({pid})",
        )
    return slot


def copy_slot(connection: Connection, name: str, use: str) -> str:
    """Make a temporary copy of the slot, which ends with the connection; return its name."""
    copy = f"{_copy_prefix(name)}_{use}_{os.getpid()}_{int(time.monotonic() * 1000) % 100000}"
    one_row(connection, f"SELECT pg_copy_logical_replication_slot({literal(name)}, {literal(copy)}, true)")
    return copy


def copies(name: str, use: str = f"({STREAM}|{BULK})") -> str:
    """Return the regular expression for the names of a slot's copies."""
    return f"^{_copy_prefix(name)}_{use}_[0-9]+_[0-9]+$"


def _copy_prefix(name: str) -> str:
    """Return a prefix that no other slot's copies have; the slot's whole name would be too long."""
    return f"{name[:31]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _copy_reader(connection: Connection, name: str) -> int | None:
    """Return the process that streams a copy of the slot."""
    row = one_row(
        connection,
        "SELECT active_pid FROM pg_replication_slots WHERE temporary AND active_pid IS NOT NULL"
        " AND slot_name ~ %s",
        (copies(name, STREAM),),
    )
    return row[0] if row else None


def start_replication(name: str, publication: str, position: int) -> str:
    """Build the command that streams a slot's changes after a position.

    It has a grammar of its own, in which a string's only special character is the quote.
    """
    names = quote(publication).replace("'", "''")
    return (
        f"START_REPLICATION SLOT {quote(name)} LOGICAL {format_lsn(position)} "
        f"(proto_version '1', publication_names '{names}')"
    )


_LATE = """
    (SELECT nullif(current_setting('synchronized_standby_slots', true), '')) AS given(list)
    CROSS JOIN unnest(string_to_array(list, ',')) AS listed(item)
    CROSS JOIN lower(btrim(item, E' \\t\\r\\n"')) AS name
    LEFT JOIN pg_replication_slots p ON p.slot_name = name AND p.slot_type = 'physical'
    WHERE (p.restart_lsn IS NULL OR p.restart_lsn < %(position)s)"""
"""The standbys that the server waits for and that lack log before a position. Slots have names in lower case,
into which the server puts those of the setting.
"""

_AWAITED = f"coalesce((to_jsonb(s) ->> 'failover')::bool, false) AND EXISTS (SELECT FROM {_LATE})"
"""Whether whoever moves or reads a slot `s` up to a position waits for a standby, however long it is down."""


def awaits_standbys(connection: Connection, name: str, position: int) -> bool:
    """Return whether reading the slot up to a position would wait for standbys; copies of it don't."""
    query = f"SELECT {_AWAITED} FROM pg_replication_slots s WHERE slot_name = %(name)s"
    return one_row(connection, query, {"name": name, "position": format_lsn(position)}) == (True,)


def awaited_standbys(connection: Connection, name: str, position: int) -> dict[str, str]:
    """Return the standbys that reading the slot up to a position would wait for, each with where it is."""
    rows = all_rows(
        connection,
        "SELECT name, CASE WHEN p.slot_name IS NULL THEN ', of which there is no physical slot'"
        f" ELSE ' at ' || coalesce(p.restart_lsn::text, 'no position') END FROM {_LATE}"
        " AND EXISTS (SELECT FROM pg_replication_slots s WHERE slot_name = %(name)s"
        " AND (to_jsonb(s) ->> 'failover')::bool)",
        {"name": name, "position": format_lsn(position)},
    )
    return dict(rows)


def advance_slot(connection: Connection, name: str, position: int) -> bool:
    """Move the slot, which must not be in use, forward to a position that is durable in the landing zone.

    Returns False, with no effect, if that would wait for standbys.
    """
    row = one_row(
        connection,
        f"SELECT CASE WHEN {_AWAITED} THEN false"
        " ELSE pg_replication_slot_advance(slot_name, %(position)s) IS NOT NULL END"
        " FROM pg_replication_slots s WHERE slot_name = %(name)s AND confirmed_flush_lsn < %(position)s",
        {"name": name, "position": format_lsn(position)},
    )
    return row != (False,)


def check_resumable(
    connection: Connection, name: str, database: str, position: int, ours: Collection[int] = ()
) -> str | Slot:
    """Return why the log after `position` can't be read whole from this slot, or the slot if it can.

    A slot that is not there yet has been released first, as `wait_until_released` does: a server process that
    was busy may only then take note of what its reader confirmed last, and move it.
    """
    found = _check_resumable(connection, name, database, position)
    if isinstance(found, str) or found.confirmed == position:
        return found
    wait_until_released(connection, name, ours)
    return _check_resumable(connection, name, database, position)


def _check_resumable(connection: Connection, name: str, database: str, position: int) -> str | Slot:
    slot = find_slot(connection, name)
    if slot is None:
        return f"slot {name} is gone"
    if misfit := slot.misfit(database):
        raise PreconditionError(misfit, hint="set source.slot to another name, or drop that slot")
    if slot.lost:
        return f"slot {name} is lost ({slot.lost})"
    if slot.confirmed is None or slot.confirmed > position:
        confirmed = format_lsn(slot.confirmed or 0)
        return f"slot {name} is at {confirmed}, past {format_lsn(position)}: it was consumed or re-created"
    end = end_of_log(connection)
    if end < position:
        return (
            f"the server's log ends at {format_lsn(end)}, before {format_lsn(position)}: "
            "it was restored or failed over"
        )
    return slot


def end_of_log(connection: Connection) -> int:
    """Return the end of the server's durable log."""
    row = one_row(
        connection,
        "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
        " ELSE pg_current_wal_flush_lsn() END::text",
    )
    assert row is not None
    return parse_lsn(row[0])


_ANYONE = re.compile(r'(?:^|[,(])\s*"?\*"?\s*(?:$|[,)])')
"""A list's item that matches each session, in quotes or not."""


def check_standbys(names: str) -> Iterator[Finding]:
    """Report a setting of `synchronous_standby_names` that matches every session. Pure.

    A position is confirmed once it has landed. A commit that waits for that takes seconds, or as long as
    nothing can land. Whoever wants it can list the agent's session by name.
    """
    if _ANYONE.search(names):
        yield Finding(
            "synchronous_standby_names",
            "warning",
            f"{names} may choose the agent: commits at the source would wait until they have landed",
            "list the standbys by name: ALTER SYSTEM SET synchronous_standby_names = '...';"
            " SELECT pg_reload_conf();",
        )
