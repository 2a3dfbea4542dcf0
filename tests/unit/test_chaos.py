"""What `make chaos` checks can be wrong: each lie told in a lake, and each hole in a history, is found."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connector.store.factory import open_store
from tests.chaos.cut_checker import CONTROL_TABLE, CutChecker
from tests.chaos.lake_reader import LakeReader
from tests.chaos.landed_checker import LandedChecker
from tests.chaos.manifest_line import ManifestLine
from tests.chaos.writers import COLUMNS, Effects, Journal, State, initial_state
from tests.support.landing.landed import Event, Landed, config_of, schema_of

deltalake = pytest.importorskip("deltalake")


class Lake:
    """A lake written by hand: the writers' tables, and cuts of their versions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(writers=1)
        self.checker = CutChecker(LakeReader(str(folder)), "public", self.journal)
        self._cuts = 0

    def transfer(self, state: State, number: int, amount: int = 7) -> None:
        """Let the writer commit a transaction, and change the state accordingly."""
        effects = Effects()
        effects.add("accounts", (3,), amount)
        effects.add("vaults", ("region 1", 1), -amount)
        effects.put("notes", (900,), (900, 1, number, "a note"))
        self.journal.record(1, number, effects)
        state["accounts"][(3,)] = (3, "owner 3", state["accounts"][(3,)][2] + amount)
        state["vaults"][("region 1", 1)] = ("region 1", 1, state["vaults"][("region 1", 1)][2] - amount)
        state["notes"][(900,)] = (900, 1, number, "a note")
        state["counters"][(1,)] = (1, number)

    def write(self, state: State) -> dict[str, dict[str, Any]]:
        """Write all tables; return the id and version of each."""
        places = {}
        for table, columns in COLUMNS.items():
            values = zip(*state[table].values(), strict=True)
            rows = pa.table(dict(zip(columns, map(pa.array, values), strict=True)))
            folder = str(self.folder / "public" / table)
            deltalake.write_deltalake(folder, rows, mode="overwrite")
            written = deltalake.DeltaTable(folder)
            places[f"public.{table}"] = {"id": str(written.metadata().id), "version": written.version()}
        return places

    def record(
        self,
        places: dict[str, dict[str, Any]],
        *,
        exact: bool = True,
        committed_at: datetime | None = None,
    ) -> CutChecker:
        """Record a cut, and check it."""
        self._cuts += 1
        at = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=self._cuts)
        place = pa.struct([("id", pa.string()), ("version", pa.int64())])
        columns = {
            "manifest": pa.array([self._cuts * 10], pa.int64()),
            "exact": pa.array([exact]),
            "merged_at": pa.array([at], pa.timestamp("us", "UTC")),
            "source_committed_at": pa.array([committed_at], pa.timestamp("us", "UTC")),
            "tables": pa.array([list(places.items())], pa.map_(pa.string(), place)),
        }
        deltalake.write_deltalake(str(self.folder / CONTROL_TABLE), pa.table(columns), mode="append")
        self.checker.check_new()
        return self.checker


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_a_lake_that_follows_the_writers_has_no_difference(lake: Lake) -> None:
    state = initial_state(1)
    lake.record(lake.write(state))
    for number in (1, 2):
        lake.transfer(state, number)
    checker = lake.record(lake.write(state))
    assert (checker.first, checker.checked, checker.newest_exact) == ([], 2, 20)
    lake.record({}, exact=False)
    assert (checker.recorded, checker.exact, checker.differences) == (3, 2, 0)


def hide_an_update(state: State) -> None:
    state["notes"][(-7,)] = (*state["notes"][(-7,)][:3], "somebody else's")


def take_money(state: State) -> None:
    state["accounts"][(5,)] = (5, "owner 5", -1)


def move_money(state: State) -> None:
    state["accounts"][(5,)] = (5, "owner 5", 1)
    state["accounts"][(6,)] = (6, "owner 6", -1)


def lose_a_row(state: State) -> None:
    del state["notes"][(900,)]


def show_one_row_twice_for_another(state: State) -> None:
    state["notes"][(900,)] = state["notes"][(-7,)]


def turn_a_counter_back(state: State) -> None:
    state["counters"][(1,)] = (1, 0)


def count_what_never_happened(state: State) -> None:
    state["counters"][(101,)] = (101, 1)


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        (hide_an_update, 'cut 20: notes has -7, 0, 0, "somebody else\'s"'),
        (take_money, "cut 20: the balances sum to -1"),
        (move_money, "cut 20: accounts has 5, 'owner 5', 1"),
        (lose_a_row, "cut 20: notes lacks 900, 1, 1, 'a note'"),
        (show_one_row_twice_for_another, "cut 20: notes lacks 900, 1, 1, 'a note'"),
        (turn_a_counter_back, "cut 20: counters are lower than before: {1: (1, 0)}"),
        (count_what_never_happened, "cut 20: counters has 101, 1"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_lie_told_in_a_delta_table_is_found(
    lake: Lake, lie: Callable[[State], None], expected: str
) -> None:
    state = initial_state(1)
    lake.transfer(state, 1)
    assert lake.record(lake.write(state)).differences == 0
    lie(state)
    checker = lake.record(lake.write(state))
    assert checker.differences > 0
    assert expected in checker.first
    assert checker.newest_exact == 10


def test_a_cut_of_mixed_versions_is_found_though_each_table_is_right(lake: Lake) -> None:
    state = initial_state(1)
    before = lake.write(state)
    lake.transfer(state, 1)
    after = lake.write(state)
    checker = lake.record({**after, "public.vaults": before["public.vaults"]})
    assert "cut 10: the balances sum to 7" in checker.first


def test_a_cut_that_names_another_table_or_a_missing_version_is_found(lake: Lake) -> None:
    places = lake.write(initial_state(1))
    checker = lake.record({**places, "public.notes": {"id": "another", "version": 0}})
    assert "notes at version 0 is another table than another" in checker.first[0]
    lake.record({**places, "public.notes": {**places["public.notes"], "version": 9}})
    assert checker.differences == 2


def test_a_cut_that_lacks_the_last_transactions_is_found_though_all_tables_agree(lake: Lake) -> None:
    state = initial_state(1)
    for number in (1, 2):
        lake.transfer(state, number)
    old, known = lake.write(state), datetime.now(timezone.utc)
    lake.transfer(state, 3)
    assert lake.record(old, committed_at=known).first == []
    checker = lake.record(old, committed_at=datetime.now(timezone.utc))
    assert checker.first == ["cut 20: is older than it says: {1: (2, 3)}"]


SCHEMAS = {
    "accounts": schema_of("public.accounts", id="bigint", owner="string", balance="bigint"),
    "vaults": schema_of(
        "public.vaults", ("region", "number"), region="string", number="int", balance="bigint"
    ),
    "counters": schema_of("public.counters", id="int", value="bigint"),
    "notes": schema_of("public.notes", id="bigint", writer="int", n="bigint", body="string"),
}


class LandingZone:
    """A landing zone written by hand, with the writers' tables as they are at the beginning."""

    def __init__(self, folder: Path) -> None:
        self.landed = Landed.local(folder / "landing")
        for schema in SCHEMAS.values():
            self.landed.table(schema)
        self.journal = Journal(writers=1)
        self.store = open_store(config_of(str(folder / "landing"), str(folder / "lake")).landing, "shop")
        self.checker = LandedChecker(self.store, "public", self.journal)
        self.line = ManifestLine(self.store, self.checker.add)
        events = {t: [(100, "insert", row) for row in rows.values()] for t, rows in initial_state(1).items()}
        self.commit(101, **events)

    def commit(self, position: int, **events: list[tuple[int, str, tuple[Any, ...]]]) -> None:
        """Commit events as (lsn, op, row) by table, and follow the manifests."""
        files = []
        for table, found in events.items():
            names = COLUMNS[table]
            rows = [
                Event(op, lsn, 2 * n, dict(zip(names, row, strict=False)), unchanged=names[len(row) :])
                for n, (lsn, op, row) in enumerate(found)
            ]
            files.append(self.landed.log(SCHEMAS[table], rows))
        self.landed.commit(position, files)
        self.line.follow()

    def transfer(self, number: int, vault: int = -7) -> None:
        """Let the writer commit a transaction that moves 7, and land it."""
        effects = Effects()
        effects.add("accounts", (3,), 7)
        effects.add("vaults", ("region 1", 1), -7)
        effects.put("notes", (900,), (900, 1, number, "a note"))
        self.journal.record(1, number, effects)
        lsn = 200 + number
        self.commit(
            lsn + 1,
            accounts=[(lsn, "update", (3, "owner 3", 7 * number))],
            vaults=[(lsn, "update", ("region 1", 1, vault * number))],
            notes=[(lsn, "insert", (900, 1, number))]
            if number > 1
            else [(lsn, "insert", (900, 1, 1, "a note"))],
            counters=[(lsn, "update", (1, number))],
        )


@pytest.fixture
def zone(tmp_path: Path) -> LandingZone:
    return LandingZone(tmp_path)


def test_manifests_that_follow_the_writers_have_no_difference(zone: LandingZone) -> None:
    zone.transfer(1)
    zone.transfer(2)
    checker = zone.checker
    assert (checker.first, checker.checked, zone.line.problems) == ([], 3, [])
    assert checker.rows == sum(map(len, initial_state(1).values())) + 2 * 4


def test_a_landed_value_that_is_not_the_writer_s_is_found(zone: LandingZone) -> None:
    zone.transfer(1, vault=-6)
    assert zone.checker.first == [
        "manifest 2: vaults ('region 1', 1) has landed as {'region': 'region 1', 'number': 1, 'balance': -6},"
        " is {'region': 'region 1', 'number': 1, 'balance': -7}"
    ]


def test_an_event_that_never_landed_is_found_at_the_next_manifest(zone: LandingZone) -> None:
    effects = Effects()
    effects.put("notes", (900,), (900, 1, 1, "a note"))
    zone.journal.record(1, 1, effects)
    zone.commit(202, counters=[(201, "update", (1, 1))])
    assert zone.checker.differences == 1
    assert "notes (900,) has landed as None" in zone.checker.first[0]


def test_a_manifest_that_lacks_the_last_transaction_is_found(zone: LandingZone) -> None:
    effects = Effects()
    effects.put("notes", (900,), (900, 1, 1, "a note"))
    zone.journal.record(1, 1, effects)
    zone.landed.commit(202, at=datetime.now(timezone.utc))
    zone.line.follow()
    assert zone.checker.first == ["manifest 2: is older than it says: {1: (0, 1)}"]


def test_a_row_that_came_back_is_found(zone: LandingZone) -> None:
    zone.transfer(1)
    effects = Effects()
    effects.put("notes", (900,), None)
    zone.journal.record(1, 2, effects)
    zone.commit(303, counters=[(302, "update", (1, 2))], notes=[(302, "delete", (900,))])
    assert zone.checker.differences == 0
    zone.commit(401, notes=[(400, "insert", (900, 1, 1, "a note"))])
    assert "is None" in zone.checker.first[0]


def test_manifests_that_are_replaced_or_lie_beyond_a_hole_are_found(zone: LandingZone) -> None:
    zone.transfer(1)
    zone.line.start()
    zone.landed.number = 1
    zone.landed.writer = "another agent's"
    zone.landed.commit(300)
    zone.landed.number = 7
    zone.landed.commit(300)
    zone.line.stop()
    assert zone.line.problems == [
        "manifest 2 was replaced",
        "there is a manifest 8 beyond a hole after 2",
    ]


def test_a_step_back_a_gap_and_a_file_committed_twice_are_found(zone: LandingZone) -> None:
    zone.landed.commit(50)
    zone.landed.commit(60, epoch=2)
    zone.landed.commit(60, zone.landed.manifests[0].files[:1], epoch=2)
    zone.line.follow()
    assert zone.line.problems[0] == "manifest 2 steps back"
    assert zone.line.problems[1] == "manifest 3 begins epoch 2: a gap"
    assert "manifest 4 commits again: " in zone.line.problems[2]
