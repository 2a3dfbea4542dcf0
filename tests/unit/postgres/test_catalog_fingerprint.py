"""What two fingerprints of a PostgreSQL table, and those remembered before, say of its columns."""

from __future__ import annotations

import pytest

from connector.postgres.catalog_fingerprint import remember, unlogged


def fingerprint(relation: int = 7, dropped: tuple[int, ...] = (), **columns: int) -> str:
    """A fingerprint of a table whose columns have these numbers."""
    listed = ",".join(f"{name}={number}.25" for name, number in columns.items())
    gone = ["-" + ",".join(map(str, dropped))] if dropped else []
    return " ".join([f"r{relation}", "n10.1", "pabc+", f"@{listed}", *gone, "xabc", f"{relation}:1:"])


def reasons(*seen: str) -> list[bool]:
    """Whether each fingerprint but the first is a reason for a dump."""
    found, known = [], None
    for now in seen:
        if known is not None:
            found.append(unlogged(known, now) is not None)
        known = remember(known, now)
    return found


def test_a_column_that_went_and_comes_back_is_reported_however_many_looks_and_layouts_lie_between() -> None:
    without = fingerprint(id=1, w=3, dropped=(2,))
    back = fingerprint(id=1, w=3, v=4, dropped=(2,))
    first = fingerprint(id=1, v=2, w=3)
    assert reasons(first, without, without, back, back) == [False, False, True, False]
    assert reasons(first, fingerprint(8, id=1), fingerprint(8, id=1, v=2)) == [True, True]


@pytest.mark.parametrize("looks_between", [0, 1, 2])
def test_a_column_that_came_and_went_unseen_may_be_the_one_that_comes(looks_between: int) -> None:
    between = [fingerprint(id=1, dropped=(2,))] * looks_between
    came, later = fingerprint(id=1, v=3, dropped=(2,)), fingerprint(id=1, v=3, w=4, dropped=(2,))
    found = reasons(fingerprint(id=1), *between, came, later)
    assert found == [False] * looks_between + [True, False], "and no more once all rows are dumped again"


def test_a_new_column_is_none_that_went_before_the_table_was_seen() -> None:
    seen = fingerprint(id=1, dropped=(2,)), fingerprint(id=1, v=3, dropped=(2,))
    assert reasons(*seen, fingerprint(id=1, v=3, w=4, dropped=(2,))) == [False, False]


def test_a_column_has_values_once_it_gains_a_default_which_a_crash_has_let_come_in_its_place() -> None:
    null = fingerprint(id=1, v=2)
    filled = null.replace("v=2.25", "v=2.25v")
    assert reasons(null, filled, filled, null) == [True, False, False], "once rewritten, it is stored"


def test_a_generated_column_hides_no_real_one_whose_name_differs_by_case() -> None:
    """Generated columns do not land, so a table may have both."""
    before, after = fingerprint(id=1, note=2), fingerprint(id=1, memo=2)
    before, after = (text.replace(" xabc", ",note=3.25g xabc") for text in (before, after))
    assert reasons(before, after) == [True]


@pytest.mark.parametrize("made_plain", ["a=2.25,b=3.25", "a=2.25,a=3.25"])
def test_a_generated_column_named_like_a_real_one_but_for_case_has_values_once_it_is_plain(
    made_plain: str,
) -> None:
    before, after = fingerprint(id=1, a=2), fingerprint(id=1)
    before = before.replace(" xabc", ",a=3.25g xabc")
    after = after.replace(" xabc", f",{made_plain} xabc")
    assert reasons(before, before, after, after) == [False, True, False]


def test_a_change_of_a_column_is_seen_beside_one_whose_name_has_the_same_hash() -> None:
    both = fingerprint(id=1).replace(" xabc", ",a=2.25,a=3.25 xabc")
    assert reasons(both, both.replace("a=2.25", "a=2.20"), both.replace("a=3.25", "a=3.20")) == [True, True]


def test_a_generated_column_that_went_is_none_that_came_and_went_unseen() -> None:
    before, after = fingerprint(id=1, a=2), fingerprint(id=1, a=2, dropped=(3,))
    before = before.replace(" xabc", ",a=3.25g xabc")
    assert reasons(before, after, fingerprint(id=1, a=2, n=4, dropped=(3,))) == [False, False]


def test_a_key_column_of_another_collation_is_reported_and_a_new_unique_index_is_not() -> None:
    def known(*collations: str) -> str:
        return fingerprint(id=1, name=2) + "".join(f" k{listed}" for listed in collations)

    seen = known(), known("2.100"), known("2.100,3.100"), known("2.950,3.100"), known("2.950"), known()
    assert reasons(*seen) == [False, False, True, False, False]


def test_one_trace_of_a_unique_index_that_lasts_is_enough_and_none_is_needed_before_any_was_noted() -> None:
    before_the_word, key = fingerprint(id=1), fingerprint(id=1) + " u"
    seen = key + "1,c2,f3", key + "4,c2,f4", key + "4,5,c2,f4,f5", key + "5,c6,f5", key + "7,c8,f7"
    assert reasons(before_the_word, *seen) == [False, False, False, False, True]
    assert reasons(key, *seen[:1]) == [False]


def test_labels_go_with_the_last_column_of_their_enum_and_one_that_goes_alone_was_renamed() -> None:
    def known(labels: str) -> str:
        return fingerprint(id=1) + (f" ~{labels}" if labels else "")

    seen = known("8/cc,9/aa,9/bb"), known("8/cc,9/aa,9/bb,9/dd"), known("9/aa,9/bb,9/dd"), known("")
    assert reasons(*seen) == [False, False, False]
    assert reasons(known("8/cc,9/aa,9/bb"), known("9/aa,9/bc"), known("9/#ab"), known("9/#ac")) == [True] * 3
    before_enums_were_named = known("aa,bb,#ab")
    assert reasons(before_enums_were_named, known("7/#ab,9/aa,9/bb")) == [False]
    assert reasons(before_enums_were_named, known("7/#ab,9/aa")) == [True]
