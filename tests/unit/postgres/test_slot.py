"""Creating a slot, and lists of synchronous standbys that the agent's session matches."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, cast

import psycopg2
import pytest

from connector.postgres.slot import check_standbys, create_slot


class _WaitingSession:
    """A session whose slot waits for somebody's transaction until it is canceled."""

    def __init__(self) -> None:
        self._canceled = threading.Event()

    def cursor(self) -> contextlib.AbstractContextManager[_WaitingSession]:
        return contextlib.nullcontext(self)

    def execute(self, query: str, _parameters: object = None) -> None:
        if "pg_create_logical_replication_slot" in query and self._canceled.wait(10):
            raise psycopg2.errors.QueryCanceled("canceling statement due to user request")

    def fetchone(self) -> tuple[object]:
        return ("0/1",)

    def cancel(self) -> None:
        self._canceled.set()


def test_a_stop_cancels_the_creation_of_a_slot() -> None:
    stopping = threading.Event()
    threading.Timer(0.05, stopping.set).start()
    with pytest.raises(psycopg2.errors.QueryCanceled):
        create_slot(cast(Any, _WaitingSession()), "shop", stopping.is_set)


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
