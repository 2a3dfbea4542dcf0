"""Creating a slot, and lists of synchronous standbys that the agent's session matches."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, cast

import psycopg2
import pytest

from connector.postgres.connection import refused
from connector.postgres.slot import check_standbys, create_slot


class _WaitingSession:
    """A session whose slot waits for somebody's transaction until another session cancels it."""

    session = (7, "1.5")

    def __init__(self, canceled: threading.Event) -> None:
        self._canceled = canceled

    def cursor(self) -> contextlib.AbstractContextManager[_WaitingSession]:
        return contextlib.nullcontext(self)

    def execute(self, query: str, parameters: object = None) -> None:
        if "pg_create_logical_replication_slot" in query and self._canceled.wait(10):
            raise psycopg2.errors.QueryCanceled("canceling statement due to user request")
        if "pg_cancel_backend" in query and parameters == self.session:
            self._canceled.set()

    def fetchone(self) -> tuple[object]:
        return ("0/1",)

    def cancel(self) -> None:
        self._canceled.set()

    def close(self) -> None:
        pass


def test_a_stop_cancels_the_creation_of_a_slot() -> None:
    stopping, canceled = threading.Event(), threading.Event()
    threading.Timer(0.05, stopping.set).start()
    session = cast(Any, _WaitingSession(canceled))
    with pytest.raises(psycopg2.errors.QueryCanceled):
        create_slot(session, "shop", stopping.is_set, lambda: cast(Any, _WaitingSession(canceled)))


def test_a_stop_cancels_the_creation_of_a_slot_though_no_connection_is_left() -> None:
    session = cast(Any, _WaitingSession(threading.Event()))

    def connect() -> Any:
        too_many = psycopg2.OperationalError("FATAL:  sorry, too many clients already")
        raise refused(too_many, {})

    with pytest.raises(psycopg2.errors.QueryCanceled):
        create_slot(session, "shop", lambda: True, connect)


@pytest.mark.parametrize("names", ["*", " * ", '"*"', "a, *", "FIRST 1 (*)", "ANY 2 (s1, *, s2)", "2(*)"])
def test_a_list_that_matches_every_session_is_warned_of(names: str) -> None:
    (found,) = check_standbys(names)
    assert found.state == "warning"
    assert "commits at the source would wait" in found.detail


@pytest.mark.parametrize(
    "names", ["", "s1", 'FIRST 1 (s1, "s*")', 'ANY 1 ("a, b", s2)', "nobody", '"deltatide shop"']
)
def test_a_list_of_names_is_not(names: str) -> None:
    assert not [*check_standbys(names)]
