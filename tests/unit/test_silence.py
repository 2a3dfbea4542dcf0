"""A connection on which nothing answers is ended; one that answers is left alone."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from connector import silence
from connector.background import TimedCalls
from connector.errors import TransientError
from connector.silence import answered, logged_in
from tests.support.waiting import wait_until


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> tuple[socket.socket, socket.socket]:
    monkeypatch.setattr(silence, "SILENCE_SECONDS", 0.1)
    return socket.socketpair()


def test_who_waits_for_a_silent_server_is_woken_and_told_why(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair

    def ask() -> None:
        with answered(ours.fileno(), "asking"):
            assert ours.recv(1) == b""
            raise OSError("the connection has ended")

    with ours, theirs, pytest.raises(TransientError, match="asking: the server has not answered for"):
        ask()


def test_a_connection_that_answers_stays_open_and_its_errors_are_its_own(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    with ours, theirs:
        for _ in range(3):
            theirs.send(b"x")
            with answered(ours.fileno(), "asking"):
                assert ours.recv(1) == b"x"
        with pytest.raises(ValueError, match="odd"), answered(ours.fileno(), "asking"):
            raise ValueError("odd")
        theirs.send(b"y")
        assert ours.recv(1) == b"y"


def test_a_connection_that_has_ended_is_lost() -> None:
    with pytest.raises(TransientError, match="the connection has ended"), answered(-1, "asking"):
        pass


def test_a_number_that_is_a_files_by_now_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread has closed the connection, and opened a file."""
    taken, dup = [], os.dup

    def noted(number: int) -> int:
        taken.append(dup(number))
        return taken[-1]

    monkeypatch.setattr(os, "dup", noted)
    with (tmp_path / "file").open("w") as file:
        for use in (silence.shut_down, silence._bytes_received):
            with pytest.raises(OSError, match="socket"):
                use(file.fileno())
        with pytest.raises(TransientError, match="the connection has ended"), answered(file.fileno(), "x"):
            pass
        still = [number for number in taken if _is_open(number, file.fileno())]
    assert (len(taken), still) == (3, [])


def _is_open(number: int, as_: int) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.fstat(as_))
    except OSError:
        return False


def test_a_call_that_takes_too_long_goes_on_alone_and_its_result_is_discarded() -> None:
    goes_on, discarded, calls = threading.Event(), list[str](), TimedCalls(1)

    def late() -> str:
        goes_on.wait(30)
        return "late"

    with pytest.raises(TimeoutError, match=r"^asking timed out after 0.05 s$"):
        calls.run(late, 0.05, "asking", discarded.append)
    with pytest.raises(TimeoutError, match="as others do that go on"):
        calls.run(lambda: "not begun", 0.05, "asking", discarded.append)
    goes_on.set()
    wait_until(lambda: discarded == ["late"], "it is discarded")
    assert calls.run(lambda: "in time", 30, "asking", discarded.append) == "in time"
    assert discarded == ["late"]


def test_what_a_timed_call_raises_is_raised() -> None:
    with pytest.raises(LookupError):
        TimedCalls(1).run(lambda: [][0], 30, "asking")


def test_a_signal_interrupts_who_waits_for_a_timed_call() -> None:
    goes_on, discarded = threading.Event(), list[str]()

    def late() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        goes_on.wait(30)
        return "late"

    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            TimedCalls(1).run(late, 30, "asking", discarded.append)
    finally:
        signal.signal(signal.SIGINT, former)
    goes_on.set()
    wait_until(lambda: discarded == ["late"], "it is discarded")


def test_a_thread_that_can_not_start_fails_no_timed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls = TimedCalls(1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert calls.run(lambda: "answer", 30, "asking") == "answer"
    assert calls.run(lambda: "answer", 30, "asking") == "answer"


def test_each_address_of_a_host_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[Any] = [("a",), ("b",), ("c",)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    monkeypatch.setattr(silence, "LOOKUP_SECONDS", 0.2)
    closed = list[str]()

    def connect() -> str:
        time.sleep(0.6)
        return "connection"

    assert logged_in(connect, ["db"], 0.3, closed.append) == "connection"
    addresses.pop()
    addresses.pop()
    with pytest.raises(TimeoutError, match=r"connecting to db timed out after 0.5 s"):
        logged_in(connect, ["db"], 0.3, closed.append)
    wait_until(lambda: closed == ["connection"], "it is closed")


def test_where_no_name_is_looked_up_nothing_is_timed() -> None:
    here = threading.current_thread()
    for hosts in (["10.0.0.1", "fe80::1%eth0"], ["/run/postgresql"], [""], []):
        assert logged_in(threading.current_thread, hosts, 0.1, repr) is here
