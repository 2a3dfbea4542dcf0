"""What a snapshot is proven to see in MariaDB, over a session made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pymysql
import pytest

from connector.errors import NotYetError
from connector.mysql.log import visibility
from connector.mysql.log.reader import ReaderProgress
from connector.mysql.log.visibility import RECENT_SECONDS, Visibility
from connector.mysql.server import Server
from connector.schema import TableName

T = TableName("d", "t")


class Session:
    """A session, whose writes may be `refused`; `waiting`: commits that wait for a replica."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting, self.barriers, self.now = 0, 0, 1000.0
        self.refused: pymysql.Error | None = None
        monkeypatch.setattr(visibility, "row", self.row)
        monkeypatch.setattr(visibility, "end_of_log", lambda *_: ("bin.000007", 900))
        monkeypatch.setattr(visibility, "brief_wait", lambda _: monkeypatch.context())
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(visibility, "time", clock)
        server, none = Server(True, "11.4", 1, "u", False), cast(Any, None)
        self.visibility = Visibility(none, server, cast(Any, self))

    def row(self, _session: object, statement: str) -> tuple[object, ...]:
        return (5000,) if "timeout" in statement else ("Rpl_semi_sync_master_wait_sessions", self.waiting)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def raise_barrier(self, _session: object) -> bool:
        if self.refused is not None:
            raise self.refused
        self.barriers += 1
        return True

    def visible(self, position: int, *, writable: bool) -> int:
        return self.visibility.have_visible_in_mariadb(T, ReaderProgress(position, None, "u", writable))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(monkeypatch)


def test_what_precedes_a_write_of_ours_is_visible(session: Session) -> None:
    assert (session.visible(50, writable=True), session.barriers, session.now) == (50, 1, 1000.0)


LOCKED = pymysql.err.OperationalError(1205, "Lock wait timeout exceeded")
NO_RIGHT = pymysql.err.OperationalError(1142, "UPDATE command denied to user for table 'watermark'")
FULL = pymysql.err.OperationalError(1114, "The table 'watermark' is full")


@pytest.mark.parametrize("refused", [LOCKED, NO_RIGHT, FULL])
def test_a_write_that_is_refused_is_not_the_tables_fault(
    session: Session, monkeypatch: pytest.MonkeyPatch, refused: pymysql.Error
) -> None:
    """Each table that was being dumped was set aside for it."""
    session.refused = refused
    monkeypatch.setattr(session.visibility, "_commits_in_order", lambda: True)
    with pytest.raises(NotYetError, match="watermark can't be written"):
        session.visibility.have_visible(T, ReaderProgress(50, None, "u", True))


@pytest.mark.parametrize("refused", [None, LOCKED, NO_RIGHT, FULL])
def test_without_a_write_what_was_read_a_second_ago_is_visible(
    session: Session, refused: pymysql.Error | None
) -> None:
    session.refused, locked = refused, refused is not None
    assert (session.visible(50, writable=locked), session.now) == (50, 1001.0)
    session.now += 0.5
    assert (session.visible(60, writable=locked), session.now) == (50, 1001.5)
    session.now += 1.0
    assert (session.visible(70, writable=locked), session.now) == (60, 1002.5)
    assert (session.visible(40, writable=locked), session.now) == (40, 1003.5)  # in another log
    session.now += RECENT_SECONDS + 1
    assert session.visible(90, writable=locked) == 90
    assert session.barriers == 0


def test_without_a_write_commits_may_wait_for_a_replica_as_long_as_the_server_lets_them(
    session: Session,
) -> None:
    """On a busy server there are always some that wait; they are others each time."""
    session.waiting = 1
    for position in (50, 60, 70):
        with pytest.raises(NotYetError, match="wait for a replica for 6 s"):
            session.visible(position, writable=False)
        session.now += 1.5
    session.now = 1006.5
    assert session.visible(80, writable=False) == 50
    session.waiting = 0
    assert session.visible(90, writable=False) == 70
