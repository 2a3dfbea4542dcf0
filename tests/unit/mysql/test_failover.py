"""Which transactions another server is asked for."""

from __future__ import annotations

from typing import Any, cast

import pytest

from connector.errors import TransientError
from connector.landing.manifest import LastCommit
from connector.mysql import failover, log_identity
from connector.mysql.gtid import Gtid
from connector.mysql.log.events import Begin
from connector.mysql.log.stream import UnreadableLogError
from connector.mysql.server import Server
from connector.source import ResumePoint


def is_asked_for(last: LastCommit, monkeypatch: pytest.MonkeyPatch) -> bool:
    asked: list[str] = []

    def missing(_connection: Any, _server: Server, gtids: str) -> str:
        asked.append(gtids)
        return gtids

    monkeypatch.setattr(failover, "missing", missing)
    none = cast(Any, None)
    assert failover.why_unproven(none, Server(False, "9.0", 1, "u", False), {}, last, none) is None
    return asked == [last.txid]


@pytest.mark.parametrize(
    "origin", ["2a1d0ab4-e664-11f1-bc41-02fc00000001", "2a1d0aba-e66b-11fc-bc4d-02fc0000000e"]
)
def test_a_transaction_is_asked_for_whatever_its_servers_uuid_ends_in(
    origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Begin(Gtid(origin, 7), micros=0, standalone=False)
    assert is_asked_for(log_identity.of_transaction(4, begin), monkeypatch)


def test_what_has_no_id_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Begin(None, micros=0, standalone=False)
    assert not is_asked_for(log_identity.of_transaction(4, begin), monkeypatch)
    assert not is_asked_for(log_identity.of_file(1, created=0), monkeypatch)


def test_another_servers_log_that_can_not_be_read_twice_in_a_row_is_a_gap() -> None:
    """The server never gets past half an event, which a crash of MariaDB leaves; nor did the agent."""
    comparison = failover.Comparison()

    def fail() -> None:
        raise UnreadableLogError("error 1236")

    with pytest.raises(TransientError):
        comparison.attempt(fail)
    assert comparison.attempt(lambda: 5) == 5
    for _ in range(2):
        with pytest.raises(TransientError):
            comparison.attempt(fail)
        assert "error 1236" in str(comparison.attempt(fail))


def resolved(
    resume_gtids: failover.ResumeGtids,
    point: ResumePoint,
    monkeypatch: pytest.MonkeyPatch,
    executed: str | None,
) -> str:
    """A set as MariaDB's log reader gets it, where the server itself can't tell what precedes a position."""
    monkeypatch.setattr(failover, "row", lambda *_: (None,))
    server, unused = Server(True, "11.4", 1, "u", False), cast(Any, None)
    return str(
        resume_gtids.resolve(
            unused, server, point, "bin.000007", may_be_ahead=True, executed=lambda: executed
        )
    )


def test_what_the_server_can_not_tell_is_read_from_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    point = ResumePoint(900, gtids="0-1-5")
    assert resolved(failover.ResumeGtids(), point, monkeypatch, "0-1-2") == "0-1-5"


def test_log_that_can_not_be_read_twice_up_to_a_position_is_not_read_on_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent tried for ever, where a damaged file no longer tells what of a set is ahead."""
    resume_gtids, point = failover.ResumeGtids(), ResumePoint(900, gtids="0-1-5")
    for _ in range(2):
        assert resume_gtids.why_unknown(point) is None
        with pytest.raises(TransientError):
            resolved(resume_gtids, point, monkeypatch, None)
    assert "bin.000007 900 can't be read" in (resume_gtids.why_unknown(point) or "")
    assert resume_gtids.why_unknown(ResumePoint(900)) is None  # as after the gap


def test_what_a_server_has_executed_is_not_asked_of_the_position_of_a_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MariaDB's is wrong from the begin of a log file to the next commit, which may never come.

    Its end is asked for: what is being written, and only then can be read, is executed already.
    """
    ends: list[object] = []

    def end_of_log(*asked: object) -> tuple[str, int]:
        ends.append(asked)
        return "bin.000007", 900

    monkeypatch.setattr(failover, "row", lambda *_: ("0-1-5",))
    monkeypatch.setattr(failover, "end_of_log", end_of_log)
    server, unused = Server(True, "11.4", 1, "u", False), cast(Any, None)
    assert failover.missing(unused, server, "0-1-6") == "0-1-6"
    assert failover.missing(unused, server, "0-1-5") == ""
    assert len(ends) == 1
