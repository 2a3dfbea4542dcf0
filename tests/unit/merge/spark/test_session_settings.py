"""Settings that a session has for a moment."""

from __future__ import annotations

import subprocess
import sys
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


def test_what_pyspark_says_of_pandas_at_each_start_is_not_shown() -> None:
    of_4_2 = "PySpark does not yet fully support pandas >= 3.0.0. Some features may not work correctly."
    program = f"import warnings, merge; warnings.warn({of_4_2!r}, FutureWarning)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not done.stderr
