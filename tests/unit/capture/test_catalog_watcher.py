"""The catalog watcher: changes that no log shows are seen, and dumped."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from connector.capture import catalog_watcher
from connector.capture.catalog_watcher import CatalogWatcher
from connector.capture.lander import LandedSegment
from connector.capture.loop import Capture
from connector.errors import PreconditionError, TransientError
from connector.landing.event_batch import UnloggedNotice
from connector.landing.manifest_store import newest_manifest
from connector.schema import TableName
from connector.source import CatalogSnapshot, LogReader
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_source import MemorySource
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, Writer, config_of, counted, insert, landed_ids, shop
from tests.support.landing.cuts import assert_every_cut_exact, manifests_in
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")

ITEMS = TableName("public", "items")


def repairs(manifest, table: TableName = ITEMS):  # type: ignore[no-untyped-def]
    return [d for d in manifest.dumps if d.table == table and d.reason == "repair"]


def test_a_table_that_changed_unlogged_is_dumped_again_from_a_later_position(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
        end = insert(database, 1001)
        database.unlogged[ITEMS] = 1
        repaired = agent.wait(lambda m: any(not d.active for d in repairs(m)), "the repair dump has ended")
    (dump,) = repairs(repaired)
    assert (dump.kind, dump.state) == ("full", "complete")
    assert (dump.low or 0) + 1 >= end
    assert repaired.tables[ITEMS].fingerprint == "1"
    assert not repairs(repaired, "public.parts")


def test_what_changed_unlogged_while_no_agent_ran_is_seen_at_the_start(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
    database.unlogged[ITEMS] = 1
    with Agent(database, store) as agent:
        agent.wait(lambda m: any(not d.active for d in repairs(m)), "the repair dump has ended")


def test_a_table_that_did_not_change_unlogged_is_not_dumped_again(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    with Agent(database, store) as agent:
        agent.wait_dumped()
    with Agent(database, store) as agent:
        checks = counted(agent, "check_catalog")
        wait_until(lambda: len(checks) >= 3, "the catalog has been checked")
        insert(database, 1001)
        agent.wait_caught_up()
    assert not repairs(newest_manifest(store))


def test_a_new_table_that_a_pattern_names_is_taken_up_while_running(store: MemoryStore) -> None:
    database = shop(rows=50)
    with Writer(database), Agent(database, store) as agent:
        agent.wait_dumped()
        database.create_table("public.later", ["id"], {"id": "bigint", "a": "string"})
        with database.transaction() as transaction:
            transaction.insert("public.later", id=1, a="unpublished yet")
        agent.wait(
            lambda m: (
                TableName.parse("public.later") in m.tables
                and m.tables[TableName.parse("public.later")].dumped
            ),
            "it is dumped",
        )
        with database.transaction() as transaction:
            transaction.insert("public.later", id=2, a="in the log")
        agent.wait_caught_up()
    assert_every_cut_exact(store, database)
    assert landed_ids(store) != []


def test_checks_that_fail_for_good_are_reported_once(
    database: MemoryDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as nobody checks, a change without row events goes unseen, and cuts are called exact."""
    source = MemorySource(database, config_of().source)
    errors = [TransientError("gone for a moment"), PreconditionError("no right to look")]
    answers = iter([*errors, errors[1], *[errors[0]] * 4])
    done = threading.Event()

    def fail(_known: object) -> CatalogSnapshot:
        if (error := next(answers, None)) is None:
            done.set()
            return CatalogSnapshot({}, 0, frozenset())
        raise error

    monkeypatch.setattr(source, "check_catalog", fail)
    watch = CatalogWatcher(source, dict)
    watch.start()
    assert done.wait(10)
    watch.stop()
    reported = [m.split("retrying: ")[1] for m in caplog.messages if m.startswith("can't check")]
    assert reported == ["no right to look", "gone for a moment"]


def test_the_log_is_reopened_once_checks_have_failed_for_long_and_stays_closed_until_one_succeeds(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then every cut would be called exact, whatever changes without row events."""
    monkeypatch.setattr(catalog_watcher, "BLIND_SECONDS", 0.2)
    with Agent(database, store) as agent:
        agent.wait_dumped()
        agent.source.fail("check_catalog", times=30)
        wait_until(lambda: agent.capture.progress.reconnects >= 2, "the log stays closed")
        database.unlogged[ITEMS] = 1
        agent.wait(lambda m: any(not d.active for d in repairs(m)), "the repair dump has ended")


def test_the_log_is_reopened_once_a_look_has_hung_for_long(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_watcher, "BLIND_SECONDS", 0.2)
    with Agent(database, store) as agent:
        agent.wait_dumped()
        check, released = agent.source.check_catalog, threading.Event()

        def hang(known: Mapping[TableName, str] | None = None) -> CatalogSnapshot:
            if threading.current_thread().name == "watch":
                released.wait(10)
            return check(known)

        monkeypatch.setattr(agent.source, "check_catalog", hang)
        wait_until(lambda: agent.capture.progress.reconnects >= 1, "the log is reopened")
        released.set()


def test_an_agent_whose_checks_are_refused_ends(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_watcher, "BLIND_SECONDS", 0.2)
    agent = Agent(database, store)
    agent.start()
    agent.wait_dumped()
    agent.source.fail("check_catalog", times=1_000, error=PreconditionError("no right to look"))
    agent.join()
    assert str(agent.error) == "no right to look"


def test_what_the_log_tells_is_dumped_by_the_manifest_that_has_the_log_and_only_then(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any check, which the table may be locked for, or a failover may come before."""
    commit, told = Capture._commit, list[int]()

    def telling(capture: Capture, landed: LandedSegment, reader: LogReader) -> bool:
        if landed.events and not told:
            told.append(landed.position)
            landed.unlogged.append(UnloggedNotice(ITEMS, landed.position, "a partition was emptied"))
        return commit(capture, landed, reader)

    with Agent(database, store) as agent:
        agent.wait_dumped()
        agent.wait_caught_up()
        monkeypatch.setattr(Capture, "_commit", telling)
        insert(database, 1001)
        agent.wait(lambda m: any(not d.active for d in repairs(m)), "the repair dump has ended")
    manifests = manifests_in(store)
    first = next(m for m in manifests if m.position >= told[0])
    (dump,) = repairs(first)
    assert (dump.active, dump.floor) == (True, told[0])
    assert [n.text for n in first.notices] == ["a partition was emptied: dumping it again"]
    assert len(repairs(manifests[-1])) == 1


def test_a_check_is_discarded_if_other_fingerprints_are_known_by_its_end(
    database: MemoryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the check before, acted on late: it found the same change, and would find it again."""
    monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", 0.01)
    source = MemorySource(database, config_of().source)
    known, done, check = {ITEMS: "former"}, list[tuple[CatalogSnapshot | None, float]](), source.check_catalog

    def slow(before: Mapping[TableName, str] | None = None) -> CatalogSnapshot:
        done.append((watch._found, watch._checked_at))  # what the former check led to
        if len(done) == 2:
            known[ITEMS] = "newer"
        return check(before)

    monkeypatch.setattr(source, "check_catalog", slow)
    watch = CatalogWatcher(source, lambda: dict(known))
    watch.start()
    wait_until(lambda: len(done) >= 4, "four checks began")
    watch.stop()
    first, second, third, fourth = done[:4]
    assert (first[0], third) == (None, second), "it does not count as a check, either"
    assert second[0] is not None
    assert fourth[0] is not third[0]
    assert fourth[1] > third[1]
