"""A server that answers nothing is silent, and all connections to it end; one that says anything is not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from connector import silence
from connector.errors import PreconditionError, TransientError, UnreachableError
from connector.listening import Listener, SessionProbe, listening, login_seconds, silence_seconds
from connector.silence import end_all, note_open
from tests.support.agent.agents import AnsweringProbe
from tests.support.waiting import wait_until

SECONDS = 0.4


def test_standbys_leave_half_of_the_time_for_the_rest_and_an_agent_alone_is_patient() -> None:
    asked = [silence_seconds(seconds, standbys=True) for seconds in (1, 3, 15, 3600)]
    assert asked == [2.0, 3.0, 9.0, silence.SILENCE_SECONDS]
    assert silence_seconds(1, standbys=False) == silence.SILENCE_SECONDS


def test_a_silent_server_has_all_its_connections_ended_until_it_answers() -> None:
    probe, ended = AnsweringProbe(), list[None]()
    with listening(probe, lambda: ended.append(None), SECONDS) as listener:
        wait_until(lambda: listener._answers > 3, "it has answered")
        assert (listener.silent, ended) == (False, [])
        probe.silent.set()
        wait_until(lambda: len(ended) > 1, "connections that were opened meanwhile are ended, too")
        assert listener.silent
        probe.silent.clear()
        probe.closed.set()
        wait_until(lambda: not listener.silent, "it answers again")
    assert listener.failure is None


@pytest.mark.parametrize("error", [TransientError("too many connections"), UnreachableError("lost")])
def test_a_server_that_refuses_is_there_and_one_that_cannot_be_reached_is_silent(
    error: TransientError,
) -> None:
    judged = judge(lambda: error)
    wait_until(lambda: judged.silent or judged._answers > 20, "it has judged")
    assert judged.silent == isinstance(error, UnreachableError)
    judged.stop()


def test_a_session_that_asks_and_is_lost_alone_is_no_silent_server() -> None:
    class Lost(AnsweringProbe):
        sessions = 0

        def close(self) -> None:
            self.sessions += 1
            self.silent.clear()
            super().close()

    probe, ended = Lost(), list[None]()
    with listening(probe, lambda: ended.append(None), SECONDS) as listener:
        wait_until(lambda: listener._answers > 3, "it has answered")
        answers = listener._answers
        probe.silent.set()
        wait_until(lambda: listener._answers > answers + 20, "another session asks")
        assert (probe.sessions, ended, listener.silent) == (1, [], False)


def test_a_session_that_asks_is_followed_at_once_by_another_if_it_is_lost() -> None:
    """What is left of the silence is for logging in."""
    asked, lost = list[float](), list[float]()

    class Lost(AnsweringProbe):
        def ask(self) -> None:
            asked.append(time.monotonic())
            super().ask()

        def close(self) -> None:
            lost.append(time.monotonic())
            self.silent.clear()
            super().close()

    probe, seconds = Lost(), 4.0
    with listening(probe, lambda: None, seconds) as listener:
        wait_until(lambda: listener._answers, "it has answered")
        probe.silent.set()
        wait_until(lambda: lost and asked[-1] >= lost[0], "another session asks", pause=0.005)
        assert asked[-1] - lost[0] < seconds / 8 / 2  # the pause between two questions


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("'NoneType' object has no attribute 'settimeout'"),
        PreconditionError("server closed the connection unexpectedly"),  # psycopg2's, without a class
    ],
)
def test_a_session_that_is_closed_while_its_answer_is_read_is_lost(error: Exception) -> None:
    asked, closed = threading.Event(), threading.Event()

    def ask(_connection: object) -> None:
        asked.set()
        assert closed.wait(10)
        raise error

    def close(_connection: object) -> None:
        closed.set()

    probe = SessionProbe(object, ask, close, lambda *_: set(), lambda *_: None)
    threading.Thread(target=lambda: asked.wait(10) and probe.close(), daemon=True).start()
    with pytest.raises(UnreachableError, match="another thread has closed the session"):
        probe.ask()


def test_what_a_session_fails_with_by_itself_is_told_as_it_is() -> None:
    closed = list[object]()
    broken = SessionProbe(object, lambda _: [][0], closed.append, lambda *_: set(), lambda *_: None)
    with pytest.raises(IndexError):
        broken.ask()
    assert closed == []

    def refuse(_connection: object) -> None:
        raise PreconditionError("no right to ask")

    refused = SessionProbe(object, refuse, closed.append, lambda *_: set(), lambda *_: None)
    with pytest.raises(PreconditionError, match="no right to ask"):
        refused.ask()
    assert len(closed) == 1


def test_log_that_arrives_is_a_sign_of_life() -> None:
    """The server has no time for the probe."""
    arrived = threading.Event()
    calls: list[int] = []

    def signs() -> int:
        calls.append(0)
        return 0 if arrived.is_set() else len(calls)

    judged = judge(lambda: UnreachableError("no answer"), signs)
    wait_until(lambda: len(calls) > 30, "it has judged")
    assert not judged.silent
    arrived.set()
    wait_until(lambda: judged.silent, "it is silent")
    judged.stop()


def test_an_error_of_ours_is_no_silence() -> None:
    judged = judge(lambda: ValueError("odd"))
    wait_until(lambda: judged.failure is not None, "it fails")
    assert not judged.silent


def test_the_first_answer_may_take_longer_as_logins_may() -> None:
    ticks, logged_in = list[None](), threading.Event()

    class Slow(AnsweringProbe):
        def ask(self) -> None:
            logged_in.wait(30)
            super().ask()

    probe = Slow()
    listener = Listener(probe, lambda: None, 0.1, lambda: ticks.append(None), first_seconds=60)
    listener.start()
    wait_until(lambda: listener.silent or len(ticks) > 30, "it has judged")
    assert (listener.silent, listener.late) == (False, True)
    logged_in.set()
    wait_until(lambda: listener._answers > 0, "it has answered")
    probe.silent.set()
    wait_until(lambda: listener.silent, "it is silent")
    listener.stop()
    never = judge(lambda: UnreachableError("no answer"))
    wait_until(lambda: never.late, "it has never answered")
    never.stop()
    at_once = Listener(AnsweringProbe(), lambda: None, SECONDS, first_seconds=60)
    at_once.start()
    wait_until(lambda: at_once.late is not None, "it has answered")
    assert not at_once.late
    at_once.stop()


class SlowToLogIn(AnsweringProbe):
    """A session that is lost once, and logs in again only after the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_log_in = threading.Event()

    def ask(self) -> None:
        if self.closed.is_set():
            self.logs_in = True
            self.may_log_in.wait(30)
            self.logs_in = False
        super().ask()


def test_silence_is_judged_later_while_a_session_logs_in_and_not_never() -> None:
    """The session that asks was lost alone; the next one takes longer than is left of the silence."""
    for logs_in in (True, False):
        probe, ticks = SlowToLogIn(), list[None]()

        def tick(ticks: list[None] = ticks) -> None:
            ticks.append(None)

        listener = Listener(probe, lambda: None, SECONDS, tick, login_seconds=3 * SECONDS)
        listener.start()
        wait_until(lambda judged=listener: judged._answers > 3, "it has answered")
        probe.silent.set()
        wait_until(lambda asks=probe: asks.logs_in, "another session logs in")
        begun = len(ticks)
        if logs_in:
            wait_until(lambda since=begun, all_=ticks: len(all_) > since + 8, "the silence lasts")
            assert not listener.silent
            probe.silent.clear()
            probe.may_log_in.set()
            answers = listener._answers
            wait_until(lambda judged=listener, n=answers: judged._answers > n, "it answers")
            assert not listener.silent
        else:
            wait_until(lambda judged=listener: judged.silent, "it is silent")
            assert len(ticks) < begun + 3 * 8
            probe.may_log_in.set()
        listener.stop()


def test_whoever_takes_over_keeps_as_long_as_after_an_agent_that_does_not_renew_its_lease() -> None:
    for seconds in (1, 3, 6, 15, 60, 3600):
        assert login_seconds(seconds, standbys=True) >= silence_seconds(seconds, standbys=True)
        assert login_seconds(seconds, standbys=True) <= max(seconds, 2.0)
    assert login_seconds(15, standbys=True) == 12.0
    assert login_seconds(15, standbys=False) == silence.SILENCE_SECONDS


def judge(raises: Callable[[], Exception], signs: Callable[[], object] = lambda: None) -> Listener:
    class Refusing(AnsweringProbe):
        def ask(self) -> None:
            raise raises()

    listener = Listener(Refusing(), lambda: None, 0.1, signs)
    listener.start()
    return listener


def test_whoever_waits_for_any_connection_of_that_name_finds_it_ended() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    woken: list[int] = []

    def read(number: int) -> None:
        assert pairs[number][0].recv(1) == b""
        woken.append(number)

    for number, (ours, _) in enumerate(pairs):
        note_open("shop" if number < 2 else "other", ours, socket.socket.fileno)
    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    end_all("shop")
    wait_until(lambda: sorted(woken) == [0, 1], "both are woken")
    pairs[1][0].close()
    end_all("shop")
    end_all("nobody")
    assert threads[2].is_alive()
    pairs[2][1].close()
    for ours, theirs in pairs:
        ours.close()
        theirs.close()
