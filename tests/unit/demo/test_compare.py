"""The demonstration's comparison: what differs is found, wherever the blocks of rows are cut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.demo.compare import Comparison, SourceTable, compare, other_columns, target_rows
from connector.demo.source import Row

TABLE = SourceTable("PostgreSQL", "public", "goods", (("name", "text"), ("id", "bigint")), ("id",))


def blocks(rows: list[Row], size: int) -> Iterator[list[Row]]:
    return (rows[at : at + size] for at in range(0, len(rows), size))


def compared(source: list[Row], target: list[Row], size: int = 2) -> Comparison:
    return compare(TABLE, blocks(source, size), blocks(target, size + 1))


def test_equal_rows_have_no_difference() -> None:
    rows: list[Row] = [(i, f"name {i}") for i in range(10)]
    result = compared(rows, list(rows))
    assert (result.source_rows, result.target_rows, result.differences) == (10, 10, 0)


def test_a_value_that_differs_is_named_with_table_key_and_column() -> None:
    result = compared([(1, "a"), (2, "b"), (3, "c")], [(1, "a"), (2, "x"), (3, "c")])
    assert [str(d) for d in result.first] == ["public.goods (2) name: 'b' in PostgreSQL, 'x' in Delta"]


@pytest.mark.parametrize(
    ("one", "other"), [("", None), (0, None), (Decimal("1.10"), Decimal("1.11")), (1.0, math.nan)]
)
def test_values_that_are_nearly_the_same_differ(one: object, other: object) -> None:
    assert compared([(1, one)], [(1, other)]).differences == 1


def test_nan_is_the_same_as_nan() -> None:
    assert compared([(1, math.nan), (2, "a")], [(1, float("nan")), (2, "a")]).differences == 0


def test_rows_of_one_side_alone_are_counted_at_the_beginning_in_the_middle_and_at_the_end() -> None:
    result = compared([(1, "a"), (2, "b"), (5, "e"), (6, "f")], [(0, "z"), (2, "b"), (3, "c"), (5, "e")])
    assert {(d.key, d.source is None) for d in result.first} == {
        ((0,), True),
        ((1,), False),
        ((3,), True),
        ((6,), False),
    }


def test_a_side_without_rows_differs_by_all_of_the_other() -> None:
    assert compared([], [(i, "a") for i in range(7)]).differences == 7
    assert compared([(i, "a") for i in range(7)], []).differences == 7
    assert compared([], []).differences == 0


KEYED = st.dictionaries(st.integers(0, 30), st.sampled_from("abc"))


@given(KEYED, KEYED, st.integers(1, 5))
def test_the_differences_are_those_of_a_plain_join(
    source: dict[int, str], target: dict[int, str], size: int
) -> None:
    expected = len(source.keys() ^ target.keys()) + sum(
        source[k] != target[k] for k in source.keys() & target.keys()
    )
    result = compared(sorted(source.items()), sorted(target.items()), size)
    assert (result.differences, result.source_rows, result.target_rows) == (
        expected,
        len(source),
        len(target),
    )


def test_a_column_of_one_side_alone_is_a_difference() -> None:
    assert [d.column for d in other_columns(TABLE, ["id", "extra"]).first] == ["extra", "name"]


def test_files_are_read_in_the_order_of_their_names_with_times_in_utc(tmp_path: Path) -> None:
    at = datetime(2026, 3, 1, 12, 0, 0, 1)
    for number, key in ((1, 20), (0, 10)):
        times = pa.array([at], pa.timestamp("us", "UTC"))
        pq.write_table(
            pa.table({"at": times, "id": [key], "n": [None]}), tmp_path / f"part-0000{number}.parquet"
        )
    assert list(target_rows(tmp_path, ["id", "at", "n"])) == [[(10, at, None)], [(20, at, None)]]
