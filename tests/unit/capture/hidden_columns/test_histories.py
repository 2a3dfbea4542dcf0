"""Random histories of a masked table, with looks, commits and restarts at random moments.

As at a real server: an ALTER waits until all who wrote to its table are visible, and who is not visible yet
has neither altered nor written for others. A look that no manifest records is forgotten at a restart. A table
that another one replaced may come back; what was hidden in it counts until log up to that look has landed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from connector.capture.hidden_columns import WAIT_SECONDS, HiddenColumns
from connector.capture.lander import LandedSegment
from connector.config import TableConfig
from connector.landing.column_names import IDS_PER_TABLE, ColumnNames, table_of
from connector.landing.manifest import LandedFile
from connector.logged_table import ColumnLook, LoggedTable
from connector.schema import TableName
from connector.source import ResumePoint
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import config_of, shop
from tests.support.agent.starts import Start

ITEMS = TableName.parse("public.items")
NAMES = ("a", "x", "y")
SETTINGS = {"columns": ["id", *NAMES], "mask": {"a": "null"}, "mask_before_landing": True}


@dataclass(frozen=True)
class Row:
    """A row in the log, or a chunk: its columns by id; `described`: by the log, just before it."""

    columns: tuple[tuple[str, int], ...]
    logged: LoggedTable
    described: bool
    lsn: int


class World:
    """The table, its log, and an agent that is behind; `hidden` and when a look first showed it so, by id."""

    def __init__(self, database: MemoryDatabase, store: MemoryStore, seed: int) -> None:
        self.rng, self.database, self.store = random.Random(seed), database, store
        self.relation, self.last, self.version, self.seconds = 7, 3, 0, 0.0
        self.columns, self.versions = {"id": 1, "x": 2, "a": 3}, {"id": 0, "x": 0, "a": 0}
        self.away: dict[int, tuple[dict[str, int], dict[str, int], int]] = {}
        self.hidden: dict[int, int] = {}
        self.checked: ColumnLook | None = None
        self.recorded: dict[int, int] = {}
        self.log: list[Row] = []
        self.chunks: list[Row] = []
        self.unseen: set[int] = set()
        self.described = self.quarantined = self.locked = False
        self.landed = 0
        self.publish()
        self.restart()

    def restart(self) -> None:
        """Start another agent, which knows what manifests record of looks."""
        self.hidden = dict(self.recorded)
        tables = {ITEMS: TableConfig.model_validate(SETTINGS)}
        self.start = Start(self.database, self.store, config_of().model_copy(update={"tables": tables}))
        look = self.start.source.look_at_columns

        def look_at_columns(tables: Collection[TableName]) -> ColumnLook:
            found = self.look(look, tables)
            self.note_hidden(found)
            return found

        self.start.source.look_at_columns = look_at_columns  # type: ignore[method-assign]
        self.tables, self.dumps = self.start.open()
        self.watch, self.checked = lambda: self.look(look, [ITEMS]), None
        self.judge = HiddenColumns(self.start.source, self.tables, self.dumps, lambda: self.seconds)
        newest = self.start.newest.position
        again = [row for row in self.log if row.lsn >= newest]
        self.log = [Row(r.columns, r.logged, i == 0 or r.described, r.lsn) for i, r in enumerate(again)]
        self.described, self.chunks = False, []

    def look(
        self, look: Callable[[Collection[TableName]], ColumnLook], tables: Collection[TableName]
    ) -> ColumnLook:
        found, unseen = look(tables), frozenset(self.unseen)
        return replace(found, shows=lambda xid: xid not in unseen)

    def note_hidden(self, found: ColumnLook) -> None:
        if "a" in found.ids[ITEMS]:
            self.hidden.setdefault(found.ids[ITEMS]["a"], found.position)

    def apply_check(self) -> None:
        """Apply what the catalog watcher has found, maybe a while ago."""
        if self.checked is not None:
            self.note_hidden(self.checked)
            self.tables.note_names(self.checked)
            self.checked = None

    def id_of(self, number: int) -> int:
        return self.relation * IDS_PER_TABLE + number

    def publish(self) -> None:
        """Make all ALTERs and writes visible."""
        self.unseen.clear()
        self.locked = False
        self.database.column_versions = {(ITEMS, name): v for name, v in self.versions.items()}
        ids = {name: self.id_of(number) for name, number in self.columns.items()}
        self.database.column_ids[ITEMS] = dict(sorted(ids.items(), key=lambda each: each[1]))

    def alter(self) -> None:
        known = {name: self.id_of(number) for name, number in self.columns.items()}
        self.version += 1
        self.described = False
        free = [name for name in NAMES if name not in self.columns]
        others = [name for name in self.columns if name != "id"]
        kind = self.rng.choice("ADRRRT" if self.rng.random() < 0.95 else "S")
        if kind == "A" and free:
            self.last += 1
            self.columns[self.rng.choice(free)] = self.last
        elif kind == "D" and others:
            del self.columns[self.rng.choice(others)]
        elif kind == "R" and free and others:
            self.columns[self.rng.choice(free)] = self.columns.pop(self.rng.choice(others))
        elif kind == "S":
            self.away[self.relation] = dict(self.columns), dict(self.versions), self.last
            self.relation = self.rng.choice([max(self.away) + 1, *self.away])
            if self.relation in self.away:
                columns, versions, self.last = self.away[self.relation]
                self.columns, self.versions = dict(columns), dict(versions)
                return
        touched = self.rng.choice([*self.columns]) if kind == "T" else None
        for name, number in self.columns.items():
            if known.get(name) != self.id_of(number) or name == touched:
                self.versions[name] = self.version

    def transact(self) -> None:
        """Alter the table and write rows, in one transaction, which others may see later."""
        if self.unseen:
            return  # it waits for a lock
        is_late = self.rng.random() < 0.3
        for _ in range(self.rng.randint(1, 4)):
            if self.rng.random() < 0.5:
                self.alter()
            else:
                self.write(is_late)
        self.locked = is_late and bool(self.unseen)
        if not self.locked:
            self.publish()

    def write(self, is_late: bool) -> None:
        with self.database.transaction() as transaction:
            transaction.update("public.items", (2,), a=str(self.database.end))
        self.add(self.log, self.database.end - 1)
        if is_late:
            self.unseen.add(self.log[-1].lsn)

    def write_elsewhere(self) -> None:
        with self.database.transaction() as transaction:
            transaction.insert("public.parts", area="z", number=self.database.end, note="n", c=None)

    def add(self, rows: list[Row], lsn: int) -> None:
        columns = sorted(((name, self.id_of(n)) for name, n in self.columns.items()), key=lambda c: c[1])
        names, numbers = zip(*columns, strict=True)
        dumped = rows is self.chunks
        numbers = numbers if dumped else ()
        logged = LoggedTable(
            self.relation, ITEMS, lsn=lsn, dumped=dumped, columns=names, numbers=numbers, xid=lsn
        )
        described = dumped or not self.described or self.rng.random() < 0.1
        rows.append(Row(tuple(columns), logged, described, lsn))
        if not dumped:
            self.described = True

    def commit(self) -> None:
        count = self.rng.randint(0, len(self.log))
        rows, self.log = self.log[:count], self.log[count:]
        position = rows[-1].lsn + 1 if rows else self.start.newest.position
        if not self.log and self.rng.random() < 0.5:
            position = self.database.end
        chunks = [c for c in self.chunks if c.lsn < position and self.rng.random() < 0.5]
        self.chunks = [c for c in self.chunks if c not in chunks]
        files = [LandedFile.model_construct(table=ITEMS)] if rows or chunks else []
        logged = [row.logged for row in [*rows, *chunks] if row.described]
        landed = LandedSegment(ResumePoint(position), files=files, logged=logged)
        if not self.judge.withhold(landed, [], self.start.newest, self.start.config):
            if self.rng.random() < 0.5:
                self.publish()
            self.seconds += WAIT_SECONDS
            assert self.judge.withhold(landed, [], self.start.newest, self.start.config)
        self.quarantined = self.tables.states[ITEMS].state == "quarantined"
        if landed.files and not self.quarantined:
            self.landed += 1
            for row in [*rows, *chunks]:
                shown = [id_ for name, id_ in row.columns if name != "a"]
                assert not [id_ for id_ in shown if self.hidden.get(id_, row.lsn) < row.lsn], row
        history = self.start.manifest_history
        recorded = self.tables.recorded(history.next_number, self.dumps.needs.copy())
        names = self.tables.states[ITEMS].column_names or ColumnNames()
        if not names.left:
            now = table_of(names.ids.values())
            self.hidden = {id_: at for id_, at in self.hidden.items() if table_of([id_]) == now}
        self.recorded = dict(self.hidden)
        history.commit(position=position, **recorded, **self.dumps.recorded())

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.3:
            if not self.unseen:
                self.alter()
                self.publish()
        elif what < 0.45:
            self.transact()
        elif what < 0.7:
            if not self.locked:
                self.write(self.rng.random() < 0.1)
        elif what < 0.75:
            if not self.unseen:
                self.add(self.chunks, self.database.end - 1)
        elif what < 0.77:
            self.publish()
        elif what < 0.8:
            self.write_elsewhere()
        elif what < 0.87:
            self.checked = self.watch()
            if self.rng.random() < 0.7:
                self.apply_check()
        elif what < 0.89:
            self.restart()
        else:
            self.commit()
            self.apply_check()


def test_a_column_that_a_look_has_shown_masked_lands_as_it_is_in_no_history() -> None:
    landed = 0
    for seed in range(100):
        world = World(shop(rows=3), MemoryStore(), seed)
        for _ in range(60):
            world.step()
            if world.tables.states[ITEMS].state == "quarantined":
                break
        landed += world.landed
    assert landed > 100
