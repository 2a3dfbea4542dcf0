"""The last hour in memory, and the list of manifests."""

from __future__ import annotations

import pytest

from connector.control.last_hour import MOST_POINTS, History
from connector.control.manifest_list import MOST, ManifestList
from connector.errors import TransientError
from connector.landing.manifest_object import StoredManifest
from connector.landing.manifest_store import ManifestReader, newest_manifest
from connector.schema import TableName
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, insert, shop
from tests.support.agent.status_page import live_agent


def test_rates_are_by_table_and_points_are_bounded() -> None:
    store = MemoryStore()
    starting = History(live_agent(store))
    starting.take_point()
    assert starting.points()[0]["lag_seconds"] is None
    with Agent(shop(rows=3), store) as agent:
        agent.wait_dumped()
    live = live_agent(store, agent)
    history = History(live)
    history.take_point()
    assert (history.rows_per_second(), history.points()[0]["rows_per_second"]) == ({}, 0)
    assert history._before is not None
    history._before = (history._before[0] - 10, history._before[1])  # ten seconds go by
    agent.capture.progress.rows = agent.capture.progress.rows.copy()
    agent.capture.progress.rows[TableName("public", "items"), "insert"] += 50
    history.take_point()
    assert history.rows_per_second() == {"public.items": pytest.approx(5.0, abs=0.1)}
    for _ in range(MOST_POINTS):
        history.take_point()
    assert len(history.points()) == MOST_POINTS


def test_each_manifest_is_read_once_and_without_the_store_those_known_are_listed() -> None:
    database, store = shop(rows=3), MemoryStore()
    with Agent(database, store) as agent:
        agent.wait_dumped()
        insert(database, 100)
        agent.wait_caught_up()
    reader, read = ManifestReader(store), list[int]()

    def stored(number: int) -> StoredManifest | None:
        read.append(number)
        return reader.stored(number)

    newest = newest_manifest(store)
    assert newest is not None
    manifests = ManifestList(stored)
    for _ in range(2):
        assert [m.number for m in manifests.last(newest, MOST)] == list(range(newest.number, 0, -1))
    assert read == list(range(newest.number - 1, 0, -1))

    def fail(_number: int) -> StoredManifest | None:
        raise TransientError

    assert [m.number for m in ManifestList(fail).last(newest, 5)] == [newest.number]
