"""Follows a log through its files: where each event ends, and which file comes next. Does no I/O.

::

    log  := { file }
    file := FORMAT [START_ENCRYPTION] { event group } [ROTATE | STOP]

FORMAT begins a file, and says whether a new server process began it. ROTATE ends it, and the same process
continues in the next file; STOP ends it as the server shuts down; neither ends it: the server crashed, or ran
on without writing its log. Around the files the server sends artificial events, which are in none: a ROTATE
that names the file that follows in the stream, the FORMAT of a file that is not read from its start, and
heartbeats.

Follows "Binlog Management" in MySQL's source documentation, and in MariaDB's "Replication Protocol" the pages
1-Binlog Events, FORMAT_DESCRIPTION_EVENT, ROTATE_EVENT, Fake ROTATE_EVENT and STOP_EVENT.

Invariant: each event of a file ends where its header says, and begins where the one before it ended; files
follow each other by number. Anything else is an error, so nothing is skipped or duplicated.
"""

from __future__ import annotations

from collections.abc import Collection

from connector.errors import TransientError
from connector.mysql.log.packet import BASE, FILE_START, TYPE, end_of
from connector.mysql.server import MAX_OFFSET
from connector.position import pack_binlog_position, unpack_binlog_position


class FileSequence:
    """The file being read, and the offset of its next event (64 bits: see `event_groups`).

    `created`: the file's creation time in seconds since 1970; None until its FORMAT has arrived. `stopped`:
    it has ended with STOP. `rotated`: the previous file ended with ROTATE, between event groups, and this
    one's FORMAT has not arrived.
    """

    def __init__(self, position: int) -> None:
        self.file, self.offset = unpack_binlog_position(position)
        self.created: int | None = None
        self.stopped = False
        self.rotated = False
        self._named = False

    def __str__(self) -> str:
        return f"file {self.file} offset {self.offset}"

    @property
    def position(self) -> int:
        """The position of the next event."""
        return pack_binlog_position(self.file, self.offset)

    def advance(self, packet: bytes) -> None:
        """Move past an event that is in the file."""
        expected = self.offset + len(packet) - BASE
        if end_of(packet) != expected & MAX_OFFSET:
            raise self.broken(packet, expected)
        self.offset = expected

    def broken(self, packet: bytes, expected: int) -> TransientError:
        """Return the error of an event that does not end at the `expected` offset."""
        return TransientError(
            f"the log does not continue where it ended: an event of type {packet[TYPE]} ends at"
            f" {end_of(packet)}, not at {expected & MAX_OFFSET}, of file {self.file}"
        )

    def leads_on(self, targets: Collection[tuple[int, int]], *, artificial: bool) -> bool:
        """Return whether a ROTATE to one of these files and offsets leads to the next file.

        False: it names the current file, as the first one in a stream does. `TransientError` for any other.
        """
        if artificial and (self.file, self.offset) in targets:
            self._named = True
            return False
        if (self.file + 1, FILE_START) not in targets or not self._named:
            raise TransientError(f"the log continued at {targets}, not after {self}")
        return True

    def begin_next(self, *, rotated: bool) -> None:
        """Move to the start of the next file."""
        self.file, self.offset, self.created = self.file + 1, FILE_START, None
        self.stopped, self.rotated = False, rotated
