"""The lease: who gets it, who waits, who is told to stop."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from connector import process
from connector.capture.manifest_history import ManifestHistory
from connector.errors import FencedError, FormatError, TransientError
from connector.landing import lease as lease_module
from connector.landing.format import LEASE, STATES
from connector.landing.lease import AgentFigures, Holder, Lease, answer_seconds, read_lease
from connector.landing.manifest import SourceIdentity
from connector.process import ProcessIdentity
from connector.testing.memory_store import MemoryStore
from tests.support.clock import Clock
from tests.support.landing.landed import Landed


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class SleepingClock(Clock):
    """Time that passes only while somebody sleeps; `at` lets things happen then."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.at: dict[float, Any] = {}

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [m for m in self.at if m <= self.now]:
            self.at.pop(moment)()


def held_elsewhere(store: MemoryStore, **changes: Any) -> Holder:
    """A lease of a living agent on another host."""
    now = datetime.now(timezone.utc)
    state = Holder(
        holder="other",
        term=4,
        host="db-2",
        pid=77,
        machine="db-2/boot/pid",
        process_start="1",
        since=now,
        until=now + timedelta(seconds=10),
        seconds=10,
    ).model_copy(update=changes)
    store.put(LEASE, state.model_dump_json().encode())
    return state


def test_a_free_lease_is_taken_and_names_its_holder(store: MemoryStore) -> None:
    assert read_lease(store) is None
    lease = Lease.acquire(store, 15)
    state = read_lease(store)
    assert state is not None
    assert (state.term, state.holder, state.active) == (1, lease.holder, True)


def test_a_released_lease_is_taken_at_once_in_a_new_term(store: MemoryStore) -> None:
    Lease.acquire(store, 15).release()
    state = read_lease(store)
    assert state is not None
    assert not state.active
    assert Lease.acquire(store, 15).term == 2


def test_a_living_process_of_this_host_keeps_it(store: MemoryStore) -> None:
    Lease.acquire(store, 15)
    clock = SleepingClock()
    with pytest.raises(
        FencedError, match=r"another agent is active on this source: process \d+ on .*, since"
    ):
        Lease.acquire(store, 15, sleep=clock.sleep, clock=clock)
    assert clock.now == 0


def test_a_lease_of_a_dead_process_of_this_host_is_taken_at_once(store: MemoryStore) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    held_elsewhere(store, machine=ProcessIdentity.own().machine, pid=child.pid)
    clock = SleepingClock()
    lease = Lease.acquire(store, 15, sleep=clock.sleep, clock=clock)
    assert (lease.term, lease.unfenced) == (5, True), "what it has sent may still be under way"
    assert clock.now == 0


def test_a_lease_elsewhere_is_taken_when_it_was_not_renewed_for_its_length(store: MemoryStore) -> None:
    held_elsewhere(store)
    clock, reported = SleepingClock(), []
    lease = Lease.acquire(store, 15, reported.append, sleep=clock.sleep, clock=clock)
    assert lease.term == 5
    assert 10 <= clock.now < 11.5
    assert reported == ["waiting up to 10 s to see whether process 77 on db-2 still holds the lease"]


@pytest.mark.parametrize("minutes", [-1e6, -60, -1, 60])
def test_a_wrong_wall_clock_of_either_host_changes_nothing(store: MemoryStore, minutes: float) -> None:
    """A standby whose clock is ahead would take a lease that lives; one whose clock is behind never."""
    until = datetime.now(timezone.utc) + timedelta(minutes=minutes)
    held_elsewhere(store, until=until)
    clock = SleepingClock()
    Lease.acquire(store, 15, sleep=clock.sleep, clock=clock)
    assert 10 <= clock.now < 11.5

    held_elsewhere(store, until=until)
    clock = SleepingClock()
    clock.at[4] = lambda: held_elsewhere(store, until=until, renewals=1)
    with pytest.raises(FencedError, match="process 77 on db-2"):
        Lease.acquire(store, 15, sleep=clock.sleep, clock=clock)


def test_each_renewal_is_another_object_though_the_clock_stands_still(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(timezone.utc)
    monkeypatch.setattr(lease_module, "_now", lambda: now)
    lease = Lease.acquire(store, 15)
    seen = {store.objects[LEASE]}
    for _ in range(3):
        lease.renew(AgentFigures(at=7))
        seen.add(store.objects[LEASE])
    assert len(seen) == 4


@pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"process_start": "1"}])
def test_where_processes_are_hidden_only_one_that_is_gone_is_dead(
    store: MemoryStore, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under hidepid another user's process is not in /proc, and lives."""
    monkeypatch.setattr(process, "_fields_of", lambda _pid: None)
    held_elsewhere(store, **{"machine": ProcessIdentity.own().machine, "pid": os.getpid(), **change})
    clock = SleepingClock()
    Lease.acquire(store, 15, sleep=clock.sleep, clock=clock)
    assert (clock.now == 0) == ("pid" in change)


def test_a_container_of_the_same_name_and_boot_is_another_machine(store: MemoryStore) -> None:
    machine = ProcessIdentity.own().machine
    assert machine is not None
    held_elsewhere(store, machine=f"{machine.rpartition('[')[0]}[1]", pid=os.getpid())
    clock = SleepingClock()
    Lease.acquire(store, 15, sleep=clock.sleep, clock=clock)
    assert clock.now >= 10


def test_a_lease_whose_taking_was_in_doubt_is_taken_again_by_its_holder(store: MemoryStore) -> None:
    store.fail("replace", when="after", times=2)
    with pytest.raises(TransientError):
        Lease.acquire(store, 15, holder="we")
    assert Lease.acquire(store, 15, holder="we").term == 1


def test_a_lease_elsewhere_that_is_renewed_meanwhile_is_kept_by_its_holder(store: MemoryStore) -> None:
    state = held_elsewhere(store)
    clock = SleepingClock()
    clock.at[4] = lambda: held_elsewhere(store, until=state.until + timedelta(seconds=5))
    with pytest.raises(FencedError, match="process 77 on db-2"):
        Lease.acquire(store, 15, sleep=clock.sleep, clock=clock)
    assert clock.now < 6


def test_a_lease_elsewhere_that_is_released_meanwhile_is_taken(store: MemoryStore) -> None:
    held_elsewhere(store)
    clock = SleepingClock()
    clock.at[2] = lambda: held_elsewhere(store, released=True)
    assert Lease.acquire(store, 15, sleep=clock.sleep, clock=clock).term == 5
    assert clock.now < 4


def test_of_two_who_waited_one_gets_it(store: MemoryStore) -> None:
    held_elsewhere(store)
    clock = SleepingClock()
    clock.at[10] = lambda: held_elsewhere(store, holder="third", term=5, host="db-3")
    with pytest.raises(FencedError, match="db-3"):
        Lease.acquire(store, 15, sleep=clock.sleep, clock=clock)


@pytest.mark.parametrize("minutes", [-60, 60])
def test_a_standby_watches_as_long_as_the_lease_is_renewed(store: MemoryStore, minutes: float) -> None:
    until = datetime.now(timezone.utc) + timedelta(minutes=minutes)  # another host's clock
    held_elsewhere(store, until=until)
    clock, reported = SleepingClock(), []
    for n in range(1, 20):
        clock.at[4 * n] = lambda n=n: held_elsewhere(store, until=until, renewals=n)
    lease = Lease.acquire(store, 15, reported.append, standby=True, sleep=clock.sleep, clock=clock)
    assert 4 * 19 + 10 <= clock.now < 4 * 19 + 10 + 1.5
    assert (lease.term, lease.unfenced) == (5, True)
    assert reported == ["standing by: process 77 on db-2 holds the lease"]


@pytest.mark.parametrize("standby", [True, False])
@pytest.mark.parametrize("of_each", [2, 5])
def test_a_store_that_fails_once_in_a_while_delays_no_takeover(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, standby: bool, of_each: int
) -> None:
    """The lease is not watched from the beginning again, for ever."""
    held_elsewhere(store)
    clock, reads, read = SleepingClock(), list[str](), store.read_versioned

    def read_unless_it_fails(name: str) -> tuple[bytes, str] | None:
        reads.append(name)
        if len(reads) % of_each:
            return read(name)
        raise TransientError("slow down")

    monkeypatch.setattr(store, "read_versioned", read_unless_it_fails)
    lease = Lease.acquire(store, 15, standby=standby, sleep=clock.sleep, clock=clock)
    assert 10 <= clock.now < 11.5
    assert lease.unfenced


def test_reads_that_fail_in_a_row_leave_what_was_seen_before(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    held_elsewhere(store)
    clock, reported = SleepingClock(), list[str]()
    clock.at[4] = lambda: store.fail("read", LEASE, times=3)
    clock.at[8] = lambda: store.fail("read", LEASE, times=3)
    lease = Lease.acquire(store, 15, reported.append, standby=True, sleep=clock.sleep, clock=clock)
    assert 10 <= clock.now < 11.5
    assert lease.unfenced
    assert caplog.text.count("the landing zone did not answer, retrying") == 2
    assert reported == ["standing by: process 77 on db-2 holds the lease"]


def test_a_store_that_fails_its_holder_too_is_not_held_against_that(store: MemoryStore) -> None:
    """Once the store answers again, its holder has two thirds of the lease to renew it."""
    held_elsewhere(store)
    clock = SleepingClock()
    clock.at[1] = lambda: store.fail("read", LEASE, times=100)  # for fifty seconds
    lease = Lease.acquire(store, 15, standby=True, sleep=clock.sleep, clock=clock)
    assert 50 + 10 * 2 / 3 - 1 <= clock.now < 50 + 10
    assert lease.unfenced


def test_a_standby_that_was_paused_leaves_the_holder_time_that_may_have_been_paused_too(
    store: MemoryStore,
) -> None:
    """With its host, for example: the lease is renewed as soon as both go on."""
    held_elsewhere(store)
    clock = SleepingClock()

    def pause() -> None:
        clock.now += 60
        clock.at[clock.now + 5] = lambda: held_elsewhere(store, renewals=1)

    clock.at[1] = pause
    lease = Lease.acquire(store, 15, standby=True, sleep=clock.sleep, clock=clock)
    assert clock.now >= 1 + 60 + 5 + 10
    assert lease.unfenced


@pytest.mark.parametrize(
    ("operation", "when"), [("folders", "before"), ("replace", "before"), ("replace", "after")]
)
def test_a_store_that_fails_once_the_lease_has_expired_does_not_have_it_watched_again(
    store: MemoryStore, operation: str, when: Any
) -> None:
    held_elsewhere(store)
    clock = SleepingClock()
    store.fail(operation, when=when, times=4)
    lease = Lease.acquire(store, 15, standby=True, sleep=clock.sleep, clock=clock)
    assert 10 <= clock.now < 13
    assert (lease.term, lease.unfenced) == (5, True)


def test_a_standby_takes_a_released_lease_within_a_second(store: MemoryStore) -> None:
    held_elsewhere(store)
    clock = SleepingClock()
    clock.at[7] = lambda: held_elsewhere(store, released=True)
    lease = Lease.acquire(store, 15, standby=True, sleep=clock.sleep, clock=clock)
    assert 7 <= clock.now < 8
    assert not lease.unfenced


def test_a_standby_takes_the_lease_of_a_process_of_its_host_that_is_gone_or_paused(
    store: MemoryStore,
) -> None:
    first = Lease.acquire(store, 15)  # this process, which lives but does not renew it: as if paused
    clock = SleepingClock()
    lease = Lease.acquire(store, 15, standby=True, sleep=clock.sleep, clock=clock)
    assert 15 <= clock.now < 16.5
    assert lease.unfenced
    with pytest.raises(FencedError):
        first.renew()


def test_a_fence_that_was_not_closed_is_for_the_next_holder_to_close(store: MemoryStore) -> None:
    held_elsewhere(store)
    clock = SleepingClock()
    first = Lease.acquire(store, 15, standby=True, sleep=clock.sleep, clock=clock)
    first.renew()
    first.release()
    second = Lease.acquire(store, 15)
    assert second.unfenced
    second.renew(fenced=True)
    assert not second.unfenced
    second.release()
    third = Lease.acquire(store, 15)
    assert not third.unfenced


def test_who_could_not_reach_the_source_leaves_the_fence_to_close_and_does_not_renew(
    store: MemoryStore,
) -> None:
    """It has committed, and released the lease before all of its threads had ended."""
    first = Lease.acquire(store, 15)
    first.renew(fenced=True)
    first.release(unreachable=True)
    first.renew(fenced=True)
    first.release(fenced=True)
    left = read_lease(store)
    assert left is not None
    assert (left.released, left.unfenced, left.renewals) == (True, True, 1)
    assert Lease.acquire(store, 15).unfenced


def test_a_term_is_greater_than_that_of_any_manifest_though_the_lease_was_removed(store: MemoryStore) -> None:
    landed = Landed(put=store.put, state_objects=1)
    landed.commit(10)
    assert Lease.acquire(store, 15).term == 2
    assert not [path for operation, path in store.calls if operation == "read" and path.startswith(STATES)]
    store.delete(LEASE)
    assert Lease.acquire(store, 15).term == 2
    held_elsewhere(store, released=True)
    assert Lease.acquire(store, 15).term == 5


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("held", [False, True])
def test_who_is_interrupted_while_it_takes_the_lease_can_release_it(
    store: MemoryStore, when: Any, held: bool
) -> None:
    if held:
        held_elsewhere(store, released=True)
    taken: list[Lease] = []
    store.fail("replace", LEASE, when=when, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        Lease.acquire(store, 15, taking=taken.append)
    taken[-1].release()
    left = read_lease(store)
    assert left is not None
    assert (left.holder, left.released, left.unfenced) == (taken[-1].holder, True, False)
    assert Lease.acquire(store, 15).term == left.term + 1


def test_of_two_standbys_one_gets_it_and_the_other_goes_on_watching(store: MemoryStore) -> None:
    held_elsewhere(store)
    clock = SleepingClock()
    clock.at[10] = lambda: held_elsewhere(store, holder="third", term=5, host="db-3")
    lease = Lease.acquire(store, 15, standby=True, sleep=clock.sleep, clock=clock)
    assert lease.term == 6
    assert clock.now >= 20


def test_a_standby_that_loses_the_race_for_a_free_lease_goes_on_watching(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_elsewhere(store, released=True)
    clock, true_read, reads = SleepingClock(), lease_module._read, []

    def read(of: MemoryStore) -> Any:
        found = true_read(of)
        reads.append(found)
        if len(reads) == 1:  # another is faster, right after this one has looked
            held_elsewhere(of, holder="third", term=5, host="db-3")
        return found

    monkeypatch.setattr(lease_module, "_read", read)
    lease = Lease.acquire(store, 15, standby=True, sleep=clock.sleep, clock=clock)
    assert (lease.term, lease.unfenced) == (6, True)
    assert clock.now >= 10


def test_terms_go_on_above_those_of_the_manifests_if_somebody_removed_the_lease(store: MemoryStore) -> None:
    identity = SourceIdentity(name="shop", kind="postgres", system_id="7", database="shop")
    ManifestHistory(store, 7).begin(identity, epoch=1, position=100)
    first = Lease.acquire(store, 15)
    first.release()
    assert (first.term, Lease.acquire(store, 15).term) == (8, 9)


def test_a_renewal_carries_the_status_and_holds_it_longer(store: MemoryStore) -> None:
    lease = Lease.acquire(store, 15)
    before = read_lease(store)
    lease.renew(AgentFigures(lag_seconds=0.5))
    lease.renew()
    after = read_lease(store)
    assert before is not None
    assert after is not None
    assert after.status == AgentFigures(lag_seconds=0.5)
    assert after.until > before.until
    assert after.term == before.term


def test_a_renewal_of_a_lost_lease_stops(store: MemoryStore) -> None:
    lease = Lease.acquire(store, 15)
    held_elsewhere(store)
    with pytest.raises(FencedError, match="db-2"):
        lease.renew()
    store.delete(LEASE)
    with pytest.raises(FencedError, match="removed"):
        lease.renew()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_answer_to_a_renewal_does_not_lose_the_lease(
    store: MemoryStore, when: Any, times: int
) -> None:
    lease = Lease.acquire(store, 15)
    store.fail("replace", when=when, times=times)
    try:
        lease.renew(AgentFigures(changes=1))
    except TransientError:
        assert times == 2
    lease.renew(AgentFigures(changes=2))
    state = read_lease(store)
    assert state is not None
    assert state.status == AgentFigures(changes=2)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_answer_to_taking_it_does_not_fence_ourselves(store: MemoryStore, when: Any) -> None:
    store.fail("replace", when=when)
    lease = Lease.acquire(store, 15)
    lease.renew()
    assert lease.term == 1


def test_a_store_that_fails_for_a_moment_has_no_standby_wait_for_a_released_lease(store: MemoryStore) -> None:
    lease = Lease.acquire(store, 15)
    store.fail("replace", times=5)
    lease.release()
    store.fail("read", LEASE, times=1)
    begun = time.monotonic()
    lease.wait_until_taken(0.6)
    assert time.monotonic() - begun > 0.6, "nobody has taken it yet"
    assert not Lease.acquire(store, 15).unfenced


def test_a_release_does_not_wait_long_for_a_store_that_hangs(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its requests may take seconds, and whoever ends the agent waits for it."""
    lease, requests = Lease.acquire(store, 15), list[float]()

    def hang(*_: object) -> None:
        requests.append(time.monotonic())
        time.sleep(0.6)
        raise TransientError("no answer")

    monkeypatch.setattr(store, "replace", hang)
    lease.release()
    assert len(requests) == 2


@pytest.mark.parametrize(("lease_seconds", "seconds"), [(1, 1.0), (6, 1.5), (15, 3.75), (3600, 5.0)])
def test_a_request_has_time_to_be_answered_by_a_distant_store(lease_seconds: float, seconds: float) -> None:
    assert answer_seconds(lease_seconds) == seconds


def test_a_release_never_raises(store: MemoryStore) -> None:
    lease = Lease.acquire(store, 15)
    store.fail("replace", times=8)
    lease.release()
    held_elsewhere(store)
    lease.release()
    state = read_lease(store)
    assert state is not None
    assert state.holder == "other"


def test_a_renewal_that_takes_long_does_not_take_a_released_lease_back(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, true_replace = Lease.acquire(store, 15), store.replace

    def replace(path: str, data: bytes, version: str | None) -> str | None:
        monkeypatch.setattr(store, "replace", true_replace)
        lease.release()
        return true_replace(path, data, version)

    monkeypatch.setattr(store, "replace", replace)
    lease.renew()
    state = read_lease(store)
    assert state is not None
    assert state.released


def test_a_renewal_that_is_in_doubt_does_not_take_a_released_lease_back(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds that the lease is its holder's, and what it finds is the release."""
    lease, true_read = Lease.acquire(store, 15), store.read_versioned
    store.fail("replace", when="after", times=2)
    with pytest.raises(TransientError):
        lease.renew()

    def read(path: str) -> tuple[bytes, str] | None:
        monkeypatch.setattr(store, "read_versioned", true_read)
        lease.release()
        return true_read(path)

    monkeypatch.setattr(store, "read_versioned", read)
    lease.renew(AgentFigures(changes=2))
    state = read_lease(store)
    assert state is not None
    assert state.released


def test_what_is_no_lease_is_said_so(store: MemoryStore) -> None:
    store.put(LEASE, b"hello")
    with pytest.raises(FormatError, match="is not a lease"):
        Lease.acquire(store, 15)
