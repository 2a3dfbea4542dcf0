"""The binary log as the server streams it to a replica: COM_BINLOG_DUMP over one connection, by packets.

The protocol is spoken here, on a connection that PyMySQL opened and authenticated, and not through
mysql-replication's BinLogStreamReader: that one opens a lost connection again by itself, and waits for ever
for MariaDB without GTIDs. Here a lost connection is an error, and only whoever knows the position goes on.

Invariant: packets come in order of their sequence numbers; what is given out are whole events. Only a
compressed transaction that is longer than a packet is given out in pieces, so that it is never held whole.
"""

from __future__ import annotations

import struct
import time
import zlib
from typing import Any

from pymysql.connections import Connection

from connector.errors import TransientError
from connector.mysql.connection import close, driver_errors, query
from connector.mysql.events import TRANSACTION_PAYLOAD
from connector.mysql.server import Server

HEARTBEAT_SECONDS = 2
"""The server tells so often that it lives, when there is nothing else to tell."""

SILENCE_SECONDS = 30.0
"""A server that is silent for longer than this, while it is listened to, is gone."""

RECEIVE_BYTES = 1 << 18

FEW_BYTES = 16 << 10
NAP_SECONDS = 0.0005
"""The server sends few events at a time. Letting some gather costs half a millisecond of delay and saves most
of the reader's CPU, which would else wake up for each."""

REPLICA_HOST = "deltatide"
"""What the server shows of an agent among its replicas."""

_REGISTER, _DUMP = 0x15, 0x12
_NON_BLOCK, _SEND_ANNOTATE_ROWS = 1, 2
_LONGEST = 0xFFFFFF
_CAPABILITY = 4
"""MariaDB: we understand GTID events, so nothing is left out or replaced by dummies."""

_PAYLOAD = bytes([TRANSACTION_PAYLOAD])

_uint32 = struct.Struct("<I").unpack_from


def replica_id(name: str) -> int:
    """Give the server id under which an agent of this name reads: unlikely to be anybody else's."""
    return (1 << 31) + zlib.crc32(f"deltatide {name}".encode()) % ((1 << 31) - 1)


class LogEndedError(TransientError):
    """The server has sent its log to the end, and was not to wait for more."""


class BinlogStream:
    """The events behind a place in the log. Owns the connection; used by one thread.

    `server_id` 0 reads to the end of the log and no further, beside whoever else reads.
    """

    def __init__(
        self, connection: Connection[Any], server: Server, file: str, offset: int, server_id: int
    ) -> None:
        self._connection = connection
        self._sock = connection._sock
        self._rest = bytearray()
        self._sequence = 1
        self._in_pieces = False
        self._heard = time.monotonic()
        self._ended: TransientError | None = None
        with driver_errors("asking for the log"):
            self._introduce(server)
            if server_id:
                self._register(server_id)
            flags = (_SEND_ANNOTATE_ROWS if server.mariadb else 0) | (0 if server_id else _NON_BLOCK)
            body = struct.pack("<IHI", offset, flags, server_id) + file.encode()
            connection._execute_command(_DUMP, body)

    def fetch(self, seconds: float) -> list[bytes]:
        """Wait so long for events, and give what came: each with the packet's status byte before it.

        Pieces of a compressed transaction, from the second one on, have none.
        `TransientError` when the server ended the log, or nothing was heard for too long.
        """
        if self._ended is not None:
            raise self._ended
        with driver_errors("reading the log"):
            self._sock.settimeout(max(seconds, 0.0001))
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except TimeoutError:
                if time.monotonic() - self._heard > SILENCE_SECONDS:
                    raise TransientError(
                        f"reading the log: nothing heard for {SILENCE_SECONDS:g} s"
                    ) from None
                return []
        if not data:
            raise TransientError("reading the log: the server closed the connection")
        self._heard = time.monotonic()
        self._rest += data
        packets = self._cut()
        if len(data) < FEW_BYTES:
            time.sleep(max(0.0, min(NAP_SECONDS, seconds)))
        return packets

    def resume(self) -> None:
        """Begin to listen again after a pause of ours, during which silence was no sign of anything."""
        self._heard = time.monotonic()

    def close(self) -> None:
        """Close the connection; never raises."""
        close(self._connection)

    def _introduce(self, server: Server) -> None:
        """Tell what we understand: checksums as they are in the files, heartbeats, MariaDB's GTID events."""
        period = HEARTBEAT_SECONDS * 1_000_000_000
        settings = ["@master_binlog_checksum = @@global.binlog_checksum"]
        settings.append(f"@master_heartbeat_period = {period}")
        if server.mariadb:
            settings.append(f"@mariadb_slave_capability = {_CAPABILITY}")
        else:
            settings += [
                "@source_binlog_checksum = @@global.binlog_checksum",
                f"@source_heartbeat_period = {period}",
            ]
        query(self._connection, f"SET {', '.join(settings)}")

    def _register(self, server_id: int) -> None:
        """Show up among the replicas, so that people see who reads."""
        name = REPLICA_HOST.encode()
        body = struct.pack("<IB", server_id, len(name)) + name + b"\0\0" + struct.pack("<HII", 0, 0, 0)
        self._connection._execute_command(_REGISTER, body)
        self._connection._read_ok_packet()

    def _cut(self) -> list[bytes]:
        """Cut what has come into packets; one that is not whole stays."""
        rest = self._rest
        if len(rest) < 4 or len(rest) < 4 + (_uint32(rest, 0)[0] & _LONGEST):
            return []
        data, place, limit, sequence = bytes(rest), 0, len(rest), self._sequence
        packets: list[bytes] = []
        while place + 4 <= limit:
            head = _uint32(data, place)[0]
            length = head & _LONGEST
            if self._in_pieces or (length == _LONGEST and _is_payload(data, place)):
                end = place + 4 + length
                if end > limit:
                    break
                if head >> 24 != sequence:
                    raise _out_of_order(head >> 24, sequence)
                packets.append(data[place + 4 : end])
                self._in_pieces = length == _LONGEST
                place, sequence = end, (sequence + 1) & 0xFF
                continue
            if length == _LONGEST:
                joined = _join(data, place)
                if joined is None:
                    break
                packet, place, count = joined
            else:
                end = place + 4 + length
                if end > limit:
                    break
                packet, place, count = data[place + 4 : end], end, 1
            if head >> 24 != sequence:
                raise _out_of_order(head >> 24, sequence)
            sequence = (sequence + count) & 0xFF
            if packet[0]:
                self._ended = _end_of(packet)
                break
            packets.append(packet)
        del rest[:place]
        self._sequence = sequence
        return packets


def _is_payload(data: bytes, place: int) -> bool:
    return data[place + 4 : place + 5] == b"\0" and data[place + 9 : place + 10] == _PAYLOAD


def _out_of_order(found: int, expected: int) -> TransientError:
    return TransientError(f"reading the log: packet {found} came instead of {expected}")


def _end_of(packet: bytes) -> TransientError:
    """Give the error that a packet other than an event stands for."""
    if packet[0] != 0xFF:
        return LogEndedError("reading the log: the server ended it")
    code, text = int.from_bytes(packet[1:3], "little"), packet[9:].decode(errors="replace")
    return TransientError(f"reading the log: {text} (error {code})")


def _join(data: bytes, place: int) -> tuple[bytes, int, int] | None:
    """Put an event together that spans packets: it, the place behind, how many they were; None: not whole."""
    parts = []
    while place + 4 <= len(data):
        length = _uint32(data, place)[0] & _LONGEST
        if place + 4 + length > len(data):
            return None
        parts.append(data[place + 4 : place + 4 + length])
        place += 4 + length
        if length < _LONGEST:
            return b"".join(parts), place, len(parts)
    return None


def created_at(connection: Connection[Any], server: Server, file: str) -> int | None:
    """Give when a log file was begun (seconds since 1970): its first event's time. Closes the connection."""
    stream = BinlogStream(connection, server, file, 4, 0)
    try:
        deadline = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < deadline:
            for packet in stream.fetch(1.0):
                if packet[5] == _FORMAT:
                    return int(_uint32(packet, 1)[0])
    finally:
        stream.close()
    return None


_FORMAT = 15
