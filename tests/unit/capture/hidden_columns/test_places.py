"""The places of columns in the log's descriptions tell which of them had a hidden name."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from connector.capture.lander import LandedSegment
from connector.landing.column_names import Places
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
            places = Places(before, stayed, len(had))
            assert all(places.may_have(place, id_) for place, id_ in enumerate(had))
            if len(had) == len(stayed):
                exact = {(p, i) for p in range(len(had)) for i in ids if places.may_have(p, i)}
                assert exact == {*enumerate(had)}
