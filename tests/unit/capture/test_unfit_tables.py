"""Tables that can't be captured as they are: quarantined alone, and taken up once they are fixed."""

from __future__ import annotations

import shlex

import pytest

from connector.capture import catalog_watcher
from connector.capture.request_intake import RequestIntake
from connector.errors import PreconditionError
from connector.landing.manifest import Manifest
from connector.landing.requests import DumpRequest, submit
from connector.schema import TableName
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, ask, insert
from tests.support.landing.cuts import assert_every_cut_exact, manifests_in

pytestmark = pytest.mark.usefixtures("short_waits")
BAD = TableName("public", "bad")
ITEMS = TableName("public", "items")


def keyless(database: MemoryDatabase) -> None:
    database.create_table("public.bad", [], {"id": "bigint", "a": "string"})
    with database.transaction() as transaction:
        transaction.insert("public.bad", id=1, a="from before")


def is_quarantined(manifest: Manifest) -> bool:
    return BAD in manifest.tables and manifest.tables[BAD].state == "quarantined"


def others_dumped(manifest: Manifest) -> bool:
    return all(t.dumped for name, t in manifest.tables.items() if name != BAD)


def follow_the_hint(agent: Agent, store: MemoryStore, manifest: Manifest) -> Manifest:
    command, table = (manifest.tables[BAD].hint or "").split("; then: deltatide dump ")
    assert command
    return ask(agent, store, tables=shlex.split(table))


def test_a_table_without_a_key_at_the_first_start_hinders_no_other(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    keyless(database)
    with Agent(database, store) as agent:
        first = agent.wait(lambda m: others_dumped(m) and not any(d.active for d in m.dumps), "others dumped")
        assert is_quarantined(first)
        assert not first.exact
        assert first.tables[BAD].schema_id is None
        assert first.tables[BAD].reason == "it has no primary key"
        assert [n.kind for n in manifests_in(store)[0].notices] == ["quarantined"]
        insert(database, 1001)
        agent.wait_caught_up()
    assert_every_cut_exact(store, database)


def test_a_dump_of_an_unfixed_table_is_rejected_and_the_others_asked_for_are_dumped(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    keyless(database)
    with Agent(database, store) as agent:
        agent.wait(others_dumped, "the others are dumped")
        alone = submit(store, DumpRequest(tables=[BAD]))
        rejected = agent.wait(lambda m: any(alone in n.text for n in m.notices), "it is rejected")
        (reported,) = [n.text for n in rejected.notices if alone in n.text]
        assert "it has no primary key (add a primary key)" in reported
        request = submit(store, DumpRequest())
        done = agent.wait(
            lambda m: sum(d.id.startswith(request) and not d.active for d in m.dumps) == 2, "two are dumped"
        )
        assert is_quarantined(done)
        insert(database, 1001)
        agent.wait_caught_up()


def test_a_table_quarantined_at_a_restart_is_taken_up_by_its_hint_once_fixed(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    database.create_table("public.bad", ["id"], {"id": "bigint", "a": "string"})
    with Agent(database, store) as agent:
        agent.wait_dumped()
        with database.transaction() as transaction:
            transaction.insert("public.bad", id=1, a="x")
        agent.wait_caught_up()
    database.alter("public.bad", add={"_CDC": ("string", "y")})
    with Agent(database, store) as agent:
        quarantined = agent.wait(is_quarantined, "it is quarantined")
        assert "_CDC" in (quarantined.tables[BAD].reason or "")
        insert(database, 1001)
        agent.wait_caught_up()
    with Agent(database, store) as agent:  # another restart, still unmended
        insert(database, 1003)
        assert is_quarantined(agent.wait_caught_up())
        database.alter("public.bad", rename={"_CDC": "cdc"})
        follow_the_hint(agent, store, quarantined)
        with database.transaction() as transaction:
            transaction.insert("public.bad", id=2, a="after", cdc="z")
        agent.wait_dumped()
        assert agent.wait_caught_up().exact
    assert_every_cut_exact(store, database)


def test_the_log_of_a_table_released_by_its_hint_is_carried_before_its_dump_begins(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", 60)  # the watch sees nothing of its being fixed
    keyless(database)
    with Agent(database, store) as agent:
        quarantined = agent.wait(lambda m: is_quarantined(m) and others_dumped(m), "it is quarantined")
        database.alter("public.bad", key=["id"])
        follow_the_hint(agent, store, quarantined)
        with database.transaction() as transaction:
            transaction.insert("public.bad", id=2, a="in the log")
        agent.wait_dumped()
        agent.wait_caught_up()
    assert_every_cut_exact(store, database)


def test_a_check_from_before_a_table_was_fixed_does_not_quarantine_it_again_once_released(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", 60)
    keyless(database)
    with Agent(database, store) as agent:
        quarantined = agent.wait(lambda m: is_quarantined(m) and others_dumped(m), "it is quarantined")
        before = agent.source.check_catalog()
        take_released = RequestIntake.take_released

        def released_while_the_check_ends(intake: RequestIntake) -> set[TableName]:
            released = take_released(intake)
            if released:
                agent.capture._watch._found = before
            return released

        monkeypatch.setattr(RequestIntake, "take_released", released_while_the_check_ends)
        database.alter("public.bad", key=["id"])
        follow_the_hint(agent, store, quarantined)
        agent.wait_dumped()
    assert_every_cut_exact(store, database)


def test_a_keyless_table_created_while_running_is_quarantined_and_taken_up_when_it_has_a_key(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        keyless(database)
        agent.wait(is_quarantined, "it is quarantined")
        insert(database, 1001)
        agent.wait_caught_up()
        database.alter("public.bad", key=["id"])
        agent.wait(lambda m: m.tables[BAD].dumped and m.exact, "it is taken up")
        with database.transaction() as transaction:
            transaction.insert("public.bad", id=2, a="in the log")
        agent.wait_caught_up()
    assert_every_cut_exact(store, database)


def test_an_agent_that_can_capture_no_table_says_so_and_stops(store: MemoryStore) -> None:
    database = MemoryDatabase()
    keyless(database)
    agent = Agent(database, store)
    agent.start()
    agent.join()
    assert isinstance(agent.error, PreconditionError)
    assert "public.bad: it has no primary key" in str(agent.error)
