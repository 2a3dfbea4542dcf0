"""Sessions ended by the server, a server that crashes, a network that cuts: the agent goes on exactly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.agent.installed import Installation, Meddler, Running
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.source.shop_writer import TABLES, ShopWriter
from tests.support.spark.lake import assert_lake, assert_landed, merge_until_whole


def assert_went_on(shop: Installation, agent: Running) -> None:
    """It caught up without having been restarted, in one history."""
    shop.wait_caught_up(agent, seconds=60)
    assert agent.process.poll() is None
    manifests = shop.history()
    assert manifests[-1].epoch == 1
    assert {m.term for m in manifests} == {1}
    assert_landed(shop, *TABLES)


@pytest.mark.soak_on_mysql
@pytest.mark.soak_on_mariadb  # integration/mysql/log/test_capture loses their connections under load
def test_ended_sessions_are_opened_again_and_nothing_is_lost(shop: Installation) -> None:
    with shop.agent() as agent:
        with ShopWriter(shop.database, seed=10):
            with Meddler(shop.database.end_sessions, 0.3, 0.7, 1.1) as meddler:
                meddler.wait_times(6)
            shop.run("dump", "--all")
            with Meddler(shop.database.end_sessions, 0.6) as meddler:
                meddler.wait_times(3)
        assert "reopening the log" in agent.output
        assert_went_on(shop, agent)


@pytest.mark.soak_on_mysql  # MariaDB's loses a TRUNCATE when it crashes
def test_a_server_that_crashes_under_load_is_followed_again(shop: Installation) -> None:
    # A TRUNCATE that is under way when MariaDB crashes is done, and never gets into its log.
    truncates = shop.database.kind != "mariadb"
    with shop.agent() as agent:
        with ShopWriter(shop.database, seed=11, truncates=truncates) as writer:
            for _ in range(2):
                number, written = shop.newest.number if shop.newest else 0, writer.transactions
                shop.wait(agent, lambda m, n=number: m.number > n + 2, "it is at work")
                shop.database.crash()
                shop.database.restart()
                agent.wait_until(lambda w=written: writer.transactions > w + 20, "the writer goes on")
        assert "reopening the log" in agent.output
        assert_went_on(shop, agent)


@pytest.mark.soak_on_mysql
@pytest.mark.soak_on_mariadb  # integration/test_lost_connections loses each of theirs
def test_a_network_that_cuts_connections_costs_nothing_but_time(shop: Installation) -> None:
    database = shop.database
    with LossyProxy(database.port) as proxy:
        shop.configure(source={"url": shop.through(proxy.port)})
        with shop.agent() as agent:
            with ShopWriter(database, seed=12), Meddler(proxy.cut, 0.2, 0.5, 0.9) as meddler:
                meddler.wait_times(10)
            assert proxy.cuts >= 3
            assert_went_on(shop, agent)


@pytest.mark.only_postgres
@pytest.mark.soak
def test_minutes_of_a_bad_network_and_dumps_cost_nothing_but_time(shop: Installation, spark: Any) -> None:
    database = shop.database
    with LossyProxy(database.port, seed=2) as proxy:
        shop.configure(source={"url": shop.through(proxy.port)})
        with shop.agent() as agent:
            with ShopWriter(database, seed=13), Meddler(proxy.cut, 0.2, 0.5, 0.9, 3) as meddler:
                for times in range(20, 121, 20):
                    shop.run("dump", "--all")
                    meddler.wait_times(times)
            assert_went_on(shop, agent)
            merge_until_whole(spark, shop, agent)
            assert_lake(shop, *TABLES)
