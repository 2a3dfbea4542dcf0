"""Parses the binary log's control events, which begin, end and frame transactions. Pure.

Formats: MySQL's ``libs/mysql/binlog/event``, MariaDB's ``sql/log_event.h``. A body is what follows the
header's 19 bytes, without checksum.
"""

from __future__ import annotations

import re
import struct
import zlib
from functools import lru_cache
from typing import NamedTuple

from pymysqlreplication.constants import BINLOG

from connector.errors import BugError
from connector.mysql.codec.charsets import BINARY, charset_of, decode_bytes, decoder_known, max_bytes
from connector.mysql.gtid import Gtid, MariadbGtids
from connector.mysql.log.packet import BASE, BODY, FILE_START, FLAGS, TYPE, end_of

QUERY, STOP, ROTATE = BINLOG.QUERY_EVENT, BINLOG.STOP_EVENT, BINLOG.ROTATE_EVENT
FORMAT, XID, INCIDENT = BINLOG.FORMAT_DESCRIPTION_EVENT, BINLOG.XID_EVENT, BINLOG.INCIDENT_EVENT
EXECUTE_LOAD_QUERY = BINLOG.EXECUTE_LOAD_QUERY_EVENT
"""LOAD DATA in the statement format, logged as a statement."""

HEARTBEAT, HEARTBEAT_2 = BINLOG.HEARTBEAT_LOG_EVENT, 41
GTID, ANONYMOUS_GTID, TAGGED_GTID = BINLOG.GTID_LOG_EVENT, BINLOG.ANONYMOUS_GTID_LOG_EVENT, 42
XA_PREPARE, TRANSACTION_PAYLOAD = BINLOG.XA_PREPARE_EVENT, 40
PREVIOUS_GTIDS = BINLOG.PREVIOUS_GTIDS_LOG_EVENT
MARIADB_GTID, GTID_LIST = BINLOG.MARIADB_GTID_EVENT, BINLOG.MARIADB_GTID_GTID_LIST_EVENT
START_ENCRYPTION, COMPRESSED_QUERY = BINLOG.MARIADB_START_ENCRYPTION_EVENT, 165
ANNOTATE = BINLOG.MARIADB_ANNOTATE_ROWS_EVENT
"""Types with a plain number are not among pymysqlreplication's."""

HEARTBEATS = frozenset((HEARTBEAT, HEARTBEAT_2))
FRAMES = HEARTBEATS | {ROTATE, FORMAT, START_ENCRYPTION}
BEGINS = frozenset((GTID, ANONYMOUS_GTID, TAGGED_GTID, MARIADB_GTID))
STATEMENTS = frozenset((QUERY, COMPRESSED_QUERY, EXECUTE_LOAD_QUERY))

NOTHING = frozenset(
    (
        *(BINLOG.INTVAR_EVENT, BINLOG.RAND_EVENT, BINLOG.USER_VAR_EVENT),
        *(BINLOG.IGNORABLE_LOG_EVENT, BINLOG.ROWS_QUERY_LOG_EVENT),
        *(BINLOG.APPEND_BLOCK_EVENT, BINLOG.DELETE_FILE_EVENT, BINLOG.BEGIN_LOAD_QUERY_EVENT),
        *(PREVIOUS_GTIDS, 36, 37),  # TRANSACTION_CONTEXT, VIEW_CHANGE
        *(ANNOTATE, BINLOG.MARIADB_BINLOG_CHECKPOINT_EVENT, GTID_LIST),
    )
)
"""Events that by themselves affect no table; some prepare a statement, which is handled separately."""

IGNORABLE = 0x80
"""Flag of events that a reader may skip if it does not know their type."""

THREAD_SPECIFIC = 0x04
"""Flag of statements that used a temporary table."""

ARTIFICIAL = 0x20
"""Flag of events that are in no file."""

_STANDALONE = 1
_CHECKSUM_CRC32 = 1


class Begin(NamedTuple):
    """The begin of a transaction. `gtid` None: it is anonymous.

    `standalone`: its next statement is all of it (MariaDB only). `original`: commit time where it was
    executed first, if this server replicated it and logged that time (MySQL only). `without_effect`: its
    statement is one that only begins here, or was rolled back (MariaDB, see `_ALTER_WITHOUT_EFFECT`).
    """

    gtid: Gtid | None
    micros: int
    standalone: bool
    original: int | None = None
    without_effect: bool = False

    @property
    def txid(self) -> str | None:
        """The id as text."""
        return None if self.gtid is None else str(self.gtid)


class Query(NamedTuple):
    """A statement and its default database; `statement` None: its text can't be decoded.

    `updated`: the databases whose tables it may have changed, also through views, triggers and routines, as
    reported by MySQL; None if unknown. `temporary`: a table that it names may be temporary. `lenient`: its
    sql_mode let it turn values that it did not allow into others. `zoned`: it used a time zone by which two
    instants may be the same time.
    """

    database: str
    statement: str | None
    updated: tuple[str, ...] | None = None
    temporary: bool = False
    lenient: bool = False
    zoned: bool = False


_SEQUENCE, _DOMAIN, _MARIADB_FLAGS = slice(0, 8), slice(8, 12), 12
"""Offsets in MariaDB's GTID event."""

_COMMIT_ID, _XA = 2, 0x40 | 0x80
_COMMIT_ID_BYTES = 8
"""MariaDB's flags of a transaction that has, before the other flags, an id of its group commit, or an xid."""

_ALTER_WITHOUT_EFFECT = 2 | 8
"""MariaDB's other flags of START ALTER and ROLLBACK ALTER. With ``binlog_alter_two_phase``, a statement is
logged whole when it begins and again when it ends, as one of COMMIT ALTER (4) or ROLLBACK ALTER; rows that
others write meanwhile are between the two. If the server crashes meanwhile, nothing ends it: it never was.
"""

_COUNT, _LISTED = (1 << 28) - 1, struct.Struct("<IIQ")
"""MariaDB's list of GTIDs: the bits of its first four bytes that count them; domain, server and number."""

_UUID, _NUMBER, _CLOCK_TYPE = slice(1, 17), slice(17, 25), 25
_COMMITTED, _ORIGINAL = slice(42, 49), slice(49, 56)
"""MySQL's GTID; the times, in microseconds since 1970, only if the logical clock of type 2 is before them."""

_CLOCK = 2
_MICROS, _HAS_ORIGINAL = (1 << 55) - 1, 1 << 55


def parse_begin(kind: int, header_seconds: int, server_id: int, body: bytes) -> Begin:
    """Parse the event that begins a transaction, in either dialect."""
    micros = header_seconds * 1_000_000
    if kind == MARIADB_GTID:
        sequence, domain = int.from_bytes(body[_SEQUENCE], "little"), int.from_bytes(body[_DOMAIN], "little")
        return Begin(
            Gtid(str(domain), sequence, server_id),
            micros,
            bool(body[_MARIADB_FLAGS] & _STANDALONE),
            without_effect=bool(_other_flags(body) & _ALTER_WITHOUT_EFFECT),
        )
    if kind == TAGGED_GTID:
        return _parse_tagged(body)
    original = None
    if len(body) >= _COMMITTED.stop and body[_CLOCK_TYPE] == _CLOCK:
        committed = int.from_bytes(body[_COMMITTED], "little")
        micros = committed & _MICROS
        original = int.from_bytes(body[_ORIGINAL], "little") if committed & _HAS_ORIGINAL else None
    if kind == ANONYMOUS_GTID:
        return Begin(None, micros, False)
    return Begin(Gtid(_uuid(body[_UUID]), int.from_bytes(body[_NUMBER], "little")), micros, False, original)


def _other_flags(body: bytes) -> int:
    """Return the second byte of flags in MariaDB's GTID event, 0 without one or in XA transactions."""
    flags, at = body[_MARIADB_FLAGS], _MARIADB_FLAGS + 1
    at += _COMMIT_ID_BYTES if flags & _COMMIT_ID else 0
    return 0 if flags & _XA or at >= len(body) else body[at]


def parse_gtid_list(body: bytes) -> MariadbGtids:
    """Parse the event at the start of MariaDB's files that lists what was executed before."""
    count = int.from_bytes(body[:4], "little") & _COUNT
    listed = _LISTED.iter_unpack(body[4 : 4 + count * _LISTED.size])
    return MariadbGtids({(str(domain), server): number for domain, server, number in listed})


@lru_cache(maxsize=100)  # a log has few
def _uuid(data: bytes) -> str:
    text = data.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _parse_tagged(body: bytes) -> Begin:
    """Parse a tagged GTID, in MySQL's ``mysql/serialization``: fields in order, each after its number.

    They are flags, uuid, sequence (signed), tag, two about commit order, the commit time, and the original
    commit time if it differs.
    """
    offset = 0

    def number() -> int:
        nonlocal offset
        value, offset = _varying(body, offset)
        return value

    def field(expected: int) -> None:
        if number() != expected:
            raise BugError("a tagged GTID in the log has an unknown format")

    field(1)  # the format's version
    number()  # its length
    number()  # the last field that must be known
    field(0)
    number()
    field(1)
    uuid = bytes(number() for _ in range(16))
    field(2)
    sequence = number() >> 1
    field(3)
    length = number()
    tag, offset = body[offset : offset + length].decode(), offset + length
    for order in (4, 5):
        field(order)
        number()
    field(6)
    micros = number()
    original = number() if offset < len(body) and number() == 7 else None
    return Begin(Gtid(f"{_uuid(uuid)}:{tag}", sequence), micros, False, original)


def _varying(data: bytes, offset: int) -> tuple[int, int]:
    """Read an integer whose first byte ends in as many ones as bytes follow; return it and its end offset."""
    ones = (~data[offset] & (data[offset] + 1)).bit_length() - 1
    value = int.from_bytes(data[offset : offset + ones + 1], "little")
    return value >> min(ones + 1, 8), offset + ones + 1


LONGEST_STATEMENT = 1 << 20
"""Maximum bytes of a statement that is parsed: parsing needs a hundred times as many."""


_DATABASE_BYTES, _STATUS_BYTES, _STATUS = 8, slice(11, 13), 13
"""In a QUERY event: after the thread's id and the seconds that it took; an error code is in between."""

_LOAD_STATUS = _STATUS + 13
"""Of EXECUTE_LOAD_QUERY, which has the file's id and the offsets of its name before its status."""


def parse_query(kind: int, body: bytes) -> Query:
    """Parse a QUERY event, MariaDB's compressed one, or EXECUTE_LOAD_QUERY."""
    database_length, status_length = body[_DATABASE_BYTES], int.from_bytes(body[_STATUS_BYTES], "little")
    start = _LOAD_STATUS if kind == EXECUTE_LOAD_QUERY else _STATUS
    offset = start + status_length
    database = body[offset : offset + database_length].decode(errors="replace")
    text = body[offset + database_length + 1 :]
    if kind == COMPRESSED_QUERY:
        text = _uncompress(text)
    status = _status_of(body[start:offset])
    lenient = not int.from_bytes(status.get(_SQL_MODE, b""), "little") & _STRICT
    zone = status.get(_TIME_ZONE, b"")[1:]
    zoned = bool(zone) and _FIXED_ZONE.fullmatch(zone) is None
    return Query(database, _statement(text, status), _updated_databases(status), lenient=lenient, zoned=zoned)


def _statement(text: bytes, status: dict[int, bytes]) -> str | None:
    """Decode a statement, in its client's character set; None if its text or its parts can't be determined.

    By some sql_modes a backslash within quotes is a character like any other, or brackets quote a name. To a
    client of one byte per character, a no-break space is a space; to others it is part of a name.
    """
    modes = int.from_bytes(status.get(_SQL_MODE, b""), "little")
    if len(text) > LONGEST_STATEMENT or (modes & _NO_ESCAPES and b"\\" in text):
        return None
    if modes & _ANSI_QUOTES and b"\\" in text and b'"' in text:
        return None
    if modes & _BRACKETS and b"[" in text:
        return None
    client = int.from_bytes(status.get(_CHARSETS, b"")[:2], "little")
    charset = charset_of(client) if client else "utf8mb4"
    if text.isascii() and charset != _NO_ASCII:
        return text.decode()
    charset = "utf8mb4" if charset == BINARY else charset  # names are taken as is, so as UTF-8
    if charset is None or not decoder_known(charset):
        return None
    try:
        decoded = decode_bytes(text, charset)
    except ValueError:
        return None
    return None if _NO_BREAK_SPACE in decoded and max_bytes(charset) == 1 else decoded


_SQL_MODE, _CHARSETS, _TIME_ZONE, _INVOKER, _UPDATED, _TOO_MANY = 1, 4, 5, 11, 12, 254
_NO_ESCAPES, _ANSI_QUOTES, _BRACKETS = 1 << 20, 1 << 2, 1 << 10
"""Bits of sql_mode: NO_BACKSLASH_ESCAPES, ANSI_QUOTES and MariaDB's MSSQL."""

_STRICT = 1 << 21 | 1 << 22
"""Bits of sql_mode: STRICT_TRANS_TABLES and STRICT_ALL_TABLES."""

_FIXED_ZONE = re.compile(rb"[+-]\d\d?:\d\d")
"""An offset from UTC."""

_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
_NO_ASCII = "swe7"
"""The only character set that a client may have in which brackets, braces and quotes are letters."""

_STATUS_WIDTHS = {0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8, 18: 2, 19: 1, 20: 1}
_STATUS_TEXTS = {2: 2, 5: 1, 6: 1}


def _status_of(status: bytes) -> dict[int, bytes]:
    """Parse a statement's status variables, up to its databases or an unknown variable."""
    offset, found = 0, {}
    while offset < len(status):
        code, begin = status[offset], offset + 1
        if code == _UPDATED:
            found[code] = status[begin:]
            break
        if code in _STATUS_WIDTHS:
            offset = begin + _STATUS_WIDTHS[code]
        elif code in _STATUS_TEXTS:
            offset = begin + _STATUS_TEXTS[code] + status[begin]
        elif code == _INVOKER:
            host = begin + 1 + status[begin]
            offset = host + 1 + status[host]
        else:
            break
        found[code] = status[begin:offset]
    return found


def _updated_databases(status: dict[int, bytes]) -> tuple[str, ...] | None:
    """Find Q_UPDATED_DB_NAMES among a statement's status variables; None if absent."""
    listed = status.get(_UPDATED)
    if listed is None or listed[0] == _TOO_MANY:
        return None
    return tuple(name.decode() for name in listed[1:].split(b"\0")[: listed[0]])


def _uncompress(text: bytes) -> bytes:
    if text[0] & 0x70:
        raise BugError("a statement in the log has an unknown compression")
    width = text[0] & 0x07
    return zlib.decompress(text[1 + width :])


def rotate_targets(body: bytes, tail: int) -> list[tuple[int, int]]:
    """Return the possible numbers and first offsets of the next file in the stream.

    An artificial ROTATE comes before the FORMAT event that announces checksums, so there are two candidates:
    the likelier one is first.
    """
    offset = int.from_bytes(body[:8], "little")
    found = []
    for checksum in (tail, 4 - tail):
        number = body[8 : len(body) - checksum].rpartition(b".")[2]
        if number.isdigit():
            found.append((int(number), offset))
    return found


_CREATED = slice(BODY + 2 + 50, BODY + 2 + 50 + 4)
"""In a FORMAT packet, after the format's version and the server's."""

_LEAST_FORMAT_BYTES = BODY + 57 + 5
"""Version, server, creation time and header length; the checksum's algorithm, and the checksum itself."""

_ALGORITHM = -5


def begins_file(packet: bytes | bytearray) -> bool:
    """Return whether an event is a FORMAT event: a damaged one may have its type, but not its place.

    It has no end, or is artificial, if reading begins within its file.
    """
    if packet[TYPE] != FORMAT:
        return False
    return bool(packet[FLAGS] & ARTIFICIAL) or end_of(packet) in (0, FILE_START + len(packet) - BASE)


def checksum_bytes(packet: bytes) -> int:
    """Return the number of checksum bytes at the end of each event after this FORMAT event, given whole.

    The checksum's algorithm is the byte before the FORMAT event's own checksum.
    """
    if len(packet) < _LEAST_FORMAT_BYTES:
        raise BugError("the log's format description is too short")
    return 4 if packet[_ALGORITHM] == _CHECKSUM_CRC32 else 0


def begins_process(packet: bytes) -> bool:
    """Return whether a FORMAT event, given whole, is the first that its server process wrote.

    Only then does it have a creation time of its own. It also has none when reading begins within its file.
    """
    return any(packet[_CREATED])


_XID_HEADER = struct.Struct("<BIII")
"""Whether it is in one phase, the format's id, and the lengths of the xid's two parts, which follow."""

_xid_header, _XID_HEADER_BYTES = _XID_HEADER.unpack_from, _XID_HEADER.size


def xid_of_xa(body: bytes) -> tuple[str, bool]:
    """Return the id of an XA PREPARE event and whether it is a commit in one phase."""
    one_phase, format_id, gtrid, bqual = _xid_header(body)
    data = body[_XID_HEADER_BYTES : _XID_HEADER_BYTES + gtrid + bqual]
    return f"X'{data[:gtrid].hex()}',X'{data[gtrid:].hex()}',{format_id}", bool(one_phase)
