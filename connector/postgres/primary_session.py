"""A session for small queries on a primary; an address may lead to several servers.

Invariant: a session is never a standby's, and the timeline found when it was opened holds while it lives: a
primary becomes a standby, or leaves its timeline, only by a restart, which ends its sessions. One that
survives on a former primary is recognized by the timeline of those opened later.
"""

from __future__ import annotations

from collections.abc import Callable

from psycopg2.extensions import connection as Connection

from connector.postgres import continuity
from connector.postgres.connection import close, driver_errors, one_row


def connect_to_primary(connect: Callable[[], Connection]) -> tuple[Connection, str]:
    """Open a connection; return it with its server's timeline.

    `TransientError`, and nothing stays open, if the address leads to a standby.
    """
    connection = connect()
    try:
        with driver_errors("looking at the log"):
            return connection, continuity.timeline(connection)
    except BaseException:
        close(connection)
        raise


class PrimarySession:
    """A session that is opened on first use, and again when it is lost. Used by one thread at a time.

    `connect` returns the connection and its server's timeline, as `connect_to_primary` does. `timeline`: that
    of the session opened last.
    """

    def __init__(self, connect: Callable[[], tuple[Connection, str]]) -> None:
        self.timeline: str | None = None
        self._connect = connect
        self._connection: Connection | None = None
        self._expired = False

    def get(self, timeline: str | None = None) -> Connection:
        """Return the session, opened anew if its server is not on `timeline` (None: on any)."""
        fits = timeline in (None, self.timeline) and not self._expired
        if self._connection is None or not fits or not alive(self._connection):
            self.close()
            self._expired = False
            self._connection, self.timeline = self._connect()
        return self._connection

    def expire(self) -> None:
        """Let the next use open it anew: the address leads to another server now. Called from any thread."""
        self._expired = True

    def close(self) -> None:
        """Close the session; never raises."""
        close(self._connection)
        self._connection = None


def alive(connection: Connection) -> bool:
    """Return whether the server still answers on a connection."""
    try:
        with driver_errors("asking the session"):
            return one_row(connection, "SELECT 1") is not None
    except Exception:
        return False
