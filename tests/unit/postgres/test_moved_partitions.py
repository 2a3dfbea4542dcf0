"""Partitions that came or went, where the server decides only once whose rows are whose."""

from __future__ import annotations

from connector.postgres.catalog_fingerprint import parts_changed
from connector.postgres.definitions.moved_partitions import MovedPartitions
from connector.schema import TableName
from connector.source import CatalogSnapshot

T, PLAIN = TableName("s", "t"), TableName("s", "plain")
ONE, TWO, THREE = (f"r1 p5 {' '.join(f'{leaf}:f:' for leaf in range(2, last + 1))}" for last in (2, 3, 4))
"""Fingerprints of a table with as many partitions."""


def check(at: int, of_t: str) -> CatalogSnapshot:
    found = {T: of_t, PLAIN: f"r9 p5+ 9:{at}:"}
    return CatalogSnapshot(found, at, frozenset(found))


def tables_of(found: CatalogSnapshot) -> tuple[set[TableName], set[TableName]]:
    """Return what is handed over, and for what of it the log is opened anew."""
    return {*found.tables}, {*found.unprepared}


def test_a_change_of_partitions_counts_once_the_log_is_opened_after_it() -> None:
    known, moved = {T: ONE, PLAIN: "r9 p5+ 9:0:"}, MovedPartitions()
    early = moved.hold_back(check(20, TWO), known, 10)
    assert tables_of(early) == ({PLAIN}, set())
    assert early.existing == {T, PLAIN}
    read = moved.hold_back(check(30, TWO), known, 20)
    assert tables_of(read) == ({T, PLAIN}, {T})
    moved.opens_at = 19
    assert moved.hold_back(check(35, TWO), known, 20).tables.keys() == {PLAIN}
    moved.opens_at = 20
    opened = moved.hold_back(check(40, TWO), known, 20)
    assert tables_of(opened) == ({T, PLAIN}, set())
    assert opened.tables[T] == TWO


def test_another_change_meanwhile_has_to_be_read_as_well() -> None:
    known, moved = {T: ONE}, MovedPartitions()
    moved.hold_back(check(20, TWO), known, 10)
    moved.opens_at = 25
    assert moved.hold_back(check(30, THREE), known, 25).tables[T] == TWO
    known = {T: TWO}
    assert moved.hold_back(check(35, THREE), known, 25).tables.keys() == {PLAIN}
    moved.opens_at = 30
    assert moved.hold_back(check(40, THREE), known, 30).tables[T] == THREE


def test_partitions_that_change_from_each_check_to_the_next_are_acted_on() -> None:
    """They were held back for as long as that went on, so cuts without their rows were called exact."""
    known, moved, reopened = {T: ONE}, MovedPartitions(), 0
    for number in range(1, 12):
        now = f"r1 p5 2:f: 3:{number}:"
        found = moved.hold_back(check(10 * number, now), known, 10 * number - 1)
        if T in found.unprepared:
            moved.opens_at = 10 * number
            found = moved.hold_back(check(10 * number + 1, now), known, 10 * number)
            known, moved.opens_at, reopened = {T: found.tables[T]}, None, reopened + 1
        else:
            assert T not in found.tables
    assert reopened == 5
    assert known == {T: "r1 p5 2:f: 3:10:"}


def test_what_the_log_says_of_a_table_opens_it_once() -> None:
    """The mark stays in what is known until a check is acted on, whose partitions are the known ones."""
    moved, marked = MovedPartitions(), {T: f"{TWO} 9:log:"}
    assert moved.hold_back(check(20, TWO), marked, 10).tables.keys() == {PLAIN}
    assert T in moved.hold_back(check(30, TWO), marked, 20).unprepared
    moved.opens_at = 25
    assert moved.hold_back(check(40, TWO), marked, 20).tables[T] == TWO
    moved.opens_at = None
    assert tables_of(moved.hold_back(check(50, TWO), {T: TWO}, 45)) == ({T, PLAIN}, set())


def test_what_was_seen_before_a_crash_took_log_back_need_not_be_read_as_far() -> None:
    moved = MovedPartitions()
    moved.hold_back(check(90, TWO), {T: ONE}, 10)
    moved.hold_back(check(20, TWO), {T: ONE}, 10)
    assert T in moved.hold_back(check(30, TWO), {T: ONE}, 20).unprepared


def test_a_new_table_has_its_partitions_once_the_log_is_opened_after_they_were_seen() -> None:
    moved = MovedPartitions()
    moved.opens_at = 10
    assert moved.hold_back(check(20, TWO), {}, 0).tables[T] == "r1 p5"
    moved.opens_at = None
    assert moved.hold_back(check(30, TWO), {T: "r1 p5"}, 15).tables.keys() == {PLAIN}
    assert T in moved.hold_back(check(40, TWO), {T: "r1 p5"}, 20).unprepared
    moved.opens_at = 20
    assert moved.hold_back(check(50, TWO), {T: "r1 p5"}, 20).tables[T] == TWO


def test_of_a_new_table_only_partitions_that_were_seen_before_its_slot_was_created_are_known_at_once() -> (
    None
):
    moved = MovedPartitions()
    moved.hold_back(check(5, TWO), {}, 0)
    moved.opens_at = 10
    assert moved.hold_back(check(20, TWO), {}, 0).tables[T] == TWO
    assert parts_changed(moved.hold_back(check(21, THREE), {}, 0).tables[T], THREE)


def test_the_log_is_not_opened_anew_for_a_table_that_is_not_known() -> None:
    """It may be quarantined; if it is released, its partitions have been seen."""
    moved = MovedPartitions()
    for position in (20, 30):
        assert not moved.hold_back(check(position, TWO), {}, 25).unprepared
    moved.opens_at = 25
    assert moved.hold_back(check(40, TWO), {}, 25).tables[T] == TWO


def test_new_tables_and_new_empty_partitions_are_handed_over_at_once() -> None:
    moved = MovedPartitions()
    known: dict[TableName, str]
    for known in ({}, {T: ONE}):
        found = moved.hold_back(check(20, f"{ONE} 3:f:e"), known, 10)
        assert tables_of(found) == ({T, PLAIN}, set())
