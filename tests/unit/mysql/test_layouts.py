"""Which tables can't be captured exactly, whatever their layout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connector.mysql.catalog import TableFacts
from connector.mysql.definitions.layouts import _misfit
from connector.schema import TableName

WITHOUT: Any = SimpleNamespace(of=lambda table: [])
"""No foreign keys."""


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ("InnoDB", None),
        ("ROCKSDB", "uses engine ROCKSDB, whose rows may change without any log"),
        ("Aria", "uses engine Aria, which has no snapshots"),
        (None, "which has no snapshots"),
    ],
)
def test_only_an_engine_all_of_whose_changes_are_in_the_log_is_captured(
    engine: str | None, reason: str | None
) -> None:
    found = _misfit(TableFacts(TableName("d", "t"), "BASE TABLE", engine, 0), WITHOUT, {})
    assert (found is None) == (reason is None)
    if found is not None:
        assert str(reason) in found.reason
        assert found.hint == "ALTER TABLE `d`.`t` ENGINE = InnoDB"
