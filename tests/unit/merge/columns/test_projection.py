"""What a target has of its table: layouts, keys and records of it; its events are in `tests/spark`."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from connector.checksums.definition import bucket_schema
from connector.config import Config
from connector.config.target_columns import words_of
from connector.errors import ConfigurationError, TableError
from connector.landing.column_names import ColumnNames
from connector.schema import Column as SourceColumn
from connector.schema import TableComments, TableSchema
from merge.columns import projection as module
from merge.columns.projection import Projection, projections_of, recorded_projection
from tests.support.landing.landed import config_of, schema_of

ORDERS = schema_of(
    "public.orders", id="int", Mail="string", total="decimal(10,2)", card="bigint", note="string"
)


def configured(**settings: Any) -> Config:
    config = config_of("landing", "lake", public__orders=settings)
    assert config.lake is not None
    return config.model_copy(update={"lake": config.lake.model_copy(update={"salt": "s" * 16})})


def projection(**settings: Any) -> Projection:
    found = Projection.of(configured(**settings), ORDERS.table)
    assert found is not None
    return found


def columns(schema: TableSchema) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in schema.columns]


def test_a_table_without_such_settings_is_as_it_is() -> None:
    config = configured(deletes="soft", shapes=["current", "changes"])
    assert projections_of(config) == {}
    assert recorded_projection(config, ORDERS.table) is None


def test_comments_are_those_of_the_targets_columns_and_say_what_is_masked() -> None:
    landed = TableComments(
        ORDERS.table, "Orders", {"ID": "key", "mail": "who", "note": "gone", "card": "paid"}
    )
    found = projection(exclude_columns=["NOTE"], rename={"id": "order_id"}, mask={"Mail": "sha256"})
    columns = {"order_id": "key", "mail": "who (masked: sha256)", "card": "paid"}
    assert found.comments(landed) == TableComments(ORDERS.table, "Orders", columns)
    assert found.digest != projection(exclude_columns=["NOTE"]).digest


def test_a_layout_has_the_columns_and_types_of_the_target() -> None:
    found = projection(
        exclude_columns=["NOTE"], rename={"id": "order_id", "mail": "email"},
        mask={"mail": "sha256", "CARD": "keep last 4", "total": "null"},
    ).schema(ORDERS)  # fmt: skip
    assert columns(found) == [
        ("order_id", "int"), ("email", "string"), ("total", "decimal(10,2)"), ("card", "string"),
    ]  # fmt: skip
    assert (found.key, found.column("email").source_type) == (("order_id",), "string, masked: sha256")
    assert columns(projection(columns=["note", "ID"]).schema(ORDERS)) == [("id", "int"), ("note", "string")]
    checksums = bucket_schema(ORDERS.table)
    assert projection(columns=["id"]).schema(checksums) is checksums


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"mask": {"ID": "sha256"}}, "'id' is in the key"),
        ({"mask": {"id": "null"}}, "'id' is in the key"),
        ({"columns": ["note"]}, "'id' is in the key"),
        ({"exclude_columns": ["id"]}, "'id' is in the key"),
        ({"rename": {"mail": "NOTE"}}, "two columns of the target would have the name"),
        ({"mask": {"total": "sha256"}}, "does not apply to column 'total'"),
        ({"mask": {"total": "keep last 2"}}, "does not apply to column 'total'"),
    ],
)
def test_what_no_target_can_be_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(TableError, match=problem) as refused:
        projection(**settings).schema(ORDERS)
    assert '[tables."public.orders"]' in str(refused.value.hint)


def test_two_columns_may_exchange_their_names() -> None:
    swapped = projection(rename={"mail": "note", "note": "Mail"})
    assert columns(swapped.schema(ORDERS))[1::3] == [("note", "string"), ("Mail", "string")]


@pytest.mark.parametrize("setting", ["columns", "exclude_columns", "rename", "mask"])
def test_a_misspelled_column_is_refused_before_anything_is_built_with_it(setting: str) -> None:
    named = {"rename": {"mial": "email"}, "mask": {"mial": "null"}}.get(setting, ["id", "mial"])
    settings = projection(**{setting: named})
    with pytest.raises(TableError, match=f"{setting} names column 'mial', which the table does not have"):
        settings.check_names([ORDERS])


def test_a_masked_column_that_is_dropped_stays_masked_in_what_landed_before() -> None:
    dropped = replace(ORDERS, columns=tuple(c for c in ORDERS.columns if c.name != "Mail"))
    its = projection(mask={"mail": "sha256"}, exclude_columns=["card"])
    its.check_names([dropped, ORDERS])
    assert its.schema(dropped, [dropped, ORDERS, bucket_schema(ORDERS.table)]) == its.schema(dropped)


@pytest.mark.parametrize("hidden", [{"mask": {"MAIL": "sha256"}}, {"exclude_columns": ["mail"]}])
def test_what_may_be_a_hidden_column_under_another_name_is_refused(hidden: dict[str, Any]) -> None:
    renamed = [SourceColumn("address", "text", "string") if c.name == "Mail" else c for c in ORDERS.columns]
    named = replace(ORDERS, columns=tuple(renamed))
    layouts = [named, ORDERS]  # renamed since, or before: both may be read
    for landed in layouts:
        with pytest.raises(TableError, match=r"(?i)column 'address' may be 'mail'") as refused:
            projection(**hidden).schema(landed, layouts)
        assert 'unmasked = ["address"]' in str(refused.value.hint)
    (address,) = (column for column in named.columns if column.name == "address")
    both = replace(ORDERS, columns=(*ORDERS.columns, address))
    added = replace(both, columns=tuple(column for column in both.columns if column.name != "Mail"))
    assert projection(**hidden).schema(added, [added, both, ORDERS]), (
        "it was added, and the other one dropped"
    )
    for answer in ({"unmasked": ["Address"]}, {"rename": {"address": "address"}}):
        said = projection(**hidden, **answer)
        assert said.schema(named, layouts)
        assert said.recorded == projection(**hidden).recorded, "no rebuild is due"
    assert projection(columns=["id", "mail"], mask={"mail": "null"}).schema(named, layouts)
    assert projection(exclude_columns=["Mail", "address"]).schema(named, layouts)


def layout(names: str) -> TableSchema:
    """Return a layout of text columns, but for the key and numbers."""
    types = {name: "int" if name in ("id", "number") else "string" for name in names.split()}
    return schema_of("public.orders", **types)


@pytest.mark.parametrize(
    ("layouts", "refused"),
    [
        (["id ssn note", "id old note ssn"], "old"),
        (["id ssn note", "id old note", "id old note ssn"], "old"),  # ssn was added only later
        (["id ssn note new", "id old note ssn"], "old|new"),  # which was given the name
        (["id SSN", "id Old ssn"], "Old"),
        (["id ssn note", "id number note ssn"], "number|note"),  # its type was changed; or ssn became note
        (["id ssn note", "id note ssn"], "note"),
        (["id ssn note", "id ssn note new"], None),
        (["id ssn", "id ssn new", "id new"], None),
        (["id ssn", "id number ssn"], None),  # of another type, and ssn is where it was
        (["id ssn number", "id number ssn"], None),
        (
            ["id ssn a b", "id a b ssn"],
            "a|b",
        ),  # the three were given each other's names; or it was added again
        (["id ssn a b number", "id b ssn a number"], "a|b"),
        (
            ["id ssn a number", "id a number ssn"],
            None,
        ),  # dropped, and added again: places changed their types
        (["id a ssn", "id b ssn"], None),
        (["id ssn a", "id ssn b", "id a b"], "a"),  # a became b, and ssn a
        (["id ssn number", "id ssn a", "id number a"], None),  # which is of another type
    ],
)
def test_a_column_in_the_place_of_a_hidden_one_that_was_added_anew_is_refused(
    layouts: list[str], refused: str | None
) -> None:
    found = list(map(layout, layouts))
    hidden: list[dict[str, Any]] = [{"mask": {"ssn": "sha256"}}, {"exclude_columns": ["ssn"]}]
    listed = sorted({name.lower() for names in layouts for name in names.split()})
    hidden.append({"columns": listed, "mask": {"ssn": "sha256"}})  # whose name may be that of another one
    called = {name: f"{name} in the lake" for name in listed if name != "ssn"}
    hidden.append({"mask": {"ssn": "sha256"}, "rename": called})  # so may that of a renamed one
    for orders in (found, found[::-1]):
        for settings in hidden:
            if refused is None:
                assert projection(**settings).schema(orders[0], orders)
                continue
            with pytest.raises(TableError, match=f"(?i)column '({refused})' may be 'ssn'"):
                projection(**settings).schema(orders[0], orders)
            assert projection(**settings, unmasked=refused.split("|")).schema(orders[0], orders)


def test_a_column_that_has_the_type_of_a_hidden_one_only_since_that_is_gone_is_refused() -> None:
    """Its name may have been given to the hidden one, once it was dropped."""
    before, after = layout("id ssn note"), layout("id note")
    was = replace(
        before, columns=tuple(replace(c, type="int") if c.name == "note" else c for c in before.columns)
    )
    for layouts in ([was, after], [after, was]):
        with pytest.raises(TableError, match="column 'note' may be 'ssn'"):
            projection(mask={"ssn": "null"}).schema(after, layouts)
    assert projection(mask={"ssn": "null"}).schema(after, [before, after])


@pytest.mark.parametrize("hidden", [{"mask": {"SSN": "sha256"}}, {"exclude_columns": ["ssn"]}])
def test_a_column_that_the_catalog_has_shown_to_be_a_hidden_one_is_refused(hidden: dict[str, Any]) -> None:
    """It has the name of a dropped one next to it, of its type: it looks as if it had been dropped."""
    layouts = [layout("id ssn Note"), layout("id Note")]
    for names in (None, ColumnNames(renamed={"1": ["a", "b"]}, logged=[["ssn", "gone"], ["id", "key"]])):
        assert projection(**hidden).schema(layouts[1], layouts, names)
    seen = ColumnNames(renamed={"1": ["a", "b"], "2": ["note", "ssn"]})
    told, guessed = ColumnNames(logged=[["ssn", "note", "x"]]), ColumnNames(moves=[["-ssn", "+note"]])
    for landed, names in product(layouts, (seen, told, guessed)):
        with pytest.raises(TableError, match=r"(?i)column 'Note' may be 'ssn'.*catalog or log has shown"):
            projection(**hidden).schema(landed, layouts, names)
    assert projection(**hidden, unmasked=["note"]).schema(layouts[1], layouts, seen)


def test_what_is_recorded_differs_exactly_if_the_target_does() -> None:
    one = {"columns": ["ID", "mail"], "mask": {"MAIL": "sha256"}, "where": "id > 1"}
    same = {"columns": ["mail", "id"], "mask": {"mail": "sha256"}, "where": "id > 1"}
    recorded = projection(**one).recorded
    assert recorded == projection(**same).recorded
    others = [
        same | {"columns": ["mail", "id", "note"]},
        same | {"mask": {"mail": "null"}},
        same | {"mask": {}},
        same | {"where": "id > 2"},
        same | {"rename": {"mail": "email"}},
        {"exclude_columns": ["note"]},
    ]
    assert len({recorded, *(projection(**settings).recorded for settings in others)}) == 7
    config = configured(**one)
    assert config.lake is not None
    salted = config.model_copy(update={"lake": config.lake.model_copy(update={"salt": "t" * 16})})
    assert recorded_projection(salted, ORDERS.table) != recorded
    assert json.loads(recorded)["mask"] == {"mail": "sha256"}
    assert "s" * 16 not in recorded
    assert "id > 1" not in recorded
    unsalted = config.model_copy(update={"lake": config.lake.model_copy(update={"salt": None})})
    with pytest.raises(ConfigurationError, match=r"has no lake\.salt"):
        projections_of(unsalted)


def test_the_columns_of_a_condition_are_among_its_words() -> None:
    assert words_of("Region = 'note' AND `it's`.x > 1 OR b = r'\\' AND c = 'it\\'s' AND \"d\" = 1") >= {
        "region", "it", "s", "x", "b", "c", "d",
    }  # fmt: skip
    assert not words_of("Region = 'note' AND b = r'\\' AND c = 'it\\'s mine'") & {"note", "mine", "it"}


def test_a_condition_that_a_session_can_not_optimize_stops_its_table_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "F", MagicMock())
    failing = Mock(side_effect=ConfigurationError("the query can't be optimized: a rule of the platform"))
    monkeypatch.setattr(module, "why_unstable", failing)
    with pytest.raises(TableError, match="a rule of the platform"):
        projection(where="total > 0")._with_condition(MagicMock(), "total > 0")


def test_a_condition_is_asked_of_rows_alone_not_of_deletes_whose_columns_are_null(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "F", MagicMock())
    monkeypatch.setattr(module, "why_unstable", Mock(return_value=None))
    events = MagicMock()
    projection(where="1 / total > 0")._with_condition(events, "1 / total > 0")
    asked = events.selectExpr.call_args.args[1]
    assert asked.startswith(
        "CASE WHEN _cdc.op IN ('insert', 'update', 'dump') THEN coalesce((\n1 / total > 0\n)"
    )
