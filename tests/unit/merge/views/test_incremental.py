"""Of which identities an incremental refresh deletes rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark")

from merge.views import incremental as module
from merge.views.incremental import IncrementalRefresh


def frame(*, nulls: bool) -> Any:
    """Return a frame that has a row of nulls, or none."""
    return MagicMock(where=lambda _: SimpleNamespace(isEmpty=lambda: not nulls))


@pytest.mark.parametrize("stored", [True, False])
def test_whether_a_view_has_a_row_of_nulls_is_not_asked_of_what_somebody_has_cached_of_it(
    monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """Another application has refreshed it since: its row would stay, beside the fresh one."""
    monkeypatch.setattr(module, "F", MagicMock())
    cached, target = MagicMock(), MagicMock()
    cached.table.return_value = frame(nulls=not stored)
    target.frame.return_value = frame(nulls=stored)
    only: Any = SimpleNamespace(keys=frame(nulls=True), names=("status",))
    known: list[Any] = [cached, None, None, None, target, *[None] * 5]
    refresh = IncrementalRefresh(*known)
    assert (refresh._deletable(only) is only.keys) is stored
