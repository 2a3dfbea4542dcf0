"""What manifests and state objects hold together is the whole state, and small where little of it changes."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.errors import FormatError, TransientError
from connector.landing.column_names import ColumnNames
from connector.landing.format import MANIFESTS, STATES, manifest_path
from connector.landing.manifest import DumpState, Manifest, SourceIdentity, TableState
from connector.landing.manifest_object import FEW_BYTES, LandingState, StoredManifest
from connector.landing.manifest_store import ManifestReader, ManifestWriter, newest_manifest
from connector.schema import TableName
from connector.testing.memory_store import MemoryStore

AT = datetime(2026, 1, 2, tzinfo=timezone.utc)
SHOP = SourceIdentity(name="shop", kind="postgres", system_id="1", database="shop")


def a_manifest(number: int, tables: Any = (), dumps: Any = (), **other: Any) -> Manifest:
    return Manifest(
        number=number, term=1, write_id=f"w{number}", source=SHOP, epoch=1, position=number,
        committed_at=AT, tables=dict(tables), dumps=list(dumps), **other,
    )  # fmt: skip


def a_dump(number: int, **other: Any) -> DumpState:
    known = {"kind": "full", "table": "public.t1", "epoch": 1, "requested_at": AT, "started_in": 1}
    return DumpState(**{"id": f"dump-{number}", "number": number, **known, **other})


def many(count: int) -> dict[TableName, TableState]:
    """Return the states of tables, each as large as a table's of 20 columns: its size is in the schema."""
    fingerprint = "oid=16384 file=16402 " * 8
    return {
        TableName("public", f"table_{n:05}"): TableState(
            schema_id=f"{n:016x}", key=["id"], fingerprint=fingerprint
        )
        for n in range(count)
    }


def sizes(store: MemoryStore, prefix: str) -> list[int]:
    return [len(store.read(path) or b"") for path in store.list(prefix)]


NAMES = st.sampled_from([TableName("public", f"t{n}") for n in range(6)])
STATES_OF_TABLES = st.builds(
    TableState, schema_id=st.sampled_from(["a", "b"]), dumped=st.booleans(),
    reason=st.sampled_from([None, "x" * 900]),
)  # fmt: skip
TABLES = st.dictionaries(NAMES, STATES_OF_TABLES, max_size=6)
DUMPS = st.dictionaries(
    st.integers(1, 8),
    st.tuples(
        st.sampled_from(["waiting", "running", "complete"]),
        st.integers(0, 9),
        st.sampled_from([None, [["1"], ["2"]], [["x" * 3000]]]),
    ),
    max_size=5,
)


FORMER = st.dictionaries(
    NAMES, st.builds(lambda n: ColumnNames(logged=[["a" * n, "b"]]), st.integers(1, 900)), max_size=3
)


@given(st.lists(st.tuples(TABLES, DUMPS, FORMER), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_every_manifest_is_read_as_it_was_committed(history: list[Any]) -> None:
    """Commit a history in which dumps are queued in order, progress, end, and are listed no more."""
    store, committed, queue = MemoryStore(), [], {}
    writer = ManifestWriter(store)
    for number, (tables, dumps, former) in enumerate(history, 1):
        for id_, (state, rows, keys) in dumps.items():
            known = queue.setdefault(id_, a_dump(id_, kind="keys" if keys else "full", keys=keys))
            if known is not None and known.active:
                ended = {"keys": None} if state == "complete" else {}
                queue[id_] = known.model_copy(update={"state": state, "rows": rows, **ended})
        for id_ in queue.keys() - dumps.keys():
            queue[id_] = None
        if number % 3 == 0:  # a new agent
            newest = ManifestReader(store).newest()
            writer = ManifestWriter(store, newest[1] if newest else None)
        listed = [dump for dump in queue.values() if dump]
        committed.append(a_manifest(number, tables, listed, former_names=former))
        writer.commit(committed[-1])
    reader = ManifestReader(store)
    assert [reader.read(manifest.number) for manifest in committed] == committed
    assert newest_manifest(store) == committed[-1]


def test_of_a_thousand_tables_a_manifest_holds_those_that_change() -> None:
    store, tables = MemoryStore(), many(1000)
    writer = ManifestWriter(store)
    finished = [a_dump(n, state="complete", finished_in=1, finished_at=AT) for n in range(100)]
    writer.commit(a_manifest(1, tables, finished))
    changed = next(iter(tables))
    for number in range(2, 102):
        tables[changed] = tables[changed].changed(fingerprint=f"file={number}")
        writer.commit(a_manifest(number, tables, finished))
    assert max(sizes(store, MANIFESTS)) < 5000
    assert len(sizes(store, STATES)) == 1
    newest = newest_manifest(store)
    assert newest is not None
    assert newest.tables == tables


def test_what_is_written_for_state_follows_what_changes_in_it() -> None:
    store, tables, changed = MemoryStore(), many(300), 0
    writer = ManifestWriter(store)
    for number, name in enumerate(list(tables) * 3, 1):
        tables[name] = tables[name].changed(schema_since=number)
        changed += len(tables[name].model_dump_json())
        writer.commit(a_manifest(number, tables))
    whole = len(LandingState(tables=tables).to_json())
    written = sum(sizes(store, STATES)) + sum(sizes(store, MANIFESTS))
    assert written < len(tables) * 3 * whole / 8
    assert len(sizes(store, STATES)) < 100
    assert changed < written


def test_a_small_state_needs_no_object() -> None:
    store = MemoryStore()
    writer = ManifestWriter(store)
    for number in range(1, 50):
        writer.commit(a_manifest(number, many(3)))
    assert sizes(store, STATES) == []
    assert max(sizes(store, MANIFESTS)) < FEW_BYTES + 1000


def test_the_keys_of_a_dump_are_written_once_however_long_it_runs() -> None:
    store, keys = MemoryStore(), [[str(n)] for n in range(10_000)]
    writer = ManifestWriter(store)
    for number in range(1, 30):
        dump = a_dump(1, kind="keys", keys=list(keys), state="running", rows=number)
        writer.commit(a_manifest(number, many(2), [dump]))
    assert max(sizes(store, MANIFESTS)[1:]) < 3000
    newest = newest_manifest(store)
    assert newest is not None
    assert newest.dumps[0].keys == keys
    writer.commit(a_manifest(30, many(2), [a_dump(1, kind="keys", state="complete", rows=30)]))
    newest = newest_manifest(store)
    assert newest is not None
    assert newest.dumps[0].keys is None


def test_a_manifest_never_names_a_state_object_that_was_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    writer = ManifestWriter(store)

    def fails(_path: str, _data: bytes) -> None:
        raise TransientError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", fails)
        for _ in range(2):
            with pytest.raises(TransientError):
                writer.commit(a_manifest(1, many(100)))
    assert newest_manifest(store) is None
    writer.commit(a_manifest(1, many(100)))
    assert newest_manifest(store) == a_manifest(1, many(100))


def test_a_state_object_that_is_gone_or_damaged_is_named() -> None:
    store = MemoryStore()
    ManifestWriter(store).commit(a_manifest(1, many(100)))
    (path,) = store.list(STATES)
    good = store.read(path) or b""
    store.put(path, good.replace(b"oid=16384", b"oid=16385", 1))
    with pytest.raises(FormatError, match=rf"{path} is damaged"):
        newest_manifest(store)
    store.delete(path)
    with pytest.raises(FormatError, match=rf"{path} is missing"):
        newest_manifest(store)


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(FormatError, match=r"m has format 2; this deltatide reads formats up to 1"):
        StoredManifest.from_json(b'{"format": 2}', "m")
    with pytest.raises(FormatError, match=r"m is not a manifest"):
        StoredManifest.from_json(b"{}", "m")


def test_a_commit_that_finds_its_number_taken_leaves_the_other_s_manifest_as_it_is() -> None:
    store = MemoryStore()
    first, second = ManifestWriter(store), ManifestWriter(store)
    first.commit(a_manifest(1, many(100)))
    before = store.read(manifest_path(1))
    second.commit(a_manifest(1, many(100)))  # the same write id: a lost answer
    assert store.read(manifest_path(1)) == before
