"""Which files a merge reads, after full dumps and changes of layout."""

from __future__ import annotations

import pytest

from connector.errors import GapError
from connector.landing.manifest import DumpState, Manifest
from connector.position import Position
from merge.plan import plan_past_holes, plan_table
from tests.support.landing.landed import AT, Chunk, Event, Landed, schema_of

NARROW = schema_of("public.t", id="int", a="int")
TEXT = schema_of("public.t", id="int", a="string")
RENAMED = schema_of("public.t", ("pid",), pid="int", a="int")
T = NARROW.table


def event(lsn: int, key: int = 1) -> Event:
    return Event("insert", lsn, 0, {"id": key, "a": key})


def dumped(landed: Landed, schema: object, number: int, low: int) -> None:
    """A full dump that one manifest plans, commits and finishes."""
    landed.full_dump(T, number, low, started_in=landed.number + 1)
    chunk = Chunk(low, low + 1, [{"id": 1, "a": None}], dump=number)
    landed.commit(low + 2, [landed.chunk(schema, chunk)])  # type: ignore[arg-type]


def test_nothing_is_read_from_before_the_last_full_dump() -> None:
    landed = Landed()
    landed.table(NARROW)
    landed.commit(10, [landed.log(NARROW, [event(5)])])
    landed.commit(20, [landed.log(TEXT, [event(15)])])
    dumped(landed, TEXT, 1, low=25)
    landed.commit(40, [landed.log(NARROW, [event(35)])])
    dumped(landed, NARROW, 2, low=45)
    straddling = landed.log(NARROW, [event(44, key=2), event(48)])
    later = landed.log(NARROW, [event(60)])
    landed.commit(70, [straddling, later])
    plan = plan_table(T, landed, 0, landed.number)
    assert [sweep.dump for sweep in plan.sweeps] == ["dump-2"]
    assert [(f.kind, f.dump) for f in plan.all] == [("log", None), ("log", None), ("chunk", "dump-2")]
    assert plan.all_schema_ids == [NARROW.id]


def test_a_chunk_that_comes_after_a_full_dump_it_is_older_than_brings_no_ghost_back() -> None:
    """A dump of rows, read before the table was replaced under its name, and held on its way to the store."""
    landed = Landed()
    landed.table(NARROW)
    landed.commit(10, [landed.log(NARROW, [event(5)])])
    dumped(landed, NARROW, 2, low=25)
    late = landed.chunk(NARROW, Chunk(12, 18, [{"id": 9, "a": 9}], dump=1))
    fresh = landed.chunk(NARROW, Chunk(26, 28, [{"id": 2, "a": 2}], dump=3))
    landed.commit(40, [late, fresh])
    assert plan_table(T, landed, 2, 3).files == (fresh,)
    assert plan_table(T, landed, 0, 3).files[-1] == fresh
    assert late not in plan_table(T, landed, 0, 3).files


def test_such_a_chunk_brings_none_back_however_many_dumps_have_ended_since() -> None:
    """A manifest names only the last finished dumps; the state of the table tells of its own."""
    landed = Landed()
    landed.table(NARROW)
    dumped(landed, NARROW, 2, low=25)
    landed.dumps.clear()
    landed.commit(30)
    late = landed.chunk(NARROW, Chunk(12, 18, [{"id": 9, "a": 9}], dump=1))
    landed.commit(40, [late])
    assert plan_table(T, landed, 2, 3).files == ()


def test_log_from_before_a_full_dump_is_not_read_again_for_a_chunk_that_comes_after_it() -> None:
    """Nor the beginning of a file of log that the dump lies in: what it tells of rows is swept already."""
    landed = Landed()
    landed.table(NARROW)
    landed.full_dump(T, 2, 25, started_in=1)
    astride = landed.log(NARROW, [event(18, key=9), event(30)])
    landed.commit(31, [astride, landed.chunk(NARROW, Chunk(25, 28, [{"id": 1, "a": 1}], dump=2))])
    late = landed.chunk(NARROW, Chunk(12, 20, [{"id": 9, "a": 9}], dump=1))
    landed.commit(40, [late])
    assert plan_table(T, landed, 1, 2).all == ()
    fresh = landed.chunk(NARROW, Chunk(28, 38, [{"id": 2, "a": 2}], dump=3))
    landed.commit(50, [late, fresh])
    plan = plan_table(T, landed, 1, 3)
    assert (plan.files, plan.again, plan.low) == ((fresh,), (astride,), fresh.first)
    twice = landed.log(NARROW, [event(18, key=9), event(30)])
    landed.commit(60, [twice])
    plan = plan_table(T, landed, 3, 4)
    assert (plan.files, plan.low, plan.straddles_sweep) == (
        (twice,),
        Position.of_chunk(1, 25, dump_number=2),
        True,
    )
    assert plan.swept is not None
    assert Position(1, 18, 0) < plan.swept < Position(1, 30, 0)


def test_a_full_dump_that_ends_after_a_later_one_brings_no_ghost_back() -> None:
    """Its last chunk was read before the table was replaced, the later dump after that."""
    landed = Landed()
    landed.table(NARROW)
    landed.commit(20, [landed.chunk(NARROW, Chunk(12, 18, [{"id": 1, "a": 1}], dump=1))])
    dumped(landed, NARROW, 2, low=25)
    landed.full_dump(T, 1, 12, started_in=1)
    landed.commit(40, [landed.chunk(NARROW, Chunk(15, 19, [{"id": 9, "a": 9}], dump=1))])
    plan = plan_table(T, landed, 2, 3)
    assert plan.files == ()
    assert [sweep.dump for sweep in plan.sweeps] == ["dump-1"]
    assert plan_table(T, landed, 0, 3).sweeps[0].dump == "dump-2"


class Torn(Landed):
    lost: tuple[int, ...] = (1,)

    def get(self, number: int) -> Manifest:
        if number in self.lost:
            raise GapError(f"manifest {number} is missing")
        return super().get(number)


def test_what_lacks_old_manifests_begins_at_the_last_full_dump() -> None:
    """Which may reach back before the manifest that planned it; without one, the hole ends the merge."""
    landed = Torn()
    landed.table(NARROW)
    landed.commit(10, [landed.log(NARROW, [event(5)])])
    landed.commit(20)
    before = landed.log(NARROW, [event(24, key=7), event(28)])
    landed.commit(30, [before])
    dumped(landed, NARROW, 2, low=26)
    with pytest.raises(GapError):
        plan_past_holes(T, landed, 0, 3)
    landed.commit(50, [landed.log(NARROW, [event(45)])])
    torn = [plan_past_holes(T, landed, after, 5) for after in (0, 1)]
    landed.lost = ()
    whole = plan_table(T, landed, 0, 5)
    for plan in torn:
        assert plan.after == 3
        assert (plan.again, plan.low) == ((before,), Position.of_chunk(1, 26, dump_number=2))
        assert (sorted(f.path for f in plan.all), plan.sweeps) == (
            sorted(f.path for f in whole.all),
            whole.sweeps,
        )


def test_past_a_hole_all_log_since_the_dumps_low_watermark_is_read_though_its_chunks_have_no_rows() -> None:
    """Its sweep spares keys positioned after that, which may have been deleted in the hole."""
    landed = Torn()
    landed.table(NARROW)
    landed.commit(60, [landed.log(NARROW, [event(55)])])
    landed.commit(70)
    landed.commit(80, [landed.log(NARROW, [Event("delete", 75, 0, {"id": 1})])])
    landed.commit(90)
    for number, low in ((1, 39), (2, 72)):  # a commit there was not visible until then
        landed.full_dump(T, number, low, started_in=landed.number + 1)
        landed.commit(100 * number)
    with pytest.raises(GapError):
        plan_past_holes(T, landed, 0, 5)
    plan = plan_past_holes(T, landed, 0, 6)
    assert [file.first.lsn for file in plan.again] == [75]
    assert plan.low == Position.of_chunk(1, 72, dump_number=2)


def test_while_the_log_is_idle_no_manifest_is_read_again_from_before_a_chunks_dump_was_queued() -> None:
    """None of them can hold a chunk of a later dump; those from then on may."""
    landed = Torn()
    landed.table(NARROW)
    landed.commit(40, [landed.log(NARROW, [event(35)])])
    for _ in range(10):
        landed.commit(40)
    for number in (7, 8):
        landed.missing_dump(T, number)
    later, keyed = (landed.chunk(NARROW, Chunk(40, 41, [], [{"id": 1}], dump=n)) for n in (7, 8))
    landed.commit(40, [keyed])
    landed.commit(40, [later])
    landed.lost = tuple(range(1, 11))
    plan = plan_table(T, landed, 12, 13)
    assert (plan.files, plan.again, plan.low) == ((later,), (keyed,), later.first)


def test_the_log_since_the_lowest_chunk_is_kept_though_the_dump_ended_later() -> None:
    landed = Landed()
    landed.table(NARROW)
    during = landed.log(NARROW, [event(15)])
    landed.commit(20, [during, landed.chunk(NARROW, Chunk(12, 18, [{"id": 1, "a": 1}], dump=3))])
    landed.full_dump(T, 3, 12, started_in=1)
    landed.commit(30, [landed.chunk(NARROW, Chunk(22, 28, [{"id": 2, "a": 1}], dump=3))])
    plan = plan_table(T, landed, 1, 2)
    assert [len(sweep.chunks) for sweep in plan.sweeps] == [2]
    assert plan_table(T, landed, 0, 2).files[0] == during


def test_what_landed_under_another_key_is_left_out() -> None:
    landed = Landed()
    landed.table(NARROW)
    dumped(landed, NARROW, 1, low=5)
    landed.commit(20, [landed.log(NARROW, [event(15)])])
    landed.table(RENAMED)
    new = landed.log(RENAMED, [event(25)])
    landed.commit(30, [new])
    schemas = {schema.id: schema for schema in (NARROW, RENAMED)}
    plan = plan_table(T, landed, 0, 3).of_key(schemas)
    assert (plan.all, plan.sweeps) == ((new,), ())
    dumped(landed, RENAMED, 2, low=35)
    assert len(plan_table(T, landed, 0, 4).of_key(schemas).sweeps) == 1


def test_a_paused_full_dump_brings_no_rows_soon_nor_does_one_that_waits_behind_it() -> None:
    landed = Landed()
    landed.table(NARROW)
    first, second = (
        DumpState(id=id_, number=1, table=T, kind="full", epoch=1, requested_at=AT, started_in=1)
        for id_ in "de"
    )
    first.state = "running"
    for dumps in ([first], [first, second]):
        landed.dumps = dumps
        for paused in (False, True):
            first.paused = paused
            landed.commit(10 * landed.number + 10, [landed.log(NARROW, [event(10 * landed.number + 5)])])
            assert plan_table(T, landed, 0, landed.number).dumping is not paused
    first.state = "complete"
    landed.commit(100)
    assert plan_table(T, landed, 0, landed.number).dumping
