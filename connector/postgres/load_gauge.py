"""Measures a PostgreSQL server's load by system views, in its own session (`connector.figures.source_load`).

Also checks whether there is room for an agent's connections. To see other roles' sessions and standbys, the
role needs `pg_read_all_stats`.
"""

from __future__ import annotations

from collections.abc import Mapping

from connector.config import SourceConfig
from connector.postgres.connection import close, connect, driver_errors, one_row, quote
from connector.source import Finding

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

_LIMITS = """
WITH a AS (SELECT * FROM pg_stat_activity WHERE application_name IS DISTINCT FROM %s)
SELECT CASE WHEN r.rolsuper THEN -1 ELSE r.rolconnlimit END,
       (SELECT count(*) FROM a WHERE a.usesysid = r.oid),
       CASE WHEN r.rolsuper THEN -1 ELSE d.datconnlimit END,
       (SELECT count(*) FROM a WHERE a.datid = d.oid),
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true)::int, 0),
       (SELECT count(*) FROM a WHERE coalesce(a.backend_type, 'client backend') = 'client backend'
           AND a.datid IS NOT NULL), r.rolname::text, d.datname::text
  FROM pg_roles r CROSS JOIN pg_database d
 WHERE r.rolname = current_user AND d.datname = current_database()"""
"""Limits of role, database and server (-1: none), and how much of each others use."""

CONNECTIONS, PER_WORKER = 7, 1
"""The most connections of an agent at a time, besides those of dump workers, and of each of these.

Session, catalog, log, what is asked beside it, load, whether the server answers; one more while the log is
opened. One of them is a WAL sender.
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

    def check(self, workers: int) -> list[Finding]:
        """Report whether the limits of role, database and server leave room for an agent."""
        needed = CONNECTIONS + PER_WORKER * workers
        with driver_errors("checking the limits of connections"):
            row = one_row(self._connection, _LIMITS, (self._ours,))
        assert row is not None
        of_role, by_role, of_database, in_database, of_server, connected, role, database = row
        for what, limit, used, fix in (
            ("the role", of_role, by_role, f"ALTER ROLE {quote(role)}"),
            ("the database", of_database, in_database, f"ALTER DATABASE {quote(database)}"),
        ):
            if 0 <= limit < used + needed:
                detail = f"{what} may have {limit}, others use {used}, and an agent needs up to {needed}"
                return [Finding("connections", "failed", detail, f"{fix} CONNECTION LIMIT {used + needed};")]
        if (lacking := connected + needed - of_server) > 0:
            detail = f"others leave {max(0, needed - lacking)}, and an agent needs up to {needed}"
            fix = f"raise max_connections by {lacking} (ALTER SYSTEM SET), then restart the server"
            return [Finding("connections", "warning", detail, fix)]
        return [Finding("connections", "ok", f"an agent needs up to {needed}, and may have them")]

    def close(self) -> None:
        """Close the session; never raises."""
        close(self._connection)
