"""The agent's start where the landing zone or the database does not answer, or refuses."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from connector import agent
from connector.capture import retry
from connector.capture.lander import Lander
from connector.capture.manifest_history import ManifestHistory
from connector.capture.startup import begin_or_resume
from connector.errors import (
    DeltatideError,
    LogOffError,
    PreconditionError,
    TransientError,
    UnreachableError,
)
from connector.findings import check_patterns
from connector.landing.format import LEASE
from connector.landing.lease import Lease, read_lease
from connector.landing.manifest_store import newest_manifest
from connector.signals import SignalEvent, stopped_by_signals
from connector.silence import note_open
from connector.source import Finding, TableListing
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import AnsweringProbe, CheckedSource, config_of, shop


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def shop_source(store: MemoryStore) -> CheckedSource:
    return CheckedSource(shop(rows=3), config_of().source, store)


@pytest.fixture(autouse=True)
def source(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> CheckedSource:
    source = shop_source(store)
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(agent, "open_store", lambda *_a, **_k: store)
    monkeypatch.setattr(agent, "open_stores", lambda *_: (store, store))
    monkeypatch.setattr(agent, "open_source", lambda _config: source)
    monkeypatch.setattr(agent, "open_probe", lambda _config: AnsweringProbe())
    monkeypatch.setattr(agent.Capture, "run", lambda _self: None)
    return source


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("call", "path"),
    [("create", "probe/"), ("list", "probe/"), ("delete", "probe/"), ("folders", "manifest"),
     ("read", LEASE), ("replace", LEASE)],
)  # fmt: skip
def test_a_store_that_does_not_answer_at_the_start_is_waited_for(
    call: str, path: str, when: Any, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.fail(call, path, when=when, times=3)
    with caplog.at_level(logging.WARNING):
        agent.run(config_of())
    assert "the landing zone did not answer, retrying" in caplog.text
    lease = read_lease(store)
    assert lease is not None
    assert (lease.term, lease.released) == (1, True)
    assert not [path for path in store.objects if path.startswith("probe/")]


def test_a_database_that_falls_silent_at_the_start_is_not_waited_for_on_the_same_connection(
    source: CheckedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections live, behind a proxy, and the check would wait for an answer for ever."""
    probe, ended, checks = AnsweringProbe(), threading.Event(), list[None]()
    probe.silent.set()

    def check() -> list[Finding]:
        checks.append(None)
        if len(checks) == 1:
            assert ended.wait(30)
            raise TransientError("the connection was lost")
        return []

    monkeypatch.setattr(source, "check", check)
    monkeypatch.setattr(agent, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(agent, "open_probe", lambda _config: probe)
    monkeypatch.setattr(agent, "end_all", lambda name: ended.set() if name == "deltatide shop" else None)
    agent.run(config_of())
    assert len(checks) == 2


def test_a_store_that_refuses_ends_the_start(store: MemoryStore) -> None:
    store.fail("create", "probe/", error=PreconditionError("s3://x: NoSuchBucket", hint="create the bucket"))
    with pytest.raises(PreconditionError, match="NoSuchBucket") as caught:
        agent.run(config_of())
    assert "create the bucket" in str(caught.value)


def test_a_database_that_does_not_answer_at_the_start_is_waited_for(
    source: CheckedSource, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    source.fail("check", times=3, error=TransientError("it is starting up", hint="look at its port"))
    with caplog.at_level(logging.WARNING):
        agent.run(config_of())
    reported = "the source did not answer, retrying: it is starting up (look at its port)"
    assert caplog.messages.count(reported) == 3
    lease = read_lease(store)
    assert lease is not None
    assert lease.term == 1


def test_a_check_reports_a_database_that_does_not_answer_at_once(source: CheckedSource) -> None:
    source.fail("check", error=TransientError("it is starting up"))
    assert [f.detail for f in agent.check(config_of()) if f.state == "failed"] == ["it is starting up"]


def test_a_check_looks_at_limits_and_replicas_which_end_no_start(
    source: CheckedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Finding("connections", "failed", "others leave 3, and an agent needs up to 9", "raise it")

    def check(workers: int) -> list[Finding]:
        assert workers == config_of().dump.workers
        return [found]

    gauge = SimpleNamespace(check=check, close=lambda: None)
    monkeypatch.setattr(agent, "open_gauge", lambda _config: gauge)
    assert agent.check(config_of())[-1] == found
    agent.run(config_of())

    def refuse(_config: Any) -> None:
        raise TransientError("sorry, too many clients already", hint="raise the limit")

    monkeypatch.setattr(agent, "open_gauge", refuse)
    assert agent.check(config_of())[-1] == Finding(
        "connections", "warning", "sorry, too many clients already", "raise the limit"
    )
    source.fail("check", error=TransientError("it is starting up"))
    assert "connections" not in {each.name for each in agent.check(config_of())}


def test_a_check_of_limits_ends_when_the_database_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    probe, (ours, theirs) = AnsweringProbe(), socket.socketpair()

    def check(workers: int) -> list[Finding]:
        probe.silent.set()
        ours.settimeout(10)
        assert ours.recv(1) == b"", "it was ended"
        raise UnreachableError("the connection was lost")

    monkeypatch.setattr(agent, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(agent, "open_probe", lambda _config: probe)
    monkeypatch.setattr(agent, "open_gauge", lambda _: SimpleNamespace(check=check, close=ours.close))
    note_open("deltatide shop", ours, socket.socket.fileno)
    with theirs:
        assert agent.check(config_of())[-1].detail == "the connection was lost"


def test_a_database_that_refuses_ends_the_start(source: CheckedSource, store: MemoryStore) -> None:
    source.fail("check", error=PreconditionError("password authentication failed"))
    with pytest.raises(PreconditionError, match="password authentication failed"):
        agent.run(config_of())
    assert read_lease(store) is None


def test_a_name_that_matches_nothing_ends_the_first_start_alone_later_the_table_was_dropped(
    source: CheckedSource,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    missing = Finding("tables public.gone", "failed", "no table matches", "create it", dropped=True)
    findings = [missing]
    monkeypatch.setattr(CheckedSource, "check", lambda _self: [*findings])
    wrong = r"tables public\.gone: no table matches"
    with pytest.raises(PreconditionError, match=wrong):
        agent.run(config_of())
    start = source, ManifestHistory(store, 1), Lander(store), config_of()
    with pytest.raises(PreconditionError, match=wrong):
        begin_or_resume(*start)
    findings.clear()
    begin_or_resume(*start)
    findings.append(missing)
    begin_or_resume(*start)
    agent.run(config_of())
    assert "tables public.gone: no table matches" in caplog.text


def test_the_only_table_that_is_away_for_a_moment_is_waited_for(
    source: CheckedSource, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = source, ManifestHistory(store, 1), Lander(store), config_of()
    begin_or_resume(*start)
    found = [*check_patterns(config_of().source, [], [], "no table matches", "create it")]
    monkeypatch.setattr(CheckedSource, "check", lambda _self: found)
    monkeypatch.setattr(CheckedSource, "tables", lambda *_: TableListing([], []))
    agent.run(config_of())  # it takes the lease, and starts capture
    with pytest.raises(TransientError, match=r"no table matches .* at the moment"):
        begin_or_resume(*start)


@pytest.mark.parametrize(
    ("moment", "error"),
    [
        ("check", None),
        ("check", PreconditionError("the server is read-only")),
        ("identity", TransientError("it is shut down")),
        ("identity", PreconditionError("SELECT command denied")),
    ],
)
def test_a_server_without_its_log_is_recorded_as_a_gap_whatever_else_ends_the_start(
    source: CheckedSource, store: MemoryStore, moment: str, error: DeltatideError | None
) -> None:
    begin_or_resume(source, ManifestHistory(store, 1), Lander(store), config_of())
    source.fail("ensure_logging", error=LogOffError(hint="set log_bin = ON"))
    if error is not None:
        source.fail(moment, error=error)
    with pytest.raises(PreconditionError, match=r"does not write its binary log.*\n  -> set log_bin = ON"):
        agent.run(config_of())
    newest, lease = newest_manifest(store), read_lease(store)
    assert newest is not None
    assert newest.pending_gap
    assert lease is not None
    assert lease.released


@pytest.mark.parametrize(
    ("error", "raised"),
    [(PreconditionError("the rights were taken away"), PreconditionError), (SystemExit(0), SystemExit)],
)
def test_who_ends_while_it_records_a_gap_leaves_the_fence_to_close(
    source: CheckedSource, store: MemoryStore, error: BaseException, raised: type[BaseException]
) -> None:
    """Its create, which nobody answered, may take effect when another agent has read the newest manifest."""
    begin_or_resume(source, ManifestHistory(store, 1), Lander(store), config_of())
    source.fail("ensure_logging", error=LogOffError())
    store.fail("create", "manifest/", times=2)
    store.fail("create", "manifest/", error=error)
    with pytest.raises(raised):
        agent.run(config_of())
    lease = read_lease(store)
    assert lease is not None
    assert (lease.released, lease.unfenced) == (True, True)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stop_while_the_lease_is_taken_to_record_a_gap_has_it_recorded_two_have_it_released(
    source: CheckedSource, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, signals: int
) -> None:
    begin_or_resume(source, ManifestHistory(store, 1), Lander(store), config_of())
    source.fail("ensure_logging", error=LogOffError())
    stopped, true_replace = SignalEvent(), store.replace

    def replace(path: str, data: bytes, version: str | None) -> str | None:
        written = true_replace(path, data, version)
        if path == LEASE:
            monkeypatch.setattr(store, "replace", true_replace)
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
        return written

    def exit_now(_signal: object) -> None:
        stopped.set()
        sys.exit(0)

    monkeypatch.setattr(store, "replace", replace)
    with stopped_by_signals(exit_now), pytest.raises(SystemExit if signals == 1 else KeyboardInterrupt):
        agent.run(config_of(), stopped=stopped)
    lease, newest = read_lease(store), newest_manifest(store)
    assert lease is not None
    assert newest is not None
    assert (lease.released, newest.pending_gap is not None) == (True, signals == 1)


def test_a_former_agents_commit_that_takes_effect_late_keeps_no_gap_from_being_recorded(
    source: CheckedSource, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_or_resume(source, ManifestHistory(store, 1), Lander(store), config_of())
    Lease.acquire(store, 15).release(unreachable=True)
    former, true_create = ManifestHistory(store, 1), store.create
    former.load(lambda landed: landed.source)

    def create(path: str, data: bytes) -> bool:
        if path.startswith("manifest/"):
            monkeypatch.setattr(store, "create", true_create)
            former.commit()
        return true_create(path, data)

    source.fail("ensure_logging", error=LogOffError())
    monkeypatch.setattr(store, "create", create)
    with pytest.raises(PreconditionError):
        agent.run(config_of())
    newest = newest_manifest(store)
    assert newest is not None
    assert newest.pending_gap


def test_a_server_that_logs_again_when_the_check_is_repeated_is_a_gap_too(
    source: CheckedSource, store: MemoryStore
) -> None:
    begin_or_resume(source, ManifestHistory(store, 1), Lander(store), config_of())
    source.fail("ensure_logging", error=LogOffError())
    source.fail("check", error=TransientError("it is restarted"))
    agent.run(config_of())
    newest = newest_manifest(store)
    assert newest is not None
    assert newest.pending_gap


def test_a_server_without_its_log_is_no_gap_before_the_first_manifest_nor_of_another_database(
    source: CheckedSource, store: MemoryStore
) -> None:
    source.fail("ensure_logging", times=2, error=LogOffError())
    with pytest.raises(PreconditionError, match="does not write its binary log"):
        agent.run(config_of())
    assert read_lease(store) is None
    begin_or_resume(shop_source(store), ManifestHistory(store, 1), Lander(store), config_of())
    source.database.name = "another"
    with pytest.raises(PreconditionError, match="belongs to a server with database"):
        agent.run(config_of())
    newest = newest_manifest(store)
    assert newest is not None
    assert newest.pending_gap is None
