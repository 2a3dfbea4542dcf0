"""An agent that is one of several: when it stands by again, and when it ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from connector import agent, listening
from connector.capture.lander import Lander
from connector.capture.loop import Capture
from connector.capture.manifest_history import ManifestHistory
from connector.capture.startup import begin_or_resume
from connector.config import Config
from connector.errors import (
    ConfigurationError,
    FencedError,
    LogOffError,
    PreconditionError,
    RequestError,
    TransientError,
)
from connector.landing import lease as lease_module
from connector.landing.format import LEASE
from connector.landing.lease import Lease, read_lease
from connector.landing.manifest_store import newest_manifest
from connector.process import ProcessIdentity
from connector.schema import TableName
from connector.signals import SignalEvent, stopped_by_signals
from connector.silence import SILENCE_SECONDS
from connector.source import Finding
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import AnsweringProbe, CheckedSource, config_of, shop
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_waits")

Step = Callable[[Any], None]
ITEMS, PARTS = TableName("public", "items"), TableName("public", "parts")
capture_until_stopped = Capture.run


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def open_memory(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, probes: list[AnsweringProbe] | None = None
) -> None:
    """Have the agent open a store and databases in memory; `probes` collects its probes."""
    probes = [] if probes is None else probes

    def open_probe(_config: Config) -> AnsweringProbe:
        probes.append(AnsweringProbe())
        return probes[-1]

    monkeypatch.setattr(agent, "open_stores", lambda *_: (store, store))
    monkeypatch.setattr(
        agent, "open_source", lambda config: CheckedSource(shop(rows=3), config.source, store)
    )
    monkeypatch.setattr(agent, "open_probe", open_probe)


def run(
    monkeypatch: pytest.MonkeyPatch,
    store: MemoryStore,
    *steps: Step,
    standby: bool = True,
    load_config: Callable[[], Config] | None = None,
    probes: list[AnsweringProbe] | None = None,
    **settings: Any,
) -> list[int]:
    """Run the agent, whose captures take these steps; return the terms in which it was active."""
    left, terms = list(steps), []

    def capture(self: Any) -> None:
        lease = read_lease(store)
        assert lease is not None
        terms.append(lease.term)
        left.pop(0)(self)

    monkeypatch.setattr(lease_module, "STANDBY_POLL_SECONDS", 0.01)
    monkeypatch.setattr(agent, "HANDOVER_SECONDS", 0.05)
    open_memory(monkeypatch, store, probes)
    monkeypatch.setattr(agent.Capture, "run", capture)
    agent.run(config_of(**settings), load_config, standby=standby)
    assert left == []
    return terms


def hand_over(capture: Any) -> None:
    capture.hand_over()


def is_fenced(_capture: Any) -> None:
    raise FencedError("another agent is active")


def end(_capture: Any) -> None:
    pass


def begin(capture: Any) -> None:
    """Begin or resume the history, as a capture does first."""
    assert capture._open()


def landed_before(store: MemoryStore) -> None:
    """Leave a landing zone, and the lease of a process that is gone."""
    term = Lease.acquire(store, 0.05).term
    source = CheckedSource(shop(rows=3), config_of().source, store)
    begin_or_resume(source, ManifestHistory(store, term), Lander(store), config_of())


def test_it_stands_by_again_when_it_handed_over_or_was_overtaken(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    assert run(monkeypatch, store, hand_over, is_fenced, hand_over, end) == [1, 2, 3, 4]
    lease = read_lease(store)
    assert lease is not None
    assert lease.released


def test_it_ends_when_it_is_stopped_even_if_it_handed_over_or_was_overtaken(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    def stop_and_hand_over(capture: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        capture.hand_over()

    def stop_and_be_fenced(capture: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        is_fenced(capture)

    assert run(monkeypatch, store, stop_and_hand_over) == [1]
    with pytest.raises(FencedError):
        run(monkeypatch, store, stop_and_be_fenced)


@pytest.mark.parametrize(("released", "signals"), [(False, 1), (False, 2), (True, 1), (True, 2), (True, 3)])
def test_a_stop_while_the_lease_is_taken_or_released_leaves_it_released(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, released: bool, signals: int
) -> None:
    """The third signal comes earlier."""
    stopped, true_replace = SignalEvent(), store.replace

    def replace(path: str, data: bytes, version: str | None) -> str | None:
        if path != LEASE or released != (b'"released": true' in data):
            return true_replace(path, data, version)
        written = None if released else true_replace(path, data, version)
        for _ in range(min(signals, 2)):
            os.kill(os.getpid(), signal.SIGTERM)
        return written or true_replace(path, data, version)

    def capture(_capture: Any) -> None:
        if signals == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    def exit_now(_signal: object) -> None:
        stopped.set()
        sys.exit(0)

    open_memory(monkeypatch, store)
    monkeypatch.setattr(agent.Capture, "run", capture)
    monkeypatch.setattr(store, "replace", replace)
    with stopped_by_signals(exit_now), suppress(SystemExit, KeyboardInterrupt):
        agent.run(config_of(), stopped=stopped)
    assert stopped.is_set()
    lease = read_lease(store)
    assert lease is not None
    assert lease.released


def test_a_stop_whose_exception_is_lost_ends_what_waits_for_the_lease(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    """What a signal handler raises is lost in an import that a C extension makes."""
    stopped = threading.Event()

    def wait(self: Any, what: str) -> None:
        stopped.set()

    Lease.acquire(store, 60)
    monkeypatch.setattr(ProcessIdentity, "is_gone", False)
    monkeypatch.setattr(lease_module._Watch, "_say", wait)
    open_memory(monkeypatch, store)
    with pytest.raises(SystemExit) as ended:
        agent.run(config_of(), standby=True, stopped=stopped)
    assert ended.value.code == 0


@pytest.mark.parametrize("awaited", ["the landing zone", "a valid file"])
def test_a_stop_whose_exception_is_lost_ends_what_tries_again(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, awaited: str
) -> None:
    stopped, tries = threading.Event(), 0

    def fail(*_: object) -> Any:
        nonlocal tries
        tries += 1
        if tries == 2:
            stopped.set()
        assert tries < 4, "it goes on"
        raise ConfigurationError("odd") if awaited == "a valid file" else TransientError("no answer")

    if awaited == "the landing zone":
        monkeypatch.setattr(agent, "probe", fail)
    Lease.acquire(store, 0.05).release()
    monkeypatch.setattr(agent, "RELOAD_SECONDS", 0.01)
    open_memory(monkeypatch, store)
    with pytest.raises(SystemExit):
        agent.run(config_of(), fail, standby=True, stopped=stopped)


def test_an_agent_alone_ends_when_it_is_overtaken_and_hands_nothing_over(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    def refuse(capture: Any) -> None:
        with pytest.raises(RequestError, match="not started with --standby"):
            capture.hand_over()

    assert run(monkeypatch, store, refuse, standby=False) == [1]
    with pytest.raises(FencedError):
        run(monkeypatch, store, is_fenced, standby=False)


@pytest.mark.parametrize("released", [True, False])
def test_only_what_was_taken_over_by_time_closes_the_fence(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, released: bool
) -> None:
    former = Lease.acquire(store, 0.05)
    if released:
        former.release()
    closes: list[bool] = []
    run(monkeypatch, store, lambda capture: closes.append(capture._manifest_history.closes_fence))
    assert closes == [not released]


def test_each_tenure_begins_with_the_configuration_of_now(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    """What was reloaded in a tenure counts in the next, even if the file is invalid by then."""
    names: list[str] = []
    landed: list[set[TableName]] = []

    def load_config() -> Config:
        if not names:
            raise ConfigurationError("it is being edited")
        return config_of(tables=names)

    def narrowed_then_handed_over(capture: Any) -> None:
        begin(capture)
        landed.append(set(capture.newest.tables))
        hand_over(capture)

    def changed_while_active(capture: Any) -> None:
        names[:] = ["public.parts"]
        capture.config = load_config()
        names.clear()
        hand_over(capture)

    def last(capture: Any) -> None:
        landed.append({name for name in (ITEMS, PARTS) if capture.config.source.captures(name)})

    names.append("public.items")
    run(monkeypatch, store, narrowed_then_handed_over, changed_while_active, last, load_config=load_config)
    assert landed == [{ITEMS}, {PARTS}]


def test_an_invalid_file_ends_one_that_is_no_standby(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    def invalid() -> Config:
        raise ConfigurationError("shop.toml: source.tables: it is empty")

    Lease.acquire(store, 0.05).release()
    with pytest.raises(ConfigurationError, match="it is empty") as raised:
        run(monkeypatch, store, load_config=invalid, standby=False)
    assert raised.value.exit_code == ConfigurationError.exit_code
    lease = read_lease(store)
    assert lease is not None
    assert lease.released


def test_a_standby_leaves_the_lease_to_others_until_its_file_is_valid(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Its service manager would not start it again: then nobody would take over once the file is fixed."""
    tries: list[bool] = []
    other: list[Lease] = []

    def load_config() -> Config:
        tries.append(True)
        if len(tries) == 2:  # the lease of term 2 is free for one that can take over
            other.append(Lease.acquire(store, 0.05))
        if len(tries) < 4:
            raise ConfigurationError("shop.toml: source.tables: it is empty")
        if len(tries) == 4:
            other[0].release()
        return config_of(tables=["public.parts"])

    def capture(capture: Any) -> None:
        assert not capture.config.source.captures(ITEMS)

    monkeypatch.setattr(agent, "RELOAD_SECONDS", 0.01)
    Lease.acquire(store, 0.05)
    assert run(monkeypatch, store, capture, load_config=load_config) == [4]
    assert other[0].term == 3
    assert caplog.text.count("can't take over before the configuration file is valid") == 1
    assert "source.tables: it is empty" in caplog.text


def test_a_standby_that_takes_over_while_the_server_writes_no_log_records_the_gap(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    landed_before(store)
    checks: list[bool] = []

    def ensure_logging(_source: Any) -> None:
        checks.append(True)
        if len(checks) > 1:
            raise LogOffError(hint="set log_bin = ON")

    monkeypatch.setattr(CheckedSource, "ensure_logging", ensure_logging)
    with pytest.raises(LogOffError, match="does not write its binary log"):
        run(monkeypatch, store, capture_until_stopped)
    newest, lease = newest_manifest(store), read_lease(store)
    assert newest is not None
    assert lease is not None
    assert (newest.term, newest.epoch, bool(newest.pending_gap), lease.released) == (2, 1, True, True)


def test_a_table_that_was_dropped_meanwhile_ends_no_takeover_and_one_that_is_unfit_is_quarantined(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    landed_before(store)
    gone = Finding("tables public.gone", "failed", "no table matches", "create it", dropped=True)
    unfit = Finding("tables public.parts", "failed", "no key", table=PARTS)
    findings: list[list[Finding]] = [[], [gone, unfit]]
    monkeypatch.setattr(CheckedSource, "check", lambda _source: findings.pop(0))
    assert run(monkeypatch, store, begin) == [2]
    newest = newest_manifest(store)
    assert newest is not None
    assert (newest.tables[ITEMS].state, newest.tables[PARTS].state) == ("captured", "quarantined")


def test_a_takeover_waits_for_a_server_that_is_about_to_be_promoted(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    landed_before(store)
    answers: list[bool] = []

    def identity(source: Any, landed: Any = None) -> Any:
        answers.append(True)
        if 1 < len(answers) < 4:
            raise TransientError("source.url points to a standby")
        return true_identity(source, landed)

    def check(_source: Any) -> list[Finding]:
        promoted = not 1 <= len(answers) < 4
        return [] if promoted else [Finding("primary", "failed", "the server is a standby")]

    true_identity = CheckedSource.identity
    monkeypatch.setattr(CheckedSource, "identity", identity)
    monkeypatch.setattr(CheckedSource, "check", check)
    assert run(monkeypatch, store, begin) == [2]
    assert len(answers) > 3


def test_what_refuses_a_takeover_ends_it(monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> None:
    landed_before(store)
    findings = [[], [Finding("wal_level", "failed", "is replica", "set it")]]
    monkeypatch.setattr(CheckedSource, "check", lambda _source: findings.pop(0))
    with pytest.raises(PreconditionError, match=r"wal_level: is replica\n  -> set it"):
        run(monkeypatch, store, begin)


def test_the_lease_is_renewed_while_the_source_is_checked_and_left_to_others_if_it_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    landed_before(store)
    deadline, stands_by = time.monotonic() + 20, threading.Event()

    def check(_source: Any) -> list[Finding]:
        lease = read_lease(store)
        assert time.monotonic() < deadline, "it has waited too long"
        if lease is not None and lease.term == 2 and not (lease.released and stands_by.is_set()):
            raise TransientError("no route to the database")
        return []

    def gives_up(capture: Any) -> None:
        assert not capture._open()
        stands_by.set()
        lease = read_lease(store)
        assert lease is not None
        assert (lease.renewals > 0, capture.handed_over) == (True, True)

    monkeypatch.setattr(CheckedSource, "check", check)
    assert run(monkeypatch, store, gives_up, begin, lease_seconds=1) == [2, 3]


def test_a_silent_source_is_left_to_another_agent_though_everything_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    """The lease is free at once, and says that the next agent must end what is left of this one.

    It stays free until the source answers: nobody takes it, only to hand it over again.
    """
    landed_before(store)
    monkeypatch.setattr(listening, "TAKEOVER_SECONDS", 0.0)
    closes: list[bool] = []
    free_at_checks: list[bool] = []

    def check(_source: Any) -> list[Finding]:
        free_at_checks.append(released(store))
        if 1 < len(free_at_checks) < 5:
            raise TransientError("no answer")
        return []

    def waits_for_an_answer(capture: Any) -> None:
        probes[-1].silent.set()
        wait_until(lambda: released(store), "the lease is released")
        assert capture.handed_over

    def takes_over(capture: Any) -> None:
        closes.append(capture._manifest_history.closes_fence)

    monkeypatch.setattr(CheckedSource, "check", check)
    probes: list[AnsweringProbe] = []
    steps = waits_for_an_answer, takes_over
    assert run(monkeypatch, store, *steps, probes=probes, lease_seconds=1) == [2, 3]
    assert (closes, free_at_checks) == ([True], [False, True, True, True, True])


def test_a_login_that_takes_longer_than_silence_may_does_not_end_each_tenure(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    """The server looks up our host's name, or an address leads to a host that is gone first."""
    landed_before(store)
    monkeypatch.setattr(listening, "TAKEOVER_SECONDS", 0.0)
    logged_in = threading.Event()

    def ask(_probe: AnsweringProbe) -> None:
        if not released(store):
            logged_in.wait(30)

    def waits_for_a_login(_capture: Any) -> None:
        wait_until(lambda: released(store), "the lease is released")

    def logs_in(capture: Any) -> None:
        renewed = lambda: getattr(read_lease(store), "renewals", 0) > 4  # noqa: E731
        wait_until(lambda: renewed() or capture.handed_over, "time has passed")
        assert not capture.handed_over
        logged_in.set()

    monkeypatch.setattr(AnsweringProbe, "ask", ask)
    assert run(monkeypatch, store, waits_for_a_login, logs_in, lease_seconds=1) == [2, 3]


def test_an_agent_whose_first_answer_came_late_once_is_no_longer_patient_after_one_that_did_not(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    landed_before(store)
    monkeypatch.setattr(listening, "TAKEOVER_SECONDS", 0.0)
    allowed, true_listen = list[float](), agent._listen

    def listen(*given: Any, **named: Any) -> Any:
        allowed.extend([named["first_seconds"]] if "first_seconds" in named else [])
        return true_listen(*given, **named)

    def ask(_probe: AnsweringProbe) -> None:
        lease = read_lease(store)
        if lease is not None and lease.term == 2:
            wait_until(lambda: released(store), "the lease is released")

    def waits(_capture: Any) -> None:
        wait_until(lambda: released(store), "the lease is released")

    def hands_over_later(capture: Any) -> None:
        wait_until(lambda: getattr(read_lease(store), "renewals", 0) > 3, "time has passed")
        capture.hand_over()

    monkeypatch.setattr(agent, "_listen", listen)
    monkeypatch.setattr(AnsweringProbe, "ask", ask)
    run(monkeypatch, store, waits, hands_over_later, end, lease_seconds=1)
    assert allowed == [0.0, SILENCE_SECONDS, 0.0]


@pytest.mark.parametrize("ends", ["stop", "hand_over"])
def test_who_ends_with_a_commit_in_doubt_leaves_the_fence_to_close(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, ends: str
) -> None:
    """Its create may take effect after the next agent has read the newest manifest, which would then stop."""
    late, true_load = list[tuple[str, bytes]](), ManifestHistory.load

    def load(self: ManifestHistory, identify: Any) -> Any:
        newest = true_load(self, identify)
        if late:
            store.create(*late[0])
        return newest

    def commits_in_vain(capture: Any) -> None:
        begin(capture)
        true_create = store.create

        def create(path: str, data: bytes) -> bool:
            late.append((path, data))
            getattr(capture, ends)()
            raise TransientError("no answer")

        monkeypatch.setattr(store, "create", create)
        with pytest.raises(TransientError):
            capture._manifest_history.commit()
        monkeypatch.setattr(store, "create", true_create)

    def commits(capture: Any) -> None:
        begin(capture)
        capture._manifest_history.commit()

    monkeypatch.setattr(ManifestHistory, "load", load)
    if ends == "stop":
        run(monkeypatch, store, commits_in_vain)
        run(monkeypatch, store, commits)
    else:
        run(monkeypatch, store, commits_in_vain, commits)
    newest = newest_manifest(store)
    assert newest is not None
    assert newest.term == 2


def released(store: MemoryStore) -> bool:
    lease = read_lease(store)
    return lease is not None and lease.released
