"""Each change of a table is read once, in any steps, whatever is compacted or removed meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from connector.config import LandingConfig
from connector.errors import ConfigurationError, DeltatideError, FormatError, GapError, SourceMismatchError
from connector.landing.consumers import read_consumers
from connector.landing.format import RETENTION, manifest_path
from connector.landing.manifest_object import Retained, StoredManifest
from connector.landing.manifest_store import read_compacted
from connector.maintenance.retention import History, horizon
from connector.reading.change_log import ChangeLog, Offset
from connector.reading.change_rows import read_layout, read_rows
from connector.reading.table_changes import OpenChanges, TableChanges
from connector.schema import TableName
from connector.testing.memory_store import MemoryStore
from tests.support.landing.landed import AT, Event, Landed, schema_of
from tests.unit.maintenance.test_compaction import DAY, LATER, PLAIN, Zone, insert, small_blocks

__all__ = ["small_blocks"]  # a fixture for each test here, too

T = TableName("public", "t")
OTHER = TableName("public", "other")
LSNS = sorted([10 * n - 2 for n in range(1, 24)] + [10 * n - 1 for n in range(1, 24)] + [*range(10, 240, 20)])


def opened(store: MemoryStore, **more: Any) -> OpenChanges:
    return OpenChanges(TableChanges(LandingConfig(url="/unused"), "shop", T, **more), store)


def read(store: MemoryStore, log: ChangeLog, start: Offset, end: Offset) -> list[dict[str, Any]]:
    parts = log.parts(start, end)
    layouts = {part.file.schema_id: read_layout(store, T, part.file.schema_id) for part in parts}
    return [row for batch in read_rows(store, parts, layouts, PLAIN) for row in batch.to_pylist()]


def lsns(rows: Sequence[dict[str, Any]]) -> list[int]:
    return sorted(row["_cdc"]["lsn"] for row in rows)


@pytest.mark.parametrize("seed", range(15))
def test_each_change_is_read_once_in_any_steps_whatever_is_compacted_meanwhile(seed: int) -> None:
    choices, zone = random.Random(seed), Zone()
    when = sorted(choices.choices(range(24), k=2))
    found: list[dict[str, Any]] = []
    offset, steps = Offset(0), []
    while offset.manifest < 23:
        log = ChangeLog(zone.store, T)  # a new process, or
        for _ in range(choices.randint(1, 3)):  # the same one
            end = log.end(offset, choices.randint(1, 9))
            found += read(zone.store, log, offset, end)
            steps.append((offset, end))
            offset = end
            for _ in range(sum(offset.manifest >= number for number in when)):
                zone.compact(LATER if when.pop() else LATER + 2 * DAY)
    assert lsns(found) == LSNS
    zone.compact(LATER)
    zone.compact(LATER + 2 * DAY)
    assert read_compacted(zone.store, 9) is not None
    log = ChangeLog(zone.store, T)
    again = [row for start, end in steps for row in read(zone.store, log, start, end)]
    assert sorted(map(repr, again)) == sorted(map(repr, found))
    assert all(
        log.after(number).position == end.position
        for number in (9, 14)
        for _, end in steps
        if end.manifest == number
    )
    assert lsns(read(zone.store, log, log.after(7), log.after(13))) == [
        lsn for lsn in LSNS if 70 < lsn <= 130
    ]


def test_changes_of_another_database_are_refused() -> None:
    store = MemoryStore()
    landed = Landed(put=store.put)
    landed.table(PLAIN)
    manifests = [landed.commit(10 * n, [landed.log(PLAIN, [insert(10 * n - 1)])]) for n in (1, 2)]
    source = manifests[1].source.model_copy(update={"database": "store"})
    foreign = StoredManifest.of(manifests[1].model_copy(update={"source": source}), None)
    store.put(manifest_path(2), foreign.to_json())
    with pytest.raises(FormatError, match="different databases"):
        ChangeLog(store, T).end(Offset(0))


def test_what_lands_again_is_left_out_compacted_or_not() -> None:
    store = MemoryStore()
    landed = Landed(put=store.put)
    landed.table(PLAIN)
    for number in range(1, 11):
        again = [insert(10 * number - 15)] if number in (4, 8) else []  # in the manifest before, too
        files = [landed.log(PLAIN, [*again, insert(10 * number - 5), insert(10 * number - 1)])]
        files += [landed.log(PLAIN, [insert(15), insert(19)])] if number == 7 else []
        landed.commit(10 * number, files)
    expected = sorted([*range(5, 100, 10), *range(9, 100, 10)])
    log = ChangeLog(store, T)
    assert lsns(read(store, log, Offset(0), log.end(Offset(0)))) == expected
    zone = Zone()
    zone.store, zone.landed = store, landed
    assert zone.compact().files
    zone.compact(LATER + 2 * DAY)
    for middle in range(11):
        log = ChangeLog(store, T)
        begin, end = log.after(middle), log.end(Offset(0))
        assert lsns(read(store, log, Offset(0), begin) + read(store, log, begin, end)) == expected


def test_a_batch_ends_after_whole_manifests() -> None:
    zone = Zone()
    log = ChangeLog(zone.store, T)
    assert log.end(Offset(0)).manifest == 23
    assert log.end(Offset(0), most_manifests=4).manifest == 4
    assert log.end(Offset(0), most_rows=1).manifest == 1
    assert log.end(Offset(0), most_rows=6).manifest == 3  # 3 + 2 rows, and 3
    assert log.end(log.after(20), most_manifests=9, most_rows=99).manifest == 23
    assert log.end(log.after(23)) == log.after(23)
    zone.landed.commit(240)
    assert log.end(log.after(23)).manifest == 24
    assert log.end(log.after(23)).position == log.after(23).position


def test_dumped_rows_are_read_on_request() -> None:
    zone = Zone()
    rows = {}
    for dumps in (False, True):
        log = ChangeLog(zone.store, T, dumps=dumps)
        found = read(zone.store, log, Offset(0), log.end(Offset(0)))
        rows[dumps] = [row["_cdc"]["op"] for row in found]
    assert (rows[False].count("dump"), rows[True].count("dump")) == (0, 1)
    assert len(rows[True]) == len(rows[False]) + 1


def test_rows_have_the_wanted_columns_and_types_and_the_source_s_markers() -> None:
    zone = Zone()
    log = ChangeLog(zone.store, T)
    start, end = log.after(7), log.after(9)
    found = {row["_cdc"]["lsn"]: row for row in read(zone.store, log, start, end)}
    assert list(found[78]) == ["id", "a", "b", "c", "_cdc"]
    assert found[79]["_cdc"]["unchanged"] == ["b"]
    assert found[78]["_cdc"]["raw"] == [("c", "infinity")]
    assert (found[90]["id"], found[90]["a"]) == (90, None)  # landed in a layout without it
    (part, *_) = log.parts(start, end)
    zone.store.put(part.file.path, zone.store.objects[part.file.path][:-1])
    with pytest.raises(DeltatideError, match="not as it was written"):
        read(zone.store, log, start, end)


def test_a_column_of_the_source_may_have_the_name_of_before_images_where_none_land() -> None:
    store, schema = MemoryStore(), schema_of(str(T), id="int", _before="string")
    landed = Landed(put=store.put)
    landed.table(schema)
    landed.commit(10, [landed.log(schema, [Event("insert", 5, 2, {"id": 1, "_before": "its own"})])])
    (part,) = ChangeLog(store, T).parts(Offset(0), ChangeLog(store, T).end(Offset(0)))
    wanted, layouts = schema, {part.file.schema_id: schema}
    (batch,) = read_rows(store, [part], layouts, wanted)
    assert batch.column("_before").to_pylist() == ["its own"]
    (batch,) = read_rows(
        store, [part], layouts, replace(wanted, columns=wanted.columns[:1], before_images=True)
    )
    assert batch.column("_before").to_pylist() == [None]  # the column was dropped since, and images land


def test_a_query_holds_what_it_has_yet_to_read_and_one_that_is_too_old_is_refused() -> None:
    zone = Zone()
    zone.compact()
    now = LATER + 2 * DAY
    changes = opened(zone.store)
    changes.record("loader", changes.after("11"))
    (consumer,) = read_consumers(zone.store)
    assert (consumer.title, consumer.manifest) == ("stream loader", 11)
    history = History.of(zone.store)
    assert history is not None
    assert "stream loader" in [need.who for need in horizon(history, timedelta(0), now).needs]
    zone.retain(now)
    eleven = ChangeLog(zone.store, T).after(11)
    log = ChangeLog(zone.store, T)
    log.check(eleven)
    assert lsns(read(zone.store, log, eleven, log.end(eleven))) == [lsn for lsn in LSNS if lsn > 110]
    for refused in (
        lambda: log.check(Offset(5)),
        lambda: log.after(2),
        lambda: log.end(Offset(3)),
        lambda: log.parts(Offset(3), eleven),
    ):
        with pytest.raises(GapError, match=r"manifests \d+ to \d+ were removed") as error:
            refused()
        assert "start after manifest" in (error.value.hint or "")


def test_of_queries_of_two_tables_that_start_at_once_one_has_the_name() -> None:
    zone = Zone()
    queries = [
        opened(zone.store),
        OpenChanges(TableChanges(LandingConfig(url="/"), "shop", OTHER), zone.store),
    ]
    assert [query.recorded("loader") for query in queries] == [None, None]
    for manifest in (11, 12):
        queries[0].record("loader", Offset(manifest))
        with pytest.raises(ConfigurationError, match=r"'loader' is a query of public\.t, and this one"):
            queries[1].record("loader", Offset(13))
        assert queries[0].recorded("loader") == manifest


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("quiet", [False, True])
def test_after_the_last_removed_manifest_nothing_comes_that_landed_by_then(
    compacted: bool, quiet: bool
) -> None:
    zone = Zone()
    path = manifest_path(9)
    if quiet:  # the first kept manifest has nothing of the table
        stored = StoredManifest.from_json(zone.store.objects[path], path)
        zone.store.put(path, stored.model_copy(update={"files": []}).to_json())
    if compacted:
        zone.compact()
    changes = opened(zone.store)
    changes.record("loader", changes.after("11"))
    zone.retain(LATER + 2 * DAY)
    log = ChangeLog(zone.store, T)
    with pytest.raises(GapError) as refused:
        log.after(7)
    assert "start after manifest 8" in (refused.value.hint or "")
    found = lsns(read(zone.store, log, log.after(8), log.end(log.after(8))))
    assert found == [lsn for lsn in LSNS if lsn > (90 if quiet else 80)]


def test_an_offset_of_another_landing_zone_and_a_hole_are_refused() -> None:
    zone = Zone()
    log = ChangeLog(zone.store, T)
    for offset in (Offset(5, "another"), Offset(24, "24")):
        with pytest.raises(SourceMismatchError, match="not the one that was read"):
            log.check(offset)
    log.check(Offset.from_dict(log.after(5).to_dict()))
    with pytest.raises(FormatError, match="not an offset"):
        Offset.from_dict({"lake": 1})
    zone.store.delete(manifest_path(12))
    log = ChangeLog(zone.store, T)
    log.check(log.after(5))
    with pytest.raises(FormatError, match=r"0012\.json is missing"):
        log.end(log.after(5))
    with pytest.raises(ConfigurationError, match="has not landed"):
        log.after(99)
    with pytest.raises(ConfigurationError, match=r"'public\.nothing' has not landed, or is no longer cap"):
        ChangeLog(zone.store, TableName("public", "nothing")).newest()


def test_a_range_is_named_by_manifests_positions_or_times() -> None:
    store = MemoryStore()
    landed = Landed(put=store.put)
    landed.table(PLAIN)
    for number in range(1, 6):
        landed.commit(16 * number, at=AT + timedelta(hours=number))
    changes = opened(store)
    named = [None, "0", "3", "0/F", "0/10", "1:0/4F", "2026-01-02T05:04:06Z", "2026-01-02", "newest"]
    found = [changes.after(text).manifest for text in named]
    assert found == [0, 0, 3, 0, 1, 4, 2, 0, 5]
    with pytest.raises(ConfigurationError, match="neither a manifest"):
        changes.after("yesterday")
    for moment in ("0/50", "0/FF", "2026-01-03"):
        with pytest.raises(ConfigurationError, match="nothing later than") as refused:
            opened(store).after(moment)
        assert "the newest is 5" in (refused.value.hint or "")
    landed.commit(80)  # a chunk, say, at the same position
    landed.commit(81)
    assert opened(store).after("0/50").manifest == 6


@pytest.mark.parametrize("seed", range(3))
def test_a_time_is_the_same_manifest_whatever_lands_later_though_times_are_not_in_order(seed: int) -> None:
    """Else of two ranges that meet there, read one after the other, neither has what lies between."""
    choices, store = random.Random(seed), MemoryStore()
    times = [AT + timedelta(seconds=10 * n + choices.randrange(45)) for n in range(40)]
    asked = [AT + timedelta(seconds=second) for second in range(60, 360, 20)]
    landed, known = Landed(put=store.put), dict[datetime, int]()
    landed.table(PLAIN)
    for number, time in enumerate(times, 1):
        landed.commit(16 * number, at=time)
        for moment in asked:
            if max(times[:number]) > moment:
                found = opened(store).after(moment.isoformat()).manifest
                assert known.setdefault(moment, found) == found
    assert known == {at: next(n for n, time in enumerate(times) if time > at) for at in asked}


def test_a_time_that_may_be_that_of_a_removed_manifest_is_refused() -> None:
    """Manifest 2 is the first one later than second 25: after its removal, a later one would be."""
    store = MemoryStore()
    landed = Landed(put=store.put)
    landed.table(PLAIN)
    for number, second in enumerate((0, 30, 5, 20, 40, 200, 300), 1):
        landed.commit(16 * number, at=AT + timedelta(seconds=second))
    moments = {second: (AT + timedelta(seconds=second)).isoformat() for second in (25, 64, 65)}
    assert opened(store).after(moments[25]).manifest == 1
    store.put(RETENTION, Retained(first=3, at=AT).to_json())
    for moment in (moments[25], moments[64], "0/1F"):
        with pytest.raises(GapError, match="may name a manifest before 3, the first one kept") as refused:
            opened(store).after(moment)
        assert "name manifest 2, or" in (refused.value.hint or "")
    assert opened(store).after("2").manifest == 2
    assert opened(store).after(moments[65]).manifest == 5
