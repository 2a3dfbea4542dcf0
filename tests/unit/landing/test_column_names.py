"""Which names one column has had, by the ids that checks of the catalog found."""

from __future__ import annotations

from connector.landing.column_names import IDS_PER_TABLE, ColumnNames


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
    names = ColumnNames().after({"note"}, {"ssn", "note"}).after({"a"}, {"ssn", "a"})
    assert names.moves == [["-note", "-ssn", "+note"], ["-a", "+a"]]
    names = names.after({"ssn"}, {"ssn"}).after({"b"}, {"c"})
    assert names.others("ssn") == {"note", "a"}
    assert names.others("note") == {"ssn"}, "what was there before says nothing"
    assert names.others("b") == {"c"}, "ssn is back"
    assert ColumnNames().seen({"id": 1}).after({"note"}, {"ssn"}).moves == [], "ids tell"


def test_the_log_tells_which_columns_were_renamed() -> None:
    """Whatever else had that name before, and however far ahead the catalog is."""
    names = ColumnNames().told([("SSN", "Note")]).told([("note", "remark")])
    assert names.logged == [["ssn", "note", "remark"]]
    assert names.others("ssn") == {"note", "remark"}
    swapped = names.told([("a", "b"), ("b", "a")]).told([("c", "C")])
    assert swapped.logged == [*names.logged, ["a", "b"], ["b", "a"]]
    assert swapped.seen({"id": 1}).after({"x"}, {"y"}).lasting == swapped.lasting


def test_of_columns_that_the_log_gave_one_name_the_last_one_has_it() -> None:
    """The others are gone: no two have one name."""
    names = ColumnNames().told([("a", "q")]).told([("x", "note")])
    names = names.told([("q", "note")])  # x is gone
    assert names.told_of("Note") == ["a", "q"]
    assert names.told([("note", "remark")]).told_of("remark") == ["a", "q", "note"]
    again = names.told([("x", "note")])  # another x, or the same log again, which then goes on as before
    assert again.told_of("note") == ["x"]
    assert again.told([("q", "note")]) == names


def test_what_is_known_of_names_grows_with_their_number_at_most() -> None:
    names, gone = ColumnNames(), set[str]()
    for number in range(300):
        gone.add(f"c{number}")
        names = names.after({f"c{number + 1}"}, gone).told([(f"d{number}", f"d{number + 1}")])
    assert len(names.model_dump_json()) < 300 * 40
    assert names.others("c0") == {f"c{number}" for number in range(1, 301)}
    grown = names
    for _ in range(5):  # the same again and again, as a job does it each night, or a log that is read again
        grown = grown.after({"c300"}, gone).told([("d300", "d0")]).told([("d0", "d300")])
    assert len(grown.model_dump_json()) < len(names.model_dump_json()) + 20


def test_ids_of_log_that_has_yet_to_land_are_kept_until_it_has() -> None:
    one, two, three = ({"id": 1, name: number} for name, number in (("a", 2), ("b", 2), ("b", 3)))
    names = (
        ColumnNames().seen(one, 10).seen(one, 20).seen(two, 30).seen(two, 40).seen(three, 50).seen(three, 60)
    )
    assert (names.earlier, names.upto) == (one, 50)
    assert (names.landed(49).earlier, names.landed(49).upto) == (one, 50)
    landed = names.landed(50)
    assert (landed.earlier, landed.ids, landed.renamed) == ({}, three, names.renamed)
    assert landed.seen(one, 70).earlier == three


def test_ids_are_kept_of_the_table_that_has_the_name_now() -> None:
    """Of the one that it replaced, nothing lands any more."""
    one, two = ({"id": IDS_PER_TABLE * oid + 1} for oid in (7, 8))
    names = ColumnNames().seen(one, 10).seen(two, 20)
    assert (names.earlier, names.upto) == (one, 20)
    altered = names.seen({**two, "a": IDS_PER_TABLE * 8 + 2}, 30)
    assert (altered.earlier, altered.upto) == (two, 30)


def test_columns_that_were_not_altered_since_log_that_has_landed_are_known_by_their_versions() -> None:
    """Whatever a look in between has shown: what that one alone has is met until log up to the last lands."""
    first = {"id": 1, "ssn": 2, "note": 3}
    names = ColumnNames().seen(first, 10, {"id": 1, "ssn": 1, "note": 1}).landed(10)
    assert names.lasted(0) == first
    names = names.seen({**first, "new": 4}, 20, {"id": 1, "ssn": 1, "note": 2, "new": 2})
    names = names.seen(first, 30, {"id": 1, "ssn": 1, "note": 2})
    assert names.lasted(0) == {"id": 1, "ssn": 2}
    assert names.landed(29).met == ["new"]
    assert names.landed(30).lasted(0) == first
    assert names.landed(30).met == []


def test_columns_of_a_table_that_came_are_those_that_came_until_log_up_to_its_first_look_has_landed() -> None:
    names = ColumnNames().seen({"id": 1, "note": 2}, 10).seen({"id": 1, "note": 2, "new": 3}, 20)
    assert (names.first_upto, names.before(0)) == (10, {"id": 1, "note": 2})
    assert names.landed(10).first_upto == 0
    assert names.landed(10).upto == 20
