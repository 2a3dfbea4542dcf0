"""A MySQL or MariaDB server as a source; implements `connector.source.Source`. Ties the other files together.

Connects only when asked something. One session does all the small questions; the log reader and each table
reader have connections of their own. Which of the two servers it is, is found out.

Identity: the id in ``deltatide.watermark``, which replicas share; where that table can't be had, MySQL's
server_uuid, or MariaDB's server id and GTID domain. MySQL's GTIDs prove a history to be shared without it.

A position is one in the log of one server, by file and offset. Whether the server at hand is still the same
is looked at whenever the log is opened, and each connection that must lead to it is asked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from threading import Lock
from typing import Any

from pymysql.connections import Connection

from connector.config import SourceConfig, TableConfig
from connector.errors import PreconditionError, TransientError
from connector.manifest import Manifest, SourceIdentity, UnsettledCommit
from connector.mysql import catalog, executed
from connector.mysql.buffer import LogBuffer
from connector.mysql.capturing import Captured, Mapped, NotedColumn
from connector.mysql.connection import close, connect, driver_errors, parse_url, quote, row
from connector.mysql.dump import MysqlTables
from connector.mysql.journal import Birth, Journal
from connector.mysql.preflight import check
from connector.mysql.reader import Landmark, MysqlLog
from connector.mysql.segment import pack_position, unpack_position
from connector.mysql.server import (
    LogFile,
    Server,
    end_of_log,
    find_server,
    format_position,
    log_files,
    position_of,
)
from connector.mysql.stream import BinlogStream, created_at, replica_id
from connector.schema import TableName, TableSchema
from connector.source import Failover, Finding, History, Outlook, Prepared

log = logging.getLogger(__name__)

APPLY_SECONDS = 30.0
"""A replica that has just been promoted may still be applying what it has received; then it lacks nothing."""


class MysqlSource:
    """One server. Used by one thread, but for `open_tables` and `look`."""

    def __init__(self, config: SourceConfig, tables: Mapping[str, TableConfig]) -> None:
        self._config, self._tables = config, tables
        self._journal = Journal(config.name)
        self._session: Connection[Any] | None = None
        self._watching: Connection[Any] | None = None
        self._looking = Lock()
        self._found: Server | None = None
        self._reader: MysqlLog | None = None
        self._begun: Birth | None = None
        self._trusted: str | None = None
        self._lacking_since: float | None = None

    def check(self) -> list[Finding]:
        """Look at every precondition and report all; raises only when the server can't be reached."""
        connection = self._connected()
        with driver_errors("checking the database"):
            server, journal = self._server_of(connection), self._journal
            connect = lambda: self._connect(replication=True)  # noqa: E731
            return check(connection, connect, server, self._config, self._tables, journal)

    def identity(self, landed: Manifest | None = None) -> SourceIdentity:
        """Tell which database this is: the one that `landed` was read from, where that can be proven."""
        connection = self._connected()
        server = self._server_of(connection)
        with driver_errors("asking for the identity"):
            shared = self._journal.identity(connection)
            if landed is not None and self._is_known(connection, server, landed, shared):
                shared = landed.source.system_id
        return SourceIdentity(
            name=self._config.name,
            kind="mariadb" if server.mariadb else "mysql",
            system_id=shared or server.uuid,
            database=parse_url(self._config.url.get_secret_value())["database"] or "",
            version=server.version,
        )

    @staticmethod
    def _is_known(connection: Connection[Any], server: Server, landed: Manifest, shared: str | None) -> bool:
        if landed.source.system_id in (shared, server.uuid):
            return True
        if landed.gtids is None or landed.source.kind != server.kind:
            return False
        return executed.shares_history(connection, server, landed.gtids)

    def tables(self, among: Collection[str] | None = None) -> list[TableSchema]:
        """List the tables that the configuration names; `PreconditionError` when one has no usable key."""
        connection = self._connected()
        with driver_errors("listing the tables"):
            found = catalog.find_tables(connection, self._config)
            named = [t for t in found if among is None or str(t.table) in among]
            layouts = catalog.layouts_of(connection, named, self._tables)
        refused = [f"{x.problem}" for x in layouts if x.problem is not None]
        if refused:
            raise PreconditionError("; ".join(refused), hint="run `deltatide check`, it says what to do")
        return [x.schema for x in layouts if x.schema is not None]

    def prepare(self) -> Prepared:
        """Create our own two small tables where we may. Nothing is added to a log: it has all tables."""
        connection = self._connected()
        with driver_errors("creating deltatide.watermark"):
            self._journal.create(connection)
        return Prepared()

    def look(self) -> Outlook:
        """Look at the tables, and at what the reader wrote down that no log tells, over an own session."""
        with self._looking:  # the loop looks too, when it takes up a table
            return self._look()

    def _look(self) -> Outlook:
        if self._watching is not None and not _alive(self._watching):
            close(self._watching)
            self._watching = None
        self._watching = connection = self._watching or self._connect()
        with driver_errors("looking at the catalog"):
            if self._trusted not in (None, find_server(connection).uuid):
                close(connection)
                raise TransientError("the catalog at hand is that of another server than the log's")
            untold = self._journal.untold(connection)
            found = catalog.find_tables(connection, self._config)
            layouts = catalog.layouts_of(connection, found, self._tables)
            position = position_of(*end_of_log(connection, self._server_of(connection)))
        seen = {str(x.table): untold.get(x.table, "") for x in layouts if x.schema is not None}
        return Outlook(seen, position, frozenset(str(facts.table) for facts in found))

    def untold(self, before: str, now: str) -> bool:
        """Tell whether rows may have come or gone untold between two fingerprints of one table."""
        return before != now

    def begin_history(self, *, fresh: bool) -> History:
        """Begin at the end of the log; the server keeps it by itself."""
        connection = self._connected()
        server = self._server_of(connection)
        with driver_errors("asking for the end of the log"):
            name, offset = end_of_log(connection, server)
            gtids = self._executed_at(connection, server, name, offset)
        position = position_of(name, offset)
        self._begun = Birth(server.uuid, position >> 32, self._created(server, name))
        self._trusted = server.uuid
        return History(position, (), gtids, server.uuid)

    def gap_after(
        self,
        position: int,
        gtids: str | None = None,
        server: str | None = None,
        gtids_needed: str | None = None,
    ) -> str | Failover | None:
        """Tell why the log after `position` can't be read whole, or where it goes on; None: right there."""
        connection = self._connected()
        here = self._server_of(connection)
        with driver_errors("looking at the binary log"):
            files = log_files(connection)
            birth = self._begun or self._journal.birth(connection)
        before = server or (birth.server if birth else here.uuid)
        if before != here.uuid:
            reason = f"the log is that of server {here.uuid}, not of {before}"
        else:
            ours = birth if birth and birth.server == here.uuid else None
            reason = self._break(here, files, position, ours) or ""
        with driver_errors("comparing GTIDs"):
            if not reason and gtids and birth is None and (lacking := self._lacking(connection, here, gtids)):
                reason = f"server {here.uuid} has not executed {lacking}: the log was reset"
            found = None
            if reason:
                found = self._failover(connection, here, files, gtids, gtids_needed, before, reason)
        self._trusted = here.uuid
        return found

    def _break(
        self, here: Server, files: Mapping[int, LogFile], position: int, birth: Birth | None
    ) -> str | None:
        """Tell why the log of the same server does not go on at a position."""
        number, offset = unpack_position(position)
        if number not in files:
            first, last = min(files), max(files)
            return f"binlog file {number} is gone, there are {first} to {last}: purged, reset or another log"
        if offset > files[number].size:
            size = files[number].size
            return f"binlog file {files[number].name} ends at {size}, before {offset}: reset or another log"
        if birth is None or birth.file < min(files):
            return None  # purged in due course: nothing is left to compare
        if birth.file not in files or self._created(here, files[birth.file].name) != birth.created:
            return f"binlog file {birth.file} is another one than was read: the log was reset"
        return None

    def _failover(
        self,
        connection: Connection[Any],
        here: Server,
        files: Mapping[int, LogFile],
        gtids: str | None,
        needed: str | None,
        before: str,
        reason: str,
    ) -> str | Failover:
        """Look whether the log at hand goes on where ours broke off; if not, say what is missing there."""
        if gtids is None or not executed.has_gtids(connection, here):
            return f"{reason}, and there are no GTIDs to compare"
        elsewhere = before != here.uuid
        must = needed if elsewhere and needed is not None else gtids
        if lacking := self._lacking(connection, here, must, wait=elsewhere):
            return f"{reason}, and it never executed {lacking}"
        if must != gtids:
            gtids = executed.executed_of(connection, here, gtids, must)
        file = executed.first_file_after(connection, here, files, gtids)
        if file is None:
            return f"{reason}, and its log of what follows {gtids} is purged"
        if not elsewhere and not executed.begins_behind(connection, here, file, gtids):
            return f"{reason}, and the same server may have given its GTIDs again"
        self._begun = Birth(here.uuid, file.number, self._created(here, file.name))
        history = History(pack_position(file.number, 4), (), gtids, here.uuid, needed)
        return Failover(
            history, f"{reason}; nothing is missing, it goes on at {format_position(history.position)}"
        )

    def _lacking(self, connection: Connection[Any], here: Server, gtids: str, *, wait: bool = True) -> str:
        """Give what the server has not executed; a replica is given time to apply what it has received."""
        lacking = executed.missing(connection, here, gtids)
        if not lacking or not wait:
            self._lacking_since = None
            return lacking
        self._lacking_since = self._lacking_since or time.monotonic()
        if time.monotonic() - self._lacking_since < APPLY_SECONDS:
            raise TransientError(f"server {here.uuid} has not executed {lacking} yet")
        self._lacking_since = None
        return lacking

    def open_log(
        self,
        epoch: int,
        position: int,
        unsettled: Sequence[UnsettledCommit],
        gtids: str | None = None,
        gtids_needed: str | None = None,
    ) -> MysqlLog:
        """Open the log behind `position`; transactions in `gtids` that come after it are passed over."""
        connection = self._connected()
        server = self._server_of(connection)
        if self._trusted not in (None, server.uuid):
            raise TransientError(f"the address leads to server {server.uuid} now, not to {self._trusted}")
        number, offset = unpack_position(position)
        with driver_errors("looking at the binary log"):
            files = log_files(connection)
            self._journal.create(connection)
            writable = self._journal.is_writable(connection)
        if number not in files:
            raise TransientError(f"the server has no log at {format_position(position)} any more")
        with driver_errors("asking for GTIDs"):
            if gtids is None:
                gtids, gtids_needed = self._executed_at(connection, server, files[number].name, offset), None
        if writable:
            birth = Birth(server.uuid, number, self._created(server, files[number].name))
            with driver_errors("writing down the log file"):
                self._journal.note_birth(connection, birth)
                self._journal.note_again(connection)
            self._begun = None
        file = files[number].name
        self._reader = self._open(server, writable, file, epoch, position, gtids, gtids_needed)
        return self._reader

    def _open(
        self,
        server: Server,
        writable: bool,
        file: str,
        epoch: int,
        position: int,
        gtids: str | None,
        needed: str | None,
    ) -> MysqlLog:
        side = self._connect_to(server)
        try:
            captured = self._captured(side, server)
            offset = unpack_position(position)[1]
            with driver_errors("asking for GTIDs"):
                kept = (
                    None
                    if gtids is None
                    else executed.gtids_at(side, server, gtids, needed, file, offset, may_be_ahead=epoch > 1)
                )  # only a failover begins an epoch at a place before its set
            stream = BinlogStream(
                self._connect_to(server, replication=True), server, file, offset,
                replica_id(self._config.name),
            )  # fmt: skip
        except BaseException:
            close(side)
            raise
        buffer = LogBuffer(epoch, position, captured, kept)
        return MysqlLog(epoch, buffer, stream, side, server, self._journal, writable=writable)

    def open_tables(self) -> MysqlTables:
        """Open connections for dumps; low watermarks follow the log reader that was opened last."""
        return MysqlTables(self._connect, self._journal, self._tables, self._landmark)

    def holds_any(self, columns: Sequence[str]) -> str:
        """Give the predicate that is true for rows in which one of these columns is not null."""
        return " OR ".join(f"{quote(column)} IS NOT NULL" for column in columns)

    def close(self) -> None:
        """Let go of the sessions; never raises."""
        close(self._session)
        close(self._watching)
        self._session = self._watching = None

    def _landmark(self) -> Landmark | None:
        return None if self._reader is None else self._reader.landmark

    def _executed_at(self, connection: Connection[Any], server: Server, file: str, offset: int) -> str | None:
        if not executed.has_gtids(connection, server):
            return None
        stream = self._connect_to(server, replication=True)
        return executed.executed_at(connection, server, stream, file, offset)

    def _captured(self, side: Connection[Any], server: Server) -> Captured:
        def noted(table: TableName) -> Mapping[str, NotedColumn]:
            with driver_errors(f"looking up {table}"):
                return catalog.noted_columns(side, table)

        def layout(table: TableName) -> Mapped | None:
            with driver_errors(f"looking up {table}"):
                return catalog.layout_of(side, table, self._tables)

        with driver_errors("listing the tables"):
            tables = {facts.table for facts in catalog.find_tables(side, self._config)}
        return Captured(
            self._config, self._tables, tables, noted, layout,
            mariadb=server.mariadb, lower_case=server.lower_case,
        )  # fmt: skip

    def _created(self, server: Server, file: str) -> int:
        created = created_at(self._connect_to(server, replication=True), server, file)
        if created is None:
            raise TransientError(f"binlog file {file} does not begin with a format description")
        return created

    def _server_of(self, connection: Connection[Any]) -> Server:
        """Ask once which server it is; again when the session was lost, as it may be another one then."""
        found = self._found
        if found is None:
            with driver_errors("asking for the version"):
                found = self._found = find_server(connection)
        return found

    def _connected(self) -> Connection[Any]:
        """Give the session, opened again where it was lost; then the server may be another one."""
        if self._session is not None and not _alive(self._session):
            close(self._session)  # not the one of `look`, which another thread may be using
            self._session = None
        if self._session is None:
            self._session = self._connect()
            self._found = None
        return self._session

    def _connect_to(self, server: Server, *, replication: bool = False) -> Connection[Any]:
        """Connect to the very server, to which the address may no longer lead."""
        connection = self._connect(replication=replication)
        try:
            with driver_errors("asking which server this is"):
                found = find_server(connection)
            if found.uuid != server.uuid:
                raise TransientError(f"the address leads to server {found.uuid} now, not to {server.uuid}")
        except BaseException:
            close(connection)
            raise
        return connection

    def _connect(self, replication: bool = False) -> Connection[Any]:
        name = f"deltatide {self._config.name}"
        return connect(self._config.url.get_secret_value(), name, replication=replication)


def _alive(session: Connection[Any]) -> bool:
    try:
        with driver_errors("asking the session"):
            return row(session, "SELECT 1") is not None
    except Exception:
        return False
