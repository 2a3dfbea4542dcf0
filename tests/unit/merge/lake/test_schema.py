"""Creation of a Delta table: others create or drop it meanwhile, or its catalog can't hold its name."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from pyspark.errors import AnalysisException

from connector.errors import TableError
from connector.landing.format import comments_id
from connector.schema import Column, TableComments, TableName, TableSchema
from merge.lake import schema
from merge.lake.comments import SourceComments
from merge.lake.retry import with_retries
from merge.lake.schema import check_name, create_or_evolve_target
from merge.lake.target import Target, TargetState
from merge.spark.session_settings import ONE_TASK
from merge.sql_formatting import quoted

ORDERS = TableSchema(TableName("public", "orders"), (Column("id", "int", "int"),), ("id",))


def test_a_table_that_is_not_there_once_it_was_created_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another driver was creating it: ours found its log begun, and then no version."""
    target = Target(ORDERS.table, "delta.`/lake/public/orders`", "/lake/public/orders")
    found = TargetState("id", {"id": "int"}, {}, 0, 0, structs={"_cdc": ("op",)})
    states = iter([None, None, found])
    monkeypatch.setattr(schema, "commit_layout", lambda *_: None)
    monkeypatch.setattr(schema, "read_state", lambda *_: next(states))
    monkeypatch.setattr(schema, "check_owner", lambda *_: None)

    def create() -> TargetState:
        return create_or_evolve_target(Mock(), target, None, Mock(source="shop"), ORDERS)

    assert with_retries(create, "public.orders") == found
    assert next(states, None) is None


def test_the_log_of_a_new_table_is_written_and_read_in_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """With adaptive execution, three jobs of the session's own partitions read the one entry of the log."""
    target, settings = Target(ORDERS.table, "delta.`/lake/public/orders`"), dict[str, str | None]()
    conf = SimpleNamespace(get=settings.get, set=settings.__setitem__, unset=settings.pop)
    seen: list[dict[str, str | None]] = []

    def read(*_: object) -> TargetState:
        seen.append(dict(settings))
        return TargetState("id", {"id": "int"}, {}, 0, 0, structs={"_cdc": ("op",)})

    monkeypatch.setattr(schema, "commit_layout", lambda *_: seen.append(dict(settings)))
    monkeypatch.setattr(schema, "read_state", read)
    monkeypatch.setattr(schema, "check_owner", lambda *_: None)
    spark = cast(Any, SimpleNamespace(conf=conf, version="4.1.4"))
    create_or_evolve_target(spark, target, None, Mock(source="shop"), ORDERS)
    assert seen == [ONE_TASK] * 2
    assert not settings


@pytest.mark.parametrize("name", ["order items", "größe", "a.b", "x`y"])
def test_a_name_that_sparks_own_catalog_cannot_hold_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Delta would make its folder first, and later merges would take that for another job's."""
    table = replace(ORDERS, table=TableName("public", name))
    monkeypatch.setattr(schema, "commit_layout", lambda *_: pytest.fail("nothing is created"))
    target = Target(table.table, f"`spark_catalog`.`shop`.{quoted(name)}")
    with pytest.raises(TableError, match="holds only names") as refused:
        create_or_evolve_target(Mock(), target, None, Mock(source="shop"), table)
    assert "set lake.url" in (refused.value.hint or "")


@pytest.mark.parametrize("name", ["`spark_catalog`.`s`.`Orders_2`", "`main`.`shop`.`größe`", "delta.`/a b`"])
def test_other_names_are_held(name: str) -> None:
    check_name(Target(ORDERS.table, name))


@pytest.mark.parametrize(
    "refused",
    [AnalysisException("comment is too long"), AnalysisException("[DELTA_METADATA_CHANGED] by others")],
)
def test_a_refused_comment_stops_no_table_unless_another_job_came_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: AnalysisException
) -> None:
    def commit(_spark: Mock, _mark: Mock, statements: list[str]) -> None:
        if any("COMMENT" in statement for statement in statements):
            raise refused

    monkeypatch.setattr(schema, "commit_layout", commit)
    monkeypatch.setattr(schema, "check_owner", lambda *_: None)
    state = TargetState("id", {"id": "int"}, {}, 0, 0, structs={"_cdc": ("op",)})
    monkeypatch.setattr(schema, "read_state", lambda *_: state)
    found = TableComments(ORDERS.table, "Orders")
    comments = SourceComments(lambda _: found, comments_id(1, found.digest))
    target, mark = Target(ORDERS.table, "delta.`/lake/public/orders`"), Mock(source="shop")

    def evolve() -> TargetState:
        return create_or_evolve_target(Mock(version="4.1.4"), target, state, mark, ORDERS, comments=comments)

    if "DELTA" in str(refused):
        with pytest.raises(AnalysisException):
            evolve()
    else:
        assert evolve() == state
        assert "keeps its comments, as a new one was refused: comment is too long" in caplog.text


def test_a_table_in_which_somebody_has_moved_fields_of_ours_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Structs are inserted by place: positions would land in one another's fields."""
    monkeypatch.setattr(schema, "check_owner", lambda *_: None)
    target, mark = Target(ORDERS.table, "delta.`/lake/public/orders`"), Mock(source="shop")

    def evolve(*fields: str) -> TargetState:
        state = TargetState(
            "id", {"id": "int"}, {}, 0, 0, structs={"_cdc": fields, "of_others": ("seq", "op")}
        )
        return create_or_evolve_target(Mock(version="4.1.4"), target, state, mark, ORDERS)

    assert evolve("op", "epoch", "lsn", "seq").id == "id"
    with pytest.raises(TableError, match=r"a field _cdc\.theirs of somebody else's"):
        evolve("op", "epoch", "theirs", "lsn", "seq")
    with pytest.raises(TableError, match="the fields of _cdc in another order") as refused:
        evolve("op", "epoch", "seq", "lsn")
    assert refused.value.hint == f"ALTER TABLE {target.name} ALTER COLUMN _cdc.lsn AFTER epoch"
