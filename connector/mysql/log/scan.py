"""Scans the log for transactions: their order, and whether they may matter to captured tables.

Only the begin of a transaction is decoded and, where requested, the names of its tables. In doubt a
transaction matters: any statement may do anything, and so may an event with a wrong checksum. There is no
time limit: the stream detects a silent server, and a large row is slow to arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator

from connector.errors import TransientError
from connector.mysql.codec.segment import ROWS_EVENTS, TABLE_MAP
from connector.mysql.codec.table_map import table_name_of
from connector.mysql.log import events
from connector.mysql.log.events import Begin
from connector.mysql.log.packet import (
    BASE,
    BODY,
    FILE_START,
    FLAGS,
    TYPE,
    TYPE_IN_EVENT,
    end_of,
    header_of,
    size_of,
)
from connector.mysql.log.stream import BinlogStream, LogEndedError, UnreadableLogError, is_intact
from connector.mysql.log.transaction_payload import Payload
from connector.mysql.server import MAX_OFFSET
from connector.schema import TableName

_HARMLESS = ROWS_EVENTS | events.NOTHING | {events.XID, events.STOP}
"""Rows events follow the names of their tables, which decide."""


def begins(stream: BinlogStream, upto: float = math.inf) -> Generator[Begin]:
    """Yield the begins of transactions, from a file's start up to an offset in it, or to the end of the log.

    Closes the stream. `TransientError` if the log ends before `upto`; `UnreadableLogError` if an event before
    the first begin is damaged: it may be the list of what was executed before the file.
    """
    begun = False
    for kind, packet, tail in _events(stream, upto):
        if kind in events.BEGINS:
            begun = True
            yield _begin_of(kind, packet, tail)
        elif not begun and tail and not is_intact(packet):
            raise UnreadableLogError("an event at the start of the log file is damaged")


def transactions(
    stream: BinlogStream, captured: Callable[[TableName], bool], examined: Callable[[Begin], bool]
) -> Generator[tuple[Begin, bool]]:
    """Yield each transaction's begin, from a file's start to the end of the log, and whether it matters.

    It does if it may change `captured` tables, or is not `examined`. Closes the stream.
    """
    begin: Begin | None = None
    matters = True
    for kind, packet, tail in _events(stream):
        if kind in events.BEGINS:
            if begin is not None:
                yield begin, matters
            begin = _begin_of(kind, packet, tail)
            matters = not examined(begin)
        elif not matters:
            matters = _matters(kind, packet, tail, captured)
    if begin is not None:
        yield begin, matters


def _begin_of(kind: int, packet: bytes, tail: int) -> Begin:
    """Parse a begin. A damaged one has no id: dumps would wait for ever for one that nobody executes."""
    seconds, _, server_id, *_ = header_of(packet)
    if tail and not is_intact(packet):
        return Begin(None, seconds * 1_000_000, False)
    return events.parse_begin(kind, seconds, server_id, packet[BODY : len(packet) - tail])


def _matters(kind: int, packet: bytes, tail: int, captured: Callable[[TableName], bool]) -> bool:
    """Return whether an event may change captured tables, other than by the rows events that follow it."""
    if tail and not is_intact(packet):  # or in pieces, so it is large
        return True
    if kind in _HARMLESS or packet[FLAGS] & events.IGNORABLE:
        return False
    body = packet[BODY : len(packet) - tail]
    if kind == TABLE_MAP:
        return captured(table_name_of(body))
    if kind == events.TRANSACTION_PAYLOAD:
        payload = Payload(packet, 0)
        return not payload.is_small or any(
            _matters(event[TYPE_IN_EVENT], bytes(BASE) + event, 0, captured) for event in payload.events()
        )
    if kind in events.STATEMENTS:
        return (events.parse_query(kind, body).statement or "").strip().upper() not in ("BEGIN", "COMMIT")
    return True


def _events(stream: BinlogStream, upto: float = math.inf) -> Iterator[tuple[int, bytes, int]]:
    """Yield each event except those that frame files: type, packet, and bytes of its checksum.

    A damaged one may have the type or flags of those. If its end is not where the next one begins, its size
    is damaged, by which the server found the next one: `UnreadableLogError`, as begins may be hidden there.
    """
    at, tail, former = FILE_START, 0, 0  # `former`: bytes of the files before
    left = 0  # of a compressed transaction that arrives in pieces
    try:
        while at < upto:
            for packet in stream.fetch(1.0):
                if left:
                    at, left = at + len(packet), left - len(packet)
                    continue
                if events.begins_file(packet):
                    tail = events.checksum_bytes(packet)
                if at >= upto or _is_artificial(packet, tail):
                    continue
                if events.begins_file(packet):
                    former = at - FILE_START
                at += len(packet) - BASE
                if packet[TYPE] == events.TRANSACTION_PAYLOAD:  # a damaged event may announce any size
                    left = size_of(packet) - (len(packet) - BASE)
                end = at + left - former & MAX_OFFSET
                if tail and end_of(packet) not in (0, end) and not is_intact(packet):
                    raise UnreadableLogError(f"the log can't be followed behind {at}: an event is damaged")
                is_frame = packet[TYPE] in events.FRAMES and (not tail or is_intact(packet))
                if not (is_frame or events.begins_file(packet)):
                    yield packet[TYPE], packet, tail
    except LogEndedError:
        pass
    finally:
        stream.close()
    if at < upto < math.inf:
        raise TransientError(f"the log ended at {at}, before {upto}")


def _is_artificial(packet: bytes, tail: int) -> bool:
    """Return whether an event is in no file; a damaged one that is may say so."""
    if not packet[FLAGS] & events.ARTIFICIAL:
        return False
    return not tail or packet[TYPE] in events.FRAMES or is_intact(packet)
