"""A real server's load, as dumps hold back for it."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from connector.config import LimitsConfig, SourceConfig
from connector.demo.servers.postgres import PostgresServer
from connector.figures.source_load import LoadWatcher
from connector.postgres.load_gauge import PostgresGauge
from connector.testing.memory_store import MemoryStore
from tests.support.servers.postgres import Database
from tests.support.source.postgres_source import source_of
from tests.support.waiting import wait_until


def config_of(database: Database, url: str | None = None) -> SourceConfig:
    return source_of(database, url=url)._config


@pytest.fixture
def gauge(database: Database) -> Iterator[PostgresGauge]:
    with closing(PostgresGauge(config_of(database))) as gauge:
        yield gauge


def test_sessions_that_run_a_statement_hold_dumps_back_and_the_agents_own_do_not(
    database: Database, gauge: PostgresGauge
) -> None:
    limits = LimitsConfig(active_sessions=0.5, standby_lag_mib=0)
    watch = LoadWatcher(lambda: gauge, MemoryStore(), limits, lambda: True, lambda *_: None)
    wait_until(lambda: watch.why() is None, "nobody else runs anything")
    with closing(database.connect()) as session:
        sleeping = threading.Thread(target=_sleep, args=(session,))
        sleeping.start()
        wait_until(watch.why, "the statement is seen")
        assert str(watch.why()).startswith("active_sessions is ")
        session.cancel()
        sleeping.join()


def _sleep(session: psycopg2.extensions.connection) -> None:
    with session.cursor() as cursor, pytest.raises(psycopg2.errors.QueryCanceled):
        cursor.execute("SELECT pg_sleep(600)")


def test_log_that_the_slot_keeps_is_measured(database: Database, gauge: PostgresGauge) -> None:
    assert "slot_lag_mib" not in gauge.measure()
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [database.name])
    before = gauge.measure()["slot_lag_mib"]
    assert gauge.measure()["retained_log_mib"] >= before
    database.execute("CREATE TABLE t AS SELECT repeat('x', 1000) AS v FROM generate_series(1, 5000)")
    assert gauge.measure()["slot_lag_mib"] > before + 4
    assert gauge.measure()["retained_log_mib"] > before + 4


def test_log_that_a_standby_has_not_replayed_is_measured(servers_folder: Path) -> None:
    folder = servers_folder / "load"
    with (
        PostgresServer.start(folder / "primary") as primary,
        PostgresServer.start(folder / "standby") as standby,
    ):
        primary.stop()
        standby.stop()
        shutil.rmtree(standby.data_dir)
        subprocess.run(["cp", "-a", str(primary.data_dir), str(standby.data_dir)], check=True)
        (standby.data_dir / "standby.signal").touch()
        with (standby.data_dir / "postgresql.auto.conf").open("a") as file:
            file.write(f"primary_conninfo = '{primary.url()}'\n")
        standby.password = primary.password
        primary.restart()
        standby.restart()
        database, replica = Database(primary, "postgres"), Database(standby, "postgres")
        with closing(PostgresGauge(config_of(database))) as gauge:
            wait_until(lambda: gauge.measure().get("standby_lag_mib") == 0, "the standby follows")
            replica.execute("SELECT pg_wal_replay_pause()")
            database.execute("CREATE TABLE t AS SELECT repeat('x', 1000) AS v FROM generate_series(1, 5000)")
            wait_until(lambda: gauge.measure()["standby_lag_mib"] > 4, "it is behind")
            limits = LimitsConfig(standby_lag_mib=4)
            watch = LoadWatcher(lambda: gauge, MemoryStore(), limits, lambda: True, lambda *_: None)
            assert str(watch.why()).startswith("standby_lag_mib is ")
            replica.execute("SELECT pg_wal_replay_resume()")
            wait_until(lambda: gauge.measure()["standby_lag_mib"] < 1, "it has caught up")
    shutil.rmtree(folder)


def test_a_role_that_sees_no_sessions_measures_what_needs_no_right(database: Database) -> None:
    role = f"blind_{database.name}"[:60]
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [database.name])
    try:
        url = f"postgresql://{role}:x@{database.url.partition('@')[2]}"
        source = source_of(database, url=url)
        (warning,) = [found for found in source.check() if found.name == "load"]
        assert warning.state == "warning"
        with closing(PostgresGauge(source._config)) as gauge:
            assert set(gauge.measure()) == {"slot_lag_mib", "retained_log_mib"}
            database.execute(str(warning.fix))
            assert gauge.measure()["active_sessions"] >= 0
    finally:
        database.execute(f"DROP ROLE {role}")
