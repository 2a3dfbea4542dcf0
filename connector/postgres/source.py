"""A PostgreSQL database as a source; implements `connector.source.Source`. Ties the other modules together.

Connects on first use. One session runs the small queries, another one checks the catalog; the log reader and
each table reader have connections of their own.

Invariant: an address may lead to several servers, but everything read alongside the log comes from its
server. `prepare` and `tables` use whatever primary it leads to; `begin_log` and `check_resumable` choose one,
and everything after them uses only its timeline. The log is opened only while the server process that proved
it lives, and after a gap begun only over the session that answered `identity`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from psycopg2.extensions import connection as Connection

from connector.config import SourceConfig, TableConfig
from connector.errors import NotYetError, PreconditionError, TableError, TransientError
from connector.landing.manifest import InvisibleCommit, Manifest, SourceIdentity
from connector.logged_table import ColumnLook
from connector.position import format_lsn
from connector.postgres import catalog_fingerprint, log_identity, publication, slot
from connector.postgres.catalog import UNKNOWN, Catalog, Types, layouts_of, types_in
from connector.postgres.codec.pgoutput import Relation
from connector.postgres.connection import close, connect, driver_errors, one_row, one_snapshot
from connector.postgres.definitions.moved_partitions import DECIDES_ANEW, MovedPartitions
from connector.postgres.definitions.refusals import TableLayout
from connector.postgres.definitions.table_facts import (
    TableFacts,
    end_of_log,
    find_tables,
    look_at_columns,
    snapshot_of,
)
from connector.postgres.dump import PostgresTables
from connector.postgres.log import contradictions
from connector.postgres.log.buffer import LogBuffer
from connector.postgres.log.reader import BULK_BYTES, PostgresLogReader
from connector.postgres.predicate import any_not_null
from connector.postgres.preflight import check
from connector.postgres.primary_session import PrimarySession, Process, connect_to_primary
from connector.postgres.unpublished import Unpublished
from connector.postgres.visibility import Visibility
from connector.schema import KnownTables, TableName
from connector.source import (
    CatalogSnapshot,
    Failover,
    Finding,
    PreparedSource,
    ResumePoint,
    TableListing,
)

log = logging.getLogger(__name__)

DECODE_ATTEMPTS, DECODE_SECONDS = 3, 10.0
"""How often, and for how long, decoding must fail after one manifest before it is a gap."""

WAITING_SECONDS = 5.0
"""How long a transaction may keep dumps from starting before that is logged."""


@dataclass
class _Failures:
    """How often decoding of the log after a manifest's position failed, `since` when (monotonic seconds)."""

    position: int
    since: float
    count: int = 0


class PostgresSource:
    """One database, its publication, its slot.

    Used by one thread, except `open_tables` and `check_catalog`.
    """

    keeps_column_order = True

    def __init__(
        self, config: SourceConfig, tables: Mapping[TableName, TableConfig], *, bulk_bytes: int = BULK_BYTES
    ) -> None:
        self._config, self._tables, self._bulk_bytes = config, tables, bulk_bytes
        self._session = PrimarySession(lambda: connect_to_primary(self._connect))
        self._watching = PrimarySession(lambda: self._connect_to_catalog())
        self._visibility: Visibility | None = None
        self._reader: PostgresLogReader | None = None
        self._checking = threading.Lock()
        self._unpublished, self._facts = Unpublished({}), list[TableFacts]()
        self._waiting: dict[int, float] = {}
        self._identified: Connection | None = None
        self._proof: Process | None = None
        self._proof_before: Process | None = None
        self._timeline: str | None = None
        self._types, self._former_types = Types(), Types()
        self._failures, self._readers = _Failures(0, 0.0), set[int]()
        self._moved = MovedPartitions()
        self._kept_slot = False  # standbys kept the one that was dropped, and none is created yet

    def ensure_logging(self) -> None:
        """Do nothing: the server always logs, and does not start with too little logging for its slots."""

    def reconfigure(self, config: SourceConfig, tables: Mapping[TableName, TableConfig]) -> None:
        """Change which tables are captured."""
        self._config, self._tables = config, tables

    def check(self) -> list[Finding]:
        """Check and report every precondition; raises only if the database can't be reached.

        Before a log has been opened, a standby is a finding.
        """
        connection = self._connect() if self._timeline is None else self._connect_to_log(replication=False)
        with closing(connection), driver_errors("checking the database"):
            return check(connection, lambda: self._connect(replication=True), self._config, self._tables)

    def identity(self, landed: Manifest | None = None) -> SourceIdentity:
        """Return the database's identity, by the system identifier, which physical copies share."""
        self._identified = connection = self._session.get()
        with driver_errors("reading the system identifier"):
            row = one_row(
                connection,
                "SELECT system_identifier::text, current_database()::text, current_setting('server_version')"
                " FROM pg_control_system()",
            )
        assert row is not None
        return SourceIdentity(
            name=self._config.name, kind="postgres", system_id=row[0], database=row[1],
            slot=self._config.slot, publication=self._config.publication, version=row[2],
        )  # fmt: skip

    def tables(self, among: Collection[TableName] | None = None) -> TableListing:
        """List the configured tables."""
        connection = self._session.get()
        with driver_errors("listing the tables"), one_snapshot(connection):
            found = find_tables(connection, self._config)
            named = [t for t in found if among is None or t.table in among]
            layouts = layouts_of(Catalog(connection, self._tables, self._types), named)
        unfit = [TableError(table, x.reason, hint=x.hint) for table, x in layouts if x.schema is None]
        return TableListing([x.schema for _, x in layouts if x.schema is not None], unfit)

    def evict_former_agent(self) -> None:
        """End the server process that streams the slot, or a copy of it, to the former agent."""
        with driver_errors(f"ending the session that reads slot {self._config.slot}"):
            slot.end_readers(self._session.get(), self._config.slot)

    def prepare(self) -> PreparedSource:
        """Create or extend the publication; return what was added, and the xid barrier right after."""
        connection = self._session.get()
        with driver_errors(f"preparing publication {self._config.publication}"):
            slot.wait_until_released(connection, self._config.slot, self._readers)
            added = self._publish(connection)
            return PreparedSource(tuple(added), _barrier(connection))

    def _publish(self, connection: Connection) -> list[TableName]:
        with one_snapshot(connection):
            self._facts = facts = find_tables(connection, self._config)
            layouts = layouts_of(Catalog(connection, self._tables, self._types), facts)
        fit = {table for table, layout in layouts if layout.schema is not None}
        found = [t for t in facts if t.table in fit]
        names, partitioned = [t.table for t in found], any(t.partitioned for t in found)
        fixed = publication.fix(connection, self._config.publication, names, partitioned=partitioned)
        self._unpublished = Unpublished(fixed.kept_out)
        return fixed.added

    def check_catalog(self, known: Mapping[TableName, str] | None = None) -> CatalogSnapshot:
        """Check the publication's tables and partitions, in a session of its own."""
        self._former_types |= types_in(*(known or {}).values())
        with self._checking, driver_errors("reading the catalog"):
            connection = self._watching.get(self._timeline)
            unfit = self._unpublished.still(connection, self._config.publication)
            found = catalog_fingerprint.take_snapshot(connection, self._config, self._tables, known, unfit)
            if connection.server_version >= DECIDES_ANEW:
                return found
            return self._moved.hold_back(found, known or {}, self._reader.position if self._reader else 0)

    def look_at_columns(self, tables: Collection[TableName]) -> ColumnLook:
        """Look at the columns of these tables alone, in the same session."""
        with self._checking, driver_errors("reading the columns of tables"):
            connection = self._watching.get(self._timeline)
            return look_at_columns(connection, self._config.publication, tables)

    unlogged = staticmethod(catalog_fingerprint.unlogged)
    remember = staticmethod(catalog_fingerprint.remember)
    contradicted_by_log = staticmethod(contradictions.contradicted_by_log)

    def take_xid_barrier(self) -> int:
        """Take an xid, above those of all transactions that are running now."""
        connection = self._beside_log()
        with driver_errors("assigning a transaction id"):
            (barrier,) = _barrier(connection)
        return barrier.xid

    def position_past_barrier(self, barrier: int) -> int | None:
        """Return the end of the log once a snapshot shows that all xids below the barrier have ended."""
        connection = self._beside_log()
        with driver_errors("listing running transactions"):
            snapshot, end = snapshot_of(connection), end_of_log(connection)
        if snapshot.xmin < barrier:
            self._report_waiting(barrier)
            return None
        self._waiting.pop(barrier, None)
        return end

    def _report_waiting(self, barrier: int) -> None:
        """Log once that a transaction has kept dumps from starting for some time."""
        if time.monotonic() > self._waiting.setdefault(barrier, time.monotonic() + WAITING_SECONDS):
            self._waiting[barrier] = math.inf
            log.warning(
                "dumps wait for transactions with an id below %s: SELECT pid, xact_start, query FROM"
                " pg_stat_activity WHERE backend_xid IS NOT NULL; SELECT * FROM pg_prepared_xacts",
                barrier,
            )

    def begin_log(self, *, fresh: bool, stopping: Callable[[], bool] = lambda: False) -> ResumePoint:
        """Create the slot, or adopt an unused one; return its position and the xid barrier right after."""
        connection, name = self._primary(), self._config.slot
        if fresh and self._identified not in (None, connection):
            raise TransientError("the session was lost since its server was identified")
        with driver_errors(f"creating slot {name}"):
            found = slot.find_slot(connection, name)
            if found and (misfit := found.misfit(connection.info.dbname)):
                raise PreconditionError(misfit, hint="set source.slot to another name, or drop that slot")
            found = slot.wait_until_released(connection, name, self._readers)
            self._publish(connection)  # a slot older than its publication can't be read
            self._reader, self._failures = None, _Failures(0, 0.0)
            if found and not fresh and not found.lost and found.confirmed is not None:
                log.info("adopted slot %s", name)
                position = found.confirmed
            else:
                if connection.server_version < DECIDES_ANEW:
                    self.check_catalog()  # the partitions that precede the slot need no log opened anew
                kept = self._kept_slot = slot.drop_slot(connection, name) or self._kept_slot
                self._readers.add(connection.info.backend_pid)  # if we lose it, it goes on waiting
                position = slot.create_slot(connection, name, stopping, self._connect_to_log, kept)
                self._kept_slot = False
            self._proof, self._moved.opens_at = self._session.process, position
            return ResumePoint(position, _barrier(connection), server=self._timeline)

    def check_resumable(self, resume_point: ResumePoint) -> str | Failover | None:
        """Return why the log after `resume_point` is incomplete or another log, or a failover; else None.

        A promoted standby continues the log that was read, if it has all of it.
        """
        if (undecodable := self._undecodable(resume_point.position)) is not None:
            return undecodable
        connection, name = self._primary(), self._config.slot
        with driver_errors(f"reading slot {name}"):
            database, position = connection.info.dbname, resume_point.position
            found = slot.check_resumable(connection, name, database, position, self._readers)
            if isinstance(found, str):
                return found
            self._proof, self._moved.opens_at = self._session.process, position
            reason = self._left_timeline(resume_point) or log_identity.why_different(
                connection,
                name,
                self._config.publication,
                found.confirmed or 0,
                resume_point.position,
                resume_point.last_commit,
            )
            if reason or resume_point.server in (None, self._timeline):
                return reason
            before = resume_point.server
            went_on = f"timeline {self._timeline} of the server continues where {before} was read to"
            return Failover(replace(resume_point, server=self._timeline), went_on, same_positions=True)

    def _undecodable(self, position: int) -> str | None:
        """Return why the server can't decode the log after a manifest, if it failed there repeatedly.

        Call it once per reader: each reader's failure is counted once.
        """
        if self._reader is None or self._reader.unreadable is None:
            return None
        reason, self._reader.unreadable = self._reader.unreadable, None
        now = time.monotonic()
        if self._failures.position != position:
            self._failures = _Failures(position, now)
        self._failures.count += 1
        lasting = now - self._failures.since >= DECODE_SECONDS
        return reason if self._failures.count >= DECODE_ATTEMPTS and lasting else None

    def _left_timeline(self, resume_point: ResumePoint) -> str | None:
        """Return why the log on the server's timeline is not the log that was read, or None."""
        ours, theirs = resume_point.server, self._timeline
        if ours is None or theirs is None or ours == theirs:
            return None
        replication = self._connect_to_log(replication=True)
        try:
            end = log_identity.end_of_timeline(replication, ours, theirs)
        finally:
            close(replication)
        if end is not None and end >= resume_point.position:
            return None
        left = "does not come from" if end is None else f"left at {format_lsn(end)}"
        read = f"timeline {ours}, which was read to {format_lsn(resume_point.position)}"
        return f"the server is on timeline {theirs}, which {left} {read}"

    def open_log(
        self, epoch: int, resume_point: ResumePoint, known: KnownTables | None = None
    ) -> PostgresLogReader:
        """Open the log after a resume point, once the slot's previous user has released it.

        It is unbroken if one server process, which a crash ends, proved this log and the one before.
        """
        with driver_errors(f"opening slot {self._config.slot}"):
            slot.wait_until_released(self._beside_log(), self._config.slot, self._readers)
            invisible = _attainable(resume_point.not_yet_visible, self._beside_log())
        visibility = Visibility(resume_point.position, invisible)
        side = self._connect_to_log(replication=False)
        unbroken = self._proof is not None and self._proof == self._proof_before
        if not unbroken:
            self._types = {}  # oids may name other types after a restore or a crash
        catalog = Catalog(side, self._tables, self._types, self._former_types, self._facts)
        slot_name, publication = self._config.slot, self._config.publication
        try:
            buffer = LogBuffer(epoch, visibility, lambda *found: self._layout(catalog, *found))
            reader = PostgresLogReader(
                buffer, visibility, side, self._connect_to_log, slot_name, publication, self._bulk_bytes
            )
        except BaseException:
            close(side)
            raise
        try:
            self._require_proof()
        except BaseException:
            reader.close()
            raise
        reader.unbroken = unbroken
        self._visibility, self._reader, self._proof_before = visibility, reader, self._proof
        self._moved.opens_at = None
        return reader

    def _require_proof(self) -> None:
        """Raise `TransientError` unless the process that proved the log still answers on the session."""
        self._beside_log()
        if self._proof not in (None, self._session.process):
            raise TransientError("the server restarted while the log was being opened")

    def open_tables(self) -> PostgresTables:
        """Open a connection for dumps; low watermarks follow the log reader that was opened last."""
        return PostgresTables(
            lambda: self._connect_to_log(replication=False),
            lambda: self._tables,
            lambda: self._visibility,
            lambda: self._timeline,
            lambda: self._types,
            self._config.predicate_seconds,
        )

    any_not_null = staticmethod(any_not_null)

    def close(self) -> None:
        """Close the sessions; never raises."""
        self._session.close()
        self._watching.close()
        self._proof = self._proof_before = None

    def _layout(self, catalog: Catalog, relation: Relation, xid: int | None) -> TableLayout | None:
        """Return a relation's layout as transaction `xid` logged it; `NotYetError` if that is not visible."""
        table = TableName(relation.namespace, relation.name)
        if not self._config.captures(table):
            return None
        with driver_errors(f"looking up {table}"):
            try:
                layout = catalog.logged_layout(relation)
            except TableError as error:
                return TableLayout(None, error.reason, error.hint or "")
            types = [column.source_type for column in layout.schema.columns] if layout.schema else []
            if (UNKNOWN not in types and layout.as_logged) or xid is None:
                return layout
            if not catalog.shows(xid):
                raise NotYetError(f"transaction {xid}, which altered {table}, is not visible yet")
            return catalog.logged_layout(relation)  # it may have become visible just now

    def _primary(self) -> Connection:
        """Return the session; from now on, its server is the one to read from."""
        connection = self._session.get()
        self._timeline = self._session.timeline
        return connection

    def _beside_log(self) -> Connection:
        """Return the session, on the timeline of the log."""
        connection = self._session.get()
        self._require_timeline(self._session.timeline)
        return connection

    def _connect_to_log(self, replication: bool = False) -> Connection:
        """Open a connection to a server on the timeline of the log."""
        connection, _ = self._connect_beside_log(replication)
        self._readers.add(connection.info.backend_pid)
        return connection

    def _connect_beside_log(self, replication: bool = False) -> tuple[Connection, str]:
        connection, timeline = connect_to_primary(lambda: self._connect(replication))
        try:
            self._require_timeline(timeline)
        except TransientError:
            close(connection)
            raise
        return connection, timeline

    def _connect_to_catalog(self) -> tuple[Connection, str]:
        """Open a connection for catalog checks, with a short lock timeout."""
        connection, timeline = self._connect_beside_log()
        try:
            with driver_errors("limiting waits for locks"):
                limit = f"{catalog_fingerprint.LOCK_SECONDS}s"
                one_row(connection, f"SELECT set_config('lock_timeout', '{limit}', false)")
        except BaseException:
            close(connection)
            raise
        return connection, timeline

    def _require_timeline(self, now: str | None) -> None:
        """Raise `TransientError` unless the log's timeline is `now`; the session may be on either of them."""
        if self._timeline not in (None, now):
            self._session.expire()
            raise TransientError(f"the log is on timeline {now} now; a moment ago it was on {self._timeline}")

    def _connect(self, replication: bool = False) -> Connection:
        url, name = self._config.url.get_secret_value(), f"deltatide {self._config.name}"
        return connect(url, name, replication=replication)


def _attainable(
    invisible: Collection[InvisibleCommit], connection: Connection
) -> tuple[InvisibleCommit, ...]:
    """Lower a barrier that a crash or failover took back: everything running below it has ended by then."""
    commits = tuple(c for c in invisible if c.lsn)
    barrier = max((c.xid for c in invisible if not c.lsn), default=None)
    if barrier is None:
        return commits
    (now,) = _barrier(connection)
    return (*commits, InvisibleCommit(xid=min(barrier, now.xid), lsn=0))


def _barrier(connection: Connection) -> tuple[InvisibleCommit, ...]:
    """Take an xid as a barrier: every xid assigned before is lower (`connector.postgres.visibility`)."""
    row = one_row(connection, "SELECT pg_current_xact_id()::text")
    assert row is not None
    return (InvisibleCommit(xid=int(row[0]), lsn=0),)
