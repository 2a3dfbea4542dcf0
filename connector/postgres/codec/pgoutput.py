"""Parses pgoutput's messages, one at a time, except the tuples of row changes. Pure.

Protocol version 1 (PostgreSQL's manual, "Logical Replication Message Formats"). Every function takes a
payload and `base`, the number of bytes before the message's kind: 0 when streaming, `COPY_BASE` in a row of a
binary COPY of ``(lsn pg_lsn, data bytea)``.
"""

from __future__ import annotations

import struct
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from connector.errors import BugError

COPY_BASE = 18
"""Field count, length and value of the LSN, length of the data: what precedes a payload in a binary COPY."""

CHANGES = b"IUDT"
"""Kinds of messages that change rows: Insert, Update, Delete, Truncate."""

_EPOCH_MICROS = 946_684_800_000_000
"""2000-01-01, PostgreSQL's epoch, in microseconds since 1970-01-01."""

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Begin(NamedTuple):
    """Begin of a transaction: its commit LSN, its commit time (microseconds since 1970, UTC), its xid."""

    commit_lsn: int
    committed_micros: int
    xid: int


class Commit(NamedTuple):
    """Commit of a transaction: LSN of the commit record, LSN after it, commit time as in `Begin`."""

    commit_lsn: int
    end_lsn: int
    committed_micros: int


class RelationColumn(NamedTuple):
    """A column in the publication; `is_key`: it is part of the replica identity."""

    name: str
    type_oid: int
    typmod: int
    is_key: bool


class Relation(NamedTuple):
    """A table as the log describes it; `identity` is ``pg_class.relreplident`` (d, n, f, i)."""

    relid: int
    namespace: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


class Truncate(NamedTuple):
    """The tables of one TRUNCATE; options: 1 cascade, 2 restart identity."""

    relids: tuple[int, ...]
    options: int


def to_datetime(micros: int) -> datetime:
    """Turn microseconds since 1970 into a UTC datetime, without rounding."""
    return _UNIX_EPOCH + timedelta(microseconds=micros)


def parse_begin(payload: bytes, base: int = 0) -> Begin:
    """Parse a 'B' message."""
    lsn, micros, xid = _unpack(">QqI", payload, base, b"B")
    return Begin(lsn, micros + _EPOCH_MICROS, xid)


def parse_commit(payload: bytes, base: int = 0) -> Commit:
    """Parse a 'C' message."""
    _flags, commit_lsn, end_lsn, micros = _unpack(">BQQq", payload, base, b"C")
    return Commit(commit_lsn, end_lsn, micros + _EPOCH_MICROS)


def parse_truncate(payload: bytes, base: int = 0) -> Truncate:
    """Parse a 'T' message."""
    count, options = _unpack(">IB", payload, base, b"T")
    if len(payload) != base + 6 + 4 * count:
        raise BugError(f"a truncate message of {count} tables has {len(payload) - base} bytes")
    return Truncate(struct.unpack_from(f">{count}I", payload, base + 6), options)


def parse_relation(payload: bytes, base: int = 0) -> Relation:
    """Parse an 'R' message."""
    (relid,) = _unpack(">I", payload, base, b"R")
    namespace, offset = _text(payload, base + 5)
    name, offset = _text(payload, offset)
    identity, count = chr(payload[offset]), int.from_bytes(payload[offset + 1 : offset + 3], "big")
    offset += 3
    columns = []
    for _ in range(count):
        is_key = bool(payload[offset] & 1)
        column, offset = _text(payload, offset + 1)
        oid, typmod = struct.unpack_from(">Ii", payload, offset)
        offset += 8
        columns.append(RelationColumn(column, oid, typmod, is_key))
    if offset != len(payload):
        raise BugError(f"a relation message of {namespace}.{name} has bytes left over")
    # An empty namespace means pg_catalog.
    return Relation(relid, namespace or "pg_catalog", name, identity, tuple(columns))


def _unpack(layout: str, payload: bytes, base: int, kind: bytes) -> tuple[int, ...]:
    if payload[base : base + 1] != kind:
        raise BugError(f"message kind {payload[base : base + 1]!r} where {kind!r} was expected")
    try:
        return struct.unpack_from(layout, payload, base + 1)
    except struct.error as error:
        raise BugError(f"a {kind!r} message of {len(payload) - base} bytes is cut short") from error


def _text(payload: bytes, offset: int) -> tuple[str, int]:
    end = payload.find(b"\0", offset)
    if end < 0:
        raise BugError("a name in a message is not terminated")
    return payload[offset:end].decode(), end + 1
