"""Dumps as they are planned, read and committed, without a database or a thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pytest

from connector.capture.catalog_changes import end_dumps_of_quarantined
from connector.capture.dumps import queue as dump_queue
from connector.capture.dumps.queue import COMPLETED_KEPT, DumpQueue
from connector.capture.dumps.schedule import DumpSchedule
from connector.capture.dumps.tasks import KEYS_PER_CHUNK, FinishedChunk, PlanTask, ReadTask
from connector.capture.tables import Tables
from connector.config import DumpConfig
from connector.landing.manifest import DumpState
from connector.schema import Column, TableName, TableSchema

SCHEMA = TableSchema(TableName("public", "items"), (Column("id", "bigint", "bigint"),), ("id",))


@pytest.fixture
def dumps() -> DumpQueue:
    return DumpQueue([], epoch=1, schedule=DumpSchedule(DumpConfig(workers=64)))


def plan(dumps: DumpQueue, upto: str | None) -> None:
    task = dumps.next_task(0)
    assert isinstance(task, PlanTask)
    dumps.planned(task, (upto,) if upto else None)


def take(dumps: DumpQueue) -> ReadTask:
    task = dumps.next_task(0)
    assert isinstance(task, ReadTask)
    return task


def read(task: ReadTask, low: int = 90, high: int = 100, rows: int = 5) -> FinishedChunk:
    return FinishedChunk(task, low, high, rows, SCHEMA, None)


def again(dumps: DumpQueue) -> DumpQueue:
    """The dumps as an agent finds them that starts from the last manifest."""
    states = [DumpState.model_validate_json(s.model_dump_json(exclude_none=True)) for s in dumps.snapshot()]
    schedule = DumpSchedule(dumps.schedule.config, dumps.schedule.control)
    return DumpQueue(states, epoch=dumps.epoch, last_number=dumps.last_number, schedule=schedule)


def test_ranges_leave_nothing_out_and_the_last_one_is_open(dumps: DumpQueue) -> None:
    dumps.add(TableName.parse("public.items"), manifest=1)
    ranges = []
    for upto in ("10", "20", None):
        plan(dumps, upto)
        ranges.append(take(dumps).range)
    assert [(r.after, r.upto) for r in ranges] == [(None, ("10",)), (("10",), ("20",)), (("20",), None)]
    assert dumps.next_task(0) is None


def test_several_workers_read_ranges_of_one_dump_but_one_plans(dumps: DumpQueue) -> None:
    dumps.add(TableName.parse("public.items"), manifest=1)
    planning = dumps.next_task(0)
    assert isinstance(planning, PlanTask)
    assert dumps.next_task(0) is None
    dumps.planned(planning, ("10",))
    first = take(dumps)
    plan(dumps, "20")
    second = take(dumps)
    assert (first.chunk, second.chunk) == (0, 1)


def test_the_oldest_dump_comes_first(dumps: DumpQueue) -> None:
    first, second = (dumps.add(table, manifest=1) for table in ("public.a", "public.b"))
    tasks = [dumps.next_task(0), dumps.next_task(0)]
    assert [task.dump for task in tasks if task] == [first, second]


def test_a_dump_starts_over_if_a_chunk_is_read_in_another_order_of_its_key(dumps: DumpQueue) -> None:
    """Keys between the ranges of two orders would be in no chunk, and their rows taken for ghosts."""
    dumps.add(SCHEMA.table, manifest=1)
    plan(dumps, "a")
    dumps.finished(replace(read(take(dumps)), order="bytes"))
    dumps.take_committable(100, manifest=2)
    dumps = again(dumps)
    (state,), number = dumps.states, dumps.states[0].number
    plan(dumps, "b")
    second = take(dumps)
    plan(dumps, "c")
    third = take(dumps)
    planning = dumps.next_task(0)
    dumps.finished(replace(read(second), order="letters"))
    assert dumps.take_committable(100, manifest=3) == []
    dumps.finished(replace(read(third), order="letters"))
    assert isinstance(planning, PlanTask)
    dumps.planned(planning, None)
    assert (state.state, state.started_in, state.rows, state.open, state.order) == ("running", 3, 0, [], None)
    assert state.number > number
    plan(dumps, "b")
    dumps.finished(replace(read(take(dumps)), order="letters"))
    plan(dumps, None)
    dumps.finished(replace(read(take(dumps)), order="letters"))
    assert len(dumps.take_committable(100, manifest=4)) == 2
    assert state.state == "complete"


def test_a_chunk_waits_for_its_high_watermark(dumps: DumpQueue) -> None:
    state = dumps.add(TableName.parse("public.items"), manifest=1)
    plan(dumps, None)
    dumps.finished(read(take(dumps), low=90, high=100))
    assert not dumps.committable(99)
    assert dumps.take_committable(99, manifest=2) == []
    assert state.state == "running"
    assert dumps.committable(100)
    assert len(dumps.take_committable(100, manifest=3)) == 1
    assert (state.state, state.finished_in, state.low, state.rows) == ("complete", 3, 90, 5)
    assert dumps.finished_in(3) == [state]


def test_a_dump_is_complete_only_when_every_chunk_is_committed_in_whatever_order(dumps: DumpQueue) -> None:
    state = dumps.add(TableName.parse("public.items"), manifest=1)
    plan(dumps, "10")
    first = take(dumps)
    plan(dumps, None)
    dumps.finished(read(take(dumps), low=80))
    dumps.take_committable(200, manifest=2)
    assert state.state == "running"
    assert [r.chunk for r in state.open] == [0]
    dumps.finished(read(first, low=70))
    dumps.take_committable(200, manifest=3)
    assert (state.state, state.low, state.chunks) == ("complete", 70, 2)


def test_a_task_given_back_is_taken_again(dumps: DumpQueue) -> None:
    dumps.add(TableName.parse("public.items"), manifest=1)
    task = dumps.next_task(0)
    assert task
    dumps.give_back(task)
    plan(dumps, None)
    task = take(dumps)
    assert dumps.next_task(0) is None
    dumps.give_back(task)
    assert take(dumps).chunk == task.chunk


def test_after_a_crash_what_was_not_committed_is_read_again_and_the_rest_is_not(dumps: DumpQueue) -> None:
    dumps.add(TableName.parse("public.items"), manifest=1)
    plan(dumps, "10")
    dumps.finished(read(take(dumps)))
    plan(dumps, "20")
    take(dumps)
    dumps.take_committable(100, manifest=2)
    restarted = again(dumps)
    task = take(restarted)
    assert (task.chunk, task.range.after, task.range.upto) == (1, ("10",), ("20",))
    plan(restarted, None)
    assert take(restarted).range.after == ("20",)


def test_a_chunk_that_was_read_and_not_committed_is_read_again_after_a_crash(dumps: DumpQueue) -> None:
    dumps.add(TableName.parse("public.items"), manifest=1)
    plan(dumps, None)
    dumps.finished(read(take(dumps), high=100))
    dumps.take_committable(99, manifest=2)
    assert take(again(dumps)).chunk == 0


def test_given_keys_are_read_in_chunks_of_bounded_size(dumps: DumpQueue) -> None:
    keys = [[str(n)] for n in range(KEYS_PER_CHUNK + 1)]
    state = dumps.add(TableName.parse("public.items"), manifest=1, kind="keys", keys=keys)
    first, second = take(dumps), take(dumps)
    assert list(first.keys or ()) == keys[:KEYS_PER_CHUNK]
    assert list(second.keys or ()) == keys[KEYS_PER_CHUNK:]
    dumps.finished(read(first))
    dumps.finished(read(second))
    dumps.take_committable(100, manifest=2)
    assert state.state == "complete"


def test_named_ranges_fill_the_queue_as_keys_do(dumps: DumpQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_queue, "MOST_KEYS", 4)
    dumps.add(SCHEMA.table, manifest=1, kind="verify_rows", ranges=[(None, 1), (3, 5)], request="a")
    assert not dumps.is_full
    dumps.add(SCHEMA.table, manifest=1, kind="verify_rows", ranges=[(None, 1), (3, None)], request="b")
    assert dumps.is_full


def test_requests_do_not_wait_for_the_first_dumps_of_however_many_tables(
    dumps: DumpQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all dumps, those of a few keys would come first."""
    monkeypatch.setattr(dump_queue, "MOST_ACTIVE", 2)
    for number in range(3):
        dumps.add(TableName("public", f"t{number}"), manifest=1, reason="initial")
    assert not dumps.is_full
    for number in range(2):
        dumps.add(SCHEMA.table, manifest=1, kind="keys", keys=[["1"]], request=f"r{number}")
    assert dumps.is_full


def test_a_chunk_of_an_epoch_that_ended_is_dropped_and_read_again(dumps: DumpQueue) -> None:
    dumps.add(TableName.parse("public.items"), manifest=1, kind="where", where="a = 1")
    plan(dumps, "10")
    old = take(dumps)
    plan(dumps, None)
    dumps.finished(read(take(dumps)))
    dumps.restart_in_epoch(2)
    dumps.finished(read(old))
    assert dumps.take_committable(1 << 60, manifest=2) == []
    dumps.log_opened()
    tasks = [take(dumps), take(dumps)]
    assert [(t.chunk, t.epoch) for t in tasks] == [(0, 2), (1, 2)]


def test_full_dumps_end_with_their_epoch(dumps: DumpQueue) -> None:
    full = dumps.add(TableName.parse("public.items"), manifest=1)
    where = dumps.add(TableName.parse("public.items"), manifest=1, kind="where", where="a = 1")
    dumps.restart_in_epoch(2)
    assert (full.state, where.state, where.epoch) == ("cancelled", "waiting", 2)


def test_a_verification_that_starts_over_reads_the_ranges_it_was_given(dumps: DumpQueue) -> None:
    """Not the whole table, of which it compares only these."""
    items = TableName.parse("public.items")
    verify = dumps.add(items, manifest=1, kind="verify_rows", ranges=[(None, 5), (7, 9)])
    dumps.finished(read(take(dumps)))
    dumps.take_committable(1 << 60, manifest=2)
    dumps = again(dumps)
    dumps.continue_in_epoch(2, manifest=3)
    dumps.log_opened()
    for ends in ((None, ("5",)), (("7",), ("9",))):
        task = take(dumps)
        assert (task.range.after, task.range.upto, task.range.of_prefix) == (*ends, True)
        dumps.finished(read(task))
    dumps.take_committable(1 << 60, manifest=4)
    assert [(d.id, d.state, d.chunks, d.ranges) for d in dumps.states] == [(verify.id, "complete", 2, [])]


def test_dumps_go_on_in_the_log_of_another_server_and_full_ones_begin_again(dumps: DumpQueue) -> None:
    full = dumps.add(TableName.parse("public.items"), manifest=1, reason="initial", floor=7)
    plan(dumps, "10")
    dumps.finished(read(take(dumps)))
    dumps.take_committable(1 << 60, manifest=2)
    late = dumps.next_task(0)
    where = dumps.add(TableName.parse("public.items"), manifest=2, kind="where", where="a = 1", floor=9)
    before = full.number
    dumps.continue_in_epoch(2, manifest=3)
    assert isinstance(late, PlanTask)
    dumps.planned(late, ("20",))  # by the former server's rows
    assert (full.state, full.reason, full.started_in, full.rows, full.low) == (
        "running",
        "initial",
        3,
        0,
        None,
    )
    assert full.number > before
    assert {state.epoch for state in (full, where)} == {2}
    assert {state.floor for state in (full, where)} == {None}
    assert dumps.next_task(0) is None
    dumps.log_opened()
    planning = [task for task in (dumps.next_task(0), dumps.next_task(0)) if isinstance(task, PlanTask)]
    assert [(task.dump, task.after) for task in planning] == [(where, None), (full, None)]


def test_nothing_is_handed_out_until_the_log_of_the_new_epoch_is_open(dumps: DumpQueue) -> None:
    dumps.restart_in_epoch(2)
    dumps.add(TableName.parse("public.items"), manifest=1)
    assert dumps.next_task(0) is None
    dumps.log_opened()
    assert dumps.next_task(0) is not None


def test_a_dump_that_ended_takes_no_more_chunks_or_plans(dumps: DumpQueue) -> None:
    state = dumps.add(TableName.parse("public.items"), manifest=1)
    plan(dumps, "10")
    reading, planning = take(dumps), dumps.next_task(0)
    assert isinstance(planning, PlanTask)
    dumps.end(state, "failed", "as asked")
    dumps.finished(read(reading))
    dumps.planned(planning, None)
    assert dumps.take_committable(100, manifest=2) == []
    assert (state.state, state.open, state.error) == ("failed", [], "as asked")
    assert dumps.next_task(0) is None


def test_a_request_is_known_by_its_id_and_content_and_no_two_dumps_share_an_id(dumps: DumpQueue) -> None:
    asked = [
        ("one", None),
        ("two", 0),
        ("two", 1),
        ("two.1", None),
        ("two.1", None),
        ("one.1", 4),
        (None, None),
    ]
    for request, part in asked * 2:
        dumps.add(SCHEMA.table, manifest=1, request=request, digest="d", part=part)
    known = [dumps.has_taken(name, "d") for name in ("one", "two", "tw", "two.0", "one.1")]
    assert known == [True, True, False, False, True]
    assert len({state.id for state in dumps.states}) == 14
    assert [state.id for state in dumps.states[:3]] == ["one", "two.0", "two.1"]


def test_a_finished_dump_keeps_little(dumps: DumpQueue) -> None:
    long = "x" * 100_000
    failed = dumps.add(SCHEMA.table, manifest=1, kind="where", where=long)
    dumps.end(failed, "failed", long)
    dumps.add(SCHEMA.table, manifest=1, kind="keys", keys=[[long]])
    dumps.finished(read(take(dumps)))
    dumps.take_committable(100, manifest=2)
    assert [len(state.model_dump_json()) < 1500 for state in dumps.snapshot()] == [True, True]


def test_news_is_what_no_snapshot_has_shown(dumps: DumpQueue) -> None:
    state = dumps.add(TableName.parse("public.items"), manifest=1)
    assert dumps.news
    dumps.snapshot()
    assert not dumps.news
    dumps.end(state, "failed", "as asked")
    assert dumps.news


def test_old_dumps_are_forgotten_but_never_unfinished_ones(dumps: DumpQueue) -> None:
    first = dumps.add(SCHEMA.table, manifest=1)
    for _ in range(COMPLETED_KEPT + 5):
        dumps.end(dumps.add(SCHEMA.table, manifest=1), "cancelled")
    dumps.snapshot()
    assert len(dumps.states) == COMPLETED_KEPT + 1
    assert dumps.states[0] is first


def test_the_manifest_that_finishes_dumps_names_all_of_them_however_many(dumps: DumpQueue) -> None:
    """The merge sweeps each table's ghosts by them, and the agent counts each table as dumped."""
    count = COMPLETED_KEPT + 50
    tables = {TableName("public", f"t{n}") for n in range(count)}
    for table in tables:
        dumps.add(table, manifest=1)
        plan(dumps, None)
        dumps.finished(read(take(dumps)))
    dumps.take_committable(100, manifest=2)
    assert {state.table for state in dumps.finished_in(2)} == tables
    assert {state.table for state in dumps.snapshot() if state.finished_in == 2} == tables
    dumps.take_committable(101, manifest=3)
    assert len(dumps.snapshot()) == COMPLETED_KEPT


class Walked(list[DumpState]):
    """Counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[DumpState]:
        self.times += 1
        return super().__iter__()


def test_dumps_of_thousands_of_tables_are_gone_through_once_and_not_once_for_each(dumps: DumpQueue) -> None:
    dumps.states = states = Walked()
    tables = Tables({}, {})
    for number in range(50):
        table = TableName("public", f"t{number}")
        tables.add(replace(SCHEMA, table=table))
        tables.update(table, state="quarantined", reason="odd value")
        dumps.add(table, manifest=1)
    assert states.times == 0
    end_dumps_of_quarantined(tables, dumps)
    assert {d.error for d in list.__iter__(states)} == {"the table is quarantined: odd value"}
    assert states.times == 1


def test_a_snapshot_does_not_change_with_the_dumps(dumps: DumpQueue) -> None:
    dumps.add(TableName.parse("public.items"), manifest=1)
    plan(dumps, "10")
    before = dumps.snapshot()
    dumps.finished(read(take(dumps)))
    dumps.take_committable(100, manifest=2)
    assert len(before[0].open) == 1


def test_floors_and_marks_that_the_source_has_taken_back_are_lowered(dumps: DumpQueue) -> None:
    for name, floor, xid_barrier in (("a", 100, None), ("b", 50, 9), ("c", 50, 3), ("d", 60, None)):
        dumps.add(TableName("public", name), manifest=1, floor=floor, xid_barrier=xid_barrier)
    dumps.lower_unreachable_floors(lambda: 5, 60)
    assert [(s.floor, s.xid_barrier) for s in dumps.states] == [(60, 5), (60, 5), (50, 3), (60, None)]
    dumps.snapshot()
    for state in dumps.states:
        state.xid_barrier = None
    dumps.lower_unreachable_floors(pytest.fail, 60)
    assert not dumps.news


@pytest.mark.parametrize("reason", ["initial", "request", "repair"])
def test_a_floor_that_the_log_has_not_reached_is_raised_whatever_its_dump_is_for(
    dumps: DumpQueue, reason: Literal["initial", "request", "repair"]
) -> None:
    """A crash may have taken back what a check saw there; after a cancelled repair, any full dump repairs."""
    ended = dumps.add(SCHEMA.table, manifest=1, reason="repair", floor=50)
    dumps.end(ended, "cancelled")
    dump = dumps.add(SCHEMA.table, manifest=1, reason=reason)
    dumps.snapshot()
    dumps.requeue_uncommitted(50, 90)  # what has landed is not taken back
    assert (dump.floor, dumps.needs.by_table[SCHEMA.table].floor) == (50, 50)
    dumps.requeue_uncommitted(40, 90)
    assert (dump.floor, dumps.needs.by_table[SCHEMA.table].floor) == (90, 90)
    assert not dumps.news
