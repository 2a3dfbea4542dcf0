"""What a table still needs after a dump of it was cancelled: not any other dump makes up for it."""

from __future__ import annotations

from typing import Any

import pytest

from connector.capture import catalog_watcher
from connector.capture.catalog_changes import stop_capturing
from connector.capture.dumps.controls import carry_out
from connector.capture.dumps.needs import MOST_GAPS, DumpNeeds
from connector.capture.dumps.queue import COMPLETED_KEPT, DumpQueue
from connector.capture.dumps.tasks import FinishedChunk, PlanTask, ReadTask
from connector.capture.dumps.workers import DumpWorkers
from connector.capture.request_intake import RequestIntake
from connector.capture.tables import Tables
from connector.errors import RequestError
from connector.landing.event_batch import QuarantineNotice
from connector.landing.manifest import DumpState, Manifest, TableState
from connector.landing.requests import ControlRequest, DumpRequest, submit
from connector.masking.columns import shown_unmasked
from connector.schema import Column, TableName, TableSchema
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, dump_of
from tests.support.agent.starts import Start
from tests.support.landing.cuts import assert_every_cut_exact

ITEMS = TableName.parse("public.items")
SLOW = {"chunk_rows": 1, "delay_seconds": 0.1, "workers": 1}


def captured(*names: TableName) -> Tables:
    tables = Tables({}, {})
    for name in names:
        tables.add(TableSchema(name, (Column("id", "bigint", "bigint"),), ("id",)))
    return tables


def cancel(dumps: DumpQueue, tables: Tables, dump: DumpState | None = None) -> None:
    which: dict[str, Any] = {"all": True} if dump is None else {"dump": dump.id}
    carry_out(ControlRequest(kind="cancel", **which), dumps, tables)


def request(dumps: DumpQueue, tables: Tables, position: int) -> None:
    """Ask for a dump of all tables; the newest manifest is at `position`."""
    intake = RequestIntake(MemoryStore(), None, dumps, tables, {})  # type: ignore[arg-type]
    intake._serve(DumpRequest(), 9, position)


def complete(dumps: DumpQueue, tables: Tables, manifest: int) -> None:
    """Read and commit the one chunk of the next dump."""
    plan = dumps.next_task(0)
    assert isinstance(plan, PlanTask)
    dumps.planned(plan, None)
    finish(dumps, tables, manifest)


def finish(dumps: DumpQueue, tables: Tables, manifest: int) -> None:
    task = dumps.next_task(0)
    assert isinstance(task, ReadTask)
    dumps.finished(FinishedChunk(task, 10_000, 10_000, 1, tables.schemas[task.dump.table], None))
    dumps.take_committable(10_000, manifest)
    for dump in dumps.finished_in(manifest):
        tables.dumped_by(dump)


def states(dumps: DumpQueue, tables: Tables, manifest: int) -> dict[TableName, TableState]:
    return tables.snapshot(manifest, dumps.needs.copy())


def running_repairs(manifest: Manifest) -> list[DumpState]:
    return [d for d in manifest.dumps if d.reason == "repair" and d.active]


def test_a_repair_that_runs_does_not_make_up_for_a_later_one_that_is_cancelled(
    database: MemoryDatabase, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, short_waits: None
) -> None:
    monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", 0.05)
    with Agent(database, store) as agent:
        agent.wait_dumped()
    database.unlogged[ITEMS] = 1
    with Agent(database, store, **SLOW) as agent:
        agent.wait(lambda m: any(d.chunks > 3 for d in running_repairs(m)), "the first repair runs")
        database.unlogged[ITEMS] = 2
        manifest = agent.wait(lambda m: len(running_repairs(m)) == 2, "the second one waits")
        second = next(d for d in running_repairs(manifest) if d.state == "waiting")
        submit(store, ControlRequest(kind="cancel", dump=second.id))
        agent.wait(lambda m: not dump_of(m, second.id).active, "it is cancelled")
    with Agent(database, store) as agent:
        manifest = agent.wait(lambda m: not any(d.active for d in m.dumps), "the first repair ends")
        assert not manifest.exact
        assert not manifest.tables[ITEMS].dumped
        submit(store, DumpRequest(tables=[ITEMS]))
        agent.wait(lambda m: m.exact, "the table is whole after another dump")
    assert_every_cut_exact(store, database)


def test_a_full_dump_that_runs_does_not_make_up_for_the_cancelled_repair_of_a_new_column() -> None:
    tables, dumps = captured(ITEMS), DumpQueue([], epoch=1)
    dumps.add(ITEMS, manifest=1, reason="initial")
    plan = dumps.next_task(0)
    assert isinstance(plan, PlanTask)
    dumps.planned(plan, None)
    repair = dumps.add(ITEMS, manifest=2, kind="where", where="c IS NOT NULL", reason="repair", floor=500)
    cancel(dumps, tables, repair)
    finish(dumps, tables, 3)
    assert not states(dumps, tables, 3)[ITEMS].dumped
    request(dumps, tables, 400)
    assert dumps.active_of(ITEMS)[0].floor == 500
    complete(dumps, tables, 4)
    assert states(dumps, tables, 4)[ITEMS].dumped


def test_a_dump_that_waits_behind_a_cancelled_one_sees_what_that_was_to_see() -> None:
    tables, dumps = captured(ITEMS), DumpQueue([], epoch=1)
    first = dumps.add(ITEMS, manifest=1, reason="initial", floor=5000, xid_barrier=777)
    request(dumps, tables, 4000)
    cancel(dumps, tables, first)
    (waiting,) = dumps.active_of(ITEMS)
    assert (waiting.floor, waiting.xid_barrier) == (5000, 777)
    dumps.start_unblocked({777: 6000}.get)
    complete(dumps, tables, 3)
    assert states(dumps, tables, 3)[ITEMS].dumped


def test_no_floor_depends_on_how_many_finished_dumps_are_remembered() -> None:
    names = [TableName("shop", f"t{n:03}") for n in range(COMPLETED_KEPT + 50)]
    tables, dumps = captured(*names), DumpQueue([], epoch=1)
    for name in names:
        tables.update(name, dumped=True)
        dumps.add(name, manifest=7, reason="repair", floor=9000)
    cancel(dumps, tables)
    dumps.snapshot()
    dumps.snapshot()
    request(dumps, tables, 1000)
    assert {d.floor for d in dumps.states if d.active} == {9000}


def test_needs_outlast_a_restart_but_their_floors_not_the_epoch() -> None:
    tables, dumps = captured(ITEMS), DumpQueue([], epoch=1)
    dumps.add(ITEMS, manifest=1, reason="initial", floor=5000, xid_barrier=777)
    cancel(dumps, tables)
    recorded = {
        name: TableState.model_validate_json(state.model_dump_json(exclude_none=True))
        for name, state in states(dumps, tables, 2).items()
    }
    again = DumpQueue([], epoch=1, last_number=dumps.last_number, needs=DumpNeeds.of(recorded))
    dump = again.add(ITEMS, manifest=3)
    assert (dump.floor, dump.xid_barrier) == (5000, 777)
    again.lower_unreachable_floors(lambda: 5, 60)
    assert (again.needs.by_table[ITEMS].floor, again.needs.by_table[ITEMS].xid_barrier) == (60, 5)
    again.continue_in_epoch(2, manifest=4)
    again.log_opened()
    later = again.add(ITEMS, manifest=4)
    assert [(d.floor, d.xid_barrier) for d in (dump, later)] == [(None, None)] * 2
    assert not states(again, tables, 4)[ITEMS].dumped
    complete(again, tables, 5)
    assert states(again, tables, 5)[ITEMS].dumped


def test_log_that_did_not_land_is_told_of_until_a_full_dump_has_ended_whatever_becomes_of_floors() -> None:
    """Whoever derives a history must never take over what was known before (`TableState.gaps`)."""
    tables, dumps = captured(ITEMS), DumpQueue([], epoch=1)

    def gaps(manifest: int) -> list[tuple[int, int]]:
        return states(dumps, tables, manifest)[ITEMS].gaps

    dumps.add(ITEMS, manifest=1, reason="missing", floor=40)  # it only has to see what has landed
    assert gaps(1) == []
    dumps.add(ITEMS, manifest=2, reason="repair", floor=50, xid_barrier=7)
    assert gaps(2) == [(1, 50)]
    cancel(dumps, tables)
    dumps.start_unblocked(lambda _: 90)  # no dump waits for the barrier, only the need
    assert gaps(3) == [(1, 50), (1, 90)]
    dumps.lower_unreachable_floors(lambda: 5, 60)
    dumps.continue_in_epoch(2, manifest=4)
    assert gaps(4) == [(1, 50), (1, 60), (1, 90)]
    dumps.carry_gaps(tables.states, 300)  # by then the new log has shown what was before the floor
    dumps.carry_gaps(tables.states, 400)
    told = [(1, 50), (1, 60), (1, 90), (2, 300), (2, 400)]
    assert gaps(5) == told
    dumps.carry_gaps(tables.states, 500)
    again = Tables(dict(tables.states), tables.schemas)  # a restart
    dumps = DumpQueue([], epoch=2, last_number=dumps.last_number, needs=DumpNeeds.of(again.states))
    tables = again
    assert gaps(6) == told
    assert dumps.add(ITEMS, manifest=7).floor == 400
    complete(dumps, tables, 7)
    assert gaps(7) == told  # the manifest that ends them names them, too
    assert gaps(8) == []


def test_a_dump_of_all_tables_does_not_release_one_that_would_show_a_masked_column() -> None:
    """Nobody has read what would land then. A dump that names the table says that somebody has."""
    parts = TableName.parse("public.parts")
    dumps, tables = DumpQueue([], epoch=1), captured(ITEMS, parts)
    tables.quarantine_unfit(shown_unmasked(ITEMS, "ssn", "note"), 50)
    tables.take_notices()
    request(dumps, tables, 60)
    assert [d.table for d in dumps.states] == [parts]
    assert tables.states[ITEMS].state == "quarantined"
    (notice,) = tables.take_notices()
    assert "'note' was 'ssn', which lands masked; a dump of it by name lands it so" in notice.text
    tables.remove(parts)
    with pytest.raises(RequestError, match="'note' was 'ssn', which lands masked"):
        request(dumps, tables, 70)


def test_a_dump_of_all_tables_that_has_to_wait_says_once_which_it_skips() -> None:
    """It is tried again every few seconds, and each notice is a manifest."""
    tables = captured(ITEMS, parts := TableName.parse("public.parts"))
    tables.quarantine_unfit(shown_unmasked(ITEMS, "ssn", "note"), 50)
    tables.quarantine(QuarantineNotice(parts, 5, "broken", "fix it"))
    tables.take_notices()
    with pytest.raises(AttributeError):  # there is no source to ask
        request(DumpQueue([], epoch=1), tables, 60)
    assert tables.take_notices() == []


def test_gaps_that_are_repaired_day_after_day_are_not_kept() -> None:
    """All that are remembered are compared with those of the table, for each manifest."""
    dumps, tables = DumpQueue([], epoch=1), captured(ITEMS)
    for day in range(1, 100):
        dumps.require(ITEMS, day * 50, None)
        dumps.add(ITEMS, manifest=day, reason="repair", floor=day * 50)
        assert states(dumps, tables, day)[ITEMS].gaps[-1] == (1, day * 50)
    assert len(dumps.needs.gaps[ITEMS]) == MOST_GAPS
    assert len(tables.states[ITEMS].gaps) == 99, "no dump has ended"


@pytest.mark.parametrize("lost", [True, False])
def test_a_repair_that_begins_again_in_another_epoch_ends_the_gaps_it_is_for(lost: bool) -> None:
    """Whether that epoch's log is of after a gap, or of another server."""
    tables, dumps = captured(ITEMS), DumpQueue([], epoch=1)
    dumps.add(ITEMS, manifest=2, reason="repair", floor=50_000)
    assert states(dumps, tables, 2)[ITEMS].gaps == [(1, 50_000)]
    if lost:
        dumps.restart_in_epoch(2)
        dumps.add(ITEMS, manifest=3, reason="repair")
    else:
        dumps.continue_in_epoch(2, manifest=3)
    assert states(dumps, tables, 3)[ITEMS].gaps == [(1, 50_000)], "that is no position of the other log"
    dumps.carry_gaps(tables.states, 300)
    assert [dump.floor for dump in dumps.active_of(ITEMS)] == [300], "log before it is still to be read"
    dumps.log_opened()
    complete(dumps, tables, 4)
    assert states(dumps, tables, 4)[ITEMS].gaps == [(1, 50_000), (2, 300)]
    assert states(dumps, tables, 5)[ITEMS].gaps == []


def test_the_dump_of_a_released_table_sees_what_did_not_land_though_the_releasing_one_is_cancelled(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    """A dump from before the quarantine, which is still being ended, does not count either."""
    start = Start(database, store)
    tables, dumps = start.open()
    (before,) = dumps.active_of(ITEMS)
    before.state = "running"
    tables.quarantine(QuarantineNotice(ITEMS, 5, "broken", "fix it"))
    intake = RequestIntake(store, start.source, dumps, tables, {})
    for id_ in ("releasing", "later"):
        intake._serve(DumpRequest(id=id_, tables=[ITEMS]), 2, 70_000)
    _, releasing, later = dumps.active_of(ITEMS)
    cancel(dumps, tables, releasing)
    assert (later.floor or 0) >= 70_000
    assert later.xid_barrier == releasing.xid_barrier
    assert before.number <= dumps.needs.by_table[ITEMS].outdated < later.number


def test_a_first_dump_that_has_begun_goes_on_when_the_log_is_reopened(
    database: MemoryDatabase, store: MemoryStore
) -> None:
    start = Start(database, store)
    tables, dumps = start.open()
    (first,) = dumps.active_of(ITEMS)
    first.state = "running"
    start.start_capturing(tables, dumps)
    assert (dumps.active_of(ITEMS), dumps.needs.copy().by_table) == ([first], {})
    tables.update(ITEMS, fingerprint=None)  # the log may have lacked it
    start.start_capturing(tables, dumps)
    assert [(d.reason, d.state) for d in dumps.active_of(ITEMS)] == [("repair", "waiting")]


def test_a_table_that_is_no_longer_captured_needs_nothing() -> None:
    tables, dumps = captured(ITEMS), DumpQueue([], epoch=1)
    dumps.add(ITEMS, manifest=1, reason="initial", floor=5000)
    stop_capturing(tables, dumps, [ITEMS])
    assert dumps.needs.copy() == DumpNeeds()


def test_a_cancelled_repair_of_rows_does_not_come_back_as_a_full_dump() -> None:
    tables, dumps = captured(ITEMS), DumpQueue([], epoch=1)
    dumps.add(ITEMS, manifest=1, kind="where", where="c IS NOT NULL", reason="repair", floor=5)
    task = dumps.next_task(0)
    assert task is not None
    cancel(dumps, tables)
    workers = DumpWorkers(None, dumps, None, tables.key)  # type: ignore[arg-type]
    workers._fail(task, RequestError("no such column"))
    assert not dumps.active_of(ITEMS)


def test_a_dump_whose_name_a_cancelled_one_had_reads_all_chunks() -> None:
    """The cancelled one's chunk was read, but not yet committed."""
    dumps = DumpQueue([], epoch=1)
    first = dumps.add(ITEMS, manifest=1, request="nightly", digest="x")
    plan = dumps.next_task(0)
    assert isinstance(plan, PlanTask)
    dumps.planned(plan, None)
    task = dumps.next_task(0)
    assert isinstance(task, ReadTask)
    dumps.finished(FinishedChunk(task, 10, 20, 1, TableSchema(ITEMS, (), ()), None))
    dumps.end(first, "cancelled", "by request")
    dumps.states.clear()
    dumps.add(ITEMS, manifest=2, request="nightly", digest="x")
    plan = dumps.next_task(0)
    assert isinstance(plan, PlanTask)
    dumps.planned(plan, None)
    assert isinstance(dumps.next_task(0), ReadTask)


def test_no_dump_has_a_negative_speed_after_a_failover() -> None:
    from connector.capture.dumps.schedule import DumpSchedule

    now = [0.0]
    dumps = DumpQueue([], 1, schedule=DumpSchedule(clock=lambda: now[0]))
    dump = dumps.add(ITEMS, manifest=1)
    for chunks in (9, 1):
        for key in range(chunks):
            plan = dumps.next_task(0)
            assert isinstance(plan, PlanTask)
            dumps.planned(plan, (str(key),))
            now[0] += 30
            task = dumps.next_task(0)
            assert isinstance(task, ReadTask)
            dumps.finished(FinishedChunk(task, 10, 20, 1000, TableSchema(ITEMS, (), ()), None))
            dumps.take_committable(20, 2)
        if chunks == 9:
            dumps.continue_in_epoch(2, manifest=5)
            dumps.log_opened()
    assert dump.rows_per_second is None or dump.rows_per_second >= 0
