"""The settings in which a table is merged, by how much is read and how large it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from connector.errors import TableError
from connector.position import Position
from connector.schema import TableName
from merge import table
from merge.apply import LARGE_BYTES, Rules, planning_of, tie
from merge.key_pruning import FEW_KEYS
from merge.keys import TargetLayout
from merge.lake.commits import Commits, Mark
from merge.lake.control_table import AS_LANDED, Built, Frontier
from merge.lake.target import (
    COLUMNS_PROPERTY,
    COLUMNS_SINCE_PROPERTY,
    GENERATION_PROPERTY,
    VECTORS_PROPERTY,
    Target,
    TargetState,
)
from merge.shapes.history import merge_sql
from merge.spark.session_settings import ANY_VERSION, COMPILED, LISTED_KEYS, ONE_TASK, REWRITTEN
from merge.table import (
    FEW_ROWS,
    LITTLE_BYTES,
    SMALL_BYTES,
    TINY_BYTES,
    Beginning,
    TableJob,
    beginning_of,
    beginning_of_another,
    idle_frontier,
    settings_for,
)
from tests.support.landing.landed import Landed, config_of, schema_of


def state_of(size: int) -> TargetState:
    return TargetState("id", {}, {}, files=1, bytes=size)


def test_few_rows_of_a_small_table_are_merged_in_one_task_and_files_of_a_tiny_one_are_rewritten() -> None:
    found = settings_for(FEW_ROWS, LITTLE_BYTES, state_of(TINY_BYTES))
    assert (ONE_TASK | REWRITTEN).items() <= found.items()
    assert not COMPILED.keys() & found.keys()
    found = settings_for(FEW_ROWS, LITTLE_BYTES, state_of(SMALL_BYTES))
    assert ONE_TASK.items() <= found.items()
    assert not (COMPILED | REWRITTEN).keys() & found.keys()


def test_a_merge_of_many_rows_or_into_a_large_table_is_compiled_and_keeps_deletion_vectors() -> None:
    for rows, landed, size in ((FEW_ROWS + 1, 1, 0), (1, 1, LARGE_BYTES + 1), (1, LARGE_BYTES + 1, 0)):
        found = settings_for(rows, landed, state_of(size))
        assert COMPILED.items() <= found.items()
        assert not (ONE_TASK | REWRITTEN).keys() & found.keys()


def test_few_rows_of_a_table_in_between_keep_deletion_vectors_and_are_interpreted() -> None:
    found = settings_for(1, 1, state_of(SMALL_BYTES + 1))
    assert not (COMPILED | ONE_TASK | REWRITTEN).keys() & found.keys()


def test_a_merge_of_listed_keys_is_planned_once_unless_it_rewrites_the_files_that_it_touches() -> None:
    layout = TargetLayout({"id": "bigint"}, ("id",), ())
    marked = TargetState("id", {}, {VECTORS_PROPERTY: "true"}, files=1, bytes=LARGE_BYTES + 1)
    assert planning_of(marked, layout, FEW_KEYS) == LISTED_KEYS
    assert planning_of(marked, layout, FEW_KEYS + 1) == {}
    assert planning_of(state_of(LARGE_BYTES + 1), layout, FEW_KEYS) == {}


def test_a_column_that_spark_can_not_compare_decides_nothing() -> None:
    """Somebody has added it, so no event has a value. All types of sources are compared."""
    types = {"id": "bigint", "map<": "int", "texts": "array<string>", "variant": "decimal(20,0)"}
    added = ("map<string,int>", "array<map<string,int>>", "struct<a:struct<b:variant>>", "geometry(4326)")
    names = {f"added_{number}": type_ for number, type_ in enumerate(added)}
    layout = TargetLayout({**types, **names}, ("id",), ())
    assert layout.compared == ["map<", "texts", "variant"]
    target = Target(TableName("public", "orders_history"), "orders_history")
    of_history, _, updates = merge_sql(target, "v", layout, Position(1, 8, 0)).partition(" THEN UPDATE ")
    assert "added" not in tie(layout, Rules(partial=False, ties=True, soft=False)) + of_history
    assert "added" in updates


def test_few_rows_with_large_values_are_not_merged_in_one_task() -> None:
    found = settings_for(1, LITTLE_BYTES + 1, state_of(TINY_BYTES))
    assert REWRITTEN.items() <= found.items()
    assert not (COMPILED | ONE_TASK).keys() & found.keys()


def test_an_idle_table_is_looked_at_unless_it_is_known_to_be_built_as_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, masked = (Target(TableName("public", "orders"), "orders", columns=its) for its in (None, "{}"))
    rebuilt = {COLUMNS_PROPERTY: "{}", COLUMNS_SINCE_PROPERTY: "8", GENERATION_PROPERTY: "1"}
    known = Built(masked.built_with, 1)

    def looked(target: Target, frontier: Frontier, properties: dict[str, str] | None) -> Any:
        state = None if properties is None else TargetState("id", {}, properties, 1, 1)
        monkeypatch.setattr(table, "read_state", lambda *_: state)
        spark: Any = None
        found = idle_frontier(spark, target, frontier)
        return found and found.built

    assert looked(plain, Frontier(9, 7, "id", built=AS_LANDED), rebuilt) == AS_LANDED
    assert looked(plain, Frontier(9, 7, "id"), {}) == AS_LANDED
    assert looked(plain, Frontier(9, 7, "id", built=AS_LANDED, disputed=True), {}) == AS_LANDED
    assert looked(plain, Frontier(9, 7, "other", built=AS_LANDED, disputed=True), {}) is None
    assert looked(masked, Frontier(9, 8, "id", built=Built(masked.built_with, 3)), rebuilt) == Built(
        masked.built_with, 3
    ), "whatever is there now"
    assert looked(masked, Frontier(9, 8, "id", built=known), rebuilt) == known
    assert looked(masked, Frontier(9, 7, "id", built=AS_LANDED), rebuilt) is None, "rebuilt since"
    assert looked(plain, Frontier(9, 8, "id", built=known), {}) is None, "restored since"
    assert looked(plain, Frontier(9, 8, "other"), {}) is None
    for target, at, properties in ((plain, None, rebuilt), (plain, known, rebuilt), (masked, AS_LANDED, {})):
        with pytest.raises(TableError, match="was built with"):
            looked(target, Frontier(9, 8, "id", built=at), properties)


def test_a_table_that_no_cut_knows_is_refused_if_it_was_merged_from_another_landing_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its fences would skip what has landed in this one, up to the number that the other one had."""
    landed: Any = Landed(writer="here-")
    landed.root = "landing/shop"
    orders = schema_of("public.orders", id="int")
    landed.table(orders)
    landed.commit(10)
    monkeypatch.setattr(table, "recorded_frontiers", lambda *_: [])

    def begins(write_id: str) -> Beginning:
        last = Mark("shop", 1, write_id=write_id)
        monkeypatch.setattr(table, "read_commits", lambda *_: Mock(last=last))
        target = Target(orders.table, "orders")
        return beginning_of(Mock(), config_of("/landing", "/lake"), landed, target, "id", Frontier(0))

    assert begins(landed.get(1).write_id).trusted
    with pytest.raises(TableError, match="up to manifest 1 of another landing zone") as refused:
        begins("there-1")
    assert "drop that Delta table" in str(refused.value.hint)


def test_merging_another_delta_table_begins_where_that_one_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded, anything = Frontier(8, 3, "new", 0), Mock()
    monkeypatch.setattr(table, "recorded_frontiers", lambda *asked: [recorded] if asked[3] == "new" else [])
    begins = [beginning_of_another(anything, anything, anything, id_, 9) for id_ in ("new", "newer", None)]
    assert begins == [recorded, Frontier(0), Frontier(0)]


def test_rows_that_wait_for_a_column_are_counted_in_a_version_of_any_age() -> None:
    """A layout that changed without rows leaves the version as it was, perhaps weeks ago."""
    settings = dict[str, str | None]()
    conf = SimpleNamespace(get=settings.get, set=settings.__setitem__, unset=settings.pop)
    then = dict[str, str | None]()

    class Rows:
        def where(self, _: str) -> Rows:
            return self

        def count(self) -> int:
            then.update(settings)
            return 2

    spark: Any = SimpleNamespace(conf=conf)
    target: Any = SimpleNamespace(at=lambda *_: Rows())
    none: Any = None
    job = TableJob(spark, none, none, target, none, {}, none, none)
    assert job._count_missing(Commits(3, 1, 4, None)) == 2
    assert then == ANY_VERSION
    assert not settings


@pytest.mark.parametrize("rebuilt", [False, True])
def test_the_whole_history_that_a_rebuild_reads_is_not_read_in_one_task(
    monkeypatch: pytest.MonkeyPatch, rebuilt: bool
) -> None:
    settings = dict[str, str | None]()
    conf = SimpleNamespace(get=settings.get, set=settings.__setitem__, unset=settings.pop)
    spark: Any = SimpleNamespace(conf=conf)
    plan: Any = SimpleNamespace(rows=1, bytes=1, all=["a file"], sweeps=(), partial=False)
    none: Any = None
    mark = Mark("shop", 2)
    job = TableJob(spark, none, none, none, plan, {}, state_of(1), mark)

    def read(*_: Any, **__: Any) -> Commits:
        assert (ONE_TASK.items() <= settings.items()) is not rebuilt
        raise InterruptedError

    monkeypatch.setattr(table, "read_commits", read)
    monkeypatch.setattr(TableJob, "_apply", lambda *_: (None, None))
    with pytest.raises(InterruptedError):
        job.merge(Frontier(1, 1, "id"), mark.rebuild_after(None) if rebuilt else None)
    assert not settings
