"""Layouts that change, and tables that are quarantined, while the capture runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from connector.capture import catalog_watcher
from connector.capture.hidden_columns import HiddenColumns
from connector.capture.lander import LandedSegment
from connector.errors import RequestError, TableError
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import DumpRequest, submit
from connector.schema import TableName
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, Writer, ask, counted, dump_of, insert, landed_ids
from tests.support.landing.cuts import assert_every_cut_exact, assert_no_event_lost, manifests_in
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")


@contextmanager
def dumped(database: MemoryDatabase, store: MemoryStore) -> Iterator[Agent]:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        yield agent


def touch(database: MemoryDatabase) -> None:
    """Update a row of each table, whereby the log tells of the layout."""
    with database.transaction() as transaction:
        schema = database.schema("public.items")
        key = sorted(database.rows(schema.table))[0]
        transaction.update("public.items", key)


def test_an_added_column_is_dumped_where_it_holds_something(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        database.alter("public.items", add={"c": ("string", "default")})
        touch(database)
        agent.wait(lambda m: any(d.kind == "where" for d in m.dumps), "the column is asked for")
        manifest = agent.wait_dumped()
    assert manifest.dumps[-1].where == "c is not null"
    assert manifest.dumps[-1].rows == 20
    assert manifest.tables[TableName.parse("public.items")].schema_id == database.schema("public.items").id
    notices = [n.text for m in manifests_in(store) for n in m.notices]
    assert notices == ["columns added: c"]
    assert_every_cut_exact(store, database)


def test_the_dump_of_an_added_column_waits_until_it_sees_all_commits_before_the_change(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        with database.transaction(visible=False) as transaction:  # holds every low watermark below the change
            transaction.insert("public.parts", area="z1", number=999, note="hidden", c=None)
        database.alter("public.items", add={"c": ("string", "default")})
        touch(database)
        agent.wait(lambda m: any(d.kind == "where" for d in m.dumps), "the column is asked for")
        read = counted(agent, "open_chunk")
        wait_until(lambda: len(read) > 5, "its first chunk was tried")
        assert newest_manifest(store).dumps[-1].chunks == 0
        database.make_visible()
        manifest = agent.wait_dumped()
    assert manifest.dumps[-1].rows == 20
    assert_every_cut_exact(store, database)


def test_a_renamed_column_is_one_dropped_and_one_added(database: MemoryDatabase, store: MemoryStore) -> None:
    with dumped(database, store) as agent:
        database.alter("public.items", rename={"b": "d"})
        touch(database)
        agent.wait(lambda m: any(d.where == "d is not null" for d in m.dumps), "the column is asked for")
        agent.wait_dumped()
    notices = [n.text for m in manifests_in(store) for n in m.notices]
    assert notices == ["columns added: d", "columns dropped: b"]
    assert_every_cut_exact(store, database)


@pytest.mark.parametrize("seen_in", ["log", "chunk", "rows to verify"])
def test_names_that_a_column_has_had_are_known_with_the_first_rows_under_the_later_one(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, seen_in: str
) -> None:
    """Before the next regular check: the layout alone may look as if the one whose name it has had stayed."""
    items = TableName.parse("public.items")
    database.column_ids[items] = {"id": 1, "a": 2, "b": 3}
    monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", 60)
    with dumped(database, store) as agent:
        database.alter("public.items", drop=["b"])
        database.alter("public.items", rename={"a": "b"})
        database.column_ids[items] = {"id": 1, "b": 2}
        if seen_in == "log":
            touch(database)
        else:
            ask(agent, store, tables=["public.items"], verify=seen_in == "rows to verify")
        layout = database.schema("public.items").id
        agent.wait(lambda m: any(f.schema_id == layout for f in m.files), "the rows have landed")
    first = next(m for m in manifests_in(store) if any(f.schema_id == layout for f in m.files))
    names = first.tables[items].column_names
    assert names is not None
    assert names.renamed == {"2": ["a", "b"]}


def test_a_dump_that_quarantines_its_table_by_its_last_chunk_does_not_end_complete(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its rows is in a manifest then, and a merge would sweep all older ones."""
    items = TableName.parse("public.items")
    database.column_ids[items] = {"id": 1, "a": 2, "b": 3}
    monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", 60)
    with Agent(database, store, chunk_rows=1000) as agent:
        agent.wait_dumped()
        known = database.schema(items)
        masked = tuple(replace(c, mask="null") if c.name == "a" else c for c in known.columns)
        agent.capture._tables.schemas[items] = replace(known, columns=masked)
        database.alter("public.items", rename={"a": "c"})
        database.column_ids[items] = {"id": 1, "c": 2, "b": 3}
        done = ask(agent, store, tables=["public.items"])
    assert done.tables[items].state == "quarantined"
    assert not any(file.table == items for file in done.files)
    assert done.dumps[-1].state == "failed"


def test_what_has_to_wait_lands_with_all_that_came_meanwhile(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    withhold, waits = HiddenColumns.withhold, Event()
    waited = []

    def waiting(self: HiddenColumns, landed: LandedSegment, *more: Any) -> bool:
        waited.append(landed.position)
        return not waits.is_set() and withhold(self, landed, *more)

    monkeypatch.setattr(HiddenColumns, "withhold", waiting)
    with dumped(database, store) as agent:
        waits.set()
        waited.clear()
        touch(database)
        wait_until(lambda: database.end in waited, "it waits")
        touch(database)
        wait_until(lambda: database.end in waited, "what comes later waits, too")
        newest = newest_manifest(store)
        assert newest is not None
        assert newest.position < min(waited[-1:])
        waits.clear()
        agent.wait(lambda m: m.position >= database.end, "all has landed")
    assert_every_cut_exact(store, database)


def test_a_dropped_column_needs_no_dump(database: MemoryDatabase, store: MemoryStore) -> None:
    with dumped(database, store) as agent:
        database.alter("public.items", drop=["b"])
        touch(database)
        manifest = agent.wait(lambda m: any("dropped: b" in n.text for n in m.notices), "it is told")
    assert len(manifest.dumps) == 2
    assert_every_cut_exact(store, database)


def test_a_changed_type_leads_to_a_full_dump(database: MemoryDatabase, store: MemoryStore) -> None:
    with dumped(database, store) as agent:
        database.alter("public.parts", retype={"number": "bigint"})
        with database.transaction() as transaction:
            transaction.insert("public.parts", area="z9", number=999, note="n", c=None)
        agent.wait(lambda m: any(d.reason == "repair" for d in m.dumps), "a dump is queued")
        manifest = agent.wait_dumped()
    assert [(d.kind, str(d.table)) for d in manifest.dumps[2:]] == [("full", "public.parts")]
    assert_every_cut_exact(store, database)


def test_a_layout_that_a_chunk_sees_first_is_taken_over(database: MemoryDatabase, store: MemoryStore) -> None:
    with dumped(database, store) as agent:
        database.alter("public.items", add={"c": ("string", "default")})
        ask(agent, store, tables=["public.items"])
        manifest = agent.wait_dumped()
        assert (
            manifest.tables[TableName.parse("public.items")].schema_id == database.schema("public.items").id
        )
        touch(database)
        agent.wait_caught_up()
    assert_every_cut_exact(store, database)
    assert [n.text for m in manifests_in(store) for n in m.notices] == ["columns added: c"]


def test_layouts_that_change_while_the_agent_is_down_are_taken_over(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store):
        pass
    touch(database)
    database.alter("public.items", add={"c": ("string", "default")})
    touch(database)
    database.alter("public.items", drop=["a"])
    touch(database)
    with Agent(database, store) as agent:
        agent.wait_caught_up()
        agent.wait_dumped()
    assert_every_cut_exact(store, database)
    assert_no_event_lost(store, database)


# Tables quarantined.


def change_key(database: MemoryDatabase) -> None:
    database.alter("public.items", key=["a"])


def is_quarantined(manifest: Manifest) -> bool:
    return manifest.tables[TableName.parse("public.items")].state == "quarantined"


def quarantine_items(agent: Agent, database: MemoryDatabase) -> None:
    """Quarantine a table by a change that can't be decoded; later ones can."""
    agent.source.undecodable["public.items"] = "odd value"
    insert(database, 1001)
    agent.wait(is_quarantined, "it is quarantined")
    agent.source.undecodable.clear()


def test_a_changed_key_quarantines_the_table_and_a_full_dump_takes_it_up(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        change_key(database)
        with database.transaction() as transaction:
            transaction.insert("public.items", id=7, a="a7777", b="b")
            transaction.insert("public.parts", area="z9", number=999, note="n", c=None)
        manifest = agent.wait(is_quarantined, "it is quarantined")
        assert "key changed from ['id'] to ['a']" in manifest.tables[TableName.parse("public.items")].reason
        assert not manifest.exact
        with database.transaction() as transaction:
            transaction.insert("public.parts", area="z9", number=1000, note="n", c=None)
        agent.wait_caught_up()
        ask(agent, store, tables=["public.items"])
        manifest = agent.wait_dumped()
    assert manifest.tables[TableName.parse("public.items")].key == ["a"]
    assert not is_quarantined(manifest)
    kinds = [n.kind for m in manifests_in(store) for n in m.notices]
    assert kinds == ["quarantined", "released"]


def test_a_released_table_that_has_not_landed_yet_can_be_taken_up_by_the_next_start(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        change_key(database)
        submit(store, DumpRequest(tables=["public.items"]))
        agent.wait(is_quarantined, "it is quarantined")
        agent.source.fail("next_boundary", times=1_000_000)
        request = submit(store, DumpRequest(tables=["public.items"]))
        agent.wait(lambda m: dump_of(m, request), "it is released")
    with Agent(database, store) as agent:
        manifest = agent.wait_dumped()
    assert manifest.tables[TableName.parse("public.items")].key == ["a"]
    assert landed_ids(store, "chunk") == sorted([2 * n for n in range(20)] * 2)


def test_a_key_that_a_chunk_finds_changed_quarantines_the_table(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        change_key(database)
        submit(store, DumpRequest(tables=["public.items"]))
        manifest = agent.wait(is_quarantined, "it is quarantined")
        assert manifest.dumps[-1].state == "failed"
        assert manifest.tables[TableName.parse("public.items")].hint
        ask(agent, store, tables=["public.items"])
        agent.wait_dumped()


@pytest.mark.parametrize(
    "error",
    [TableError(TableName.parse("public.items"), "no column id"), RequestError("'x' is not a number")],
)
def test_a_dump_that_fails_since_the_key_changed_quarantines_the_table_with_that_reason(
    database: MemoryDatabase, store: MemoryStore, error: Exception
) -> None:
    with dumped(database, store) as agent:
        change_key(database)
        agent.source.fail("next_boundary", error=error)
        submit(store, DumpRequest(tables=["public.items"]))
        quarantined = agent.wait(is_quarantined, "it is quarantined").tables[TableName.parse("public.items")]
        assert (quarantined.reason or "").startswith("its key changed from ['id'] to ")


@pytest.mark.parametrize("text", ['public."a.b"', '"s.""q"."t.x"'])
def test_a_table_whose_name_holds_a_dot_is_quarantined_and_taken_up_again(
    database: MemoryDatabase, store: MemoryStore, text: str
) -> None:
    name = TableName.parse(text)
    database.create_table(text, ["id"], {"id": "bigint"})
    with Agent(database, store, tables=["*.*"]) as agent:
        agent.wait_dumped()
        agent.source.undecodable[text] = "odd value"
        with database.transaction() as transaction:
            transaction.insert(text, id=1)
        agent.wait(lambda m: m.tables[name].state == "quarantined" and not m.exact, "it is quarantined")
        agent.source.undecodable.clear()
        ask(agent, store, tables=[text])
        agent.wait_dumped()
    assert_every_cut_exact(store, database)


def test_a_table_that_cannot_be_decoded_is_quarantined_while_the_others_go_on(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        quarantine_items(agent, database)
        insert(database, 1003)
        with database.transaction() as transaction:
            transaction.insert("public.parts", area="z9", number=999, note="n", c=None)
        agent.wait_caught_up()
        assert landed_ids(store) == []
        rejected = submit(store, DumpRequest(tables=["public.items"], keys=[["1"]]))
        agent.wait(lambda m: any(rejected in n.text for n in m.notices), "a dump of keys is rejected")
        ask(agent, store, tables=["public.items"])
        insert(database, 1005)
        agent.wait_caught_up()
        agent.wait_dumped()
    assert landed_ids(store) == [1005]
    assert_every_cut_exact(store, database)


def test_a_released_table_waits_for_commits_that_did_not_land_and_are_not_visible(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        quarantine_items(agent, database)
        insert(database, 1003, visible=False)  # never lands, and no chunk sees it yet
        agent.wait_caught_up()
        request = submit(store, DumpRequest(tables=["public.items"]))
        agent.wait(lambda m: dump_of(m, request), "it is queued")
        read = counted(agent, "open_chunk")
        wait_until(lambda: len(read) > 5, "its first chunk was tried")
        later = submit(store, DumpRequest(tables=["public.parts"], where="c is not null"))
        agent.wait(lambda m: dump_of(m, later) and dump_of(m, later).finished_at, "a later one overtakes it")
        assert not dump_of(newest_manifest(store), request).chunks
        database.make_visible()
        agent.wait_dumped()
    assert_every_cut_exact(store, database)
    assert 1003 in landed_ids(store, "chunk")


def test_a_table_that_is_quarantined_stays_so_over_a_restart_and_a_gap(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        quarantine_items(agent, database)
    database.slots.clear()
    with Agent(database, store) as agent:
        manifest = agent.wait(
            lambda m: m.epoch == 2 and not any(d.active for d in m.dumps), "the others are repaired"
        )
    assert is_quarantined(manifest)
    assert [str(d.table) for d in manifest.dumps if d.reason == "repair"] == ["public.parts"]
    assert_every_cut_exact(store, database)


def test_a_table_that_is_named_later_is_dumped_and_one_no_longer_named_is_left(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store, exclude=["public.parts"]) as agent:
        agent.wait_dumped()
    with Writer(database), Agent(database, store) as agent:
        agent.wait_dumped()
    database.make_visible()
    with Agent(database, store, exclude=["public.items"]) as agent:
        agent.wait(lambda m: list(map(str, m.tables)) == ["public.parts"], "the other table is left")
    with Agent(database, store) as agent:
        agent.wait_dumped()
    assert_every_cut_exact(store, database)


def test_a_table_that_is_dropped_is_left_once_its_log_has_landed(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        insert(database, 1001)
        database.drop_table("public.items")
        manifest = agent.wait(lambda m: TableName.parse("public.items") not in m.tables, "it is left")
        assert 1001 in landed_ids(store)
        assert manifest.exact
        assert manifest.notices[-1].text == "is no longer captured"
        database.create_table("public.items", ["id"], {"id": "bigint", "a": "string", "b": "string"})
        insert(database, 7)
        agent.wait(
            lambda m: TableName.parse("public.items") in m.tables and m.exact,
            "the new one is taken up and dumped",
        )
    assert_every_cut_exact(store, database)


def test_a_table_that_is_dropped_before_its_first_dump_holds_no_cut_back(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with dumped(database, store) as agent:
        agent.source.fail("open_chunk", times=3)
        database.create_table("public.brief", ["id"], {"id": "bigint"})
        agent.wait(lambda m: TableName.parse("public.brief") in m.tables, "it is taken up")
        database.drop_table("public.brief")
        agent.wait(lambda m: TableName.parse("public.brief") not in m.tables and m.exact, "it is left")
