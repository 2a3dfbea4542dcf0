"""Messages from a socket, whole and in order wherever they are cut, and what libpq is left with."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.postgres.driver import messagesocket
from connector.postgres.driver.interface import CopyError
from connector.postgres.driver.messagesocket import MessageSocket, split_messages
from connector.silence import Awaited
from tests.unit.postgres.driver.test_copysocket import message

ANSWER = message(b"W", b"\0\0\0")
END = message(b"c", b"") + message(b"C", b"COPY 3\0")
NOTICE = message(b"N", b"dddd\0\0\0\6\n")


class Libpq:
    """The part of libpq that `MessageSocket` needs."""

    def __init__(self, ours: socket.socket) -> None:
        self.socket, self.awaited = ours.fileno(), Awaited()
        self._ours = ours

    @property
    def left(self) -> bytes:
        """Take what is left on the socket."""
        return self._ours.recv(1 << 20)

    def send_query(self, command: str) -> None:
        self._ours.sendall(command.encode())

    def end(self) -> None:
        """Leave what is left to the test."""

    def wait(self, seconds: float) -> bool:
        return bool(select.select([self._ours], [], [], seconds)[0])

    def close(self) -> None:
        self._ours.close()


class Connected:
    """A message socket whose server is the test."""

    def __init__(self) -> None:
        self.ours, self.server = socket.socketpair()
        self.libpq = Libpq(self.ours)
        stream: Any = self.libpq
        self.messages = MessageSocket(stream)

    def close(self) -> None:
        self.messages.close()
        self.server.close()


@pytest.fixture
def connected() -> Iterator[Connected]:
    connected = Connected()
    yield connected
    connected.close()


contents = st.lists(st.binary(max_size=30) | st.binary(min_size=90, max_size=200), max_size=12)
between = st.none() | st.tuples(st.integers(0, 12), st.just(NOTICE))


@given(contents, between, st.data())
def test_messages_are_whole_and_in_order_wherever_they_are_cut(
    texts: list[bytes], other: tuple[int, bytes] | None, data: st.DataObject
) -> None:
    all_ = [message(b"d", text) for text in texts]
    if other is not None:
        all_.insert(min(other[0], len(all_)), other[1])
    sent = ANSWER + b"".join(all_) + END
    cuts = sorted({len(ANSWER), *data.draw(st.lists(st.integers(len(ANSWER), len(sent)), max_size=8))})
    connected, found = Connected(), list[bytes]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messagesocket, "PEEK_BYTES", data.draw(st.sampled_from([7, 64, 1 << 18])))
        connected.server.sendall(sent[: cuts[0]])
        connected.messages.start("START")
        for begin, end in zip(cuts, [*cuts[1:], len(sent)], strict=True):
            connected.server.sendall(sent[begin:end])
            for _ in range(len(sent)):
                connected.messages.pull()
            found += connected.messages.fetch()
    assert found == texts
    assert connected.messages.done
    assert connected.libpq.left == END
    connected.close()


@given(contents, st.data())
def test_any_part_of_the_messages_is_split_alike(texts: list[bytes], data: st.DataObject) -> None:
    whole = ANSWER + b"".join(message(b"d", text) for text in texts) + NOTICE + END
    cut = data.draw(st.integers(0, len(whole)))
    found = split_messages(whole[:cut])
    assert found.messages == texts[: len(found.messages)]
    assert found.answered == (cut >= len(ANSWER))
    assert found.foreign == (cut > len(whole) - len(END))
    assert whole[: found.upto].endswith((b"", *(message(b"d", text) for text in texts), ANSWER, NOTICE))
    rest = split_messages(whole[found.upto :])
    assert found.messages + rest.messages == texts


def test_a_command_that_ends_with_its_answer_has_begun(connected: Connected) -> None:
    connected.server.sendall(ANSWER + message(b"d", b"x") + END)
    connected.messages.start("COPY")
    assert connected.messages.fetch() == [b"x"]
    assert connected.messages.done
    assert connected.messages.fetch() == []


def test_a_refused_command_is_left_to_libpq(connected: Connected) -> None:
    connected.server.sendall(NOTICE + message(b"E", b"SERROR\0\0"))
    with pytest.raises(CopyError, match="did not begin"):
        connected.messages.start("COPY")
    assert connected.libpq.left == message(b"E", b"SERROR\0\0")


def test_a_connection_lost_within_a_message_is_an_error_and_between_two_is_left_to_libpq() -> None:
    for text, error in ((b"\0\0\0\x99abc", True), (b"", False)):
        connected = Connected()
        connected.server.sendall(ANSWER + (b"d" + text if error else b""))
        connected.messages.start("")
        connected.server.close()
        if error:
            with pytest.raises(CopyError, match="in the middle of a message"):
                connected.messages.pull()
        else:
            connected.messages.pull()
            assert connected.messages.fetch() == []
            assert connected.messages.done
        connected.messages.close()


def test_what_the_socket_does_not_accept_is_sent_before_what_follows(connected: Connected) -> None:
    connected.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connected.server.sendall(ANSWER)
    connected.messages.start("")
    reports = [bytes([number % 256]) * 1000 for number in range(500)]
    for report in reports:
        connected.messages.send(report)
    assert connected.messages._unsent, "the server has not read anything yet"
    connected.server.sendall(message(b"d", b"x"))
    connected.messages.pull()
    assert connected.messages.fetch() == [b"x"], "nor does it have to, before it is read"
    arrived, expected = b"", b"".join(message(b"d", report) for report in reports)
    while len(arrived) < len(expected):
        connected.messages.pull()
        arrived += connected.server.recv(1 << 16)
    assert arrived == expected


def test_a_server_that_is_gone_is_an_error_when_something_is_sent(connected: Connected) -> None:
    connected.server.sendall(ANSWER)
    connected.messages.start("START")
    connected.server.close()
    with pytest.raises(CopyError, match="connection was lost"):
        connected.messages.send(b"r")
