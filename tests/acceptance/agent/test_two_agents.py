"""Two agents on one source: whatever the timing, one stops with a message and the history stays one line."""

from __future__ import annotations

import pytest

from tests.support.agent.installed import Installation, Running, assert_message
from tests.support.source.shop_writer import TABLES, ShopWriter
from tests.support.spark.lake import assert_landed
from tests.support.waiting import wait_until


def assert_stopped(agent: Running, *expected: str) -> None:
    agent.returncode = agent.wait()  # type: ignore[attr-defined]
    assert_message(agent, *expected)


@pytest.mark.soak_on_mysql
@pytest.mark.soak_on_mariadb  # a lease knows no database
def test_a_second_agent_stops_with_a_message_and_the_first_goes_on(shop: Installation) -> None:
    with ShopWriter(shop.database, seed=5), shop.agent() as first:
        shop.wait_dumped(first)
        with shop.start("run") as second:
            assert_stopped(second, "another agent is active", str(first.process.pid), "hint: ")
        number = shop.newest.number
        shop.wait(first, lambda m: m.number > number, "the first goes on")
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    shop.history()
    assert_landed(shop, *TABLES)


@pytest.mark.soak_on_mysql
@pytest.mark.soak_on_mariadb  # a lease knows no database
@pytest.mark.parametrize(
    "restart",
    [
        pytest.param(False, id="new-landing-zone", marks=pytest.mark.only_postgres),
        pytest.param(True, id="after-a-kill"),
    ],
)
def test_of_agents_started_at_the_same_time_one_goes_on(shop: Installation, restart: bool) -> None:
    with ShopWriter(shop.database, seed=6):
        if restart:
            with shop.start("run", kill_at="manifest-committed:4") as agent:
                assert agent.wait() == -9
        with shop.start("run") as one, shop.start("run") as other, shop.start("run") as third:
            agents = [one, other, third]
            wait_until(lambda: sum(agent.ended for agent in agents) == 2, "two have stopped")
            (winner,) = (agent for agent in agents if not agent.ended)
            for loser in agents:
                if loser is not winner:
                    assert_stopped(loser, "hint: ")
            shop.wait_dumped(winner)
            assert winner.stop() == 0, winner.output
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    shop.history()
    assert_landed(shop, *TABLES)


@pytest.mark.only_postgres  # leases know no database
def test_a_killed_agent_s_lease_is_taken_over_at_once(shop: Installation) -> None:
    with shop.start("run") as first:
        shop.wait_dumped(first)
        first.kill()
    with shop.agent() as second:
        shop.wait(second, lambda m: m.term == 2, "the second commits", seconds=20)
    assert {m.term for m in shop.history()} == {1, 2}


@pytest.mark.only_postgres
def test_a_lease_removed_behind_their_backs_lets_no_two_agents_commit(shop: Installation) -> None:
    with ShopWriter(shop.database, seed=7):
        with shop.start("run") as first:
            shop.wait_dumped(first)
            (shop.landing / "shop" / "lease.json").unlink()
            with shop.start("run") as second:
                wait_until(lambda: first.ended or second.ended, "one has stopped", seconds=40)
                stopped, left = (first, second) if first.ended else (second, first)
                assert_stopped(stopped, "hint: ")
                number = shop.newest.number
                if not left.ended:  # the one that is left may have lost its lease, and stops then
                    wait_until(
                        lambda: left.ended or shop.newest.number > number, "the other goes on", seconds=20
                    )
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    shop.history()
    assert_landed(shop, *TABLES)
