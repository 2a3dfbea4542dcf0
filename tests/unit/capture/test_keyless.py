"""Tables without a key: their log lands once, from the start on, and they are never dumped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from connector.capture.catalog_changes import (
    capture_named,
    end_dumps_of_quarantined,
    forget_contradicted_checks,
    repair_told,
    repair_unlogged,
)
from connector.capture.request_intake import RequestIntake
from connector.config import TableConfig
from connector.control.dump_requests import request_dump
from connector.control.verifications import captured_tables
from connector.errors import RequestError
from connector.landing.event_batch import QuarantineNotice, UnloggedNotice
from connector.landing.manifest import Manifest
from connector.landing.requests import DumpRequest, submit
from connector.logged_table import LoggedTable, Positions
from connector.schema import TableName
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, Killed, ask, insert, landed_ids
from tests.support.agent.starts import Start
from tests.support.landing.cuts import assert_no_event_lost, manifests_in

ITEMS, PARTS = TableName.parse("public.items"), TableName.parse("public.parts")
ONLY_CHANGES = TableConfig(shapes=["changes"])

pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.fixture
def keyless(database: MemoryDatabase) -> MemoryDatabase:
    """The shop, whose items have no key."""
    database.keyless.add(ITEMS)
    return database


def dumped(manifest: Manifest) -> set[TableName]:
    return {dump.table for dump in manifest.dumps}


def texts(store: MemoryStore) -> list[str]:
    return [notice.text for manifest in manifests_in(store) for notice in manifest.notices]


def test_changes_land_once_through_a_crash_and_no_dump_is_taken(
    keyless: MemoryDatabase, store: MemoryStore
) -> None:
    agent = Agent(keyless, store)
    agent.start()
    manifest = agent.wait_dumped()
    assert dumped(manifest) == {PARTS}
    assert (manifest.tables[ITEMS].key, manifest.exact) == ([], True)
    insert(keyless, 1001)
    agent.wait_caught_up()
    agent.store.die_at(lambda call, _: "before" if call == "create" else None)  # files landed, no manifest
    insert(keyless, 1002)
    assert isinstance(agent.join(), Killed)
    with Agent(keyless, store) as agent:
        insert(keyless, 1003)
        with keyless.transaction() as transaction:
            transaction.update("public.items", (1003,), a="new")
            transaction.truncate("public.items")
        agent.wait_caught_up()
    assert_no_event_lost(store, keyless)
    assert dumped(manifests_in(store)[-1]) == {PARTS}


def test_a_dump_is_refused_and_one_of_all_tables_passes_it_over(
    keyless: MemoryDatabase, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    with Agent(keyless, store) as agent:
        agent.wait_dumped()
        submit(store, DumpRequest(tables=["public.items"]))
        agent.wait(lambda _: "can't be dumped: only its changes are captured" in caplog.text, "it is refused")
        manifest = ask(agent, store)
    assert dumped(manifest) == {PARTS}


def test_after_a_gap_only_the_others_are_dumped_again(keyless: MemoryDatabase, store: MemoryStore) -> None:
    with Agent(keyless, store) as agent:
        agent.wait_dumped()
    keyless.slots.clear()
    with Agent(keyless, store) as agent:
        manifest = agent.wait(lambda m: m.epoch == 2 and m.exact, "the others are whole")
        insert(keyless, 1001)
        agent.wait_caught_up()
    assert [(d.table, d.reason) for d in manifest.dumps if d.epoch == 2] == [(PARTS, "repair")]
    assert len(manifest.gaps) == 1
    assert landed_ids(store) == [1001]


def test_a_change_without_row_events_is_told(keyless: MemoryDatabase, store: MemoryStore) -> None:
    start = Start(keyless, store)
    tables, dumps = start.open()
    keyless.unlogged[ITEMS] = 1
    repair_unlogged(start.source, tables, dumps, start.source.check_catalog(), 2, start.config)
    repair_told(tables, dumps, [UnloggedNotice(ITEMS, 40, "it was rewritten")], 2, 50)
    assert not dumps.active_of(ITEMS)
    assert ["row changes that this made did not land" in n.text for n in tables.notices] == [True, True]
    assert tables.states[ITEMS].reported_upto == (1, 50)


@pytest.mark.parametrize("former", [True, False])
def test_changes_under_a_former_name_are_reported_in_the_manifest_in_which_they_begin(
    keyless: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, former: bool
) -> None:
    start = Start(keyless, store)
    tables, dumps = start.open()
    monkeypatch.setattr(start.source, "contradicted_by_log", lambda *_: {ITEMS: "doubted"})
    for _ in range(2):
        assert forget_contradicted_checks(
            start.source, tables, dumps, [LoggedTable(1, ITEMS, lsn=5, former=former)], 20
        )
    assert ["under former names" in notice.text for notice in tables.notices] == [True] * former
    assert ITEMS not in dumps.needs.by_table


def test_log_from_before_a_check_that_reported_a_gap_does_not_contradict_it(
    keyless: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tables swapped names, and log from before that has yet to be read: one gap, none that stops."""
    start = Start(keyless, store)
    tables, dumps = start.open()
    counting: list[LoggedTable] = []

    def contradicted(_: Any, logged: Sequence[LoggedTable], reported_upto: Positions) -> dict[TableName, str]:
        counting.extend(each for each in logged if each.lsn >= reported_upto(ITEMS, each))
        return {}

    monkeypatch.setattr(start.source, "contradicted_by_log", contradicted)

    def counts(position: int, **fields: Any) -> bool:
        counting.clear()
        logged = [LoggedTable(1, PARTS, lsn=position, **fields)]
        forget_contradicted_checks(start.source, tables, dumps, logged, position)
        return bool(counting)

    begun = start.newest.position
    insert(keyless, 1001)
    assert (counts(begun - 1), counts(begun), counts(begun - 1, former=True)) == (False, True, True)
    keyless.unlogged[ITEMS] = 1
    found = start.source.check_catalog()
    assert counts(found.position - 1)
    repair_unlogged(start.source, tables, dumps, found, 2, start.config)
    assert (counts(found.position - 1), counts(found.position)) == (False, True)
    dumps.restart_in_epoch(2)
    assert counts(found.position - 1), "positions of another epoch say nothing"


def test_a_quarantined_one_is_released_by_a_request_for_a_dump_that_is_not_taken(
    keyless: MemoryDatabase, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with Agent(keyless, store) as agent:
        agent.wait_dumped()
        agent.source.undecodable["public.items"] = "odd"
        insert(keyless, 1001)
        agent.wait(lambda m: m.tables[ITEMS].state == "quarantined", "it is quarantined")
        agent.source.undecodable.clear()
        submit(store, DumpRequest(tables=["public.items"]))
        agent.wait(lambda m: m.tables[ITEMS].state == "captured", "it is released")
        agent.wait_dumped()
        insert(keyless, 1002)
        agent.wait_caught_up()
    assert landed_ids(store) == [1002]
    assert ITEMS not in dumped(manifests_in(store)[-1])
    assert "released; what happened meanwhile is lost" in texts(store)
    assert not [n for m in manifests_in(store) for n in m.notices if n.kind == "gap"]
    served = [m.split(" ", 2)[2] for m in caplog.messages if m.startswith("request ")]
    assert served == ["releases public.items, of which only changes are captured"]
    reading = [m for m in caplog.messages if m.startswith(("stopped at", "reading the log anew from"))]
    assert [m.split(" ")[0] for m in reading] == ["reading", "stopped"], "it stops only once"


@pytest.mark.parametrize("reload", [True, False])
def test_a_table_may_lose_its_key_and_gain_it_by_configuration(
    database: MemoryDatabase, store: MemoryStore, reload: bool
) -> None:
    start = Start(database, store)
    tables, dumps = start.open()
    assert dumps.active_of(ITEMS)
    for only_changes in (True, False):
        database.keyless ^= {ITEMS}
        settings = {ITEMS: ONLY_CHANGES} if only_changes else {}
        config = start.config.model_copy(update={"tables": settings})
        if reload:
            names = capture_named(start.source, tables, dumps, config)
            assert names == {ITEMS}
            start.start_capturing(tables, dumps, *names)
        else:
            start = Start(database, store, config)
            tables, dumps = start.open()
        assert tables.states[ITEMS].state == "captured"
        assert bool(dumps.active_of(ITEMS)) != only_changes
        assert start.newest.tables[ITEMS].dumped == only_changes
        assert start.newest.tables[ITEMS].need is None
        assert tables.adopt(database.shown(database.schema(ITEMS)), 1 << 40) is None
        assert tables.states[ITEMS].state == "captured"


def test_commands_refuse_a_dump_at_once_and_verify_passes_it_over(
    keyless: MemoryDatabase, store: MemoryStore
) -> None:
    class View:
        def newest(self) -> Manifest:
            return manifests_in(store)[-1]

    Start(keyless, store).open()
    view: Any = View()
    assert captured_tables(view) == ([PARTS], [])
    with pytest.raises(RequestError, match=r"public\.items can't be dumped: only its changes are captured"):
        request_dump(view, ["public.items"], verify=True)


def test_one_that_lost_its_key_while_it_was_dumped_needs_no_dump_once_it_is_released(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    start = Start(database, store)
    tables, dumps = start.open()
    tables.quarantine(QuarantineNotice(ITEMS, 5, "it has no primary key", "fix it"))
    end_dumps_of_quarantined(tables, dumps)
    assert tables.snapshot(2, dumps.needs.copy())[ITEMS].need is not None
    database.keyless.add(ITEMS)  # the configuration asks only for changes, and was reloaded
    submit(store, DumpRequest(tables=["public.items"]))
    intake = RequestIntake(store, start.source, dumps, tables, {})
    intake._poll()
    intake.serve(2, start.newest.position)
    found = tables.snapshot(2, dumps.needs.copy())[ITEMS]
    assert (found.state, found.key, found.dumped, found.need) == ("captured", [], True, None)


def test_a_released_one_that_no_check_has_seen_since_is_no_gap(
    keyless: MemoryDatabase, store: MemoryStore
) -> None:
    start = Start(keyless, store)
    tables, dumps = start.open()
    tables.quarantine(QuarantineNotice(ITEMS, 5, "odd", "fix it"))
    tables.update(ITEMS, fingerprint=None)
    tables.release(ITEMS, tables.schemas[ITEMS])
    start.start_capturing(tables, dumps)
    assert not [n for m in manifests_in(store) for n in m.notices if n.kind == "gap"]
