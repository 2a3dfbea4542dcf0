"""Which names one column has had, by the ids that checks of the catalog found."""

from __future__ import annotations

from connector.landing.column_names import ColumnNames


def test_names_of_one_column_stay_known_whoever_has_them_now() -> None:
    names = ColumnNames().seen({"id": 1, "ssn": 2, "note": 3})
    assert names.renamed == {}
    names = names.seen({"id": 1, "note": 2}).seen({"id": 1, "remark": 2, "ssn": 4})
    assert names.renamed == {"2": ["note", "remark", "ssn"]}
    assert names.others_of("remark") == {"note", "ssn"}
    assert names.others_of("ssn") == names.others_of("note") == set(), "now another column's, and nobody's"
    replaced = names.seen({"id": 7, "note": 8, "ssn": 9})  # by another table of its name
    assert replaced.renamed == names.renamed


def test_names_that_stay_or_come_and_go_are_no_renames() -> None:
    names = ColumnNames().seen({"id": 1, "a": 2}).seen({"id": 1, "a": 3, "b": 4}).seen({"id": 1, "c": 5})
    assert names.renamed == {}


def test_a_column_without_an_id_that_comes_may_be_any_that_is_gone() -> None:
    names = ColumnNames().after({"note"}, {"ssn", "note"}).after({"a"}, {"a"})
    assert names.came == {"note": ["ssn"]}, "that a was there before says nothing"
    names = names.after({"note"}, {"b"})
    assert set(names.of_one) == {frozenset(("note", "ssn")), frozenset(("note", "b"))}
    assert ColumnNames().seen({"id": 1}).after({"note"}, {"ssn"}).came == {}, "ids tell"
