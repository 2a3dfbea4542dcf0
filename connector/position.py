"""Positions: the total order of all events of one source.

Invariant: a table's state at a position is the event with the greatest position for each key, over the
events at or before it. Everything else in Deltatide follows from that one sentence.
"""

from __future__ import annotations

from typing import NamedTuple

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


def format_lsn(lsn: int) -> str:
    """Format an LSN as PostgreSQL does, ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def format_position(lsn: int, kind: str) -> str:
    """Format a position as users of its kind of source know it: an LSN, or a binlog's file and offset."""
    if kind == "postgres":
        return format_lsn(lsn)
    return f"binlog file {lsn >> 32} offset {lsn & 0xFFFFFFFF}"


def parse_lsn(text: str) -> int:
    """Parse an LSN in PostgreSQL's notation; ``ValueError`` if it is not one."""
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)
