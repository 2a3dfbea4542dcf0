"""Lists of synchronous standbys that the agent's session matches."""

from __future__ import annotations

import pytest

from connector.postgres.slot import check_standbys


@pytest.mark.parametrize("names", ["*", " * ", '"*"', "a, *", "FIRST 1 (*)", "ANY 2 (s1, *, s2)", "2(*)"])
def test_a_list_that_matches_every_session_is_warned_of(names: str) -> None:
    (found,) = check_standbys(names)
    assert found.state == "warning"
    assert "commits at the source would wait" in found.detail


@pytest.mark.parametrize(
    "names", ["", "s1", 'FIRST 1 (s1, "s*")', 'ANY 1 ("a, b", s2)', "nobody", '"deltatide shop"']
)
def test_a_list_of_names_is_not(names: str) -> None:
    assert not [*check_standbys(names)]
