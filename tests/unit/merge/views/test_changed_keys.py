"""Which keys of a table may have changed between two cuts, and when that is not known."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from connector.errors import GapError
from connector.landing.manifest import Manifest, Notice
from merge.lake.commits import Mark
from merge.lake.control_table import Frontier
from merge.lake.target import Target, TargetState
from merge.views import changed_keys as module
from merge.views.changed_keys import changed_keys
from merge.views.inputs import Input
from merge.views.lineage import NotIncrementalError
from tests.support.landing.landed import AT, Chunk, Event, Landed, schema_of

ORDERS = schema_of("public.orders", id="int", a="int")
TABLE = ORDERS.table


class Zone(Landed):
    """A landing zone in memory, of which the files whose keys are asked for are remembered."""

    def __init__(self) -> None:
        super().__init__(put=lambda *_: None)
        self.events = self._events  # type: ignore[assignment]
        self.table(ORDERS)
        self.read: list[str] = []
        self.first = 1

    def get(self, number: int) -> Manifest:
        if number < self.first:
            raise GapError(f"manifest {number} is missing")
        return super().get(number)

    def load(self, first: int, last: int) -> None:
        pass

    def schemas(self, wanted: Any) -> Mapping[str, Any]:
        return {id_: ORDERS for _, id_ in wanted}

    def _events(self, files: Any, schemas: Any, columns: Mapping[str, str]) -> Any:
        assert columns == {"id": "int"}
        self.read = [file.path for file in files]
        frame = SimpleNamespace(distinct=lambda: "keys")
        return SimpleNamespace(select=lambda *_: frame)

    def land(self, *keys: int, op: str = "insert") -> str:
        at = 10 * self.number
        file = self.log(ORDERS, [Event(op, at + 1, key, {"id": key}) for key in keys])
        self.commit(at + 10, [file])
        return file.path


def commit(version: int, operation: str = "MERGE", mark: Mark | None = None) -> dict[str, Any]:
    metadata = None if mark is None else mark.to_json()
    return {"version": version, "operation": operation, "userMetadata": metadata}


def found(
    monkeypatch: pytest.MonkeyPatch,
    zone: Zone,
    *commits: dict[str, Any],
    since: Frontier = Frontier(1, 1, "o"),
    bytes_: int = 1 << 40,
) -> Any:
    """Return what has changed until the last manifest and commit."""
    monkeypatch.setattr("pyspark.sql.functions.col", lambda name: name)
    rows = [
        commit(0, "CREATE TABLE", Mark("shop", 1, layout=True)),
        commit(1, mark=Mark("shop", 1)),
        *commits,
    ]
    monkeypatch.setattr(module, "read_history", lambda *_: sorted(rows, key=lambda row: -row["version"]))
    now = Input(Target(TABLE, "orders"), Frontier(zone.number, rows[-1]["version"], "o"))
    state = TargetState("o", {"id": "int", "a": "int"}, {"deltatide.key": '["id"]'}, 1, bytes_)
    return changed_keys(None, zone, "shop", since, now, state)  # type: ignore[arg-type]


@pytest.fixture
def zone() -> Zone:
    made = Zone()
    made.land(1, 2)
    return made


def test_they_are_those_of_all_events_that_landed_in_between(
    monkeypatch: pytest.MonkeyPatch, zone: Zone
) -> None:
    new = [zone.land(1), zone.land(3, op="delete")]
    merges = [commit(2, mark=Mark("shop", 2)), commit(3, "OPTIMIZE"), commit(4, mark=Mark("shop", 3))]
    assert found(monkeypatch, zone, *merges) == "keys"
    assert zone.read == new


def test_there_are_none_if_the_rows_are_the_same(monkeypatch: pytest.MonkeyPatch, zone: Zone) -> None:
    zone.commit(30)
    assert found(monkeypatch, zone) is None
    assert found(monkeypatch, zone, commit(2, "OPTIMIZE")) is None


@pytest.mark.parametrize(
    "commits",
    [
        [commit(2, mark=Mark("shop", 2, rebuilt=1))],
        [commit(2, "UPDATE"), commit(3, mark=Mark("shop", 2))],
        [commit(2, "RESTORE"), commit(3, mark=Mark("shop", 2))],
        [commit(2, mark=Mark("other", 2))],
        [commit(2, mark=Mark("shop", 1))],  # an overtaken merge
        [commit(2, mark=Mark("shop", 3))],
        [commit(3, mark=Mark("shop", 2))],  # its history has a hole
    ],
    ids=["rebuilt", "update", "restore", "another source", "older", "newer", "hole"],
)
def test_they_are_unknown_if_anything_but_merges_wrote(
    monkeypatch: pytest.MonkeyPatch, zone: Zone, commits: list[dict[str, Any]]
) -> None:
    zone.land(1)
    with pytest.raises(NotIncrementalError, match="rebuilt, or somebody else"):
        found(monkeypatch, zone, *commits)


@pytest.mark.parametrize("operation", ["ADD COLUMNS", "CHANGE COLUMN"])
def test_they_are_unknown_if_columns_have_changed_though_an_earlier_manifest_says_so(
    monkeypatch: pytest.MonkeyPatch, zone: Zone, operation: str
) -> None:
    """The cut of a merge that only alters a table names the version before: nothing wrote rows."""
    altered = commit(2, operation, Mark("shop", 1, layout=True))
    for later in ([], [commit(3, mark=Mark("shop", 2))]):
        zone.land(1)
        with pytest.raises(NotIncrementalError, match="columns of"):
            found(monkeypatch, zone, altered, *later)


def test_they_are_unknown_if_the_table_is_another_or_older_one(
    monkeypatch: pytest.MonkeyPatch, zone: Zone
) -> None:
    zone.land(1)
    merge = commit(2, mark=Mark("shop", 2))
    for since in (Frontier(1, 1, "other"), Frontier(1, 3, "o"), Frontier(1)):
        with pytest.raises(NotIncrementalError, match="dropped, replaced or restored"):
            found(monkeypatch, zone, merge, since=since)
    # Files were restored from an older copy: the version is that of a later manifest now.
    with pytest.raises(NotIncrementalError, match="rebuilt, or somebody else"):
        found(monkeypatch, zone, commit(2, mark=Mark("shop", 2, rebuilt=1)), since=Frontier(1, 2, "o"))


def test_they_are_unknown_if_rows_went_without_an_event_or_too_many_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def truncated(zone: Zone) -> None:
        file = zone.log(ORDERS, [Event("truncate", 15, 0, {})])
        zone.commit(20, [file])

    def dumped(zone: Zone) -> None:
        file = zone.chunk(ORDERS, Chunk(low=15, high=16, rows=[{"id": 1}]))
        zone.full_dump("public.orders", 1, 15, started_in=2)
        zone.commit(20, [file])

    def altered(zone: Zone) -> None:
        zone.commit(20, notices=[Notice(table=TABLE, kind="schema", text="a column", at=AT)])

    def removed(zone: Zone) -> None:
        zone.land(1)
        zone.first = 3

    causes = {
        truncated: "was truncated",
        dumped: "was dumped in full",
        altered: "columns of public.orders have changed",
        removed: "manifests after 1 are gone",
    }
    for cause, said in causes.items():
        zone = Zone()
        zone.land(1, 2)
        cause(zone)
        with pytest.raises(NotIncrementalError, match=said):
            found(monkeypatch, zone, commit(2, mark=Mark("shop", 2)))
    zone = Zone()
    zone.land(1)
    zone.land(1)
    with pytest.raises(NotIncrementalError, match="too much"):
        found(monkeypatch, zone, commit(2, mark=Mark("shop", 2)), bytes_=-1)
