"""The stream over a connection made by hand: events of any length, cut anywhere, and damaged ones."""

from __future__ import annotations

import struct
import zlib
from contextlib import nullcontext
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.mysql import log_identity
from connector.mysql.log import events, stream
from connector.mysql.log.packet import FLAGS, TYPE
from connector.mysql.log.stream import BinlogStream, UnreadableLogError
from connector.mysql.server import Server
from connector.position import pack_binlog_position

ROWS, PAYLOAD = 30, events.TRANSACTION_PAYLOAD
SHORT = 0xFF
"""Stands for the longest packet: 255 bytes instead of 16 MiB."""


class Connection:
    """A server that has sent all these bytes; `recv` returns them in the given portions."""

    def __init__(self, data: bytes, portions: list[int]) -> None:
        self._sock, self._data, self._portions = self, data, portions

    def cursor(self) -> Any:
        return nullcontext(self)

    def execute(self, *_: object) -> None: ...
    def settimeout(self, _: float) -> None: ...
    def _execute_command(self, *_: object) -> None: ...
    def _force_close(self) -> None: ...

    def fileno(self) -> int:
        raise OSError("it is no socket")

    def recv(self, _: int) -> bytes:
        size = self._portions.pop(0) if self._portions else 1 << 20
        data, self._data = self._data[:size], self._data[size:]
        return data


def event(kind: int, body: bytes, *, begin: int = 0, flags: int = 0, checksum: bool = True) -> bytes:
    """An event as in a packet: after its status. `begin`: where it begins in its file."""
    size = 19 + len(body) + 4 * checksum
    plain = struct.pack("<IBIIIH", 0, kind, 1, size, begin and begin + size, flags) + body
    return b"\0" + plain + (zlib.crc32(plain).to_bytes(4, "little") if checksum else b"")


def described(*, checksums: bool, begin: int = 0) -> bytes:
    """A FORMAT event. The server marks the file it is writing, without another checksum."""
    packet = event(events.FORMAT, bytes(57) + bytes([15]) * 40 + bytes([checksums]), begin=begin)
    return packet[:18] + b"\1\0" + packet[20:]


def sent(packets: list[bytes]) -> bytes:
    """What the server sends for them; one of the longest length is continued, if need be by an empty one."""
    data, sequence = b"", 1
    for packet in packets:
        for low in range(0, len(packet) + 1, SHORT):
            part = packet[low : low + SHORT]
            data += len(part).to_bytes(3, "little") + bytes([sequence % 256]) + part
            sequence += 1
    return data


def received(packets: list[bytes], portions: list[int]) -> list[bytes]:
    connection = Connection(sent(packets), portions)
    found, reading = list[bytes](), opened(connection)
    while connection._data:
        found += reading.fetch(1)
    return found


def opened(connection: Connection) -> BinlogStream:
    server = Server(False, "9.0", 1, "u", False)
    return BinlogStream(cast(Any, connection), server, "bin.000001", 4, 0, checked=True)


@pytest.fixture(autouse=True)
def short_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_LONGEST", SHORT)
    monkeypatch.setattr(stream, "NAP_SECONDS", 0.0)


LENGTHS = st.integers(0, 40) | st.sampled_from([n * SHORT + d for n in (1, 2) for d in (-2, -1, 0, 1, 2)])
"""Also around those at which packets are full."""


@given(
    lengths=st.lists(st.tuples(st.sampled_from([ROWS, PAYLOAD]), LENGTHS), max_size=8),
    portions=st.lists(st.integers(1, 600), max_size=30),
    checksums=st.booleans(),
)
def test_events_are_whole_and_their_own_however_long_they_are_and_wherever_they_are_cut(
    lengths: list[tuple[int, int]], portions: list[int], checksums: bool
) -> None:
    written = [
        event(kind, bytes([number]) * max(0, length - 20 - 4 * checksums), checksum=checksums)
        for number, (kind, length) in enumerate(lengths, 1)
    ]
    format_, *found = received([described(checksums=checksums), *written], portions)
    assert format_[TYPE] == events.FORMAT
    assert list(map(bytes, found)) == [part for packet in written for part in pieces(packet)]


def pieces(packet: bytes) -> list[bytes]:
    """What is returned of an event: a compressed transaction that fills packets comes as they do."""
    if packet[TYPE] != PAYLOAD:
        return [packet]
    return [packet[low : low + SHORT] for low in range(0, len(packet), SHORT)]


@pytest.mark.parametrize("length", [60, SHORT - 1, SHORT, SHORT + 1, 3 * SHORT])
@pytest.mark.parametrize("kind", [ROWS, PAYLOAD])
@pytest.mark.parametrize("at", [22, -5, -1])
def test_a_damaged_event_is_not_returned_and_ends_the_stream(kind: int, length: int, at: int) -> None:
    intact = event(ROWS, b"intact")
    damaged = bytearray(event(kind, bytes(length - 24)))
    damaged[at] ^= 4
    packets = [described(checksums=True), intact, bytes(damaged), intact]
    whole: list[bytes] = []
    reading = opened(Connection(sent(packets), [50] * 200))
    while reading._ended is None:
        whole += reading.fetch(1)
    with pytest.raises(UnreadableLogError, match="checksum"):
        reading.fetch(1)
    assert whole[1] == intact
    assert sum(map(len, whole[2:])) < length  # pieces before the last one, of a compressed transaction


def test_no_piece_is_returned_of_a_damaged_transaction_that_looks_like_an_event_in_no_file() -> None:
    """Whoever passes over such an event would take its next piece for an event."""
    damaged = bytearray(event(PAYLOAD, bytes(3 * SHORT)))
    damaged[FLAGS] ^= events.ARTIFICIAL
    reading = opened(Connection(sent([described(checksums=True), bytes(damaged)]), [50] * 200))
    found: list[bytes] = []
    while reading._ended is None:
        found += reading.fetch(1)
    assert len(found) == 1


def test_what_frames_a_file_and_a_file_without_checksums_is_not_checked() -> None:
    artificial = event(events.ROTATE, b"bin.000002", flags=events.ARTIFICIAL)[:-4] + bytes(4)
    plain = event(ROWS, b"x", checksum=False)
    packets = [described(checksums=True), artificial, described(checksums=False), plain]
    assert received(packets, []) == packets


@pytest.mark.parametrize("at", [1, 22, -5], ids=["time", "version", "checksums"])
@pytest.mark.parametrize("checksums", [False, True])
def test_a_damaged_description_of_the_format_ends_the_stream(checksums: bool, at: int) -> None:
    """By it, events that follow would be read with their checksums as part of their rows."""
    intact = described(checksums=checksums, begin=4)
    assert received([intact], []) == [intact]
    damaged = bytearray(intact)
    damaged[at] ^= 1
    reading = opened(Connection(sent([bytes(damaged), event(ROWS, b"x")]), []))
    assert reading.fetch(1) == []
    with pytest.raises(UnreadableLogError, match="checksum"):
        reading.fetch(1)


@pytest.mark.parametrize(
    ("kind", "becomes", "begin"),
    [
        (31, events.FORMAT, 4000),
        (31, events.HEARTBEAT, 4000),
        (PAYLOAD, events.HEARTBEAT_2, 4000),
        (166, events.START_ENCRYPTION, 4000),
        (166, events.START_ENCRYPTION, 0),  # MariaDB: within a transaction, events have no end
        (events.ROTATE, events.ROTATE, 4000),
        (31, 31, 4000),
    ],
)
def test_an_event_that_damage_makes_look_like_the_frame_of_a_file_is_not_taken_for_one(
    kind: int, becomes: int, begin: int
) -> None:
    """One bit is between an update and what begins a file, behind which no rows would be missed."""
    damaged = bytearray(event(kind, bytes(60) + b"\1" + bytes(3), begin=begin))
    damaged[1], damaged[TYPE], damaged[40] = 1, becomes, 1  # of some time
    damaged[FLAGS] |= events.ARTIFICIAL * (becomes == 31)
    encryption = event(events.START_ENCRYPTION, bytes(17), begin=125)[:-4] + bytes(4)
    begun = [event(events.FORMAT, bytes(97) + b"\1", begin=4), encryption]
    reading = opened(Connection(sent([*begun, bytes(damaged)]), []))
    assert reading.fetch(1) == begun
    with pytest.raises(UnreadableLogError, match="checksum"):
        reading.fetch(1)


@pytest.mark.parametrize("damaged", [False, True])
def test_what_stops_a_reader_is_found_behind_any_pieces_of_a_transaction(damaged: bool) -> None:
    """They may look like the begin of the next one."""
    transaction = bytearray(event(PAYLOAD, bytes([events.GTID]) * 5 * SHORT))
    transaction[-1] ^= damaged
    begin = event(events.GTID, bytes(25))
    reading = opened(
        Connection(sent([described(checksums=True), begin, bytes(transaction), begin]), [300] * 9)
    )
    why = log_identity.unreadable(reading, pack_binlog_position(1, 4))
    assert ("checksum" in why) if why else not damaged
