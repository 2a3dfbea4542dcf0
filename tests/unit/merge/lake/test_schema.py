"""Creation of a Delta table that other jobs create or drop meanwhile."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from connector.schema import Column, TableName, TableSchema
from merge.lake import schema
from merge.lake.retry import with_retries
from merge.lake.schema import create_or_evolve_target
from merge.lake.target import Target, TargetState

ORDERS = TableSchema(TableName("public", "orders"), (Column("id", "int", "int"),), ("id",))


def test_a_table_that_is_not_there_once_it_was_created_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another driver was creating it: ours found its log begun, and then no version."""
    target = Target(ORDERS.table, "delta.`/lake/public/orders`", "/lake/public/orders")
    found = TargetState("id", {"id": "int"}, {}, 0, 0)
    states = iter([None, None, found])
    monkeypatch.setattr(schema, "commit_layout", lambda *_: None)
    monkeypatch.setattr(schema, "read_state", lambda *_: next(states))
    monkeypatch.setattr(schema, "check_owner", lambda *_: None)

    def create() -> TargetState:
        return create_or_evolve_target(Mock(), target, None, Mock(source="shop"), ORDERS)

    assert with_retries(create, "public.orders") == found
    assert next(states, None) is None
