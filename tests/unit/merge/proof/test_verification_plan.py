"""What a verification expects, over random histories: the source at every cut, whatever happened meanwhile.

`merge.plan` is the real one; `apply_rules` reconciles in plain Python. Each mutant takes one rule out, and
must be found out. Merges plan the same with the files of a verification and without.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from connector.errors import TableError
from connector.landing.manifest import DumpState, Manifest
from merge.plan import Manifests, plan_table, plan_verification
from merge.proof.continuous import _log
from merge.proof.differences import MOST_KEY_BYTES, MOST_KEYS, requestable
from merge.proof.verification import TableVerification, Verification, _Run, settled
from tests.support.landing.histories import NAMES, Key, World
from tests.support.landing.landed import Chunk, Landed
from tests.unit.merge.test_oracle import SCHEMA, TABLE, Target, apply_rules, land, read
from tests.unit.merge.test_oracle_full_dumps import HALVES, Source


@dataclass(frozen=True)
class Unverified:
    """The same landing zone, as if nothing had been verified."""

    landed: Landed

    def get(self, number: int) -> Manifest:
        manifest = self.landed.get(number)
        files = [file for file in manifest.files if file.kind != "verify"]
        dumps = [dump for dump in manifest.dumps if not dump.verifies]
        return Manifest.model_construct(**dict(manifest) | {"files": files, "dumps": dumps})

    def is_removed(self, number: int) -> bool:
        return False


def expected(reader: Manifests, landed: Landed, dump: DumpState, mutant: str) -> dict[Key, Target]:
    plan = plan_verification(dump, reader, landed.number)
    if mutant == "no log since":
        plan = replace(plan, again=())
    if mutant == "chunks without rows":
        lows = [file.low for file in plan.files if file.low is not None]
        plan = replace(plan, low=(1, min(lows, default=1 << 60) - 1))
    if mutant == "no chunks since":
        plan = replace(plan, again=tuple(file for file in plan.again if file.kind == "log"))
    if mutant == "nothing swept":
        plan = replace(plan, swept=None)
    found: dict[Key, Target] = {}
    apply_rules(found, read(landed, plan))
    return found


def assert_merged_alike(landed: Landed, r: random.Random) -> None:
    if r.random() < 0.7:
        return
    after = r.randint(0, landed.number - 1)
    merged = plan_table(SCHEMA.table, landed, after, landed.number)
    assert merged == plan_table(SCHEMA.table, Unverified(landed), after, landed.number)


def run_with_hidden_commits(
    seed: int, mutant: str = "", reader_of: Callable[[Landed], Manifests] = lambda _: _
) -> None:
    """Commits that become visible late, partial rows, truncates, keyed dumps."""
    r = random.Random(seed)
    truncates = r.random() < 0.3
    world, landed = World(r, 1 if truncates else 2, truncates), Landed()
    landed.table(SCHEMA)
    reader = reader_of(landed)
    waiting: list[Chunk] = []
    dump: DumpState | None = None
    begun = low = number = 0
    begin, end = sorted(r.sample(range(2, 30), 2))
    for step in range(r.randint(end, 40)):
        world.step()
        if step == begin:
            begun, low = landed.number + 1, min(h.low(world.position) for h in world.histories)
            known = len(world.pending)
            world.chunk([(h.h, name) for h in world.histories for name in NAMES], keyed=False)
            waiting, number = world.pending[known:], world.dump
            del world.pending[known:]
        if r.random() < 0.5 or step == end:
            batch = world.commit(r.randint(world.position, world.lsn))
            if begun and not dump and step >= end and all(c.high <= batch.position for c in waiting):
                files = [landed.verified(SCHEMA, chunk) for chunk in waiting]
                dump = landed.verification(TABLE, number, low, started_in=begun)
                land(landed, batch, r)
                landed.manifests[-1].files.extend(files)
            else:
                land(landed, batch, r)
            assert_merged_alike(landed, r)
            if dump is not None:
                got, truth = expected(reader, landed, dump, mutant), world.truth()
                assert got.keys() == truth.keys(), f"seed {seed}"
                assert all(row.known.agrees(truth[key]) for key, row in got.items()), f"seed {seed}"


def run_with_unlogged_changes(
    seed: int, mutant: str = "", reader_of: Callable[[Landed], Manifests] = lambda _: _
) -> None:
    """Rows vanish and change without an event, and full dumps repair that, before, while and after."""
    r = random.Random(seed)
    source = Source(r)
    reader = reader_of(source.landed)
    chunks: list[Chunk] = []
    dump: DumpState | None = None
    number = begun = 0
    for _ in range(r.randint(20, 120)):
        dice = r.random()
        if dice < 0.4:
            source.change()
        elif dice < 0.45:
            source.change_unlogged()
        elif dice < 0.65:
            source.read_chunk()
        elif dice < 0.75 and len(chunks) < 2:
            if not chunks:
                source.numbers += 1
                number, begun = source.numbers, source.landed.number + 1
            names = HALVES[len(chunks)]
            rows = [source.row(name, source.state[name]) for name in names if name in source.state]
            chunks.append(Chunk(max(0, source.lsn - r.choice((0, 0, 2))), source.lsn, rows, dump=number))
        else:
            done = len(chunks) == 2 and dump is None
            done = done and all(c.high <= source.landed.manifests[-1].position for c in chunks)
            if done:
                files = [source.landed.verified(SCHEMA, chunk) for chunk in chunks if chunk.rows]
                low = min(chunk.low for chunk in chunks)
                dump = source.landed.verification(TABLE, number, low, started_in=begun)
            source.commit()
            if done:
                source.landed.manifests[-1].files.extend(files)
            assert_merged_alike(source.landed, r)
            truth = source.truth()
            if dump is not None and truth is not None:
                got = expected(reader, source.landed, dump, mutant)
                assert {key: row.known.columns["a"][0] for key, row in got.items()} == truth, f"seed {seed}"


@pytest.mark.parametrize("number", [2, 3])
def test_a_row_that_vanished_without_an_event_is_a_ghost_though_the_log_is_idle_since_it_was_dumped(
    number: int,
) -> None:
    source = Source(random.Random(1))
    landed, names = source.landed, ("k0", "k1")
    first = Chunk(7, 7, [source.row(name, 1) for name in names], dump=1)
    landed.full_dump(SCHEMA.table, 1, 7, started_in=1)
    landed.commit(7, [landed.chunk(SCHEMA, first)])
    chunk = Chunk(7, 7, [source.row("k1", 1)], dump=number)
    dump = landed.verification(TABLE, number, 7, started_in=landed.number + 1)
    landed.commit(7, [landed.verified(SCHEMA, chunk)])
    assert list(expected(landed, landed, dump, "")) == [(1, "k1")]


RUNS = [run_with_hidden_commits, run_with_unlogged_changes]


@pytest.mark.parametrize("run", RUNS)
def test_a_verification_expects_the_source_at_every_cut(run: Callable[..., None]) -> None:
    for seed in range(300):
        run(seed)


@pytest.mark.parametrize(
    ("run", "mutant"),
    [
        (RUNS[0], "no log since"),
        (RUNS[0], "chunks without rows"),
        (RUNS[1], "no log since"),
        (RUNS[1], "no chunks since"),
        (RUNS[1], "nothing swept"),
    ],
)
def test_a_rule_left_out_is_found_out(run: Callable[..., None], mutant: str) -> None:
    assert any(_is_wrong(run, seed, mutant) for seed in range(600))


def _is_wrong(run: Callable[..., None], seed: int, mutant: str) -> bool:
    try:
        run(seed, mutant)
    except (AssertionError, KeyError):
        return True
    return False


@pytest.mark.parametrize("state", ["captured", "quarantined", "dropped"])
def test_a_table_that_was_quarantined_after_its_rows_were_read_is_neither_compared_nor_equal(
    state: str,
) -> None:
    source = Source(random.Random(1))
    landed = source.landed
    dump = landed.verification(TABLE, 3, 7, started_in=landed.number + 1)
    landed.commit(7, [landed.verified(SCHEMA, Chunk(7, 7, [source.row("k1", 1)], dump=3))])
    before = landed.tables[SCHEMA.table]
    if state == "dropped":
        del landed.tables[SCHEMA.table]
        landed.commit(8)
        landed.tables[SCHEMA.table] = before  # created again
    else:
        landed.tables[SCHEMA.table] = before.changed(state=state, reason="its key changed")
    newest = landed.commit(9)
    run: Any = SimpleNamespace(landing=landed)
    plan = plan_verification(dump, landed, landed.number)
    if state == "captured":
        _Run._require_landed(run, dump, plan)
    else:
        why = "it was dropped" if state == "dropped" else "its key changed"
        with pytest.raises(TableError, match=f"after its rows were read: {why}"):
            _Run._require_landed(run, dump, plan)
    assert settled(newest, SCHEMA.table) == (state != "quarantined")
    assert not Verification("r", [TableVerification(SCHEMA.table, settled=False)]).equal
    assert not Verification("r", [TableVerification(SCHEMA.table, waiting=1, suspects=[["1"]])]).equal
    assert not Verification("r", [TableVerification(SCHEMA.table, suspects=[["1"]])]).equal


def test_a_row_that_waits_hides_no_difference_and_proves_nothing_equal() -> None:
    def has_result(**found: Any) -> bool:
        return TableVerification(SCHEMA.table, **found).has_result

    assert has_result()
    assert has_result(different=1, waiting=1, suspects=[["1"]])
    assert not has_result(waiting=1, suspects=[["1"]])
    assert not has_result(different=1, settled=False)


def test_rows_that_wait_are_not_logged_as_verified(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        _log(TableVerification(SCHEMA.table, rows=2, waiting=1, suspects=[["1"]]))
        _log(TableVerification(SCHEMA.table, rows=2))
    first, second = caplog.messages
    assert "was not verified" in first
    assert "2 rows verified" in second


def test_keys_are_asked_for_together_only_if_one_request_holds_them() -> None:
    half = [[str(n)] for n in range(MOST_KEYS // 2)]
    assert requestable([["2"], ["10"], ["1"]]) == [["1"], ["10"], ["2"]]
    assert requestable(half + half) is not None
    assert requestable([*half, *half, ["1"]]) is None
    assert requestable([["x" * (MOST_KEY_BYTES // 2)]] * 2) is None
    assert requestable([["1", None]]) is None  # type: ignore[list-item]
    assert requestable([["1"], ["a\0b"]]) is None  # such a text of MySQL's is no SQL literal
