"""Places in PostgreSQL's write-ahead log, beyond what an LSN's number says. Pure."""

from __future__ import annotations

WAL_PAGE = 8192
"""XLOG_BLCKSZ of every server that is built as it comes."""

WAL_PAGE_HEADER = 40
"""The longer of the two headers of a WAL page. No record ends within one."""


def round_to_record_end(position: int) -> int:
    """Round an insert position within a page header down to where the record before it ended.

    The position of an idle log reader would never reach the header's end.
    """
    return position - position % WAL_PAGE if position % WAL_PAGE <= WAL_PAGE_HEADER else position
