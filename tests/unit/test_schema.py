"""Names of columns, compared as the lake compares them; comments."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import FormatError
from connector.landing.format import misnamed
from connector.schema import COMMENT_CHARACTERS, TableComments, TableName, fold

WELL = st.characters(exclude_categories=["Cs"])

ALIKE = """
    µμ İi ıi ſs \u0345ι ςσ ϐβ ϑθ ϕφ ϖπ ϰκ ϱρ ϵε ᲀв ᲁд ᲂо ᲃс ᲄт ᲅт ᲆъ ᲇѣ ᲈꙋ ẛṡ \u1fbeι
""".split()
"""What `Character.toLowerCase(Character.toUpperCase(c))` of Java 17 gives where `str.lower` gives another."""


@pytest.mark.parametrize("pair", ALIKE)
def test_characters_that_spark_takes_for_one_fold_alike_though_lower_case_differs(pair: str) -> None:
    odd, plain = pair
    assert odd.lower() != plain
    assert fold(odd) == fold(plain) == plain
    assert misnamed([f"a{odd}b", f"A{plain}B"]) == f"its columns a{odd}b and A{plain}B differ only by case"


def test_all_other_characters_fold_to_their_lower_case() -> None:
    odd = {chr(n) for n in range(sys.maxunicode + 1) if fold(chr(n)) != chr(n).lower()}
    assert odd == {pair[0] for pair in ALIKE}


@given(st.text(), st.text())
def test_names_fold_one_character_at_a_time_and_once_is_enough(left: str, right: str) -> None:
    assert fold(left + right) == fold(left) + fold(right)
    assert fold(fold(left)) == fold(left)
    assert len(fold(left)) == len(left)


def test_the_name_of_before_images_is_taken_only_where_they_are_asked_for() -> None:
    assert misnamed(["id", "_Before"]) is None
    assert misnamed(["id", "_Before"], before_images=True) == (
        "its column _Before has the name of our own column _before"
    )


@pytest.mark.parametrize("name", ["_cdc", "_CDC", "_cdc.holds", "_Cdc.raw.id"])
def test_names_that_merges_use_beside_the_columns_are_reserved(name: str) -> None:
    """A column `_cdc.holds` was ambiguous in a merge with a condition."""
    assert misnamed(["id", name]) == f"its column {name} has the name of our own column {name.lower()}"
    assert misnamed(["id", f"a.{name}", f"{name.replace('.', '_')}s", "cdc"]) is None


@pytest.mark.parametrize("names", [("straße", "STRASSE"), ("ŉ", "ʼn"), ("é", "e\u0301"), ("a", "а")])
def test_names_that_spark_distinguishes_may_land_together(names: tuple[str, str]) -> None:
    assert misnamed(names) is None


@given(st.text(WELL), st.dictionaries(st.text(WELL, min_size=1), st.text(WELL)))
def test_comments_are_read_as_they_were_written(text: str, columns: dict[str, str]) -> None:
    comments = TableComments.of(TableName("Shop", "or.ders"), text, columns)
    again = TableComments.from_json(comments.to_json())
    assert again == comments
    assert again.digest == comments.digest
    assert comments.empty == (not text and not any(columns.values()))


def test_long_comments_are_cut_empty_ones_left_out_and_newer_ones_refused() -> None:
    table = TableName("public", "t")
    comments = TableComments.of(table, None, {"Long": "x" * 9999, "none": "", "null": None})
    assert (comments.text, comments.columns) == ("", {"Long": "x" * COMMENT_CHARACTERS})
    assert comments.of_column("LONG") == comments.columns["Long"]
    assert comments.of_column("none") is None
    with pytest.raises(FormatError, match="comments format 2"):
        TableComments.from_json(comments.to_json().replace(b'"format":1', b'"format":2'))
