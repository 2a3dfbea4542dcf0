"""What a snapshot is proven to see in MariaDB, over a session made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pymysql
import pytest

from connector.errors import NotYetError
from connector.mysql.log import visibility
from connector.mysql.log.reader import ReaderProgress
from connector.mysql.log.transaction import OnePhaseCommits
from connector.mysql.log.visibility import RECENT_SECONDS, Visibility
from connector.mysql.server import Server
from connector.position import Position
from connector.schema import TableName

T = TableName("d", "t")


class Session:
    """A session, whose writes may be `refused`.

    `waiting`: commits that wait for a replica, `waiting_later`: from the next pause on; `groups`: of commits,
    that have ended.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting, self.groups, self.barriers, self.now = 0, 100, 0, 1000.0
        self.waiting_later: int | None = None
        self.one_phase = OnePhaseCommits()
        self.refused: pymysql.Error | None = None
        monkeypatch.setattr(visibility, "row", self.row)
        monkeypatch.setattr(visibility, "end_of_log", lambda *_: ("bin.000007", 900))
        monkeypatch.setattr(visibility, "brief_wait", lambda _: monkeypatch.context())
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(visibility, "time", clock)
        server, none = Server(True, "11.4", 1, "u", False), cast(Any, None)
        self.visibility = Visibility(none, server, cast(Any, self))

    def row(self, _session: object, statement: str) -> tuple[object, ...]:
        return "status", self.groups if "group_commits" in statement else self.waiting

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.waiting = self.waiting if self.waiting_later is None else self.waiting_later

    def raise_barrier(self, _session: object) -> bool:
        if self.refused is not None:
            raise self.refused
        self.barriers += 1
        return True

    def visible(self, position: int, *, writable: bool) -> int:
        return self.visibility.have_visible_in_mariadb(T, self.progress(position, None, writable=writable))

    def progress(self, position: int, gtids: str | None, *, writable: bool) -> ReaderProgress:
        return ReaderProgress(position, gtids, "u", writable, 1, self.one_phase)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(monkeypatch)


def test_what_precedes_a_write_of_ours_is_visible(session: Session) -> None:
    assert (session.visible(50, writable=True), session.barriers, session.now) == (50, 1, 1000.0)


def test_a_commit_in_one_phase_is_visible_a_second_after_a_write_of_ours(session: Session) -> None:
    """It is logged before its session goes on to have InnoDB commit it, which no other commit waits for."""
    session.one_phase.add(TableName("d", "another"), Position(1, 45, 0))
    session.one_phase.add(T, Position(0, 99, 0))
    assert (session.visible(50, writable=True), session.now) == (50, 1000.0)
    session.one_phase.add(T, Position(1, 55, 0))
    assert (session.visible(60, writable=True), session.now) == (60, 1001.0)
    assert (session.visible(70, writable=True), session.now) == (70, 1001.0)
    session.now += 0.5
    session.one_phase.add(T, Position(1, 75, 0))
    assert (session.visible(80, writable=True), session.now) == (60, 1001.5)
    session.now += 1.0
    assert (session.visible(90, writable=True), session.now) == (90, 1002.5)
    session.now += RECENT_SECONDS + 1
    session.one_phase.add(T, Position(1, 95, 0))
    assert (session.visible(100, writable=True), session.now) == (100, 1034.5)
    assert session.barriers == 6


def test_before_the_log_that_we_have_read_any_table_may_have_a_commit_in_one_phase(session: Session) -> None:
    """It may have waited for a replica just until our first write: whoever read it, or nobody, is gone."""
    session.one_phase.begin(1, 50)
    assert (session.visible(50, writable=True), session.now) == (50, 1001.0)
    assert (session.visible(60, writable=True), session.now) == (60, 1001.0)
    session.one_phase.begin(1, 60)  # the log is reopened
    another = Visibility(cast(Any, None), Server(True, "11.4", 1, "u", False), cast(Any, session))
    progress = session.progress(60, None, writable=True)
    assert (another.have_visible_in_mariadb(T, progress), session.now) == (60, 1001.0)
    session.one_phase.begin(2, 40)  # on another server
    assert (another.have_visible_in_mariadb(T, progress._replace(epoch=2, position=45)), session.now) == (
        45,
        1002.0,
    )
    assert session.one_phase.since(1, 0) == set(), "a crash has nothing dumped for that"


@pytest.mark.parametrize(
    ("server", "lsn", "ago", "read", "seconds"),
    [
        ("u", 50, 0.75, False, 0.25),
        ("u", 50, 2.0, False, 0.0),
        ("u", 50, None, False, 1.0),
        ("u", 50, 0.75, True, 1.0),
        ("u", 40, 0.75, False, 1.0),
        ("another", 50, 0.75, False, 1.0),
    ],
    ids=["soon", "late", "none", "a commit after it", "of an earlier begin", "of another server"],
)
def test_what_precedes_the_log_is_visible_a_second_after_a_write_of_ours_as_it_was_begun(
    session: Session, server: str, lsn: int, ago: float | None, read: bool, seconds: float
) -> None:
    session.one_phase.note_barrier(server, lsn, None if ago is None else session.now - ago)
    session.one_phase.begin(1, 50, "u")
    session.one_phase.add(T, Position(1 if read else 0, 50, 0))
    for now in (1000.0 + seconds, 1000.0 + seconds):
        assert (session.visible(60, writable=True), session.now) == (60, now)


def test_where_gtids_were_turned_off_a_write_has_commits_visible(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an idle server, a dump waited for the next commit of anybody."""

    def row(_session: object, statement: str) -> tuple[int]:
        if "gtid_set" in statement.lower():
            off = "Cannot use WAIT_FOR_EXECUTED_GTID_SET when GTID_MODE = OFF."
            raise pymysql.err.OperationalError(3062, off)
        return (1,)

    monkeypatch.setattr(visibility, "row", row)
    session.visibility.have_visible(T, session.progress(50, "u:1-5", writable=True))
    assert session.barriers == 1
    with pytest.raises(NotYetError, match="without GTIDs"):
        session.visibility.have_visible(T, session.progress(50, "u:1-5", writable=False))


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
        session.visibility.have_visible(T, session.progress(50, None, writable=True))


@pytest.mark.parametrize("refused", [None, LOCKED, NO_RIGHT, FULL])
def test_without_a_write_what_was_read_two_seconds_ago_is_visible(
    session: Session, refused: pymysql.Error | None
) -> None:
    session.refused, locked = refused, refused is not None
    assert (session.visible(50, writable=locked), session.now) == (50, 1002.0)
    session.now += 0.5
    assert (session.visible(60, writable=locked), session.now) == (50, 1002.5)
    session.now += 2.0
    assert (session.visible(70, writable=locked), session.now) == (50, 1004.5)
    session.now += 1.0
    assert (session.visible(80, writable=locked), session.now) == (60, 1005.5)
    assert (session.visible(40, writable=locked), session.now) == (40, 1007.5)  # in another log
    session.now += RECENT_SECONDS + 1
    assert session.visible(90, writable=locked) == 90
    assert session.barriers == 0


def test_a_commit_that_waits_for_a_replica_no_more_is_still_to_become_visible(session: Session) -> None:
    """Its session has to go on first: a snapshot that was opened right after its wait did not show it."""
    session.waiting = 1
    with pytest.raises(NotYetError):
        session.visible(50, writable=False)
    session.waiting = 0
    assert (session.visible(60, writable=False), session.now) == (50, 1003.0)


def test_a_moment_between_the_waits_of_two_groups_proves_nothing(session: Session) -> None:
    """The later group was in the log before, and is not visible before its own wait has ended."""
    session.waiting = 1
    with pytest.raises(NotYetError):
        session.visible(50, writable=False)
    session.waiting, session.waiting_later = 0, 1
    with pytest.raises(NotYetError):
        session.visible(60, writable=False)
    session.waiting = session.waiting_later = 0
    assert (session.visible(70, writable=False), session.now) == (60, 1005.0)


def test_without_a_write_what_precedes_groups_of_commits_that_have_ended_is_visible(session: Session) -> None:
    """On a busy server there are always some that wait for a replica, others each time.

    How long a group waits is not limited by how long one of its commits may.
    """
    session.waiting = 1
    for position in (50, 60):
        with pytest.raises(NotYetError, match="wait for a replica"):
            session.visible(position, writable=False)
        session.now += 9.0
    session.groups += 1
    with pytest.raises(NotYetError):
        session.visible(70, writable=False)
    session.groups += 1
    assert (session.visible(80, writable=False), session.groups) == (60, 102)
    session.groups += 5
    assert session.visible(90, writable=False) == 60
    session.now += 1.0
    assert session.visible(99, writable=False) == 80
