"""Waits that nothing can end any more are found, and no others."""

from __future__ import annotations

from collections.abc import Collection, Hashable

import pytest

from connector import silence
from connector.errors import TransientError, UnreachableError
from connector.lost_sessions import LostSessions
from connector.silence import Awaited, Patience


class Server:
    """A server's list of sessions, and what the agent waits for."""

    def __init__(self) -> None:
        self.waits: dict[Hashable, tuple[int, int]] = {}
        self.at_work: set[Hashable] = set()
        self.asked, self.reconnected = 0, 0
        self.ended: list[Hashable] = []
        self.ended_here: list[Hashable] = []
        self.leads_elsewhere = False

    def idle(self, sessions: Collection[Hashable]) -> set[Hashable]:
        self.asked += 1
        if self.leads_elsewhere and self.reconnected:
            return set()
        return set(sessions) - self.at_work

    def end(self, session: Hashable) -> None:
        self.ended.append(session)
        raise TransientError("it is gone")

    def close(self) -> None:
        self.reconnected += 1

    def looks(self) -> LostSessions:
        def end_here(name: str, sessions: Collection[Hashable]) -> None:
            self.ended_here += sessions
            for session in sessions:
                del self.waits[session]

        return LostSessions("shop", self, 8.0, lambda _name: self.waits, end_here)


def test_a_wait_that_the_server_does_nothing_for_is_ended_here_and_there() -> None:
    server = Server()
    looks = server.looks()
    server.waits = {"a": (1, 100)}
    for _ in range(4):
        looks.look(1.0)
    assert server.asked == 0, "short waits are nobody's business"
    for _ in range(3):
        looks.look(1.0)
    assert server.ended_here == []
    looks.look(1.0)
    assert (server.ended_here, server.ended, server.reconnected) == (["a"], ["a"], 1)


@pytest.mark.parametrize("what", ["work", "bytes", "another wait"])
def test_a_wait_that_may_end_is_left_alone(what: str) -> None:
    server = Server()
    looks = server.looks()
    for number in range(100):
        server.waits = {"a": (1 + 2 * (what == "another wait") * (number // 6), (what == "bytes") * number)}
        server.at_work = {"a"} if what == "work" else set()
        looks.look(1.0)
    assert server.ended_here == []


def test_what_the_server_has_worked_for_is_given_the_time_of_an_answer() -> None:
    server = Server()
    looks = server.looks()
    server.waits, server.at_work = {"a": (1, 0), "b": (1, 0)}, {"a", "b"}
    for _ in range(50):
        looks.look(1.0)
    server.at_work = {"b"}
    for _ in range(3):
        looks.look(1.0)
    assert server.ended_here == []
    looks.look(1.0)
    assert server.ended_here == ["a"]


def test_nothing_is_ended_that_a_new_session_shows_otherwise() -> None:
    """The address leads to another server than before; the session that asks was still on the former one."""
    server = Server()
    server.leads_elsewhere = True
    looks = server.looks()
    server.waits = {"a": (1, 0)}
    for _ in range(8):
        looks.look(1.0)
    assert (server.reconnected, server.ended_here) == (1, [])


def test_whoever_rests_within_a_wait_does_not_wait() -> None:
    awaited = Awaited()
    with awaited:
        assert awaited.count == 1
        with awaited.resting():
            assert awaited.count % 2 == 0
        assert awaited.count == 3
    assert awaited.count == 4


def test_a_peer_that_is_not_at_work_twice_is_lost_and_one_that_is_may_be_silent() -> None:
    works = [True, True, False, True, False, False]
    patience = Patience("reading", lambda: works.pop(0))
    patience.waited(silence.SILENCE_SECONDS)
    assert len(works) == 6
    while len(works) > 1:
        patience.waited(0.5)
    patience.heard()
    for _ in range(4):
        patience.waited(silence.SILENCE_SECONDS / 4)
    works = [False, False]
    with pytest.raises(UnreachableError, match="reading: the server was silent for 30 s"):
        wait_for_ever(patience)
    assert works == []


def wait_for_ever(patience: Patience) -> None:
    while True:
        patience.waited(0.5)
