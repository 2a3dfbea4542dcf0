"""Names of columns, compared as the lake compares them."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.landing.format import misnamed
from connector.schema import fold

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


@pytest.mark.parametrize("names", [("straße", "STRASSE"), ("ŉ", "ʼn"), ("é", "e\u0301"), ("a", "а")])
def test_names_that_spark_distinguishes_may_land_together(names: tuple[str, str]) -> None:
    assert misnamed(names) is None
