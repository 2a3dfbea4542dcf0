"""Makes commits that the log reader has read visible to the next snapshot: proves the low watermark.

Both servers write a commit to the log, and send it, before other sessions can see it. In between it may wait
for a replica to confirm it (semi-synchronous replication), as long as that takes.

- *MySQL with GTIDs:* `gtid_executed` gets a transaction after the engine has it.
- *Without GTIDs, and in MariaDB: the barrier.* Commits become visible in the order of the log (in MySQL,
  while ``binlog_order_commits`` is on). So when a write of ours has returned, all before it in the log are
  visible. MariaDB's commits in one phase (`connector.mysql.log.transaction`) are so a moment later
  (`_ended_before`).
- *MariaDB where we may not write, or it refuses to:* seconds pass, and more while commits wait for a replica,
  which the server's status shows (`_settled_now`).

MariaDB also reports a position for a consistent snapshot (``binlog_snapshot_position``). It can't be relied
on where the log goes on in another file: `MYSQL_BIN_LOG::open` sets it to the start of the new file while the
last commits of the former file are not visible yet; and they, if they have waited for a replica meanwhile, to
their offset in the former file.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from itertools import takewhile
from typing import Any, NamedTuple

import pymysql
from pymysql.connections import Connection

from connector.errors import NotYetError
from connector.mysql.catalog import LOCKED
from connector.mysql.connection import brief_wait, code_of, is_transient, literal, row, text_of
from connector.mysql.log.reader import ReaderProgress
from connector.mysql.server import Server, end_of_log
from connector.mysql.state_table import GRANT, StateTable
from connector.schema import TableName

VISIBLE_SECONDS = 5.0
"""A commit is visible milliseconds after it is in the log, unless it waits for a replica to confirm it."""

SETTLED_SECONDS = 1.0
"""How long MariaDB may take for that, before and after it waits for a replica. A sync of its files does not
count: `end_of_log` waits for it.
"""

SETTLED_GROUPS = 2
"""MariaDB commits in groups, one after the other. Once so many more have ended, all that were written before
have, too: no more than one is between the log, of which `end_of_log` asks, and the engine.
"""

RECENT_SECONDS = 30.0
"""Positions read longer ago are not used: a merge reads again what landed after the lowest low watermark."""

_GTIDS_OFF = 3062
"""MySQL refuses a function for GTIDs. The log reader knows that only from the next commit."""

_GROUPS, _WAITING = "Binlog_group_commits", "Rpl_semi_sync_master_wait_sessions"


class _Look(NamedTuple):
    """How MariaDB commits, asked between two times; the log had been read up to `position` before that.

    `groups`: of commits, that have ended. `waits`: whether a commit waits for a replica.
    """

    asked: float
    answered: float
    position: int
    groups: int
    waits: bool


class _Barrier(NamedTuple):
    """A write of ours: when it had returned, and the position that the log had been read up to before it."""

    raised: float
    epoch: int
    position: int


def first_barrier(connection: Connection[Any], server: Server, state_table: StateTable) -> float | None:
    """Return when a write of ours had returned, now that the position is known at which an epoch begins.

    None in MySQL, which has no commits in one phase, and where none is possible now: chunks raise their own.
    """
    if not server.mariadb:
        return None
    try:
        if not state_table.is_writable(connection):
            return None
        with brief_wait(connection):
            return time.monotonic() if state_table.raise_barrier(connection) else None
    except pymysql.Error as error:
        if is_transient(code_of(error)) and code_of(error) not in LOCKED:
            raise
        return None


class Visibility:
    """Proves what snapshots that are opened next will see. Used by one thread.

    `session`: one that does not open them, on the server whose log is read.
    """

    def __init__(self, session: Connection[Any], server: Server, state_table: StateTable) -> None:
        self._session, self._server, self._state_table = session, server, state_table
        self._looks: deque[_Look] = deque()
        self._barriers: deque[_Barrier] = deque()

    def have_visible(self, table: TableName, progress: ReaderProgress) -> None:
        """Have all commits up to the reader's position visible in MySQL; `NotYetError` if they may not be."""
        if progress.gtids is not None and self._has_waited_for(table, progress.gtids):
            return
        if not self._commits_in_order():
            raise NotYetError(
                f"{table}: without GTIDs, no snapshot can be proven while binlog_order_commits is OFF:"
                " SET GLOBAL binlog_order_commits = ON"
            )
        if not (progress.writable and self._has_raised_barrier(table)):
            raise NotYetError(
                f"{table}: without GTIDs, no snapshot can be proven without writing deltatide.watermark:"
                f" {GRANT} TO the agent's user, or set gtid_mode = ON (if it is: FLUSH BINARY LOGS)"
            )

    def have_visible_in_mariadb(self, table: TableName, progress: ReaderProgress) -> int:
        """Return a position that the reader has reached, up to which all commits are visible from now on."""
        if progress.writable:
            with suppress(NotYetError), brief_wait(self._session):
                if self._has_raised_barrier(table):
                    return self._ended_before(table, progress)
        return self._settled(table, progress.position)

    def _ended_before(self, table: TableName, progress: ReaderProgress) -> int:
        """Return a position up to which all commits are visible, now that a write of ours has returned.

        What precedes that in the log has been committed, but the sessions of commits in one phase still have
        to go on. So one is visible `SETTLED_SECONDS` after a barrier that came after it. So are those that
        precede all log that we have read, of which any table may have one: they are waited for once, as long
        as is left since the barrier that came after them, which may be that of the epoch's begin.
        """
        now, barriers = time.monotonic(), self._barriers
        if barriers and barriers[-1][1:] > (progress.epoch, progress.position):
            barriers.clear()
        barriers.append(_Barrier(now, progress.epoch, progress.position))
        while len(barriers) > 1 and barriers[1].raised <= now - SETTLED_SECONDS:
            barriers.popleft()
        raised, epoch, position = barriers[0]
        is_settled = epoch == progress.epoch and raised <= now - SETTLED_SECONDS
        if not progress.one_phase.has_since(table, progress.epoch, position if is_settled else 0):
            return progress.position
        if is_settled and raised > now - RECENT_SECONDS:
            return position
        begin = progress.one_phase.begin_of(progress.epoch)
        if begin.barrier is None or progress.one_phase.has_since(table, progress.epoch, begin.lsn):
            time.sleep(SETTLED_SECONDS)
        else:
            time.sleep(max(0.0, begin.barrier + SETTLED_SECONDS - now))
        progress.one_phase.settle(progress.epoch)
        return progress.position

    def _has_raised_barrier(self, table: TableName) -> bool:
        """Return whether a write was committed; False without a row of ours.

        `NotYetError` if the server refuses it now, which is not the table's fault: for others' locks (FLUSH
        TABLES WITH READ LOCK), rights that were taken away, a full disk.
        """
        try:
            return self._state_table.raise_barrier(self._session)
        except pymysql.Error as error:
            if is_transient(code_of(error)) and code_of(error) not in LOCKED:
                raise
            why = f"deltatide.watermark can't be written: {text_of(error)}"
            raise NotYetError(f"{table}: no snapshot can be proven, as {why}") from error

    def _settled(self, table: TableName, position: int) -> int:
        """Return a position, read some seconds ago, up to which all commits are visible.

        Waits for that as long as no commit waits for a replica; `NotYetError` if more is needed.
        """
        if self._looks and position < self._looks[-1].position:
            self._looks.clear()  # of another log
        for pause in (SETTLED_SECONDS, SETTLED_SECONDS, 0.0):
            self._look(position)
            if (settled := self._settled_now()) is not None:
                return settled
            time.sleep(pause)
        raise NotYetError(
            f"{table}: commits read from the log wait for a replica, and until they no longer do, no snapshot"
            f" can be proven without writing deltatide.watermark: {GRANT} TO the agent's user"
        )

    def _settled_now(self) -> int | None:
        """Return the last position of a look that later ones prove, if any.

        Either enough groups of commits have ended since. Or no commit waited for a replica when those before
        the look had long been written, nor has one at any look since: for a moment between the waits of two
        groups, none does. After that, what no longer waits still has to become visible.
        """
        now = time.monotonic()
        proofs = [look for look in self._looks if look.answered <= now - SETTLED_SECONDS]
        groups = max((look.groups for look in proofs), default=0) - SETTLED_GROUPS
        idle = takewhile(lambda look: not look.waits, reversed(self._looks))
        at = max((look.asked for look in idle if look in proofs), default=0.0) - SETTLED_SECONDS
        settled = [look.position for look in self._looks if look.groups <= groups or look.answered <= at]
        return settled[-1] if settled else None

    def _look(self, position: int) -> None:
        """Ask how the server commits, after `position` has been read; forget earlier looks in time."""
        end_of_log(self._session, self._server)
        asked = time.monotonic()
        while self._looks and self._looks[0].asked < asked - RECENT_SECONDS:
            self._looks.popleft()
        groups, waiting = (self._status(name) for name in (_GROUPS, _WAITING))
        self._looks.append(_Look(asked, time.monotonic(), position, groups, waiting > 0))

    def _status(self, name: str) -> int:
        found = row(self._session, f"SHOW GLOBAL STATUS LIKE '{name}'")
        return int(found[1]) if found else 0

    def _commits_in_order(self) -> bool:
        """Return whether commits become visible in log order; the setting may change at any time."""
        found = row(self._session, "SELECT @@global.binlog_order_commits")
        return found is not None and bool(found[0])

    def _has_waited_for(self, table: TableName, gtids: str) -> bool:
        """Wait until all these transactions are visible; return False if GTIDs have been turned off since."""
        statement = f"SELECT WAIT_FOR_EXECUTED_GTID_SET({literal(gtids)}, {VISIBLE_SECONDS:g})"
        try:
            found = row(self._session, statement)
        except pymysql.Error as error:
            if code_of(error) != _GTIDS_OFF:
                raise
            return False
        if found is None or found[0] != 0:
            raise NotYetError(
                f"{table}: commits read from the log are still not visible after {VISIBLE_SECONDS:g} s"
            )
        return True
