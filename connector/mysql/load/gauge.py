"""Measures a server's load over its own session (`connector.figures.source_load`).

A primary does not know how far its replicas are behind, so those that are named are asked themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from connector.config import SourceConfig
from connector.mysql.connection import close, connect, driver_errors, row
from connector.mysql.load.replicas import WatchedReplica, lag_of
from connector.mysql.server import channels


class MysqlGauge:
    """Measures a server's load; a `connector.figures.source_load.LoadGauge`. `replicas`: urls to watch."""

    def __init__(self, config: SourceConfig, replicas: Sequence[str] = ()) -> None:
        name = f"deltatide {config.name}"
        self._connection = connect(config.url.get_secret_value(), name)
        self._replicas = [
            WatchedReplica(f"limits.replicas[{n}]", url, name) for n, url in enumerate(replicas)
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

    def close(self) -> None:
        """Close the sessions; never raises."""
        close(self._connection)
        for replica in self._replicas:
            replica.close()
