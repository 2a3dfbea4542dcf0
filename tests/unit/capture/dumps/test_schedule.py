"""Which dump is read next, and when, by a clock of the test's."""

from __future__ import annotations

from typing import Any

import pytest

from connector.capture.dumps.queue import DumpQueue
from connector.capture.dumps.schedule import FEW_CHUNKS, FOREVER, DumpSchedule
from connector.capture.dumps.tasks import FinishedChunk, PlanTask, ReadTask
from connector.config import DumpConfig
from connector.landing.manifest import DumpControl, DumpSettings, DumpState
from connector.schema import TableName
from tests.support.clock import Clock
from tests.support.landing.landed import schema_of

SCHEMA = schema_of("public.t", id="int")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def queue_of(clock: Clock, control: DumpControl | None = None, **settings: Any) -> DumpQueue:
    schedule = DumpSchedule(DumpConfig(**settings), control, clock)
    return DumpQueue([], epoch=1, schedule=schedule)


def add(dumps: DumpQueue, table: str, **what: Any) -> DumpState:
    return dumps.add(TableName("public", table), manifest=1, **what)


def step(dumps: DumpQueue, rows: int = 10) -> str | None:
    """Do one task whole; return its table."""
    task = dumps.next_task(0)
    if isinstance(task, PlanTask):
        dumps.planned(task, (str(task.dump.next_chunk),))
    elif isinstance(task, ReadTask):
        dumps.finished(FinishedChunk(task, 90, 100, rows, SCHEMA, None))
    return task.dump.table.name if task is not None else None


def test_keys_go_before_predicates_and_these_before_full_dumps(clock: Clock) -> None:
    dumps = queue_of(clock)
    add(dumps, "full")
    assert step(dumps) == "full"
    add(dumps, "where", kind="where", where="a = 1")
    add(dumps, "keys", kind="keys", keys=[["1"]])
    assert [step(dumps) for _ in range(3)] == ["keys", "where", "where"]


def test_a_new_table_does_not_wait_behind_a_long_dump_and_two_long_ones_take_turns(clock: Clock) -> None:
    dumps = queue_of(clock, workers=1)
    add(dumps, "long")
    for _ in range(FEW_CHUNKS * 4):
        step(dumps)
    add(dumps, "new")
    assert {step(dumps) for _ in range(FEW_CHUNKS * 2 - 1)} == {"new"}
    taken = [step(dumps) for _ in range(40)]
    assert 15 < taken.count("long") < 25


def test_dumps_that_are_all_postponed_again_and_again_get_their_turn(clock: Clock) -> None:
    """As where each of the statements that keep coming may have changed all tables."""
    dumps = queue_of(clock, workers=1)
    names, begun = ("a", "b", "c", "d"), set[str]()
    for _ in range(2 * len(names)):
        for name in names:
            if not dumps.require(TableName("public", name), 50, None):
                dumps.add(TableName("public", name), manifest=1, reason="repair", floor=50)
        task = dumps.next_task(0)
        assert task is not None
        begun.add(task.dump.table.name)
        dumps.give_back(task)
        dumps.end(task.dump, "cancelled")
    assert begun == set(names)


def test_a_full_dump_waits_for_the_one_before_it_even_if_that_is_paused(clock: Clock) -> None:
    dumps = queue_of(clock)
    first = add(dumps, "t")
    step(dumps)
    first.paused = True
    add(dumps, "t")
    assert dumps.next_task(0) is None
    first.paused = False
    task = dumps.next_task(0)
    assert task is not None
    assert task.dump is first


def test_no_more_tasks_are_out_than_workers_set_for_all_or_for_one(clock: Clock) -> None:
    dumps = queue_of(clock, workers=3)
    one = add(dumps, "one", kind="keys", keys=[[str(n)] for n in range(5000)])
    add(dumps, "other", kind="keys", keys=[[str(n)] for n in range(5000)])
    one.settings = DumpSettings(workers=1)
    tasks = [dumps.next_task(0) for _ in range(4)]
    assert [task and task.dump.table.name for task in tasks] == ["one", "other", "other", None]
    with dumps.changing() as schedule:
        schedule.control = DumpControl(settings=DumpSettings(workers=4))
    assert dumps.next_task(0) is not None
    assert dumps.next_task(0) is None
    assert tasks[0] is not None
    dumps.give_back(tasks[0])
    assert dumps.next_task(0) is not None


def test_a_worker_pauses_after_a_chunk_and_a_shorter_delay_ends_the_pause(clock: Clock) -> None:
    dumps = queue_of(clock, workers=2, delay_seconds=60)
    dump = add(dumps, "t", kind="keys", keys=[[str(n)] for n in range(9000)])
    assert [step(dumps), step(dumps), step(dumps)] == ["t", "t", None]
    assert dumps.schedule.seconds_until_free() == 60
    clock.now += 59
    assert step(dumps) is None
    clock.now += 1
    assert step(dumps) == "t"
    assert [step(dumps), step(dumps)] == ["t", None]
    dump.settings = DumpSettings(delay_seconds=1)
    clock.now += 1
    assert step(dumps) == "t"


def test_a_long_delay_of_one_dump_holds_however_many_chunks_of_others_are_read_meanwhile(
    clock: Clock,
) -> None:
    dumps = queue_of(clock, workers=2)
    for table, seconds in (("slow", 3600), ("quick", 0.01)):
        dump = add(dumps, table, kind="keys", keys=[[str(n)] for n in range(90_000)])
        dump.settings = DumpSettings(delay_seconds=seconds, workers=1)
    read = []
    while clock.now < 1100:
        read.append(step(dumps))
        clock.now += 1
    assert (read.count("slow"), read.count("quick")) == (1, 90)


def test_rows_per_second_holds_over_chunks_and_a_higher_rate_ends_the_wait(clock: Clock) -> None:
    dumps = queue_of(clock, workers=2, rows_per_second=100)
    dump = add(dumps, "t", kind="keys", keys=[[str(n)] for n in range(30_000)])
    assert step(dumps, rows=1000) == "t"
    assert step(dumps) is None
    assert dumps.schedule.seconds_until_free() == 10
    clock.now += 10
    assert step(dumps, rows=1000) == "t"
    clock.now += 1
    assert step(dumps) is None
    with dumps.changing() as schedule:
        schedule.control = DumpControl(settings=DumpSettings(rows_per_second=10_000))
    assert step(dumps) is None
    clock.now += 0.1
    assert step(dumps, rows=1000) == "t"
    dump.settings = DumpSettings(rows_per_second=1)
    assert dumps.schedule.seconds_until_free(dump) > 500
    with dumps.changing() as schedule:
        schedule.control = DumpControl(settings=DumpSettings(rows_per_second=0))
    dump.settings = None
    assert step(dumps) == "t"


def test_settings_of_a_dump_precede_those_set_for_all_and_these_the_configuration(clock: Clock) -> None:
    control = DumpControl(settings=DumpSettings(chunk_rows=20, workers=5))
    dumps = queue_of(clock, control, chunk_rows=10, delay_seconds=3)
    dump = add(dumps, "t")
    dump.settings = DumpSettings(chunk_rows=30)
    found = dumps.schedule.settings(dump)
    assert (found.chunk_rows, found.workers, found.delay_seconds, found.rows_per_second) == (30, 5, 3, 0)
    assert dumps.schedule.settings().chunk_rows == 20


def test_nothing_is_read_while_dumps_are_held_back(clock: Clock) -> None:
    dumps = queue_of(clock)
    add(dumps, "t")
    dumps.hold_back("threads_running is 90")
    assert step(dumps) is None
    dumps.hold_back(None)
    assert step(dumps) == "t"


def test_speed_is_the_mean_of_the_last_minute_or_so_and_starts_over_after_a_pause(clock: Clock) -> None:
    dumps = queue_of(clock)
    dump = add(dumps, "t", kind="keys", keys=[[str(n)] for n in range(100_000)])

    def chunk(seconds: float, rows: int) -> float | None:
        step(dumps, rows)
        clock.now += seconds
        dumps.take_committable(100, manifest=2)
        return dump.rows_per_second

    assert chunk(10, 1000) == 100.0
    assert [chunk(10, 5000) for _ in range(8)][-1] == 500.0
    dumps.schedule.restart_clock(dump)
    clock.now += 3600
    assert chunk(10, 200) == 20.0
    assert dumps.schedule.seconds_until_free(dump) == 0
    dump.paused = True
    assert dumps.schedule.seconds_until_free(dump) == FOREVER


def test_a_decision_does_not_take_longer_the_more_chunks_were_read(clock: Clock) -> None:
    """The queue's lock is held meanwhile, which the loop needs to commit."""
    dumps = queue_of(clock, delay_seconds=0.1, workers=2)
    dump = add(dumps, "a")
    for _ in range(5000):
        clock.now += 0.2
        dumps.schedule.read(dump, 1)
    assert len(dumps.schedule._worker_rests) <= 64
