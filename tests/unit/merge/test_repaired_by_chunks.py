"""What only a chunk brought stays, whichever log is read again: a deletion or a value that no log tells.

The rules are those of `test_oracle`; `merge.plan` and the choice of the files to join are the real ones.
"""

from __future__ import annotations

from typing import Any

import pytest

from connector.landing import format
from connector.landing.format import block_of
from connector.maintenance import compaction
from merge.plan import TablePlan, plan_table
from tests.support.landing.histories import Key
from tests.support.landing.landed import Chunk, Event, Landed
from tests.unit.merge.test_oracle import SCHEMA, TABLE, Target, apply_rules, read
from tests.unit.merge.test_oracle_compacted import Compacted


@pytest.fixture(autouse=True)
def blocks_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format, "MANIFESTS_PER_BLOCK", 5)
    monkeypatch.setattr(compaction, "FEW_FILES", 1)


def row(number: int, b: str = "old") -> dict[str, Any]:
    return {"h": 1, "k": f"k{number}", "a": number, "b": b, "c": None}


class Zone:
    """Rows are inserted one by one, each with its own manifest; row 5 changes unlogged, and is repaired."""

    def __init__(self, soft: bool) -> None:
        self.landed, self.target, self.soft = Landed(), dict[Key, Target](), soft
        self.landed.table(SCHEMA)
        self.compacted = Compacted(self.landed)
        self.compacted.upto = -1
        for number in range(1, 6):
            self.insert(number)

    def insert(self, number: int) -> None:
        lsn = 10 * number
        self.landed.commit(lsn, [self.landed.log(SCHEMA, [Event("insert", lsn, 0, row(number))])])

    def commit(self, chunk: Chunk) -> None:
        self.landed.commit(10 * self.landed.number + 10, [self.landed.chunk(SCHEMA, chunk)])

    def compact(self) -> None:
        first, last = block_of(6)
        self.compacted.blocks[last] = self.compacted.compacted(first, last)

    def merge(self, after: int) -> TablePlan:
        self.compacted.upto = self.landed.number  # nothing else is compacted
        plan = plan_table(SCHEMA.table, self.compacted, after, self.landed.number)
        apply_rules(self.target, read(self.landed, plan), self.soft)
        return plan

    @property
    def rows(self) -> dict[str, str]:
        """Return column b by key, of the rows that are there."""
        return {k: row.known.columns["b"][0] for (_, k), row in self.target.items() if row.lives}


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("merged", [5, 6, 7, 8, 9])
def test_a_row_that_a_chunk_of_its_key_deleted_stays_deleted(
    merged: int, compacted: bool, soft: bool
) -> None:
    zone = Zone(soft)
    for number in range(6, merged + 1):
        zone.commit(Chunk(55, 56, [], [{"h": 1, "k": "k5"}], dump=7)) if number == 6 else zone.insert(number)
    zone.merge(0)
    for number in range(merged + 1, 11):
        zone.commit(Chunk(55, 56, [], [{"h": 1, "k": "k5"}], dump=7)) if number == 6 else zone.insert(number)
    if compacted:
        zone.compact()
    zone.merge(merged)
    assert zone.rows.keys() == {f"k{n}" for n in (1, 2, 3, 4, 7, 8, 9, 10)}


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("dump", ["keyed", "full, which ends later"])
def test_a_column_that_a_chunk_brought_is_not_taken_from_older_log(
    dump: str, compacted: bool, soft: bool
) -> None:
    zone = Zone(soft)
    zone.commit(Chunk(55, 56, [row(5, "new")], dump=7))
    zone.merge(0)
    for number in (7, 8, 9):
        zone.insert(number)
    update = Event("update", 100, 0, {**row(5), "a": 99}, ("b",))
    zone.landed.commit(100, [zone.landed.log(SCHEMA, [update])])
    if compacted:
        zone.compact()
    zone.merge(6)
    if dump != "keyed":
        zone.landed.full_dump(TABLE, 7, 55, started_in=6)
        zone.commit(Chunk(101, 102, [row(n) for n in (1, 2, 3, 4, 7, 8, 9)], dump=7))
        zone.merge(10)
    assert zone.rows == {f"k{n}": "new" if n == 5 else "old" for n in (1, 2, 3, 4, 5, 7, 8, 9)}


@pytest.mark.parametrize("again", ["log", "a chunk"])
def test_log_that_is_read_again_is_overruled_by_the_chunks_that_overruled_it(again: str) -> None:
    """It landed a second time, or a chunk with an older watermark came after the one that repaired."""
    zone = Zone(soft=False)
    zone.commit(Chunk(55, 56, [], [{"h": 1, "k": "k5"}], dump=7))
    zone.merge(0)
    assert "k5" not in zone.rows
    if again == "log":
        zone.landed.commit(70, [zone.landed.log(SCHEMA, [Event("insert", 50, 0, row(5))])])
    else:
        zone.commit(Chunk(45, 61, [row(1)], dump=8))
    plan = zone.merge(6)
    assert [file.kind for file in plan.again] == ["log", "chunk"]
    assert "k5" not in zone.rows


@pytest.mark.parametrize("low", [54, 55])
@pytest.mark.parametrize("merged_between", [False, True])
def test_a_chunk_that_comes_late_is_overruled_by_those_of_a_later_dump_though_the_log_was_idle(
    merged_between: bool, low: int
) -> None:
    """Before row 4 is deleted and row 5 changed, unlogged, a chunk of both is read, and is long on its way.

    An update of row 5 that lacks the column takes it from the later of the two chunks.
    """
    zone = Zone(soft=False)
    zone.commit(Chunk(55, 56, [row(5, "new")], [{"h": 1, "k": "k4"}], dump=8))
    if merged_between:
        zone.merge(0)
    zone.commit(Chunk(low, 56, [row(n) for n in range(1, 6)], dump=7))
    update = Event("update", 80, 0, {**row(5), "a": 99}, ("b",))
    zone.landed.commit(80, [zone.landed.log(SCHEMA, [update])])
    zone.merge(6 if merged_between else 0)
    assert zone.rows == {"k1": "old", "k2": "old", "k3": "old", "k5": "new"}
