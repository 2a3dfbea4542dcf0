"""The binary log is purged or reset under the agent: a gap, repaired, or the agent stops, as configured."""

from __future__ import annotations

import pytest

from tests.support.agent.installed import Installation, assert_message
from tests.support.source.shop_writer import TABLES, ShopWriter
from tests.support.spark.lake import assert_landed
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.only_mariadb, pytest.mark.only_mysql]

UNSEEN = (
    "DELETE FROM items WHERE id <= 50",
    "UPDATE parts SET label = 'unseen' WHERE number < 50",
    "INSERT INTO items (id, name) VALUES (-1, 'unseen')",
)


def purge(shop: Installation) -> None:
    """Drop all of the log but its newest file; a reader that has just ended may still hold one."""

    def purged() -> bool:
        files = shop.database.rows("SHOW BINARY LOGS")
        shop.database.rows(f"PURGE BINARY LOGS TO '{files[-1][0]}'")
        return len(shop.database.rows("SHOW BINARY LOGS")) == 1

    shop.database.rows("FLUSH BINARY LOGS")
    wait_until(purged, "the log is purged")


def assert_repaired(shop: Installation) -> None:
    """A new epoch began, the gap is on record, and all tables were dumped again."""
    manifests = shop.history()
    newest = manifests[-1]
    assert newest.epoch == 2
    assert [gap.epoch for gap in newest.gaps] == [2]
    repaired = {str(d.table) for d in newest.dumps if d.reason == "repair" and d.state == "complete"}
    assert repaired == set(map(shop.table, TABLES))
    assert_landed(shop, *TABLES)
    assert shop.json("status")["gaps"] == 1


@pytest.mark.soak_on_mariadb  # integration/mysql/log/test_capture finds such a gap on both
def test_a_log_purged_while_the_agent_was_stopped_is_repaired_or_ends_it(shop: Installation) -> None:
    with shop.agent() as agent:
        shop.wait_dumped(agent)
    position = shop.newest.position
    for statement in UNSEEN:
        shop.database.rows(statement)
    purge(shop)
    shop.configure(source={"on_gap": "stop"})
    assert_message(shop.run("run"), 'on_gap = "repair"')
    assert shop.newest.position == position, "nothing was written"
    shop.configure(source={"on_gap": "repair"})
    with ShopWriter(shop.database, seed=20), shop.agent() as agent:
        shop.wait_dumped(agent)
        assert "gap: " in agent.output
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    assert_repaired(shop)


@pytest.mark.soak_on_mysql  # what has been read is not asked for again, on either
def test_a_purge_under_the_agent_takes_nothing_that_it_has_not_read(shop: Installation) -> None:
    with shop.agent() as agent:
        with ShopWriter(shop.database, seed=21) as writer:
            shop.wait_dumped(agent)
            for _ in range(3):
                written = writer.transactions
                agent.wait_until(lambda w=written: writer.transactions > w + 50, "the writer goes on")
                end = shop.end_of_log()
                shop.wait(agent, lambda m, e=end: m.position >= e, "the log is landed")
                purge(shop)
        shop.wait_caught_up(agent)
    assert {m.epoch for m in shop.history()} == {1}, "no gap"
    assert_landed(shop, *TABLES)


def test_a_log_reset_under_the_agent_is_found_out_and_repaired(shop: Installation) -> None:
    with shop.agent() as agent:
        shop.wait_dumped(agent)
        for statement in UNSEEN:
            shop.database.rows(statement)
        shop.database.rows("RESET MASTER")
        with ShopWriter(shop.database, seed=22):
            shop.wait(agent, lambda m: m.epoch == 2, "the gap is found out")
        shop.wait_caught_up(agent)
    assert_repaired(shop)
