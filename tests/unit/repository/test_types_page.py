from __future__ import annotations

from tests.fidelity.page import PAGE, page


def test_the_page_of_types_says_what_the_matrix_holds() -> None:
    assert PAGE.read_text() == page(), "write it again: python -m tests.fidelity.page"
