"""Agents that are paused, killed and overtaken at any call to the store, which may lose an answer.

`Lease`, `ManifestHistory` and retention are the real ones; `_successors` restates in what order
`connector.agent` and `connector.capture` call them. There are no clocks: a lease may expire at any moment,
and whoever is never continued was killed. Every step is one call to the store that writes, or that reads the
lease; manifests, which never change, are listed and read in the step before.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from connector import process
from connector.capture import manifest_history, retry
from connector.capture.manifest_history import ManifestHistory
from connector.errors import FencedError
from connector.landing import format, lease
from connector.landing.format import LEASE, manifest_path
from connector.landing.lease import Holder, Lease
from connector.landing.manifest import Manifest, SourceIdentity
from connector.landing.manifest_object import StoredManifest
from connector.landing.manifest_store import ManifestWriter, newest_manifest
from connector.maintenance import retention
from connector.testing.memory_store import MemoryStore
from tests.unit.model.checker import Search, search
from tests.unit.model.replay import LOST, Asks, Ended, Objects, perform
from tests.unit.model.replay import run as replay

CREATED = "a manifest is created only if there is none"
COMPARED = "a manifest that exists is ours only if it has our write id"
REPLACED = "a lease is replaced only as it was read"
CLOSED = "who takes over by time closes the fence"
OPEN = "a fence is open until a manifest of the term is committed"
OVERTAKEN = "who loads a manifest of a later term was overtaken"
ONWARD = "who finds the first manifest taken by a former agent goes on from it"
CONFIRMED = "nothing is confirmed before its manifest is committed"
TAKEN = "of each term the number of the first manifest stays taken"

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
SHOP = SourceIdentity(name="shop", kind="postgres", system_id="7", database="shop")


@dataclass(frozen=True)
class Agent:
    """A process: what it does now (`phase`), with the answers so far, and what it has from phases before.

    `commits`: how many it has left to do. `hesitates`: it may renew or release the lease before it loads.
    """

    name: str
    commits: int
    hesitates: bool = False
    phase: str = "acquire"
    answers: tuple[Any, ...] = ()
    lease: tuple[bytes, str] | None = None
    newest: bytes | None = None

    @property
    def term(self) -> int:
        return Holder.model_validate_json(self.lease[0]).term if self.lease else 0

    @property
    def manifest(self) -> Manifest | None:
        return None if self.newest is None else StoredManifest.from_json(self.newest, "newest").whole()


@dataclass(frozen=True)
class World:
    """`commits`: number, term and write id of each manifest, in the order in which they were written.

    `capturing`: the greatest term of an agent that has loaded or begun the history.
    """

    agents: tuple[Agent, ...]
    objects: Objects = ()
    commits: tuple[tuple[int, int, str], ...] = ()
    capturing: int = 0
    faults: int = 0
    cleanings: int = 0
    wrong: str | None = None


def _lease_of(store: Any, agent: Agent) -> Lease:
    assert agent.lease is not None
    return Lease(store, Holder.model_validate_json(agent.lease[0]), agent.lease[1])


def _kept(held: Lease) -> dict[str, Any]:
    return {"lease": (lease._to_json(held.state), held._version)}


def _stored(manifest: Manifest) -> bytes:
    return StoredManifest.of(manifest).to_json()


class Phases:
    """What an agent does in each phase; returns what it keeps of it. The rule `without` is left out."""

    def __init__(self, without: str = "") -> None:
        self.without = without

    def acquire(self, store: Any, agent: Agent) -> dict[str, Any]:
        waiting = {"sleep": store.sleep, "clock": store.clock}
        return _kept(Lease.acquire(store, 30.0, holder=agent.name, standby=True, **waiting))

    def renew(self, store: Any, agent: Agent) -> dict[str, Any]:
        held = _lease_of(store, agent)
        held.renew(fenced=self._fenced(agent))
        return _kept(held)

    hesitate = renew

    def release(self, store: Any, agent: Agent) -> dict[str, Any]:
        _lease_of(store, agent).release(fenced=self._fenced(agent))
        return {}

    def load(self, store: Any, agent: Agent) -> dict[str, Any]:
        if self.without == OVERTAKEN and (found := newest_manifest(store)) and found.term > agent.term:
            return {"newest": _stored(found)}
        history = self._history_of(store, agent)
        newest = history.load(lambda manifest: manifest.source)
        history.closes_fence &= self.without != ONWARD
        return {"newest": _stored(newest or history.begin(SHOP, epoch=1, position=10))}

    def commit(self, store: Any, agent: Agent) -> dict[str, Any]:
        history = self._history_of(store, agent)
        if self.without == CONFIRMED:
            store.ask("confirm", history.next_number, "not written yet")
        manifest = history.commit(position=history.newest.position + 10)
        store.ask("confirm", manifest.number, manifest.write_id)
        return {"newest": _stored(manifest), "commits": agent.commits - 1}

    def _history_of(self, store: Any, agent: Agent) -> ManifestHistory:
        held = _lease_of(store, agent)
        closes = held.unfenced and self.without != CLOSED
        history = ManifestHistory(store, held.term, threading.Event(), closes_fence=closes)
        history._newest = agent.manifest
        return history

    def _fenced(self, agent: Agent) -> bool:
        """Restates `connector.agent._fenced`."""
        manifest = agent.manifest
        return self.without == OPEN or (manifest is not None and manifest.term >= agent.term)


def _successors(agent: Agent) -> list[str]:
    """Return what an agent may do after a phase: `connector.agent._Agent` and `Capture.run`."""
    more = ["commit"] if agent.commits else []
    return {
        "acquire": ["load", *(["hesitate", "release"] if agent.hesitates else [])],
        "hesitate": ["load", "release"],
        "load": [*more, "release"],
        "commit": ["renew"],
        "renew": [*more, "release"],
        "release": ["ended"],
    }[agent.phase]


class Fence:
    """The steps of the world, with the design's rules but for `without`."""

    def __init__(self, without: str = "") -> None:
        self.without, self.phases = without, Phases(without)
        self._known: dict[Agent, Asks | Ended] = {}

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for place, agent in enumerate(world.agents):
            if agent.phase != "ended":
                for label, new in self._continued(world, agent):
                    yield f"{agent.name}: {label}", new(place)
        if world.cleanings and world.commits:
            yield "retention", replace(self._cleaned(world), cleanings=world.cleanings - 1)

    def _asks(self, agent: Agent) -> Asks | Ended:
        if agent not in self._known:
            ids = (types.SimpleNamespace(hex=f"{agent.name}{agent.commits}{n}") for n in range(100))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(manifest_history, "uuid", types.SimpleNamespace(uuid4=lambda: next(ids)))
                phase = getattr(self.phases, agent.phase)
                self._known[agent] = replay(lambda store: phase(store, agent), agent.answers)
        return self._known[agent]

    def _continued(self, world: World, agent: Agent) -> Iterator[tuple[str, Callable[[int], World]]]:
        asks = self._asks(agent)
        assert isinstance(asks, Asks)
        for label, after, answer in self._answers(world, agent, asks.call):
            yield from self._answered(f"{agent.phase}: {label}", after, agent, answer)

    def _answers(self, world: World, agent: Agent, call: Any) -> Iterator[tuple[str, World, Any]]:
        operation = call[0]
        if operation == "wait":
            seen = next(answer for answer in reversed(agent.answers) if isinstance(answer, tuple))
            if perform(world.objects, ("read_versioned", LEASE))[1] != seen:
                yield "sees a change", world, "changed"
            yield "finds it unchanged for its length", world, "expired"
            return
        if operation == "confirm":
            known = [(number, id_) for number, _, id_ in world.commits]
            wrong = None if call[1:] in known else f"{agent.name} confirms what no manifest covers"
            yield "confirm", replace(world, wrong=world.wrong or wrong), True
            return
        after, answer = self._performed(world, call)
        path = "" if operation == "list" else f" {str(call[1]).rpartition('/')[2]}"
        yield f"{operation}{path} -> {_short(answer)}", after, answer
        if world.faults and operation in ("create", "replace"):
            yield f"{operation}{path}, answer lost", replace(after, faults=world.faults - 1), LOST

    def _performed(self, world: World, call: Any) -> tuple[World, Any]:
        objects, unconditional = world.objects, call
        if self.without == CREATED and call[0] == "create":
            unconditional = ("put", *call[1:])
        if self.without == REPLACED and call[0] == "replace":
            version = perform(objects, ("read_versioned", LEASE))[1]
            unconditional = (*call[:3], version and version[1])
        after, answer = perform(objects, unconditional)
        new = replace(world, objects=after)
        if call[0] == "create" and answer:
            new = self._committed(new, StoredManifest.from_json(call[2], call[1]))
        return new, answer

    def _committed(self, world: World, manifest: StoredManifest) -> World:
        """Note a manifest; one that retention removed, and its writer creates again, is none that counts."""
        new = (manifest.number, manifest.term, manifest.write_id)
        if new in world.commits and self.without != CREATED:
            return world
        wrong, last = None, world.commits[-1] if world.commits else (0, 0, "")
        if manifest.number != last[0] + 1:
            wrong = f"manifest {manifest.number} was written after manifest {last[0]}"
        if manifest.term < max(world.capturing, last[1]):
            wrong = f"term {manifest.term} committed manifest {manifest.number} after it was overtaken"
        return replace(world, commits=(*world.commits, new), wrong=world.wrong or wrong)

    def _answered(
        self, label: str, world: World, agent: Agent, answer: Any
    ) -> Iterator[tuple[str, Callable[[int], World]]]:
        """Give an agent an answer; what it lists, it reads at once, as manifests never change."""
        new = replace(agent, answers=(*agent.answers, answer))
        then = self._asks(new)
        if isinstance(then, Asks) and then.call[0] in ("folders", "list", "read"):
            yield from self._answered(label, world, new, perform(world.objects, then.call)[1])
        elif isinstance(then, Asks) and then.call == ("wait",) and _is_unchanged(new):
            found = perform(world.objects, ("read_versioned", LEASE))[1]
            waited = replace(new, answers=(*new.answers, "expired"))
            yield from self._answered(label, world, waited, found)
        elif isinstance(then, Asks) and then.call == ("wait",):  # all it knows is the lease as last read
            seen = next(known for known in reversed(new.answers) if isinstance(known, tuple))
            yield label, lambda place: _placed(world, place, replace(agent, answers=(seen,)))
        elif isinstance(then, Asks):
            yield label, lambda place: _placed(world, place, new)
        else:
            for phase in self._after(new, then):
                went = replace(new, **(then.result or {}), phase=phase, answers=())
                yield (
                    _labeled(label, went, then),
                    lambda place, went=went: self._ended(world, place, went, then),
                )

    def _after(self, agent: Agent, then: Ended) -> list[str]:
        if then.error is None:
            return _successors(agent)
        if isinstance(then.error, FencedError):
            return ["ended" if agent.phase in ("acquire", "release") else "release"]
        return [agent.phase]

    def _ended(self, world: World, place: int, agent: Agent, then: Ended) -> World:
        new = _placed(world, place, agent if agent.phase != "ended" else Agent(agent.name, 0, phase="ended"))
        if agent.newest is not None and agent.phase != "release":
            new = replace(new, capturing=max(new.capturing, agent.term))
        if isinstance(then.error, FencedError) and agent.term and self._newest_term(world) <= agent.term:
            new = replace(new, wrong=f"{agent.name} is stopped by an agent whose term is not greater")
        if agent.phase != "ended" and sum(other.term == agent.term for other in new.agents) > 1:
            new = replace(new, wrong=f"two agents have term {agent.term}")
        return new

    def _newest_term(self, world: World) -> int:
        held = perform(world.objects, ("read_versioned", LEASE))[1]
        return max(Holder.model_validate_json(held[0]).term, *(term for _, term, _ in world.commits), 0)

    def _cleaned(self, world: World) -> World:
        store = MemoryStore()
        for path, _, data in world.objects:
            store.put(path, data)
        history = retention.History.of(store)
        assert history is not None
        later = AT + timedelta(days=9)
        needed = retention.horizon(history, timedelta(0), later)
        retention.remove_unneeded(history, needed, now=later, dry_run=False)
        if self.without == TAKEN:
            for path in [manifest_path(n) for n in range(1, needed.first)]:
                store.delete(path)
        versions = {path: version for path, version, _ in world.objects}
        kept = ((path, versions.get(path, 1), data) for path, data in store.objects.items())
        return replace(world, objects=tuple(sorted(kept)))


def _placed(world: World, place: int, agent: Agent) -> World:
    return replace(world, agents=(*world.agents[:place], agent, *world.agents[place + 1 :]))


def _labeled(label: str, agent: Agent, then: Ended) -> str:
    return f"{label}; {type(then.error).__name__ if then.error else agent.phase + ' next'}"


def _is_unchanged(agent: Agent) -> bool:
    """Return whether the lease is as it was before this wait, of which only a part counts: it goes on."""
    return "expired" in agent.answers[-2:-1] and agent.answers[-3] == agent.answers[-1]


def _short(answer: Any) -> str:
    return "content" if isinstance(answer, tuple) else str(answer)


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0)
    monkeypatch.setattr(process, "_machine", lambda: None)
    monkeypatch.setattr(lease, "_now", lambda: AT)
    monkeypatch.setattr(format, "MANIFESTS_PER_BLOCK", 1)
    monkeypatch.setattr(manifest_history, "datetime", types.SimpleNamespace(now=lambda _: AT))


def having_the_lease(world: World) -> World:
    """Let the first agent take the lease: one of them is the first to do so."""
    steps = Fence().steps
    while world.agents[0].phase == "acquire":
        world = next(new for label, new in steps(world) if label.startswith(world.agents[0].name))
    return world


TWO = World((Agent("A", 1), Agent("B", 3, hesitates=True)), faults=1, cleanings=1)
THREE = World((Agent("A", 1), Agent("B", 0, hesitates=True), Agent("C", 0)))


def explore(world: World, without: str = "") -> Search:
    return search(having_the_lease(world), Fence(without).steps, lambda state: state.wrong)


@pytest.mark.parametrize("world", [TWO, THREE], ids=["two agents", "three agents"])
def test_no_agent_commits_after_it_was_overtaken_nor_confirms_what_no_manifest_covers(world: World) -> None:
    found = explore(world)
    print(found)
    assert found.wrong is None
    assert found.states > 3000


@pytest.mark.parametrize(
    ("without", "world"),
    [
        (CREATED, TWO), (COMPARED, TWO), (REPLACED, THREE), (CLOSED, TWO), (OPEN, THREE), (OVERTAKEN, TWO),
        (ONWARD, TWO), (CONFIRMED, TWO), (TAKEN, TWO),
    ],
)  # fmt: skip
def test_a_rule_left_out_is_found_out(without: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if without == COMPARED:
        create = lambda self, manifest: self._store.create(manifest_path(manifest.number), manifest.to_json())  # noqa: E731
        monkeypatch.setattr(ManifestWriter, "_create", create)
    found = explore(world, without)
    print(f"without: {without}\n{found}")
    assert found.wrong is not None
