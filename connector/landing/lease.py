"""The lease: who is active on a source, so that a second agent does not waste its work.

The manifest is the fence, not the lease: two agents that both believe they hold the lease still can't commit
the same manifest. So nothing here needs to be exact, and no clocks are compared: a lease has expired once the
store has shown it unchanged for its own length by our monotonic clock. `until` is only for people.

After a crash, the next agent on the same host takes the lease at once, and one on another host after the
lease's length. "At once" requires that the process is known to be gone: same boot, host name and process id
namespace, and no process has that id, or the one that has it started at another time.

A standby watches a lease for as long as it is renewed. A lease that was not released may belong to a process
that is only paused, or its last commit, sent before it was killed, may still be under way: `unfenced`. Before
such a tenure does anything else, it must close the fence by committing a manifest of its own, which takes the
number of that commit (`ManifestHistory.load`).

A term is greater than those of all earlier holders and of all existing manifests, even if lease.json was
removed. So a manifest with a greater term than one's own is by another agent that has taken over since.
"""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_fixed

from connector.errors import DeltatideError, FencedError, FormatError, TransientError
from connector.landing.format import LEASE
from connector.landing.manifest_store import ManifestReader
from connector.process import ProcessIdentity
from connector.store.protocol import Store

log = logging.getLogger(__name__)

ANSWER_SECONDS = (1.0, 5.0)
"""How long a request for the lease may take: at least what a distant store needs, at most as connecting."""

_for_a_second = Retrying(stop=stop_after_delay(1.0) | stop_after_attempt(4), wait=wait_fixed(0.25),
                         retry=retry_if_exception_type(TransientError), reraise=True)  # fmt: skip

STANDBY_POLL_SECONDS = 0.5
"""The longest wait between checks of another's lease; a handover takes about this long."""


class AgentFigures(BaseModel):
    """An agent's figures as of `at`, in seconds since 1970; None: unknown, as before the first renewal.

    Counts cover its run so far. `position`: the `lsn` of the last position committed. `dumps_held_back`: why
    no chunks are read, if the source suffers.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    changes: int = 0
    dumped_rows: int = 0
    manifests: int = 0
    reconnects: int = 0
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    position: int = 0
    dumps_held_back: str | None = None
    at: float | None = None


class Holder(BaseModel):
    """The content of lease.json. `term` grows with each holder; `until` is by the holder's clock, for people.

    `renewals` makes each renewal a different object, even if the clock stands still. `unfenced`: an earlier
    holder may still live, or its sessions at the source, or a commit of its may be under way; and no manifest
    of this term is committed yet.
    """

    model_config = ConfigDict(extra="ignore")

    holder: str
    term: int
    host: str
    pid: int
    machine: str | None = None
    process_start: str | None = None
    since: datetime
    until: datetime
    seconds: float = Field(gt=0, le=3600)
    renewals: int = 0
    released: bool = False
    unfenced: bool = False
    status: AgentFigures = AgentFigures()

    @property
    def process(self) -> ProcessIdentity:
        """Return its holder's process."""
        return ProcessIdentity(self.machine, self.pid, self.process_start)

    @property
    def active(self) -> bool:
        """Return whether the lease is not released. Only watching it shows whether it is still renewed."""
        return not self.released


def answer_seconds(lease_seconds: float) -> float:
    """Return after how long a request for the lease is given up, to be repeated.

    It is renewed after a third of its length. So two requests in a row may hang, and a third one renews it;
    not if the lease is shorter than four seconds.
    """
    shortest, longest = ANSWER_SECONDS
    return min(max(lease_seconds / 4, shortest), longest)


def read_lease(store: Store) -> Holder | None:
    """Return who holds or last held the lease, with the figures they left; None if nobody ever held it."""
    found = _read(store)
    return found and found[0]


class Lease:
    """An acquired lease. `term` is greater than that of any earlier holder or manifest.

    One thread renews it. Another may release it meanwhile; no renewal takes it back after that.
    """

    def __init__(self, store: Store, state: Holder, version: str | None) -> None:
        self._store = store
        self._state = state
        self._version = version
        self._ended = self._unreachable = False

    @property
    def term(self) -> int:
        """Return the number of this tenure."""
        return self._state.term

    @property
    def state(self) -> Holder:
        """Return the lease as this holder last wrote it; replaced at each renewal, never changed."""
        return self._state

    @property
    def unfenced(self) -> bool:
        """Return whether an earlier holder may still commit, and no manifest of this term is known committed.

        That is, the previous holder did not release it, or as one that could not reach the source or the
        store; or this was so for an earlier holder, and none has closed the fence since.
        """
        return self._state.unfenced

    @property
    def holder(self) -> str:
        """Return this holder's unique id."""
        return self._state.holder

    @classmethod
    def acquire(
        cls,
        store: Store,
        seconds: float,
        on_wait: Callable[[str], None] | None = None,
        *,
        holder: str | None = None,
        standby: bool = False,
        taking: Callable[[Lease], object] = lambda _lease: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> Lease:
        """Take the lease for `seconds` at a time; blocks at most for the length of another host's lease.

        A free or released lease, and one whose process on this host is dead, is taken at once. Another host's
        lease is watched, and `on_wait` is called once. `FencedError` if the holder is alive; a `standby`
        keeps watching instead, even if another standby was faster. After a `TransientError`, which is raised
        only before that, it can be called again with the same `holder`, a unique id.

        `taking` is called with the lease before it is written. Whoever is interrupted then may have it, and
        releases the last one that was passed.
        """
        holder = holder or uuid.uuid4().hex
        watch = _Watch(store, on_wait, standby, sleep, clock)
        while True:
            try:
                if (lease := cls._take(store, seconds, holder, watch, taking)) is not None:
                    return lease
            except TransientError as error:
                if watch.seen is None:
                    raise
                watch.failed(error)
                sleep(STANDBY_POLL_SECONDS)

    @classmethod
    def _take(
        cls, store: Store, seconds: float, holder: str, watch: _Watch, taking: Callable[[Lease], object]
    ) -> Lease | None:
        """Take the lease once it is free; None if another standby was faster."""
        found = _read(store)
        if found is not None and found[0].holder == holder:  # the response to an earlier attempt was lost
            lease = cls(store, *found)
            taking(lease)
            return lease
        if found is not None and not _is_free(found[0]):
            found = watch.until_free(found)
        former = found[0] if found else None
        unfenced = former is not None and (former.unfenced or not former.released)
        landed = ManifestReader(store).newest_stored()  # its state may take long to read
        term = max(former.term if former else 0, landed.term if landed else 0) + 1
        state = _new_holder(former, term, seconds, holder, unfenced)
        lease = cls(store, state, found[1] if found else None)
        taking(lease)
        version = _write_lease(store, state, lease._version)
        try:
            lease._version = version or _own_version(store, state)
            return lease
        except FencedError:
            if not watch.standby:
                raise
            return None

    def renew(self, status: AgentFigures | None = None, *, fenced: bool = False) -> None:
        """Hold the lease for another `seconds`, and leave figures for others to read.

        `fenced`: a manifest of this term is committed. `FencedError` if the lease is lost. Can be repeated
        after a `TransientError`. Does nothing once the lease is released.
        """
        if self._ended:
            return
        changes = {"until": _until(self._state.seconds), "renewals": self._state.renewals + 1}
        renewed = self._state.model_copy(update=changes | ({"unfenced": False} if fenced else {}))
        if status is not None:
            renewed = renewed.model_copy(update={"status": status})
        self._replace(renewed)

    def release(self, *, fenced: bool = False, unreachable: bool = False) -> None:
        """Release the lease for the next agent to take at once. Never raises: else it expires.

        A store that fails is asked again for a second; one that hangs, no longer.

        `unreachable`: the source or the store could not be reached, so sessions of ours may live on there, or
        what we read may still be on its way to the landing zone: the next holder must close the fence. Once
        released, it stays as it is.
        """
        self._ended, self._unreachable = True, self._unreachable or unreachable
        if self._state.released:
            return
        unfenced = self._unreachable or (self._state.unfenced and not fenced)
        left = self._state.model_copy(update={"released": True, "until": _now(), "unfenced": unfenced})
        with suppress(DeltatideError):
            _for_a_second(self._replace, left)

    def wait_until_taken(self, seconds: float) -> None:
        """Wait up to `seconds` until another holder has taken the lease, or the store does not answer."""
        deadline = time.monotonic() + seconds
        with suppress(DeltatideError):
            while time.monotonic() < deadline and _for_a_second(_own_version, self._store, self._state):
                time.sleep(STANDBY_POLL_SECONDS)

    def _replace(self, state: Holder) -> None:
        version = _write_lease(self._store, state, self._version)
        if version is None:  # the lease is lost or released, or the response to an earlier renewal was lost
            known = _own_version(self._store, state)
            if self._ended and not state.released:
                return  # released while this renewal was under way: what was found may be that
            version = _write_lease(self._store, state, known)
        self._state, self._version = state, version or _own_version(self._store, state)


def _write_lease(store: Store, state: Holder, version: str | None) -> str | None:
    """Write the lease over a version; None if the version has changed, even by our own lost write."""
    try:
        return store.replace(LEASE, _to_json(state), version)
    except TransientError:
        return store.replace(LEASE, _to_json(state), version)


def _own_version(store: Store, state: Holder) -> str:
    """Return the version of the lease if this holder still has it; otherwise raise `FencedError`."""
    found = _read(store)
    if found is None:
        raise FencedError(
            f"{store.url}/{LEASE} was removed while this agent held the lease",
            hint="start the agent again; keep everything but deltatide from writing under the landing zone",
        )
    if found[0].holder != state.holder:
        raise _fenced(found[0])
    return found[1]


class _Watch:
    """Watches others' leases: for how long one was not renewed. `on_wait` is called once for each holder.

    The store may fail meanwhile, or we may be paused: a lease that is the same before and after was not
    renewed. But then its holder may have met the same: of the time between two looks no more counts than a
    third of the lease's length, so it has the rest to renew it. `seen`: what was watched last, if anything.
    """

    def __init__(
        self,
        store: Store,
        on_wait: Callable[[str], None] | None,
        standby: bool,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self.standby = standby
        self._store, self._on_wait, self._sleep, self._clock = store, on_wait, sleep, clock
        self.seen: tuple[Holder, str] | None = None
        self._seen_at = self._quiet = 0.0
        self._is_failing = False

    def until_free(self, found: tuple[Holder, str]) -> tuple[Holder, str] | None:
        """Watch until the lease is free, or was not renewed for its length.

        Unless we are a standby: `FencedError` if it is renewed, or its process lives on this host.
        """
        self._note(found)
        while self._quiet < found[0].seconds:
            self._sleep(min(max(found[0].seconds / 10, 0.05), STANDBY_POLL_SECONDS))
            try:
                current = _read(self._store)
            except TransientError as error:
                self.failed(error)
                continue
            if current is None or _is_free(current[0]):
                return current
            found = current
            self._note(found)
        return found

    def failed(self, error: TransientError) -> None:
        """Note that the store failed, which is said once."""
        if not self._is_failing:
            log.warning("the landing zone did not answer, retrying: %s", error)
        self._is_failing = True

    def _note(self, found: tuple[Holder, str]) -> None:
        now, before, self.seen = self._clock(), self.seen, found
        passed, self._seen_at = now - self._seen_at, now
        if before is not None and before[1] == found[1]:
            self._quiet += min(passed, found[0].seconds / 3)
        else:
            self._quiet = 0.0
            self._begin(found[0], before)
        self._is_failing = False

    def _begin(self, holder: Holder, before: tuple[Holder, str] | None) -> None:
        if not self.standby and (before is not None or holder.process.lives):
            raise _fenced(holder)
        if before is not None and before[0].holder == holder.holder:
            return
        who = _described(holder)
        if self.standby:
            self._say(f"standing by: {who} holds the lease")
        else:
            self._say(f"waiting up to {holder.seconds:g} s to see whether {who} still holds the lease")

    def _say(self, what: str) -> None:
        if self._on_wait is not None:
            self._on_wait(what)


def _is_free(state: Holder) -> bool:
    return state.released or state.process.is_gone


def _fenced(state: Holder) -> FencedError:
    since = f"{state.since:%Y-%m-%d %H:%M:%S} UTC"
    return FencedError(
        f"another agent is active on this source: {_described(state)}, since {since}",
        hint="run one agent per source: stop the other one; this one then continues where it stopped",
    )


def _described(state: Holder) -> str:
    return f"process {state.pid} on {state.host}"


def _new_holder(former: Holder | None, term: int, seconds: float, holder: str, unfenced: bool) -> Holder:
    process = ProcessIdentity.own()
    return Holder(
        holder=holder,
        term=term,
        host=socket.gethostname(),
        pid=process.pid,
        machine=process.machine,
        process_start=process.start,
        since=_now(),
        until=_until(seconds),
        seconds=seconds,
        unfenced=unfenced,
        status=former.status if former else AgentFigures(),
    )


def _read(store: Store) -> tuple[Holder, str] | None:
    found = store.read_versioned(LEASE)
    if found is None:
        return None
    try:
        return Holder.model_validate_json(found[0]), found[1]
    except ValidationError as error:
        raise FormatError(
            f"{store.url}/{LEASE} is not a lease: {error.errors()[0]['msg']}",
            hint="delete it while no agent is running",
        ) from error


def _to_json(state: Holder) -> bytes:
    return state.model_dump_json(indent=1).encode()


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _until(seconds: float) -> datetime:
    return _now() + timedelta(seconds=seconds)
