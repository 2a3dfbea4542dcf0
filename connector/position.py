"""Positions: the total order of all events of one source.

Invariant: a table's state at a position is, for each key, the event with the greatest position at or before
it. Everything else in Deltatide follows from that one sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from connector.errors import ConfigurationError

CHUNK_SEQ = 1 << 62
"""A chunk event's ``seq`` is this plus its dump's number: it sorts after every log event of its ``lsn``."""


class Position(NamedTuple):
    """A position in the history of one source; tuples compare left to right.

    ``epoch`` numbers the log histories of the source; ``lsn`` names the transaction (PostgreSQL: its commit
    LSN); ``seq`` orders the row events of one transaction: twice the ordinal of the change, so that an update
    of the key has room for a delete and an insert.
    """

    epoch: int
    lsn: int
    seq: int

    @classmethod
    def of_chunk(cls, epoch: int, low: int, dump_number: int) -> Position:
        """Return the position of all rows of a chunk whose low watermark is ``low``."""
        return cls(epoch, low, CHUNK_SEQ + dump_number)

    @classmethod
    def of_gap(cls, epoch: int, floor: int) -> Position:
        """Return where a gap before a floor ends: before every chunk there and every later log event."""
        return cls(epoch, floor - 1, CHUNK_SEQ)


def format_lsn(lsn: int) -> str:
    """Format an LSN as PostgreSQL does, ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def format_position(lsn: int, kind: str) -> str:
    """Format a position as users of its kind of source know it: an LSN, or a binlog's file and offset."""
    if kind == "postgres":
        return format_lsn(lsn)
    file_number, offset = unpack_binlog_position(lsn)
    return f"binlog file {file_number} offset {offset}"


def pack_binlog_position(file_number: int, offset: int) -> int:
    """Pack a binlog file's number and an offset in it into a position's `lsn`."""
    return file_number << 32 | offset


def unpack_binlog_position(lsn: int) -> tuple[int, int]:
    """Return the binlog file's number and the offset of a position's `lsn`."""
    return lsn >> 32, lsn & 0xFFFFFFFF


def parse_lsn(text: str) -> int:
    """Parse an LSN in PostgreSQL's notation; ``ValueError`` if it is not one."""
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def parse_position(text: str, kind: str) -> tuple[int | None, int]:
    """Parse ``16/B374D848``, or a binlog's ``3/4512`` (file, offset), with an optional epoch: ``2:``.

    Also parses binlog positions as `format_position` writes them. ``ValueError`` if the text is none of
    these.
    """
    digits = "[0-9A-Fa-f]+" if kind == "postgres" else "[0-9]+"
    pattern = rf"(?:(\d+):)?(?:({digits})/|binlog file (\d+) offset )({digits})"
    found = re.fullmatch(pattern, text.strip())
    if found is None or (kind == "postgres" and found[3]):
        raise ValueError(f"{text!r} is not a position")
    base = 16 if kind == "postgres" else 10
    high, low = int(found[2] or found[3], base), int(found[4], base)
    if high >> 31 or low >> 32:
        raise ValueError(f"{text!r} is greater than any position")
    return (int(found[1]) if found[1] else None), high << 32 | low


@dataclass(frozen=True)
class Moment:
    """A moment in a source's history, given as a manifest, a position, or a commit time in UTC.

    `position`: epoch (None: the newest) and boundary. `text`: as it was written.
    """

    text: str
    manifest: int | None = None
    position: tuple[int | None, int] | None = None
    committed_at: datetime | None = None

    @classmethod
    def parse(cls, text: str, kind: str) -> Moment:
        """Parse a manifest's number, a position (`parse_position`) or an ISO 8601 time; without zone: UTC."""
        written = text.strip()
        if written.isascii() and written.isdigit() and len(written) <= 15:
            return cls(written, manifest=int(written))
        try:
            return cls(written, position=parse_position(written, kind))
        except ValueError:
            pass
        try:
            at = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", written))
        except ValueError:
            example = "16/B374D848" if kind == "postgres" else "3/4512 (binlog file and offset)"
            raise ConfigurationError(
                f"{text!r} is neither a manifest, nor a position, nor a time",
                hint=f"write 120, {example}, or 2026-11-21T10:00:00Z; deltatide cuts lists what there is",
            ) from None
        return cls(written, committed_at=in_utc(at))


def in_utc(at: datetime) -> datetime:
    """Return an instant in UTC; one without a time zone is taken to be in UTC."""
    return at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)
