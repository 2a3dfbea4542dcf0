"""What the tasks of a live view's query read, without Spark: which events, and how old a row may be."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connector.config import LandingConfig
from connector.errors import DeltatideError
from connector.landing.column_names import ColumnNames
from connector.landing.consumers import read_consumers, rebuilt_path
from connector.landing.format import CDC, RETENTION, manifest_path
from connector.landing.manifest_object import Retained
from connector.maintenance.compaction import compact
from connector.position import Position
from connector.reading import change_rows
from connector.reading.landed_manifests import AsOf
from connector.schema import TableName, TableSchema
from merge.plan import Manifests, plan_table
from merge.reading.pending import AGAIN, PendingTable, Source
from merge.reading.pending_tables import PendingTables
from merge.reading.view_status import Status
from merge.sql_formatting import to_micros
from tests.support.landing.histories import Key
from tests.support.landing.landed import AT, Chunk, Event, Landed, schema_of
from tests.support.landing.zone import ORDERS, T, delete, insert, row
from tests.unit.merge import test_oracle_full_dumps as full_dumps
from tests.unit.merge.test_oracle import SCHEMA, Target, apply_rules, read

CUT_TYPE = pa.struct([("id", pa.string()), ("manifest", pa.int64()), ("missing", pa.int64())])


class Zone:
    """A landing zone with one table, and what a query would read of it."""

    def __init__(self, folder: Path) -> None:
        self.landed = Landed.local(folder)
        self.landed.table(ORDERS)
        self.source = Source(LandingConfig(url=str(folder)), "shop")
        self.pending = PendingTable(self.source, TableName.parse(T), ORDERS, only_emitted=False)
        self.as_of: AsOf | None = None

    def log(self, position: int, *events: Event) -> None:
        self.land(ORDERS, position, *events)

    def land(self, schema: TableSchema, position: int, *events: Event) -> None:
        self.landed.commit(position, [self.landed.log(schema, events)])

    def name_columns(self, names: ColumnNames) -> None:
        table = TableName.parse(T)
        self.landed.tables[table] = self.landed.tables[table].changed(column_names=names)

    def state(
        self, after: int | None = None, last: int | None = None, merged: int | None = None
    ) -> list[str]:
        as_of = self.as_of or AsOf.now(self.source.open())
        newest = {"manifest": self.landed.number, "kept": as_of.kept, "micros": to_micros(as_of.at)}
        given = {"newest": newest, "cuts": recorded(after, last, merged)}
        (found,) = self.pending.state([pa.RecordBatch.from_pylist([given])])
        state: list[str] = found.column("state").to_pylist()
        return state

    def positions(self, state: list[str]) -> list[tuple[int, str]]:
        parts = [pa.RecordBatch.from_pylist([{"state": row}]) for row in state]
        found = [cdc for batch in self.pending.events(parts) for cdc in batch.column(CDC).to_pylist()]
        return sorted((cdc["lsn"], cdc["op"]) for cdc in found)


def recorded(after: int | None, last: int | None, merged: int | None) -> list[dict[str, Any]]:
    """Return cuts as `RECORDED`: the newest, of manifest `merged`, names `last`, the one before `after`."""

    def cut(number: int, manifest: int, done: int) -> dict[str, Any]:
        at = {"micros": number, "manifest": manifest, "epoch": 1}
        return {**at, "position": 10 * manifest, "tables": [{"id": "x", "manifest": done}]}

    if after is None:
        return []
    newest = last or after
    return [cut(1, after, after), cut(2, merged or newest, newest)]


@pytest.fixture
def zone(tmp_path: Path) -> Zone:
    return Zone(tmp_path)


def oldest_of(state: list[str]) -> Position:
    (oldest,) = {Position(**json.loads(row)["oldest"]) for row in state}
    return oldest


def test_what_landed_after_the_cut_before_the_newest_is_read_up_to_the_newest_manifest(zone: Zone) -> None:
    for number in (1, 2, 3):
        zone.log(10 * number, insert(10 * number - 5, number))
    assert zone.positions(zone.state(1, 2, merged=2)) == [(15, "insert"), (25, "insert")]
    assert zone.positions(zone.state(3, 3, merged=3)) == []
    assert zone.positions(zone.state()) == [(5, "insert"), (15, "insert"), (25, "insert")]


def test_rows_of_small_files_come_together(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3):
        zone.log(10 * number, insert(10 * number - 5, number))
    parts = [pa.RecordBatch.from_pylist([{"state": row}]) for row in zone.state()]
    assert [batch.num_rows for batch in zone.pending.events(parts)] == [3]
    monkeypatch.setattr(change_rows, "GATHERED_BYTES", 1)
    assert [batch.num_rows for batch in zone.pending.events(parts)] == [1, 1, 1]


def test_rows_of_a_large_file_are_not_copied_to_come_with_others(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, rows in enumerate((1, 1, 90, 1), 1):
        zone.log(100 * number, *[insert(100 * number - n, n) for n in range(rows, 0, -1)])
    parts = [pa.RecordBatch.from_pylist([{"state": row}]) for row in zone.state()]
    (together,) = zone.pending.events(parts)
    monkeypatch.setattr(change_rows, "GATHERED_BYTES", together.nbytes // 2)
    assert [batch.num_rows for batch in zone.pending.events(parts)] == [2, 90, 1]


def test_what_retention_removed_is_not_asked_for_if_the_newest_cut_has_it(zone: Zone) -> None:
    for number in (1, 2, 3):
        zone.log(10 * number, insert(10 * number - 5, number))
    store = zone.source.open()
    store.put(RETENTION, Retained(first=2, at=AT).to_json())
    store.delete(manifest_path(1))
    assert zone.positions(zone.state(1, 2, merged=2)) == [(25, "insert")]
    with pytest.raises(DeltatideError, match=r"manifest 1 is missing.*hint: merge the lake"):
        zone.state()


def test_a_table_that_can_not_be_planned_fails_only_who_reads_it(zone: Zone) -> None:
    for number in (1, 2, 3):
        zone.log(10 * number, insert(10 * number - 5, number))
    other = replace(zone.pending, table=TableName.parse("public.others"))
    cuts: list[dict[str, Any] | None] = [*recorded(1, 2, 2), None]
    for cut in filter(None, cuts):
        cut["tables"].insert(0, {"id": None, "manifest": None})
    together = PendingTables(zone.source, (other, zone.pending)).planned
    (found,) = together([pa.RecordBatch.from_pylist([{"cut": cut}]) for cut in cuts])
    (planned,) = found.to_pylist()
    refused, read = (table["state"] for table in planned["tables"])
    assert (planned["manifest"], zone.positions([read])) == (3, [(15, "insert"), (25, "insert")])
    with pytest.raises(DeltatideError, match=r"public.others: it is no longer captured.*; hint: "):
        zone.positions([refused])


def test_a_task_that_runs_again_plans_what_the_first_did_or_fails(zone: Zone) -> None:
    """Spark keeps a part of what the first returned: of another plan's, rows could be in no part."""
    for number in range(1, 102):
        zone.log(10 * number, insert(10 * number - 5, number))
    store = zone.source.open()
    begun = zone.as_of = AsOf.now(store)
    first = zone.state(1, 101)
    compact(store, 1, 101, clock=lambda: begun.at + timedelta(minutes=1))
    assert zone.state(1, 101) == first
    zone.as_of = replace(begun, at=begun.at + timedelta(hours=2))
    assert zone.state(1, 101) != first
    assert zone.positions(zone.state(1, 101)) == zone.positions(first)
    store.put(RETENTION, Retained(first=100, at=AT).to_json())
    for number in range(1, 100):
        store.delete(manifest_path(number))
    with pytest.raises(DeltatideError, match=r"manifest \d+ in .* was removed since this began"):
        zone.state(1, 101)
    zone.as_of = AsOf.now(store)
    assert zone.positions(zone.state(1, 101)) == []


def test_a_damaged_manifest_fails_only_what_needs_it(zone: Zone, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        zone.log(10 * number, insert(10 * number - 5, number))
    zone.landed.commit(40, [zone.landed.chunk(ORDERS, Chunk(22, 38, [row(1, 1)]))])
    (tmp_path / "shop" / manifest_path(1)).write_bytes(b"{")
    assert zone.positions(zone.state(3, 3, merged=3)) == [(22, "dump"), (25, "insert")]
    with pytest.raises(DeltatideError, match=r"000000000000001.json.*still to be read; hint: merge the lake"):
        zone.state()


def test_a_truncate_is_the_oldest_position_and_nothing_from_before_it_is_read(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    zone.log(20, insert(15, 2), Event("truncate", 16, 0, {}), insert(17, 3))
    state = zone.state(1)
    assert (oldest_of(state), zone.positions(state)) == (Position(1, 16, 0), [(17, "insert")])


def test_the_end_of_a_full_dump_is_the_oldest_position_and_log_since_its_chunks_is_read_again(
    zone: Zone,
) -> None:
    zone.log(10, insert(5, 1), delete(8, 2))
    zone.landed.full_dump(T, 1, 7, started_in=2)
    zone.landed.commit(20, [zone.landed.chunk(ORDERS, Chunk(7, 9, [row(1, 1), row(2, 2)]))])
    state = zone.state(1)
    assert oldest_of(state) == Position.of_chunk(1, 7, 1)
    assert zone.positions(state) == [(7, "dump"), (7, "dump"), (8, "delete")]


def test_another_landing_zone_is_refused_though_it_no_longer_has_the_manifest_that_was_merged(
    zone: Zone,
) -> None:
    """Rows of the former one would win over what a dump of this one brings."""
    zone.log(5, insert(4, 1))
    zone.landed.full_dump(T, 1, 6, started_in=2)
    zone.landed.commit(8, [zone.landed.chunk(ORDERS, Chunk(6, 7, [row(1, 1)]))])
    store = zone.source.open()
    store.put(RETENTION, Retained(first=2, at=AT).to_json())
    store.delete(manifest_path(1))
    with pytest.raises(DeltatideError, match=r"manifest 1 of .* is not the one that the lake has merged"):
        zone.state(1, 1, merged=1)


def test_a_delta_table_that_may_have_other_masks_since_is_refused(zone: Zone) -> None:
    zone.log(10, insert(5, 1))
    zone.log(20, insert(15, 2))
    store = zone.source.open()
    zone.pending = replace(zone.pending, table_id="x", generation=1)
    store.put(rebuilt_path("x", 1) + "/part-0", b"{}")
    store.put(rebuilt_path("y", 2) + "/part-0", b"{}")
    assert read_consumers(store) == []
    assert zone.positions(zone.state(1, 1, merged=1)) == [(15, "insert")]
    store.put(rebuilt_path("x", 10) + "/part-0", b"{}")
    with pytest.raises(DeltatideError, match=r"rebuilt with other columns, masks.*hint: call merge.register"):
        zone.state(1, 1, merged=1)
    zone.pending = replace(zone.pending, generation=10)
    assert zone.positions(zone.state(1, 1, merged=1)) == [(15, "insert")]
    zone.pending = replace(zone.pending, table_id="z")
    with pytest.raises(DeltatideError, match=r"dropped or replaced.*hint: call merge.register"):
        zone.state(1, 1, merged=1)


def test_a_view_that_another_release_registered_says_to_register_again(zone: Zone) -> None:
    """It is unpickled without what it did not have, and its plan hands over what it handed over then."""
    zone.log(10, insert(5, 1))
    state = zone.state()
    for form in (None, 10**6):
        vars(zone.source).pop("form", None)
        if form is not None:
            vars(zone.source)["form"] = form
        merged = pa.array([None], pa.map_(pa.string(), CUT_TYPE))
        status = Status(zone.source, (TableName.parse(T),)).rows
        given = pa.RecordBatch.from_pydict({"manifest": [1], "merged": merged})
        one = pa.RecordBatch.from_pylist([{"newest": None, "cuts": None, "cut": None}])
        parts = [pa.RecordBatch.from_pylist([{"state": row}]) for row in state]
        for function, batches in (
            (zone.source.newest, [one]),
            (zone.pending.state, [one]),
            (PendingTables(zone.source, (zone.pending,)).planned, [one]),
            (zone.pending.events, parts),
            (status, [given]),
        ):
            with pytest.raises(DeltatideError, match=r"another release .*; hint: call merge.register again"):
                list(function(batches))


def test_another_landing_zone_and_another_layout_are_refused(zone: Zone) -> None:
    zone.log(11, insert(5, 1))
    zone.log(20, insert(15, 2))
    with pytest.raises(DeltatideError, match=r"manifest 1 of .* is not the one that the lake has merged"):
        zone.state(1, 1, merged=1)
    wider = schema_of(T, id="bigint", a="int", b="string")
    zone.landed.table(wider)
    zone.landed.commit(40, [zone.landed.log(wider, [insert(35, 3)])])
    with pytest.raises(DeltatideError, match=r"'id' landed as bigint, and is 'id', int, .*register again"):
        zone.state(2, 2, merged=2)


SECRET = schema_of(T, id="int", ssn="string", note="string")


def person(lsn: int, key: int, **values: str) -> Event:
    return Event("insert", lsn, 2 * key, {"id": key, **values})


def masked_zone(folder: Path, names: ColumnNames | None = None) -> Zone:
    """A zone whose view masks or filters by name, with one row merged."""
    zone = Zone(folder)
    zone.landed.table(SECRET)
    zone.land(SECRET, 10, person(5, 1, ssn="1", note="a"))
    zone.pending = PendingTable(zone.source, TableName.parse(T), SECRET, only_emitted=True, names=names)
    return zone


def test_swapped_columns_are_refused_where_columns_are_masked_by_name(tmp_path: Path) -> None:
    zone = masked_zone(tmp_path)
    zone.land(SECRET, 20, person(15, 2, ssn="2", note="b"))
    assert zone.positions(zone.state(1)) == [(15, "insert")]
    swapped = schema_of(T, id="int", note="string", ssn="string")
    zone.landed.table(swapped)
    zone.land(swapped, 30, person(25, 3, ssn="b", note="3"))
    with pytest.raises(DeltatideError, match=r"\(column 'note' .* instead of column 'ssn' .*register again"):
        zone.state(1)
    zone.pending = replace(zone.pending, only_emitted=False)
    assert zone.positions(zone.state(1)) == [(15, "insert"), (25, "insert")]


def test_a_column_that_may_have_been_renamed_is_refused_where_columns_are_masked_by_name(
    tmp_path: Path,
) -> None:
    """The layout may be the same: `note` was dropped, `ssn` renamed to it, and another `ssn` added."""
    before = ColumnNames(ids={"id": 1}, renamed={"7": ["less", "more"]})
    zone = masked_zone(tmp_path, before)
    zone.name_columns(before)
    zone.land(SECRET, 20, person(15, 2, ssn="2", note="b"))
    assert zone.positions(zone.state(1)) == [(15, "insert")]
    after = before.told([("ssn", "note")])
    zone.name_columns(after)
    zone.land(SECRET, 30, person(25, 3, ssn="c", note="3"))
    with pytest.raises(DeltatideError, match=r"others' names, or may have had them.*register again"):
        zone.state(1)
    zone.pending = replace(zone.pending, names=after.model_copy(update={"ids": {"id": 2}}))
    assert zone.positions(zone.state(1)) == [(15, "insert"), (25, "insert")]


def test_what_the_newest_cut_has_need_not_fit(tmp_path: Path) -> None:
    """With the newest layout registered, after a merge: events of the old one lie after the cut before."""
    zone = masked_zone(tmp_path)
    zone.land(SECRET, 20, person(15, 2, ssn="2", note="b"))
    newer = schema_of(T, id="int", ssn="string", note="string", more="string")
    zone.landed.table(newer)
    zone.land(newer, 30, person(25, 3, ssn="3", note="c", more="d"))
    zone.pending = replace(zone.pending, emitted=newer)
    assert zone.positions(zone.state(1, 3, merged=3)) == []
    zone.land(newer, 40, person(35, 4, ssn="4", note="d", more="e"))
    assert zone.positions(zone.state(1, 3, merged=3)) == [(35, "insert")]
    with pytest.raises(DeltatideError, match=r"no column instead of column 'more'.*hint: merge, and call"):
        zone.state(1, 1, merged=1)


def test_the_status_says_why_rows_are_not_exact(zone: Zone) -> None:
    status = Status(zone.source, (TableName.parse(T), TableName.parse("public.others")))
    zone.landed.table(ORDERS, dumped=False)
    zone.log(10, insert(5, 1))
    given = pa.RecordBatch.from_pylist([{"manifest": 1, "merged": None}])
    (found,) = status.rows([given])
    age = (datetime.now(timezone.utc) - AT).total_seconds()
    orders, others = found.to_pylist()
    assert (orders["manifest"], orders["position"], orders["exact"]) == (1, "0/A", False)
    assert (orders["reason"], others["reason"]) == ("its full dump has not ended", "it is not captured")
    (found,) = Status(zone.source, status.tables, {TableName.parse(T): "no view"}).rows([given])
    assert found.column("reason").to_pylist() == ["no view", "it is not captured"]
    assert 0 <= age - orders["age_seconds"] < 60 or orders["age_seconds"] == 0.0


def test_the_status_says_that_rows_may_wait_for_a_column(zone: Zone) -> None:
    """An UPDATE that changes the key does not carry an unchanged long value, and lands as an insert."""
    zone.log(10, insert(5, 1))
    zone.log(20, delete(15, 1), Event("insert", 16, 4, {"id": 2, "a": 1}, unchanged=("b",)))
    zone.log(30, insert(25, 3))

    def reason(manifest: int, merged: int, missing: int | None, id_: str | None = "x") -> str | None:
        cut = {T: {"id": id_, "manifest": merged, "missing": missing}} if merged else None
        given = {"manifest": manifest, "merged": None if cut is None else list(cut.items())}
        columns = pa.schema([("manifest", pa.int64()), ("merged", pa.map_(pa.string(), CUT_TYPE))])
        status = Status(zone.source, (TableName.parse(T),))
        (found,) = status.rows([pa.RecordBatch.from_pylist([given], schema=columns)])
        row = found.to_pylist()[0]
        assert row["exact"] is (row["reason"] is None)
        return row["reason"]

    waits = "rows may wait for a column (_cdc.missing)"
    assert (reason(1, 0, None), reason(1, 1, 0), reason(2, 1, 0)) == (None, None, waits)
    assert (reason(3, 1, 0), reason(3, 2, 1), reason(3, 2, None)) == (waits, waits, waits)
    assert (reason(3, 2, 0), reason(3, 2, None, None), reason(3, 0, None)) == (None, waits, waits)


def test_the_status_says_that_a_view_refuses(zone: Zone) -> None:
    """It called a view exact whose every query failed, until it was registered again."""
    zone.log(10, insert(5, 1))
    zone.log(20, insert(15, 2))
    store = zone.source.open()
    known = replace(zone.pending, table_id="x", generation=1, layout_id=ORDERS.id)

    def reason(id_: str = "x") -> str | None:
        cut = {T: {"id": id_, "manifest": 1, "missing": 0}}
        columns = pa.schema([("manifest", pa.int64()), ("merged", pa.map_(pa.string(), CUT_TYPE))])
        given = {"manifest": zone.landed.number, "merged": list(cut.items())}
        table = TableName.parse(T)
        status = Status(zone.source, (table,), pending={table: known})
        (found,) = status.rows([pa.RecordBatch.from_pylist([given], schema=columns)])
        row = found.to_pylist()[0]
        assert row["exact"] is (row["reason"] is None)
        return row["reason"]

    store.put(rebuilt_path("x", 1) + "/part-0", b"{}")
    store.put(rebuilt_path("y", 2) + "/part-0", b"{}")
    assert reason() is None
    assert re.search(f"dropped or replaced since .*{AGAIN}", reason("y") or "")
    store.put(rebuilt_path("x", 2) + "/part-0", b"{}")
    assert re.search(f"rebuilt with other columns.*{AGAIN}", reason() or "")
    known = replace(known, generation=2)
    assert reason() is None
    wider = schema_of(T, id="bigint", a="int", b="string")
    zone.landed.table(wider)
    zone.landed.commit(30, [zone.landed.log(wider, [insert(25, 3)])])
    assert re.search(f"'id' landed as bigint.*{AGAIN}", reason() or "")


def merge_by_oldest(
    source: full_dumps.Source, reader: Manifests, target: dict[Key, Target], after: int, mutant: str
) -> None:
    """As a view sees it: no row of the target from before the oldest position, and then the events."""
    plan = plan_table(SCHEMA.table, reader, after, source.landed.number)
    for sweep in plan.sweeps if not mutant else ():
        for key in [key for key, known in target.items() if known.position < sweep.position]:
            del target[key]
    apply_rules(target, read(source.landed, plan))


def test_the_oldest_position_removes_the_rows_that_a_sweep_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of random histories, from any earlier manifest on."""
    monkeypatch.setattr(full_dumps, "merge", merge_by_oldest)
    assert [seed for seed in range(300) if not full_dumps.run(seed)] == []
    assert not all(full_dumps.run(seed, "keeps all") for seed in range(300))
