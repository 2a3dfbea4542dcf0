"""Checks that the current log is the log that was read before, by what a manifest recorded of it.

A server restored from a copy of its disk or memory reuses log files, offsets and GTIDs for other
transactions.

A manifest's `last_commit` is the last transaction read, by the position where it begins; or, if no
transaction of the file at the manifest's position was read yet, that file. So it is always in that file, and
exists as long as the log can be read on. Its begin is read again: GTID and commit time, or the file's
creation time, match only if it is the same one, since only the process that created a file ever writes to it,
in order.

The tables alone may be restored, and the log kept, which then goes on as if nothing had happened. But InnoDB
counts the bytes of its own log for ever, so a lower number than was recorded with the last commit shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone

from connector.errors import BugError, TransientError
from connector.landing.manifest import LastCommit
from connector.mysql.log import events
from connector.mysql.log.events import Begin
from connector.mysql.log.packet import BASE, BODY, FILE_START, FLAGS, TYPE, header_of, size_of
from connector.mysql.log.stream import BinlogStream, LogEndedError, UnreadableLogError
from connector.mysql.server import LogFile, format_binlog_position
from connector.mysql.state_table import RecordedFile
from connector.position import pack_binlog_position, unpack_binlog_position
from connector.silence import SILENCE_SECONDS

_GARBAGE = (BugError, IndexError, ValueError, OverflowError)
"""Errors from parsing a begin where no event begins."""

_ANONYMOUS, _FILE = "anonymous", "begin of the file"


def why_position_gone(
    files: Mapping[int, LogFile],
    position: int,
    recorded_file: RecordedFile | None,
    created: Callable[[str], int],
) -> str | None:
    """Return why the same server's log does not continue at a position, or None.

    `recorded_file`: the file that was being read; `created`: returns a file's creation time by its name.
    """
    number, offset = unpack_binlog_position(position)
    if number not in files:
        first, last = min(files), max(files)
        return f"binlog file {number} is gone (files {first} to {last} exist): purged, reset or another log"
    if offset > files[number].size:
        size = files[number].size
        return f"binlog file {files[number].name} ends at {size}, before {offset}: reset or another log"
    if recorded_file is None or recorded_file.file < min(files):
        return None  # purged as usual: nothing is left to compare
    found = files.get(recorded_file.file)
    if found is None or created(found.name) != recorded_file.created:
        return f"binlog file {recorded_file.file} is not the one that was read: the log was reset"
    return None


def to_datetime(micros: int) -> datetime:
    """Convert microseconds since 1970 to a UTC datetime."""
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=micros)


def of_transaction(lsn: int, begin: Begin) -> LastCommit:
    """Return the `LastCommit` of a transaction that begins at `lsn`."""
    return LastCommit(position=lsn, txid=begin.txid or _ANONYMOUS, committed_at=to_datetime(begin.micros))


def of_file(number: int, created: int) -> LastCommit:
    """Return the `LastCommit` of a file without transactions; `created` is in seconds since 1970."""
    begun = to_datetime(created * 1_000_000)
    return LastCommit(position=pack_binlog_position(number, FILE_START), txid=_FILE, committed_at=begun)


def is_named(last: LastCommit) -> bool:
    """Return whether the last commit has an id that another server may know."""
    return last.txid not in (_ANONYMOUS, _FILE)


def why_set_back(last: LastCommit, engine_lsn: int | None) -> str | None:
    """Return why a server's tables are older than the log that was read from it, or None."""
    if last.engine_lsn is None or engine_lsn is None or engine_lsn >= last.engine_lsn:
        return None
    return (
        f"InnoDB's own log ends at {engine_lsn}, and had been at {last.engine_lsn}: the server's tables were"
        " restored from a copy, and not its binary log"
    )


def why_different(stream: BinlogStream, last: LastCommit) -> str | None:
    """Return why the log is not the one in which `last` was read, or None if it is. Closes the stream.

    `stream` begins at `last.position` and ends with the log.
    """
    try:
        found = _first(stream, last.position)
    except (LogEndedError, UnreadableLogError, *_GARBAGE) as error:
        at = format_binlog_position(last.position)
        return f"the log can no longer be read at {at}, so the server was restored or replaced: {error}"
    finally:
        stream.close()
    if found == last.model_copy(update={"engine_lsn": None}):
        return None
    return (
        f"the log has {_format(found)} at {format_binlog_position(last.position)}, where it had"
        f" {_format(last)}: the server was restored or replaced"
    )


def unreadable(stream: BinlogStream, position: int) -> str | None:
    """Return why the transaction after `position` can't be read, or None if it can. Closes the stream.

    A crash of MariaDB may leave half an event at the end of a file, which the server then never gets past; a
    disk may return an event with a wrong checksum each time. `stream` begins at `position`; nobody else can
    end it, since a reader's other errors may look alike.
    """
    begun, left, deadline = 0, 0, time.monotonic() + SILENCE_SECONDS
    try:
        while begun < 2 and time.monotonic() < deadline:
            for packet in stream.fetch(1.0):
                deadline = time.monotonic() + SILENCE_SECONDS
                if left:  # of a compressed transaction that arrives in pieces
                    left -= len(packet)
                else:
                    begun += packet[TYPE] in events.BEGINS
                    left = size_of(packet) - (len(packet) - BASE)
    except LogEndedError:
        return None
    except UnreadableLogError as error:
        return f"the log can't be read after {format_binlog_position(position)}: {error}"
    finally:
        stream.close()
    return None


def _first(stream: BinlogStream, position: int) -> LastCommit | None:
    """Read the file or transaction that begins at a position; None if neither does."""
    number, offset = unpack_binlog_position(position)
    tail, deadline = 0, time.monotonic() + SILENCE_SECONDS
    while time.monotonic() < deadline:
        for packet in stream.fetch(1.0):
            seconds, kind, server_id, *_ = header_of(packet)
            if kind == events.FORMAT:
                tail = events.checksum_bytes(packet)
                if offset == FILE_START:
                    return of_file(number, seconds)
            elif kind in events.BEGINS:
                body = packet[BODY : len(packet) - tail]
                return of_transaction(position, events.parse_begin(kind, seconds, server_id, body))
            elif kind not in events.FRAMES and not packet[FLAGS] & events.ARTIFICIAL:
                return None
    raise TransientError(f"the server does not send its log at {format_binlog_position(position)}")


def _format(commit: LastCommit | None) -> str:
    if commit is None:
        return "no transaction"
    return f"{commit.txid} of {commit.committed_at:%Y-%m-%d %H:%M:%S}Z"
