"""Measures a server's load over its own session (`connector.figures.source_load`).

A primary does not know how far its replicas are behind, so those that are named are asked themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from connector.config import SourceConfig
from connector.mysql.connection import close, connect, driver_errors, listed_sessions, row
from connector.mysql.load.replicas import WatchedReplica, lag_of
from connector.mysql.server import channels, find_server
from connector.source import Finding

CONNECTIONS, PER_WORKER = 8, 2
"""The most connections of an agent at a time, besides those of dump workers, and of each of these.

Session, catalog, log, what is asked beside it, load, whether the server answers; two while the log is opened.
"""


class MysqlGauge:
    """Measures a server's load; a `connector.figures.source_load.LoadGauge`. `replicas`: urls to watch."""

    def __init__(self, config: SourceConfig, replicas: Sequence[str] = ()) -> None:
        name = f"deltatide {config.name}"
        self._connection = connect(config.url.get_secret_value(), name)
        self._replicas = [
            WatchedReplica(f"limits.replicas[{n}]", url, f"{name} (replica)")
            for n, url in enumerate(replicas)
        ]

    def measure(self) -> Mapping[str, float]:
        """Return the running threads, ours included, and in seconds the greatest lag.

        That is of the watched replicas, and of this server if it is a replica itself.
        """
        with driver_errors("measuring the server's load"):
            running = row(self._connection, "SHOW GLOBAL STATUS LIKE 'Threads_running'")
            lags = [lag_of(channel) for channel in channels(self._connection) or []]
        lags += [replica.measure() for replica in self._replicas]
        found = {"threads_running": float(running[1])} if running else {}
        known = [lag for lag in lags if lag is not None]
        return found | ({"replica_lag_seconds": max(known)} if known else {})

    def unknown(self) -> Mapping[str, str]:
        """Return why the lag of a watched replica is unknown."""
        reasons = [replica.unknown for replica in self._replicas if replica.unknown is not None]
        return {"replica_lag_seconds": ", ".join(reasons)} if reasons else {}

    def check(self, workers: int) -> list[Finding]:
        """Report whether the server has room for an agent, and whether each replica can be watched."""
        with driver_errors("checking the limits of connections"):
            server = find_server(self._connection)
            room = list(self._check_room(CONNECTIONS + PER_WORKER * workers))
        return [*room, *(replica.check(server) for replica in self._replicas)]

    def _check_room(self, needed: int) -> Iterator[Finding]:
        """Compare what an agent needs with the user's limit, and with what others leave of the server's."""
        found = row(
            self._connection,
            "SELECT @@session.max_user_connections, @@global.max_connections, CURRENT_USER(), USER()",
        )
        connected = row(self._connection, "SHOW GLOBAL STATUS LIKE 'Threads_connected'")
        assert found is not None
        assert connected is not None
        name, _, host = found[2].rpartition("@")
        mine = found[3].rpartition("@")[0]
        ours = sum(user == mine for _, user, *_ in listed_sessions(self._connection))
        of_user, of_server = int(found[0]), int(found[1]) - int(connected[1]) + ours
        if 0 < of_user < needed:
            detail = f"the user may have {of_user} connections, and an agent needs up to {needed}"
            fix = f"ALTER USER '{name}'@'{host}' WITH MAX_USER_CONNECTIONS {needed};"
            yield Finding("connections", "failed", detail, fix)
        elif of_server < needed:
            detail = f"others leave {of_server} of {found[1]} connections, and an agent needs up to {needed}"
            fix = f"SET GLOBAL max_connections = {int(found[1]) + needed - of_server};"
            yield Finding("connections", "warning", detail, f"{fix} and set it in the configuration file")
        else:
            yield Finding("connections", "ok", f"an agent needs up to {needed}, and may have them")

    def close(self) -> None:
        """Close the sessions; never raises."""
        close(self._connection)
        for replica in self._replicas:
            replica.close()
