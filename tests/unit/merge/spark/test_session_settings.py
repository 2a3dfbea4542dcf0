"""Settings that a session has for a moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from merge.spark.session_settings import CROSSED, UNFOLDED, unfolded_settings


@pytest.mark.parametrize("refused", [set[str](), {*CROSSED}, {*UNFOLDED}])
def test_a_condition_can_be_optimized_in_a_session_that_refuses_cartesian_products(refused: set[str]) -> None:
    """Its query is a join whose condition names columns of one side alone."""
    settings: dict[str, Any] = dict.fromkeys(CROSSED, "false")
    before = dict(settings)

    def change(name: str, value: str) -> None:
        if name not in refused:
            settings[name] = value

    conf = SimpleNamespace(get=settings.get, set=change, unset=lambda name: settings.pop(name, None))
    spark: Any = SimpleNamespace(conf=conf)
    with unfolded_settings(spark) as unfolded:
        assert unfolded == (not refused & {*UNFOLDED})
        assert all(settings[name] == value for name, value in CROSSED.items() if name not in refused)
    assert settings == before
