"""The places of columns in the log's descriptions tell which of them had a hidden name."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from connector.capture.hidden_columns import may_land
from connector.capture.lander import LandedSegment
from connector.config import TableConfig
from connector.landing.column_names import IDS_PER_TABLE, ColumnNames, Places
from connector.logged_table import LoggedTable
from connector.source import ResumePoint
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.unit.capture.hidden_columns.judged import ITEMS, LISTED, RELATION, Judged


@pytest.mark.parametrize(
    ("before", "after", "columns", "state"),
    [
        ("id x", "id x'", "id a", "quarantined"),  # x was a for a time
        ("id x", "id x'", "id x a", "captured"),  # a came and is gone
        ("id x", "id x' a", "id x a", "captured"),
        ("id x", "id x' a", "id a x", "quarantined"),  # another came, and took over its name
        ("id x a", "id x' a'", "id x a", "captured"),
        ("id x a", "id x' a'", "id a x", "quarantined"),
        ("id x a", "id x' a'", "id a", "captured"),  # by a publication with a column list
        ("id x a", "id x'", "id x a", "captured"),
        ("id x a", "id x'", "id a x", "quarantined"),
        ("id x y", "id x'", "id a", "quarantined"),
        ("id x y", "id x'", "id x a", "captured"),  # y was a, and is gone
        ("id y x", "id - x'", "id y a", "quarantined"),
        ("id y x", "id - x'", "id a x", "captured"),  # y was a, or x, and x came and is gone
        ("id x", "id x", "id a", "captured"),  # from before x came
        ("id' x", "id x", "id x a", "captured"),
    ],
)
def test_a_column_that_had_a_hidden_name_between_two_looks_is_known_by_its_place_in_the_log(
    database: MemoryDatabase, store: MemoryStore, before: str, after: str, columns: str, state: str
) -> None:
    """Even if it has its own name again: the dump that follows would land what was masked until then."""

    def numbered(names: str) -> Mapping[str, int]:
        places = enumerate(names.replace("'", "").split(), start=1)
        return {name: number for number, name in places if name != "-"}

    judged = Judged(database, store, numbered(before), **LISTED)
    with database.transaction() as transaction:
        transaction.update("public.items", (2,), a="b")
    judged.show(numbered(after), " ".join(name[:-1] for name in after.split() if name[-1] == "'"))
    each = LoggedTable(RELATION, ITEMS, lsn=database.end - 1, columns=tuple(columns.split()))
    for _ in range(2):
        assert judged.withhold(LandedSegment(ResumePoint(database.end), logged=[each]))
        assert judged.tables.states[ITEMS].state == state
    reason = judged.tables.states[ITEMS].reason
    assert reason == ("column 'x' was 'a', which lands masked" if state == "quarantined" else None)


def test_places_leave_only_columns_that_keep_their_order() -> None:
    """All descriptions of up to five columns, some of which were there before, and stayed."""
    ids = range(1, 6)
    sets = [{i for i in ids if mask >> i & 1} for mask in range(0, 64, 2)]
    for before, stayed in ((b, s) for b in sets for s in sets if s <= b):
        came = [i for i in (*ids, 8, 9) if i > max(before, default=0)]
        for some in sets:
            had = [*sorted(stayed | (before & some)), *[i for i in came if i in some or i > 5]]
            places = Places(sorted(before), sorted(stayed), len(had))
            assert all(places.may_have(place, id_) for place, id_ in enumerate(had))
            if len(had) == len(stayed):
                exact = {(p, i) for p in range(len(had)) for i in ids if places.may_have(p, i)}
                assert exact == {*enumerate(had)}


NAMES = ("a", "h", "x", "y", "z")
HIDING = TableConfig.model_validate({"mask": {"a": "sha256", "h": "null"}})


class History:
    """Columns as they are added, dropped, renamed, altered otherwise, and no longer generated, at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.last, self.version = rng, 1, 0
        self.columns, self.versions, self.generated = {"id": 1}, {"id": 1}, set[int]()
        for _ in range(rng.randint(1, 4)):
            self.add()

    def add(self) -> None:
        self.last += 1
        if free := [name for name in NAMES if name not in self.columns]:
            name = self.rng.choice(free)
            self.columns[name], self.versions[name] = self.last, self.version
            self.generated |= {self.last} if self.rng.random() < 0.1 else set()

    def alter(self) -> None:
        self.version += 1
        kind, others = self.rng.choice("ADRRTG"), [name for name in self.columns if name != "id"]
        if kind == "A" or not others:
            self.add()
            return
        name = self.rng.choice(others)
        number = self.columns.pop(name)
        if kind != "D":
            free = [each for each in NAMES if each not in self.columns]
            name = self.rng.choice(free) if kind == "R" else name
            self.columns[name], self.versions[name] = number, self.version
            self.generated -= {number} if kind == "G" else set()

    def look(self, names: ColumnNames, upto: int) -> ColumnNames:
        ids = {name: RELATION * IDS_PER_TABLE + number for name, number in self.columns.items()}
        signs = {name: -1 if n in self.generated else 1 for name, n in self.columns.items()}
        return names.seen(ids, upto, {name: signs[name] * (self.versions[name] + 1) for name in ids})

    def described(self) -> list[tuple[str, int]]:
        columns = sorted(self.columns.items(), key=lambda column: column[1])
        return [(name, number) for name, number in columns if number not in self.generated]

    def hidden(self) -> set[int]:
        return {number for name, number in self.described() if name in HIDING.mask}


def test_a_column_that_a_look_has_shown_hidden_lands_under_no_other_name_wherever_it_is() -> None:
    """Whatever the looks show of columns that are altered, generated, or hidden under several names."""
    landed = 0
    for seed in range(1500):
        history = History(rng := random.Random(seed))
        names, hidden, described = history.look(ColumnNames(), 1).landed(1), history.hidden(), []
        for upto in range(2, rng.randint(3, 8)):
            history.alter()
            described.append((history.described(), {*hidden}))
            if rng.random() < 0.3:
                names, hidden = history.look(names, upto), hidden | history.hidden()
        names = history.look(names, 9)
        for columns, shown in described:
            logged = LoggedTable(RELATION, ITEMS, columns=tuple(name for name, _ in columns))
            if may_land(logged, names, HIDING):
                landed += 1
                assert not [c for c in columns if c[0] not in HIDING.mask and c[1] in shown], (seed, columns)
    assert landed > 3000
