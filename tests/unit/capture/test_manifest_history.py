"""The manifest history: one linear history, whatever the store answers and whoever else writes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from connector.capture.manifest_history import ManifestHistory
from connector.errors import BugError, FencedError, SourceMismatchError, TransientError
from connector.landing.manifest import Notice, SourceIdentity
from connector.landing.manifest_store import newest_manifest
from connector.testing.memory_store import MemoryStore
from tests.support.landing.cuts import manifests_in

pytestmark = pytest.mark.usefixtures("short_waits")

SHOP = SourceIdentity(name="shop", kind="postgres", system_id="7", database="shop")


def begun(store: MemoryStore, term: int = 1, stop: threading.Event | None = None) -> ManifestHistory:
    manifest_history = ManifestHistory(store, term, stop)
    if manifest_history.load(lambda _: SHOP) is None:
        manifest_history.begin(SHOP, epoch=1, position=100)
    return manifest_history


def notice(text: str) -> Notice:
    return Notice.model_validate({"table": None, "kind": "gap", "text": text, "at": "2026-01-01T00:00:00Z"})


def test_a_manifest_carries_the_state_of_the_one_before_but_for_files_and_notices(store: MemoryStore) -> None:
    manifest_history = begun(store)
    manifest_history.commit(position=200, last_dump_number=7, notices=[notice("told once")])
    manifest_history.commit(position=300)
    first, second = manifests_in(store)[1:]
    assert (first.notices[0].text, first.notices[0].table, second.notices) == ("told once", None, [])
    assert (second.number, second.position, second.last_dump_number) == (3, 300, 7)
    assert manifest_history.newest == newest_manifest(store)
    assert manifest_history.next_number == 4


def test_positions_never_go_back_within_an_epoch(store: MemoryStore) -> None:
    manifest_history = begun(store)
    with pytest.raises(BugError, match="goes back"):
        manifest_history.commit(position=99)
    assert len(manifests_in(store)) == 1
    assert manifest_history.commit(epoch=2, position=50).position == 50


def test_there_is_no_newest_manifest_before_the_first(store: MemoryStore) -> None:
    manifest_history = ManifestHistory(store, 1)
    assert manifest_history.load(lambda _: SHOP) is None
    assert manifest_history.next_number == 1
    with pytest.raises(LookupError):
        _ = manifest_history.newest


def test_a_lost_response_to_a_commit_is_no_conflict(store: MemoryStore) -> None:
    manifest_history = begun(store)
    store.fail("create", "manifest/", when="after")
    manifest_history.commit(position=200)
    assert [m.position for m in manifests_in(store)] == [100, 200]


@pytest.mark.parametrize("operation", ["create", "read"])
def test_a_store_that_does_not_answer_is_asked_until_it_does(operation: str, store: MemoryStore) -> None:
    manifest_history = begun(store)
    store.fail("create", "manifest/", when="after")
    store.fail(operation, "manifest/", times=5)
    manifest_history.commit(position=200)
    assert [m.position for m in manifests_in(store)] == [100, 200]


def test_of_two_who_commit_one_number_one_is_fenced(store: MemoryStore) -> None:
    mine, theirs = begun(store, term=1), begun(store, term=2)
    theirs.commit(position=200)
    with pytest.raises(FencedError, match=r"manifest 2 .*its term is 2, ours 1"):
        mine.commit(position=300)
    assert [m.position for m in manifests_in(store)] == [100, 200]


def test_two_who_begin_a_landing_zone_at_once_do_not_both(store: MemoryStore) -> None:
    ledgers = [ManifestHistory(store, 1), ManifestHistory(store, 1)]
    for manifest_history in ledgers:
        manifest_history.load(lambda _: SHOP)
    ledgers[0].begin(SHOP, epoch=1, position=100)
    with pytest.raises(FencedError):
        ledgers[1].begin(SHOP, epoch=1, position=100)


def test_waiting_for_a_store_ends_with_stop(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.capture.retry.RETRY_SECONDS", 60)
    stop = threading.Event()
    manifest_history = begun(store, stop=stop)
    store.fail("create", times=1_000_000)
    outcome: list[Any] = []

    def commit() -> None:
        try:
            manifest_history.commit(position=200)
        except TransientError as error:
            outcome.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    began = time.monotonic()
    stop.set()
    thread.join(5)
    assert outcome
    assert time.monotonic() - began < 5
    assert manifest_history.newest.position == 100


@pytest.mark.parametrize("field", ["system_id", "database"])
def test_the_landing_zone_of_another_database_is_refused(field: str, store: MemoryStore) -> None:
    begun(store)
    with pytest.raises(SourceMismatchError, match=field):
        ManifestHistory(store, 1).load(lambda _: SHOP.model_copy(update={field: "another"}))


def test_a_former_agent_that_wakes_up_after_a_takeover_can_not_commit(store: MemoryStore) -> None:
    former = begun(store)
    former.commit(position=200, notices=[notice("told once")])
    later = ManifestHistory(store, 2, closes_fence=True)
    closed = later.load(lambda _: SHOP)
    assert closed is not None
    assert (closed.number, closed.term, closed.position, closed.notices) == (3, 2, 200, [])
    with pytest.raises(FencedError):
        former.commit(position=300)
    assert later.load(lambda _: SHOP) == closed, "it is closed once"
    assert later.commit(position=300).number == 4


def test_an_agent_that_was_overtaken_as_it_begins_a_landing_zone_can_not_commit(store: MemoryStore) -> None:
    overtaken = ManifestHistory(store, 2, closes_fence=True)
    assert overtaken.load(lambda _: SHOP) is None
    begun(store, term=3)
    with pytest.raises(TransientError):
        overtaken.begin(SHOP, epoch=1, position=90)
    with pytest.raises(FencedError, match=r"its term is 3, ours 2"):
        overtaken.load(lambda _: SHOP)


def test_a_former_agent_that_wakes_up_during_a_takeover_commits_once_at_most(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, later = begun(store), ManifestHistory(store, 2, closes_fence=True)
    true_commit = ManifestHistory.commit

    def commit(self: ManifestHistory, **changes: Any) -> Any:
        if self is later and former.newest.number == 1:
            former.commit(position=150)
        return true_commit(self, **changes)

    monkeypatch.setattr(ManifestHistory, "commit", commit)
    closed = later.load(lambda _: SHOP)
    assert closed is not None
    assert (closed.number, closed.term, closed.position) == (3, 2, 150)
    with pytest.raises(FencedError):
        former.commit(position=300)


@pytest.mark.parametrize("closes_fence", [True, False])
def test_an_agent_that_was_overtaken_before_it_has_read_anything_can_not_commit(
    store: MemoryStore, closes_fence: bool
) -> None:
    begun(store, term=3)
    assert begun(store, term=3).newest.number == 1
    overtaken = ManifestHistory(store, 2, closes_fence=closes_fence)
    with pytest.raises(FencedError, match=r"manifest 1 .*its term is 3, ours 2"):
        overtaken.load(lambda _: SHOP)
    assert len(manifests_in(store)) == 1
