"""Which tables can't be captured exactly, whatever their layout."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from connector.mysql.catalog import TableFacts
from connector.mysql.definitions.layouts import _misfit
from connector.mysql.server import Server
from connector.schema import TableName

SERVER = Server(False, "9.0", 1, "u", lower_case=False)
WITHOUT: Any = SimpleNamespace(of=lambda table: [])
"""No foreign keys."""

UNTRIGGERED: Any = SimpleNamespace(of=lambda table: None)


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
    found = _misfit(
        TableFacts(TableName("d", "t"), "BASE TABLE", engine, 0), SERVER, WITHOUT, {}, UNTRIGGERED
    )
    assert (found is None) == (reason is None)
    if found is not None:
        assert str(reason) in found.reason
        assert found.hint == "ALTER TABLE `d`.`t` ENGINE = InnoDB"


@pytest.mark.parametrize(
    ("namespace", "name", "fits"),
    [("d", "t", True), ("d", "T", False), ("D", "t", False), ("d", "größe", True), ("d", "GRÖßE", False)],
)
def test_a_table_that_the_log_names_in_lower_case_and_the_catalog_does_not_is_not_captured(
    namespace: str, name: str, fits: bool
) -> None:
    facts = TableFacts(TableName(namespace, name), "BASE TABLE", "InnoDB", 0)
    keeping = replace(SERVER, lower_case=True, keeps_case=True)
    assert (_misfit(facts, keeping, WITHOUT, {}, UNTRIGGERED) is None) == fits
    assert _misfit(facts, SERVER, WITHOUT, {}, UNTRIGGERED) is None
