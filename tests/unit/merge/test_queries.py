"""Which cuts are refused: those whose Delta tables have other rows by now, or the newest with other masks."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row

from connector.config import Config
from connector.errors import ConfigurationError
from connector.schema import TableName
from merge import queries
from merge.lake.control_table import AS_LANDED
from merge.lake.target import SHAPE_PROPERTY, Target, TargetState
from merge.views.view import VIEW
from tests.support.landing.landed import config_of

ORDERS, SEEN = TableName("public", "orders"), TableName("views", "seen")


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A lake that still has the versions of the cut; the view `seen` reads `orders`."""

    def state(_: Any, target: Target) -> TargetState:
        properties = {SHAPE_PROPERTY: VIEW} if target.table == SEEN else {}
        return TargetState("id", {}, properties, 1, 1)

    monkeypatch.setattr(queries, "read_state", state)
    monkeypatch.setattr(queries, "version_is_unchanged", lambda *_: True)
    monkeypatch.setattr(queries, "stale_views", lambda *_: {})
    monkeypatch.setattr(queries, "tables_read", lambda *_: {ORDERS})
    monkeypatch.setattr(queries, "with_whole_filters", lambda frame, _: frame)
    monkeypatch.setattr(Target, "at", lambda self, _, version: (str(self.table), version))
    return monkeypatch


def read(config: Config, *tables: TableName, named: bool = False) -> list[Any]:
    """Read tables of a cut; all were built as they landed."""
    cut = Row(manifest=8, version=3, id="id", missing=0, error=None)
    built = {str(SEEN): None}  # which is not known of a view
    row: Any = {"manifest": 8, "tables": {str(ORDERS): cut, str(SEEN): cut}, "built_with": built}
    return [*queries._as_of(Mock(), config, row, lambda *_: tables, named=named).values()]


def test_a_cut_is_refused_whose_version_is_another_commit_by_now(patched: pytest.MonkeyPatch) -> None:
    config = config_of("/landing", "/lake")
    assert read(config, ORDERS) == [(str(ORDERS), 3)]
    patched.setattr(queries, "version_is_unchanged", lambda *_: False)
    for named in (False, True):
        with pytest.raises(ConfigurationError, match=r"lost its version 3 .* after the cut of manifest 8"):
            read(config, ORDERS, named=named)


def test_neither_a_table_nor_a_view_of_it_is_read_as_current_with_other_masks_than_configured(
    patched: pytest.MonkeyPatch,
) -> None:
    """A cut that is named is read as it was built."""
    config = config_of("/landing", "/lake", public__orders={"mask": {"b": "null"}})
    for table, what in ((ORDERS, "orders` has other columns"), (SEEN, "orders`, which .*seen` reads, has")):
        with pytest.raises(ConfigurationError, match=what):
            read(config, table)
        assert read(config, table, named=True) == [(str(table), 3)]
    assert queries.built_with_in(config, ORDERS) != AS_LANDED.fingerprint
    patched.setattr(queries, "tables_read", lambda *_: set())
    assert read(config, SEEN) == [(str(SEEN), 3)]
