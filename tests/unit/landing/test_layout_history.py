from __future__ import annotations

import pytest

from connector.capture.manifest_history import ManifestHistory
from connector.capture.tables import Tables
from connector.control import source_view
from connector.errors import RequestError
from connector.landing.format import schema_path
from connector.landing.layout_history import layout_history
from connector.landing.manifest import SourceIdentity, TableState
from connector.schema import TableName, TableSchema
from connector.store.protocol import Store
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import config_of
from tests.support.landing.landed import schema_of

ORDERS = TableName("public", "orders")
LAYOUTS = [
    schema_of("public.orders", id="int", old="string"),
    schema_of("public.orders", id="bigint", old="string", n="int"),
    schema_of("public.orders", ["id", "n"], n="int", id="bigint"),
]


def written(store: Store, layouts: list[TableSchema | None]) -> ManifestHistory:
    """A manifest for each layout (None: the table is not captured)."""
    manifest_history = ManifestHistory(store, term=1)
    identity = SourceIdentity(name="shop", kind="postgres", system_id="1", database="shop")
    manifest_history.begin(identity, epoch=1, position=0)
    tables = Tables({}, {})
    for number, schema in enumerate(layouts):
        if schema is None:
            tables.remove(ORDERS)
        else:
            store.put(schema_path(ORDERS, schema.id), schema.to_json())
            tables.states.setdefault(ORDERS, TableState())
            tables.update(ORDERS, schema_id=schema.id, key=list(schema.key))
        states = tables.snapshot(manifest_history.next_number)
        manifest_history.commit(tables=states, position=number)
    return manifest_history


def test_each_layout_is_listed_once_with_what_it_changed() -> None:
    store, (first, second, third) = MemoryStore(), LAYOUTS
    manifest_history = written(store, [first, first, second, second, second, third, third])
    newest, middle, oldest = layout_history(store, manifest_history.newest, ORDERS)
    assert [v.manifest for v in (newest, middle, oldest)] == [7, 4, 2]
    assert oldest.is_first
    assert [c.name for c in middle.added] == ["n"]
    assert [(was.type, now.type) for was, now in middle.changed] == [("int", "bigint")]
    assert [c.name for c in newest.dropped] == ["old"]
    assert (newest.key_before, newest.schema.key) == (("id",), ("id", "n"))


def test_a_layout_that_comes_back_is_listed_again() -> None:
    store, (first, second, _) = MemoryStore(), LAYOUTS
    manifest_history = written(store, [first, second, first])
    assert [v.manifest for v in layout_history(store, manifest_history.newest, ORDERS)] == [4, 3, 2]


def test_the_history_begins_anew_where_the_table_was_not_captured() -> None:
    store, (first, second, _) = MemoryStore(), LAYOUTS
    manifest_history = written(store, [first, None, first, second])
    assert [v.manifest for v in layout_history(store, manifest_history.newest, ORDERS)] == [5, 4]


def test_reading_the_history_costs_a_few_reads_for_each_layout_not_for_each_manifest() -> None:
    store, (first, second, _) = MemoryStore(), LAYOUTS
    manifest_history = written(store, [first] * 50 + [second] * 50)
    reads: list[str] = []
    read = store.read
    store.read = lambda path: (reads.append(path), read(path))[1]  # type: ignore[method-assign]
    assert len(layout_history(store, manifest_history.newest, ORDERS)) == 2
    assert len(reads) <= 6


def test_a_table_that_never_could_be_captured_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    written(store, []).commit(
        tables={ORDERS: TableState(state="quarantined", reason="no primary key", hint="add one")}
    )
    monkeypatch.setattr(source_view, "open_store", lambda *_a, **_k: store)
    with pytest.raises(RequestError, match=r"public\.orders has never had .*no primary key") as refused:
        source_view.SourceView(config_of()).layouts("public.orders")
    assert refused.value.hint == "add one"
