"""Replicas that are watched (``limits.replicas``): how far each is behind."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pymysql.connections import Connection

from connector.errors import OperatorError, PreconditionError, TransientError
from connector.mysql.connection import close, connect, descriptor_of, driver_errors, row
from connector.mysql.server import channels, find_server
from connector.silence import answered

log = logging.getLogger(__name__)


def lag_of(channel: Mapping[str, Any]) -> float | None:
    """Return how many seconds a replication channel is behind; None if it does not run."""
    lag = channel.get("Seconds_Behind_Source", channel.get("Seconds_Behind_Master"))
    return None if lag is None else float(lag)


class WatchedReplica:
    """Measures the lag of one replica, over a session that is opened again when it is lost.

    `unknown`: why it is unknown, as last measured: it can't be reached, or does not replicate. One that
    refuses is not watched, which is logged once.
    """

    def __init__(self, setting: str, url: str, name: str) -> None:
        self.unknown: str | None = None
        self._setting, self._url, self._name = setting, url, name
        self._connection: Connection[Any] | None = None
        self._reported: str | None = None

    def measure(self) -> float | None:
        """Return the lag in seconds; None if it is unknown."""
        self.unknown = None
        try:
            return self._measure()
        except TransientError as error:
            self.close()
            self.unknown = f"{self._setting} can't be measured: {error}"
        except OperatorError as error:
            self.close()
            self._report(f"{error} ({error.hint})" if error.hint else str(error))
        return None

    def close(self) -> None:
        """Close the session; never raises."""
        close(self._connection)
        self._connection = None

    def _measure(self) -> float | None:
        connection = self._connection = self._connection or connect(self._url, self._name)
        found = self._channels(connection)
        lags = [lag for channel in found if (lag := lag_of(channel)) is not None]
        if len(lags) < len(found):
            self.unknown = f"{self._setting} does not replicate"
        return max(lags, default=None)

    def _channels(self, connection: Connection[Any]) -> list[dict[str, Any]]:
        doing = "reading its state"
        with driver_errors(doing), answered(descriptor_of(connection), doing):
            found = channels(connection)
        if found is None:
            raise PreconditionError("its state can't be seen", hint=self._grant(connection))
        if not found:
            raise PreconditionError("it is not a replica")
        return found

    def _grant(self, connection: Connection[Any]) -> str:
        with driver_errors("reading the user's name"):
            server, user = find_server(connection), row(connection, "SELECT CURRENT_USER()")
        assert user is not None
        name, _, host = user[0].rpartition("@")
        right = "REPLICA MONITOR" if server.mariadb else "REPLICATION CLIENT"
        return f"GRANT {right} ON *.* TO '{name}'@'{host}'; on its primary"

    def _report(self, why: str) -> None:
        if why != self._reported:
            log.warning("dumps are not held back for %s: %s", self._setting, why)
        self._reported = why
