"""What checksums prove is so, whatever source, agent and lake did meanwhile; the rest is read as ranges."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from connector.capture.dumps import workers as dump_workers
from connector.checksums.definition import BUCKET, LAYOUT, ROWS, SUM, bits_of, sums_of
from connector.landing.manifest import DumpState, Manifest
from connector.landing.requests import DumpRequest, submit
from connector.position import Position
from connector.schema import TableName
from connector.source import Chunk, KeyRange
from connector.testing.memory_store import MemoryStore
from connector.testing.memory_tables import MemoryTables
from merge.lake.control_table import Frontier, Frontiers
from merge.proof.checksums import MOST_RANGES, RANGE_ROWS, Bucket, ranges_of, suspects
from merge.proof.lake_sums import LakeSums, TableSums
from merge.proof.opened_lake import ComparedVersion
from tests.support.agent.agents import Agent, ask, dump_of, insert, shop
from tests.support.agent.killed_agents import verified_through_kills
from tests.support.landing.cuts import manifests_in, read_events

ITEMS = TableName("public", "items")
BITS = 2

Rows = dict[Any, Any]


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("seed", range(8))
def test_a_bucket_that_is_not_suspect_is_equal_whatever_the_lake_missed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_workers, "bits_of", lambda *_: BITS)
    monkeypatch.setattr(dump_workers, "CHECKSUM_CHUNKS", 1)
    database, store, dump = verified_through_kills(seed, checksums=True)
    newest = manifests_in(store)[-1]
    assert (dump.state, dump.bits) == ("complete", BITS)
    read, touched, truncated = landed(store, dump)
    low = Position.of_chunk(dump.epoch, dump.low or 0, dump.number)
    if truncated and truncated > low:
        return  # such a table is read as a whole
    truth = database.state_at(newest.position)["public.items"]
    before = database.state_at((dump.low or 0) + 1)["public.items"]
    quiet = {bucket for bucket in read if bucket not in touched or touched[bucket] <= low}
    assert not quiet & suspects(read, buckets_of(database, truth), touched, low)
    chance = random.Random(seed)
    for _ in range(200):
        lake = damaged(truth, before, chance)
        found = suspects(read, buckets_of(database, lake), touched, low)
        for bucket in {key[0] >> BITS for key in lake.keys() | truth.keys()} - found:
            assert in_bucket(lake, bucket) == in_bucket(truth, bucket)
    assert_proven_at_earlier_cuts(database, store, dump, chance)


def assert_proven_at_earlier_cuts(
    database: Any, store: MemoryStore, dump: DumpState, chance: random.Random
) -> None:
    """Check what is proven of a lake that was summed at an earlier cut, before or amid the reading."""
    manifests = {manifest.number: manifest for manifest in manifests_in(store)}
    read, touched, _ = landed(store, dump, upto=dump.finished_in)
    low = Position.of_chunk(dump.epoch, dump.low or 0, dump.number)
    for at in [m for m in manifests.values() if m.number < (dump.finished_in or 0)]:
        summed = sums_at(at).usable(lake_of(manifests), dump)
        if summed is None:
            continue
        fresh = {e.key[0] >> BITS for file in summed.fresh for e in read_events(store, file) if e.key}
        truth = database.state_at(at.position)["public.items"]
        quiet = {key[0] >> BITS for key in truth} - fresh - {b for b, last in touched.items() if last > low}
        assert not quiet & suspects(read, buckets_of(database, truth), touched, low)
        for _ in range(20):
            lake = damaged(truth, truth, chance)
            found = suspects(read, buckets_of(database, lake), touched, low) | fresh
            for bucket in {key[0] >> BITS for key in lake.keys() | truth.keys()} - found:
                assert in_bucket(lake, bucket) == in_bucket(truth, bucket)


def sums_at(at: Manifest) -> LakeSums:
    """Return the lake's checksums as if summed at a manifest; the buckets themselves are the caller's."""
    nothing: Any = None
    state: Any = SimpleNamespace(id="its id")
    schema_id = at.tables[ITEMS].schema_id if ITEMS in at.tables else None
    known = TableSums(ComparedVersion(state, 1, at.number), schema_id or "", {}, BITS, {})
    return LakeSums(nothing, nothing, nothing, {ITEMS: known})


def lake_of(manifests: dict[int, Manifest]) -> Any:
    """Return what `LakeSums.usable` asks of an opened lake."""
    landing = SimpleNamespace(get=manifests.__getitem__, load=lambda *_: None)
    frontiers = Frontiers(by_table={ITEMS: Frontier(1, 1, "its id")})
    return SimpleNamespace(landing=landing, targets={ITEMS: ...}, frontiers=frontiers)


@pytest.mark.usefixtures("short_waits")
def test_an_event_between_the_chunks_of_a_bucket_makes_it_suspect_though_one_of_them_has_no_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dump_workers, "bits_of", lambda *_: 8)
    rows = 7 * dump_workers.CHECKSUM_CHUNKS  # as many as a chunk has: the last chunk has none
    database, store = shop(rows=rows), MemoryStore()
    last_read, inserted = threading.Event(), threading.Event()
    open_checksums = MemoryTables.open_checksums

    @contextmanager
    def last_first(self: MemoryTables, table: TableName, key_range: KeyRange, bits: int) -> Iterator[Chunk]:
        assert key_range.upto is None or inserted.wait(10)
        with open_checksums(self, table, key_range, bits) as chunk:
            yield chunk
        if key_range.upto is None:
            last_read.set()

    monkeypatch.setattr(MemoryTables, "open_checksums", last_first)
    with Agent(database, store, workers=2) as agent:
        agent.wait_dumped()
        request = submit(store, DumpRequest(tables=["public.items"], verify=True, checksums=True))
        assert last_read.wait(10)
        insert(database, 201)
        agent.wait_caught_up()
        inserted.set()
        agent.wait(lambda m: (d := dump_of(m, request)) and not d.active, "it has ended")
    newest = manifests_in(store)[-1]
    dump = dump_of(newest, request)
    assert (dump.state, dump.bits, dump.chunks) == ("complete", 8, 2)
    read, touched, _ = landed(store, dump, bits=8)
    low = Position.of_chunk(dump.epoch, dump.low or 0, dump.number)
    truth = database.state_at(newest.position)["public.items"]
    lake = {key: row for key, row in truth.items() if key != (201,)}
    assert len(lake) == len(truth) - 1
    assert suspects(read, buckets_of(database, lake, bits=8), touched, low) == {0}


def landed(
    store: MemoryStore, dump: DumpState, bits: int = BITS, upto: int | None = None
) -> tuple[dict[int, Bucket], dict[int, Position], Position | None]:
    """What the database computed, the last event of each bucket up to a manifest, and the last truncate."""
    read: dict[int, Bucket] = {}
    touched: dict[int, Position] = {}
    truncated = None
    for manifest in manifests_in(store)[:upto]:
        for file in (f for f in manifest.files if f.dump == dump.id and manifest.number >= dump.started_in):
            for event in read_events(store, file):
                values = event.columns
                known = read.get(values[BUCKET], Bucket(0, 0))
                total = (known.total or 0) + int(values[SUM])
                read[values[BUCKET]] = Bucket(known.rows + values[ROWS], total)
        for event in (e for f in manifest.files_of(ITEMS) for e in read_events(store, f)):
            if event.key is None:
                truncated = max(truncated or event.position, event.position)
            else:
                bucket = event.key[0] >> bits
                touched[bucket] = max(touched.get(bucket, event.position), event.position)
    return read, touched, truncated


def buckets_of(database: Any, rows: Rows, bits: int = BITS) -> dict[int, Bucket]:
    sums = sums_of(database.schema(ITEMS), rows.values(), bits)
    return {bucket: Bucket(*found) for bucket, found in sums.items()}


def in_bucket(rows: Rows, bucket: int) -> Rows:
    return {key: row for key, row in rows.items() if key[0] >> BITS == bucket}


def damaged(truth: Rows, before: Rows, chance: random.Random) -> Rows:
    """A lake with a row lost, resurrected or changed, or a bucket that missed all that was logged."""
    lake = dict(truth)
    key = chance.choice(sorted(truth.keys() | before.keys()) or [(0,)])
    match chance.randrange(4):
        case 0:
            lake.pop(key, None)
        case 1 if key in before:
            lake[key] = before[key]
        case 2:
            lake[key] = {"id": key[0], "a": None, "b": "-"}
        case _:
            bucket = key[0] >> BITS
            lake = {k: row for k, row in lake.items() if k[0] >> BITS != bucket}
            lake |= in_bucket(before, bucket)
    return lake


def test_checksums_land_beside_what_is_merged_and_ranges_are_of_the_first_key_column() -> None:
    database, store = shop(rows=20), MemoryStore()
    with Agent(database, store) as agent:
        agent.wait_dumped()
        summed = ask(agent, store, tables=["public.items"], verify=True, checksums=True).dumps[-1]
        refused = ask(agent, store, tables=["public.parts"], verify=True, checksums=True).dumps[-1]
        ranges = [(None, 3), (9, 13), (37, None)]
        named = ask(agent, store, tables=["public.items"], verify=True, ranges=ranges).dumps[-1]
    assert (summed.kind, summed.state, summed.rows, summed.rows_estimate) == ("checksums", "complete", 20, 20)
    assert (refused.state, "not an integer" in str(refused.error)) == ("failed", True)
    files = [f for m in manifests_in(store) for f in m.files if f.dump == summed.id]
    events = [event for file in files for event in read_events(store, file)]
    assert sum(event.columns[ROWS] for event in events) == 20
    schema = database.schema(ITEMS)
    assert schema is not None
    assert {event.columns[LAYOUT] for event in events} == {schema.id}
    assert (named.kind, named.rows, named.chunks) == ("verify_rows", 5, 3)
    files = [f for m in manifests_in(store) for f in m.files if f.dump == named.id]
    assert sorted(e.key for f in files for e in read_events(store, f) if e.key) == [
        (0,),
        (2,),
        (10,),
        (12,),
        (38,),
    ]


@pytest.mark.parametrize(
    ("first", "last", "bits"),
    [(0, 0, 8), (1, 10_000_000, 8), (-(2**63), 2**63 - 1, 48), (0, 2**64 - 1, 48), (1, 2**40, 24)],
)
def test_a_table_has_few_buckets_however_its_keys_are_spread(first: int, last: int, bits: int) -> None:
    assert bits_of(first, last) == bits
    assert (last >> bits) - (first >> bits) <= 2**16


def test_suspects_become_few_ranges_that_hold_them_all() -> None:
    rows = dict.fromkeys(range(-500, 40_000), 256)
    few = {-500, 3, 4, 5, 39_999}
    assert ranges_of(few, rows, 8, "bigint") == [
        (-128_001, -127_745), (767, 1535), (39_999 * 256 - 1, 40_000 * 256 - 1),
    ]  # fmt: skip
    assert ranges_of(set(), rows, 8, "int") == []
    assert ranges_of(set(), {}, 8, "int") == [], "nothing differs in an empty table"
    assert ranges_of({-1, 0}, {-1: 1, 0: 1}, 15, "smallint") == [(None, None)]
    assert ranges_of({0}, {0: 1}, 8, "decimal(20,0)") == [(None, 255)]
    assert ranges_of({2**56 - 1}, {}, 8, "decimal(20,0)") == [(2**64 - 257, None)]
    scattered = set(range(0, 15_000, 30))
    joined = ranges_of(scattered, rows, 8, "bigint") or []
    assert 0 < len(joined) <= MOST_RANGES
    held = {b for after, upto in joined for b in range(((after or 0) + 1) >> 8, ((upto or 0) >> 8) + 1)}
    assert scattered <= held
    assert len(held) * 256 * 2 < sum(rows.values())
    assert ranges_of(set(range(0, 40_000, 3)), rows, 8, "bigint") is None
    whole = ranges_of(set(range(1000)), rows, 8, "bigint") or []
    assert all((upto or 0) - (after or 0) <= RANGE_ROWS + 256 for after, upto in whole)
