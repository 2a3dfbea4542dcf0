"""Lag is measured where the log ends, not by the age of the last change."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from connector.figures import progress
from connector.figures.progress import BOUNDS, Durations, Lag
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, insert, shop
from tests.support.clock import Clock


def at(position: int, epoch: int = 1, committed: float | None = None) -> Any:
    """Return a manifest at a position; `committed`: seconds ago, when its last change was."""
    when = None if committed is None else datetime.now(timezone.utc) - timedelta(seconds=committed)
    return SimpleNamespace(position=position, epoch=epoch, source_committed_at=when)


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


@pytest.fixture
def lag(clock: Clock) -> Lag:
    return Lag(clock)


def test_an_idle_source_is_not_behind_however_old_its_last_change(lag: Lag, clock: Clock) -> None:
    clock.now = 3600.0
    lag.sample(at(10, committed=3600), 10, 0, 0)
    assert (lag.seconds(at(10, committed=3600)), lag.bytes) == (0.0, 0)


def test_under_constant_writes_lag_is_the_age_of_the_end_that_has_landed(lag: Lag, clock: Clock) -> None:
    for second in range(60):  # the log grows by 100 a second, and lands 5 seconds later
        clock.now = float(second)
        landed = at(max(0, 100 * (second - 5)))
        lag.sample(landed, 100 * second, 0, 500)
    assert lag.seconds(landed) == 5.0
    assert lag.bytes == 500


def test_a_change_after_a_quiet_hour_is_not_an_hour_of_lag(lag: Lag, clock: Clock) -> None:
    for clock.now, position in ((0.0, 10), (3599.8, 10), (3600.0, 20), (3602.0, 20)):
        lag.sample(at(10, committed=3600), position, 0, position - 10)
    assert lag.seconds(at(10, committed=3600)) == pytest.approx(2.2)


def test_lag_grows_while_the_source_does_not_answer(lag: Lag, clock: Clock) -> None:
    lag.sample(at(10), 10, 0, 0)
    clock.now = 60.0
    assert lag.seconds(at(10)) == 60.0


def test_a_distance_reported_before_is_not_added_to_what_was_read_since(lag: Lag, clock: Clock) -> None:
    lag.sample(at(0), 0, 100, 0)
    clock.now = 1.0
    lag.sample(at(0), 90, 100, 90)  # the end is still known as 100, not 190
    clock.now = 2.0
    lag.sample(at(100), 100, 100, 0)
    assert lag.seconds(at(100)) == 0.0


def test_a_new_epoch_begins_anew_and_a_backlog_is_as_old_as_what_landed(lag: Lag, clock: Clock) -> None:
    lag.sample(at(1000), 2000, 0, 0)
    clock.now = 10.0
    lag.sample(at(5, epoch=2), 5, 0, 0)
    assert lag.seconds(at(5, epoch=2)) == 0.0
    lag.sample(at(5, epoch=2), 5, progress.FAR_BYTES, 0)
    assert lag.seconds(at(5, epoch=2, committed=7200)) == pytest.approx(7200, abs=60)
    assert Lag(clock).seconds(at(5)) is None


def test_a_backlog_of_days_is_remembered_within_bounds(lag: Lag, clock: Clock) -> None:
    for clock.now in map(float, range(10_000)):
        lag.sample(at(0), int(clock.now), 5, 0)
        assert len(lag._samples) <= progress.MOST_SAMPLES


def test_durations_are_counted_by_their_bounds() -> None:
    durations = Durations()
    for seconds in (0.001, 0.01, 0.5, 1000.0):
        durations.add(seconds)
    counts = durations.cumulative()
    assert counts[:1] + counts[BOUNDS.index(1.0) :] == [2, 3, 3, 3, 3, 3, 3, 4]
    with pytest.raises(ValueError), durations.timing():
        raise ValueError
    assert durations.cumulative()[-1] == 4


def test_committed_rows_are_counted_by_table_and_operation() -> None:
    database, store = shop(rows=3), MemoryStore()
    with Agent(database, store) as agent:
        agent.wait_dumped()
        insert(database, 100)
        agent.wait_caught_up()
    progress = agent.capture.progress
    counted = {(str(table), operation): rows for (table, operation), rows in progress.rows.items()}
    assert counted["public.items", "dump"] == 3
    assert counted["public.items", "insert"] == 1
    assert (progress.changes, progress.dumped_rows) == (
        1,
        sum(n for (_, op), n in counted.items() if op == "dump"),
    )
    assert progress.flushes.cumulative()[-1] >= 1
    assert progress.chunks.cumulative()[-1] >= 1
    assert progress.commits.cumulative()[-1] == progress.manifests
    assert progress.lag.seconds(agent.capture.newest) is not None  # type: ignore[arg-type]
