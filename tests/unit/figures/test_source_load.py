"""Dumps hold back while the source suffers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from connector.config import LimitsConfig
from connector.errors import PreconditionError, TransientError
from connector.figures import source_load
from connector.figures.source_load import LoadWatcher
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import DumpRequest, submit
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import Agent, insert, landed_ids, shop
from tests.support.waiting import wait_until


class Gauge:
    """A gauge whose figures a test sets, or the error that it meets."""

    def __init__(self, **figures: float) -> None:
        self.figures: Mapping[str, float] = figures
        self.error: Exception | None = None
        self.unknown_why: Mapping[str, str] = {}
        self.opened = self.closed = 0

    def open(self) -> Gauge:
        self.opened += 1
        return self

    def measure(self) -> Mapping[str, float]:
        if self.error is not None:
            raise self.error
        return self.figures

    def unknown(self) -> Mapping[str, str]:
        return self.unknown_why

    def close(self) -> None:
        self.closed += 1


def watcher(gauge: Gauge, store: MemoryStore | None = None, **limits: float) -> LoadWatcher:
    config = LimitsConfig.model_validate(limits)
    return LoadWatcher(gauge.open, store or MemoryStore(), config, lambda: True, lambda *_: None)


def test_what_is_above_its_limit_is_the_reason_and_what_has_none_is_not() -> None:
    gauge = Gauge(threads_running=120, replica_lag_seconds=7200, slot_lag_mib=5)
    watch = watcher(gauge, replica_lag_seconds=0, slot_lag_mib=5)
    assert watch.why() == "threads_running is 120, its limit is 100"
    gauge.figures = {"threads_running": 100}
    assert watch.why() is None
    assert (gauge.opened, gauge.closed) == (1, 0)


def test_what_should_be_known_and_is_not_is_a_reason_unless_it_has_no_limit() -> None:
    gauge = Gauge(threads_running=5)
    gauge.unknown_why = {"replica_lag_seconds": "limits.replicas[0] does not replicate"}
    assert watcher(gauge).why() == "limits.replicas[0] does not replicate"
    assert watcher(gauge, replica_lag_seconds=0).why() is None


def test_a_source_that_does_not_answer_suffers_and_one_that_refuses_is_not_watched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gauge = Gauge()
    watch = watcher(gauge)
    gauge.error = TransientError("too many connections")
    assert watch.why() == "the load can't be measured: too many connections"
    gauge.error = PreconditionError("x can't see other sessions", hint="GRANT")
    assert [watch.why(), watch.why()] == [None, None]
    assert [r.message for r in caplog.records] == [
        "dumps are not held back when the source suffers: x can't see other sessions (GRANT)"
    ]
    assert gauge.opened == gauge.closed == 3


def test_a_slow_store_holds_dumps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 111.0])
    monkeypatch.setattr(source_load.time, "monotonic", lambda: next(times))
    assert watcher(Gauge()).why() == "store_seconds is 11, its limit is 10"


@pytest.mark.usefixtures("short_waits")
def test_no_chunk_is_read_while_the_source_suffers_and_the_log_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_load, "MEASURE_SECONDS", 0.01)
    database, store, gauge = shop(rows=20), MemoryStore(), Gauge(active_sessions=500)
    with Agent(database, store, gauge=gauge.open, chunk_rows=1, delay_seconds=0.05) as agent:
        wait_until(lambda: agent.capture.progress.dumps_held_back, "dumps hold back")
        assert "active_sessions is 500" in str(agent.capture.progress.dumps_held_back)
        insert(database, 901)
        agent.wait_caught_up()
        insert(database, 902)
        agent.wait_caught_up()
        rows = sum(d.rows for d in newest_manifest(store).dumps)  # type: ignore[union-attr]
        assert rows < 20
        assert landed_ids(store) == [901, 902]
        gauge.figures = {"active_sessions": 1}
        agent.wait_dumped()
        submit(store, DumpRequest(tables=["public.items"]))
        wait_until(lambda: agent.capture.progress.dumps_held_back is None, "none is held back")
