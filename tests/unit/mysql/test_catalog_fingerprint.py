"""InnoDB's ids of tables: which change of them the log tells of, and which it does not."""

from __future__ import annotations

import pytest

from connector.mysql.catalog_fingerprint import (
    STATEMENTS_KEPT,
    Fingerprint,
    IdReading,
    Statements,
    is_same,
)
from connector.schema import TableName

T = TableName("d", "t")
KNOWN = Fingerprint(noted="1:7", epoch=1, at=100, ids="18")


def statements(*lsns: int, epoch: int = 1) -> Statements:
    found = Statements()
    found.begin(epoch)
    for lsn in lsns:
        found.add(T, lsn)
    return found


def judged(ids: str, *lsns: int, known: Fingerprint = KNOWN) -> Fingerprint:
    return IdReading(1, 200, 210, {T: ids}).judge(T, known, statements(*lsns))


def test_a_fingerprint_comes_back_as_it_was_written() -> None:
    assert Fingerprint.parse(str(KNOWN)) == KNOWN
    assert Fingerprint.parse(str(Fingerprint())) == Fingerprint()


def test_another_id_without_a_statement_that_rebuilds_the_table_is_an_unlogged_change_once() -> None:
    found = judged("19", 90, 99, 210)
    assert found.differs(KNOWN)
    again = IdReading(1, 300, 310, {T: "19"}).judge(T, found, statements(210))
    assert not again.differs(found)
    assert (
        IdReading(1, 200, 210, {T: "20"}).judge(T, found, statements(210)).differs(found)
    )  # nothing logged since


def test_another_id_after_a_statement_that_rebuilds_the_table_is_no_unlogged_change() -> None:
    for lsn in (100, 199):
        assert judged("19", lsn) == Fingerprint("1:7", "", 1, 200, "19")


def test_a_statement_explains_only_what_was_seen_after_it() -> None:
    """An ALTER that lets the id be, and a crash within a TRUNCATE after the reading that came behind it."""
    after_the_alter = judged("18", 150)
    assert not after_the_alter.differs(KNOWN)
    assert IdReading(1, 300, 310, {T: "19"}).judge(T, after_the_alter, statements(150)).differs(KNOWN)


def test_in_mysql_tablespaces_decide_and_where_one_of_the_two_lacks_them_the_time_does() -> None:
    assert is_same("100/7,8", "200/7,8")
    assert not is_same("100/7,8", "100/7,9")
    assert is_same("100/", "100/7")
    assert is_same("100/7", "100/")
    assert not is_same("100/", "200/7")
    assert not is_same("100/", "200/")
    assert not is_same("18", "19")


def test_ids_that_name_the_same_table_differently_are_taken_over() -> None:
    """As when the right to see tablespaces is granted."""
    known = Fingerprint(epoch=1, at=100, ids="100/")
    found = judged("100/7", known=known)
    assert not found.differs(known)
    assert found.ids == "100/7"
    assert judged("100/8", known=found).differs(found)


@pytest.mark.parametrize("ids", ["18", "19"])
def test_a_statement_beside_the_look_leaves_the_judgment_to_the_next_one(ids: str) -> None:
    assert judged(ids, 205) is KNOWN
    assert judged(ids, *range(1000, 1000 + STATEMENTS_KEPT)) is KNOWN


def test_ids_that_are_not_known_or_are_another_servers_are_taken_over() -> None:
    for known in (Fingerprint(noted="1:7"), Fingerprint("1:7", "", 2, 900, "3")):
        found = judged("19", known=known)
        assert not found.differs(known)
        assert (found.ids, found.at) == ("19", 200)
    assert IdReading(1, 200, 210, {}).judge(T, KNOWN, statements()) is KNOWN  # without the right to see them


def test_what_is_read_again_after_a_lost_connection_counts_once_and_another_epoch_begins_anew() -> None:
    found = statements(*range(1, STATEMENTS_KEPT), 5, 6, 7)
    assert found.between(T, 5, 6) is True
    assert found.between(T, STATEMENTS_KEPT, 900) is False
    found.begin(2)
    assert found.between(T, 0, 900) is False
