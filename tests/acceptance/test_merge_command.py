"""The merge is killed, run twice at once, and run for some tables only: the lake is right in the end."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.installed import Installation, Meddler
from tests.lake import assert_lake, merge_until_whole
from tests.shop_writer import TABLES, ShopWriter

pytestmark = pytest.mark.only_postgres


def capture(shop: Installation, seed: int) -> None:
    """Let the agent land some changes, and the tables first where they were not dumped."""
    with shop.agent() as agent:
        shop.wait_dumped(agent)
        before = shop.newest.number
        with ShopWriter(shop.database, seed=seed, pause=0.001):
            shop.wait(agent, lambda m: m.number > before + 5, "changes have landed")
        shop.wait_caught_up(agent)


def finish(shop: Installation, spark: Any) -> None:
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
        merge_until_whole(spark, shop, agent)
    assert_lake(shop, *TABLES)


def test_a_merge_that_was_killed_is_finished_by_the_next(shop: Installation, spark: Any) -> None:
    capture(shop, seed=40)
    # Killed between two tables: test_kill.
    with shop.start("merge", kill_at="cut-missing") as merge:
        assert merge.wait(120) == -9, merge.output
    capture(shop, seed=41)
    finish(shop, spark)


def test_two_merges_at_once_end_in_the_right_state(shop: Installation, spark: Any) -> None:
    capture(shop, seed=43)
    until = shop.newest.number
    with shop.start(
        "merge", "--tables", "public.items,public.small", "--until", str(until), "--json"
    ) as first:
        assert first.wait(120) == 0, first.output
    report = json.loads(first.output.splitlines()[-1])
    assert sorted(table["table"] for table in report["tables"]) == ["public.items", "public.small"]
    assert report["manifest"] == until
    assert not report["exact"], "a table is behind"
    capture(shop, seed=44)
    with shop.start("merge", "--json") as one, shop.start("merge", "--json") as other:
        for merge in (one, other):
            assert merge.wait(180) in (0, 1), merge.output
            assert "Traceback" not in merge.output, merge.output[-4000:]
            assert merge.process.returncode == 0 or "hint" in merge.output, merge.output
        assert 0 in (one.process.returncode, other.process.returncode)
    finish(shop, spark)


@pytest.mark.soak
def test_merges_killed_at_random_times_leave_what_the_next_one_mends(shop: Installation, spark: Any) -> None:
    times = random.Random(1)
    for number in range(10):
        capture(shop, seed=50 + number)
        with shop.start("merge") as merge, Meddler(merge.kill, times.uniform(5, 25)):
            assert merge.wait(120) in (0, -9), merge.output
    finish(shop, spark)
