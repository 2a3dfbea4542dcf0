"""Compaction joins what is old and small, and a reader at any moment finds each event, whatever fails."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connector import failpoint
from connector.errors import TransientError
from connector.landing import format
from connector.landing.consumers import Consumer, forget, record_path
from connector.landing.format import COMPACTION, block_of, compacted_path, data_path, manifest_path
from connector.landing.manifest import LandedFile, Manifest
from connector.landing.manifest_object import StoredManifest
from connector.landing.manifest_store import (
    ManifestReader,
    ManifestWriter,
    read_compacted,
    read_compaction_progress,
    read_retained,
)
from connector.maintenance import compaction
from connector.maintenance.compaction import Compaction, compact, join
from connector.maintenance.retention import (
    History,
    Horizon,
    Need,
    Removal,
    horizon,
    read_again_after,
    remove_unneeded,
    whole_blocks,
)
from connector.testing.memory_store import MemoryStore
from merge.plan import plan_table
from tests.support.landing.landed import AT, Chunk, Event, Landed, schema_of
from tests.unit.maintenance.test_retention import (
    KilledError,
    Recorder,
    T,
    a_history,
    committed,
    kill_delete_all,
)

DAY = timedelta(days=1)
LATER = AT + DAY
PLAIN = schema_of("public.t", id="int", a="array<string>", b="decimal(20,2)", c="timestamp")
WIDE = schema_of("public.t", id="int", z="bigint")
OTHER = schema_of("public.other", id="int")
MOMENTS = ("block-written", "block-recorded", "originals-given-up", "originals-removed")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format, "MANIFESTS_PER_BLOCK", 5)
    monkeypatch.setattr(compaction, "FEW_FILES", 2)


def insert(lsn: int, *unchanged: str, op: str = "insert") -> Event:
    raw = {"c": "infinity"} if lsn % 3 == 0 else None
    return Event(op, lsn, 0, {"id": lsn, "a": [str(lsn), None], "z": lsn}, unchanged, raw)


class Zone:
    """A landing zone of 23 manifests: block 1 to 4, whole ones to 19, and one that is not whole yet."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.landed = Landed(put=self.store.put)
        for schema in (PLAIN, OTHER):
            self.landed.table(schema)
        for number in range(1, 24):
            at = 10 * number
            files = [
                self.landed.log(PLAIN, [insert(at - 2), insert(at - 1, *(["b"] if number == 8 else []))])
            ]
            if number % 2:
                files.append(self.landed.log(WIDE, [insert(at)]))
            if number == 12:
                files.append(self.landed.log(OTHER, [insert(at, op="truncate")]))
            if number == 7:
                files.append(self.landed.chunk(PLAIN, Chunk(60, 65, [{"id": 1}])))
            self.landed.commit(at, files)
        self.store.calls.clear()
        self.checked: dict[str, bytes] = {}

    def compact(self, at: datetime = LATER, **more: Any) -> Compaction:
        newest = ManifestReader(self.store).newest()
        retained = read_retained(self.store)
        assert newest is not None
        oldest = retained.first if retained else 1
        return compact(self.store, oldest, newest[0].number, clock=lambda: at, **more)

    def read(self, upto: int, after: int = 0) -> list[Any]:
        """Read as a merge would: all events of a table, sorted."""
        plan = plan_table(T, self, after, upto)
        return sorted(found for file in plan.all for found in events_of(self.store, file))

    def get(self, number: int) -> Manifest:
        manifest = ManifestReader(self.store).read(number)
        assert manifest is not None
        manifest.compacted = read_compacted(self.store, number)
        return manifest

    def is_removed(self, number: int) -> bool:
        return False

    def readable(self) -> list[int]:
        """List up to which manifests may be read."""
        progress = read_compaction_progress(self.store)
        gone = progress.removing if progress else 0
        return [n for n in range(1, self.landed.number + 1) if n > gone or n == block_of(n)[1]]

    def retain(self, now: datetime, **more: Any) -> Removal:
        history = History.of(self.store)
        assert history is not None
        needed = horizon(history, timedelta(0), now)
        return remove_unneeded(history, needed, **{"now": now, "dry_run": False, **more})

    def land_much_later(self, at: datetime) -> None:
        """Land manifests 24 to 30, without files."""
        newest = self.get(23).model_copy(update={"files": [], "committed_at": at, "compacted": None})
        for number in range(24, 31):
            ManifestWriter(self.store).commit(
                newest.model_copy(update={"number": number, "position": 10 * number})
            )

    def numbers(self) -> list[int]:
        """List the manifests that are there."""
        paths = filter(format.is_manifest, self.store.list("manifest/"))
        stored = [StoredManifest.from_json(self.store.objects[path]) for path in paths]
        return [manifest.number for manifest in stored if not manifest.removed]

    def records(self) -> list[str]:
        return [path for path in self.store.list("manifest/") if format.compacted_block(path)]

    def paths(self, prefix: str = "data/") -> set[str]:
        return {path for path in self.store.objects if path.startswith(prefix)}


def events_of(store: MemoryStore, file: LandedFile) -> list[Any]:
    """Return the events of a landing file, which must be as its manifest or record says."""
    return parsed(store.objects[file.path], file.model_dump_json())


@lru_cache(10_000)
def parsed(data: bytes, known: str) -> list[Any]:
    file = LandedFile.model_validate_json(known)
    assert len(data) == file.bytes
    table = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read()
    rows = table.to_pylist()
    at = [(r["_cdc"]["epoch"], r["_cdc"]["lsn"], r["_cdc"]["seq"]) for r in rows]
    assert (len(rows), min(at), max(at), at) == (file.rows, file.first, file.last, sorted(at))
    assert file.partial == any(row["_cdc"]["unchanged"] for row in rows)
    assert file.truncates == any(row["_cdc"]["op"] == "truncate" for row in rows)
    return [(position, file.schema_id, repr(row)) for position, row in zip(at, rows, strict=True)]


@pytest.fixture
def zone() -> Zone:
    return Zone()


def test_small_files_of_each_whole_block_are_joined_by_layout_and_nothing_else_changes(zone: Zone) -> None:
    before, original = dict(zone.store.objects), [zone.read(upto) for upto in range(1, 24)]
    planned = zone.compact(dry_run=True)
    assert zone.store.objects == before
    done = zone.compact()
    assert done == planned
    assert (done.blocks, done.into) == (4, 6)  # of five manifests, two or three have the other layout
    assert done.files == 19 - 1 + 2 * 3  # the partial one stays alone
    block = read_compacted(zone.store, 9)
    assert block is not None
    found = [(file.kind, file.rows, file.first.lsn, file.last.lsn) for file in block.files]
    assert found == [("log", 8, 48, 89), ("log", 3, 50, 90)]
    assert before.items() <= zone.store.objects.items()
    assert [zone.read(upto) for upto in range(1, 24)] == original
    assert len(plan_table(T, zone, 0, 19).files) == 6 + 2 * 2 + 1 + 1
    after = dict(zone.store.objects)
    assert zone.compact() == Compaction()
    assert zone.store.objects == after


def test_originals_go_a_day_later_and_not_before(zone: Zone) -> None:
    original = {upto: zone.read(upto) for upto in range(1, 24)}
    zone.compact()
    assert zone.compact(LATER + DAY - timedelta(seconds=1)) == Compaction()
    before = dict(zone.store.objects)
    assert zone.compact(LATER + DAY, dry_run=True) == Compaction(removed=24)
    assert zone.store.objects == before
    assert zone.compact(LATER + DAY) == Compaction(removed=24)
    assert len(before) - len(zone.store.objects) == 24 - 1
    assert zone.readable() == [4, 9, 14, 19, 20, 21, 22, 23]
    assert {upto: zone.read(upto) for upto in zone.readable()} == {n: original[n] for n in zone.readable()}
    zone.store.calls.clear()
    assert zone.compact(LATER + DAY) == Compaction()
    assert len(zone.store.calls) < 8


def test_from_within_a_block_a_merge_reads_what_it_lacks_and_what_goes_with_it(zone: Zone) -> None:
    lacking = {after: set(zone.read(19, after)) for after in range(19)}
    zone.compact()
    zone.compact(LATER + DAY)
    whole = set(zone.read(19))
    for after in range(19):
        assert lacking[after] <= set(zone.read(19, after)) <= whole


def test_what_is_young_or_not_worth_it_stays(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> None:
    assert zone.compact(AT + timedelta(minutes=59)) == Compaction()
    assert not zone.paths(COMPACTION)
    monkeypatch.setattr(compaction, "FEW_FILES", 5)
    assert zone.compact() == Compaction()
    block = read_compacted(zone.store, 4)  # so that it isn't looked at again
    assert block is not None
    assert not block.tables
    monkeypatch.setattr(compaction, "FEW_FILES", 2)
    zone.compact()
    assert not zone.compact().files


def test_large_files_stay_and_new_ones_have_a_bound(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = sorted(file.bytes for number in range(1, 20) for file in zone.get(number).files)
    monkeypatch.setattr(compaction, "FEW_FILES", 1)
    monkeypatch.setattr(compaction, "TARGET_BYTES", 2 * sizes[-1])
    original = zone.read(19)
    done = zone.compact()
    assert done.into > 8
    assert zone.read(19) == original
    monkeypatch.setattr(compaction, "SMALL_BYTES", sizes[0])
    assert Zone().compact() == Compaction()


def test_a_file_that_begins_before_its_block_stays(zone: Zone) -> None:
    """It landed a second time; joined with others, it would have them all read from far back."""
    again = zone.landed.log(PLAIN, [insert(15), insert(238)])
    zone.landed.commit(240, [again])
    zone.compact()
    block = read_compacted(zone.store, 24)
    assert block is not None
    assert block.files
    assert again.path not in block.replaced


@pytest.mark.parametrize("damage", [None, lambda data: data[:-1], lambda data: data[:40] + b"X" + data[41:]])
def test_a_damaged_file_stays_with_those_of_its_kind(
    zone: Zone, damage: Callable[[bytes], bytes] | None
) -> None:
    path = next(f.path for f in zone.get(16).files if f.schema_id == PLAIN.id)
    if damage is None:
        del zone.store.objects[path]
    else:
        zone.store.objects[path] = damage(zone.store.objects[path])
    done = zone.compact()
    assert done.damaged == [path]
    block = read_compacted(zone.store, 19)
    assert block is not None
    assert {file.schema_id for file in block.files} <= {WIDE.id}
    assert done.blocks == 4
    zone.compact(LATER + DAY)
    assert zone.compact(LATER + DAY) == Compaction()


@pytest.mark.parametrize("field", ["rows", "bytes"])
def test_a_file_of_which_its_manifest_says_otherwise_stays(zone: Zone, field: str) -> None:
    file = zone.landed.log(PLAIN, [insert(238)])
    zone.landed.commit(240, [file.model_copy(update={field: getattr(file, field) + 1})])
    assert zone.compact().damaged == [file.path]


def test_a_block_of_which_a_manifest_is_missing_stays(zone: Zone) -> None:
    zone.store.delete(manifest_path(7))
    assert zone.compact().blocks == 3
    assert read_compacted(zone.store, 9) is None


def kill_at(monkeypatch: pytest.MonkeyPatch, moment: str, time: int) -> None:
    passed = iter(range(1, time + 1))

    def reach(name: str) -> None:
        if name == moment and next(passed, None) == time:
            raise KilledError

    monkeypatch.setattr(failpoint, "reach", reach)


def check(zone: Zone, original: dict[int, list[Any]]) -> None:
    """Check that every state that may be read can be read, if anything has changed since the last check."""
    if zone.store.objects == zone.checked:
        return
    zone.checked = dict(zone.store.objects)
    for upto in zone.readable():
        assert zone.read(upto) == original[upto], upto


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("time", [1, 3])
def test_a_run_that_is_killed_shows_each_event_once_and_the_next_one_finishes(
    zone: Zone, moment: str, time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = {upto: zone.read(upto) for upto in range(1, 24)}
    if moment.startswith("originals"):
        zone.compact()
    kill_at(monkeypatch, moment, time)
    with pytest.raises(KilledError):
        zone.compact(LATER + DAY)
    check(zone, original)
    zone.compact(LATER + DAY)
    check(zone, original)
    zone.compact(LATER + 2 * DAY)
    check(zone, original)
    assert zone.readable() == [4, 9, 14, 19, 20, 21, 22, 23]
    named = {file.path for upto in range(20, 24) for file in zone.get(upto).files}
    named |= {file.path for last in (4, 9, 14, 19) for file in zone.get(last).compacted.files}  # type: ignore[union-attr]
    replaced = {path for last in (4, 9, 14, 19) for path in zone.get(last).compacted.replaced}  # type: ignore[union-attr]
    assert not zone.paths() & replaced
    left = zone.paths() - named - {f.path for n in range(1, 20) for f in zone.get(n).files}
    assert len(left) == (moment == "block-written")  # for retention to find


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["put_file", "create", "replace", "delete"])
def test_a_store_that_fails_anywhere_leaves_what_a_reader_needs(
    zone: Zone, operation: str, when: Any
) -> None:
    original = {upto: zone.read(upto) for upto in range(1, 24)}
    at, failures = LATER, 0
    for day in range(3):
        at = LATER + day * DAY
        for times in range(1, 13):
            zone.store.fail(operation, when=when)
            try:
                zone.compact(at)
            except TransientError:
                failures += 1
            check(zone, original)
            zone.store._faults.clear()
            if times % 3 == 0:
                zone.compact(at)
    assert failures
    assert zone.readable() == [4, 9, 14, 19, 20, 21, 22, 23]


def test_of_two_runs_at_once_one_records_and_retention_finds_what_the_other_wrote(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, raced = {upto: zone.read(upto) for upto in range(1, 24)}, []

    def reach(name: str) -> None:
        if name == "block-written" and not raced:
            raced.append(True)
            zone.compact()

    monkeypatch.setattr(failpoint, "reach", reach)
    zone.compact()
    check(zone, original)
    named = {f.path for n in range(1, 24) for f in zone.get(n).files}
    named |= {f.path for last in (4, 9, 14, 19) for f in zone.get(last).compacted.files}  # type: ignore[union-attr]
    assert len(zone.paths() - named) == 1
    zone.compact(LATER + DAY)
    check(zone, original)
    at = datetime.now(timezone.utc) + 10 * DAY
    zone.land_much_later(at)
    assert zone.retain(at).orphans == 1
    assert zone.paths() == set()


@pytest.mark.parametrize("days", [0, 1, 2])
@pytest.mark.parametrize("call", [None, 1, 2, 3, 4, 5])
def test_retention_removes_whole_blocks_with_what_they_were_compacted_to(
    zone: Zone, days: int, call: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(days):
        zone.compact(LATER + day * DAY)
    expected = set(zone.read(23, 17))
    record = Consumer(id="c", lake="l", manifest=17, at=LATER)
    zone.store.put(record_path("c", "0"), record.model_dump_json().encode())
    with monkeypatch.context() as patch:
        kill_delete_all(patch, zone.store, call)
        with suppress(KilledError):
            zone.retain(LATER)
    zone.retain(LATER)
    assert zone.numbers() == list(range(14, 24))
    assert set(zone.read(23, 17)) == expected
    assert zone.records() == ([compacted_path(14), compacted_path(19)] if days else [])
    forget(zone.store, record)
    at = datetime.now(timezone.utc) + 10 * DAY
    zone.land_much_later(at)
    zone.retain(at)
    assert zone.numbers() == list(range(24, 31))
    assert zone.paths() == set()
    assert zone.records() == []


def test_originals_of_a_block_that_retention_had_begun_are_removed_with_its_last_manifest(zone: Zone) -> None:
    """They were still there when the block was begun, and compaction passes over such a block."""
    zone.compact()
    for first in (9, 15):
        history = History.of(zone.store)
        assert history is not None
        needed = Horizon(history.oldest, first, 23, [Need("a lake", first)])
        remove_unneeded(history, needed, now=LATER, dry_run=False)
        zone.compact(LATER + 2 * DAY)
    named = {file.path for number in range(15, 24) for file in zone.get(number).files}
    blocks = [block for last in (14, 19) if (block := read_compacted(zone.store, last))]
    named |= {file.path for block in blocks for file in block.files}
    assert {path for path in zone.store.objects if path.startswith("data/")} <= named


def test_what_retention_counts_is_what_it_removes(zone: Zone) -> None:
    for day in range(3):
        planned, before = zone.retain(LATER, dry_run=True), dict(zone.store.objects)
        done = zone.retain(LATER)
        gone = {path: data for path, data in before.items() if path not in zone.store.objects}
        files = [data for path, data in gone.items() if path.startswith("data/")]
        assert (
            (done.files, done.bytes) == (planned.files, planned.bytes) == (len(files), sum(map(len, files)))
        )
        zone.store.objects = before
        zone.compact(LATER + day * DAY)


def test_a_run_that_is_stopped_ends_between_blocks(zone: Zone) -> None:
    stop = threading.Event()
    done = zone.compact(progress=lambda done, _: stop.set() if done == 2 else None, stop=stop)
    assert (done.stopped, done.blocks) == (True, 2)
    assert zone.compact(seconds=-1).stopped
    assert zone.compact().blocks == 2


def test_a_block_that_retention_has_begun_to_remove_is_not_recorded(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = compaction.join

    def slow(*args: Any) -> LandedFile:
        zone.retain(LATER)
        return join(*args)

    monkeypatch.setattr(compaction, "join", slow)
    assert not zone.compact().damaged
    assert zone.records() == []


@pytest.mark.parametrize("seed", range(20))
def test_no_merge_of_compacted_blocks_reads_what_is_not_needed(seed: int) -> None:
    """Nor what retention, which keeps whole blocks, does not keep."""
    manifests = a_history(random.Random(seed))
    store = committed(manifests)
    stored = [StoredManifest.of(manifest) for manifest in manifests]
    for last in range(4, len(manifests), 5):
        first, before = block_of(last)[0], manifests[last - 6] if last > 4 else None
        found = compaction.groups(
            stored[first - 1 : last], (before.epoch, before.position) if before else (0, 0)
        )
        manifests[last - 1] = with_block(manifests[last - 1], first, last, found)
    history, exact = History.of(store), 0
    assert history is not None
    for merged in range(1, len(manifests)):
        kept = whole_blocks(read_again_after(history, merged))
        assert kept == 1 or kept == block_of(kept)[1]
        for upto in range(merged + 1, len(manifests) + 1):
            read = Recorder(manifests)
            plan_table(T, read, merged, upto)
            assert read.lowest >= kept, (merged, upto)
            exact += read.lowest == kept
    assert exact


def with_block(manifest: Manifest, first: int, last: int, found: list[list[LandedFile]]) -> Manifest:
    files = [
        group[0].model_copy(
            update={"path": data_path(T, "2026-01-02", f"new-{last}"), "last": group[-1].last}
        )
        for group in found
    ]
    table = compaction.CompactedTable(files=files, replaced=[file.path for group in found for file in group])
    block = compaction.CompactedBlock(first=first, last=last, at=AT, tables={T: table})
    return manifest.model_copy(update={"compacted": block})


def test_readers_that_know_nothing_of_records_pass_over_them(zone: Zone) -> None:
    zone.compact()
    assert not format.is_manifest(compacted_path(9))
    assert (format.compacted_block(compacted_path(9)), format.compacted_block(manifest_path(9))) == (9, None)
    newest = ManifestReader(zone.store).newest()
    assert newest is not None
    assert newest[0].number == 23


def test_before_images_are_in_the_file_that_stands_for_many() -> None:
    store, schema = MemoryStore(), replace(WIDE, before_images=True)
    landed = Landed(put=store.put)
    landed.table(schema)
    files = [
        landed.log(schema, [Event("update", n, 0, {"id": 1, "z": n}, before={"id": 1, "z": n - 1})])
        for n in (1, 2, 3)
    ]
    joined = join(store, files)
    found = pq.read_table(pa.BufferReader(store.objects[joined.path]))["_before"].to_pylist()
    assert [(old["id"], old["z"]) for old in found] == [(1, 0), (1, 1), (1, 2)]
