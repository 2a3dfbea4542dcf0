"""Files are split into groups of a size, in order, and none is lost."""

from __future__ import annotations

import pytest

from connector.landing.file_groups import groups_of


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([3], [[3]]),
        ([10, 10], [[10], [10]]),
        ([4, 4, 4, 1, 20, 2], [[4, 4, 4], [1, 20], [2]]),
        ([0, 0], [[0, 0]]),
    ],
)
def test_only_the_last_group_is_smaller(sizes: list[int], groups: list[list[int]]) -> None:
    assert list(groups_of(sizes, lambda size: size, 10)) == groups
