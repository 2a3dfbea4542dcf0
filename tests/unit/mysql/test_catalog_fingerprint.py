"""InnoDB's ids of tables: which change of them the log tells of, and which it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.mysql.catalog_fingerprint import (
    STATEMENTS_KEPT,
    Fingerprint,
    IdReading,
    Judge,
    Statements,
    is_same,
)
from connector.position import pack_binlog_position
from connector.schema import TableName

T = TableName("d", "t")
KNOWN = Fingerprint(epoch=1, at=100, ids="18")
SEEN = Fingerprint("", 1, 200, "19")


def statements(*lsns: int, late: int | None = None, crash: int | None = None) -> Statements:
    found = Statements()
    found.begin(1, 0)
    for lsn in lsns:
        found.add(T, lsn)
    if late is not None:
        found.add(T, late, late=True)
    if crash is not None:
        found.add_crash(crash)
    return found


def first(ids: str, *lsns: int, known: Fingerprint = KNOWN) -> Fingerprint:
    """Return what the first reading that shows these ids has remembered."""
    return judged(statements(*lsns), IdReading(1, 200, 210, {T: ids}), known=known)


def judged(kept: Statements, *readings: IdReading, known: Fingerprint = KNOWN) -> Fingerprint:
    """Return what is remembered after several readings."""
    judge = Judge(kept)
    for reading in readings:
        known = judge.judge(reading, {T: known})[T]
    return known


def test_a_fingerprint_comes_back_as_it_was_written() -> None:
    assert Fingerprint.parse(str(KNOWN)) == KNOWN
    assert Fingerprint.parse(str(Fingerprint())) == Fingerprint()
    assert Fingerprint.parse("1:7|1:210:19|1|250|19") == Fingerprint("1:210:19", 1, 250, "19")  # as it was


def readings(*ids: str) -> list[IdReading]:
    """Return a reading of each, between 200 and 210, 300 and 310, and so on."""
    return [IdReading(1, 100 * n, 100 * n + 10, {T: each}) for n, each in enumerate(ids, 2)]


def test_another_id_without_a_statement_that_rebuilds_the_table_is_an_unlogged_change_once() -> None:
    kept = statements(90, 99)
    assert judged(kept, *readings("19")) == KNOWN  # one that is logged late may explain it
    found = judged(kept, *readings("19", "19"))
    assert found.differs(KNOWN)
    assert (found.ids, found.at) == ("19", 200)
    assert judged(kept, *readings("19", "19", "19", "19")) == found
    assert judged(kept, *readings("19", "19", "20", "20")).differs(found)


def test_another_id_after_a_statement_that_rebuilds_the_table_is_no_unlogged_change() -> None:
    for lsn in (100, 199):
        assert first("19", lsn) == SEEN


@pytest.mark.parametrize("lsn", [211, 299, 305])
def test_a_statement_that_is_logged_late_explains_an_id_that_showed_before_it(lsn: int) -> None:
    assert not judged(statements(late=lsn), *readings("19", "19", "19", "19")).differs(KNOWN)
    unlogged = judged(statements(lsn), *readings("19", "20", "20", "20"))
    assert unlogged.differs(KNOWN)
    assert unlogged.ids == "20"


def test_one_that_is_logged_two_looks_later_explains_nothing() -> None:
    assert judged(statements(late=311), *readings("19", "19")).differs(KNOWN)


def test_a_difference_is_decided_even_if_the_next_reading_lacks_the_table() -> None:
    """As one that others keep locked, maybe for hours."""
    found = judged(statements(), *readings("19"), IdReading(1, 300, 310))
    assert found.differs(KNOWN)
    assert (found.ids, found.at) == ("19", 200)


def test_what_an_agent_did_not_get_to_decide_or_to_remember_is_seen_again() -> None:
    judge, (one, two, three) = Judge(statements()), readings("19", "19", "19")
    undecided = judge.judge(one, {T: KNOWN})
    assert undecided == {T: KNOWN}
    assert judge.judge(two, undecided)[T].differs(KNOWN)
    assert judge.judge(three, undecided)[T].differs(KNOWN)  # the caller has discarded that
    assert judged(statements(), two, three).differs(KNOWN)  # another agent
    repaired = Fingerprint("1:210:19", 1, 250, "19")  # taken over by a dump
    assert judge.judge(three, {T: repaired}) == {T: repaired}


def test_a_difference_of_one_server_is_none_of_the_next() -> None:
    judge, (one, _) = Judge(statements()), readings("19", "19")
    judge.judge(one, {T: KNOWN})
    assert not judge.judge(IdReading(2, 300, 310, {T: "19"}), {T: KNOWN})[T].differs(KNOWN)


@pytest.mark.parametrize("lsn", [101, 160])
def test_nothing_explains_another_id_after_a_crash(lsn: int) -> None:
    """A logged TRUNCATE, then a crash within one that is not; or after the crash, an ALTER."""
    kept = statements(lsn, crash=150)
    assert judged(kept, *readings("19")).differs(KNOWN)


def test_a_crash_that_left_the_table_as_it_was_matters_no_more_once_that_was_seen() -> None:
    kept = statements(350, crash=150)
    after = judged(kept, *readings("18"))
    assert after == replace(KNOWN, at=200)
    assert judged(kept, *readings("18", "18", "19")) == replace(KNOWN, at=400, ids="19")


def test_a_crash_beside_the_look_leaves_the_judgment_to_the_next_one() -> None:
    assert judged(statements(crash=210), *readings("19")) == KNOWN
    assert judged(statements(crash=210), *readings("19", "19")).differs(KNOWN)


@pytest.mark.parametrize("ids", ["18", "19"])
def test_a_crash_may_have_come_before_the_agent_started_if_a_file_of_the_log_ended_there(ids: str) -> None:
    """Within a TRUNCATE that is not logged; a statement that the agent has read came after it."""
    known = replace(KNOWN, at=pack_binlog_position(1, 900))
    reading = IdReading(1, pack_binlog_position(2, 500), pack_binlog_position(2, 510), {T: ids})
    for file, is_known in ((1, True), (2, False)):
        kept = Statements()
        kept.begin(1, pack_binlog_position(file, 4))
        kept.begin(1, pack_binlog_position(2, 300))  # after a lost connection
        kept.add(T, pack_binlog_position(2, 400))
        found = judged(kept, reading, known=known)
        assert (found.ids, found.at) == (ids, reading.before)
        assert found.differs(known) == (ids == "19" and not is_known)


@pytest.mark.parametrize(("read_from", "moves"), [(1, True), (None, False)])
def test_what_is_remembered_of_an_unchanged_table_is_of_the_last_file_where_that_matters(
    read_from: int | None, moves: bool
) -> None:
    """To whoever starts next, the server may have crashed as the file ended. MySQL may not have."""
    kept, known = Statements(), replace(KNOWN, at=pack_binlog_position(1, 900))
    kept.begin(1, pack_binlog_position(read_from, 4) if read_from else None)
    in_first = IdReading(1, pack_binlog_position(1, 950), pack_binlog_position(1, 960), {T: "18"})
    assert judged(kept, in_first, known=known) == known
    in_second = IdReading(1, pack_binlog_position(2, 500), pack_binlog_position(2, 510), {T: "18"})
    found = judged(kept, in_second, known=known)
    assert found == (replace(known, at=in_second.before) if moves else known)
    assert not found.differs(known)


def test_a_statement_explains_only_what_was_seen_after_it() -> None:
    """An ALTER that lets the id be, and a crash within a TRUNCATE after the reading that came behind it."""
    after_the_alter = first("18", 150)
    assert not after_the_alter.differs(KNOWN)
    assert judged(statements(150), *readings("18", "19", "19")).differs(KNOWN)


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
    found = first("100/7", known=known)
    assert not found.differs(known)
    assert found.ids == "100/7"
    assert judged(statements(), *readings("100/8", "100/8"), known=found).differs(found)


@pytest.mark.parametrize("ids", ["18", "19"])
def test_a_statement_beside_the_look_leaves_the_judgment_to_the_next_one(ids: str) -> None:
    assert first(ids, 205) is KNOWN
    assert first(ids, *range(1000, 1000 + STATEMENTS_KEPT)) is KNOWN


def test_ids_that_are_not_known_or_are_another_servers_are_taken_over() -> None:
    for known in (Fingerprint(), Fingerprint("", 2, 900, "3")):
        found = first("19", known=known)
        assert not found.differs(known)
        assert (found.ids, found.at) == ("19", 200)
    assert judged(statements(), IdReading(1, 200, 210)) is KNOWN  # without the right to see them


def test_what_is_read_again_after_a_lost_connection_counts_once_and_another_epoch_begins_anew() -> None:
    found = statements(*range(1, STATEMENTS_KEPT), 5, 6, 7)
    assert found.between(T, 5, 6) is True
    assert found.between(T, STATEMENTS_KEPT, 900) is False
    found.begin(2, 0)
    assert found.between(T, 0, 900) is False
