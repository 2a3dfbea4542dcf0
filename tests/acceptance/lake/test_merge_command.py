"""Merge and upkeep are killed, run twice at once, and for some tables only: the lake is right in the end."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import time
from typing import Any

import pytest

from tests.support.agent.installed import Installation, Meddler, assert_message
from tests.support.source.shop_writer import TABLES, ShopWriter
from tests.support.spark.lake import assert_lake, merge, merge_until_whole

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


@pytest.mark.soak  # merges are killed in test_kill
def test_a_merge_that_was_killed_is_finished_by_the_next(shop: Installation, spark: Any) -> None:
    capture(shop, seed=40)
    # Killed between two tables: test_kill.
    with shop.start("merge", kill_at="cut-missing") as merge:
        assert merge.wait(120) == -9, merge.output
    capture(shop, seed=41)
    finish(shop, spark)


@pytest.mark.soak  # two at once: spark/test_job.py, spark/spark/test_log_store.py
def test_two_merges_at_once_end_in_the_right_state(shop: Installation, spark: Any) -> None:
    capture(shop, seed=43)
    until = shop.newest.number
    with shop.start(
        "merge", "--tables", "public.items,public.small", "--until", str(until), "--json"
    ) as first:
        assert first.wait(240) == 0, first.output
    report = json.loads(first.output.splitlines()[-1])
    assert sorted(table["table"] for table in report["tables"]) == ["public.items", "public.small"]
    assert report["manifest"] == until
    assert not report["exact"], "a table is behind"
    capture(shop, seed=44)
    shop.own_spark = True
    with shop.start("merge", "--json") as one, shop.start("merge", "--json") as other:
        for merge in (one, other):
            assert merge.wait(300) in (0, 1), merge.output
            assert "Traceback" not in merge.output, merge.output[-4000:]
            assert merge.process.returncode == 0 or "hint" in merge.output, merge.output
        assert 0 in (one.process.returncode, other.process.returncode)
    finish(shop, spark)


@pytest.mark.soak  # a demo is interrupted in test_demo
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_ends_the_merge_after_the_table_under_way(
    shop: Installation, spark: Any, number: signal.Signals
) -> None:
    shop.own_spark = True
    with shop.agent() as agent:
        shop.wait_dumped(agent)
        with ShopWriter(shop.database, seed=45, pause=0.001):
            with shop.start("merge", "--every", "0.1") as merge:
                # The next one is under way at once, as the writer goes on.
                merge.wait_says("cut at manifest", seconds=240)
                assert merge.stop_group(number) == 0, merge.output
                assert "Traceback" not in merge.output, merge.output
                assert not re.search("^failed|ERROR", merge.output, re.MULTILINE), merge.output
    finish(shop, spark)


def test_a_store_that_hangs_ends_a_merge_with_a_message(place: Installation) -> None:
    place.own_spark = True
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        endpoint = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        landing = {"url": "s3://bucket/landing", "endpoint": endpoint}
        place.configure(landing=landing, lake={"url": "s3a://bucket/lake"})
        begun = time.monotonic()
        done = place.run("merge", seconds=120)
        assert time.monotonic() - begun < 30
    assert_message(done, f"{endpoint}: does not answer within 10 s", "landing.endpoint is right")


@pytest.mark.soak
def test_upkeep_says_what_it_would_do_does_it_once_and_leaves_the_rest_to_the_next_after_a_kill(
    shop: Installation, spark: Any
) -> None:
    capture(shop, seed=46)
    merge(spark, shop)
    table = "public.items: SET TBLPROPERTIES (delta.deletedFileRetentionDuration from its default"
    planned = shop.run("maintain", "--dry-run", seconds=120)
    assert (planned.returncode, f"would do: {table}" in planned.stdout) == (0, True), planned
    with shop.start("maintain", kill_at="upkeep-done") as killed:
        assert killed.wait(120) == -9, killed.output
    done = shop.run("maintain", "--json", seconds=120)
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, {finding["status"] for finding in findings}) == (0, {"done"}), done
    assert len(findings) == len(TABLES) - 1, "the killed one did one table"
    assert shop.run("maintain", seconds=120).stdout == "nothing to do\n"
    finish(shop, spark)


@pytest.mark.soak
def test_merges_killed_at_random_times_leave_what_the_next_one_fixes(shop: Installation, spark: Any) -> None:
    times = random.Random(1)
    for number in range(10):
        capture(shop, seed=50 + number)
        with shop.start("merge") as merge, Meddler(merge.kill, times.uniform(5, 25)):
            assert merge.wait(120) in (0, -9), merge.output
    finish(shop, spark)
