"""SIGTERM and Ctrl-C under load: a graceful end within seconds, and nothing lost."""

from __future__ import annotations

import signal

import pytest

from tests.support.agent.installed import Installation
from tests.support.source.shop_writer import TABLES, ShopWriter
from tests.support.spark.lake import assert_landed
from tests.support.waiting import seconds_of

STOP_SECONDS = 6.0
"""Far more than the agent needs, on a machine that is busy with other tests."""


# One function handles both signals: in make test, not each of them amid dumps.
@pytest.mark.soak_on_mariadb  # MariaDB's agent is MySQL's
@pytest.mark.parametrize(
    ("number", "dumped"),
    [
        pytest.param(signal.SIGINT, False, id="SIGINT-while-dumping", marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, False, id="SIGTERM-while-dumping", marks=pytest.mark.only_postgres),
        pytest.param(signal.SIGINT, True, id="SIGINT-while-streaming", marks=pytest.mark.only_postgres),
        pytest.param(signal.SIGTERM, True, id="SIGTERM-while-streaming"),
    ],
)
def test_a_signal_under_load_ends_it_gracefully(
    shop: Installation, number: signal.Signals, dumped: bool
) -> None:
    with ShopWriter(shop.database, seed=8, pause=0.001):
        with shop.start("run") as agent:
            shop.wait(agent, lambda m: m.number >= 3 and (m.exact or not dumped), "it is at work")
            end = shop.end_of_log()
            if dumped:
                shop.wait(agent, lambda m: m.position >= end, "the log is followed")
            assert seconds_of(lambda: agent.stop(number, seconds=20)) < STOP_SECONDS
            assert agent.process.returncode == 0, agent.output
        newest = shop.newest
        assert shop.walsender() is None
        if shop.database.kind == "postgres":
            assert shop.confirmed() == newest.position, "all that was committed is confirmed"
        assert "Traceback" not in agent.output
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    assert shop.history()[newest.number].position >= newest.position
    assert_landed(shop, *TABLES)


@pytest.mark.soak_on_mariadb  # MariaDB's agent is MySQL's
def test_what_was_read_before_a_signal_is_committed_not_read_again(shop: Installation) -> None:
    shop.configure(landing={"flush_seconds": 60})
    with shop.start("run") as agent:
        shop.wait_dumped(agent)
        before = shop.newest.number
        shop.database.execute("UPDATE items SET name = 'last' WHERE id <= 10")
        end = shop.end_of_log()
        agent.wait_until(lambda: shop.database.all_sent(end), "the log was sent")
        assert agent.stop() == 0, agent.output
    last = shop.history()[before:]
    assert sum(f.rows for m in last for f in m.files if str(f.table) == shop.table("items")) == 10
    assert_landed(shop, "items")


@pytest.mark.soak_on_mariadb  # MariaDB's agent is MySQL's
def test_a_stop_while_the_server_is_away_takes_seconds_too(shop: Installation) -> None:
    with shop.start("run") as agent:
        shop.wait_dumped(agent)
        shop.database.crash()
        try:
            agent.wait_says("reopening the log")
            assert seconds_of(lambda: agent.stop(seconds=20)) < STOP_SECONDS
            assert agent.process.returncode == 0, agent.output
        finally:
            shop.database.restart()
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    assert_landed(shop, *TABLES)
