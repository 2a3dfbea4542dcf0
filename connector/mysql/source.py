"""A MySQL or MariaDB server as a source; implements `connector.source.Source`.

Ties the other modules together. Connects on first use. One session runs all the small queries; the log reader
and each table reader have connections of their own. MySQL or MariaDB is detected automatically.

Identity: the id in ``deltatide.watermark``, which replicas share; without that table, MySQL's server_uuid, or
MariaDB's server id and GTID domain. MySQL's GTIDs prove a shared history without it.

A position is a file and offset in one server's log. Opening the log checks that the server is still the same,
and so does each connection that must lead to it. The landing zone's id is written only over the session on
which the server was identified as its database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

from pymysql.connections import Connection

from connector.config import SourceConfig, TableConfig
from connector.errors import TransientError
from connector.landing.manifest import Manifest, SourceIdentity
from connector.logged_table import ColumnLook, LoggedTable, Positions
from connector.mysql import catalog, failover, log_identity, preflight
from connector.mysql.catalog_fingerprint import Fingerprint
from connector.mysql.connection import close, connect, driver_errors, parse_url, quote
from connector.mysql.definitions.layouts import Definitions, layouts_of
from connector.mysql.definitions.log_layouts import captured_schemas
from connector.mysql.dump import MysqlTables
from connector.mysql.log.buffer import LogBuffer
from connector.mysql.log.reader import MysqlLogReader, ReaderProgress
from connector.mysql.log.schema_cache import captures
from connector.mysql.log.stream import BinlogStream, created_at, replica_id
from connector.mysql.log.transaction import OnePhaseCommits, ShownByLog
from connector.mysql.log.visibility import first_barrier
from connector.mysql.server import (
    LogFile,
    Server,
    ServerSession,
    boundary_of,
    end_of_log,
    engine_lsn,
    ensure_logging,
    find_server,
    format_binlog_position,
    log_files,
    position_of,
)
from connector.mysql.state_table import RecordedFile, StateTable
from connector.mysql.table_ids import TableIds
from connector.position import Position, pack_binlog_position, unpack_binlog_position
from connector.schema import KnownTables, TableName
from connector.source import (
    CatalogSnapshot,
    Failover,
    Finding,
    PreparedSource,
    ResumePoint,
    TableListing,
    UnfitTable,
    UnloggedChange,
)

APPLY_SECONDS = 30.0
"""A newly promoted replica may still be applying what it has received; once done, it lacks nothing."""


class MysqlSource:
    """One server. Used by one thread, except `open_tables` and `check_catalog`."""

    keeps_column_order = False

    def __init__(self, config: SourceConfig, tables: Mapping[TableName, TableConfig]) -> None:
        self._config, self._tables = config, tables
        self._state_table = StateTable(config.name)
        self._session = ServerSession(self._connect)
        self._watching = ServerSession(self._connect)
        self._checking, self._definitions = Lock(), Definitions()
        self._reader: MysqlLogReader | None = None
        self._begun: RecordedFile | None = None
        self._trusted: str | None = None
        self._lacking_since: float | None = None
        self._comparison, self._file_begins = failover.Comparison(), failover.Comparison()
        self._ids, self._cut_off, self._resume_gtids = TableIds(), set[Position](), failover.ResumeGtids()
        self._listed: set[TableName] = set()  # with those that a RENAME hides while the log is being opened
        self._prepared: dict[str, set[TableName]] = {}
        self._one_phase, self._shown = OnePhaseCommits(), ShownByLog()
        self._was_durable = True  # at each catalog check: settings changed at run time are gone after a crash

    def ensure_logging(self) -> None:
        """Raise `LogOffError` if the server writes no log."""
        connection = self._session.get()
        with driver_errors("checking whether the server writes a log"):
            ensure_logging(connection, self._session.server)

    def reconfigure(self, config: SourceConfig, tables: Mapping[TableName, TableConfig]) -> None:
        """Change which tables are captured."""
        self._config, self._tables = config, tables

    def check(self) -> list[Finding]:
        """Check and report every precondition; raises only if the server can't be reached."""
        connection = self._session.get()
        with driver_errors("checking the database"):
            server, own, known = self._session.server, self._state_table, self._definitions
            connect = lambda: self._connect(replication=True)  # noqa: E731
            return preflight.check(connection, connect, server, self._config, self._tables, own, known)

    def identity(self, landed: Manifest | None = None) -> SourceIdentity:
        """Return the database's identity: that of `landed` if it was provably read from here."""
        connection, server = self._session.get(), self._session.server
        with driver_errors("reading the identity"):
            shared = self._state_table.identity(connection)
            if landed is not None and failover.is_known(connection, server, landed, shared):
                shared = self._state_table.landed_id = landed.source.system_id
                self._session.note_checked()
        return SourceIdentity(
            name=self._config.name,
            kind="mariadb" if server.mariadb else "mysql",
            system_id=shared or server.uuid,
            database=parse_url(self._config.url.get_secret_value())["database"] or "",
            version=server.version,
        )

    def tables(self, among: Collection[TableName] | None = None) -> TableListing:
        """List the configured tables."""
        connection = self._session.get()
        with driver_errors("listing the tables"):
            busy: set[TableName] = set()
            found = catalog.find_tables(connection, self._config, busy)
            named = [t for t in found if among is None or t.table in among]
            self._listed |= {t.table for t in named}
            known, server = self._definitions, self._session.server
            layouts = layouts_of(known, connection, server, named, self._tables, busy, self._shown)
        unfit = [x.problem for x in layouts if x.problem is not None]
        busy &= {t.table for t in named}
        return TableListing([x.schema for x in layouts if x.schema is not None], unfit, frozenset(busy))

    def evict_former_agent(self) -> None:
        """Do nothing: any number of sessions may read the log."""

    def prepare(self) -> PreparedSource:
        """Create our own small table if allowed. The log already has all tables."""
        connection = self._checked()
        with driver_errors("creating deltatide.watermark"):
            self._state_table.create(connection)
        return PreparedSource()

    def check_catalog(self, known: Mapping[TableName, str] | None = None) -> CatalogSnapshot:
        """Check the tables, in a session of its own."""
        with self._checking:  # the loop checks too, when it starts capturing a table
            return self._check_catalog(known or {})

    def look_at_columns(self, tables: Collection[TableName]) -> ColumnLook:
        """Return nothing: the log tells which columns are renamed."""
        return ColumnLook()

    def _check_catalog(self, known: Mapping[TableName, str]) -> CatalogSnapshot:
        connection = self._watching.get()
        with driver_errors("reading the catalog"):
            server = find_server(connection)
            if self._trusted not in (None, server.uuid):
                self._watching.close()
                raise TransientError("the catalog session is on another server than the log")
            self._was_durable = self._was_durable and preflight.is_durable(connection)
            begun = position_of(*end_of_log(connection, server))
            busy: set[TableName] = set()  # locked by others for long; a later check examines them
            found = catalog.find_tables(connection, self._config, busy)
            self._definitions.keep_only({facts.table for facts in found})
            definitions, shown = self._definitions, self._shown
            layouts = layouts_of(definitions, connection, server, found, self._tables, busy, shown)
            fit = [x.table for x in layouts if x.schema is not None]
            before = {t: Fingerprint.parse(known[t]) if t in known else Fingerprint() for t in fit}
            reader = self._reader
            if reader is not None and reader.progress.server != server.uuid:
                reader = None  # its positions are in another server's log
            versioned = {facts.table for facts in found if facts.kind == "SYSTEM VERSIONED"} | busy
            seen = self._ids.judge(connection, server, before, reader, versioned)
            position = position_of(*end_of_log(connection, server))
        fingerprints = {table: str(fingerprint) for table, fingerprint in seen.items()}
        unfit = {p.table: UnfitTable(p.reason, p.hint or "") for x in layouts if (p := x.problem) is not None}
        existing = frozenset(facts.table for facts in found)
        comments = {x.table: x.comments for x in layouts if x.comments is not None and not x.comments.empty}
        traits = {x.table: x.traits for x in layouts if x.traits is not None and server.mariadb}
        return CatalogSnapshot(
            fingerprints, position, existing, unfit, busy=frozenset(busy), begun=begun, comments=comments,
            traits=traits,
        )  # fmt: skip

    def unlogged(self, before: str, now: str) -> UnloggedChange | None:
        """Compare two fingerprints of a table: return what may have changed rows without row events."""
        changed = Fingerprint.parse(now).differs(Fingerprint.parse(before))
        return UnloggedChange("it changed without row events in the log") if changed else None

    def remember(self, before: str | None, now: str) -> str:
        """Return the current fingerprint: nothing of an earlier one still counts."""
        return now

    def contradicted_by_log(
        self, known: Mapping[TableName, str], logged: Sequence[LoggedTable], repaired_upto: Positions
    ) -> dict[TableName, str]:
        """Return none: the log names every table correctly."""
        return {}

    def take_xid_barrier(self) -> None:
        """Take none: DDL waits for the transactions that use its table, and the log has the rest."""

    def position_past_barrier(self, barrier: int) -> None:
        """Return None: no barrier is ever taken."""

    def begin_log(self, *, fresh: bool, stopping: Callable[[], bool] = lambda: False) -> ResumePoint:
        """Begin at the end of the log; the server keeps its log anyway."""
        self._prepared.clear()  # an id that is known from before may have been used again in log never read
        connection, server = self._checked(), self._session.server
        with driver_errors("reading the end of the log"):
            name, offset = end_of_log(connection, server)
            position = boundary_of(name, offset)
            gtids = self._executed_at(connection, server, name, offset)
            barrier = first_barrier(connection, server, self._state_table)
            self._one_phase.note_barrier(server.uuid, position, barrier)
        created = self._created(server, name, checked=True)  # else nothing there can be relied on
        self._begun = recorded_file = RecordedFile(server.uuid, position >> 32, created)
        self._trusted = server.uuid
        last_commit = log_identity.of_file(recorded_file.file, recorded_file.created)
        return ResumePoint(position, (), gtids, server.uuid, last_commit=last_commit)

    def check_resumable(self, resume_point: ResumePoint) -> str | Failover | None:
        """Return why the log after `resume_point` is incomplete, the failover that continues it, or None."""
        connection = self._session.get()
        here = self._session.server
        with driver_errors("reading the list of binlog files"):
            files = log_files(connection)
            recorded_file = self._begun or self._state_table.recorded_file(connection)
        before = resume_point.server or (recorded_file.server if recorded_file else here.uuid)
        if before != here.uuid:
            reason = f"the log is server {here.uuid}'s, not {before}'s"
        else:
            ours = recorded_file if recorded_file and recorded_file.server == here.uuid else None
            gone = partial(log_identity.why_position_gone, files, resume_point.position, ours)
            reason = self._file_begins.attempt(lambda: gone(partial(self._created, here)) or "")
        with driver_errors("comparing GTIDs"):
            unproven = resume_point.gtids if recorded_file is None and not reason else None
            if unproven and (lacking := self._missing_gtids(connection, here, unproven)):
                reason = f"server {here.uuid} has not executed {lacking}: the log was reset"
            found: str | Failover | None
            if not reason:
                found = self._resume_gtids.why_unknown(resume_point) or self._difference(
                    here, files, resume_point
                )
                found = found or self._why_log_unreadable(here, files, resume_point)
            elif before == here.uuid:
                found = reason  # whatever its GTIDs say: after a reset it gives the same ones again
            else:
                found = self._decide_failover(connection, here, files, resume_point, reason)
        self._trusted = here.uuid
        if not isinstance(found, str):
            self._session.note_checked()
        return found

    def _difference(self, here: Server, files: Mapping[int, LogFile], known: ResumePoint) -> str | None:
        """Return why log or tables are not those of which `known` was read; GTIDs can't disprove that."""
        last = known.last_commit
        if last is not None and (reason := log_identity.why_set_back(last, engine_lsn(self._session.get()))):
            return reason
        if last is None or unpack_binlog_position(last.position)[0] not in files:
            return None
        return log_identity.why_different(self._stream_of(here, files, last.position), last)

    def _why_log_unreadable(self, here: Server, files: Mapping[int, LogFile], at: ResumePoint) -> str | None:
        """Return why the log after `at` can't be read, if a reader has already failed there."""
        torn = self._reader and self._reader.unreadable_at
        if not torn or torn < at.position or unpack_binlog_position(torn)[0] not in files:
            return None
        return log_identity.unreadable(self._stream_of(here, files, torn, checked=True), torn)

    def _stream_of(
        self, here: Server, files: Mapping[int, LogFile], position: int, *, checked: bool = False
    ) -> BinlogStream:
        """Open the log at a position, up to its end."""
        number, offset = unpack_binlog_position(position)
        connection = self._connect_to(here, replication=True)
        return BinlogStream(connection, here, files[number].name, offset, 0, checked=checked)

    def _decide_failover(
        self,
        connection: Connection[Any],
        here: Server,
        files: Mapping[int, LogFile],
        known: ResumePoint,
        reason: str,
    ) -> str | Failover:
        """Check whether another server's log continues ours; if not, return what is missing."""
        found = self._comparison.attempt(
            lambda: failover.continuation(
                connection,
                here,
                files,
                known,
                missing_gtids=lambda gtids: self._missing_gtids(connection, here, gtids),
                open_file=lambda file: self._stream_of(here, files, pack_binlog_position(file.number, 4)),
                captured=partial(captures, self._config),
            )
        )
        if isinstance(found, str):
            return f"{reason}, and {found}"
        file, resume_point = found
        self._begun = RecordedFile(here.uuid, file.number, self._created(here, file.name))
        begins = format_binlog_position(resume_point.position)
        return Failover(resume_point, f"{reason}; nothing is missing, and it continues at {begins}")

    def _missing_gtids(self, connection: Connection[Any], here: Server, gtids: str) -> str:
        """Return what the server has not executed, allowing a replica time to apply what it has received."""
        lacking = failover.missing(connection, here, gtids)
        now = time.monotonic()
        since = self._lacking_since or now
        self._lacking_since = since if lacking and now - since < APPLY_SECONDS else None
        if self._lacking_since is not None:
            raise TransientError(f"server {here.uuid} has not executed {lacking} yet")
        return lacking

    def open_log(
        self, epoch: int, resume_point: ResumePoint, known: KnownTables | None = None
    ) -> MysqlLogReader:
        """Open the log after a resume point; skips later transactions that are in its `gtids`."""
        connection, server = self._checked(), self._session.server
        if self._trusted not in (None, server.uuid):
            raise TransientError(f"source.url points to server {server.uuid} now, not to {self._trusted}")
        number, offset = unpack_binlog_position(resume_point.position)
        with driver_errors("reading the list of binlog files"):
            files = log_files(connection)
            self._state_table.create(connection)
            writable = self._state_table.is_writable(connection)
        if number not in files:
            raise TransientError(
                f"the server no longer has the log at {format_binlog_position(resume_point.position)}"
            )
        with driver_errors("reading GTIDs"):
            if resume_point.gtids is None:
                gtids = self._executed_at(connection, server, files[number].name, offset)
                resume_point = replace(resume_point, gtids=gtids)
        if writable:
            recorded_file = RecordedFile(server.uuid, number, self._created(server, files[number].name))
            with driver_errors("recording the log file"):
                recorded = self._state_table.record_file(connection, recorded_file)
            self._begun = None if recorded else self._begun
        file = files[number].name
        known = known or KnownTables({}, {})
        self._reader = self._open(server, file, epoch, resume_point, known, writable=writable)
        return self._reader

    def _open(
        self,
        server: Server,
        file: str,
        epoch: int,
        resume_point: ResumePoint,
        known: KnownTables,
        *,
        writable: bool,
    ) -> MysqlLogReader:
        side = self._connect_to(server)
        try:
            captured = captured_schemas(side, server, self._config, self._tables, self._listed, known)
            offset = unpack_binlog_position(resume_point.position)[1]
            with driver_errors("reading GTIDs"):
                # Only a failover begins an epoch at a position before the end of its set.
                executed = partial(self._executed_at, side, server, file, offset)
                kept = self._resume_gtids.resolve(
                    side, server, resume_point, file, may_be_ahead=epoch > 1, executed=executed
                )
            with driver_errors("checking the durability settings"):
                survives = self._was_durable and preflight.survives_crashes(side, server)
            stream = BinlogStream(
                self._connect_to(server, replication=True), server, file, offset,
                replica_id(self._config.name), checked=True,
            )  # fmt: skip
        except BaseException:
            close(side)
            raise
        self._ids.statements.begin(epoch, resume_point.position if server.mariadb else None)
        self._one_phase.begin(epoch, resume_point.position, server.uuid)
        self._shown.begin(server.uuid)
        buffer = LogBuffer(
            epoch, resume_point.position, captured, kept, self._ids.statements, self._cut_off,
            self._prepared, self._one_phase, self._shown, survives_crashes=survives,
        )  # fmt: skip
        return MysqlLogReader(epoch, buffer, stream, side, server, self._state_table, writable=writable)

    def open_tables(self) -> MysqlTables:
        """Open connections for dumps; low watermarks follow the log reader that was opened last."""
        return MysqlTables(
            self._connect,
            self._state_table,
            lambda: self._tables,
            self._log_progress,
            self._config.predicate_seconds,
        )

    def any_not_null(self, columns: Sequence[str]) -> str:
        """Return the predicate that is true for rows where any of these columns is not null."""
        return " OR ".join(f"{quote(column)} IS NOT NULL" for column in columns)

    def close(self) -> None:
        """Close the sessions; never raises."""
        self._session.close()
        self._watching.close()

    def _log_progress(self) -> ReaderProgress | None:
        return None if self._reader is None else self._reader.progress

    def _executed_at(self, connection: Connection[Any], server: Server, file: str, offset: int) -> str | None:
        if not failover.has_gtids(connection, server):
            return None
        stream = self._connect_to(server, replication=True)
        return failover.executed_at(connection, server, stream, file, offset)

    def _created(self, server: Server, file: str, *, checked: bool = False) -> int:
        created = created_at(self._connect_to(server, replication=True), server, file, checked=checked)
        if created is None:
            raise TransientError(f"binlog file {file} does not start with a format description")
        return created

    def _checked(self) -> Connection[Any]:
        """Return the session; if there is a landing zone already, its server has been checked."""
        return self._session.get() if self._state_table.landed_id is None else self._session.get_checked()

    def _connect_to(self, server: Server, *, replication: bool = False) -> Connection[Any]:
        """Connect to this very server, to which the address may no longer lead."""
        connection = self._connect(replication=replication)
        try:
            with driver_errors("identifying the server"):
                found = find_server(connection)
            if found.uuid != server.uuid:
                self._session.close()  # else it would name the former server for as long as it lives
                raise TransientError(f"source.url points to server {found.uuid} now, not to {server.uuid}")
        except BaseException:
            close(connection)
            raise
        return connection

    def _connect(self, replication: bool = False) -> Connection[Any]:
        name = f"deltatide {self._config.name}"
        return connect(self._config.url.get_secret_value(), name, replication=replication)
