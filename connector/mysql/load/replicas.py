"""Replicas that are watched (``limits.replicas``): how far each is behind, and whether it can be watched."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pymysql.connections import Connection

from connector.errors import OperatorError, PreconditionError, TransientError
from connector.mysql.connection import close, connect, descriptor_of, driver_errors, row
from connector.mysql.server import Server, channels, find_server
from connector.silence import answered
from connector.source import Finding

log = logging.getLogger(__name__)

_REMOVE = "or take it out of limits.replicas"


def lag_of(channel: Mapping[str, Any]) -> float | None:
    """Return how many seconds a replication channel is behind; None if it does not run.

    Not counting the delay that it is configured to have (``SOURCE_DELAY``), which no pause makes up for.
    """
    lag = channel.get("Seconds_Behind_Source", channel.get("Seconds_Behind_Master"))
    return None if lag is None else max(0.0, float(lag) - float(channel.get("SQL_Delay") or 0))


class WatchedReplica:
    """Measures the lag of one replica, over a session that is opened again when it is lost.

    `unknown`: why it is unknown, as last measured: it can't be reached, or does not replicate. One that
    refuses is not watched, which is logged once.

    `name`: of its session, and of none to the source: whether that is silent, or has lost a session of ours,
    says nothing about a replica's. So each question to a replica is ended by itself if it is not answered.
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

    def check(self, primary: Server) -> Finding:
        """Report whether it can be watched, and replicates from `primary`.

        What keeps it from being measured is a warning: log is captured all the same, and dumps run or wait.
        """
        try:
            lag = self._measure()
            why = self.unknown or self._why_not_of(primary)
        except TransientError as error:
            return self._finding(f"{error}; dumps wait until it can be measured", error.hint)
        except OperatorError as error:
            return self._finding(f"{error}; it is not watched", error.hint)
        finally:
            self.close()
        if self.unknown:
            fix = "START REPLICA (MariaDB: START SLAVE) there; its state (SHOW REPLICA STATUS) says why"
            return self._finding("it does not replicate; dumps wait until it does", fix)
        if why:
            return self._finding(why, "name a replica of source.url's server")
        return Finding(self._setting, "ok", f"is watched, and {lag or 0:g} s behind")

    def close(self) -> None:
        """Close the session; never raises."""
        close(self._connection)
        self._connection = None

    def _finding(self, detail: str, fix: str | None) -> Finding:
        return Finding(self._setting, "warning", detail, f"{fix}; {_REMOVE}" if fix else f"fix it, {_REMOVE}")

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
        doing = "reading the user's name"
        with driver_errors(doing), answered(descriptor_of(connection), doing):
            server, user = find_server(connection), row(connection, "SELECT CURRENT_USER()")
        assert user is not None
        name, _, host = user[0].rpartition("@")
        right = "REPLICA MONITOR" if server.mariadb else "REPLICATION CLIENT"
        return f"GRANT {right} ON *.* TO '{name}'@'{host}'; on its primary"

    def _why_not_of(self, primary: Server) -> str | None:
        """Return whom it replicates from instead; through other replicas is all right."""
        connection = self._connection
        assert connection is not None
        doing = "reading what it replicates"
        with driver_errors(doing), answered(descriptor_of(connection), doing):
            found, here = channels(connection) or [], find_server(connection)
            executed = row(
                connection, f"SELECT @@global.{'gtid_slave_pos' if here.mariadb else 'gtid_executed'}"
            )
        if here.uuid == primary.uuid:
            return "it is the server of source.url itself"
        assert executed is not None
        if here.mariadb:  # a GTID keeps the id of the server where it began
            servers = {each.split("-")[1] for each in str(executed[0]).split(",") if each.count("-") == 2}
            servers |= {str(channel.get("Master_Server_Id")) for channel in found}
            same = str(primary.server_id) in servers
        else:
            names = {str(c.get("Source_UUID", c.get("Master_UUID"))).lower() for c in found}
            same = primary.uuid.lower() in names or primary.uuid.lower() in str(executed[0]).lower()
        hosts = ", ".join(str(c.get("Source_Host", c.get("Master_Host"))) for c in found)
        return None if same else f"it replicates from {hosts}, which is not the server of source.url"

    def _report(self, why: str) -> None:
        if why != self._reported:
            log.warning("dumps are not held back for %s: %s", self._setting, why)
        self._reported = why
