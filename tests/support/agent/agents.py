"""Agents on an in-memory database, with short intervals, that tests start, stop and kill."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Hashable
from typing import Any

from connector.capture.loop import Capture
from connector.config import Config, DumpConfig, SourceConfig
from connector.errors import UnreachableError
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import DumpRequest, submit
from connector.schema import TableName
from connector.source import ResumePoint
from connector.testing.memory_database import MemoryDatabase, RowLockedError
from connector.testing.memory_log import MemoryLogReader
from connector.testing.memory_source import MemorySource
from tests.support.agent.agent_thread import AgentThread
from tests.support.background import Background
from tests.support.landing.cuts import manifests_in, read_events

STORE_CALLS = "put put_file create read read_versioned replace list folders delete".split()


class Killed(BaseException):
    """The agent's process is gone."""


class MortalStore:
    """One agent's access to a store: the agent dies at a chosen call, before or after it takes effect."""

    def __init__(self, store: Any) -> None:
        self.store, self.dead = store, False
        self.url, self.scratch = store.url, store.scratch
        self._doom: Callable[[str, tuple[Any, ...]], str | None] = lambda _call, _arguments: None
        self._lock = threading.Lock()

    def die_at(self, doom: Callable[[str, tuple[Any, ...]], str | None]) -> None:
        """Die at the store call for which `doom` returns "before" or "after"."""
        self._doom = doom

    def __getattr__(self, name: str) -> Any:
        if name not in STORE_CALLS:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            with self._lock:
                if self.dead:
                    raise Killed
                when = self._doom(name, arguments)
                self.dead = when is not None
            if when == "before":
                raise Killed
            result = getattr(self.store, name)(*arguments)
            if self.dead:
                raise Killed
            return result

        return call


class AnsweringProbe:
    """A `connector.listening.Probe` of a server that answers, unless it is `silent`."""

    logs_in = False

    def __init__(self) -> None:
        self.silent = threading.Event()
        self.closed = threading.Event()

    def ask(self) -> None:
        if self.silent.is_set():
            self.closed.wait(30)
            raise UnreachableError

    def idle(self, sessions: Collection[Hashable]) -> set[Hashable]:
        return set()

    def end(self, session: Hashable) -> None: ...

    def close(self) -> None:
        self.closed.set()


class CheckedSource(MemorySource):
    """Records each confirmed position that no manifest has reached."""

    def __init__(self, database: MemoryDatabase, config: Any, store: Any, **options: Any) -> None:
        super().__init__(database, config, **options)
        self.store, self.confirmed_too_soon = store, []

    def open_log(self, epoch: int, resume_point: ResumePoint, known: Any = None) -> MemoryLogReader:
        reader = super().open_log(epoch, resume_point, known)
        confirm = reader.confirm

        def checked(position: int) -> None:
            newest = newest_manifest(self.store)
            if newest is None or (newest.epoch, newest.position) < (epoch, position):
                self.confirmed_too_soon.append(position)
            confirm(position)

        reader.confirm = checked
        return reader


class Agent(AgentThread):
    """A capture loop in its own thread."""

    patience_seconds = 15.0
    pause_seconds = 0.005

    def __init__(self, database: MemoryDatabase, store: Any, **settings: Any) -> None:
        change_bytes, gauge = settings.pop("change_bytes", 100), settings.pop("gauge", None)
        self.config = config_of(**settings)
        self.store = MortalStore(store)
        self.source = CheckedSource(database, self.config.source, store, change_bytes=change_bytes)
        capture = Capture(self.source, self.store, self.config, open_gauge=gauge)
        super().__init__(capture, store)

    def join(self, seconds: float = 10) -> BaseException | None:
        """Wait until the thread ends; fail after `seconds`, or if a position was confirmed too soon."""
        error = super().join(seconds)
        assert self.source.confirmed_too_soon == []
        return error

    def wait_dumped(self) -> Manifest:
        """Wait until every table is dumped and no dump is active."""
        return self.wait(lambda m: m.exact and not any(d.active for d in m.dumps), "all is dumped")

    def wait_caught_up(self) -> Manifest:
        """Wait until a manifest has reached the current end of the log."""
        end = self.source.database.end
        return self.wait(lambda m: m.position >= end, f"position {end} is committed")


def config_of(**settings: Any) -> Config:
    """Return a configuration with short intervals; settings go by name to the section that has them.

    Agents serve no status page unless `listen` says where.
    """
    source = {"name": "shop", "kind": "postgres", "url": "postgresql://u@h/d", "tables": ["public.*"]}
    landing = {"url": "/nowhere", "flush_seconds": 0.05, "flush_mib": 1, "heartbeat_seconds": 0.1}
    dump = {"chunk_rows": 7, "workers": 2}
    control = {"listen": settings.pop("listen", False)}
    for name, value in settings.items():
        section = (
            source
            if name in SourceConfig.model_fields
            else dump
            if name in DumpConfig.model_fields
            else landing
        )
        section[name] = value
    return Config.model_validate({"source": source, "landing": landing, "dump": dump, "control": control})


class Writer(Background):
    """Writes randomly to `public.items` (id; a, b) and `public.parts` (area, number; note)."""

    def __init__(self, database: MemoryDatabase, seed: int = 0) -> None:
        self.database, self.random = database, random.Random(seed)
        self._count = 0
        super().__init__()

    def work(self) -> None:
        """Write again and again."""
        while not self.stopping.wait(0.001):
            self.step()

    def step(self) -> None:
        """Commit something, make a commit visible, flush, or let the log grow without changes."""
        choice = self.random.random()
        if choice < 0.15 and self.database.hidden:
            self.database.make_visible(self.random.choice(self.database.hidden))
        elif choice < 0.2:
            self.database.idle()
        elif choice < 0.35 and self.database.asynchronous:
            self.database.flush()
        else:
            self._write()

    def _write(self) -> None:
        try:
            with self.database.transaction(visible=self.random.random() < 0.7) as transaction:
                for _ in range(self.random.choice([1, 1, 2, 5])):
                    self._change(transaction)
        except (RowLockedError, ValueError):
            pass  # rolled back

    def _change(self, transaction: Any) -> None:
        self._count += 1
        table, choice, random = (
            self.random.choice(["public.items", "public.parts"]),
            self.random.random(),
            self.random,
        )
        schema, rows = transaction._writable(table)
        free = tuple(
            f"z{random.randint(0, 60)}" if c == "area" else random.randint(0, 120) for c in schema.key
        )
        value = f"v{self._count}"
        text = next(c.name for c in schema.columns if c.name not in schema.key)
        if not rows or choice < 0.3:
            others = {c.name: None for c in schema.columns} | dict(zip(schema.key, free, strict=True))
            transaction.insert(table, **(others | {text: value}))
            return
        key = random.choice(sorted(rows))
        if choice < 0.5:
            transaction.delete(table, key)
        elif choice < 0.52:
            transaction.truncate(table)
        elif choice < 0.62:
            unchanged = [c.name for c in schema.columns if c.name not in schema.key and c.name != text]
            moved = dict(zip(schema.key, free, strict=True)) | {text: value}
            transaction.update(table, key, unchanged=unchanged, **moved)
        elif choice < 0.8:
            unchanged = [c.name for c in schema.columns if c.name not in schema.key and c.name != text]
            transaction.update(table, key, unchanged=unchanged, **{text: value})
        else:
            transaction.update(table, key, **{text: value})


def shop(rows: int = 50, seed: int = 0) -> MemoryDatabase:
    """Return a database with two tables whose rows predate the captured log."""
    database = MemoryDatabase()
    database.create_table("public.items", ["id"], {"id": "bigint", "a": "string", "b": "string"})
    database.create_table(
        "public.parts",
        ["area", "number"],
        {"area": "string", "number": "int", "note": "string", "c": "string"},
    )
    numbers = random.Random(seed)
    with database.transaction() as transaction:
        for id_ in range(rows):
            transaction.insert("public.items", id=id_ * 2, a=f"a{id_}", b=f"b{id_}")
            area = f"z{numbers.randint(0, 5)}"
            transaction.insert("public.parts", area=area, number=id_, note=f"n{id_}", c=None)
    return database


def insert(database: MemoryDatabase, *ids: int, visible: bool = True) -> int:
    """Insert items in one transaction; return the position after it."""
    with database.transaction(visible=visible) as transaction:
        for id_ in ids:
            transaction.insert("public.items", id=id_, a=f"a{id_}", b=f"b{id_}")
    return database.log[-1].position


def read_upto(agent: Agent) -> int:
    """Return the position up to which the agent has read."""
    return agent.source.visibility.position if agent.source.visibility else 0


def landed_ids(store: Any, kind: str = "log") -> list[int]:
    """Return the ids of the items in committed landing files."""
    files = [
        f
        for m in manifests_in(store)
        for f in m.files
        if f.kind == kind and f.table == TableName.parse("public.items")
    ]
    return sorted(e.columns["id"] for f in files for e in read_events(store, f))


def dump_of(manifest: Manifest, request_id: str) -> Any:
    """Return the dump of a request; None if the manifest has none."""
    return next((d for d in manifest.dumps if d.id == request_id), None)


def ask(agent: Agent, store: Any, **request: Any) -> Manifest:
    """Request a dump and wait until it ends."""
    request_id = submit(store, DumpRequest(**request))
    return agent.wait(
        lambda m: (d := dump_of(m, request_id)) is not None and not d.active,
        f"the dump of {request} has ended",
    )


def counted(agent: Agent, moment: str) -> list[str]:
    """Return a list that grows each time the agent's source reaches a moment from now on."""
    seen: list[str] = []
    reach = agent.source.reach

    def counting(at: str) -> None:
        if at == moment:
            seen.append(at)
        reach(at)

    agent.source.reach = counting
    return seen
