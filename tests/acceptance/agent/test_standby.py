"""Agents and their standbys: one is active at any time, whatever becomes of the others."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from connector.landing.lease import read_lease
from connector.listening import TAKEOVER_SECONDS
from tests.support.agent.installed import AT_WORK, Installation, Running
from tests.support.agent.wrong_clock import WrongClock
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.servers.s3_server import S3
from tests.support.source.shop_writer import TABLES, ShopWriter
from tests.support.spark.lake import assert_landed
from tests.support.waiting import Lateness, seconds_of, wait_until

LEASE_SECONDS = 3
HOUR = 3600


def works(agent: Running, times: int = 1, seconds: float = 30) -> None:
    """Wait until the agent has been active this many times."""
    agent.wait_until(lambda: len(AT_WORK.findall(agent.output)) >= times, f"active {times} times", seconds)


@pytest.mark.soak_on_mysql
@pytest.mark.soak_on_mariadb  # a lease knows no database
def test_a_standby_takes_over_from_one_that_is_paused_asked_to_or_killed(shop: Installation) -> None:
    with ShopWriter(shop.database, seed=11), shop.start("run", "--standby") as one:
        works(one)
        with shop.start("run", "--standby") as other:
            other.wait_says("standing by: process")

            one.process.send_signal(signal.SIGSTOP)
            works(other, seconds=LEASE_SECONDS + 20)  # machines are slow; the rule is tested with a clock
            wait_until(lambda: shop.newest.term == 2 and shop.newest.files, "the other commits", seconds=20)
            one.process.send_signal(signal.SIGCONT)
            one.wait_says("standing by: process")

            with Lateness() as late:
                done = shop.json("handover")
            assert done["agent"].startswith(f"process {one.process.pid} on ")
            assert done["seconds"] - late.seconds < 2
            works(one, times=2)
            other.wait_until(lambda: other.output.count("standing by: process") == 2, "it stands by again")

            one.kill()
            works(other, times=2)
            wait_until(lambda: shop.newest.term == 4 and shop.newest.files, "the other commits", seconds=20)
            assert other.stop() == 0, other.output
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    terms = [manifest.term for manifest in shop.history()]
    assert terms == sorted(terms)
    assert_landed(shop, *TABLES)


@pytest.mark.only_postgres  # nor a clock
def test_clocks_that_are_an_hour_off_in_either_direction_change_nothing(
    shop: Installation, tmp_path: Path
) -> None:
    """Neither takes a lease that is renewed, and each takes one that no longer is."""
    clock = WrongClock(tmp_path)
    ahead, behind = clock.environment(HOUR), clock.environment(-HOUR)
    with ShopWriter(shop.database, seed=15), shop.start("run", "--standby", **ahead) as one:
        works(one)
        with shop.start("run", "--standby", **behind) as other:
            other.wait_says("standing by: process")
            wait_until(lambda: renewals(shop) > 6, "the lease was renewed for twice its length")
            assert (term(shop), AT_WORK.search(other.output)) == (1, None)

            one.process.send_signal(signal.SIGSTOP)
            works(other, seconds=60)
            one.process.send_signal(signal.SIGCONT)
            one.wait_says("standing by: process")
            wait_until(lambda: renewals(shop) > 6, "the lease was renewed for twice its length")
            assert (term(shop), len(AT_WORK.findall(one.output))) == (2, 1)

            other.process.send_signal(signal.SIGSTOP)
            works(one, times=2, seconds=60)
            other.process.send_signal(signal.SIGCONT)
            other.wait_says("standing by: process")
            shop.json("handover")
            works(other, times=2)
            assert (other.stop(), one.stop()) == (0, 0)
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    terms = [manifest.term for manifest in shop.history()]
    assert terms == sorted(terms)
    assert_landed(shop, *TABLES)


def take_over_again(one: Running, other: Running) -> None:
    """Wait until an agent stands by that was active, and stop the one that took over from it."""
    one.wait_says("standing by: process")
    assert not one.ended
    assert other.stop() == 0, other.output


def renewals(shop: Installation) -> int:
    lease = read_lease(shop.store)
    return 0 if lease is None else lease.renewals


def term(shop: Installation) -> int:
    lease = read_lease(shop.store)
    return 0 if lease is None else lease.term


@pytest.mark.only_postgres  # the lease knows no database
def test_an_agent_that_loses_its_database_leaves_it_to_one_that_has_not(shop: Installation) -> None:
    with ShopWriter(shop.database, seed=12), LossyProxy(shop.database.port) as proxy:
        shop.configure(source={"url": shop.through(proxy.port)})
        with shop.start("run", "--standby") as one:
            works(one)
            shop.configure()
            with shop.start("run", "--standby") as other:
                other.wait_says("standing by: process")
                proxy.lead_to(1)
                proxy.cut(1.0)
                works(other)
                proxy.lead_to(shop.database.port)
                take_over_again(one, other)
            works(one, times=2)
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    shop.history()
    assert_landed(shop, *TABLES)


@pytest.mark.only_postgres  # its slot must be freed of a session that lives; tests/integration has the others
def test_a_database_that_falls_silent_for_one_agent_is_left_to_one_that_it_answers(
    shop: Installation,
) -> None:
    """Its connections live, as behind a proxy or a tunnel."""
    lease_seconds = 6
    with ShopWriter(shop.database, seed=16), LossyProxy(shop.database.port) as proxy:
        shop.configure(source={"url": shop.through(proxy.port)}, landing={"lease_seconds": lease_seconds})
        with shop.start("run", "--standby") as one:
            works(one)
            shop.configure(landing={"lease_seconds": lease_seconds})
            with shop.start("run", "--standby") as other:
                other.wait_says("standing by: process")
                proxy.fall_silent()
                seconds = seconds_of(lambda: works(other))
                assert seconds < lease_seconds + TAKEOVER_SECONDS, one.output + other.output
                one.wait_says("handed over; standing by")
                wait_until(lambda: shop.newest.term == 2 and shop.newest.files, "the other commits")
                assert other.stop() == 0, other.output
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    shop.history()
    assert_landed(shop, *TABLES)


@pytest.mark.only_postgres  # its slot has one reader at a time: the former agent must give way
def test_an_agent_that_loses_the_store_leaves_it_to_one_that_has_not(
    shop: Installation, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections to the database live, and what it reads it can't commit."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    port, bucket = int(s3.endpoint.rpartition(":")[2]), f"s3://{s3.bucket}/landing"
    with ShopWriter(shop.database, seed=13), LossyProxy(port) as proxy:
        shop.configure(landing={"url": bucket, "endpoint": f"http://127.0.0.1:{proxy.port}"})
        with shop.start("run", "--standby") as one:
            works(one)
            shop.configure(landing={"url": bucket, "endpoint": s3.endpoint})
            with shop.start("run", "--standby") as other:
                other.wait_says("standing by: process")
                proxy.lead_to(1)
                proxy.cut(1.0)
                works(other, seconds=LEASE_SECONDS + 20)
                wait_until(
                    lambda: shop.newest.term == 2 and shop.newest.files, "the other commits", seconds=20
                )
                proxy.lead_to(port)
                take_over_again(one, other)
            works(one, times=2)
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    terms = [manifest.term for manifest in shop.history()]
    assert terms == sorted(terms)
    assert_landed(shop, *TABLES)


@pytest.mark.only_postgres  # requests know no database
def test_a_handover_that_nobody_can_take_says_so_and_the_agent_goes_on(shop: Installation) -> None:
    refused = shop.run("handover")
    assert refused.returncode == 1
    assert "no agent is active" in refused.stderr
    with shop.agent() as agent:
        shop.wait_dumped(agent)
        refused = shop.run("handover")
        assert refused.returncode == 1
        assert "not started with --standby" in refused.stderr
        assert "hint: start all agents with: run --standby" in refused.stderr
    with shop.start("run", "--standby") as alone:
        works(alone)
        refused = shop.run("handover")
        assert refused.returncode == 1
        assert "no standby took over" in refused.stderr
        works(alone, times=2)
        with ShopWriter(shop.database, seed=11):
            number = shop.newest.number
            shop.wait(alone, lambda m: m.number > number, "it goes on")
        assert alone.stop() == 0, alone.output
