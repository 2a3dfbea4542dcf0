"""Whether a Delta table's column may have been widened."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import DecimalType, IntegerType, StructType

from merge.lake import widened
from merge.lake.target import TargetState


@pytest.mark.parametrize(
    ("was_widened", "digits", "is_whole"),
    [(False, 8, False), (True, 8, True), (False, 18, True)],
)
def test_a_column_that_was_widened_since_the_state_was_read_is_found(
    monkeypatch: pytest.MonkeyPatch, was_widened: bool, digits: int, is_whole: bool
) -> None:
    """A reader takes the state, then the newest version: a merge may widen a column in between."""
    monkeypatch.setattr(widened, "_whole", lambda *_: "whole")
    columns = {"id": "int", "v": "decimal(8,2)"}
    state = TargetState("t", columns, {}, files=1, bytes=1, widened=was_widened)
    frame = Mock(schema=StructType().add("id", IntegerType()).add("v", DecimalType(digits, 2)))
    found = widened.with_whole_filters(frame, state)
    assert (found is not frame) == is_whole
