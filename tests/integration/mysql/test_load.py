"""A real server's load, as dumps hold back for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from connector.config import LimitsConfig, SourceConfig
from connector.figures.source_load import LoadWatcher
from connector.mysql.server import MysqlGauge
from connector.testing.memory_store import MemoryStore
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import reader_of, source_of
from tests.support.source.replication import Replicated, replicated
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.only_mariadb, pytest.mark.only_mysql]


def config_of(database: MysqlDatabase, url: str | None = None) -> SourceConfig:
    return source_of(database, url=url)._config


def why(config: SourceConfig, **limits: float) -> str | None:
    with closing(MysqlGauge(config)) as gauge:
        settings = LimitsConfig.model_validate(limits)
        return LoadWatcher(lambda: gauge, MemoryStore(), settings, lambda: True, lambda *_: None).why()


def test_threads_that_run_hold_dumps_back_also_for_a_user_who_may_read_little(
    mariadb: MysqlDatabase,
) -> None:
    config = config_of(mariadb, reader_of(mariadb))
    assert str(why(config, threads_running=0.5)).startswith("threads_running is ")
    assert why(config, threads_running=100_000) is None
    with closing(MysqlGauge(config)) as gauge:
        assert gauge.measure().keys() == {"threads_running"}, "a primary is not behind"


@pytest.fixture
def pair(mariadb: MysqlDatabase, servers_folder: Path, tmp_path: Path) -> Iterator[Replicated]:
    kind = "mysql" if mariadb.is_mysql else "mariadb"
    with replicated(kind, servers_folder / tmp_path.name, "shop") as pair:
        yield pair


def test_a_replica_that_is_behind_holds_dumps_back(pair: Replicated) -> None:
    pair.primary.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pair.wait_applied()
    config = config_of(pair.replica)
    with closing(pair.replica.connect()) as session:
        with session.cursor() as cursor:
            cursor.execute("LOCK TABLE t READ")
        pair.primary.execute("INSERT INTO t VALUES (1)")
        wait_until(lambda: why(config, replica_lag_seconds=0.5), "the replica is behind", seconds=30)
        assert str(why(config, replica_lag_seconds=0.5)).startswith("replica_lag_seconds is ")
    wait_until(lambda: not why(config, replica_lag_seconds=0.5), "it has caught up", seconds=30)
