"""Requests in the landing zone, from people and from Spark jobs."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from connector.requests import DumpRequest, Malformed, discard, pending, reject, submit
from connector.store_memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_request_is_read_as_it_was_submitted_until_it_is_discarded(store: MemoryStore) -> None:
    request = DumpRequest(tables=["public.orders"], keys=[["1"], ["2"]], reason="repair")
    assert submit(store, request) == request.id
    assert pending(store) == [request]
    assert pending(store) == [request]
    discard(store, request.id)
    assert pending(store) == []
    assert store.objects == {}


def test_requests_come_in_the_order_they_were_made(store: MemoryStore) -> None:
    for name in ("20260102T000000-b", "20260101T000000-a", "hand made/ü"):
        submit(store, DumpRequest(id=name))
    assert [r.id for r in pending(store)] == ["20260101T000000-a", "20260102T000000-b", "hand made/ü"]
    discard(store, "hand made/ü")
    assert len(pending(store)) == 2


def test_a_folder_that_a_spark_job_wrote_is_one_request(store: MemoryStore) -> None:
    body = {"kind": "dump", "tables": ["public.orders"], "reason": "missing", "keys": [["1"]]}
    store.put("requests/r1.json/_SUCCESS", b"")
    store.put("requests/r1.json/part-00000-x.txt", b"")
    store.put("requests/r1.json/part-00001-x.txt", json.dumps(body).encode() + b"\n")
    (request,) = pending(store)
    assert isinstance(request, DumpRequest)
    assert (request.id, request.tables, request.keys) == ("r1", ["public.orders"], [["1"]])
    discard(store, "r1")
    assert store.objects == {}


def test_a_folder_that_is_still_being_written_waits(store: MemoryStore) -> None:
    store.put("requests/r1.json/_temporary/0/part-00000.json", b'{"kind": "dump"}')
    assert pending(store) == []
    store.put("requests/r1.json/part-00000.json", b'{"kind": "du')
    assert pending(store) == []
    store.put("requests/r1.json/_SUCCESS", b"")
    assert isinstance(pending(store)[0], Malformed)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"hello", "invalid JSON: expected value at line 1"),
        (b'{"kind": "dance"}', "kind"),
        (b'{"tables": ["orders"]}', "'orders' is not a table name, write namespace.table"),
        (b'{"tabels": ["public.orders"]}', "tabels"),
        (b'{"where": "id > 3"}', "where and keys are for one table"),
        (b'{"tables": ["a.b"], "where": "x", "keys": [["1"]]}', "where and keys exclude each other"),
    ],
)
def test_what_is_no_request_is_reported_and_moved_aside(
    store: MemoryStore, content: bytes, problem: str
) -> None:
    store.put("requests/bad.json", content)
    submit(store, DumpRequest(id="good"))
    bad, good = pending(store)
    assert isinstance(bad, Malformed)
    assert bad.id == "bad"
    assert problem in bad.problem
    assert good.id == "good"
    reject(store, "bad")
    assert [r.id for r in pending(store)] == ["good"]
    assert store.read("rejected/bad.json") == content


def test_a_request_that_is_discarded_while_it_is_read_is_overlooked(store: MemoryStore) -> None:
    class Vanishing(MemoryStore):
        def read(self, path: str) -> bytes | None:
            return None

    vanishing = Vanishing()
    submit(vanishing, DumpRequest())
    assert pending(vanishing) == []


def test_a_request_for_no_table_is_refused() -> None:
    with pytest.raises(ValidationError):
        DumpRequest(tables=[])
