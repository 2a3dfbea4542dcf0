"""The PostgreSQL log reader's buffer: what it remembers of each commit."""

from __future__ import annotations

import struct
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from connector.landing.event_batch import QuarantineNotice
from connector.landing.manifest import InvisibleCommit, LastCommit
from connector.logged_table import LoggedTable
from connector.postgres.codec.pgoutput import Relation
from connector.postgres.definitions.refusals import TableLayout
from connector.postgres.log.buffer import LogBuffer
from connector.postgres.visibility import Visibility
from connector.schema import Column, TableName, TableSchema
from tests.unit.postgres.codec.reference_codec import insert, truncate

RELID = 99


def transaction(xid: int, commit_lsn: int, *changes: bytes) -> list[bytes]:
    begin = b"B" + struct.pack(">QqI", commit_lsn, 1_000_000, xid)
    commit = b"C" + struct.pack(">BQQq", 0, commit_lsn, commit_lsn + 8, 1_000_000)
    return [begin, *changes, commit]


def relation(name: str, relid: int = RELID, identity: bytes = b"d", is_key: int = 1) -> bytes:
    column = bytes([is_key]) + b"id\x00" + struct.pack(">Ii", 23, -1)
    described = b"public\x00" + name.encode() + b"\x00" + identity + b"\x00\x01" + column
    return b"R" + struct.pack(">I", relid) + described


def layout_of(relation: Relation, _xid: int | None) -> TableLayout | None:
    """Only "t" is captured."""
    table = TableName(relation.namespace, relation.name)
    columns = (Column("id", "integer", "int"),)
    return TableLayout(TableSchema(table, columns, ("id",))) if table.name == "t" else None


def visible(_xid: int) -> bool:
    return True


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
    assert buffer.take().end.last_commit is None
    buffer.feed(transaction(7, 100) + transaction(8, 200), 0)
    buffer.idle(250)
    second = datetime(2000, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=1)
    assert buffer.take().position == 250
    assert buffer.take().end.last_commit == LastCommit(position=208, txid="8", committed_at=second)


@pytest.mark.parametrize("table", ["t", "away"])
def test_the_name_that_an_open_transaction_has_for_a_table_is_handed_over_with_it(table: str) -> None:
    """Nothing is landed of a segment that holds no whole transaction."""
    buffer = LogBuffer(1, Visibility(0), layout_of)
    begin, *changes, commit = transaction(7, 100, relation(table), insert(RELID, ["1"]))
    buffer.feed([begin, *changes], 0)
    assert not buffer.take().logged
    part = buffer.take_open()
    assert (part is None) == (table == "away")
    buffer.feed([commit], 0)
    logged = [*(part.logged if part else []), *buffer.take().logged]
    assert logged == [LoggedTable(RELID, TableName("public", table), lsn=100)]
    assert [each.xid for each in logged] == [7]


@pytest.mark.parametrize("root", ["t", "away"])
def test_a_table_that_is_described_right_after_another_before_its_rows_is_a_partition_of_it(
    root: str,
) -> None:
    """Whether its root is captured or not. Tables that are truncated together are described so, too."""
    buffer = LogBuffer(1, Visibility(0), layout_of)
    described = relation(root), relation("part", 98)
    buffer.feed(transaction(7, 100, *described, insert(RELID, ["1"])), 0)
    buffer.feed(transaction(8, 200, *described, truncate(RELID, 98)), 0)
    buffer.feed(transaction(9, 300, relation("away", 97), insert(97, ["1"]), relation("part", 98)), 0)
    table, part, away = TableName("public", root), TableName("public", "part"), TableName("public", "away")
    assert buffer.take().logged == [
        LoggedTable(RELID, table, lsn=100),
        LoggedTable(98, part, table, lsn=100),
        LoggedTable(RELID, table, lsn=200),
        LoggedTable(98, part, lsn=200),
        LoggedTable(97, away, lsn=300),
        LoggedTable(98, part, lsn=300),
    ]


@pytest.mark.parametrize(
    ("identity", "is_key", "identified"),
    [(b"d", 1, True), (b"f", 1, True), (b"d", 0, False), (b"i", 1, False)],
)
def test_a_partition_whose_old_keys_are_not_logged_as_its_roots_are_is_noted(
    identity: bytes, is_key: int, identified: bool
) -> None:
    buffer = LogBuffer(1, Visibility(0), layout_of)
    described = relation("t"), relation("part", 98, identity, is_key)
    buffer.feed(transaction(7, 100, *described, insert(RELID, ["1"])), 0)
    logged = buffer.take().logged
    assert [each.identified for each in logged] == [True, identified]
    assert [each.keeps_name for each in logged] == [True, False]


def test_a_root_that_is_not_described_after_a_rename_goes_on_under_its_former_name() -> None:
    """It is told with all that is taken until it is described again, maybe after some of its changes."""
    buffer = LogBuffer(1, Visibility(0), layout_of)
    names, former, now = buffer.descriptions, TableName("public", "t"), TableName("public", "u")
    outdated = LoggedTable(RELID, former, lsn=208, former=True)
    buffer.feed(transaction(7, 100, relation("t"), relation("part", 98), insert(RELID, ["1"])), 0)
    names.compare({RELID: former}, 150, visible)
    assert names.may_be_outdated() == [RELID]
    assert not [each for each in buffer.take().logged if each.former]
    buffer.feed(transaction(8, 200, insert(RELID, ["2"])), 0)
    assert names.compare({RELID: now}, 300, visible)
    assert not names.compare({RELID: now}, 400, visible)
    assert (names.outdated_before(300), names.outdated_before(301)) == ([], [former])
    assert buffer.take().logged == [outdated]
    buffer.feed(transaction(9, 400, relation("u"), relation("part2", 97), insert(RELID, ["3"])), 0)
    assert buffer.take().logged == [
        LoggedTable(RELID, former, lsn=400, former=True),
        LoggedTable(RELID, now, lsn=400),
        LoggedTable(97, TableName("public", "part2"), now, 400),
    ]
    assert names.outdated_before(1000) == []


@pytest.mark.parametrize(
    ("now", "describes_schema_renames", "former"),
    [
        (TableName("public", "u"), False, False),
        (TableName("s", "t"), False, True),
        (TableName("s", "t"), True, False),
    ],
)
def test_a_table_without_partitions_is_described_after_a_rename_but_not_always_of_its_schema(
    now: TableName, describes_schema_renames: bool, former: bool
) -> None:
    buffer = LogBuffer(1, Visibility(0), layout_of)
    buffer.descriptions.describes_schema_renames = describes_schema_renames
    buffer.feed(transaction(7, 100, relation("t"), insert(RELID, ["1"])), 0)
    assert [each.keeps_name for each in buffer.take().logged] == [not describes_schema_renames]
    assert buffer.descriptions.may_be_outdated() == ([] if describes_schema_renames else [RELID])
    buffer.descriptions.compare({RELID: now}, 200, visible)
    assert bool(buffer.descriptions.outdated_before(201)) == former


def test_a_former_name_is_reported_with_its_changes_though_the_new_one_is_in_an_open_transaction() -> None:
    """If the log is lost before its end, it begins with the new name."""
    buffer = LogBuffer(1, Visibility(0), layout_of)
    former = LoggedTable(RELID, TableName("public", "t"), former=True)
    buffer.feed(transaction(7, 100, relation("t"), relation("part", 98), insert(RELID, ["1"])), 0)
    buffer.take()
    buffer.feed(transaction(8, 200, insert(RELID, ["2"])), 0)
    begin, *changes, commit = transaction(9, 300, relation("u"), relation("part2", 97), insert(97, ["3"]))
    buffer.feed([begin, *changes], 0)
    buffer.descriptions.compare({RELID: TableName("public", "u")}, 300, visible)
    assert buffer.take().logged == [replace(former, lsn=208)]
    assert buffer.take().logged == []
    buffer.feed([commit], 0)
    assert [each for each in buffer.take().logged if each.former] == [replace(former, lsn=300)]


def test_a_table_that_is_gone_may_have_been_renamed_before_its_last_changes() -> None:
    """Renamed, written and dropped between two comparisons: nothing shows the name it had."""
    buffer = LogBuffer(1, Visibility(0), layout_of)
    names, former = buffer.descriptions, LoggedTable(RELID, TableName("public", "t"), former=True)
    buffer.feed(transaction(7, 100, relation("t"), relation("part", 98), insert(RELID, ["1"])), 0)
    assert not names.compare({}, 150, lambda xid: xid < 7), "its transaction is not visible yet"
    assert not [each for each in buffer.take().logged if each.former]
    assert names.compare({}, 208, lambda xid: xid == 7)
    assert names.outdated_before(1000) == [], "no later log of it can come, for which to reread it"
    buffer.feed(transaction(8, 150, insert(RELID, ["2"])), 0)
    assert not names.compare({}, 300, visible)
    assert buffer.take().logged == [replace(former, lsn=158)]
    buffer.feed(transaction(9, 200, insert(RELID, ["3"])), 0)
    assert buffer.take().logged == [replace(former, lsn=208)]
    assert buffer.take().logged == [], "all its log is taken"
    assert names.may_be_outdated() == []
