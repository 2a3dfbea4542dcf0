"""Retention removes what nobody needs, whatever it is interrupted by, and nothing else."""

from __future__ import annotations

import random
import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from connector.capture.manifest_history import ManifestHistory
from connector.capture.tables import Tables
from connector.errors import FencedError, FormatError
from connector.landing import format
from connector.landing.consumers import Consumer, forget, read_consumers, record_path, slot_due
from connector.landing.format import comments_id, comments_path, data_path, manifest_path, schema_path
from connector.landing.layout_history import layout_history
from connector.landing.manifest import (
    DumpState,
    InvisibleCommit,
    LandedFile,
    Manifest,
    SourceIdentity,
    TableState,
)
from connector.landing.manifest_object import StoredManifest
from connector.landing.manifest_store import ManifestReader, ManifestWriter
from connector.maintenance import retention
from connector.maintenance.retention import (
    History,
    RemovedMeanwhileError,
    describe,
    horizon,
    read_again_after,
    remove_unneeded,
)
from connector.position import CHUNK_SEQ, Position
from connector.schema import TableComments, TableName
from connector.testing.memory_store import MemoryStore
from merge.plan import plan_table
from tests.support.landing.landed import schema_of

T = TableName("public", "t")
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SHOP = SourceIdentity(name="shop", kind="postgres", system_id="1", database="shop")


@pytest.fixture(autouse=True)
def blocks_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_compaction` is about blocks."""
    monkeypatch.setattr(format, "MANIFESTS_PER_BLOCK", 1)


def file_of(
    number: int, kind: str, first: Position, last: Position, day: datetime, **known: Any
) -> LandedFile:
    path = data_path(T, f"{day:%Y-%m-%d}", f"{kind}-{number}-{known.get('chunk', '')}")
    return LandedFile(
        path=path, table=T, schema_id="s", kind=kind, rows=1, bytes=10, first=first, last=last, **known
    )  # type: ignore[arg-type]


def a_history(r: random.Random, count: int = 40) -> list[Manifest]:
    """Make manifests as an agent writes them: dumps run for a while, and commits stay invisible for a while.

    A chunk's low watermark is what `Visibility.low_watermark` makes it at some moment since its dump began.
    """
    found: list[Manifest] = []
    epoch, position, dumps, hidden, number_of_dump = 1, 100, [], [], 0
    state = TableState(schema_id="s", key=["id"])
    lows: list[int] = []  # of a chunk opened when manifest n was the newest, n = 0, 1, ...
    for number in range(1, count + 1):
        day, files = BEGIN + number * HOUR, []
        if r.random() < 0.05:
            epoch, hidden = epoch + 1, []
            dumps = [d.model_copy(update={"state": "cancelled"}) if d.active else d for d in dumps]
        before, position = position, position + r.choice([0, 10, 10, 30])
        if position > before:
            first, last = Position(epoch, before + 1, 0), Position(epoch, position, 0)
            files.append(file_of(number, "log", first, last, day))
        for n, dump in enumerate(dumps):
            if not dump.active:
                continue
            if r.random() < 0.5 and number > dump.started_in:
                low = lows[r.randrange(dump.started_in - 1, number)]
                at = Position(epoch, low, CHUNK_SEQ + dump.number)
                known = {"dump": dump.id, "chunk": dump.chunks, "low": low, "high": position}
                files.append(file_of(number, "verify" if dump.verifies else "chunk", at, at, day, **known))
                lowest = min(low, dump.low if dump.low is not None else low)
                dumps[n] = dump = dump.model_copy(update={"chunks": dump.chunks + 1, "low": lowest})
            if r.random() < 0.3 and dump.chunks:
                dumps[n] = dump.model_copy(update={"state": "complete", "finished_in": number})
                state = state.dumped_by(dumps[n]) if dump.kind == "full" else state
        if r.random() < 0.3:
            number_of_dump += 1
            dumps.append(
                DumpState(
                    id=f"d{number_of_dump}", number=number_of_dump, table=T, epoch=epoch,
                    kind=r.choice(["full", "full", "verify"]), requested_at=BEGIN, started_in=number,
                )
            )  # fmt: skip
        hidden = [c for c in hidden if r.random() < 0.8]
        if position > before and r.random() < 0.4:
            hidden.append(InvisibleCommit(xid=number, lsn=r.randint(before + 1, position - 1)))
        found.append(
            Manifest(
                number=number, term=1, write_id=str(number), source=SHOP, epoch=epoch, position=position,
                committed_at=day, files=files, tables={T: state}, dumps=list(dumps),
                not_yet_visible=list(hidden),
            )
        )  # fmt: skip
        if not lows:
            lows.append(position - 1)
        lows.append(min([position, *(c.lsn for c in hidden)]) - 1)
    return found


class Recorder:
    """Manifests as `merge.plan` asks for them; remembers the lowest number."""

    def __init__(self, manifests: list[Manifest]) -> None:
        self.manifests, self.lowest = manifests, len(manifests)

    def get(self, number: int) -> Manifest:
        self.lowest = min(self.lowest, number)
        return self.manifests[number - 1]


def committed(manifests: list[Manifest]) -> MemoryStore:
    """Return a store with these manifests."""
    store = MemoryStore()
    writer = ManifestWriter(store)
    for manifest in manifests:
        writer.commit(manifest)
    return store


class KilledError(Exception):
    """The process ends here."""


def kill_delete_all(monkeypatch: pytest.MonkeyPatch, store: MemoryStore, call: int | None) -> None:
    """Kill the process halfway through one of the store's removals of many objects."""
    delete_all, calls = store.delete_all, iter(range(1, 100))

    def killed(paths: Any) -> None:
        paths = list(paths)
        if next(calls) == call:
            delete_all(paths[: len(paths) // 2])
            raise KilledError
        delete_all(paths)

    monkeypatch.setattr(store, "delete_all", killed)


@pytest.mark.parametrize("seed", range(60))
def test_no_merge_reads_what_is_not_needed(seed: int) -> None:
    manifests = a_history(random.Random(seed))
    store = committed(manifests)
    history, exact = History.of(store), 0
    assert history is not None
    for merged in range(1, len(manifests)):
        first = read_again_after(history, merged)
        for upto in range(merged + 1, len(manifests) + 1):
            read = Recorder(manifests)
            plan_table(T, read, merged, upto)
            assert read.lowest >= first, (merged, upto)
            exact += read.lowest == first
    assert exact  # it isn't just everything


def landing_zone(days: int = 30, per_day: int = 4) -> tuple[MemoryStore, list[str]]:
    """Return a landing zone with a manifest every few hours, and the paths of its files."""
    store, files = MemoryStore(), []
    writer = ManifestWriter(store)
    for number in range(1, days * per_day + 1):
        at = BEGIN + number * DAY / per_day
        first, last = Position(1, number * 10 - 9, 0), Position(1, number * 10, 0)
        file = file_of(number, "log", first, last, at)
        store.put(file.path, b"rows")
        files.append(file.path)
        writer.commit(
            Manifest(
                number=number, term=1, write_id=str(number), source=SHOP, epoch=1, position=number * 10,
                committed_at=at, files=[file], tables={T: TableState(schema_id="s", key=["id"], dumped=True)},
            )
        )  # fmt: skip
    return store, files


NOW = BEGIN + 30 * DAY


def history_of(store: MemoryStore) -> History:
    history = History.of(store)
    assert history is not None
    return history


def consumer(store: MemoryStore, lake: str, manifest: int, slot: str = "0", at: datetime = NOW) -> None:
    """Record how far a lake is, as a Spark job does."""
    record = Consumer(id=lake[-1:], lake=lake, manifest=manifest, at=at)
    store.put(f"{record_path(record.id, slot)}/part-00000-1.txt", record.model_dump_json().encode() + b"\n")
    store.put(f"{record_path(record.id, slot)}/_SUCCESS", b"")


def removed(store: MemoryStore, **more: Any) -> retention.Removal:
    history = history_of(store)
    return remove_unneeded(history, horizon(history, 7 * DAY, NOW), **{"now": NOW, "dry_run": False, **more})


def test_a_run_that_another_one_overtakes_ends_or_begins_again() -> None:
    store, _ = landing_zone()
    history = history_of(store)
    late = history_of(store)
    needed = horizon(history, 20 * DAY, NOW)
    removed(store)
    first = numbers(store)[0]
    remove_unneeded(history, needed, now=NOW, dry_run=False)
    assert numbers(store)[0] == first
    with pytest.raises(RemovedMeanwhileError):
        horizon(late, 20 * DAY, NOW)
    store.delete(manifest_path(first))
    with pytest.raises(FormatError, match="is missing"):
        history_of(store).get(first)


def numbers(store: MemoryStore, *, stubs: bool = False) -> list[int]:
    """List the manifests that are there, or the stubs of those that were removed."""
    found = [StoredManifest.from_json(store.read(path) or b"") for path in store.list("manifest/")]
    return [manifest.number for manifest in found if manifest.removed == stubs]


def test_what_is_older_than_the_retention_time_is_removed_with_its_files() -> None:
    store, files = landing_zone()
    before = dict(store.objects)
    assert removed(store, dry_run=True).manifests == 91
    assert store.objects == before
    done = removed(store)
    assert (done.manifests, done.files, done.bytes) == (91, 91, 910)
    assert numbers(store) == list(range(92, 121))
    assert list(store.list("data/")) == files[91:]
    assert removed(store).manifests == 0


def test_a_consumer_holds_what_it_has_yet_to_merge_until_it_is_forgotten() -> None:
    store, _ = landing_zone()
    consumer(store, "s3://lake/a", 110)
    consumer(store, "s3://lake/b", 40, "lake", NOW - 20 * DAY)
    consumer(store, "s3://lake/b", 50, "1", NOW - 18 * DAY)
    needed = horizon(history_of(store), 7 * DAY, NOW)
    assert needed.needs[0].who == "lake s3://lake/b"
    assert next(describe(needed)).startswith("lake s3://lake/b: 72 manifests, from 49 on, as of 2026-01-13")
    removed(store)
    assert numbers(store)[0] == 49
    slow = next(c for c in read_consumers(store) if c.lake == "s3://lake/b")
    forget(store, slow)
    assert [c.lake for c in read_consumers(store)] == ["s3://lake/a"]
    removed(store)
    assert numbers(store)[0] == 92


def test_a_lake_that_has_just_registered_holds_everything() -> None:
    store, _ = landing_zone()
    consumer(store, "lake", 0, "lake")
    assert removed(store).manifests == 0


def test_the_newest_manifest_stays_however_old() -> None:
    store, _ = landing_zone(days=2)
    removed(store)
    assert numbers(store) == [7, 8]  # a merge at the newest reads one before


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_run_that_is_killed_leaves_a_chain_and_the_next_one_finishes(
    call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, files = landing_zone()
    monkeypatch.setattr(retention, "BATCH", 40)
    kill_delete_all(monkeypatch, store, call)
    with pytest.raises(KilledError):
        removed(store)
    left = numbers(store)
    assert left == list(range(left[0], 121))
    named = {file.path for number in left for file in history_of(store).get(number).files}
    assert named <= set(store.list("data/"))
    done = removed(store)
    assert numbers(store) == list(range(92, 121))
    assert list(store.list("data/")) == files[91:]
    assert done.orphans


def test_a_file_that_landed_long_before_its_manifest_is_no_orphan() -> None:
    store, files = landing_zone()
    newest = history_of(store).newest
    early = newest.files[0].model_copy(update={"path": data_path(T, "2026-01-03", "of-a-long-transaction")})
    lost = data_path(T, "2026-01-03", "of-a-killed-agent")
    for path in (early.path, lost):
        store.put(path, b"rows")
    known = ManifestReader(store).newest()
    ManifestWriter(store, known[1] if known else None).commit(
        newest.model_copy(update={"number": 121, "files": [early]})
    )
    assert removed(store).orphans == 1
    assert list(store.list("data/")) == [early.path, *files[91:]]


def test_manifests_are_read_several_at_once_to_find_what_none_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand of them, at 20 ms each on S3, would take half an hour otherwise."""
    store, files = landing_zone()
    lost = data_path(T, "2026-01-03", "of-a-killed-agent")
    store.put(lost, b"rows")
    both, stored = threading.Barrier(2, timeout=5), ManifestReader.stored

    def meet(reader: ManifestReader, number: int) -> StoredManifest | None:
        if number in (110, 111):
            both.wait()
        return stored(reader, number)

    monkeypatch.setattr(ManifestReader, "stored", meet)
    found = retention.orphans(history_of(store), 100)
    assert lost in found
    assert set(files[99:]).isdisjoint(found)


def test_state_objects_go_with_the_last_manifest_that_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.landing.manifest_object.FEW_BYTES", 0)
    store, writer = MemoryStore(), ManifestWriter(MemoryStore())
    writer = ManifestWriter(store)
    for number in range(1, 121):
        name = TableName("public", f"t{number // 10}")
        writer.commit(
            Manifest(
                number=number, term=1, write_id=str(number), source=SHOP, epoch=1, position=number * 10,
                committed_at=BEGIN + number * DAY / 4, tables={name: TableState(schema_id=f"s{number}")},
            )
        )  # fmt: skip
    assert removed(store).states
    kept = [history_of(store).get(number) for number in numbers(store)]
    assert [next(iter(m.tables.values())).schema_id for m in kept] == [f"s{m.number}" for m in kept]
    assert len(list(store.list("state/"))) <= len(kept) + 1


@pytest.mark.parametrize("dumping", [False, True])
def test_schemas_of_layouts_that_ended_before_are_removed(dumping: bool) -> None:
    """Four layouts, from manifests 1, 20, 60, 116 on, and one that has landed, but no manifest names yet."""
    store, layouts = MemoryStore(), [schema_of("public.t", **{name: "int"}) for name in "abcde"]
    for layout in layouts:
        store.put(schema_path(T, layout.id), layout.to_json())
    writer = ManifestWriter(store)
    dump = DumpState(
        id="d", number=1, table=T, kind="where", epoch=1, requested_at=BEGIN, started_in=95, state="running"
    )
    for number in range(1, 121):
        since = next(n for n in (116, 60, 20, 1) if n <= number)
        layout = layouts[(1, 20, 60, 116).index(since)]
        at = Position(1, number * 10, 0)
        file = file_of(number, "log", at, at, BEGIN).model_copy(update={"schema_id": layout.id})
        writer.commit(
            Manifest(
                number=number, term=1, write_id=str(number), source=SHOP, epoch=1, position=number * 10,
                committed_at=BEGIN + number * DAY / 4, files=[file],
                tables={T: TableState(schema_id=layout.id, schema_since=since)},
                dumps=[dump] if dumping and number >= 90 else [],
            )
        )  # fmt: skip
    kept = layouts[2:] if not dumping else layouts
    assert removed(store).schemas == len(layouts) - len(kept)
    assert set(store.list("schema/")) == {schema_path(T, layout.id) for layout in kept}


def test_comments_that_no_kept_manifest_names_are_removed() -> None:
    """Four, from manifests 1, 20, 60, 116 on; manifest 30 named none; 121 is yet to come."""
    store = MemoryStore()
    since = {n: TableComments(T, str(n)) for n in (1, 20, 30, 60, 116, 121)}
    ids = {n: comments_id(n, comments.digest) for n, comments in since.items()}
    for n, comments in since.items():
        store.put(comments_path(T, ids[n]), comments.to_json())
    writer = ManifestWriter(store)
    for number in range(1, 121):
        named = ids[next(n for n in (116, 60, 20, 1) if n <= number)]
        writer.commit(
            Manifest(
                number=number, term=1, write_id=str(number), source=SHOP, epoch=1, position=number * 10,
                committed_at=BEGIN + number * DAY / 4, tables={T: TableState(schema_id="s", comments=named)},
            )
        )  # fmt: skip
    assert removed(store).comments == 3
    assert 60 < history_of(store).oldest < 116
    assert set(store.list("comments/")) == {comments_path(T, ids[n]) for n in (60, 116, 121)}


def test_a_run_that_is_stopped_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = landing_zone()
    monkeypatch.setattr(retention, "BATCH", 40)
    stop = threading.Event()
    done = removed(store, progress=lambda _: stop.set(), stop=stop)
    assert done.stopped
    assert numbers(store)[0] == 41


def test_the_first_merge_of_each_ten_minutes_records_how_far_it_is() -> None:
    at = BEGIN
    assert slot_due(None, (at, 1)) == "0"
    assert slot_due((at, 1), (at + timedelta(minutes=9), 99)) is None
    assert slot_due((at, 1), (at + timedelta(minutes=9), 99), news=True) == "0"
    assert slot_due((at, 1), (at + timedelta(minutes=9), 100)) == "0"
    assert slot_due((at, 1), (at + timedelta(minutes=10), 2)) == "1"
    assert slot_due((at + timedelta(minutes=10), 2), (at + timedelta(minutes=20), 3)) == "0"


def test_an_unfinished_record_counts_as_the_one_before() -> None:
    store = MemoryStore()
    consumer(store, "lake", 5, "0", NOW - HOUR)
    store.put(f"{record_path('e', '1')}/_temporary/0/part-1.txt", b"{")
    assert [c.manifest for c in read_consumers(store)] == [5]


def test_a_layout_that_came_and_went_within_one_manifest_keeps_its_schema() -> None:
    """Each night: ADD COLUMN, UPDATE, DROP COLUMN. A lake merges later."""
    plain, wide = schema_of("public.t", a="int"), schema_of("public.t", a="int", b="int")
    store, tables = MemoryStore(), Tables({}, {})
    for layout in (plain, wide):
        store.put(schema_path(T, layout.id), layout.to_json())
    tables.add(plain)
    writer = ManifestWriter(store)
    for number in range(1, 121):
        at, files = Position(1, number * 10, 0), []
        for layout in (plain, wide, plain)[: 1 if number % 4 else 3]:
            tables.adopt(layout, at.lsn)
            file = file_of(number, "log", at, at, BEGIN + number * DAY / 4)
            files.append(
                file.model_copy(update={"schema_id": layout.id, "path": f"{file.path}-{len(files)}"})
            )
        writer.commit(
            Manifest(
                number=number, term=1, write_id=str(number), source=SHOP, epoch=1, position=number * 10,
                committed_at=BEGIN + number * DAY / 4, files=files, tables=tables.snapshot(number),
            )
        )  # fmt: skip
    assert removed(store).manifests
    assert set(store.list("schema/")) == {schema_path(T, layout.id) for layout in (plain, wide)}


@pytest.mark.parametrize("dumped_from", [None, 119, 121])
def test_the_schema_of_a_layout_that_returns_during_the_run_stays(
    dumped_from: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log lands while manifests are read; or a chunk in it waits, which may have begun meanwhile."""
    former, now = schema_of("public.t", a="int", b="int"), schema_of("public.t", a="int")
    store = MemoryStore()
    writer = ManifestWriter(store)
    for layout in (former, now):
        store.put(schema_path(T, layout.id), layout.to_json())
    dump = DumpState(
        id="d", number=1, table=T, kind="where", epoch=1, requested_at=BEGIN, started_in=119, state="running"
    )

    def commit(number: int, layout: str) -> None:
        at = Position(1, number * 10, 0)
        file = file_of(number, "log", at, at, BEGIN).model_copy(update={"schema_id": layout})
        writer.commit(
            Manifest(
                number=number, term=1, write_id=str(number), source=SHOP, epoch=1, position=number * 10,
                committed_at=BEGIN + number * DAY / 4, files=[file],
                tables={T: TableState(schema_id=now.id, schema_since=60)},
                dumps=[dump] if dumped_from is not None and number >= dumped_from else [],
            )
        )  # fmt: skip

    for number in range(1, 121):
        commit(number, former.id if number < 60 else now.id)
    stored = ManifestReader.stored

    def meanwhile(reader: ManifestReader, number: int) -> StoredManifest | None:
        if number == 110 and dumped_from != 119:
            commit(121, now.id if dumped_from else former.id)
        return stored(reader, number)

    monkeypatch.setattr(ManifestReader, "stored", meanwhile)
    assert removed(store).manifests
    assert set(store.list("schema/")) == {schema_path(T, layout.id) for layout in (former, now)}


def test_an_agent_cut_off_for_longer_than_the_retention_time_is_fenced() -> None:
    store, _ = landing_zone(days=2)
    stalled, active = ManifestHistory(store, term=1), ManifestHistory(store, term=2)
    for agent in (stalled, active):
        agent.load(lambda _newest: SHOP)
    for number in range(9, 20):
        active.commit(position=number * 10)
    for _ in range(2):
        history, now = history_of(store), datetime.now(timezone.utc) + DAY
        remove_unneeded(history, horizon(history, 0 * DAY, now), now=now, dry_run=False)
    assert numbers(store, stubs=True) == [1, 9]
    with pytest.raises(FencedError):
        stalled.verify()
    with pytest.raises(FencedError):
        stalled.commit(position=85)
    assert numbers(store, stubs=True) == [1, 9]


def test_what_a_store_refused_to_remove_goes_with_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    store, files = landing_zone()
    delete = store.delete
    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", lambda path: None if path == manifest_path(30) else delete(path))
        removed(store)
    assert numbers(store) == [30, *range(92, 121)]
    store.put("manifest/000000000000/000000000000003.json.bak", b"somebody's")
    assert removed(store).manifests == 1
    assert [*store.list("manifest/")][1].endswith(".bak")
    assert list(store.list("data/")) == files[91:]
    assert removed(store).objects == 0


def test_a_layout_from_before_what_is_kept_is_at_least_that_old() -> None:
    store, _ = landing_zone()
    store.put(schema_path(T, "s"), schema_of("public.t", a="int").to_json())
    removed(store)
    (version,) = layout_history(store, history_of(store).newest, T)
    assert version.manifest == 92


def test_lakes_of_one_name_each_hold_what_they_need() -> None:
    store, _ = landing_zone()
    for id_, manifest in (("a", 40), ("b", 118)):
        record = Consumer(id=id_, lake="main.shop", manifest=manifest, at=NOW)
        store.put(record_path(id_, "0"), record.model_dump_json().encode())
    removed(store)
    assert numbers(store)[0] == 39
