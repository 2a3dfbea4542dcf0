"""Errors of the server: the line that people read, and which of them may pass; a server that falls silent."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from contextlib import suppress

import psycopg2
import pytest
from psycopg2.extensions import connection as Connection

from connector import silence
from connector.errors import DeltatideError, PreconditionError, TransientError, UnreachableError
from connector.postgres.connection import connect, driver_errors, failed, one_line, one_row, refused
from connector.postgres.dump import _failure
from connector.postgres.primary_session import PrimarySession
from connector.schema import TableName

LOST = (
    "server closed the connection unexpectedly\n"
    "\tThis probably means the server terminated abnormally\n"
    "\tbefore or while processing the request.\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOST, "server closed the connection unexpectedly"),
        (
            f'connection to server at "127.0.0.1", port 5432 failed: {LOST}',
            "server closed the connection unexpectedly",
        ),
        (
            'connection to server at "db" (10.0.0.1), port 5432 failed: Connection refused\n'
            "\tIs the server running on that host and accepting TCP/IP connections?\n",
            "connection refused",
        ),
        (
            'connection to server at "db", port 5432 failed: FATAL:  role "x" does not exist\n',
            'role "x" does not exist',
        ),
    ],
    ids=["lost", "lost while connecting", "refused", "fatal"],
)
def test_the_line_with_the_reason_is_shown(text: str, expected: str) -> None:
    assert one_line(psycopg2.OperationalError(text)) == expected


UNREACHED = "EADDRNOTAVAIL ECONNREFUSED EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH EPERM ETIMEDOUT".split()


@pytest.mark.parametrize("name", UNREACHED)
def test_a_server_that_the_network_does_not_reach_has_not_answered(name: str) -> None:
    """Whatever the reason: as an answer it would keep an agent active that captures nothing."""
    reason, failed_at = os.strerror(getattr(errno, name)), 'connection to server at "{}", port 5432 failed: '
    text = f"{failed_at.format('db')}{reason}\n"
    text += "\tIs the server running on that host and accepting TCP/IP connections?\n"
    assert isinstance(refused(psycopg2.OperationalError(text), {}), UnreachableError)
    begun = f"{failed_at.format('db')}could not send SSL negotiation packet: {reason}\n"
    assert isinstance(refused(psycopg2.OperationalError(begun), {}), UnreachableError)
    text += f"{failed_at.format('db2')}FATAL:  the database system is starting up\n"
    answered = refused(psycopg2.OperationalError(text), {})
    assert isinstance(answered, TransientError)
    assert not isinstance(answered, UnreachableError)


@pytest.mark.parametrize(
    ("cited", "answered"), [("", False), ("sorry, too many clients already ", True)], ids=["nobody", "server"]
)
def test_what_a_pooler_says_for_a_server_that_it_does_not_reach_is_no_answer(
    cited: str, answered: bool
) -> None:
    text = 'connection to server at "pooler", port 6432 failed: FATAL:  server login has been failing, '
    text += f"cached error: {cited}(server_login_retry)\n"
    error = refused(psycopg2.OperationalError(text), {})
    assert isinstance(error, TransientError)
    assert isinstance(error, UnreachableError) == (not answered)
    assert isinstance(failed("asking the server", "server conn crashed?", "08P01"), UnreachableError)


def test_a_snapshot_that_has_become_too_old_is_taken_again() -> None:
    """A long chunk, where a server before version 17 has old_snapshot_threshold, is no fault of its table."""
    assert isinstance(failed("public.t", "snapshot too old", "72000"), TransientError)


SETTINGS = ("client_encoding", "UTF8"), ("DateStyle", "ISO"), ("server_version", "16.0")


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", 4 + len(body)) + body


def greet(server: socket.socket, accepted: list[socket.socket]) -> None:
    """Accept a session, and answer nothing that is asked in it."""
    peer, _ = server.accept()
    accepted.append(peer)
    peer.recv(4096)
    told = b"".join(message(b"S", f"{name}\0{value}\0".encode()) for name, value in SETTINGS)
    peer.sendall(message(b"R", bytes(4)) + told + message(b"Z", b"I"))


def opened(server: socket.socket, accepted: list[socket.socket]) -> Connection:
    """Open a session with a server that greets."""
    threading.Thread(target=greet, args=(server, accepted), daemon=True).start()
    port = server.getsockname()[1]
    connection: Connection = psycopg2.connect(
        f"host=127.0.0.1 port={port} user=u dbname=d sslmode=disable gssencmode=disable"
    )
    connection.autocommit = True
    return connection


def failure_of(error: Exception) -> DeltatideError:
    """Return what an error of the driver becomes."""
    with pytest.raises(DeltatideError) as found, driver_errors("asking"):
        raise error
    dump = _failure(TableName("public", "t"), None, error, "role")
    assert isinstance(dump, UnreachableError) == isinstance(found.value, UnreachableError)
    return found.value


def test_what_is_no_answer_is_a_lost_connection() -> None:
    """The driver raises a bare DatabaseError: what the socket brought is no message, so no answer comes."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = opened(server, accepted)

    def answer(peer: socket.socket) -> None:
        peer.recv(4096)
        peer.sendall(message(b"!", b"no message") + message(b"Z", b"I"))

    threading.Thread(target=answer, args=(accepted[0],), daemon=True).start()
    with pytest.raises(psycopg2.DatabaseError) as unanswered:
        one_row(connection, "SELECT 1")
    assert (type(unanswered.value), unanswered.value.pgcode) == (psycopg2.DatabaseError, None)
    assert isinstance(failure_of(unanswered.value), UnreachableError)
    for text in (
        "SSL SYSCALL error: EOF detected",
        "error with status PGRES_COMMAND_OK and no message from the libpq",
    ):
        assert isinstance(failure_of(psycopg2.DatabaseError(text)), UnreachableError)


def test_what_the_driver_itself_refuses_is_no_lost_connection() -> None:
    error = failure_of(psycopg2.ProgrammingError("can't adapt type 'object'"))
    assert isinstance(error, PreconditionError)


def test_closing_a_session_ends_the_wait_of_another_thread_for_its_answer() -> None:
    """It waited for that thread: an agent that handed over did not stand by again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted: list[socket.socket] = []
        connection = opened(server, accepted)
    session = PrimarySession(lambda: (connection, "1"))
    session._connection = connection

    def ask() -> None:
        with suppress(psycopg2.Error):
            one_row(connection, "SELECT 1")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(0.1)
    assert asking.is_alive()
    closing = threading.Thread(target=session.close, daemon=True)
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
        connect("postgresql://u:secret@db.example/shop", "deltatide shop")
    ended.set()
