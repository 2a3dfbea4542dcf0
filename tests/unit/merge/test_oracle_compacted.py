"""Merges over landing zones of which any blocks are compacted, and any originals gone, at any time.

The histories, the rules and what must come out are those of `test_oracle` and `test_oracle_full_dumps`;
`merge.plan` and the choice of the files to join are the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from connector.landing import format
from connector.landing.format import block_of
from connector.landing.manifest import CompactedBlock, CompactedTable, LandedFile, Manifest
from connector.landing.manifest_object import StoredManifest
from connector.maintenance import compaction
from connector.position import Position
from merge.plan import NOTHING, TablePlan, plan_table
from tests.support.landing.landed import AT, Landed
from tests.unit.merge import test_oracle, test_oracle_full_dumps
from tests.unit.merge.proof import test_verification_plan
from tests.unit.merge.shapes import test_history
from tests.unit.merge.test_oracle import SCHEMA, read

SEEDS = range(200)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format, "MANIFESTS_PER_BLOCK", 4)
    monkeypatch.setattr(compaction, "FEW_FILES", 0)


class Compacted:
    """A landing zone as a merge finds it: each time, more of it may be compacted, and more originals gone."""

    def __init__(self, landed: Landed, mutant: str = "") -> None:
        self.landed, self.mutant, self.r = landed, mutant, random.Random(1)
        self.blocks: dict[int, CompactedBlock] = {}
        self.removed: set[int] = set()
        self.upto = 0

    @property
    def number(self) -> int:
        return self.landed.number

    def get(self, number: int) -> Manifest:
        """Return a manifest; with the first one that a merge asks for, the landing zone changes."""
        if self.landed.number != self.upto:
            self.upto = self.landed.number
            self.compact()
        at = {"at the first manifest": 0, "at each manifest": None}.get(self.mutant, 1)
        last = block_of(number)[1]
        shown = at is None or number == block_of(number)[at]
        block = self.blocks.get(last) if shown else None
        return self.landed.get(number).model_copy(update={"compacted": block})

    def is_removed(self, number: int) -> bool:
        return False

    def compact(self) -> None:
        first, last = block_of(1)
        while last <= self.landed.number:
            if last not in self.blocks and self.r.random() < 0.5:
                self.blocks[last] = self.compacted(first, last)
            elif last in self.blocks and self.r.random() < 0.3:
                self.removed.add(last)
                for path in self.blocks[last].replaced:
                    self.landed.events.pop(path, None)
            first, last = block_of(last + 1)

    def compacted(self, first: int, last: int) -> CompactedBlock:
        manifests = [StoredManifest.of(self.landed.get(number)) for number in range(first, last + 1)]
        before = self.landed.get(first - 1) if first > 1 else None
        table = CompactedTable(files=[], replaced=[])
        for group in compaction.groups(manifests, (before.epoch, before.position) if before else (0, 0)):
            table.files.append(self.joined(group))
            table.replaced += [file.path for file in group]
        return CompactedBlock(first=first, last=last, at=AT, tables={SCHEMA.table: table})

    def joined(self, group: list[LandedFile]) -> LandedFile:
        path = f"joined-{group[0].path}"
        self.landed.events[path] = [event for file in group for event in self.landed.events[file.path]]
        known: dict[str, Any] = {"path": path, "rows": sum(file.rows for file in group)}
        return group[0].model_copy(update={**known, "last": max(file.last for file in group)})


@pytest.mark.parametrize("soft", [False, True])
def test_any_delivery_gives_the_source_at_every_cut(soft: bool) -> None:
    for seed in SEEDS:
        test_oracle.run(seed, soft=soft, reader_of=Compacted)


def test_every_exact_cut_is_the_source_whatever_lands_late_or_again() -> None:
    assert [seed for seed in SEEDS if not test_oracle_full_dumps.run(seed, reader_of=Compacted)] == []


@pytest.mark.parametrize("loses", [False, True])
def test_a_history_is_that_of_all_that_has_landed(loses: bool) -> None:
    for seed in range(100):
        test_history.run(seed, loses, reader_of=Compacted)


@pytest.mark.parametrize("run", test_verification_plan.RUNS)
def test_a_verification_expects_the_source_at_every_cut(run: Callable[..., None]) -> None:
    for seed in range(50):
        run(seed, reader_of=Compacted)


def mutants_of(mutant: str) -> Iterator[bool]:
    def reader(landed: Landed) -> Compacted:
        return Compacted(landed, mutant)

    for seed in SEEDS:
        try:
            test_oracle.run(seed, reader_of=reader)
        except (AssertionError, KeyError):
            yield True


def test_files_that_come_with_another_manifest_than_the_last_are_found_out() -> None:
    assert any(mutants_of("at the first manifest"))


def landed_of(seed: int) -> Landed:
    """Return what a history has landed."""
    found: list[Landed] = []

    def reader(landed: Landed) -> Landed:
        found.append(landed)
        return landed

    test_oracle_full_dumps.run(seed, reader_of=reader)
    return found[0]


def everything(landed: Landed, plan: TablePlan) -> set[Any]:
    """Return the log events that a plan reads, each once."""
    events = read(landed, plan)
    return {(e.position, e.op, e.values["k"]) for e in events if e.op != "dump" and e.seq < 1 << 62}


def log_of(landed: Landed, low: Position, upto: int, plan: TablePlan) -> set[Any]:
    """Return all log that has landed after `low` with the manifests up to `upto`, and counts."""
    files = [file for manifest in landed.manifests[:upto] for file in manifest.files if file.kind == "log"]
    events = [event for file in files for event in landed.events[file.path]]
    counts = [e for e in events if plan.swept is None or e.position >= plan.swept]
    return {(e.position, e.op, e.values["k"]) for e in counts if e.position > low}


def reads_what_it_should(seed: int, mutant: str = "") -> bool:
    """Return whether any merge reads what it did, all log since its first event, and none beyond.

    Without compaction, log that landed a second time is read again as well.
    """
    landed = landed_of(seed)
    compacted = Compacted(landed, mutant)
    compacted.r.random = lambda: 0.4  # type: ignore[method-assign]
    compacted.get(1)
    for upto in range(1, landed.number + 1):
        for after in range(upto):
            before = plan_table(SCHEMA.table, landed, after, upto)
            now = plan_table(SCHEMA.table, compacted, after, upto)
            log, position = everything(landed, now), landed.get(upto).position
            by_then = log_of(landed, NOTHING, after, before)
            if everything(landed, before) - by_then - log or any(at.lsn > position for at, *_ in log):
                return False
            if now.again and log != log_of(landed, now.low, upto, now):
                return False
            if [f for f in now.files if f.kind == "chunk"] != [f for f in before.files if f.kind == "chunk"]:
                return False
    return True


def test_any_merge_reads_all_that_is_new_without_gaps_and_nothing_from_after_its_end() -> None:
    assert [seed for seed in range(60) if not reads_what_it_should(seed)] == []


@pytest.mark.parametrize("mutant", ["at the first manifest", "at each manifest"])
def test_a_rule_left_out_is_found_out(mutant: str) -> None:
    assert not all(reads_what_it_should(seed, mutant) for seed in range(60))
