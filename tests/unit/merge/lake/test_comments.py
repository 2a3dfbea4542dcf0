"""Which comments of a Delta table a merge changes, and which stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

import pytest

from connector.landing.format import comments_id
from connector.landing.manifest import TableState
from connector.schema import Column, TableComments, TableName, TableSchema
from merge.lake.comments import COMMENTS_PROPERTY, NO_COMMENTS, SourceComments, are_newer, comment_sql
from merge.lake.schema import alter_sql, create_sql, wanted_columns
from merge.lake.target import Target, TargetState

T = TableName("public", "orders")
ORDERS = TableSchema(T, tuple(Column(name, "integer", "int") for name in ("id", "A", "note")), ("id",))
TARGET = Target(T, "delta.`/lake/public/orders`")
ODD = 'it\'s\n`odd` \\ "${x}" \U0001f600'


class Zone:
    """The comments that have landed, by manifest; counts how often they are read."""

    def __init__(self, *landed: TableComments) -> None:
        self.landed = {comments_id(n, each.digest): each for n, each in enumerate(landed, 1)}
        self.reads = 0

    def read(self, id_: str) -> TableComments | None:
        self.reads += 1
        return self.landed.get(id_)

    def at(self, number: int) -> SourceComments:
        return SourceComments(self.read, list(self.landed)[number - 1])


def comments(text: str = "", **columns: str) -> TableComments:
    return TableComments(T, text, columns)


def state_of(known: SourceComments, comment: str = "", **comments: str) -> TargetState:
    properties: dict[str, str] = {COMMENTS_PROPERTY: known.recorded} if known.recorded else {}
    columns = dict.fromkeys(("id", "a", "note", "gone"), "int")
    return TargetState("id", columns, properties, 0, 0, comment=comment, comments=comments)


def changed(state: TargetState, now: SourceComments, release: str = "4.1.4") -> list[str]:
    found = list(comment_sql(TARGET, state, ORDERS, now, release))
    return [statement.replace(f"TABLE {TARGET.name}", "t") for statement in found]


def recorded(now: SourceComments) -> str:
    return f"ALTER t SET TBLPROPERTIES ('{COMMENTS_PROPERTY}' = '{now.recorded}')"


def test_with_nothing_new_nothing_is_read() -> None:
    zone = Zone(comments("Orders", a="x"))
    assert changed(state_of(zone.at(1), "by hand", id="by hand"), zone.at(1)) == []
    assert changed(state_of(NO_COMMENTS, "by hand", id="by hand"), NO_COMMENTS) == []
    assert zone.reads == 0


def test_only_a_later_manifest_makes_comments_newer() -> None:
    state = TableState(comments=comments_id(12, "abc"))
    assert [are_newer(state, manifest) for manifest in (0, 11, 12, 13)] == [True, True, False, False]
    assert not are_newer(TableState(), 0)


def test_comments_of_the_source_are_set_where_they_differ() -> None:
    zone = Zone(comments("Orders", A=ODD, id="key"))
    state = state_of(NO_COMMENTS, "by hand", id="key", a="integer", note="by hand", gone="old")
    text = "'it\\'s\\n`odd` \\\\ \"${x}\" \U0001f600'"
    assert changed(state, zone.at(1)) == [
        f"ALTER t ALTER COLUMN `a` COMMENT {text}",
        "COMMENT ON t IS 'Orders'",
        recorded(zone.at(1)),
    ]


def test_comments_that_the_source_no_longer_has_are_taken_back_unless_set_by_hand() -> None:
    zone = Zone(comments("Orders", id="key", a="x", note="old", gone="kept"), comments(note="new"))
    before = state_of(zone.at(1), "Orders", id="key", a="by hand", note="old", gone="kept")
    assert changed(before, zone.at(2)) == [
        "ALTER t ALTER COLUMN `id` COMMENT 'integer', `note` COMMENT 'new'",
        "COMMENT ON t IS ''",
        recorded(zone.at(2)),
    ]
    touched = state_of(zone.at(1), "by hand", id="by hand", note="new")
    assert changed(touched, zone.at(2)) == [recorded(zone.at(2))]


def test_before_spark_4_each_column_has_a_statement() -> None:
    zone = Zone(comments(a="x", note="y"))
    assert changed(state_of(NO_COMMENTS), zone.at(1), "3.5.9")[:2] == [
        "ALTER t ALTER COLUMN `a` COMMENT 'x'",
        "ALTER t ALTER COLUMN `note` COMMENT 'y'",
    ]


def test_comments_whose_object_is_missing_change_nothing_and_are_looked_for_again() -> None:
    zone = Zone(comments("Orders"), comments("Orders now"))
    zone.landed[list(zone.landed)[1]] = None  # type: ignore[assignment]
    assert changed(state_of(zone.at(1), "Orders"), zone.at(2)) == []
    assert COMMENTS_PROPERTY not in create_sql(TARGET, "shop", ["id"], columns(), zone.at(2))


def test_former_comments_whose_object_is_missing_count_as_set_by_hand() -> None:
    zone = Zone(comments("Orders", id="key"), comments())
    zone.landed[next(iter(zone.landed))] = None  # type: ignore[assignment]
    assert changed(state_of(zone.at(1), "Orders", id="key"), zone.at(2)) == [recorded(zone.at(2))]


def test_a_job_that_was_overtaken_brings_no_earlier_comments_back() -> None:
    zone = Zone(comments("Orders"), comments("Orders now"))
    assert changed(state_of(zone.at(2), "Orders now"), zone.at(1)) == []


def test_an_older_agent_which_knows_of_no_comments_takes_none_back() -> None:
    zone = Zone(comments("Orders"))
    assert changed(state_of(zone.at(1), "Orders"), SourceComments(zone.read)) == []


@pytest.mark.parametrize("damaged", ["{", "{}", '{"format": 2}', '{"format": 1}'])
def test_an_object_that_can_not_be_parsed_counts_as_missing(damaged: str) -> None:
    landing = Mock(root="/landing/shop", projection=lambda _: None, texts=lambda _: [("1-a.json", damaged)])
    found = SourceComments.landed(landing, T, TableState(comments="000000000000001-a"))
    assert found.now is None
    assert changed(state_of(NO_COMMENTS), found) == []


def columns() -> Mapping[str, Column]:
    return wanted_columns(T, [ORDERS])


@pytest.mark.parametrize("creates", [True, False])
def test_columns_come_with_their_comments_else_with_their_types(*, creates: bool) -> None:
    now = Zone(comments("Orders", a="x")).at(1)
    if creates:
        statement = create_sql(TARGET, "shop", ["id"], columns(), now)
        assert "COMMENT 'Orders' TBLPROPERTIES" in statement
        assert f"'{COMMENTS_PROPERTY}' = '{now.recorded}'" in statement
    else:
        bare: Any = TargetState("id", {"id": "int"}, {}, 0, 0)
        (statement,) = alter_sql(TARGET, bare, columns(), now)
        assert changed(bare, now) == ["COMMENT ON t IS 'Orders'", recorded(now)]
    assert "`A` int COMMENT 'x', `note` int COMMENT 'integer'" in statement
