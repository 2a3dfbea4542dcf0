"""Messages in a buffer, found all at once, against the plain reading of the protocol."""

from __future__ import annotations

import socket
import struct
from threading import Thread

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connector.postgres.codec.copytext import split_rows
from connector.postgres.driver import copysocket
from connector.postgres.driver.copysocket import SocketCopy, walk_messages
from connector.postgres.driver.rowcopy import BUFFER_BYTES
from connector.silence import Awaited


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def row(text: bytes) -> bytes:
    return message(b"d", text + b"\n")


def walk_plainly(data: bytes, begin: int) -> tuple[list[int], int, bool]:
    """Where rows begin, the end of the whole messages, and whether the next one is not ours."""
    rows, at = [], begin
    while at < len(data):
        if data[at] not in b"dHNSA":
            return rows, at, True
        end = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
        if at + 5 > len(data) or end > len(data):
            break
        if data[at] == ord("d"):
            rows.append(at)
        at = end
    return rows, at, False


# Lengths whose last byte is a newline, before rows that begin with a d, look like the beginning of a row.
tricky = st.sampled_from([b"dddd", b"ddddd", b"d" * 6, b"d" * 261, b"", b"\\n"])
rows = st.lists(tricky | st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"\\n")), max_size=12)
ends = st.sampled_from([b"", message(b"c", b"") + message(b"C", b"COPY 3\0"), message(b"E", b"SERROR\0\0")])
others = st.sampled_from([message(b"N", b"\nd\0\0\0\6\n"), message(b"S", b"TimeZone\0UTC\0")])


@given(rows, ends, st.none() | st.tuples(st.integers(0, 12), others), st.data())
@example([b"ddddd"], b"", None, None)
def test_any_messages_are_found_wherever_the_buffer_ends(texts, end, other, data):
    messages = [row(text) for text in texts]
    if other is not None:
        messages.insert(min(other[0], len(messages)), other[1])
    whole = b"".join(messages) + end
    cuts = range(len(whole) + 1) if data is None else [data.draw(st.integers(0, len(whole)))]
    for cut in cuts:
        found = walk_messages(np.frombuffer(whole[:cut], np.uint8), 0)
        assert (found.rows.tolist(), found.upto, found.foreign) == walk_plainly(whole[:cut], 0)


@given(rows, st.data())
def test_a_walk_goes_on_where_the_last_one_ended(texts, data):
    whole = b"".join(map(row, texts))
    cut = data.draw(st.integers(0, len(whole)))
    first = walk_messages(np.frombuffer(whole[:cut], np.uint8), 0)
    second = walk_messages(np.frombuffer(whole, np.uint8), first.upto)
    assert [*first.rows, *second.rows] == walk_plainly(whole, 0)[0]
    assert second.upto == len(whole)


def test_what_is_passed_over_is_to_be_blanked():
    notice = message(b"N", b"\t\n\\")
    found = walk_messages(np.frombuffer(row(b"1") + notice + row(b"2"), np.uint8), 0)
    begin = len(row(b"1"))
    assert found.passed_over == [(begin, begin + len(notice))]
    assert found.rows.tolist() == [0, begin + len(notice)]


@pytest.mark.parametrize("before", [b"", message(b"H", b"\0\0\1\0\0")])
@pytest.mark.parametrize("after", [b"", message(b"c", b""), row(b"late")[:-1]])
def test_rows_are_found_at_once_whatever_precedes_and_follows_them(monkeypatch, before, after):
    one_by_one = []

    def step(*given, **options):
        one_by_one.append(found := whole_step(*given, **options))
        return found

    whole_step = copysocket._step
    monkeypatch.setattr(copysocket, "_step", step)
    data = before + b"".join(row(b"%d" % number) for number in range(500)) + after
    assert len(walk_messages(np.frombuffer(data, np.uint8), 0).rows) == 500
    assert sum(len(found.rows) for found in one_by_one) == 0


class _Stream:
    """What reading from libpq's socket needs; nothing is sent on it."""

    def __init__(self, descriptor: int) -> None:
        self.socket, self.awaited = descriptor, Awaited()

    def end(self) -> None: ...


@pytest.mark.parametrize("size", [900_000, 1 << 20, 1_200_000, BUFFER_BYTES - 100, BUFFER_BYTES + 100])
def test_cells_stay_as_they_are_when_the_next_rows_are_read(size):
    """A writer keeps many chunks' arrays until a file is full."""
    values = [bytes([letter]) * size for letter in b"ABCD"]
    rows = [b"d" + struct.pack(">I", size + 5) + value + b"\n" for value in values]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = Thread(target=theirs.sendall, args=(b"".join(rows) + b"c\0\0\0\4",), daemon=True)
        sender.start()
        copy, cells = SocketCopy(_Stream(ours.fileno())), []
        while not copy.done:
            cells += split_rows(copy.read(), 1)
        sender.join()
    assert [cell.as_py() for each in cells for cell in each] == values
