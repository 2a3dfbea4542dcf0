"""Names and places of the shapes of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import Row

from connector.config import Config
from connector.errors import ConfigurationError, GapError, TableError
from connector.landing.manifest import Manifest
from connector.position import CHUNK_SEQ
from connector.schema import TableName, TableSchema
from merge import queries
from merge.job import MergeRun
from merge.lake.control_table import Frontier, Frontiers
from merge.lake.target import SOURCE_PROPERTY, TABLE_PROPERTY, Target, not_landed, targets_of
from merge.landing_zone import DAMAGED_HINT
from merge.proof import rebuilding
from merge.shapes import shape_job
from merge.shapes.changes_job import ChangesJob
from merge.shapes.merging import JOBS
from merge.shapes.shape import Shape, shapes_of, targets_with_shapes, with_shapes
from merge.shapes.shape_job import ShapeJob
from tests.support.landing.landed import Chunk, Event, Landed, config_of, schema_of

ORDERS, CHANGES = TableName("public", "orders"), TableName("public", "orders_changes")


def configured(lake: dict[str, Any], *tables: str) -> Config:
    shapes = {table.replace(".", "__"): {"shapes": ["history", "current", "changes"]} for table in tables}
    config = config_of("/landing", "/lake", **shapes)
    return Config.model_validate(config.model_dump(by_alias=True) | {"lake": lake})


def places(config: Config, *tables: str) -> dict[str, str]:
    located = targets_of(config, [TableName.parse(table) for table in tables])
    found = targets_with_shapes(config, located, shapes_of(config))
    return {str(name): target.name for name, target in found.items()}


def test_shapes_lie_beside_their_table() -> None:
    by_url = configured({"url": "file:///lake"}, "public.orders")
    assert places(by_url, "public.orders", "sales.orders_history") == {
        "public.orders": "delta.`file:///lake/public/orders`",
        "public.orders_history": "delta.`file:///lake/public/orders_history`",
        "public.orders_changes": "delta.`file:///lake/public/orders_changes`",
        "sales.orders_history": "delta.`file:///lake/sales/orders_history`",
    }
    in_catalog = configured({"catalog": "main", "schema": "shop"}, "public.orders")
    assert places(in_catalog, "public.orders")["public.orders_changes"] == "`main`.`shop`.`orders_changes`"
    located = targets_of(in_catalog, [ORDERS])
    assert targets_with_shapes(in_catalog, located, shapes_of(in_catalog))[CHANGES].shape == "changes"


@pytest.mark.parametrize(
    ("lake", "tables", "shaped", "problem"),
    [
        ("url", ["public.orders", "public.orders_history"], ["public.orders"],
         "the history of public.orders (public.orders_history) would lie where"
         " table public.orders_history does"),
        ("url", ["public.orders", "public.Orders_Changes"], ["public.orders"],
         "the changes of public.orders (public.orders_changes) would lie where"
         " table public.Orders_Changes does"),
        ("schema", ["public.orders", "sales.orders_changes"], ["public.orders"],
         "the changes of public.orders (public.orders_changes) would lie where"
         " table sales.orders_changes does"),
        ("schema", ["public.orders", "sales.orders"], ["public.orders", "sales.orders"],
         "the history of sales.orders (sales.orders_history) would lie where the history of public.orders"
         " (public.orders_history) does"),
    ],
)  # fmt: skip
def test_two_things_at_one_place_are_refused(
    lake: str, tables: list[str], shaped: list[str], problem: str
) -> None:
    lakes = {"url": {"url": "file:///lake"}, "schema": {"catalog": "main", "schema": "shop"}}
    config = configured(lakes[lake], *shaped)
    with pytest.raises(ConfigurationError) as caught:
        places(config, *tables)
    assert str(caught.value) == problem
    assert caught.value.hint is not None
    assert caught.value.hint.startswith('take "')


def test_a_shape_that_no_cut_names_is_at_the_beginning() -> None:
    """Unlike a table that no cut names, whose first dump comes after all of them."""
    frontiers = Frontiers(newest=7, by_table={ORDERS: Frontier(7, 3, "id")}).naming([CHANGES, ORDERS])
    assert (frontiers.of(CHANGES), frontiers.of(ORDERS)) == (Frontier(0), Frontier(7, 3, "id"))
    assert frontiers.of(TableName("public", "new")) == Frontier(7)


def test_the_frontier_of_an_excluded_table_is_not_that_of_a_shape_of_its_name() -> None:
    landed = Landed()
    landed.table(schema_of("public.orders", id="int"))
    landed.table(schema_of("public.orders_changes", id="int"))
    landed.commit(1)
    del landed.tables[CHANGES]
    landed.commit(2)
    for manifest, expected in ((1, Frontier(0)), (2, Frontier(2, 3, "id"))):
        recorded = Frontiers(
            newest=2, by_table={CHANGES: Frontier(manifest, 3, "id"), ORDERS: Frontier(1, 5)}
        )
        frontiers = with_shapes(recorded, [CHANGES], landed)
        assert (frontiers.of(CHANGES), frontiers.of(ORDERS)) == (expected, Frontier(1, 5))


@pytest.mark.parametrize(("kind", "job"), JOBS.items())
def test_a_shape_begins_only_with_a_table_of_its_own(
    kind: str, job: Callable[..., ShapeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    landed = Landed()
    landed.table(schema_of("public.orders", id="int"))
    shape, config = Shape(ORDERS, kind), configured({"url": "file:///lake"}, "public.orders")
    target = targets_with_shapes(config, targets_of(config, [ORDERS]), shapes_of(config))[shape.name]
    others = Mock(properties={SOURCE_PROPERTY: "shop", TABLE_PROPERTY: str(shape.name)})
    monkeypatch.setattr(shape_job, "read_state", lambda *_: others)
    merge = job(Mock(), config, landed, landed.commit(1), shape, target, Mock())
    with pytest.raises(TableError, match=r"already holds the rows of source table public\.orders_"):
        merge.merge(Frontier(0))


def test_changes_begin_after_a_missing_manifest_but_do_not_pass_over_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class WithHole(Landed):
        root = "/landing/shop"

        def get(self, number: int) -> Manifest:
            if number == 2:
                raise GapError("manifest 2 is missing")
            return super().get(number)

        def load(self, first: int, last: int) -> None:
            pass

    zone, schema = WithHole(), schema_of("public.orders", id="int")
    zone.table(schema)
    for lsn in (10, 20, 30):
        zone.commit(lsn + 1, [zone.log(schema, [Event("insert", lsn, 0, {"id": lsn})])])
    target = Target(CHANGES, "lake.orders_changes", (), shape="changes")
    job = ChangesJob(Mock(), Mock(), zone, zone.get(3), Shape(ORDERS, "changes"), target, Mock())
    assert [file.first.lsn for file in job._log(0)[0]] == [30]
    assert "changes of manifests 1 to 2 are gone" in caplog.text
    with pytest.raises(TableError, match="manifest 2 is missing in /landing/shop") as caught:
        job._log(1)
    # The way out that the hint names: an idle merge does not stop before it has looked at the Delta table.
    assert "drop it: the next merge begins it after that manifest" in str(caught.value.hint)
    assert not job.is_idle(Frontier(1, 3, "id"))


class Typed(Landed):
    """`b` was a string and is an int; a full dump followed."""

    def __init__(self) -> None:
        super().__init__()
        old, new = (schema_of("public.orders", id="int", b=type_) for type_ in ("string", "int"))
        self.layouts = {new.id: new, old.id: old}
        self.table(old)
        self.commit(20, [self.log(old, [Event("insert", 10, 0, {"id": 1, "b": "x"})])])
        self.table(new)
        self.commit(30, [self.log(new, [Event("insert", 25, 0, {"id": 2, "b": 2})])])
        self.full_dump("public.orders", 1, 35, started_in=3)
        self.commit(40, [self.chunk(new, Chunk(35, 36, [{"id": 1, "b": 1}, {"id": 2, "b": 2}]))])
        self.commit(50, [self.log(new, [Event("delete", 45, 0, {"id": 2})])])

    def load(self, first: int, last: int) -> None:
        pass

    def check_settings(self, table: TableName, newest: str | None) -> None:
        pass

    def schemas(self, named: Iterable[tuple[TableName, str]]) -> dict[str, TableSchema]:
        return {id_: self.layouts[id_] for _, id_ in named}


def job_of(kind: str, zone: Landed) -> Any:
    target = Target(Shape(ORDERS, kind).name, "lake.shape", (), shape=kind)
    manifest = zone.get(zone.number)
    return JOBS[kind](Mock(), Mock(), zone, manifest, Shape(ORDERS, kind), target, Mock())  # type: ignore[arg-type]


def test_a_history_begins_with_the_last_full_dump_where_types_before_it_can_not_become_todays() -> None:
    plan = job_of("history", zone := Typed())._plan(Frontier(0), None)
    assert (plan.since, len(plan.log), len(plan.ended)) == ((1, 35, CHUNK_SEQ), 1, 1)
    zone.tables[ORDERS] = zone.tables[ORDERS].changed(full_dump=None)
    zone.commit(60)
    with pytest.raises(TableError, match="column 'b' was int and is now string") as caught:
        job_of("history", zone)._plan(Frontier(0), None)
    assert "copy what you need, then drop" in str(caught.value.hint)


def test_changes_begin_after_the_last_log_of_types_that_can_not_become_todays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = job_of("changes", Typed())
    assert [file.first.lsn for file in job._fitting(job._log(0)[0], None)[0]] == [25, 45]
    assert "column 'b' was int and is now string" in caplog.text


@pytest.mark.parametrize("kind", JOBS)
def test_a_shape_that_others_have_changed_is_neither_continued_nor_begun_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention may have removed what it was made of, and what others inserted would stay."""
    monkeypatch.setattr(shape_job, "read_state", lambda *_: Mock(id="id"))
    monkeypatch.setattr(shape_job, "check_owner", lambda *_: None)
    restored = Mock(why_broken="it was restored", manifest=3, last=None)
    monkeypatch.setattr(shape_job, "read_commits", lambda *_, **__: restored)
    with pytest.raises(TableError, match=r"no longer the .* that we merged: it was restored") as caught:
        job_of(kind, Typed()).merge(Frontier(3, 7, "id"))
    assert "copy what you need, then drop" in str(caught.value.hint)


def test_a_damaged_file_of_a_shape_is_not_said_to_be_replaced_by_a_dump() -> None:
    landed, shape = Landed(), Shape(ORDERS, "changes")
    manifest, error = landed.commit(1), TableError(CHANGES, "landing file is missing", hint=DAMAGED_HINT)
    run = MergeRun(Mock(), Mock(), landed, Frontiers(), manifest, Mock(), False, {CHANGES: shape})
    hints = [run._failed(Mock(table=table), error).hint for table in (ORDERS, CHANGES)]
    assert hints == [
        DAMAGED_HINT,
        'restore it from a copy; or take "changes" out of tables."public.orders".shapes',
    ]


def test_a_shape_that_lost_its_version_is_begun_anew_once_it_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dump brings a history something, but no changes: it did not lead out."""
    monkeypatch.setattr(queries, "read_state", lambda *_: None)
    config = configured({"url": "file:///lake"}, "public.orders")

    def hint(name: TableName) -> str:
        row: Any = {"manifest": 1, "tables": {str(name): Row(manifest=1, version=3, id="id")}}
        with pytest.raises(ConfigurationError) as caught:
            queries._as_of(Mock(), config, row, lambda names, _: names, named=True)
        return str(caught.value.hint)

    dropped = "copy what you need and drop it, if it is still there; "
    assert f"{dropped}the next merge that has a change of public.orders begins a new one" in hint(CHANGES)
    history = hint(Shape(ORDERS, "history").name)
    assert f"{dropped}run deltatide dump public.orders, then merge: that begins a new one" in history


def test_a_table_is_not_rebuilt_into_the_place_of_a_shape() -> None:
    landed, config = Landed(), configured({"url": "file:///lake"}, "public.orders")
    landed.table(schema_of("public.orders", id="int"))
    with pytest.raises(ConfigurationError, match=r"is the Delta table of public\.orders_changes"):
        rebuilding._place_of(Mock(), config, landed.commit(1), Mock(table=ORDERS), CHANGES)


def test_what_is_about_current_rows_says_so_of_a_shape() -> None:
    landed = Landed()
    landed.table(schema_of("public.orders", id="int"))
    error = not_landed(CHANGES, landed.commit(1))
    assert "is not a source table; if it holds the changes of public.orders" in str(error)
