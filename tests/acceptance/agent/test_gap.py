"""The slot is dropped or lost: a gap, found out and repaired, or the agent stops, as configured."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.agent.installed import Installation, assert_message
from tests.support.source.shop_writer import TABLES, ShopWriter
from tests.support.spark.lake import assert_lake, assert_landed, lake_rows, merge, merge_until_whole
from tests.support.waiting import wait_until

pytestmark = pytest.mark.only_postgres


def drop_slot(shop: Installation) -> None:
    """Drop the slot, which an agent may be using and may take again at once."""

    def dropped() -> bool:
        shop.database.execute(
            "DO $$ BEGIN PERFORM pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots"
            f" WHERE slot_name = '{shop.slot}' AND active_pid IS NOT NULL;"
            f" PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            f" WHERE slot_name = '{shop.slot}' AND active_pid IS NULL;"
            " EXCEPTION WHEN object_in_use THEN NULL; END $$"
        )
        return shop.confirmed() is None

    wait_until(dropped, "the slot is dropped", pause=0.001)


def change_unseen(shop: Installation) -> None:
    shop.database.execute(
        "DELETE FROM items WHERE id <= 50; DELETE FROM small;"
        "UPDATE parts SET label = 'unseen' WHERE number < 50;"
        "INSERT INTO items (id, name) VALUES (-1, 'unseen')"
    )


def assert_repaired(shop: Installation) -> None:
    """A new epoch began, the gap is on record, and all tables were dumped again."""
    manifests = shop.history()
    newest = manifests[-1]
    assert newest.epoch == 2
    assert [gap.epoch for gap in newest.gaps] == [2]
    assert any(notice.kind == "gap" for m in manifests for notice in m.notices)
    repaired = {str(d.table) for d in newest.dumps if d.reason == "repair" and d.state == "complete"}
    assert repaired == set(map(shop.table, TABLES))


@pytest.mark.soak  # repaired below; spark/test_change_set merges what a gap left
def test_rows_deleted_during_a_gap_disappear_from_the_lake(shop: Installation, spark: Any) -> None:
    with shop.agent() as agent:
        shop.wait_dumped(agent)
    merge(spark, shop)
    drop_slot(shop)
    change_unseen(shop)
    assert (17,) in lake_rows(shop, "items", ["id"])
    with ShopWriter(shop.database, seed=20), shop.agent() as agent:
        shop.wait_dumped(agent)
        assert "gap: " in agent.output
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
        merge_until_whole(spark, shop, agent)
    assert_repaired(shop)
    assert (17,) not in lake_rows(shop, "items", ["id"])
    assert_lake(shop, *TABLES)
    assert_landed(shop, *TABLES)
    assert shop.json("status")["gaps"] == 1


def test_a_slot_dropped_while_running_is_found_out_and_repaired(shop: Installation) -> None:
    with shop.agent() as agent:
        with ShopWriter(shop.database, seed=21):
            shop.wait_dumped(agent)
            unseen = shop.database.connect(autocommit=False)
            # A slot's log begins after the transactions that run when it is made: this one is in the gap.
            unseen.cursor().execute("DELETE FROM items WHERE id BETWEEN 100 AND 150")
            drop_slot(shop)
            unseen.commit()
            unseen.close()
            shop.wait(agent, lambda m: m.epoch == 2, "the gap is found out")
        shop.wait_caught_up(agent)
    assert_repaired(shop)
    assert_landed(shop, *TABLES)


def test_a_slot_that_kept_too_much_log_is_repaired(shop: Installation) -> None:
    database = shop.database
    with shop.agent() as agent:
        shop.wait_dumped(agent)
    database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    try:
        database.execute("SELECT pg_reload_conf()")
        change_unseen(shop)

        def lost() -> bool:
            database.execute("CREATE TABLE IF NOT EXISTS filler (n int PRIMARY KEY); DROP TABLE filler")
            database.execute("SELECT pg_switch_wal()")
            database.execute("CHECKPOINT")
            status = database.execute(
                "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", (shop.slot,)
            )
            return status == [("lost",)]

        wait_until(lost, "the slot is lost")
    finally:
        database.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        database.execute("SELECT pg_reload_conf()")
    with ShopWriter(database, seed=22), shop.agent() as agent:
        shop.wait_dumped(agent)
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    assert_repaired(shop)
    assert_landed(shop, *TABLES)


@pytest.mark.parametrize("running", [False, True], ids=["while-stopped", "while-running"])
def test_configured_to_stop_the_agent_ends_at_a_gap_and_begins_no_new_epoch(
    shop: Installation, running: bool
) -> None:
    shop.configure(source={"on_gap": "stop"})
    with shop.start("run") as agent:
        shop.wait_dumped(agent)
        if running:
            drop_slot(shop)
            agent.returncode = agent.wait()  # type: ignore[attr-defined]
            text = assert_message(agent, "is lost", shop.slot, 'on_gap = "repair"')
            assert len(text) > 50
        else:
            assert agent.stop() == 0
    if not running:
        drop_slot(shop)
        position = shop.newest.position
        done = shop.run("run")
        assert_message(done, "is lost", shop.slot, 'on_gap = "repair"')
        assert shop.newest.position == position
    assert shop.confirmed() is None, "no slot was made"
    assert {m.epoch for m in shop.history()} == {1}
    shop.configure(source={"on_gap": "repair"})
    with shop.agent() as agent:
        shop.wait_caught_up(agent)
    assert_repaired(shop)
