"""The server: its kind (detected, never configured), binary log files, and sessions on it.

Invariant: what is known of a session's server holds while that session lives, but for MariaDB's ids, which
may be changed (`SET GLOBAL gtid_domain_id`). Reopened, it may lead to another server, possibly of another
database: nothing is written there, and no log begun, before that is checked. Invariant: a position
(`pack_binlog_position`) is only made from offsets below 4 GiB. A file exceeds that only within one
transaction, after which the server moves on to the next file.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import DictCursor

from connector.errors import (
    LogFilteredError,
    LogInEngineError,
    LogMiscomputedError,
    LogOffError,
    TransientError,
)
from connector.listening import SessionProbe
from connector.mysql.connection import (
    alive,
    ask,
    close,
    connect,
    driver_errors,
    host_of,
    listed_sessions,
    query,
    raw_rows,
    row,
    rows,
    uuid_of,
)
from connector.position import format_position, pack_binlog_position

log = logging.getLogger(__name__)

MAX_OFFSET = (1 << 32) - 1

NO_BINARY_LOG = 1381
"""ER_NO_BINARY_LOGGING."""

SYNTAX_ERROR = 1064

_REFUSED = (1044, 1045, SYNTAX_ERROR, 1142, 1227)
"""Missing rights, or a release so old that its syntax differs."""

_ENGINE_FILE = "ibb"
"""How the name of a log file ends that InnoDB writes (MariaDB from 12.3)."""

_SHOW_CHANNELS = ("SHOW ALL REPLICAS STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
"""MariaDB's, whose other forms omit named connections; MySQL's; MySQL's before 8.0.22."""


@dataclass(frozen=True)
class Server:
    """One server. `uuid`: MySQL's server_uuid; MariaDB has none, so it is built from server and domain id.

    `lower_case`: it compares the names of tables without regard to case, and logs them in lower case;
    `keeps_case`: its catalog shows them as they were given, though.
    """

    mariadb: bool
    version: str
    server_id: int
    uuid: str
    lower_case: bool
    keeps_case: bool = False

    @property
    def kind(self) -> str:
        """Return the flavor's name."""
        return "mariadb" if self.mariadb else "mysql"

    @property
    def release(self) -> tuple[int, int]:
        """Return major and minor version."""
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(found[1]), int(found[2])) if found else (0, 0)


@dataclass(frozen=True)
class LogFile:
    """One file of the binary log."""

    number: int
    name: str
    size: int


def find_server(connection: Connection[Any]) -> Server:
    """Identify the server: only MariaDB has a gtid_domain_id."""
    names = "'version', 'server_id', 'server_uuid', 'gtid_domain_id', 'lower_case_table_names'"
    found = dict(rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))
    mariadb, case = "gtid_domain_id" in found, int(found.get("lower_case_table_names", 0))
    version, server_id = str(found["version"]), int(found["server_id"])
    return Server(mariadb, version, server_id, uuid_of(found), lower_case=case > 0, keeps_case=case == _KEPT)


_KEPT = 2
"""The setting that is for file systems which ignore case: macOS's default."""


def ensure_logging(connection: Connection[Any], server: Server) -> None:
    """Raise `LogOffError` if the server writes no log: started without one, or having failed to write it.

    Likewise if its log leaves out databases, or what it applies as a replica or as a node of a cluster, or
    has that as it was before triggers of its own changed it, or is in a storage engine: a restart is enough
    for each.
    That there is no log can be seen without any rights; without the right to query the rest, it counts as
    logging.
    """
    settings = _log_settings(connection)
    if settings.get("log_bin") == "OFF":
        raise _log_off()
    if engine := settings.get("binlog_storage_engine"):
        raise _log_in_engine(f"binlog_storage_engine is {engine!r}")
    try:
        status = _log_status(connection, server)
    except (pymysql.OperationalError, pymysql.ProgrammingError) as error:
        if error.args[0] not in _REFUSED:
            raise
        return
    if any(status[2:4]):
        raise LogFilteredError(
            f"binlog_do_db, binlog_ignore_db are {status[2]!r}, {status[3]!r}",
            hint="remove binlog_do_db and binlog_ignore_db from the configuration, restart the server",
        )
    omits = "OFF" in (settings.get(name) for name in _APPLIED)
    triggers = settings.get(REPLICAS_TRIGGERS, "NO")
    clustered = settings.get("wsrep_on") == "ON"
    if (omits or triggers != "NO") and (clustered or is_replica(connection)):
        kind = "node of a Galera cluster" if clustered else "replica"
        if omits:
            raise LogFilteredError(
                f"log_slave_updates is OFF on a {kind}: what it applies is not in its log",
                hint="set log_slave_updates = ON in the configuration, restart the server",
            )
        raise LogMiscomputedError(
            f"{REPLICAS_TRIGGERS} is {triggers} on a {kind}: its log has virtual columns from before triggers"
            " of its own ran",
            hint=f"{NO_REPLICAS_TRIGGERS}; or capture its primary",
        )


_APPLIED = ("log_slave_updates", "log_replica_updates")
"""Whether a replica or a cluster's node logs what it applies; MySQL's older and newer name, MariaDB's older.
"""

REPLICAS_TRIGGERS = "slave_run_triggers_for_rbr"
"""Whether a replica or a cluster's node runs triggers of its own on the rows that it applies (MariaDB)."""

NO_REPLICAS_TRIGGERS = f"SET GLOBAL {REPLICAS_TRIGGERS} = NO; and set it in the server's configuration file"


def _log_settings(connection: Connection[Any]) -> dict[str, str]:
    wanted = ("log_bin", "binlog_storage_engine", "wsrep_on", *_APPLIED, REPLICAS_TRIGGERS)
    names = ", ".join(f"'{name}'" for name in wanted)
    found = rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    return {str(name): str(value) for name, value in found}


def end_of_log(connection: Connection[Any], server: Server) -> tuple[str, int]:
    """Return file and offset of the end of the log; `LogOffError` without a binary log."""
    status = _log_status(connection, server)
    return str(status[0]), int(status[1])


def _log_status(connection: Connection[Any], server: Server) -> tuple[Any, ...]:
    """Return the end of the log, and which databases it alone has or leaves out."""
    renamed = not server.mariadb and server.release >= (8, 2)
    found = row(connection, "SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS")
    if found is None:
        raise _log_off()
    return found


def is_replica(connection: Connection[Any]) -> bool | None:
    """Return whether the server has a replication channel, running or stopped; None if we lack the right.

    A stopped one may continue later; only RESET REPLICA ALL ends it. Members of a group replicate what any of
    them writes, so its channels do not count.
    """
    found = channels(connection)
    if found is None:
        return None
    names = [str(channel.get("Channel_Name", "")) for channel in found]
    return any(not name.startswith("group_replication_") for name in names)


def channels(connection: Connection[Any]) -> list[dict[str, Any]] | None:
    """Return the state of each replication channel; None if we lack the right.

    Its last error quotes a statement, which MariaDB may cut off within a character.
    """
    for statement in _SHOW_CHANNELS:
        try:
            found = raw_rows(connection, statement, DictCursor)
        except (pymysql.OperationalError, pymysql.ProgrammingError) as error:
            if error.args[0] == SYNTAX_ERROR:
                continue
            if error.args[0] in _REFUSED:
                return None
            raise
        return [{name: _as_text(value) for name, value in channel.items()} for channel in found]
    return None


def _as_text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def is_primary(connection: Connection[Any]) -> bool:
    """Return whether the server may be written to: it is not read-only, and certainly not a replica."""
    found = row(connection, "SELECT @@global.read_only")
    return found is not None and str(found[0]) in ("0", "OFF") and is_replica(connection) is False


def _log_off() -> LogOffError:
    return LogOffError(hint="set log_bin = ON, make sure that it can write its log, and restart it")


def _log_in_engine(what: str) -> LogInEngineError:
    text = f"{what}: the binary log is in a storage engine, where it has no positions to read it by"
    return LogInEngineError(
        text, hint="remove binlog_storage_engine from the configuration, restart the server"
    )


def engine_lsn(connection: Connection[Any]) -> int | None:
    """Return how far InnoDB's own log is on disk, which only a restored copy sets back; None if not shown.

    MySQL shows it since 8.0.30.
    """
    names = "'Innodb_lsn_flushed', 'Innodb_redo_log_flushed_to_disk_lsn'"
    found = row(connection, f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})")
    return None if found is None else int(found[1])


def log_files(connection: Connection[Any]) -> dict[int, LogFile]:
    """List the files that the server still has, by number; `LogOffError` without a binary log."""
    try:
        listed = rows(connection, "SHOW BINARY LOGS")
    except pymysql.Error as error:
        if error.args[0] == NO_BINARY_LOG:
            raise _log_off() from error
        raise
    files = [LogFile(number_of(str(name)), str(name), int(size)) for name, size, *_ in listed]
    return {file.number: file for file in files}


def number_of(name: str) -> int:
    """Return a log file's number, which follows the last dot in its name.

    `LogInEngineError` for one of a log in a storage engine (MariaDB's ``binlog-000000.ibb``).
    """
    number = name.rpartition(".")[2]
    if number == _ENGINE_FILE:
        raise _log_in_engine(f"{name} is a file of InnoDB")
    return int(number)


def position_of(name: str, offset: int) -> int:
    """Return the position for an offset in a file; an offset beyond 4 GiB counts as the last one below."""
    return pack_binlog_position(number_of(name), min(offset, MAX_OFFSET))


def boundary_of(name: str, offset: int) -> int:
    """Return the position of an offset at which reading is to begin; `TransientError` beyond 4 GiB."""
    if offset > MAX_OFFSET:
        raise TransientError(f"no log can begin in {name} beyond 4 GiB: it begins in the next file")
    return position_of(name, offset)


def format_binlog_position(position: int) -> str:
    """Format a position for people."""
    return format_position(position, "mysql")


class ServerSession:
    """A session that is opened on first use, and reopened when it is lost. Used by one thread at a time."""

    def __init__(self, connect: Callable[[], Connection[Any]]) -> None:
        self._connect = connect
        self._connection: Connection[Any] | None = None
        self._server: Server | None = None
        self._checked = False

    def get(self) -> Connection[Any]:
        """Return the session, reopened if it was lost; its server may then be a different one."""
        if self._connection is not None and not alive(self._connection):
            self.close()
        if self._connection is None:
            self._connection = self._connect()
            self._server, self._checked = None, False
        return self._connection

    @property
    def server(self) -> Server:
        """Return the server of the session that `get` returned last; queried once for each session."""
        if self._server is None:
            assert self._connection is not None
            with driver_errors("reading the version"):
                self._server = find_server(self._connection)
        return self._server

    def note_checked(self) -> None:
        """Record that the server was checked: it is the landing zone's database."""
        self._checked = True

    def get_checked(self) -> Connection[Any]:
        """Return the session; `TransientError` if it was lost since its server was checked."""
        connection = self.get()
        if not self._checked:
            raise TransientError("the session was lost since its server was checked")
        return connection

    def close(self) -> None:
        """Close the session; never raises."""
        close(self._connection)
        self._connection = None


_WAITING = "Sleep"
_SENDING = ("Sending to client", "Writing to net")
"""Command and states of sessions that wait for their clients."""


def idle_sessions(connection: Connection[Any], sessions: Collection[Any]) -> set[Hashable]:
    """Return the sessions (as noted by `connect`) that the server no longer has, or that wait for us.

    Also those of another server, to which the address no longer leads.
    """
    with driver_errors("looking for our sessions"):
        here = find_server(connection).uuid
        found = listed_sessions(connection)
    at_work = {
        (here, number, host)
        for number, _, host, command, state in found
        if command != _WAITING and state not in _SENDING
    }
    return set(sessions) - at_work


def end_session(connection: Connection[Any], session: Any) -> None:
    """End a session, which may hold locks and a snapshot for as long as TCP takes; never another one."""
    server, number, host = session
    with driver_errors("ending a session of ours"):
        if server == find_server(connection).uuid and host == host_of(connection, number):
            query(connection, f"KILL {number}")


def probe(url: str, name: str) -> SessionProbe[Connection[Any]]:
    """Return a session that asks whether the server answers, and on which connections it works for us."""
    return SessionProbe(lambda: connect(url, name), ask, close, idle_sessions, end_session)
