"""The record of continuous verification: its ranges are all integers, and claim what was compared."""

from __future__ import annotations

import itertools
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from connector.config import LandingConfig
from connector.errors import FormatError
from connector.landing.consumers import read_consumers
from connector.landing.verified import NEVER, Piece, Verified, VerifiedRange, read_verified, verified_path
from connector.schema import TableName
from connector.store.factory import open_store

A, B = TableName("public", "a"), TableName("public", "b")
NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("seed", range(30))
def test_each_key_is_always_in_one_range_with_what_was_last_found_of_it(seed: int) -> None:
    chance = random.Random(seed)
    record = Verified(lake="lake").naming([A])
    known: dict[int, tuple[Any, Any]] = dict.fromkeys(range(-3, 14), (None, None))
    for step in range(12):
        ends = sorted(chance.sample(range(-2, 12), 2))
        after, upto = (None if chance.random() < 0.2 else end for end in ends)
        at, found = NOW + timedelta(hours=step), chance.choice([None, 0, 0, 2])
        record = record.tried(A, Piece(after=after, upto=upto, rows=3), at, found, f"run {step}")
        for key in known:
            if (after is None or key > after) and (upto is None or key <= upto):
                known[key] = (at, at if found is not None else known[key][1])
        ranges = record.tables[A]
        assert ranges[-1].upto is None
        inner = [range_.upto for range_ in ranges[:-1]]
        assert all(a < b for a, b in itertools.pairwise(inner)), inner  # type: ignore[operator]
        for key, (tried_at, verified_at) in known.items():
            range_ = next(r for r in ranges if r.upto is None or key <= r.upto)
            assert range_.tried_at == tried_at
            assert (range_.verified_at or NEVER) <= (verified_at or NEVER), "it claims too much"
            if tried_at == at and found is not None:
                assert (range_.verified_at, range_.differences) == (at, found)


def test_what_was_tried_longest_ago_is_next_and_a_new_table_comes_before_all() -> None:
    record = Verified(lake="lake").naming([A]).counted(A, Piece(), 100)
    record = record.tried(A, Piece(upto=10, rows=40), NOW, 0)
    assert record.by_age() == [(A, Piece(after=10, rows=60)), (A, Piece(upto=10, rows=40))]
    assert record.share_since(NOW) == 0.4
    assert (record.never(), record.oldest()) == ([A], None)
    record = record.tried(A, Piece(after=10, rows=70), NOW + timedelta(hours=1), 2, "run")
    assert (record.rows, record.oldest(), record.never()) == (110, NOW, [])
    assert record.share_since(NOW + timedelta(minutes=1)) == 70 / 110
    assert record.differing() == {A: 2}
    record = record.naming([A, B])
    assert [name for name, _ in record.by_age()] == [B, A, A]
    assert (record.uncounted(), record.never(), record.oldest()) == ([B], [B], None)
    assert set(record.naming([B]).tables) == {B}
    record = record.tried(A, Piece(after=10, rows=70), NOW + timedelta(hours=2), 0)
    assert (record.differing(), record.tables[A][-1].run) == ({}, None)


def test_a_try_without_a_result_is_no_verification_and_keeps_nothing_from_its_turn() -> None:
    record = Verified(lake="lake").naming([A, B]).tried(A, Piece(rows=5), NOW)
    assert record.tables[A] == [VerifiedRange(rows=5, tried_at=NOW)]
    assert (record.share_since(NOW - timedelta(days=1)), record.never()) == (0.0, [A, B])
    assert [name for name, _ in record.by_age()] == [B, A]
    gone = record.naming([B])
    assert gone.tried(A, Piece(), NOW, 0) is gone


def test_records_are_read_by_number_beside_those_of_consumers(tmp_path: Path) -> None:
    store = open_store(LandingConfig(url=str(tmp_path)), "shop")
    assert read_verified(store) == []
    for number in (1, 2):
        record = Verified(lake="lake", number=number).naming([A])
        path = f"{verified_path('4711', number)}/part-0.txt"
        store.put(path, record.tried(A, Piece(), NOW, number).model_dump_json().encode())
    store.put(f"{verified_path('4711', 2)}/_SUCCESS", b"")
    (found,) = read_verified(store)
    assert (found.number, found.differing()) == (2, {A: 2})
    assert read_consumers(store) == []
    store.put("consumers/stray", b"")  # of somebody else
    assert (read_verified(store), read_consumers(store)) == ([found], [])
    store.put(verified_path("4712", 1), b"[]")
    with pytest.raises(FormatError, match=r"verified-1\.json is not a record of verification"):
        read_verified(store)
