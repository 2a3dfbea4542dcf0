"""Measures a PostgreSQL server's load by system views, in its own session (`connector.figures.source_load`).

To see other roles' sessions and standbys, the role needs `pg_read_all_stats`.
"""

from __future__ import annotations

from collections.abc import Mapping

from connector.config import SourceConfig
from connector.postgres.connection import close, connect, driver_errors, one_row

_LOAD = """
SELECT (SELECT count(*) FROM pg_stat_activity
         WHERE state = 'active' AND backend_type = 'client backend' AND application_name <> %(ours)s),
       (SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), r.replay_lsn))
          FROM pg_stat_replication r LEFT JOIN pg_replication_slots s ON s.active_pid = r.pid
         WHERE s.slot_type IS DISTINCT FROM 'logical'),
       (SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) FROM pg_replication_slots
         WHERE slot_name = %(slot)s),
       (SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) FROM pg_replication_slots
         WHERE slot_name = %(slot)s),
       pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
"""
"""Active sessions except the agent's own; in bytes: the lag of the furthest standby and of our slot, and the
log that the server keeps for the slot.
"""

MIB = 1 << 20


class PostgresGauge:
    """Measures a server's load; a `connector.figures.source_load.LoadGauge`."""

    def __init__(self, config: SourceConfig) -> None:
        self._ours, self._slot = f"deltatide {config.name}", config.slot
        self._connection = connect(config.url.get_secret_value(), self._ours)

    def measure(self) -> Mapping[str, float]:
        """Return active sessions, and in MiB the lag of standbys and our slot, and the log kept for it.

        A figure that does not apply is absent. A role that can't see other sessions and standbys gets only
        the slot's figures (`check` warns of it).
        """
        with driver_errors("measuring the server's load"):
            row = one_row(self._connection, _LOAD, {"ours": self._ours, "slot": self._slot})
        assert row is not None
        active, standby_bytes, slot_bytes, retained_bytes, may_see = row
        found = {"slot_lag_mib": slot_bytes, "retained_log_mib": retained_bytes}
        if may_see:
            found |= {"active_sessions": active, "standby_lag_mib": standby_bytes}
        return {
            name: float(value) / (MIB if name.endswith("_mib") else 1)
            for name, value in found.items()
            if value is not None
        }

    def unknown(self) -> Mapping[str, str]:
        """Return nothing: a standby that is not connected does not count."""
        return {}

    def close(self) -> None:
        """Close the session; never raises."""
        close(self._connection)
