"""Keys that are asked for: few enough, and such as a source can have."""

from __future__ import annotations

from typing import Any

import pytest

from merge.proof import differences
from merge.proof.differences import few_keys


class Keys:
    """A data frame of keys."""

    def __init__(self, *keys: list[str | None]) -> None:
        self.rows = [{"key": key} for key in keys]

    def limit(self, _most: int) -> Any:
        return self

    def collect(self) -> list[Any]:
        return self.rows


@pytest.mark.parametrize(
    ("keys", "fetched"),
    [
        ([["b", "1"], ["a", "2"]], [["a", "2"], ["b", "1"]]),
        ([["1"], ["2"], ["3"]], None),
        ([["long" * 10]], None),
        ([["a", None], ["a", "1"]], None),
        ([[None]], None),
    ],
)
def test_too_many_keys_and_those_with_nulls_are_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, keys: list[list[str | None]], fetched: Any
) -> None:
    monkeypatch.setattr(differences, "MOST_KEYS", 2)
    monkeypatch.setattr(differences, "MOST_KEY_BYTES", 30)
    found: Any = Keys(*keys)
    assert few_keys(found) == fetched
