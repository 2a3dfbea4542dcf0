"""Up to which manifest the lake is known to have a table whose rows were read, without another merge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from connector.errors import GapError
from connector.landing.manifest import DumpState, LandedFile, Manifest, Notice
from connector.schema import TableName
from merge.lake.control_table import Frontier, Frontiers
from merge.proof import verification
from merge.proof.opened_lake import OpenedLake
from tests.support.landing.landed import AT, Chunk, Event, Landed, schema_of

ORDERS = schema_of("public.orders", id="int", a="int")
OTHER = schema_of("public.other", id="int")
MERGED = Frontier(1, version=7, id="its id", missing=0)
LOGGED = Event("insert", 15, 0, {"id": 1, "a": 1})


class Zone(Landed):
    """A landing zone as `OpenedLake` uses it."""

    projected: Any = None
    removed = 0

    def load(self, first: int, last: int) -> None:
        pass

    def projection(self, _: TableName) -> Any:
        return self.projected

    def get(self, number: int) -> Manifest:
        if number <= self.removed:
            raise GapError(f"manifest {number} is missing")
        return super().get(number)


def zone_of(*landed: Callable[[Zone], LandedFile]) -> tuple[Zone, DumpState]:
    """Return a zone of four manifests, the last of which ends a verification; `landed`: the third's files."""
    zone = Zone()
    for schema in (ORDERS, OTHER):
        zone.table(schema)
    zone.commit(10)
    zone.commit(12, [zone.log(OTHER, [Event("insert", 11, 0, {"id": 1})])])
    zone.commit(20, [land(zone) for land in landed])
    dump = zone.verification("public.orders", 5, 20, started_in=3, rows=1)
    zone.commit(30, [zone.verified(ORDERS, Chunk(20, 25, [{"id": 1, "a": 1}], dump=5))])
    zone.commit(40, [zone.log(ORDERS, [Event("delete", 35, 0, {"id": 1})])])
    return zone, dump


def lake_of(zone: Zone, frontier: Frontier) -> OpenedLake:
    known = Frontiers(newest=1, by_table={ORDERS.table: frontier})
    nothing: Any = None
    landing: Any = zone
    return OpenedLake(nothing, nothing, landing, known, zone.manifests[-1], {})


def test_a_table_of_which_nothing_has_landed_is_as_it_was_merged() -> None:
    zone, dump = zone_of()
    assert lake_of(zone, MERGED).frontier(dump) == Frontier(4, version=7, id="its id", missing=0)
    assert lake_of(zone, Frontier(5, version=8)).frontier(dump) == Frontier(5, version=8)


@pytest.mark.parametrize(
    "landed",
    [lambda zone: zone.log(ORDERS, [LOGGED]), lambda zone: zone.chunk(ORDERS, Chunk(12, 18, [{"id": 1}]))],
)
def test_one_of_which_something_has_landed_has_to_be_merged(landed: Callable[[Zone], LandedFile]) -> None:
    zone, dump = zone_of(landed)
    assert lake_of(zone, MERGED).frontier(dump) == MERGED


def test_so_has_one_with_a_new_layout_or_whose_ghosts_a_full_dump_without_rows_has_left() -> None:
    zone, dump = zone_of()
    notice = Notice(table=ORDERS.table, kind="schema", text="a column was added", at=AT)
    zone.manifests[2] = zone.get(3).model_copy(update={"notices": [notice]})
    assert lake_of(zone, MERGED).frontier(dump) == MERGED
    zone, dump = zone_of()
    zone.number, rest = 2, zone.manifests[3:]
    del zone.manifests[2:]
    zone.full_dump("public.orders", 4, 15, started_in=2)
    zone.commit(20)
    zone.manifests += rest
    assert lake_of(zone, MERGED).frontier(dump) == MERGED


@pytest.mark.parametrize(
    "frontier",
    [
        Frontier(1, missing=0),
        Frontier(1, 7, "its id", missing=2),
        Frontier(1, 7, "its id", missing=None),
        Frontier(1, 7, "its id", missing=0, error="a type can't be widened"),
    ],
)
def test_so_has_one_that_was_never_merged_or_waits_or_failed(frontier: Frontier) -> None:
    zone, dump = zone_of()
    found = lake_of(zone, frontier).frontier(dump)
    assert (found.manifest, found.error) == (1, frontier.error)


def test_so_has_one_with_masks_or_of_which_manifests_are_removed_or_that_is_captured_no_more() -> None:
    zone, dump = zone_of()
    zone.projected = object()
    assert lake_of(zone, MERGED).frontier(dump) == MERGED
    zone, dump = zone_of()
    zone.removed = 2
    assert lake_of(zone, MERGED).frontier(dump) == MERGED
    zone, dump = zone_of()
    del zone.get(4).tables[ORDERS.table]
    assert lake_of(zone, MERGED).frontier(dump) == MERGED


def test_so_has_one_that_waited_for_a_repair_when_it_was_read() -> None:
    """The command waits for that to end, too: without the repair, it would show what was repaired."""
    zone, dump = zone_of()
    zone.repair("public.orders", 6, 15)
    zone.manifests[3] = Manifest(**{**dict(zone.get(4)), "dumps": zone.dumps})
    assert lake_of(zone, MERGED).frontier(dump) == MERGED


@pytest.mark.parametrize("landed", [True, False])
def test_a_verification_merges_first_only_if_a_table_is_behind(
    monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    zone, _ = zone_of(*([lambda zone: zone.log(ORDERS, [LOGGED])] if landed else []))
    done: list[str] = []

    @contextmanager
    def opened(*_: Any) -> Iterator[OpenedLake]:
        done.append("opened")
        yield lake_of(zone, MERGED)

    monkeypatch.setattr(verification, "opened", opened)
    monkeypatch.setattr(verification, "compare", lambda *_, **__: done.append("compared"))
    nothing: Any = None
    verification.verify(nothing, nothing, "dump-5", merge=lambda: done.append("merged"))
    assert done == (["opened", "merged", "opened", "compared"] if landed else ["opened", "compared"])
    verification.verify(nothing, nothing, "dump-5")
    assert done[-2:] == ["opened", "compared"]
