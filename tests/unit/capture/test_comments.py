"""Comments of tables and columns: they land when they change, and cause nothing else."""

from __future__ import annotations

import pytest

from connector.config import TableConfig
from connector.errors import TransientError
from connector.landing.format import COMMENTS, comments_path, comments_since
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.masking.source import masked_source
from connector.schema import TableComments, TableName
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_source import MemorySource
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, config_of, counted, insert
from tests.support.landing.cuts import manifests_in
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")

ITEMS = TableName("public", "items")
SOLD = TableComments(ITEMS, "What's sold", {"id": "its \"number\"\n'in the shop'"})


def comments_in(store: MemoryStore, manifest: Manifest) -> TableComments | None:
    id_ = manifest.tables[ITEMS].comments
    if id_ is None:
        return None
    assert comments_since(id_) <= manifest.number
    data = store.read(comments_path(ITEMS, id_))
    assert data is not None
    return TableComments.from_json(data)


def test_comments_are_there_from_the_first_manifest_on_and_follow_without_a_layout_or_a_dump(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    database.comments[ITEMS] = SOLD
    with Agent(database, store) as agent:
        before = agent.wait_dumped()
        for now in (TableComments(ITEMS, "", {"id": "a number"}), SOLD, TableComments(ITEMS)):
            database.comments[ITEMS] = now
            agent.wait(lambda m, now=now: comments_in(store, m) == now, "the comments have landed")
    history = manifests_in(store)
    assert comments_in(store, history[0]) == SOLD
    changed = history[before.number :]
    assert {m.tables[ITEMS].schema_id for m in changed} == {before.tables[ITEMS].schema_id}
    assert {len(m.dumps) for m in changed} == {len(before.dumps)}
    assert not any(m.files or m.notices for m in changed)
    named = {m.tables[ITEMS].comments: m.number for m in reversed(history)}
    assert [comments_since(id_) for id_ in named if id_] == list(named.values()), "the first that names them"


def test_comments_that_do_not_change_write_nothing_whatever_else_happens(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    database.comments[ITEMS] = SOLD
    with Agent(database, store) as agent:
        agent.wait_dumped()
        first = agent.wait_caught_up()
        checks = counted(agent, "check_catalog")
        wait_until(lambda: len(checks) >= 3, "the catalog has been checked")
        assert newest_manifest(store).number == first.number  # type: ignore[union-attr]
    with Agent(database, store) as agent:
        insert(database, 1001)
        last = agent.wait_caught_up()
    assert last.tables[ITEMS].comments == first.tables[ITEMS].comments
    assert len(list(store.list(f"{COMMENTS}/"))) == 1


def test_a_table_that_a_check_could_not_examine_keeps_its_comments(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    database.comments[ITEMS] = SOLD
    with Agent(database, store) as agent:
        agent.wait_dumped()
        database.busy.add(ITEMS)
        checks = counted(agent, "check_catalog")
        wait_until(lambda: len(checks) >= 2, "the catalog has been checked")
        insert(database, 1001)
        assert comments_in(store, agent.wait_caught_up()) == SOLD


def test_no_manifest_names_comments_that_could_not_be_written(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, failed = store.put, list[str]()

    def put_at_the_third_attempt(path: str, data: bytes) -> None:
        if path.startswith(COMMENTS) and len(failed) < 2:
            failed.append(path)
            raise TransientError("the store is gone for a moment")
        put(path, data)

    monkeypatch.setattr(store, "put", put_at_the_third_attempt)
    with Agent(database, store) as agent:
        agent.wait_dumped()
        database.comments[ITEMS] = SOLD
        agent.wait(lambda m: m.tables[ITEMS].comments is not None, "the comments have landed")
    assert len(failed) == 2
    assert all(comments_in(store, manifest) in (None, SOLD) for manifest in manifests_in(store))


def test_comments_of_columns_that_do_not_land_do_not_land_either() -> None:
    people, database = TableName("public", "people"), MemoryDatabase()
    database.create_table(str(people), ["id"], {"id": "int", "mail": "string", "secret": "string"})
    database.create_table(str(ITEMS), ["id"], {"id": "int"})
    found = TableComments(people, "People", {"Mail": "by hand", "secret": "all of it"})
    database.comments |= {people: found, ITEMS: SOLD}
    settings = {"columns": ["id", "mail"], "mask": {"mail": "null"}, "mask_before_landing": True}
    config = config_of()
    config = config.model_copy(update={"tables": {people: TableConfig.model_validate(settings)}})
    source = masked_source(MemorySource(database, config.source), config)
    kept = TableComments(people, "People", {"Mail": "by hand"})
    assert source.check_catalog().comments == {people: kept, ITEMS: SOLD}
