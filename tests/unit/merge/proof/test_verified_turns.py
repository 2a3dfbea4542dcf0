"""Of continuous verification, nothing keeps a range from its turn: no difference that stays, no size."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from connector.landing.manifest import Manifest
from connector.landing.verified import Asked, Ends, Piece, Verified
from connector.schema import TableName
from merge.proof import continuous
from merge.proof.continuous import MOST_LOOKED, MOST_PIECES, ContinuousVerification, choose_turn
from merge.proof.opened_lake import OpenedLake
from tests.support.landing.landed import config_of

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)


class Tables:
    """Tables by name with so many rows each; those that begin with ``text`` have a key without ranges."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: dict[str, int]) -> None:
        self.rows = {TableName("public", name): count for name, count in rows.items()}
        self.looked = 0
        self.record = Verified(lake="lake")
        for name, count in self.rows.items():
            self.record = self.record.naming([*self.record.tables, name]).counted(name, Piece(), count)
        monkeypatch.setattr(continuous, "_merged_tables", lambda _: sorted(self.rows))
        monkeypatch.setattr(continuous, "_divided", self._divided)
        monkeypatch.setattr(continuous, "_counted", lambda _, record, *__: record)

    def _divided(self, _: Any, table: TableName, whole: Piece, __: int) -> tuple[int, Piece, list[Ends]]:
        self.looked += 1
        rows = self.rows[table]
        whole = whole.model_copy(update={"rows": rows})
        return rows, whole, [] if table.name.startswith("text") else [(whole.after, whole.upto)]

    def run(self, hour: int, differing: set[str]) -> set[str]:
        """Verify what is chosen; return the tables of it."""
        at = NOW + timedelta(hours=hour)
        self.record, chosen = choose_turn(cast(OpenedLake, None), self.record, 0.01, at)
        for table, piece, _ in chosen:
            self.record = self.record.tried(table, piece, at, 1 if table.name in differing else 0, "run")
        return {table.name for table, _, _ in chosen}


def test_many_small_tables_that_go_on_differing_leave_half_of_a_run_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad, good = ({f"{kind}{n:03}" for n in range(60)} for kind in ("a", "b"))
    tables = Tables(monkeypatch, dict.fromkeys([*bad, *good], 3))
    runs = [tables.run(hour, bad) for hour in range(12)]
    assert max(map(len, runs)) == MOST_PIECES
    assert set().union(*runs[6:]) == bad | good


def test_a_table_too_large_for_a_run_has_its_turn_and_no_more_though_something_goes_on_differing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = Tables(monkeypatch, {"small": 9, "text_a": 50_000, "text_b": 50_000, "z": 9})
    runs = [tables.run(hour, {"small", "text_a"}) for hour in range(12)]
    assert all("small" in run for run in runs[1:])
    for name, least in (("text_a", 2), ("text_b", 2), ("z", 2)):
        assert least <= sum(name in run for run in runs[2:]) <= 6, (name, runs)


def test_a_run_looks_at_few_tables_however_many_are_too_large_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a query over a large table, and merges wait for them."""
    large = {f"text_{n:03}" for n in range(100)}
    tables = Tables(monkeypatch, {"a": 9, **dict.fromkeys(large, 60_000)})
    assert tables.run(0, set()) == {"a"}
    assert tables.looked <= MOST_LOOKED
    assert set().union(*(tables.run(hour, large) for hour in range(1, 101))) >= large
    tables.looked = 0
    tables.run(101, large)
    assert tables.looked <= 2 * MOST_LOOKED


def test_a_request_is_not_given_up_while_a_merge_that_began_before_its_dump_is_slow() -> None:
    """Otherwise a lake whose merges take longer than `UNLISTED_SECONDS` would never be verified."""
    asked = Asked(request="verify-1", table=TableName("public", "t"), at=NOW)
    listed = [SimpleNamespace(request="verify-1", active=False)]
    manifests = {4: SimpleNamespace(number=4, dumps=[]), 9: SimpleNamespace(number=9, dumps=listed)}
    verification = ContinuousVerification(config_of("/landing", "/lake"), lambda: NOW + timedelta(hours=1))

    def has_ended(merged: int, newest: int) -> bool:
        landing = Mock(get=manifests.get, newest=lambda _: newest, exists=lambda _: False)
        return verification._has_ended(landing, cast(Manifest, manifests[merged]), asked)

    assert not has_ended(merged=4, newest=9), "the next merge has its rows"
    assert has_ended(merged=9, newest=9)
    assert has_ended(merged=4, newest=4), "the agent rejected it"
