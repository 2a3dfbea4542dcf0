"""Ranges of keys: together all integers, each with about as many rows; a sample of them by seed."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import typer

from connector.cli.verify import parse_share
from merge.proof.key_ranges import KeyRange, joined
from merge.proof.sampling import choose, rows_per_range


@pytest.mark.parametrize("seed", range(20))
def test_ranges_leave_no_integer_out_and_none_is_in_two(seed: int) -> None:
    chance = random.Random(seed)
    rows = {chance.randrange(-(2**63), 2**63): chance.randrange(1, 9) for _ in range(chance.randrange(40))}
    ranges = joined(rows, 10)
    assert (ranges[0].after, ranges[-1].upto) == (None, None)
    for before, after in itertools.pairwise(ranges):
        assert before.upto == after.after
    assert all(range_.rows <= 10 for range_ in ranges)
    assert sum(range_.rows for range_ in ranges) == sum(rows.values())
    for range_ in ranges:
        held = (n for v, n in rows.items() if _holds(range_, v))
        assert sum(held) == range_.rows
    assert all(range_.rows > 0 for range_ in ranges) or not rows


def _holds(range_: KeyRange, value: int) -> bool:
    return (range_.after is None or value > range_.after) and (range_.upto is None or value <= range_.upto)


def test_a_seed_chooses_the_same_ranges_again_and_every_range_is_chosen_by_some() -> None:
    ranges = joined(dict.fromkeys(range(100), 1), 1)
    assert choose(ranges, 0.05, "7 public.a") == choose(ranges, 0.05, "7 public.a")
    assert choose(ranges, 0.05, "7 public.a") != choose(ranges, 0.05, "8 public.a")
    chosen = [choose(ranges, 0.05, str(seed)) for seed in range(400)]
    assert {len(some) for some in chosen} == {5}
    assert {range_ for some in chosen for range_ in some} == set(ranges)
    assert choose(ranges, 1.0, "1") == ranges
    assert len(choose(ranges, 0.0001, "1")) == 1
    assert choose(joined({}, 1), 0.5, "1") == [KeyRange(None, None, 0)]


@pytest.mark.parametrize(
    ("rows", "share", "expected"),
    [(0, 0.01, 256), (1_000_000, 0.01, 500), (10**9, 0.01, 50_000), (10**9, 0.5, 2_500_000)],
)
def test_a_sample_has_some_ranges_of_a_chunks_size_and_never_too_many(
    rows: int, share: float, expected: int
) -> None:
    assert rows_per_range(rows, share) == expected


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.01", 0.01), (" 100 %", 1.0), ("1", 1.0)])
def test_a_share_is_a_number_or_percents(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["0", "-1%", "101%", "1.1", "nan", "half", "", "%"])
def test_what_is_no_share_is_refused(text: Any) -> None:
    with pytest.raises(typer.BadParameter, match="is not a share such as 1%"):
        parse_share(text)
