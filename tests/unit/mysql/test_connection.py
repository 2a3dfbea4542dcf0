"""Which of the server's errors pass, and which stop a table; a connection that answers nothing."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from connector import silence
from connector.errors import TableError, TransientError, UnreachableError
from connector.mysql.connection import alive, close, connect
from connector.mysql.dump import _failure
from connector.schema import TableName

TABLE = TableName("shop", "orders")


@pytest.mark.parametrize(
    "error",
    [
        (1021, "Disk full (/tmp/#sql); waiting for someone to free some space..."),
        (1041, "Out of memory."),
        (1047, "WSREP has not yet prepared node for application use"),
        (2013, "Lost connection to MySQL server during query"),
    ],
)
def test_a_chunk_that_a_server_in_need_refuses_is_read_again(error: tuple[int, str]) -> None:
    failure = _failure(TABLE, None, pymysql.OperationalError(*error), of_rows=False)
    assert isinstance(failure, TransientError)


UNREACHED = "EADDRNOTAVAIL ECONNREFUSED EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH EPERM ETIMEDOUT".split()


@pytest.mark.parametrize("name", UNREACHED)
@pytest.mark.parametrize("of", ["create_connection", "greeting"])
def test_a_server_that_the_network_does_not_reach_has_not_answered(
    monkeypatch: pytest.MonkeyPatch, name: str, of: str
) -> None:
    number = getattr(errno, name)

    def fail(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    if of == "greeting":
        monkeypatch.setattr(Connection, "_read_bytes", fail)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if of == "create_connection":
            monkeypatch.setattr(socket, "create_connection", fail)
        with pytest.raises(UnreachableError):
            connect(f"mysql://u@127.0.0.1:{port}/shop", "test")


def test_a_chunk_of_a_damaged_table_is_not_read_again() -> None:
    error = pymysql.OperationalError(1034, "Incorrect key file for table 'orders'; try to repair it")
    assert isinstance(_failure(TABLE, None, error, of_rows=False), TableError)


@pytest.fixture
def silent() -> Iterator[Connection[Any]]:
    """A connection whose peer takes what is sent, and answers nothing."""
    ours, theirs = socket.socketpair()
    connection: Connection[Any] = Connection(defer_connect=True)
    vars(connection).update(_sock=ours, _rfile=ours.makefile("rb"), _current_timeout=None)
    with ours, theirs:
        yield connection


def test_a_session_on_which_nothing_answers_does_not_live(
    silent: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked first when the log was reopened, and waited for: the agent kept its lease for ever."""
    monkeypatch.setattr(silence, "SILENCE_SECONDS", 0.1)
    found: list[bool] = []
    asking = threading.Thread(target=lambda: found.append(alive(silent)), daemon=True)
    asking.start()
    asking.join(5)
    assert found == [False]


def test_closing_a_connection_ends_the_wait_of_another_thread_for_its_answer(
    silent: Connection[Any],
) -> None:
    """It waited for that thread: an agent that handed over did not stand by again."""
    asking = threading.Thread(target=lambda: alive(silent), daemon=True)
    asking.start()
    asking.join(0.1)
    assert asking.is_alive()
    closing = threading.Thread(target=lambda: close(silent), daemon=True)
    closing.start()
    for thread in (closing, asking):
        thread.join(5)
        assert not thread.is_alive()


def test_a_name_that_nobody_looks_up_in_time_is_a_server_that_can_not_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait(30) and [])
    monkeypatch.setattr(silence, "LOOKUP_SECONDS", 0.05)
    with pytest.raises(UnreachableError, match=r"looking up db.example timed out after 0.05 s"):
        connect("mysql://u:secret@db.example/shop", "deltatide shop")
    ended.set()
