"""The agent is killed at named moments under load and started again: nothing is lost or doubled."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.agent.installed import Installation, Meddler
from tests.support.source.shop_writer import TABLES, ShopWriter
from tests.support.spark.lake import assert_lake, assert_landed, merge, merge_until_whole

EACH_MOMENT = (pytest.mark.only_postgres, pytest.mark.soak)
"""Each moment for itself: the agent does the same for all databases."""


@pytest.mark.soak_on_mariadb  # MariaDB's agent is MySQL's
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(["files-landed:1", "files-landed:3", "files-landed:9"], marks=EACH_MOMENT),
        pytest.param(
            ["manifest-committed:1", "manifest-committed:2", "manifest-committed:8"], marks=EACH_MOMENT
        ),
        pytest.param(["chunk-half-read:1", "chunk-half-read:2", "chunk-half-read:7"], marks=EACH_MOMENT),
        ["chunk-half-read:3", "manifest-committed:1", "files-landed:2", "manifest-committed:6"],
    ],
    ids=["files-landed", "manifest-committed", "chunk-half-read", "one-after-the-other"],
)
def test_after_a_kill_at_a_named_moment_the_agent_goes_on_exactly(
    shop: Installation, kills: list[str]
) -> None:
    with ShopWriter(shop.database, seed=len(kills[0])):
        for kill_at in kills:
            with shop.start("run", kill_at=kill_at) as agent:
                assert agent.wait() == -9, agent.output
            assert shop.newest is None or shop.history()
        with shop.agent() as agent:
            shop.wait_dumped(agent)
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    manifests = shop.history()
    assert manifests[-1].epoch == 1, "no gap was there to be repaired"
    assert_landed(shop, *TABLES)


@pytest.mark.soak_on_mysql
@pytest.mark.soak_on_mariadb  # which chunks are read again knows no database
def test_a_chunk_that_a_kill_cut_off_is_read_again_and_committed_chunks_are_not(shop: Installation) -> None:
    with shop.start("run", kill_at="chunk-half-read:12") as agent:
        assert agent.wait() == -9
    committed = {(f.table, f.chunk) for m in shop.history() for f in m.files if f.kind == "chunk"}
    with shop.agent() as agent:
        shop.wait_dumped(agent)
    chunks = [(f.table, f.chunk) for m in shop.history() for f in m.files if f.kind == "chunk"]
    assert committed, "the kill came too early to tell"
    assert len(chunks) == len(set(chunks)), "a committed chunk was read again"
    assert_landed(shop, *TABLES)


@pytest.mark.soak  # the agent alone is, above; both are in test_chaos, which compares the lake, too
def test_agent_and_merge_are_killed_by_turns_and_the_lake_equals_the_source(
    shop: Installation, spark: Any
) -> None:
    with ShopWriter(shop.database, seed=3):
        for kill_at in ("chunk-half-read:5", "files-landed:4", "manifest-committed:3"):
            with shop.start("run", kill_at=kill_at) as agent:
                assert agent.wait() == -9, agent.output
        with shop.start("merge", kill_at="table-merged:2") as merging:
            assert merging.wait(120) == -9, merging.output
        for kill_at in ("chunk-half-read:7", "manifest-committed:2", "files-landed:3"):
            if kill_at.startswith("chunk"):  # dumps that are done are not read again
                assert shop.run("dump", "--all").returncode == 0
            with shop.start("run", kill_at=kill_at) as agent:
                assert agent.wait() == -9, agent.output
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
        merge_until_whole(spark, shop, agent)
    shop.history()
    assert_lake(shop, *TABLES)
    assert_landed(shop, *TABLES)


@pytest.mark.only_postgres
@pytest.mark.soak
def test_killed_at_random_times_for_minutes_the_agent_goes_on_exactly(shop: Installation, spark: Any) -> None:
    with ShopWriter(shop.database, seed=4):
        for number in range(40):
            with shop.start("run") as agent:
                with Meddler(agent.kill, 0.3 + number * 0.1):
                    assert agent.wait() == -9, agent.output
            if number % 8 == 7:
                shop.run("dump", "--all")
                merge(spark, shop)
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
        merge_until_whole(spark, shop, agent)
    shop.history()
    assert_lake(shop, *TABLES)
