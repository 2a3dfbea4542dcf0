"""Makes commits that the log reader has read visible to the next snapshot: proves the low watermark.

Both servers write a commit to the log, and send it, before other sessions can see it. In between it may wait
for a replica to confirm it (semi-synchronous replication), as long as that takes.

- *MySQL with GTIDs:* `gtid_executed` gets a transaction after the engine has it.
- *Without GTIDs, and in MariaDB: the barrier.* Commits become visible in the order of the log (in MySQL,
  while ``binlog_order_commits`` is on). So when a write of ours has returned, all before it in the log are
  visible.
- *MariaDB where we may not write, or it refuses to:* a second passes. By then all commits that had been read
  are visible; while some wait for a replica, which the server's status shows, only after the longest time
  that it lets them wait.

MariaDB also reports a position for a consistent snapshot (``binlog_snapshot_position``). It can't be relied
on where the log goes on in another file: `MYSQL_BIN_LOG::open` sets it to the start of the new file while the
last commits of the former file are not visible yet; and they, if they have waited for a replica meanwhile, to
their offset in the former file.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import Any

import pymysql
from pymysql.connections import Connection

from connector.errors import NotYetError
from connector.mysql.catalog import LOCKED
from connector.mysql.connection import brief_wait, code_of, is_transient, literal, row, text_of
from connector.mysql.log.reader import ReaderProgress
from connector.mysql.server import Server, end_of_log
from connector.mysql.state_tables import GRANT, StateTables
from connector.schema import TableName

VISIBLE_SECONDS = 5.0
"""A commit is visible milliseconds after it is in the log, unless it waits for a replica to confirm it."""

SETTLED_SECONDS = 1.0
"""How long MariaDB may take for that. A sync of its files does not count: `end_of_log` waits for it."""

RECENT_SECONDS = 30.0
"""Positions read longer ago are not used: a merge reads again what landed after the lowest low watermark."""


class Visibility:
    """Proves what snapshots that are opened next will see. Used by one thread.

    `session`: one that does not open them, on the server whose log is read.
    """

    def __init__(self, session: Connection[Any], server: Server, state_tables: StateTables) -> None:
        self._session, self._server, self._state_tables = session, server, state_tables
        self._read: deque[tuple[float, int]] = deque()

    def have_visible(self, table: TableName, progress: ReaderProgress) -> None:
        """Have all commits up to the reader's position visible in MySQL; `NotYetError` if they may not be."""
        if progress.gtids is not None:
            self._wait_until_executed(table, progress.gtids)
        elif not self._commits_in_order():
            raise NotYetError(
                f"{table}: without GTIDs, no snapshot can be proven while binlog_order_commits is OFF:"
                " SET GLOBAL binlog_order_commits = ON"
            )
        elif not (progress.writable and self._has_raised_barrier(table)):
            raise NotYetError(
                f"{table}: without GTIDs, no snapshot can be proven without writing deltatide.watermark:"
                f" {GRANT} TO the agent's user, or set gtid_mode = ON (if it is: FLUSH BINARY LOGS)"
            )

    def have_visible_in_mariadb(self, table: TableName, progress: ReaderProgress) -> int:
        """Return a position that the reader has reached, up to which all commits are visible from now on."""
        if progress.writable:
            with suppress(NotYetError), brief_wait(self._session):
                if self._has_raised_barrier(table):
                    return progress.position
        return self._settled(table, progress.position)

    def _has_raised_barrier(self, table: TableName) -> bool:
        """Return whether a write was committed; False without a row of ours.

        `NotYetError` if the server refuses it now, which is not the table's fault: for others' locks (FLUSH
        TABLES WITH READ LOCK), rights that were taken away, a full disk.
        """
        try:
            return self._state_tables.raise_barrier(self._session)
        except pymysql.Error as error:
            if is_transient(code_of(error)) and code_of(error) not in LOCKED:
                raise
            why = f"deltatide.watermark can't be written: {text_of(error)}"
            raise NotYetError(f"{table}: no snapshot can be proven, as {why}") from error

    def _settled(self, table: TableName, position: int) -> int:
        """Return a position that was read so long ago that all commits up to it are visible.

        Waits up to `SETTLED_SECONDS`; `NotYetError` if more is needed.
        """
        end_of_log(self._session, self._server)
        now = time.monotonic()
        if self._read and position < self._read[-1][1]:
            self._read.clear()  # of another log
        while self._read and self._read[0][0] < now - RECENT_SECONDS:
            self._read.popleft()
        self._read.append((now, position))
        time.sleep(max(0.0, self._read[0][0] + SETTLED_SECONDS - now))
        seconds = self._replica_seconds() + SETTLED_SECONDS
        settled = [read for at, read in self._read if at <= time.monotonic() - seconds]
        if not settled:
            raise NotYetError(
                f"{table}: commits read from the log may wait for a replica for {seconds:g} s, and no"
                " snapshot can be proven sooner without writing deltatide.watermark:"
                f" {GRANT} TO the agent's user"
            )
        return settled[-1]

    def _replica_seconds(self) -> float:
        """Return how long MariaDB's commits may be waiting now for a replica to confirm them."""
        found = row(self._session, "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_wait_sessions'")
        if found is None or not int(found[1]):
            return 0.0
        timeout = row(self._session, "SELECT @@global.rpl_semi_sync_master_timeout")
        return float(timeout[0]) / 1000 if timeout else RECENT_SECONDS

    def _commits_in_order(self) -> bool:
        """Return whether commits become visible in log order; the setting may change at any time."""
        found = row(self._session, "SELECT @@global.binlog_order_commits")
        return found is not None and bool(found[0])

    def _wait_until_executed(self, table: TableName, gtids: str) -> None:
        """Wait until all these transactions are visible."""
        statement = f"SELECT WAIT_FOR_EXECUTED_GTID_SET({literal(gtids)}, {VISIBLE_SECONDS:g})"
        found = row(self._session, statement)
        if found is None or found[0] != 0:
            raise NotYetError(
                f"{table}: commits read from the log are still not visible after {VISIBLE_SECONDS:g} s"
            )
