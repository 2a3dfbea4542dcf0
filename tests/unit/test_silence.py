"""A connection on which nothing answers is ended; one that answers is left alone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from connector import silence
from connector.errors import TransientError
from connector.silence import answered


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
