"""The page structure of PostgreSQL's write-ahead log, which an LSN does not show. Pure."""

from __future__ import annotations

WAL_PAGE = 8192
"""XLOG_BLCKSZ of every server built with the defaults."""

WAL_PAGE_HEADER = 40
"""The longer of the two headers of a WAL page. No record ends within one."""


def round_to_record_end(position: int) -> int:
    """Round an insert position within a page header down to the end of the record before it.

    An idle log reader's position would never reach the end of the header.
    """
    return position - position % WAL_PAGE if position % WAL_PAGE <= WAL_PAGE_HEADER else position
