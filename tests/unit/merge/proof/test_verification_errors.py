"""What a verification says of a table that can't be compared."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from connector.schema import TableName
from merge.proof.verification import _Run


@pytest.mark.parametrize("projection", [object(), None])
def test_an_error_holds_no_value_of_a_table_that_is_not_all_in_the_lake(
    monkeypatch: pytest.MonkeyPatch, projection: object
) -> None:
    def fail(*_: Any) -> None:
        raise PySparkException("[CAST_INVALID_INPUT] The value 'hidden' can't be cast")

    monkeypatch.setattr("merge.proof.verification.applied_settings", lambda *_: nullcontext())
    monkeypatch.setattr(_Run, "_compare", fail)
    landing: Any = SimpleNamespace(projection=lambda _: projection, hint_for=lambda _: None)
    nothing: Any = None
    run = _Run(nothing, nothing, landing, nothing, None, None)
    dump: Any = SimpleNamespace(rows=1, kind="verify", table=TableName("public", "orders"))
    monkeypatch.setattr("merge.proof.verification.explain", lambda *_: None)
    error = run.verify(dump).error
    assert error is not None
    assert error.startswith("[CAST_INVALID_INPUT]")
    assert ("hidden" in error) == (projection is None)
