"""A real server's load, as dumps hold back for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from connector.config import LimitsConfig, SourceConfig
from connector.figures.source_load import LoadWatcher
from connector.mysql import server
from connector.mysql.load.gauge import MysqlGauge
from connector.mysql.server import channels
from connector.testing.memory_store import MemoryStore
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import reader_of, source_of
from tests.support.source.replication import Replicated, replicated
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.only_mariadb, pytest.mark.only_mysql]


def config_of(database: MysqlDatabase, url: str | None = None) -> SourceConfig:
    return source_of(database, url=url)._config


def why(config: SourceConfig, *replicas: str, **limits: float) -> str | None:
    with closing(MysqlGauge(config, replicas)) as gauge:
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


def test_a_replica_that_is_behind_holds_dumps_back(
    pair: Replicated, caplog: pytest.LogCaptureFixture
) -> None:
    pair.primary.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pair.wait_applied()
    config, of_primary = config_of(pair.replica), config_of(pair.primary)
    assert why(of_primary, pair.replica.url) is None
    with closing(pair.replica.connect()) as session:
        with session.cursor() as cursor:
            cursor.execute("LOCK TABLE t READ")
        pair.primary.execute("INSERT INTO t VALUES (1)")
        wait_until(lambda: why(config, replica_lag_seconds=0.5), "the replica is behind", seconds=30)
        assert str(why(config, replica_lag_seconds=0.5)).startswith("replica_lag_seconds is ")
        watched = why(of_primary, pair.primary.url, pair.replica.url, replica_lag_seconds=0.5)
        assert str(watched).startswith("replica_lag_seconds is "), "a primary learns of it by asking it"
    wait_until(lambda: not why(config, replica_lag_seconds=0.5), "it has caught up", seconds=30)
    assert "dumps are not held back for limits.replicas[0]: it is not a replica" in caplog.text
    pair.stop()
    assert why(of_primary, pair.replica.url) == "limits.replicas[0] does not replicate"
    with LossyProxy(1) as proxy:
        nowhere = f"mysql://deltatide:secret-word@127.0.0.1:{proxy.port}"
    unreachable = why(of_primary, nowhere)
    assert str(unreachable).startswith("limits.replicas[0] can't be measured: can't reach the server at ")
    assert "secret-word" not in f"{unreachable}{caplog.text}"


def test_a_replica_that_is_delayed_on_purpose_is_not_behind(pair: Replicated) -> None:
    is_mysql = pair.replica.is_mysql
    change = "REPLICATION SOURCE TO SOURCE_DELAY" if is_mysql else "MASTER TO MASTER_DELAY"
    role = "REPLICA" if is_mysql else "SLAVE"
    pair.primary.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pair.wait_applied()
    pair.replica.execute(f"STOP {role}", f"CHANGE {change} = 3600", f"START {role}")
    pair.primary.execute("INSERT INTO t VALUES (1)")

    def shown() -> float:
        with closing(pair.replica.connect()) as session:
            (channel,) = channels(session) or []
        return float(channel.get("Seconds_Behind_Source", channel.get("Seconds_Behind_Master")) or 0)

    wait_until(lambda: shown() > 1, "the server counts the delay", seconds=30)
    assert why(config_of(pair.replica), replica_lag_seconds=0.5) is None


def test_the_state_of_a_replica_is_known_though_its_error_ends_within_a_character(pair: Replicated) -> None:
    """MariaDB cuts off the statement that failed, by which all that asks for its state failed, too."""
    pair.primary.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pair.wait_applied()
    pair.replica.changed_unseen("DROP TABLE t")
    skip = "sql_replica_skip_counter" if pair.replica.is_mysql else "sql_slave_skip_counter"
    role = "REPLICA" if pair.replica.is_mysql else "SLAVE"
    with closing(pair.replica.connect()) as session:
        for pad in ("", "x"):
            text = pad + "\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 900
            pair.primary.execute(f"ALTER TABLE t ADD c{len(pad)} int /* {text} */")
            wait_until(lambda: (channels(session) or [{}])[0].get("Last_SQL_Error"), "it fails", seconds=30)
            assert server.is_replica(session)
            pair.replica.execute(f"STOP {role}", f"SET GLOBAL {skip} = 1", f"START {role}")


def test_a_check_says_whether_each_replica_can_be_watched(pair: Replicated) -> None:
    pair.primary.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pair.wait_applied()
    right = "REPLICATION CLIENT" if pair.primary.is_mysql else "REPLICA MONITOR"
    for user in ("blind", "wrong"):
        pair.primary.execute(f"CREATE USER {user} IDENTIFIED BY 'secret'")
    pair.wait_applied()
    blind = pair.replica.server.url(user="blind", password="secret")
    with LossyProxy(1) as proxy:
        nowhere = f"mysql://deltatide:secret-word@127.0.0.1:{proxy.port}"
    refused = pair.replica.server.url(user="wrong", password="typo")
    urls = [pair.replica.url, blind, nowhere, refused, pair.primary.url]
    with closing(MysqlGauge(config_of(pair.primary), urls)) as gauge:
        found = [each for each in gauge.check(2) if each.name.startswith("limits.replicas")]
    assert [each.name for each in found] == [f"limits.replicas[{n}]" for n in range(5)]
    assert [each.state for each in found] == ["ok", *["warning"] * 4]
    good, unseen, unreachable, wrong, primary = found
    assert good.detail.startswith("is watched, and ")
    assert unseen.detail == "its state can't be seen; it is not watched"
    assert str(unseen.fix).startswith(f"GRANT {right} ON *.* TO 'blind'@'%';")
    assert "can't reach the server" in unreachable.detail
    assert unreachable.detail.endswith("; dumps wait until it can be measured")
    assert "denied" in wrong.detail
    assert primary.detail == "it is not a replica; it is not watched"
    assert all("or take it out of limits.replicas" in str(each.fix) for each in found[1:])
    assert "secret-word" not in str(found)

    def only(url: str, of: MysqlDatabase) -> str:
        with closing(MysqlGauge(config_of(of), [url])) as gauge:
            (found,) = [each for each in gauge.check(2) if each.name.startswith("limits.replicas")]
        return found.detail

    pair.primary.execute(str(unseen.fix).split(";")[0])
    pair.wait_applied()
    assert only(blind, pair.primary).startswith("is watched, and ")
    assert only(pair.replica.url, pair.replica) == "it is the server of source.url itself"
    pair.stop()
    assert only(pair.replica.url, pair.primary) == "it does not replicate; dumps wait until it does"


def test_a_check_says_that_a_replica_is_another_servers(pair: Replicated, mariadb: MysqlDatabase) -> None:
    (before,) = mariadb.execute("SELECT @@global.server_id")[0]
    mariadb.execute("SET GLOBAL server_id = 4711")
    try:
        with closing(MysqlGauge(config_of(mariadb), [pair.replica.url])) as gauge:
            (found,) = [each for each in gauge.check(2) if each.name.startswith("limits.replicas")]
    finally:
        mariadb.execute(f"SET GLOBAL server_id = {before}")
    assert found.detail == "it replicates from 127.0.0.1, which is not the server of source.url"
    assert str(found.fix).startswith("name a replica of source.url's server; or take it out")
