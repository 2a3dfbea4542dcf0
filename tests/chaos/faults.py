"""Chooses faults at random and makes them happen: to processes, the database, its connections, and the store.

Each kind is planned once in the first part of the run, in random order; after that, kinds are drawn by
weight.
The store also fails by itself, at a small share of its requests. A long run is storms with calms between
them, in which a cut becomes exact and is checked.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import ClassVar

from connector.demo.servers.starting import free_port
from tests.chaos import operators
from tests.chaos.crew import Crew, Member
from tests.chaos.operators import Operators
from tests.chaos.tally import Tally
from tests.support.servers import faulty_s3
from tests.support.servers.faulty_s3 import FaultyS3
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.source.tested_database import TestedDatabase

AGENT_KILLED, AGENT_PAUSED, AGENT_STOPPED = "agent killed", "agent paused beyond its lease", "agent stopped"
MERGE_KILLED, MERGE_PAUSED = "merge killed", "merge paused"
MAINTAINED, MAINTAIN_KILLED = "maintain run", "maintain killed"
MERGED_BESIDE = "merge beside the merge"
CUT, UNREACHABLE, ENDED = "database connections cut", "database unreachable", "database sessions ended"
CRASHED = "database server crashed"

OF_THE_MERGE = (MERGE_KILLED, MERGE_PAUSED, MAINTAINED, MAINTAIN_KILLED, MERGED_BESIDE)
MERGED = "cut at manifest"
PLANNED_SECONDS = 120.0
LONGER_SECONDS = 300.0
MOST_SECONDS = 8.0
"""Between two faults, on average: with more of them, dumps and merges would hardly ever end."""

STORM_SECONDS = 150.0
"""After so long, no more faults begin until a cut is exact: while the store fails, one of the many tables
and shapes of a merge nearly always does, and no cut could be checked."""

CALM_SECONDS = 240.0
"""How long to wait for that cut at most."""

BESIDE_SECONDS = 1800.0
"""A process that takes longer hangs. On a machine that others keep busy, one merge may take many minutes."""

QUICK = (
    AGENT_KILLED, AGENT_PAUSED, MERGE_KILLED, CUT, UNREACHABLE, ENDED,
    operators.DUMP, operators.PAUSE, operators.CANCEL, operators.HANDOVER,
)  # fmt: skip
"""Kinds that fit into a minute, and that the short form promises beside the store's."""

WEIGHTS = {
    AGENT_KILLED: 10, AGENT_PAUSED: 6, AGENT_STOPPED: 3, MERGE_KILLED: 1.5, MERGE_PAUSED: 1.5,
    MAINTAINED: 1, MAINTAIN_KILLED: 0.5, CUT: 12, UNREACHABLE: 4, ENDED: 6, CRASHED: 2,
    operators.DUMP: 6, operators.PAUSE: 4, operators.CANCEL: 4, operators.SET: 2, operators.HANDOVER: 6,
    operators.RELOAD: 2, operators.STATUS: 2,
}  # fmt: skip
"""What is drawn after that. Spark takes long to start, so that it rarely starts again."""

SHARED = {MERGED_BESIDE: 1.5}
"""What is drawn too where several processes may write to the lake."""


class Faults:
    """Makes faults happen in the background until it is ended. `lease_seconds`: what a pause must exceed.

    `beside`: makes a process of a command that runs once; the merge makes room for it unless the lake is
    shared.
    """

    def __init__(
        self,
        *,
        agents: Crew,
        merge: Crew,
        beside: Callable[[str], Member],
        shared_lake: bool,
        people: Operators,
        database: TestedDatabase,
        connections: LossyProxy,
        store: FaultyS3,
        tally: Tally,
        lease_seconds: float,
        active: Callable[[], int | None],
        exact_cuts: Callable[[], int],
        seed: int,
    ) -> None:
        self._agents, self._merge, self._beside, self._shared_lake = agents, merge, beside, shared_lake
        self.weights = {**WEIGHTS, **SHARED} if shared_lake else WEIGHTS
        self._people, self._database, self._connections = people, database, connections
        self._store, self._tally, self._lease_seconds, self._active = store, tally, lease_seconds, active
        self._exact_cuts = exact_cuts
        self._random = random.Random(seed)
        self._ending = threading.Event()
        self._patience = PLANNED_SECONDS
        self._threads: list[threading.Thread] = []
        self._groups = {
            group: threading.Lock()
            for group in (operators.KINDS, (UNREACHABLE, ENDED, CRASHED), OF_THE_MERGE)
        }

    def run(self, seconds: float, *, quick: bool, missing: Callable[[], list[str]]) -> None:
        """Let faults happen for so long, calms included; then no more begin, and those under way have ended.

        On a slow machine, up to `LONGER_SECONDS` more, until nothing that was promised is `missing`.
        """
        kinds = list(QUICK if quick else self.weights)
        self._random.shuffle(kinds)
        self._patience = min(PLANNED_SECONDS, seconds / 2)
        hanging = list(faulty_s3.HANGING)
        self._store.force(*hanging, *(k for k in faulty_s3.KINDS if k not in hanging))
        begun, pause = time.monotonic(), min(MOST_SECONDS, seconds * 0.6 / len(kinds))
        latest = seconds + LONGER_SECONDS
        storm = begun
        while (passed := time.monotonic() - begun) < seconds or (passed < latest and missing()):
            again = [] if kinds else self._to_repeat(missing())
            planned = bool(kinds or again)
            kind = kinds.pop() if kinds else self._random.choice(again) if again else self._draw(quick)
            self._begin(kind, planned)
            self._ending.wait(self._random.uniform(0.6, 1.4) * pause)
            if not quick and time.monotonic() - storm > STORM_SECONDS:
                self._wait_for_exact_cut()
                storm = time.monotonic()
        self._ending.set()
        self._store.end_faults()
        for thread in self._threads:
            thread.join()

    def _to_repeat(self, missing: list[str]) -> list[str]:
        """Return which of the missing kinds to begin again: amid faults, a command fails, for example."""
        under_way = {thread.name for thread in self._threads if thread.is_alive()}
        return [kind for kind in missing if kind in self.weights and kind not in under_way]

    def _wait_for_exact_cut(self) -> None:
        """Begin no fault and let the store answer until another cut is exact."""
        share, self._store.share = self._store.share, 0.0
        self._people.resume()  # a command that failed may have left dumps paused
        before, until = self._exact_cuts(), time.monotonic() + CALM_SECONDS
        while self._exact_cuts() == before and time.monotonic() < until:
            self._ending.wait(0.5)
        self._store.share = share

    def _draw(self, quick: bool) -> str:
        kinds = [k for k in self.weights if not quick or (k in QUICK and k != MERGE_KILLED)]
        return self._random.choices(kinds, [self.weights[kind] for kind in kinds])[0]

    def _begin(self, kind: str, planned: bool) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._happen, args=(kind, planned), name=kind, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _happen(self, kind: str, planned: bool) -> None:
        """Let a fault happen; only one of a group at a time. A planned one waits, others are left out.

        What stops a merge is left out until this one has recorded a cut, or on a slow machine none ever
        would. If it is planned, it waits for that for a while, and then happens all the same.
        """
        lock = next((lock for group, lock in self._groups.items() if kind in group), threading.Lock())
        if not lock.acquire(timeout=PLANNED_SECONDS if planned else 0):
            return
        try:
            if kind in OF_THE_MERGE:
                until = time.monotonic() + (self._patience if planned else 0)
                while MERGED not in self._merge.members[0].output and time.monotonic() < until:
                    if self._ending.wait(0.5):
                        return
                needless = (
                    not planned or kind == MERGED_BESIDE
                )  # of two first merges, each takes twice as long
                if needless and MERGED not in self._merge.members[0].output:
                    return
            if self._ending.is_set():
                return
            if kind in operators.KINDS:
                self._people.do(kind)
            elif happened := self._actions[kind](self):
                self._tally.count(kind, int(happened))
        except Exception as error:
            self._tally.problem(f"{kind}: {type(error).__name__}: {error}")
        finally:
            lock.release()

    def _an_agent(self) -> Member:
        """Return the active agent, mostly."""
        active = self._active()
        found = [member for member in self._agents.members if member.pid == active]
        return (
            found[0] if found and self._random.random() < 0.7 else self._random.choice(self._agents.members)
        )

    def _kill_agent(self) -> bool:
        member = self._an_agent()
        with member.lock:
            killed = member.kill()
            self._ending.wait(self._random.choice([0.0, 1.0, 4.0]))
            return killed

    def _pause_agent(self) -> bool:
        return self._pause(self._an_agent(), self._lease_seconds + self._random.uniform(1, 6))

    def _pause_merge(self) -> bool:
        return self._pause(self._merge.members[0], self._random.uniform(2, 25))

    def _pause(self, member: Member, seconds: float) -> bool:
        with member.lock:
            paused = member.pause()
            begun = time.monotonic()
            time.sleep(seconds if paused else 0)
            member.wake()
            return paused and time.monotonic() - begun >= seconds

    def _stop_agent(self) -> bool:
        member = self._an_agent()
        with member.lock:
            return member.stop(90)

    def _kill_merge(self) -> bool:
        member = self._merge.members[0]
        with member.lock:
            return member.kill()

    def _run_maintain(self) -> bool:
        with self._room_for("maintain") as maintain:
            return maintain.finish(BESIDE_SECONDS)

    def _kill_maintain(self) -> bool:
        with self._room_for("maintain") as maintain:
            self._ending.wait(self._random.uniform(5, 25))
            return maintain.kill()

    def _merge_beside(self) -> bool:
        with self._room_for("merge") as merge:
            return merge.finish(BESIDE_SECONDS)

    @contextmanager
    def _room_for(self, command: str) -> Iterator[Member]:
        """Start a process that writes to the lake; the merge is killed, and not started, if only one may."""
        merge = self._merge.members[0]
        with merge.lock if not self._shared_lake else nullcontext():
            if not self._shared_lake:
                merge.kill()
            member = self._beside(command)
            member.begin()
            yield member

    def _cut_connections(self) -> int:
        before = self._connections.cuts
        self._connections.cut(self._random.choice([0.3, 0.6, 1.0]))
        return self._connections.cuts - before

    def _lose_database(self) -> bool:
        self._connections.lead_to(free_port())
        try:
            self._ending.wait(self._random.uniform(1, 1.5 * self._lease_seconds))
        finally:
            self._connections.lead_to(self._database.port)
        return True

    def _end_sessions(self) -> bool:
        self._database.end_sessions()
        return True

    def _crash_server(self) -> bool:
        self._database.crash()
        self._ending.wait(self._random.uniform(0, 4))
        self._database.restart()
        return True

    _actions: ClassVar[Mapping[str, Callable[[Faults], int]]] = {
        AGENT_KILLED: _kill_agent,
        AGENT_PAUSED: _pause_agent,
        AGENT_STOPPED: _stop_agent,
        MERGE_KILLED: _kill_merge,
        MERGE_PAUSED: _pause_merge,
        MAINTAINED: _run_maintain,
        MAINTAIN_KILLED: _kill_maintain,
        MERGED_BESIDE: _merge_beside,
        CUT: _cut_connections,
        UNREACHABLE: _lose_database,
        ENDED: _end_sessions,
        CRASHED: _crash_server,
    }
