"""When the lake's checksums of an earlier cut are compared with what the database computed later."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from connector.landing.manifest import CompactedBlock, DumpState
from merge.lake.control_table import Frontier, Frontiers
from merge.proof.lake_sums import LakeSums, TableSums
from merge.proof.opened_lake import ComparedVersion
from tests.support.landing.landed import AT, Event, Landed, schema_of

ORDERS = schema_of("public.orders", id="int", a="int")
ALTERED = schema_of("public.orders", id="int", b="int")
UPDATED = Event("update", 15, 0, {"id": 1, "a": 1})
TRUNCATED = Event("truncate", 15, 0, {})


class Zone(Landed):
    """A landing zone as `LakeSums` uses it."""

    def load(self, first: int, last: int) -> None:
        pass


def usable(meanwhile: Callable[[Zone], Any], *, bits: int = 8, id_: str = "its id") -> TableSums | None:
    """Sum at the first manifest, and read up to the third; `meanwhile`: what the second has, or is."""
    zone, nothing = Zone(), SimpleNamespace()
    zone.table(ORDERS)
    zone.commit(10)
    if files := meanwhile(zone):
        zone.commit(20, files)
    elif zone.number == 1:
        zone.commit(20)
    dump: DumpState = zone.verification("public.orders", 5, 20, started_in=2, kind="checksums")
    dump.bits = 8
    zone.commit(30)
    state: Any = SimpleNamespace(id="its id")
    known = TableSums(ComparedVersion(state, 1, 1), ORDERS.id, {}, bits, {})
    frontiers = Frontiers(by_table={ORDERS.table: Frontier(1, 1, id_)})
    lake: Any = SimpleNamespace(landing=zone, targets={ORDERS.table: ...}, frontiers=frontiers)
    unused: Any = nothing
    return LakeSums(unused, unused, unused, {ORDERS.table: known}).usable(lake, dump)


def test_what_has_landed_since_is_left_to_be_compared_as_rows() -> None:
    found = usable(lambda zone: [zone.log(ORDERS, [UPDATED])])
    assert found is not None
    assert [(file.kind, file.rows) for file in found.fresh] == [("log", 1)]
    found = usable(lambda _: [])
    assert found is not None
    assert found.fresh == ()


def truncated(zone: Zone) -> Any:
    return [zone.log(ORDERS, [TRUNCATED])]


def altered(zone: Zone) -> Any:
    zone.table(ALTERED)
    return [zone.log(ALTERED, [Event("update", 15, 0, {"id": 1, "b": 1})])]


def altered_and_back(zone: Zone) -> Any:
    return [zone.log(ALTERED, [Event("update", 15, 0, {"id": 1, "b": 1})])]


def keyed_otherwise(zone: Zone) -> None:
    zone.tables[ORDERS.table] = zone.tables[ORDERS.table].changed(key=["a"])


def dumped(zone: Zone) -> None:
    zone.full_dump("public.orders", 4, 15, started_in=2)


def being_repaired(zone: Zone) -> None:
    zone.repair("public.orders", 6, 15)


def quarantined_for_a_while(zone: Zone) -> None:
    known = zone.tables[ORDERS.table]
    zone.tables[ORDERS.table] = known.changed(state="quarantined", reason="a test")
    zone.commit(15)
    zone.tables[ORDERS.table] = known


def left_out_for_a_while(zone: Zone) -> None:
    known = zone.tables.pop(ORDERS.table)
    zone.commit(15)
    zone.tables[ORDERS.table] = known


def compacted_since(zone: Zone) -> None:
    """What landed when is no longer told apart within the block, not even by a table without joined files."""
    zone.commit(20, [zone.log(ORDERS, [UPDATED])])
    zone.manifests[1].compacted = CompactedBlock(first=1, last=2, at=AT)


def in_another_epoch(zone: Zone) -> None:
    zone.manifests[0] = zone.get(1).model_copy(update={"epoch": 0})


@pytest.mark.parametrize(
    "meanwhile",
    [
        truncated,
        altered,
        altered_and_back,
        keyed_otherwise,
        dumped,
        being_repaired,
        quarantined_for_a_while,
        left_out_for_a_while,
        compacted_since,
        in_another_epoch,
    ],
)
def test_a_table_that_was_not_whole_all_the_time_is_summed_again(meanwhile: Callable[[Zone], Any]) -> None:
    assert usable(meanwhile) is None


def test_so_is_one_with_other_buckets_or_another_delta_table() -> None:
    assert usable(lambda _: [], bits=9) is None
    assert usable(lambda _: [], id_="another") is None
