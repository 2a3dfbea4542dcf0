"""A session for small queries on a primary, whose address may lead to several servers.

Invariant: a session is never a standby's, and the timeline found when it was opened holds while it lives: a
primary becomes a standby, or leaves its timeline, only by a restart, which ends its processes. A session that
survives on a former primary is recognized by the timeline of those opened later.

A session lives as long as the server process behind it, not as its socket: a pooler keeps the socket open
over a crash, and may let another process answer. So each process gets a token, a setting that exists only in
its memory. Its start time would serve as well, but is hidden from a role that acts as another.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from psycopg2.extensions import connection as Connection

from connector.errors import TransientError
from connector.postgres import log_identity
from connector.postgres.connection import close, cut, driver_errors, one_row
from connector.silence import answered

log = logging.getLogger(__name__)

Process = tuple[int, str]
"""A server process: its id, which may be reused after a crash, and a token that dies with it."""


def connect_to_primary(connect: Callable[[], Connection]) -> tuple[Connection, str]:
    """Open a connection; return it with its server's timeline.

    `TransientError`, and nothing stays open, if the address leads to a standby.
    """
    connection = connect()
    try:
        with driver_errors("reading the timeline"):
            return connection, log_identity.timeline(connection)
    except BaseException:
        close(connection)
        raise


class PrimarySession:
    """A session that is opened on first use, and reopened when it is lost. Used by one thread at a time.

    `connect` returns the connection and its server's timeline, as `connect_to_primary` does. `timeline`: that
    of the session opened last; `process`: the server process behind it.
    """

    def __init__(self, connect: Callable[[], tuple[Connection, str]]) -> None:
        self.timeline: str | None = None
        self.process: Process | None = None
        self._connect = connect
        self._connection: Connection | None = None
        self._expired = False

    def get(self, timeline: str | None = None) -> Connection:
        """Return the session, reopened if its server is not on `timeline` (None: on any)."""
        fits = timeline in (None, self.timeline) and not self._expired
        if self._connection is None or not fits or not self._lives(self._connection):
            self.close()
            self._expired = False
            self._connection, self.timeline = self._connect()
            self.process = process_of(self._connection)
            if self.process is None:
                raise TransientError("the server ended a session that had just begun")
        return self._connection

    def _lives(self, connection: Connection) -> bool:
        process = process_of(connection)
        if process not in (None, self.process):
            log.warning("%s; if source.url points to a pooler, connect to the server directly", CHANGED)
        return process is not None and process == self.process

    def expire(self) -> None:
        """Make the next use reopen it: the address points to another server now. Called from any thread."""
        self._expired = True

    def close(self) -> None:
        """Close the session, even while another thread waits for its server; never raises."""
        cut(self._connection)
        self._connection = None


_TOKEN = "deltatide.process"

CHANGED = "another server process answers on the session than before"


def process_of(connection: Connection) -> Process | None:
    """Return the server process behind a session, given a token from now on; None without a response."""
    try:
        doing = "identifying the session's process"
        with driver_errors(doing), answered(connection.fileno(), doing):
            row = one_row(
                connection,
                f"SELECT pg_backend_pid(), coalesce(nullif(current_setting('{_TOKEN}', true), ''),"
                f" set_config('{_TOKEN}', %s, false))",
                (uuid.uuid4().hex,),
            )
    except Exception:
        return None
    return (row[0], row[1]) if row is not None else None
