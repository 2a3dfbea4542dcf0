"""Reads the binary log as the server streams it to a replica: COM_BINLOG_DUMP over one connection.

The protocol is implemented here, on a connection that PyMySQL opened and authenticated, not through
mysql-replication's BinLogStreamReader: that one reopens a lost connection on its own, and waits forever for
MariaDB without GTIDs. Here a lost connection is an error, and only a caller that knows the position resumes.

Invariants: packets come in order of their sequence numbers; `fetch` returns complete events. Only a
compressed transaction longer than a packet is returned in pieces, so it is never held completely. With
`checked`, an event with a wrong checksum is not returned: servers send their files unchecked.
"""

from __future__ import annotations

import struct
import time
from typing import Any, cast
from zlib import crc32

from pymysql.connections import Connection

from connector.errors import TransientError
from connector.mysql.connection import close, driver_errors, query
from connector.mysql.log.events import (
    ARTIFICIAL,
    FORMAT,
    HEARTBEATS,
    ROTATE,
    START_ENCRYPTION,
    TRANSACTION_PAYLOAD,
    begins_file,
    checksum_bytes,
)
from connector.mysql.log.packet import (
    BASE,
    BODY,
    FILE_START,
    FLAGS,
    TYPE,
    end_of,
    header_of,
    size_of,
    uint32_at,
)
from connector.mysql.server import Server
from connector.silence import SILENCE_SECONDS, Patience

HEARTBEAT_SECONDS = 2
"""The server's heartbeat interval while idle."""

RECEIVE_BYTES = 1 << 18

FEW_BYTES = 16 << 10
NAP_SECONDS = 0.0005
"""The server sends few events at a time. Letting some accumulate adds half a millisecond of delay and saves
most of the reader's CPU time, since it otherwise wakes up for each event.
"""

REPLICA_HOST = "deltatide"
"""The host name that the server shows for an agent in its list of replicas."""

_REGISTER, _DUMP = 0x15, 0x12
_NON_BLOCK, _SEND_ANNOTATE_ROWS = 1, 2
_LONGEST = 0xFFFFFF
_PACKET_HEADER = 4
"""A packet's length (3 bytes) and sequence number (1 byte)."""

_ERR = 0xFF
"""Status of an ERR packet."""

_ERROR_CODE, _ERROR_TEXT = slice(1, 3), slice(9, None)
"""In an ERR packet; between them is the SQL state."""

_UNREADABLE = 1236
"""ER_MASTER_FATAL_ERROR_READING_BINLOG."""

_CAPABILITY = 4
"""MariaDB: we understand GTID events, so nothing is left out or replaced by dummies."""

_PAYLOAD = bytes([TRANSACTION_PAYLOAD])

_ENCRYPTION_BYTES = BODY + 17 + 4
"""Of a START_ENCRYPTION event: its scheme, key version and nonce, and the checksum. Rows need more."""

_BEFORE_STATUS, _MATCHES = 0x0F6A7026, 0x2144DF1C
"""CRC32: the state from which a packet's status byte (0) leads to the initial one, and the result of any data
followed by its checksum. So an event is checked without cutting its packet up.
"""

_IN_USE = 1
"""Flag of the FORMAT event of a file that is being written."""

_uint32 = struct.Struct("<I").unpack_from


def is_intact(packet: bytes | bytearray) -> bool:
    """Return whether an event's checksum is right; it is whole, and of a file with checksums."""
    return crc32(packet, _BEFORE_STATUS) == _MATCHES


def is_intact_format(packet: bytes | bytearray) -> bool:
    """Return whether a FORMAT event's checksum, which it has in any file, is right.

    It is that of a closed file: the flag of one that is being written does not count. The server changes the
    event, and corrects the checksum, only where reading begins within the file; then it has no end.
    """
    plain = bytearray(packet)
    plain[FLAGS] &= ~_IN_USE
    return not end_of(packet) or is_intact(plain)


def replica_id(name: str) -> int:
    """Return the server id for an agent of this name, unlikely to be anyone else's."""
    return (1 << 31) + crc32(f"deltatide {name}".encode()) % ((1 << 31) - 1)


class UnreadableLogError(TransientError):
    """The server can't read its log where it was asked to, or from there on."""


class LogEndedError(TransientError):
    """The server has sent its log to the end, and was told not to wait for more."""


class BinlogStream:
    """The events after a position in the log. Owns the connection; used by one thread.

    `server_id` 0 reads to the end of the log and no further, alongside any other reader. `checked`: for
    readers of rows; one that scans a file must get past an event that is damaged. `received` counts the bytes
    received, including heartbeats and incomplete events.
    """

    def __init__(
        self,
        connection: Connection[Any],
        server: Server,
        file: str,
        offset: int,
        server_id: int,
        *,
        checked: bool = False,
    ) -> None:
        self.received = 0
        self._connection = connection
        self._sock = connection._sock
        self._rest = bytearray()
        self._sequence = 1
        self._in_pieces = False
        self._checked, self._has_checksums = checked, False
        self._format_end = 0  # where the file's FORMAT event ends; 0: reading began within the file
        self._crc, self._missing = 0, 0  # of an event in pieces: of those that came, and bytes of the others
        self._long_event: bytearray | None = None
        self._patience = Patience("reading the log")
        self._ended: TransientError | None = None
        with driver_errors("requesting the log"):
            self._set_replica_variables(server)
            if server_id:
                self._register(server_id)
            flags = (_SEND_ANNOTATE_ROWS if server.mariadb else 0) | (0 if server_id else _NON_BLOCK)
            body = struct.pack("<IHI", offset, flags, server_id) + file.encode()
            connection._execute_command(_DUMP, body)

    def fetch(self, seconds: float) -> list[bytes]:
        """Wait up to `seconds` for events; return those received, each after its packet's status byte.

        Pieces of a compressed transaction, from the second one on, have no status byte. `TransientError` if
        the server ended the log, or was silent for too long.
        """
        if self._ended is not None:
            raise self._ended
        with driver_errors("reading the log"):
            self._sock.settimeout(max(seconds, 0.0001))
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except TimeoutError:
                self._patience.waited(seconds)
                return []
        if not data:
            raise TransientError("reading the log: the server closed the connection")
        self._patience.heard()
        self.received += len(data)
        self._rest += data
        packets = self._split_packets()
        if len(data) < FEW_BYTES:
            time.sleep(max(0.0, min(NAP_SECONDS, seconds)))
        return packets

    def close(self) -> None:
        """Close the connection; never raises."""
        close(self._connection)

    def _set_replica_variables(self, server: Server) -> None:
        """Announce what we support: checksums as in the files, heartbeats, MariaDB's GTID events."""
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
        """Register as a replica, so that operators see who reads."""
        name = REPLICA_HOST.encode()
        body = struct.pack("<IB", server_id, len(name)) + name + b"\0\0" + struct.pack("<HII", 0, 0, 0)
        self._connection._execute_command(_REGISTER, body)
        self._connection._read_ok_packet()

    def _split_packets(self) -> list[bytes]:
        """Split received bytes into packets; an incomplete one stays."""
        rest = self._rest
        if self._long_event is not None:
            return self._extend_long_event(self._long_event)
        if len(rest) < _PACKET_HEADER or len(rest) < _PACKET_HEADER + (_uint32(rest, 0)[0] & _LONGEST):
            return []
        data, offset, limit, sequence = bytes(rest), 0, len(rest), self._sequence
        packets: list[bytes] = []
        while offset + _PACKET_HEADER <= limit:
            head = _uint32(data, offset)[0]
            length = head & _LONGEST
            if self._in_pieces or (length == _LONGEST and _is_payload(data, offset)):
                end = offset + _PACKET_HEADER + length
                if end > limit:
                    break
                if head >> 24 != sequence:
                    raise _out_of_order(head >> 24, sequence)
                piece, offset, sequence = data[offset + _PACKET_HEADER : end], end, (sequence + 1) & 0xFF
                if self._is_damaged_by(piece):
                    break
                if piece:  # the last one is empty if the others are all there is
                    packets.append(piece)
                continue
            if length == _LONGEST:
                if offset + _PACKET_HEADER + FLAGS < limit:  # enough to know what it is
                    self._long_event = bytearray()
                break
            end = offset + _PACKET_HEADER + length
            if end > limit:
                break
            packet, offset = data[offset + _PACKET_HEADER : end], end
            if head >> 24 != sequence:
                raise _out_of_order(head >> 24, sequence)
            sequence = (sequence + 1) & 0xFF
            if packet[0]:  # its status: not an event
                self._ended = _end_of(packet)
                break
            matches = self._has_checksums and crc32(packet, _BEFORE_STATUS) == _MATCHES
            if (not matches or packet[TYPE] == FORMAT) and self._is_damaged(packet):
                break
            packets.append(packet)
        del rest[:offset]
        self._sequence = sequence
        return packets if self._long_event is None else packets + self._extend_long_event(self._long_event)

    def _extend_long_event(self, event: bytearray) -> list[bytes]:
        """Move whole packets of an event that spans several out of `rest`; return it with what follows it.

        It is assembled in one buffer: it takes memory of its own size, and linear time.
        """
        while len(self._rest) >= _PACKET_HEADER:
            head = _uint32(self._rest, 0)[0]
            length = head & _LONGEST
            if len(self._rest) < _PACKET_HEADER + length:
                return []
            if head >> 24 != self._sequence:
                raise _out_of_order(head >> 24, self._sequence)
            self._sequence = (self._sequence + 1) & 0xFF
            with memoryview(self._rest) as rest:
                event += rest[_PACKET_HEADER : _PACKET_HEADER + length]
            del self._rest[: _PACKET_HEADER + length]
            if length < _LONGEST:
                self._long_event = None
                if self._is_damaged(event):
                    return []
                return [cast("bytes", event), *self._split_packets()]  # read like bytes, and not copied
        return []

    def _is_damaged(self, packet: bytes | bytearray) -> bool:
        """Return whether an event's checksum is wrong, so the stream ends; not of all that frame files."""
        if begins_file(packet):
            if self._checked and not is_intact_format(packet):
                self._ended = _damaged()
                return True
            self._has_checksums = self._checked and checksum_bytes(bytes(packet)) > 0
            self._format_end = end_of(packet)
            return False
        if not self._has_checksums or self._is_frame(packet) or is_intact(packet):
            return False
        self._ended = _damaged()
        return True

    def _is_frame(self, packet: bytes | bytearray) -> bool:
        """Return whether the server may have changed an event without computing another checksum.

        Such an event is in no file, or follows FORMAT. A damaged one may have its type, but not its place;
        nor a heartbeat's time, which is 0.
        """
        kind = packet[TYPE]
        if kind == START_ENCRYPTION:
            is_in_place = end_of(packet) in (0, self._format_end + len(packet) - BASE)
            return is_in_place and len(packet) == _ENCRYPTION_BYTES
        if kind in HEARTBEATS:
            return not uint32_at(packet, BASE)[0]
        return kind == ROTATE and bool(packet[FLAGS] & ARTIFICIAL)

    def _is_damaged_by(self, piece: bytes) -> bool:
        """Add a piece of an event; return whether it is whole now, with a wrong checksum: the stream ends."""
        if not self._in_pieces:
            self._crc, self._missing = _BEFORE_STATUS, BASE + size_of(piece)
        self._in_pieces = len(piece) == _LONGEST
        self._crc, self._missing = crc32(piece, self._crc), self._missing - len(piece)
        if (self._missing and self._in_pieces) or not self._has_checksums or self._crc == _MATCHES:
            return False
        self._ended = _damaged()
        return True


def _is_payload(data: bytes, offset: int) -> bool:
    """Return whether a packet, as far as it has arrived, begins a compressed transaction in a file."""
    packet = offset + _PACKET_HEADER
    begin = data[packet : packet + FLAGS + 1]
    is_artificial = len(begin) > FLAGS and begin[FLAGS] & ARTIFICIAL
    return begin[:1] == b"\0" and begin[TYPE : TYPE + 1] == _PAYLOAD and not is_artificial


def _damaged() -> UnreadableLogError:
    return UnreadableLogError("reading the log: an event is damaged, since its checksum is wrong")


def _out_of_order(found: int, expected: int) -> TransientError:
    return TransientError(f"reading the log: packet {found} arrived instead of {expected}")


def _end_of(packet: bytes) -> TransientError:
    """Return the error for a packet that is not an event."""
    if packet[0] != _ERR:
        return LogEndedError("reading the log: the server ended the stream")
    code, text = int.from_bytes(packet[_ERROR_CODE], "little"), packet[_ERROR_TEXT].decode(errors="replace")
    family = UnreadableLogError if code == _UNREADABLE else TransientError
    return family(f"reading the log: {text} (error {code})")


def created_at(
    connection: Connection[Any], server: Server, file: str, *, checked: bool = False
) -> int | None:
    """Return a log file's creation time (seconds since 1970), from its first event. Closes the connection.

    `UnreadableLogError` if the server can't read it or, if `checked`, its checksum is wrong.
    """
    stream = BinlogStream(connection, server, file, FILE_START, 0, checked=checked)
    try:
        deadline = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < deadline:
            for packet in stream.fetch(1.0):
                if packet[TYPE] == FORMAT:
                    return header_of(packet)[0]
    finally:
        stream.close()
    return None
