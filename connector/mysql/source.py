"""A MySQL or MariaDB server as a source; implements `connector.source.Source`. Ties the other files together.

Connects only when asked something. One session does all the small questions; the log reader and each table
reader have connections of their own. Which of the two servers it is, is found out.

Identity: the id in ``deltatide.watermark``, which replicas share, as a failover is a gap and not another
database; where that table can't be had, MySQL's server_uuid, or MariaDB's server id and GTID domain.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pymysql.connections import Connection

from connector.config import SourceConfig, TableConfig
from connector.errors import PreconditionError, TransientError
from connector.manifest import SourceIdentity, UnsettledCommit
from connector.mysql import catalog
from connector.mysql.buffer import LogBuffer
from connector.mysql.capturing import Captured, Mapped, NotedColumn
from connector.mysql.connection import close, connect, driver_errors, parse_url, quote, row
from connector.mysql.dump import MysqlTables
from connector.mysql.journal import Birth, Journal
from connector.mysql.preflight import check
from connector.mysql.reader import MysqlLog
from connector.mysql.segment import unpack_position
from connector.mysql.server import Server, end_of_log, find_server, format_position, log_files, position_of
from connector.mysql.stream import BinlogStream, created_at, replica_id
from connector.schema import TableName, TableSchema
from connector.source import Finding, History, Outlook, Prepared

log = logging.getLogger(__name__)


class MysqlSource:
    """One server. Used by one thread, but for `open_tables` and `look`."""

    def __init__(self, config: SourceConfig, tables: Mapping[str, TableConfig]) -> None:
        self._config, self._tables = config, tables
        self._journal = Journal(config.name)
        self._session: Connection[Any] | None = None
        self._watching: Connection[Any] | None = None
        self._found: Server | None = None
        self._reader: MysqlLog | None = None
        self._begun: Birth | None = None

    def check(self) -> list[Finding]:
        """Look at every precondition and report all; raises only when the server can't be reached."""
        connection = self._connected()
        with driver_errors("checking the database"):
            server, journal = self._server_of(connection), self._journal
            connect = lambda: self._connect(replication=True)  # noqa: E731
            return check(connection, connect, server, self._config, self._tables, journal)

    def identity(self) -> SourceIdentity:
        """Tell which database this is."""
        connection = self._connected()
        server = self._server_of(connection)
        with driver_errors("asking for the identity"):
            shared = self._journal.identity(connection)
        return SourceIdentity(
            name=self._config.name,
            kind="mariadb" if server.mariadb else "mysql",
            system_id=shared or server.uuid,
            database=parse_url(self._config.url.get_secret_value())["database"] or "",
            version=server.version,
        )

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
        if self._watching is not None and not _alive(self._watching):
            close(self._watching)
            self._watching = None
        self._watching = connection = self._watching or self._connect()
        with driver_errors("looking at the catalog"):
            untold = self._journal.untold(connection)
            found = catalog.find_tables(connection, self._config)
            layouts = catalog.layouts_of(connection, found, self._tables)
            position = position_of(*end_of_log(connection, self._server_of(connection)))
        seen = {str(x.table): untold.get(x.table, "") for x in layouts if x.schema is not None}
        return Outlook(seen, position)

    def untold(self, before: str, now: str) -> bool:
        """Tell whether rows may have come or gone untold between two fingerprints of one table."""
        return before != now

    def begin_history(self, *, fresh: bool) -> History:
        """Begin at the end of the log; the server keeps it by itself."""
        connection = self._connected()
        server = self._server_of(connection)
        with driver_errors("asking for the end of the log"):
            name, offset = end_of_log(connection, server)
        position = position_of(name, offset)
        self._begun = Birth(server.uuid, position >> 32, self._created(name))
        return History(position, ())

    def gap_after(self, position: int) -> str | None:
        """Tell why the log after `position` can no longer be read whole; None when it can."""
        connection = self._connected()
        server = self._server_of(connection)
        number, offset = unpack_position(position)
        with driver_errors("looking at the binary log"):
            files = log_files(connection)
            noted = self._journal.birth(connection)
        if number not in files:
            first, last = min(files), max(files)
            return f"binlog file {number} is gone, there are {first} to {last}: purged, reset or another log"
        if offset > files[number].size:
            size = files[number].size
            return f"binlog file {files[number].name} ends at {size}, before {offset}: reset or another log"
        birth = self._begun or noted
        if birth is None or birth.file < min(files):
            return None  # purged in due course: nothing is left to compare
        if birth.server != server.uuid:
            return f"the log is that of server {server.uuid}, not of {birth.server}"
        if birth.file not in files or self._created(files[birth.file].name) != birth.created:
            return f"binlog file {birth.file} is another one than was read: the log was reset"
        return None

    def open_log(self, epoch: int, position: int, unsettled: Sequence[UnsettledCommit]) -> MysqlLog:
        """Open the log behind `position`."""
        connection = self._connected()
        server = self._server_of(connection)
        number, offset = unpack_position(position)
        with driver_errors("looking at the binary log"):
            files = log_files(connection)
            writable = self._journal.identity(connection) is not None and self._journal.create(connection)
        if number not in files:
            raise TransientError(f"the server has no log at {format_position(position)} any more")
        if writable:
            birth = Birth(server.uuid, number, self._created(files[number].name))
            with driver_errors("writing down the log file"):
                self._journal.note_birth(connection, birth)
            self._begun = None
        side = self._connect()
        try:
            captured = self._captured(side, server)
            stream = BinlogStream(
                self._connect(replication=True), server, files[number].name, offset,
                replica_id(self._config.name),
            )  # fmt: skip
        except BaseException:
            close(side)
            raise
        buffer = LogBuffer(epoch, position, captured)
        self._reader = MysqlLog(epoch, buffer, stream, side, server, self._journal, writable=writable)
        return self._reader

    def open_tables(self) -> MysqlTables:
        """Open connections for dumps; low watermarks follow the log reader that was opened last."""
        return MysqlTables(self._connect, self._journal, self._tables, self._position)

    def holds_any(self, columns: Sequence[str]) -> str:
        """Give the predicate that is true for rows in which one of these columns is not null."""
        return " OR ".join(f"{quote(column)} IS NOT NULL" for column in columns)

    def close(self) -> None:
        """Let go of the sessions; never raises."""
        close(self._session)
        close(self._watching)
        self._session = self._watching = None

    def _position(self) -> int | None:
        return None if self._reader is None else self._reader.position

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

    def _created(self, file: str) -> int:
        created = created_at(self._connect(replication=True), self._server_of(self._connected()), file)
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

    def _connect(self, replication: bool = False) -> Connection[Any]:
        name = f"deltatide {self._config.name}"
        return connect(self._config.url.get_secret_value(), name, replication=replication)


def _alive(session: Connection[Any]) -> bool:
    try:
        with driver_errors("asking the session"):
            return row(session, "SELECT 1") is not None
    except Exception:
        return False
