"""Requests of rows that wait for a column, as a merge writes them and the agent reads them. Without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row

from connector.landing.requests import MOST_BYTES, DumpRequest, discard, read_pending
from connector.schema import TableName
from connector.testing.memory_store import MemoryStore
from merge.keys import TargetLayout
from merge.missing_columns import KEYS_PER_REQUEST, _request_keys

T = TableName("public", "t")


class Landing:
    """A landing zone to which a merge writes; `take` returns what the agent then reads."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def write(self, path: str, text: str) -> None:
        self.store.put(path, f"{text}\n".encode())

    def take(self) -> list[DumpRequest]:
        found: list[Any] = []
        while pending := read_pending(self.store):
            found += pending
            for request in pending:
                discard(self.store, request)
        return found


def requested(*keys: str) -> list[DumpRequest]:
    landing, layout = Landing(), TargetLayout({"id": "string"}, ("id",), ())
    _request_keys(landing, T, [Row(k0=key) for key in keys], layout)  # type: ignore[arg-type]
    taken = landing.take()
    assert all(isinstance(request, DumpRequest) and request.tables == [T] for request in taken), taken
    return taken


@pytest.mark.parametrize("letter", ["x", "€", "\U0001f600", "\n"])
@pytest.mark.parametrize("length", [1, 768, 60_000])
def test_the_agent_reads_all_keys_however_long(letter: str, length: int) -> None:
    count = 2 * KEYS_PER_REQUEST // max(1, length // 768)
    keys = [f"{number:05}{letter * length}" for number in range(count)]
    taken = requested(*keys)
    assert sorted(key for each in taken for (key,) in each.keys or []) == keys
    assert max(len(each.keys or []) for each in taken) <= KEYS_PER_REQUEST


def test_a_table_is_dumped_whole_if_no_request_holds_one_of_its_keys() -> None:
    assert [each.keys for each in requested("a", "x" * MOST_BYTES)] == [None]
    assert [each.keys for each in requested("a", "b\0")] == [None]
