"""A changed configuration, taken over by a running agent."""

from __future__ import annotations

from typing import Any

import pytest

from connector.errors import ConfigurationError
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import ControlRequest, DumpRequest, pending_ids, submit
from connector.schema import TableName
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, config_of, dump_of, insert, landed_ids
from tests.support.landing.cuts import assert_every_cut_exact
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")

ITEMS, PARTS = TableName.parse("public.items"), TableName.parse("public.parts")
SLOW: dict[str, Any] = {"chunk_rows": 1, "delay_seconds": 0.05, "workers": 1}


def reloadable(database: MemoryDatabase, store: MemoryStore, **settings: Any) -> Agent:
    agent = Agent(database, store, **settings)
    agent.capture._load_config = lambda: agent.config
    return agent


def reload(agent: Agent, **settings: Any) -> None:
    agent.config = config_of(**settings)
    agent.capture.reload()


def test_a_table_that_is_added_is_captured_while_a_dump_of_another_goes_on(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with reloadable(database, store, tables=["public.items"], **SLOW) as agent:
        before = agent.wait(lambda m: m.dumps[0].chunks > 1, "the dump has begun")
        reload(agent, tables=["public.*"], **SLOW)
        now = agent.wait(lambda m: PARTS in m.tables, "the other table is captured")
        running = dump_of(now, before.dumps[0].id)
        assert (running.state, running.number) == ("running", before.dumps[0].number)
        assert running.chunks >= before.dumps[0].chunks
        newest = agent.wait_dumped()
        assert {d.table for d in newest.dumps} == {ITEMS, PARTS}
        assert dump_of(newest, running.id).rows == 20
        assert agent.capture.progress.reconnects == 0
    assert_every_cut_exact(store, database)


def test_a_table_that_is_taken_out_is_left_and_its_dump_ends(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with reloadable(database, store, **SLOW) as agent:
        agent.wait_dumped()
        dump = submit(store, DumpRequest(tables=["public.items"]))
        agent.wait(lambda m: dump_of(m, dump), "it is queued")
        reload(agent, tables=["public.*"], exclude=["public.items"], **SLOW)
        newest = agent.wait(lambda m: set(m.tables) == {PARTS}, "the other one is left")
        ended = dump_of(newest, dump)
        assert (ended.state, ended.error) == ("cancelled", "the table is no longer captured")
        insert(database, 901)
        agent.wait_caught_up()
        reload(agent, tables=["public.*"], **SLOW)
        agent.wait(lambda m: ITEMS in m.tables, "it is back")
        insert(database, 902)
        agent.wait_dumped()
        newest = agent.wait_caught_up()
    assert landed_ids(store) == [902]
    assert [d.reason for d in newest.dumps if d.table == ITEMS] == ["initial", "request", "initial"]


def test_settings_of_dumps_are_taken_over_and_a_request_reloads_too(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with reloadable(database, store, chunk_rows=1, delay_seconds=3600, workers=1) as agent:
        agent.wait(lambda m: sum(d.chunks for d in m.dumps) == 1, "one chunk is read")
        agent.config = config_of(chunk_rows=7, delay_seconds=0, workers=2)
        submit(store, ControlRequest(kind="reload"))
        agent.wait_dumped()
        wait_until(lambda: not pending_ids(store), "the request is removed")


def test_a_configuration_that_is_invalid_changes_nothing(
    database: MemoryDatabase, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise ConfigurationError("shop.toml: dump.workers: must be a whole number")

    with reloadable(database, store) as agent:
        agent.wait_dumped()
        agent.capture._load_config = broken
        agent.capture.reload()
        wait_until(lambda: "keeping the configuration as it was" in caplog.text, "it is refused")
        submit(store, ControlRequest(id="r", kind="reload"))
        agent.wait(lambda m: any("must be a whole number" in n.text for n in m.notices), "it is rejected")
        wait_until(lambda: store.read("rejected/r.reason.txt"), "the reason is beside it")
    newest = newest_manifest(store)
    assert newest is not None
    assert set(newest.tables) == {ITEMS, PARTS}


def test_settings_that_need_a_restart_are_named() -> None:
    before, new = config_of(), config_of(flush_seconds=9, tables=["a.b"], workers=5, on_gap="stop")
    taken, differ = before.reloaded(new)
    assert differ == ["source.on_gap", "landing.flush_seconds"]
    assert (taken.source.tables, taken.dump.workers, taken.source.on_gap) == (["a.b"], 5, "repair")
    assert before.reloaded(before) == (before, [])


def test_names_that_match_no_captured_table_change_nothing(
    database: MemoryDatabase, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A start with them is refused, too; a typo must not end all dumps."""
    with reloadable(database, store) as agent:
        agent.wait_dumped()
        reload(agent, tables=["publik.*"])
        wait_until(lambda: "matches none of the captured tables" in caplog.text, "it is refused")
        insert(database, 901)
        agent.wait_caught_up()
    newest = newest_manifest(store)
    assert newest is not None
    assert set(newest.tables) == {ITEMS, PARTS}
