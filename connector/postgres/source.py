"""A PostgreSQL database as a source; implements `connector.source.Source`. Ties the other files together.

Connects only when asked something. One session does all the small questions; the log reader and each table
reader have connections of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from psycopg2.extensions import connection as Connection

from connector.config import SourceConfig, TableConfig
from connector.errors import PreconditionError, TableError
from connector.manifest import Manifest, SourceIdentity, UnsettledCommit
from connector.postgres import publication, slot
from connector.postgres.buffer import LogBuffer
from connector.postgres.catalog import Catalog, Layout, find_tables, layouts_of
from connector.postgres.connection import close, connect, driver_errors, one_row, quote
from connector.postgres.dump import PostgresTables
from connector.postgres.log import BULK_BYTES, PostgresLog
from connector.postgres.messages import Relation
from connector.postgres.outlook import look, untold
from connector.postgres.preflight import check
from connector.schema import TableName, TableSchema
from connector.source import Finding, History, Outlook, Prepared
from connector.visibility import Snapshot, Visibility

log = logging.getLogger(__name__)


class PostgresSource:
    """One database, its publication and its slot. Used by one thread, but for `open_tables` and `look`."""

    def __init__(
        self, config: SourceConfig, tables: Mapping[str, TableConfig], *, bulk_bytes: int = BULK_BYTES
    ) -> None:
        self._config, self._tables, self._bulk_bytes = config, tables, bulk_bytes
        self._session: Connection | None = None
        self._watching: Connection | None = None
        self._visibility: Visibility | None = None

    def check(self) -> list[Finding]:
        """Look at every precondition and report all; raises only when the database can't be reached."""
        connection = self._connected()
        with driver_errors("checking the database"):
            return check(connection, lambda: self._connect(replication=True), self._config, self._tables)

    def identity(self, landed: Manifest | None = None) -> SourceIdentity:
        """Tell which database this is, by the system identifier that a physical copy shares."""
        connection = self._connected()
        with driver_errors("asking for the system identifier"):
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

    def tables(self, among: Collection[str] | None = None) -> list[TableSchema]:
        """List the tables that the configuration names; `PreconditionError` when one has no usable key."""
        connection = self._connected()
        with driver_errors("listing the tables"):
            found = find_tables(connection, self._config)
            named = [t for t in found if among is None or str(t.table) in among]
            layouts = layouts_of(Catalog(connection, self._tables), named)
        refused = [f"{table}: {layout.reason}" for table, layout in layouts if layout.schema is None]
        if refused:
            raise PreconditionError("; ".join(refused), hint="run `deltatide check`, it says what to do")
        return [layout.schema for _, layout in layouts if layout.schema is not None]

    def prepare(self) -> Prepared:
        """Create or extend the publication; give what was added, and the transactions running after that."""
        connection = self._connected()
        with driver_errors(f"preparing publication {self._config.publication}"):
            slot.wait_until_released(connection, self._config.slot)  # nothing is made beside another agent
            layouts = layouts_of(Catalog(connection, self._tables), find_tables(connection, self._config))
            found = [table for table, layout in layouts if layout.schema is not None]
            added = publication.extend(connection, self._config.publication, found)
            return Prepared(tuple(map(str, added)), self._running(connection))

    def look(self) -> Outlook:
        """Look at the publication's tables and at partitions, over a session of its own."""
        if self._watching is not None and not self._alive(self._watching):
            close(self._watching)
            self._watching = None
        self._watching = self._watching or self._connect()
        with driver_errors("looking at the catalog"):
            return look(self._watching, self._config, self._tables)

    def untold(self, before: str, now: str) -> bool:
        """Tell whether rows may have come or gone untold between two fingerprints of one table."""
        return untold(before, now)

    def begin_history(self, *, fresh: bool) -> History:
        """Make the slot, or adopt an unused one; give its position and what is running right after."""
        connection, name = self._connected(), self._config.slot
        with driver_errors(f"making slot {name}"):
            found = slot.find_slot(connection, name)
            if found and (misfit := found.misfit(self._database(connection))):
                raise PreconditionError(misfit, hint="set source.slot to another name, or drop that slot")
            found = slot.wait_until_released(connection, name)
            if found and not fresh and not found.lost and found.confirmed is not None:
                log.info("slot %s is adopted", name)
                position = found.confirmed
            else:
                slot.drop_slot(connection, name)
                position = slot.create_slot(connection, name)
            return History(position, self._running(connection))

    def gap_after(
        self,
        position: int,
        gtids: str | None = None,
        server: str | None = None,
        gtids_needed: str | None = None,
    ) -> str | None:
        """Tell why the log after `position` can no longer be read whole; None when it can."""
        connection = self._connected()
        with driver_errors(f"looking at slot {self._config.slot}"):
            return slot.gap_after(connection, self._config.slot, self._database(connection), position)

    def open_log(
        self,
        epoch: int,
        position: int,
        unsettled: Sequence[UnsettledCommit],
        gtids: str | None = None,
        gtids_needed: str | None = None,
    ) -> PostgresLog:
        """Open the log behind `position`, once the slot is released by whoever had it before."""
        with driver_errors(f"opening slot {self._config.slot}"):
            slot.wait_until_released(self._connected(), self._config.slot)
        visibility = Visibility(position, unsettled)
        side = self._connect()
        catalog = Catalog(side, self._tables)
        try:
            reader = PostgresLog(
                LogBuffer(epoch, visibility, lambda relation: self._layout(catalog, relation)),
                visibility,
                side,
                lambda replication: self._connect(replication=replication),
                self._config.slot,
                self._config.publication,
                self._bulk_bytes,
            )
        except BaseException:
            close(side)
            raise
        self._visibility = visibility
        return reader

    def open_tables(self) -> PostgresTables:
        """Open a connection for dumps; low watermarks follow the log reader that was opened last."""
        return PostgresTables(self._connect, self._tables, lambda: self._visibility)

    def holds_any(self, columns: Sequence[str]) -> str:
        """Give the predicate that is true for rows in which one of these columns is not null."""
        return " OR ".join(f"{quote(column)} IS NOT NULL" for column in columns)

    def close(self) -> None:
        """Let go of the sessions; never raises."""
        close(self._session)
        close(self._watching)
        self._session = self._watching = None

    def _layout(self, catalog: Catalog, relation: Relation) -> Layout | None:
        table = TableName(relation.namespace, relation.name)
        if not self._config.captures(table):
            return None
        with driver_errors(f"looking up {table}"):
            try:
                return catalog.layout(table, relation.columns)
            except TableError as error:
                return Layout(None, error.reason, error.hint or "")

    def _running(self, connection: Connection) -> tuple[UnsettledCommit, ...]:
        row = one_row(connection, "SELECT pg_current_snapshot()::text")
        assert row is not None
        return tuple(
            UnsettledCommit(xid=xid % (1 << 32), lsn=0) for xid in sorted(Snapshot.parse(row[0]).running)
        )

    def _database(self, connection: Connection) -> str:
        return connection.info.dbname

    def _connected(self) -> Connection:
        """Give the session, opened again where it was lost."""
        if self._session is not None and not self._alive(self._session):
            close(self._session)
            self._session = None
        if self._session is None:
            self._session = self._connect()
        return self._session

    def _alive(self, session: Connection) -> bool:
        try:
            with driver_errors("asking the session"):
                return one_row(session, "SELECT 1") is not None
        except Exception:
            return False

    def _connect(self, replication: bool = False) -> Connection:
        return connect(
            self._config.url.get_secret_value(), f"deltatide {self._config.name}", replication=replication
        )
