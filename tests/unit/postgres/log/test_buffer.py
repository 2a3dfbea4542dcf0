"""The PostgreSQL log reader's buffer: what it remembers of each commit."""

from __future__ import annotations

import struct
from datetime import datetime, timedelta, timezone

from connector.landing.event_batch import QuarantineNotice
from connector.landing.manifest import InvisibleCommit, LastCommit
from connector.postgres.catalog import TableLayout
from connector.postgres.log.buffer import LogBuffer
from connector.postgres.visibility import Visibility
from tests.unit.postgres.codec.reference_codec import insert

RELID = 99


def transaction(xid: int, commit_lsn: int, *changes: bytes) -> list[bytes]:
    begin = b"B" + struct.pack(">QqI", commit_lsn, 1_000_000, xid)
    commit = b"C" + struct.pack(">BQQq", 0, commit_lsn, commit_lsn + 8, 1_000_000)
    return [begin, *changes, commit]


def relation(name: str) -> bytes:
    column = b"\x01id\x00" + struct.pack(">Ii", 23, -1)
    return b"R" + struct.pack(">I", RELID) + b"public\x00" + name.encode() + b"\x00d\x00\x01" + column


def test_a_commit_is_remembered_even_when_its_table_is_not_landed() -> None:
    visibility = Visibility(0)
    buffer = LogBuffer(1, visibility, lambda _relation, _xid: TableLayout(None, "it can't be read", "fix it"))
    buffer.feed(transaction(7, 100, relation("t"), insert(RELID, ["1"])), 0)
    buffer.feed(transaction(8, 200), 0)
    assert visibility.not_yet_visible(300) == [InvisibleCommit(xid=7, lsn=100)]


def test_what_is_quarantined_in_an_open_transaction_is_handed_over_with_it() -> None:
    """Nothing is landed of a segment that holds no whole transaction."""
    buffer = LogBuffer(
        1, Visibility(0), lambda _relation, _xid: TableLayout(None, "it can't be read", "fix it")
    )
    begin, *changes, commit = transaction(7, 100, relation("t"), insert(RELID, ["1"]))
    buffer.feed(transaction(6, 90), 0)
    buffer.feed([begin, *changes], 0)
    assert [*buffer.take().decode()] == []
    buffer.feed([commit], 0)
    (quarantined,) = buffer.take().decode()
    assert isinstance(quarantined, QuarantineNotice)
    assert quarantined.lsn == 100


def test_the_last_commit_is_named_whatever_it_changed() -> None:
    buffer = LogBuffer(1, Visibility(0), lambda _relation, _xid: None)
    assert buffer.take().last_commit is None
    buffer.feed(transaction(7, 100) + transaction(8, 200), 0)
    buffer.idle(250)
    second = datetime(2000, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=1)
    assert buffer.take().position == 250
    assert buffer.take().last_commit == LastCommit(position=208, txid="8", committed_at=second)
