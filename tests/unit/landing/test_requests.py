"""Requests in the landing zone, from people and from Spark jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from connector.landing import requests
from connector.landing.requests import DumpRequest, Malformed, discard, read_pending, reject, submit
from connector.schema import TableName
from connector.store.local import LocalStore
from connector.testing.memory_store import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_request_is_read_as_it_was_submitted_until_it_is_discarded(store: MemoryStore) -> None:
    request = DumpRequest(tables=["public.orders"], keys=[["1"], ["2"]], reason="repair")
    assert submit(store, request) == request.id
    assert read_pending(store) == [request]
    assert read_pending(store) == [request]
    discard(store, read_pending(store)[0])
    assert read_pending(store) == []
    assert store.objects == {}


def test_a_hundred_thousand_keys_are_one_request(store: MemoryStore) -> None:
    keys = [[f"{n:08x}-0000-4000-8000-{n:012x}"] for n in range(100_000)]
    submit(store, DumpRequest(tables=["public.orders"], keys=keys))
    (request,) = read_pending(store)
    assert isinstance(request, DumpRequest)
    assert request.keys == keys


def test_requests_come_in_the_order_they_were_made(store: MemoryStore) -> None:
    for name in ("20260102T000000-b", "20260101T000000-a", "hand made/ü"):
        submit(store, DumpRequest(id=name))
    assert [r.id for r in read_pending(store)] == ["20260101T000000-a", "20260102T000000-b", "hand made/ü"]
    discard(store, read_pending(store)[-1])
    assert len(read_pending(store)) == 2


def test_a_folder_that_a_spark_job_wrote_is_one_request(store: MemoryStore) -> None:
    body = {"kind": "dump", "tables": ["public.orders"], "reason": "missing", "keys": [["1"]]}
    store.put("requests/r1.json/_SUCCESS", b"")
    store.put("requests/r1.json/part-00000-x.txt", b"")
    store.put("requests/r1.json/part-00001-x.txt", json.dumps(body).encode() + b"\n")
    (request,) = read_pending(store)
    assert isinstance(request, DumpRequest)
    assert (request.id, request.tables, request.keys) == ("r1", [TableName("public", "orders")], [["1"]])
    discard(store, request)
    assert store.objects == {}


def test_of_a_spark_jobs_request_in_a_local_folder_nothing_is_left(tmp_path: Path) -> None:
    store, folder = LocalStore(tmp_path), tmp_path / "requests/r1.json"
    folder.mkdir(parents=True)
    for name in ("_SUCCESS", "._SUCCESS.crc", "part-0.txt", ".part-0.txt.crc"):
        (folder / name).write_text('{"tables": ["public.orders"]}' if name == "part-0.txt" else "")
    submit(store, DumpRequest(id="by hand"))
    for request in read_pending(store):
        discard(store, request)
    assert list(tmp_path.iterdir()) == [folder.parent]
    assert list(folder.parent.iterdir()) == []


def test_a_folder_that_is_still_being_written_waits(store: MemoryStore) -> None:
    store.put("requests/r1.json/_temporary/0/part-00000.json", b'{"kind": "dump"}')
    assert read_pending(store) == []
    store.put("requests/r1.json/part-00000.json", b'{"kind": "du')
    assert read_pending(store) == []
    store.put("requests/r1.json/_SUCCESS", b"")
    assert isinstance(read_pending(store)[0], Malformed)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"hello", "invalid JSON: expected value at line 1"),
        (b'{"kind": "dance"}', "kind"),
        (b'{"tables": ["orders"]}', "'orders' is not a table name; write namespace.table"),
        (b'{"tabels": ["public.orders"]}', "tabels"),
        (b"\xff\xfe{}", "invalid JSON"),
        (b'{"tables": NaN}', "tables"),
        (b'{"requested_at": 1e999}', "requested_at"),
        (b"[" * 100_000, "invalid JSON"),
        (b'{"tables": ["a.b"], "where": "a\\u0000b"}', "where: contains a zero byte"),
        (b'{"tables": ["a.b"], "keys": [["\\ud800"]]}', ""),
        (b'{"tables": ["a.b"], "where": "' + b"x" * 10_001 + b'"}', "where"),
        (b'{"where": "id > 3"}', "where, keys and ranges need exactly one table"),
        (b'{"kind": "set", "settings": {"rows_per_second": 1' + b"0" * 400 + b"}}", "rows_per_second"),
        (b'{"kind": "set", "settings": {"workers": 1' + b"0" * 5000 + b"}}", ""),
        (b'{"kind": "set", "settings": {"delay_seconds": 1' + b"0" * 400 + b"}}", "delay_seconds"),
        (b'{"tables": ["a.b"], "where": "x", "keys": [["1"]]}', "where, keys and ranges can't be combined"),
    ],
)
def test_what_is_no_request_is_reported_and_moved_aside(
    store: MemoryStore, content: bytes, problem: str
) -> None:
    store.put("requests/bad.json", content)
    submit(store, DumpRequest(id="good"))
    bad, good = read_pending(store)
    assert isinstance(bad, Malformed)
    assert bad.id == "bad"
    assert problem in bad.problem
    assert good.id == "good"
    reject(store, bad, bad.problem)
    assert [r.id for r in read_pending(store)] == ["good"]
    assert problem in (store.read("rejected/bad.reason.txt") or b"").decode()
    assert store.read("rejected/bad.json") == content


def test_a_request_that_is_discarded_while_it_is_read_is_overlooked(store: MemoryStore) -> None:
    class Vanishing(MemoryStore):
        def read(self, path: str, limit: int | None = None) -> bytes | None:
            return None

    vanishing = Vanishing()
    submit(vanishing, DumpRequest())
    assert read_pending(vanishing) == []


def test_a_request_for_no_table_is_rejected() -> None:
    with pytest.raises(ValidationError):
        DumpRequest(tables=[])


def test_what_cannot_be_read_is_no_request_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_PARTS", 3)
    store, folder = LocalStore(tmp_path / "shop"), tmp_path / "shop" / "requests"
    submit(store, DumpRequest(id="good"))
    os.mkfifo(folder / "pipe.json")
    (tmp_path / "secret").write_text('{"tables": ["a.b"]}')
    (folder / "link.json").symlink_to(tmp_path / "secret")
    (folder / os.fsdecode(b"\xff\x1b.json")).touch()
    with (folder / "huge.json").open("wb") as file:
        file.truncate(1 << 40)
    (folder / "parts.json").mkdir()
    for number in range(4):
        (folder / "parts.json" / f"part-{number}").touch()
    (folder / "parts.json" / "_SUCCESS").touch()
    found = {request.id: request for request in read_pending(store)}
    assert set(found) == {"good", "pipe", "link", "huge", "parts", "requests/\\udcff\x1b.json"}
    for request in found.values():
        if isinstance(request, Malformed):
            assert ("can't be read" in request.problem) == ("json" not in request.id)
            reject(store, request, request.problem)
    assert [request.id for request in read_pending(store)] == ["good"]
    assert (tmp_path / "secret").exists()


def test_names_that_mean_the_same_are_not_one_request(store: MemoryStore) -> None:
    for name in ("a.json", "a", "%61.json", "a.1.json"):
        store.put(f"requests/{name}", b'{"tables": ["public.orders"]}')
    found = read_pending(store)
    assert {request.id for request in found} == {"a", "requests/a", "requests/%61.json", "a.1"}
    discard(store, next(request for request in found if request.id == "a"))
    assert {request.id for request in read_pending(store)} == {"requests/a", "requests/%61.json", "a.1"}


def test_a_request_that_took_the_name_of_another_is_not_removed_with_it(store: MemoryStore) -> None:
    submit(store, DumpRequest(id="nightly", tables=["a.b"]))
    (first,) = read_pending(store)
    submit(store, DumpRequest(id="nightly", tables=["c.d"]))
    discard(store, first)
    (second,) = read_pending(store)
    assert isinstance(second, DumpRequest)
    assert list(map(str, second.tables or ())) == ["c.d"]


FIELDS = st.sampled_from(["tables", "where", "keys", "id", "kind", "reason", "requested_at"]) | st.text()
JSON = st.recursive(
    st.none() | st.floats() | st.text() | st.integers(),
    lambda some: st.lists(some) | st.dictionaries(FIELDS, some),
    max_leaves=12,
)


@given(JSON | st.binary())
@settings(max_examples=100, deadline=None)
def test_whatever_is_written_is_a_request_or_malformed(content: Any) -> None:
    store = MemoryStore()
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    store.put("requests/x.json", data)
    (request,) = read_pending(store)
    assert isinstance(request, (DumpRequest, Malformed))
    reject(store, request, "for a reason")
    assert read_pending(store) == []
