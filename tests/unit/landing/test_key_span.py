"""Key spans of landing files: every key of a file is in its span, and no file with a null has one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.landing.event_batch import CdcColumns, arrow_type, assemble
from connector.landing.key_span import key_span
from connector.landing.manifest import LandedFile
from connector.landing.parquet import ROW_GROUP_ROWS, FileWriter, batches_of
from connector.position import Position
from connector.schema import Column, TableName, TableSchema
from connector.testing.memory_store import MemoryStore

FIRST = Position(1, 10, 0)
KEYED = TableSchema(TableName("public", "t"), (Column("id", "bigint", "bigint"),), ("id",))


def rows(values: Sequence[int | None]) -> pa.Table:
    ids = pa.array(values, pa.int64())
    return assemble(KEYED, [ids], CdcColumns(op="dump", epoch=1, lsn=10, seq=0))


def landed(*parts: Sequence[int | None]) -> LandedFile:
    with FileWriter(MemoryStore(), KEYED, FIRST) as writer:
        for part in parts:
            writer.append(rows(part))
        file = writer.close()
    assert file is not None
    return file


def span(type_: str, *values: Any) -> tuple[int, int] | None:
    return key_span(pa.chunked_array([pa.array(values, arrow_type(type_))]))


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    [
        ("int", [3, -5, 7], (-5, 7)),
        ("tinyint", [-128, 127], (-128, 127)),
        ("bigint", [-(2**63), 2**63 - 1], (-(2**63), 2**63 - 1)),
        ("decimal(12,2)", [Decimal("-0.05"), Decimal("12.50")], (-5, 1250)),
        ("decimal(20,0)", [Decimal(0), Decimal(2**64 - 1)], (0, 2**64 - 1)),
        ("decimal(38,10)", [Decimal("-" + 28 * "9" + "." + 10 * "9")] * 2, (1 - 10**38, 1 - 10**38)),
        ("date", [date(1969, 12, 31), date(1970, 1, 2)], (-1, 1)),
        ("timestamp_ntz", [datetime(1970, 1, 1, 0, 0, 1), datetime(1969, 12, 31)], (-86_400_000_000, 10**6)),
        ("timestamp", [datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))], (0, 0)),
        ("string", ["a", "b"], None),
        ("binary", [b"a"], None),
        ("double", [1.0], None),
        ("boolean", [True], None),
        ("array<int>", [[1]], None),
        ("int", [], None),
        ("int", [1, None], None),
    ],
)
def test_a_span_is_of_numbers_and_only_of_types_with_one_order(
    type_: str, values: list[Any], expected: tuple[int, int] | None
) -> None:
    assert span(type_, *values) == expected


def test_moments_beyond_the_years_of_python_have_a_number() -> None:
    far = 400_000 * 365 * 86_400 * 10**6 // 2
    array = pa.array([far, -far], pa.int64()).cast(pa.timestamp("us"))
    assert key_span(pa.chunked_array([array])) == (-far, far)


@given(st.lists(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1), min_size=1))
def test_a_file_has_the_span_of_all_its_rows_or_none(parts: list[list[int | None]]) -> None:
    values = [value for part in parts for value in part]
    whole = [value for value in values if value is not None]
    expected = (min(whole), max(whole)) if len(whole) == len(values) else None
    assert landed(*parts).key_span == expected


def test_a_null_in_any_row_group_leaves_a_file_without_a_span() -> None:
    group = range(ROW_GROUP_ROWS)
    assert landed(group, group).key_span == (0, ROW_GROUP_ROWS - 1)
    assert landed(group, [None], group).key_span is None
    assert landed([None], group, group).key_span is None
    assert landed(group, group, [None]).key_span is None


def test_a_table_without_a_key_has_no_spans() -> None:
    keyless = TableSchema(KEYED.table, KEYED.columns, ())
    with FileWriter(MemoryStore(), keyless, FIRST) as writer:
        writer.append(rows([1]))
        file = writer.close()
    assert file is not None
    assert file.key_span is None
    assert "key_span" not in file.model_dump_json(exclude_none=True)


def test_files_that_are_joined_have_the_span_of_both() -> None:
    store = MemoryStore()
    found = []
    for part in ([5, 9], [-2, 7]):
        with FileWriter(store, KEYED, FIRST) as writer:
            writer.append(rows(part))
            found.append(writer.close())
    with FileWriter(store, KEYED, FIRST) as writer:
        for file in found:
            assert file is not None
            for batch in batches_of(KEYED, file, store.read(file.path)):
                writer.append_batch(batch)
        whole = writer.close()
    assert whole is not None
    assert whole.key_span == (-2, 9)
