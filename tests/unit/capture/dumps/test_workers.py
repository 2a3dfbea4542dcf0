"""What becomes of a dump that fails."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from connector.capture.catalog_changes import end_dumps_of_quarantined
from connector.capture.dumps import workers as dump_workers
from connector.capture.dumps.queue import DumpQueue
from connector.capture.dumps.tasks import FinishedChunk, PlanTask, ReadTask
from connector.capture.dumps.workers import DumpWorkers
from connector.capture.tables import Tables
from connector.errors import NotYetError, RequestError, TableError, TransientError
from connector.landing.manifest import OpenRange
from connector.schema import TableName
from connector.source import KeyRange
from connector.testing.memory_tables import MemoryChunk
from tests.support.landing.landed import schema_of

SCHEMA = schema_of("public.t", id="int")


def workers_of(dumps: DumpQueue, tables: Tables) -> DumpWorkers:
    """Workers whose threads are not started."""
    nothing: Any = None
    return DumpWorkers(nothing, dumps, nothing, tables.key)


def test_a_dump_that_quarantines_its_table_stays_active_until_the_quarantine_is_taken_over() -> None:
    """A manifest that had only the first of these would be called exact."""
    for error in (TableError(SCHEMA.table, "it can't be read"), RequestError("no")):
        tables, dumps = Tables({}, {}), DumpQueue([], epoch=1)
        tables.add(SCHEMA)
        workers = workers_of(dumps, tables)
        dump = dumps.add(SCHEMA.table, manifest=1, reason="repair")
        task = dumps.next_task(0)
        assert task is not None
        workers._fail(task, error)
        assert dump.active
        assert dumps.next_task(0) is None, "it rests meanwhile"
        (found,) = workers.take_quarantined(7)
        assert (found.table, found.lsn) == (SCHEMA.table, 7)


def test_a_dump_starts_over_where_its_ranges_end_at_what_is_no_key_any_more() -> None:
    """The label of an enum was renamed, or the key's type changed: the database refuses the old values."""

    class Altered:
        order = "bytes"

        def next_boundary(self, *_: Any) -> None:
            raise TableError(SCHEMA.table, "invalid input value")

        @contextlib.contextmanager
        def open_chunk(self, *_: Any) -> Iterator[MemoryChunk]:
            yield MemoryChunk(SCHEMA, 5, 6, [{"id": 1}], None, self.next_boundary, self.order)

    tables, dumps, altered = Tables({}, {}), DumpQueue([], epoch=1), Altered()
    tables.add(SCHEMA)
    workers, source = workers_of(dumps, tables), cast("Any", altered)
    workers._lander = cast("Any", MagicMock())
    dump = dumps.add(SCHEMA.table, manifest=1, reason="repair")
    plan = dumps.next_task(0)
    assert isinstance(plan, PlanTask)
    dumps.planned(plan, ("3",))  # by an agent that did not record the order then
    read = dumps.next_task(0)
    assert isinstance(read, ReadTask)
    dumps.finished(FinishedChunk(read, 1, 2, 1, SCHEMA, None, order=altered.order))
    assert len(dumps.take_committable(9, manifest=2)) == 1
    plan = dumps.next_task(0)
    assert isinstance(plan, PlanTask)
    with pytest.raises(TableError):
        workers._run_task(plan, source)
    altered.order = "letters"
    workers._run_task(plan, source)
    read = dumps.next_task(0)
    assert isinstance(read, ReadTask)
    workers._run_task(read, source)
    assert dumps.take_committable(9, manifest=3) == []
    assert (dump.state, dump.started_in, dump.open, dump.planned_upto) == ("running", 3, [], None)


def test_a_dump_knows_the_order_of_its_key_from_its_first_end_on() -> None:
    """A label that was renamed before the first chunk had landed quarantined the table."""

    class Table:
        order = "labels"

        def estimate_rows(self, *_: Any) -> None:
            return None

        def next_boundary(self, *_: Any) -> tuple[str, ...]:
            return ("one",)

        @contextlib.contextmanager
        def open_chunk(self, _: TableName, key_range: KeyRange, *_where: Any) -> Iterator[MemoryChunk]:
            def refuse(_moment: str) -> None:
                if self.order != "labels":
                    raise TableError(SCHEMA.table, "invalid input value for enum mood")

            ends = key_range.after or key_range.upto
            yield MemoryChunk(SCHEMA, 5, 6, [{"id": 1}], None, refuse, self.order if ends else None)

    tables, dumps, table = Tables({}, {}), DumpQueue([], epoch=1), Table()
    tables.add(SCHEMA)
    workers, source = workers_of(dumps, tables), cast("Any", table)
    workers._lander = cast("Any", MagicMock())
    dump = dumps.add(SCHEMA.table, manifest=1, reason="initial")
    plan = dumps.next_task(0)
    assert isinstance(plan, PlanTask)
    workers._run_task(plan, source)
    assert dump.order == "labels"
    table.order = "renamed"
    read = dumps.next_task(0)
    assert isinstance(read, ReadTask)
    workers._run_task(read, source)
    assert dumps.take_committable(9, manifest=2) == []
    assert (dump.state, dump.open, dump.planned_upto, dump.order) == ("running", [], None, None)


def test_another_worker_that_fails_later_does_not_quarantine_the_table_again_once_it_is_released() -> None:
    tables, dumps = Tables({}, {}), DumpQueue([], epoch=1)
    tables.add(SCHEMA)
    workers = workers_of(dumps, tables)
    dump = dumps.add(SCHEMA.table, manifest=1)
    task = dumps.next_task(0)
    assert task is not None
    workers._fail(task, TableError(SCHEMA.table, "its key changed"))
    (found,) = workers.take_quarantined(7)
    tables.quarantine(found)
    end_dumps_of_quarantined(tables, dumps)
    workers._fail(task, TableError(SCHEMA.table, "its key changed"))
    tables.release(SCHEMA.table, SCHEMA)
    dumps.add(SCHEMA.table, manifest=2)
    assert not dump.active
    assert workers.take_quarantined(8) == []


def test_a_dump_that_fails_for_now_again_and_again_lets_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two chunks of it are planned, so that it always has one to read."""
    monkeypatch.setattr(dump_workers, "RETRY_SECONDS", (0.0, 60.0))
    tables, dumps = Tables({}, {}), DumpQueue([], epoch=1)
    workers = workers_of(dumps, tables)
    failing = dumps.add(SCHEMA.table, manifest=1)
    other = dumps.add(TableName("public", "other"), manifest=1)
    for upto in ("1", "2"):
        failing.open.append(OpenRange(chunk=failing.next_chunk, upto=[upto]))
        failing.next_chunk += 1

    def served(timeout: float) -> Any:
        task = dumps.next_task(timeout)
        assert task is not None
        if task.dump is failing:
            workers._back_off(task, None, 0, TransientError("connection lost"))
        else:
            dumps.give_back(task)
        return task.dump

    assert [served(0), served(0)] == [failing, other]
    other.paused = True
    assert served(1) is failing
    other.paused = False
    assert served(0) is other
    assert dumps.schedule.seconds_until_free(failing) > 30, "it failed twice"


def test_a_dump_that_waits_for_the_source_is_tried_again_soon_and_then_ever_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log that a first dump waits for is usually there a moment later."""
    dumps = DumpQueue([], epoch=1)
    workers = workers_of(dumps, Tables({}, {}))
    dumps.add(SCHEMA.table, manifest=1)
    task = dumps.next_task(0)
    assert task is not None
    rests: list[float] = []
    monkeypatch.setattr(dumps, "give_back", lambda _task, rest: rests.append(rest))
    for _ in range(7):
        workers._postpone(task, NotYetError("not yet"))
    assert rests == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_dump_that_waits_says_why_until_a_chunk_of_it_is_read() -> None:
    dumps = DumpQueue([], epoch=1)
    workers = workers_of(dumps, Tables({}, {}))
    dump = dumps.add(SCHEMA.table, manifest=1)
    dumps.snapshot()
    task = dumps.next_task(0)
    assert task is not None
    for number in range(7):
        assert dump.error is None or number > 5, "the log that it waits for is usually there a moment later"
        workers._postpone(task, NotYetError(f"another session holds a lock, {number}"))
    assert dump.error == "another session holds a lock, 5"
    assert dumps.news
    dumps.snapshot()
    workers._postpone(task, NotYetError("another session holds a lock, 7"))
    assert not dumps.news, "it is said once"
    workers._note_waiting(dump, None)
    assert (dump.error, dumps.news) == (None, True)
    for _ in dump_workers.RETRY_SECONDS:
        assert dump.error is None
        back_off_at_once(workers, task)
    assert dump.error == "connection lost"
    dumps.end(dump, "failed", "no")
    workers._note_waiting(dump, None)
    assert dump.error == "no"


def back_off_at_once(workers: DumpWorkers, task: Any) -> None:
    """Fail once more, without the pause."""
    workers._stopping.set()
    workers._back_off(task, None, 0, TransientError("connection lost"))


def test_a_worker_without_a_task_leaves_its_connections_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server had none left for the measurement of its load, for which the dumps were held back."""
    dumps, closed = DumpQueue([], epoch=1), threading.Event()
    workers = workers_of(dumps, Tables({}, {}))
    dumps.add(SCHEMA.table, manifest=1)
    tasks = [dumps.next_task(0)]
    monkeypatch.setattr(dump_workers, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(dumps, "next_task", lambda timeout: tasks.pop() if tasks else None)
    monkeypatch.setattr(workers, "_run_task", lambda *_: None)
    workers._source = cast("Any", SimpleNamespace(open_tables=lambda: SimpleNamespace(close=closed.set)))
    thread = threading.Thread(target=workers._run, daemon=True)
    thread.start()
    assert closed.wait(10)
    workers._stopping.set()
    thread.join(10)
    assert workers.failure is None


def test_a_worker_keeps_its_connections_after_a_task_that_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    dumps, now, closed = DumpQueue([], epoch=1), [0.0], list[float]()
    workers = workers_of(dumps, Tables({}, {}))
    dumps.add(SCHEMA.table, manifest=1)
    tasks = [dumps.next_task(0)]

    def next_task(timeout: float) -> Any:
        now[0] += timeout
        if closed:
            workers._stopping.set()
        return tasks.pop() if tasks else None

    def take_long(*_: object) -> None:
        now[0] = 1000.0

    monkeypatch.setattr(dump_workers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(dumps, "next_task", next_task)
    monkeypatch.setattr(workers, "_run_task", take_long)
    tables = SimpleNamespace(close=lambda: closed.append(now[0]))
    workers._source = cast("Any", SimpleNamespace(open_tables=lambda: tables))
    workers._run()
    assert closed == [1000.0 + dump_workers.IDLE_SECONDS + 0.5]
    assert workers.failure is None


def test_an_error_of_the_schedule_ends_the_agent_and_not_only_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dumps = DumpQueue([], epoch=1)
    workers = workers_of(dumps, Tables({}, {}))

    def overflow(timeout: float) -> None:
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr(dumps, "next_task", overflow)
    with contextlib.suppress(OverflowError):
        workers._run()
    assert isinstance(workers.failure, OverflowError)
